package contracttest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

// Options that contradict each other, and those that another one leaves without effect, are refused.
func TestR3_ContradictoryOptions(t *testing.T) {
	for _, opts := range [][]eventbus.CircuitOption{
		{eventbus.NoCircuit(), eventbus.MinEvents(3)},
		{eventbus.OpenFor(time.Minute), eventbus.NoCircuit()},
		{eventbus.NoCircuit(), eventbus.CountRejections()},
	} {
		_, err := eventbus.New(eventbus.WithCircuit(opts...))
		requireOptionError(t, err, "WithCircuit.NoCircuit")
		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.Circuit(opts...))
		requireOptionError(t, err, "Circuit.NoCircuit")
	}
	for _, when := range []eventbus.WhenOpen{eventbus.HoldWhenOpen, eventbus.DropWhenOpen, eventbus.DeadLetterWhenOpen} {
		bus, _ := newBus(t)
		_, err := bus.Subscribe("a", ok, eventbus.Circuit(eventbus.NoCircuit()), when)
		requireOptionError(t, err, "WhenOpen")
		bus, _ = newBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		_, err = bus.Subscribe("a", ok, when)
		requireOptionError(t, err, "WhenOpen")
		_, err = bus.Subscribe("a", ok, when, eventbus.Circuit())
		require.NoError(t, err)
	}
}

// What is valid, and looks like a mistake, is logged with the remedy.
func TestR3_DoubtfulOptions(t *testing.T) {
	for name, c := range map[string]struct {
		bus   []eventbus.Option
		own   []eventbus.SubscribeOption
		field string
		says  string
	}{
		"a timeout of 30":          {own: []eventbus.SubscribeOption{eventbus.Timeout(30)}, field: "Timeout", says: "is 30ns; write the unit, as in 30*time.Second"},
		"that of the bus":          {bus: []eventbus.Option{eventbus.WithTimeout(30)}, field: "WithTimeout", says: "30*time.Second"},
		"a delay of 5":             {own: []eventbus.SubscribeOption{eventbus.Retry(eventbus.BaseDelay(5))}, field: "BaseDelay", says: "5*time.Second"},
		"a maximum of 5":           {bus: []eventbus.Option{eventbus.WithRetry(eventbus.BaseDelay(0), eventbus.MaxDelay(5))}, field: "MaxDelay", says: "5*time.Second"},
		"a bound of 5":             {own: []eventbus.SubscribeOption{eventbus.Retry(eventbus.MaxElapsed(5))}, field: "MaxElapsed", says: "5*time.Second"},
		"a list of numbers":        {own: []eventbus.SubscribeOption{eventbus.Retry(eventbus.Delays(time.Second, 10))}, field: "Delays", says: "10*time.Second"},
		"a base above the maximum": {own: []eventbus.SubscribeOption{eventbus.Retry(eventbus.BaseDelay(time.Hour))}, field: "BaseDelay", says: "is 1h0m0s, and MaxDelay cuts it to 30s; set MaxDelay too"},
		"a maximum below the base": {bus: []eventbus.Option{eventbus.WithRetry(eventbus.MaxDelay(time.Millisecond))}, field: "BaseDelay", says: "set MaxDelay too"},
		"a quota without a store":  {bus: []eventbus.Option{eventbus.WithMaxUnsettled(5)}, field: "WithMaxUnsettled", says: "without WithStore"},
		"nothing":                  {own: []eventbus.SubscribeOption{eventbus.Timeout(time.Millisecond), eventbus.Retry(eventbus.BaseDelay(0), eventbus.MaxDelay(time.Hour))}},
	} {
		t.Run(name, func(t *testing.T) {
			bus, logs := newBus(t, c.bus...)
			mustSubscribe(t, bus, "a", ok, append(c.own, eventbus.Named("mail"))...)
			warned := logs.FilterMessage("options may be a mistake").All()
			if c.field == "" {
				require.Empty(t, warned)
				return
			}
			require.Len(t, warned, 1)
			require.Equal(t, zapcore.WarnLevel, warned[0].Level)
			require.Contains(t, warned[0].ContextMap()[c.field], c.says)
			if c.own != nil {
				require.Equal(t, "mail", warned[0].ContextMap()["subscription_id"])
			}
		})
	}
}

func TestR3_ADelayOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		_, err := bus.Publish(t.Context(), "a", 1, eventbus.After(-time.Hour))
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		require.ErrorContains(t, err, "omit After")
		mustPublish(t, bus, "a", 1, eventbus.After(-time.Minute))
		shutdown(t, bus)
	})
}
