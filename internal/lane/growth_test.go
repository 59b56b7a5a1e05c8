package lane_test

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// timed is a pool whose items are the microseconds that they take; push them before
// Start. most is how many workers there have been at a time, and last how many at the
// end of the last item.
func timed(concurrency int, first func()) (p *pool, most, last *atomic.Int64) {
	most, last = new(atomic.Int64), new(atomic.Int64)
	p = newPool(settings{concurrency: concurrency, run: func(p *pool, _ *worker, item int) {
		if item < 0 {
			first()
			return
		}
		time.Sleep(time.Duration(item) * time.Microsecond)
		n := p.open.Load()
		last.Store(n)
		most.Store(max(most.Load(), n))
	}})
	return p, most, last
}

func onProcessors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// A worker that gets on well is joined all the same while it leaves processors idle.
func TestItemsThatAreNotShortHaveAWorkerAProcessor(t *testing.T) {
	onProcessors(t, 4)
	synctest.Test(t, func(t *testing.T) {
		p, most, _ := timed(100, nil)
		p.push(t, slices.Repeat([]int{10}, 10_000)...)
		p.Start()
		begin := time.Now()
		p.end(t)
		require.EqualValues(t, 4, most.Load())
		require.Less(t, time.Since(begin), 60*time.Millisecond)
	})
	synctest.Test(t, func(t *testing.T) {
		p, most, _ := timed(2, nil)
		p.push(t, slices.Repeat([]int{10}, 5_000)...)
		p.Start()
		p.end(t)
		require.EqualValues(t, 2, most.Load(), "not more than the concurrency")
	})
	synctest.Test(t, func(t *testing.T) {
		p, most, _ := timed(100, nil)
		p.push(t, slices.Repeat([]int{2}, 20_000)...)
		p.Start()
		p.end(t)
		require.EqualValues(t, 1, most.Load(), "nor for short items")
	})
}

// Short items cost more where several workers share them out.
func TestShortItemsAreLeftToOneWorker(t *testing.T) {
	onProcessors(t, 4)
	synctest.Test(t, func(t *testing.T) {
		p, most, last := timed(4, nil)
		p.push(t, slices.Repeat([]int{1_000}, 8)...)
		p.push(t, slices.Repeat([]int{2}, 60_000)...)
		p.Start()
		p.end(t)
		require.EqualValues(t, 4, most.Load())
		require.EqualValues(t, 1, last.Load())
	})
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		p, _, _ := timed(4, func() { <-free })
		p.push(t, -1)
		p.push(t, slices.Repeat([]int{1_000}, 8)...)
		p.push(t, slices.Repeat([]int{2}, 60_000)...)
		p.Start()
		defer p.end(t)
		defer close(free)
		time.Sleep(time.Second)
		require.EqualValues(t, 4, p.opened.Load(), "not while one of them is stuck")
	})
}

// One tick without progress is the collector's, if the items before were short.
func TestShortItemsMakeNoWorkersForAHiccup(t *testing.T) {
	onProcessors(t, 4)
	synctest.Test(t, func(t *testing.T) {
		p, most, _ := timed(100, nil)
		short := slices.Repeat([]int{2}, 10_000)
		p.push(t, short...)
		p.push(t, 700)
		p.push(t, short...)
		p.Start()
		p.end(t)
		require.EqualValues(t, 1, most.Load())
	})
	synctest.Test(t, func(t *testing.T) {
		began := make(chan time.Time, 2)
		p, _, _ := timed(100, func() {
			began <- time.Now()
			time.Sleep(time.Second)
		})
		p.push(t, slices.Repeat([]int{2}, 10_000)...)
		p.push(t, -1, -1)
		p.Start()
		p.end(t)
		first, second := <-began, <-began
		require.Less(t, second.Sub(first), 2*time.Millisecond, "a stuck worker is joined")
	})
}

// Workers that were to leave and are stuck now do not leave in the shape of those that
// are added for them.
func TestWorkersThatAreAddedStay(t *testing.T) {
	onProcessors(t, 4)
	synctest.Test(t, func(t *testing.T) {
		const workers = 64
		free := make(chan struct{})
		var stuck, went atomic.Int64
		p := newPool(settings{concurrency: workers, run: func(p *pool, _ *worker, item int) {
			time.Sleep(time.Duration(item) * time.Microsecond)
			switch {
			case stuck.Load() >= workers-1: // one more, if two came to the last place at a time
				went.Add(1)
			case item == 1 && p.Crowded() && stuck.Add(1) < workers:
				<-free
			}
		}})
		p.push(t, slices.Repeat([]int{1_000}, 4*workers)...)
		p.push(t, slices.Repeat([]int{1}, 1_000_000)...)
		p.Start()
		defer p.end(t)
		defer close(free)
		for waited := 0; stuck.Load() < workers-1; waited++ {
			require.Less(t, waited, 1000, "no worker of short items is to leave")
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(2 * time.Millisecond)
		before := went.Load()
		time.Sleep(time.Millisecond)
		require.Greater(t, went.Load(), before, "nothing runs, with a worker to spare")
	})
}

// Nobody is there to come back for what the last worker of a closed pool leaves.
func TestTheLastWorkerOfAClosedPoolIsNoneTooMany(t *testing.T) {
	onProcessors(t, 4)
	synctest.Test(t, func(t *testing.T) {
		const review = 16 * time.Millisecond
		begin := time.Now()
		p := newPool(settings{concurrency: 2, run: func(p *pool, _ *worker, item int) {
			now := time.Since(begin)
			switch {
			case item < 0: // so that there are three workers for two right at the review
				p.Block()
				time.Sleep(review - 500*time.Nanosecond - now)
				p.Unblock()
				time.Sleep(time.Microsecond)
			case now > review-10*time.Microsecond && now < review:
				time.Sleep(review + 500*time.Nanosecond - now)
			default:
				time.Sleep(time.Duration(item) * time.Microsecond)
			}
		}})
		p.push(t, -1)
		p.push(t, slices.Repeat([]int{1_000}, 6)...)
		p.push(t, slices.Repeat([]int{1}, 60_000)...)
		p.Start()
		p.end(t)
		time.Sleep(time.Second)
	})
}
