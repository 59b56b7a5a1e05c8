package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// What internal/sabotage found that no other test caught.

// The letter that a page ends with stays where it is, and the next page begins
// after it.
func TestL2_TheNextPageBeginsAfterTheLastLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 5)
		var all []any
		q := eventbus.LetterQuery{Limit: 2}
		for range 3 {
			page := list(t, bus, q)
			all = append(all, payloads(page.Letters)...)
			q.Before = page.Next
		}
		require.Equal(t, []any{4, 3, 2, 1, 0}, all)
		require.True(t, q.Before.IsZero(), "there is a fourth page")
		shutdown(t, bus)
	})
}

// Only what is there counts against the capacity, whether it was purged, one by
// one or in bulk, or replayed.
func TestL7_LettersThatHaveLeftTakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(3), eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 3)
		newest := letters(t, bus)[0].ID
		require.NoError(t, bus.DLQ().Purge(t.Context(), newest))
		mustPublish(t, bus, "a", 3)
		synctest.Wait()
		require.Len(t, letters(t, bus), 3)

		purged, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Type: "a"})
		require.NoError(t, err)
		require.Equal(t, 3, purged.Purged)
		for range 3 {
			mustPublish(t, bus, "a", nil)
		}
		synctest.Wait()
		require.Len(t, letters(t, bus), 3)

		require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
		synctest.Wait() // it has died again
		require.Len(t, letters(t, bus), 3)
		require.Zero(t, bus.Metrics().LettersEvicted)
		shutdown(t, bus)
	})
}

// A bulk replay looks at its context before each letter.
func TestL4_ReplayMatchingStopsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 10)
		ctx, cancel := context.WithCancel(t.Context())
		report, err := bus.DLQ().ReplayMatching(&gapContext{ctx, cancel, 5}, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, context.Canceled)
		require.NotZero(t, report.Replayed, "it has ended before the first")
		require.Less(t, report.Replayed, 6)
		synctest.Wait()
		replayed := 0
		for _, l := range letters(t, bus) {
			replayed += l.Replays
		}
		require.Equal(t, report.Replayed, replayed)
		require.Len(t, letters(t, bus), 10)
		shutdown(t, bus)
	})
}

// gapContext ends when it has been asked a few times whether it has.
type gapContext struct {
	context.Context
	cancel context.CancelFunc
	left   int
}

func (c *gapContext) Err() error {
	if c.left--; c.left < 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// A circuit that a success has opened stays open as long as one that a failure
// has: it takes the time exactly then, too.
func TestC1_ACircuitThatASuccessOpensIsOpenForAllItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.OpenFor(10*time.Millisecond)))
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			if e.Payload == nil {
				return errors.New("down")
			}
			time.Sleep(600 * time.Microsecond) // into a tick
			return nil
		})
		for range 3 {
			mustPublish(t, bus, "a", nil)
			synctest.Wait()
		}
		time.Sleep(time.Second) // until nothing ticks
		mustPublish(t, bus, "a", "fine")
		time.Sleep(600 * time.Microsecond)
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
		time.Sleep(9700 * time.Microsecond)
		r, err := bus.PublishAndWait(t.Context(), "a", "fine")
		require.NoError(t, err)
		require.Equal(t, eventbus.Held, r.Outcome)
		time.Sleep(time.Second)
		shutdown(t, bus)
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
				return errGap
			}
			return nil
		}, eventbus.Named("s"), eventbus.HoldCapacity(2), eventbus.Timeout(time.Minute))
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "a", 2)
		time.Sleep(35 * time.Second) // 1 is the probe, in its handler
		require.Equal(t, 1, bus.Metrics().Held)
		mustPublish(t, bus, "a", 3)
		coreSettle()
		require.Equal(t, 1, bus.Metrics().Held)
		require.Len(t, letters(t, bus), 1)
		require.Equal(t, eventbus.ReasonCircuitOpen, letters(t, bus)[0].Reason)
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

var errGap = errors.New("broken")

// A worker that was let through before Pause, and has not begun the call when it
// returns, does not begin it.
func TestC6_APauseIsSeenByWhoHasBeenLetThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *eventbus.Subscription
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{AttemptBegun: func(a eventbus.Attempt) {
			if a.ID == 1 {
				assert.NoError(t, s.Pause())
			}
		}}))
		calls := newCoreCalls()
		s = mustSubscribe(t, bus, "a", calls.handler("s"))
		mustPublish(t, bus, "a", "1")
		coreSettle()
		require.Zero(t, calls.len())
		require.Equal(t, 1, bus.Metrics().Held)
		require.NoError(t, s.Resume())
		coreSettle()
		require.Equal(t, 1, calls.len())
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// A letter of a bus without isolation may be for several subscriptions. Replayed on
// a bus with isolation, it is a dispatch for each.
func TestD10_AnImportedLetterIsReplayedInIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := func(context.Context, eventbus.Event) error { return errGap }
		var export bytes.Buffer
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", failing, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("second"))
		mustPublish(t, bus, "a", 1)
		coreSettle()
		_, err := bus.DLQ().Export(t.Context(), &export, eventbus.LetterQuery{})
		require.NoError(t, err)
		shutdown(t, bus)

		bus, _ = startBus(t, eventbus.WithIsolation(), eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", failing, eventbus.Named("first"))
		calls := newCoreCalls()
		mustSubscribe(t, bus, "a", calls.handler("second"), eventbus.Named("second"))
		_, err = bus.DLQ().Import(t.Context(), &export)
		require.NoError(t, err)
		require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
		coreSettle()
		require.Equal(t, 1, calls.len(), "it does not wait for the first")
		again := oneLetter(t, bus)
		require.Equal(t, "first", again.Subscription)
		require.Empty(t, again.NotReached)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Copies)
		shutdown(t, bus)
	})
}

// A dispatch that is held whole gives up its key's place: events of the key for other
// subscriptions go on.
func TestD5_WhatIsHeldWholeHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		s := mustSubscribe(t, bus, "a", calls.handler("s"))
		mustSubscribe(t, bus, "b", calls.handler("other"))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		mustPublish(t, bus, "b", "2", eventbus.Key("k"))
		coreSettle()
		require.Equal(t, 1, calls.len())
		require.Equal(t, 1, bus.Metrics().Held)
		require.NoError(t, s.Resume())
		coreSettle()
		require.Equal(t, 2, calls.len())
		shutdown(t, bus)
	})
}
