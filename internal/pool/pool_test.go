package pool_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/pool"
)

// item is what the pools of these tests run.
type item struct {
	name string
	run  func(*worker) bool // nil: nothing, and the worker goes on
}

type worker struct{ closed bool }

// bench is a pool, and what has happened to it.
type bench struct {
	*pool.Pool[*item, *worker]
	mu      sync.Mutex // guards the following
	ran     []string
	counted counts
	entered []string
	enter   func(name string) bool // nil: every gated item may run
}

func newBench(t *testing.T, concurrency, capacity int, wait bool) *bench {
	b := &bench{}
	b.Pool = pool.New(pool.Config[*item, *worker]{
		Open: func() *worker {
			b.note(func() { b.counted.opened++ })
			return &worker{}
		},
		Close: func(w *worker) { b.note(func() { b.counted.closed++; w.closed = true }) },
		Run: func(w *worker, i *item) bool {
			b.note(func() { b.ran = append(b.ran, i.name) })
			return i.run == nil || i.run(w)
		},
		Enter: func(i *item) (enters bool) {
			b.note(func() {
				b.entered = append(b.entered, i.name)
				enters = b.enter == nil || b.enter(i.name)
			})
			return enters
		},
		Idle:        func(*worker) {},
		Freed:       func() { b.note(func() { b.counted.freed++ }) },
		Rest:        func() { b.note(func() { b.counted.rests++ }) },
		Concurrency: concurrency,
		Capacity:    capacity,
		Wait:        wait,
	})
	t.Cleanup(func() { <-b.Close() })
	return b
}

func (b *bench) note(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// counts are what the hooks of a pool have counted.
type counts struct{ opened, closed, rests, freed int }

func (b *bench) counts() counts {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counted
}

func (b *bench) names() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ran)
}

func (b *bench) push(t *testing.T, name string, run func(*worker) bool) {
	t.Helper()
	require.NoError(t, b.Reserve(t.Context(), 1, false))
	b.Push(&item{name, run}, false)
}

// stuck is an item that runs until it is released.
func (b *bench) stuck(t *testing.T) (release func()) {
	t.Helper()
	released := make(chan struct{})
	b.push(t, "stuck", func(*worker) bool { <-released; return true })
	synctest.Wait()
	return func() { close(released) }
}

// reserve waits in Reserve on a goroutine of its own.
func (b *bench) reserve(ctx context.Context, n int) <-chan error {
	got := make(chan error, 1)
	go func() { got <- b.Reserve(ctx, n, false) }()
	synctest.Wait()
	return got
}

func letters(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func TestD8_ItemsRunInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 5000, false)
		for i := range 3000 {
			b.push(t, fmt.Sprint(i), nil)
		}
		require.Empty(t, b.names(), "not before Start")
		require.Equal(t, pool.Stats{Queued: 3000}, b.Stats())
		b.Start()
		require.Equal(t, letters(3000), b.names())
		require.Equal(t, pool.Stats{Workers: 1}, b.Stats())
		require.Zero(t, b.Depth())
		require.Positive(t, b.counts().rests)
	})
}

func TestD8_TheCapacityIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 3, false)
		ctx := t.Context()
		require.NoError(t, b.Reserve(ctx, 2, false))
		require.ErrorIs(t, b.Reserve(ctx, 2, false), pool.ErrFull)
		require.NoError(t, b.Reserve(ctx, 1, false))
		require.ErrorIs(t, b.Reserve(ctx, 1, false), pool.ErrFull)
		require.Equal(t, 3, b.Depth())
		b.Unreserve(3)
		require.NoError(t, b.Reserve(ctx, 7, false), "more than the capacity fits into an empty queue")
		b.Unreserve(7)
		require.Zero(t, b.Depth())
		require.Zero(t, b.Stats().Over)
		b.Start()
		release := b.stuck(t)
		for i := range 3 {
			b.push(t, fmt.Sprint(i), nil)
		}
		require.ErrorIs(t, b.Reserve(ctx, 1, false), pool.ErrFull, "an item that runs is not queued")
		release()
	})
}

func TestD8_OverExceedsTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 3, false)
		require.NoError(t, b.Reserve(t.Context(), 2, false))
		require.NoError(t, b.Reserve(t.Context(), 4, true))
		require.Equal(t, 6, b.Depth())
		require.EqualValues(t, 3, b.Stats().Over)
		require.NoError(t, b.Reserve(t.Context(), 1, true))
		require.EqualValues(t, 4, b.Stats().Over)
		b.Unreserve(7)
		b.Return(false, &item{"a", nil}, &item{"b", nil}, &item{"c", nil}, &item{"d", nil})
		require.Equal(t, 4, b.Depth())
		require.EqualValues(t, 4, b.Stats().Over, "Return admits nothing new")
		b.Start()
		require.Equal(t, []string{"a", "b", "c", "d"}, b.names())
	})
}

func TestD8_WaitersAreAdmittedInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 4, true)
		b.Start()
		release := b.stuck(t)
		require.NoError(t, b.Reserve(t.Context(), 4, false))
		large, small := b.reserve(t.Context(), 3), b.reserve(t.Context(), 1)
		b.Unreserve(2)
		synctest.Wait()
		require.Empty(t, large)
		require.Empty(t, small, "there is room for it, but the larger one came first")
		b.Unreserve(1)
		synctest.Wait()
		require.NoError(t, <-large)
		require.Empty(t, small)
		b.Unreserve(3)
		require.NoError(t, <-small)
		b.Unreserve(2)
		release()
		synctest.Wait()
		require.Zero(t, b.Depth())
	})
}

// A waiter whose context ends leaves the line, and those behind it move up.
func TestD8_AContextEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 4, true)
		b.Start()
		release := b.stuck(t)
		require.NoError(t, b.Reserve(t.Context(), 3, false))
		ctx, cancel := context.WithCancel(t.Context())
		large, small := b.reserve(ctx, 4), b.reserve(t.Context(), 1)
		require.Empty(t, small)
		cancel()
		require.ErrorIs(t, <-large, pool.ErrContext)
		require.NoError(t, <-small)
		require.Equal(t, 4, b.Depth())
		// Room and the end of the context at the same moment: the room is not lost.
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			waiting := b.reserve(ctx, 1)
			go cancel()
			b.Unreserve(1)
			if err := <-waiting; err != nil {
				require.ErrorIs(t, err, pool.ErrContext)
				require.NoError(t, b.Reserve(t.Context(), 1, false))
			}
			cancel()
			require.Equal(t, 4, b.Depth())
		}
		b.Unreserve(4)
		release()
	})
}

func TestS2_RefuseAndSealEndTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 1, true)
		b.Start()
		release := b.stuck(t)
		require.NoError(t, b.Reserve(t.Context(), 1, false))
		waiting := b.reserve(t.Context(), 1)
		b.Refuse()
		require.ErrorIs(t, <-waiting, pool.ErrClosed)
		require.ErrorIs(t, b.Reserve(t.Context(), 1, false), pool.ErrClosed)
		require.NoError(t, b.Reserve(t.Context(), 1, true), "handlers may go on")
		b.Seal()
		require.ErrorIs(t, b.Reserve(t.Context(), 1, true), pool.ErrClosed)
		b.Refuse()
		require.ErrorIs(t, b.Reserve(t.Context(), 1, true), pool.ErrClosed, "Refuse does not undo Seal")
		require.Equal(t, 2, b.Depth())
		b.Unreserve(2)
		release()
	})
}

func TestS2_CloseRunsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, 100, false)
		b.Start()
		release := b.stuck(t)
		for i := range 50 {
			b.push(t, fmt.Sprint(i), nil)
		}
		gone := b.Close()
		synctest.Wait()
		select {
		case <-gone:
			t.Fatal("the channel was closed before the stuck item ended")
		default:
		}
		require.ErrorIs(t, b.Reserve(t.Context(), 1, true), pool.ErrClosed)
		release()
		<-gone
		require.Equal(t, append([]string{"stuck"}, letters(50)...), b.names())
		require.Equal(t, b.counts().opened, b.counts().closed)
		require.Equal(t, pool.Stats{}, b.Stats())
		require.Equal(t, gone, b.Close())
	})
}

func TestS2_APoolThatWasNotStartedCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2, 100, true)
		for range 100 {
			b.push(t, "x", nil)
		}
		require.ErrorIs(t, b.Reserve(t.Context(), 1, false), pool.ErrFull, "it does not wait before Start")
		<-b.Close()
		n := 0
		for {
			if _, ok := b.TryTake(); !ok {
				break
			}
			b.Finish()
			n++
		}
		require.Equal(t, 100, n)
		require.Equal(t, pool.Stats{}, b.Stats())
	})
}

func TestD4_EnterIsAskedOnceInTheOrderOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 100, false)
		kept := make(map[string]*item)
		b.enter = func(name string) bool { return name == "0" || kept[name] == nil }
		for i := range 6 {
			x := &item{fmt.Sprint(i), nil}
			if i%2 == 1 {
				kept[x.name] = x
			}
			require.NoError(t, b.Reserve(t.Context(), 1, false))
			b.Push(x, i != 4) // 4 is not gated
		}
		b.Start()
		require.Equal(t, []string{"0", "2", "4"}, b.names())
		require.Equal(t, []string{"0", "1", "2", "3", "5"}, b.entered)
		require.Equal(t, 3, b.Depth(), "kept items count")
		require.Equal(t, 3, b.Stats().Queued)
		for _, name := range []string{"3", "1", "5"} {
			b.Release(kept[name])
		}
		require.Equal(t, []string{"0", "2", "4", "3", "1", "5"}, b.names())
		require.Len(t, b.entered, 5, "once")
		require.Zero(t, b.Depth())
	})
}

// Released items and the others take turns.
func TestD4_ReleasedItemsDoNotDelayTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 100, false)
		b.enter = func(string) bool { return false }
		b.Start()
		var kept []*item
		for i := range 20 {
			x := &item{fmt.Sprint("r", i), nil}
			kept = append(kept, x)
			require.NoError(t, b.Reserve(t.Context(), 1, false))
			b.Push(x, true)
		}
		require.Empty(t, b.names())
		release := b.stuck(t)
		for _, x := range kept {
			b.Release(x)
		}
		for i := range 20 {
			b.push(t, fmt.Sprint("q", i), nil)
		}
		release()
		ran := b.names()[1:]
		require.Len(t, ran, 40)
		for i := range 10 {
			require.Len(t, slices.DeleteFunc(slices.Clone(ran[2*i:2*i+2]), func(name string) bool { return name[0] == 'q' }), 1, "%v", ran)
		}
	})
}

// Several workers may look for one item. Those that find none take no turn from released or queued items.
func TestD5_ALookInVainTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for vain := range 4 {
			b := newBench(t, 1, 100, false)
			b.enter = func(string) bool { return false }
			released := &item{"released", nil}
			require.NoError(t, b.Reserve(t.Context(), 1, false))
			b.Push(released, true)
			for range vain + 1 {
				_, ok := b.TryTake()
				require.False(t, ok)
			}
			b.Release(released)
			b.push(t, "queued", nil)
			for _, want := range []string{"released", "queued"} {
				x, ok := b.TryTake()
				require.True(t, ok)
				require.Equal(t, want, x.name, "after %d looks in vain", vain)
				b.Finish()
			}
		}
	})
}

// Replace gives the item to a fresh worker. The old goroutine ends, by itself or by
// runtime.Goexit, and its state is closed.
func TestF1_ReplaceTakesOverAnItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 100, false)
		b.Start()
		release := make(chan struct{})
		hung := make(chan struct{})
		b.push(t, "hangs", func(*worker) bool { <-release; close(hung); return false })
		b.push(t, "exits", func(*worker) bool {
			b.Replace(func(*worker) { b.note(func() { b.ran = append(b.ran, "rest of exits") }) })
			runtime.Goexit()
			return true
		})
		b.push(t, "next", nil)
		require.Equal(t, []string{"hangs"}, b.names())
		require.Equal(t, 1, b.Stats().Running)
		b.Replace(func(w *worker) {
			require.False(t, w.closed)
			b.note(func() { b.ran = append(b.ran, "rest of hangs") })
		})
		require.Equal(t, []string{"hangs", "rest of hangs", "exits", "rest of exits", "next"}, b.names())
		require.Equal(t, pool.Stats{Workers: 1}, b.Stats())
		require.Equal(t, 3, b.counts().opened)
		require.Equal(t, 1, b.counts().closed)
		<-b.Close() // it does not wait for the goroutine that hangs
		require.Equal(t, 2, b.counts().closed)
		close(release)
		<-hung
		synctest.Wait()
		require.Equal(t, 3, b.counts().closed)
	})
}

// An item that waits for others does not count; when it goes on, a worker is surplus and
// leaves.
func TestD11_ABlockedItemDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 100, false)
		b.Start()
		release, unblocked, other := make(chan struct{}), make(chan struct{}), make(chan struct{})
		b.push(t, "waits", func(*worker) bool {
			b.Block()
			<-unblocked
			b.Unblock()
			<-release
			return true
		})
		b.push(t, "runs", func(*worker) bool { <-other; return true })
		require.Equal(t, []string{"waits", "runs"}, b.names())
		b.push(t, "last", nil)
		require.Equal(t, []string{"waits", "runs"}, b.names(), "one worker at a time")
		require.Zero(t, b.Spare())
		close(unblocked)
		synctest.Wait()
		require.Equal(t, 2, b.Stats().Workers)
		close(other)
		synctest.Wait()
		require.Equal(t, 1, b.Stats().Workers, "the surplus worker leaves")
		require.Equal(t, []string{"waits", "runs"}, b.names())
		close(release)
		require.Equal(t, []string{"waits", "runs", "last"}, b.names())
		require.Positive(t, b.Spare())
		require.Equal(t, pool.Stats{Workers: 1}, b.Stats())
	})
}

// Items that sleep get more workers until the concurrency is reached, and no more.
func TestD1_ThePoolGrowsWhileItemsWaitBehindSlowOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const concurrency = 50
		b := newBench(t, concurrency, 1000, false)
		b.Start()
		release := make(chan struct{})
		var running, most atomic.Int64
		for range 2 * concurrency {
			b.push(t, "x", func(*worker) bool {
				now := running.Add(1)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				<-release
				running.Add(-1)
				return true
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, concurrency, running.Load())
		require.Zero(t, b.Spare())
		require.Equal(t, pool.Stats{Queued: concurrency, Running: concurrency, Workers: concurrency}, b.Stats())
		require.Zero(t, b.counts().freed)
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, concurrency, most.Load())
		require.Len(t, b.names(), 2*concurrency)
		require.Positive(t, b.Spare())
		require.Positive(t, b.counts().freed)
		require.Positive(t, b.counts().rests)
		require.LessOrEqual(t, b.Stats().Workers, 4*runtime.GOMAXPROCS(0)+1)
		require.Zero(t, b.Stats().Running)
	})
}

// An item behind stuck workers runs after some ticks, however many are stuck.
func TestD1_StuckWorkersDelayAnItemByTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000, 1000, false)
		b.Start()
		var releases []func()
		for range 100 {
			releases = append(releases, b.stuck(t))
			time.Sleep(100 * time.Millisecond)
		}
		began := time.Now()
		done := make(chan struct{})
		b.push(t, "fine", func(*worker) bool { close(done); return true })
		<-done
		require.LessOrEqual(t, time.Since(began), 10*time.Millisecond)
		for _, release := range releases {
			release()
		}
	})
}

// Any sequence of operations keeps the capacity, and loses and repeats nothing.
func TestD8_AnySequenceOfOperationsKeepsEveryItem(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const capacity = 5
		ops := rapid.SliceOfN(rapid.IntRange(0, 7), 1, 60).Draw(rt, "operations")
		concurrency := rapid.IntRange(1, 3).Draw(rt, "concurrency")
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, concurrency, capacity, false)
			var kept []*item
			keep := false
			want := 0
			var taken []string
			byName := make(map[string]*item)
			b.enter = func(name string) bool {
				if keep {
					kept = append(kept, byName[name])
				}
				return !keep
			}
			next := func() *item {
				x := &item{name: fmt.Sprint(want)}
				byName[x.name] = x
				want++
				return x
			}
			for _, op := range ops {
				depth := b.Depth()
				switch op {
				case 0, 1:
					if err := b.Reserve(t.Context(), 1, false); err == nil {
						require.Less(t, depth, capacity)
						b.Push(next(), op == 1)
					} else {
						require.ErrorIs(t, err, pool.ErrFull)
						require.GreaterOrEqual(t, depth, capacity)
					}
				case 2:
					b.Return(true, next(), next())
				case 3:
					b.Start()
				case 4:
					for _, x := range kept {
						b.Release(x)
					}
					kept = nil
				case 5:
					keep = !keep
				case 6:
					for _, x := range b.Take(func(x *item) bool { return len(x.name)%2 == 0 || x.name[0]%2 == 0 }) {
						taken = append(taken, x.name)
					}
				case 7:
					for _, x := range kept {
						taken = append(taken, x.name)
					}
					b.Gone(len(kept))
					kept = nil
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
			b.Start()
			time.Sleep(time.Second)
			synctest.Wait()
			keep = false
			for _, x := range kept {
				b.Release(x)
			}
			time.Sleep(time.Second)
			ran := append(b.names(), taken...)
			require.Len(t, ran, want)
			slices.Sort(ran)
			require.Len(t, slices.Compact(ran), want)
			require.Zero(t, b.Depth())
			require.Zero(t, b.Stats().Running)
		})
	})
}

// Publishers, workers and waiters at once: nothing is lost, and the books are zero at rest.
func TestD8_ManyPublishersAtOnce(t *testing.T) {
	const publishers, each, capacity = 8, 500, 16
	b := newBench(t, 4, capacity, true)
	b.Start()
	var ran atomic.Int64
	var all sync.WaitGroup
	for range publishers {
		all.Go(func() {
			for range each {
				if err := b.Reserve(context.Background(), 1, false); err != nil {
					panic(err)
				}
				b.Push(&item{"x", func(*worker) bool { ran.Add(1); return true }}, false)
			}
		})
	}
	all.Wait()
	<-b.Close()
	require.EqualValues(t, publishers*each, ran.Load())
	require.Equal(t, pool.Stats{}, b.Stats())
}

// Spare counts items that may run, and Freed is called when two may run again: after Block too.
func TestD11_FreedWhenTwoMoreItemsMayRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3, 100, false)
		b.Start()
		require.Equal(t, 2, b.Spare())
		blocks, ends := make(chan struct{}), make(chan struct{})
		for range 2 {
			b.push(t, "waits", func(*worker) bool {
				<-blocks
				b.Block()
				<-ends
				b.Unblock()
				return true
			})
			time.Sleep(time.Millisecond)
		}
		release := b.stuck(t)
		time.Sleep(time.Millisecond)
		require.Zero(t, b.Spare())
		require.Zero(t, b.counts().freed)
		blocks <- struct{}{}
		synctest.Wait()
		require.Equal(t, 1, b.Spare())
		require.Zero(t, b.counts().freed)
		blocks <- struct{}{}
		synctest.Wait()
		require.Equal(t, 2, b.Spare())
		require.Equal(t, 1, b.counts().freed)
		close(ends)
		release()
		synctest.Wait()
		require.Equal(t, 2, b.Spare())
	})
}

func TestEachVisitsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 100, false)
		each := func() (n int) {
			b.Each(func(*item) { n++ })
			return n
		}
		require.Zero(t, each())
		for range 20 {
			b.push(t, "queued", func(*worker) bool { return true })
		}
		require.Equal(t, 20, each())
		b.Start()
		synctest.Wait()
		require.Zero(t, each())
		release := b.stuck(t)
		synctest.Wait()
		for range 3 {
			b.push(t, "later", func(*worker) bool { return true })
		}
		require.Equal(t, 3, each())
		release()
		synctest.Wait()
		require.Zero(t, each())
	})
}

// Take removes items of the queue, and its room is free for those that wait. The others keep their order.
func TestE9_TakeRemovesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1, 6, true)
		b.Start()
		release := b.stuck(t)
		for i := range 6 {
			b.push(t, fmt.Sprint(i), nil)
		}
		waits := b.reserve(t.Context(), 2)
		b.Release(&item{name: "released"})
		var names []string
		for _, x := range b.Take(func(x *item) bool { return x.name == "released" || x.name == "1" || x.name == "4" }) {
			names = append(names, x.name)
		}
		require.ElementsMatch(t, []string{"released", "1", "4"}, names)
		synctest.Wait()
		require.NoError(t, <-waits)
		require.Empty(t, b.Take(func(*item) bool { return false }))
		b.Unreserve(2)
		release()
		require.Equal(t, []string{"stuck", "0", "2", "3", "5"}, b.names())
	})
}
