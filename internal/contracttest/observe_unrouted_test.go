package contracttest

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

func TestO1_AnUnroutedTypeIsLoggedOnceWithTheNearestPattern(t *testing.T) {
	for _, c := range []struct{ eventType, nearest string }{
		{"oder.created", "order.*"},
		{"orders.created", "order.*"},
		{"Order.created", "order.*"},
		{"invoice.payd", "invoice.paid"},
		{"customer.created", ""},
		{"x", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t)
			mustSubscribe(t, bus, "a.*", ok)
			mustSubscribe(t, bus, "invoice.paid", ok)
			mustSubscribe(t, bus, "order.*", ok)
			mustSubscribe(t, bus, "order.*", ok)
			for range 3 {
				mustPublish(t, bus, c.eventType, "canary")
			}
			_, err := bus.PublishAndWait(t.Context(), c.eventType, nil)
			require.NoError(t, err)
			mustPublish(t, bus, "order.created", nil)
			shutdown(t, bus)
			entries := logs.FilterMessage("event type matches no subscription").All()
			require.Len(t, entries, 1)
			require.Equal(t, zapcore.InfoLevel, entries[0].Level)
			want := map[string]any{"event_type": c.eventType}
			if c.nearest != "" {
				want["nearest_pattern"] = c.nearest
			}
			require.Equal(t, want, entries[0].ContextMap())
		})
	}
}

func TestO1_AThousandUnroutedTypesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		for i := range 1100 {
			mustPublish(t, bus, fmt.Sprintf("type.n%d", i), nil)
		}
		require.Len(t, logs.FilterMessage("event type matches no subscription").All(), 1000)
		require.EqualValues(t, 1100, bus.Metrics().Ledger.Unrouted)
		shutdown(t, bus)
	})
}

// With a store, events that were published before Start, and later ones, are logged once for each type.
func TestO1_AnUnroutedTypeOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, logs := disk.open(t)
		mustSubscribe(t, bus, "order.*", ok, eventbus.Named("mail"))
		mustPublish(t, bus, "nothing.listens", "x")
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		entries := logs.FilterMessage("event type matches no subscription")
		require.Equal(t, 1, entries.FilterField(zap.String("event_type", "nothing.listens")).Len())
		mustPublish(t, bus, "nothing.listens", "x", eventbus.Key("k"))
		mustPublish(t, bus, "nothing.hears", "x", eventbus.Key("k"))
		shutdown(t, bus)
		entries = logs.FilterMessage("event type matches no subscription")
		require.Equal(t, 2, entries.Len())
		require.Equal(t, 1, entries.FilterField(zap.String("event_type", "nothing.hears")).Len())
	})
}
