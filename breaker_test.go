package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// bEndings are the ways in which a handler can end by itself.
var bEndings = map[string]eventbus.Handler{
	"ok":        ok,
	"error":     failing(errBroken),
	"permanent": failing(eventbus.Permanent(errBroken)),
	"panic":     func(context.Context, eventbus.Event) error { panic("at the handler") },
	"nil panic": func(context.Context, eventbus.Event) error {
		panic(nil) // as a hostile handler does
	},
	"exit": func(context.Context, eventbus.Event) error {
		runtime.Goexit()
		return nil
	},
	"timeout": func(ctx context.Context, _ eventbus.Event) error {
		<-ctx.Done()
		return ctx.Err()
	},
	"hang, then ok": func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Minute)
		return nil
	},
	"hang, then error": func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Minute)
		return errBroken
	},
}

var (
	bOK   = eventbus.Handler(ok)
	bFail = failing(errBroken)
)

// bOnce is the policy of tests in which one failure is the end of an event.
var bOnce = eventbus.WithRetry(eventbus.MaxRetries(0))

func bState(t *testing.T, bus *eventbus.Bus, s *eventbus.Subscription) eventbus.CircuitState {
	t.Helper()
	return metricsOf(t, bus, s.ID()).Circuit
}

// bPublish publishes scripts one after the other, each once the one before has
// been dealt with.
func bPublish(t *testing.T, bus *eventbus.Bus, eventType string, scripts ...eventbus.Handler) {
	t.Helper()
	for _, s := range scripts {
		mustPublish(t, bus, eventType, s)
		synctest.Wait()
	}
}

// bTrip opens the circuit of everything that eventType goes to.
func bTrip(t *testing.T, bus *eventbus.Bus, eventType string) {
	t.Helper()
	bPublish(t, bus, eventType, bFail, bFail, bFail, bFail)
}

func bReasons(t *testing.T, bus *eventbus.Bus) map[eventbus.Reason]int {
	t.Helper()
	all := map[eventbus.Reason]int{}
	for _, l := range letters(t, bus) {
		all[l.Reason]++
	}
	return all
}

func TestC1_WhatTripsAndWhatDoesNot(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []eventbus.CircuitOption
		// F and S are events; . is 10 s, P a permanent failure.
		events string
		open   bool
	}{
		{"four failures", nil, "FFFF", true},
		{"three are too few", nil, "FFF", false},
		{"the fourth is a success", nil, "FFFS", true},
		{"a success can come anywhere", nil, "SFFF", true},
		{"half is not more than half", nil, "FFSS", false},
		{"half of many is not either", nil, "SSSSSSFFFFFF", false},
		{"one more is", nil, "SSSSSSFFFFFFF", true},
		{"permanent failures are no outcome", nil, "PPPPPPPP", false},
		{"nor do they dilute", nil, "FFFPPPPPPPPS", true},
		{"the window slides over failures", nil, "FFF......F", false},
		{"and over successes", nil, "SSSSSS......FFFF", true},
		{"within the window they stay", nil, "FFF.....F", true},
		{"one by one", nil, "F...F...F...F...F...F...F", false},
		{"just dense enough", nil, "F.F..F..F", true},
		{"fewer events", []eventbus.CircuitOption{eventbus.MinEvents(2)}, "FF", true},
		{"a single one", []eventbus.CircuitOption{eventbus.MinEvents(1)}, "F", true},
		{"more events", []eventbus.CircuitOption{eventbus.MinEvents(10)}, "FFFFFFFFF", false},
		{"any failure at all", []eventbus.CircuitOption{eventbus.FailureRatio(0)}, "SSSF", true},
		{"no failure trips nothing", []eventbus.CircuitOption{eventbus.FailureRatio(0)}, "SSSSSSSS", false},
		{"a higher ratio", []eventbus.CircuitOption{eventbus.FailureRatio(0.75)}, "SFFF", false},
		{"and more than that", []eventbus.CircuitOption{eventbus.FailureRatio(0.75)}, "SFFFF", true},
		{"a shorter window", []eventbus.CircuitOption{eventbus.Window(10 * time.Second)}, "FFF.F", false},
		{"a longer window", []eventbus.CircuitOption{eventbus.Window(10 * time.Minute)}, "FFF...............F", true},
		{"disabled", []eventbus.CircuitOption{eventbus.NoCircuit()}, strings.Repeat("F", 50), false},
	} {
		for _, ofTheBus := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				opts, own := []eventbus.Option{bOnce}, []eventbus.SubscribeOption{eventbus.Circuit(c.opts...), eventbus.DeadLetterWhenOpen}
				if ofTheBus {
					opts, own = append(opts, eventbus.WithCircuit(c.opts...)), nil
				}
				bus, _ := startBus(t, opts...)
				s := mustSubscribe(t, bus, "a", bScripted, own...)
				for _, e := range c.events {
					switch e {
					case 'F':
						bPublish(t, bus, "a", bFail)
					case 'S':
						bPublish(t, bus, "a", bOK)
					case 'P':
						bPublish(t, bus, "a", bEndings["permanent"])
					default:
						time.Sleep(10 * time.Second)
					}
				}
				want := eventbus.CircuitClosed
				switch {
				case c.open:
					want = eventbus.CircuitOpen
				case c.name == "disabled":
					want = eventbus.CircuitDisabled
				}
				require.Equal(t, want, bState(t, bus, s), c.name)
				shutdown(t, bus)
			})
		}
	}
}

func TestC1_OnePoisonousEventTripsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(100, time.Second)))
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		bPublish(t, bus, "a", bOK, bOK, bOK)
		mustPublish(t, bus, "a", bFail)
		for range 90 {
			time.Sleep(time.Second)
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		}
		shutdown(t, bus)
		require.Equal(t, int64(3), metricsOf(t, bus, s.ID()).Successes)
		require.Equal(t, int64(101), metricsOf(t, bus, s.ID()).Failures)
		require.Zero(t, metricsOf(t, bus, s.ID()).CircuitOpens)
	})
}

// Three events that fail over and over are three events.
func TestC1_AnEventCountsOnceByItsLatestOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second)))
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		thirdTime := func() eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt < 3 {
					return errBroken
				}
				return nil
			}
		}
		for range 3 {
			mustPublish(t, bus, "a", thirdTime())
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "6 failures of 3 events that succeeded in the end")
		// 3 successes and 3 failures, then 4: only now is it more than half.
		for range 3 {
			mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s))
		_ = bCut(t, bus)
	})
}

func TestC1_ReplayingOnePoisonousEventTripsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		bPublish(t, bus, "a", bFail)
		for range 5 {
			require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
			synctest.Wait()
		}
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "it is still one event")
		shutdown(t, bus)
	})
}

// bRig drives a bus by one of the clocks that it can have.
type bRig struct {
	t       *testing.T
	bus     *eventbus.Bus
	logs    *observer.ObservedLogs
	advance func(time.Duration)
}

// do publishes and reports what became of it.
func (r *bRig) do(h eventbus.Handler) string {
	r.t.Helper()
	_, err := r.bus.PublishAndWait(r.t.Context(), "a", h)
	var d *eventbus.DeliveryError
	if errors.As(err, &d) {
		return string(d.Letters[0].Reason)
	}
	require.NoError(r.t, err)
	return "ok"
}

func bLifeCycle(r *bRig) {
	t := r.t
	s := mustSubscribe(t, r.bus, "a", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
	state := func() eventbus.CircuitState { return bState(t, r.bus, s) }
	for range 4 {
		require.Equal(t, "exhausted", r.do(bFail))
	}
	require.Equal(t, eventbus.CircuitOpen, state())
	require.Equal(t, "circuit_open", r.do(bOK))
	r.advance(30*time.Second - time.Millisecond)
	require.Equal(t, "circuit_open", r.do(bOK))
	r.advance(time.Millisecond)
	require.Equal(t, eventbus.CircuitOpen, state(), "noticed at the next delivery")

	require.Equal(t, "exhausted", r.do(bFail), "the probe")
	require.Equal(t, eventbus.CircuitOpen, state())
	require.Equal(t, "circuit_open", r.do(bOK), "open for another 30 s")
	r.advance(30*time.Second - time.Millisecond)
	require.Equal(t, "circuit_open", r.do(bOK))
	r.advance(time.Millisecond)

	require.Equal(t, "permanent", r.do(bEndings["permanent"]))
	require.Equal(t, eventbus.CircuitHalfOpen, state(), "no outcome")
	require.Equal(t, "ok", r.do(bOK))
	require.Equal(t, eventbus.CircuitClosed, state())
	for range 3 {
		require.Equal(t, "exhausted", r.do(bFail))
		require.Equal(t, eventbus.CircuitClosed, state(), "the window is empty: not even the probe is in it")
	}
	require.Equal(t, "exhausted", r.do(bFail))
	require.Equal(t, eventbus.CircuitOpen, state())
	r.advance(24 * time.Hour)
	require.Equal(t, "ok", r.do(bOK))
	require.Equal(t, eventbus.CircuitClosed, state())

	m := metricsOf(t, r.bus, "s")
	require.Equal(t, int64(3), m.CircuitOpens)
	require.Equal(t, int64(4), m.Skipped)
	type entry struct {
		level    zapcore.Level
		from, to string
	}
	var got []entry
	for _, e := range r.logs.All() {
		if strings.HasPrefix(e.Message, "circuit ") {
			f := e.ContextMap()
			require.Len(t, f, 3)
			require.Equal(t, "s", f["subscription_id"])
			require.Equal(t, "circuit "+f["to"].(string), e.Message)
			got = append(got, entry{e.Level, f["from"].(string), f["to"].(string)})
		}
	}
	w, i := zapcore.WarnLevel, zapcore.InfoLevel
	require.Equal(t, []entry{
		{w, "closed", "open"},
		{i, "open", "half-open"},
		{w, "half-open", "open"},
		{i, "open", "half-open"},
		{i, "half-open", "closed"},
		{w, "closed", "open"},
		{i, "open", "half-open"},
		{i, "half-open", "closed"},
	}, got)
	shutdown(t, r.bus)
}

func TestC6_LifeCycleInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, bOnce)
		bLifeCycle(&bRig{t, bus, logs, time.Sleep})
	})
}

func TestC6_LifeCycleByTheMockClock(t *testing.T) {
	mock := clock.NewMock()
	bus, logs := startBus(t, bOnce, eventbus.WithClock(mock))
	bLifeCycle(&bRig{t, bus, logs, mock.Add})
}

func TestC6_LifeCycleByTheMockClockInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, logs := startBus(t, bOnce, eventbus.WithClock(mock))
		bLifeCycle(&bRig{t, bus, logs, mock.Add})
	})
}

// bStillClock stands still as seen by the bus, however much the runtime's moves,
// and the other way round: the bubble's time never moves by itself.
type bStillClock struct {
	clock.Clock
	mu  sync.Mutex
	now time.Time
}

func (c *bStillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *bStillClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// The circuit's library has a clock of its own, the runtime's. If only the
// injected one moves, the circuit must still.
func TestC6_OnlyTheInjectedClockMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &bStillClock{Clock: clock.New(), now: time.Now()}
		bus, _ := startBus(t, bOnce, eventbus.WithClock(c))
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		began := time.Now()
		bTrip(t, bus, "a")
		c.add(30 * time.Second)
		bPublish(t, bus, "a", bOK)
		require.Zero(t, time.Since(began), "the runtime's clock has not moved")
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))

		bTrip(t, bus, "a")
		time.Sleep(time.Hour)
		bPublish(t, bus, "a", bOK)
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s), "the injected clock has not moved")
		shutdown(t, bus)
	})
}

func TestC2_ASingleProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		for round := range 3 {
			bTrip(t, bus, "a")
			time.Sleep(30 * time.Second)
			before := bReasons(t, bus)[eventbus.ReasonCircuitOpen]
			var running, ran int
			var mu sync.Mutex
			most := 0
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					_, _ = bus.Publish(t.Context(), "a", eventbus.Handler(func(context.Context, eventbus.Event) error {
						mu.Lock()
						ran++
						running++
						most = max(most, running)
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						running--
						mu.Unlock()
						return nil
					}))
				})
			}
			wg.Wait()
			synctest.Wait()
			require.Equal(t, eventbus.CircuitHalfOpen, bState(t, bus, s))
			time.Sleep(2 * time.Second)
			require.Equal(t, 1, ran, "round %d", round)
			require.Equal(t, 1, most)
			require.Equal(t, 99, bReasons(t, bus)[eventbus.ReasonCircuitOpen]-before)
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		}
		shutdown(t, bus)
	})
}

// Every ending of a call, in every state of its circuit: a later healthy event is
// handled and leaves the circuit closed.
func TestC3_NoEndingLeavesACircuitStuck(t *testing.T) {
	after := map[string]eventbus.CircuitState{ // of a probe
		"ok": eventbus.CircuitClosed, "permanent": eventbus.CircuitHalfOpen,
		"error": eventbus.CircuitOpen, "panic": eventbus.CircuitOpen, "nil panic": eventbus.CircuitOpen, "exit": eventbus.CircuitOpen,
		"timeout": eventbus.CircuitOpen, "hang, then ok": eventbus.CircuitOpen, "hang, then error": eventbus.CircuitOpen,
	}
	for name, ending := range bEndings {
		for _, from := range []string{"closed", "about to open", "open", "half-open"} {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, bOnce, eventbus.WithTimeout(time.Second))
				s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
				switch from {
				case "about to open":
					bPublish(t, bus, "a", bFail, bFail, bFail)
				case "open":
					bTrip(t, bus, "a")
				case "half-open":
					bTrip(t, bus, "a")
					time.Sleep(30 * time.Second)
				}
				bPublish(t, bus, "a", ending)
				time.Sleep(2 * time.Second)
				if from == "half-open" {
					require.Equal(t, after[name], bState(t, bus, s), "%s, %s", name, from)
				}
				time.Sleep(61 * time.Second)
				handled := false
				bPublish(t, bus, "a", func(context.Context, eventbus.Event) error { handled = true; return nil })
				require.True(t, handled, "%s, %s", name, from)
				require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "%s, %s", name, from)
				time.Sleep(10 * time.Minute)
				require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "the hanging call has come back: %s, %s", name, from)
				shutdown(t, bus)
			})
		}
	}
}

func TestC3_AnEarlierSubscriptionThatFailsHoldsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		earlier := mustSubscribe(t, bus, "**", func(_ context.Context, e eventbus.Event) error {
			if e.Type == "both" {
				return errBroken
			}
			return nil
		}, eventbus.Circuit(eventbus.NoCircuit()))
		later := mustSubscribe(t, bus, "*", bScripted, eventbus.DeadLetterWhenOpen)
		bTrip(t, bus, "a")
		time.Sleep(30 * time.Second)
		for range 10 {
			bPublish(t, bus, "both", bOK)
			require.Equal(t, eventbus.CircuitOpen, bState(t, bus, later))
		}
		bPublish(t, bus, "a", bOK)
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, later))
		require.Equal(t, int64(10), metricsOf(t, bus, earlier.ID()).Failures)
		shutdown(t, bus)
	})
}

func TestC3_UnsubscribedDuringTheProbe(t *testing.T) {
	for name, ending := range bEndings {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, bOnce, eventbus.WithTimeout(time.Minute))
			s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
			bTrip(t, bus, "a")
			time.Sleep(30 * time.Second)
			mustPublish(t, bus, "a", eventbus.Handler(func(ctx context.Context, e eventbus.Event) error {
				time.Sleep(time.Second)
				return ending(ctx, e)
			}))
			synctest.Wait()
			s.Unsubscribe()
			fresh := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
			bPublish(t, bus, "a", bOK)
			time.Sleep(20 * time.Minute)
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, fresh), name)
			require.Equal(t, int64(1), metricsOf(t, bus, "s").Successes, name)
			shutdown(t, bus)
		})
	}
}

func TestC3_AProbeCutShortByShutdownHasNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		bTrip(t, bus, "a")
		time.Sleep(30 * time.Second)
		bPublish(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_ = bCut(t, bus)
		synctest.Wait()
		m := metricsOf(t, bus, s.ID())
		require.Equal(t, int64(1), m.CircuitOpens)
		require.Equal(t, int64(4), m.Failures)
		require.Equal(t, 1, bReasons(t, bus)[eventbus.ReasonShutdown])
		requireBalanced(t, bus)
	})
}

func TestC3_AProbeThatIsRetriedKeepsTheCircuitOpenAndNothingStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, 31*time.Second)))
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		bPublish(t, bus, "a", failing(eventbus.Permanent(errBroken)))
		for range 4 {
			mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s))
		time.Sleep(30 * time.Second)
		n := 0
		bPublish(t, bus, "a", func(context.Context, eventbus.Event) error {
			if n++; n < 4 {
				return errBroken
			}
			return nil
		})
		time.Sleep(3 * 31 * time.Second)
		synctest.Wait()
		require.Equal(t, 4, n, "each retry came when the circuit was half-open again")
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		require.Equal(t, int64(4), metricsOf(t, bus, s.ID()).CircuitOpens)
		_ = bCut(t, bus)
	})
}

func TestC4_OutcomesArePerSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		before := mustSubscribe(t, bus, "a", ok)
		at := mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Circuit(eventbus.MinEvents(100)))
		after := mustSubscribe(t, bus, "a", failing(errBroken))
		for range 10 {
			mustPublish(t, bus, "a", nil)
		}
		shutdown(t, bus)
		require.Equal(t, int64(10), metricsOf(t, bus, before.ID()).Successes)
		require.Zero(t, metricsOf(t, bus, before.ID()).Failures)
		require.Equal(t, int64(10), metricsOf(t, bus, at.ID()).Failures)
		require.Zero(t, metricsOf(t, bus, at.ID()).Successes)
		m := metricsOf(t, bus, after.ID())
		require.Zero(t, m.Successes+m.Failures+m.Skipped)
		require.Equal(t, eventbus.CircuitClosed, m.Circuit)
	})
}

// A success at the first subscription counts there, though the attempt failed.
func TestC4_SuccessBeforeAFailureCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		first := mustSubscribe(t, bus, "*", bScripted, eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "b", failing(errBroken), eventbus.Circuit(eventbus.NoCircuit()))
		bPublish(t, bus, "b", bOK, bOK, bOK)
		bPublish(t, bus, "a", bFail, bFail, bFail)
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, first), "3 of 6")
		bPublish(t, bus, "a", bFail)
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, first), "4 of 7")
		shutdown(t, bus)
	})
}

// A call that began while the circuit was closed ends after it has opened, while
// a probe runs, and after it has closed again: never is it an outcome.
func TestC4_OutcomesOfAnEarlierStateAreIgnored(t *testing.T) {
	for _, ending := range []string{"ok", "error"} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, bOnce, eventbus.WithTimeout(time.Hour))
			s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
			release := make([]chan struct{}, 12)
			stale := func(n int) eventbus.Handler {
				release[n] = make(chan struct{})
				return func(ctx context.Context, e eventbus.Event) error {
					select {
					case <-release[n]:
						return bEndings[ending](ctx, e)
					case <-ctx.Done(): // this test has failed
						return nil
					}
				}
			}
			publish := func(h eventbus.Handler) {
				mustPublish(t, bus, "a", h)
				time.Sleep(10 * time.Millisecond) // for a worker, the others being busy
			}
			for n := range release {
				publish(stale(n))
			}
			end := func(from, to int) {
				for n := from; n < to; n++ {
					close(release[n])
				}
				synctest.Wait()
			}
			for range 4 {
				publish(bFail)
			}
			end(0, 3)
			require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s), "open: %s", ending)
			time.Sleep(29 * time.Second)
			end(3, 4)
			time.Sleep(time.Second)
			probe := make(chan struct{})
			publish(func(ctx context.Context, _ eventbus.Event) error {
				select {
				case <-probe:
				case <-ctx.Done():
				}
				return nil
			})
			end(4, 7)
			require.Equal(t, eventbus.CircuitHalfOpen, bState(t, bus, s), "half-open, the probe running: %s", ending)
			skipped := metricsOf(t, bus, s.ID()).Skipped
			publish(bOK)
			require.Equal(t, skipped+1, metricsOf(t, bus, s.ID()).Skipped, "the probe is still the only one")
			close(probe)
			synctest.Wait()
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
			end(7, 12)
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "closed: %s", ending)
			// Nor do they dilute, or help to trip, what comes now.
			bPublish(t, bus, "a", bFail, bFail, bFail)
			require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "3 failures: %s", ending)
			bPublish(t, bus, "a", bFail)
			require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s), "4 failures: %s", ending)
			require.Equal(t, int64(2), metricsOf(t, bus, s.ID()).CircuitOpens)
			shutdown(t, bus)
		})
	}
}

// The event failed before the outage, and again after it: its old place in the
// window is gone, and must not be taken away from another.
func TestC4_AnEventsOutcomeFromBeforeTheOutageIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, 0)))
		s := mustSubscribe(t, bus, "a", bScripted, eventbus.DeadLetterWhenOpen)
		for range 4 {
			mustPublish(t, bus, "a", eventbus.Handler(func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					return eventbus.RetryAfter(errBroken, 31*time.Second)
				}
				return nil
			}))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s))
		time.Sleep(30 * time.Second)
		bPublish(t, bus, "a", bOK)
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		late := failing(eventbus.RetryAfter(errBroken, time.Hour))
		bPublish(t, bus, "a", late, late)
		time.Sleep(time.Second) // the four succeed: 2 of 6 failed
		synctest.Wait()
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s))
		bPublish(t, bus, "a", late, late)
		require.Equal(t, eventbus.CircuitClosed, bState(t, bus, s), "4 of 8")
		bPublish(t, bus, "a", late)
		require.Equal(t, eventbus.CircuitOpen, bState(t, bus, s), "5 of 9")
		_ = bCut(t, bus)
	})
}

func TestC5_DeadLetterWhenOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, bOnce)
		first := mustSubscribe(t, bus, "**", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "{a,only.sick}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		last := mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		for range 4 {
			bPublish(t, bus, "only.sick", bFail)
		}
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 4, report.Purged)
		logs.TakeAll()

		r, err := bus.PublishAndWait(t.Context(), "a", bOK, eventbus.Metadata("k", "v"))
		var d *eventbus.DeliveryError
		require.ErrorAs(t, err, &d)
		require.Equal(t, eventbus.Handled, r.Outcome)
		require.Equal(t, 1, r.Attempts)
		l := oneLetter(t, bus)
		require.Equal(t, []eventbus.LetterID{l.ID}, r.Letters)
		require.Equal(t, l.ID, d.Letters[0].ID)
		require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
		require.Equal(t, "sick", l.Subscription)
		require.Zero(t, l.Attempts)
		require.Empty(t, l.Failures)
		require.Empty(t, l.NotReached, "what comes after it was reached")
		require.Equal(t, r.ID, l.Event.ID)
		require.Equal(t, "v", l.Event.Metadata.Get("k"))
		require.Equal(t, int64(5), metricsOf(t, bus, first.ID()).Successes)
		require.Equal(t, int64(1), metricsOf(t, bus, last.ID()).Successes)
		require.Equal(t, int64(1), metricsOf(t, bus, "sick").Skipped)
		require.Equal(t, int64(1), bus.Metrics().Ledger.Splits)
		require.Len(t, logs.FilterMessage("event dead-lettered").All(), 1)

		// Replayed, it goes to that one alone.
		time.Sleep(30 * time.Second)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		shutdown(t, bus)
		require.Equal(t, int64(1), metricsOf(t, bus, "sick").Successes)
		require.Equal(t, int64(5), metricsOf(t, bus, first.ID()).Successes)
		require.Equal(t, int64(1), metricsOf(t, bus, last.ID()).Successes)
	})
}

func TestC5_DropWhenOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		mustSubscribe(t, bus, "*", bScripted, eventbus.Named("sick"), eventbus.DropWhenOpen)
		well := mustSubscribe(t, bus, "b", ok)
		bTrip(t, bus, "a")
		dead := len(letters(t, bus))

		r, err := bus.PublishAndWait(t.Context(), "a", bOK)
		require.NoError(t, err)
		require.Equal(t, eventbus.Dropped, r.Outcome)
		require.Zero(t, r.Attempts)
		require.Equal(t, int64(1), bus.Metrics().Ledger.Dropped)
		require.Zero(t, bus.Metrics().Ledger.Splits)

		r, err = bus.PublishAndWait(t.Context(), "b", bOK)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		l := bus.Metrics().Ledger
		require.Equal(t, int64(2), l.Dropped)
		require.Equal(t, int64(1), l.Splits)
		require.Equal(t, int64(2), metricsOf(t, bus, "sick").Skipped)
		require.Equal(t, int64(1), metricsOf(t, bus, well.ID()).Successes)
		require.Len(t, letters(t, bus), dead)
		shutdown(t, bus)
	})
}

func TestC5_AllTargetsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, bOnce)
		for _, name := range []string{"x", "y", "z"} {
			mustSubscribe(t, bus, "{all,"+name+"}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named(name))
			bTrip(t, bus, name)
		}
		_, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)

		r, err := bus.PublishAndWait(t.Context(), "all", bOK)
		require.Error(t, err)
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		require.Zero(t, r.Attempts)
		require.Len(t, r.Letters, 3)
		got := map[string]eventbus.DeadLetter{}
		for _, l := range letters(t, bus) {
			got[l.Subscription] = l
			require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
			require.Zero(t, l.Attempts)
			require.Empty(t, l.Succeeded)
			require.Empty(t, l.NotReached)
			require.Empty(t, l.Failures)
			require.Equal(t, r.ID, l.Event.ID)
		}
		require.Len(t, got, 3, "one for each")
		require.Equal(t, int64(3), bus.Metrics().Types["all"].DeadLettered)

		time.Sleep(30 * time.Second)
		for _, l := range got {
			require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		}
		shutdown(t, bus)
		for name := range got {
			require.Equal(t, int64(1), metricsOf(t, bus, name).Successes)
		}
	})
}

// The event has failed once at the subscription when its circuit opens: its
// letter says so, and the skip spends nothing.
func TestC5_TheLetterKeepsTheAttemptsAndFailuresAtThatSubscription(t *testing.T) {
	for _, sick := range []string{"first", "middle", "last", "only"} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(5, 10*time.Second)))
			names := []string{"first", "middle", "last"}
			if sick == "only" {
				names = []string{"only"}
			}
			for _, name := range names {
				opts := []eventbus.SubscribeOption{eventbus.Named(name), eventbus.DeadLetterWhenOpen}
				if name != sick {
					opts = append(opts, eventbus.Retry(eventbus.MaxRetries(7)))
				}
				mustSubscribe(t, bus, "{a,"+name+"}", func(ctx context.Context, e eventbus.Event) error {
					if name != sick {
						return nil
					}
					return bScripted(ctx, e)
				}, opts...)
			}
			id := mustPublish(t, bus, "a", bFail)
			time.Sleep(15 * time.Second) // two attempts
			for range 3 {                // the event itself is the fourth that has failed there
				mustPublish(t, bus, sick, failing(eventbus.RetryAfter(errBroken, time.Hour)))
			}
			time.Sleep(10 * time.Second)
			require.Equal(t, eventbus.CircuitOpen, metricsOf(t, bus, sick).Circuit)
			l := oneLetter(t, bus)
			require.Equal(t, id, l.Event.ID)
			require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
			require.Equal(t, sick, l.Subscription)
			require.Equal(t, 2, l.Attempts, sick)
			require.Len(t, l.Failures, 2)
			for i, f := range l.Failures {
				require.Equal(t, i+1, f.Attempt)
				require.Equal(t, sick, f.Subscription)
			}
			for _, name := range names {
				if name != sick {
					require.Equal(t, int64(1), metricsOf(t, bus, name).Successes, "%s while %s is sick", name, sick)
				}
			}
			wantMax := int64(8)
			if sick == "only" {
				wantMax = 6
			}
			require.Equal(t, wantMax, logs.FilterMessage("handler failed").All()[0].ContextMap()["max_attempts"])
			_ = bCut(t, bus)
		})
	}
}

func TestC5_ASplitKeepsThePolicyOfItsDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		mustSubscribe(t, bus, "{a,sick}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		mustSubscribe(t, bus, "a", ok, eventbus.Retry(eventbus.MaxRetries(7)))
		bPublish(t, bus, "sick", failing(eventbus.Permanent(errBroken)))
		for range 4 {
			mustPublish(t, bus, "sick", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		logs.TakeAll()
		bPublish(t, bus, "a", bOK)
		e := logs.FilterMessage("event dead-lettered").All()
		require.Len(t, e, 1)
		require.Equal(t, int64(8), e[0].ContextMap()["max_attempts"])
		_ = bCut(t, bus)
	})
}

// A subscription that the event has not been to yet has no attempts and no
// failures there, wherever it stands in the line.
func TestC5_FailuresElsewhereAreNotTheirs(t *testing.T) {
	for _, behind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(5, time.Second)))
			mustSubscribe(t, bus, "{a,x}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("x"))
			mustSubscribe(t, bus, "{a,y}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("y"))
			if behind {
				mustSubscribe(t, bus, "a", ok, eventbus.Named("z"))
			}
			id := mustPublish(t, bus, "a", bFail)
			synctest.Wait()
			for sick, n := range map[string]int{"x": 3, "y": 4} { // it has failed at x itself
				for range n {
					mustPublish(t, bus, sick, failing(eventbus.RetryAfter(errBroken, time.Hour)))
				}
			}
			time.Sleep(2 * time.Second)
			got := map[string]eventbus.DeadLetter{}
			for _, l := range letters(t, bus) {
				require.Equal(t, id, l.Event.ID)
				got[l.Subscription] = l
			}
			require.Len(t, got, 2)
			require.Equal(t, 1, got["x"].Attempts)
			require.Len(t, got["x"].Failures, 1)
			require.Zero(t, got["y"].Attempts, "behind: %v", behind)
			require.Empty(t, got["y"].Failures, "behind: %v", behind)
			_ = bCut(t, bus)
		})
	}
}

// Beyond 100 failures the letter says how many are missing, split off or not.
func TestC5_ASplitSaysHowManyFailuresItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)))
		mustSubscribe(t, bus, "a", ok)
		mustSubscribe(t, bus, "{a,sick}", bScripted, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		mustPublish(t, bus, "a", bFail)
		time.Sleep(149*time.Second + time.Second/2)
		for range 3 { // the event itself is the fourth that has failed there
			mustPublish(t, bus, "sick", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		time.Sleep(time.Second)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
		require.Equal(t, 150, l.Attempts)
		require.Len(t, l.Failures, 100)
		require.Equal(t, 50, l.FailuresOmitted)
		_ = bCut(t, bus)
	})
}

// The model of a circuit, from the contract's words alone: a list of outcomes, a
// few conditions, no counters.
type bCircuitModel struct {
	state    string
	outcomes map[int]bModelOutcome // the latest of each event
	openedAt time.Duration
	era      int // counts changes of state that begin afresh
	probing  bool
	changes  []string
}

type bModelOutcome struct {
	at     time.Duration
	failed bool
}

func (m *bCircuitModel) become(state string, now time.Duration) {
	m.changes = append(m.changes, fmt.Sprintf("%s %s->%s", now.Truncate(bStep/2), m.state, state))
	m.state = state
	if state != "half-open" {
		m.era++
		m.outcomes = map[int]bModelOutcome{}
	}
}

// enter reports whether an event is let in, as a probe or not.
func (m *bCircuitModel) enter(now time.Duration) (in, probe bool) {
	if m.state == "closed" {
		return true, false
	}
	if m.state == "open" {
		if now-m.openedAt < 30*time.Second {
			return false, false
		}
		m.become("half-open", now)
	}
	if m.probing {
		return false, false
	}
	m.probing = true
	return true, true
}

// leave takes an outcome: "ok", "fail", or "permanent", which is none.
func (m *bCircuitModel) leave(event int, now time.Duration, outcome string, probe bool, era int) {
	if probe {
		m.probing = false
		switch outcome {
		case "ok":
			m.become("closed", now)
		case "fail":
			m.become("open", now)
			m.openedAt = now
		}
		return
	}
	if era != m.era || m.state != "closed" || outcome == "permanent" {
		return
	}
	m.outcomes[event] = bModelOutcome{now, outcome == "fail"}
	failed, all := 0, 0
	for _, o := range m.outcomes {
		if now-o.at < time.Minute-2*time.Second { // no age in these tests is near the bound
			all++
			if o.failed {
				failed++
			}
		}
	}
	if all >= 4 && 2*failed > all {
		m.become("open", now)
		m.openedAt = now
	}
}

const (
	// The ages of outcomes are multiples of this, give or take a second, so that
	// none is where the window may move in steps.
	bUnit = 9 * time.Second
	// Apart, so that no two things happen at once, even if one has to wait for a
	// worker for some milliseconds.
	bStep = 40 * time.Millisecond
)

// bModelEvent has an outcome for each of its attempts. One of them takes long,
// so that it can end in another state than it began in.
type bModelEvent struct {
	Pause    int // units before it is published
	Outcomes [3]string
	Slow     int // attempt, 0 for none
	Units    int // that it takes
}

// bPredict runs the model: what is called when, the changes of state, and the
// letters.
func bPredict(events []bModelEvent) (calls, changes, dead []string) {
	m := &bCircuitModel{state: "closed", outcomes: map[int]bModelOutcome{}}
	type action struct {
		at time.Duration
		do func(now time.Duration)
	}
	var agenda []action
	at := func(when time.Duration, do func(time.Duration)) {
		agenda = append(agenda, action{when, do})
	}
	now := time.Duration(0)
	for i, e := range events {
		now += time.Duration(e.Pause)*bUnit + bStep
		var attempt func(n int) func(time.Duration)
		attempt = func(n int) func(time.Duration) {
			return func(now time.Duration) {
				in, probe := m.enter(now)
				if !in {
					dead = append(dead, fmt.Sprintf("%d circuit_open after %d", i, n-1))
					return
				}
				calls = append(calls, fmt.Sprintf("%s event %d attempt %d", now.Truncate(bStep/2), i, n))
				era, outcome := m.era, e.Outcomes[n-1]
				end := func(now time.Duration) {
					m.leave(i, now, outcome, probe, era)
					switch {
					case outcome == "permanent":
						dead = append(dead, fmt.Sprintf("%d permanent after %d", i, n))
					case outcome == "fail" && n == 3:
						dead = append(dead, fmt.Sprintf("%d exhausted after %d", i, n))
					case outcome == "fail":
						at(now+bUnit, attempt(n+1))
					}
				}
				if n == e.Slow {
					at(now+time.Duration(e.Units)*bUnit+bStep/2, end)
					return
				}
				end(now)
			}
		}
		at(now, attempt(1))
	}
	for len(agenda) > 0 {
		sort.SliceStable(agenda, func(i, j int) bool { return agenda[i].at < agenda[j].at })
		next := agenda[0]
		agenda = agenda[1:]
		next.do(next.at)
	}
	slices.Sort(dead)
	return calls, m.changes, dead
}

// bObserve runs the same events through a bus.
func bObserve(t *testing.T, events []bModelEvent) (calls, changes, dead []string, balanced bool) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithTimeout(time.Hour), eventbus.WithRetry(retry(2, bUnit)))
		began := time.Now()
		since := func(t time.Time) time.Duration { return t.Sub(began).Truncate(bStep / 2) }
		var called journal[string]
		_, _ = bus.Subscribe("a", func(ctx context.Context, ev eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			i := ev.Payload.(int)
			e := events[i]
			called.add(fmt.Sprintf("%s event %d attempt %d", since(time.Now()), i, d.Attempt))
			if d.Attempt == e.Slow {
				time.Sleep(time.Duration(e.Units)*bUnit + bStep/2)
			}
			switch e.Outcomes[d.Attempt-1] {
			case "fail":
				return errBroken
			case "permanent":
				return eventbus.Permanent(errBroken)
			}
			return nil
		}, eventbus.DeadLetterWhenOpen)
		for i, e := range events {
			time.Sleep(time.Duration(e.Pause)*bUnit + bStep)
			_, _ = bus.Publish(t.Context(), "a", i)
			synctest.Wait()
		}
		_ = bus.Shutdown(context.Background())
		calls = called.all()
		for _, e := range logs.All() {
			if strings.HasPrefix(e.Message, "circuit ") {
				changes = append(changes, fmt.Sprintf("%s %s->%s", since(e.Time), e.ContextMap()["from"], e.ContextMap()["to"]))
			}
		}
		page, _ := bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 1000})
		for _, l := range page.Letters {
			dead = append(dead, fmt.Sprintf("%d %s after %d", l.Event.Payload, l.Reason, l.Attempts))
		}
		slices.Sort(dead)
		balanced = bus.Metrics().Ledger.Balanced()
	})
	return calls, changes, dead, balanced
}

func TestC1_TheCircuitIsItsModel(t *testing.T) {
	event := rapid.Custom(func(t *rapid.T) bModelEvent {
		outcome := rapid.SampledFrom([]string{"ok", "fail", "fail", "fail", "permanent"})
		e := bModelEvent{Pause: rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 4, 8}).Draw(t, "pause")}
		for i := range e.Outcomes {
			e.Outcomes[i] = outcome.Draw(t, "outcome")
		}
		e.Slow = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "slow")
		e.Units = rapid.IntRange(1, 9).Draw(t, "units")
		return e
	})
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(event, 1, 24).Draw(rt, "events")
		wantCalls, wantChanges, wantDead := bPredict(events)
		calls, changes, dead, balanced := bObserve(t, events)
		for _, c := range []struct {
			what      string
			got, want []string
		}{{"changes of state", changes, wantChanges}, {"calls", calls, wantCalls}, {"letters", dead, wantDead}} {
			if !slices.Equal(c.got, c.want) {
				rt.Fatalf("%s:\n got %s\nwant %s", c.what, strings.Join(c.got, "\n     "), strings.Join(c.want, "\n     "))
			}
		}
		if !balanced {
			rt.Fatalf("the books do not balance")
		}
		for _, c := range changes {
			_, change, _ := strings.Cut(c, " ")
			seen[change]++
		}
	})
	if testing.Short() {
		return // too few to have seen everything
	}
	for _, change := range []string{"closed->open", "open->half-open", "half-open->closed", "half-open->open"} {
		require.Positive(t, seen[change], "the generator never makes this happen: %s", change)
	}
}
