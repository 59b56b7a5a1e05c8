package contracttest

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// afterFailures publishes an event, and returns how long the bus waits before each of its retries.
func afterFailures(t *testing.T, subscriptions int, bus eventbus.RetryOption, first eventbus.SubscribeOption) []time.Duration {
	t.Helper()
	var waited []time.Duration
	synctest.Test(t, func(t *testing.T) {
		b, _ := startBus(t, eventbus.WithRetry(bus, eventbus.NoJitter))
		var calls callTimes
		mustSubscribe(t, b, "a", calls.failing(errBoom), first)
		for range subscriptions - 1 {
			mustSubscribe(t, b, "a", ok, eventbus.Retry(eventbus.MaxRetries(4), eventbus.BaseDelay(time.Millisecond)))
		}
		mustPublish(t, b, "a", 1)
		shutdown(t, b)
		waited = calls.apart()
	})
	return waited
}

func TestP2_AListOfDelays(t *testing.T) {
	none := eventbus.Retry()
	list := eventbus.Delays(time.Second, 5*time.Second, time.Minute)
	for name, c := range map[string]struct {
		subscriptions int
		bus           eventbus.RetryOption
		own           eventbus.SubscribeOption
		want          []time.Duration
	}{
		"of the bus":                     {1, list, none, inSeconds(1, 5, 60)},
		"of a subscription":              {1, eventbus.NoJitter, eventbus.Retry(list), inSeconds(1, 5, 60)},
		"more retries":                   {1, list, eventbus.Retry(eventbus.MaxRetries(5)), inSeconds(1, 5, 60, 60, 60)},
		"fewer":                          {1, eventbus.NoJitter, eventbus.Retry(list, eventbus.MaxRetries(2)), inSeconds(1, 5)},
		"one that the bus caps":          {1, eventbus.MaxDelay(2 * time.Second), eventbus.Retry(list), inSeconds(1, 5, 60)},
		"at once":                        {1, eventbus.NoJitter, eventbus.Retry(eventbus.Delays(0, 0, time.Second)), inSeconds(0, 0, 1)},
		"replaced by a later list":       {1, list, eventbus.Retry(eventbus.Delays(time.Hour)), inSeconds(3600)},
		"replaced by a delay":            {1, list, eventbus.Retry(eventbus.BaseDelay(2 * time.Second)), inSeconds(2, 4, 8)},
		"replaced by a later delay":      {1, eventbus.NoJitter, eventbus.Retry(list, eventbus.BaseDelay(2*time.Second)), inSeconds(2, 4, 8)},
		"replaces an earlier delay":      {1, eventbus.NoJitter, eventbus.Retry(eventbus.BaseDelay(2*time.Second), list), inSeconds(1, 5, 60)},
		"beside a subscription of more":  {2, eventbus.NoJitter, eventbus.Retry(list), inSeconds(1, 5, 60, 60)},
		"a jitter that computes its own": {1, eventbus.DecorrelatedJitter, eventbus.Retry(list, eventbus.NoJitter), inSeconds(1, 5, 60)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, afterFailures(t, c.subscriptions, c.bus, c.own))
		})
	}
}

func TestP2_TheDelaysOfAList(t *testing.T) {
	p := eventbus.DefaultRetryPolicy()
	p.Delays = []time.Duration{time.Second, 5 * time.Second}
	for attempt, want := range []time.Duration{0, 0, time.Second, 5 * time.Second, 5 * time.Second} {
		require.Equal(t, want, p.Delay(attempt), "before attempt %d", attempt)
	}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	var read eventbus.RetryPolicy
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, p.Delays, read.Delays)
}

// The list is copied: what its caller does with it later has no effect.
func TestP2_AListIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retry(1, time.Hour)
		p.Delays = []time.Duration{time.Second}
		own := []time.Duration{2 * time.Second}
		bus, _ := startBus(t, eventbus.WithRetry(p))
		var ofBus, ofOwn callTimes
		mustSubscribe(t, bus, "a", ofBus.failing(errBoom))
		mustSubscribe(t, bus, "b", ofOwn.failing(errBoom), eventbus.Retry(eventbus.Delays(own...)))
		p.Delays[0], own[0] = time.Minute, time.Minute
		mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "b", 1)
		shutdown(t, bus)
		require.Equal(t, inSeconds(1), ofBus.apart())
		require.Equal(t, inSeconds(2), ofOwn.apart())
	})
}

func TestP2_AListIsJittered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for jitter, want := range map[eventbus.Jitter][]time.Duration{
			eventbus.ProportionalJitter: inSeconds(9, 90), // WithRandom is 0
			eventbus.FullJitter:         inSeconds(0, 0),
			eventbus.EqualJitter:        inSeconds(10, 100),
		} {
			bus, _ := startBus(t, eventbus.WithRandom(func() float64 { return 0 }), eventbus.WithRetry(jitter))
			var calls callTimes
			mustSubscribe(t, bus, "a", calls.failing(errBoom), eventbus.Retry(eventbus.Delays(10*time.Second, 100*time.Second)))
			mustPublish(t, bus, "a", 1)
			shutdown(t, bus)
			require.Equal(t, want, calls.apart(), "%s", jitter)
		}
	})
}

func TestP4_BadLists(t *testing.T) {
	for name, opts := range map[string][]eventbus.RetryOption{
		"empty":        {eventbus.Delays()},
		"negative":     {eventbus.Delays(time.Second, -1)},
		"decorrelated": {eventbus.Delays(time.Second), eventbus.DecorrelatedJitter},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := eventbus.New(eventbus.WithRetry(opts...))
			requireOptionError(t, err, "WithRetry.Delays")
			bus, _ := newBus(t)
			_, err = bus.Subscribe("a", ok, eventbus.Retry(opts...))
			requireOptionError(t, err, "Retry.Delays")
		})
	}
}

func TestO5_ExplainShowsAList(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithRetry(eventbus.Delays(time.Second, time.Minute)))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("its own"), eventbus.Retry(eventbus.Delays(time.Hour)))
	text := bus.Explain("a").String()
	require.Contains(t, text, "Delays 1h0m0s")
	require.Contains(t, text, "Delays = 1s, 1m0s")
}
