package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var letterTests = []conformanceTest{
	{name: "EveryField", run: testLetterEveryField},
	{name: "Payloads", run: testLetterPayloads},
	{name: "NewestFirst", run: testLettersNewestFirst},
	{name: "Pages", run: testLetterPages},
	{name: "Filters", run: testLetterFilters},
	{name: "Total", run: testLetterTotal},
}

func testLetterEveryField(t *testing.T, r *rig) {
	s := r.open(t)
	full, plain := fullLetter(), letter()
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{full, plain}})
	for range 2 {
		for _, l := range []*eventbus.DeadLetter{full, plain} {
			got, err := s.Letter(t.Context(), l.ID)
			require.NoError(t, err)
			requireLetters(t, []*eventbus.DeadLetter{l}, []eventbus.DeadLetter{got})
		}
		requireLetters(t, newestFirst([]*eventbus.DeadLetter{full, plain}), page(t, s, eventbus.LetterQuery{}).Letters)
		s = r.reopen(t, s)
	}
	_, err := s.Letter(t.Context(), letter().ID)
	require.ErrorIs(t, err, eventbus.ErrNotFound)
}

// Payload and Original keep their type and bytes.
func testLetterPayloads(t *testing.T, r *rig) {
	s := r.open(t)
	payloads := []any{
		nil,
		json.RawMessage(`{ "a": 1.0 }`), json.RawMessage("null"), json.RawMessage(`"text"`),
		eventbus.EncodedPayload{0, 0xff, 0xfe},
		eventbus.EncodedPayload(`{"a":1}`),
		eventbus.EncodedPayload{},
	}
	var letters []*eventbus.DeadLetter
	for _, payload := range payloads {
		for _, original := range payloads {
			letters = append(letters, letter(func(l *eventbus.DeadLetter) {
				l.Event.Payload, l.Original, l.Edited = payload, original, true
			}))
		}
	}
	apply(t, s, &eventbus.Batch{Now: noon, Bury: letters})
	s = r.reopen(t, s)
	requireLetters(t, newestFirst(letters), page(t, s, eventbus.LetterQuery{}).Letters)
	for _, l := range letters {
		got, err := s.Letter(t.Context(), l.ID)
		require.NoError(t, err)
		requireLetters(t, []*eventbus.DeadLetter{l}, []eventbus.DeadLetter{got})
	}
}

// The newest letter is the one with the largest id, however late it was buried.
func testLettersNewestFirst(t *testing.T, r *rig) {
	s := r.open(t)
	letters := []*eventbus.DeadLetter{letter(), letter(), letter(), letter()}
	letters[1].DiedAt = noon.Add(time.Hour)
	for _, i := range []int{2, 0, 3, 1} {
		apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{letters[i]}})
	}
	requireLetters(t, newestFirst(letters), page(t, s, eventbus.LetterQuery{}).Letters)
}

// someLetters returns letters in which the fields of LetterQuery vary.
func someLetters(seed uint64, count int) []*eventbus.DeadLetter {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	var letters []*eventbus.DeadLetter
	for range count {
		letters = append(letters, letter(func(l *eventbus.DeadLetter) {
			l.Event.Type = pick("order.placed", "order.paid", "order.item.added", "user.created")
			l.Subscription = pick("billing", "shipping", "mail%_")
			l.Reason = eventbus.Reason(pick("exhausted", "permanent", "expired", "shutdown"))
			l.Event.Key = pick("", "", "key %_", "key", "Key", "ü'\"\\")
			if len(letters) > 0 && random.IntN(3) == 0 {
				l.Event.ID = letters[random.IntN(len(letters))].Event.ID
			}
			l.Event.Time = noon.Add(-time.Duration(random.IntN(20)) * time.Nanosecond)
			if metadata := pick("", `{"trace":"a"}`, `{"trace":"A"}`, `{"trace":"","b%_":"x"}`, `{"traces":"a","b":"a"}`); metadata != "" {
				if err := json.Unmarshal([]byte(metadata), &l.Event.Metadata); err != nil {
					panic(err)
				}
			}
			l.DiedAt = noon.Add(time.Duration(random.IntN(20)) * time.Nanosecond)
			for range random.IntN(3) {
				l.Failures = append(l.Failures, eventbus.Failure{
					Subscription: l.Subscription, Time: noon, Class: pick("", "*net.OpError"),
					Error: pick("dial 10.0.0.1:80", "dial 10.0.0.2:80", "100% _full\\", "no such order", "Dial"),
				})
			}
		}))
	}
	return letters
}

// matching returns the letters that a query selects, newest first, compared one by one.
func matching(t *testing.T, letters []*eventbus.DeadLetter, q eventbus.LetterQuery) []*eventbus.DeadLetter {
	t.Helper()
	matches, err := q.Matcher()
	require.NoError(t, err)
	found := []*eventbus.DeadLetter{}
	for _, l := range newestFirst(letters) {
		if matches(l) {
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

// someQueries returns queries of every field, alone and combined.
func someQueries(letters []*eventbus.DeadLetter) []eventbus.LetterQuery {
	one := letters[len(letters)/2]
	queries := []eventbus.LetterQuery{
		{},
		{All: true},
		{Type: "order.*"},
		{Type: "order.**"},
		{Type: "order.placed"},
		{Type: "nothing.matches"},
		{Subscription: "billing"},
		{Subscription: "mail%_"},
		{Subscription: "mail"},
		{Reason: eventbus.ReasonExpired},
		{Subscription: "shipping", Reason: eventbus.ReasonExpired},
		{Fingerprint: one.Fingerprint},
		{Fingerprint: one.Fingerprint, Subscription: one.Subscription},
		{Fingerprint: one.Fingerprint, Subscription: "other"},
		{Event: one.Event.ID},
		{Event: eventbus.NewEventID()},
		{Event: one.Event.ID, Key: one.Event.Key, Subscription: one.Subscription, Fingerprint: one.Fingerprint},
		{Event: one.Event.ID, Type: "order.**"},
		{Key: "key"},
		{Key: "key %_"},
		{Key: "ü'\"\\"},
		{Key: "none"},
		{Key: "Key", Reason: eventbus.ReasonExpired},
		{Key: "key", Type: "order.**", Subscription: "billing"},
		{MetadataName: "trace"},
		{MetadataName: "trace", MetadataValue: "a"},
		{MetadataName: "b%_", MetadataValue: "x", Since: noon.Add(3)},
		{MetadataName: "Trace"},
		{MetadataName: "trace", MetadataValue: "b"},
		{MetadataName: "trace", Key: "key", Error: "dial"},
		{PublishedSince: noon.Add(-7)},
		{PublishedUntil: noon.Add(-7)},
		{PublishedSince: noon.Add(-7), PublishedUntil: noon.Add(-7).In(time.FixedZone("zone", 3600)), Reason: eventbus.ReasonShutdown},
		{PublishedSince: noon.Add(-9), PublishedUntil: noon.Add(-3), Since: noon.Add(7), Until: noon.Add(15)},
		{PublishedSince: farPast, PublishedUntil: farFuture, Since: farPast, Until: farFuture},
		{PublishedSince: farFuture},
		{PublishedUntil: farPast, Type: "order.*"},
		{Since: farFuture},
		{Until: farPast, MetadataName: "trace"},
		{Error: "dial"},
		{Error: "0% _"},
		{Error: `\`},
		{Error: "%"},
		{Error: "Dial", Reason: eventbus.ReasonPermanent},
		{Since: noon.Add(7)},
		{Until: noon.Add(7)},
		{Since: noon.Add(7), Until: noon.Add(7)},
		{Since: noon.Add(5).In(time.FixedZone("zone", 3600)), Until: noon.Add(9).In(time.FixedZone("zone", -3600))},
		{Since: noon.Add(100)},
		{Type: "order.*", Subscription: "billing", Reason: eventbus.ReasonExhausted, Error: "dial", Since: noon.Add(2), Until: noon.Add(18)},
	}
	return queries
}

func testLetterPages(t *testing.T, r *rig) {
	s := r.open(t)
	letters := someLetters(1, 120)
	apply(t, s, &eventbus.Batch{Now: noon, Bury: letters})
	for _, q := range []eventbus.LetterQuery{{}, {Subscription: "billing"}, {Key: "key"}, {Type: "order.*"}, {MetadataName: "trace"}, {Error: "dial", Reason: eventbus.ReasonPermanent}} {
		all := matching(t, letters, q)
		require.NotEmpty(t, all)
		for _, limit := range []int{1, 7, len(all) - 1, len(all), len(all) + 1} {
			q.Limit, q.Before = max(limit, 1), eventbus.LetterID{}
			rest := all
			for {
				p := page(t, s, q)
				n := min(q.Limit, len(rest))
				requireLetters(t, rest[:n], p.Letters)
				require.Equal(t, len(all), p.Total, "Total counts all pages")
				require.False(t, p.TotalIsMore)
				rest = rest[n:]
				if len(rest) == 0 {
					require.True(t, p.Next.IsZero(), "Next of the last page")
					break
				}
				require.Equal(t, p.Letters[n-1].ID, p.Next)
				q.Before = p.Next
			}
		}
	}
	// Before needs no letter with this id.
	all := newestFirst(letters)
	apply(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{all[50].ID}})
	requireLetters(t, all[51:61], page(t, s, eventbus.LetterQuery{Before: all[50].ID, Limit: 10}).Letters)
	last := page(t, s, eventbus.LetterQuery{Before: all[119].ID, Limit: 10})
	require.Empty(t, last.Letters)
	require.Equal(t, 119, last.Total)
}

func testLetterFilters(t *testing.T, r *rig) {
	s := r.open(t)
	letters := someLetters(2, 300)
	for part := range slices.Chunk(letters, 37) {
		apply(t, s, &eventbus.Batch{Now: noon, Bury: part})
	}
	for _, q := range someQueries(letters) {
		t.Run(fmt.Sprintf("%+v", q), func(t *testing.T) {
			want := matching(t, letters, q)
			p := page(t, s, q)
			requireLetters(t, want, p.Letters)
			require.Equal(t, len(want), p.Total)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := s.Letters(ctx, eventbus.LetterQuery{Limit: 1000}); err == nil {
		requireLetters(t, newestFirst(letters), p.Letters)
	}
}

// Total is exact up to 10,000, and beyond with ExactTotal. Without it, TotalIsMore reports a larger
// number.
func testLetterTotal(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("10,001 letters take a while")
	}
	s := r.open(t)
	bury := func(count int) {
		letters := make([]*eventbus.DeadLetter, count)
		for i := range letters {
			letters[i] = letter()
		}
		apply(t, s, &eventbus.Batch{Now: noon, Bury: letters})
	}
	for range 10 {
		bury(1000)
	}
	for _, q := range []eventbus.LetterQuery{{Limit: 2}, {Limit: 2, Type: "order.*"}, {Limit: 2, ExactTotal: true, Subscription: "billing"}} {
		p := page(t, s, q)
		require.Len(t, p.Letters, 2)
		require.Equal(t, 10_000, p.Total, "%+v", q)
		require.False(t, p.TotalIsMore, "%+v", q)
	}
	bury(1)
	for _, q := range []eventbus.LetterQuery{{Limit: 2}, {Limit: 2, Type: "order.*"}} {
		p := page(t, s, q)
		require.False(t, p.Next.IsZero())
		if p.TotalIsMore {
			require.Equal(t, 10_000, p.Total, "%+v", q)
		} else {
			require.Equal(t, 10_001, p.Total, "%+v", q)
		}
		q.ExactTotal = true
		p = page(t, s, q)
		require.Equal(t, 10_001, p.Total, "%+v", q)
		require.False(t, p.TotalIsMore, "%+v", q)
	}
}

var groupTests = []conformanceTest{
	{name: "Match", run: testGroups},
	{name: "Beyond", run: testGroupsBeyond},
}

// groupsOf groups letters as DLQ.Groups documents.
func groupsOf(letters []*eventbus.DeadLetter) []eventbus.LetterGroup {
	groups := []eventbus.LetterGroup{}
	for _, l := range letters {
		i := slices.IndexFunc(groups, func(g eventbus.LetterGroup) bool { return g.Fingerprint == l.Fingerprint })
		if i < 0 {
			g := l.Group()
			g.First, g.Last, g.Newest = l.DiedAt, l.DiedAt, l.ID
			groups, i = append(groups, g), len(groups)
		}
		g := &groups[i]
		g.Count++
		if l.DiedAt.Before(g.First) {
			g.First = l.DiedAt
		}
		if l.DiedAt.After(g.Last) {
			g.Last = l.DiedAt
		}
		if compareLetterIDs(l.ID, g.Newest) > 0 {
			g.Newest = l.ID
		}
	}
	slices.SortFunc(groups, func(x, y eventbus.LetterGroup) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), compareLetterIDs(y.Newest, x.Newest))
	})
	return groups
}

func testGroups(t *testing.T, r *rig) {
	s := r.open(t)
	groups, err := s.Groups(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Empty(t, groups)
	letters := someLetters(3, 300)
	apply(t, s, &eventbus.Batch{Now: noon, Bury: letters})
	require.Greater(t, len(groupsOf(letters)), 10)
	for _, q := range someQueries(letters) {
		groups, err := s.Groups(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, groupsOf(matching(t, letters, q)), append([]eventbus.LetterGroup{}, groups...), "%+v", q)
	}
}

// At most 10,000 groups, those of the newest letters, and one more for the rest.
func testGroupsBeyond(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("10,003 groups take a while")
	}
	s := r.open(t)
	var letters []*eventbus.DeadLetter
	for i := range 10_003 {
		letters = append(letters, letter(func(l *eventbus.DeadLetter) {
			l.Subscription = fmt.Sprint("subscription ", i)
			l.DiedAt = noon.Add(-time.Duration(i))
		}))
	}
	for part := range slices.Chunk(letters, 1000) {
		apply(t, s, &eventbus.Batch{Now: noon, Bury: part})
	}
	groups, err := s.Groups(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, groups, 10_001)
	others := groups[10_000]
	require.Empty(t, others.Fingerprint)
	require.Empty(t, others.Subscription)
	require.Equal(t, 3, others.Count)
	require.Equal(t, letters[2].ID, others.Newest)
	require.Equal(t, noon.Add(-2), others.First)
	require.Equal(t, noon, others.Last)
	require.Equal(t, letters[10_002].ID, groups[0].Newest)
	require.Equal(t, letters[3].ID, groups[9_999].Newest)
}
