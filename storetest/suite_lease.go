package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var leaseTests = []conformanceTest{
	{name: "ReopenFreesRecords", run: testReopenFreesRecords},
	{name: "ReopenAppliesSubmitted", run: testReopenAppliesSubmitted},
	{name: "CloseFreesRecords", run: testCloseFreesRecords},
	{name: "BesideHasNoLease", needs: needsBeside, run: testBesideHasNoLease},
	{name: "BesideInserts", needs: needsBeside, run: testBesideInserts},
	{name: "BesideReadsAndMovesLetters", needs: needsBeside, run: testBesideLetters},
	{name: "BesideKeepsTheLease", needs: needsBeside, run: testBesideKeepsTheLease},
}

// Reopen begins a new lease. It counts no crash, not even of a suspect.
func testReopenFreesRecords(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(leased), ready(leased, suspect), ready(leased, waiting(time.Hour), key("k"))
	insert(t, s, a, b, c)
	require.NoError(t, s.Reopen(t.Context()))
	require.EqualValues(t, 3, stats(t, s).Free)
	refuse(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref}}, driver.ErrNotLeased)
	claimed := claimReady(t, s)
	requireRecords(t, []*driver.Record{a, b, c}, claimed)
	for _, n := range claimed {
		require.Zero(t, n.Crashes, "record %d", n.Ref)
		require.False(t, n.Own, "record %d", n.Ref)
		require.False(t, n.Suspect, "record %d", n.Ref)
	}
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref, b.Ref, c.Ref}})
}

// Reopen waits for every done to return.
func testReopenAppliesSubmitted(t *testing.T, r *rig) {
	s := r.open(t)
	var mu sync.Mutex
	var errs []error
	for range 100 {
		s.Submit(&driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	require.NoError(t, s.Reopen(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, make([]error, 100), errs)
	require.Len(t, claimReady(t, s), 100)
}

// Close frees the records of its lease and counts no crash.
func testCloseFreesRecords(t *testing.T, r *rig) {
	s := r.open(t)
	a, b := ready(leased), ready(leased, suspect)
	insert(t, s, a, b)
	for range 2 {
		s = r.reopen(t, s)
		refuse(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true}}}, driver.ErrNotLeased)
		claimed := claimReady(t, s)
		requireRecords(t, []*driver.Record{a, b}, claimed)
		for _, n := range claimed {
			require.Zero(t, n.Crashes, "record %d", n.Ref)
		}
	}
}

func testBesideHasNoLease(t *testing.T, r *rig) {
	s := r.open(t)
	held, free := ready(leased), ready()
	insert(t, s, held, free)
	beside := r.beside(t)
	require.True(t, hasLease(t, s))
	require.False(t, hasLease(t, beside))
	_, err := beside.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 1})
	require.ErrorIs(t, err, driver.ErrNoLease)
	before := stats(t, s)
	for _, ref := range []driver.Ref{held.Ref, free.Ref} {
		refuseUnleased(t, beside, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: ref, State: driver.Parked}}}, ref, "Update without the lease")
		refuseUnleased(t, beside, &driver.Batch{Now: noon, Delete: []driver.Ref{ref}}, ref, "Delete without the lease")
	}
	refused := refuse(t, beside, &driver.Batch{Now: noon, New: []*driver.Record{ready(), ready(leased)}}, driver.ErrNotLeased)
	require.Zero(t, refused.Ref, "RefusedError.Ref of a new record that is Leased: it has no Ref yet")
	require.Equal(t, before, stats(t, s))
	requireRecords(t, []*driver.Record{free}, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref, free.Ref}})
}

// A record that another process inserts is claimed by the bus with the lease, in its place, and is
// not its own.
func testBesideInserts(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	a, b, c := ready(), ready(waiting(time.Hour), key("k")), ready()
	insert(t, s, a)
	insert(t, beside, b)
	insert(t, s, c)
	require.Less(t, a.Ref, b.Ref)
	require.Less(t, b.Ref, c.Ref)
	claimed := claimReady(t, s)
	requireRecords(t, []*driver.Record{a, b, c}, claimed)
	require.Equal(t, []bool{true, false, true}, []bool{claimed[0].Own, claimed[1].Own, claimed[2].Own})
	known := driver.Dedupe{Key: "k", Event: a.ID, Expires: noon.Add(time.Hour)}
	apply(t, beside, &driver.Batch{Now: noon, Remember: []driver.Dedupe{known}})
	require.Equal(t, &known, refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{known}}, driver.ErrDuplicateID).Known)
	require.NoError(t, beside.Close(t.Context()))
	require.Zero(t, stats(t, s).Free, "Close without the lease freed records of the lease")
}

func testBesideLetters(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	one, two := letter(), letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{one}})
	apply(t, beside, &driver.Batch{Now: noon, Bury: []*driver.Letter{two}})
	for _, store := range []driver.Store{s, beside} {
		requireLetters(t, newestFirst([]*driver.Letter{one, two}), page(t, store, driver.LetterQuery{}).Letters)
	}
	replay := ready()
	apply(t, beside, &driver.Batch{Now: noon, Take: []driver.ID{one.ID}, New: []*driver.Record{replay}})
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{one.ID}}, driver.ErrNotFound)
	requireRecords(t, []*driver.Record{replay}, lookup(t, beside, replay.ID))
	requireRecords(t, []*driver.Record{replay}, claimReady(t, s))
	order := directive("billing", "pause")
	apply(t, beside, &driver.Batch{Now: noon, Directives: []driver.Directive{order}})
	requireDirectives(t, s, order)
	require.Equal(t, stats(t, s), stats(t, beside))
}

// A store without the lease does not get it from Reopen, nor when the lease ends.
func testBesideKeepsTheLease(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	held := ready(leased)
	insert(t, s, held)
	require.NoError(t, beside.Reopen(t.Context()))
	_, err := beside.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
	require.ErrorIs(t, err, driver.ErrNoLease)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}})
	require.NoError(t, s.Close(t.Context()))
	_, err = beside.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
	require.ErrorIs(t, err, driver.ErrNoLease)
	insert(t, beside, ready())
	require.Len(t, claimReady(t, r.open(t)), 2)
}

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

// Stats reports the crash of the lease before, until the end of the store, and the number of its events.
func testCrashIsReported(t *testing.T, r *rig) {
	s := r.open(t)
	requireCrash := func(events int64) {
		t.Helper()
		for range 2 {
			counts, err := s.Stats(t.Context())
			require.NoError(t, err, "Stats")
			require.True(t, counts.Crashed, "Crashed")
			require.Equal(t, events, counts.CrashedEvents, "CrashedEvents")
			require.NoError(t, s.Reopen(t.Context()))
		}
	}
	requireNone := func() {
		t.Helper()
		counts, err := s.Stats(t.Context())
		require.NoError(t, err, "Stats")
		require.False(t, counts.Crashed, "Crashed")
		require.Zero(t, counts.CrashedEvents, "CrashedEvents")
	}
	requireNone()
	a, b, c, d := ready(leased), ready(leased), ready(leased, waiting(time.Hour)), ready()
	b.ID = a.ID
	insert(t, s, a, b, c, d, ready(leased))
	s = r.crash(t, s)
	requireCrash(2) // a and b are of one event, c waits, d is free
	require.Len(t, claimReady(t, s), 4)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: a.Ref, Leased: true, Suspect: true}}})
	s = r.crash(t, s)
	requireCrash(1)
	s = r.reopen(t, s)
	requireNone()
	s = r.crash(t, s)
	requireCrash(0)
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
		s = r.crash(t, s)
		counts, err := s.Stats(t.Context())
		require.NoError(t, err, "Stats")
		require.EqualValues(t, 1, counts.CrashedEvents, "CrashedEvents counts the events whose Crashes grew")
		require.Equal(t, want, crashesOf(t, s), "Crashes by Ref; a suspect: %t", suspect)
	}
	crash(false, map[driver.Ref]int{
		at.Ref: driver.SuspectCrashes, above.Ref: driver.SuspectCrashes + 3, below.Ref: driver.SuspectCrashes,
	})
	crash(true, map[driver.Ref]int{
		at.Ref: driver.SuspectCrashes, above.Ref: driver.SuspectCrashes + 4, below.Ref: driver.SuspectCrashes - 1,
	})
}

var watchTests = []conformanceTest{
	{name: "OtherProcess", needs: needsBeside, run: testWatch},
	{name: "GoesOnAfterReopen", needs: needsBeside, run: testWatchGoesOnAfterReopen},
	{name: "StopWaits", needs: needsBeside, run: testWatchStop},
	{name: "StopAfterClose", run: testWatchStopAfterClose},
}

// watchPatience is how long a test waits for a hint: 250 ms, and time for a slow machine.
const watchPatience = 5 * time.Second

// watched is what the calls of changed have told.
type watched struct {
	calls chan struct{}

	mu  sync.Mutex // guards the following
	all driver.Change
}

func newWatched() *watched { return &watched{calls: make(chan struct{}, 1000)} }

func (w *watched) changed(c driver.Change) {
	w.mu.Lock()
	w.all |= c
	w.mu.Unlock()
	select {
	case w.calls <- struct{}{}:
	default:
	}
}

func (w *watched) told() driver.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

func (w *watched) forget() {
	w.mu.Lock()
	w.all = 0
	w.mu.Unlock()
	for len(w.calls) > 0 {
		<-w.calls
	}
}

// await requires that changed is told of several commits of a store.
func (w *watched) await(t *testing.T, other driver.Store) {
	t.Helper()
	directive := driver.Directive{Subscription: "mail", Body: []byte(`{}`)}
	for _, b := range []*driver.Batch{
		{Now: noon, New: []*driver.Record{ready()}, Bury: []*driver.Letter{letter()}},
		{Now: noon, Directives: []driver.Directive{directive}},
		{Now: noon, New: []*driver.Record{ready()}, Directives: []driver.Directive{directive}},
	} {
		w.forget()
		apply(t, other, b)
		timer := time.NewTimer(watchPatience)
		for w.told()&b.Changes() != b.Changes() {
			select {
			case <-w.calls:
			case <-timer.C:
				require.FailNow(t, "Watch did not call changed", "%v after another store has committed changes %b, it has told of %b", watchPatience, b.Changes(), w.told())
			}
		}
		timer.Stop()
	}
}

func testWatchGoesOnAfterReopen(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	hints := newWatched()
	stop := s.Watch(hints.changed)
	require.NoError(t, s.Reopen(t.Context()))
	pause(t, 300*time.Millisecond) // a hint of the Reopen
	hints.await(t, beside)
	stop()
	stop()
}

func testWatch(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	hints := newWatched()
	for _, pair := range [][2]driver.Store{{s, beside}, {beside, s}} {
		stop := pair[0].Watch(hints.changed)
		hints.await(t, pair[1])
		stop()
		hints.forget()
		apply(t, pair[1], &driver.Batch{Now: noon, New: []*driver.Record{ready()}})
		pause(t, 300*time.Millisecond)
		require.Empty(t, hints.calls, "a hint came after stop")
	}
}

// pause waits, unless the test ends.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// stop waits for a call in progress.
func testWatchStop(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	entered, leave := make(chan error, 1), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	returned := false
	stop := s.Watch(func(driver.Change) {
		once.Do(func() {
			entered <- nil
			<-leave
			mu.Lock()
			defer mu.Unlock()
			returned = true
		})
	})
	beside.Submit(&driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(error) {})
	require.NoError(t, await(t, entered))
	go func() {
		pause(t, 20*time.Millisecond)
		close(leave)
	}()
	stop()
	mu.Lock()
	defer mu.Unlock()
	require.True(t, returned, "stop returned during a call")
}

func testWatchStopAfterClose(t *testing.T, r *rig) {
	s := r.open(t)
	stop := s.Watch(func(driver.Change) {})
	require.NoError(t, s.Close(t.Context()))
	within(t, "stop, after Close,", stop)
	within(t, "a second stop", stop)
}
