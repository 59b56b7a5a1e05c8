package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var slotTests = []conformanceTest{
	{name: "OfTwoStores", needs: needsSlots, run: testSlotsOfTwoStores},
	{name: "AreAdded", needs: needsSlots, run: testSlotsAreAdded},
	{name: "Wait", needs: needsSlots, run: testSlotsWait},
	{name: "Release", needs: needsSlots, run: testSlotsRelease},
	{name: "Reopen", needs: needsSlots, run: testSlotsReopen},
	{name: "New", needs: needsSlots, run: testSlotsNew},
	{name: "Accept", needs: needsSlots, run: testSlotsAccept},
	{name: "Incoming", needs: needsSlots, run: testSlotsIncoming},
	{name: "Claim", needs: needsSlots, run: testSlotsClaim},
	{name: "Own", needs: needsSlots, run: testSlotsOwn},
	{name: "Crash", needs: needsSlots | needsCrash, run: testSlotsCrash},
	{name: "CrashOfSome", needs: needsSlots | needsCrash, run: testSlotsCrashOfSome},
	{name: "CrashOfSeveral", needs: needsSlots | needsCrash, run: testSlotsCrashOfSeveral},
	{name: "CrashOfSuspects", needs: needsSlots | needsCrash, run: testSlotsCrashOfSuspects},
	{name: "Loss", needs: needsSlots | needsLoss, run: testSlotsLoss},
}

func slot(n driver.Slot) func(*driver.Record) { return func(r *driver.Record) { r.Slot = n } }

// acquireSlot acquires one more slot, and returns its number.
func acquireSlot(t *testing.T, s driver.Store) driver.Slot {
	t.Helper()
	before := s.Lease().Slots
	lease, err := s.Acquire(t.Context(), driver.AcquireQuery{Want: 1})
	require.NoError(t, err, "Acquire of one slot")
	added := lease.Slots.Without(before)
	require.Equal(t, 1, added.Len(), "slots that an Acquire that wants 1 has added")
	require.Equal(t, lease.Slots, s.Lease().Slots)
	for n := range driver.AllSlots().Len() {
		if one := driver.Slot(n); added.Has(one) {
			return one
		}
	}
	return 0
}

// twoStores opens two stores with one slot each, and releases the other slots.
func twoStores(t *testing.T, r *rig) (s, other driver.Store, mine, theirs driver.Slot) {
	t.Helper()
	s, other = r.beside(t), r.beside(t)
	return s, other, acquireSlot(t, s), acquireSlot(t, other)
}

// Two stores have different slots, and each writes records in its own.
func testSlotsOfTwoStores(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	require.NotEqual(t, mine, theirs, "two stores have one slot")
	require.NotEqual(t, s.Lease().Epoch, other.Lease().Epoch)
	a, b := ready(leased, slot(mine)), ready(leased, slot(theirs))
	insert(t, s, a)
	insert(t, other, b)
	require.NotEqual(t, a.Ref, b.Ref, "two records have one Ref")
	requireRecords(t, []*driver.Record{a}, lookup(t, other, a.ID))
	refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{b.Ref}}, b.Ref, "Delete of a record of another lease")
	refuseUnleased(t, other, &driver.Batch{Now: noon, Update: []*driver.Record{a}}, a.Ref, "Update of a record of another lease")
	refuseAs(t, s, &driver.Batch{Now: noon, Epoch: other.Lease().Epoch, Delete: []driver.Ref{b.Ref}}, driver.ErrLeaseLost, "the Epoch of another store")
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref}})
	apply(t, other, &driver.Batch{Now: noon, Delete: []driver.Ref{b.Ref}})
}

// Acquire adds free slots to the lease, whose Epoch stays. Want 0 adds all.
func testSlotsAreAdded(t *testing.T, r *rig) {
	s := r.beside(t)
	first := acquireSlot(t, s)
	epoch := s.Lease().Epoch
	held := ready(leased, slot(first))
	insert(t, s, held)
	second := acquireSlot(t, s)
	require.NotEqual(t, first, second)
	require.Equal(t, epoch, s.Lease().Epoch, "Epoch of a lease with one more slot")
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}, New: []*driver.Record{ready(slot(second))}})
	lease, err := s.Acquire(t.Context(), driver.AcquireQuery{Wait: true})
	require.NoError(t, err)
	require.Equal(t, epoch, lease.Epoch)
	require.Equal(t, r.Slots, lease.Slots.Len(), "Acquire of all slots")
	again, err := s.Acquire(t.Context(), driver.AcquireQuery{Want: 1, Wait: true})
	require.NoError(t, err, "Acquire of a store with a lease does not wait")
	require.Equal(t, lease.Slots, again.Slots)
	_, err = r.beside(t).Acquire(t.Context(), driver.AcquireQuery{Want: 1})
	require.ErrorIs(t, err, driver.ErrNoLease, "Acquire while no slot is free")
}

// A store waits while no slot is free, and gets those that another store releases.
func testSlotsWait(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	one := slotOf(t, s)
	waits := startAcquire(t, other)
	pause(t, 20*time.Millisecond)
	waits.requireWaiting(t, "no slot is free")
	require.NoError(t, s.Release(t.Context(), driver.SlotsOf(one)))
	lease := waits.require(t, "Release of a slot")
	require.Equal(t, driver.SlotsOf(one), lease.Slots)
	require.Equal(t, r.Slots-1, s.Lease().Slots.Len())
	insert(t, other, ready(slot(one)))
}

// slotOf returns a slot of the lease.
func slotOf(t *testing.T, s driver.Store) driver.Slot {
	t.Helper()
	for n := range driver.AllSlots().Len() {
		if one := driver.Slot(n); s.Lease().Slots.Has(one) {
			return one
		}
	}
	require.FailNow(t, "the store has no slot")
	return 0
}

// Release frees the records in its slots, and no others. The lease goes on.
func testSlotsRelease(t *testing.T, r *rig) {
	s := r.beside(t)
	kept, released := acquireSlot(t, s), acquireSlot(t, s)
	epoch := s.Lease().Epoch
	a, b := ready(leased, slot(kept)), ready(leased, slot(released))
	insert(t, s, a, b)
	require.NoError(t, s.Release(t.Context(), driver.SlotsOf(released)))
	require.Equal(t, driver.Lease{Epoch: epoch, Slots: driver.SlotsOf(kept)}, s.Lease())
	refuseUnleased(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{b}}, b.Ref, "Update of a record in a slot that was released")
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{a}})
	require.EqualValues(t, 1, stats(t, s).Free)
	require.Empty(t, claimReady(t, s), "a record in a slot that was released was claimed")
	other := r.beside(t)
	acquire(t, other)
	requireRecords(t, []*driver.Record{b}, claimReady(t, other))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.Zero(t, s.Lease())
	apply(t, other, &driver.Batch{Now: noon, Update: []*driver.Record{b}})
	refuseAs(t, s, &driver.Batch{Now: noon, Epoch: epoch, Update: []*driver.Record{a}}, driver.ErrLeaseLost)
}

// Reopen keeps the slots, with a new Epoch, and frees the records in them alone.
func testSlotsReopen(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	a, b := ready(leased, slot(mine)), ready(leased, slot(theirs))
	insert(t, s, a)
	insert(t, other, b)
	before := s.Lease()
	require.NoError(t, s.Reopen(t.Context()))
	require.Equal(t, before.Slots, s.Lease().Slots, "Reopen keeps the slots")
	require.Greater(t, s.Lease().Epoch, other.Lease().Epoch)
	refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{a.Ref}}, a.Ref, "Delete of a record of the lease before Reopen")
	apply(t, other, &driver.Batch{Now: noon, Delete: []driver.Ref{b.Ref}})
	requireRecords(t, []*driver.Record{a}, claimReady(t, s))
}

// A new record in a slot of another lease, or of none, costs the batch.
func testSlotsNew(t *testing.T, r *rig) {
	s := r.beside(t)
	mine := acquireSlot(t, s)
	other := r.beside(t)
	theirs := acquireSlot(t, other)
	check := func(what string) {
		t.Helper()
		good, bad := ready(slot(mine)), ready(slot(theirs), leased)
		refused := refuse(t, s, &driver.Batch{Now: noon, New: []*driver.Record{good, bad}, Bury: []*driver.Letter{letter()}}, driver.ErrNotLeased, what)
		require.Zero(t, refused.Ref, "RefusedError.Ref of a new record: it has none")
		require.Zero(t, good.Ref)
		require.Zero(t, stats(t, s))
	}
	check("a new record in a slot of another lease")
	require.NoError(t, other.Close(t.Context()))
	check("a new record in a free slot")
}

// Accept takes in events in slots of the lease, and no others.
func testSlotsAccept(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	a, b := incoming(slot(mine)), incoming(slot(theirs))
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b}}) // every store leaves events for all slots
	refuseIncoming(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID, b.ID}}, b.ID, "Accept of an event in a slot of another lease")
	requireIncoming(t, s, driver.IncomingQuery{}, a, b)
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}, New: []*driver.Record{ready(slot(mine))}})
	apply(t, other, &driver.Batch{Now: noon, Accept: []driver.IncomingID{b.ID}, New: []*driver.Record{ready(slot(theirs))}})
	require.Equal(t, driver.Stats{Ready: 2, Free: 2}, stats(t, s))
}

// Incoming selects by slot, for stores with any lease and without one.
func testSlotsIncoming(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	a, b, c := incoming(slot(mine)), incoming(slot(theirs)), incoming(slot(mine), scheduled(time.Hour))
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b, c}})
	for _, store := range []driver.Store{s, other, r.beside(t)} {
		requireIncoming(t, store, driver.IncomingQuery{Limit: 1}, a, b, c)
		requireIncoming(t, store, driver.IncomingQuery{Limit: 1, Slots: driver.SlotsOf(mine)}, a, c)
		requireIncoming(t, store, driver.IncomingQuery{Slots: driver.SlotsOf(theirs)}, b)
		requireIncoming(t, store, driver.IncomingQuery{Slots: driver.SlotsOf(mine, theirs)}, a, b, c)
		requireIncoming(t, store, driver.IncomingQuery{Slots: driver.AllSlots().Without(driver.SlotsOf(mine, theirs))})
	}
	apply(t, other, &driver.Batch{Now: noon, Withdraw: []driver.ID{c.Record.ID}}) // Withdraw looks at no slot
	requireIncoming(t, s, driver.IncomingQuery{}, a, b)
}

// Claim returns records in slots of the lease, and of those the ones in ClaimQuery.Slots.
func testSlotsClaim(t *testing.T, r *rig) {
	s := r.open(t)
	one := slotOf(t, s)
	require.NoError(t, s.Release(t.Context(), s.Lease().Slots.Without(driver.SlotsOf(one))))
	two := acquireSlot(t, s)
	kinds := func(n driver.Slot) []*driver.Record {
		return []*driver.Record{
			ready(slot(n)), ready(slot(n), waiting(0)), ready(slot(n), parked("door")),
			ready(slot(n), scheduled(time.Hour)),
		}
	}
	a, b := kinds(one), kinds(two)
	insert(t, s, append(a, b...)...)
	queries := []driver.ClaimQuery{
		{Kind: driver.ClaimReady}, {Kind: driver.ClaimDue, Now: noon}, {Kind: driver.ClaimParked, Doors: []string{"door"}}, {Kind: driver.ClaimRefs, Refs: []driver.Ref{b[3].Ref, a[3].Ref}},
	}
	for i, q := range queries {
		q.Limit = 1
		q.Slots = driver.SlotsOf(two)
		got := claim(t, s, q)
		requireRecords(t, b[i:i+1], got.Records)
		require.False(t, got.More, "More counts records in other slots")
		require.True(t, q.Kind != driver.ClaimDue || got.NextDue.IsZero() || got.NextDue.Equal(b[3].Due), "NextDue: %v", got.NextDue)
		q.Slots = driver.AllSlots().Without(driver.SlotsOf(one))
		require.Empty(t, claim(t, s, q).Records)
	}
	require.NoError(t, s.Release(t.Context(), driver.SlotsOf(one)))
	other := r.beside(t)
	acquireSlot(t, other)
	for i, q := range queries {
		q.Slots = driver.SlotsOf(one)
		require.Empty(t, claim(t, s, q).Records, "Claim of a record in a slot of another lease")
		q.Slots = driver.SlotSet{}
		require.Empty(t, claim(t, s, q).Records, "Claim of a record in a slot of another lease")
		if other.Lease().Slots.Has(one) {
			requireRecords(t, a[i:i+1], claim(t, other, q).Records)
		}
	}
}

// Own is by the present lease of the slot: a slot that was released and acquired again has no own records.
func testSlotsOwn(t *testing.T, r *rig) {
	s := r.open(t)
	all := s.Lease().Slots
	one := slotOf(t, s)
	rest := all.Without(driver.SlotsOf(one))
	require.NoError(t, s.Release(t.Context(), rest))
	two := acquireSlot(t, s)
	a, b := ready(slot(one)), ready(slot(two))
	insert(t, s, a, b)
	require.NoError(t, s.Release(t.Context(), driver.SlotsOf(two)))
	lease, err := s.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	require.True(t, lease.Slots.Has(two))
	claimed := claimReady(t, s)
	requireRecords(t, []*driver.Record{a, b}, claimed)
	require.True(t, claimed[0].Own, "Own of a record in a slot that the lease has kept")
	require.False(t, claimed[1].Own, "Own of a record in a slot that the lease had released since")
}

// The crash of a store counts for records in its slots alone.
func testSlotsCrash(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	a, b := ready(leased, slot(mine)), ready(leased, slot(theirs))
	insert(t, s, a)
	insert(t, other, b)
	r.Crash(t, s)
	apply(t, other, &driver.Batch{Now: noon, Update: []*driver.Record{b}})
	lease := acquire(t, r.beside(t))
	require.True(t, lease.Slots.Has(mine), "the slot of a store that crashed is free")
	require.False(t, lease.Slots.Has(theirs))
	require.True(t, lease.Crashed, "Crashed of a lease of the slot")
	require.EqualValues(t, 1, lease.CrashedEvents)
	require.False(t, other.Lease().Crashed)
	require.Equal(t, 1, lookup(t, other, a.ID)[0].Crashes)
	require.Zero(t, lookup(t, other, b.ID)[0].Crashes)
	require.True(t, lookup(t, other, b.ID)[0].Leased)
}

// Acquire reports the crashes of earlier leases of its slots, and of no others.
func testSlotsCrashOfSome(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	insert(t, s, ready(leased, slot(mine)))
	insert(t, other, ready(leased, slot(theirs)))
	r.Crash(t, other)
	require.NoError(t, s.Close(t.Context()))
	for range r.Slots {
		lease, err := r.beside(t).Acquire(t.Context(), driver.AcquireQuery{Want: 1})
		require.NoError(t, err)
		require.Equal(t, lease.Slots.Has(theirs), lease.Crashed, "Crashed of a lease: whether it has the slot of the lease that crashed")
		require.Equal(t, lease.Slots.Has(theirs), lease.CrashedEvents == 1, "CrashedEvents: %d", lease.CrashedEvents)
	}
}

// Each record of a crashed lease counts the crash once, although several leases have its slots now.
func testSlotsCrashOfSeveral(t *testing.T, r *rig) {
	s := r.beside(t)
	one, two := acquireSlot(t, s), acquireSlot(t, s)
	a, b := ready(leased, slot(one)), ready(leased, slot(two))
	insert(t, s, a, b)
	r.Crash(t, s)
	for range r.Slots {
		next := r.beside(t)
		lease, err := next.Acquire(t.Context(), driver.AcquireQuery{Want: 1})
		require.NoError(t, err)
		for _, n := range claimReady(t, next) {
			require.Equal(t, 1, n.Crashes, "Crashes of record %d", n.Ref)
			require.EqualValues(t, 1, lease.CrashedEvents)
		}
	}
	for _, n := range []*driver.Record{a, b} {
		found := lookup(t, r.beside(t), n.ID)
		require.Equal(t, 1, found[0].Crashes, "Crashes of record %d", n.Ref)
		require.True(t, found[0].Leased)
	}
}

// The suspects of a crashed lease are those in all its slots, although different leases have these now.
func testSlotsCrashOfSuspects(t *testing.T, r *rig) {
	s := r.beside(t)
	one, two := acquireSlot(t, s), acquireSlot(t, s)
	a, b := ready(leased, slot(one), suspect), ready(leased, slot(two))
	insert(t, s, a, b)
	r.Crash(t, s)
	events := int64(0)
	for range r.Slots {
		lease, err := r.beside(t).Acquire(t.Context(), driver.AcquireQuery{Want: 1})
		require.NoError(t, err)
		require.Equal(t, lease.Slots.Has(one) || lease.Slots.Has(two), lease.Crashed, "Crashed of a lease of %d slots", lease.Slots.Len())
		events += lease.CrashedEvents
	}
	require.EqualValues(t, 1, events, "CrashedEvents of all leases")
	reader := r.beside(t)
	require.Equal(t, 1, lookup(t, reader, a.ID)[0].Crashes, "Crashes of the suspect")
	require.Zero(t, lookup(t, reader, b.ID)[0].Crashes, "Crashes of a record beside a suspect of its lease")
}

// A store that loses its lease leaves those of other slots alone.
func testSlotsLoss(t *testing.T, r *rig) {
	s, other, mine, theirs := twoStores(t, r)
	epoch := s.Lease().Epoch
	a, b := ready(leased, slot(mine)), ready(leased, slot(theirs))
	insert(t, s, a)
	insert(t, other, b)
	r.LoseLease(t, s)
	refuseAs(t, s, &driver.Batch{Now: noon, Epoch: epoch, Delete: []driver.Ref{a.Ref}}, driver.ErrLeaseLost)
	apply(t, other, &driver.Batch{Now: noon, Update: []*driver.Record{b}})
	lease, err := other.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	require.True(t, lease.Slots.Has(mine), "the slot of a lease that was lost is free")
	requireRecords(t, []*driver.Record{a}, claimReady(t, other))
}
