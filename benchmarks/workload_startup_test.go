package benchmarks

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// BenchmarkStartup is making a rival with its subscriptions, and starting it.
func BenchmarkStartup(b *testing.B) {
	run(b, "Startup", func(b *testing.B, kase, rival string) {
		t := newTally()
		var subscriptions []subscription
		for i := range number(b, kase) {
			subscriptions = append(subscriptions, subscription{fmt.Sprintf("service%d.started", i), t.handle})
		}
		b.ResetTimer()
		for range b.N {
			b.StopTimer()
			before, goroutines := held(), runtime.NumGoroutine()
			b.StartTimer()
			s := systems[rival](b, setup{subscriptions: subscriptions})
			b.StopTimer()
			b.ReportMetric(float64(held()-before), plan.Retained)
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), plan.Goroutines)
			s.close()
			b.StartTimer()
		}
	})
}

// BenchmarkIdle is what is held by a rival that has nothing to do any more. There
// are many of it, so that it shows beside what the process itself holds.
func BenchmarkIdle(b *testing.B) {
	run(b, "Idle", func(b *testing.B, _, rival string) {
		const many = 20
		for range b.N {
			const topic, events = "order.placed", 1000
			before, goroutines := held(), runtime.NumGoroutine()
			var idle []system
			for range many {
				t := newTally()
				s := systems[rival](b, setup{subscriptions: same(1, topic, t.handle)})
				t.drive(events, 1, 1, s, s.publisher(topic))
				idle = append(idle, s)
			}
			time.Sleep(100 * time.Millisecond) // what was started for the events ends, or rests
			b.ReportMetric(float64(held()-before)/many, plan.Retained)
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/many, plan.Goroutines)
			for _, s := range idle {
				s.close()
			}
		}
	})
}
