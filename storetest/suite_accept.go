package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Accept removes the incoming event and inserts its records, or changes nothing.
func testAcceptWithTheBatch(t *testing.T, r *rig) {
	s := r.open(t)
	in := incoming(key("k"))
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}})
	entry := driver.Dedupe{Key: "k", Event: in.Record.ID, Expires: noon.Add(time.Hour)}
	take := func() *driver.Batch {
		return &driver.Batch{
			Now: noon, Remember: []driver.Dedupe{entry}, Accept: []driver.IncomingID{in.ID},
			New: []*driver.Record{ready(leased, key("k"), func(n *driver.Record) { n.ID = in.Record.ID })},
		}
	}
	bad := take()
	bad.Delete = []driver.Ref{1 << 40}
	refuse(t, s, bad, driver.ErrNotLeased)
	requireIncoming(t, s, driver.IncomingQuery{}, in)
	require.Zero(t, stats(t, s).Unsettled())
	good := take()
	apply(t, s, good)
	requireIncoming(t, s, driver.IncomingQuery{})
	requireRecords(t, good.New, lookup(t, s, in.Record.ID))
	refuse(t, s, take(), driver.ErrDuplicateID)
	require.Equal(t, driver.Stats{Ready: 1}, stats(t, s))
}

// Accept of an unknown event, or of one twice, is refused with its ID, and nothing changes.
func testAcceptUnknown(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, withdrawn := incoming(), incoming(), incoming(scheduled(time.Hour))
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b, withdrawn}})
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{b.ID}, Withdraw: []driver.ID{withdrawn.Record.ID}})
	before := stats(t, s)
	for what, ids := range map[string][]driver.IncomingID{
		"twice": {a.ID, a.ID}, "accepted before": {a.ID, b.ID}, "withdrawn": {withdrawn.ID}, "unknown": {a.ID, 1 << 40}, "zero": {0}, "negative": {-1},
	} {
		n, l := ready(), letter()
		bad := &driver.Batch{Now: noon, Accept: ids, New: []*driver.Record{n}, Bury: []*driver.Letter{l}}
		refuseIncoming(t, s, bad, ids[len(ids)-1], "Accept, "+what)
		require.Zero(t, n.Ref)
		require.Equal(t, before, stats(t, s), "Accept, %s", what)
	}
	requireIncoming(t, s, driver.IncomingQuery{}, a)
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}})
}

// The next lease takes in what the crashed one has not, and its records are there.
func testAcceptAfterACrash(t *testing.T, r *rig) {
	s := r.open(t)
	a, b := incoming(), incoming()
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b}})
	n := ready(leased)
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}, New: []*driver.Record{n}})
	s = r.crash(t, s)
	requireIncoming(t, s, driver.IncomingQuery{}, b)
	requireRecords(t, []*driver.Record{n}, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{b.ID}, New: []*driver.Record{ready(leased)}})
	require.Equal(t, driver.Stats{Ready: 2}, stats(t, s))
}

// Withdraw removes all incoming events of an event, and no others. It needs no lease.
func testWithdraw(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	id := newID()
	of := func(n *driver.Record) { n.ID = id }
	stays, foreign := incoming(), incoming(scheduled(time.Hour))
	first := []*driver.Incoming{incoming(of, scheduled(time.Hour)), stays, foreign, incoming(of), incoming(of, scheduled(0), key("k"))}
	record := ready(of, scheduled(time.Hour))
	apply(t, s, &driver.Batch{Now: noon, Leave: first, New: []*driver.Record{record}})
	apply(t, other, &driver.Batch{Now: noon, Withdraw: []driver.ID{id}, Audit: []driver.AuditEntry{audited("ann")}})
	requireIncoming(t, s, driver.IncomingQuery{}, stays, foreign)
	requireRecords(t, []*driver.Record{record}, lookup(t, s, id))
	refused := refuse(t, other, &driver.Batch{Now: noon, Withdraw: []driver.ID{id}}, driver.ErrNotFound)
	require.Equal(t, id, refused.Event)
	apply(t, s, &driver.Batch{Now: noon, Withdraw: []driver.ID{foreign.Record.ID}})
	requireIncoming(t, s, driver.IncomingQuery{}, stays)
}

// Withdraw of an event without an incoming event, or twice, is refused, and nothing changes.
func testWithdrawUnknown(t *testing.T, r *rig) {
	s := r.open(t)
	now, due, accepted := incoming(), incoming(scheduled(time.Hour)), incoming(scheduled(time.Hour))
	record := ready(scheduled(time.Hour))
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{now, due, accepted}, New: []*driver.Record{record}})
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{accepted.ID}})
	before := stats(t, s)
	for what, ids := range map[string][]driver.ID{
		"unknown": {due.Record.ID, newID()}, "twice": {due.Record.ID, due.Record.ID},
		"accepted": {accepted.Record.ID}, "a record": {record.ID},
	} {
		bad := &driver.Batch{Now: noon, Withdraw: ids, Bury: []*driver.Letter{letter()}, Leave: []*driver.Incoming{incoming()}}
		refused := refuse(t, s, bad, driver.ErrNotFound, what)
		require.Equal(t, ids[len(ids)-1], refused.Event, "Withdraw, %s: RefusedError.Event", what)
		require.Equal(t, before, stats(t, s), "Withdraw, %s", what)
	}
	requireIncoming(t, s, driver.IncomingQuery{}, now, due)
}

// Withdraw and Accept come before Leave, and Withdraw before Accept.
func testIncomingFieldsInOrder(t *testing.T, r *rig) {
	s := r.open(t)
	of := incoming(scheduled(time.Hour))
	refuse(t, s, &driver.Batch{Now: noon, Withdraw: []driver.ID{of.Record.ID}, Leave: []*driver.Incoming{of}}, driver.ErrNotFound)
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{of}})
	both := &driver.Batch{Now: noon, Withdraw: []driver.ID{of.Record.ID}, Accept: []driver.IncomingID{of.ID}}
	refuseIncoming(t, s, both, of.ID, "Accept of an event that the same batch withdraws")
	again := incoming(scheduled(time.Minute), func(n *driver.Record) { n.ID = of.Record.ID })
	apply(t, s, &driver.Batch{Now: noon, Withdraw: []driver.ID{of.Record.ID}, Leave: []*driver.Incoming{again}})
	requireIncoming(t, s, driver.IncomingQuery{}, again)
}

// Of a store that withdraws and one that takes in, one gets each event.
func testWithdrawOrAccept(t *testing.T, r *rig) {
	const n = 200
	s, other := r.open(t), r.beside(t)
	var all []*driver.Incoming
	for range n / 2 {
		all = append(all, incoming(scheduled(time.Hour)), incoming())
	}
	apply(t, other, &driver.Batch{Now: noon, Leave: all})
	journals := make([]journal, 2)
	var group sync.WaitGroup
	group.Go(func() {
		for i := n - 1; i >= 0; i-- {
			journals[0].submit(other, &driver.Batch{Now: noon, Withdraw: []driver.ID{all[i].Record.ID}})
			if i%10 == 0 {
				journals[0].wait.Wait()
			}
		}
	})
	group.Go(func() {
		for i, in := range all {
			record := *in.Record
			journals[1].submit(s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{in.ID}, New: []*driver.Record{&record}})
			if i%10 == 0 {
				journals[1].wait.Wait()
			}
		}
	})
	group.Wait()
	withdrawn, accepted := journals[0].check(t), journals[1].check(t)
	require.Equal(t, n, withdrawn+accepted, "%d were withdrawn, %d were taken in", withdrawn, accepted)
	for _, err := range journals[0].errs {
		if err != nil {
			require.ErrorIs(t, err, driver.ErrNotFound)
		}
	}
	for _, err := range journals[1].errs {
		if err != nil {
			require.ErrorIs(t, err, driver.ErrNotFound)
		}
	}
	left := stats(t, other)
	require.Equal(t, []int64{int64(accepted), int64(accepted), 0}, []int64{left.Ready + left.Scheduled, left.Free, left.Incoming})
}
