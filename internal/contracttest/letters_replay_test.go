package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestL3_ReplayEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		var got journal[any]
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			got.add(e.Payload)
			if e.Payload == "good" {
				return nil
			}
			return eventbus.Permanent(fmt.Errorf("bad payload: %v", e.Payload))
		}, eventbus.Named("s"))
		id := mustPublish(t, bus, "a", "bad", eventbus.Metadata("k", "v"))
		synctest.Wait()
		first := oneLetter(t, bus)
		require.False(t, first.Edited)
		require.Nil(t, first.Original)
		for _, payload := range []any{"worse", nil} {
			l := oneLetter(t, bus)
			require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, payload))
			require.ErrorIs(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, payload), eventbus.ErrNotFound)
			synctest.Wait()
			again := oneLetter(t, bus)
			require.True(t, again.Edited)
			require.Equal(t, "bad", again.Original, "the very first")
			require.Equal(t, payload, again.Event.Payload)
			require.Equal(t, id, again.Event.ID)
			require.Equal(t, "v", again.Event.Metadata.Get("k"))
			require.Equal(t, first.Event.Time, again.Event.Time)
			require.Len(t, again.Failures, again.Replays+1)
		}
		// Replayed as it is, it is still edited.
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		last := oneLetter(t, bus)
		require.True(t, last.Edited)
		require.Equal(t, "bad", last.Original)
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), last.ID, "good"))
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.Equal(t, []any{"bad", "worse", nil, nil, "good"}, got.all())
		require.ErrorIs(t, bus.DLQ().ReplayEdited(nil, last.ID, nil), eventbus.ErrNilContext) //nolint:staticcheck // nil is the point
		shutdown(t, bus)
	})
}

// A payload of nil was one, too; and what could not be replayed is as it was.
func TestL3_ReplayEditedKeepsANilPayloadAndALetterThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, 1))
		synctest.Wait()
		l = oneLetter(t, bus)
		require.True(t, l.Edited)
		require.Nil(t, l.Original)
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, 2))
		synctest.Wait()
		l = oneLetter(t, bus)
		require.Nil(t, l.Original)
		s.Unsubscribe()
		require.ErrorIs(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, 3), eventbus.ErrNoSubscription)
		require.Equal(t, l, oneLetter(t, bus))
		shutdown(t, bus)
	})
}

// Replays of one event that come one after the other, with payloads of their own.
func TestL3_AnEditIsThatOfOneReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithConcurrency(1), eventbus.WithIsolation())
		seen := map[string][]any{}
		for _, name := range []string{"first", "second", "third"} {
			mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
				seen[name] = append(seen[name], e.Payload)
				if e.Payload == "original" && len(seen[name]) == 1 {
					return eventbus.Permanent(errDead)
				}
				return nil
			}, eventbus.Named(name))
		}
		mustPublish(t, bus, "a", "original")
		synctest.Wait()
		release := blockWorker(t, bus)
		for _, l := range letters(t, bus) {
			if l.Subscription == "third" {
				require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
			} else {
				require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, "edited for "+l.Subscription))
			}
		}
		release()
		synctest.Wait()
		require.Equal(t, map[string][]any{
			"first": {"original", "edited for first"}, "second": {"original", "edited for second"}, "third": {"original", "original"},
		}, seen)
		shutdown(t, bus)
	})
}

// What a shut door skips becomes a letter of its own, with the edit.
func TestL3_ReplayEditedSurvivesASplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithConcurrency(1))
		first := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("first"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("second"))
		mustPublish(t, bus, "a", "original")
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, []string{"second"}, l.NotReached)
		release := blockWorker(t, bus)
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, "edited"))
		first.Unsubscribe()
		release()
		synctest.Wait()
		l = oneLetter(t, bus)
		require.Equal(t, "first", l.Subscription)
		require.True(t, l.Edited)
		require.Equal(t, "original", l.Original)
		require.Equal(t, "edited", l.Event.Payload)
		shutdown(t, bus)
	})
}

func TestL3_ReplayGoesToThoseThatDidNotSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		var ran journal[string]
		broken := true
		for _, name := range []string{"first", "second", "third"} {
			mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				ran.add(fmt.Sprintf("%s %d/%d", name, d.Replays, d.Attempt))
				if name == "second" && broken {
					return errDead
				}
				return nil
			}, eventbus.Named(name))
		}
		id := mustPublish(t, bus, "a", "payload", eventbus.Metadata("k", "v"))
		time.Sleep(time.Minute)
		l := oneLetter(t, bus)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		time.Sleep(time.Minute)
		again := oneLetter(t, bus)
		require.NotEqual(t, l.ID, again.ID)
		require.Equal(t, id, again.Event.ID)
		require.Equal(t, "payload", again.Event.Payload)
		require.Equal(t, "v", again.Event.Metadata.Get("k"))
		require.Equal(t, l.Event.Time, again.Event.Time)
		require.Equal(t, 1, again.Replays)
		require.Equal(t, 2, again.Attempts, "fresh ones")
		require.Equal(t, []string{"first"}, again.Succeeded)
		require.Equal(t, []string{"third"}, again.NotReached)
		require.Len(t, again.Failures, 4, "the whole history")
		require.Equal(t, l.Failures, again.Failures[:2])
		require.Equal(t, 1, again.Failures[2].Replays)

		broken = false
		require.NoError(t, bus.DLQ().Replay(t.Context(), again.ID))
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.Equal(t, []string{
			"first 0/1", "second 0/1", "second 0/2",
			"second 1/1", "second 1/2",
			"second 2/1", "third 2/1",
		}, ran.all())
		ledger := bus.Metrics().Ledger
		require.EqualValues(t, 2, ledger.Replays)
		require.EqualValues(t, 2, ledger.DeadLettered)
		require.EqualValues(t, 1, ledger.Handled)
		shutdown(t, bus)
	})
}

func TestL3_TheHistoryIsTrimmedOverReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(59, 0)), eventbus.WithCircuit(eventbus.NoCircuit()))
		n := 0
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			n++
			return fmt.Errorf("failure %d", n)
		})
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		require.Len(t, oneLetter(t, bus).Failures, 60)
		for range 2 {
			require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
			synctest.Wait()
		}
		l := oneLetter(t, bus)
		require.Len(t, l.Failures, 100)
		require.Equal(t, 80, l.FailuresOmitted)
		require.Equal(t, "failure 10", l.Failures[9].Error)
		require.Equal(t, "failure 91", l.Failures[10].Error)
		require.Equal(t, "failure 180", l.Failures[99].Error)
		shutdown(t, bus)
	})
}

func TestL3_OneOfManyReplaysWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		fill(t, bus, 1)
		l := oneLetter(t, bus)
		var won, lost journal[error]
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if err := bus.DLQ().Replay(t.Context(), l.ID); err != nil {
					lost.add(err)
				} else {
					won.add(nil)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, won.len())
		for _, err := range lost.all() {
			require.ErrorIs(t, err, eventbus.ErrNotFound)
		}
		synctest.Wait()
		require.NoError(t, bus.DLQ().Purge(t.Context(), oneLetter(t, bus).ID))
		require.ErrorIs(t, bus.DLQ().Purge(t.Context(), l.ID), eventbus.ErrNotFound)
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), eventbus.LetterID{7}), eventbus.ErrNotFound)
		_, err := bus.DLQ().Get(t.Context(), l.ID)
		require.ErrorIs(t, err, eventbus.ErrNotFound)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Replays)
		shutdown(t, bus)
	})
}

func TestL3_WithoutItsSubscriptionTheLetterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("billing"))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		s.Unsubscribe()
		l := oneLetter(t, bus)
		err := bus.DLQ().Replay(t.Context(), l.ID)
		require.ErrorIs(t, err, eventbus.ErrNoSubscription)
		require.ErrorContains(t, err, `"billing"`)
		report, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Zero(t, report.Replayed)
		require.Len(t, report.Stayed, 1)
		require.ErrorIs(t, report.Stayed[0].Err, eventbus.ErrNoSubscription)
		require.Equal(t, l.ID, oneLetter(t, bus).ID)
		requireBalanced(t, bus)

		mustSubscribe(t, bus, "something.else", ok, eventbus.Named("billing"))
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID), "the name is what counts")
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

func TestL3_ReplayBeforeStartAndAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		fill(t, bus, 1)
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), l.ID), eventbus.ErrShutdown)
		_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		require.Equal(t, l.ID, oneLetter(t, bus).ID)
		requireBalanced(t, bus)
		require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID), "an operator may still tidy up")
	})
}

// Both the history and what is added to it may be beyond the bound.
func TestL3_HistoriesOfAnyLengthAreCountedRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rounds := rapid.SliceOfN(rapid.IntRange(1, 260), 1, 4).Draw(rt, "attempts of each round")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, silent(eventbus.WithRetry(retry(eventbus.Unlimited, 0)), eventbus.WithCircuit(eventbus.NoCircuit()))...)
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
		bus, _ := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", failBroken, eventbus.Named("sick"), eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		publishScripts(t, bus, "a", nil)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonCircuitOpen, l.Reason)
		require.Equal(t, 1, l.Replays)
		require.Contains(t, l.Succeeded, "first")
		require.Equal(t, []string{"0.1 sick broken"}, failureTexts(l.Failures))
		require.Zero(t, l.Attempts)
		require.Equal(t, int64(1), metricsOf(t, bus, "last").Successes)
	})
}

// A name that has been subscribed again comes later now.
func TestL3_ReplayVisitsInTheOrderOfSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
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
		publishScripts(t, bus, "a", nil)
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
	bus, _ := startBus(t, silent(oneAttempt)...)
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
			bus, _ := startBus(t, silent(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))...)
			mustSubscribe(t, bus, "a", failBroken)
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
			wg.Go(func() { _ = cutShort(t, bus) })
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

// A payload that is no JSON would make the letters that it gets into impossible to export.
func TestL3_ReplayEditedRefusesInvalidJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		bus := lettersOf(t, 1, errDead, withoutCircuit)
		before := oneLetter(t, bus)
		for _, bad := range []string{"", " ", "{", `{"a":}`, "1 2", strings.Repeat("[", 100_000)} {
			err := bus.DLQ().ReplayEdited(ctx, before.ID, json.RawMessage(bad))
			var refused *eventbus.EventError
			require.ErrorAs(t, err, &refused, bad)
			require.Equal(t, "payload", refused.Field)
			require.Less(t, len(err.Error()), 500)
			require.NotErrorIs(t, err, eventbus.ErrNotFound)
			require.Equal(t, before, oneLetter(t, bus))
		}
		require.Zero(t, bus.Metrics().Ledger.Replays)
		for _, good := range []json.RawMessage{nil, json.RawMessage(` {"a": 1}` + "\n"), json.RawMessage(`null`)} {
			require.NoError(t, bus.DLQ().ReplayEdited(ctx, oneLetter(t, bus).ID, good))
			synctest.Wait()
			exportLetters(t, bus)
		}
		shutdown(t, bus)
	})
}

// The name of an unnamed subscription has its own number, although another one was given its name.
func TestL3_ALetterOfAnUnnamedSubscriptionGoesToNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "y", ok, eventbus.Named("x#2"))
		first := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return errBoom })
		require.Same(t, first, bus.Subscription(first.ID()))
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, errBoom)
		first.Unsubscribe()
		mustSubscribe(t, bus, "x", ok)
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, first.ID(), page.Letters[0].Subscription)
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), page.Letters[0].ID), eventbus.ErrNoSubscription)
		shutdown(t, bus)
	})
}
