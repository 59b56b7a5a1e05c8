package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

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

// The reasons that come from outside the attempt.
func TestL1_WhatASkippedAnUnsubscribedAndACutDispatchLeave(t *testing.T) {
	for reason, c := range map[eventbus.Reason]struct {
		during                func(*testing.T, *eventbus.Bus, *eventbus.Subscription)
		opts                  []eventbus.SubscribeOption
		succeeded, notReached []string
		diedAfter             time.Duration
	}{
		// What is skipped becomes a dispatch of its own: the others go on.
		eventbus.ReasonCircuitOpen: {
			opts: []eventbus.SubscribeOption{eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DeadLetterWhenOpen}, diedAfter: 10 * time.Second,
		},
		eventbus.ReasonUnsubscribed: {
			during:    func(_ *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { s.Unsubscribe() },
			diedAfter: 10 * time.Second,
		},
		eventbus.ReasonShutdown: {
			during:    func(t *testing.T, bus *eventbus.Bus, _ *eventbus.Subscription) { _ = cutShort(t, bus) },
			succeeded: []string{"first"}, notReached: []string{"last"}, diedAfter: 5 * time.Second,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(2, 10*time.Second)))
			mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
			s := mustSubscribe(t, bus, "a", failBroken, append(c.opts, eventbus.Named("middle"))...)
			mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
			payload := &struct{ N int }{17}
			began := time.Now()
			id := mustPublish(t, bus, "a", payload, eventbus.Metadata("source", "web"))
			time.Sleep(5 * time.Second)
			if c.during != nil {
				c.during(t, bus, s)
			}
			time.Sleep(time.Minute)
			l := oneLetter(t, bus)
			require.Equal(t, reason, l.Reason)
			require.Equal(t, "middle", l.Subscription, reason)
			require.Equal(t, c.succeeded, l.Succeeded, reason)
			require.Equal(t, c.notReached, l.NotReached, reason)
			require.Equal(t, 1, l.Attempts, reason)
			require.Equal(t, []string{"0.1 middle broken"}, failureTexts(l.Failures), reason)
			require.Equal(t, c.diedAfter, l.DiedAt.Sub(began), reason)
			require.Equal(t, time.UTC, l.DiedAt.Location())
			require.Equal(t, id, l.Event.ID)
			require.Same(t, payload, l.Event.Payload)
			require.Equal(t, "web", l.Event.Metadata.Get("source"))
			e := logs.FilterMessage("event dead-lettered").All()
			require.Len(t, e, 1)
			require.Equal(t, string(reason), e[0].ContextMap()["reason"])
			requireBalanced(t, bus)
		})
	}
}

// A waiter's copy and a list's are their own, and a replay goes on with neither.
func TestL1_NoCopyOfALetterReachesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, 0)))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", failBroken, eventbus.Named("sick"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		_, err := bus.PublishAndWait(t.Context(), "a", nil)
		var waited *eventbus.DeliveryError
		require.ErrorAs(t, err, &waited)
		want := oneLetter(t, bus)
		vandalize := func(l eventbus.DeadLetter) {
			l.Succeeded[0], l.NotReached[0] = "x", "y"
			l.Failures = append(l.Failures[:1], eventbus.Failure{Error: "z"})
			l.Failures[0] = eventbus.Failure{}
		}
		vandalize(waited.Letters[0])
		require.Equal(t, want, oneLetter(t, bus))
		mine := oneLetter(t, bus)
		require.NoError(t, bus.DLQ().Replay(t.Context(), want.ID))
		vandalize(mine)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, []string{"0.1 sick broken", "0.2 sick broken", "1.1 sick broken", "1.2 sick broken"}, failureTexts(l.Failures))
		require.Equal(t, []string{"first"}, l.Succeeded)
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
		requireOptionError(t, err, option)
	}
	_, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Limit: 10_001})
	requireOptionError(t, err, "LetterQuery.Limit")
	_, err = bus.DLQ().List(t.Context(), eventbus.LetterQuery{Type: "a..b"})
	require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
	for option, q := range map[string]eventbus.LetterQuery{
		"LetterQuery.All":    {},
		"LetterQuery.Limit":  {All: true, Limit: 1},
		"LetterQuery.Before": {All: true, Before: eventbus.LetterID{1}},
	} {
		_, err := bus.DLQ().PurgeMatching(t.Context(), q)
		requireOptionError(t, err, option)
		_, err = bus.DLQ().ReplayMatching(t.Context(), q)
		requireOptionError(t, err, option)
	}
	for _, bad := range []string{"17", "", strings.Repeat("0", 36), strings.Repeat("x", 1000)} {
		_, err = eventbus.ParseLetterID(bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidLetter, bad)
		require.NotErrorIs(t, err, eventbus.ErrNotFound, "it says nothing about letters that exist")
		require.ErrorContains(t, err, "not a UUID")
		require.Less(t, len(err.Error()), 300)
	}
	id := eventbus.LetterID{1, 2, 3}
	parsed, err := eventbus.ParseLetterID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, parsed)
	shutdown(t, bus)
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

// Letters come and go between the pages: what was there all the time is seen
// once, and what has gone does not confuse, not even what a page ended with.
func TestL2_PagesWhileLettersComeAndGo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 60).Draw(rt, "letters")
		limit := rapid.IntRange(1, 9).Draw(rt, "limit")
		between := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(-60, 3), 0, 30), 1, 20).Draw(rt, "between the pages")
		filtered := rapid.Bool().Draw(rt, "filtered")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, silent(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))...)
			_, _ = bus.Subscribe("*", failBroken)
			q := eventbus.LetterQuery{Limit: limit}
			if filtered {
				q.Type = "[01]"
			}
			for _, n := range seed {
				_, _ = bus.Publish(t.Context(), fmt.Sprint(n), nil)
			}
			synctest.Wait()
			all, _ := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
			gone, seen := map[eventbus.LetterID]bool{}, map[eventbus.LetterID]int{}
			var last eventbus.LetterID
			for i := 0; ; i++ {
				page, err := bus.DLQ().List(t.Context(), q)
				if err != nil || len(page.Letters) == 0 && i > 0 && len(gone) == 0 {
					problem = fmt.Sprint("page ", i, " is empty: ", err)
				}
				for _, l := range page.Letters {
					seen[l.ID]++
					if !last.IsZero() && l.ID.String() >= last.String() {
						problem = "not newest first"
					}
					last = l.ID
				}
				if q.Before = page.Next; q.Before.IsZero() {
					break
				}
				for _, n := range between[i%len(between)] {
					if n >= 0 {
						_, _ = bus.Publish(t.Context(), fmt.Sprint(n), nil)
					} else if -n <= len(all.Letters) {
						id := all.Letters[-n-1].ID
						gone[id] = bus.DLQ().Purge(t.Context(), id) == nil || gone[id]
					}
				}
				synctest.Wait()
			}
			for _, l := range all.Letters {
				matches := !filtered || l.Event.Type < "2"
				switch n := seen[l.ID]; {
				case n > 1, n == 1 && !matches, n == 0 && matches && !gone[l.ID]:
					problem = fmt.Sprintf("letter %s of %s is listed %d times", l.ID, l.Event.Type, n)
				}
			}
			_ = bus.Shutdown(context.Background())
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

func TestL2_AnEndedContextIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "a", failBroken)
		publishScripts(t, bus, "a", nil)
		cause := errors.New("no time")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := bus.DLQ().List(ctx, eventbus.LetterQuery{})
		require.ErrorIs(t, err, cause, "List says that it asks")
		_, err = bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, cause, "its errors are those of List")
		require.Len(t, letters(t, bus), 1)
		shutdown(t, bus)
	})
}

// A letter that has left and is imported again is there, whatever its hole is.
func TestL2_ALetterThatComesBackIsFound(t *testing.T) {
	for _, n := range []int{3, 10, 40, 100} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			bus := lettersOf(t, n, errors.New("gone"))
			var out bytes.Buffer
			_, err := bus.DLQ().Export(ctx, &out, eventbus.LetterQuery{})
			require.NoError(t, err)
			all := letters(t, bus)
			for i := 1; i < n-1; i += 2 {
				require.NoError(t, bus.DLQ().Purge(ctx, all[i].ID))
			}
			_, err = bus.DLQ().Import(ctx, bytes.NewReader(out.Bytes()))
			require.NoError(t, err)
			require.Len(t, letters(t, bus), n)
			for _, l := range all {
				_, err := bus.DLQ().Get(ctx, l.ID)
				require.NoError(t, err, "of %d", n)
			}
			report, err := bus.DLQ().Import(ctx, bytes.NewReader(out.Bytes()))
			require.NoError(t, err)
			require.Equal(t, eventbus.ImportReport{Skipped: n}, report)
			purged, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true})
			require.NoError(t, err)
			require.Equal(t, eventbus.PurgeReport{Matched: n, Purged: n}, purged)
			shutdown(t, bus)
		})
	}
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
		cut := cutShort(t, bus)
		require.Len(t, cut.Unfinished, 10)
		require.Len(t, letters(t, bus), 12)
		require.Zero(t, bus.Metrics().LettersEvicted)
		requireBalanced(t, bus)
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

// An observer owns what it is given, also while the letter is still being logged
// and handed to whoever waits for it.
func TestL7_AnObserverMayChangeWhatItIsGiven(t *testing.T) {
	bus, _ := startBus(t, oneAttempt, eventbus.WithDeadLetterCapacity(1), eventbus.WithCircuit(eventbus.NoCircuit()),
		eventbus.WithObserver(eventbus.Observer{LetterEvicted: func(l eventbus.DeadLetter) {
			l.Failures[0] = eventbus.Failure{}
			l.Succeeded[0] = "vandal"
		}}))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
	mustSubscribe(t, bus, "a", failBroken, eventbus.Named("sick"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, err := bus.PublishAndWait(t.Context(), "a", nil)
				var d *eventbus.DeliveryError
				if errors.As(err, &d) && d.Letters[0].Failures[0].Error != "broken" {
					t.Error("the waiter sees what the observer did")
					return
				}
			}
		})
	}
	wg.Wait()
	shutdown(t, bus)
}
