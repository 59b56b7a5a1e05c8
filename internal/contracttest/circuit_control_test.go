package contracttest

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// controlAll is every control of a subscription.
func controlAll(s *eventbus.Subscription) map[string]func(...eventbus.DirectiveOption) error {
	return map[string]func(...eventbus.DirectiveOption) error{
		"Trip": s.Trip, "Reset": s.Reset, "Pause": s.Pause, "Resume": s.Resume,
		"HoldUntil": func(...eventbus.DirectiveOption) error { return s.HoldUntil(time.Now().Add(time.Hour)) },
	}
}

func TestControl_WhatCannotBeControlledSaysSo(t *testing.T) {
	for name, control := range controlAll(nil) {
		require.ErrorIs(t, control(), eventbus.ErrUninitialized, name)
	}
	for name, control := range controlAll(&eventbus.Subscription{}) {
		require.ErrorIs(t, control(), eventbus.ErrUninitialized, name)
	}
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "*", ok, eventbus.Named("gone"))
	s.Unsubscribe()
	for name, control := range controlAll(s) {
		err := control()
		require.ErrorIs(t, err, eventbus.ErrNoSubscription, name)
		require.ErrorContains(t, err, "gone")
		require.ErrorContains(t, err, name)
	}
	shutdown(t, bus)
}

func TestControl_SubscriptionByName(t *testing.T) {
	for _, unusable := range []*eventbus.Bus{nil, {}} {
		s := unusable.Subscription("a")
		require.False(t, s.Exists())
		for name, control := range controlAll(s) {
			require.ErrorIs(t, control(), eventbus.ErrUninitialized, name)
		}
	}
	bus, _ := startBus(t)
	a := mustSubscribe(t, bus, "*", ok, eventbus.Named("a"))
	unnamed := mustSubscribe(t, bus, "x.*", ok)
	require.Same(t, a, bus.Subscription("a"))
	require.Same(t, unnamed, bus.Subscription(unnamed.ID()))
	require.True(t, a.Exists())
	for _, name := range []string{"", "x", "aa", "a*", strings.Repeat("long", 100)} {
		s := bus.Subscription(name)
		require.False(t, s.Exists())
		require.Equal(t, name, s.ID())
		for method, control := range controlAll(s) {
			err := control()
			require.ErrorIs(t, err, eventbus.ErrNoSubscription, method)
			require.ErrorContains(t, err, method)
			require.Less(t, len(err.Error()), 300)
		}
		s.Unsubscribe()
		require.Empty(t, s.Pattern())
		require.Empty(t, s.MadeAt())
	}
	require.ErrorContains(t, bus.Subscription("aa").Pause(), `"aa"; the nearest name is "a"`)
	require.ErrorContains(t, bus.Subscription("y.*#2").Pause(), `the nearest name is "x.*#2"`)
	a.Unsubscribe()
	require.False(t, a.Exists())
	require.False(t, bus.Subscription("a").Exists())
	unnamed.Unsubscribe()
	require.ErrorContains(t, bus.Subscription("a").Pause(), "the bus has none")
	shutdown(t, bus)
}

func TestControl_WithoutACircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"), eventbus.Circuit(eventbus.NoCircuit()))
		require.ErrorIs(t, s.Trip(), eventbus.ErrCircuitDisabled)
		require.ErrorIs(t, s.Reset(), eventbus.ErrCircuitDisabled)
		require.Equal(t, eventbus.CircuitDisabled, metricsOf(t, bus, "s").Circuit)
		require.NoError(t, s.Pause())
		holdUp(t, bus, 3)
		require.Zero(t, calls.len())
		require.Equal(t, eventbus.CircuitDisabled, metricsOf(t, bus, "s").Circuit)
		require.NoError(t, s.Resume())
		settleWorkers()
		require.Equal(t, 3, calls.len())
		require.NoError(t, s.HoldUntil(time.Now().Add(time.Minute)))
		holdUp(t, bus, 1)
		require.Equal(t, 3, calls.len())
		time.Sleep(time.Minute)
		require.Equal(t, 4, calls.len())
		shutdown(t, bus)
	})
}

// Every control in every state of the circuit: the state that it leads to, and when
// a delivery that comes then gets through.
func TestControl_EveryStateAndControl(t *testing.T) {
	const open, half, closed = eventbus.CircuitOpen, eventbus.CircuitHalfOpen, eventbus.CircuitClosed
	states := map[string]func(t *testing.T, bus *eventbus.Bus, s *eventbus.Subscription){
		"closed": func(*testing.T, *eventbus.Bus, *eventbus.Subscription) {},
		"open": func(t *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) {
			require.NoError(t, s.Trip())
			time.Sleep(10 * time.Second)
		},
		"half-open, probing": func(t *testing.T, bus *eventbus.Bus, s *eventbus.Subscription) {
			require.NoError(t, s.Trip())
			time.Sleep(30 * time.Second)
			mustPublish(t, bus, "x", scripted("probe", sleepFor(5*time.Second)))
			settleWorkers()
		},
		"half-open, idle": func(t *testing.T, bus *eventbus.Bus, s *eventbus.Subscription) {
			require.NoError(t, s.Trip())
			time.Sleep(30 * time.Second)
			mustPublish(t, bus, "x", scripted("probe", failing(eventbus.Permanent(errBoom))))
			settleWorkers()
		},
		"paused": func(t *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { require.NoError(t, s.Pause()) },
	}
	trip := func(s *eventbus.Subscription) error { return s.Trip() }
	reset := func(s *eventbus.Subscription) error { return s.Reset() }
	pause := func(s *eventbus.Subscription) error { return s.Pause() }
	resume := func(s *eventbus.Subscription) error { return s.Resume() }
	until := func(s *eventbus.Subscription) error { return s.HoldUntil(time.Now().Add(time.Minute)) }
	const never = -1
	for _, c := range []struct {
		state   string
		control func(*eventbus.Subscription) error
		name    string
		circuit eventbus.CircuitState
		paused  bool
		after   time.Duration
	}{
		{"closed", trip, "Trip", open, false, 30 * time.Second},
		{"closed", reset, "Reset", closed, false, 0},
		{"closed", pause, "Pause", closed, true, never},
		{"closed", until, "HoldUntil", closed, true, time.Minute},
		{"closed", resume, "Resume", closed, false, 0},
		{"open", trip, "Trip", open, false, 30 * time.Second},
		{"open", reset, "Reset", closed, false, 0},
		{"open", pause, "Pause", open, true, never},
		{"open", until, "HoldUntil", open, true, time.Minute},
		{"open", resume, "Resume", open, false, 20 * time.Second},
		{"half-open, probing", trip, "Trip", open, false, 30 * time.Second},
		{"half-open, probing", reset, "Reset", closed, false, 0},
		{"half-open, probing", pause, "Pause", half, true, never},
		{"half-open, probing", until, "HoldUntil", half, true, time.Minute},
		{"half-open, probing", resume, "Resume", half, false, 5 * time.Second},
		{"half-open, idle", trip, "Trip", open, false, 30 * time.Second},
		{"half-open, idle", reset, "Reset", closed, false, 0},
		{"half-open, idle", pause, "Pause", half, true, never},
		{"half-open, idle", until, "HoldUntil", half, true, time.Minute},
		{"half-open, idle", resume, "Resume", half, false, 0},
		{"paused", trip, "Trip", open, true, never},
		{"paused", reset, "Reset", closed, true, never},
		{"paused", pause, "Pause", closed, true, never},
		{"paused", until, "HoldUntil", closed, true, time.Minute},
		{"paused", resume, "Resume", closed, false, 0},
	} {
		for _, held := range []bool{false, true} { // before the control
			if held && (c.state == "half-open, idle" || c.state == "closed") {
				continue // there is no such state: nothing is held then
			}
			t.Run(fmt.Sprintf("%s when %s, held %t", c.name, c.state, held), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus, _ := startBus(t)
					var at journal[time.Time]
					s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
						if e.Payload == "it" {
							at.add(time.Now())
							return nil
						}
						return e.Payload.(*stepScript).run(ctx, e)
					}, eventbus.Named("s"))
					states[c.state](t, bus, s)
					if held {
						mustPublish(t, bus, "x", "it")
						settleWorkers()
						require.Zero(t, at.len())
					}
					began := time.Now()
					require.NoError(t, c.control(s))
					m := metricsOf(t, bus, "s")
					require.Equal(t, c.circuit, m.Circuit)
					require.Equal(t, c.paused, m.Paused)
					if c.name == "HoldUntil" {
						require.True(t, m.PausedUntil.Equal(began.Add(time.Minute)), m.PausedUntil)
					} else {
						require.Zero(t, m.PausedUntil)
					}
					if !held {
						mustPublish(t, bus, "x", "it")
					}
					time.Sleep(3 * time.Hour)
					if c.after == never {
						require.Zero(t, at.len())
						require.NoError(t, s.Resume())
						settleWorkers()
						require.Equal(t, 1, at.len())
					} else {
						require.Equal(t, 1, at.len())
						require.Equal(t, c.after, at.all()[0].Sub(began).Round(100*time.Millisecond))
					}
					require.Equal(t, closed, metricsOf(t, bus, "s").Circuit)
					shutdown(t, bus)
				})
			})
		}
	}
}

// What the calls that run come to has no part in a circuit that was tripped or
// reset meanwhile.
func TestControl_RunningCallsHaveNoPartInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)), eventbus.WithCircuit(eventbus.MinEvents(1)))
		s := mustSubscribe(t, bus, "*", runScript, eventbus.Named("s"))
		state := func() eventbus.CircuitState { return metricsOf(t, bus, "s").Circuit }
		slow := func(err error) eventbus.Handler {
			return func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return err }
		}
		// A success that began before the trip does not close it.
		mustPublish(t, bus, "x", slow(nil))
		settleWorkers()
		require.NoError(t, s.Trip())
		time.Sleep(2 * time.Second)
		require.Equal(t, eventbus.CircuitOpen, state())
		// A failure that began before the reset does not open it.
		require.NoError(t, s.Reset())
		mustPublish(t, bus, "x", slow(errBoom))
		settleWorkers()
		require.NoError(t, s.Reset())
		time.Sleep(2 * time.Second)
		require.Equal(t, eventbus.CircuitClosed, state())
		// Nor does a probe that was running.
		require.NoError(t, s.Trip())
		time.Sleep(30 * time.Second)
		mustPublish(t, bus, "x", slow(nil))
		settleWorkers()
		require.Equal(t, eventbus.CircuitHalfOpen, state())
		require.NoError(t, s.Trip())
		time.Sleep(2 * time.Second)
		require.Equal(t, eventbus.CircuitOpen, state())
		require.EqualValues(t, 3, metricsOf(t, bus, "s").CircuitOpens)
		// And it lets another one probe.
		mustPublish(t, bus, "x", eventbus.Handler(ok))
		time.Sleep(30 * time.Second)
		require.Equal(t, eventbus.CircuitClosed, state())
		shutdown(t, bus)
	})
}

// Pausing holds whatever the subscription does with what its circuit skips.
func TestControl_PauseHoldsWhateverWhenOpenSays(t *testing.T) {
	for _, how := range []eventbus.WhenOpen{eventbus.HoldWhenOpen, eventbus.DropWhenOpen, eventbus.DeadLetterWhenOpen} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			calls := newCallLog()
			s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"), how)
			require.NoError(t, s.Pause())
			holdUp(t, bus, 2)
			require.NoError(t, s.Trip())
			holdUp(t, bus, 2) // paused comes first
			require.Equal(t, 4, metricsOf(t, bus, "s").Held)
			require.Zero(t, calls.len())
			require.NoError(t, s.Resume())
			settleWorkers()
			require.Equal(t, 4, metricsOf(t, bus, "s").Held, "they wait for the circuit")
			mustPublish(t, bus, "x", "skipped")
			time.Sleep(time.Minute)
			l := bus.Metrics().Ledger
			switch how {
			case eventbus.DropWhenOpen:
				require.EqualValues(t, 1, l.Dropped)
			case eventbus.DeadLetterWhenOpen:
				require.EqualValues(t, 1, l.DeadLettered)
			case eventbus.HoldWhenOpen:
				require.Zero(t, l.DeadLettered+l.Dropped)
			}
			require.Equal(t, 4, int(l.Handled)-map[bool]int{true: 1}[how == eventbus.HoldWhenOpen])
			shutdown(t, bus)
		})
	}
}

// Calls that have begun are not waited for, and their retries are held, with
// their attempts.
func TestControl_PauseDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			calls.note("%d", d.Attempt)
			time.Sleep(time.Second)
			return errBoom
		}, eventbus.Named("s"))
		mustPublish(t, bus, "x", nil)
		settleWorkers()
		began := time.Now()
		require.NoError(t, s.Pause())
		require.Zero(t, time.Since(began))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+0s 1"}, calls.all())
		require.Equal(t, 1, metricsOf(t, bus, "s").Held)
		require.Equal(t, 1, logs.FilterMessage("subscription paused").Len())
		require.NoError(t, s.Resume())
		require.NoError(t, s.Resume())
		require.Equal(t, 1, logs.FilterMessage("subscription resumed").Len())
		time.Sleep(time.Minute)
		require.Equal(t, 2, calls.len())
		require.Len(t, oneLetter(t, bus).Failures, 2)
		shutdown(t, bus)
	})
}

func TestControl_HoldUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
		for _, bad := range []time.Time{{}, time.Now(), time.Now().Add(-time.Hour), time.Unix(0, math.MinInt64)} {
			var refused *eventbus.OptionError
			require.ErrorAs(t, s.HoldUntil(bad), &refused)
			require.Equal(t, "HoldUntil", refused.Option)
			require.False(t, metricsOf(t, bus, "s").Paused)
		}
		require.NoError(t, s.Pause())
		require.Error(t, s.HoldUntil(time.Now()))
		require.True(t, metricsOf(t, bus, "s").Paused, "a refused one changes nothing")

		// The last one holds, shorter or longer.
		require.NoError(t, s.HoldUntil(time.Now().Add(time.Hour)))
		holdUp(t, bus, 1)
		require.NoError(t, s.HoldUntil(time.Now().Add(time.Minute)))
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, []string{"+1m0s s:0"}, calls.all())
		require.NoError(t, s.HoldUntil(time.Now().Add(time.Minute)))
		holdUp(t, bus, 1)
		require.NoError(t, s.HoldUntil(time.Now().Add(2*time.Hour)))
		time.Sleep(time.Hour)
		require.Equal(t, 1, calls.len())
		time.Sleep(2 * time.Hour)
		require.Equal(t, 2, calls.len())

		// The farthest future is not the past.
		var bad *eventbus.OptionError
		require.ErrorAs(t, s.HoldUntil(time.Date(292277, 1, 1, 0, 0, 0, 0, time.UTC)), &bad)
		require.NoError(t, s.HoldUntil(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
		holdUp(t, bus, 1)
		time.Sleep(1000 * time.Hour)
		require.Equal(t, 2, calls.len())
		require.True(t, metricsOf(t, bus, "s").Paused)
		require.NoError(t, s.Resume())
		settleWorkers()
		require.Equal(t, 3, calls.len())

		// New ones get through when the time has come, though nothing was held.
		require.NoError(t, s.HoldUntil(time.Now().Add(time.Minute)))
		time.Sleep(time.Minute)
		require.False(t, metricsOf(t, bus, "s").Paused)
		holdUp(t, bus, 1)
		require.Equal(t, 4, calls.len())
		shutdown(t, bus)
	})
}

func TestControl_HoldUntilWithinTheCircuitsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
		require.NoError(t, s.Trip())
		require.NoError(t, s.HoldUntil(time.Now().Add(10*time.Second)))
		holdUp(t, bus, 2)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+30s s:0", "+30s s:1"}, calls.all())
		shutdown(t, bus)
	})
}

// A handler may control its own subscription.
func TestControl_FromInsideTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		calls := newCallLog()
		var s *eventbus.Subscription
		s = mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			calls.note("%v", e.Payload)
			for _, control := range []func(...eventbus.DirectiveOption) error{s.Trip, s.Reset, s.Pause, s.Resume} {
				if err := control(); err != nil {
					return err
				}
			}
			if e.Payload == 1 {
				return s.HoldUntil(time.Now().Add(time.Minute))
			}
			return nil
		}, eventbus.Named("s"))
		for i := range 4 {
			mustPublish(t, bus, "x", i)
		}
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+0s 0", "+0s 1", "+1m0s 2", "+1m0s 3"}, calls.all())
		shutdown(t, bus)
	})
}

func TestControl_AfterShutdownDoesNoHarm(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
	shutdown(t, bus)
	for name, control := range controlAll(s) {
		require.NoError(t, control(), name)
	}
	require.Same(t, s, bus.Subscription("s"))
}

// Once Pause has returned, no further call is begun, but for those that the
// workers are about to make.
func TestControl_PauseUnderLoad(t *testing.T) {
	const workers = 4
	bus, _ := startBus(t, eventbus.WithConcurrency(workers), eventbus.WithQueueCapacity(256))
	var paused atomic.Bool
	var late, handled atomic.Int64
	s := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
		if paused.Load() {
			late.Add(1)
		}
		handled.Add(1)
		return nil
	}, eventbus.LineCapacity(math.MaxInt32))
	var beside atomic.Int64
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { beside.Add(1); return nil })
	var stop atomic.Bool
	var published int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			if _, err := bus.Publish(context.Background(), "x", nil); err == nil {
				published++
			}
		}
	}()
	for range 100 {
		for n := handled.Load(); handled.Load() < n+16; {
			runtime.Gosched()
		}
		late.Store(0)
		require.NoError(t, s.Pause())
		paused.Store(true)
		for n := beside.Load(); beside.Load() < n+256; {
			runtime.Gosched()
		}
		require.LessOrEqual(t, late.Load(), int64(workers))
		paused.Store(false)
		require.NoError(t, s.Resume())
	}
	stop.Store(true)
	<-done
	for bus.Metrics().Held > 0 {
		runtime.Gosched()
	}
	shutdown(t, bus)
	require.Equal(t, published, handled.Load())
}
