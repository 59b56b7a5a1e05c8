package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var crashTests = []conformanceTest{
	{name: "CountsEach", needs: needsCrash, run: testCrashCounts},
	{name: "OnlyReady", needs: needsCrash, run: testCrashWaiting},
	{name: "OnlySuspects", needs: needsCrash, run: testCrashSuspects},
	{name: "SuspectsOfOtherLeases", needs: needsCrash, run: testSuspectsOfOtherLeases},
	{name: "FreeRecordsCountNone", needs: needsCrash, run: testCrashOfFreeRecords},
	{name: "Fences", needs: needsCrash, run: testCrashFences},
	{name: "IsReported", needs: needsCrash, run: testCrashIsReported},
	{name: "AtTheLimit", needs: needsCrash, run: testCrashAtTheLimit},
}

// crashesOf claims all ready records and returns their Crashes by Ref.
func crashesOf(t *testing.T, s driver.Store) map[driver.Ref]int {
	t.Helper()
	crashes := make(map[driver.Ref]int)
	for _, n := range claimReady(t, s) {
		require.False(t, n.Own, "record %d", n.Ref)
		require.False(t, n.Suspect, "record %d", n.Ref)
		crashes[n.Ref] = n.Crashes
	}
	return crashes
}

// Each lease that ended without Close counts. A Close in between does not reset the count.
func testCrashCounts(t *testing.T, r *rig) {
	s := r.open(t)
	a := ready(leased)
	insert(t, s, a)
	for i := range 3 {
		s = r.crash(t, s)
		require.EqualValues(t, 1, stats(t, s).Free)
		want := map[driver.Ref]int{a.Ref: min(i+1, driver.SuspectCrashes)}
		require.Equal(t, want, crashesOf(t, s))
		if i == 1 {
			s = r.reopen(t, s)
			require.Equal(t, want, crashesOf(t, s))
			require.NoError(t, s.Reopen(t.Context()))
			require.Equal(t, want, crashesOf(t, s))
		}
	}
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true}}})
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 1}, crashesOf(t, s), "an update has begun the count anew")
}

// Of the records without Suspect, those that wait or are parked count no crash.
func testCrashWaiting(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(leased), ready(leased, waiting(0), key("k")), ready(leased, parked("door"), key("l"))
	insert(t, s, a, b, c)
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 1, b.Ref: 0, c.Ref: 0}, crashesOf(t, s))
}

// If a crashed lease had suspects, only those count it.
func testCrashSuspects(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(leased), ready(leased, suspect), ready(leased)
	insert(t, s, a, b, c)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: c.Ref, Leased: true, Suspect: true}}})
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 0, b.Ref: 1, c.Ref: 1}, crashesOf(t, s))
	// Claim has cleared Suspect: now the crash counts for all.
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 1, b.Ref: 2, c.Ref: 2}, crashesOf(t, s))
	// An update clears Suspect too.
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{
		{Ref: a.Ref, Leased: true, Suspect: true, Crashes: 1}, {Ref: b.Ref, Leased: true, Suspect: true, Crashes: 2},
	}})
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true, Crashes: 1}}})
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 1, b.Ref: 3, c.Ref: 2}, crashesOf(t, s))
}

// Two leases crash before a record is claimed. Each counts by its own suspects.
func testSuspectsOfOtherLeases(t *testing.T, r *rig) {
	s := r.open(t)
	a, b := ready(leased, suspect), ready(leased)
	insert(t, s, a, b)
	s = r.crash(t, s)
	c, d := ready(leased), ready(leased)
	insert(t, s, c, d)
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 1, b.Ref: 0, c.Ref: 1, d.Ref: 1}, crashesOf(t, s))
}

// A lease does not have the records that are free when it crashes, suspects or not.
func testCrashOfFreeRecords(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c, d := ready(), ready(leased), ready(suspect), ready(leased)
	insert(t, s, a, b, c, d)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: b.Ref, Suspect: true}}})
	s = r.crash(t, s)
	require.Equal(t, map[driver.Ref]int{a.Ref: 0, b.Ref: 0, c.Ref: 0, d.Ref: 1}, crashesOf(t, s))
}

// The records of a crashed lease are free, and not leased by the next one.
func testCrashFences(t *testing.T, r *rig) {
	s := r.open(t)
	a := ready(leased)
	insert(t, s, a)
	s = r.crash(t, s)
	refuse(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref}}, driver.ErrNotLeased)
	refuse(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true}}}, driver.ErrNotLeased)
	require.Len(t, claimReady(t, s), 1)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref}})
}

// Acquire reports the crash of the lease before, and the number of its events.
func testCrashIsReported(t *testing.T, r *rig) {
	s, lease := r.openLease(t)
	require.False(t, lease.Crashed, "Crashed of the first lease")
	require.Zero(t, lease.CrashedEvents, "CrashedEvents of the first lease")
	requireCrash := func(events int64) {
		t.Helper()
		r.Crash(t, s)
		s, lease = r.openLease(t)
		require.True(t, lease.Crashed, "Crashed")
		require.Equal(t, events, lease.CrashedEvents, "CrashedEvents")
	}
	a, b, c, d := ready(leased), ready(leased), ready(leased, waiting(time.Hour)), ready()
	b.ID = a.ID
	insert(t, s, a, b, c, d, ready(leased))
	requireCrash(2) // a and b are of one event, c waits, d is free
	require.Len(t, claimReady(t, s), 4)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true, Suspect: true}}})
	requireCrash(1)
	require.NoError(t, s.Close(t.Context()))
	s, lease = r.openLease(t)
	require.False(t, lease.Crashed, "Crashed, after Close")
	require.Zero(t, lease.CrashedEvents, "CrashedEvents, after Close")
	requireCrash(0)
	require.NoError(t, s.Reopen(t.Context()))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	lease = acquire(t, s)
	require.False(t, lease.Crashed, "Crashed, after Release")
	require.Zero(t, lease.CrashedEvents, "CrashedEvents, after Release")
}

// Without suspects, a record with SuspectCrashes or more counts no further crash, and keeps its count. A suspect
// counts each crash.
func testCrashAtTheLimit(t *testing.T, r *rig) {
	s := r.open(t)
	at, above, below := ready(leased), ready(leased), ready(leased)
	insert(t, s, at, above, below)
	update := func(suspect bool) *driver.Batch {
		return &driver.Batch{Now: noon, Update: []*driver.Record{
			{Ref: at.Ref, Leased: true, Crashes: driver.SuspectCrashes},
			{Ref: above.Ref, Leased: true, Crashes: driver.SuspectCrashes + 3, Suspect: suspect},
			{Ref: below.Ref, Leased: true, Crashes: driver.SuspectCrashes - 1},
		}}
	}
	crash := func(suspect bool, want map[driver.Ref]int) {
		t.Helper()
		apply(t, s, update(suspect))
		r.Crash(t, s)
		var lease driver.Lease
		s, lease = r.openLease(t)
		require.EqualValues(t, 1, lease.CrashedEvents, "CrashedEvents counts the events whose Crashes grew")
		require.Equal(t, want, crashesOf(t, s), "Crashes by Ref; a suspect: %t", suspect)
	}
	crash(false, map[driver.Ref]int{
		at.Ref: driver.SuspectCrashes, above.Ref: driver.SuspectCrashes + 3, below.Ref: driver.SuspectCrashes,
	})
	crash(true, map[driver.Ref]int{
		at.Ref: driver.SuspectCrashes, above.Ref: driver.SuspectCrashes + 4, below.Ref: driver.SuspectCrashes - 1,
	})
}
