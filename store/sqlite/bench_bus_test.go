package sqlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// busOver makes a bus over a file. It is not started.
func busOver(b *testing.B, path string, handler eventbus.Handler, opts ...eventbus.Option) *eventbus.Bus {
	b.Helper()
	store, err := Open(b.Context(), path)
	require.NoError(b, err)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithStore(store), eventbus.WithLogger(zap.NewNop())}, opts...)...)
	require.NoError(b, err)
	_, err = bus.Subscribe("*", handler, eventbus.Named("bench"))
	require.NoError(b, err)
	return bus
}

// publishMany publishes n events from 512 goroutines, in batches of 100.
func publishMany(b *testing.B, bus *eventbus.Bus, n int) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var publishers sync.WaitGroup
	for range 64 {
		publishers.Go(func() {
			batch := make([]eventbus.Publication, 100)
			for i := range batch {
				batch[i] = eventbus.Publication{Type: "order.placed", Payload: busPayload}
			}
			for left.Add(-100) >= 0 {
				if _, err := bus.PublishBatch(context.Background(), batch); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	publishers.Wait()
}

var busPayload = map[string]any{
	"order": 4711, "customer": "customer-000123", "lines": []string{"apples", "pears", "plums"}, "total": 1234.5, "currency": "EUR",
}

func heapMiB() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkHeapUnsettled measures the heap for 1,000,000 events that are accepted and not handled.
// The disk is the queue: memory has those of the queue only.
func BenchmarkHeapUnsettled(b *testing.B) {
	if testing.Short() {
		b.Skip("takes long")
	}
	for b.Loop() {
		gate := make(chan struct{})
		before := heapMiB()
		bus := busOver(b, benchPath(b), func(context.Context, eventbus.Event) error { <-gate; return nil }, eventbus.WithConcurrency(2))
		require.NoError(b, bus.Start(b.Context()))
		publishMany(b, bus, 1_000_000)
		b.ReportMetric(heapMiB()-before, "heap-MiB")
		b.ReportMetric(0, "ns/op")
		close(gate)
		cut(b, bus)
	}
}

// BenchmarkHeapWaiting measures the heap for 1,000,000 events that wait for a retry.
func BenchmarkHeapWaiting(b *testing.B) {
	if testing.Short() {
		b.Skip("takes long")
	}
	errDown := errors.New("the service is down")
	for b.Loop() {
		before := heapMiB()
		bus := busOver(b, benchPath(b), func(context.Context, eventbus.Event) error { return errDown },
			eventbus.WithRetry(eventbus.BaseDelay(24*time.Hour), eventbus.MaxDelay(24*time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
		require.NoError(b, bus.Start(b.Context()))
		publishMany(b, bus, 1_000_000)
		for {
			l := bus.Metrics().Ledger
			if stats := bus.Metrics().Store; stats.Waiting == 1_000_000 && l.Recording == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		b.ReportMetric(heapMiB()-before, "heap-MiB")
		b.ReportMetric(0, "ns/op")
		cut(b, bus)
	}
}

// BenchmarkRecovery measures the recovery of 100,000 events: from Open to the first handled event,
// and until all are settled.
func BenchmarkRecovery(b *testing.B) {
	if testing.Short() {
		b.Skip("takes long")
	}
	const events = 100_000
	for b.Loop() {
		path := benchPath(b)
		bus := busOver(b, path, func(context.Context, eventbus.Event) error { return nil })
		publishMany(b, bus, events)
		cut(b, bus)
		var first atomic.Int64
		began := time.Now()
		bus = busOver(b, path, func(context.Context, eventbus.Event) error {
			first.CompareAndSwap(0, int64(time.Since(began)))
			return nil
		})
		require.NoError(b, bus.Start(b.Context()))
		for bus.Metrics().Ledger.Handled < events {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-all-settled")
		b.ReportMetric(float64(time.Duration(first.Load()).Milliseconds()), "ms-first-handled")
		b.ReportMetric(0, "ns/op")
		require.NoError(b, bus.Shutdown(context.Background()))
	}
}

// cut ends a bus without waiting for its events.
func cut(b *testing.B, bus *eventbus.Bus) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var left *eventbus.ShutdownError
	if err := bus.Shutdown(ctx); err != nil && !errors.As(err, &left) {
		b.Fatal(fmt.Errorf("Shutdown: %w", err))
	}
}

// BenchmarkReplayMatching replays 100,000 dead letters without a limit, 5,000 with -short, until all are handled.
func BenchmarkReplayMatching(b *testing.B) {
	total := 100_000
	if testing.Short() {
		total = 5_000
	}
	for b.Loop() {
		b.StopTimer()
		path := benchPath(b)
		s := openAt(b, path)
		for i := 0; i < total; {
			batch := &driver.Batch{}
			for ; len(batch.Bury) < 1000; i++ {
				l := letterFor("bench", eventbus.ReasonExhausted, "no answer", func(l *eventbus.DeadLetter) { l.Event.Key = fmt.Sprint("order ", i) })
				batch.Bury = append(batch.Bury, l)
			}
			require.NoError(b, submit(s, batch))
		}
		require.NoError(b, s.Close(b.Context()))
		bus := busOver(b, path, func(context.Context, eventbus.Event) error { return nil })
		require.NoError(b, bus.Start(b.Context()))
		b.StartTimer()
		began := time.Now()
		report, err := bus.DLQ().ReplayMatching(b.Context(), eventbus.LetterQuery{All: true})
		require.NoError(b, err)
		require.Equal(b, total, report.Replayed)
		b.ReportMetric(float64(total)/time.Since(began).Seconds(), "letters/s")
		require.NoError(b, bus.Shutdown(b.Context()))
	}
}
