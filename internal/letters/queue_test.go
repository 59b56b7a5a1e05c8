package letters_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/letters"
	"github.com/surebus/eventbus/internal/uuid7"
)

var search = flag.Bool("search", false, "search as long as CI does")

const exempt = "shutdown"

var reasons = []string{"exhausted", "expired", exempt, "rejected"}

// letter has a text besides its facts.
type letter struct {
	letters.Facts
	text string
}

func newQueue(capacity int, newID func() letters.ID, evicted func(*letter)) *letters.Queue[*letter] {
	return letters.New(letters.Config[*letter]{
		Capacity: capacity,
		Exempt:   exempt,
		Reasons:  reasons,
		Number:   func(l *letter) { l.ID = newID() },
		Facts:    func(l *letter) letters.Facts { return l.Facts },
		Evicted:  evicted,
	})
}

// model is the queue as a slice.
type model []*letter

func compare(l, other *letter) int { return bytes.Compare(l.ID[:], other.ID[:]) }

func (m model) check(t *testing.T, q *letters.Queue[*letter]) {
	t.Helper()
	require.True(t, slices.IsSortedFunc(m, compare))
	n, _ := q.Count()
	require.Len(t, m, n)
	for _, l := range m {
		found, ok := q.Find(l.ID)
		require.True(t, ok)
		require.Equal(t, l.Facts, found.Facts)
	}
	for _, text := range []string{"", "t0", "t1", "t2"} {
		query := letters.Query[*letter]{}
		if text != "" {
			query.Matches = func(l *letter) bool { return l.text == text }
		}
		for _, query.Subscription = range []string{"", "s0", "s1", "s2"} {
			for _, query.Reason = range append([]string{""}, reasons...) {
				for _, query.Fingerprint = range []string{"", "f0", "f1"} {
					m.checkQuery(t, q, query)
				}
			}
		}
		query.Subscription, query.Reason, query.Fingerprint = "", "", ""
		for event := range byte(5) {
			query.Event = letters.ID{event}
			for _, query.Key = range []string{"", "k0", "k1", "k2"} {
				m.checkQuery(t, q, query)
				of := query
				of.Fingerprint, of.Subscription = "f1", "s1"
				m.checkQuery(t, q, of)
			}
		}
	}
}

func (m model) matching(query letters.Query[*letter]) (all model) {
	for _, l := range m {
		if (query.Subscription == "" || query.Subscription == l.Subscription) &&
			(query.Reason == "" || query.Reason == l.Reason) &&
			(query.Fingerprint == "" || query.Fingerprint == l.Fingerprint) &&
			(query.Event == letters.ID{} || query.Event == l.Event) &&
			(query.Key == "" || query.Key == l.Key) &&
			(query.Matches == nil || query.Matches(l)) {
			all = append(all, l)
		}
	}
	return all
}

func (m model) checkQuery(t *testing.T, q *letters.Queue[*letter], query letters.Query[*letter]) {
	t.Helper()
	want := idsOf(m.matching(query))
	require.Equal(t, want, idsOf(q.Matching(query)))
	newestFirst := slices.Clone(want)
	slices.Reverse(newestFirst)
	query.Limit = max(1, len(want)/2) // at most three pages
	got := []letters.ID{}
	for more := true; more; more = query.Before != (letters.ID{}) {
		page := q.Page(query)
		require.Equal(t, len(want), page.Total)
		require.False(t, page.TotalIsMore)
		require.LessOrEqual(t, len(page.Letters), query.Limit)
		got = append(got, idsOf(page.Letters)...)
		query.Before = page.Next
	}
	require.Equal(t, newestFirst, got)
}

// After any sequence of additions, imports and removals, each query selects from the letters
// that the queue has.
func TestQueriesAgreeWithAModel(t *testing.T) {
	seeds := uint64(4)
	if *search {
		seeds = 40
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		ids := uuid7.NewSource()
		now := time.Unix(1_000_000, 0)
		var evicted []letters.ID
		const capacity = 150
		q := newQueue(capacity, func() letters.ID { return ids.Next(now.UnixMilli()) },
			func(l *letter) { evicted = append(evicted, l.ID) })
		var m model
		draw := func() *letter {
			return &letter{text: fmt.Sprintf("t%d", r.IntN(3)), Facts: letters.Facts{Labels: letters.Labels{
				Subscription: fmt.Sprintf("s%d", r.IntN(3)),
				Reason:       reasons[r.IntN(len(reasons))],
				Fingerprint:  fmt.Sprintf("f%d", r.IntN(2)),
				Event:        letters.ID{byte(r.IntN(4))},
				Key:          []string{"", "k0", "k1"}[r.IntN(3)],
			}}}
		}
		evictions := 0
		settle := func() {
			slices.SortFunc(m, compare)
			counted := 0
			for _, l := range m {
				if l.Reason != exempt {
					counted++
				}
			}
			var fell []letters.ID
			m = slices.DeleteFunc(m, func(l *letter) bool {
				if l.Reason == exempt || counted <= capacity {
					return false
				}
				counted--
				fell = append(fell, l.ID)
				return true
			})
			require.Equal(t, fell, evicted, "the oldest, oldest first")
			evicted = nil
			evictions += len(fell)
			_, total := q.Count()
			require.Equal(t, int64(evictions), total)
		}
		for range 400 {
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				l := draw()
				q.Add(l)
				m = append(m, l)
			case 4: // older, newer and known ones
				var in []*letter
				want := 0
				for range r.IntN(40) {
					l := draw()
					l.ID = uuid7.NewSource().Next(now.Add(time.Duration(r.IntN(200)-100) * time.Second).UnixMilli())
					in = append(in, l)
					m = append(m, l)
					want++
				}
				if len(in) > 1 {
					in = append(in, in[0])
				}
				if len(m) > len(in) {
					known := &letter{}
					known.ID, known.Subscription = m[0].ID, "another"
					in = append(in, known)
				}
				inserted, fell := q.Insert(in)
				require.Equal(t, want, inserted)
				require.Len(t, evicted, fell)
			case 5: // some of them, and one that is not there
				remove := []letters.ID{{1}}
				for range min(len(m), r.IntN(60)) {
					remove = append(remove, m[r.IntN(len(m))].ID)
				}
				n := len(m)
				m = slices.DeleteFunc(m, func(l *letter) bool { return slices.Contains(remove, l.ID) })
				require.Equal(t, n-len(m), q.Remove(remove...))
			case 6:
				if len(m) > 0 {
					i := r.IntN(len(m))
					require.Equal(t, 1, q.Remove(m[i].ID))
					_, ok := q.Find(m[i].ID)
					require.False(t, ok)
					m = slices.Delete(m, i, i+1)
				}
			case 7:
				now = now.Add(time.Second)
			}
			settle()
			if r.IntN(10) == 0 {
				m.check(t, q)
			}
		}
		q.Remove(idsOf(q.Matching(letters.Query[*letter]{}))...)
		m = nil
		m.check(t, q)
	}
}

func idsOf(all []*letter) []letters.ID {
	ids := make([]letters.ID, len(all))
	for i, l := range all {
		ids[i] = l.ID
	}
	return ids
}

// idFrom returns a source of increasing ids.
func idFrom(n uint32) func() letters.ID {
	return func() letters.ID {
		n++
		return letters.ID{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
}

// A query that has to compare stops counting beyond driver.MaxTotal, unless the total is to be exact.
func TestTotalIsBounded(t *testing.T) {
	q := newQueue(driver.MaxTotal+10, idFrom(0), nil)
	for range driver.MaxTotal + 2 {
		q.Add(&letter{})
	}
	page := q.Page(letters.Query[*letter]{Limit: 1})
	require.Equal(t, driver.MaxTotal+2, page.Total, "nothing is compared")
	require.False(t, page.TotalIsMore)

	query := letters.Query[*letter]{Limit: 1, Matches: func(*letter) bool { return true }}
	page = q.Page(query)
	require.Equal(t, driver.MaxTotal, page.Total)
	require.True(t, page.TotalIsMore)
	query.ExactTotal = true
	page = q.Page(query)
	require.Equal(t, driver.MaxTotal+2, page.Total)
	require.False(t, page.TotalIsMore)
}

func TestGroups(t *testing.T) {
	at := func(minute int) time.Time { return time.Unix(0, 0).UTC().Add(time.Duration(minute) * time.Minute) }
	q := newQueue(100, idFrom(0), nil)
	add := func(fingerprint, key string, diedAt time.Time) *letter {
		l := &letter{Facts: letters.Facts{DiedAt: diedAt}}
		l.Fingerprint, l.Key = fingerprint, key
		q.Add(l)
		return l
	}
	add("f0", "k", at(2))
	add("f1", "k", at(3))
	a := add("f0", "k", at(1)) // the clock was set back
	b := add("f1", "", at(4))
	c := add("f2", "k", at(5))
	type group struct {
		fingerprint string
		count       int
		first, last time.Time
		newest      *letter
	}
	groupsOf := func(query letters.Query[*letter]) (all []group) {
		groups, err := q.Groups(t.Context(), query)
		require.NoError(t, err)
		for _, g := range groups {
			all = append(all, group{g.Fingerprint, g.Count, g.First, g.Last, g.Newest})
		}
		return all
	}
	require.Equal(t, []group{
		{"f1", 2, at(3), at(4), b},
		{"f0", 2, at(1), at(2), a},
		{"f2", 1, at(5), at(5), c},
	}, groupsOf(letters.Query[*letter]{}))
	require.Equal(t, []group{{"f1", 1, at(4), at(4), b}}, groupsOf(letters.Query[*letter]{
		Matches: func(l *letter) bool { return l.Key == "" },
	}))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := q.Groups(ended, letters.Query[*letter]{})
	require.ErrorIs(t, err, context.Canceled)
}

// The letters beyond driver.MaxGroups groups are one more group: the oldest ones, because the newest count first.
func TestGroupsAreBounded(t *testing.T) {
	q := newQueue(2*driver.MaxGroups, idFrom(0), nil)
	for i := range driver.MaxGroups + 2 {
		l := &letter{}
		l.Fingerprint = fmt.Sprint(i)
		q.Add(l)
	}
	groups, err := q.Groups(t.Context(), letters.Query[*letter]{})
	require.NoError(t, err)
	require.Len(t, groups, driver.MaxGroups+1)
	require.Equal(t, fmt.Sprint(driver.MaxGroups+1), groups[0].Fingerprint, "the newest of equal counts")
	beyond := groups[driver.MaxGroups]
	require.Empty(t, beyond.Fingerprint)
	require.Equal(t, 2, beyond.Count)
	require.Equal(t, "1", beyond.Newest.Fingerprint)
}
