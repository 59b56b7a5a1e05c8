package eventbus_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// interleave runs two workloads in turns, so that a machine that slows down
// slows both, and reports what one operation costs as a multiple of the
// yardstick's. Each workload gets the number of operations to do.
func interleave(b *testing.B, chunk int, work, yardstick func(n int)) {
	b.Helper()
	b.ReportAllocs()
	work(chunk)
	yardstick(chunk)
	var worked, measured time.Duration
	b.ResetTimer()
	for done := 0; done < b.N; done += chunk {
		n := min(chunk, b.N-done)
		b.StopTimer()
		begin := time.Now()
		yardstick(n)
		measured += time.Since(begin)
		b.StartTimer()
		begin = time.Now()
		work(n)
		worked += time.Since(begin)
	}
	b.StopTimer()
	b.ReportMetric(float64(worked)/float64(measured), "x-yardstick")
}

// BenchmarkPublishHandled is publishing until handled, one subscription, with
// everything on, beside a channel of capacity 1,024 with one receiver.
func BenchmarkPublishHandled(b *testing.B) {
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	var handled atomic.Int64
	var target int64
	done := make(chan struct{})
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		if handled.Add(1) == target {
			done <- struct{}{}
		}
		return nil
	})
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	payload := any("payload")

	events := make(chan eventbus.Event, 1024)
	received := make(chan struct{})
	var receive int64
	var got atomic.Int64
	go func() {
		for range events {
			if got.Add(1) == receive {
				received <- struct{}{}
			}
		}
	}()
	event := eventbus.Event{Type: "order.placed", Payload: payload}

	interleave(b, 200_000, func(n int) {
		target = handled.Load() + int64(n)
		for range n {
			if _, err := bus.Publish(ctx, "order.placed", payload); err != nil {
				b.Fatal(err)
			}
		}
		<-done
	}, func(n int) {
		receive = got.Load() + int64(n)
		for range n {
			events <- event
		}
		<-received
	})
	close(events)
	require.True(b, bus.Metrics().Ledger.Balanced())
	require.NoError(b, bus.Shutdown(ctx))
}

// BenchmarkPublishAndWait is an event published and waited for.
func BenchmarkPublishAndWait(b *testing.B) {
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil })
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, bus.Shutdown(ctx))
}

// BenchmarkWaitingRetries is what 100,000 dispatches cost that wait for a retry,
// their payloads and errors aside.
func BenchmarkWaitingRetries(b *testing.B) {
	const waiting = 100_000
	ctx := context.Background()
	failed := errors.New("failed")
	for b.Loop() {
		bus, err := eventbus.New(eventbus.WithQueueCapacity(waiting))
		require.NoError(b, err)
		_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return failed },
			eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(b, err)
		require.NoError(b, bus.Start(ctx))
		goroutines, before := runtime.NumGoroutine(), heap()
		for range waiting {
			_, err := bus.Publish(ctx, "order.placed", nil)
			require.NoError(b, err)
		}
		for bus.Metrics().WaitingRetries < waiting || bus.Metrics().RunningDispatches > 0 {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(float64(heap()-before)/waiting, "B/retry")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		cut, cancel := context.WithCancel(ctx)
		cancel()
		_ = bus.Shutdown(cut)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkSlowBesideFast runs 1,000 handlers that sleep 10 ms each, all at once,
// beside a subscription that is quick.
func BenchmarkSlowBesideFast(b *testing.B) {
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	const slow = 1000
	var left atomic.Int64
	allDone := make(chan time.Time, 1)
	_, err = bus.Subscribe("slow", func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Millisecond)
		if left.Add(-1) == 0 {
			allDone <- time.Now()
		}
		return nil
	})
	require.NoError(b, err)
	latencies := make(chan time.Duration, 1000)
	_, err = bus.Subscribe("fast", func(_ context.Context, e eventbus.Event) error {
		latencies <- time.Since(e.Payload.(time.Time))
		return nil
	})
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	var worst time.Duration
	var all []time.Duration
	for b.Loop() {
		left.Store(slow)
		begin := time.Now()
		for range slow {
			_, err := bus.Publish(ctx, "slow", nil)
			require.NoError(b, err)
		}
		for end := (time.Time{}); end.IsZero(); {
			_, err := bus.Publish(ctx, "fast", time.Now())
			require.NoError(b, err)
			all = append(all, <-latencies)
			select {
			case end = <-allDone:
				worst = max(worst, end.Sub(begin))
			case <-time.After(100 * time.Microsecond):
			}
		}
	}
	slices.Sort(all)
	b.ReportMetric(float64(worst)/1e6, "ms-slow-worst")
	b.ReportMetric(float64(all[len(all)*99/100])/1e6, "ms-fast-p99")
	require.NoError(b, bus.Shutdown(ctx))
}
