package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Reopen begins a new lease. It counts no crash, not even of a suspect.
func testReopenFreesRecords(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(leased), ready(leased, suspect), ready(leased, waiting(time.Hour), key("k"))
	insert(t, s, a, b, c)
	old := s.Lease()
	require.NoError(t, s.Reopen(t.Context()))
	require.Greater(t, s.Lease().Epoch, old.Epoch, "Epoch of the lease that Reopen began")
	require.Equal(t, old.Slots, s.Lease().Slots, "Reopen keeps the slots")
	require.EqualValues(t, 3, stats(t, s).Free)
	refuseAs(t, s, &driver.Batch{Now: noon, Epoch: old.Epoch, Bury: []*driver.Letter{letter()}}, driver.ErrLeaseLost, "a batch of the lease before Reopen")
	require.Zero(t, stats(t, s).Letters)
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
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(err error) {
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

// Release frees the records without a crash. Later batches with the old Epoch are refused, also by the next lease of the store.
func testReleaseFreesRecords(t *testing.T, r *rig) {
	s, first := r.openLease(t)
	a, b := ready(leased), ready(leased, suspect)
	insert(t, s, a, b, ready(waiting(time.Hour), key("k")))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	requireNoLease(t, s)
	counts := stats(t, s)
	require.EqualValues(t, 3, counts.Free)
	old := func() *driver.Batch {
		return &driver.Batch{Now: noon, Epoch: first.Epoch, Update: []*driver.Record{{Ref: a.Ref, Leased: true}}}
	}
	refuseAs(t, s, old(), driver.ErrLeaseLost, "a batch of a released lease")
	lease := acquire(t, s)
	require.False(t, lease.Crashed, "Release counted as a crash")
	refuseAs(t, s, old(), driver.ErrLeaseLost, "a batch of a released lease")
	claimed := claimReady(t, s)
	require.Len(t, claimed, 3)
	for _, n := range claimed {
		require.Zero(t, n.Crashes, "Crashes of record %d after Release", n.Ref)
		require.False(t, n.Own, "Own of record %d, that an earlier lease made free", n.Ref)
	}
}

// Release applies the batches submitted before it, and waits for every done to return.
func testReleaseAppliesSubmitted(t *testing.T, r *rig) {
	const count = 100
	s := r.open(t)
	var mu sync.Mutex
	var errs []error
	for i := range count {
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready(leased)}}, func(err error) {
			if i == count-1 {
				pause(t, 50*time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, make([]error, count), errs, "done that returned before Release")
	require.EqualValues(t, count, stats(t, s).Free)
}

// Batches submitted during Release apply wholly or are refused, and none applies after one that was refused.
func testReleaseInTheOrderOfSubmit(t *testing.T, r *rig) {
	s := r.open(t)
	epoch := s.Lease().Epoch
	var j journal
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				j.submit(s, &driver.Batch{Now: noon, Epoch: epoch, New: []*driver.Record{ready(leased)}})
			}
		})
	}
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	group.Wait()
	applied := j.check(t)
	for i, err := range j.errs {
		if err != nil {
			require.ErrorIs(t, err, driver.ErrLeaseLost)
			require.GreaterOrEqual(t, i, applied, "a batch was applied after the end of its lease")
		}
	}
	counts := stats(t, s)
	require.EqualValues(t, applied, counts.Ready)
	require.EqualValues(t, applied, counts.Free, "a record is leased after Release")
}

// Slots that the store does not have are ignored.
func testReleaseOfOtherSlots(t *testing.T, r *rig) {
	s, lease := r.openLease(t)
	held := ready(leased)
	insert(t, s, held)
	require.NoError(t, s.Release(t.Context(), driver.SlotSet{}))
	require.Equal(t, lease.Epoch, s.Lease().Epoch, "Release of no slot ended the lease")
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}})
	for range 2 {
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()), "Release of all slots")
		require.Zero(t, s.Lease())
	}
	other := r.open(t)
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()), "Release of the slots of another store")
	require.True(t, other.Lease().IsHeld())
	insert(t, other, ready())
}

// Release returns soon after its ctx has ended, although a done hangs. The store still has the lease then, or has ended it.
func testReleaseCutShort(t *testing.T, r *rig) {
	s := r.open(t)
	entered, leave := make(chan error, 1), make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(leave) }) }
	defer release()
	n := ready(leased)
	send(s, &driver.Batch{Now: noon, New: []*driver.Record{n}}, func(err error) {
		entered <- err
		<-leave
	})
	require.NoError(t, await(t, entered))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var err error
	within(t, "Release, whose context ends while a done hangs,", func() { err = s.Release(ctx, driver.AllSlots()) })
	require.ErrorIs(t, err, context.DeadlineExceeded, "Release, whose context ended while a done hung")
	release()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}, Delete: []driver.Ref{n.Ref}})
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.Zero(t, s.Lease())
}
