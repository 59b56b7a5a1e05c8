package lane_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/lane"
)

// worker is what a pool keeps for each goroutine in these tests.
type worker struct {
	item int
	lost bool
	next func(*int) bool
}

type pool struct {
	*lane.Pool[int, *worker]
	open, opened, closed, after, runs, ended, rests atomic.Int64
}

type settings struct {
	concurrency, capacity int
	refuse                bool
	run                   func(p *pool, w *worker, item int)
	enter                 func(item int) bool
}

func newPool(s settings) *pool {
	p := &pool{}
	if s.concurrency == 0 {
		s.concurrency = 1
	}
	if s.capacity == 0 {
		s.capacity = 1 << 20
	}
	p.Pool = lane.New(lane.Config[int, *worker]{
		Open:  func() *worker { p.open.Add(1); p.opened.Add(1); return &worker{} },
		Close: func(*worker) { p.open.Add(-1); p.closed.Add(1) },
		Place: func(w *worker) *int { return &w.item },
		Run: func(w *worker, next func(*int) bool) {
			w.next = next
			s.run(p, w, w.item)
		},
		Enter:       func(item *int) bool { return s.enter(*item) },
		Ending:      func(w *worker) lane.Ending { return p.ending(w) },
		Next:        func(*worker) {},
		Counted:     p.ended.Load,
		After:       func(*worker) { p.after.Add(1) },
		Idle:        func(*worker) {},
		Rest:        func() { p.rests.Add(1) },
		Concurrency: s.concurrency,
		Capacity:    s.capacity,
		Wait:        !s.refuse,
	})
	return p
}

// ending counts the end of every third run itself.
func (p *pool) ending(w *worker) lane.Ending {
	if w.lost {
		return lane.Lost
	}
	if p.runs.Add(1)%3 != 0 {
		return lane.Tells
	}
	p.ended.Add(1)
	return lane.Tells | lane.Counted
}

func (p *pool) push(t *testing.T, items ...int) {
	t.Helper()
	for _, i := range items {
		require.NoError(t, p.Push(context.Background(), &i, false, false))
	}
}

// end closes the pool and checks that nothing is left of it.
func (p *pool) end(t *testing.T) {
	t.Helper()
	<-p.Close()
	s := p.Stats()
	require.Zero(t, s.Queued)
	require.Zero(t, s.Running)
	require.Zero(t, s.Workers)
}

type list struct {
	mu    sync.Mutex
	items []int
}

func (l *list) add(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, i)
}

func (l *list) all() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int(nil), l.items...)
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestOneWorkerTakesInOrder(t *testing.T) {
	const items = 1000 // many chunks
	for _, startFirst := range []bool{true, false} {
		var got list
		p := newPool(settings{run: func(_ *pool, _ *worker, i int) { got.add(i) }})
		if startFirst {
			p.Start()
		}
		p.push(t, upTo(items)...)
		p.Start()
		p.end(t)
		require.Equal(t, upTo(items), got.all())
		require.EqualValues(t, items, p.after.Load())
		require.EqualValues(t, items, p.Stats().Admitted)
	}
}

func TestNothingRunsBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		p := newPool(settings{capacity: 2, run: func(_ *pool, _ *worker, i int) { got.add(i) }})
		p.push(t, 0, 1)
		two := 2
		require.ErrorIs(t, p.Push(t.Context(), &two, false, false), lane.ErrFull, "waiting would be for ever")
		require.NoError(t, p.Push(t.Context(), &two, true, false))
		time.Sleep(time.Hour)
		require.Empty(t, got.all())
		require.Equal(t, lane.Stats{Admitted: 3, Over: 1, Queued: 3}, p.Stats())
		p.Start()
		p.end(t)
		require.Equal(t, upTo(3), got.all())
	})
}

func TestCapacity(t *testing.T) {
	for _, capacity := range []int{1, 2, 63, 64, 65, 200} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			p := newPool(settings{capacity: capacity, refuse: true, run: func(*pool, *worker, int) { <-release }})
			p.Start()
			p.push(t, 0)
			synctest.Wait()
			item := 1
			for range 3 {
				for p.Stats().Queued < capacity {
					require.NoError(t, p.Push(t.Context(), &item, false, false))
				}
				require.ErrorIs(t, p.Push(t.Context(), &item, false, false), lane.ErrFull)
				release <- struct{}{}
				synctest.Wait()
			}
			close(release)
			p.end(t)
			require.Zero(t, p.Stats().Over)
		})
	}
}

// What is returned has been let in before, and takes its place in the room.
func TestReturnIsNeverRefusedAndTakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPool(settings{capacity: 3, refuse: true, run: func(*pool, *worker, int) { <-release }})
		p.Start()
		p.push(t, 0)
		synctest.Wait()
		item := 1
		for range 5 {
			p.Return(&item, false)
		}
		require.ErrorIs(t, p.Push(t.Context(), &item, false, false), lane.ErrFull)
		p.Refuse()
		p.Return(&item, false)
		require.EqualValues(t, 1, p.Stats().Admitted)
		close(release)
		p.end(t)
		require.EqualValues(t, 7, p.after.Load())
	})
}

func TestReturnAllComesInOrderAndTakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 700 // more than a chunk
		release := make(chan struct{})
		var got list
		p := newPool(settings{capacity: n, refuse: true, run: func(_ *pool, _ *worker, i int) { <-release; got.add(i) }})
		p.Start()
		var items, want []int
		for i := range n {
			items, want = append(items, i), append(want, i)
		}
		p.ReturnAll(n, func(i int) int { return items[i] })
		p.ReturnAll(n, func(i int) int { return items[i] })
		require.ErrorIs(t, p.Push(t.Context(), &items[0], false, false), lane.ErrFull)
		require.Zero(t, p.Stats().Admitted)
		close(release)
		p.end(t)
		require.Equal(t, append(want, want...), got.all())
	})
}

func TestWaitersAreLetInInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 200
		release := make(chan struct{})
		var got list
		p := newPool(settings{capacity: 3, run: func(_ *pool, _ *worker, i int) { <-release; got.add(i) }})
		p.Start()
		var entered atomic.Int64
		for i := range 4 + waiters {
			go func() {
				if p.Push(context.Background(), &i, false, false) == nil {
					entered.Add(1)
				}
			}()
			synctest.Wait()
		}
		require.EqualValues(t, 4, entered.Load())
		for i := range waiters {
			release <- struct{}{}
			synctest.Wait()
			require.EqualValues(t, 5+i, entered.Load(), "one comes in for one that goes")
		}
		close(release)
		p.end(t)
		require.Equal(t, upTo(4+waiters), got.all())
		require.Zero(t, p.Stats().Over)
	})
}

// Who has waited longest comes before who comes now.
func TestNobodyOvertakesAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPool(settings{capacity: 1, refuse: false, run: func(*pool, *worker, int) { <-release }})
		p.Start()
		p.push(t, 0)
		synctest.Wait()
		p.push(t, 1)
		var order list
		for i := range 3 {
			go func() {
				if p.Push(context.Background(), &i, false, false) == nil {
					order.add(i)
				}
			}()
			synctest.Wait()
		}
		for range 3 {
			release <- struct{}{}
			synctest.Wait()
		}
		require.Equal(t, upTo(3), order.all())
		close(release)
		p.end(t)
	})
}

func TestAWaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var got list
		p := newPool(settings{capacity: 1, run: func(_ *pool, _ *worker, i int) { <-release; got.add(i) }})
		p.Start()
		p.push(t, 0)
		synctest.Wait()
		p.push(t, 1)
		cause := errors.New("cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i := range errs {
			waits := ctx
			if i == 1 {
				waits = context.Background()
			}
			item := 10 + i
			wg.Go(func() { errs[i] = p.Push(waits, &item, false, false) })
			synctest.Wait()
		}
		cancel(cause)
		synctest.Wait()
		close(release)
		wg.Wait()
		require.Equal(t, []error{cause, nil, cause}, errs)
		p.end(t)
		require.Equal(t, []int{0, 1, 11}, got.all())
		require.EqualValues(t, 3, p.Stats().Admitted)
	})
}

// A waiter whose context ends as it is told of room must not keep that room.
func TestWaitersThatGiveUpTakeNoRoom(t *testing.T) {
	var ran atomic.Int64
	p := newPool(settings{capacity: 2, concurrency: 2, run: func(*pool, *worker, int) { ran.Add(1); runtime.Gosched() }})
	p.Start()
	var in atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 500 {
				ctx, cancel := context.WithCancel(context.Background())
				go cancel()
				if p.Push(ctx, &i, false, false) == nil {
					in.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for range 100 { // if room had leaked away, this would wait for ever
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		item := 0
		require.NoError(t, p.Push(ctx, &item, false, false))
		in.Add(1)
		cancel()
	}
	p.end(t)
	require.Equal(t, in.Load(), ran.Load())
	require.Equal(t, in.Load(), p.Stats().Admitted)
}

func TestRefuseReleasesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPool(settings{capacity: 1, run: func(*pool, *worker, int) { <-release }})
		p.Start()
		p.push(t, 0)
		synctest.Wait()
		p.push(t, 1)
		errs := make(chan error, 2)
		for i := range 2 {
			go func() { errs <- p.Push(context.Background(), &i, false, false) }()
		}
		synctest.Wait()
		p.Refuse()
		require.ErrorIs(t, <-errs, lane.ErrClosed)
		require.ErrorIs(t, <-errs, lane.ErrClosed)
		item := 2
		require.ErrorIs(t, p.Push(t.Context(), &item, false, false), lane.ErrClosed)
		require.NoError(t, p.Push(t.Context(), &item, true, false), "from inside, until Close")
		close(release)
		p.end(t)
		require.ErrorIs(t, p.Push(t.Context(), &item, true, false), lane.ErrClosed)
		require.EqualValues(t, 3, p.after.Load())
	})
}

func TestCloseRunsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(settings{concurrency: 3, run: func(*pool, *worker, int) { time.Sleep(time.Second) }})
		p.Start()
		p.push(t, upTo(10)...)
		gone := p.Close()
		select {
		case <-gone:
			require.Fail(t, "gone with work left")
		default:
		}
		<-gone
		require.EqualValues(t, 10, p.after.Load())
		<-p.Close() // again
		p.end(t)
		synctest.Wait()
		require.Zero(t, p.open.Load(), "Close for each Open")
	})
}

func TestCloseOfAPoolThatDidNothing(t *testing.T) {
	p := newPool(settings{})
	p.end(t)
	started := newPool(settings{})
	started.Start()
	started.end(t)
	require.Zero(t, started.opened.Load())
}

func TestWorkersFollowTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(settings{concurrency: 300, run: func(*pool, *worker, int) { time.Sleep(time.Second) }})
		p.Start()
		begin := time.Now()
		for range 2 {
			p.push(t, upTo(600)...)
			time.Sleep(50 * time.Millisecond)
			require.Equal(t, 300, p.Stats().Workers)
			require.Equal(t, 300, p.Stats().Running)
			require.Equal(t, 300, p.Stats().Queued)
			time.Sleep(3 * time.Second)
			require.LessOrEqual(t, p.Stats().Workers, 4*runtime.GOMAXPROCS(0)+1, "most have left")
			require.EqualValues(t, p.Stats().Workers, p.open.Load())
		}
		require.Less(t, time.Since(begin), 7*time.Second)
		rests := p.rests.Load()
		p.end(t)
		require.Positive(t, rests, "not told that nothing runs")
	})
}

// Goroutines that bring items may be so many that the worker seldom has its turn. That
// is not a slow worker, and others would not do more.
func TestManyWhoBringDoNotMultiplyTheWorkers(t *testing.T) {
	const bringers, each = 64, 20_000
	var most atomic.Int64
	p := newPool(settings{concurrency: 10_000, run: func(p *pool, _ *worker, item int) {
		if n := p.open.Load(); item%1_000 == 0 && n > most.Load() {
			most.Store(n)
		}
	}})
	p.Start()
	var wg sync.WaitGroup
	for range bringers {
		wg.Go(func() { p.push(t, upTo(each)...) })
	}
	wg.Wait()
	p.end(t)
	require.Less(t, most.Load(), int64(5_000))
}

// Handlers that wait for what another event brings are joined by as many as it takes,
// however much their neighbours compute.
func TestStuckWorkersAreJoinedBesideBusyNeighbours(t *testing.T) {
	items := 5 * runtime.GOMAXPROCS(0)
	var stop atomic.Bool
	defer stop.Store(true)
	for range 2 * runtime.GOMAXPROCS(0) {
		go func() {
			for !stop.Load() {
			}
		}()
	}
	free := make(chan struct{})
	p := newPool(settings{concurrency: 10_000, run: func(_ *pool, _ *worker, item int) {
		if item == items-1 {
			close(free)
		}
		<-free
	}})
	p.Start()
	p.push(t, upTo(items)...)
	<-free
	stop.Store(true)
	p.end(t)
}

// Who is about to add workers when the last item has been run adds none, and the pool
// is gone only afterwards.
func TestClosedWhileWorkersAreToBeAdded(t *testing.T) {
	for range 2_000 {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(settings{concurrency: 4, run: func(_ *pool, _ *worker, item int) {
				if item == 0 {
					time.Sleep(500 * time.Microsecond) // until the first tick
				}
			}})
			p.Start()
			p.push(t, 0, 1)
			p.end(t)
		})
	}
}

func TestARunMayEndItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		p := newPool(settings{concurrency: 2, run: func(_ *pool, _ *worker, i int) {
			got.add(i)
			if i%3 == 0 {
				runtime.Goexit()
			}
		}})
		p.Start()
		p.push(t, upTo(100)...)
		p.end(t)
		require.ElementsMatch(t, upTo(100), got.all())
		require.EqualValues(t, 100, p.after.Load(), "each is finished, once")
		synctest.Wait()
		require.Zero(t, p.open.Load())
	})
}

func TestReplace(t *testing.T) {
	for _, exits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stuck := make(chan struct{})
			var workers sync.Map
			var left, others atomic.Int64
			p := newPool(settings{concurrency: 1, run: func(_ *pool, w *worker, i int) {
				if i != 0 {
					others.Add(1)
					return
				}
				workers.Store(0, w)
				<-stuck
				w.lost = true
				if exits {
					runtime.Goexit()
				}
			}})
			p.Start()
			p.push(t, 0, 1, 2)
			time.Sleep(time.Second)
			require.Zero(t, others.Load())
			require.Equal(t, 1, p.Stats().Running)
			p.Replace(func(w *worker) {
				if old, _ := workers.Load(0); old != w {
					left.Add(1)
				}
			})
			synctest.Wait()
			require.EqualValues(t, 1, left.Load())
			require.EqualValues(t, 2, others.Load())
			require.Zero(t, p.Stats().Running)
			require.Equal(t, 1, p.Stats().Workers, "the one that took over")
			p.end(t)
			require.EqualValues(t, 1, p.open.Load(), "the stuck one")
			close(stuck)
			synctest.Wait()
			require.Zero(t, p.open.Load())
			require.EqualValues(t, 3, p.after.Load(), "the lost run is not finished twice")
		})
	}
}

func TestABlockedWorkerDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Int64
		inner := make(chan struct{}, 1)
		p := newPool(settings{concurrency: 1, run: func(p *pool, _ *worker, i int) {
			switch i {
			case 0:
				p.Block()
				one := 1
				if p.Push(context.Background(), &one, true, false) == nil {
					<-inner
				}
				p.Unblock()
			case 1:
				inner <- struct{}{}
			}
			done.Add(1)
		}})
		p.Start()
		for range 20 {
			p.push(t, 0)
			synctest.Wait()
		}
		require.EqualValues(t, 40, done.Load())
		require.LessOrEqual(t, p.Stats().Workers, 1)
		p.end(t)
	})
}

// With work all the time, the surplus after Unblock has to go as well.
func TestTheConcurrencyHoldsAfterUnblock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := make(chan struct{}, 1)
		var running, late, work atomic.Int64
		p := newPool(settings{concurrency: 1, run: func(p *pool, _ *worker, i int) {
			switch i {
			case 0:
				p.Block()
				<-inner
				p.Unblock()
			case 1:
				inner <- struct{}{}
			default:
				if running.Add(1) > 1 && work.Load() > 3 {
					late.Add(1)
				}
				time.Sleep(10 * time.Millisecond)
				work.Add(1)
				running.Add(-1)
			}
		}})
		p.Start()
		p.push(t, 0, 1)
		for range 100 {
			p.push(t, 2)
		}
		p.end(t)
		require.Zero(t, late.Load(), "two at a time, with a concurrency of one")
	})
}

func TestCloseWaitsForABlockedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPool(settings{concurrency: 1, run: func(p *pool, _ *worker, _ int) {
			p.Block()
			<-release
			p.Unblock()
		}})
		p.Start()
		p.push(t, 0)
		synctest.Wait()
		gone := p.Close()
		synctest.Wait()
		select {
		case <-gone:
			require.Fail(t, "gone before its worker")
		default:
		}
		close(release)
		<-gone
	})
}

// Takers that are no workers, as at the end of a bus.
func TestTryTake(t *testing.T) {
	p := newPool(settings{})
	p.push(t, upTo(500)...)
	var got []int
	var item int
	for p.TryTake(&item) {
		got = append(got, item)
		require.Equal(t, 1, p.Stats().Running)
		p.Finish()
	}
	require.Equal(t, upTo(500), got)
	require.Zero(t, p.Stats().Queued)
	p.end(t)
}

// Chunks are used again and again, with workers that come back late to those that
// they knew: every item is run once, whatever happens.
func TestEveryItemRunsOnce(t *testing.T) {
	const producers, each = 8, 5000
	for _, s := range []settings{
		{concurrency: 1, capacity: 10},
		{concurrency: 4, capacity: 64},
		{concurrency: 64, capacity: 100},
		{concurrency: 16, capacity: 1 << 16},
	} {
		seen := make([]atomic.Int32, producers*each)
		s.run = func(p *pool, _ *worker, i int) {
			seen[i].Add(1)
			switch {
			case i%7 == 0:
				runtime.Gosched()
			case i%1001 == 0:
				runtime.Goexit()
			case i%501 == 0: // what a handler publishes
				if next := i + 1; next < len(seen) && next%each == 0 {
					return
				}
			}
		}
		p := newPool(s)
		p.Start()
		var wg sync.WaitGroup
		var failed atomic.Int64
		for producer := range producers {
			wg.Go(func() {
				for i := range each {
					item := producer*each + i
					if p.Push(context.Background(), &item, i%11 == 0, false) != nil {
						failed.Add(1)
					}
					if i%97 == 0 {
						time.Sleep(time.Microsecond) // lets the queue run empty now and then
					}
				}
			})
		}
		wg.Wait()
		p.end(t)
		require.Zero(t, failed.Load())
		for i := range seen {
			if n := seen[i].Load(); n != 1 {
				require.Fail(t, "not once", "item %d ran %d times (%+v)", i, n, s)
			}
		}
		require.EqualValues(t, producers*each, p.after.Load())
		require.EqualValues(t, producers*each, p.Stats().Admitted)
	}
}

// The same for items that come back, as retries do.
func TestEveryItemComesBack(t *testing.T) {
	const items, rounds = 500, 20
	var left [items]atomic.Int32
	var done sync.WaitGroup
	done.Add(items)
	p := newPool(settings{concurrency: 8, capacity: 4, run: func(p *pool, _ *worker, i int) {
		if left[i].Add(-1) == 0 {
			done.Done()
			return
		}
		p.Return(&i, false)
	}})
	for i := range left {
		left[i].Store(rounds)
	}
	p.Start()
	p.push(t, upTo(items)...)
	done.Wait()
	p.end(t)
	require.EqualValues(t, items*rounds, p.after.Load())
	require.EqualValues(t, items, p.Stats().Admitted)
}

// The worker that empties a chunk may come to say so only after it has been begun
// again. With the lock in demand, that happens.
func TestChunksAreBegunAgainUnderTheirLastTaker(t *testing.T) {
	const producers, each = 64, 500
	for range 4 {
		var ran, failed atomic.Int64
		p := newPool(settings{concurrency: 4, capacity: 256, run: func(*pool, *worker, int) { ran.Add(1) }})
		p.Start()
		var wg sync.WaitGroup
		for range producers {
			wg.Go(func() {
				for i := range each {
					if p.Push(context.Background(), &i, false, false) != nil {
						failed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		for ran.Load() < producers*each { // lost items end the test at its timeout
			runtime.Gosched()
		}
		p.end(t)
		require.Zero(t, failed.Load())
	}
}

// A worker that is one too many leaves, and another one is woken for the item that
// came while it was taken for one at work.
func TestLeavingACrowdStrandsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := make(chan struct{})
		p := newPool(settings{concurrency: 1, run: func(p *pool, _ *worker, i int) {
			switch i {
			case 0:
				p.Block()
				p.push(t, 1) // which another worker runs, and then rests
				time.Sleep(20 * time.Millisecond)
				p.Unblock()
				p.push(t, 2)
			case 2:
				close(ran)
			}
		}})
		p.Start()
		p.push(t, 0)
		time.Sleep(time.Second)
		select {
		case <-ran:
		default:
			t.Errorf("stranded: %+v", p.Stats())
		}
		p.end(t)
	})
}
