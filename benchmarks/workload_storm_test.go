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

// BenchmarkStorm is 100,000 events that fail once and wait for their retry.
func BenchmarkStorm(b *testing.B) {
	run(b, "Storm", func(b *testing.B, _, rival string) {
		for range b.N {
			w := newStorm(b, rival)
			before, goroutines := held(), runtime.NumGoroutine()
			w.publish()
			<-w.allFailed
			time.Sleep(backoff / 10) // who has nothing to do any more ends, or rests
			// Those that are through already hold nothing more.
			waiting := plan.StormEvents - w.done.Load()
			more := runtime.NumGoroutine() - goroutines
			b.ReportMetric(float64(held()-before)/float64(waiting), plan.Waiting)
			b.ReportMetric(float64(more)/float64(waiting), plan.GoroutinesWaiting)
			<-w.allDone
			b.ReportMetric(time.Since(w.begin).Seconds()/backoff.Seconds(), plan.Whole)
			b.ReportMetric(time.Duration(w.slowest.Load()).Seconds()/backoff.Seconds(), plan.Drain)
			w.system.close()
		}
	})
}

const backoff = plan.StormBackoffMillis * time.Millisecond

type storm struct {
	system             system
	notes              []*note
	begin              time.Time // the first publication
	failed, done       atomic.Int64
	slowest            atomic.Int64 // from failure to success
	allFailed, allDone chan struct{}
}

func newStorm(tb testing.TB, rival string) *storm {
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
