package contracttest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestC5_DeadLetterWhenOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		first := mustSubscribe(t, bus, "**", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "{a,only.sick}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		last := mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		for range 4 {
			publishScripts(t, bus, "only.sick", failBroken)
		}
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 4, report.Purged)
		logs.TakeAll()

		r, err := bus.PublishAndWait(t.Context(), "a", succeed, eventbus.Metadata("k", "v"))
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
		bus, _ := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "*", runScript, eventbus.Named("sick"), eventbus.DropWhenOpen)
		well := mustSubscribe(t, bus, "b", ok)
		tripCircuit(t, bus, "a")
		dead := len(letters(t, bus))

		r, err := bus.PublishAndWait(t.Context(), "a", succeed)
		require.NoError(t, err)
		require.Equal(t, eventbus.Dropped, r.Outcome)
		require.Zero(t, r.Attempts)
		require.Equal(t, int64(1), bus.Metrics().Ledger.Dropped)
		require.Zero(t, bus.Metrics().Ledger.Splits)

		r, err = bus.PublishAndWait(t.Context(), "b", succeed)
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
		bus, _ := startBus(t, oneAttempt)
		for _, name := range []string{"x", "y", "z"} {
			mustSubscribe(t, bus, "{all,"+name+"}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named(name))
			tripCircuit(t, bus, name)
		}
		_, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)

		r, err := bus.PublishAndWait(t.Context(), "all", succeed)
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
					return runScript(ctx, e)
				}, opts...)
			}
			id := mustPublish(t, bus, "a", failBroken)
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
			_ = cutShort(t, bus)
		})
	}
}

func TestC5_ASplitKeepsThePolicyOfItsDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		mustSubscribe(t, bus, "{a,sick}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		mustSubscribe(t, bus, "a", ok, eventbus.Retry(eventbus.MaxRetries(7)))
		publishScripts(t, bus, "sick", failing(eventbus.Permanent(errBroken)))
		for range 4 {
			mustPublish(t, bus, "sick", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		logs.TakeAll()
		publishScripts(t, bus, "a", succeed)
		e := logs.FilterMessage("event dead-lettered").All()
		require.Len(t, e, 1)
		require.Equal(t, int64(8), e[0].ContextMap()["max_attempts"])
		_ = cutShort(t, bus)
	})
}

// A subscription that the event has not been to yet has no attempts and no
// failures there, wherever it stands in the line.
func TestC5_FailuresElsewhereAreNotTheirs(t *testing.T) {
	for _, behind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(5, time.Second)))
			mustSubscribe(t, bus, "{a,x}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("x"))
			mustSubscribe(t, bus, "{a,y}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("y"))
			if behind {
				mustSubscribe(t, bus, "a", ok, eventbus.Named("z"))
			}
			id := mustPublish(t, bus, "a", failBroken)
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
			_ = cutShort(t, bus)
		})
	}
}

// Beyond 100 failures the letter says how many are missing, split off or not.
func TestC5_ASplitSaysHowManyFailuresItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)))
		mustSubscribe(t, bus, "a", ok)
		mustSubscribe(t, bus, "{a,sick}", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("sick"))
		mustPublish(t, bus, "a", failBroken)
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
		_ = cutShort(t, bus)
	})
}

// The bound is on what has been held and has not settled: a delivery that has been
// let go may have to come back to its seat.
func TestC5_WhatHasBeenLetGoCountsForTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(5), eventbus.NoJitter, eventbus.BaseDelay(time.Second)))
		var mended atomic.Bool
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Second)
			if !mended.Load() {
				return errBroken
			}
			return nil
		}, eventbus.Named("s"), eventbus.LineCapacity(2), eventbus.Timeout(time.Minute))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "a", 2)
		time.Sleep(35 * time.Second) // 1 is the probe, in its handler
		require.Equal(t, 1, bus.Metrics().Held)
		mustPublish(t, bus, "a", 3)
		settleWorkers()
		require.Equal(t, 1, bus.Metrics().Held)
		require.Len(t, letters(t, bus), 1)
		require.Equal(t, eventbus.ReasonOverflow, letters(t, bus)[0].Reason)
		require.Equal(t, 3, letters(t, bus)[0].Event.Payload)

		time.Sleep(10 * time.Second) // it has failed, and comes back
		require.Equal(t, 2, bus.Metrics().Held)
		mended.Store(true)
		time.Sleep(time.Minute)
		require.Zero(t, bus.Metrics().Held)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
		mustPublish(t, bus, "a", 4) // there is room again
		shutdown(t, bus)
		require.Len(t, letters(t, bus), 1)
	})
}

func TestC5_WhatIsSkippedIsHeldAndGoesOnOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithConcurrency(1))
		calls := newCallLog()
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
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", scripted("first", sleepFor(time.Second)))
		settleWorkers()
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
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		for _, p := range []struct {
			script *stepScript
			key    string
		}{
			{scripted("k1", failing(errBoom)), "k"},
			{scripted("k2"), "k"},
			{scripted("l1", failing(errBoom)), "l"},
			{scripted("l2"), "l"},
			{scripted("free"), ""},
		} {
			mustPublish(t, bus, "x", p.script, eventbus.Key(p.key))
		}
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{
			"+30s s:k1", "+1m0s s:free", "+1m0s s:l1", "+2m10s s:k1", "+2m10s s:k2", "+2m40s s:l1", "+2m40s s:l2",
		}, calls.all())
		shutdown(t, bus)
	})
}

// A probe that comes back from its retry while the circuit is open is the oldest
// again.
func TestC5_AFailedProbeKeepsItsSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(5, time.Second)))
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			calls.note("%s %d", payloadName(e), d.Attempt)
			if sc, ok := e.Payload.(*stepScript); ok {
				return sc.run(ctx, e)
			}
			return nil
		})
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", scripted("a", failing(errBoom), failing(errBoom)))
		settleWorkers()
		holdUp(t, bus, 2)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"+30s a 1", "+1m0s 1 1", "+1m0s a 2", "+1m0s 0 1", "+1m1s a 3"}, calls.all())
		shutdown(t, bus)
	})
}

func TestC5_AHeldDeliveryKeepsAttemptsFailuresAndPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(0, time.Second)))
		calls := newCallLog()
		a := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			calls.note("%d", d.Attempt)
			return fmt.Errorf("%w %d", errBoom, d.Attempt)
		}, eventbus.Named("a"))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("b"), eventbus.Retry(eventbus.MaxRetries(3)))
		mustPublish(t, bus, "x", nil, eventbus.Metadata("m", "v"))
		settleWorkers()
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
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"), eventbus.LineCapacity(2))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("other"))
		require.NoError(t, s.Trip())
		holdUp(t, bus, 3, eventbus.Key("k"))
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonOverflow, l.Reason)
		require.Equal(t, "2", l.Event.Payload)
		require.Equal(t, "s", l.Subscription)
		require.Zero(t, l.Attempts)

		r, err := bus.PublishAndWait(t.Context(), "x", "3", eventbus.Key("k"))
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Letters, 1)
		require.Equal(t, eventbus.ReasonOverflow, failed.Letters[0].Reason)
		require.Empty(t, r.Held)
		require.EqualValues(t, 4, bus.Metrics().Ledger.Handled, "by the other")
		time.Sleep(31 * time.Second)
		require.Equal(t, []string{"+30s s:0", "+30s s:1"}, calls.all())
		mustPublish(t, bus, "x", "4", eventbus.Key("k"))
		settleWorkers()
		require.Equal(t, 3, calls.len(), "neither held nor behind its key")
		shutdown(t, bus)
	})
}

func TestC5_HoldingIsBoundedWhenItIsTheWholeDispatch(t *testing.T) {
	for _, key := range []string{"", "k"} { // with a key, each has its key's place, and leaves it
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"), eventbus.LineCapacity(1))
			require.NoError(t, s.Pause())
			for i := range 3 {
				mustPublish(t, bus, "x", i, eventbus.Key(key))
				settleWorkers() // or two workers may reach the door in the other order
			}
			r, err := bus.PublishAndWait(t.Context(), "x", 3, eventbus.Key(key))
			var failed *eventbus.DeliveryError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, eventbus.DeadLettered, r.Outcome)
			died := letters(t, bus)
			require.Equal(t, []any{3, 2, 1}, payloads(died))
			for _, l := range died {
				require.Equal(t, eventbus.ReasonOverflow, l.Reason)
				require.Equal(t, "s", l.Subscription)
				require.Zero(t, l.Attempts)
			}
			require.NoError(t, s.Resume())
			shutdown(t, bus)
		})
	}
}

func TestC5_BadHoldCapacities(t *testing.T) {
	bus, _ := newBus(t)
	for _, n := range []int{0, -1} {
		_, err := bus.Subscribe("*", ok, eventbus.LineCapacity(n))
		var bad *eventbus.OptionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "LineCapacity", bad.Option)
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
		"error":              {end: failing(errBoom), others: "+1m0s", reason: eventbus.ReasonExhausted},
		"permanent":          {end: failing(eventbus.Permanent(errBoom)), others: "+30s", reason: eventbus.ReasonPermanent},
		"panic":              {end: func(context.Context, eventbus.Event) error { panic("p") }, others: "+1m0s", reason: eventbus.ReasonExhausted},
		"goexit":             {end: func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }, others: "+1m0s", reason: eventbus.ReasonExhausted},
		"timeout":            {end: func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, others: "+1m5s", reason: eventbus.ReasonExhausted},
		"abandoned":          {end: sleepFor(10 * time.Minute), others: "+1m5s", reason: eventbus.ReasonExhausted},
		"unsubscribed":       {end: func(context.Context, eventbus.Event) error { s.Unsubscribe(); return nil }, otherDeath: eventbus.ReasonUnsubscribed},
		"unsubscribed, died": {end: func(context.Context, eventbus.Event) error { s.Unsubscribe(); return errBoom }, reason: eventbus.ReasonExhausted, otherDeath: eventbus.ReasonUnsubscribed},
		"tripped":            {end: func(context.Context, eventbus.Event) error { return s.Trip() }, others: "+1m0s"},
		"reset":              {end: func(context.Context, eventbus.Event) error { return s.Reset() }, others: "+30s"},
		"reset, died":        {end: func(context.Context, eventbus.Event) error { _ = s.Reset(); return errBoom }, others: "+30s", reason: eventbus.ReasonExhausted},
		"paused a while":     {end: func(context.Context, eventbus.Event) error { return s.HoldUntil(time.Now().Add(time.Minute)) }, others: "+1m30s"},
	}
	for name, c := range endings {
		for _, retries := range []int{0, 1} {
			for _, key := range []string{"", "k"} {
				t.Run(fmt.Sprintf("%s, %d retries, key %q", name, retries, key), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						bus, _ := startBus(t, eventbus.WithTimeout(5*time.Second), eventbus.WithRetry(retry(retries, 3*time.Second)))
						calls := newCallLog()
						s = mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
						require.NoError(t, s.Trip())
						steps := []eventbus.Handler{c.end}
						mustPublish(t, bus, "x", scripted("probe", steps...), eventbus.Key(key))
						settleWorkers()
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
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", scripted("probe", failing(eventbus.RetryAfter(errBoom, 10*time.Minute))))
		settleWorkers()
		holdUp(t, bus, 2)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+30s s:probe", "+1m0s s:1", "+1m0s s:0", "+10m30s s:probe"}, calls.all())
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
		settleWorkers()
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
		settleWorkers()
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
		"success": {sleepFor(10 * time.Second), "+50s"},
		"failure": {func(context.Context, eventbus.Event) error { time.Sleep(10 * time.Second); return errBoom }, "+1m20s"},
		"permanent": {func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Second)
			return eventbus.Permanent(errBoom)
		}, "+50s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)))
				calls := newCallLog()
				s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
				require.NoError(t, s.Trip())
				time.Sleep(40 * time.Second)
				mustPublish(t, bus, "x", scripted("fresh", c.end))
				settleWorkers()
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
		require.ErrorIs(t, err, eventbus.ErrHeld)
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
	require.ErrorIs(t, err, eventbus.ErrHeld)
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
			calls := newCallLog()
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
				mustSubscribe(t, bus, "block", sleepFor(time.Second))
				mustPublish(t, bus, "block", nil) // the only worker
				settleWorkers()
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
		mustSubscribe(t, bus, "y", sleepFor(time.Second), eventbus.Named("b"))
		c := mustSubscribe(t, bus, "y", ok, eventbus.Named("c"))
		d := mustSubscribe(t, bus, "y", ok, eventbus.Named("d"), eventbus.DeadLetterWhenOpen)
		require.NoError(t, a.Trip())
		require.NoError(t, c.Pause())
		began := time.Now()
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Held, Held: []string{"a"}}, r)
		require.Less(t, time.Since(began), 100*time.Millisecond)
		r, err = bus.PublishAndWait(t.Context(), "y", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
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
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("a"))
		var fail atomic.Bool
		fail.Store(true)
		b := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			calls.note("b")
			if fail.Load() {
				return errBoom
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
				calls := newCallLog()
				s := mustSubscribe(t, bus, "*", calls.handler("s"), how)
				for range others {
					mustSubscribe(t, bus, "*", calls.handler("other"))
				}
				require.NoError(t, s.Trip())
				holdUp(t, bus, 3, eventbus.Key("k"))
				require.Equal(t, 3*others, calls.len())
				require.NoError(t, s.Reset())
				mustPublish(t, bus, "x", "last", eventbus.Key("k"))
				settleWorkers()
				require.Contains(t, calls.all(), "+0s s:last")
				l := bus.Metrics().Ledger
				require.EqualValues(t, 3, l.Dropped+l.DeadLettered)
				shutdown(t, bus)
			})
		}
	}
}

// What waits for a retry is neither on its way nor in the handler.
func TestC5_WaitingRetriesHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)))
		var called atomic.Int64
		s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			called.Add(1)
			return errBoom
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
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", scripted("probe", sleepFor(10*time.Minute)))
		settleWorkers()
		holdUp(t, bus, 1)
		time.Sleep(31 * time.Second)
		require.NoError(t, s.Trip())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+30s s:probe", "+1m1s s:0"}, calls.all())
		shutdown(t, bus)
	})
}

// What is held has ended its attempt before it begins the next one.
func TestC5_TheAttemptEndsBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told journal[string]
		var s *eventbus.Subscription
		first := true
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
			AttemptBegun: func(a eventbus.Attempt) {
				told.add(fmt.Sprintf("begun %d", a.Number))
				if first {
					first = false
					_ = s.Pause() // after it has been let through
				}
			},
			AttemptEnded: func(a eventbus.EndedAttempt) {
				time.Sleep(time.Minute) // it is let go meanwhile
				told.add(fmt.Sprintf("ended %d %s", a.Number, a.Outcome))
			},
		}))
		s = mustSubscribe(t, bus, "a", ok)
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Second)
		require.NoError(t, s.Resume())
		time.Sleep(time.Hour)
		shutdown(t, bus)
		require.Equal(t, []string{"begun 1", "ended 1 held", "begun 1", "ended 1 handled"}, told.all())
	})
}
