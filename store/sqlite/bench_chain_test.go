package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// chainBus makes and starts a bus over a new file.
func chainBus(b *testing.B, subscribe func(bus *eventbus.Bus), opts ...eventbus.Option) *eventbus.Bus {
	b.Helper()
	store, err := Open(b.Context(), benchPath(b))
	require.NoError(b, err)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithStore(store), eventbus.WithLogger(zap.NewNop())}, opts...)...)
	require.NoError(b, err)
	subscribe(bus)
	require.NoError(b, bus.Start(b.Context()))
	return bus
}

// publishFrom publishes n events from 64 goroutines.
func publishFrom(b *testing.B, n int, publish func(i int64) error) {
	b.Helper()
	var next atomic.Int64
	var publishers sync.WaitGroup
	for range 64 {
		publishers.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := publish(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	publishers.Wait()
}

// BenchmarkChain measures chains of two events, with 64 handlers at once: a handler emits the second one, or publishes it before it returns.
func BenchmarkChain(b *testing.B) {
	for name, next := range map[string]func(ctx context.Context, bus *eventbus.Bus) error{
		"emit": func(ctx context.Context, _ *eventbus.Bus) error {
			_, err := eventbus.Emit(ctx, "invoice.created", busPayload)
			return err
		},
		"publish": func(ctx context.Context, bus *eventbus.Bus) error {
			_, err := bus.Publish(ctx, "invoice.created", busPayload)
			return err
		},
		"publish-child": func(ctx context.Context, bus *eventbus.Bus) error {
			_, err := bus.Publish(ctx, "invoice.created", busPayload, eventbus.ID(eventbus.ChildID(ctx, "invoice")))
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			path := benchPath(b)
			fill := busOver(b, path, func(context.Context, eventbus.Event) error { return nil }) // it is not started
			publishFrom(b, b.N, func(int64) error {
				_, err := fill.Publish(context.Background(), "order.placed", busPayload)
				return err
			})
			require.NoError(b, fill.Shutdown(context.Background()))
			store, err := Open(b.Context(), path)
			require.NoError(b, err)
			bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithLogger(zap.NewNop()), eventbus.WithConcurrency(64))
			require.NoError(b, err)
			_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error { return next(ctx, bus) }, eventbus.Named("bench"))
			require.NoError(b, err)
			_, err = bus.Subscribe("invoice.created", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("invoices"))
			require.NoError(b, err)
			b.ResetTimer()
			require.NoError(b, bus.Start(b.Context()))
			require.NoError(b, bus.Drain(b.Context()))
			b.StopTimer()
			require.NoError(b, bus.Shutdown(context.Background()))
		})
	}
}

// BenchmarkIdempotencyKeys measures publications with a key each, and without.
func BenchmarkIdempotencyKeys(b *testing.B) {
	for _, keys := range []bool{false, true} {
		b.Run(fmt.Sprintf("keys=%v", keys), func(b *testing.B) {
			bus := chainBus(b, func(bus *eventbus.Bus) {
				_, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("bench"))
				require.NoError(b, err)
			})
			b.ResetTimer()
			publishFrom(b, b.N, func(i int64) error {
				var opts []eventbus.PublishOption
				if keys {
					opts = append(opts, eventbus.IdempotencyKey(fmt.Sprint("order-", i)))
				}
				_, err := bus.Publish(context.Background(), "order.placed", busPayload, opts...)
				return err
			})
			require.NoError(b, bus.Drain(b.Context()))
			b.StopTimer()
			require.NoError(b, bus.Shutdown(context.Background()))
		})
	}
}

// BenchmarkLetterHandlers measures events that become dead letters, with a handler of letters and without.
func BenchmarkLetterHandlers(b *testing.B) {
	for _, handlers := range []int{0, 1} {
		b.Run(fmt.Sprintf("handlers=%d", handlers), func(b *testing.B) {
			declined := eventbus.Permanent(errors.New("declined"))
			bus := chainBus(b, func(bus *eventbus.Bus) {
				_, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error { return declined }, eventbus.Named("bench"))
				require.NoError(b, err)
				for i := range handlers {
					_, err = bus.OnDeadLetter("*", func(context.Context, eventbus.DeadLetter) error { return nil }, eventbus.Named(fmt.Sprint("tells", i)))
					require.NoError(b, err)
				}
			}, eventbus.WithCircuit(eventbus.NoCircuit()))
			b.ResetTimer()
			publishFrom(b, b.N, func(int64) error {
				_, err := bus.Publish(context.Background(), "order.placed", busPayload)
				return err
			})
			for bus.Metrics().DeadLetters < b.N {
				time.Sleep(time.Millisecond)
			}
			b.StopTimer()
			require.NoError(b, bus.Shutdown(context.Background()))
		})
	}
}
