package contracttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

// throttling is a handler of a service with a rate: its calls take some time, and it passes on what is left to wait then.
func throttling(s *service, takes time.Duration) eventbus.Handler {
	return func(context.Context, eventbus.Event) error {
		wait := s.call()
		time.Sleep(takes)
		if wait == 0 {
			return nil
		}
		return eventbus.Throttle(errors.New("429"), max(wait-takes, time.Millisecond))
	}
}

// A third party that takes 10 calls a second, 2,000 events and no limit of the subscription.
func TestF8_AThirdPartyWithARate(t *testing.T) {
	for name, opts := range map[string][]eventbus.SubscribeOption{
		"no limit": nil,
		"one call": {eventbus.Concurrency(1)},
		"two":      {eventbus.Concurrency(2)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const events = 2000
				bus, logs := startBus(t)
				s := newService(10)
				mustSubscribe(t, bus, "a", throttling(s, 50*time.Millisecond), append(opts, eventbus.Named("a"))...)
				began := time.Now()
				for range events {
					mustPublish(t, bus, "a", 1)
				}
				shutdown(t, bus)
				took, calls := time.Since(began), s.taken+s.refused
				t.Logf("%v, %d calls", took, calls)
				require.Equal(t, events, s.taken)
				require.LessOrEqual(t, took, 210*time.Second)
				require.LessOrEqual(t, calls, 5*events)
				require.Empty(t, letters(t, bus))
				m := metricsOf(t, bus, "a")
				require.Zero(t, m.CircuitOpens)
				require.Zero(t, m.Failures)
				require.Empty(t, logs.FilterMessage("handler failed").All())
			})
		})
	}
}

// The door is shut for all until the latest instant that a call has named; those that run go on.
func TestF8_TheLatestEndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		var calls callTimes
		calls.since = time.Now()
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			calls.add(time.Since(calls.since))
			if calls.len() > 3 {
				return nil
			}
			time.Sleep(time.Second)
			return eventbus.Throttle(errBoom, e.Payload.(time.Duration))
		}, eventbus.Named("a"))
		for _, delay := range inSeconds(5, 10, 7) {
			mustPublish(t, bus, "a", delay)
		}
		time.Sleep(2 * time.Second)
		m := metricsOf(t, bus, "a")
		require.Equal(t, 3, m.Throttled)
		require.WithinDuration(t, calls.since.Add(11*time.Second), m.ThrottledUntil, 10*time.Millisecond)
		mustPublish(t, bus, "a", time.Duration(0))
		shutdown(t, bus)
		require.Len(t, calls.all(), 7)
		for _, at := range calls.all()[3:] {
			require.InDelta(t, 11, at.Seconds(), 0.01)
		}
		require.Zero(t, metricsOf(t, bus, "a").ThrottledUntil)
		warned := logs.FilterMessageSnippet("subscription throttled")
		require.Equal(t, 1, warned.Len(), "once, when it begins")
		require.Equal(t, zapcore.WarnLevel, warned.All()[0].Level)
		require.Equal(t, "boom", warned.All()[0].ContextMap()["error"])
	})
}

// A call that goes alone and is throttled again begins nothing new: the log has one warning, also with a limit of one call.
func TestF8_AThrottleAfterAThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		var calls callTimes
		calls.since = time.Now()
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if calls.add(time.Since(calls.since)); calls.len() < 5 {
				return eventbus.Throttle(errBoom, time.Second)
			}
			return nil
		}, eventbus.Concurrency(1))
		mustPublish(t, bus, "a", 1)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 1, 2, 3, 4), calls.all())
		require.Equal(t, 1, logs.FilterMessageSnippet("subscription throttled").Len())
	})
}

// No attempt, no failure, no budget of a rule, no outcome; other targets of the event go on.
func TestF8_ItIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		var seen journal[int]
		var others callTimes
		asked := func(error) bool { assert.Fail(t, "asked"); return false }
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			if seen.add(d.Attempt); seen.len() < 9 {
				return fmt.Errorf("wrapped: %w", eventbus.Throttle(errBoom, time.Second))
			}
			return nil
		}, eventbus.Named("a"), eventbus.Retry(eventbus.RetryIf(asked), eventbus.IncludeErrors("none")), eventbus.RetryRules(onCodes(1, "*")))
		mustSubscribe(t, bus, "a", others.failing(nil))
		began := time.Now()
		result, err := bus.PublishAndWait(t.Context(), "a", 1)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, result.Outcome)
		require.Equal(t, 8*time.Second, time.Since(began))
		require.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1, 1}, seen.all())
		require.Equal(t, inSeconds(0), others.all())
		m := metricsOf(t, bus, "a")
		require.Zero(t, m.Failures)
		require.Zero(t, m.CircuitOpens)
		shutdown(t, bus)
	})
}

// Events of a key keep their order behind one that is throttled.
func TestF8_KeysKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var ran journal[int]
		throttles := true
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			if n := e.Payload.(int); n == 0 && throttles {
				throttles = false
				return eventbus.Throttle(errBoom, time.Minute)
			}
			ran.add(e.Payload.(int))
			return nil
		})
		for n := range 100 {
			mustPublish(t, bus, "a", n, eventbus.Key("k"))
		}
		shutdown(t, bus)
		require.Equal(t, count(100), ran.all())
	})
}

// A probe that is throttled gives its permit back, and the next call probes after the delay.
func TestF8_AThrottledProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		calls.since = time.Now()
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if calls.add(time.Since(calls.since)); calls.len() == 1 {
				return eventbus.Throttle(errBoom, time.Minute)
			}
			return nil
		})
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "a", 1)
		time.Sleep(31 * time.Second)
		require.Equal(t, eventbus.CircuitHalfOpen, circuitState(t, bus, s))
		time.Sleep(time.Minute)
		require.Equal(t, inSeconds(30, 90), calls.all())
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		shutdown(t, bus)
	})
}

// After a throttle one call goes alone, and each that ends lets twice as many run.
func TestF8_CallsBeginSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		first := true
		var most journal[int]
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if first {
				first = false
				return eventbus.Throttle(errBoom, time.Second)
			}
			time.Sleep(time.Second)
			return nil
		}, eventbus.Named("a"))
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		for range 199 {
			mustPublish(t, bus, "a", 1)
		}
		time.Sleep(500 * time.Millisecond)
		for range 7 {
			time.Sleep(time.Second)
			most.add(metricsOf(t, bus, s.ID()).Running)
		}
		require.Equal(t, []int{1, 2, 8, 189, 0, 0, 0}, most.all())
		shutdown(t, bus)
	})
}

// Resume ends it. Pause applies beside it.
func TestF8_ResumeEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		calls.since = time.Now()
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if calls.add(time.Since(calls.since)); calls.len() == 1 {
				return eventbus.Throttle(errBoom, time.Hour)
			}
			return nil
		}, eventbus.MaxThrottle(24*time.Hour))
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		require.NoError(t, s.Pause())
		require.Equal(t, 1, metricsOf(t, bus, s.ID()).Held)
		time.Sleep(time.Minute)
		require.NoError(t, s.Resume())
		synctest.Wait()
		require.Equal(t, inSeconds(0, 60), calls.all())
		shutdown(t, bus)
	})
}

// Publish waits for room in the line; nothing overflows.
func TestF8_AFullLineMakesPublishWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		first := true
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if first {
				first = false
				return eventbus.Throttle(errBoom, time.Minute)
			}
			return nil
		}, eventbus.LineCapacity(2))
		began := time.Now()
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		for range 4 {
			mustPublish(t, bus, "a", 1)
			synctest.Wait()
		}
		require.Equal(t, time.Minute, time.Since(began))
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// MaxThrottle cuts delays. Delays that are too short make a failure as usual, and nil stays nil.
func TestF8_Delays(t *testing.T) {
	require.NoError(t, eventbus.Throttle(nil, time.Second))
	for delay, want := range map[time.Duration]time.Duration{
		time.Millisecond:             time.Millisecond,
		24 * time.Hour:               15 * time.Minute,
		100 * 365 * 24 * time.Hour:   15 * time.Minute,
		0:                            -1,
		1:                            -1,
		-time.Hour:                   -1,
		time.Millisecond - 1:         -1,
		15*time.Minute + time.Second: 15 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, oneAttempt)
			var calls callTimes
			calls.since = time.Now()
			mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
				if calls.add(time.Since(calls.since)); calls.len() == 1 {
					return eventbus.Throttle(errBoom, delay)
				}
				return nil
			})
			mustPublish(t, bus, "a", 1)
			shutdown(t, bus)
			if want < 0 {
				require.ErrorIs(t, oneLetter(t, bus).Failures[0].Err, errBoom, "%v", delay)
				return
			}
			require.Equal(t, []time.Duration{0, want}, calls.all(), "%v", delay)
		})
	}
	bus, _ := newBus(t)
	for _, most := range []time.Duration{0, -1, time.Millisecond - 1, 24*time.Hour + 1} {
		_, err := bus.Subscribe("a", ok, eventbus.MaxThrottle(most))
		requireOptionError(t, err, "MaxThrottle")
	}
}

// Permanent precedes Throttle, which precedes Snooze, which precedes RetryAfter. A panic is none of them.
func TestF8_Precedence(t *testing.T) {
	second, minute, hour := time.Second, time.Minute, time.Hour
	for name, c := range map[string]struct {
		handler eventbus.Handler
		want    []time.Duration
		letter  eventbus.Reason
	}{
		"Permanent":       {handler: failing(errors.Join(eventbus.Throttle(errBoom, second), eventbus.Permanent(errBoom))), letter: eventbus.ReasonPermanent},
		"Throttle":        {handler: failing(errors.Join(eventbus.Snooze(hour), eventbus.RetryAfter(eventbus.Throttle(errBoom, second), minute))), want: inSeconds(1)},
		"Snooze":          {handler: failing(eventbus.RetryAfter(eventbus.Snooze(second), minute)), want: inSeconds(1)},
		"a panic":         {handler: func(context.Context, eventbus.Event) error { panic(eventbus.Throttle(errBoom, second)) }, letter: eventbus.ReasonExhausted},
		"a panic, snooze": {handler: func(context.Context, eventbus.Event) error { panic(eventbus.Snooze(second)) }, letter: eventbus.ReasonExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, oneAttempt)
				var calls callTimes
				calls.since = time.Now()
				mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
					if calls.add(time.Since(calls.since)); calls.len() > 1 {
						return nil
					}
					return c.handler(ctx, e)
				})
				_, err := bus.PublishAndWait(t.Context(), "a", 1)
				require.Equal(t, c.letter != "", err != nil)
				shutdown(t, bus)
				if c.letter == "" {
					require.Equal(t, c.want, calls.apart())
				} else {
					require.Empty(t, calls.apart())
					require.Equal(t, c.letter, oneLetter(t, bus).Reason)
				}
			})
		})
	}
}

// One of many calls hears "Retry-After: 86400": all wait, but no longer than MaxThrottle.
func TestF8_ADayFromOneOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		calls.since = time.Now()
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			calls.add(time.Since(calls.since))
			time.Sleep(time.Second)
			if e.Payload == 17 && calls.len() <= 100 {
				return eventbus.Throttle(errBoom, 24*time.Hour)
			}
			return nil
		}, eventbus.Named("a"), eventbus.MaxThrottle(5*time.Minute))
		for i := range 100 {
			mustPublish(t, bus, "a", i)
		}
		time.Sleep(2 * time.Second)
		mustPublish(t, bus, "a", 100)
		time.Sleep(time.Minute)
		require.Equal(t, 100, calls.len())
		require.Equal(t, 2, metricsOf(t, bus, "a").Throttled)
		shutdown(t, bus)
		require.Equal(t, 102, calls.len())
		require.InDelta(t, 301, calls.all()[100].Seconds(), 0.1)
		require.Empty(t, letters(t, bus))
	})
}
