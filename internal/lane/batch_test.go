package lane_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/lane"
)

// keepNegative is a settings.enter.
func keepNegative(i int) bool { return i >= 0 }

// put is how what PushAll asks puts an item.
type put = func(item int, gated bool)

func admit(items ...int) func(put) (int, error) {
	return func(put put) (int, error) {
		for _, i := range items {
			put(i, false)
		}
		return len(items), nil
	}
}

// stuck is a started pool with one item in its worker, which takes the next one
// for each value received from release.
func stuck(t *testing.T, s settings) (p *pool, got *list, release chan struct{}) {
	t.Helper()
	got, release = &list{}, make(chan struct{})
	s.run = func(_ *pool, _ *worker, i int) { <-release; got.add(i) }
	p = newPool(s)
	p.Start()
	p.push(t, 0)
	synctest.Wait()
	return p, got, release
}

func TestPushAllIsInOrderAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 1000})
		require.NoError(t, p.PushAll(t.Context(), 600, false, admit(upTo(601)[1:]...)))
		require.Equal(t, int64(601), p.Stats().Admitted)
		require.Equal(t, 600, p.Stats().Queued)
		close(release)
		p.end(t)
		require.Equal(t, upTo(601), got.all())
	})
}

func TestPushAllWaitsForRoomForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 4})
		p.push(t, 1, 2)
		var in atomic.Bool
		go func() {
			if p.PushAll(t.Context(), 3, false, admit(3, 4, 5)) == nil {
				in.Store(true)
			}
		}()
		synctest.Wait()
		require.False(t, in.Load(), "there is room for 2")
		require.Equal(t, 2, p.Stats().Queued, "nor is a part of it let in")
		var behind atomic.Bool
		go func() {
			item := 6
			if p.Push(t.Context(), &item, false, false) == nil {
				behind.Store(true)
			}
		}()
		synctest.Wait()
		require.False(t, behind.Load(), "there would be room, but somebody waits")
		release <- struct{}{}
		synctest.Wait()
		require.True(t, in.Load())
		require.False(t, behind.Load())
		close(release)
		synctest.Wait()
		require.True(t, behind.Load())
		p.end(t)
		require.Equal(t, upTo(7), got.all())
		require.Zero(t, p.Stats().Over)
	})
}

// The first waiter needs much, the one behind it little: when the first gives up,
// what it waited for is there for the other.
func TestAWaiterInNeedOfMuchGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 4})
		p.push(t, 1, 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("cause")
		first := make(chan error, 1)
		go func() { first <- p.PushAll(ctx, 4, false, admit(9, 9, 9, 9)) }()
		synctest.Wait()
		second := make(chan error, 1)
		go func() { second <- p.PushAll(t.Context(), 2, false, admit(3, 4)) }()
		synctest.Wait()
		require.Empty(t, second)
		cancel(cause)
		synctest.Wait()
		require.ErrorIs(t, <-first, cause)
		require.Len(t, second, 1, "nothing else will happen to wake it")
		require.NoError(t, <-second)
		close(release)
		p.end(t)
		require.Equal(t, upTo(5), got.all())
	})
}

// More than the capacity is let in when nothing else is there, and takes its room.
func TestPushAllOfMoreThanTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 2, refuse: true})
		require.NoError(t, p.PushAll(t.Context(), 5, false, admit(1, 2, 3, 4, 5)))
		item := 6
		for range 4 {
			require.ErrorIs(t, p.Push(t.Context(), &item, false, false), lane.ErrFull)
			require.ErrorIs(t, p.PushAll(t.Context(), 5, false, admit(9)), lane.ErrFull)
			release <- struct{}{}
			synctest.Wait()
		}
		require.NoError(t, p.Push(t.Context(), &item, false, false))
		close(release)
		p.end(t)
		require.Equal(t, upTo(7), got.all())
	})
}

// What choose does not let in leaves its room to others.
func TestPushAllGivesBackWhatItDoesNotUse(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name string
		err  error
	}{{"nothing", nil}, {"an error", refused}} {
		synctest.Test(t, func(t *testing.T) {
			p, got, release := stuck(t, settings{capacity: 3})
			p.push(t, 1)
			require.ErrorIs(t, p.PushAll(t.Context(), 2, false, func(put) (int, error) {
				return 0, c.err
			}), c.err, c.name)
			require.Equal(t, int64(2), p.Stats().Admitted)
			require.Equal(t, 1, p.Stats().Queued)
			p.push(t, 2, 3) // would wait for ever

			// Another one waits behind one that does not use what it was told of.
			first, second := make(chan error, 1), make(chan error, 1)
			go func() {
				first <- p.PushAll(t.Context(), 1, false, func(put) (int, error) {
					return 0, c.err
				})
			}()
			synctest.Wait()
			go func() {
				item := 4
				second <- p.Push(t.Context(), &item, false, false)
			}()
			synctest.Wait()
			require.Empty(t, second)
			release <- struct{}{}
			synctest.Wait()
			require.ErrorIs(t, <-first, c.err)
			require.Len(t, second, 1)
			close(release)
			p.end(t)
			require.Equal(t, upTo(5), got.all())
		})
	}
}

func TestPushAllOverTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 2})
		p.push(t, 1, 2)
		require.NoError(t, p.PushAll(t.Context(), 2, true, admit(3, 4)))
		require.EqualValues(t, 2, p.Stats().Over)
		p.Refuse()
		require.ErrorIs(t, p.PushAll(t.Context(), 1, false, admit(9)), lane.ErrClosed)
		require.NoError(t, p.PushAll(t.Context(), 1, true, admit(5)), "from inside, until Seal")
		p.Seal()
		require.ErrorIs(t, p.PushAll(t.Context(), 1, true, admit(9)), lane.ErrClosed)
		close(release)
		p.end(t)
		require.Equal(t, upTo(6), got.all())
	})
}

func TestPushAllWhileItIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, release := stuck(t, settings{capacity: 2})
		p.push(t, 1, 2)
		errs := make(chan error, 1)
		go func() { errs <- p.PushAll(t.Context(), 2, false, admit(9, 9)) }()
		synctest.Wait()
		p.Refuse()
		require.ErrorIs(t, <-errs, lane.ErrClosed)
		close(release)
		p.end(t)
		require.EqualValues(t, 3, p.Stats().Admitted)
	})
}

// What Enter keeps takes a place in the queue until it has come back and been
// taken.
func TestWhatEnterKeepsTakesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 4, refuse: true, enter: keepNegative})
		item, back := -1, 3
		full := func() {
			t.Helper()
			require.ErrorIs(t, p.Push(t.Context(), &back, false, false), lane.ErrFull)
		}
		require.NoError(t, p.Push(t.Context(), &item, false, true))
		require.NoError(t, p.PushAll(t.Context(), 2, false, func(put put) (int, error) {
			put(1, false)
			put(-2, true)
			return 2, nil
		}))
		item = -3
		p.Return(&item, true)
		require.Equal(t, lane.Stats{Admitted: 4, Queued: 4, Running: 1, Workers: 1}, p.Stats())
		full()

		release <- struct{}{}
		synctest.Wait() // -1 has been kept, 1 taken
		require.Equal(t, lane.Stats{Admitted: 4, Queued: 3, Running: 1, Workers: 1}, p.Stats())
		item = 2
		require.NoError(t, p.Push(t.Context(), &item, false, true))
		full()
		p.Unpark(&back)
		require.Equal(t, 4, p.Stats().Queued, "it is in another place")
		full()
		release <- struct{}{}
		synctest.Wait() // -2 and -3 have been kept, 2 taken
		require.Equal(t, 3, p.Stats().Queued)
		p.Unpark(&back)
		p.Unpark(&back)
		close(release)
		p.end(t)
		require.Equal(t, []int{0, 1, 2, 3, 3, 3}, got.all())
		require.Equal(t, 0, p.Stats().Queued+p.Stats().Running)
	})
}

// An item that is not gated is not shown to Enter.
func TestOnlyGatedItemsAreShownToEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{enter: keepNegative})
		item := -1
		require.NoError(t, p.Push(t.Context(), &item, false, false))
		p.Return(&item, false)
		close(release)
		p.end(t)
		require.Equal(t, []int{0, -1, -1}, got.all())
	})
}

// Gated items are shown to Enter once each, in the order of the queue, however many
// workers take them.
func TestEnterIsAskedInOrder(t *testing.T) {
	const n, workers = 5_000, 8
	for range 4 { // some rounds would be in order by chance
		var shown []int // by Enter, which is called one at a time
		var ran, waiting atomic.Int64
		p := newPool(settings{
			concurrency: workers,
			enter: func(i int) bool {
				shown = append(shown, i)
				if i%7 == 0 { // so that others come meanwhile
					runtime.Gosched()
				}
				return i%3 != 0
			},
			run: func(_ *pool, _ *worker, i int) {
				if i < workers { // each for a worker of its own
					for waiting.Add(1); waiting.Load() < workers; {
						runtime.Gosched()
					}
				}
				ran.Add(1)
				runtime.Gosched()
			},
		})
		p.Start()
		var want []int
		for i := range n {
			gated := i >= workers && i%5 != 0
			if gated {
				want = append(want, i)
			}
			require.NoError(t, p.Push(t.Context(), &i, false, gated))
		}
		kept := 0
		for _, i := range want {
			if i%3 == 0 {
				kept++
			}
		}
		for ran.Load() < int64(n-kept) {
			runtime.Gosched()
		}
		item := 1
		for range kept {
			p.Unpark(&item)
		}
		p.end(t)
		require.Equal(t, want, shown)
		require.EqualValues(t, n, ran.Load())
	}
}

// Who waits for room is let in when what Enter kept has come back and been taken.
func TestAWaiterBehindWhatEnterKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, got, release := stuck(t, settings{capacity: 2, enter: keepNegative})
		for range 2 {
			item := -1
			require.NoError(t, p.Push(t.Context(), &item, false, true))
		}
		done := make(chan error, 1)
		go func() {
			item := 2
			done <- p.Push(t.Context(), &item, false, false)
		}()
		close(release)
		time.Sleep(time.Hour)
		require.Empty(t, done, "nothing runs, and both places are taken")
		back := 1
		p.Unpark(&back)
		synctest.Wait()
		require.NoError(t, <-done)
		p.Unpark(&back)
		p.end(t)
		require.Equal(t, []int{0, 1, 2, 1}, got.all())
	})
}

func TestABacklogLeavesNoMemory(t *testing.T) {
	const n = 200_000
	var ran atomic.Int64
	p := newPool(settings{capacity: n, run: func(*pool, *worker, int) { ran.Add(1) }})
	before := heapBytes()
	for i := range n {
		require.NoError(t, p.Push(t.Context(), &i, false, false))
	}
	require.Greater(t, heapBytes()-before, int64(8*n))
	p.Start()
	for ran.Load() < n {
		runtime.Gosched()
	}
	require.Less(t, heapBytes()-before, int64(256<<10))
	p.end(t)
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// stuckPool is a pool whose first item, 0, is stuck until release is closed. Enter
// keeps the negative ones; the others are got.
func stuckPool(t *testing.T, workers int) (p *pool, got *list, release chan struct{}) {
	t.Helper()
	got, release = &list{}, make(chan struct{})
	p = newPool(settings{concurrency: workers, enter: keepNegative, run: func(_ *pool, _ *worker, i int) {
		if i == 0 {
			<-release
		}
		got.add(i)
	}})
	p.Start()
	p.push(t, 0)
	synctest.Wait()
	return p, got, release
}

// An item that is stuck has followers that Enter keeps, many of them: what is behind
// those is found.
func TestD5_WhatIsBehindKeptItemsIsFound(t *testing.T) {
	for _, workers := range []int{2, 4, 100} {
		synctest.Test(t, func(t *testing.T) {
			p, got, release := stuckPool(t, workers)
			item := -1
			for range 3000 {
				require.NoError(t, p.Push(t.Context(), &item, false, true))
			}
			p.push(t, 7)
			time.Sleep(10 * time.Millisecond)
			require.Equal(t, []int{7}, got.all())
			for range 3000 {
				p.Unpark(&item)
			}
			close(release)
			p.end(t)
		})
	}
}

// A worker that is alone goes through what Enter keeps, however much that is: the
// one that they wait for may not be at work at all.
func TestD5_WhoIsAloneGoesThroughKeptItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		p := newPool(settings{concurrency: 4, enter: keepNegative, run: func(_ *pool, _ *worker, i int) { got.add(i) }})
		item := -1
		for range 1000 {
			require.NoError(t, p.Push(t.Context(), &item, false, true))
		}
		p.push(t, 7)
		p.Start()
		synctest.Wait()
		require.Equal(t, []int{7}, got.all())
		for range 1000 {
			p.Unpark(&item)
		}
		p.end(t)
	})
}

// Who goes on with what Enter has kept can have another worker look at the queue, at
// once, unless there may be none.
func TestD5_ShareHasAnotherWorkerLook(t *testing.T) {
	for _, workers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			p, got, release := stuckPool(t, workers)
			require.True(t, p.Share(), "there is nothing to look for")
			p.push(t, 7)
			synctest.Wait()
			require.Empty(t, got.all(), "it waits for a tick")
			require.Equal(t, workers > 1, p.Share())
			synctest.Wait()
			require.Equal(t, workers > 1, len(got.all()) == 1)
			close(release)
			p.end(t)
		})
	}
}
