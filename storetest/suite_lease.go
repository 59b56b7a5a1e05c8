package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var leaseTests = []conformanceTest{
	{name: "IsAcquired", run: testLeaseIsAcquired},
	{name: "IsThatOfOneStore", run: testLeaseOfOneStore},
	{name: "AcquireReturnsTheSame", run: testAcquireReturnsTheSame},
	{name: "EpochsGrow", run: testEpochsGrow},
	{name: "RefsAreUnique", run: testRefsAreUnique},
	{name: "EpochOfAnother", run: testEpochOfAnother},
	{name: "WithoutEpoch", run: testWithoutEpoch},
	{name: "ReopenFreesRecords", run: testReopenFreesRecords},
	{name: "ReopenAppliesSubmitted", run: testReopenAppliesSubmitted},
	{name: "CloseFreesRecords", run: testCloseFreesRecords},
	{name: "ReleaseFreesRecords", run: testReleaseFreesRecords},
	{name: "ReleaseAppliesSubmitted", run: testReleaseAppliesSubmitted},
	{name: "ReleaseInTheOrderOfSubmit", run: testReleaseInTheOrderOfSubmit},
	{name: "ReleaseOfOtherSlots", run: testReleaseOfOtherSlots},
	{name: "ReleaseCutShort", run: testReleaseCutShort},
	{name: "LostRefuses", needs: needsLoss, run: testLostRefuses},
	{name: "LostFreesRecords", needs: needsLoss, run: testLostFreesRecords},
	{name: "LostReopen", needs: needsLoss, run: testLostReopen},
	{name: "LostRelease", needs: needsLoss, run: testLostRelease},
	{name: "LostAcquire", needs: needsLoss, run: testLostAcquire},
	{name: "Denied", needs: needsDeny, run: testDenied},
}

// Open acquires no lease. Acquire does.
func testLeaseIsAcquired(t *testing.T, r *rig) {
	s := r.beside(t)
	requireNoLease(t, s)
	lease := acquire(t, s)
	require.Positive(t, lease.Epoch, "Epoch")
	require.False(t, lease.Crashed, "Crashed of the first lease")
	if r.Slots < 2 {
		require.Equal(t, driver.AllSlots(), lease.Slots, "a store with one slot gives AllSlots")
	}
	require.True(t, lease.Slots.Has(0), "the lease of all slots has slot 0")
	n := ready()
	insert(t, s, n)
	requireRecords(t, []*driver.Record{n}, claimReady(t, s))
}

// While a store has the lease, the others get none.
func testLeaseOfOneStore(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	held := ready(leased)
	insert(t, s, held)
	for range 2 {
		lease, err := other.Acquire(t.Context(), driver.AcquireQuery{})
		require.ErrorIs(t, err, driver.ErrNoLease, "Acquire while another store has the lease")
		require.Zero(t, lease)
		requireNoLease(t, other)
	}
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}})
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	requireNoLease(t, s)
	acquire(t, other)
	_, err := s.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, driver.ErrNoLease, "Acquire while another store has the lease")
	requireRecords(t, []*driver.Record{held}, claimReady(t, other))
}

// Acquire returns the lease that the store has, and changes nothing.
func testAcquireReturnsTheSame(t *testing.T, r *rig) {
	s, lease := r.openLease(t)
	held, free := ready(leased), ready()
	insert(t, s, held, free)
	for _, wait := range []bool{false, true} {
		again, err := s.Acquire(t.Context(), driver.AcquireQuery{Wait: wait})
		require.NoError(t, err, "Acquire of a store with the lease")
		require.Equal(t, lease.Epoch, again.Epoch, "Epoch of the same lease")
		require.Equal(t, lease.Slots, again.Slots, "Slots of the same lease")
	}
	claimed := claimReady(t, s)
	requireRecords(t, []*driver.Record{free}, claimed)
	require.True(t, claimed[0].Own, "a repeated Acquire ended the lease")
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref, free.Ref}})
}

// Each lease has a larger Epoch than all before it, whatever store has it and however the last one ended.
func testEpochsGrow(t *testing.T, r *rig) {
	s, other := r.beside(t), r.beside(t)
	last := int64(0)
	grows := func(lease driver.Lease, after string) {
		t.Helper()
		require.Greater(t, lease.Epoch, last, "Epoch of a lease after %s", after)
		last = lease.Epoch
	}
	grows(acquire(t, s), "none")
	for range 2 {
		require.NoError(t, s.Reopen(t.Context()))
		grows(s.Lease(), "Reopen")
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
		grows(acquire(t, s), "Release")
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
		grows(acquire(t, other), "Release by another store")
		require.NoError(t, other.Reopen(t.Context()))
		grows(other.Lease(), "Reopen")
		require.NoError(t, other.Close(t.Context()))
		grows(acquire(t, s), "Close of another store")
		if r.LoseLease != nil {
			r.LoseLease(t, s)
			other = r.beside(t)
			grows(acquire(t, other), "the loss of a lease")
			require.NoError(t, other.Close(t.Context()))
			require.NoError(t, s.Close(t.Context()))
			s = r.beside(t)
			grows(acquire(t, s), "Close")
		}
		require.NoError(t, s.Close(t.Context()))
		s = r.beside(t)
		grows(acquire(t, s), "Close")
		if r.Crash != nil {
			r.Crash(t, s)
			s = r.beside(t)
			grows(acquire(t, s), "a crash")
		}
		other = r.beside(t)
	}
}

// A Ref is that of one record for ever, also if stores exchange the lease.
func testRefsAreUnique(t *testing.T, r *rig) {
	stores := []driver.Store{r.beside(t), r.beside(t)}
	known := make(map[driver.Ref]bool)
	for i := range 6 {
		s := stores[i%2]
		acquire(t, s)
		var last driver.Ref
		for range 3 {
			records := []*driver.Record{ready(leased), ready()}
			insert(t, s, records...)
			for _, n := range records {
				require.Greater(t, n.Ref, last, "refs of one lease and slot grow")
				require.False(t, known[n.Ref], "Ref %d was assigned twice", n.Ref)
				last, known[n.Ref] = n.Ref, true
			}
			apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{records[0].Ref}})
		}
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	}
}

// leaseTable is data with one of each thing that a batch under a lease changes.
type leaseTable struct {
	held, free *driver.Record
	in         *driver.Incoming
	asked      *driver.Request
}

// fill writes the data with a store that has the lease.
func (l *leaseTable) fill(t *testing.T, s driver.Store) {
	t.Helper()
	l.held, l.free = ready(leased), ready()
	l.in, l.asked = incoming(), request()
	apply(t, s, &driver.Batch{
		Now: noon, New: []*driver.Record{l.held, l.free}, Leave: []*driver.Incoming{l.in}, Ask: []*driver.Request{l.asked},
	})
}

// refuse requires that a store refuses all batches with an Epoch that need the lease, and that they change nothing.
func (l *leaseTable) refuse(t *testing.T, s, reader driver.Store, epoch int64) {
	t.Helper()
	before := stats(t, reader)
	directives, err := reader.Directives(t.Context())
	require.NoError(t, err)
	for what, b := range leasedBatches(*l.held, *l.free, l.in.ID, l.asked.ID) {
		b.Now, b.Epoch = noon, epoch
		b.Leave, b.Ask = []*driver.Incoming{incoming()}, []*driver.Request{request()}
		b.Bury, b.Catalog = []*driver.Letter{letter()}, &driver.Catalog{Instance: "refused", Body: []byte(`{}`)}
		refused := refuseAs(t, s, b, driver.ErrLeaseLost, what)
		require.Equal(t, driver.RefusedError{Err: driver.ErrLeaseLost}, refused, what)
		for _, n := range b.New {
			require.Zero(t, n.Ref, "%s: Ref of a new record of a refused batch", what)
		}
		require.Zero(t, b.Leave[0].ID, "%s: ID of an incoming event of a refused batch", what)
		require.Zero(t, b.Ask[0].ID, "%s: ID of a request of a refused batch", what)
	}
	require.Equal(t, before, stats(t, reader), "a refused batch changed something")
	requireDirectives(t, reader, directives...)
	requireCatalogs(t, reader)
	requireRecords(t, []*driver.Record{l.held}, lookup(t, reader, l.held.ID))
	_, answered, err := reader.Answer(t.Context(), l.asked.ID)
	require.NoError(t, err)
	require.False(t, answered, "a refused batch answered a request")
}

// A batch with the Epoch of another lease is refused, also by the store that has the lease, and whatever it changes.
func testEpochOfAnother(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	var table leaseTable
	table.fill(t, s)
	epoch := s.Lease().Epoch
	table.refuse(t, s, s, epoch+1)
	table.refuse(t, s, s, epoch-1)
	table.refuse(t, s, s, -1)
	table.refuse(t, other, s, epoch)
	for _, store := range []driver.Store{s, other} {
		b := &driver.Batch{Now: noon, Epoch: epoch + 1, Leave: []*driver.Incoming{incoming()}}
		refuseAs(t, store, b, driver.ErrLeaseLost, "a batch that needs no lease, with the Epoch of another one")
		require.Zero(t, b.Leave[0].ID)
		refuseAs(t, store, &driver.Batch{Now: noon, Epoch: epoch + 1}, driver.ErrLeaseLost, "an empty batch with the Epoch of another lease")
	}
	apply(t, s, &driver.Batch{Now: noon, Epoch: epoch, Delete: []driver.Ref{table.held.Ref}})
}

// A batch without an Epoch is refused if it needs the lease, also by the store that has it. All others apply.
func testWithoutEpoch(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	var table leaseTable
	table.fill(t, s)
	table.refuse(t, s, s, 0)
	for _, store := range []driver.Store{s, other} {
		in, asked, l := incoming(scheduled(time.Hour)), request(), letter()
		entry := driver.Dedupe{Key: newID().String(), Event: newID(), Expires: noon.Add(time.Hour)}
		for _, b := range []*driver.Batch{
			{Leave: []*driver.Incoming{in}, Ask: []*driver.Request{asked}, Bury: []*driver.Letter{l}, Remember: []driver.Dedupe{entry}},
			{Withdraw: []driver.ID{in.Record.ID}, Forget: []driver.Dedupe{entry}, Audit: []driver.AuditEntry{audited("ann")}},
			{Take: []driver.ID{l.ID}, Catalog: &driver.Catalog{Instance: "one", Body: []byte(`{}`)}},
		} {
			b.Now = noon
			require.NoError(t, submitAs(t, store, b), "a batch without an Epoch that needs no lease")
		}
		require.NoError(t, submitAs(t, store, &driver.Batch{Now: noon, Unask: []driver.RequestID{asked.ID}}))
	}
}

// A store refuses all batches under a lease that it has lost, and changes nothing. Those without an Epoch apply.
func testLostRefuses(t *testing.T, r *rig) {
	s, reader := r.open(t), r.beside(t)
	epoch := s.Lease().Epoch
	var table leaseTable
	table.fill(t, s)
	r.LoseLease(t, s)
	table.refuse(t, s, reader, epoch)
	claimed, err := s.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 9})
	require.ErrorIs(t, err, driver.ErrNoLease, "Claim after the loss of the lease")
	require.Empty(t, claimed.Records)
	require.Zero(t, s.Lease(), "Lease, after the store knows that it was lost")
	in, l := incoming(), letter()
	require.NoError(t, submitAs(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}, Bury: []*driver.Letter{l}}), "a batch without an Epoch")
	requireIncoming(t, reader, driver.IncomingQuery{}, table.in, in)

	acquire(t, reader)
	require.Len(t, claimReady(t, reader), 2)
	table.refuse(t, s, reader, epoch)
	table.refuse(t, s, reader, reader.Lease().Epoch)
	apply(t, reader, &driver.Batch{Now: noon, Delete: []driver.Ref{table.held.Ref}, Accept: []driver.IncomingID{in.ID}})
}

// The next lease has the records of one that was lost, and they are not its own.
func testLostFreesRecords(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	held, free := ready(leased), ready()
	insert(t, s, held, free)
	ended := startAcquire(t, other)
	r.LoseLease(t, s)
	ended.require(t, "the loss of the lease")
	counts := stats(t, other)
	require.EqualValues(t, 2, counts.Free, "Acquire frees the records of earlier leases")
	claimed := claimReady(t, other)
	requireRecords(t, []*driver.Record{held, free}, claimed)
	for _, n := range claimed {
		require.False(t, n.Own, "Own of record %d, that an earlier lease made free", n.Ref)
	}
}

// Reopen, after another store has acquired the lease, begins none.
func testLostReopen(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	r.LoseLease(t, s)
	lease := acquire(t, other)
	held := ready(leased)
	insert(t, other, held)
	require.NoError(t, s.Reopen(t.Context()))
	requireNoLease(t, s)
	require.Equal(t, lease.Epoch, other.Lease().Epoch)
	apply(t, other, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref}})
	require.NoError(t, s.Close(t.Context()), "Close of a store that has lost its lease")
	insert(t, other, ready())
	require.Len(t, claimReady(t, other), 1)
}

// Release of a lease that was lost changes nothing, and the store knows then that it has none.
func testLostRelease(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	r.LoseLease(t, s)
	acquire(t, other)
	held := ready(leased)
	insert(t, other, held)
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.Zero(t, s.Lease())
	require.Zero(t, stats(t, other).Free, "Release freed records of another lease")
	apply(t, other, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref}})
}

// A store that has lost its lease may acquire one again.
func testLostAcquire(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	old := s.Lease().Epoch
	held := ready(leased)
	insert(t, s, held)
	r.LoseLease(t, s)
	acquire(t, other)
	ended := startAcquire(t, s)
	require.NoError(t, other.Release(t.Context(), driver.AllSlots()))
	lease := ended.require(t, "Release")
	require.Greater(t, lease.Epoch, old)
	refuseAs(t, s, &driver.Batch{Now: noon, Epoch: old, Delete: []driver.Ref{held.Ref}}, driver.ErrLeaseLost, "a batch of the lost lease")
	requireRecords(t, []*driver.Record{held}, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref}})
}

// A store that does not grant the wish Leased clears it. The record is free, and its own.
func testDenied(t *testing.T, r *rig) {
	s := r.open(t)
	denied, free, parked := ready(leased), ready(), ready(leased, key("k"), parked("door"))
	r.Deny(t, s)
	insert(t, s, denied, free, parked)
	for _, n := range []*driver.Record{denied, free, parked} {
		require.False(t, n.Leased, "Leased of a new record whose wish is not granted")
		require.NotZero(t, n.Ref)
		require.False(t, lookup(t, s, n.ID)[0].Leased, "Leased of a record in the store whose wish was not granted")
	}
	require.EqualValues(t, 3, stats(t, s).Free)
	refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{denied.Ref}}, denied.Ref, "Delete of a record whose wish was not granted")
	granted := ready(leased)
	insert(t, s, granted)
	require.True(t, granted.Leased, "Leased of a new record whose wish is granted")
	claimed := claimReady(t, s)
	requireRecords(t, []*driver.Record{denied, free}, claimed)
	atDoor := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}}).Records
	requireRecords(t, []*driver.Record{parked}, atDoor)
	for _, n := range append(claimed, atDoor...) {
		require.True(t, n.Own, "Own of record %d, that this lease made free", n.Ref)
	}
}
