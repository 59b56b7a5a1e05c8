package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// groupsOf groups letters as driver.Store.Groups documents.
func groupsOf(letters []*driver.Letter) []driver.Group {
	groups := []driver.Group{}
	for _, l := range letters {
		i := slices.IndexFunc(groups, func(g driver.Group) bool { return g.Fingerprint == l.Fingerprint })
		if i < 0 {
			g := driver.Group{Fingerprint: l.Fingerprint, First: l.DiedAt, Last: l.DiedAt}
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
		if compareIDs(l.ID, g.Newest) > 0 {
			g.Newest, g.Sample = l.ID, l
		}
	}
	slices.SortFunc(groups, func(x, y driver.Group) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), compareIDs(y.Newest, x.Newest))
	})
	return groups
}

// groupsIn returns the groups of a store.
func groupsIn(ctx context.Context, s driver.Store, q driver.LetterQuery) (groups []driver.Group, err error) {
	err = s.Groups(ctx, q, func(g *driver.Group) error {
		groups = append(groups, *g)
		return nil
	})
	return groups, err
}

// requireGroups requires that the store groups the letters of a query as groupsOf does.
func requireGroups(t *testing.T, want []driver.Group, s driver.Store, q driver.LetterQuery) {
	t.Helper()
	got, err := groupsIn(t.Context(), s, q)
	require.NoError(t, err, "Groups of %s", queryText(q))
	require.Len(t, got, len(want), "Groups of %s", queryText(q))
	for i, g := range got {
		require.NotNil(t, g.Sample, "group %d of %s", i, queryText(q))
		sample := *want[i].Sample
		sample.Payload, sample.Original = nil, nil
		requireSame(t, []*driver.Letter{&sample}, []*driver.Letter{g.Sample}, "Sample of group %d of %s", i, queryText(q))
		g.Sample = want[i].Sample
		require.Equal(t, want[i], g, "group %d of %s", i, queryText(q))
	}
}

func testGroups(t *testing.T, r *rig) {
	s := r.open(t)
	groups, err := groupsIn(t.Context(), s, driver.LetterQuery{})
	require.NoError(t, err)
	require.Empty(t, groups)
	letters := someLetters(3, 300)
	apply(t, s, &driver.Batch{Now: noon, Bury: letters})
	require.Greater(t, len(groupsOf(letters)), 10)
	for _, q := range someQueries(letters) {
		requireGroups(t, groupsOf(matching(t, letters, q)), s, q)
	}
	some := driver.LetterQuery{Limit: 1, Before: letters[len(letters)/2].ID, ExactTotal: true}
	requireGroups(t, groupsOf(letters), s, some)
	some.Reason = "expired"
	requireGroups(t, groupsOf(matching(t, letters, some)), s, some)
	calls := 0
	err = s.Groups(t.Context(), driver.LetterQuery{}, func(*driver.Group) error {
		if calls++; calls == 3 {
			return unreadable
		}
		return nil
	})
	requireUnreadable(t, err, "Groups: the error of each")
	require.Equal(t, 3, calls)
	requireGroups(t, groupsOf(letters), s, driver.LetterQuery{})
}

// At most 10,000 groups, those of the newest letters, and one more for the rest.
func testGroupsBeyond(t *testing.T, r *rig) {
	if testing.Short() {
		t.Skip("10,003 groups take a while")
	}
	s := r.open(t)
	var letters []*driver.Letter
	for i := range 10_003 {
		letters = append(letters, letter(func(l *driver.Letter) {
			l.Subscription = fmt.Sprint("subscription ", i)
			l.DiedAt = noon.Add(-time.Duration(i))
		}))
	}
	for part := range slices.Chunk(letters, 1000) {
		apply(t, s, &driver.Batch{Now: noon, Bury: part})
	}
	groups, err := groupsIn(t.Context(), s, driver.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, groups, driver.MaxGroups+1)
	require.Equal(t, driver.Group{Count: 3, First: noon.Add(-2), Last: noon, Newest: letters[2].ID}, groups[driver.MaxGroups])
	for i, g := range groups[:driver.MaxGroups] {
		require.Equal(t, letters[len(letters)-1-i].ID, g.Newest, "group %d", i)
	}
}
