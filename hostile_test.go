package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
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
			bus, logs := startBus(t, bOnce)
			mustSubscribe(t, bus, "a", bEndings[name], eventbus.Named("s"))
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

func TestO2_TypesSubscriptionsAndTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithTimeout(10*time.Second))
		mustSubscribe(t, bus, "{a,b}", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", bScripted, eventbus.Named("second"))
		secondTime := func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
				return errBroken
			}
			return nil
		}
		for range 3 {
			mustPublish(t, bus, "a", eventbus.Handler(secondTime)) // 1 retry each
		}
		mustPublish(t, bus, "a", bFail) // 2 retries, dead
		for range 4 {
			mustPublish(t, bus, "a", bOK)
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
					return bEndings[ending](ctx, e)
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
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustSubscribe(t, bus, "sick", bFail)
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
		err := bCut(t, bus)
		require.Len(t, err.Unfinished, 5)
		require.Equal(t, eventbus.Ledger{Accepted: 16, Replays: 5, Handled: 10, Unrouted: 1, DeadLettered: 10}, bus.Metrics().Ledger)
	})
}

// Its retry never ran: that the others have been handled is no success after a
// retry.
func TestO2_WhatIsSkippedHasNotRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second)))
		mustSubscribe(t, bus, "a", bFail, eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen)
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
	bus, _ := startBus(t, bSilent(bOnce, eventbus.WithCircuit(eventbus.NoCircuit()))...)
	mustSubscribe(t, bus, "dead.*", bFail)
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
		bus, _ := startBus(t, bOnce)
		mustSubscribe(t, bus, "a", bScripted)
		for want, make := range []func(){
			eventbus.CircuitClosed:   func() {},
			eventbus.CircuitOpen:     func() { bTrip(t, bus, "a") },
			eventbus.CircuitHalfOpen: func() { time.Sleep(30 * time.Second); bPublish(t, bus, "a", bEndings["permanent"]) },
		} {
			make()
			require.Equal(t, eventbus.CircuitState(want), bus.Explain("a").Targets[0].Circuit)
		}
		shutdown(t, bus)
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
			bus, _ := newBus(t, bSilent(eventbus.WithRetry(retry(2, 2*time.Second)), eventbus.WithTimeout(time.Second),
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
					return bScripted(ctx, e)
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
					_, err := bus.Publish(t.Context(), []string{"a", "b", "c", "d"}[o.Type], bEndings[names[o.Ending]],
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
				_ = bCut(t, bus)
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
		bus, _ := startBus(t, bOnce)
		sick := mustSubscribe(t, bus, "{x,both}", bScripted, eventbus.DropWhenOpen)
		dead := mustSubscribe(t, bus, "{y,both}", bScripted, eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "{z,both}", ok)
		steps := []struct {
			do   func()
			want eventbus.Ledger // what it adds
		}{
			{func() { bPublish(t, bus, "nobody", nil) }, eventbus.Ledger{Accepted: 1, Unrouted: 1}},
			{func() { bPublish(t, bus, "z", bOK) }, eventbus.Ledger{Accepted: 1, Handled: 1}},
			{func() { bPublish(t, bus, "x", bFail, bFail, bFail, bFail) }, eventbus.Ledger{Accepted: 4, DeadLettered: 4}},
			{func() { bPublish(t, bus, "y", bFail, bFail, bFail, bFail) }, eventbus.Ledger{Accepted: 4, DeadLettered: 4}},
			{func() { bPublish(t, bus, "x", bOK) }, eventbus.Ledger{Accepted: 1, Dropped: 1}},
			{func() { bPublish(t, bus, "y", bOK) }, eventbus.Ledger{Accepted: 1, DeadLettered: 1}},
			{func() { bPublish(t, bus, "both", bOK) }, eventbus.Ledger{Accepted: 1, Splits: 2, Dropped: 1, DeadLettered: 1, Handled: 1}},
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

// An observer owns what it is given, also while the letter is still being logged
// and handed to whoever waits for it.
func TestL7_AnObserverMayChangeWhatItIsGiven(t *testing.T) {
	bus, _ := startBus(t, bOnce, eventbus.WithDeadLetterCapacity(1), eventbus.WithCircuit(eventbus.NoCircuit()),
		eventbus.WithObserver(eventbus.Observer{LetterEvicted: func(l eventbus.DeadLetter) {
			l.Failures[0] = eventbus.Failure{}
			l.Succeeded[0] = "vandal"
		}}))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
	mustSubscribe(t, bus, "a", bFail, eventbus.Named("sick"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, err := bus.PublishAndWait(t.Context(), "a", nil)
				var d *eventbus.DeliveryError
				if errors.As(err, &d) && d.Letters[0].Failures[0].Error != "broken" {
					t.Error("the waiter sees what the observer did")
					return
				}
			}
		})
	}
	wg.Wait()
	shutdown(t, bus)
}

func TestO2_LatencyIsRightToWithinAQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bSilent(bOnce, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithTimeout(time.Hour))...)
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

// bSilent is for tests that would log a lot.
func bSilent(opts ...eventbus.Option) []eventbus.Option {
	return append(opts, eventbus.WithLogger(zap.NewNop()))
}

// The reasons that come from outside the attempt.
func TestL1_WhatASkippedAnUnsubscribedAndACutDispatchLeave(t *testing.T) {
	for reason, c := range map[eventbus.Reason]struct {
		during                func(*testing.T, *eventbus.Bus, *eventbus.Subscription)
		opts                  []eventbus.SubscribeOption
		succeeded, notReached []string
		diedAfter             time.Duration
	}{
		// What is skipped becomes a dispatch of its own: the others go on.
		eventbus.ReasonCircuitOpen: {
			opts: []eventbus.SubscribeOption{eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen}, diedAfter: 10 * time.Second,
		},
		eventbus.ReasonUnsubscribed: {
			during:    func(_ *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { s.Unsubscribe() },
			diedAfter: 10 * time.Second,
		},
		eventbus.ReasonShutdown: {
			during:    func(t *testing.T, bus *eventbus.Bus, _ *eventbus.Subscription) { _ = bCut(t, bus) },
			succeeded: []string{"first"}, notReached: []string{"last"}, diedAfter: 5 * time.Second,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(2, 10*time.Second)))
			mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
			s := mustSubscribe(t, bus, "a", bFail, append(c.opts, eventbus.Named("middle"))...)
			mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
			payload := &struct{ N int }{17}
			began := time.Now()
			id := mustPublish(t, bus, "a", payload, eventbus.Metadata("source", "web"))
			time.Sleep(5 * time.Second)
			if c.during != nil {
				c.during(t, bus, s)
			}
			time.Sleep(time.Minute)
			l := oneLetter(t, bus)
			require.Equal(t, reason, l.Reason)
			require.Equal(t, "middle", l.Subscription, reason)
			require.Equal(t, c.succeeded, l.Succeeded, reason)
			require.Equal(t, c.notReached, l.NotReached, reason)
			require.Equal(t, 1, l.Attempts, reason)
			require.Equal(t, []string{"0.1 middle broken"}, bFailures(l.Failures), reason)
			require.Equal(t, c.diedAfter, l.DiedAt.Sub(began), reason)
			require.Equal(t, time.UTC, l.DiedAt.Location())
			require.Equal(t, id, l.Event.ID)
			require.Same(t, payload, l.Event.Payload)
			require.Equal(t, "web", l.Event.Metadata.Get("source"))
			e := logs.FilterMessage("event dead-lettered").All()
			require.Len(t, e, 1)
			require.Equal(t, string(reason), e[0].ContextMap()["reason"])
			requireBalanced(t, bus)
		})
	}
}

// bFailures are the parts of failures that a test says exactly.
func bFailures(all []eventbus.Failure) []string {
	var texts []string
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%d.%d %s %s", f.Replays, f.Attempt, f.Subscription, f.Error))
	}
	return texts
}

// A waiter's copy and a list's are their own, and a replay goes on with neither.
func TestL1_NoCopyOfALetterReachesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, 0)))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", bFail, eventbus.Named("sick"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		_, err := bus.PublishAndWait(t.Context(), "a", nil)
		var waited *eventbus.DeliveryError
		require.ErrorAs(t, err, &waited)
		want := oneLetter(t, bus)
		vandalize := func(l eventbus.DeadLetter) {
			l.Succeeded[0], l.NotReached[0] = "x", "y"
			l.Failures = append(l.Failures[:1], eventbus.Failure{Error: "z"})
			l.Failures[0] = eventbus.Failure{}
		}
		vandalize(waited.Letters[0])
		require.Equal(t, want, oneLetter(t, bus))
		mine := oneLetter(t, bus)
		require.NoError(t, bus.DLQ().Replay(t.Context(), want.ID))
		vandalize(mine)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, []string{"0.1 sick broken", "0.2 sick broken", "1.1 sick broken", "1.2 sick broken"}, bFailures(l.Failures))
		require.Equal(t, []string{"first"}, l.Succeeded)
		shutdown(t, bus)
	})
}

// Letters come and go between the pages: what was there all the time is seen
// once, and what has gone does not confuse, not even what a page ended with.
func TestL2_PagesWhileLettersComeAndGo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 60).Draw(rt, "letters")
		limit := rapid.IntRange(1, 9).Draw(rt, "limit")
		between := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(-60, 3), 0, 30), 1, 20).Draw(rt, "between the pages")
		filtered := rapid.Bool().Draw(rt, "filtered")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, bSilent(bOnce, eventbus.WithCircuit(eventbus.NoCircuit()))...)
			_, _ = bus.Subscribe("*", bFail)
			q := eventbus.LetterQuery{Limit: limit}
			if filtered {
				q.Type = "[01]"
			}
			for _, n := range seed {
				_, _ = bus.Publish(t.Context(), fmt.Sprint(n), nil)
			}
			synctest.Wait()
			all, _ := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
			gone, seen := map[eventbus.LetterID]bool{}, map[eventbus.LetterID]int{}
			var last eventbus.LetterID
			for i := 0; ; i++ {
				page, err := bus.DLQ().List(t.Context(), q)
				if err != nil || len(page.Letters) == 0 && i > 0 && len(gone) == 0 {
					problem = fmt.Sprint("page ", i, " is empty: ", err)
				}
				for _, l := range page.Letters {
					seen[l.ID]++
					if !last.IsZero() && l.ID.String() >= last.String() {
						problem = "not newest first"
					}
					last = l.ID
				}
				if q.Before = page.Next; q.Before.IsZero() {
					break
				}
				for _, n := range between[i%len(between)] {
					if n >= 0 {
						_, _ = bus.Publish(t.Context(), fmt.Sprint(n), nil)
					} else if -n <= len(all.Letters) {
						id := all.Letters[-n-1].ID
						gone[id] = bus.DLQ().Purge(t.Context(), id) == nil || gone[id]
					}
				}
				synctest.Wait()
			}
			for _, l := range all.Letters {
				matches := !filtered || l.Event.Type < "2"
				switch n := seen[l.ID]; {
				case n > 1, n == 1 && !matches, n == 0 && matches && !gone[l.ID]:
					problem = fmt.Sprintf("letter %s of %s is listed %d times", l.ID, l.Event.Type, n)
				}
			}
			_ = bus.Shutdown(context.Background())
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

func TestL2_AnEndedContextIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		mustSubscribe(t, bus, "a", bFail)
		bPublish(t, bus, "a", nil)
		cause := errors.New("no time")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := bus.DLQ().List(ctx, eventbus.LetterQuery{})
		require.ErrorIs(t, err, cause, "List says that it asks")
		_, err = bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, cause, "its errors are those of List")
		require.Len(t, letters(t, bus), 1)
		shutdown(t, bus)
	})
}

// Both the history and what is added to it may be beyond the bound.
func TestL3_HistoriesOfAnyLengthAreCountedRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rounds := rapid.SliceOfN(rapid.IntRange(1, 260), 1, 4).Draw(rt, "attempts of each round")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, bSilent(eventbus.WithRetry(retry(eventbus.Unlimited, 0)), eventbus.WithCircuit(eventbus.NoCircuit()))...)
			n, left := 0, 0
			_, _ = bus.Subscribe("a", func(context.Context, eventbus.Event) error {
				n++
				err := fmt.Errorf("%d", n)
				if left--; left == 0 {
					return eventbus.Permanent(err)
				}
				return err
			})
			var page eventbus.LetterPage
			for i, attempts := range rounds {
				left = attempts
				if i == 0 {
					_, _ = bus.Publish(t.Context(), "a", nil)
				} else {
					_ = bus.DLQ().Replay(t.Context(), page.Letters[0].ID)
				}
				synctest.Wait()
				page, _ = bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
			}
			l := page.Letters[0]
			if len(l.Failures)+l.FailuresOmitted != n || len(l.Failures) != min(n, 100) {
				problem = fmt.Sprintf("%d kept and %d left out of %d", len(l.Failures), l.FailuresOmitted, n)
			}
			for i, f := range l.Failures {
				want := i + 1
				if i >= 10 {
					want += l.FailuresOmitted
				}
				if f.Error != fmt.Sprint(want) {
					problem = fmt.Sprintf("at %d is failure %s, want %d", i, f.Error, want)
				}
			}
			_ = bus.Shutdown(context.Background())
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// Whoever is split off in a replay has a letter that says who succeeded before.
func TestL3_TheLettersOfAReplayKnowWhoSucceededBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", bFail, eventbus.Named("sick"), eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		bPublish(t, bus, "a", nil)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
		require.Equal(t, 1, l.Replays)
		require.Contains(t, l.Succeeded, "first")
		require.Equal(t, []string{"0.1 sick broken"}, bFailures(l.Failures))
		require.Zero(t, l.Attempts)
		require.Equal(t, int64(1), metricsOf(t, bus, "last").Successes)
	})
}

// A name that has been subscribed again comes later now.
func TestL3_ReplayVisitsInTheOrderOfSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		var visits journal[string]
		healthy := false
		handler := func(name string) eventbus.Handler {
			return func(context.Context, eventbus.Event) error {
				visits.add(name)
				if !healthy {
					return errBroken
				}
				return nil
			}
		}
		x := mustSubscribe(t, bus, "a", handler("x"), eventbus.Named("x"))
		mustSubscribe(t, bus, "a", handler("y"), eventbus.Named("y"))
		bPublish(t, bus, "a", nil)
		x.Unsubscribe()
		mustSubscribe(t, bus, "something.else", handler("x again"), eventbus.Named("x"))
		healthy = true
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		shutdown(t, bus)
		require.Equal(t, []string{"x", "y", "x again"}, visits.all())
	})
}

// With real goroutines: one wins, whether it replays or purges.
func TestL3_OneOfManyReplaysAndPurgesWins(t *testing.T) {
	bus, _ := startBus(t, bSilent(bOnce)...)
	var calls atomic.Int64
	mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
		if d, _ := eventbus.FromContext(ctx); d.Replays > 0 {
			calls.Add(1)
			return nil
		}
		return eventbus.Permanent(errBroken)
	})
	replayed := int64(0)
	for range 30 {
		_, err := bus.PublishAndWait(t.Context(), "a", nil)
		require.Error(t, err)
		id := oneLetter(t, bus).ID
		var won, lost, purged atomic.Int64
		begin := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				<-begin
				var err error
				if i%8 == 7 {
					if err = bus.DLQ().Purge(context.Background(), id); err == nil {
						purged.Add(1)
					}
				} else if err = bus.DLQ().Replay(context.Background(), id); err == nil {
					won.Add(1)
				}
				if errors.Is(err, eventbus.ErrNotFound) {
					lost.Add(1)
				}
			})
		}
		close(begin)
		wg.Wait()
		require.Equal(t, int64(1), won.Load()+purged.Load())
		require.Equal(t, int64(63), lost.Load())
		replayed += won.Load()
	}
	shutdown(t, bus)
	require.Equal(t, replayed, calls.Load())
	require.Equal(t, replayed, bus.Metrics().Ledger.Replays)
}

func TestL3_ReplayRacesShutdown(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, bSilent(bOnce, eventbus.WithCircuit(eventbus.NoCircuit()))...)
			mustSubscribe(t, bus, "a", bFail)
			for range 60 {
				mustPublish(t, bus, "a", nil)
			}
			synctest.Wait()
			var wg sync.WaitGroup
			var replayed atomic.Int64
			for _, l := range letters(t, bus) {
				wg.Go(func() {
					err := bus.DLQ().Replay(context.Background(), l.ID)
					if err == nil {
						replayed.Add(1)
					} else if !errors.Is(err, eventbus.ErrShutdown) {
						t.Error(err)
					}
				})
			}
			wg.Go(func() { _ = bCut(t, bus) })
			wg.Wait()
			require.Len(t, letters(t, bus), 60, "each has stayed, or died again")
			n := 0
			for _, l := range letters(t, bus) {
				n += l.Replays
			}
			require.Equal(t, int(replayed.Load()), n)
			requireBalanced(t, bus)
		})
	}
}

// Purging, replaying, evicting and dying go on at once; the numbers add up.
func TestL4_PurgeAndReplayRaceWithDying(t *testing.T) {
	bus, _ := startBus(t, bSilent(bOnce, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithDeadLetterCapacity(64))...)
	mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
		if e.Payload.(int)%3 == 0 {
			return nil
		}
		return eventbus.Permanent(errBroken)
	})
	ctx := context.Background()
	var purged, replayed atomic.Int64
	var publishers, others sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				report, _ := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Error: "broken"})
				replayed.Add(int64(report.Replayed))
				gone, _ := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{Type: "a"})
				purged.Add(int64(gone.Purged))
				page, _ := bus.DLQ().List(ctx, eventbus.LetterQuery{Limit: 5})
				for _, l := range page.Letters {
					if bus.DLQ().Purge(ctx, l.ID) == nil {
						purged.Add(1)
					}
				}
			}
		})
	}
	for range 2 {
		publishers.Go(func() {
			for i := range 1000 {
				_, _ = bus.Publish(ctx, "a", i)
			}
		})
	}
	publishers.Wait()
	close(stop)
	others.Wait()
	shutdown(t, bus)
	m := bus.Metrics()
	require.Equal(t, replayed.Load(), m.Ledger.Replays)
	require.Equal(t, m.Ledger.DeadLettered, purged.Load()+replayed.Load()+m.LettersEvicted+int64(m.DeadLetters))
	require.Len(t, letters(t, bus), m.DeadLetters)
}
