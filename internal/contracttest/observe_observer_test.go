package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

func slowHandler(context.Context, eventbus.Event) error {
	time.Sleep(2 * time.Second)
	return nil
}

// One entry for a subscription, with where it was made; one call of the observer
// for each slow call.
func TestO1_SlowHandlersAreWarnedAboutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow journal[eventbus.SlowHandler]
		bus, logs := startBus(t, eventbus.WithTimeout(3*time.Second), eventbus.WithObserver(eventbus.Observer{SlowHandler: slow.add}))
		_, file, line, _ := runtime.Caller(0)
		s, err := bus.Subscribe("x", slowHandler, eventbus.Named("mail"))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s:%d", file, line+1), s.MadeAt())
		other, err := bus.Subscribe("y", slowHandler)
		require.NoError(t, err)
		quick := mustSubscribe(t, bus, "z", func(context.Context, eventbus.Event) error { time.Sleep(time.Second - 1); return nil })
		first := mustPublish(t, bus, "x", "payload")
		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.Zero(t, slow.len())
		time.Sleep(1 + time.Millisecond) // its beginning is known to within a tick
		synctest.Wait()
		require.Equal(t, []eventbus.SlowHandler{{
			Subscription: "mail", MadeAt: s.MadeAt(), Event: slow.all()[0].Event, Attempt: 1,
			Timeout: 3 * time.Second, Elapsed: time.Second,
		}}, slow.all())
		require.Equal(t, "payload", slow.all()[0].Event.Payload)
		for range 3 {
			mustPublish(t, bus, "x", nil)
		}
		mustPublish(t, bus, "y", nil)
		mustPublish(t, bus, "z", nil)
		time.Sleep(time.Minute)
		entries := logs.FilterMessage("slow handler").All()
		require.Len(t, entries, 2)
		require.Equal(t, zapcore.WarnLevel, entries[0].Level)
		require.Equal(t, map[string]any{
			"event_id": first.String(), "event_type": "x", "subscription_id": "mail",
			"attempt": int64(1), "timeout": 3 * time.Second, "made_at": s.MadeAt(),
		}, entries[0].ContextMap())
		require.Equal(t, other.ID(), entries[1].ContextMap()["subscription_id"])
		require.Equal(t, 5, slow.len())
		require.EqualValues(t, 4, metricsOf(t, bus, "mail").Slow)
		require.EqualValues(t, 1, metricsOf(t, bus, other.ID()).Slow)
		require.Zero(t, metricsOf(t, bus, quick.ID()).Slow)
		shutdown(t, bus)
	})
	require.Empty(t, (*eventbus.Subscription)(nil).MadeAt())
	require.Empty(t, (&eventbus.Subscription{}).MadeAt())
}

// Every callback is called, alone and with all others, as often whatever it does,
// and does no harm. A callback that nothing calls fails here.
func TestO2_EveryCallbackIsCalledAndDoesNoHarm(t *testing.T) {
	manners := map[string]func(){
		"returns":     func() {},
		"panics":      func() { panic("observers may") },
		"panics nil":  func() { panic(nil) }, //nolint:govet // observers may
		"ends itself": runtime.Goexit,
	}
	want := map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		var called journal[string]
		bus, _ := startBus(t, append(observedOptions, observerCalling(func(name string, _ any) { called.add(name) }))...)
		causeEverything(t, bus)
		shutdown(t, bus)
		for _, name := range called.all() {
			want[name]++
		}
	})
	for _, name := range callbackNames() {
		require.Positive(t, want[name], "nothing calls %s: let causeEverything do so", name)
		for manner, f := range manners {
			t.Run(name+" "+manner, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var called atomic.Int64
					bus, logs := startBus(t, append(observedOptions, observerCalling(func(string, any) { called.Add(1); f() }, name))...)
					causeEverything(t, bus)
					shutdown(t, bus)
					require.EqualValues(t, want[name], called.Load())
					panicked := logs.FilterMessage("observer panicked").All()
					if !strings.HasPrefix(manner, "panics") {
						require.Empty(t, panicked)
						return
					}
					require.Len(t, panicked, want[name])
					require.Equal(t, name, panicked[0].ContextMap()["observer"])
				})
			})
		}
	}
}

// None runs under a lock: each may use the bus, in every way.
func TestO2_CallbacksMayUseTheBus(t *testing.T) {
	for _, name := range callbackNames() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var bus *eventbus.Bus
				var inside atomic.Bool
				var called atomic.Int64
				use := func(string, any) {
					if called.Add(1) > 20 || inside.Swap(true) {
						return // what it does is told of too
					}
					defer inside.Store(false)
					s, err := bus.Subscribe("inner.*", ok)
					require.NoError(t, err)
					_, err = bus.Publish(context.Background(), "inner.event", nil)
					require.NoError(t, err)
					_, err = bus.PublishAndWait(context.Background(), "inner.nobody.knows", nil)
					require.NoError(t, err)
					s.Unsubscribe()
					bus.Metrics()
					bus.Abandoned()
					require.NoError(t, bus.Explain("slow").Err)
					page, err := bus.DLQ().List(context.Background(), eventbus.LetterQuery{})
					require.NoError(t, err)
					for _, l := range page.Letters {
						_ = bus.DLQ().Replay(context.Background(), l.ID)
					}
					_, err = bus.DLQ().PurgeMatching(context.Background(), eventbus.LetterQuery{All: true})
					require.NoError(t, err)
				}
				bus, _ = newBus(t, append(observedOptions, observerCalling(use, name))...)
				require.NoError(t, bus.Start(t.Context()))
				causeEverything(t, bus)
				require.Positive(t, called.Load())
				shutdown(t, bus)
			})
		})
	}
}

// attemptStory notes what happens to events, a line for each call, but for Accepted,
// which no order holds for.
func attemptStory(lines *journal[string]) eventbus.Option {
	attempts := &journal[eventbus.Attempt]{}
	return eventbus.WithObserver(eventbus.Observer{
		AttemptBegun: func(a eventbus.Attempt) {
			attempts.add(a)
			lines.add(fmt.Sprint("begun ", a.Number))
		},
		AttemptEnded: func(e eventbus.EndedAttempt) {
			line := fmt.Sprintf("ended %d %s", e.Number, e.Outcome)
			if e.Reason != "" {
				line += fmt.Sprintf(" %s", e.Reason)
			}
			if f := e.Failure; f != nil {
				line += fmt.Sprintf(" at %s attempt %d", f.Subscription, f.Attempt)
			}
			for _, a := range attempts.all() {
				if a.ID == e.ID && a != e.Attempt {
					line += fmt.Sprintf(" but began as %+v", a)
				}
			}
			lines.add(line)
		},
		RetryScheduled: func(r eventbus.ScheduledRetry) {
			lines.add(fmt.Sprintf("retry after %d at %s in %s", r.Failure.Attempt, r.Failure.Subscription, r.Delay))
		},
		DeadLettered: func(l eventbus.DeadLetter) {
			lines.add(fmt.Sprintf("dead %s at %s after %d", l.Reason, l.Subscription, l.Attempts))
		},
	})
}

func TestO2_EveryAttemptBeginsAndEndsOnce(t *testing.T) {
	overrun := func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }
	script := func(results ...error) eventbus.Handler {
		return func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			return results[min(d.Attempt, len(results))-1]
		}
	}
	open := eventbus.Circuit(eventbus.MinEvents(1))
	for name, c := range map[string]struct {
		first, second eventbus.Handler
		opts          []eventbus.SubscribeOption // of the second
		during        func(*eventbus.Bus, *eventbus.Subscription, *eventbus.Subscription)
		want          []string
	}{
		"handled": {first: ok, second: ok, want: []string{"begun 1", "ended 1 handled"}},
		"mended": {
			first: ok, second: script(errDead, nil),
			want: []string{"begun 1", "ended 1 waiting at second attempt 1", "retry after 1 at second in 1s", "begun 2", "ended 2 handled"},
		},
		"exhausted": {
			first: ok, second: failing(errDead),
			want: []string{
				"begun 1", "ended 1 waiting at second attempt 1", "retry after 1 at second in 1s",
				"begun 2", "ended 2 dead-lettered exhausted at second attempt 2", "dead exhausted at second after 2",
			},
		},
		"permanent": {
			first: failing(eventbus.Permanent(errDead)), second: ok,
			want: []string{"begun 1", "ended 1 dead-lettered permanent at first attempt 1", "dead permanent at first after 1"},
		},
		"panics and exits": {
			first: func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					panic("oh")
				}
				runtime.Goexit()
				return nil
			},
			second: ok,
			want: []string{
				"begun 1", "ended 1 waiting at first attempt 1", "retry after 1 at first in 1s",
				"begun 2", "ended 2 dead-lettered exhausted at first attempt 2", "dead exhausted at first after 2",
			},
		},
		"overrun": {
			first: ok, second: overrun,
			want: []string{
				"begun 1", "ended 1 waiting at second attempt 1", "retry after 1 at second in 1s",
				"begun 2", "ended 2 dead-lettered exhausted at second attempt 2", "dead exhausted at second after 2",
			},
		},
		"cut": {
			first: ok, second: overrun,
			during: func(bus *eventbus.Bus, _, _ *eventbus.Subscription) { _ = bus.Shutdown(ended()) },
			want:   []string{"begun 1", "ended 1 dead-lettered shutdown", "dead shutdown at second after 0"},
		},
		"unsubscribed within": {
			first: func(context.Context, eventbus.Event) error { time.Sleep(2 * time.Second); return nil }, second: ok,
			during: func(_ *eventbus.Bus, _, second *eventbus.Subscription) { second.Unsubscribe() },
			want:   []string{"begun 1", "dead unsubscribed at second after 0", "ended 1 handled"},
		},
		"unsubscribed while it waits": {
			first: failing(errDead), second: ok, opts: []eventbus.SubscribeOption{open},
			during: func(_ *eventbus.Bus, first, second *eventbus.Subscription) { first.Unsubscribe(); second.Unsubscribe() },
			want: []string{
				"begun 1", "ended 1 waiting at first attempt 1", "retry after 1 at first in 1s",
				"dead unsubscribed at first after 1", "dead unsubscribed at second after 0",
			},
		},
		"cut while it waits": {
			first: failing(errDead), second: ok,
			during: func(bus *eventbus.Bus, _, _ *eventbus.Subscription) { _ = bus.Shutdown(ended()) },
			want: []string{
				"begun 1", "ended 1 waiting at first attempt 1", "retry after 1 at first in 1s", "dead shutdown at first after 1",
			},
		},
		"skipped for its circuit": {
			first: ok, second: failing(eventbus.RetryAfter(errDead, time.Second)), opts: []eventbus.SubscribeOption{open, eventbus.DeadLetterWhenOpen},
			want: []string{
				"begun 1", "ended 1 waiting at second attempt 1", "retry after 1 at second in 1s",
				"dead circuit_open at second after 1", // and no attempt
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines journal[string]
				bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithTimeout(5*time.Second), attemptStory(&lines))
				first := mustSubscribe(t, bus, "x", c.first, eventbus.Named("first"))
				second := mustSubscribe(t, bus, "x", c.second, append(c.opts, eventbus.Named("second"))...)
				mustPublish(t, bus, "x", nil)
				time.Sleep(time.Second / 2)
				if c.during != nil {
					c.during(bus, first, second)
				}
				time.Sleep(time.Minute)
				require.Equal(t, c.want, lines.all())
			})
		})
	}
}

// What comes between the telling and the handler ends the attempt that was told.
func TestO2_AnAttemptThatIsTakenBackEnds(t *testing.T) {
	for name, c := range map[string]struct {
		within func(*eventbus.Bus, *eventbus.Subscription)
		opts   []eventbus.SubscribeOption
		want   eventbus.EndedAttempt
	}{
		"unsubscribed": {
			within: func(_ *eventbus.Bus, s *eventbus.Subscription) { s.Unsubscribe() },
			want:   eventbus.EndedAttempt{Outcome: eventbus.DeadLettered, Reason: eventbus.ReasonUnsubscribed},
		},
		"cut": {
			within: func(bus *eventbus.Bus, _ *eventbus.Subscription) { _ = bus.Shutdown(ended()) },
			want:   eventbus.EndedAttempt{Outcome: eventbus.DeadLettered, Reason: eventbus.ReasonShutdown},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var bus *eventbus.Bus
				var s *eventbus.Subscription
				var begun journal[eventbus.Attempt]
				var ended journal[eventbus.EndedAttempt]
				bus, _ = newBus(t, eventbus.WithObserver(eventbus.Observer{
					AttemptBegun: func(a eventbus.Attempt) { begun.add(a); c.within(bus, s) },
					AttemptEnded: ended.add,
				}))
				s = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
					t.Error("it runs")
					return nil
				})
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "x", nil)
				time.Sleep(time.Minute)
				require.Len(t, begun.all(), 1)
				require.Len(t, ended.all(), 1)
				e := ended.all()[0]
				require.Equal(t, begun.all()[0], e.Attempt)
				require.Equal(t, 1, e.Number)
				e.Attempt, e.Duration = eventbus.Attempt{}, 0
				require.Equal(t, c.want, e)
				requireBalanced(t, bus)
			})
		})
	}
}

// However attempts end, under load and in a cut, each ends once, after it has begun.
func TestO2_AttemptsPairUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun, over journal[uint64]
		var retries, dead atomic.Int64
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, 3*time.Millisecond)), eventbus.WithTimeout(20*time.Millisecond),
			eventbus.WithConcurrency(50), eventbus.WithCircuit(eventbus.MinEvents(20), eventbus.OpenFor(time.Millisecond)),
			eventbus.WithObserver(eventbus.Observer{
				AttemptBegun:   func(a eventbus.Attempt) { begun.add(a.ID) },
				AttemptEnded:   func(e eventbus.EndedAttempt) { over.add(e.ID) },
				RetryScheduled: func(eventbus.ScheduledRetry) { retries.Add(1) },
				DeadLettered:   func(eventbus.DeadLetter) { dead.Add(1) },
			}))
		for range 3 {
			mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
				switch e.Payload.(int) % 11 {
				case 0:
					return errDead
				case 1:
					panic("oh")
				case 2:
					runtime.Goexit()
				case 3:
					<-ctx.Done()
				case 4:
					time.Sleep(19 * time.Millisecond)
				}
				return nil
			})
		}
		for i := range 2000 {
			mustPublish(t, bus, "x", i)
			if i%20 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		require.Error(t, bus.Shutdown(ended()))
		time.Sleep(time.Second) // abandoned handlers end
		require.Greater(t, begun.len(), 500)
		require.ElementsMatch(t, begun.all(), over.all())
		seen := map[uint64]bool{}
		for _, id := range begun.all() {
			require.False(t, seen[id])
			seen[id] = true
		}
		m := bus.Metrics()
		require.Equal(t, m.Retries, retries.Load())
		require.Equal(t, m.Ledger.DeadLettered, dead.Load())
		requireBalanced(t, bus)
	})
}

func TestO2_WhatCallbacksAreGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accepted journal[eventbus.Event]
		var begun journal[eventbus.Attempt]
		var ended journal[eventbus.EndedAttempt]
		var retries journal[eventbus.ScheduledRetry]
		var dead, replayed journal[eventbus.DeadLetter]
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithObserver(eventbus.Observer{
			Accepted:       accepted.add,
			AttemptBegun:   begun.add,
			AttemptEnded:   ended.add,
			RetryScheduled: retries.add,
			DeadLettered: func(l eventbus.DeadLetter) {
				dead.add(l)
				l.Failures[0].Error = "changed"
			},
			Replayed: replayed.add,
		}))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(3 * time.Second)
			return errDead
		}, eventbus.Named("s"))
		start := time.Now().UTC()
		id := mustPublish(t, bus, "x", "payload", eventbus.Metadata("k", "v"))
		time.Sleep(time.Minute)
		event := accepted.all()[0]
		require.Equal(t, id, event.ID)
		require.Equal(t, "payload", event.Payload)
		require.Equal(t, eventbus.Attempt{ID: 1, Event: event, Number: 1, BeganAt: start}, begun.all()[0])
		failure := eventbus.Failure{
			Attempt: 1, Subscription: "s", Time: start.Add(3 * time.Second), Duration: 3 * time.Second,
			Error: "dead", Class: "*errors.errorString", Err: errDead,
		}
		require.Equal(t, eventbus.EndedAttempt{
			Attempt: begun.all()[0], Duration: 3 * time.Second, Outcome: eventbus.Waiting, Failure: &failure,
		}, ended.all()[0])
		require.Equal(t, []eventbus.ScheduledRetry{{
			Event: event, Failure: failure, Delay: time.Second, Due: start.Add(4 * time.Second),
		}}, retries.all())
		require.Equal(t, start.Add(4*time.Second), begun.all()[1].BeganAt)
		l := oneLetter(t, bus)
		require.Equal(t, "dead", l.Failures[0].Error, "it was a copy")
		require.Equal(t, l.ID, dead.all()[0].ID)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		require.Equal(t, []eventbus.DeadLetter{l}, replayed.all())
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), l.ID), eventbus.ErrNotFound)
		require.Equal(t, 1, replayed.len(), "nothing was consumed")
		time.Sleep(time.Minute)
		require.Equal(t, 1, begun.all()[2].Replays)
		require.Equal(t, 1, retries.all()[1].Replays)
		require.Equal(t, 1, retries.all()[1].Failure.Replays)
		require.Equal(t, 1, accepted.len(), "a replay is not accepted anew")
		shutdown(t, bus)
		_, err := bus.Publish(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		require.Equal(t, 1, accepted.len(), "what is refused is not accepted")
	})
}

func TestO2_AnObserverSeesItsOwnCopyOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: func(e eventbus.EndedAttempt) { e.Failure.Error, e.Failure.Err = "changed", errors.New("changed") },
		}))
		mustSubscribe(t, bus, "x", failing(errDead))
		mustPublish(t, bus, "x", nil)
		time.Sleep(time.Minute)
		for _, f := range oneLetter(t, bus).Failures {
			require.Equal(t, "dead", f.Error)
			require.Equal(t, errDead, f.Err)
		}
		shutdown(t, bus)
	})
}
