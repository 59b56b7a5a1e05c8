package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var standbyTests = []conformanceTest{
	{name: "HasNoLease", run: testStandbyHasNoLease},
	{name: "MovesLetters", run: testStandbyLetters},
	{name: "GetsNoLease", run: testStandbyGetsNoLease},
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
func leasedBatches(held, free, due driver.Record, in driver.IncomingID, asked driver.RequestID) map[string]*driver.Batch {
	held.State = driver.Parked
	return map[string]*driver.Batch{
		"New":            {New: []*driver.Record{ready()}},
		"New, Leased":    {New: []*driver.Record{ready(leased)}},
		"Update":         {Update: []*driver.Record{&held}},
		"Delete":         {Delete: []driver.Ref{held.Ref}},
		"Delete, free":   {Delete: []driver.Ref{free.Ref}},
		"Cancel":         {Cancel: []driver.ID{due.ID}},
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
	held, free, due := ready(leased), ready(), ready(scheduled(time.Hour))
	insert(t, s, held, free, due)
	beside := r.beside(t)
	requireNoLease(t, beside)
	in, asked := incoming(), request()
	apply(t, beside, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}, Ask: []*driver.Request{asked}})
	before := stats(t, s)
	for _, epoch := range []int64{0, s.Lease().Epoch, s.Lease().Epoch + 1} {
		for what, b := range leasedBatches(*held, *free, *due, in.ID, asked.ID) {
			b.Now, b.Epoch = noon, epoch
			refused := refuse(t, beside, b, driver.ErrLeaseLost, what)
			require.Equal(t, driver.RefusedError{Err: driver.ErrLeaseLost}, refused, what)
			for _, n := range b.New {
				require.Zero(t, n.Ref, "%s: Ref of a new record of a refused batch", what)
			}
		}
	}
	require.Equal(t, before, stats(t, s))
	requireDirectives(t, s)
	requireRecords(t, []*driver.Record{free}, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{held.Ref, free.Ref}, Cancel: []driver.ID{due.ID}})
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
