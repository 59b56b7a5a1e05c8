package eventbus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

var errDead = errors.New("dead")

// fill makes n letters of type a, which the subscription "s" did not handle.
func fill(t *testing.T, bus *eventbus.Bus, n int) {
	t.Helper()
	mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
	for i := range n {
		mustPublish(t, bus, "a", i)
	}
	synctest.Wait()
}

func list(t *testing.T, bus *eventbus.Bus, q eventbus.LetterQuery) eventbus.LetterPage {
	t.Helper()
	page, err := bus.DLQ().List(t.Context(), q)
	require.NoError(t, err)
	return page
}

func payloads(letters []eventbus.DeadLetter) []any {
	var all []any
	for _, l := range letters {
		all = append(all, l.Event.Payload)
	}
	return all
}

func TestL1_ALetterTellsTheWholeStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		boom := errors.New("boom")
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			time.Sleep(100 * time.Millisecond)
			return boom
		}, eventbus.Named("second"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("third"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("fourth"))
		began := time.Now().UTC()
		payload := &struct{ n int }{1}
		id := mustPublish(t, bus, "a", payload, eventbus.Metadata("k", "v"))
		time.Sleep(time.Minute)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.False(t, l.ID.IsZero())
		require.Equal(t, id, l.Event.ID)
		require.Equal(t, "a", l.Event.Type)
		require.Same(t, payload, l.Event.Payload)
		require.Equal(t, "v", l.Event.Metadata.Get("k"))
		require.Equal(t, began, l.Event.Time)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, "second", l.Subscription)
		require.Equal(t, []string{"first"}, l.Succeeded)
		require.Equal(t, []string{"third", "fourth"}, l.NotReached)
		require.Equal(t, 3, l.Attempts)
		require.Zero(t, l.Replays)
		require.Zero(t, l.FailuresOmitted)
		require.Equal(t, began.Add(2*time.Second+300*time.Millisecond), l.DiedAt)
		require.Len(t, l.Failures, 3)
		for i, f := range l.Failures {
			require.Equal(t, eventbus.Failure{
				Attempt:      i + 1,
				Subscription: "second",
				Time:         began.Add(time.Duration(i)*1100*time.Millisecond + 100*time.Millisecond),
				Duration:     100 * time.Millisecond,
				Error:        "boom",
				Class:        "*errors.errorString",
				Err:          boom,
			}, f)
		}
		shutdown(t, bus)
	})
}

func TestL1_Reasons(t *testing.T) {
	for reason, h := range map[eventbus.Reason]struct {
		handler eventbus.Handler
		opts    []eventbus.SubscribeOption
	}{
		eventbus.ReasonExhausted: {failing(errDead), nil},
		eventbus.ReasonPermanent: {failing(eventbus.Permanent(errDead)), nil},
		eventbus.ReasonExpired: {failing(errDead), []eventbus.SubscribeOption{
			eventbus.Retry(eventbus.MaxElapsed(500 * time.Millisecond)),
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
			mustSubscribe(t, bus, "a", h.handler, h.opts...)
			_, err := bus.PublishAndWait(t.Context(), "a", nil)
			require.ErrorIs(t, err, errDead)
			l := oneLetter(t, bus)
			require.Equal(t, reason, l.Reason)
			require.Contains(t, err.Error(), l.ID.String())
			shutdown(t, bus)
		})
	}
}

func TestL1_ALetterAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		mustPublish(t, bus, "a", map[string]int{"n": 1}, eventbus.Metadata("k", "v"))
		synctest.Wait()
		l := oneLetter(t, bus)
		data, err := json.Marshal(l)
		require.NoError(t, err)
		var back eventbus.DeadLetter
		require.NoError(t, json.Unmarshal(data, &back))
		require.Equal(t, l.ID, back.ID)
		require.Equal(t, l.Event.ID, back.Event.ID)
		require.Equal(t, "v", back.Event.Metadata.Get("k"))
		require.Equal(t, l.Reason, back.Reason)
		require.Equal(t, "dead", back.Failures[0].Error)
		require.Equal(t, map[string]any{"n": 1.0}, back.Event.Payload)
		shutdown(t, bus)
	})
}

func TestL1_WhatIsReturnedIsACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("second"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("third"))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		l := oneLetter(t, bus)
		l.Succeeded[0], l.NotReached[0], l.Failures[0].Error = "x", "x", "x"
		got, err := bus.DLQ().Get(t.Context(), l.ID)
		require.NoError(t, err)
		got.Failures[0].Error = "y"
		again := oneLetter(t, bus)
		require.Equal(t, []string{"first"}, again.Succeeded)
		require.Equal(t, []string{"third"}, again.NotReached)
		require.Equal(t, "dead", again.Failures[0].Error)
		shutdown(t, bus)
	})
}

func TestL2_Filters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()))
		began := time.Now()
		for i, c := range []struct {
			eventType, subscription string
			err                     error
		}{
			{"order.placed", "billing", errors.New("card declined")},
			{"order.shipped", "mail", eventbus.Permanent(errors.New("no address"))},
			{"user.created", "mail", errors.New("smtp: timeout")},
			{"order.placed.eu", "stock", eventbus.Permanent(errors.New("declined by stock"))},
		} {
			s := mustSubscribe(t, bus, c.eventType, failing(c.err), eventbus.Named(c.subscription))
			mustPublish(t, bus, c.eventType, i)
			synctest.Wait()
			s.Unsubscribe()
			time.Sleep(time.Minute)
		}
		for _, c := range []struct {
			query eventbus.LetterQuery
			want  []any
		}{
			{eventbus.LetterQuery{}, []any{3, 2, 1, 0}},
			{eventbus.LetterQuery{Type: "order.*"}, []any{1, 0}},
			{eventbus.LetterQuery{Type: "order.**"}, []any{3, 1, 0}},
			{eventbus.LetterQuery{Type: "*"}, []any{3, 2, 1, 0}},
			{eventbus.LetterQuery{Type: "nobody"}, nil},
			{eventbus.LetterQuery{Subscription: "mail"}, []any{2, 1}},
			{eventbus.LetterQuery{Reason: eventbus.ReasonPermanent}, []any{3, 1}},
			{eventbus.LetterQuery{Error: "declined"}, []any{3, 0}},
			{eventbus.LetterQuery{Since: began.Add(time.Minute)}, []any{3, 2, 1}},
			{eventbus.LetterQuery{Until: began.Add(time.Minute)}, []any{1, 0}},
			{eventbus.LetterQuery{Since: began.Add(time.Minute), Until: began.Add(2 * time.Minute)}, []any{2, 1}},
			{eventbus.LetterQuery{Type: "order.**", Error: "declined", Reason: eventbus.ReasonExhausted}, []any{0}},
		} {
			page := list(t, bus, c.query)
			require.Equal(t, c.want, payloads(page.Letters), "%+v", c.query)
			require.Equal(t, len(c.want), page.Total)
			require.False(t, page.TotalIsMore)
			require.True(t, page.Next.IsZero())
		}
		shutdown(t, bus)
	})
}

func TestL2_PagesHaveNoGapsAndNoRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 250)
		require.Len(t, list(t, bus, eventbus.LetterQuery{}).Letters, 100, "a page by default")
		var all []any
		q := eventbus.LetterQuery{Limit: 30, Subscription: "s"}
		for {
			page := list(t, bus, q)
			all = append(all, payloads(page.Letters)...)
			if page.Next.IsZero() {
				break
			}
			// What is added, or removed, between two pages moves nothing.
			mustPublish(t, bus, "a", "new")
			synctest.Wait()
			require.NoError(t, bus.DLQ().Purge(t.Context(), page.Next))
			q.Before = page.Next
		}
		var want []any
		for i := range 250 {
			want = append(want, 249-i)
		}
		require.Equal(t, want, all)
		shutdown(t, bus)
	})
}

func TestL2_TotalsAreExactUpToTenThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(20_000), eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 10_001)
		page := list(t, bus, eventbus.LetterQuery{Type: "a"})
		require.Equal(t, 10_000, page.Total)
		require.True(t, page.TotalIsMore)
		page = list(t, bus, eventbus.LetterQuery{Type: "a", ExactTotal: true})
		require.Equal(t, 10_001, page.Total)
		require.False(t, page.TotalIsMore)
		require.Equal(t, 10_001, list(t, bus, eventbus.LetterQuery{}).Total, "of all letters it is known")
		require.Equal(t, 10_001, list(t, bus, eventbus.LetterQuery{Subscription: "s", Reason: eventbus.ReasonPermanent}).Total)
		require.Len(t, list(t, bus, eventbus.LetterQuery{Limit: 10_000}).Letters, 10_000)
		shutdown(t, bus)
	})
}

func TestL2_BadQueries(t *testing.T) {
	bus, _ := startBus(t)
	for option, q := range map[string]eventbus.LetterQuery{
		"LetterQuery.Limit":  {Limit: -1},
		"LetterQuery.Reason": {Reason: "bored"},
		"LetterQuery.Since":  {Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
	} {
		_, err := bus.DLQ().List(t.Context(), q)
		bRequireOptionError(t, err, option)
	}
	_, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Limit: 10_001})
	bRequireOptionError(t, err, "LetterQuery.Limit")
	_, err = bus.DLQ().List(t.Context(), eventbus.LetterQuery{Type: "a..b"})
	require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
	for option, q := range map[string]eventbus.LetterQuery{
		"LetterQuery.All":    {},
		"LetterQuery.Limit":  {All: true, Limit: 1},
		"LetterQuery.Before": {All: true, Before: eventbus.LetterID{1}},
	} {
		_, err := bus.DLQ().PurgeMatching(t.Context(), q)
		bRequireOptionError(t, err, option)
		_, err = bus.DLQ().ReplayMatching(t.Context(), q)
		bRequireOptionError(t, err, option)
	}
	_, err = eventbus.ParseLetterID("17")
	require.ErrorIs(t, err, eventbus.ErrNotFound)
	id := eventbus.LetterID{1, 2, 3}
	parsed, err := eventbus.ParseLetterID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, parsed)
	shutdown(t, bus)
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

func TestL4_ReplayMatchingTakesTheSetAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		var ran journal[any]
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			ran.add(e.Payload)
			return eventbus.Permanent(errDead)
		}, eventbus.Named("s"))
		for i := range 50 {
			mustPublish(t, bus, "a", i)
		}
		synctest.Wait()
		report, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Subscription: "s"})
		require.NoError(t, err)
		require.Equal(t, 50, report.Matched)
		require.Equal(t, 50, report.Replayed, "those that die again are new letters")
		synctest.Wait()
		require.Equal(t, 100, ran.len())
		require.True(t, slices.IsSortedFunc(ran.all()[50:], func(x, y any) int { return x.(int) - y.(int) }), "oldest first")
		require.Len(t, letters(t, bus), 50)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		report, err = bus.DLQ().ReplayMatching(ended, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, report.Replayed)
		shutdown(t, bus)
	})
}

func TestL5_PurgeUntilIncludesTheInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)))
		var died []time.Time
		for i := range 5 {
			mustPublish(t, bus, "a", i)
			synctest.Wait()
			died = append(died, letters(t, bus)[0].DiedAt)
			time.Sleep(time.Minute)
		}
		n, err := bus.DLQ().PurgeUntil(t.Context(), died[0].Add(-1))
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = bus.DLQ().PurgeUntil(t.Context(), time.Time{})
		require.NoError(t, err)
		require.Zero(t, n, "the zero time is an instant, not a missing bound")
		n, err = bus.DLQ().PurgeUntil(t.Context(), died[2])
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, []any{4, 3}, payloads(letters(t, bus)))
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, eventbus.PurgeReport{Matched: 2, Purged: 2}, report)
		require.Zero(t, bus.Metrics().DeadLetters)
		shutdown(t, bus)
	})
}

func TestL7_WhatFallsOutIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evicted journal[eventbus.DeadLetter]
		bus, logs := startBus(t, eventbus.WithDeadLetterCapacity(3), eventbus.WithCircuit(eventbus.NoCircuit()),
			eventbus.WithObserver(eventbus.Observer{LetterEvicted: func(l eventbus.DeadLetter) {
				evicted.add(l)
				panic("observers may")
			}}))
		fill(t, bus, 5)
		require.Equal(t, []any{4, 3, 2}, payloads(letters(t, bus)))
		require.Equal(t, []any{0, 1}, payloads(evicted.all()))
		require.Equal(t, "dead", evicted.all()[0].Failures[0].Error)
		entries := logs.FilterMessageSnippet("evicted").All()
		require.Len(t, entries, 2)
		for i, e := range entries {
			require.Equal(t, zapcore.ErrorLevel, e.Level)
			require.Equal(t, evicted.all()[i].ID.String(), e.ContextMap()["letter_id"])
			require.NotContains(t, e.ContextMap(), "payload")
		}
		require.Equal(t, 2, logs.FilterMessage("observer panicked").Len())
		m := bus.Metrics()
		require.Equal(t, 3, m.DeadLetters)
		require.EqualValues(t, 2, m.LettersEvicted)
		shutdown(t, bus)
	})
}

// The letters of a shutdown do not push each other out, nor anything else.
func TestL7_LettersOfAShutdownAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(2), eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 2)
		mustSubscribe(t, bus, "b", failing(errDead))
		for range 10 {
			mustPublish(t, bus, "b", nil)
		}
		synctest.Wait()
		cut := bCut(t, bus)
		require.Len(t, cut.Unfinished, 10)
		require.Len(t, letters(t, bus), 12)
		require.Zero(t, bus.Metrics().LettersEvicted)
		requireBalanced(t, bus)
	})
}

// Letters leave from anywhere: the queue finds, counts and pages the others.
func TestL2_HolesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 1000)
		all := letters(t, bus)
		for i, l := range all {
			if i%10 != 3 {
				require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID))
			}
		}
		left := letters(t, bus)
		require.Len(t, left, 100)
		for i, l := range left {
			require.Equal(t, all[i*10+3].ID, l.ID)
			got, err := bus.DLQ().Get(t.Context(), l.ID)
			require.NoError(t, err)
			require.Equal(t, l.Event.Payload, got.Event.Payload)
		}
		require.Equal(t, 100, list(t, bus, eventbus.LetterQuery{Limit: 1}).Total)
		shutdown(t, bus)
	})
}
