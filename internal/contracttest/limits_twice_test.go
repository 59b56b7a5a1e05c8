package contracttest

import (
	"context"
	"math"
	"slices"
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

// With a store, deliveries beyond twice the capacity of the line stay there.
func TestD12_HandlersFillTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2*eventbus.DefaultLineCapacity + 100
		disk := newDisk()
		bus, _ := disk.open(t)
		release := make(chan struct{})
		var calls callTimes
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			<-release
			calls.add(0)
			return nil
		}, eventbus.Named("slow"), eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		mustSubscribe(t, bus, "flood", func(ctx context.Context, _ eventbus.Event) error {
			for range n / 100 {
				_, err := bus.PublishBatch(ctx, slices.Repeat([]eventbus.Publication{{Type: "x"}}, 100))
				if err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("flood"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "flood", nil)
		time.Sleep(time.Second)
		require.Empty(t, letters(t, bus))
		require.LessOrEqual(t, bus.Metrics().Throttled, eventbus.DefaultLineCapacity)
		close(release)
		require.NoError(t, bus.Drain(t.Context()))
		require.Empty(t, letters(t, bus))
		require.Equal(t, n, calls.len())
		shutdown(t, bus)
	})
}
