package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestO1_TheEntryOfEveryKindOfFailure(t *testing.T) {
	for name, want := range map[string]struct{ text, reason string }{
		"error":     {"broken", "exhausted"},
		"permanent": {"broken", "permanent"},
		"panic":     {"eventbus: handler panicked: at the handler", "exhausted"},
		"exit":      {"eventbus: handler exited its goroutine", "exhausted"},
		"timeout":   {"eventbus: handler of s overran its timeout of 30s", "exhausted"},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, oneAttempt)
			mustSubscribe(t, bus, "a", handlerEndings[name], eventbus.Named("s"))
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			failed, dead := logs.FilterMessage("handler failed").All(), logs.FilterMessage("event dead-lettered").All()
			require.Len(t, failed, 1, name)
			require.Len(t, dead, 1, name)
			require.Equal(t, want.text, failed[0].ContextMap()["error"])
			require.Equal(t, int64(0), failed[0].ContextMap()["delay_ms"])
			require.Equal(t, int64(1), failed[0].ContextMap()["max_attempts"])
			require.Equal(t, want.reason, dead[0].ContextMap()["reason"])
		})
	}
}

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
			require.Equal(t, zapcore.ErrorLevel, dead[0].Level)
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
		require.Equal(t, []int64{1, 0}, loggedDelays(logs))
		shutdown(t, bus)
	})
}

func TestO2_TypesSubscriptionsAndTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithTimeout(10*time.Second))
		mustSubscribe(t, bus, "{a,b}", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", runScript, eventbus.Named("second"))
		secondTime := func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
				return errBroken
			}
			return nil
		}
		for range 3 {
			mustPublish(t, bus, "a", eventbus.Handler(secondTime)) // 1 retry each
		}
		mustPublish(t, bus, "a", failBroken) // 2 retries, dead
		for range 4 {
			mustPublish(t, bus, "a", succeed)
			mustPublish(t, bus, "b", nil)
		}
		mustPublish(t, bus, "c", nil)
		time.Sleep(time.Minute)

		m := bus.Metrics()
		a := m.Types["a"]
		require.Equal(t, eventbus.TypeMetrics{Events: 8, Retries: 5, Retried: 4, SucceededAfterRetry: 3, DeadLettered: 1}, a)
		require.InDelta(t, 0.75, a.SuccessAfterRetryRate(), 1e-9)
		require.InDelta(t, 0.125, a.DeadLetterRate(), 1e-9)
		require.Equal(t, eventbus.TypeMetrics{Events: 4}, m.Types["b"])
		require.Zero(t, m.Types["b"].SuccessAfterRetryRate())
		require.Zero(t, m.Types["b"].DeadLetterRate())
		require.Equal(t, eventbus.TypeMetrics{Events: 1}, m.Types["c"])
		require.Len(t, m.Types, 3)
		require.Equal(t, int64(5), m.Retries)

		require.Len(t, m.Subscriptions, 2)
		first, second := m.Subscriptions[0], m.Subscriptions[1]
		require.Equal(t, "first", first.Subscription)
		require.Equal(t, "{a,b}", first.Pattern)
		require.Equal(t, int64(12), first.Successes)
		require.Zero(t, first.Failures)
		require.Equal(t, eventbus.CircuitDisabled, first.Circuit)
		require.Equal(t, int64(7), second.Successes)
		require.Equal(t, int64(6), second.Failures)

		for _, ending := range []string{"panic", "nil panic", "exit", "timeout", "hang, then ok", "permanent"} {
			mustPublish(t, bus, "a", eventbus.Handler(func(ctx context.Context, e eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					return handlerEndings[ending](ctx, e)
				}
				return eventbus.Permanent(errBroken)
			}))
		}
		time.Sleep(time.Minute)
		m = bus.Metrics()
		second = m.Subscriptions[1]
		require.Equal(t, int64(6+6+5), second.Failures)
		require.Equal(t, int64(2), second.Timeouts)
		require.Equal(t, int64(3), second.Panics)
		require.Equal(t, int64(1), second.LateEnds, "the one that kept an eye on its context")
		require.Equal(t, 1, m.AbandonedHandlers)
		require.InDelta(t, 10, second.Latency.Max.Seconds(), 0.01)
		require.Equal(t, 7, m.DeadLetters)
		time.Sleep(time.Hour)
		m = bus.Metrics()
		require.Equal(t, int64(2), m.Subscriptions[1].LateEnds)
		require.Zero(t, m.AbandonedHandlers)
		shutdown(t, bus)
	})
}

func TestO2_WhatTheBusIsDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithConcurrency(3), eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
		release := make(chan struct{})
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { <-release; return nil }, eventbus.Concurrency(eventbus.Unlimited))
		mustSubscribe(t, bus, "sick", failBroken)
		for range 10 {
			mustPublish(t, bus, "slow", nil)
		}
		require.Equal(t, 10, bus.Metrics().QueueDepth)
		requireBalanced(t, bus)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		m := bus.Metrics()
		require.Equal(t, 3, m.RunningDispatches)
		require.Equal(t, 3, m.Workers)
		require.Equal(t, 7, m.QueueDepth)
		require.Equal(t, eventbus.Ledger{Accepted: 10, Queued: 7, Running: 3}, m.Ledger)
		close(release)
		for range 5 {
			mustPublish(t, bus, "sick", nil)
		}
		mustPublish(t, bus, "nobody", nil)
		time.Sleep(time.Second)
		m = bus.Metrics()
		require.Equal(t, 5, m.WaitingRetries)
		require.Equal(t, eventbus.Ledger{Accepted: 16, Handled: 10, Unrouted: 1, Waiting: 5}, m.Ledger)
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, l := range letters(t, bus) {
			require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		}
		synctest.Wait()
		require.Equal(t, eventbus.Ledger{Accepted: 16, Replays: 5, Handled: 10, Unrouted: 1, DeadLettered: 5, Waiting: 5}, bus.Metrics().Ledger)
		err := cutShort(t, bus)
		require.Len(t, err.Unfinished, 5)
		require.Equal(t, eventbus.Ledger{Accepted: 16, Replays: 5, Handled: 10, Unrouted: 1, DeadLettered: 10, Closed: true}, bus.Metrics().Ledger)
	})
}

// Its retry never ran: that the others have been handled is no success after a
// retry.
func TestO2_WhatIsSkippedHasNotRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second)))
		mustSubscribe(t, bus, "a", failBroken, eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "a", ok)
		r, err := bus.PublishAndWait(t.Context(), "a", nil)
		require.Error(t, err)
		require.Len(t, r.Letters, 1)
		require.Zero(t, bus.Metrics().Types["a"].SuccessAfterRetryRate(), "%+v", bus.Metrics().Types["a"])
		require.Equal(t, int64(1), bus.Metrics().Types["a"].DeadLettered)
		shutdown(t, bus)
	})
}

func TestO2_TheNumberOfTypesIsBounded(t *testing.T) {
	bus, _ := startBus(t, silent(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))...)
	mustSubscribe(t, bus, "dead.*", failBroken)
	const n = 5000
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for g := range 10 {
		wg.Go(func() {
			<-begin
			for i := g; i < n; i += 10 {
				_, err := bus.Publish(context.Background(), fmt.Sprintf("%s.t%d", []string{"dead", "lost"}[i/10%2], i), nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	shutdown(t, bus)
	m := bus.Metrics()
	require.Contains(t, m.Types, eventbus.OtherTypes)
	require.LessOrEqual(t, len(m.Types), 1001)
	require.Greater(t, len(m.Types), 900)
	var events, dead int64
	for _, c := range m.Types {
		events += c.Events
		dead += c.DeadLettered
	}
	require.Equal(t, int64(n), events)
	require.Equal(t, int64(n/2), dead)
	require.Greater(t, m.Types[eventbus.OtherTypes].Events, int64(n-1100))
}

func TestO2_LatencyIsRightToWithinAQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, silent(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithTimeout(time.Hour))...)
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			time.Sleep(e.Payload.(time.Duration))
			return errBroken
		}, eventbus.Named("s"))
		var all []time.Duration
		for i := range 200 {
			all = append(all, time.Duration(i+1)*137*time.Millisecond)
			mustPublish(t, bus, "a", all[i])
		}
		shutdown(t, bus)
		l := metricsOf(t, bus, "s").Latency
		require.Equal(t, int64(200), l.Samples)
		slices.Sort(all)
		for q, got := range map[float64]time.Duration{0.5: l.P50, 0.9: l.P90, 0.99: l.P99, 1: l.Max} {
			want := all[int(q*200)-1].Seconds()
			require.GreaterOrEqual(t, got.Seconds(), want*0.999-0.002, "%g", q)
			require.LessOrEqual(t, got.Seconds(), want*1.25+0.002, "%g", q)
		}
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
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { <-release; return nil }, eventbus.Concurrency(eventbus.Unlimited))
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

// Whoever looks from inside a handler finds the books as they are: the events before
// are counted, and its own runs.
func TestO4_TheBooksBalanceInEveryHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		q := newQueue(t)
		q.subscribe(t, "order.*", eventbus.Named("s"))
		for i := range n {
			q.handle[i] = func(context.Context, eventbus.Event) error {
				require.Equal(t, eventbus.Ledger{Accepted: n, Handled: int64(i), Queued: int64(n - 1 - i), Running: 1}, q.bus.Metrics().Ledger)
				require.EqualValues(t, i, metricsOf(t, q.bus, "s").Successes)
				return nil
			}
		}
		q.run(t, n)
		require.Equal(t, count(n), q.ran.all())
		shutdown(t, q.bus)
	})
}

// Any mixture of events, at rest, after every step.
func TestO4_TheBooksBalanceWhateverHappens(t *testing.T) {
	names := []string{"ok", "error", "permanent", "panic", "nil panic", "exit", "timeout", "hang, then ok"}
	rapid.Check(t, func(rt *rapid.T) {
		type op struct {
			What, Type, Ending, Wait int
		}
		ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
			return op{
				rapid.IntRange(0, 9).Draw(t, "what"), rapid.IntRange(0, 3).Draw(t, "type"),
				rapid.IntRange(0, len(names)-1).Draw(t, "ending"), rapid.SampledFrom([]int{0, 0, 1, 3, 40}).Draw(t, "wait"),
			}
		}), 1, 60).Draw(rt, "ops")
		cut := rapid.Bool().Draw(rt, "cut")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newBus(t, silent(eventbus.WithRetry(retry(2, 2*time.Second)), eventbus.WithTimeout(time.Second),
				eventbus.WithCircuit(eventbus.MinEvents(2)), eventbus.WithDeadLetterCapacity(5))...)
			_ = bus.Start(t.Context())
			subs := make([]*eventbus.Subscription, 3)
			subscribe := func(i int) {
				opts := []eventbus.SubscribeOption{eventbus.Named(fmt.Sprint(i))}
				if i == 1 {
					opts = append(opts, eventbus.DropWhenOpen)
				}
				subs[i], _ = bus.Subscribe([]string{"a", "{a,b}", "{a,b,c}"}[i], func(ctx context.Context, e eventbus.Event) error {
					if i != len(e.Metadata.Get("at")) {
						return nil
					}
					return runScript(ctx, e)
				}, opts...)
			}
			for i := range subs {
				subscribe(i)
			}
			published := int64(0)
			check := func(when string) {
				synctest.Wait()
				l := bus.Metrics().Ledger
				if !l.Balanced() || l.Accepted != published {
					problem = fmt.Sprintf("%s: %d published, %+v", when, published, l)
				}
			}
			for i, o := range ops {
				switch o.What {
				case 0:
					if page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{}); err == nil && len(page.Letters) > 0 {
						_ = bus.DLQ().Replay(t.Context(), page.Letters[len(page.Letters)/2].ID)
					}
				case 1:
					_, _ = bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
				case 2:
					subs[o.Type%3].Unsubscribe()
					subscribe(o.Type % 3)
				case 3:
					_ = bus.DLQ().Replay(t.Context(), eventbus.LetterID{1})
				default:
					_, err := bus.Publish(t.Context(), []string{"a", "b", "c", "d"}[o.Type], handlerEndings[names[o.Ending]],
						eventbus.Metadata("at", strings.Repeat("x", i%3)))
					if err == nil {
						published++
					}
				}
				check(fmt.Sprintf("after op %d", i))
				time.Sleep(time.Duration(o.Wait) * time.Second)
			}
			check("before the end")
			if cut {
				_ = cutShort(t, bus)
			} else if err := bus.Shutdown(context.Background()); err != nil && !leftHeld(err) {
				problem = err.Error()
			}
			check("at the end")
			l := bus.Metrics().Ledger
			if l.Queued+l.Running+l.Waiting != 0 {
				problem = fmt.Sprintf("something is left: %+v", l)
			}
			time.Sleep(time.Hour) // those that hang
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

func TestO4_EveryTermIsCountedWhereItHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		sick := mustSubscribe(t, bus, "{x,both}", runScript, eventbus.DropWhenOpen)
		dead := mustSubscribe(t, bus, "{y,both}", runScript, eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "{z,both}", ok)
		steps := []struct {
			do   func()
			want eventbus.Ledger // what it adds
		}{
			{func() { publishScripts(t, bus, "nobody", nil) }, eventbus.Ledger{Accepted: 1, Unrouted: 1}},
			{func() { publishScripts(t, bus, "z", succeed) }, eventbus.Ledger{Accepted: 1, Handled: 1}},
			{func() { publishScripts(t, bus, "x", failBroken, failBroken, failBroken, failBroken) }, eventbus.Ledger{Accepted: 4, DeadLettered: 4}},
			{func() { publishScripts(t, bus, "y", failBroken, failBroken, failBroken, failBroken) }, eventbus.Ledger{Accepted: 4, DeadLettered: 4}},
			{func() { publishScripts(t, bus, "x", succeed) }, eventbus.Ledger{Accepted: 1, Dropped: 1}},
			{func() { publishScripts(t, bus, "y", succeed) }, eventbus.Ledger{Accepted: 1, DeadLettered: 1}},
			{func() { publishScripts(t, bus, "both", succeed) }, eventbus.Ledger{Accepted: 1, Splits: 2, Dropped: 1, DeadLettered: 1, Handled: 1}},
			{func() {
				require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
				synctest.Wait()
			}, eventbus.Ledger{Replays: 1, DeadLettered: 1}},
			{func() { require.Error(t, bus.DLQ().Replay(t.Context(), eventbus.LetterID{})) }, eventbus.Ledger{}},
			{func() {
				_, err := bus.Publish(t.Context(), "a..b", nil)
				require.Error(t, err)
			}, eventbus.Ledger{}},
		}
		add := func(a, b eventbus.Ledger) eventbus.Ledger {
			return eventbus.Ledger{
				Accepted: a.Accepted + b.Accepted, Splits: a.Splits + b.Splits, Replays: a.Replays + b.Replays,
				Handled: a.Handled + b.Handled, Unrouted: a.Unrouted + b.Unrouted,
				DeadLettered: a.DeadLettered + b.DeadLettered, Dropped: a.Dropped + b.Dropped,
			}
		}
		var want eventbus.Ledger
		for i, s := range steps {
			s.do()
			want = add(want, s.want)
			require.Equal(t, want, bus.Metrics().Ledger, "step %d", i)
		}
		require.Equal(t, int64(2), metricsOf(t, bus, sick.ID()).Skipped)
		require.Equal(t, int64(3), metricsOf(t, bus, dead.ID()).Skipped)
		shutdown(t, bus)
	})
}

// Every number of the ledger that is neither opened nor settled counts dispatches in memory.
// After Shutdown, none of them may be left.
func TestO4_AClosedLedgerWithARestIsNotBalanced(t *testing.T) {
	opened := []string{"Accepted", "Copies", "Splits", "Replays", "Claimed"}
	settled := []string{"Handled", "Unrouted", "DeadLettered", "Dropped", "Cancelled", "Stored", "HandedOver"}
	rest := []string{"Scheduled", "Queued", "Running", "Waiting", "Held", "Throttled", "Snoozed", "Recording"}
	set := func(l eventbus.Ledger, name string) eventbus.Ledger {
		reflect.ValueOf(&l).Elem().FieldByName(name).SetInt(1)
		return l
	}
	var counted []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[eventbus.Ledger]()) {
		if f.Type.Kind() == reflect.Int64 {
			counted = append(counted, f.Name)
		}
	}
	require.ElementsMatch(t, slices.Concat(opened, settled, rest), counted)

	require.True(t, eventbus.Ledger{}.Balanced())
	require.True(t, eventbus.Ledger{Closed: true}.Balanced())
	for _, in := range opened {
		l := set(eventbus.Ledger{}, in)
		require.False(t, l.Balanced(), "%+v", l)
		for _, out := range settled {
			l := set(l, out)
			require.True(t, l.Balanced(), "%+v", l)
			l.Closed = true
			require.True(t, l.Balanced(), "%+v", l)
		}
		for _, left := range rest {
			l := set(l, left)
			require.True(t, l.Balanced(), "%+v", l)
			l.Closed = true
			require.False(t, l.Balanced(), "%+v", l)
		}
	}
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

// mixedStep is one random operation on a bus.
type mixedStep struct {
	op    string
	sub   int
	key   string
	fails []int // attempts that fail, for each subscription
	dies  bool  // with Permanent, at the last of them
	after time.Duration
	pick  int
}

// mixedRecord is what has become of the events at the subscriptions.
type mixedRecord struct {
	mu       sync.Mutex
	problems []string
	handled  map[[2]int]int // event and subscription: successes
	last     map[string]int // subscription and key: the last one handled, by the order of its place
	inside   map[string]int // subscription and key: running calls
	replayed map[int]bool   // events
	failed   map[[2]int]int // event and subscription: failures
	events   map[int]*mixedStep
}

func (r *mixedRecord) handler(sub int) eventbus.Handler {
	return func(_ context.Context, e eventbus.Event) error {
		n := e.Payload.(int)
		at := fmt.Sprint(sub, e.Key)
		r.mu.Lock()
		step := r.events[n]
		if r.inside[at]++; e.Key != "" && r.inside[at] > 1 {
			r.problems = append(r.problems, fmt.Sprintf("two at once of %s", at))
		}
		r.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inside[at]--
		if r.failed[[2]int{n, sub}] < step.fails[sub] {
			r.failed[[2]int{n, sub}]++
			if step.dies && r.failed[[2]int{n, sub}] == step.fails[sub] {
				return eventbus.Permanent(errBoom)
			}
			return errBoom
		}
		r.handled[[2]int{n, sub}]++
		// Delayed and replayed ones take their places later.
		if e.Key != "" && step.after == 0 && !r.replayed[n] {
			if r.last[at] > n {
				r.problems = append(r.problems, fmt.Sprintf("%d after %d at %s", n, r.last[at], at))
			}
			r.last[at] = n
		}
		return nil
	}
}

// Random operations, and at rest the books balance, each key was handled in its
// order, and every event is accounted for at every subscription, exactly once.
func TestO4_EverythingTogether(t *testing.T) {
	const subscriptions = 3
	rapid.Check(t, func(rt *rapid.T) {
		isolated := rapid.Bool().Draw(rt, "isolated")
		capacity := rapid.SampledFrom([]int{2, 1000}).Draw(rt, "hold")
		whenOpen := rapid.SliceOfN(rapid.SampledFrom([]eventbus.WhenOpen{
			eventbus.HoldWhenOpen, eventbus.HoldWhenOpen, eventbus.DropWhenOpen, eventbus.DeadLetterWhenOpen,
		}), subscriptions, subscriptions).Draw(rt, "when open")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) mixedStep {
			return mixedStep{
				op: rapid.SampledFrom([]string{
					"publish", "publish", "publish", "publish", "publish", "batch", "sleep", "sleep", "pause", "resume", "until", "trip", "reset", "cancel", "replay", "unsubscribe",
				}).Draw(rt, "op"),
				sub:   rapid.IntRange(0, subscriptions-1).Draw(rt, "sub"),
				key:   rapid.SampledFrom([]string{"", "k", "k", "l"}).Draw(rt, "key"),
				fails: rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 5}), subscriptions, subscriptions).Draw(rt, "fails"),
				dies:  rapid.IntRange(0, 4).Draw(rt, "dies") == 0,
				after: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 40}).Draw(rt, "after")) * time.Second,
				pick:  rapid.IntRange(0, 1<<20).Draw(rt, "pick"),
			}
		}), 1, 60).Draw(rt, "steps")
		graceful := rapid.Bool().Draw(rt, "graceful")

		var problems []string
		problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		synctest.Test(t, func(t *testing.T) {
			opts := []eventbus.Option{eventbus.WithRetry(retry(3, 2*time.Second)), eventbus.WithCircuit(eventbus.MinEvents(3))}
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := startBus(t, opts...)
			r := &mixedRecord{
				handled: map[[2]int]int{}, last: map[string]int{}, inside: map[string]int{},
				replayed: map[int]bool{}, failed: map[[2]int]int{}, events: map[int]*mixedStep{},
			}
			subs := make([]*eventbus.Subscription, subscriptions)
			gone := make([]bool, subscriptions)
			targets := make(map[int][]int) // of each event
			for i := range subs {
				subs[i] = mustSubscribe(t, bus, "*", r.handler(i), eventbus.Named(fmt.Sprint(i)), whenOpen[i], eventbus.LineCapacity(capacity))
			}
			events := 0
			var scheduled []eventbus.EventID
			numbers := make(map[eventbus.EventID]int)
			cancelled := make(map[int]eventbus.EventID)
			prepare := func(s *mixedStep) eventbus.Publication {
				events++
				r.mu.Lock()
				r.events[events] = s
				r.mu.Unlock()
				for i := range subs {
					if !gone[i] {
						targets[events] = append(targets[events], i)
					}
				}
				return eventbus.Publication{Type: "x", Payload: events, Options: []eventbus.PublishOption{eventbus.Key(s.key), eventbus.After(s.after)}}
			}
			check := func(err error, gone bool) {
				if (err != nil) != gone {
					problem("control: %v", err)
				}
			}
			for i := range steps {
				s := &steps[i]
				sub := subs[s.sub]
				switch s.op {
				case "publish":
					p := prepare(s)
					id := mustPublish(t, bus, p.Type, p.Payload, p.Options...)
					numbers[id] = events
					if s.after > 0 {
						scheduled = append(scheduled, id)
					}
				case "batch":
					var batch []eventbus.Publication
					for range 1 + s.pick%8 {
						batch = append(batch, prepare(s))
					}
					if _, err := bus.PublishBatch(t.Context(), batch); err != nil {
						problem("batch: %v", err)
					}
				case "sleep":
					time.Sleep(time.Duration(s.pick%40_000) * time.Millisecond)
				case "pause":
					check(sub.Pause(), gone[s.sub])
				case "resume":
					check(sub.Resume(), gone[s.sub])
				case "until":
					check(sub.HoldUntil(time.Now().Add(time.Duration(1+s.pick%60)*time.Second)), gone[s.sub])
				case "trip":
					check(sub.Trip(), gone[s.sub])
				case "reset":
					check(sub.Reset(), gone[s.sub])
				case "cancel":
					if len(scheduled) > 0 {
						id := scheduled[s.pick%len(scheduled)]
						if cancelEvent(t.Context(), bus, id) == nil {
							cancelled[numbers[id]] = id
						}
					}
				case "replay":
					if all := letters(t, bus); len(all) > 0 {
						l := all[s.pick%len(all)]
						r.mu.Lock()
						r.replayed[l.Event.Payload.(int)] = true
						r.mu.Unlock()
						_ = bus.DLQ().Replay(t.Context(), l.ID)
					}
				case "unsubscribe":
					if s.pick%8 == 0 {
						sub.Unsubscribe()
						gone[s.sub] = true
					}
				}
			}
			if graceful {
				time.Sleep(time.Minute)
				for i, s := range subs {
					if !gone[i] {
						check(s.Resume(), false)
					}
				}
				time.Sleep(4 * time.Hour)
				m := bus.Metrics()
				if n := m.Held + m.Scheduled + m.QueueDepth + m.WaitingRetries + m.RunningDispatches; n > 0 {
					problem("stuck: %+v", m.Ledger)
				}
				if !m.Ledger.Balanced() {
					problem("unbalanced at rest: %+v", m.Ledger)
				}
			}
			err := bus.Shutdown(context.Background())
			if err != nil && (graceful || !leftHeld(err)) {
				problem("shutdown: %v", err)
			}
			l := bus.Metrics().Ledger
			if !l.Balanced() {
				problem("unbalanced: %+v", l)
			}
			if l.Held+l.Queued+l.Running+l.Waiting+l.Scheduled != 0 {
				problem("left: %+v", l)
			}
			named := make(map[[2]int]int) // in letters
			for _, l := range letters(t, bus) {
				for _, name := range append([]string{l.Subscription}, l.NotReached...) {
					named[[2]int{l.Event.Payload.(int), int(name[0] - '0')}]++
				}
			}
			dropped, mayBeDropped := int64(0), int64(0)
			for n := 1; n <= events; n++ {
				for _, i := range targets[n] {
					at := [2]int{n, i}
					_, ends := cancelled[n] // it may have been due: some have handled it then
					switch total := r.handled[at] + named[at]; {
					case ends && total > 1:
						problem("event %d was cancelled, and %d times at %d", n, total, i)
					case ends && total == 0 && whenOpen[i] == eventbus.DropWhenOpen:
						mayBeDropped++
					case ends:
					case total == 0 && whenOpen[i] == eventbus.DropWhenOpen:
						dropped++
					case total != 1:
						problem("event %d at %d: handled %d times, in %d letters", n, i, r.handled[at], named[at])
					}
				}
			}
			if l.Dropped < dropped || l.Dropped > dropped+mayBeDropped {
				problem("%d are missing, and %d were dropped", dropped, l.Dropped)
			}
			ended := int64(0)
			for n, id := range cancelled {
				status, err := bus.Event(t.Context(), id)
				if err != nil {
					problem("event %d: %v", n, err)
				}
				for _, d := range status.Settled {
					if d.Outcome == eventbus.Cancelled {
						ended++
					}
				}
			}
			if ended != l.Cancelled {
				problem("cancelled %d, in the ledger %d", ended, l.Cancelled)
			}
			r.mu.Lock()
			problems = append(problems, r.problems...)
			r.mu.Unlock()
		})
		require.Empty(rt, problems)
	})
}

// Types that were only asked about, or refused, take no room among the types.
func TestO5_ExplainChangesNothing(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithQueueCapacity(1))
	mustSubscribe(t, bus, "*", ok)
	for i := range 3000 {
		require.NoError(t, bus.Explain(fmt.Sprintf("type.t%d", i)).Err)
	}
	require.Empty(t, bus.Metrics().Types)
	mustPublish(t, bus, "order.placed", nil)
	require.Equal(t, map[string]eventbus.TypeMetrics{"order.placed": {Events: 1}}, bus.Metrics().Types)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := bus.Publish(ended, "type.refused", nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = bus.Publish(t.Context(), "type.full", nil)
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	require.Zero(t, bus.Metrics().Types["type.refused"])
	require.Zero(t, bus.Metrics().Types["type.full"])
}

func TestO5_ExplainShowsTheCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "a", runScript)
		for want, make := range []func(){
			eventbus.CircuitClosed:   func() {},
			eventbus.CircuitOpen:     func() { tripCircuit(t, bus, "a") },
			eventbus.CircuitHalfOpen: func() { time.Sleep(30 * time.Second); publishScripts(t, bus, "a", handlerEndings["permanent"]) },
		} {
			make()
			require.Equal(t, eventbus.CircuitState(want), bus.Explain("a").Targets[0].Circuit)
		}
		shutdown(t, bus)
	})
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

func TestO5_ThePlanAsText(t *testing.T) {
	bus, _ := newBus(t)
	require.Equal(t, "nobody: no subscription matches; it would be unrouted\n", bus.Explain("nobody").String())
	mustSubscribe(t, bus, "a", ok, eventbus.Named("s"), eventbus.Retry(eventbus.FullJitter, eventbus.RetryIf(func(error) bool { return true })))
	text := bus.Explain("a").String()
	require.Contains(t, text, "Jitter full, RetryIf a function")
	require.Contains(t, text, "Jitter = proportional")
}

func TestO5_ThePlanSaysWhatAnOpenCircuitDoes(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "a", ok, eventbus.Named("holds"))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("buries"), eventbus.DeadLetterWhenOpen)
	mustSubscribe(t, bus, "a", ok, eventbus.Named("drops"), eventbus.DropWhenOpen)
	mustSubscribe(t, bus, "a", ok, eventbus.Named("has none"), eventbus.Circuit(eventbus.NoCircuit()))
	text := bus.Explain("a").String()
	require.Contains(t, text, "circuit closed, hold when open\n")
	require.Contains(t, text, "circuit closed, dead-letter when open\n")
	require.Contains(t, text, "circuit closed, drop when open\n")
	require.Contains(t, text, "circuit disabled\n")
}

func TestO5_ASubscriptionAsText(t *testing.T) {
	bus, _ := newBus(t)
	require.Equal(t, `mail (pattern "order.*")`, mustSubscribe(t, bus, "order.*", ok, eventbus.Named("mail")).String())
	require.Equal(t, `order.*#2 (pattern "order.*")`, fmt.Sprint(mustSubscribe(t, bus, "order.*", ok)))
	var none *eventbus.Subscription
	require.Equal(t, "<nil>", none.String())
}

func TestO5_ExplainShowsWhatIsSet(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("s"), eventbus.Retry(eventbus.MaxRetries(7)))
	require.NoError(t, s.SetRetry(eventbus.BaseDelay(time.Minute)))
	require.NoError(t, bus.SetRetry(eventbus.MaxRetries(9)))
	require.NoError(t, s.SetRetryRules(onCodes(5, "X")))
	p := bus.Explain("a")
	require.Equal(t, map[string]string{"BaseDelay": "1m0s"}, p.Targets[0].Overrides)
	require.Equal(t, 9, p.Policy.MaxRetries)
	require.Equal(t, 30*time.Second, p.Policy.MaxDelay)
	require.Equal(t, 5, p.Targets[0].Rules[0].Attempts)
	require.Equal(t, "s", p.Targets[0].RulesOrigin)
}

// Replays that are refused take no counters of types.
func TestO2_ARefusedReplayIsNoType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBoom) }, eventbus.Named("s"))
		mustPublish(t, bus, "x", 1)
		synctest.Wait()
		var out bytes.Buffer
		_, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		other, _ := startBus(t)
		_, err = other.DLQ().Import(t.Context(), &out)
		require.NoError(t, err)
		report, err := other.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Len(t, report.Stayed, 1)
		require.Empty(t, other.Metrics().Types)
		shutdown(t, bus)
		shutdown(t, other)
	})
}

// The other types may have retries without events, of replays.
func TestO2_ReplaysOfOtherTypesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(context.Context, eventbus.Event) error { return errBoom }
		retries := eventbus.Retry(eventbus.BaseDelay(0), eventbus.MaxRetries(1))
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", fails, eventbus.Named("s"), retries)
		mustPublish(t, bus, "x", 1)
		time.Sleep(time.Second)
		var out bytes.Buffer
		_, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		other, _ := startBus(t)
		mustSubscribe(t, other, "y", fails, eventbus.Named("s"), retries)
		for i := range 1000 {
			mustPublish(t, other, fmt.Sprintf("a.type%d", i), nil)
		}
		_, err = other.DLQ().Import(t.Context(), strings.NewReader(strings.ReplaceAll(out.String(), `"x"`, `"y"`)))
		require.NoError(t, err)
		_, err = other.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, other.Metrics().Retries)
		require.EqualValues(t, 1, other.Metrics().Types[eventbus.OtherTypes].DeadLettered)
		shutdown(t, bus)
		shutdown(t, other)
	})
}
