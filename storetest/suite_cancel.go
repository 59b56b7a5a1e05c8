package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var cancelTests = []conformanceTest{
	{name: "FreeAndScheduled", run: testCancelFreeAndScheduled},
	{name: "InTheOrderOfSubmit", run: testCancelInTheOrderOfSubmit},
	{name: "NotOfTheClaimed", run: testCancelNotOfTheClaimed},
	{name: "AfterACrash", needs: needsCrash, run: testCancelAfterACrash},
	{name: "OrClaim", run: testCancelOrClaim},
}

// Cancel removes all free scheduled records of an event, and no others.
func testCancelFreeAndScheduled(t *testing.T, r *rig) {
	s := r.open(t)
	id := newID()
	of := func(n *driver.Record) { n.ID = id }
	stays := []*driver.Record{
		ready(of), ready(of, waiting(time.Hour)), ready(of, parked("door")), ready(of, scheduled(time.Hour), leased), ready(scheduled(time.Hour)),
	}
	insert(t, s, append(stays, ready(of, scheduled(time.Hour), key("k")), ready(of, scheduled(0)))...)
	before := stats(t, s)
	apply(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{id}})
	after := stats(t, s)
	require.Equal(t, before.Scheduled-2, after.Scheduled)
	require.Equal(t, before.Free-2, after.Free)
	var left []driver.Ref
	for _, n := range lookup(t, s, id) {
		left = append(left, n.Ref)
	}
	require.Equal(t, refsOf(stays[:4]), left)
	refused := refuse(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{id}}, driver.ErrNotScheduled)
	require.Equal(t, id, refused.Event)
	both := []driver.ID{stays[4].ID, stays[4].ID}
	refuse(t, s, &driver.Batch{Now: noon, Cancel: both}, driver.ErrNotScheduled)
	require.Len(t, lookup(t, s, stays[4].ID), 1, "a refused batch cancels nothing")
}

// Cancel sees the records of the batches before it, and not those of its own.
func testCancelInTheOrderOfSubmit(t *testing.T, r *rig) {
	s := r.open(t)
	var j journal
	n := ready(scheduled(time.Hour))
	cancel := &driver.Batch{Now: noon, Cancel: []driver.ID{n.ID}, New: []*driver.Record{ready(func(r *driver.Record) { r.ID = n.ID }, scheduled(time.Hour))}}
	j.submit(s, &driver.Batch{Now: noon, New: []*driver.Record{n, ready()}})
	j.submit(s, cancel)
	require.Equal(t, 2, j.check(t))
	require.NotZero(t, n.Ref)
	left := lookup(t, s, n.ID)
	require.Len(t, left, 1)
	require.Equal(t, cancel.New[0].Ref, left[0].Ref)
}

// Cancel removes what the bus has not claimed, with the rest of its batch.
func testCancelNotOfTheClaimed(t *testing.T, r *rig) {
	s := r.open(t)
	free, claimed := ready(scheduled(time.Hour)), ready(scheduled(time.Minute))
	insert(t, s, free, claimed)
	require.Len(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimEvent, Event: claimed.ID}).Records, 1)
	entry := audited("ann")
	apply(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{free.ID}, Audit: []driver.AuditEntry{entry}})
	refuse(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{claimed.ID}, Audit: []driver.AuditEntry{entry}}, driver.ErrNotScheduled,
		"Cancel of a record that is claimed")
	require.Len(t, auditOf(t, s, driver.AuditQuery{}), 1)
	require.Empty(t, lookup(t, s, free.ID))
	require.Empty(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimEvent, Event: free.ID}).Records)
	require.EqualValues(t, 1, stats(t, s).Scheduled)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{claimed.Ref}})
	s = r.reopen(t, s)
	require.Zero(t, stats(t, s).Scheduled)
}

// After a crash, the records that were leased are cancelled too.
func testCancelAfterACrash(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(scheduled(time.Hour)), ready(scheduled(time.Hour), leased), ready(scheduled(time.Hour))
	insert(t, s, a, b, c)
	s = r.crash(t, s)
	apply(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{a.ID, b.ID}})
	requireRecords(t, []*driver.Record{c}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: noon.Add(2 * time.Hour)}).Records)
	s = r.reopen(t, s)
	apply(t, s, &driver.Batch{Now: noon, Cancel: []driver.ID{c.ID}})
	require.Zero(t, stats(t, s).Unsettled())
}

// Of a claim and a cancellation at the same time, one gets each record.
func testCancelOrClaim(t *testing.T, r *rig) {
	const n = 300
	s := r.open(t)
	var records []*driver.Record
	for range n {
		records = append(records, ready(scheduled(time.Minute)))
	}
	insert(t, s, records...)
	var j journal
	var group sync.WaitGroup
	group.Go(func() {
		for i := n - 1; i >= 0; i-- {
			j.submit(s, &driver.Batch{Now: noon, Cancel: []driver.ID{records[i].ID}})
			if i%10 == 0 {
				j.wait.Wait()
			}
		}
	})
	got := make(map[driver.ID]int)
	for more := true; more; {
		c, err := s.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimDue, Limit: 20, Now: noon.Add(time.Hour)})
		require.NoError(t, err)
		for _, claimed := range c.Records {
			require.True(t, claimed.Leased)
			got[claimed.ID]++
		}
		more = c.More
	}
	group.Wait()
	cancelled := j.check(t)
	for i, err := range j.errs {
		if err == nil {
			got[j.done[i].Cancel[0]]++
		} else {
			require.ErrorIs(t, err, driver.ErrNotScheduled)
		}
	}
	require.Len(t, got, n)
	for _, times := range got {
		require.Equal(t, 1, times)
	}
	require.EqualValues(t, n-cancelled, stats(t, s).Scheduled)
	require.Zero(t, stats(t, s).Free)
}
