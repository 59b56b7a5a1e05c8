package contracttest

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// snoozing returns a handler that postpones its first calls by a delay each, and then succeeds.
func snoozing(calls *callTimes, times int, delay time.Duration) eventbus.Handler {
	calls.since = time.Now()
	return func(context.Context, eventbus.Event) error {
		if calls.add(time.Since(calls.since)); calls.len() <= times {
			return fmt.Errorf("wrapped: %w", eventbus.Snooze(delay))
		}
		return nil
	}
}

// The delivery comes again, at attempt 1. The event's other subscriptions, and other events, do not wait.
func TestF6_ASnoozeIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		var calls, others callTimes
		var attempts journal[int]
		snooze := snoozing(&calls, 3, time.Hour)
		mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			attempts.add(d.Attempt)
			return snooze(ctx, e)
		}, eventbus.Named("a"))
		mustSubscribe(t, bus, "a", others.failing(nil))
		id := mustPublish(t, bus, "a", 1)
		synctest.Wait()
		mustPublish(t, bus, "b", 1)
		m := metricsOf(t, bus, "a")
		require.Equal(t, 1, m.Snoozed)
		require.Zero(t, m.Held+m.Throttled)
		status, err := bus.Event(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, status.Dispatches, 1)
		is := status.Dispatches[0]
		require.Equal(t, eventbus.DispatchParked, is.State)
		require.Equal(t, eventbus.ParkSnoozed, is.Parked)
		require.Equal(t, calls.since.Add(time.Hour).UTC(), is.Due)
		require.Equal(t, 1, is.Snoozes)
		time.Sleep(4 * time.Hour)
		require.Equal(t, inSeconds(0, 3600, 7200, 10800), calls.all())
		require.Equal(t, inSeconds(0), others.all())
		require.Equal(t, []int{1, 1, 1, 1}, attempts.all())
		m = metricsOf(t, bus, "a")
		require.Zero(t, m.Failures+m.CircuitOpens)
		require.Empty(t, logs.FilterMessage("handler failed").All())
		shutdown(t, bus)
	})
}

// The other deliveries of the subscription overtake it, but for those of its key.
func TestF6_OnlyItsKeyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var ran, other journal[string]
		first := true
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			if first {
				first = false
				return eventbus.Snooze(time.Minute)
			}
			ran.add(e.Key + strconv.Itoa(e.Payload.(int)))
			return nil
		}, eventbus.Named("a"))
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			other.add(e.Key + strconv.Itoa(e.Payload.(int)))
			return nil
		})
		for n := range 3 {
			mustPublish(t, bus, "a", n, eventbus.Key("k"))
			synctest.Wait()
			mustPublish(t, bus, "a", n, eventbus.Key("l"))
			mustPublish(t, bus, "a", n)
			synctest.Wait()
		}
		require.ElementsMatch(t, []string{"l0", "l1", "l2", "0", "1", "2"}, ran.all())
		require.Len(t, other.all(), 9)
		m := metricsOf(t, bus, "a")
		require.Equal(t, [2]int{1, 2}, [2]int{m.Snoozed, m.Held})
		page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{})
		require.NoError(t, err)
		for _, d := range page.Dispatches {
			require.Equal(t, eventbus.ParkSnoozed, d.Parked)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"k0", "k1", "k2"}, ran.all()[6:])
		shutdown(t, bus)
	})
}

// PublishAndWait waits for it. Shutdown does not.
func TestF6_WhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		mustSubscribe(t, bus, "a", snoozing(&calls, 1, time.Hour))
		result, err := bus.PublishAndWait(t.Context(), "a", 1)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, result.Outcome)
		require.Equal(t, inSeconds(0, 3600), calls.all())

		var more callTimes
		mustSubscribe(t, bus, "b", snoozing(&more, 1, time.Hour))
		mustPublish(t, bus, "b", 1)
		synctest.Wait()
		began := time.Now()
		require.NoError(t, bus.Drain(t.Context()))
		require.True(t, leftHeld(bus.Shutdown(t.Context())))
		require.Zero(t, time.Since(began))
		requireBalanced(t, bus)
		require.Equal(t, eventbus.ReasonShutdown, oneLetter(t, bus).Reason)
	})
}

// A full line does not make Publish wait for what sleeps: the delivery is a letter.
func TestF6_AFullLineOverflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", failing(eventbus.Snooze(time.Hour)), eventbus.LineCapacity(10))
		for range 13 {
			mustPublish(t, bus, "a", 1)
			synctest.Wait()
		}
		all := letters(t, bus)
		require.Len(t, all, 3)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonOverflow, l.Reason)
		}
		require.True(t, leftHeld(bus.Shutdown(t.Context())))
		requireBalanced(t, bus)
	})
}

// MaxElapsed counts the time. A snooze that would end at or after it is a letter at once.
func TestF6_MaxElapsedCountsIt(t *testing.T) {
	for snooze, want := range map[time.Duration][]time.Duration{
		24 * time.Minute: inSeconds(0, 1440, 2880),
		30 * time.Minute: inSeconds(0, 1800),
		time.Hour:        inSeconds(0),
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			var calls callTimes
			mustSubscribe(t, bus, "a", snoozing(&calls, 100, snooze), eventbus.Retry(eventbus.MaxElapsed(time.Hour)))
			_, err := bus.PublishAndWait(t.Context(), "a", 1)
			require.Error(t, err)
			require.Equal(t, want, calls.all())
			l := oneLetter(t, bus)
			require.Equal(t, eventbus.ReasonExpired, l.Reason)
			require.Empty(t, l.Failures)
			shutdown(t, bus)
		})
	}
}

// A probe that snoozes gives its permit back, and is no candidate until its time has come: a line of 10,000 that all
// snooze is not called through one by one.
func TestF6_ASnoozedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		s := mustSubscribe(t, bus, "a", snoozing(&calls, 3, time.Minute))
		require.NoError(t, s.Trip())
		for range 4 {
			mustPublish(t, bus, "a", 1)
		}
		time.Sleep(31 * time.Second)
		require.Equal(t, inSeconds(30, 30, 30, 30), calls.all(), "each fresh one may probe, one after the other")
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		time.Sleep(time.Minute)
		require.Equal(t, inSeconds(90, 90, 90), calls.all()[4:])
		shutdown(t, bus)
	})
}

// Behind a door that is shut when it wakes, it is held as others are.
func TestF6_ItWakesBehindAShutDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls callTimes
		s := mustSubscribe(t, bus, "a", snoozing(&calls, 1, time.Minute))
		held := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(t.Context(), "a", 1)
			held <- err
		}()
		synctest.Wait()
		require.NoError(t, s.Pause())
		time.Sleep(30 * time.Second)
		require.Equal(t, 1, metricsOf(t, bus, s.ID()).Snoozed)
		require.Empty(t, held, "it is not held yet")
		time.Sleep(31 * time.Second)
		require.Equal(t, [2]int{0, 1}, [2]int{metricsOf(t, bus, s.ID()).Snoozed, metricsOf(t, bus, s.ID()).Held})
		require.ErrorIs(t, <-held, eventbus.ErrHeld)
		time.Sleep(time.Minute)
		require.NoError(t, s.Resume())
		synctest.Wait()
		require.Equal(t, inSeconds(0, 121), calls.all())
		shutdown(t, bus)
	})
}

// The 10th, 100th and 1,000th snooze of a delivery is a warning.
func TestF6_SnoozesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		var calls callTimes
		mustSubscribe(t, bus, "a", snoozing(&calls, 1500, time.Second))
		mustPublish(t, bus, "a", 1)
		time.Sleep(1501 * time.Second)
		require.Equal(t, 1501, calls.len())
		var at []any
		for _, e := range logs.FilterMessageSnippet("snoozed again").All() {
			at = append(at, e.ContextMap()["snoozes"])
		}
		require.Equal(t, []any{int32(10), int32(100), int32(1000)}, at)
		shutdown(t, bus)
	})
}

// Another delay fails the attempt.
func TestF6_BadDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			return eventbus.Snooze(e.Payload.(time.Duration))
		})
		for _, d := range []time.Duration{0, 1, -1, time.Millisecond - 1, 30*24*time.Hour + 1, 100 * 365 * 24 * time.Hour} {
			_, err := bus.PublishAndWait(t.Context(), "a", d)
			require.ErrorContains(t, err, "must be from 1ms to 720h0m0s")
		}
		shutdown(t, bus)
	})
}

// Unsubscribe ends what sleeps, and a retry after a snooze has its attempts.
func TestF6_Unsubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		s := mustSubscribe(t, bus, "a", failing(eventbus.Snooze(time.Hour)))
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		s.Unsubscribe()
		synctest.Wait()
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		time.Sleep(2 * time.Hour)
		shutdown(t, bus)
	})
}

// Failures before and after a snooze count as if there was none in between.
func TestF6_BetweenFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		var attempts journal[int]
		script := []error{errBoom, eventbus.Snooze(time.Minute), errBoom, eventbus.Snooze(time.Minute), errDead}
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			attempts.add(d.Attempt)
			return script[attempts.len()-1]
		})
		began := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "a", 1)
		require.Error(t, err)
		require.Equal(t, []int{1, 2, 2, 3, 3}, attempts.all())
		require.Equal(t, 2*time.Minute+2*time.Second, time.Since(began))
		require.Equal(t, []string{"0.1 a#1 boom", "0.2 a#1 boom", "0.3 a#1 dead"}, failureTexts(oneLetter(t, bus).Failures))
		shutdown(t, bus)
	})
}

// A whole line that snoozes behind a half-open circuit: each probe returns its permit, and none is lost.
func TestF6_ALineThatSnoozesBehindAHalfOpenCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = eventbus.DefaultLineCapacity
		bus, _ := startBus(t)
		var handled atomic.Int64
		began := time.Now()
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if time.Since(began) < time.Hour {
				return eventbus.Snooze(time.Hour)
			}
			handled.Add(1)
			return nil
		}, eventbus.Named("a"), eventbus.Concurrency(1))
		require.NoError(t, s.Trip())
		for range n {
			mustPublish(t, bus, "a", 1)
		}
		time.Sleep(time.Second)
		require.Equal(t, n, metricsOf(t, bus, "a").Held)
		time.Sleep(time.Minute)
		m := metricsOf(t, bus, "a")
		require.Equal(t, n, m.Snoozed)
		require.Equal(t, eventbus.CircuitHalfOpen, m.Circuit)
		time.Sleep(2 * time.Hour)
		require.EqualValues(t, n, handled.Load())
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "a").Circuit)
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}
