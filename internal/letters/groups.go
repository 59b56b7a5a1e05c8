package letters

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Group has the letters with one fingerprint.
type Group[L any] struct {
	Fingerprint string // empty for the group of all letters beyond driver.MaxGroups
	Count       int
	First, Last time.Time // the earliest and the latest DiedAt
	Newest      L

	id ID // of Newest
}

// Groups returns the groups of the matching letters, sorted by Count, then by the age of Newest: most and newest first.
// The group of the letters beyond driver.MaxGroups is the last one. Groups holds no lock while it counts. When ctx ends, it
// stops and returns the context's error.
func (q *Queue[L]) Groups(ctx context.Context, query Query[L]) ([]*Group[L], error) {
	groups := make(map[string]*Group[L])
	for i, l := range slices.Backward(q.Matching(query)) {
		if i%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		facts := q.config.Facts(l)
		key := facts.Fingerprint
		if groups[key] == nil && len(groups) >= driver.MaxGroups {
			key = ""
		}
		g := groups[key]
		if g == nil {
			g = &Group[L]{Fingerprint: key, First: facts.DiedAt, Last: facts.DiedAt, Newest: l, id: facts.ID}
			groups[key] = g
		}
		g.Count++
		// Letters are sorted by ID. The order of DiedAt may differ: the ID is made later, and the clock
		// may be set back in between.
		if facts.DiedAt.Before(g.First) {
			g.First = facts.DiedAt
		}
		if facts.DiedAt.After(g.Last) {
			g.Last = facts.DiedAt
		}
	}
	beyond := groups[""]
	delete(groups, "")
	all := make([]*Group[L], 0, len(groups)+1)
	for _, g := range groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(x, y *Group[L]) int {
		return cmp.Or(
			cmp.Compare(y.Count, x.Count),
			bytes.Compare(y.id[:], x.id[:]),
		)
	})
	if beyond != nil {
		all = append(all, beyond)
	}
	return all, nil
}
