package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var txTests = []conformanceTest{
	{name: "Commit", needs: needsTx, run: testTxCommit},
	{name: "Rollback", needs: needsTx, run: testTxRollback},
	{name: "EveryField", needs: needsTx, run: testTxEveryField},
	{name: "SeveralCalls", needs: needsTx, run: testTxSeveralCalls},
	{name: "CommitsLate", needs: needsTx, run: testTxCommitsLate},
	{name: "BlocksNoCommit", needs: needsTx, run: testTxBlocksNoCommit},
	{name: "Watch", needs: needsTx, run: testTxWatch},
	{name: "AnotherType", needs: needsTx, run: testTxAnotherType},
	{name: "AnotherDatabase", needs: needsTx, run: testTxAnotherDatabase},
	{name: "Ended", needs: needsTx, run: testTxEnded},
	{name: "OfAClosedStore", needs: needsTx, run: testTxOfAClosedStore},
	{name: "OfAFailedStore", needs: needsTx | needsFail, run: testTxOfAFailedStore},
	{name: "Times", needs: needsTx, run: testTxTimes},
	{name: "AfterACrash", needs: needsTx | needsCrash, run: testTxAfterACrash},
}

// txStore returns the store as a driver.TxStore.
func txStore(t *testing.T, s driver.Store) driver.TxStore {
	t.Helper()
	of, ok := s.(driver.TxStore)
	require.True(t, ok, "Backend.Begin is set, and %T is no driver.TxStore", s)
	return of
}

// submitTx submits events in a transaction. It assigns no ID.
func submitTx(t *testing.T, s driver.Store, tx any, in ...*driver.Incoming) {
	t.Helper()
	require.NoError(t, txStore(t, s).SubmitTx(t.Context(), tx, in), "SubmitTx")
	for _, event := range in {
		require.Zero(t, event.ID, "SubmitTx assigned an ID")
	}
}

// requireEvents requires that the incoming events are those of want, in any order, and returns them.
func requireEvents(t *testing.T, s driver.Store, want ...*driver.Incoming) []*driver.Incoming {
	t.Helper()
	ids := func(all []*driver.Incoming) (ids []driver.ID) {
		for _, in := range all {
			ids = append(ids, in.Record.ID)
		}
		return ids
	}
	got := incomingOf(t, s, driver.IncomingQuery{})
	require.ElementsMatch(t, ids(want), ids(got), "incoming events")
	require.EqualValues(t, len(want), stats(t, s).Incoming, "Stats.Incoming")
	return got
}

// The events of a transaction are there when it has committed, and not before. No store needs the lease.
func testTxCommit(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	for i, store := range []driver.Store{s, other} {
		in := incoming()
		tx, commit, _ := r.Begin(t)
		submitTx(t, store, tx, in)
		require.Zero(t, stats(t, s).Incoming, "an event is visible before the commit of its transaction")
		requireEvents(t, other)
		require.NoError(t, commit())
		requireEvents(t, s, in)
		got := requireEvents(t, other, in)
		apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{got[0].ID}, New: []*driver.Record{ready()}})
		require.EqualValues(t, i+1, stats(t, s).Ready)
	}
}

func testTxRollback(t *testing.T, r *rig) {
	s := r.open(t)
	kept := incoming()
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{kept}})
	due := incoming(scheduled(time.Hour))
	tx, _, rollback := r.Begin(t)
	submitTx(t, s, tx, incoming(), due)
	require.NoError(t, rollback())
	requireEvents(t, s, kept)
	refuse(t, s, &driver.Batch{Now: noon, Withdraw: []driver.ID{due.Record.ID}}, driver.ErrNotFound)
	requireEvents(t, r.reopen(t, s), kept)
}

func testTxEveryField(t *testing.T, r *rig) {
	s := r.open(t)
	due, bytes := fullIncoming(), incoming(func(n *driver.Record) { n.Payload, n.Targets, n.Key = everyByte(), nil, "a\x00b" })
	tx, commit, _ := r.Begin(t)
	submitTx(t, s, tx, due)
	submitTx(t, s, tx, bytes)
	require.NoError(t, commit())
	got := incomingOf(t, s, driver.IncomingQuery{})
	require.Len(t, got, 2)
	require.Less(t, got[0].ID, got[1].ID)
	due.ID, bytes.ID = got[0].ID, got[1].ID
	requireIncoming(t, s, driver.IncomingQuery{}, due, bytes)
	requireIncoming(t, r.reopen(t, s), driver.IncomingQuery{}, due, bytes)
}

// A transaction may have several calls, of several stores, and none.
func testTxSeveralCalls(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	a, b, c := incoming(), incoming(), incoming()
	tx, commit, _ := r.Begin(t)
	submitTx(t, s, tx, a, b)
	submitTx(t, other, tx)
	submitTx(t, other, tx, c)
	require.NoError(t, commit())
	requireEvents(t, s, a, b, c)
	_, commit, _ = r.Begin(t)
	require.NoError(t, commit())
	requireEvents(t, s, a, b, c)
}

// An event of a transaction that commits late is found, although events that were left after it have been taken in.
func testTxCommitsLate(t *testing.T, r *rig) {
	if r.TxBlocks {
		t.Skip("Backend.TxBlocks is set: no other commit is possible")
	}
	s := r.open(t)
	late, early := incoming(), incoming()
	tx, commit, _ := r.Begin(t)
	submitTx(t, s, tx, late)
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{early}})
	requireIncoming(t, s, driver.IncomingQuery{}, early)
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{early.ID}})
	require.NoError(t, commit())
	got := requireEvents(t, s, late)
	require.NotEqual(t, early.ID, got[0].ID, "an ID was used again")
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{got[0].ID}})
	requireEvents(t, s)
}

// An open transaction blocks no commit and no lease of a store.
func testTxBlocksNoCommit(t *testing.T, r *rig) {
	if r.TxBlocks {
		t.Skip("Backend.TxBlocks is set")
	}
	s, other := r.open(t), r.beside(t)
	in := incoming()
	tx, commit, _ := r.Begin(t)
	submitTx(t, other, tx, in)
	held := ready(leased)
	held.ID = in.Record.ID
	entry := driver.Dedupe{Key: in.Record.ID.String(), Event: in.Record.ID, Expires: noon.Add(time.Hour)}
	within(t, "a batch beside an open transaction", func() {
		apply(t, s, &driver.Batch{
			Now: noon, New: []*driver.Record{held}, Leave: []*driver.Incoming{incoming()}, Ask: []*driver.Request{request()},
			Remember: []driver.Dedupe{entry}, Catalog: &driver.Catalog{Instance: "one", Body: []byte(`{}`)},
		})
	})
	claimReady(t, s)
	require.NoError(t, s.Reopen(t.Context()))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	acquire(t, other)
	require.Len(t, claimReady(t, other), 1)
	require.EqualValues(t, 1, stats(t, other).Incoming)
	require.NoError(t, commit())
	require.EqualValues(t, 2, stats(t, s).Incoming)
}

// A commit of a transaction comes to the watchers of all stores.
func testTxWatch(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	tx, commit, _ := r.Begin(t)
	submitTx(t, other, tx, incoming())
	var all []*watched
	for _, store := range []driver.Store{s, other} {
		hints := newWatched()
		defer store.Watch(hints.changed)()
		hints.forget()
		all = append(all, hints)
	}
	require.NoError(t, commit())
	for _, hints := range all {
		hints.await(t, driver.ChangedIncoming, "a transaction has committed incoming events")
	}
}

// SubmitTx returns ErrNoTransaction for a value that is no transaction of its database.
func testTxAnotherType(t *testing.T, r *rig) {
	s := r.open(t)
	for _, tx := range []any{nil, 7, "tx", struct{}{}, &struct{}{}} {
		err := txStore(t, s).SubmitTx(t.Context(), tx, []*driver.Incoming{incoming()})
		require.ErrorIs(t, err, driver.ErrNoTransaction, "SubmitTx with a %T", tx)
	}
	requireEvents(t, s)
	insert(t, s, ready())
}

// SubmitTx returns ErrNoTransaction for a transaction of another database.
func testTxAnotherDatabase(t *testing.T, r *rig) {
	s := r.open(t)
	other := &rig{Backend: r.another(t)}
	reader := other.open(t)
	tx, _, rollback := other.Begin(t)
	err := txStore(t, s).SubmitTx(t.Context(), tx, []*driver.Incoming{incoming()})
	require.ErrorIs(t, err, driver.ErrNoTransaction, "SubmitTx with a transaction of another database")
	require.NoError(t, rollback())
	requireEvents(t, s)
	requireEvents(t, reader)
}

// SubmitTx fails for a transaction that has ended.
func testTxEnded(t *testing.T, r *rig) {
	s := r.open(t)
	in := incoming()
	one, commit, _ := r.Begin(t)
	submitTx(t, s, one, in)
	require.NoError(t, commit())
	two, _, rollback := r.Begin(t)
	require.NoError(t, rollback())
	for _, tx := range []any{one, two} {
		require.Error(t, txStore(t, s).SubmitTx(t.Context(), tx, []*driver.Incoming{incoming()}), "SubmitTx with a transaction that has ended")
	}
	requireEvents(t, s, in)
}

// A closed store takes no transaction. An open one may commit after Close.
func testTxOfAClosedStore(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	var want []*driver.Incoming
	before, commit, _ := r.Begin(t)
	if !r.TxBlocks { // Close may need a commit
		want = append(want, incoming())
		submitTx(t, other, before, want...)
	}
	require.NoError(t, other.Close(t.Context()))
	require.NoError(t, commit())
	tx, _, rollback := r.Begin(t)
	err := txStore(t, other).SubmitTx(t.Context(), tx, []*driver.Incoming{incoming()})
	require.ErrorIs(t, err, driver.ErrClosed, "SubmitTx after Close")
	require.NoError(t, rollback())
	requireEvents(t, s, want...)
}

func testTxOfAFailedStore(t *testing.T, r *rig) {
	s := r.open(t)
	r.fail(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{letter()}})
	tx, _, rollback := r.Begin(t)
	err := txStore(t, s).SubmitTx(t.Context(), tx, []*driver.Incoming{incoming()})
	require.ErrorIs(t, err, driver.ErrFailed, "SubmitTx of a failed store")
	require.NoError(t, rollback())
	require.NoError(t, s.Reopen(t.Context()))
	requireEvents(t, s)
}

// A time that a store does not keep is an error of SubmitTx, and the store goes on.
func testTxTimes(t *testing.T, r *rig) {
	s := r.open(t)
	tx, _, rollback := r.Begin(t)
	bad := incoming(func(n *driver.Record) { n.Published = farFuture })
	require.ErrorIs(t, txStore(t, s).SubmitTx(t.Context(), tx, []*driver.Incoming{bad}), driver.ErrTime)
	require.NoError(t, rollback())
	requireEvents(t, s)
	insert(t, s, ready())
}

// The events of a transaction that has committed survive a crash of the store.
func testTxAfterACrash(t *testing.T, r *rig) {
	s := r.open(t)
	in := incoming()
	tx, commit, _ := r.Begin(t)
	submitTx(t, s, tx, in)
	require.NoError(t, commit())
	requireEvents(t, r.crash(t, s), in)
}
