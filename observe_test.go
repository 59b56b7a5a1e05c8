package eventbus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

func TestO1_EveryFailedAttemptIsOneWarnEntry(t *testing.T) {
	for _, c := range []struct {
		retries, attempts int
		maxAttempts       int64
		delays            []int64
	}{
		{2, 3, 3, []int64{1000, 1000, 0}},
		{0, 1, 1, []int64{0}},
		{eventbus.Unlimited, 4, 0, []int64{1000, 1000, 1000, 0}}, // the fourth is permanent
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(c.retries, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
			mustSubscribe(t, bus, "order.*", func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 4 {
					return eventbus.Permanent(errors.New("boom"))
				}
				return errors.New("boom")
			}, eventbus.Named("billing"))
			id := mustPublish(t, bus, "order.placed", "canary")
			time.Sleep(time.Minute)
			entries := logs.FilterMessage("handler failed").All()
			require.Len(t, entries, c.attempts)
			for i, e := range entries {
				require.Equal(t, zapcore.WarnLevel, e.Level)
				require.Equal(t, map[string]any{
					"event_id":        id.String(),
					"event_type":      "order.placed",
					"subscription_id": "billing",
					"attempt":         int64(i + 1),
					"max_attempts":    c.maxAttempts,
					"delay_ms":        c.delays[i],
					"error":           "boom",
				}, e.ContextMap())
			}
			dead := logs.FilterMessage("event dead-lettered").All()
			require.Len(t, dead, 1)
			require.Equal(t, zapcore.WarnLevel, dead[0].Level)
			fields := dead[0].ContextMap()
			l := oneLetter(t, bus)
			require.Equal(t, string(l.Reason), fields["reason"])
			require.Equal(t, l.ID.String(), fields["letter_id"])
			require.Equal(t, id.String(), fields["event_id"])
			require.Equal(t, int64(c.attempts), fields["attempt"])
			require.Equal(t, c.maxAttempts, fields["max_attempts"])
			shutdown(t, bus)
		})
	}
}

// A delay that is not none is not written as none.
func TestO1_ADelayBelowAMillisecondIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Microsecond)))
		mustSubscribe(t, bus, "a", failing(errDead))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Second)
		require.Equal(t, []int64{1, 0}, bDelays(logs))
		shutdown(t, bus)
	})
}

func TestO3_NoPayloadIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const canary = "4111-1111-1111-1111"
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithDeadLetterCapacity(1), eventbus.WithTimeout(time.Second))
		mustSubscribe(t, bus, "fails", failing(errDead), eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "panics", func(context.Context, eventbus.Event) error { panic("oh") }, eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "hangs", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(3 * time.Second)
			return errors.New("too late")
		}, eventbus.DeadLetterWhenOpen)
		for _, eventType := range []string{"fails", "panics", "hangs", "unrouted"} {
			for range 6 {
				mustPublish(t, bus, eventType, map[string]string{"card": canary})
			}
		}
		time.Sleep(time.Minute)
		require.Greater(t, logs.Len(), 20)
		for _, e := range logs.All() {
			data, err := json.Marshal(e.ContextMap())
			require.NoError(t, err)
			require.NotContains(t, e.Message+string(data), canary)
		}
		shutdown(t, bus)
	})
}

func TestO2_CountsOfATypeAndASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)), eventbus.WithTimeout(time.Second), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "order.**", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			switch e.Payload {
			case "flaky":
				if d.Attempt < 3 {
					return errDead
				}
			case "dead":
				return errDead
			case "panics":
				panic("oh")
			case "hangs":
				time.Sleep(10 * time.Second)
			}
			return nil
		}, eventbus.Named("s"))
		for _, payload := range []string{"ok", "ok", "flaky", "flaky", "flaky", "dead"} {
			mustPublish(t, bus, "order.placed", payload)
		}
		mustPublish(t, bus, "order.odd", "panics")
		mustPublish(t, bus, "order.odd", "hangs")
		mustPublish(t, bus, "nobody", nil)
		time.Sleep(time.Minute)
		m := bus.Metrics()
		require.Equal(t, eventbus.TypeMetrics{Events: 6, Retries: 8, Retried: 4, SucceededAfterRetry: 3, DeadLettered: 1}, m.Types["order.placed"])
		require.InDelta(t, 0.75, m.Types["order.placed"].SuccessAfterRetryRate(), 1e-9)
		require.InDelta(t, 1.0/6, m.Types["order.placed"].DeadLetterRate(), 1e-9)
		require.Equal(t, eventbus.TypeMetrics{Events: 2, Retries: 4, Retried: 2, DeadLettered: 2}, m.Types["order.odd"])
		require.Equal(t, eventbus.TypeMetrics{Events: 1}, m.Types["nobody"])
		require.Zero(t, m.Types["nobody"].SuccessAfterRetryRate())
		require.Zero(t, eventbus.TypeMetrics{}.DeadLetterRate())
		require.EqualValues(t, 12, m.Retries)
		s := metricsOf(t, bus, "s")
		require.EqualValues(t, 5, s.Successes)
		require.EqualValues(t, 6+3+3+3, s.Failures)
		require.EqualValues(t, 3, s.Panics)
		require.EqualValues(t, 3, s.Timeouts)
		require.EqualValues(t, 3, s.LateEnds)
		require.InDelta(t, time.Second, s.Latency.Max, float64(2*time.Millisecond)) // the watch may be a tick late
		require.Equal(t, s.Latency.Max, s.Latency.P99)
		require.Less(t, s.Latency.P50, time.Microsecond)
		require.Equal(t, 3, m.DeadLetters)
		require.Equal(t, eventbus.Ledger{Accepted: 9, Handled: 5, Unrouted: 1, DeadLettered: 3}, m.Ledger)
		shutdown(t, bus)
	})
}

func TestO2_WhatIsThereNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(2), eventbus.WithTimeout(time.Hour), eventbus.WithRetry(retry(1, time.Hour)))
		release := make(chan struct{})
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustSubscribe(t, bus, "fails", failing(errDead))
		mustPublish(t, bus, "fails", nil)
		synctest.Wait()
		for range 5 {
			mustPublish(t, bus, "slow", nil)
		}
		time.Sleep(time.Second)
		m := bus.Metrics()
		require.Equal(t, 3, m.QueueDepth)
		require.Equal(t, 2, m.RunningDispatches)
		require.Equal(t, 1, m.WaitingRetries)
		require.Equal(t, eventbus.Ledger{Accepted: 6, Queued: 3, Running: 2, Waiting: 1}, m.Ledger)
		require.True(t, m.Ledger.Balanced())
		close(release)
		shutdown(t, bus)
	})
}

func TestO2_TypesAreBounded(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithQueueCapacity(10))
	for i := range 5000 {
		mustPublish(t, bus, fmt.Sprintf("type.t%d", i), nil)
	}
	types := bus.Metrics().Types
	require.Len(t, types, 1001)
	require.EqualValues(t, 4000, types[eventbus.OtherTypes].Events)
	sum := int64(0)
	for m := range maps.Values(types) {
		sum += m.Events
	}
	require.EqualValues(t, 5000, sum)
}

func TestO4_UnderLoadOffByWhatIsInFlightOnly(t *testing.T) {
	const publishers = 4
	bus, _ := startBus(t, eventbus.WithRetry(retry(1, 0)), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithConcurrency(8))
	n := 0
	mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
		if n++; n%7 == 0 { // guarded by serialize
			return errDead
		}
		return nil
	}, eventbus.Use(serialize()))
	done := make(chan struct{})
	for range publishers {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 5000 {
				_, _ = bus.Publish(context.Background(), "a", nil)
			}
		}()
	}
	for left := publishers; left > 0; {
		l := bus.Metrics().Ledger
		in, out := l.Accepted+l.Splits+l.Replays, l.Handled+l.Unrouted+l.DeadLettered+l.Dropped+l.Queued+l.Running+l.Waiting
		// Between the first and the last number that is read, many may settle.
		require.LessOrEqual(t, in-out, int64(publishers*5000))
		select {
		case <-done:
			left--
		default:
		}
	}
	shutdown(t, bus)
	l := bus.Metrics().Ledger
	require.EqualValues(t, publishers*5000, l.Accepted)
	require.EqualValues(t, publishers*5000, l.Handled+l.DeadLettered)
}

// serialize lets one handler run at a time.
func serialize() eventbus.Middleware {
	one := make(chan struct{}, 1)
	return func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			one <- struct{}{}
			defer func() { <-one }()
			return next(ctx, e)
		}
	}
}

func TestO5_ExplainTellsWhoAndWhy(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithRetry(eventbus.MaxDelay(time.Minute)))
	mustSubscribe(t, bus, "order.*", ok, eventbus.Named("billing"), eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(2*time.Second)))
	mustSubscribe(t, bus, "**", ok, eventbus.Named("audit"), eventbus.Retry(eventbus.BaseDelay(time.Second), eventbus.FullJitter))
	mustSubscribe(t, bus, "user.*", ok)
	p := bus.Explain("order.placed")
	require.NoError(t, p.Err)
	require.Equal(t, []eventbus.Target{
		{Subscription: "billing", Pattern: "order.*", Timeout: 5 * time.Second, Overrides: map[string]string{"MaxRetries": "5", "BaseDelay": "2s"}},
		{Subscription: "audit", Pattern: "**", Timeout: 30 * time.Second, Overrides: map[string]string{"BaseDelay": "1s", "Jitter": "full"}},
	}, p.Targets)
	require.Equal(t, 5, p.Policy.MaxRetries)
	require.Equal(t, time.Second, p.Policy.BaseDelay)
	require.Equal(t, time.Minute, p.Policy.MaxDelay)
	require.Equal(t, map[string]string{
		"MaxRetries":        "billing",
		"BaseDelay":         "audit",
		"MaxDelay":          eventbus.BusDefault,
		"BackoffMultiplier": eventbus.BusDefault,
		"MaxElapsed":        eventbus.BusDefault,
	}, p.Origins)
	for _, line := range []string{"order.placed", "billing", `"order.*"`, "MaxRetries = 5", "BaseDelay = 1s", "MaxElapsed = unbounded"} {
		require.Contains(t, p.String(), line)
	}
	require.Empty(t, bus.Explain("nobody.knows.it").Targets[1:], "audit takes everything")
	bad := bus.Explain("a..b")
	require.ErrorIs(t, bad.Err, eventbus.ErrInvalidEvent)
	require.Contains(t, bad.String(), "a..b")
	require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger, "it changes nothing")
}

func TestD9_ObserversSeeWhatIsUnrouted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen journal[eventbus.Event]
		bus, logs := startBus(t, eventbus.WithObserver(eventbus.Observer{Unrouted: func(e eventbus.Event) {
			seen.add(e)
			panic("observers may")
		}}))
		id := mustPublish(t, bus, "nobody", "payload")
		require.Len(t, seen.all(), 1)
		require.Equal(t, id, seen.all()[0].ID)
		require.Equal(t, "payload", seen.all()[0].Payload)
		require.Equal(t, 1, logs.FilterMessage("observer panicked").Len())
		r, err := bus.PublishAndWait(t.Context(), "nobody", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Unrouted, r.Outcome)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Unrouted)
		shutdown(t, bus)
	})
}

// The entries of the whole life of a circuit, and nothing else that warns.
func TestC6_StateChangesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, bOnce)
		mustSubscribe(t, bus, "a", bScripted, eventbus.Named("s"))
		bTrip(t, bus, "a")
		time.Sleep(30 * time.Second)
		bPublish(t, bus, "a", bFail)
		time.Sleep(30 * time.Second)
		bPublish(t, bus, "a", bOK)
		var changes []string
		for _, e := range logs.All() {
			if strings.HasPrefix(e.Message, "circuit ") {
				require.Equal(t, "s", e.ContextMap()["subscription_id"])
				changes = append(changes, fmt.Sprint(e.Level, " ", e.ContextMap()["from"], " ", e.ContextMap()["to"]))
			}
		}
		require.True(t, slices.Equal([]string{
			"warn closed open", "info open half-open", "warn half-open open", "info open half-open", "info half-open closed",
		}, changes), "%v", changes)
		require.EqualValues(t, 2, metricsOf(t, bus, "s").CircuitOpens)
		shutdown(t, bus)
	})
}

// Every subscription of an event is timed now and then, not always the same.
func TestO2_EverySubscriptionIsTimed(t *testing.T) {
	for _, concurrency := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(concurrency))
			for _, name := range []string{"first", "second", "third", "fourth"} {
				mustSubscribe(t, bus, "a", ok, eventbus.Named(name))
			}
			for range 20_000 {
				mustPublish(t, bus, "a", nil)
			}
			synctest.Wait()
			for _, s := range bus.Metrics().Subscriptions {
				require.EqualValues(t, 20_000, s.Successes)
				require.InDelta(t, 20_000/64, s.Latency.Samples, 150, s.Subscription)
			}
			shutdown(t, bus)
		})
	}
}

// What was skipped in the end has not succeeded after a retry.
func TestO2_ASkippedSubscriptionHasNotSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second)))
		mustSubscribe(t, bus, "a", ok)
		mustSubscribe(t, bus, "a", failing(errDead), eventbus.DeadLetterWhenOpen)
		for range 4 {
			mustPublish(t, bus, "a", nil)
		}
		time.Sleep(time.Minute)
		m := bus.Metrics().Types["a"]
		require.Equal(t, eventbus.TypeMetrics{Events: 4, Retries: 4, Retried: 4, DeadLettered: 4}, m)
		require.Zero(t, m.SuccessAfterRetryRate())
		shutdown(t, bus)
	})
}

// Asking, and being refused, uses up none of the types that are told apart.
func TestO2_OnlyPublishedTypesAreCounted(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "*", ok)
	for i := range 1200 {
		require.Len(t, bus.Explain(fmt.Sprintf("asked.t%d", i)).Targets, 1)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := bus.Publish(ended, "refused", nil)
	require.ErrorIs(t, err, context.Canceled)
	mustPublish(t, bus, "published", nil)
	require.Equal(t, map[string]eventbus.TypeMetrics{"published": {Events: 1}}, bus.Metrics().Types)
}

func TestO5_ThePlanAsText(t *testing.T) {
	bus, _ := newBus(t)
	require.Equal(t, "nobody: no subscription matches; it would be unrouted\n", bus.Explain("nobody").String())
	mustSubscribe(t, bus, "a", ok, eventbus.Named("s"), eventbus.Retry(eventbus.FullJitter, eventbus.RetryIf(func(error) bool { return true })))
	text := bus.Explain("a").String()
	require.Contains(t, text, "Jitter full, RetryIf a function")
	require.Contains(t, text, "Jitter = proportional")
}

func TestP6_ARetryIfThatPanicsIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		mustSubscribe(t, bus, "a", failing(errDead), eventbus.Retry(eventbus.RetryIf(func(error) bool { panic("oh") })))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute)
		require.Equal(t, 2, oneLetter(t, bus).Attempts)
		require.Equal(t, 2, logs.FilterMessage("RetryIf panicked").Len())
		shutdown(t, bus)
	})
}
