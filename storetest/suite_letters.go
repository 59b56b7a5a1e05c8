package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var letterTests = []conformanceTest{
	{name: "EveryField", run: testLetterEveryField},
	{name: "Payloads", run: testLetterPayloads},
	{name: "NewestFirst", run: testLettersNewestFirst},
	{name: "Pages", run: testLetterPages},
	{name: "LongPages", run: testLetterLongPages},
	{name: "Filters", run: testLetterFilters},
	{name: "PartsFails", run: testLetterPartsFails},
	{name: "Total", run: testLetterTotal},
}

func testLetterEveryField(t *testing.T, r *rig) {
	s := r.open(t)
	full, plain := fullLetter(), letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{full, plain}})
	for range 2 {
		for _, l := range []*driver.Letter{full, plain} {
			got, err := s.Letter(t.Context(), l.ID)
			require.NoError(t, err)
			requireLetters(t, []*driver.Letter{l}, []driver.Letter{got})
		}
		requireLetters(t, newestFirst([]*driver.Letter{full, plain}), page(t, s, driver.LetterQuery{}).Letters)
		s = r.reopen(t, s)
	}
	_, err := s.Letter(t.Context(), letter().ID)
	require.ErrorIs(t, err, driver.ErrNotFound)
}

// Every part returns in its place, with its bytes. Payload and Original are any bytes, of which nil
// and empty differ.
func testLetterPayloads(t *testing.T, r *rig) {
	s := r.open(t)
	var letters []*driver.Letter
	for _, payload := range somePayloads() {
		for _, original := range somePayloads() {
			letters = append(letters, letter(func(l *driver.Letter) { l.Payload, l.Original = payload, original }))
		}
	}
	for _, part := range [][]byte{nil, []byte(`{}`), []byte(`[]`), []byte(`[{"error":"x"}]`)} {
		letters = append(letters,
			letter(func(l *driver.Letter) { l.Details = part }),
			letter(func(l *driver.Letter) { l.Failures = part }),
			letter(func(l *driver.Letter) { l.Details, l.Failures = part, part }))
	}
	apply(t, s, &driver.Batch{Now: noon, Bury: letters})
	s = r.reopen(t, s)
	requireLetters(t, newestFirst(letters), page(t, s, driver.LetterQuery{}).Letters)
	for _, l := range letters {
		got, err := s.Letter(t.Context(), l.ID)
		require.NoError(t, err)
		requireLetters(t, []*driver.Letter{l}, []driver.Letter{got})
	}
}

// The newest letter is the one with the largest id, however late it was buried.
func testLettersNewestFirst(t *testing.T, r *rig) {
	s := r.open(t)
	letters := []*driver.Letter{letter(), letter(), letter(), letter()}
	letters[1].DiedAt = noon.Add(time.Hour)
	for _, i := range []int{2, 0, 3, 1} {
		apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{letters[i]}})
	}
	requireLetters(t, newestFirst(letters), page(t, s, driver.LetterQuery{}).Letters)
}

// someLetters returns letters in which the fields of LetterQuery vary, and what its functions
// compare.
func someLetters(seed uint64, count int) []*driver.Letter {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	var letters []*driver.Letter
	for range count {
		letters = append(letters, letter(func(l *driver.Letter) {
			l.Type = pick("order.placed", "order.paid", "order.item.added", "user.created")
			l.Subscription = pick("billing", "shipping", "mail%_")
			l.Reason = pick("exhausted", "permanent", "expired", "shutdown")
			l.Key = pick("", "", "key %_", "key", "Key", "ü'\"\\")
			l.Fingerprint = strings.Join([]string{l.Subscription, l.Reason, pick("%_", "f", "F")}, " ")
			if len(letters) > 0 && random.IntN(3) == 0 {
				l.Event = letters[random.IntN(len(letters))].Event
			}
			l.Published = noon.Add(-time.Duration(random.IntN(20)) * time.Nanosecond)
			l.DiedAt = noon.Add(time.Duration(random.IntN(20)) * time.Nanosecond)
			l.Details = []byte(pick(`{}`, `{"trace":"a"}`, `{"trace":"A"}`, `{"trace":"","b%_":"x"}`, `{"traces":"dial","b":"a"}`))
			failures := []string{}
			for range random.IntN(3) {
				failures = append(failures, pick("dial 10.0.0.1:80", "dial 10.0.0.2:80", "100% _full\\", "no such order", "Dial", "trace"))
			}
			l.Failures, _ = json.Marshal(failures)
		}))
	}
	return letters
}

// matching returns the letters that a query selects, newest first. Stores may use LetterQuery.Matches,
// and share no code with it.
func matching(t *testing.T, letters []*driver.Letter, q driver.LetterQuery) []*driver.Letter {
	t.Helper()
	is := func(want, got string) bool { return want == "" || want == got }
	within := func(since, until, got time.Time) bool {
		return (since.IsZero() || got.Compare(since) >= 0) && (until.IsZero() || got.Compare(until) <= 0)
	}
	found := []*driver.Letter{}
	for _, l := range newestFirst(letters) {
		matches := (q.Event == driver.ID{} || q.Event == l.Event) && is(q.Key, l.Key) && is(q.Reason, l.Reason) && is(q.Fingerprint, l.Fingerprint) &&
			(len(q.Subscriptions) == 0 || slices.Contains(q.Subscriptions, l.Subscription)) &&
			within(q.Since, q.Until, l.DiedAt) && within(q.PublishedSince, q.PublishedUntil, l.Published)
		if matches && q.Type != nil {
			matches = q.Type(l.Type)
		}
		if matches && q.Parts != nil {
			var err error
			matches, err = q.Parts(l.Details, l.Failures)
			require.NoError(t, err)
		}
		if matches {
			found = append(found, l)
		}
	}
	return found
}

// Times outside of the years that a store keeps. A query may have them.
var (
	farPast   = time.Date(-3, 1, 1, 0, 0, 0, 0, time.UTC)
	farFuture = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// typed matches the types with a prefix.
func typed(prefix string) func(string) bool {
	return func(eventType string) bool { return strings.HasPrefix(eventType, prefix) }
}

// detailed matches the letters with a text in Details.
func detailed(text string) func(details, failures []byte) (bool, error) {
	return func(details, _ []byte) (bool, error) { return bytes.Contains(details, []byte(text)), nil }
}

// failed matches the letters with a text in Failures.
func failed(text string) func(details, failures []byte) (bool, error) {
	return func(_, failures []byte) (bool, error) { return bytes.Contains(failures, []byte(text)), nil }
}

// someQueries returns queries of every field, alone and combined.
func someQueries(letters []*driver.Letter) []driver.LetterQuery {
	one := letters[len(letters)/2]
	east, west := time.FixedZone("east", 3600), time.FixedZone("west", -3600)
	return []driver.LetterQuery{
		{},
		{Type: typed("order.")},
		{Type: typed("")},
		{Type: typed("order.placed")},
		{Type: typed("nothing.matches")},
		{Subscriptions: []string{}},
		{Subscriptions: []string{"billing"}},
		{Subscriptions: []string{"mail%_"}},
		{Subscriptions: []string{"mail"}},
		{Subscriptions: []string{"mail%_", "other", "billing"}},
		{Subscriptions: []string{"billing", "billing"}},
		{Subscriptions: []string{"billing", "shipping", "mail%_"}, Key: "key"},
		{Reason: "expired"},
		{Reason: "Expired"},
		{Subscriptions: []string{"shipping"}, Reason: "expired"},
		{Fingerprint: one.Fingerprint},
		{Fingerprint: strings.ToUpper(one.Fingerprint)},
		{Fingerprint: one.Fingerprint, Subscriptions: []string{one.Subscription}},
		{Fingerprint: one.Fingerprint, Subscriptions: []string{"other"}},
		{Event: one.Event},
		{Event: newID()},
		{Event: one.Event, Key: one.Key, Subscriptions: []string{"other", one.Subscription}, Fingerprint: one.Fingerprint},
		{Event: one.Event, Type: typed("order.")},
		{Key: "key"},
		{Key: "key %_"},
		{Key: "ü'\"\\"},
		{Key: "none"},
		{Key: "Key", Reason: "expired"},
		{Key: "key", Type: typed("order."), Subscriptions: []string{"billing"}},
		{Parts: detailed(`"trace":`)},
		{Parts: detailed(`"trace":"a"`)},
		{Parts: detailed(`"b%_":"x"`), Since: noon.Add(3)},
		{Parts: detailed("dial")},
		{Parts: detailed("nothing matches")},
		{Parts: detailed("trace"), Key: "key"},
		{Parts: detailed("trace"), Type: typed("order."), Subscriptions: []string{"billing", "shipping"}},
		{Parts: failed("dial")},
		{Parts: failed("0% _")},
		{Parts: failed("trace")},
		{Parts: failed("Dial"), Reason: "permanent"},
		{Parts: func(details, failures []byte) (bool, error) { return len(details) == len(failures), nil }},
		{PublishedSince: noon.Add(-7)},
		{PublishedUntil: noon.Add(-7)},
		{PublishedSince: noon.Add(-7), PublishedUntil: noon.Add(-7).In(east), Reason: "shutdown"},
		{PublishedSince: noon.Add(-9), PublishedUntil: noon.Add(-3), Since: noon.Add(7), Until: noon.Add(15)},
		{PublishedSince: farPast, PublishedUntil: farFuture, Since: farPast, Until: farFuture},
		{PublishedSince: farFuture},
		{PublishedUntil: farPast, Type: typed("order.")},
		{Since: farFuture},
		{Until: farPast, Parts: detailed("trace")},
		{Since: noon.Add(7)},
		{Until: noon.Add(7)},
		{Since: noon.Add(7), Until: noon.Add(7)},
		{Since: noon.Add(5).In(east), Until: noon.Add(9).In(west)},
		{Since: noon.Add(100)},
		{Type: typed("order."), Subscriptions: []string{"billing"}, Reason: "exhausted", Parts: failed("dial"), Since: noon.Add(2), Until: noon.Add(18)},
	}
}

// queryName names the fields that a query has set.
func queryName(q driver.LetterQuery) string {
	var set []string
	of := reflect.ValueOf(q)
	for i := range of.NumField() {
		if !of.Field(i).IsZero() {
			set = append(set, of.Type().Field(i).Name)
		}
	}
	return strings.Join(set, "+")
}

// queryText describes a query. Its functions have no text.
func queryText(q driver.LetterQuery) string {
	functions := fmt.Sprintf("Type:%t Parts:%t", q.Type != nil, q.Parts != nil)
	q.Type, q.Parts = nil, nil
	return fmt.Sprintf("%+v %s", q, functions)
}

func testLetterPages(t *testing.T, r *rig) {
	s := r.open(t)
	letters := someLetters(1, 120)
	apply(t, s, &driver.Batch{Now: noon, Bury: letters})
	for _, q := range []driver.LetterQuery{
		{},
		{Subscriptions: []string{"billing"}},
		{Subscriptions: []string{"billing", "mail%_"}},
		{Key: "key"},
		{Type: typed("order.")},
		{Parts: detailed("trace")},
		{Parts: failed("dial"), Reason: "permanent"},
	} {
		all := matching(t, letters, q)
		require.NotEmpty(t, all)
		for _, limit := range []int{1, 7, len(all) - 1, len(all), len(all) + 1} {
			q.Limit, q.Before = max(limit, 1), driver.ID{}
			rest := all
			for {
				p := page(t, s, q)
				n := min(q.Limit, len(rest))
				requireLetters(t, rest[:n], p.Letters)
				require.Equal(t, len(all), p.Total, "Total counts all pages")
				require.False(t, p.TotalIsMore)
				uncounted := q
				uncounted.NoTotal, uncounted.ExactTotal = true, n%2 == 0
				p.Total = 0
				require.Equal(t, p, page(t, s, uncounted), "NoTotal changes Total only, of %s", queryText(q))
				rest = rest[n:]
				if len(rest) == 0 {
					require.True(t, p.Next.IsZero(), "Next must be zero on the last page of %s, and is %s", queryText(q), p.Next)
					break
				}
				require.Equal(t, p.Letters[n-1].ID.String(), p.Next.String(), "Next must be the last id of the page of %s", queryText(q))
				q.Before = p.Next
			}
		}
	}
	// Before needs no letter with this id.
	all := newestFirst(letters)
	apply(t, s, &driver.Batch{Now: noon, Take: []driver.ID{all[50].ID}})
	requireLetters(t, all[51:61], page(t, s, driver.LetterQuery{Before: all[50].ID, Limit: 10}).Letters)
	last := page(t, s, driver.LetterQuery{Before: all[119].ID, Limit: 10})
	require.Empty(t, last.Letters)
	require.Equal(t, 119, last.Total)
}

// A page may have more letters than a store reads at once.
func testLetterLongPages(t *testing.T, r *rig) {
	s := r.open(t)
	letters := someLetters(3, 2400)
	for part := range slices.Chunk(letters, 800) {
		apply(t, s, &driver.Batch{Now: noon, Bury: part})
	}
	for _, q := range []driver.LetterQuery{{}, {Reason: "permanent"}, {Type: typed("order.")}, {Parts: failed("dial")}} {
		want := matching(t, letters, q)
		require.Greater(t, len(want), 500, queryText(q))
		for _, q.Limit = range []int{501, 1000, len(letters)} {
			requireLetters(t, want[:min(q.Limit, len(want))], page(t, s, q).Letters)
		}
	}
}

func testLetterFilters(t *testing.T, r *rig) {
	s := r.open(t)
	letters := someLetters(2, 300)
	for part := range slices.Chunk(letters, 37) {
		apply(t, s, &driver.Batch{Now: noon, Bury: part})
	}
	for i, q := range someQueries(letters) {
		t.Run(fmt.Sprint(i, " ", queryName(q)), func(t *testing.T) {
			want := matching(t, letters, q)
			p := page(t, s, q)
			requireSame(t, want, pointers(p.Letters), "%s", queryText(q))
			require.Equal(t, len(want), p.Total, "Total of %s", queryText(q))
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := s.Letters(ctx, driver.LetterQuery{Limit: 1000}); err == nil {
		requireLetters(t, newestFirst(letters), p.Letters)
	}
}

// unreadable is an error of a function of a query. It is not about the call of the store, although it matches
// context.Canceled.
var unreadable error = &unreadableError{}

type unreadableError struct{}

func (*unreadableError) Error() string { return "unreadable" }
func (*unreadableError) Unwrap() error { return context.Canceled }

// requireUnreadable requires that a store has returned unreadable, and has not failed.
func requireUnreadable(t *testing.T, err error, what string) {
	t.Helper()
	require.ErrorIs(t, err, unreadable, "%s must come back", what)
	var same *unreadableError
	require.ErrorAs(t, err, &same, "%s must come back", what)
	require.NotErrorIs(t, err, driver.ErrFailed, "%s does not make the store fail", what)
}

// The error of Parts ends the scan, and the store goes on.
func testLetterPartsFails(t *testing.T, r *rig) {
	s := r.open(t)
	letters := newestFirst(someLetters(4, 10))
	apply(t, s, &driver.Batch{Now: noon, Bury: letters})
	calls := 0
	q := driver.LetterQuery{Limit: 10, Parts: func(_, _ []byte) (bool, error) {
		if calls++; calls == 3 {
			return true, unreadable
		}
		return true, nil
	}}
	p, err := s.Letters(t.Context(), q)
	requireUnreadable(t, err, "Letters: the error of Parts")
	require.Empty(t, p.Letters)
	require.Equal(t, 3, calls)
	calls = 0
	groups, err := groupsIn(t.Context(), s, q)
	requireUnreadable(t, err, "Groups: the error of Parts")
	require.Empty(t, groups)
	require.Equal(t, 3, calls)
	requireLetters(t, letters, page(t, s, driver.LetterQuery{}).Letters)
}

// Total is exact up to 10,000, and beyond with ExactTotal. Without it, TotalIsMore reports a larger
// number.
func testLetterTotal(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("10,001 letters take a while")
	}
	s := r.open(t)
	bury := func(count int) {
		letters := make([]*driver.Letter, count)
		for i := range letters {
			letters[i] = letter()
		}
		apply(t, s, &driver.Batch{Now: noon, Bury: letters})
	}
	for range 10 {
		bury(1000)
	}
	for _, q := range []driver.LetterQuery{{Limit: 2}, {Limit: 2, Type: typed("order.")}, {Limit: 2, ExactTotal: true, Subscriptions: []string{"billing"}}} {
		p := page(t, s, q)
		require.Len(t, p.Letters, 2)
		require.Equal(t, driver.MaxTotal, p.Total, queryText(q))
		require.False(t, p.TotalIsMore, queryText(q))
	}
	bury(1)
	for _, q := range []driver.LetterQuery{{Limit: 2}, {Limit: 2, Type: typed("order.")}} {
		p := page(t, s, q)
		require.False(t, p.Next.IsZero())
		if p.TotalIsMore {
			require.Equal(t, driver.MaxTotal, p.Total, queryText(q))
		} else {
			require.Equal(t, driver.MaxTotal+1, p.Total, queryText(q))
		}
		q.ExactTotal = true
		p = page(t, s, q)
		require.Equal(t, driver.MaxTotal+1, p.Total, queryText(q))
		require.False(t, p.TotalIsMore, queryText(q))
	}
}

var groupTests = []conformanceTest{
	{name: "Match", run: testGroups},
	{name: "Beyond", run: testGroupsBeyond},
}
