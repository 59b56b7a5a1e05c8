package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var recordTests = []conformanceTest{
	{name: "EveryField", run: testEveryField},
	{name: "Payload", run: testRecordPayload},
	{name: "Parts", run: testRecordParts},
	{name: "Times", run: testRecordTimes},
	{name: "LocalTimes", run: testLocalTimes},
	{name: "Position", run: testPosition},
	{name: "RefsGrow", run: testRefsGrow},
	{name: "IgnoredFields", run: testIgnoredFields},
	{name: "OwnMemory", run: testOwnMemory},
	{name: "Lookup", run: testLookup},
	{name: "Records", run: testRecords},
	{name: "Stats", run: testStats},
	{name: "Parked", run: testParked},
}

// A record returns with every field, after any way out of the store.
func testEveryField(t *testing.T, r *rig) {
	s := r.open(t)
	var records []*driver.Record
	for _, state := range []driver.State{driver.Ready, driver.Waiting, driver.Scheduled, driver.Parked} {
		n := fullRecord()
		n.State, n.Door = state, "door "+state.String()
		if state == driver.Waiting || state == driver.Parked {
			n.Key = "" // otherwise ClaimReady claims it
		}
		records = append(records, n)
	}
	insert(t, s, records...)
	for _, n := range records {
		requireRecords(t, []*driver.Record{n}, lookup(t, s, n.ID))
	}
	s = r.reopen(t, s)
	last := noon.Add(10_000 * time.Hour)
	parkedAt := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"door parked"}})
	requireRecords(t, records[3:], parkedAt.Records)
	requireRecords(t, records[2:3], claim(t, s, driver.ClaimQuery{Kind: driver.ClaimRefs, Refs: []driver.Ref{records[2].Ref}}).Records)
	requireRecords(t, records[:1], claimReady(t, s))
	requireRecords(t, records[1:2], claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: last}).Records)
	for _, n := range records {
		requireRecords(t, []*driver.Record{n}, lookup(t, s, n.ID))
	}
}

// A payload is any bytes. nil and empty differ.
func testRecordPayload(t *testing.T, r *rig) {
	s := r.open(t)
	var records []*driver.Record
	for _, payload := range append(somePayloads(), slices.Repeat(everyByte(), 4096)) {
		records = append(records, ready(func(n *driver.Record) { n.Payload = payload }))
	}
	insert(t, s, records...)
	requireRecords(t, records, claimReady(t, r.reopen(t, s)))
}

// everyByte returns each value of a byte.
func everyByte() []byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return every
}

// somePayloads returns payloads that a store might confuse.
func somePayloads() [][]byte {
	return [][]byte{nil, {}, {0}, []byte("null"), []byte(`"text"`), []byte(`{ "a": 1.0 }`), {0xff, 0xfe}, everyByte()}
}

// Metadata, Replay and Progress return with their bytes, in their places.
func testRecordParts(t *testing.T, r *rig) {
	s := r.open(t)
	var records []*driver.Record
	for _, part := range [][]byte{nil, []byte("null"), []byte("{}"), []byte(`{"b":1.0,"a":"ü\u003c\u0000","c":null}`)} {
		records = append(records,
			ready(func(n *driver.Record) { n.Metadata = part }),
			ready(func(n *driver.Record) { n.Replay = part }),
			ready(func(n *driver.Record) { n.Progress = part }),
			ready(func(n *driver.Record) { n.Metadata, n.Replay, n.Progress = part, part, part }))
	}
	insert(t, s, records...)
	s = r.reopen(t, s)
	requireRecords(t, records, claimReady(t, s))
	for i, n := range records {
		n.Progress = records[len(records)-1-i].Metadata
		apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{n}})
	}
	requireRecords(t, records, claimReady(t, r.reopen(t, s)))
}

// Times keep their nanoseconds and are in UTC, from the zero time to the year 9999.
func testRecordTimes(t *testing.T, r *rig) {
	s := r.open(t)
	var records []*driver.Record
	for _, instant := range []time.Time{
		{}, noon, time.Unix(0, 0).UTC(), time.Date(1600, 1, 2, 3, 4, 5, 999999999, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
	} {
		records = append(records, ready(waiting(0), func(n *driver.Record) {
			n.Published, n.Due, n.Scheduled = instant, instant, instant
		}))
	}
	insert(t, s, records...)
	byDue := []*driver.Record{records[0], records[3], records[2], records[1], records[4]}
	early := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: records[4].Due.Add(-1)})
	requireRecords(t, byDue[:4], early.Records)
	require.True(t, early.NextDue.Equal(records[4].Due), "NextDue: %v", early.NextDue)
	requireRecords(t, byDue[4:], claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: records[4].Due}).Records)
}

// A store returns times in UTC and without a monotonic reading, whatever it was given.
func testLocalTimes(t *testing.T, r *rig) {
	s := r.open(t)
	zone := time.FixedZone("zone", 3600)
	now := time.Now().In(zone) // with a monotonic reading
	later := now.Add(time.Hour)
	is := func(want, got time.Time, what string) {
		t.Helper()
		// Equal would ignore the location, and == the times of two locations that are UTC.
		require.Equal(t, fmt.Sprintf("%#v", want.Round(0).UTC()), fmt.Sprintf("%#v", got),
			"%s: a store returns a time in UTC and without a monotonic reading, whatever it was given", what)
	}
	check := func(n *driver.Record, what string) {
		t.Helper()
		is(now, n.Published, what+": Published")
		is(later, n.Scheduled, what+": Scheduled")
		is(later, n.Due, what+": Due")
	}
	n := ready(func(n *driver.Record) {
		n.State, n.Published, n.Scheduled, n.Due = driver.Scheduled, now, later, later
	})
	updated := ready(leased, func(n *driver.Record) { n.Published, n.Scheduled = now, later })
	l := letter(func(l *driver.Letter) { l.Published, l.DiedAt = now, later })
	entry := driver.Dedupe{Key: "k", Event: n.ID, Expires: later}
	apply(t, s, &driver.Batch{Now: now, New: []*driver.Record{n, updated}, Bury: []*driver.Letter{l}, Remember: []driver.Dedupe{entry}})
	apply(t, s, &driver.Batch{Now: now, Update: []*driver.Record{{Ref: updated.Ref, State: driver.Waiting, Due: later}}})
	for _, id := range []driver.ID{n.ID, updated.ID} {
		check(lookup(t, s, id)[0], "Lookup")
	}
	records, err := s.Records(t.Context(), driver.RecordQuery{Limit: 2})
	require.NoError(t, err)
	for _, n := range records.Records {
		check(n, "Records")
	}

	one, err := s.Letter(t.Context(), l.ID)
	require.NoError(t, err)
	groups, err := groupsIn(t.Context(), s, driver.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	for what, l := range map[string]*driver.Letter{
		"Letter": &one, "Letters": &page(t, s, driver.LetterQuery{}).Letters[0], "Groups": groups[0].Sample,
	} {
		is(now, l.Published, what+": Published")
		is(later, l.DiedAt, what+": DiedAt")
	}
	is(later, groups[0].First, "Group.First")
	is(later, groups[0].Last, "Group.Last")

	known, _, err := s.Remembered(t.Context(), "", "k")
	require.NoError(t, err)
	is(later, known.Expires, "Remembered: Expires")
	is(later, refuse(t, s, &driver.Batch{Now: now, Remember: []driver.Dedupe{entry}}, driver.ErrDuplicateID).Known.Expires, "RefusedError.Known: Expires")
	entry.Key = "twice"
	twice := &driver.Batch{Now: now, Remember: []driver.Dedupe{entry, entry}}
	is(later, refuse(t, s, twice, driver.ErrDuplicateID).Known.Expires, "RefusedError.Known of an entry of the same batch: Expires")

	is(later, claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: now}).NextDue, "Claimed.NextDue")
	claimed := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: later}).Records
	require.Len(t, claimed, 2)
	for _, n := range claimed {
		check(n, "Claim")
	}
}

// Position 0 stands for the own Ref, BesidePrevious for the Position of the record before.
func testPosition(t *testing.T, r *rig) {
	s := r.open(t)
	insert(t, s, ready(), ready()) // so that a Ref is not an index
	records := []*driver.Record{
		ready(), ready(at(driver.BesidePrevious)), ready(at(driver.BesidePrevious)),
		ready(at(7)), ready(at(driver.BesidePrevious)), ready(),
	}
	given := []int64{}
	for _, n := range records {
		given = append(given, n.Position)
	}
	insert(t, s, records...)
	want := []int64{int64(records[0].Ref), int64(records[0].Ref), int64(records[0].Ref), 7, 7, int64(records[5].Ref)}
	for i, n := range records {
		require.Equal(t, want[i], n.Position, "Position of the new record %d (Ref %d) after done; it was submitted with %d", i, n.Ref, given[i])
		require.Equal(t, want[i], lookup(t, s, n.ID)[0].Position, "Position of record %d (Ref %d) in the store; it was submitted with %d", i, n.Ref, given[i])
	}
}

// Refs grow over the batches and deletions of one lease. A store never assigns one again.
func testRefsGrow(t *testing.T, r *rig) {
	s := r.open(t)
	known := make(map[driver.Ref]bool)
	var last driver.Ref
	for i := range 12 {
		records := []*driver.Record{ready(leased), ready(leased)}
		insert(t, s, records...)
		for _, n := range records {
			require.Greater(t, n.Ref, last, "refs of one lease grow")
			require.False(t, known[n.Ref], "Ref %d was assigned twice", n.Ref)
			last, known[n.Ref] = n.Ref, true
		}
		apply(t, s, &driver.Batch{Now: noon, Delete: refsOf(records)})
		switch {
		case i%4 == 1:
			s, last = r.reopen(t, s), 0
		case i%4 == 2 && r.Crash != nil:
			s, last = r.crash(t, s), 0
		case i%4 == 3:
			require.NoError(t, s.Reopen(t.Context()))
			last = 0
		}
	}
}

// A store ignores Ref, Crashes and Own of a new record, and Own of an update.
func testIgnoredFields(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(leased)
	n.Ref, n.Crashes, n.Own = 99, 5, true // Crashes of a new record
	insert(t, s, n)
	require.NotEqual(t, driver.Ref(99), n.Ref)
	u := *n
	u.Leased, u.Crashes, u.Own = false, 0, false
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{&u}})
	claimed := claimReady(t, s)
	require.Len(t, claimed, 1)
	require.Zero(t, claimed[0].Crashes)
	require.True(t, claimed[0].Own)

	free, held := ready(), ready(leased)
	for _, n := range []*driver.Record{free, held} {
		n.Crashes = 5
	}
	insert(t, s, free, held)
	for _, n := range []*driver.Record{free, held} {
		require.Zero(t, lookup(t, s, n.ID)[0].Crashes, "Crashes of a new record is 0, whatever the batch says")
	}
	require.Zero(t, claimReady(t, s)[0].Crashes, "Crashes of a new record is 0, whatever the batch says")
}

// After done, the store and the bus share no memory, in neither direction.
func testOwnMemory(t *testing.T, r *rig) {
	s := r.open(t)
	n, l := fullRecord(), fullLetter()
	n.Leased = true
	id, letterID := n.ID, l.ID
	b := &driver.Batch{
		Now: noon, New: []*driver.Record{n}, Bury: []*driver.Letter{l}, Directives: []driver.Directive{*filled[driver.Directive]()},
		Audit: []driver.AuditEntry{*filled[driver.AuditEntry]()}, Catalog: &driver.Catalog{Instance: "one", Body: catalogWith("mail")},
		Leave: []*driver.Incoming{fullIncoming()}, Ask: []*driver.Request{request(), request()},
	}
	apply(t, s, b)
	asked := b.Ask[0].ID
	answer := &driver.Batch{Now: noon, Answer: []driver.Answer{{Request: asked, Body: []byte(`{"done":true}`)}}}
	apply(t, s, answer)
	read := func() []any {
		one, err := s.Letter(t.Context(), letterID)
		require.NoError(t, err)
		groups, err := groupsIn(t.Context(), s, driver.LetterQuery{})
		require.NoError(t, err)
		records, err := s.Records(t.Context(), driver.RecordQuery{Limit: 1})
		require.NoError(t, err)
		directives, err := s.Directives(t.Context())
		require.NoError(t, err)
		audit, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 1})
		require.NoError(t, err)
		catalogs, err := s.Catalogs(t.Context())
		require.NoError(t, err)
		requests, err := s.Requests(t.Context(), driver.RequestQuery{Limit: 9})
		require.NoError(t, err)
		body, _, err := s.Answer(t.Context(), asked)
		require.NoError(t, err)
		return []any{
			lookup(t, s, id), records, page(t, s, driver.LetterQuery{}), &one, groups, directives, audit, catalogs,
			incomingOf(t, s, driver.IncomingQuery{}), requests, body,
		}
	}
	content := func() string {
		got, err := json.Marshal(read())
		require.NoError(t, err)
		return string(got)
	}
	want := content()
	spoil(reflect.ValueOf(b))
	spoil(reflect.ValueOf(answer))
	require.Equal(t, want, content(), "after done, the batch changed")
	spoil(reflect.ValueOf(read()))
	require.Equal(t, want, content(), "a result changed")

	b = &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: n.Ref, Door: "door", Progress: []byte(`{"attempts":1}`)}}}
	apply(t, s, b)
	want = content()
	spoil(reflect.ValueOf(b))
	require.Equal(t, want, content(), "after done, the update changed")
	claimed := claimReady(t, s)
	want = content()
	spoil(reflect.ValueOf(claimed))
	require.Equal(t, want, content(), "a claimed record changed")
}

// spoil changes every byte and text that v shares with others.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			spoil(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			spoil(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() { // those of a time are not
				spoil(v.Field(i))
			}
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString("spoiled")
		}
	case reflect.Uint8:
		if v.CanSet() {
			v.SetUint(v.Uint() ^ 1)
		}
	}
}

// Lookup returns the records of an event by Ref, free and leased ones.
func testLookup(t *testing.T, r *rig) {
	s := r.open(t)
	id := newID()
	of := func(n *driver.Record) { n.ID = id }
	records := []*driver.Record{ready(of, at(9)), ready(of, leased, at(8)), ready(of, parked("door")), ready(of, scheduled(time.Hour))}
	insert(t, s, ready(), records[0], records[1])
	insert(t, s, records[2:]...)
	found := lookup(t, s, id)
	requireRecords(t, records, found)
	for i, n := range found {
		require.Equal(t, records[i].Leased, n.Leased, "Leased of record %d in Lookup: whether a lease has it", i)
		require.False(t, n.Own, "Own of record %d in Lookup: only Claim sets it", i)
	}
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{records[1].Ref}})
	require.Equal(t, []driver.Ref{records[0].Ref, records[2].Ref, records[3].Ref}, refsOf(lookup(t, s, id)))
	require.Empty(t, lookup(t, s, newID()))
}

// Records returns pages by Ref, free and leased ones, and those of another state in between left out.
func testRecords(t *testing.T, r *rig) {
	s := r.open(t)
	var records []*driver.Record
	for i := range 9 {
		n := ready(leased)
		switch i % 3 {
		case 1:
			n = ready(parked("door"))
			n.Targets, n.IdempotencyKey = []string{"door", "other"}, "once"
		case 2:
			n = ready(scheduled(time.Hour))
			n.Type, n.Key = "invoice.late", "k"
		}
		records = append(records, n)
	}
	insert(t, s, records...)
	pages := func(q driver.RecordQuery) (all []*driver.Record) {
		for q.Limit = 2; ; {
			page, err := s.Records(t.Context(), q)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Records), 2)
			all = append(all, page.Records...)
			if q.After = page.Next; q.After == 0 {
				return all
			}
		}
	}
	only := func(i int) []*driver.Record { return []*driver.Record{records[i], records[i+3], records[i+6]} }
	all := pages(driver.RecordQuery{})
	requireRecords(t, records, all)
	for i, n := range all {
		require.Equal(t, records[i].Leased, n.Leased, "Leased of record %d in Records: whether a lease has it", i)
		require.False(t, n.Own, "Own of record %d in Records: only Claim sets it", i)
	}
	for _, q := range []driver.RecordQuery{{Limit: 9}, {Limit: 3, States: []driver.State{driver.Scheduled}}, {Limit: 2, After: records[6].Ref}} {
		full, err := s.Records(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, full.Records, q.Limit)
		require.Zero(t, full.Next, "Next must be 0 on a last page that has Limit records: %d", q.Limit)
	}
	requireRecords(t, only(0), pages(driver.RecordQuery{States: []driver.State{driver.Ready}}))
	requireRecords(t, only(1), pages(driver.RecordQuery{Targets: []string{"nothing", "other"}}))
	require.Empty(t, pages(driver.RecordQuery{Targets: []string{"nothing"}}))
	requireRecords(t, only(2), pages(driver.RecordQuery{Type: typed("invoice.")}))
	requireRecords(t, only(1), pages(driver.RecordQuery{Type: typed("order."), Targets: []string{"door"}}))
	require.Empty(t, pages(driver.RecordQuery{Type: typed("invoice."), Targets: []string{"door"}}))
	requireRecords(t, only(1), pages(driver.RecordQuery{IdempotencyKey: "once"}))
	require.Empty(t, pages(driver.RecordQuery{IdempotencyKey: "twice"}))
	requireRecords(t, only(2), pages(driver.RecordQuery{Key: "k", States: []driver.State{driver.Scheduled, driver.Parked}}))
	require.Empty(t, pages(driver.RecordQuery{States: []driver.State{driver.Waiting}}))
	require.Empty(t, pages(driver.RecordQuery{After: records[8].Ref}))
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{records[0].Ref}})
	requireRecords(t, records[1:], pages(driver.RecordQuery{}))
}

func testStats(t *testing.T, r *rig) {
	s := r.open(t)
	require.Zero(t, stats(t, s))
	apply(t, s, &driver.Batch{
		Now: noon,
		New: []*driver.Record{
			ready(), ready(leased), ready(waiting(0)), ready(waiting(0), leased), ready(waiting(0)),
			ready(scheduled(0)), ready(parked("door"), leased), ready(parked("door")),
		},
		Bury: []*driver.Letter{letter(), letter()},
	})
	want := driver.Stats{Ready: 2, Waiting: 3, Scheduled: 1, Parked: 2, Free: 5, Letters: 2}
	require.Equal(t, want, stats(t, s))
	require.EqualValues(t, 8, stats(t, s).Unsettled())
	claimReady(t, s)
	want.Free = 4
	require.Equal(t, want, stats(t, s))
	s = r.reopen(t, s)
	want.Free = 8
	require.Equal(t, want, stats(t, s))
}

// Parked counts by Door, without the doors that it excludes.
func testParked(t *testing.T, r *rig) {
	s := r.open(t)
	require.Empty(t, parkedBy(t, s))
	atDoor := func(n *driver.Record) { n.Door = "b" }
	one, two := ready(parked("b"), leased), ready(parked("a"), key("k"))
	insert(t, s, one, two, ready(parked("b"), key("k")), ready(parked("B")), ready(parked("b 2")), ready(atDoor), ready(waiting(0), atDoor))
	require.Equal(t, map[string]int64{"a": 1, "b": 2, "B": 1, "b 2": 1}, parkedBy(t, s))
	require.Equal(t, map[string]int64{"B": 1, "b 2": 1}, parkedBy(t, s, "a", "b", "c"))
	claimReady(t, s)
	claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"B"}})
	require.Equal(t, map[string]int64{"a": 1, "b": 2, "B": 1, "b 2": 1}, parkedBy(t, s), "after a claim")
	one.State = driver.Ready
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{one}})
	s = r.reopen(t, s)
	require.Equal(t, map[string]int64{"a": 1, "b": 1, "B": 1, "b 2": 1}, parkedBy(t, s), "after a restart")
}

// parkedBy counts the parked records by Door.
func parkedBy(t *testing.T, s driver.Store, except ...string) map[string]int64 {
	t.Helper()
	names := make(map[string]bool)
	for _, name := range except {
		names[name] = true
	}
	doors, err := s.Parked(t.Context(), names)
	require.NoError(t, err, "Parked")
	return doors
}
