package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var incomingTests = []conformanceTest{
	{name: "EveryField", run: testIncomingEveryField},
	{name: "KeepsNoOtherField", run: testIncomingKeepsNoOther},
	{name: "Bytes", run: testIncomingBytes},
	{name: "Times", run: testIncomingTimes},
	{name: "Pages", run: testIncomingPages},
	{name: "OfAnEvent", run: testIncomingOfAnEvent},
	{name: "OfSlots", run: testIncomingOfSlots},
	{name: "IDsGrow", run: testIncomingIDsGrow},
	{name: "IsCounted", run: testIncomingIsCounted},
	{name: "NeedsNoLease", run: testLeaveNeedsNoLease},
	{name: "SurvivesACrash", needs: needsCrash, run: testIncomingSurvivesACrash},
	{name: "FromTwoStores", run: testLeaveFromTwoStores},
	{name: "LeaveWithTheBatch", run: testLeaveWithTheBatch},
	{name: "AcceptWithTheBatch", run: testAcceptWithTheBatch},
	{name: "AcceptUnknown", run: testAcceptUnknown},
	{name: "AcceptAfterACrash", needs: needsCrash, run: testAcceptAfterACrash},
	{name: "Withdraw", run: testWithdraw},
	{name: "WithdrawUnknown", run: testWithdrawUnknown},
	{name: "FieldsInOrder", run: testIncomingFieldsInOrder},
	{name: "WithdrawOrAccept", run: testWithdrawOrAccept},
}

// incoming returns a new incoming event that is ready.
func incoming(opts ...func(*driver.Record)) *driver.Incoming {
	return &driver.Incoming{Record: ready(opts...), Codec: "json"}
}

// request returns a new request.
func request() *driver.Request { return &driver.Request{Body: []byte(`{"cancel":"ü'\u003c"}`)} }

// incomingOf returns the incoming events that match, page by page.
func incomingOf(t *testing.T, s driver.Store, q driver.IncomingQuery) (all []*driver.Incoming) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	for {
		page, err := s.Incoming(t.Context(), q)
		require.NoError(t, err, "Incoming")
		require.LessOrEqual(t, len(page.Events), q.Limit, "Incoming returned more than Limit")
		for _, in := range page.Events {
			require.Greater(t, in.ID, q.After, "Incoming returns events in the order of ID, after After")
			q.After = in.ID
			all = append(all, in)
		}
		if !page.More {
			return all
		}
		require.NotEmpty(t, page.Events, "a page without events has More")
	}
}

// requireIncoming requires that these incoming events match, in this order.
func requireIncoming(t *testing.T, s driver.Store, q driver.IncomingQuery, want ...*driver.Incoming) {
	t.Helper()
	got := incomingOf(t, s, q)
	require.Len(t, got, len(want), "the number of incoming events")
	for i, in := range got {
		require.Equal(t, [3]any{want[i].ID, want[i].Given, want[i].Codec}, [3]any{in.ID, in.Given, in.Codec}, "ID, Given and Codec of an incoming event")
		requireSame(t, []*driver.Record{want[i].Record}, []*driver.Record{in.Record}, "the Record of incoming event %d", in.ID)
	}
}

// refuseIncoming submits a batch that must be refused because of an incoming event of Accept.
func refuseIncoming(t *testing.T, s driver.Store, b *driver.Batch, id driver.IncomingID, what string) {
	t.Helper()
	refused := refuse(t, s, b, driver.ErrNotFound, what)
	require.Equal(t, id, refused.Incoming, "%s: RefusedError.Incoming", what)
}

// An incoming event returns with every field, from all stores and after they were opened again.
func testIncomingEveryField(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	due, now := fullIncoming(), fullIncoming()
	now.Record.State, now.Record.Due, now.Record.Scheduled, now.Given = driver.Ready, time.Time{}, time.Time{}, false
	least := &driver.Incoming{Record: &driver.Record{ID: newID(), Type: "t", Published: noon}}
	apply(t, other, &driver.Batch{Now: noon, Leave: []*driver.Incoming{due, now, least}})
	for _, store := range []driver.Store{s, other} {
		requireIncoming(t, store, driver.IncomingQuery{}, due, now, least)
	}
	require.NoError(t, s.Reopen(t.Context()))
	requireIncoming(t, s, driver.IncomingQuery{}, due, now, least)
	require.NoError(t, other.Close(t.Context()))
	requireIncoming(t, r.reopen(t, s), driver.IncomingQuery{}, due, now, least)
}

// A store keeps no field of the record but the fixed ones, State and Due, and does not change the batch.
func testIncomingKeepsNoOther(t *testing.T, r *rig) {
	s := r.open(t)
	in := incoming(leased, suspect, at(7), func(n *driver.Record) {
		n.Ref, n.Door, n.Progress, n.Crashes, n.Own, n.Destination = 9, "door", []byte(`{"attempts":1}`), 3, true, "there"
	})
	in.ID = 1000
	before := *in.Record
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}})
	requireSame(t, []*driver.Record{&before}, []*driver.Record{in.Record}, "the Record of a batch with Leave has changed")
	want := before
	want.Ref, want.Position, want.Door, want.Progress, want.Crashes, want.Own, want.Destination = 0, 0, "", nil, 0, false, ""
	want.Leased, want.Suspect = false, false
	requireIncoming(t, s, driver.IncomingQuery{}, &driver.Incoming{ID: in.ID, Record: &want, Codec: in.Codec})
}

// Payloads are any bytes, and texts have any characters. nil and empty payloads differ.
func testIncomingBytes(t *testing.T, r *rig) {
	s := r.open(t)
	var all []*driver.Incoming
	for _, payload := range append(somePayloads(), slices.Repeat(everyByte(), 4096)) {
		all = append(all, incoming(func(n *driver.Record) { n.Payload = payload }))
	}
	for _, targets := range [][]string{nil, {}, {""}, {"a", "", "a 'ü\"%"}} {
		all = append(all, incoming(func(n *driver.Record) { n.Targets = targets }))
	}
	for _, text := range []string{"", "\x00", "a\x00b", "'ü\"%\n", "null"} {
		all = append(all, incoming(key(text)))
		all = append(all, &driver.Incoming{Record: ready(), Codec: text})
	}
	for _, part := range [][]byte{nil, []byte("null"), []byte("{}"), []byte(`{"b":1.0,"a":"ü\u003c\u0000","c":null}`)} {
		all = append(all,
			incoming(func(n *driver.Record) { n.Metadata = part }),
			incoming(func(n *driver.Record) { n.Replay = part }))
	}
	apply(t, s, &driver.Batch{Now: noon, Leave: all})
	requireIncoming(t, r.reopen(t, s), driver.IncomingQuery{}, all...)
}

// Times return in UTC, with their nanoseconds. Those that a store does not keep cost the batch.
func testIncomingTimes(t *testing.T, r *rig) {
	s := r.open(t)
	now := time.Now().In(time.FixedZone("zone", 3600)) // with a monotonic reading
	in := incoming(func(n *driver.Record) {
		n.State, n.Published, n.Scheduled, n.Due = driver.Scheduled, now, now.Add(time.Hour), now.Add(time.Minute)
	})
	apply(t, s, &driver.Batch{Now: now, Leave: []*driver.Incoming{in}})
	got := incomingOf(t, s, driver.IncomingQuery{})
	require.Len(t, got, 1)
	for what, pair := range map[string][2]time.Time{
		"Published": {in.Record.Published, got[0].Record.Published}, "Scheduled": {in.Record.Scheduled, got[0].Record.Scheduled},
		"Due": {in.Record.Due, got[0].Record.Due},
	} {
		require.Equal(t, fmt.Sprintf("%#v", pair[0].Round(0).UTC()), fmt.Sprintf("%#v", pair[1]),
			"%s: a store returns a time in UTC and without a monotonic reading", what)
	}
	for _, set := range []func(n *driver.Record){
		func(n *driver.Record) { n.Published = farFuture }, func(n *driver.Record) { n.Scheduled = farPast },
		func(n *driver.Record) { n.Due = farFuture },
	} {
		bad := incoming(set)
		refuse(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming(), bad}}, driver.ErrTime)
		require.Zero(t, bad.ID)
	}
	require.EqualValues(t, 1, stats(t, s).Incoming)
}

// Incoming returns pages in the order of ID. More reports whether there are others.
func testIncomingPages(t *testing.T, r *rig) {
	s := r.open(t)
	page, err := s.Incoming(t.Context(), driver.IncomingQuery{Limit: 1})
	require.NoError(t, err)
	require.Empty(t, page.Events)
	require.False(t, page.More)
	var all []*driver.Incoming
	for range 4 {
		batch := []*driver.Incoming{incoming(), incoming(scheduled(time.Hour)), incoming()}
		apply(t, s, &driver.Batch{Now: noon, Leave: batch})
		all = append(all, batch...)
	}
	for limit := 1; limit <= len(all)+1; limit++ {
		requireIncoming(t, s, driver.IncomingQuery{Limit: limit}, all...)
		page, err := s.Incoming(t.Context(), driver.IncomingQuery{Limit: limit})
		require.NoError(t, err)
		require.Len(t, page.Events, min(limit, len(all)))
		require.Equal(t, limit < len(all), page.More, "More of a page of %d, of %d events", limit, len(all))
	}
	requireIncoming(t, s, driver.IncomingQuery{After: all[4].ID}, all[5:]...)
	requireIncoming(t, s, driver.IncomingQuery{After: all[11].ID})
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{all[5].ID}})
	requireIncoming(t, s, driver.IncomingQuery{After: all[4].ID, Limit: 2}, all[6:]...)
	requireIncoming(t, s, driver.IncomingQuery{After: all[5].ID, Limit: 2}, all[6:]...) // an ID that is gone
}

func testIncomingOfAnEvent(t *testing.T, r *rig) {
	s := r.open(t)
	id := newID()
	of := func(n *driver.Record) { n.ID = id }
	a, b, c := incoming(of), incoming(of, scheduled(time.Hour)), incoming(of)
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming(), a, incoming(), b, c}})
	requireIncoming(t, s, driver.IncomingQuery{Event: id}, a, b, c)
	requireIncoming(t, s, driver.IncomingQuery{Event: id, Limit: 1}, a, b, c)
	requireIncoming(t, s, driver.IncomingQuery{Event: id, After: a.ID}, b, c)
	requireIncoming(t, s, driver.IncomingQuery{Event: newID()})
	require.Empty(t, lookup(t, s, id), "an incoming event is no record")
	require.Empty(t, claimReady(t, s), "an incoming event is no record")
}

// Slots selects by Record.Slot. The empty set selects all.
func testIncomingOfSlots(t *testing.T, r *rig) {
	s := r.open(t)
	a, b := incoming(), incoming()
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b}})
	for _, slots := range []driver.SlotSet{{}, driver.AllSlots(), driver.SlotsOf(0), driver.SlotsOf(0, 7, 255)} {
		requireIncoming(t, s, driver.IncomingQuery{Slots: slots, Limit: 1}, a, b)
	}
	for _, slots := range []driver.SlotSet{driver.SlotsOf(7), driver.SlotsOf(255), driver.AllSlots().Without(driver.SlotsOf(0))} {
		requireIncoming(t, s, driver.IncomingQuery{Slots: slots})
	}
}

// Ids grow in the order of the batches of one store, and within a batch. A store never assigns one again.
func testIncomingIDsGrow(t *testing.T, r *rig) {
	s := r.open(t)
	var last driver.IncomingID
	for i := range 8 {
		batch := make([]*driver.Incoming, 2+20*i)
		for k := range batch {
			batch[k] = incoming()
		}
		apply(t, s, &driver.Batch{Now: noon, Leave: batch})
		requireIncoming(t, s, driver.IncomingQuery{}, batch...)
		accept := &driver.Batch{Now: noon}
		for _, in := range batch {
			require.Greater(t, in.ID, last, "IncomingID")
			last = in.ID
			accept.Accept = append(accept.Accept, in.ID)
		}
		apply(t, s, accept)
		switch i % 4 {
		case 1:
			s = r.reopen(t, s)
		case 3:
			require.NoError(t, s.Reopen(t.Context()))
		}
	}
	require.Zero(t, stats(t, s).Incoming)
}

// Stats counts the incoming events, which are no records.
func testIncomingIsCounted(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	requireStats := func(want driver.Stats) {
		t.Helper()
		require.Equal(t, want, stats(t, s))
		require.Equal(t, want, stats(t, other))
	}
	a, b, c := incoming(), incoming(scheduled(time.Hour)), incoming()
	apply(t, other, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b}})
	requireStats(driver.Stats{Incoming: 2})
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{c}})
	requireStats(driver.Stats{Incoming: 3})
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}, New: []*driver.Record{ready()}})
	requireStats(driver.Stats{Ready: 1, Free: 1, Incoming: 2})
	refuse(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{c.ID, a.ID}, Leave: []*driver.Incoming{incoming()}}, driver.ErrNotFound)
	requireStats(driver.Stats{Ready: 1, Free: 1, Incoming: 2})
	apply(t, other, &driver.Batch{Now: noon, Withdraw: []driver.ID{b.Record.ID}})
	requireStats(driver.Stats{Ready: 1, Free: 1, Incoming: 1})
	require.NoError(t, other.Close(t.Context()))
	s = r.reopen(t, s)
	require.Equal(t, driver.Stats{Ready: 1, Free: 1, Incoming: 1}, stats(t, s))
}

// Every store leaves events, also while none has the lease.
func testLeaveNeedsNoLease(t *testing.T, r *rig) {
	one, two := r.beside(t), r.beside(t)
	a, b := incoming(), incoming(scheduled(time.Hour))
	apply(t, one, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a}})
	apply(t, two, &driver.Batch{Now: noon, Leave: []*driver.Incoming{b}})
	for _, s := range []driver.Store{one, two} {
		got := incomingOf(t, s, driver.IncomingQuery{})
		require.Len(t, got, 2)
	}
	apply(t, one, &driver.Batch{Now: noon, Withdraw: []driver.ID{b.Record.ID}})
	acquire(t, two)
	requireIncoming(t, two, driver.IncomingQuery{}, a)
	apply(t, two, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}})
	require.Zero(t, stats(t, one))
}

func testIncomingSurvivesACrash(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	a, b, c := incoming(), incoming(), incoming()
	apply(t, other, &driver.Batch{Now: noon, Leave: []*driver.Incoming{a, b}})
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}, Leave: []*driver.Incoming{c}})
	r.Crash(t, other)
	requireLeft := func() {
		t.Helper()
		got := incomingOf(t, s, driver.IncomingQuery{})
		require.Len(t, got, 2)
		require.ElementsMatch(t, []driver.ID{b.Record.ID, c.Record.ID}, []driver.ID{got[0].Record.ID, got[1].Record.ID})
		require.EqualValues(t, 2, stats(t, s).Incoming)
	}
	requireLeft()
	s = r.crash(t, s)
	requireLeft()
	refuseIncoming(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{a.ID}}, a.ID, "Accept of an event that was taken in before the crash")
}

// Two stores leave events at once. All are there, each with an ID of its own.
func testLeaveFromTwoStores(t *testing.T, r *rig) {
	const each, parts = 40, 4
	stores := []driver.Store{r.open(t), r.beside(t)}
	journals := make([]journal, len(stores))
	var group sync.WaitGroup
	for i, s := range stores {
		for range parts {
			group.Go(func() {
				for range each {
					journals[i].submit(s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming(), incoming()}})
				}
			})
		}
	}
	group.Wait()
	ids := make(map[driver.IncomingID]driver.ID)
	for i := range journals {
		require.Equal(t, parts*each, journals[i].check(t))
		var last driver.IncomingID
		for _, b := range journals[i].done {
			for _, in := range b.Leave {
				require.Greater(t, in.ID, last, "ids grow in the order of the batches of one store")
				last = in.ID
				require.NotContains(t, ids, in.ID, "an ID was assigned twice")
				ids[in.ID] = in.Record.ID
			}
		}
	}
	got := incomingOf(t, stores[1], driver.IncomingQuery{Limit: 33})
	require.Len(t, got, 2*2*parts*each)
	for _, in := range got {
		require.Equal(t, ids[in.ID], in.Record.ID, "incoming event %d", in.ID)
	}
	require.EqualValues(t, len(ids), stats(t, stores[0]).Incoming)
}

// A refused batch leaves nothing, and assigns no ID.
func testLeaveWithTheBatch(t *testing.T, r *rig) {
	s := r.beside(t)
	in, asked := incoming(), request()
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{newID()}, Leave: []*driver.Incoming{in}, Ask: []*driver.Request{asked}}, driver.ErrNotFound)
	refuse(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}, Ask: []*driver.Request{asked}, Unask: []driver.RequestID{1 << 40}}, driver.ErrNotFound)
	require.Zero(t, in.ID, "ID of an incoming event of a refused batch")
	require.Zero(t, asked.ID, "ID of a request of a refused batch")
	requireIncoming(t, s, driver.IncomingQuery{})
	l, entry := letter(), driver.Dedupe{Key: "k", Event: in.Record.ID, Expires: noon.Add(time.Hour)}
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{l}})
	replay := &driver.Batch{Now: noon, Take: []driver.ID{l.ID}, Remember: []driver.Dedupe{entry}, Leave: []*driver.Incoming{in}, Audit: []driver.AuditEntry{audited("ann")}}
	apply(t, s, replay)
	requireIncoming(t, s, driver.IncomingQuery{}, in)
	again := incoming()
	replay.Leave = []*driver.Incoming{again}
	replay.Remember = nil
	refuse(t, s, replay, driver.ErrNotFound)
	requireIncoming(t, s, driver.IncomingQuery{}, in)
	require.Len(t, auditOf(t, s, driver.AuditQuery{}), 1)
}
