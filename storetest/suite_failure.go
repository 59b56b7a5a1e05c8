package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var failureTests = []conformanceTest{
	{name: "EndsWithReopen", needs: needsFail, run: testFailureEndsWithReopen},
	{name: "RefusesCalls", needs: needsFail, run: testFailureRefusesCalls},
	{name: "RefusalsFailToo", needs: needsFail, run: testRefusalsFailToo},
	{name: "Close", needs: needsFail, run: testFailureClose},
	{name: "Standby", needs: needsFail, run: testFailureStandby},
}

// fail makes a store fail at a batch.
func (r *rig) fail(t *testing.T, s driver.Store, b *driver.Batch) {
	t.Helper()
	r.Fail(t, s)
	requireUnknown(t, submit(t, s, b), "the batch whose commit fails")
}

// requireUnknown requires the error of a batch whose outcome is unknown.
func requireUnknown(t *testing.T, err error, what string) {
	t.Helper()
	require.Error(t, err, "done of %s", what)
	var refused *driver.RefusedError
	require.NotErrorAs(t, err, &refused, "done of %s: a *RefusedError says that the outcome is known", what)
	require.NotErrorIs(t, err, driver.ErrClosed, "done of %s", what)
}

// A failed store applies no batch, although its storage works again. Reopen ends the failure, frees the records and
// counts no crash.
func testFailureEndsWithReopen(t *testing.T, r *rig) {
	s := r.open(t)
	for round := range 2 {
		held, waits, kept := ready(leased), ready(leased, suspect, waiting(time.Hour), key("k")), letter()
		apply(t, s, &driver.Batch{Now: noon, New: []*driver.Record{held, waits}, Bury: []*driver.Letter{kept}})
		doubtful := ready(leased)
		r.fail(t, s, &driver.Batch{Now: noon, New: []*driver.Record{doubtful}})
		lost := ready(leased)
		for what, b := range map[string]*driver.Batch{
			"New": {New: []*driver.Record{lost}}, "Delete": {Delete: []driver.Ref{held.Ref}}, "Take": {Take: []driver.ID{kept.ID}},
			"a batch that would be refused": {Take: []driver.ID{newID()}}, "no change": {},
		} {
			b.Now = noon
			err := submit(t, s, b)
			require.ErrorIs(t, err, driver.ErrFailed, "done of a batch after the failure: %s", what)
			requireUnknown(t, err, "a batch after the failure: "+what)
		}
		require.NoError(t, s.Reopen(t.Context()), "Reopen of a store whose storage works again")
		require.Empty(t, lookup(t, s, lost.ID), "a failed store applied a batch")
		require.Len(t, lookup(t, s, held.ID), 1, "a failed store applied a batch")
		requireLetters(t, []*driver.Letter{kept}, page(t, s, driver.LetterQuery{}).Letters)
		counts := stats(t, s)
		require.Equal(t, counts.Unsettled(), counts.Free, "Reopen must free the records of the lease that failed")
		refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref}}, held.Ref, "Delete, after Reopen, of a record of the lease that failed")
		found := crashesOf(t, s)
		require.Contains(t, found, held.Ref)
		require.Contains(t, found, waits.Ref)
		for ref, crashes := range found {
			require.Zero(t, crashes, "Crashes of record %d after Reopen", ref)
			apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{ref}})
		}
		apply(t, s, &driver.Batch{Now: noon, Take: []driver.ID{kept.ID}})
		require.Zero(t, stats(t, s), "round %d", round)
	}
	require.NoError(t, s.Close(t.Context()))
	_, lease := r.openLease(t)
	require.False(t, lease.Crashed, "a failure counted as a crash")
}

func testFailureRefusesCalls(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready()
	insert(t, s, n)
	r.fail(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}})
	for name, call := range callsOf(s) {
		if name != "Reopen" {
			require.ErrorIs(t, call(t.Context()), driver.ErrFailed, "%s on a failed store", name)
		}
	}
	s.Watch(func(driver.Change) {})()
	s.Patience()
	require.NoError(t, s.Reopen(t.Context()))
	for name, call := range callsOf(s) {
		if err := call(t.Context()); name != "Letter" && name != "Answer" {
			require.NoError(t, err, "%s after Reopen", name)
		}
	}
}

// A batch that is refused because of another one fails if the commit of both fails.
func testRefusalsFailToo(t *testing.T, r *rig) {
	s := r.open(t)
	for round := range 10 {
		r.Fail(t, s)
		outcomes := make(chan error, 101)
		done := func(err error) { outcomes <- err }
		// The others gather behind this one, which alone changes nothing, so that its commit may not fail.
		send(s, &driver.Batch{Now: noon, Take: []driver.ID{newID()}}, done)
		for i := range 50 {
			entry := driver.Dedupe{Key: fmt.Sprint(round, " ", i), Event: newID(), Expires: noon.Add(time.Hour)}
			for range 2 {
				send(s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}}, done)
			}
		}
		require.Error(t, await(t, outcomes))
		for i := range 100 {
			requireUnknown(t, await(t, outcomes), fmt.Sprintf("batch %d behind a failure", i))
		}
		require.NoError(t, s.Reopen(t.Context()))
	}
}

// Close of a failed store frees the lease, and the records with it.
func testFailureClose(t *testing.T, r *rig) {
	s := r.open(t)
	held := ready(leased)
	insert(t, s, held)
	r.fail(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}})
	closed := s.Close(t.Context())
	require.ErrorIs(t, submit(t, s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}), driver.ErrClosed, "done after Close of a failed store")
	for name, call := range callsOf(s) {
		require.ErrorIs(t, call(t.Context()), driver.ErrClosed, "%s after Close of a failed store", name)
	}
	require.NoError(t, s.Close(t.Context()), "a second Close of a failed store")
	s, lease := r.openLease(t)
	counts := stats(t, s)
	require.EqualValues(t, 1, counts.Unsettled())
	require.Equal(t, counts.Unsettled(), counts.Free)
	crashes := crashesOf(t, s)
	require.Contains(t, crashes, held.Ref)
	if closed == nil {
		require.False(t, lease.Crashed, "Close returned nil, and the next Acquire counted a crash")
		require.Zero(t, crashes[held.Ref], "Close returned nil, and the next Acquire counted a crash")
	}
}

// A store without the lease fails alone. Its Reopen begins no lease.
func testFailureStandby(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	held := ready(leased)
	insert(t, s, held)
	r.fail(t, beside, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}})
	insert(t, s, ready())
	left := &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}}
	require.ErrorIs(t, submit(t, beside, left), driver.ErrFailed)
	_, err := beside.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, driver.ErrFailed, "Acquire of a failed store")
	require.NoError(t, beside.Reopen(t.Context()))
	requireNoLease(t, beside)
	apply(t, beside, left)
	counts := stats(t, s)
	require.EqualValues(t, 2, counts.Ready)
	require.EqualValues(t, 1, counts.Incoming)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref}})
}
