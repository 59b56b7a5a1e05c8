package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A tool does not know whether a subscription has destinations. An order to one that it does not have is not one to all.
func TestD13_AnOrderToADestinationOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		var calls callTimes
		mustSubscribe(t, bus, "ship", func(context.Context, eventbus.Event) error { calls.add(0); return nil }, eventbus.Named("plain"))
		start(t, bus)
		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		err := tool.Subscription("plain").Destination("a").Pause()
		mustPublish(t, bus, "ship", 1)
		time.Sleep(time.Second)
		require.Equal(t, 1, calls.len())
		require.ErrorContains(t, err, "needs PerDestination")

		// One that comes later.
		require.NoError(t, tool.Subscription("ships").Destination("a").Pause())
		s := newShips()
		s.subscribe(t, bus)
		mustPublish(t, bus, "ship", shipment{"a", 1})
		mustPublish(t, bus, "ship", shipment{"b", 1})
		time.Sleep(time.Second)
		require.Empty(t, s.at("a"))
		require.Len(t, s.at("b"), 1)
		shutdown(t, bus)
	})
}

// With a store, Drain does not wait for what sleeps either.
func TestF6_DrainLeavesSleepersInTheStore(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mustSubscribe(t, bus, "a", failing(eventbus.Snooze(24*time.Hour)), eventbus.Named("s"))
		start(t, bus)
		mustPublish(t, bus, "a", 0)
		mustPublish(t, bus, "a", 1, eventbus.Key("k"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, bus.Drain(ctx))
		require.Equal(t, 2, metricsOf(t, bus, "s").Snoozed)
	})
}
