package benchmarks

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

var errOnce = errors.New("the first attempt fails")

// BenchmarkStorm is 100,000 events that fail once and wait for their retry: how long
// that takes, and what they hold when all of them wait.
func BenchmarkStorm(b *testing.B) {
	run(b, "Storm", func(b *testing.B, kase, rival string) {
		for range b.N {
			if kase == "waiting" {
				stormWaits(b, rival, plan.StormPatience)
			} else {
				stormDrains(b, rival)
			}
		}
	})
}

func stormDrains(b *testing.B, rival string) {
	const backoff = plan.StormBackoff
	w := newStorm(b, rival, backoff)
	w.publish()
	<-w.allDone
	b.ReportMetric(time.Since(w.begin).Seconds()/backoff.Seconds(), plan.Whole)
	b.ReportMetric(time.Duration(w.slowest.Load()).Seconds()/backoff.Seconds(), plan.Drain)
	w.system.close()
}

// stormWaits has them wait for patience, or, on a machine on which some are back before all have
// been seen to wait, for so many times as long that none is.
func stormWaits(b *testing.B, rival string, patience time.Duration) {
	for ; ; patience *= 2 {
		endLeftover()
		w := newStorm(b, rival, patience)
		leftover = func() {
			<-w.allDone
			w.system.close()
		}
		before, goroutines := held(), runtime.NumGoroutine()
		w.publish()
		<-w.allFailed
		time.Sleep(100 * time.Millisecond) // who has nothing to do any more ends, or rests
		more := runtime.NumGoroutine() - goroutines
		holds := held() - before
		if w.done.Load() == 0 {
			b.ReportMetric(float64(holds)/plan.StormEvents, plan.Waiting)
			b.ReportMetric(float64(more)/plan.StormEvents, plan.GoroutinesWaiting)
			return
		}
	}
}

type storm struct {
	system             system
	notes              []*note
	begin              time.Time // the first publication
	failed, done       atomic.Int64
	slowest            atomic.Int64 // from failure to success
	allFailed, allDone chan struct{}
}

func newStorm(tb testing.TB, rival string, backoff time.Duration) *storm {
	w := &storm{allFailed: make(chan struct{}), allDone: make(chan struct{})}
	for n := range plan.StormEvents {
		w.notes = append(w.notes, newNote(uint64(n)))
	}
	failedAt := make([]atomic.Int64, plan.StormEvents) // after begin
	w.system = systems[rival](tb, setup{retry: backoff, subscriptions: same(1, "order.placed", func(n uint64) error {
		now := int64(time.Since(w.begin))
		if failedAt[n].CompareAndSwap(0, now) {
			if w.failed.Add(1) == plan.StormEvents {
				close(w.allFailed)
			}
			return errOnce
		}
		took := now - failedAt[n].Load()
		for most := w.slowest.Load(); took > most && !w.slowest.CompareAndSwap(most, took); {
			most = w.slowest.Load()
		}
		if w.done.Add(1) == plan.StormEvents {
			close(w.allDone)
		}
		return nil
	})})
	return w
}

func (w *storm) publish() {
	publish := w.system.publisher("order.placed")
	w.begin = time.Now()
	for _, x := range w.notes {
		publish(x)
	}
}
