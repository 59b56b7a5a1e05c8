package contracttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/wallclock"
)

// notices is the time in which the bus notices an expiry.
const notices = time.Minute

// notingCalls subscribes a handler that notes its name and the payloads, and does with each what act says, if it is set.
func notingCalls(t *testing.T, bus *eventbus.Bus, got *journal[string], name, pattern string, act eventbus.Handler, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, bus, pattern, func(ctx context.Context, e eventbus.Event) error {
		return eventbus.Typed(func(ctx context.Context, payload string) error {
			got.add(name + " " + payload)
			if act != nil {
				return act(ctx, e)
			}
			return nil
		})(ctx, e)
	}, append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
}

// requireTooLate requires that the only dead letter is of an event that expired before its handler was called.
func requireTooLate(t *testing.T, bus *eventbus.Bus, subscription string) eventbus.DeadLetter {
	t.Helper()
	l := oneLetter(t, bus)
	require.Equal(t, eventbus.ReasonTooLate, l.Reason)
	require.Equal(t, subscription, l.Subscription)
	require.Zero(t, l.Attempts)
	require.Empty(t, l.Failures)
	require.False(t, l.DiedAt.Before(l.Event.Expires))
	require.LessOrEqual(t, l.DiedAt.Sub(l.Event.Expires), notices)
	return l
}

// takesAnHour is a handler that does not look at its deadline.
func takesAnHour(context.Context, eventbus.Event) error {
	time.Sleep(time.Hour)
	return nil
}

// Behind a busy worker, an expiry is noticed before the worker is free. Events that expire later are handled.
func TestE9_InTheQueue(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "slow", "slow", takesAnHour, eventbus.Timeout(2*time.Hour))
		notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "slow", "x")
		synctest.Wait()
		mustPublish(t, bus, "a", "early", eventbus.ExpiresIn(5*time.Second))
		mustPublish(t, bus, "a", "in time", eventbus.ExpiresIn(2*time.Hour))
		mustPublish(t, bus, "a", "never")
		time.Sleep(5*time.Second + notices)
		synctest.Wait()
		requireTooLate(t, bus, "s")
		requireBalanced(t, bus)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"slow x", "s in time", "s never"}, got.all())
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// When its turn comes, an event is refused to the nanosecond.
func TestE9_WhenItsTurnComes(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		busy := func(context.Context, eventbus.Event) error { time.Sleep(10 * time.Second); return nil }
		notingCalls(t, bus, &got, "busy", "busy", busy, eventbus.Timeout(time.Minute))
		notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "busy", "x")
		synctest.Wait()
		ends := time.Now().Add(10 * time.Second)
		mustPublish(t, bus, "a", "late", eventbus.ExpiresAt(ends))
		mustPublish(t, bus, "a", "in time", eventbus.ExpiresAt(ends.Add(time.Millisecond)))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"busy x", "s in time"}, got.all())
		l := requireTooLate(t, bus, "s")
		require.Equal(t, ends.UTC(), l.Event.Expires)
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// Whatever keeps a delivery from its handler, the event expires, and what is parked behind it goes on.
func TestE9_BehindADoor(t *testing.T) {
	type shut struct {
		opts []eventbus.SubscribeOption
		shut func(t *testing.T, s *eventbus.Subscription)
		open func(t *testing.T, s *eventbus.Subscription)
	}
	resume := func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Resume()) }
	for name, by := range map[string]shut{
		"paused": {
			shut: func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Pause()) }, open: resume,
		},
		"circuit": {
			opts: []eventbus.SubscribeOption{eventbus.Circuit(eventbus.OpenFor(time.Hour))},
			shut: func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Trip()) },
			open: func(*testing.T, *eventbus.Subscription) { time.Sleep(time.Hour) },
		},
		"destination": {
			opts: []eventbus.SubscribeOption{eventbus.PerDestination(func(eventbus.Event) string { return "there" })},
			shut: func(t *testing.T, s *eventbus.Subscription) {
				require.NoError(t, s.Destination("there").Pause())
			},
			open: func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Destination("there").Resume()) },
		},
	} {
		for _, k := range []string{"", "k"} {
			t.Run(name+k, func(t *testing.T) {
				onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
					var got journal[string]
					s := notingCalls(t, bus, &got, "s", "a", nil, by.opts...)
					require.NoError(t, bus.Start(t.Context()))
					by.shut(t, s)
					id := mustPublish(t, bus, "a", "late", eventbus.Key(k), eventbus.ExpiresIn(time.Second))
					mustPublish(t, bus, "a", "in time", eventbus.Key(k), eventbus.ExpiresIn(24*time.Hour))
					synctest.Wait()
					status, err := bus.Event(t.Context(), id)
					require.NoError(t, err)
					require.Len(t, status.Dispatches, 1)
					require.Equal(t, eventbus.DispatchParked, status.Dispatches[0].State)
					require.Equal(t, time.Now().Add(time.Second).UTC(), status.Dispatches[0].Expires.Round(0))
					time.Sleep(time.Second + notices)
					synctest.Wait()
					requireTooLate(t, bus, "s")
					require.Equal(t, 1, metricsOf(t, bus, "s").Parked())
					requireBalanced(t, bus)
					by.open(t, s)
					synctest.Wait()
					require.Equal(t, []string{"s in time"}, got.all())
					shutdown(t, bus)
				})
			})
		}
	}
}

// A detached subscription keeps no events that have expired.
func TestE9_Detached(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		require.NoError(t, notingCalls(t, bus, &got, "s", "a", nil).Detach())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Second))
		mustPublish(t, bus, "a", "in time", eventbus.ExpiresIn(time.Hour))
		time.Sleep(time.Second + notices)
		synctest.Wait()
		requireTooLate(t, bus, "s")
		notingCalls(t, bus, &got, "s", "a", nil)
		synctest.Wait()
		require.Equal(t, []string{"s in time"}, got.all())
		shutdown(t, bus)
	})
}

// Events that wait for a limit, or for an earlier event of their key, expire.
func TestE9_BehindALimit(t *testing.T) {
	for name, opts := range map[string][]eventbus.SubscribeOption{
		"concurrency": {eventbus.Concurrency(1)},
		"rate":        {eventbus.RateLimit(1, time.Hour, 1)},
		"key":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var got journal[string]
				notingCalls(t, bus, &got, "s", "a", takesAnHour, append(opts, eventbus.Timeout(2*time.Hour))...)
				require.NoError(t, bus.Start(t.Context()))
				k := eventbus.Key("")
				if name == "key" {
					k = eventbus.Key("k")
				}
				mustPublish(t, bus, "a", "first", k)
				synctest.Wait()
				mustPublish(t, bus, "a", "late", k, eventbus.ExpiresIn(time.Minute))
				mustPublish(t, bus, "a", "second", k, eventbus.ExpiresIn(3*time.Hour))
				time.Sleep(time.Minute + notices)
				synctest.Wait()
				requireTooLate(t, bus, "s")
				requireBalanced(t, bus)
				time.Sleep(3 * time.Hour)
				synctest.Wait()
				require.Equal(t, []string{"s first", "s second"}, got.all())
				shutdown(t, bus)
			})
		})
	}
}

// A retry that could only begin at the expiry or later is not scheduled.
func TestE9_ARetryThatWouldBeTooLate(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", failing(errBoom), eventbus.DropExpired())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(20*time.Second))
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonTooLate, l.Reason)
		require.Equal(t, []string{"0.1 s boom", "0.2 s boom"}, failureTexts(l.Failures))
		require.Equal(t, 2, l.Attempts)
		require.True(t, l.DiedAt.Before(l.Event.Expires), "the letter is made at once")
		require.Equal(t, []string{"s x", "s x"}, got.all())
		shutdown(t, bus)
	}, eventbus.WithRetry(retry(5, 10*time.Second)))
}

// RetryAfter counts, too.
func TestE9_ARetryAfterThatWouldBeTooLate(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", failing(eventbus.RetryAfter(errBoom, time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Hour))
		synctest.Wait()
		require.Equal(t, eventbus.ReasonTooLate, oneLetter(t, bus).Reason)
		shutdown(t, bus)
	})
}

// A retry that was scheduled in time, and comes too late, becomes a letter: its handler was called.
func TestE9_ARetryThatCameTooLate(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		s := notingCalls(t, bus, &got, "s", "a", failing(errBoom), eventbus.DropExpired())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(15*time.Second))
		synctest.Wait()
		require.NoError(t, s.Pause())
		time.Sleep(15*time.Second + notices)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonTooLate, l.Reason)
		require.Equal(t, []string{"0.1 s boom"}, failureTexts(l.Failures))
		require.Equal(t, 1, l.Attempts)
		require.Equal(t, []string{"s x"}, got.all())
		shutdown(t, bus)
	}, eventbus.WithRetry(retry(5, 10*time.Second)))
}

// A snooze that would end at the expiry or later makes the letter at once. A shorter one that is followed by a shut door, later.
func TestE9_ASnooze(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", failing(eventbus.Snooze(time.Hour)), eventbus.DropExpired())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Hour))
		synctest.Wait()
		l := requireAtOnce(t, bus)
		require.Empty(t, l.Failures)
		require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID))

		s := notingCalls(t, bus, &got, "t", "b", failing(eventbus.Snooze(time.Hour)), eventbus.DropExpired())
		mustPublish(t, bus, "b", "y", eventbus.Key("k"), eventbus.ExpiresIn(time.Hour+time.Second))
		synctest.Wait()
		require.Equal(t, 1, metricsOf(t, bus, "t").Snoozed)
		require.NoError(t, s.Pause())
		time.Sleep(time.Hour + time.Second + notices)
		synctest.Wait()
		require.Equal(t, eventbus.ReasonTooLate, oneLetter(t, bus).Reason)
		require.Equal(t, []string{"s x", "t y"}, got.all())
		shutdown(t, bus)
	})
}

// requireAtOnce requires a letter that was made before the expiry.
func requireAtOnce(t *testing.T, bus *eventbus.Bus) eventbus.DeadLetter {
	t.Helper()
	l := oneLetter(t, bus)
	require.Equal(t, eventbus.ReasonTooLate, l.Reason)
	require.True(t, l.DiedAt.Before(l.Event.Expires))
	return l
}

// A call that has begun is not stopped, also if other targets are too late.
func TestE9_ACallIsNotStopped(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", takesAnHour, eventbus.Timeout(2*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		result, err := bus.PublishAndWait(t.Context(), "a", "x", eventbus.ExpiresIn(time.Second))
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, result.Outcome)
		require.Equal(t, 1, result.Attempts)
		shutdown(t, bus)
	})
}

// Of a coupled event, the targets that have not begun are looked at in their order.
func TestE9_CoupledTargets(t *testing.T) {
	drops := []eventbus.SubscribeOption{eventbus.DropExpired()}
	for name, c := range map[string]struct {
		opts       [4][]eventbus.SubscribeOption
		letter     string // its subscription, or ""
		notReached []string
		dropped    int64
		outcome    eventbus.Outcome
	}{
		"none drops":     {letter: "b", notReached: []string{"c", "d"}, outcome: eventbus.DeadLettered},
		"the first":      {opts: [4][]eventbus.SubscribeOption{1: drops}, letter: "c", notReached: []string{"d"}, dropped: 1, outcome: eventbus.DeadLettered},
		"the last":       {opts: [4][]eventbus.SubscribeOption{3: drops}, letter: "b", notReached: []string{"c", "d"}, outcome: eventbus.DeadLettered},
		"all but one":    {opts: [4][]eventbus.SubscribeOption{1: drops, 2: drops}, letter: "d", dropped: 2, outcome: eventbus.DeadLettered},
		"all that are":   {opts: [4][]eventbus.SubscribeOption{1: drops, 2: drops, 3: drops}, dropped: 3, outcome: eventbus.Handled},
		"and the begun":  {opts: [4][]eventbus.SubscribeOption{drops, drops, drops, drops}, dropped: 3, outcome: eventbus.Handled},
		"the second one": {opts: [4][]eventbus.SubscribeOption{0: drops, 2: drops}, letter: "b", notReached: []string{"c", "d"}, outcome: eventbus.DeadLettered},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var got journal[string]
				for i, name := range []string{"a", "b", "c", "d"} {
					act := eventbus.Handler(ok)
					if i == 0 {
						act = func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil }
					}
					notingCalls(t, bus, &got, name, "x", act, c.opts[i]...)
				}
				require.NoError(t, bus.Start(t.Context()))
				result, err := bus.PublishAndWait(t.Context(), "x", "1", eventbus.ExpiresIn(time.Second))
				require.Equal(t, c.outcome, result.Outcome)
				require.Equal(t, []string{"a 1"}, got.all())
				synctest.Wait() // the answer comes before the last count of what is being recorded
				l := bus.Metrics().Ledger
				require.Equal(t, c.dropped, l.Dropped)
				require.True(t, l.Balanced(), "%+v", l)
				if c.letter == "" {
					require.NoError(t, err)
					require.Empty(t, letters(t, bus))
					shutdown(t, bus)
					return
				}
				var dead *eventbus.DeliveryError
				require.ErrorAs(t, err, &dead)
				letter := oneLetter(t, bus)
				require.Equal(t, []eventbus.LetterID{letter.ID}, result.Letters)
				require.Equal(t, eventbus.ReasonTooLate, letter.Reason)
				require.Equal(t, c.letter, letter.Subscription)
				require.Equal(t, c.notReached, letter.NotReached)
				require.Equal(t, []string{"a"}, letter.Succeeded)
				require.NoError(t, bus.DLQ().Replay(t.Context(), letter.ID))
				synctest.Wait()
				require.Len(t, got.all(), 2+len(c.notReached))
				shutdown(t, bus)
			})
		})
	}
}

// On a bus with isolation, each target has a letter, or drops the event.
func TestE9_IsolatedTargets(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		a := notingCalls(t, bus, &got, "a", "x", nil)
		b := notingCalls(t, bus, &got, "b", "x", nil, eventbus.DropExpired())
		notingCalls(t, bus, &got, "c", "x", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, errors.Join(a.Pause(), b.Pause()))
		mustPublish(t, bus, "x", "1", eventbus.ExpiresIn(time.Second))
		time.Sleep(time.Second + notices)
		synctest.Wait()
		require.Equal(t, []string{"c 1"}, got.all())
		requireTooLate(t, bus, "a")
		require.EqualValues(t, 1, bus.Metrics().Ledger.Dropped)
		shutdown(t, bus)
	}, eventbus.WithIsolation())
}

// DropExpired drops without a letter, and the metrics name the option.
func TestE9_DropExpired(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		s := notingCalls(t, bus, &got, "s", "a", nil, eventbus.DropExpired())
		require.NoError(t, bus.Start(t.Context()))
		require.True(t, metricsOf(t, bus, "s").Options.DropExpired)
		require.NoError(t, s.Pause())
		id := mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Second))
		time.Sleep(time.Second + notices)
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		l := bus.Metrics().Ledger
		require.EqualValues(t, 1, l.Dropped)
		require.True(t, l.Balanced(), "%+v", l)
		require.Equal(t, []string{"s dropped 0"}, endsOf(t, bus, id))
		require.Empty(t, got.all())
		shutdown(t, bus)
	})
}

// For an hour after the wall clock was set ahead, nothing is dropped by age. Letters are made as usual.
func TestE9_AStepOfTheClock(t *testing.T) {
	for _, kind := range []string{"memory", "store"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := wallclock.New()
				open := func() (bus *eventbus.Bus) {
					if bus, _ = newBus(t, eventbus.WithClock(c)); kind == "store" {
						bus, _ = newDisk().open(t, eventbus.WithClock(c))
					}
					return bus
				}
				bus := open()
				var got journal[string]
				drops := notingCalls(t, bus, &got, "drops", "a", nil, eventbus.DropExpired())
				keeps := notingCalls(t, bus, &got, "keeps", "b", nil)
				require.NoError(t, bus.Start(t.Context()))
				require.NoError(t, errors.Join(drops.Pause(), keeps.Pause()))
				at := c.Now().Add(24 * time.Hour)
				mustPublish(t, bus, "a", "x", eventbus.ExpiresAt(at))
				mustPublish(t, bus, "b", "y", eventbus.ExpiresAt(at))
				mustPublish(t, bus, "a", "later", eventbus.ExpiresAt(at.Add(2*time.Hour)))
				time.Sleep(10 * time.Minute)
				require.Empty(t, letters(t, bus))
				c.Advance(24 * time.Hour)
				time.Sleep(notices)
				synctest.Wait()
				require.Len(t, letters(t, bus), 2, "also of the one that would be dropped")
				require.Zero(t, bus.Metrics().Ledger.Dropped)
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				require.EqualValues(t, 1, bus.Metrics().Ledger.Dropped)
				require.Empty(t, got.all())
				shutdown(t, bus)
			})
		})
	}
}

// A wall clock that is set back makes no event late.
func TestE9_TheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		bus, _ := startBus(t, eventbus.WithClock(c))
		var got journal[string]
		s := notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Hour))
		c.Advance(-2 * time.Hour)
		time.Sleep(2 * time.Hour)
		require.NoError(t, s.Resume())
		synctest.Wait()
		require.Equal(t, []string{"s x"}, got.all())
		shutdown(t, bus)
	})
}

// Publish refuses an expiry that would call no handler, and says what to do.
func TestE9_BadExpiries(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		now := time.Now()
		options := func(opts ...eventbus.PublishOption) []eventbus.PublishOption { return opts }
		for _, c := range []struct {
			opts []eventbus.PublishOption
			text string
		}{
			{options(eventbus.ExpiresAt(time.Time{})), "is zero; omit the option"},
			{options(eventbus.ExpiresIn(0)), "must be positive; omit the option"},
			{options(eventbus.ExpiresIn(-time.Second)), "must be positive"},
			{options(eventbus.ExpiresAt(now)), "has passed: no handler would be called; give a later one"},
			{options(eventbus.ExpiresAt(now.Add(-time.Nanosecond))), "has passed"},
			{options(eventbus.ExpiresAt(time.Unix(-1e15, 0))), "has passed"},
			{options(eventbus.ExpiresIn(time.Hour), eventbus.ExpiresAt(now)), "has passed"},
			{options(eventbus.ExpiresAt(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))), "year"},
			{options(eventbus.IdempotencyKey("k"), eventbus.ExpiresAt(time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC))), "year"},
			{options(eventbus.ID(eventbus.DeriveID(eventbus.EventID{1}, "n")), eventbus.ExpiresAt(time.Unix(-1e15, 0))), "year"},
			{options(eventbus.After(time.Minute), eventbus.ExpiresIn(time.Minute)), "is not after the event is due, at "},
			{options(eventbus.At(now.Add(time.Hour)), eventbus.ExpiresIn(time.Hour)), "is not after the event is due, at "},
			{options(eventbus.ExpiresAt(now.Add(time.Minute)), eventbus.At(now.Add(time.Hour))), "give a later one, or a shorter delay"},
		} {
			opts, text := c.opts, c.text
			_, err := bus.Publish(t.Context(), "a", "x", opts...)
			var bad *eventbus.EventError
			require.ErrorAs(t, err, &bad, text)
			require.Equal(t, "expiry", bad.Field)
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
			require.ErrorContains(t, err, text)
			_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "a", Payload: "ok"}, {Type: "a", Payload: "x", Options: opts}})
			var batch *eventbus.BatchError
			require.ErrorAs(t, err, &batch)
			require.Equal(t, 1, batch.Index)
			_, err = bus.PublishAndWait(t.Context(), "a", "x", opts...)
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		}
		require.Zero(t, bus.Metrics().Ledger.Accepted)
		shutdown(t, bus)
	})
}

// The last of the two options applies, and the event shows the instant.
func TestE9_TheEventShowsIt(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var seen journal[time.Time]
		s := mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			delivery, _ := eventbus.FromContext(ctx)
			seen.add(e.Expires)
			seen.add(delivery.Event.Expires)
			return nil
		}, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		at := time.Now().Add(time.Hour + 123)
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Minute), eventbus.ExpiresAt(at.In(time.FixedZone("there", 3600))))
		mustPublish(t, bus, "a", "x", eventbus.ExpiresAt(at), eventbus.ExpiresIn(time.Minute))
		mustPublish(t, bus, "a", "x")
		synctest.Wait()
		in := time.Now().Add(time.Minute).UTC()
		require.ElementsMatch(t, []time.Time{at.UTC(), at.UTC(), in, in, {}, {}}, seen.all())
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", "x", eventbus.ExpiresAt(at))
		mustPublish(t, bus, "a", "y", eventbus.After(time.Minute), eventbus.ExpiresAt(at))
		synctest.Wait()
		page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{})
		require.NoError(t, err)
		require.Len(t, page.Dispatches, 2)
		for _, d := range page.Dispatches {
			require.Equal(t, at.UTC(), d.Expires)
		}
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		synctest.Wait()
		shutdown(t, bus)
	})
}

// A replay does not expire.
func TestE9_AReplayDoesNotExpire(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		var expires journal[time.Time]
		s := notingCalls(t, bus, &got, "s", "a", func(_ context.Context, e eventbus.Event) error { expires.add(e.Expires); return nil })
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Second))
		time.Sleep(time.Second + notices)
		synctest.Wait()
		l := requireTooLate(t, bus, "s")
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		time.Sleep(time.Hour)
		require.NoError(t, s.Resume())
		synctest.Wait()
		require.Equal(t, []string{"s x"}, got.all())
		require.Equal(t, []time.Time{{}}, expires.all())
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

// A scheduled event expires after it is due. Cancel finds it until then.
func TestE9_AScheduledEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		s := notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "in time", eventbus.After(time.Minute), eventbus.ExpiresIn(2*time.Minute))
		mustPublish(t, bus, "a", "late", eventbus.At(time.Now().Add(time.Hour)), eventbus.ExpiresIn(time.Hour+time.Second))
		cancelled := mustPublish(t, bus, "a", "cancelled", eventbus.After(time.Hour), eventbus.ExpiresIn(2*time.Hour))
		require.NoError(t, cancelEvent(t.Context(), bus, cancelled))
		time.Sleep(30 * time.Minute)
		require.NoError(t, s.Pause())
		time.Sleep(30*time.Minute + time.Second + notices)
		synctest.Wait()
		require.Equal(t, []string{"s in time"}, got.all())
		requireTooLate(t, bus, "s")
		shutdown(t, bus)
	})
}

// While no process runs, events expire in the store. The next process makes the letters, and the replay is handled.
func TestE9_WhileNoProcessRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		for _, end := range []string{"shutdown", "crash"} {
			bus, _ := disk.open(t)
			s := disk.handles(t, bus, "mail", nil)
			require.NoError(t, bus.Start(t.Context()))
			require.NoError(t, s.Pause())
			for _, k := range []string{"", "k"} {
				mustPublish(t, bus, "a", "late", eventbus.Key(k), eventbus.ExpiresIn(time.Minute))
				mustPublish(t, bus, "a", "in time", eventbus.Key(k), eventbus.ExpiresIn(24*time.Hour))
			}
			mustPublish(t, bus, "a", "scheduled", eventbus.After(time.Minute), eventbus.ExpiresIn(2*time.Minute))
			synctest.Wait()
			if end == "shutdown" {
				shutdown(t, bus)
			} else {
				disk.crash(bus)
			}
			time.Sleep(time.Hour)
			again, _ := disk.open(t)
			s = disk.handles(t, again, "mail", nil)
			require.NoError(t, again.Start(t.Context()))
			time.Sleep(notices)
			synctest.Wait()
			all := letters(t, again)
			require.Len(t, all, 3)
			for _, l := range all {
				require.Equal(t, eventbus.ReasonTooLate, l.Reason)
			}
			require.Empty(t, disk.took())
			require.NoError(t, s.Resume())
			require.ElementsMatch(t, []string{"mail in time 1", "mail in time 1"}, disk.took())
			for _, l := range all {
				require.NoError(t, again.DLQ().Replay(t.Context(), l.ID))
			}
			require.Len(t, disk.took(), 3)
			requireBalanced(t, again)
			shutdown(t, again)
		}
	})
}

// An expired event of a subscription that a deploy has removed becomes a letter of that name, and takes no room.
func TestE9_AnOrphan(t *testing.T) {
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			old, _ := disk.open(t, opts...)
			require.NoError(t, errors.Join(disk.handles(t, old, "gone", nil).Pause(), disk.handles(t, old, "stays", nil).Pause()))
			require.NoError(t, old.Start(t.Context()))
			mustPublish(t, old, "a", "late", eventbus.ExpiresIn(time.Minute))
			synctest.Wait()
			shutdown(t, old)

			bus, _ := disk.open(t, append(opts, eventbus.WithMaxUnsettled(2), eventbus.RefuseWhenFull())...)
			disk.handles(t, bus, "stays", nil)
			require.NoError(t, bus.Start(t.Context()))
			require.NoError(t, bus.Subscription("stays").Resume())
			require.Equal(t, []string{"stays late 1"}, disk.took())
			ids := requireRoomFor(t, bus, 2)
			time.Sleep(time.Minute + notices)
			synctest.Wait()
			l := oneLetter(t, bus)
			require.Equal(t, "gone", l.Subscription)
			require.Equal(t, eventbus.ReasonTooLate, l.Reason)
			cancelAll(t, bus, ids)
			cancelAll(t, bus, requireRoomFor(t, bus, 2))
			requireBalanced(t, bus)
			shutdown(t, bus)
		})
	}
}

// An event may expire while it waits to be taken in. Then it is too late there.
func TestE9_TakenInTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Minute))
		mustPublish(t, bus, "a", "in time", eventbus.ExpiresIn(time.Hour))
		mustPublish(t, bus, "a", "scheduled", eventbus.After(time.Second), eventbus.ExpiresIn(time.Minute))
		time.Sleep(2 * time.Minute)
		require.NoError(t, bus.Start(t.Context()))
		require.Equal(t, []string{"mail in time 1"}, disk.took())
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "late, too", eventbus.ExpiresIn(time.Minute))
		require.NoError(t, err)
		_, err = bus.PublishTx(t.Context(), tx, "a", "refused", eventbus.ExpiresAt(time.Now()))
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		time.Sleep(2 * time.Minute)
		require.NoError(t, tx.Commit())
		time.Sleep(notices)
		require.Empty(t, disk.took())
		all := letters(t, bus)
		require.Len(t, all, 3)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonTooLate, l.Reason)
		}
		shutdown(t, bus)
	})
}

// Thousands of events that expire at once become letters, and the others go on: in a line, and in the queue of a store that memory has
// no room for.
func TestE9_ThousandsAtOnce(t *testing.T) {
	const n = 5000
	t.Run("line", func(t *testing.T) {
		onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
			var got journal[string]
			s := notingCalls(t, bus, &got, "s", "a", nil)
			require.NoError(t, bus.Start(t.Context()))
			require.NoError(t, s.Pause())
			at := time.Now().Add(time.Hour)
			for i := range n {
				mustPublish(t, bus, "a", "late", eventbus.ExpiresAt(at.Add(time.Duration(i))))
				if i%100 == 0 {
					mustPublish(t, bus, "a", "in time")
				}
			}
			time.Sleep(time.Hour + notices)
			synctest.Wait()
			require.Len(t, letters(t, bus), n)
			require.Equal(t, n/100, metricsOf(t, bus, "s").Parked())
			requireBalanced(t, bus)
			require.NoError(t, s.Resume())
			synctest.Wait()
			require.Equal(t, n/100, got.len())
			shutdown(t, bus)
		}, silent()...)
	})
	t.Run("only in the store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, silent(eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(10))...)
			var got journal[string]
			notingCalls(t, bus, &got, "slow", "slow", takesAnHour, eventbus.Timeout(2*time.Hour))
			notingCalls(t, bus, &got, "s", "a", nil)
			require.NoError(t, bus.Start(t.Context()))
			mustPublish(t, bus, "slow", "x")
			synctest.Wait()
			for i := range n {
				mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Minute), eventbus.Key(fmt.Sprint(i%10)))
			}
			mustPublish(t, bus, "a", "in time")
			time.Sleep(time.Minute + notices)
			synctest.Wait()
			require.Len(t, letters(t, bus), n, "the worker is busy")
			require.Equal(t, []string{"slow x"}, got.all())
			requireBalanced(t, bus)
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, []string{"slow x", "s in time"}, got.all())
			shutdown(t, bus)
		})
	})
	t.Run("beyond the line", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, silent()...)
			var got journal[string]
			s := notingCalls(t, bus, &got, "s", "a", nil)
			require.NoError(t, bus.Start(t.Context()))
			require.NoError(t, s.Pause())
			for range eventbus.DefaultLineCapacity {
				mustPublish(t, bus, "a", "in time")
			}
			synctest.Wait()
			for range 2000 {
				mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Minute))
			}
			synctest.Wait()
			require.EqualValues(t, 2000, bus.Metrics().Ledger.Stored, "memory has no room for them")
			time.Sleep(time.Minute + notices)
			synctest.Wait()
			require.EqualValues(t, 2000, bus.Metrics().Ledger.DeadLettered)
			requireBalanced(t, bus)
			require.NoError(t, s.Resume())
			synctest.Wait()
			require.Equal(t, eventbus.DefaultLineCapacity, got.len())
			require.NotContains(t, got.all(), "s late")
			shutdown(t, bus)
		})
	})
}

// The order of a key goes on behind an event that has expired.
func TestE9_TheOrderOfAKeyGoesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		act := func(_ context.Context, e eventbus.Event) error {
			if strings.Contains(fmt.Sprintf("%s", e.Payload), "first") {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}
		notingCalls(t, bus, &got, "s", "a", act, eventbus.Timeout(time.Hour))
		notingCalls(t, bus, &got, "t", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "first", eventbus.Key("k"))
		synctest.Wait()
		for _, p := range []string{"late 1", "second", "late 2", "late 3", "third", "late 4"} {
			opts := []eventbus.PublishOption{eventbus.Key("k")}
			if strings.HasPrefix(p, "late") {
				opts = append(opts, eventbus.ExpiresIn(time.Minute))
			}
			mustPublish(t, bus, "a", p, opts...)
		}
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		require.Len(t, letters(t, bus), 4)
		mustPublish(t, bus, "a", "fourth", eventbus.Key("k"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		var want []string
		for _, p := range []string{"first", "second", "third", "fourth"} {
			want = append(want, "s "+p, "t "+p)
		}
		require.Equal(t, want, got.all())
		shutdown(t, bus)
	})
}

// PublishAndWait names the letter of an event that came too late, and returns Dropped for one that is dropped.
func TestE9_TheWaitForALateEvent(t *testing.T) {
	for _, drops := range []bool{false, true} {
		onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
			var got journal[string]
			opts := []eventbus.SubscribeOption{eventbus.Concurrency(1), eventbus.Timeout(2 * time.Hour)}
			if drops {
				opts = append(opts, eventbus.DropExpired())
			}
			notingCalls(t, bus, &got, "s", "a", takesAnHour, opts...)
			require.NoError(t, bus.Start(t.Context()))
			mustPublish(t, bus, "a", "first")
			synctest.Wait()
			began := time.Now()
			result, err := bus.PublishAndWait(t.Context(), "a", "late", eventbus.ExpiresIn(time.Minute))
			require.LessOrEqual(t, time.Since(began), time.Minute+notices)
			if drops {
				require.NoError(t, err)
				require.Equal(t, eventbus.Dropped, result.Outcome)
				require.Empty(t, letters(t, bus))
			} else {
				var dead *eventbus.DeliveryError
				require.ErrorAs(t, err, &dead)
				require.Equal(t, eventbus.DeadLettered, result.Outcome)
				require.Equal(t, []eventbus.LetterID{requireTooLate(t, bus, "s").ID}, result.Letters)
			}
			time.Sleep(time.Hour)
			shutdown(t, bus)
			require.Equal(t, []string{"s first"}, got.all())
		})
	}
}

// A publication with ExpiresIn in a batch, and on a topic.
func TestE9_ABatchAndATopic(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		s := notingCalls(t, bus, &got, "s", "a", nil)
		topic := eventbus.NewTopic[string]("a")
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "a", Payload: "1", Options: []eventbus.PublishOption{eventbus.ExpiresIn(time.Minute)}}, {Type: "a", Payload: "2"},
		})
		require.NoError(t, err)
		_, err = topic.Publish(t.Context(), bus, "3", eventbus.ExpiresIn(time.Minute))
		require.NoError(t, err)
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		require.Len(t, letters(t, bus), 2)
		require.NoError(t, s.Resume())
		synctest.Wait()
		require.Equal(t, []string{"s 2"}, got.all())
		shutdown(t, bus)
	})
}

// A subscription with Once drops late events as it drops others.
func TestE9_Once(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", takesAnHour, eventbus.Once(), eventbus.Timeout(2*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "first", eventbus.Key("k"))
		synctest.Wait()
		mustPublish(t, bus, "a", "late", eventbus.Key("k"), eventbus.ExpiresIn(time.Minute))
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		require.EqualValues(t, 1, bus.Metrics().Ledger.Dropped)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.Equal(t, []string{"s first"}, got.all())
		shutdown(t, bus)
	})
}

// An event that waits because it may be what has crashed the process expires, too.
func TestE9_ASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var got journal[string]
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t, silent(eventbus.WithConcurrency(1))...)
			notingCalls(t, bus, &got, "s", "a", takesAnHour, eventbus.Timeout(2*time.Hour))
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			return bus
		}
		bus := open()
		mustPublish(t, bus, "a", "first")
		for range 3 {
			mustPublish(t, bus, "a", "late", eventbus.ExpiresIn(time.Minute))
		}
		for range 2 {
			synctest.Wait()
			disk.crash(bus)
			bus = open()
		}
		require.EqualValues(t, 3, bus.Metrics().Ledger.Waiting, "the first suspect runs alone")
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		require.Len(t, letters(t, bus), 3)
		requireBalanced(t, bus)
		require.NotContains(t, got.all(), "s late")
		disk.crash(bus)
		time.Sleep(time.Hour) // the handlers return
	})
}

// The queue is full of slow work. What only the store has expires in time all the same.
func TestE9_AFullQueueHidesNoExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newDisk().open(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		release := make(chan struct{})
		mustSubscribe(t, bus, "slow", until(release), eventbus.Named("slow"), eventbus.Timeout(10*time.Hour))
		mustSubscribe(t, bus, "short", ok, eventbus.Named("short"))
		require.NoError(t, bus.Start(t.Context()))
		for range 10 {
			mustPublish(t, bus, "slow", nil)
		}
		for range 3 {
			mustPublish(t, bus, "short", nil, eventbus.ExpiresIn(5*time.Minute))
		}
		time.Sleep(6 * time.Minute)
		for range 2 {
			mustPublish(t, bus, "short", nil, eventbus.ExpiresIn(5*time.Minute))
		}
		require.Len(t, list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonTooLate}).Letters, 3)
		time.Sleep(6 * time.Minute)
		require.Len(t, list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonTooLate}).Letters, 5)
		close(release)
		time.Sleep(time.Minute)
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
