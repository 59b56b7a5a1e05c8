package eventbus_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// holdUp publishes n events of payloads "0", "1", … to a subscription that is
// tripped or paused.
func holdUp(t *testing.T, bus *eventbus.Bus, n int, opts ...eventbus.PublishOption) {
	t.Helper()
	for i := range n {
		mustPublish(t, bus, "x", fmt.Sprint(i), opts...)
	}
	coreSettle()
}

func TestC5_WhatIsSkippedIsHeldAndGoesOnOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithConcurrency(1))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
		require.NoError(t, s.Trip())
		holdUp(t, bus, 5)
		m := bus.Metrics()
		require.Equal(t, 5, m.Held)
		require.EqualValues(t, 5, m.Ledger.Held)
		require.Equal(t, 5, metricsOf(t, bus, "s").Held)
		require.EqualValues(t, 5, metricsOf(t, bus, "s").Skipped)
		require.Zero(t, m.Ledger.Splits, "nothing was split off: it was the whole dispatch")
		requireBalanced(t, bus)
		time.Sleep(29 * time.Second)
		require.Zero(t, calls.len())
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"+30s s:0", "+30s s:1", "+30s s:2", "+30s s:3", "+30s s:4"}, calls.all())
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "s").Circuit)
		require.Zero(t, bus.Metrics().Held)
		require.Equal(t, 1, logs.FilterMessage("circuit half-open").Len())
		require.Equal(t, 1, logs.FilterMessage("circuit closed").Len())
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

func TestC5_TheFirstOneIsTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", coreScripted("first", coreSleep(time.Second)))
		coreSettle()
		holdUp(t, bus, 5)
		time.Sleep(30500 * time.Millisecond)
		require.Equal(t, []string{"+30s s:first"}, calls.all())
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"+31s s:0", "+31s s:1", "+31s s:2", "+31s s:3", "+31s s:4"}, calls.all()[1:])
		shutdown(t, bus)
	})
}

// While the probe's retry waits, the next oldest of another key may probe.
func TestC5_TheNextOldestOfAnotherKeyProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(5, 100*time.Second)))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		for _, p := range []struct {
			script *coreScript
			key    string
		}{
			{coreScripted("k1", failing(errCore)), "k"},
			{coreScripted("k2"), "k"},
			{coreScripted("l1", failing(errCore)), "l"},
			{coreScripted("l2"), "l"},
			{coreScripted("free"), ""},
		} {
			mustPublish(t, bus, "x", p.script, eventbus.Key(p.key))
		}
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{
			"+30s s:k1", "+1m0s s:l1", "+1m30s s:free", "+2m10s s:k1", "+2m10s s:k2", "+2m40s s:l1", "+2m40s s:l2",
		}, calls.all())
		shutdown(t, bus)
	})
}

// A probe that comes back from its retry while the circuit is open is the oldest
// again.
func TestC5_AFailedProbeKeepsItsSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(5, time.Second)))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			calls.note("%s %d", coreName(e), d.Attempt)
			if sc, ok := e.Payload.(*coreScript); ok {
				return sc.run(ctx, e)
			}
			return nil
		})
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", coreScripted("a", failing(errCore), failing(errCore)))
		coreSettle()
		holdUp(t, bus, 2)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"+30s a 1", "+1m0s a 2", "+1m30s a 3", "+1m30s 0 1", "+1m30s 1 1"}, calls.all())
		shutdown(t, bus)
	})
}

func TestC5_AHeldDeliveryKeepsAttemptsFailuresAndPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(0, time.Second)))
		calls := newCoreCalls()
		a := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			calls.note("%d", d.Attempt)
			return fmt.Errorf("%w %d", errCore, d.Attempt)
		}, eventbus.Named("a"))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("b"), eventbus.Retry(eventbus.MaxRetries(3)))
		mustPublish(t, bus, "x", nil, eventbus.Metadata("m", "v"))
		coreSettle()
		require.NoError(t, a.Trip())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+0s 1", "+30s 2", "+1m0s 3", "+1m30s 4"}, calls.all())
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 4, l.Attempts)
		var kept []string
		for _, f := range l.Failures {
			kept = append(kept, fmt.Sprint(f.Attempt, f.Subscription, f.Error))
		}
		require.Equal(t, []string{"1aboom 1", "2aboom 2", "3aboom 3", "4aboom 4"}, kept)
		require.Equal(t, "v", l.Event.Metadata.Get("m"))
		require.Empty(t, l.NotReached, "b has handled it long ago")
		shutdown(t, bus)
	})
}

func TestC5_HoldingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"), eventbus.HoldCapacity(2))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("other"))
		require.NoError(t, s.Trip())
		holdUp(t, bus, 3, eventbus.Key("k"))
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
		require.Equal(t, "2", l.Event.Payload)
		require.Equal(t, "s", l.Subscription)
		require.Zero(t, l.Attempts)

		r, err := bus.PublishAndWait(t.Context(), "x", "3", eventbus.Key("k"))
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Letters, 1)
		require.Equal(t, eventbus.ReasonCircuitOpen, failed.Letters[0].Reason)
		require.Empty(t, r.Held)
		require.EqualValues(t, 4, bus.Metrics().Ledger.Handled, "by the other")
		time.Sleep(31 * time.Second)
		require.Equal(t, []string{"+30s s:0", "+30s s:1"}, calls.all())
		mustPublish(t, bus, "x", "4", eventbus.Key("k"))
		coreSettle()
		require.Equal(t, 3, calls.len(), "neither held nor behind its key")
		shutdown(t, bus)
	})
}

func TestC5_HoldingIsBoundedWhenItIsTheWholeDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"), eventbus.HoldCapacity(1))
		require.NoError(t, s.Pause())
		holdUp(t, bus, 3, eventbus.Key("k")) // each has its key's place, and leaves it
		require.Len(t, letters(t, bus), 2)
		r, err := bus.PublishAndWait(t.Context(), "x", "3", eventbus.Key("k"))
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		require.NoError(t, s.Resume())
		shutdown(t, bus)
	})
}

func TestC5_BadHoldCapacities(t *testing.T) {
	bus, _ := newBus(t)
	for _, n := range []int{0, -1} {
		_, err := bus.Subscribe("*", ok, eventbus.HoldCapacity(n))
		var bad *eventbus.OptionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "HoldCapacity", bad.Option)
	}
}

// However the probe ends, what is held behind it is handled, or says why not.
func TestC5_EveryEndOfAProbeLetsTheNextOneGo(t *testing.T) {
	var s *eventbus.Subscription
	endings := map[string]struct {
		end        eventbus.Handler
		others     string // when the first of the others is called
		reason     eventbus.Reason
		otherDeath eventbus.Reason
	}{
		"success":            {end: ok, others: "+30s"},
		"error":              {end: failing(errCore), others: "+1m0s", reason: eventbus.ReasonExhausted},
		"permanent":          {end: failing(eventbus.Permanent(errCore)), others: "+30s", reason: eventbus.ReasonPermanent},
		"panic":              {end: func(context.Context, eventbus.Event) error { panic("p") }, others: "+1m0s", reason: eventbus.ReasonExhausted},
		"goexit":             {end: func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }, others: "+1m0s", reason: eventbus.ReasonExhausted},
		"timeout":            {end: func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, others: "+1m5s", reason: eventbus.ReasonExhausted},
		"abandoned":          {end: coreSleep(10 * time.Minute), others: "+1m5s", reason: eventbus.ReasonExhausted},
		"unsubscribed":       {end: func(context.Context, eventbus.Event) error { s.Unsubscribe(); return nil }, otherDeath: eventbus.ReasonUnsubscribed},
		"unsubscribed, died": {end: func(context.Context, eventbus.Event) error { s.Unsubscribe(); return errCore }, reason: eventbus.ReasonExhausted, otherDeath: eventbus.ReasonUnsubscribed},
		"tripped":            {end: func(context.Context, eventbus.Event) error { return s.Trip() }, others: "+1m0s"},
		"reset":              {end: func(context.Context, eventbus.Event) error { return s.Reset() }, others: "+30s"},
		"reset, died":        {end: func(context.Context, eventbus.Event) error { _ = s.Reset(); return errCore }, others: "+30s", reason: eventbus.ReasonExhausted},
		"paused a while":     {end: func(context.Context, eventbus.Event) error { return s.HoldUntil(time.Now().Add(time.Minute)) }, others: "+1m30s"},
	}
	for name, c := range endings {
		for _, retries := range []int{0, 1} {
			for _, key := range []string{"", "k"} {
				t.Run(fmt.Sprintf("%s, %d retries, key %q", name, retries, key), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						bus, _ := startBus(t, eventbus.WithTimeout(5*time.Second), eventbus.WithRetry(retry(retries, 3*time.Second)))
						calls := newCoreCalls()
						s = mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
						require.NoError(t, s.Trip())
						steps := []eventbus.Handler{c.end}
						mustPublish(t, bus, "x", coreScripted("probe", steps...), eventbus.Key(key))
						coreSettle()
						holdUp(t, bus, 4, eventbus.Key(key))
						time.Sleep(time.Hour)
						var others []string
						for _, call := range calls.all() {
							if !strings.HasSuffix(call, "probe") {
								others = append(others, call)
							}
						}
						got := make(map[eventbus.Reason]int)
						for _, l := range letters(t, bus) {
							got[l.Reason]++
						}
						want := make(map[eventbus.Reason]int)
						if c.reason != "" && (retries == 0 || c.reason == eventbus.ReasonPermanent) {
							want[c.reason]++
						} else if c.reason != "" && c.otherDeath != "" {
							want[c.otherDeath]++ // its retry finds out
						}
						if c.otherDeath != "" {
							want[c.otherDeath] += 4
							require.Empty(t, others)
						} else {
							require.Len(t, others, 4)
							if retries == 0 {
								require.Equal(t, c.others+" s:0", slices.Min(others))
							}
						}
						require.Equal(t, want, got)
						m := bus.Metrics()
						require.Zero(t, m.Held)
						require.Zero(t, m.WaitingRetries)
						shutdown(t, bus)
					})
				})
			}
		}
	}
}

func TestC5_RetryAfterOfAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", coreScripted("probe", failing(eventbus.RetryAfter(errCore, 10*time.Minute))))
		coreSettle()
		holdUp(t, bus, 2)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+30s s:probe", "+1m0s s:0", "+1m0s s:1", "+10m30s s:probe"}, calls.all())
		shutdown(t, bus)
	})
}

// What has been let go, and finds the circuit open again, is held where it was.
func TestC5_TheCircuitTripsWhileManyAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var got journal[string]
		var s *eventbus.Subscription
		s = mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			got.add(e.Payload.(string))
			if l := got.len(); l == 1 || l == 30 || l == 150 {
				return s.Trip()
			}
			return nil
		}, eventbus.Named("s"))
		require.NoError(t, s.Pause())
		holdUp(t, bus, n)
		require.NoError(t, s.Resume())
		coreSettle()
		require.Equal(t, []string{"0"}, got.all())
		require.Equal(t, n-1, bus.Metrics().Held, "all are back")
		time.Sleep(time.Hour)
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint(i))
		}
		require.Equal(t, want, got.all())
		shutdown(t, bus)
	})
}

func TestC5_AtMost64AreLetGoAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var running, most, fresh atomic.Int64
		s := mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			if e.Payload == "fresh" {
				fresh.Add(1)
				return nil
			}
			if r := running.Add(1); r > most.Load() {
				most.Store(r)
			}
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		})
		require.NoError(t, s.Pause())
		holdUp(t, bus, 1000)
		require.NoError(t, s.Resume())
		time.Sleep(500 * time.Millisecond)
		require.EqualValues(t, 64, running.Load())
		mustPublish(t, bus, "x", "fresh")
		coreSettle()
		require.EqualValues(t, 1, fresh.Load(), "new ones do not wait for those that were held")
		time.Sleep(time.Minute)
		require.EqualValues(t, 64, most.Load())
		require.Zero(t, bus.Metrics().Held)
		shutdown(t, bus)
	})
}

// A new event may be the probe while others are held.
func TestC5_AFreshProbe(t *testing.T) {
	for name, c := range map[string]struct {
		end  eventbus.Handler
		held string
	}{
		"success": {coreSleep(10 * time.Second), "+50s"},
		"failure": {func(context.Context, eventbus.Event) error { time.Sleep(10 * time.Second); return errCore }, "+1m20s"},
		"permanent": {func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Second)
			return eventbus.Permanent(errCore)
		}, "+50s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)))
				calls := newCoreCalls()
				s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
				require.NoError(t, s.Trip())
				time.Sleep(40 * time.Second)
				mustPublish(t, bus, "x", coreScripted("fresh", c.end))
				coreSettle()
				holdUp(t, bus, 3)
				require.Equal(t, []string{"+40s s:fresh"}, calls.all())
				require.Equal(t, 3, metricsOf(t, bus, "s").Held)
				time.Sleep(time.Hour)
				require.ElementsMatch(t, []string{c.held + " s:0", c.held + " s:1", c.held + " s:2"}, calls.all()[1:])
				shutdown(t, bus)
			})
		})
	}
}

// coreTimers counts the timers that are set on a mock clock.
type coreTimers struct {
	*clock.Mock
	mu  sync.Mutex
	set []time.Duration
}

func (c *coreTimers) AfterFunc(d time.Duration, f func()) *clock.Timer {
	c.mu.Lock()
	c.set = append(c.set, d)
	c.mu.Unlock()
	return c.Mock.AfterFunc(d, f)
}

func (c *coreTimers) all() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.set)
}

func TestC6_NoTimerWhileNothingIsHeld(t *testing.T) {
	timers := &coreTimers{Mock: clock.NewMock()}
	bus, _ := startBus(t, eventbus.WithClock(timers), eventbus.WithTimeout(time.Hour))
	s := mustSubscribe(t, bus, "*", ok)
	hours := func() (n int) { // of handlers' deadlines
		for _, d := range timers.all() {
			if d != time.Hour {
				n++
			}
		}
		return n
	}
	require.NoError(t, s.Trip())
	require.NoError(t, s.HoldUntil(timers.Now().Add(time.Minute)))
	require.Zero(t, hours())
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	require.Equal(t, 1, hours())
	require.NoError(t, s.Resume())
	require.NoError(t, s.Reset())
	shutdown(t, bus)
}

// The injected clock alone wakes what is held.
func TestC5_AMockClockLetsHeldOnesGo(t *testing.T) {
	mock := clock.NewMock()
	bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithConcurrency(1), eventbus.WithRetry(retry(0, 0)))
	got := make(chan any, 10)
	s := mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		got <- e.Payload
		return nil
	})
	require.NoError(t, s.Trip())
	for i := range 3 {
		r, err := bus.PublishAndWait(t.Context(), "x", i)
		require.NoError(t, err)
		require.Equal(t, eventbus.Held, r.Outcome)
	}
	mock.Add(29999 * time.Millisecond)
	require.Empty(t, got)
	mock.Add(time.Millisecond)
	for i := range 3 {
		require.Equal(t, i, <-got)
	}
	require.NoError(t, s.HoldUntil(mock.Now().Add(time.Minute)))
	_, err := bus.PublishAndWait(t.Context(), "x", 3)
	require.NoError(t, err)
	mock.Add(59 * time.Second)
	require.Empty(t, got)
	mock.Add(time.Second)
	require.Equal(t, 3, <-got)
	shutdown(t, bus)
}

func TestC5_UnsubscribeGivesUpWhatIsHeld(t *testing.T) {
	for _, how := range []string{"tripped", "paused", "let go"} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(1))
			calls := newCoreCalls()
			s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
			mustSubscribe(t, bus, "*", ok, eventbus.Named("other"))
			if how == "tripped" {
				require.NoError(t, s.Trip())
			} else {
				require.NoError(t, s.Pause())
			}
			holdUp(t, bus, 100)
			holdUp(t, bus, 100, eventbus.Key("k"))
			want := 200
			if how == "let go" {
				mustSubscribe(t, bus, "block", coreSleep(time.Second))
				mustPublish(t, bus, "block", nil) // the only worker
				coreSettle()
				want++ // "block" matches s too, and is held
				require.NoError(t, s.Resume())
			}
			s.Unsubscribe()
			time.Sleep(time.Minute)
			all := letters(t, bus)
			require.Len(t, all, want)
			seen := make(map[eventbus.EventID]bool)
			for _, l := range all {
				require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
				require.Equal(t, "s", l.Subscription)
				seen[l.Event.ID] = true
			}
			require.Len(t, seen, want)
			require.Zero(t, calls.len())
			require.Zero(t, bus.Metrics().Held)
			shutdown(t, bus)
		})
	}
}

func TestC5_WhoWaitsIsToldOfWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		a := mustSubscribe(t, bus, "{x,y}", ok, eventbus.Named("a"))
		mustSubscribe(t, bus, "y", coreSleep(time.Second), eventbus.Named("b"))
		c := mustSubscribe(t, bus, "y", ok, eventbus.Named("c"))
		d := mustSubscribe(t, bus, "y", ok, eventbus.Named("d"), eventbus.DeadLetterWhenOpen)
		require.NoError(t, a.Trip())
		require.NoError(t, c.Pause())
		began := time.Now()
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Held, Held: []string{"a"}}, r)
		require.Less(t, time.Since(began), 100*time.Millisecond)
		r, err = bus.PublishAndWait(t.Context(), "y", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1, Held: []string{"a", "c"}}, r)
		require.NoError(t, d.Trip())
		r, err = bus.PublishAndWait(t.Context(), "y", nil)
		require.Error(t, err)
		require.Equal(t, []string{"a", "c"}, r.Held)
		require.Len(t, r.Letters, 1)
		require.NoError(t, c.Resume())
		time.Sleep(time.Minute)
		shutdown(t, bus)
	})
}

// The retry of a dispatch that is half done finds a circuit open: what is skipped
// is held, and the others go on.
func TestC5_ARetryFindsTheCircuitOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, 10*time.Second)))
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("a"))
		var fail atomic.Bool
		fail.Store(true)
		b := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			calls.note("b")
			if fail.Load() {
				return errCore
			}
			return nil
		}, eventbus.Named("b"))
		mustSubscribe(t, bus, "*", calls.handler("c"))
		waited := make(chan eventbus.Result, 1)
		go func() {
			r, _ := bus.PublishAndWait(t.Context(), "x", 1, eventbus.Key("k"))
			waited <- r
		}()
		time.Sleep(time.Second)
		require.NoError(t, b.Trip())
		fail.Store(false)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+0s a:1", "+0s b", "+10s c:1", "+31s b"}, calls.all())
		r := <-waited
		require.Equal(t, eventbus.Handled, r.Outcome)
		require.Equal(t, 2, r.Attempts)
		require.Equal(t, []string{"b"}, r.Held)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Splits)
		shutdown(t, bus)
	})
}

// Neither dropping nor dead-lettering holds up the key of what is skipped.
func TestC5_WhatIsNotHeldLeavesItsKey(t *testing.T) {
	for _, how := range []eventbus.WhenOpen{eventbus.DropWhenOpen, eventbus.DeadLetterWhenOpen} {
		for _, others := range []int{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				calls := newCoreCalls()
				s := mustSubscribe(t, bus, "*", calls.handler("s"), how)
				for range others {
					mustSubscribe(t, bus, "*", calls.handler("other"))
				}
				require.NoError(t, s.Trip())
				holdUp(t, bus, 3, eventbus.Key("k"))
				require.Equal(t, 3*others, calls.len())
				require.NoError(t, s.Reset())
				mustPublish(t, bus, "x", "last", eventbus.Key("k"))
				coreSettle()
				require.Contains(t, calls.all(), "+0s s:last")
				l := bus.Metrics().Ledger
				require.EqualValues(t, 3, l.Dropped+l.DeadLettered)
				shutdown(t, bus)
			})
		}
	}
}

func TestS2_ShutdownLeavesWhatIsHeld(t *testing.T) {
	for _, how := range []string{"graceful", "cut"} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t)
			s := mustSubscribe(t, bus, "x", ok, eventbus.Named("s"))
			p := mustSubscribe(t, bus, "x", ok, eventbus.Named("p"))
			mustSubscribe(t, bus, "slow", coreSleep(20*time.Second))
			require.NoError(t, s.Trip())
			require.NoError(t, p.Pause())
			holdUp(t, bus, 2)
			holdUp(t, bus, 2, eventbus.Key("k"))
			later := mustPublish(t, bus, "slow", nil, eventbus.After(time.Hour), eventbus.Key("later"))
			mustPublish(t, bus, "slow", nil)
			coreSettle()
			began := time.Now()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if how == "cut" {
				cancel()
			}
			var left *eventbus.ShutdownError
			require.ErrorAs(t, bus.Shutdown(ctx), &left)
			want := 9
			if how == "cut" {
				want++ // the slow one
				require.ErrorIs(t, left, context.Canceled)
			} else {
				require.NoError(t, left.Cause)
				require.Equal(t, 20*time.Second, time.Since(began).Round(time.Second), "waits for what runs, and no longer")
				require.ErrorContains(t, left, "left what was held or published for later")
			}
			require.Len(t, left.Unfinished, want)
			all := letters(t, bus)
			require.Len(t, all, want)
			of := make(map[string]int)
			for _, l := range all {
				require.Equal(t, eventbus.ReasonShutdown, l.Reason)
				of[l.Subscription]++
			}
			require.Equal(t, 4, of["s"])
			require.Equal(t, 4, of["p"])
			require.True(t, slices.ContainsFunc(left.Unfinished, func(l eventbus.DeadLetter) bool { return l.Event.ID == later }))
			require.Equal(t, want, logs.FilterField(zap.String("reason", "shutdown")).Len())
			m := bus.Metrics()
			require.Zero(t, m.Held)
			require.Zero(t, m.Scheduled)
			requireBalanced(t, bus)
			require.ErrorIs(t, bus.Shutdown(context.Background()), left, "idempotent")
		})
	}
}

// Queued events for a paused subscription are not waited for either, nor are the
// retries of calls that have begun before.
func TestS2_ShutdownDoesNotWaitForWhatIsPausedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(3, 5*time.Second)))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
		mustPublish(t, bus, "x", coreScripted("fails", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Second)
			return errCore
		}))
		for i := range 5 {
			mustPublish(t, bus, "x", i, eventbus.Key("k"))
		}
		coreSettle()
		done := make(chan error, 1)
		go func() { done <- bus.Shutdown(context.Background()) }()
		coreSettle()
		require.NoError(t, s.Pause())
		time.Sleep(3 * time.Second)
		require.Empty(t, done, "the retry of what failed comes after 5 s, and finds that it is paused")
		time.Sleep(10 * time.Second)
		err := <-done
		require.True(t, leftHeld(err), "%v", err)
		require.Equal(t, []string{"+0s s:fails"}, calls.all())
		require.Len(t, letters(t, bus), 6)
		requireBalanced(t, bus)
	})
}

// What is let go at the very moment of a shutdown is handled, or a letter: never
// both, never neither, and the error names all letters.
func TestS2_LetGoAtTheMomentOfShutdown(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	for round := range rounds {
		const n = 100
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, 0)))
		var handled [n]atomic.Int32
		var published atomic.Int64
		var more atomic.Int64
		s := mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			i := e.Payload.(int)
			if i%5 == 0 {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					return errCore
				}
			}
			if i%10 == 3 {
				if _, err := bus.Publish(ctx, "y", nil, eventbus.After(time.Duration(i%3)*time.Hour)); err == nil {
					published.Add(1)
				}
			}
			handled[i].Add(1)
			return nil
		}, eventbus.Named("s"), eventbus.Circuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "y", func(context.Context, eventbus.Event) error { more.Add(1); return nil })
		require.NoError(t, s.Pause())
		for i := range n {
			mustPublish(t, bus, "x", i, eventbus.Key([]string{"", "k", "l"}[i%3]))
		}
		for bus.Metrics().Held < n/2 {
			runtime.Gosched()
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { err = bus.Shutdown(ctx) })
		wg.Go(func() {
			for range round % 50 {
				runtime.Gosched()
			}
			_ = s.Resume()
		})
		if round%3 == 0 {
			wg.Go(func() {
				for range round % 70 {
					runtime.Gosched()
				}
				cancel()
			})
		}
		wg.Wait()
		cancel()
		requireBalanced(t, bus)
		died := make(map[any]int)
		var diedLater int64
		all := letters(t, bus)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonShutdown, l.Reason)
			if l.Event.Type == "y" {
				diedLater++
				continue
			}
			died[l.Event.Payload]++
		}
		for i := range n {
			ends := int(handled[i].Load()) + died[i]
			if round%3 == 0 && ends == 2 {
				continue // a cut has given up its call, which ended after all
			}
			require.Equal(t, 1, ends, "event %d: %v", i, err)
		}
		require.Equal(t, published.Load(), more.Load()+diedLater)
		var left *eventbus.ShutdownError
		if len(all) > 0 {
			require.ErrorAs(t, err, &left)
			require.Len(t, left.Unfinished, len(all))
		} else {
			require.NoError(t, err)
		}
	}
}

// Handlers that publish for later while the bus shuts down: it is accepted, and
// left.
func TestS2_PublishingForLaterDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "y", ok)
		var id eventbus.EventID
		var outside error
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, outside = bus.Publish(context.Background(), "y", nil, eventbus.After(time.Minute))
			var err error
			id, err = bus.Publish(ctx, "y", nil, eventbus.After(time.Minute))
			return err
		})
		mustPublish(t, bus, "x", nil)
		coreSettle()
		left := coreShutdownLeft(t, bus)
		require.ErrorIs(t, outside, eventbus.ErrShutdown)
		require.Len(t, left, 1)
		require.Equal(t, id, left[0].Event.ID)
		require.Equal(t, eventbus.ReasonShutdown, left[0].Reason)
	})
}

// What waits for a retry is neither on its way nor in the handler.
func TestC5_WaitingRetriesHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)))
		var called atomic.Int64
		s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			called.Add(1)
			return errCore
		}, eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, s.Pause())
		holdUp(t, bus, 200)
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		require.EqualValues(t, 200, called.Load())
		require.Zero(t, bus.Metrics().Held)
		shutdown(t, bus)
	})
}

// A probe that goes on after the circuit was tripped again is no longer the probe.
func TestC5_AProbeOfAnEarlierOutageHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithTimeout(time.Hour))
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", coreScripted("probe", coreSleep(10*time.Minute)))
		coreSettle()
		holdUp(t, bus, 1)
		time.Sleep(31 * time.Second)
		require.NoError(t, s.Trip())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+30s s:probe", "+1m1s s:0"}, calls.all())
		shutdown(t, bus)
	})
}
