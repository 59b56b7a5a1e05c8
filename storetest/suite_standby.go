package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var standbyTests = []conformanceTest{
	{name: "HasNoLease", run: testStandbyHasNoLease},
	{name: "MovesLetters", run: testStandbyLetters},
	{name: "Reads", run: testStandbyReads},
	{name: "GetsNoLease", run: testStandbyGetsNoLease},
	{name: "TakesOverAfterRelease", run: testTakesOverAfterRelease},
	{name: "TakesOverAfterClose", run: testTakesOverAfterClose},
	{name: "TakesOverAfterACrash", needs: needsCrash, run: testTakesOverAfterACrash},
	{name: "TakesOverAfterALoss", needs: needsLoss, run: testTakesOverAfterALoss},
	{name: "WorksWhileItWaits", run: testWorksWhileItWaits},
	{name: "AppliesBeforeItsLease", run: testAppliesBeforeItsLease},
	{name: "OneTakesOver", run: testOneTakesOver},
	{name: "ReopenKeepsTheLease", run: testReopenKeepsTheLease},
	{name: "WaitEndsWithContext", run: testWaitEndsWithContext},
	{name: "WaitEndsWithClose", run: testWaitEndsWithClose},
	{name: "WaitEndsWithACrash", needs: needsCrash, run: testWaitEndsWithACrash},
	{name: "WaitOfAFailedStore", needs: needsFail, run: testWaitOfAFailedStore},
	{name: "Exchange", run: testExchange},
}

// requireNoLease requires that the store has no lease.
func requireNoLease(t *testing.T, s driver.Store) {
	t.Helper()
	require.Zero(t, s.Lease(), "Lease of a store without a lease")
	claimed, err := s.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 1})
	require.ErrorIs(t, err, driver.ErrNoLease, "Claim without the lease")
	require.Empty(t, claimed.Records)
}

// leasedBatches returns a batch for each field that needs the lease.
func leasedBatches(held, free driver.Record, in driver.IncomingID, asked driver.RequestID) map[string]*driver.Batch {
	held.State = driver.Parked
	return map[string]*driver.Batch{
		"New":            {New: []*driver.Record{ready()}},
		"New, Leased":    {New: []*driver.Record{ready(leased)}},
		"Update":         {Update: []*driver.Record{&held}},
		"Delete":         {Delete: []driver.Ref{held.Ref}},
		"Delete, free":   {Delete: []driver.Ref{free.Ref}},
		"Accept":         {Accept: []driver.IncomingID{in}},
		"Answer":         {Answer: []driver.Answer{{Request: asked, Body: []byte(`{}`)}}},
		"Directives":     {Directives: []driver.Directive{directive("billing", "pause")}},
		"Accept and New": {Accept: []driver.IncomingID{in}, New: []*driver.Record{ready()}},
	}
}

// A store without the lease claims nothing and changes no record. Its batches that need the lease are refused, with and
// without an Epoch.
func testStandbyHasNoLease(t *testing.T, r *rig) {
	s := r.open(t)
	var table leaseTable
	table.fill(t, s)
	beside := r.beside(t)
	requireNoLease(t, beside)
	for _, epoch := range []int64{0, s.Lease().Epoch, s.Lease().Epoch + 1} {
		table.refuse(t, beside, s, epoch)
	}
	requireRecords(t, []*driver.Record{table.free}, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{table.held.Ref, table.free.Ref}})
}

// A store without the lease reads, buries and takes letters.
func testStandbyLetters(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	one, two := letter(), letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{one}})
	apply(t, beside, &driver.Batch{Now: noon, Bury: []*driver.Letter{two}})
	for _, store := range []driver.Store{s, beside} {
		requireLetters(t, newestFirst([]*driver.Letter{one, two}), page(t, store, driver.LetterQuery{}).Letters)
	}
	replay := incoming()
	apply(t, beside, &driver.Batch{Now: noon, Take: []driver.ID{one.ID}, Leave: []*driver.Incoming{replay}})
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{one.ID}}, driver.ErrNotFound)
	requireIncoming(t, s, driver.IncomingQuery{}, replay)
	known := driver.Dedupe{Key: "k", Event: one.Event, Expires: noon.Add(time.Hour)}
	apply(t, beside, &driver.Batch{Now: noon, Remember: []driver.Dedupe{known}})
	require.Equal(t, &known, refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{known}}, driver.ErrDuplicateID).Known)
	require.Equal(t, stats(t, s), stats(t, beside))
}

// A store without the lease gets it only from Acquire: neither from Reopen, nor when the lease ends.
func testStandbyGetsNoLease(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	held := ready(leased)
	insert(t, s, held)
	require.NoError(t, beside.Reopen(t.Context()))
	requireNoLease(t, beside)
	require.NoError(t, beside.Release(t.Context(), driver.AllSlots()), "Release of a store without a lease")
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}})
	require.NoError(t, s.Close(t.Context()))
	requireNoLease(t, beside)
	require.NoError(t, beside.Reopen(t.Context()))
	requireNoLease(t, beside)
	apply(t, beside, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}})
	require.Len(t, claimReady(t, r.open(t)), 1)
}

// acquiring is an Acquire that waits.
type acquiring struct {
	lease  driver.Lease // set before ended receives
	ended  chan error
	cancel context.CancelFunc
}

// startAcquire begins to wait for the lease, until the end of the test.
func startAcquire(t *testing.T, s driver.Store) *acquiring {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &acquiring{ended: make(chan error, 1), cancel: cancel}
	var running sync.WaitGroup
	running.Go(func() {
		var err error
		a.lease, err = s.Acquire(ctx, driver.AcquireQuery{Wait: true})
		a.ended <- err
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return a
}

// require requires that the store gets the lease soon: within 250 ms, and time for a slow machine.
func (a *acquiring) require(t *testing.T, after string) driver.Lease {
	t.Helper()
	began := time.Now()
	require.NoError(t, await(t, a.ended), "Acquire that waits, after %s", after)
	require.Less(t, time.Since(began), watchPatience, "a store that waits gets the lease within 250 ms after %s", after)
	require.True(t, a.lease.IsHeld(), "Acquire returned no lease after %s", after)
	return a.lease
}

// requireWaiting requires that Acquire still waits.
func (a *acquiring) requireWaiting(t *testing.T, what string) {
	t.Helper()
	require.Empty(t, a.ended, "Acquire returned while it must wait: %s", what)
}

// A store without the lease reads the data of the store that has it.
func testStandbyReads(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	held, free := ready(leased), ready(parked("door"))
	entry := driver.Dedupe{Key: "k", Event: held.ID, Expires: noon.Add(time.Hour)}
	apply(t, s, &driver.Batch{
		Now: noon, New: []*driver.Record{held, free}, Remember: []driver.Dedupe{entry},
		Directives: []driver.Directive{directive("billing", "pause")}, Audit: []driver.AuditEntry{audited("ann")},
	})
	for _, store := range []driver.Store{s, other} {
		found := lookup(t, store, held.ID)
		requireRecords(t, []*driver.Record{held}, found)
		require.True(t, found[0].Leased, "Leased of a record that a lease has, of this store or another")
		records, err := store.Records(t.Context(), driver.RecordQuery{Limit: 9})
		require.NoError(t, err)
		requireRecords(t, []*driver.Record{held, free}, records.Records)
		require.Equal(t, driver.Stats{Ready: 1, Parked: 1, Free: 1}, stats(t, store))
		require.Equal(t, map[string]int64{"door": 1}, parkedBy(t, store))
		requireDirectives(t, store, directive("billing", "pause"))
		require.Len(t, auditOf(t, store, driver.AuditQuery{}), 1)
		known, ok, err := store.Remembered(t.Context(), "", "k")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, entry, known)
		_, err = store.Now(t.Context())
		require.NoError(t, err, "Now")
	}
}

func testTakesOverAfterRelease(t *testing.T, r *rig) {
	testTakesOver(t, r, "Release", func(s driver.Store) { require.NoError(t, s.Release(t.Context(), driver.AllSlots())) })
}

func testTakesOverAfterClose(t *testing.T, r *rig) {
	testTakesOver(t, r, "Close", func(s driver.Store) { require.NoError(t, s.Close(t.Context())) })
}

func testTakesOverAfterACrash(t *testing.T, r *rig) {
	testTakesOver(t, r, "a crash", func(s driver.Store) { r.Crash(t, s) })
}

func testTakesOverAfterALoss(t *testing.T, r *rig) {
	testTakesOver(t, r, "a loss", func(s driver.Store) { r.LoseLease(t, s) })
}

// A store that waits gets the lease when it ends, and its records. Only a crash counts as one.
func testTakesOver(t *testing.T, r *rig, by string, end func(s driver.Store)) {
	t.Helper()
	s, other := r.open(t), r.beside(t)
	held, free := ready(leased), ready()
	insert(t, s, held, free)
	old := s.Lease().Epoch
	waits := startAcquire(t, other)
	pause(t, 50*time.Millisecond)
	waits.requireWaiting(t, "another store has the lease")
	requireNoLease(t, other)
	end(s)
	lease := waits.require(t, by)
	require.Greater(t, lease.Epoch, old)
	require.Equal(t, lease.Epoch, other.Lease().Epoch)
	if by != "a loss" { // a store may not tell it from a crash
		require.Equal(t, by == "a crash", lease.Crashed, "Crashed, after %s", by)
	}
	claimed := claimReady(t, other)
	requireRecords(t, []*driver.Record{held, free}, claimed)
	for _, n := range claimed {
		require.False(t, n.Own, "Own of record %d, that an earlier lease made free", n.Ref)
		if by != "a loss" {
			require.Equal(t, by == "a crash" && n.Ref == held.Ref, n.Crashes == 1, "Crashes of record %d is %d after %s", n.Ref, n.Crashes, by)
		}
	}
	apply(t, other, &driver.Batch{Now: noon, Delete: refsOf(claimed)})
}

// A store works while it waits for the lease.
func testWorksWhileItWaits(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	waits := startAcquire(t, other)
	var want []*driver.Incoming
	for range 5 {
		in := incoming()
		apply(t, other, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}})
		want = append(want, in)
		insert(t, s, ready())
	}
	requireIncoming(t, other, driver.IncomingQuery{}, want...)
	counts := stats(t, other)
	require.EqualValues(t, 5, counts.Ready)
	require.EqualValues(t, 5, counts.Incoming)
	waits.requireWaiting(t, "another store has the lease")
	_, err := other.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, driver.ErrNoLease, "Acquire that does not wait, beside one that does")
	require.NoError(t, s.Close(t.Context()))
	waits.require(t, "Close")
}

// The batches submitted before the lease begins have been applied when Acquire returns.
func testAppliesBeforeItsLease(t *testing.T, r *rig) {
	const count = 50
	s, other := r.open(t), r.beside(t)
	for round := range 4 {
		if round == 2 { // the lease is free when Acquire is called
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
		}
		for range count {
			other.Submit(&driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}}, func(error) {})
		}
		waits := startAcquire(t, other)
		if round < 2 {
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
		}
		waits.require(t, "Release")
		require.EqualValues(t, count*(round+1), stats(t, other).Incoming, "incoming events that were left before the lease began")
		require.NoError(t, other.Release(t.Context(), driver.AllSlots()))
		if round < 2 {
			acquire(t, s)
		}
	}
}

// Of several stores that wait or try, one gets each lease.
func testOneTakesOver(t *testing.T, r *rig) {
	s := r.open(t)
	var others []driver.Store
	var waits []*acquiring
	for range 4 {
		other := r.beside(t)
		others = append(others, other)
		waits = append(waits, startAcquire(t, other))
	}
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	done := make([]bool, len(others))
	for range others {
		got := -1
		timer := time.NewTimer(patience)
		for got < 0 {
			for i, a := range waits {
				if !done[i] && len(a.ended) > 0 {
					got = i
				}
			}
			select {
			case <-timer.C:
				require.FailNow(t, "no store that waits got the lease")
			default:
				pause(t, 2*time.Millisecond)
			}
		}
		timer.Stop()
		waits[got].require(t, "Release")
		done[got] = true
		insert(t, others[got], ready())
		for i, other := range others {
			if i != got {
				require.Zero(t, other.Lease(), "two stores have the lease")
			}
		}
		require.NoError(t, others[got].Release(t.Context(), driver.AllSlots()))
	}
	require.EqualValues(t, len(others), stats(t, s).Ready)
}

// Reopen hands the lease to no store that waits.
func testReopenKeepsTheLease(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	waits := startAcquire(t, other)
	for range 3 {
		require.NoError(t, s.Reopen(t.Context()))
		insert(t, s, ready(leased))
		pause(t, 20*time.Millisecond)
	}
	waits.requireWaiting(t, "another store has reopened with the lease")
	require.NoError(t, s.Close(t.Context()))
	waits.require(t, "Close")
	require.Len(t, claimReady(t, other), 3)
}

// An Acquire that waits returns soon after its ctx has ended, and has acquired nothing, also not later.
func testWaitEndsWithContext(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	waits := startAcquire(t, other)
	pause(t, 20*time.Millisecond)
	waits.cancel()
	require.ErrorIs(t, await(t, waits.ended), context.Canceled, "Acquire that waits, after its context ended")
	require.Zero(t, waits.lease)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := other.Acquire(short, driver.AcquireQuery{Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded, "Acquire that waits, after its context ended")
	ended, cancelled := context.WithCancel(t.Context())
	cancelled()
	_, err = other.Acquire(ended, driver.AcquireQuery{Wait: true})
	require.ErrorIs(t, err, context.Canceled, "Acquire that waits, with an ended context")
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	pause(t, 20*time.Millisecond)
	requireNoLease(t, other)
	acquire(t, s)
}

// Close ends an Acquire that waits.
func testWaitEndsWithClose(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	waits := startAcquire(t, other)
	pause(t, 20*time.Millisecond)
	require.NoError(t, other.Close(t.Context()))
	require.ErrorIs(t, await(t, waits.ended), driver.ErrClosed, "Acquire that waits, after Close")
	_, err := other.Acquire(t.Context(), driver.AcquireQuery{Wait: true})
	require.ErrorIs(t, err, driver.ErrClosed, "Acquire after Close")
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	acquire(t, r.beside(t))
}

// The lease goes to a store that is there, and not to one that crashed while it waited.
func testWaitEndsWithACrash(t *testing.T, r *rig) {
	s, killed, other := r.open(t), r.beside(t), r.beside(t)
	startAcquire(t, killed)
	pause(t, 20*time.Millisecond)
	waits := startAcquire(t, other)
	r.Crash(t, killed)
	insert(t, s, ready(leased))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	lease := waits.require(t, "Release")
	require.False(t, lease.Crashed, "the crash of a store without a lease is none of the lease")
	require.Len(t, claimReady(t, other), 1)
}

// A failed store gets no lease, although it waited before.
func testWaitOfAFailedStore(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	waits := startAcquire(t, other)
	pause(t, 20*time.Millisecond)
	r.fail(t, other, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}})
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	pause(t, 20*time.Millisecond)
	waits.cancel()
	require.Error(t, await(t, waits.ended), "Acquire of a store that has failed")
	require.NoError(t, other.Reopen(t.Context()))
	requireNoLease(t, other)
	acquire(t, other)
}

// Two stores leave events and exchange the lease. Each event is taken in once.
func testExchange(t *testing.T, r *rig) {
	const rounds, each = 10, 12
	stores := []driver.Store{r.beside(t), r.beside(t)}
	var journals [2]journal
	var group sync.WaitGroup
	for i, s := range stores {
		group.Go(func() {
			for range rounds * each {
				journals[i].submitAs(s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}})
			}
		})
	}
	taken := make(map[driver.ID]int)
	takeIn := func(s driver.Store) {
		for _, in := range incomingOf(t, s, driver.IncomingQuery{Limit: 5}) {
			n := *in.Record
			n.Leased = true
			apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{in.ID}, New: []*driver.Record{&n}})
			taken[n.ID]++
		}
	}
	for round := range rounds {
		s := stores[round%2]
		acquire(t, s)
		takeIn(s)
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	}
	group.Wait()
	require.Equal(t, rounds*each, journals[0].check(t))
	require.Equal(t, rounds*each, journals[1].check(t))
	acquire(t, stores[0])
	takeIn(stores[0])
	require.Len(t, taken, 2*rounds*each)
	for id, times := range taken {
		require.Equal(t, 1, times, "event %s was taken in", id)
	}
	counts := stats(t, stores[1])
	require.Equal(t, driver.Stats{Ready: 2 * rounds * each, Free: counts.Free}, counts)
}
