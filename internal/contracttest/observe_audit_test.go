package contracttest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func audit(t *testing.T, bus *eventbus.Bus, q eventbus.AuditQuery) []eventbus.AuditEntry {
	t.Helper()
	page, err := bus.Audit(t.Context(), q)
	require.NoError(t, err)
	return page.Entries
}

func TestC6_TheAuditHasWhatOperatorsDid(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mail := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 6 {
			mustPublish(t, bus, "a", i)
		}
		synctest.Wait()
		all := letters(t, bus)
		require.Len(t, all, 6)
		who := []eventbus.DirectiveOption{
			eventbus.By("ann"), eventbus.Because("the mail server is back"), eventbus.FromRequest("10.0.0.7:4711", "r-1"),
		}
		bulk := []eventbus.BulkOption{who[0], who[1], who[2]}
		until := time.Now().Add(time.Hour).UTC()
		require.NoError(t, mail.Trip(who...))
		require.NoError(t, mail.Reset(who...))
		require.NoError(t, mail.Pause(who...))
		require.NoError(t, mail.HoldUntil(until, who...))
		require.NoError(t, mail.Resume(who...))
		require.NoError(t, bus.DLQ().Purge(t.Context(), all[0].ID, who...))
		require.NoError(t, mail.Pause())
		require.NoError(t, bus.DLQ().Replay(t.Context(), all[1].ID, who...))
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), all[2].ID, 9, who...))
		_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Event: all[3].Event.ID}, bulk...)
		require.NoError(t, err)
		var lines bytes.Buffer
		_, err = bus.DLQ().Export(t.Context(), &lines, eventbus.LetterQuery{Event: all[4].Event.ID})
		require.NoError(t, err)
		_, err = bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Event: all[4].Event.ID}, bulk...)
		require.NoError(t, err)
		_, err = bus.DLQ().Import(t.Context(), &lines, who[0], who[1], who[2])
		require.NoError(t, err)
		_, err = bus.DLQ().PurgeUntil(t.Context(), until, who...)
		require.NoError(t, err)
		later := mustPublish(t, bus, "a", 0, eventbus.After(time.Hour))
		require.NoError(t, cancelEvent(t.Context(), bus, later, who[0], who[1], who[2]))
		byProgram := mustPublish(t, bus, "a", 0, eventbus.After(time.Hour))
		require.NoError(t, cancelEvent(t.Context(), bus, byProgram))

		// What changes nothing has no entry.
		require.Error(t, cancelEvent(t.Context(), bus, later, who[0], who[1], who[2]))
		require.Error(t, bus.DLQ().Purge(t.Context(), all[0].ID, who...))
		require.Error(t, bus.DLQ().Replay(t.Context(), all[0].ID, who...))
		_, err = bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true}, bulk...)
		require.NoError(t, err)
		_, err = bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, append(bulk, eventbus.DryRun())...)
		require.NoError(t, err)

		q := func(q eventbus.LetterQuery) *eventbus.LetterQuery { return &q }
		done := func(n int) *eventbus.AuditOutcome { return &eventbus.AuditOutcome{Done: n} }
		want := []eventbus.AuditEntry{
			{Action: eventbus.AuditTrip, Subscription: "mail"},
			{Action: eventbus.AuditReset, Subscription: "mail"},
			{Action: eventbus.AuditPause, Subscription: "mail"},
			{Action: eventbus.AuditHoldUntil, Subscription: "mail", Until: until},
			{Action: eventbus.AuditResume, Subscription: "mail"},
			{Action: eventbus.AuditPurge, Letter: all[0].ID},
			{Action: eventbus.AuditPause, Subscription: "mail"},
			{Action: eventbus.AuditReplay, Letter: all[1].ID, Event: all[1].Event.ID, Subscription: "mail"},
			{Action: eventbus.AuditReplayEdited, Letter: all[2].ID, Event: all[2].Event.ID, Subscription: "mail"},
			{Action: eventbus.AuditReplayMatching, Query: q(eventbus.LetterQuery{Event: all[3].Event.ID}), Count: 1},
			{Action: eventbus.AuditReplayMatching, Query: q(eventbus.LetterQuery{Event: all[3].Event.ID}), Count: 1, Outcome: done(1)},
			{Action: eventbus.AuditPurgeMatching, Query: q(eventbus.LetterQuery{Event: all[4].Event.ID}), Count: 1},
			{Action: eventbus.AuditPurgeMatching, Query: q(eventbus.LetterQuery{Event: all[4].Event.ID}), Count: 1, Outcome: done(1)},
			{Action: eventbus.AuditImport, Count: 1},
			{Action: eventbus.AuditImport, Count: 1, Outcome: done(1)},
			{Action: eventbus.AuditPurgeMatching, Query: q(eventbus.LetterQuery{Until: until}), Count: 2},
			{Action: eventbus.AuditPurgeMatching, Query: q(eventbus.LetterQuery{Until: until}), Count: 2, Outcome: done(2)},
			{Action: eventbus.AuditCancel, Event: later},
		}
		got := audit(t, bus, eventbus.AuditQuery{})
		require.Len(t, got, len(want))
		for i, e := range got {
			w := want[len(want)-1-i]
			w.Number, w.At, w.By, w.Why = int64(len(want)-i), e.At, "ann", "the mail server is back"
			w.Remote, w.RequestID = "10.0.0.7:4711", "r-1"
			if len(want)-i == 7 {
				w.By, w.Why, w.Remote, w.RequestID = "", "", "", ""
			}
			if e.Outcome != nil && w.Outcome != nil { // whether the replayed event has failed is not known
				w.Outcome.BeganAt, w.Outcome.Failures = got[i+1].At, e.Outcome.Failures
			}
			if e.Query != nil {
				e.Query.Until = e.Query.Until.UTC().Round(0)
				w.Query.Until = w.Query.Until.Round(0)
			}
			e.Until, w.Until = e.Until.Round(0), w.Until.Round(0)
			require.Equal(t, w, e)
			require.WithinDuration(t, time.Now(), e.At, time.Second)
		}
		require.Len(t, audit(t, bus, eventbus.AuditQuery{Action: eventbus.AuditPause}), 2)
		require.Len(t, audit(t, bus, eventbus.AuditQuery{By: "ann", Subscription: "mail"}), 7)
		require.Len(t, audit(t, bus, eventbus.AuditQuery{RequestID: "r-1"}), len(want)-1)
		require.Empty(t, audit(t, bus, eventbus.AuditQuery{RequestID: "r-2"}))
		require.Empty(t, audit(t, bus, eventbus.AuditQuery{Denied: true}))
		require.Len(t, audit(t, bus, eventbus.AuditQuery{Limit: 5}), 5)
		require.Len(t, audit(t, bus, eventbus.AuditQuery{Before: 3}), 2)
		for _, bad := range []eventbus.AuditQuery{{Action: "paint"}, {Limit: -1}, {Limit: 10_001}, {Before: -1}} {
			_, err := bus.Audit(t.Context(), bad)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		}
		require.NoError(t, mail.Resume())
		shutdown(t, bus)
	})
}

// An invalid operator changes nothing.
func TestC6_AnInvalidOperatorIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		fill(t, bus, 1)
		l := oneLetter(t, bus)
		bad := eventbus.By("\n")
		for name, err := range map[string]error{
			"Replay":       bus.DLQ().Replay(t.Context(), l.ID, bad),
			"ReplayEdited": bus.DLQ().ReplayEdited(t.Context(), l.ID, 1, bad),
			"Purge":        bus.DLQ().Purge(t.Context(), l.ID, bad),
			"Purge nil":    bus.DLQ().Purge(t.Context(), l.ID, nil),
			"Cancel":       cancelEvent(t.Context(), bus, l.Event.ID, bad),
			"remote":       bus.DLQ().Purge(t.Context(), l.ID, eventbus.FromRequest("\x00", "r-1")),
			"request id":   bus.DLQ().Purge(t.Context(), l.ID, eventbus.FromRequest("", strings.Repeat("r", 256))),
		} {
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, name)
		}
		_, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		_, err = bus.DLQ().PurgeMatching(t.Context(), allLetters, bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		_, err = bus.DLQ().PurgeUntil(t.Context(), time.Now(), bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		_, err = bus.DLQ().Import(t.Context(), &bytes.Buffer{}, bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		oneLetter(t, bus)
		require.Empty(t, audit(t, bus, eventbus.AuditQuery{}))
		shutdown(t, bus)
	})
}

// Memory keeps the last thousand entries. Denied ones do not push out others.
func TestC6_TheAuditInMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mail := mustSubscribe(t, bus, "a", ok)
		for i := range 2500 {
			require.NoError(t, mail.Pause(eventbus.By(fmt.Sprint(i))))
		}
		page, err := bus.Audit(context.Background(), eventbus.AuditQuery{Limit: 10_000})
		require.NoError(t, err)
		require.Len(t, page.Entries, 1000)
		require.Equal(t, "2499", page.Entries[0].By)
		require.EqualValues(t, 1501, page.Entries[999].Number)
		require.Zero(t, page.Next)
		for range 1500 {
			require.NoError(t, bus.AuditDenied(t.Context(), eventbus.AuditEntry{Action: eventbus.AuditPurge, Denied: "may only view"}))
		}
		page, err = bus.Audit(t.Context(), eventbus.AuditQuery{Limit: 10_000})
		require.NoError(t, err)
		require.Len(t, page.Entries, 2000)
		require.EqualValues(t, 4000, page.Entries[0].Number)
		require.Equal(t, "2499", page.Entries[1000].By)
		page, err = bus.Audit(t.Context(), eventbus.AuditQuery{Limit: 600, Before: 3301})
		require.NoError(t, err)
		require.EqualValues(t, 3300, page.Entries[0].Number)
		require.EqualValues(t, 2201, page.Next)
		require.NoError(t, mail.Resume())
		shutdown(t, bus)
	})
}

// The second entry of a bulk operation says how it ended.
func TestC6_TheAuditHasTheOutcomeOfABulkOperation(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mail := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 5 {
			mustPublish(t, bus, "a", i)
		}
		synctest.Wait()
		mail.Unsubscribe()
		outcome := func() eventbus.AuditOutcome {
			t.Helper()
			synctest.Wait()
			entries := audit(t, bus, eventbus.AuditQuery{Limit: 2})
			require.NotNil(t, entries[0].Outcome)
			require.Nil(t, entries[1].Outcome)
			require.Equal(t, entries[1].At, entries[0].Outcome.BeganAt)
			o := *entries[0].Outcome
			o.BeganAt = time.Time{}
			return o
		}
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.StopAfter(2))
		require.NoError(t, err)
		require.True(t, report.Stopped)
		require.Equal(t, eventbus.AuditOutcome{Failures: 2, Stopped: true}, outcome())

		ctx, cancel := context.WithCancel(t.Context())
		_, err = bus.DLQ().PurgeMatching(ctx, allLetters, eventbus.Rate(1), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done == 2 {
				cancel()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, eventbus.AuditOutcome{Done: 2, Error: "context canceled"}, outcome())

		require.Panics(t, func() {
			_, _ = bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.Rate(1), eventbus.OnProgress(func(eventbus.BulkProgress) { panic("no") }))
		})
		require.Equal(t, eventbus.AuditOutcome{Done: 1}, outcome())
		entries := audit(t, bus, eventbus.AuditQuery{})
		entries[0].Outcome.Done = 7
		require.Equal(t, 1, audit(t, bus, eventbus.AuditQuery{})[0].Outcome.Done, "an entry shares no memory")
		shutdown(t, bus)
	})
}

func TestC6_TheAuditHasWhatWasDenied(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		require.NoError(t, bus.Start(t.Context()))
		at := time.Now().Add(time.Hour).UTC().Round(0)
		denied := eventbus.AuditEntry{
			Number: 7, At: at, Action: eventbus.AuditPurgeMatching, By: "bob", Why: "tidy up", Remote: "10.0.0.7:4711", RequestID: "r-1",
			Denied: "bob may only view", Subscription: "mail", Until: at, Letter: eventbus.LetterID{1}, Event: eventbus.NewEventID(),
			Query: &eventbus.LetterQuery{Type: "order.*", All: true, Subscription: strings.Repeat("s", 1000)}, Count: 3,
		}
		require.NoError(t, bus.AuditDenied(t.Context(), denied))
		long := denied.Query.Subscription
		denied.Query.Subscription = long[:255] + "…" // neither the caller's query nor a reader's is that of the audit
		entries := audit(t, bus, eventbus.AuditQuery{Denied: true, RequestID: "r-1"})
		require.Len(t, entries, 1)
		want := denied
		want.Number, want.At = 1, entries[0].At
		require.Equal(t, want, entries[0])
		require.WithinDuration(t, time.Now(), entries[0].At, time.Second)

		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, bus.AuditDenied(cancelled, denied), context.Canceled)
		for name, spoil := range map[string]func(*eventbus.AuditEntry){
			"By":           func(e *eventbus.AuditEntry) { e.By = "\n" },
			"Why":          func(e *eventbus.AuditEntry) { e.Why = "\xff" },
			"Remote":       func(e *eventbus.AuditEntry) { e.Remote = strings.Repeat("r", 256) },
			"RequestID":    func(e *eventbus.AuditEntry) { e.RequestID = "\x1b[2J" },
			"Subscription": func(e *eventbus.AuditEntry) { e.Subscription = strings.Repeat("s", 256) },
			"Denied":       func(e *eventbus.AuditEntry) { e.Denied = "" },
			"Action":       func(e *eventbus.AuditEntry) { e.Action = "paint" },
			"Count":        func(e *eventbus.AuditEntry) { e.Count = -1 },
			"Until":        func(e *eventbus.AuditEntry) { e.Until = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC) },
			"Outcome":      func(e *eventbus.AuditEntry) { e.Outcome = &eventbus.AuditOutcome{} },
			"Reason":       func(e *eventbus.AuditEntry) { e.Query = &eventbus.LetterQuery{Reason: "boredom"} },
		} {
			e := denied
			spoil(&e)
			err := bus.AuditDenied(t.Context(), e)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, name)
			require.ErrorContains(t, err, name)
		}
		e := denied
		e.Query = &eventbus.LetterQuery{Type: "order.["}
		require.ErrorIs(t, bus.AuditDenied(t.Context(), e), eventbus.ErrInvalidPattern)
		require.ErrorIs(t, (*eventbus.Bus)(nil).AuditDenied(t.Context(), denied), eventbus.ErrUninitialized)
		require.Len(t, audit(t, bus, eventbus.AuditQuery{}), 1)
		shutdown(t, bus)
	})
}
