package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var expiredTests = []conformanceTest{
	{name: "States", run: testExpiredStates},
	{name: "Order", run: testExpiredOrder},
	{name: "Nanosecond", run: testExpiredNanosecond},
	{name: "NextDue", run: testExpiredNextDue},
	{name: "OnlyFree", run: testExpiredOnlyFree},
	{name: "Update", run: testExpiredUpdate},
	{name: "LaterLeases", run: testExpiredLeases},
	{name: "TakenIn", run: testExpiredTakenIn},
}

// expires sets the expiry of a record.
func expires(after time.Duration) func(*driver.Record) {
	return func(r *driver.Record) { r.Expires = noon.Add(after) }
}

// expiredBy selects the records that have expired some time after noon.
func expiredBy(after time.Duration) driver.ClaimQuery {
	return driver.ClaimQuery{Kind: driver.ClaimExpired, Now: noon.Add(after)}
}

// ClaimExpired claims records in Ready, Waiting and Parked, whatever their Key, Due and Own.
func testExpiredStates(t *testing.T, r *rig) {
	s := r.open(t)
	var all []*driver.Record
	for _, k := range []string{"", "k"} {
		all = append(all,
			ready(expires(0), key(k)), ready(expires(0), key(k), waiting(time.Hour)), ready(expires(0), key(k), parked("door")),
			ready(expires(0), key(k), parkedFor("a")))
	}
	insert(t, s, all...)
	insert(t, s, ready(), ready(waiting(0)), ready(parked("door")), ready(expires(time.Second)), ready(scheduled(-time.Hour), expires(-time.Minute)))
	for _, freedHere := range []bool{true, false} {
		if !freedHere {
			s = r.reopen(t, s)
		}
		claimed := claim(t, s, expiredBy(0))
		requireRecords(t, all, claimed.Records)
		require.False(t, claimed.More)
		for _, n := range claimed.Records {
			require.Equal(t, freedHere, n.Own)
			require.True(t, n.Leased)
		}
		require.Empty(t, claim(t, s, expiredBy(0)).Records)
		release(t, s, claimed.Records...)
	}
}

// The order is that of Expires, then Ref. More reports whether another record matched.
func testExpiredOrder(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c, d := ready(expires(2), at(1)), ready(expires(1), at(9)), ready(expires(2), at(0), parked("door")), ready(expires(1), waiting(5))
	insert(t, s, a, b, c, d)
	q := expiredBy(time.Second)
	q.Limit = 3
	first, second := claim(t, s, q), claim(t, s, q)
	requireRecords(t, []*driver.Record{b, d, a}, first.Records)
	requireRecords(t, []*driver.Record{c}, second.Records)
	require.Equal(t, []bool{true, false}, []bool{first.More, second.More})
}

func testExpiredNanosecond(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(expires(1))
	insert(t, s, n)
	require.Empty(t, claim(t, s, expiredBy(0)).Records)
	claimed := claim(t, s, expiredBy(1)).Records
	requireRecords(t, []*driver.Record{n}, claimed)
	require.Equal(t, noon.Add(1), claimed[0].Expires)
	require.Equal(t, noon.Add(1), lookup(t, s, n.ID)[0].Expires)
}

// NextDue is the earliest expiry after Now.
func testExpiredNextDue(t *testing.T, r *rig) {
	s := r.open(t)
	require.True(t, claim(t, s, expiredBy(0)).NextDue.IsZero(), "NextDue of an empty store")
	insert(t, s, ready(expires(time.Hour)), ready(expires(time.Minute+1), parked("door")), ready(expires(0)), ready(),
		ready(expires(time.Second), leased), ready(expires(2*time.Second), scheduled(time.Second)), ready(waiting(time.Second)))
	claimed := claim(t, s, expiredBy(0))
	require.Len(t, claimed.Records, 1)
	require.Equal(t, noon.Add(time.Minute+1), claimed.NextDue)
	require.Equal(t, noon.Add(time.Hour), claim(t, s, expiredBy(time.Minute+1)).NextDue)
	require.True(t, claim(t, s, expiredBy(time.Hour)).NextDue.IsZero(), "NextDue after the last record")
	require.True(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimReady}).NextDue.IsZero(), "NextDue of ClaimReady")
}

// A leased record is not claimed, until Update frees it.
func testExpiredOnlyFree(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(expires(0), leased)
	insert(t, s, n)
	require.Empty(t, claim(t, s, expiredBy(0)).Records)
	release(t, s, n)
	requireRecords(t, []*driver.Record{n}, claim(t, s, expiredBy(0)).Records)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
}

// Update changes the state of a record, and not its expiry.
func testExpiredUpdate(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(expires(0), scheduled(-time.Minute), leased)
	insert(t, s, n)
	for _, change := range []func(*driver.Record){func(*driver.Record) {}, waiting(time.Hour), parked("door"), parkedFor("a"), scheduled(-time.Minute)} {
		u := &driver.Record{Ref: n.Ref, Expires: noon.Add(time.Hour)}
		change(u)
		apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{u}})
		n.State, n.Due, n.Door, n.Destination = u.State, u.Due, u.Door, u.Destination
		if n.State == driver.Scheduled {
			break
		}
		requireRecords(t, []*driver.Record{n}, claim(t, s, expiredBy(0)).Records)
	}
	require.Empty(t, claim(t, s, expiredBy(0)).Records)
}

// A later lease claims what earlier ones have left, leased or free, and ClaimReady claims the others.
func testExpiredLeases(t *testing.T, r *rig) {
	s := r.open(t)
	for _, end := range []func(){
		func() { s = r.reopen(t, s) },
		func() { require.NoError(t, s.Reopen(t.Context())) },
		func() { require.NoError(t, s.Release(t.Context(), driver.AllSlots())); acquire(t, s) },
	} {
		free, held, other := ready(expires(0)), ready(expires(1), key("k"), leased), ready(leased)
		insert(t, s, free, held, other)
		end()
		claimed := claim(t, s, expiredBy(1)).Records
		requireRecords(t, []*driver.Record{free, held}, claimed)
		requireRecords(t, []*driver.Record{other}, claimReady(t, s))
		apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{free.Ref, held.Ref, other.Ref}})
	}
	if r.Crash == nil {
		return
	}
	n := ready(expires(0), leased)
	insert(t, s, n)
	s = r.crash(t, s)
	claimed := claim(t, s, expiredBy(0)).Records
	require.Len(t, claimed, 1)
	require.Equal(t, 1, claimed[0].Crashes)
	require.Empty(t, claimReady(t, s))
}

// An incoming event keeps its expiry.
func testExpiredTakenIn(t *testing.T, r *rig) {
	s := r.open(t)
	in := fullIncoming()
	in.Record.Expires = noon.Add(1)
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in}})
	page, err := s.Incoming(t.Context(), driver.IncomingQuery{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, noon.Add(1), page.Events[0].Record.Expires)
}
