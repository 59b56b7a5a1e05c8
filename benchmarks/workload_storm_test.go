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
			begin := time.Now()
			w.publish()
			<-w.allFailed
			time.Sleep(backoff / 10) // who has nothing to do any more ends, or rests
			// Those that are through already hold nothing more.
			waiting := plan.StormEvents - w.done.Load()
			more := runtime.NumGoroutine() - goroutines
			b.ReportMetric(float64(held()-before)/float64(waiting), plan.Waiting)
			b.ReportMetric(float64(more)/float64(waiting), plan.GoroutinesWaiting)
			<-w.allDone
			b.ReportMetric(time.Since(begin).Seconds()/backoff.Seconds(), plan.Drain)
			w.system.close()
		}
	})
}

const backoff = plan.StormBackoffMillis * time.Millisecond

type storm struct {
	system             system
	notes              []*note
	failed, done       atomic.Int64
	allFailed, allDone chan struct{}
}

func newStorm(tb testing.TB, rival string) *storm {
	w := &storm{allFailed: make(chan struct{}), allDone: make(chan struct{})}
	for n := range plan.StormEvents {
		w.notes = append(w.notes, newNote(uint64(n)))
	}
	seen := make([]atomic.Bool, plan.StormEvents)
	w.system = systems[rival](tb, setup{retry: backoff, subscriptions: same(1, "order.placed", func(n uint64) error {
		if !seen[n].Swap(true) {
			if w.failed.Add(1) == plan.StormEvents {
				close(w.allFailed)
			}
			return errOnce
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
	for _, x := range w.notes {
		publish(x)
	}
}
