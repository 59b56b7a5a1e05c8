package route_test

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/race"
	"github.com/surebus/eventbus/internal/route"
)

var long = flag.Bool("long", false, "run the tests that take minutes")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func names(r *result) (names []string) {
	for _, s := range r.subs {
		names = append(names, s.name)
	}
	return names
}

// subscribe adds s to the table, and returns what removes it: with another pattern of
// the same text, as the bus does.
func subscribe[S comparable, R any](table *route.Table[S, R], p *route.Pattern, s S) (remove func()) {
	place := table.Add(p, s)
	return func() {
		again, _ := route.Parse(p.String())
		table.Remove(again, place)
	}
}

func TestR4_SubscriptionsComeInTheOrderInWhichTheyWereAdded(t *testing.T) {
	table := newTable()
	patterns := []string{"**", "order.placed", "*", "order.*", "**.placed", "order.pl*", "{order.*,*.placed}", "*.*ed", "order.?laced", "order.placed"}
	for i, p := range patterns {
		table.Add(mustParse(t, p), &sub{strconv.Itoa(i)})
	}
	require.Equal(t, strings.Fields("0 1 2 3 4 5 6 7 8 9"), names(table.Lookup("order.placed")))
	require.Equal(t, strings.Fields("0 2"), names(table.Lookup("x")))
	require.Equal(t, 10, table.Len())
}

func TestR1_SeveralAlternativesThatMatchYieldOneSubscription(t *testing.T) {
	table := newTable()
	table.Add(mustParse(t, "{a.*,*.b,**,a.b}"), &sub{"x"})
	require.Equal(t, []string{"x"}, names(table.Lookup("a.b")))
	require.Equal(t, 1, table.Len())
}

func TestR5_RemoveIsIdempotentAndTakesOnlyItsOwn(t *testing.T) {
	table, p, s := newTable(), mustParse(t, "a.*"), &sub{"s"}
	first, second := subscribe(table, p, s), subscribe(table, p, s)
	require.Len(t, table.Lookup("a.b").subs, 2)
	first()
	first()
	require.Len(t, table.Lookup("a.b").subs, 1)
	require.Equal(t, 1, table.Len())
	second()
	require.Nil(t, table.Lookup("a.b").subs)
	require.Zero(t, table.Len())
}

func TestR6_AChangeIsSeenThoughTheTypeIsCached(t *testing.T) {
	table := newTable()
	for range 3 {
		table.Lookup("a.b")
	}
	r, _, ok := table.Cached("a.b")
	require.True(t, ok, "a type that is asked for again must be cached")
	require.Empty(t, r.subs)
	remove := subscribe(table, mustParse(t, "a.*"), &sub{"s"})
	_, _, ok = table.Cached("a.b")
	require.False(t, ok)
	require.Len(t, table.Lookup("a.b").subs, 1)
	require.Same(t, table.Lookup("a.b"), table.Lookup("a.b"))
	remove()
	require.Empty(t, table.Lookup("a.b").subs)
}

func TestR6_ATypeIsAdmittedAtItsSecondSight(t *testing.T) {
	built := 0
	table := route.NewTable(func(string, []*sub) *result { built++; return &result{} })
	_, _, ok := table.Cached("a.b")
	require.False(t, ok)
	for want := range 2 {
		table.Lookup("a.b")
		require.Equal(t, want+1, built)
		_, _, ok = table.Cached("a.b")
		require.Equal(t, want == 1, ok)
	}
	table.Lookup("a.b")
	require.Equal(t, 2, built)
}

// The slice may be the index's own, but then nothing is ever put behind it: who keeps
// a result keeps only its subscriptions.
func TestR6_WhatBuildIsGivenHasNoRoomForMore(t *testing.T) {
	table := newTable()
	var given [][]*sub
	for i := range 40 {
		table.Add(mustParse(t, "a"), &sub{strconv.Itoa(i)})
		given = append(given, table.Lookup("a").subs)
	}
	for i, subs := range given {
		require.Len(t, subs, i+1)
		require.Equal(t, len(subs), cap(subs))
		require.Equal(t, strconv.Itoa(i), subs[i].name)
	}
}

func TestR6_NothingKeepsWhatAStringIsAPartOf(t *testing.T) {
	for n := range 50 {
		nothingKeepsWhatATypeIsAPartOf(t, "a.bc"+strings.Repeat("c", n))
	}
}

func nothingKeepsWhatATypeIsAPartOf(t *testing.T, text string) {
	table := route.NewTable(func(string, []*sub) string { return "" })
	freed := make(chan struct{}, 2)
	// part returns text as a piece of a large string.
	part := func(text string) string {
		page := make([]byte, 1<<20)
		copy(page, text)
		runtime.AddCleanup(&page[0], func(done chan struct{}) { done <- struct{}{} }, freed)
		return unsafe.String(&page[0], len(text))
	}
	table.Add(mustParse(t, part("a.b*")), &sub{})
	typ := part(text)
	for range 3 {
		table.Lookup(typ)
	}
	_, _, ok := table.Cached(typ)
	require.True(t, ok)
	typ = "" //nolint:ineffassign // the last reference
	requireFreed(t, freed)
	requireFreed(t, freed)
	runtime.KeepAlive(table)
}

func TestR6_AFullCacheStillAdmits(t *testing.T) {
	table := newTable()
	for i := range 40_000 {
		typ := strconv.Itoa(i)
		table.Lookup(typ)
		table.Lookup(typ)
		_, _, ok := table.Cached(typ)
		require.True(t, ok, typ)
	}
}

func TestR5_ARemovedSubscriptionIsNotKept(t *testing.T) {
	table := newTable()
	freed := make(chan struct{})
	func() {
		s := &sub{"s"}
		runtime.AddCleanup(s, func(done chan struct{}) { close(done) }, freed)
		remove := subscribe(table, mustParse(t, "{a.*,*.b}"), s)
		for range 3 {
			require.Len(t, table.Lookup("a.b").subs, 1)
		}
		remove()
	}()
	requireFreed(t, freed)
	runtime.KeepAlive(table)
}

// A list that has lost one is not copied at once, and those that are added next fill
// the room behind it.
func TestR5_ARemovedSubscriptionStaysAwayWhenTheListGrows(t *testing.T) {
	table, p := newTable(), mustParse(t, "a")
	var want []*sub
	add := func() func() {
		want = append(want, &sub{strconv.Itoa(len(want))})
		return subscribe(table, p, want[len(want)-1])
	}
	remove := add()
	for range 40 {
		add()
	}
	remove()
	want = want[1:]
	for range 200 {
		add()
		require.Equal(t, want, table.Lookup("a").subs)
	}
}

func requireFreed(t *testing.T, freed <-chan struct{}) {
	t.Helper()
	for range 100 {
		runtime.GC()
		runtime.Gosched() // cleanups run in a goroutine of the runtime
		select {
		case <-freed:
			return
		default:
		}
	}
	t.Fatal("something still holds it")
}

func TestR6_AFloodOfUniqueTypesEvictsNothing(t *testing.T) {
	table := newTable()
	table.Add(mustParse(t, "hot.*"), &sub{"s"})
	for range 2 {
		for i := range 100 {
			table.Lookup("hot." + strconv.Itoa(i))
		}
	}
	for i := range 300_000 {
		table.Lookup("cold." + strconv.Itoa(i))
	}
	cached := 0
	for i := range 100 {
		if _, _, ok := table.Cached("hot." + strconv.Itoa(i)); ok {
			cached++
		}
	}
	require.GreaterOrEqual(t, cached, 95)
}

func TestR6_AThousandHotTypesAreAllCached(t *testing.T) {
	for _, prefix := range []string{"hot.", "types.that.are.hot.", "types.that.are.hot.and.have.long.names."} {
		for name, before := range map[string]int{"in a new cache": 0, "in a full one": 20_000} {
			t.Run(prefix+" "+name, func(t *testing.T) {
				table := newTable()
				for i := range 2 * before {
					table.Lookup("cold." + strconv.Itoa(i/2))
				}
				hot := func(look func(typ string)) {
					for i := range 1_000 {
						look(prefix + strconv.Itoa(i))
					}
				}
				for range 10 {
					hot(func(typ string) { table.Lookup(typ) })
				}
				cached := 0
				hot(func(typ string) {
					if _, _, ok := table.Cached(typ); ok {
						cached++
					}
				})
				require.GreaterOrEqual(t, cached, 980)
			})
		}
	}
}

func TestR6_HeapStaysFlatWithUniqueTypes(t *testing.T) {
	count := 1_000_000
	switch {
	case *long:
		count = 10_000_000
	case testing.Short() || race.Enabled:
		count = 100_000
	}
	table := newTable()
	for i := range 1_000 {
		table.Add(mustParse(t, fmt.Sprintf("svc%d.*", i)), &sub{})
	}
	var key [32]byte
	lookup := func(from, to int) {
		for i := from; i < to; i++ {
			k := append(key[:0], "svc7."...)
			typ := string(strconv.AppendInt(k, int64(i), 10))
			table.Lookup(typ)
			table.Lookup(typ) // even those that come twice
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	lookup(0, 50_000) // until the cache is full
	before := heap()
	lookup(50_000, 50_000+count)
	after := heap()
	t.Logf("heap %d kB before, %d kB after %d unique types", before>>10, after>>10, count)
	require.Less(t, int64(after)-int64(before), int64(1<<20))
	runtime.KeepAlive(table)
}

func TestR6_CachedAndCachedLookupAllocateNothing(t *testing.T) {
	table := newTable()
	table.Add(mustParse(t, "a.*"), &sub{})
	for n := range 50 {
		typ, other := "a.b"+strings.Repeat("b", n), "a.c"+strings.Repeat("c", n)
		for range 3 {
			table.Lookup(typ)
		}
		require.Zero(t, testing.AllocsPerRun(10, func() {
			_, _, _ = table.Cached(typ)
			_ = table.Lookup(typ)
			_, _, _ = table.Cached(other)
		}), typ)
	}
}

func TestR6_AUniqueTypeAllocatesOnlyItsResult(t *testing.T) {
	nothing := &result{}
	table := route.NewTable(func(string, []*sub) *result { return nothing })
	for _, p := range []string{"a.*.c", "a.x*.c", "a.**", "*.*z.*"} {
		table.Add(mustParse(t, p), &sub{})
	}
	var types []string
	for i := range 200 {
		types = append(types, fmt.Sprintf("a.xy%dz.c", i))
	}
	i := 0
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		i++
		_ = table.Lookup(types[i])
	}), 1.0)
}

// A change that copies the table allocates bytes in proportion to the table: the
// second half of the changes then takes about three times the bytes of the first.
func TestR6_AHundredThousandSubscriptions(t *testing.T) {
	count := 10_000
	if *long {
		count = 100_000
	}
	for name, pattern := range shapes100k {
		t.Run(name, func(t *testing.T) {
			table := newTable()
			removes := make([]func(), count)
			add := func(from, to int) {
				for i := from; i < to; i++ {
					removes[i] = subscribe(table, mustParse(t, pattern(i)), &sub{strconv.Itoa(i)})
				}
			}
			first := allocated(func() { add(0, count/2) })
			second := allocated(func() { add(count/2, count) })
			t.Logf("bytes of a new subscription: %d, then %d", 2*first/uint64(count), 2*second/uint64(count))
			require.Less(t, second, 2*first)
			require.Equal(t, count, table.Len())
			for _, i := range []int{0, 1, count / 2, count - 1} {
				typ := strings.NewReplacer("*", "q", "{a,b"+strconv.Itoa(i)+"}", "a", "{x,y}", "x", "[0-9]", "5", "**", "q").Replace(pattern(i))
				require.Contains(t, names(table.Lookup(typ)), strconv.Itoa(i), typ)
			}
			remove := func(from, to int) {
				for i := from; i < to; i++ {
					removes[i]()
				}
			}
			full := allocated(func() { remove(0, count/2) })
			half := allocated(func() { remove(count/2, count) })
			t.Logf("bytes of a removed subscription: %d, then %d", 2*full/uint64(count), 2*half/uint64(count))
			require.Less(t, full, 2*half)
			require.Zero(t, table.Len())
			for _, typ := range []string{"order.q", "type1.done", "svc2.q", "a.x", "b", "a.qx7q.b"} {
				require.Empty(t, table.Lookup(typ).subs)
			}
		})
	}
}

// allocated returns the bytes that the process allocates while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestR6_TheTableAgreesWithANaiveList(t *testing.T) {
	segments := []string{"a", "b", "ab", "*", "**", "a*", "*b", "?", "[ab]", "[!a]", "{a,b}", "{a,b.a}", "{**,b}", "*a*", "a?"}
	types := []string{"a", "b", "ab", "c", "a.b", "b.a", "a.a", "ab.b", "a.b.a", "b.b.b.a", "a.ab.b.c", "aa.bb"}
	rapid.Check(t, func(t *rapid.T) {
		type naive struct {
			pattern string
			s       *sub
			remove  func()
		}
		var list []naive
		table := newTable()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 4 || len(list) == 0:
				pattern := strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 1, 4).Draw(t, "pattern"), ".")
				p, off := route.Parse(pattern)
				require.Nil(t, off, pattern)
				for range rapid.IntRange(1, 40).Draw(t, "times")/10*10 + 1 {
					n := naive{pattern: pattern, s: &sub{strconv.Itoa(len(list))}}
					n.remove = subscribe(table, p, n.s)
					list = append(list, n)
				}
			case op < 7:
				i := rapid.IntRange(0, len(list)-1).Draw(t, "victim")
				list[i].remove()
				if rapid.Bool().Draw(t, "twice") {
					list[i].remove()
				}
				list = slices.Delete(list, i, i+1)
			}
			typ := rapid.SampledFrom(types).Draw(t, "type")
			var want []*sub
			for _, n := range list {
				match, ok := oracle(n.pattern, typ)
				require.True(t, ok)
				if match {
					want = append(want, n.s)
				}
			}
			require.Equal(t, want, table.Lookup(typ).subs, typ)
			require.Equal(t, want, table.Lookup(typ).subs, "%s again, perhaps from the cache", typ)
			require.Equal(t, len(list), table.Len())
		}
	})
}

// Writers add and remove in a known order; readers check that what they see is
// one state between the last change before and the first one after the lookup.
func TestR6_LookupsBesideChangesAreLinearizable(t *testing.T) {
	rounds := 4_000
	if *long {
		rounds = 30_000
	}
	type counted struct{ n int }
	table := route.NewTable(func(_ string, subs []*counted) []*counted { return subs })
	p, err := route.Parse("{order.*,*.placed}")
	require.Nil(t, err)
	// The table holds a window of numbers: n is added, then n-40 is removed. So
	// every state is an unbroken run that changes at one end at a time.
	const window = 40
	var added, removing, addingNow, removed atomic.Int64 // last number whose change has returned or begun
	var wg sync.WaitGroup
	var done atomic.Bool
	for range 4 {
		wg.Go(func() {
			for !done.Load() {
				mustHave, mustNot := added.Load(), removed.Load()
				subs, _, ok := table.Cached("order.placed")
				if !ok {
					subs = table.Lookup("order.placed")
				}
				mayHave, mayLack := addingNow.Load(), removing.Load()
				for i, s := range subs {
					if i > 0 && s.n != subs[i-1].n+1 {
						t.Errorf("a gap between %d and %d", subs[i-1].n, s.n)
						return
					}
				}
				first, last := int64(0), int64(0)
				if len(subs) > 0 {
					first, last = int64(subs[0].n), int64(subs[len(subs)-1].n)
				}
				if last < mustHave || last > mayHave || (mustHave > 0 && (first <= mustNot || first > mayLack+1)) || len(subs) > window+1 ||
					(mustHave >= window && len(subs) < window) {
					t.Errorf("saw %d to %d; added %d to %d, removed %d to %d", first, last, mustHave, mayHave, mustNot, mayLack)
					return
				}
			}
		})
	}
	removes := map[int]func(){}
	for n := 1; n <= rounds; n++ {
		addingNow.Store(int64(n))
		removes[n] = subscribe(table, p, &counted{n})
		added.Store(int64(n))
		if old := n - window; old > 0 {
			removing.Store(int64(old))
			removes[old]()
			removed.Store(int64(old))
			delete(removes, old)
		}
	}
	done.Store(true)
	wg.Wait()
}
