package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var claimTests = []conformanceTest{
	{name: "Order", run: testClaimOrder},
	{name: "OnlyItsKind", run: testClaimOnlyItsKind},
	{name: "LimitAndMore", run: testClaimLimit},
	{name: "KeyedRecords", run: testClaimKeyed},
	{name: "Due", run: testClaimDue},
	{name: "NextDue", run: testClaimNextDue},
	{name: "Parked", run: testClaimParked},
	{name: "Refs", run: testClaimRefs},
	{name: "OnlyFree", run: testClaimOnlyFree},
	{name: "Own", run: testClaimOwn},
	{name: "OwnEndsWithLease", run: testOwnEndsWithLease},
}

// ClaimReady and ClaimParked claim in the order of Position, then Ref.
func testClaimOrder(t *testing.T, r *rig) {
	s := r.open(t)
	for _, q := range []driver.ClaimQuery{{Kind: driver.ClaimReady, Limit: 2}, {Kind: driver.ClaimParked, Limit: 2, Doors: []string{"door"}}} {
		of := func(n *driver.Record) {
			if q.Kind == driver.ClaimParked {
				parked("door")(n)
			}
		}
		a, b, c, d, e := ready(of, at(500)), ready(of, at(20)), ready(of, at(500)), ready(of, at(3)), ready(of, at(20))
		insert(t, s, a, b)
		insert(t, s, c, d, e)
		first, second, third := claim(t, s, q), claim(t, s, q), claim(t, s, q)
		requireRecords(t, []*driver.Record{d, b}, first.Records)
		requireRecords(t, []*driver.Record{e, a}, second.Records)
		requireRecords(t, []*driver.Record{c}, third.Records)
		require.Equal(t, []bool{true, true, false}, []bool{first.More, second.More, third.More})
	}
}

func testClaimOnlyItsKind(t *testing.T, r *rig) {
	s := r.open(t)
	isReady, isWaiting, isScheduled, isParked := ready(), ready(waiting(0)), ready(scheduled(0)), ready(parked("door"))
	insert(t, s, isReady, isWaiting, isScheduled, isParked)
	requireRecords(t, []*driver.Record{isReady}, claimReady(t, s))
	require.Empty(t, claimReady(t, s))
	requireRecords(t, []*driver.Record{isWaiting, isScheduled}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: noon}).Records)
	for _, q := range []driver.ClaimQuery{{Kind: driver.ClaimParked, Doors: []string{"other"}}, {Kind: driver.ClaimParked}, {Kind: driver.ClaimRefs, Refs: []driver.Ref{isReady.Ref}}} {
		require.Empty(t, claim(t, s, q).Records)
	}
	requireRecords(t, []*driver.Record{isParked}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}}).Records)
}

func testClaimLimit(t *testing.T, r *rig) {
	s := r.open(t)
	for range 5 {
		insert(t, s, ready())
	}
	q := driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 4}
	first := claim(t, s, q)
	require.Len(t, first.Records, 4)
	require.True(t, first.More)
	second := claim(t, s, q)
	require.Len(t, second.Records, 1)
	require.False(t, second.More)
	third := claim(t, s, q)
	require.Empty(t, third.Records)
	require.False(t, third.More)

	insert(t, s, ready(), ready())
	q.Limit = 2
	exact := claim(t, s, q)
	require.Len(t, exact.Records, 2)
	require.False(t, exact.More, "More, after the last record")
}

// Records with a key that wait or are parked are claimed in their place, whatever their Due, unless
// the bus itself freed them.
func testClaimKeyed(t *testing.T, r *rig) {
	s := r.open(t)
	one, two, three := ready(waiting(time.Hour), key("k")), ready(parked("door"), key("k")), ready(key("k"))
	far := ready(scheduled(time.Hour), key("k"))
	unkeyed := ready(waiting(time.Hour))
	insert(t, s, one, two, three, far, unkeyed)
	requireRecords(t, []*driver.Record{three}, claimReady(t, s))
	s = r.reopen(t, s)
	requireRecords(t, []*driver.Record{one, two, three}, claimReady(t, s))

	// The bus frees them: Own is set, until the lease ends.
	one.Leased, two.Leased, three.Leased = false, false, false
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{one, two, three}})
	requireRecords(t, []*driver.Record{three}, claimReady(t, s))
	again := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}}).Records
	requireRecords(t, []*driver.Record{two}, again)
	require.True(t, again[0].Own)
	require.NoError(t, s.Reopen(t.Context()))
	requireRecords(t, []*driver.Record{one, two, three}, claimReady(t, s))
}

// ClaimDue claims by Due, then Ref, what is due at Now: waiting records without a key, and all
// scheduled ones.
func testClaimDue(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(waiting(3*time.Second), at(1)), ready(scheduled(2*time.Second), key("k"), at(9)), ready(scheduled(3*time.Second), at(0))
	d, e := ready(waiting(time.Second)), ready(waiting(4*time.Second))
	insert(t, s, a, b, c, d, e, ready(waiting(0), key("k")), ready(parked("door")), ready())
	q := driver.ClaimQuery{Kind: driver.ClaimDue, Now: noon.Add(3 * time.Second), Limit: 3}
	first := claim(t, s, q)
	requireRecords(t, []*driver.Record{d, b, a}, first.Records)
	require.True(t, first.More)
	second := claim(t, s, q)
	requireRecords(t, []*driver.Record{c}, second.Records)
	require.False(t, second.More)
	q.Now = e.Due.Add(-time.Nanosecond)
	require.Empty(t, claim(t, s, q).Records)
	q.Now = e.Due
	requireRecords(t, []*driver.Record{e}, claim(t, s, q).Records)
}

func testClaimNextDue(t *testing.T, r *rig) {
	s := r.open(t)
	q := driver.ClaimQuery{Kind: driver.ClaimDue, Now: noon}
	require.True(t, claim(t, s, q).NextDue.IsZero(), "NextDue of an empty store")
	insert(t, s,
		ready(waiting(2*time.Hour+1)), ready(scheduled(3*time.Hour)), ready(waiting(0)),
		ready(waiting(time.Minute), key("k")), ready(waiting(time.Minute), leased), ready(parked("door")), ready())
	claimed := claim(t, s, q)
	require.Len(t, claimed.Records, 1)
	require.Equal(t, noon.Add(2*time.Hour+1), claimed.NextDue)
	q.Now = claimed.NextDue
	claimed = claim(t, s, q)
	require.Len(t, claimed.Records, 1)
	require.Equal(t, noon.Add(3*time.Hour), claimed.NextDue)
	require.True(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimReady}).NextDue.IsZero(), "NextDue of ClaimReady")
	q.Now = claimed.NextDue
	require.True(t, claim(t, s, q).NextDue.IsZero(), "NextDue after the last record")
}

// ClaimParked claims the records at its door: with a key, those that this lease has freed.
func testClaimParked(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(parked("door"), key("k")), ready(parked("door 2")), ready(parked("door"))
	insert(t, s, a, b, c)
	s = r.reopen(t, s)
	requireRecords(t, []*driver.Record{c}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}}).Records)
	requireRecords(t, []*driver.Record{a}, claimReady(t, s))
	a.Leased, c.Leased = false, false
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{a, c}})
	require.Empty(t, claimReady(t, s))
	requireRecords(t, []*driver.Record{a, c}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}}).Records)
	requireRecords(t, []*driver.Record{b}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door 2"}}).Records)
	a.Leased, b.Leased, c.Leased, a.Due = false, false, false, noon
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{a, b, c}})
	both := driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door 2", "door"}, Limit: 2}
	requireRecords(t, []*driver.Record{a, b}, claim(t, s, both).Records)
	requireRecords(t, []*driver.Record{c}, claim(t, s, both).Records)
}

// ClaimRefs claims free records by their Refs, whatever their State, Key, Due and Own.
func testClaimRefs(t *testing.T, r *rig) {
	s := r.open(t)
	all := []*driver.Record{
		ready(scheduled(time.Hour), key("k")), ready(scheduled(time.Minute)), ready(), ready(key("k")), ready(waiting(time.Hour), key("k")),
		ready(waiting(time.Hour)), ready(parked("door")), ready(parked("door"), key("k")), ready(leased), ready(),
	}
	insert(t, s, all...)
	asked := append(refsOf(all[:9]), all[9].Ref+1000)
	slices.Reverse(asked)
	claimed := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimRefs, Refs: asked, Limit: 5})
	require.True(t, claimed.More)
	requireRecords(t, all[:5], claimed.Records)
	claimed = claim(t, s, driver.ClaimQuery{Kind: driver.ClaimRefs, Refs: asked})
	require.False(t, claimed.More)
	requireRecords(t, all[5:8], claimed.Records)
	require.Empty(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimRefs, Refs: asked}).Records)
	require.Empty(t, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimRefs}).Records)
	requireRecords(t, all[9:], claimReady(t, s))
}

// A claimed or leased record is not claimed again, until Update frees it.
func testClaimOnlyFree(t *testing.T, r *rig) {
	s := r.open(t)
	free, held := ready(), ready(leased)
	insert(t, s, free, held)
	requireRecords(t, []*driver.Record{free}, claimReady(t, s))
	require.Empty(t, claimReady(t, s))
	require.Zero(t, stats(t, s).Free)
	require.True(t, lookup(t, s, free.ID)[0].Leased)

	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: free.Ref, Leased: true, Suspect: true}}})
	require.Empty(t, claimReady(t, s))
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: free.Ref, Suspect: true}}})
	require.EqualValues(t, 1, stats(t, s).Free)
	require.False(t, lookup(t, s, free.ID)[0].Leased)
	again := claimReady(t, s)
	requireRecords(t, []*driver.Record{free}, again)
	require.False(t, again[0].Suspect, "Claim clears Suspect")
	require.False(t, lookup(t, s, free.ID)[0].Suspect, "Claim clears Suspect in the store")
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{free.Ref, held.Ref}})
}

// Own is set for records that the bus freed, or inserted without a lease, under its present lease.
func testClaimOwn(t *testing.T, r *rig) {
	s := r.open(t)
	inserted, freed := ready(), ready(leased)
	insert(t, s, inserted, freed)
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: freed.Ref}}})
	for _, n := range claimReady(t, s) {
		require.True(t, n.Own, "record %d", n.Ref)
	}
	s = r.reopen(t, s)
	for _, n := range claimReady(t, s) {
		require.False(t, n.Own, "record %d of an earlier lease", n.Ref)
		apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: n.Ref}}})
	}
	claimed := claimReady(t, s)
	require.Len(t, claimed, 2)
	for _, n := range claimed {
		require.True(t, n.Own, "record %d, freed under this lease", n.Ref)
	}
}

func testOwnEndsWithLease(t *testing.T, r *rig) {
	for _, end := range []string{"Close", "Reopen", "Crash"} {
		t.Run(end, func(t *testing.T) {
			s := r.open(t)
			insert(t, s, ready())
			switch {
			case end == "Close":
				s = r.reopen(t, s)
			case end == "Reopen":
				require.NoError(t, s.Reopen(t.Context()))
			case r.Crash == nil:
				t.Skip("Backend.Crash is nil: crashes are not tested")
			default:
				s = r.crash(t, s)
			}
			claimed := claimReady(t, s)
			require.NotEmpty(t, claimed)
			for _, n := range claimed {
				require.False(t, n.Own)
				apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
			}
			require.NoError(t, s.Close(t.Context()))
		})
	}
}
