package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var destinationTests = []conformanceTest{
	{name: "Destinations", run: testDestinations},
	{name: "OtherThan", run: testOtherThan},
	{name: "Doors", run: testDestinationsAtDoors},
	{name: "Pages", run: testDestinationPages},
	{name: "Update", run: testDestinationUpdate},
	{name: "KeyedRecords", run: testDestinationKeyed},
	{name: "LaterLeases", run: testDestinationLeases},
	{name: "Crash", needs: needsCrash, run: testDestinationCrash},
	{name: "OnlyParked", run: testDestinationOnlyParked},
	{name: "Texts", run: testDestinationTexts},
	{name: "Many", run: testManyDestinations},
}

// parkedFor parks a new record at the door "door" for a destination.
func parkedFor(destination string) func(*driver.Record) {
	return func(r *driver.Record) { r.State, r.Door, r.Destination = driver.Parked, "door", destination }
}

// destinations selects records at the door "door".
func destinations(of ...string) driver.ClaimQuery {
	return driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}, Destinations: of}
}

// otherThan selects records at the door "door".
func otherThan(of ...string) driver.ClaimQuery {
	return driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door"}, OtherThan: of}
}

// requireClaimed claims the records of a query, requires that they are those of want, and frees them.
func requireClaimed(t *testing.T, s driver.Store, q driver.ClaimQuery, want ...*driver.Record) {
	t.Helper()
	claimed := claim(t, s, q)
	requireRecords(t, want, claimed.Records)
	require.False(t, claimed.More, "More, after the last record")
	release(t, s, claimed.Records...)
}

// release frees leased records.
func release(t *testing.T, s driver.Store, records ...*driver.Record) {
	t.Helper()
	b := &driver.Batch{Now: noon}
	for _, n := range records {
		u := *n
		u.Leased = false
		b.Update = append(b.Update, &u)
	}
	apply(t, s, b)
}

// ClaimParked claims the records of one of Destinations.
func testDestinations(t *testing.T, r *rig) {
	s := r.open(t)
	a, none, b, a2, c := ready(parkedFor("a")), ready(parkedFor("")), ready(parkedFor("b")), ready(parkedFor("a")), ready(parkedFor("c"))
	insert(t, s, a, none, b, a2, c)
	requireClaimed(t, s, destinations("a"), a, a2)
	requireClaimed(t, s, destinations("b"), b)
	requireClaimed(t, s, destinations("c", "a"), a, a2, c)
	requireClaimed(t, s, destinations(""), none)
	requireClaimed(t, s, destinations("b", ""), none, b)
	requireClaimed(t, s, destinations("d", "A", "a ", "\xff"))
	requireClaimed(t, s, destinations(), a, none, b, a2, c)
	held := claim(t, s, destinations("a")).Records
	requireClaimed(t, s, destinations("a", "c"), c)
	release(t, s, held[1])
	requireClaimed(t, s, destinations("a", "c"), a2, c)
}

// ClaimParked claims the records of none of OtherThan.
func testOtherThan(t *testing.T, r *rig) {
	s := r.open(t)
	a, none, b, a2, c := ready(parkedFor("a")), ready(parkedFor("")), ready(parkedFor("b")), ready(parkedFor("a")), ready(parkedFor("c"))
	insert(t, s, a, none, b, a2, c)
	requireClaimed(t, s, otherThan("a"), none, b, c)
	requireClaimed(t, s, otherThan("c", "a"), none, b)
	requireClaimed(t, s, otherThan(""), a, b, a2, c)
	requireClaimed(t, s, otherThan("b", ""), a, a2, c)
	requireClaimed(t, s, otherThan("d", "A", "a ", "\xff"), a, none, b, a2, c)
	requireClaimed(t, s, otherThan("a", "b", "c", ""))
	requireClaimed(t, s, otherThan(), a, none, b, a2, c)
	claim(t, s, otherThan("a", "b"))
	requireClaimed(t, s, otherThan("b"), a, a2)
}

// A destination is one of its door.
func testDestinationsAtDoors(t *testing.T, r *rig) {
	s := r.open(t)
	elsewhere := func(n *driver.Record) { n.Door = "door 2" }
	a, a2, b, none := ready(parkedFor("a")), ready(parkedFor("a"), elsewhere), ready(parkedFor("b"), elsewhere), ready(parkedFor(""), elsewhere)
	insert(t, s, a, a2, b, none)
	requireClaimed(t, s, destinations("a"), a)
	requireClaimed(t, s, destinations("b"))
	requireClaimed(t, s, otherThan("b"), a)
	for q, want := range map[*driver.ClaimQuery][]*driver.Record{
		{Destinations: []string{"a"}}:     {a, a2},
		{Destinations: []string{"b", ""}}: {b, none},
		{OtherThan: []string{"a"}}:        {b, none},
		{OtherThan: []string{"b"}}:        {a, a2, none},
	} {
		q.Kind, q.Doors = driver.ClaimParked, []string{"door 2", "door"}
		requireClaimed(t, s, *q, want...)
	}
	require.Equal(t, map[string]int64{"door": 1, "door 2": 3}, parkedBy(t, s, ""))
}

// Pages have the order of Position, then Ref, over all destinations. More reports whether another record matched.
func testDestinationPages(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, a2, none := ready(parkedFor("a"), at(500)), ready(parkedFor("b"), at(20)), ready(parkedFor("a"), at(3)), ready(parkedFor(""), at(20))
	c, b2 := ready(parkedFor("c"), at(1)), ready(parkedFor("b"), at(500))
	all := []*driver.Record{a, b, a2, none, c, b2}
	insert(t, s, all...)
	for _, q := range []driver.ClaimQuery{destinations("b", "a", ""), otherThan("c", "d")} {
		q.Limit = 2
		first, second := claim(t, s, q), claim(t, s, q)
		q.Limit = 1
		third := claim(t, s, q)
		requireRecords(t, []*driver.Record{a2, b}, first.Records)
		requireRecords(t, []*driver.Record{none, a}, second.Records)
		requireRecords(t, []*driver.Record{b2}, third.Records)
		require.Equal(t, []bool{true, true, false}, []bool{first.More, second.More, third.More}, "More of %+v", q)
		require.Empty(t, claim(t, s, q).Records)
		release(t, s, a, b, a2, none, b2)
	}
	of := destinations("b")
	of.Limit = 1
	require.True(t, claim(t, s, of).More)
	require.False(t, claim(t, s, of).More, "records of other destinations are no more of these")
	of = otherThan("a", "")
	of.Limit = 1
	require.False(t, claim(t, s, of).More, "records that are left out are no more of the others")
}

// Batch.Update changes the destination, also of a record that stays at its door.
func testDestinationUpdate(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(parkedFor("a"), leased)
	insert(t, s, n)
	free := func(change func(*driver.Record)) {
		change(n)
		n.Leased = false
		apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{n}})
		require.Equal(t, n.Destination, lookup(t, s, n.ID)[0].Destination)
	}
	for _, to := range []string{"b", "", "c", "c"} {
		free(func(n *driver.Record) { n.Destination = to })
		require.Empty(t, claim(t, s, destinations("a")).Records)
		require.Empty(t, claim(t, s, otherThan(to, "d")).Records)
		requireRecords(t, []*driver.Record{n}, claim(t, s, destinations(to)).Records)
	}
	free(func(n *driver.Record) { n.State, n.Door, n.Destination = driver.Ready, "", "" })
	require.Empty(t, claim(t, s, destinations("c", "")).Records)
	requireRecords(t, []*driver.Record{n}, claimReady(t, s))
	free(parkedFor("b"))
	requireRecords(t, []*driver.Record{n}, claim(t, s, otherThan("c")).Records)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
	require.Empty(t, claim(t, r.reopen(t, s), destinations("b")).Records)
}

// ClaimReady claims records with a key, whatever their destination. ClaimParked claims them once this lease has freed them.
func testDestinationKeyed(t *testing.T, r *rig) {
	s := r.open(t)
	a, b, c := ready(parkedFor("a"), key("k")), ready(parkedFor("b"), key("k")), ready(parkedFor("a"))
	insert(t, s, a, b, c)
	s = r.reopen(t, s)
	for _, q := range []driver.ClaimQuery{destinations("a", "b"), otherThan("d")} {
		requireClaimed(t, s, q, c)
	}
	requireRecords(t, []*driver.Record{a, b}, claimReady(t, s))
	release(t, s, a, b)
	require.Empty(t, claimReady(t, s))
	requireClaimed(t, s, destinations("a"), a, c)
	requireClaimed(t, s, otherThan("a"), b)
	own := claim(t, s, destinations("b")).Records
	require.True(t, own[0].Own)
	require.NoError(t, s.Reopen(t.Context()))
	requireRecords(t, []*driver.Record{a, b}, claimReady(t, s))
}

// Later leases claim by destination what earlier ones have left, leased or free.
func testDestinationLeases(t *testing.T, r *rig) {
	s := r.open(t)
	var all []*driver.Record
	for round, end := range []func(){
		func() { s = r.reopen(t, s) },
		func() { require.NoError(t, s.Reopen(t.Context())) },
		func() { require.NoError(t, s.Release(t.Context(), driver.AllSlots())); acquire(t, s) },
	} {
		at := func(back int64) func(*driver.Record) { return at(int64(100-10*round) + back) }
		a, b, none := ready(parkedFor("a"), at(2)), ready(parkedFor("b"), at(1), leased), ready(parkedFor(""), at(0), leased)
		insert(t, s, a, b, none)
		all = append([]*driver.Record{none, b, a}, all...)
		end()
		of := func(names ...string) (some []*driver.Record) {
			for _, n := range all {
				if slices.Contains(names, n.Destination) {
					some = append(some, n)
				}
			}
			return some
		}
		for _, q := range []driver.ClaimQuery{destinations("b", "a"), otherThan("")} {
			claimed := claim(t, s, q).Records
			requireRecords(t, of("a", "b"), claimed)
			release(t, s, claimed[:len(claimed)/2]...) // the others are left leased
			requireClaimed(t, s, q, claimed[:len(claimed)/2]...)
			end()
		}
		requireClaimed(t, s, otherThan("a"), of("b", "")...)
	}
}

// A crash frees the records of all destinations.
func testDestinationCrash(t *testing.T, r *rig) {
	s := r.open(t)
	a, b := ready(parkedFor("a"), leased), ready(parkedFor("b"))
	insert(t, s, a, b)
	s = r.crash(t, s)
	requireClaimed(t, s, destinations("a"), a)
	requireClaimed(t, s, otherThan("a"), b)
	claim(t, s, destinations("a", "b"))
	s = r.crash(t, s)
	requireClaimed(t, s, otherThan("c"), a, b)
}

// A store keeps a destination in every state. Only what is parked is claimed by it.
func testDestinationOnlyParked(t *testing.T, r *rig) {
	s := r.open(t)
	of := func(n *driver.Record) { n.Door, n.Destination = "door", "a" }
	isReady, isWaiting, isScheduled := ready(of), ready(waiting(0), of), ready(scheduled(0), of)
	insert(t, s, isReady, isWaiting, isScheduled)
	requireClaimed(t, s, destinations("a"))
	requireClaimed(t, s, otherThan("b"))
	s = r.reopen(t, s)
	requireRecords(t, []*driver.Record{isReady}, claimReady(t, s))
	requireRecords(t, []*driver.Record{isWaiting, isScheduled}, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: noon}).Records)
}

// A destination is any text of up to 255 bytes without NUL.
func testDestinationTexts(t *testing.T, r *rig) {
	s := r.open(t)
	texts := []string{
		"a", "A", " a", "a ", "ä", "a\u0308", "null", `"a"`, "'a'", "%", "\\", "\\000", "\x01\n", "\ufffd", "\U0001f3e0", "0", "00",
		strings.Repeat("x", 254), strings.Repeat("x", 255), strings.Repeat("ü", 127),
	}
	for _, text := range texts {
		insert(t, s, ready(parkedFor(text)))
	}
	s = r.reopen(t, s)
	for i, text := range texts {
		claimed := claim(t, s, destinations(text)).Records
		require.Len(t, claimed, 1, "records of %q", text)
		require.Equal(t, text, claimed[0].Destination)
		release(t, s, claimed...)
		claimed = claim(t, s, otherThan(texts[i:]...)).Records
		require.Len(t, claimed, i, "records of none of %q", texts[i:])
		release(t, s, claimed...)
	}
	for _, text := range []string{"\xff", "a\x00", "a\xff"} {
		require.Empty(t, claim(t, s, destinations(text)).Records, "records of %q", text)
		claimed := claim(t, s, otherThan(text)).Records
		require.Len(t, claimed, len(texts), "records of others than %q", text)
		release(t, s, claimed...)
	}
}

// A query may name 10,000 destinations. One that is asked for alone is found among many records of others.
func testManyDestinations(t *testing.T, r *rig) {
	s := r.open(t)
	const every, of = 10_000, 25
	names := make([]string, every)
	for i := range names {
		names[i] = fmt.Sprintf("destination %05d", i)
	}
	var records, others []*driver.Record
	for i := range 2000 {
		n := ready(parkedFor(names[i%of*(every/of)]))
		if i%100 == 99 {
			n.Destination = "other"
			others = append(others, n)
		} else {
			records = append(records, n)
		}
		n.Position = int64(5000 - i)
	}
	insert(t, s, slices.Concat(records, others)...)
	slices.Reverse(records)
	slices.Reverse(others)
	requireClaimed(t, s, destinations("other"), others...)
	requireClaimed(t, s, otherThan(names...), others...)
	q := destinations(names...)
	q.Limit = 700
	for ; len(records) > 0; records = records[min(q.Limit, len(records)):] {
		claimed := claim(t, s, q)
		requireRecords(t, records[:min(q.Limit, len(records))], claimed.Records)
		require.Equal(t, len(records) > q.Limit, claimed.More)
	}
	requireClaimed(t, s, otherThan(names[1:]...), others...)
}
