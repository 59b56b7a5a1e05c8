package storekit

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/surebus/eventbus/driver"
)

// Groups collects the groups of dead letters for Groups of a store. The zero value has none.
type Groups struct {
	groups []driver.Group
	index  map[string]int // of groups, by fingerprint
	others driver.Group   // the letters beyond driver.MaxGroups
}

// Add adds the letters of part, which has their Fingerprint, Count, First, Last and Newest, to the group of their fingerprint.
// The groups must be added newest first: the letters of more than driver.MaxGroups have no group of their own.
func (g *Groups) Add(part driver.Group) {
	i, ok := g.index[part.Fingerprint]
	switch {
	case ok:
		addTo(&g.groups[i], part)
	case len(g.groups) == driver.MaxGroups:
		addTo(&g.others, part)
	default:
		if g.index == nil {
			g.index = make(map[string]int)
		}
		g.index[part.Fingerprint] = len(g.groups)
		g.groups = append(g.groups, part)
	}
}

func addTo(g *driver.Group, part driver.Group) {
	if g.Count == 0 || part.First.Before(g.First) {
		g.First = part.First
	}
	if g.Count == 0 || part.Last.After(g.Last) {
		g.Last = part.Last
	}
	if bytes.Compare(part.Newest[:], g.Newest[:]) > 0 {
		g.Newest = part.Newest
	}
	g.Count += part.Count
}

// Largest returns the groups, largest first, of equal ones the newest. others has the letters that are in none of them.
func (g *Groups) Largest() (groups []driver.Group, others driver.Group) {
	slices.SortFunc(g.groups, func(x, y driver.Group) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), bytes.Compare(y.Newest[:], x.Newest[:]))
	})
	return g.groups, g.others
}
