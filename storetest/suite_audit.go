package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var auditTests = []conformanceTest{
	{name: "Pages", run: testAuditPages},
	{name: "MatchFails", run: testAuditMatchFails},
	{name: "Bounds", run: testAuditBounds},
	{name: "WithTheChange", run: testAuditWithTheChange},
	{name: "OfAnotherProcess", run: testAuditOfAnotherProcess},
}

// auditOf returns the matching entries, page by page.
func auditOf(t *testing.T, s driver.Store, q driver.AuditQuery) (all []driver.AuditEntry) {
	t.Helper()
	for q.Limit = 2; ; {
		page, err := s.Audit(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Entries), 2)
		all = append(all, page.Entries...)
		if q.Before = page.Next; q.Before == 0 {
			return all
		}
		require.Equal(t, page.Entries[len(page.Entries)-1].Number, page.Next)
	}
}

// audited returns an entry by an operator.
func audited(by string) driver.AuditEntry {
	return driver.AuditEntry{Body: fmt.Appendf(nil, `{"by":%q,"why":"ü'\u003c","a":null}`, by)}
}

// auditedBy matches the entries of an operator.
func auditedBy(by string) func(*driver.AuditEntry) (bool, error) {
	return func(e *driver.AuditEntry) (bool, error) {
		return bytes.Contains(e.Body, fmt.Appendf(nil, `"by":%q`, by)), nil
	}
}

// Entries return with every field, newest first, with growing numbers.
func testAuditPages(t *testing.T, r *rig) {
	s := r.open(t)
	require.Empty(t, auditOf(t, s, driver.AuditQuery{}))
	var entries []driver.AuditEntry
	for i := range 7 {
		e := *filled[driver.AuditEntry]()
		if i%2 == 1 {
			e = audited("ann")
		}
		entries = append(entries, e)
	}
	number := entries[0].Number
	require.NotEqualValues(t, 1, number)
	apply(t, s, &driver.Batch{Now: noon, Audit: entries[:3]})
	for _, e := range entries[3:] {
		apply(t, s, &driver.Batch{Now: noon, Audit: []driver.AuditEntry{e}})
	}
	require.Equal(t, number, entries[0].Number, "the batch does not change")
	var want []driver.AuditEntry
	for i, e := range slices.Backward(entries) {
		e.Number = int64(i + 1)
		want = append(want, e)
	}
	ann := []driver.AuditEntry{want[1], want[3], want[5]}
	for range 2 {
		require.Equal(t, want, auditOf(t, s, driver.AuditQuery{}))
		require.Equal(t, ann, auditOf(t, s, driver.AuditQuery{Match: auditedBy("ann")}))
		require.Equal(t, ann[1:], auditOf(t, s, driver.AuditQuery{Match: auditedBy("ann"), Before: want[1].Number}))
		require.Empty(t, auditOf(t, s, driver.AuditQuery{Match: auditedBy("bob")}))
		require.Equal(t, want[6:], auditOf(t, s, driver.AuditQuery{Before: 2}))
		for _, q := range []driver.AuditQuery{{Limit: 7}, {Limit: 3, Match: auditedBy("ann")}, {Limit: 2, Before: 3}} {
			full, err := s.Audit(t.Context(), q)
			require.NoError(t, err)
			require.Len(t, full.Entries, q.Limit)
			require.Zero(t, full.Next, "Next must be 0 on a last page that has Limit entries: %d", q.Limit)
		}
		require.Empty(t, auditOf(t, s, driver.AuditQuery{Before: 1}))
		require.Equal(t, []driver.AuditEntry{want[0], want[2], want[4], want[6]},
			auditOf(t, s, driver.AuditQuery{Match: func(e *driver.AuditEntry) (bool, error) { return e.Denied, nil }}))
		var compared []driver.AuditEntry
		auditOf(t, s, driver.AuditQuery{Match: func(e *driver.AuditEntry) (bool, error) {
			compared = append(compared, *deepCopy(e))
			return false, nil
		}})
		require.Equal(t, want, compared, "what Match compares")
		s = r.reopen(t, s)
	}
	apply(t, s, &driver.Batch{Now: noon, Audit: []driver.AuditEntry{audited("bob")}})
	require.EqualValues(t, 8, auditOf(t, s, driver.AuditQuery{})[0].Number)
}

// The error of Match ends the scan, and the store goes on.
func testAuditMatchFails(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &driver.Batch{Now: noon, Audit: []driver.AuditEntry{audited("ann"), audited("bob"), audited("eve")}})
	calls := 0
	page, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 3, Match: func(e *driver.AuditEntry) (bool, error) {
		calls++
		if e.Number == 2 {
			return true, unreadable
		}
		return true, nil
	}})
	requireUnreadable(t, err, "Audit: the error of Match")
	require.Empty(t, page.Entries)
	require.Equal(t, 2, calls)
	require.Len(t, auditOf(t, s, driver.AuditQuery{}), 3)
}

// The newest 10,000 entries stay, and every entry that was not denied while only denied ones are added.
func testAuditBounds(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("20,002 entries take a while")
	}
	const kept, part = 10_000, 1000
	s := r.open(t)
	add := func(denied bool, count int) {
		for count > 0 {
			entries := make([]driver.AuditEntry, min(count, part))
			for i := range entries {
				entries[i] = driver.AuditEntry{Denied: denied, Body: []byte(`{}`)}
			}
			apply(t, s, &driver.Batch{Now: noon, Audit: entries})
			count -= len(entries)
		}
	}
	numbers := func(q driver.AuditQuery) (all []int64) {
		q.Limit = kept
		page, err := s.Audit(t.Context(), q)
		require.NoError(t, err)
		for _, e := range page.Entries {
			all = append(all, e.Number)
		}
		return all
	}
	newest := func(last int64) (all []int64) {
		for n := last; n > last-kept; n-- {
			all = append(all, n)
		}
		return all
	}
	add(false, 1)
	add(true, 2*kept)
	require.Equal(t, newest(2*kept+1), numbers(driver.AuditQuery{}))
	require.Equal(t, []int64{1}, numbers(driver.AuditQuery{Match: func(e *driver.AuditEntry) (bool, error) { return !e.Denied, nil }}))
	add(false, 1)
	require.Equal(t, newest(2*kept+2), numbers(driver.AuditQuery{}))
}

// A refused batch adds no entry.
func testAuditWithTheChange(t *testing.T, r *rig) {
	s := r.open(t)
	l := letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{l}})
	purge := &driver.Batch{Now: noon, Take: []driver.ID{l.ID}, Audit: []driver.AuditEntry{audited("ann")}}
	apply(t, s, purge)
	refuse(t, s, purge, driver.ErrNotFound)
	require.Len(t, auditOf(t, s, driver.AuditQuery{}), 1)
}

func testAuditOfAnotherProcess(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &driver.Batch{Now: noon, Audit: []driver.AuditEntry{audited("ann")}})
	beside := r.beside(t)
	apply(t, beside, &driver.Batch{Now: noon, Audit: []driver.AuditEntry{audited("bob")}})
	want := []driver.AuditEntry{audited("bob"), audited("ann")}
	want[0].Number, want[1].Number = 2, 1
	for _, s := range []driver.Store{s, beside} {
		require.Equal(t, want, auditOf(t, s, driver.AuditQuery{}))
	}
}
