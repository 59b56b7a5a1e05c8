package admin

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// Cause is a group of dead letters, with how it grows.
type Cause struct {
	Group eventbus.LetterGroup `json:"group"` // the group of letters
	// Last5Minutes and LastHour are the numbers of letters that died in these times.
	Last5Minutes int `json:"last_5_minutes"`
	LastHour     int `json:"last_hour"`
	// Growing is set if a letter died in the last 5 minutes.
	Growing bool `json:"growing"`
}

// The times in which the letters of a cause are counted.
const (
	recentSpan = 5 * time.Minute
	longSpan   = time.Hour
)

// maxCauses bounds the causes of the overview.
const maxCauses = 20

// causes are what the dead letters died of.
type causes struct {
	worst []Cause // at most maxCauses, those that grow first
	total int
	// letters counts the letters of each subscription, apart from those beyond 10,000 groups.
	letters map[string]int
}

// causes returns what the dead letters died of, the texts redacted.
func (s *server) causes(ctx context.Context) (causes, error) {
	return s.sharedCauses.get(ctx, s.readCauses)
}

func (s *server) readCauses(ctx context.Context) (causes, error) {
	now := time.Now()
	groups, err := s.bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		return causes{}, err
	}
	c := causes{total: len(groups), letters: make(map[string]int)}
	all := make([]Cause, len(groups))
	at := make(map[string]*Cause, len(groups))
	for i, g := range groups {
		all[i].Group = g
		at[g.Fingerprint] = &all[i]
		if g.Fingerprint != "" { // otherwise of several subscriptions
			c.letters[g.Subscription] += g.Count
		}
	}
	if err := s.countSince(ctx, now.Add(-longSpan), at, func(c *Cause, n int) { c.LastHour = n }); err != nil {
		return causes{}, err
	}
	if err := s.countSince(ctx, now.Add(-recentSpan), at, func(c *Cause, n int) { c.Last5Minutes, c.Growing = n, n > 0 }); err != nil {
		return causes{}, err
	}
	slices.SortFunc(all, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(y.Last5Minutes, x.Last5Minutes), cmp.Compare(y.LastHour, x.LastHour), cmp.Compare(y.Group.Count, x.Group.Count), bytes.Compare(y.Group.Newest[:], x.Group.Newest[:]))
	})
	c.worst = slices.Clone(all[:min(len(all), maxCauses)])
	for i := range c.worst {
		c.worst[i].Group = s.group(c.worst[i].Group)
	}
	return c, nil
}

// countSince counts the letters of each cause since a time. The store is asked only if a cause has letters from before it and
// from after it.
func (s *server) countSince(ctx context.Context, since time.Time, all map[string]*Cause, set func(*Cause, int)) error {
	asks := false
	for _, c := range all {
		switch {
		case c.Group.Last.Before(since):
			set(c, 0)
		case !c.Group.First.Before(since):
			set(c, c.Group.Count)
		default:
			asks = true
		}
	}
	if !asks {
		return nil
	}
	groups, err := s.bus.DLQ().Groups(ctx, eventbus.LetterQuery{Since: since})
	if err != nil {
		return err
	}
	for _, g := range groups {
		if c := all[g.Fingerprint]; c != nil { // otherwise since the first query
			set(c, g.Count)
		}
	}
	return nil
}
