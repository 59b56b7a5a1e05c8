package storetest

import (
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
