package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var auditTests = []conformanceTest{
	{name: "Pages", run: testAuditPages},
	{name: "WithTheChange", run: testAuditWithTheChange},
	{name: "OfAnotherProcess", needs: needsBeside, run: testAuditOfAnotherProcess},
}

// auditOf returns the matching entries, page by page.
func auditOf(t *testing.T, s eventbus.Store, q eventbus.AuditQuery) (all []eventbus.AuditEntry) {
	t.Helper()
	for q.Limit = 2; ; {
		page, err := s.Audit(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Entries), 2)
		all = append(all, page.Entries...)
		if q.Before = page.Next; q.Before == 0 {
			return all
		}
	}
}

// Entries return with every field, newest first, with growing numbers.
func testAuditPages(t *testing.T, r *rig) {
	s := r.open(t)
	require.Empty(t, auditOf(t, s, eventbus.AuditQuery{}))
	full := eventbus.AuditEntry{
		Number: 99, At: noon, Action: eventbus.AuditReplayMatching, By: "ann", Why: "the mail server is back", Subscription: "billing",
		Until: noon.Add(time.Hour), Letter: letter().ID, Event: eventbus.NewEventID(),
		Query: &eventbus.LetterQuery{Type: "order.*", Since: noon}, Count: 7,
		Remote: "10.0.0.7:4711", RequestID: "r-1", Denied: "ann may only view",
		Outcome: &eventbus.AuditOutcome{BeganAt: noon, Done: 5, Failures: 2, Stopped: true, Error: "stopped"},
	}
	var entries []eventbus.AuditEntry
	for i := range 7 {
		e := full
		if i%2 == 1 {
			e = eventbus.AuditEntry{At: noon.Add(time.Duration(i) * time.Second), Action: eventbus.AuditPause, Subscription: "mail"}
		}
		entries = append(entries, e)
	}
	apply(t, s, &eventbus.Batch{Now: noon, Audit: entries[:3]})
	for _, e := range entries[3:] {
		apply(t, s, &eventbus.Batch{Now: noon, Audit: []eventbus.AuditEntry{e}})
	}
	require.EqualValues(t, 99, entries[0].Number, "the batch does not change")
	var want, paused []eventbus.AuditEntry
	for i := len(entries) - 1; i >= 0; i-- {
		e := entries[i]
		e.Number = int64(i + 1)
		want = append(want, e)
		if i%2 == 1 {
			paused = append(paused, e)
		}
	}
	for range 2 {
		require.Equal(t, want, auditOf(t, s, eventbus.AuditQuery{}))
		require.Equal(t, paused, auditOf(t, s, eventbus.AuditQuery{Subscription: "mail"}))
		require.Equal(t, paused[:2], auditOf(t, s, eventbus.AuditQuery{Since: noon.Add(time.Second * 2)}))
		require.Equal(t, want[6:], auditOf(t, s, eventbus.AuditQuery{Before: 2}))
		require.Len(t, auditOf(t, s, eventbus.AuditQuery{Letter: full.Letter, Event: full.Event, By: "ann"}), 4)
		require.Len(t, auditOf(t, s, eventbus.AuditQuery{RequestID: "r-1", Denied: true}), 4)
		require.Len(t, auditOf(t, s, eventbus.AuditQuery{Action: eventbus.AuditPause, Until: noon.Add(time.Second)}), 1)
		s = r.reopen(t, s)
	}
	apply(t, s, &eventbus.Batch{Now: noon, Audit: []eventbus.AuditEntry{full}})
	require.EqualValues(t, 8, auditOf(t, s, eventbus.AuditQuery{})[0].Number)
}

// A refused batch adds no entry.
func testAuditWithTheChange(t *testing.T, r *rig) {
	s := r.open(t)
	l := letter()
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{l}})
	purge := &eventbus.Batch{
		Now: noon, Take: []eventbus.LetterID{l.ID},
		Audit: []eventbus.AuditEntry{{At: noon, Action: eventbus.AuditPurge, Letter: l.ID}},
	}
	apply(t, s, purge)
	refuse(t, s, purge, eventbus.ErrNotFound)
	require.Len(t, auditOf(t, s, eventbus.AuditQuery{}), 1)
	year12026 := time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, late := range []eventbus.AuditEntry{{At: year12026}, {At: noon, Outcome: &eventbus.AuditOutcome{BeganAt: year12026}}} {
		refuse(t, s, &eventbus.Batch{Now: noon, Audit: []eventbus.AuditEntry{late}}, eventbus.ErrInvalidEvent)
	}
	require.Len(t, auditOf(t, s, eventbus.AuditQuery{}), 1)
}

func testAuditOfAnotherProcess(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &eventbus.Batch{Now: noon, Audit: []eventbus.AuditEntry{{At: noon, By: "ann"}}})
	beside := r.beside(t)
	apply(t, beside, &eventbus.Batch{Now: noon, Audit: []eventbus.AuditEntry{{At: noon, By: "bob"}}})
	for _, s := range []eventbus.Store{s, beside} {
		all := auditOf(t, s, eventbus.AuditQuery{})
		require.Len(t, all, 2)
		require.Equal(t, "bob", all[0].By)
	}
}
