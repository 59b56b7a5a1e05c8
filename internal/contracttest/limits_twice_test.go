package contracttest

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// flood subscribes a handler that publishes n events "x" from within, each with its number.
func flood(t *testing.T, bus *eventbus.Bus, n int) {
	t.Helper()
	mustSubscribe(t, bus, "flood", func(ctx context.Context, _ eventbus.Event) error {
		for i := range n {
			if _, err := bus.Publish(ctx, "x", i); err != nil {
				return err
			}
		}
		return nil
	}, eventbus.Named("flood"))
}

// Handlers do not wait for room in a line, so what they publish beyond twice its capacity becomes letters.
func TestD12_HandlersFillALineTwice(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{
		"coupled":  nil,
		"isolated": {eventbus.WithIsolation()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, opts...)
				slow, quick := &gauge{during: time.Second}, &gauge{}
				mustSubscribe(t, bus, "x", slow.handle, eventbus.Named("slow"), eventbus.Concurrency(1), eventbus.LineCapacity(3))
				mustSubscribe(t, bus, "x", quick.handle, eventbus.Named("quick"))
				flood(t, bus, 20)
				mustPublish(t, bus, "flood", nil)
				settleWorkers()
				require.Equal(t, 6, bus.Metrics().Throttled)
				require.Len(t, letters(t, bus), 13)
				shutdown(t, bus)
				for _, l := range letters(t, bus) {
					require.Equal(t, eventbus.ReasonOverflow, l.Reason)
					require.Equal(t, "slow", l.Subscription)
				}
				_, order := slow.seen()
				require.Len(t, order, 7)
				_, order = quick.seen()
				require.Len(t, order, 20, "the other subscription has all of them")
			})
		})
	}
}

func TestD12_ALargeLineHasNoBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		slow := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", slow.handle, eventbus.Concurrency(1), eventbus.LineCapacity(math.MaxInt))
		flood(t, bus, 20)
		mustPublish(t, bus, "flood", nil)
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// What publishers have queued before the line was full is not lost: they would have waited.
func TestD12_WhatPublishersHadQueuedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		slow := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", slow.handle, eventbus.Concurrency(1), eventbus.LineCapacity(3))
		for i := range 20 {
			mustPublish(t, bus, "x", i)
		}
		require.NoError(t, bus.Start(t.Context()))
		settleWorkers()
		require.Equal(t, 19, bus.Metrics().Throttled)
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// With a store, the line goes on there.
func TestD12_HandlersFillTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow := mustSubscribe(t, bus, "x", ok, eventbus.Named("slow"), eventbus.Concurrency(1))
		require.NoError(t, slow.Pause())
		flood(t, bus, 30)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		mustPublish(t, bus, "flood", nil)
		synctest.Wait()
		require.NoError(t, slow.Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}
