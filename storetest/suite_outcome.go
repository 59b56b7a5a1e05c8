package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var outcomeTests = []conformanceTest{
	{name: "OfAnEvent", run: testOutcomesOfAnEvent},
	{name: "OfAnotherProcess", run: testOutcomesOfAnotherProcess},
	{name: "WithTheChange", run: testOutcomesWithTheChange},
	{name: "OfAFailedCommit", needs: needsFail, run: testOutcomesOfAFailedCommit},
	{name: "AreKeptWithTheAudit", run: testOutcomesAreKeptWithTheAudit},
}

// outcomeOf returns an outcome of an event.
func outcomeOf(event driver.ID, text string) driver.Outcome {
	return driver.Outcome{Event: event, Body: fmt.Appendf(nil, `{"outcome":%q,"why":"ü'\u003c","a":null}`, text)}
}

func requireOutcomes(t *testing.T, s driver.Store, event driver.ID, want ...driver.Outcome) {
	t.Helper()
	got, err := s.Outcomes(t.Context(), event)
	require.NoError(t, err)
	if len(want) == 0 {
		require.Empty(t, got)
		return
	}
	require.Equal(t, want, got)
}

// Outcomes return with every field, in the order in which they were added, and only those of the event.
func testOutcomesOfAnEvent(t *testing.T, r *rig) {
	s := r.open(t)
	one, other := newID(), newID()
	requireOutcomes(t, s, one)
	full := *filled[driver.Outcome]()
	full.Event = one
	apply(t, s, &driver.Batch{Now: noon, Outcomes: []driver.Outcome{full, outcomeOf(other, "b"), outcomeOf(one, "c"), outcomeOf(one, "c")}})
	apply(t, s, &driver.Batch{Now: noon.AddDate(-1, 0, 0), Outcomes: []driver.Outcome{outcomeOf(one, "d")}})
	for range 2 {
		requireOutcomes(t, s, one, full, outcomeOf(one, "c"), outcomeOf(one, "c"), outcomeOf(one, "d"))
		requireOutcomes(t, s, other, outcomeOf(other, "b"))
		requireOutcomes(t, s, newID())
		s = r.reopen(t, s)
	}
}

// A store without the lease adds outcomes, too, and each store returns those of all.
func testOutcomesOfAnotherProcess(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	id := newID()
	apply(t, s, &driver.Batch{Now: noon, Outcomes: []driver.Outcome{outcomeOf(id, "a")}})
	apply(t, beside, &driver.Batch{Now: noon, Outcomes: []driver.Outcome{outcomeOf(id, "b")}})
	apply(t, s, &driver.Batch{Now: noon, Outcomes: []driver.Outcome{outcomeOf(id, "c")}})
	for _, s := range []driver.Store{s, beside} {
		requireOutcomes(t, s, id, outcomeOf(id, "a"), outcomeOf(id, "b"), outcomeOf(id, "c"))
	}
}

// A refused batch adds no outcome.
func testOutcomesWithTheChange(t *testing.T, r *rig) {
	s := r.open(t)
	l := letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{l}})
	purge := &driver.Batch{Now: noon, Take: []driver.ID{l.ID}, Outcomes: []driver.Outcome{outcomeOf(l.Event, "purged")}}
	apply(t, s, purge)
	refuse(t, s, purge, driver.ErrNotFound)
	requireOutcomes(t, s, l.Event, outcomeOf(l.Event, "purged"))
}

// After a commit that failed, an outcome is there if and only if the change is.
func testOutcomesOfAFailedCommit(t *testing.T, r *rig) {
	s := r.open(t)
	record := ready(leased)
	insert(t, s, record)
	r.Fail(t, s)
	err := submit(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{record.Ref}, Outcomes: []driver.Outcome{outcomeOf(record.ID, "a")}})
	require.Error(t, err)
	require.NoError(t, s.Reopen(t.Context()))
	if len(lookup(t, s, record.ID)) > 0 {
		requireOutcomes(t, s, record.ID)
	} else {
		requireOutcomes(t, s, record.ID, outcomeOf(record.ID, "a"))
	}
}

// An outcome is there as long as the audit entries of its time, however many outcomes and denied entries follow.
func testOutcomesAreKeptWithTheAudit(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("10,000 entries take a while")
	}
	const kept, part = 10_000, 1000
	s := r.open(t)
	first, second := newID(), newID()
	now := noon
	add := func(denied bool, count int, outcomes ...driver.Outcome) {
		for ; count > 0; count -= part {
			b := &driver.Batch{Now: now, Outcomes: outcomes}
			for range min(count, part) {
				b.Audit = append(b.Audit, driver.AuditEntry{Denied: denied, Body: []byte(`{}`)})
			}
			apply(t, s, b)
			now, outcomes = now.AddDate(0, 1, 0), nil
		}
	}
	add(false, 1, outcomeOf(first, "a"))
	add(true, kept)
	add(false, 1, outcomeOf(second, "b"))
	for range kept / part {
		add(true, part, outcomeOf(newID(), "c"))
	}
	add(false, kept-2)
	requireOutcomes(t, s, first, outcomeOf(first, "a"))
	requireOutcomes(t, s, second, outcomeOf(second, "b"))
	add(false, 1)
	requireOutcomes(t, s, second, outcomeOf(second, "b"))
}
