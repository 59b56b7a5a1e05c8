package settled_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/settled"
)

type subscription struct{ name string }

func idOf(r *rand.Rand) (id [16]byte) {
	for i := range id {
		id[i] = byte(r.IntN(256))
	}
	return id
}

func TestTheLastEventsAreKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	var e settled.Events[*subscription]
	billing := []*subscription{{"billing"}}
	var all [][16]byte
	for i := range 3 * settled.Kept {
		all = append(all, idOf(r))
		end := settled.End{Outcome: 1, Attempts: i % 2000, Millis: int64(1_800_000_000_000 + i)}
		if i%2 == 0 {
			e.AddHandled(&all[i], &billing, end)
		} else {
			e.Add(&settled.Dispatch[*subscription]{ID: all[i], Handled: billing, End: end})
		}
	}
	for i, id := range all[2*settled.Kept:] {
		i += 2 * settled.Kept
		got := e.Of(id)
		require.Len(t, got, 1, "%d", i)
		require.Equal(t, settled.Delivery[*subscription]{At: billing[0], End: settled.End{Outcome: 1, Attempts: min(i%2000, 1023), Millis: int64(1_800_000_000_000 + i)}}, got[0])
	}
	require.Empty(t, e.Of(all[0]), "it was forgotten")
	require.Empty(t, e.Of(idOf(r)))
}

// The dispatches of one event are one entry, and those of a replay another one.
func TestDispatchesOfOneEvent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3)) //nolint:gosec // reproducible
	var e settled.Events[*subscription]
	a, b, c := &subscription{"a"}, &subscription{"b"}, &subscription{"c"}
	id := idOf(r)
	e.Add(&settled.Dispatch[*subscription]{ID: id, Handled: []*subscription{a}, End: settled.End{Outcome: 1, Millis: 1}, Dispatches: 2})
	for range 20 {
		e.Add(&settled.Dispatch[*subscription]{ID: idOf(r), End: settled.End{Outcome: 2}, Dispatches: 1})
	}
	e.Add(&settled.Dispatch[*subscription]{ID: id, Handled: []*subscription{b}, Ended: c, HasEnded: true, EndedAs: 3, End: settled.End{Outcome: 1, Millis: 2}, Dispatches: 2})
	e.Add(&settled.Dispatch[*subscription]{ID: id, By: &settled.Operators{Replayed: "ann"}, Handled: []*subscription{c}, End: settled.End{Outcome: 1, Replays: 1, Millis: 3}, Dispatches: 1})
	got := e.Of(id)
	var text []string
	for _, d := range got {
		by := "-"
		if d.By != nil {
			by = d.By.Replayed
		}
		text = append(text, fmt.Sprint(d.At.name, d.End.Outcome, d.End.Millis, d.End.Replays, by))
	}
	require.Equal(t, []string{"a1 1 0-", "b1 2 0-", "c3 2 0-", "c1 3 1ann"}, text)
	replayed := settled.Dispatch[*subscription]{ID: id, By: &settled.Operators{Replayed: "ann"}, Handled: []*subscription{c}, End: settled.End{Outcome: 1, Replays: 1, Millis: 3}}
	require.Equal(t, got[3:], replayed.Deliveries())
}

func TestTheyAreUsedAtOnce(t *testing.T) {
	var e settled.Events[*subscription]
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // reproducible
			for range 2000 {
				id := idOf(r)
				e.Add(&settled.Dispatch[*subscription]{ID: id, End: settled.End{Outcome: 1}})
				if len(e.Of(id)) != 1 {
					t.Error("it is not there")
				}
			}
		})
	}
	wg.Wait()
}

// An event takes at most 200 bytes.
func TestV5_TheSizeOfAnEvent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	handled := []*subscription{{"a"}, {"b"}, {"c"}, {"d"}}
	bytesNow := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := bytesNow()
	e := new(settled.Events[*subscription])
	for range 5 * settled.Kept {
		e.Add(&settled.Dispatch[*subscription]{ID: idOf(r), Handled: handled, End: settled.End{Outcome: 1}})
	}
	held := bytesNow() - before
	require.Less(t, held/settled.Kept, uint64(200))
	require.NotZero(t, unsafe.Sizeof(*e))
	runtime.KeepAlive(e)
}

func BenchmarkAdd(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	var e settled.Events[*subscription]
	ids := make([][16]byte, 1<<14)
	for i := range ids {
		ids[i] = idOf(r)
	}
	handled := []*subscription{{"a"}}
	b.Run("handled", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			e.AddHandled(&ids[i%len(ids)], &handled, settled.End{Outcome: 1, Millis: int64(i)})
		}
	})
	b.Run("any", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			e.Add(&settled.Dispatch[*subscription]{ID: ids[i%len(ids)], Handled: handled, End: settled.End{Outcome: 1, Millis: int64(i)}})
		}
	})
}
