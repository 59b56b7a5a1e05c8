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
