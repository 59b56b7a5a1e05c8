package contracttest

import (
	"errors"
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
		"a rule of numbers":        {bus: []eventbus.Option{eventbus.WithRetryRules(doubtfulRule(5, time.Second))}, field: "rule 1 BaseDelay", says: "5*time.Second"},
		"a rule's own base":        {own: []eventbus.SubscribeOption{eventbus.RetryRules(doubtfulRule(time.Minute, time.Second))}, field: "rule 1 BaseDelay", says: "raise MaxDelay"},
		"a rate in numbers":        {own: []eventbus.SubscribeOption{eventbus.RateLimit(5, 10, 1)}, field: "RateLimit", says: "10*time.Second"},
		"a window of 24":           {bus: []eventbus.Option{eventbus.WithIdempotencyWindow(24)}, field: "WithIdempotencyWindow", says: "24*time.Second"},
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

func doubtfulRule(base, most time.Duration) eventbus.RetryRule {
	return eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"*"}}, Attempts: 2, BaseDelay: base, MaxDelay: most}
}

// What changes settings while the bus runs doubts them likewise.
func TestR3_DoubtfulSettingsAtRunTime(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*eventbus.Bus, *eventbus.Subscription) error
		of    any // the name of the subscription, if it is about one
		field string
	}{
		"SetRetry": {func(_ *eventbus.Bus, s *eventbus.Subscription) error { return s.SetRetry(eventbus.BaseDelay(5)) }, "mail", "BaseDelay"},
		"SetRetry above the maximum": {func(_ *eventbus.Bus, s *eventbus.Subscription) error {
			return s.SetRetry(eventbus.BaseDelay(time.Hour))
		}, "mail", "BaseDelay"},
		"SetRetryRules": {func(_ *eventbus.Bus, s *eventbus.Subscription) error {
			return s.SetRetryRules(doubtfulRule(5, 0))
		}, "mail", "rule 1 BaseDelay"},
		"SetRetry of the bus": {func(b *eventbus.Bus, _ *eventbus.Subscription) error { return b.SetRetry(eventbus.MaxDelay(5)) }, nil, "MaxDelay"},
		"SetRetryRules of the bus": {func(b *eventbus.Bus, _ *eventbus.Subscription) error {
			return b.SetRetryRules(doubtfulRule(time.Minute, time.Second))
		}, nil, "rule 1 BaseDelay"},
		"nothing": {func(b *eventbus.Bus, s *eventbus.Subscription) error {
			return errors.Join(s.SetRetry(eventbus.BaseDelay(time.Second)), s.SetRetry(), s.SetRetryRules(), b.SetRetry(), b.SetRetryRules(doubtfulRule(time.Second, time.Minute)))
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bus, logs := newBus(t)
			s := mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"))
			require.NoError(t, c.set(bus, s))
			warned := logs.FilterMessage("options may be a mistake").All()
			if c.field == "" {
				require.Empty(t, warned)
				return
			}
			require.Len(t, warned, 1)
			require.Equal(t, zapcore.WarnLevel, warned[0].Level)
			require.Contains(t, warned[0].ContextMap(), c.field)
			require.Equal(t, c.of, warned[0].ContextMap()["subscription_id"])
		})
	}
}

// A refusal has no doubts beside it, and changes nothing.
func TestR3_RefusedSettingsAreNotDoubted(t *testing.T) {
	bus, logs := newBus(t)
	s := mustSubscribe(t, bus, "a", ok)
	requireOptionError(t, s.SetRetry(eventbus.BaseDelay(5), eventbus.MaxRetries(-5)), "SetRetry.MaxRetries")
	require.Zero(t, logs.FilterMessage("options may be a mistake").Len())
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
