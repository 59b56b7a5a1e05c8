package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// Claim leases records. See ClaimKind for the rules.
func (s *modelStore) Claim(ctx context.Context, q eventbus.ClaimQuery) (eventbus.Claimed, error) {
	m := s.model
	m.mu.Lock()
	if err := s.claimableLocked(ctx); err != nil {
		m.mu.Unlock()
		return eventbus.Claimed{}, err
	}
	m.claims++
	n := m.claims
	m.mu.Unlock()
	var fault Fault
	if m.claimFaults != nil {
		fault = m.claimFaults(n, q)
		s.wait(fault.Delay)
	}
	if fault.Kind == FailBefore || fault.Kind == CrashBefore {
		return eventbus.Claimed{}, s.halt(fault.Kind)
	}
	m.mu.Lock()
	if err := s.claimableLocked(ctx); err != nil {
		m.mu.Unlock()
		return eventbus.Claimed{}, err
	}
	claimed := s.claimLocked(q)
	m.mu.Unlock()
	if fault.Kind == FailAfter || fault.Kind == CrashAfter {
		return eventbus.Claimed{}, s.halt(fault.Kind)
	}
	return claimed, nil
}

func (s *modelStore) claimableLocked(ctx context.Context) error {
	if err := s.endedLocked(ctx); err != nil {
		return err
	}
	if s.lease == 0 {
		return eventbus.ErrNoLease
	}
	return nil
}

func (s *modelStore) claimLocked(q eventbus.ClaimQuery) eventbus.Claimed {
	var matching []*row
	var next time.Time
	for _, r := range s.model.records {
		switch {
		case r.lease != 0:
		case r.matches(q, s.lease):
			matching = append(matching, r)
		case q.Kind == eventbus.ClaimDue && r.isTimed() && (next.IsZero() || r.Due.Before(next)):
			next = r.Due
		}
	}
	slices.SortFunc(matching, func(x, y *row) int {
		var first int
		switch q.Kind {
		case eventbus.ClaimReady, eventbus.ClaimParked:
			first = cmp.Compare(x.Position, y.Position)
		case eventbus.ClaimDue:
			first = x.Due.Compare(y.Due)
		case eventbus.ClaimEvent:
		}
		return cmp.Or(first, cmp.Compare(x.Ref, y.Ref))
	})
	claimed := eventbus.Claimed{More: len(matching) > q.Limit, NextDue: next}
	for _, r := range matching[:min(q.Limit, len(matching))] {
		own := r.freedIn == s.lease
		r.lease, r.Leased, r.Suspect = s.lease, true, false
		c := deepCopy(r.Record)
		c.Own = own
		claimed.Records = append(claimed.Records, &c)
	}
	return claimed
}

// isTimed reports whether ClaimDue claims the record once it is due.
func (r *row) isTimed() bool {
	return r.State == eventbus.RecordScheduled || r.State == eventbus.RecordWaiting && r.Key == ""
}

// matches reports whether a free record matches a query of the store with a lease.
func (r *row) matches(q eventbus.ClaimQuery, lease int64) bool {
	switch q.Kind {
	case eventbus.ClaimReady:
		keyed := r.Key != "" && (r.State == eventbus.RecordWaiting || r.State == eventbus.RecordParked)
		return r.State == eventbus.RecordReady || keyed && r.freedIn != lease
	case eventbus.ClaimDue:
		return r.isTimed() && !r.Due.After(q.Now)
	case eventbus.ClaimParked:
		return r.State == eventbus.RecordParked && slices.Contains(q.Doors, r.Door) && (r.Key == "" || r.freedIn == lease)
	case eventbus.ClaimEvent:
		return r.State == eventbus.RecordScheduled && r.ID == q.Event
	}
	return false
}

func (s *modelStore) Letter(ctx context.Context, id eventbus.LetterID) (eventbus.DeadLetter, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return eventbus.DeadLetter{}, err
	}
	l := s.model.letters[id]
	if l == nil {
		return eventbus.DeadLetter{}, fmt.Errorf("%w: %s", eventbus.ErrNotFound, id)
	}
	return deepCopy(*l), nil
}

// maxTotal bounds LetterPage.Total without ExactTotal, maxGroups the result of Groups.
const (
	maxTotal  = 10_000
	maxGroups = 10_000
)

func (s *modelStore) Letters(ctx context.Context, q eventbus.LetterQuery) (eventbus.LetterPage, error) {
	var page eventbus.LetterPage
	err := s.eachLetter(ctx, q, func(l *eventbus.DeadLetter) {
		if page.Total == maxTotal && !q.ExactTotal {
			page.TotalIsMore = true
		} else {
			page.Total++
		}
		switch {
		case !q.Before.IsZero() && compareLetterIDs(l.ID, q.Before) >= 0 || !page.Next.IsZero():
		case len(page.Letters) == q.Limit:
			page.Next = page.Letters[q.Limit-1].ID
		default:
			page.Letters = append(page.Letters, deepCopy(*l))
		}
	})
	if err != nil {
		return eventbus.LetterPage{}, err
	}
	return page, nil
}

// eachLetter calls visit with each letter that matches, newest first.
func (s *modelStore) eachLetter(ctx context.Context, q eventbus.LetterQuery, visit func(*eventbus.DeadLetter)) error {
	matches, err := q.Matcher()
	if err != nil {
		return err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return err
	}
	for _, id := range slices.Backward(s.model.order) {
		if l := s.model.letters[id]; matches(l) {
			visit(l)
		}
	}
	return nil
}

func (s *modelStore) Groups(ctx context.Context, q eventbus.LetterQuery) ([]eventbus.LetterGroup, error) {
	var groups []*eventbus.LetterGroup
	known := make(map[string]*eventbus.LetterGroup)
	var others *eventbus.LetterGroup
	err := s.eachLetter(ctx, q, func(l *eventbus.DeadLetter) {
		g := known[l.Fingerprint]
		switch {
		case g != nil:
		case len(groups) < maxGroups:
			g = new(eventbus.LetterGroup)
			*g = l.Group()
			g.First, g.Last, g.Newest = l.DiedAt, l.DiedAt, l.ID
			known[l.Fingerprint] = g
			groups = append(groups, g)
		case others != nil:
			g = others
		default:
			g = &eventbus.LetterGroup{Message: fmt.Sprintf("(beyond %d groups)", maxGroups), First: l.DiedAt, Last: l.DiedAt, Newest: l.ID}
			others = g
		}
		g.Count++
		if l.DiedAt.Before(g.First) {
			g.First = l.DiedAt
		}
		if l.DiedAt.After(g.Last) {
			g.Last = l.DiedAt
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(groups, func(x, y *eventbus.LetterGroup) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), compareLetterIDs(y.Newest, x.Newest))
	})
	if others != nil {
		groups = append(groups, others)
	}
	all := make([]eventbus.LetterGroup, len(groups))
	for i, g := range groups {
		all[i] = *g
	}
	return all, nil
}

func (s *modelStore) Orders(ctx context.Context) ([]eventbus.Order, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	return s.model.ordersLocked(), nil
}

func (s *modelStore) Catalog(ctx context.Context) (c *eventbus.Catalog, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil || s.model.catalog == nil {
		return nil, err
	}
	c = new(eventbus.Catalog)
	return c, json.Unmarshal(s.model.catalog, c)
}

func (s *modelStore) Audit(ctx context.Context, q eventbus.AuditQuery) (page eventbus.AuditPage, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return page, err
	}
	for _, e := range slices.Backward(s.model.audit) {
		if !q.Matches(&e) {
			continue
		}
		if len(page.Entries) == q.Limit {
			page.Next = page.Entries[q.Limit-1].Number
			break
		}
		page.Entries = append(page.Entries, deepCopy(e))
	}
	return page, nil
}

func (s *modelStore) Lookup(ctx context.Context, id eventbus.EventID) ([]*eventbus.Record, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	var found []*eventbus.Record
	for _, r := range s.model.records {
		if r.ID == id {
			c := deepCopy(r.Record)
			found = append(found, &c)
		}
	}
	slices.SortFunc(found, func(x, y *eventbus.Record) int { return cmp.Compare(x.Ref, y.Ref) })
	return found, nil
}

// maxParked bounds the records that Parked counts.
const maxParked = 100_000

func (s *modelStore) Parked(ctx context.Context, except map[string]bool) (map[string]int64, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	doors, all := make(map[string]int64), 0
	for _, r := range s.model.records {
		if r.State == eventbus.RecordParked && !except[r.Door] && all < maxParked {
			doors[r.Door]++
			all++
		}
	}
	return doors, nil
}

func (s *modelStore) Records(ctx context.Context, q eventbus.RecordQuery) (page eventbus.RecordPage, err error) {
	matches, err := q.Matcher()
	if err != nil {
		return page, err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return page, err
	}
	for _, ref := range slices.Sorted(maps.Keys(s.model.records)) {
		r := &s.model.records[ref].Record
		if ref <= q.After || !matches(r) {
			continue
		}
		if len(page.Records) == q.Limit {
			page.Next = page.Records[q.Limit-1].Ref
			break
		}
		c := deepCopy(*r)
		page.Records = append(page.Records, &c)
	}
	return page, nil
}

func (s *modelStore) Remembered(ctx context.Context, scope, key string) (eventbus.Dedupe, bool, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return eventbus.Dedupe{}, false, err
	}
	d, known := s.model.remember[dedupeKey{scope, key}]
	return d, known, nil
}

func (s *modelStore) Stats(ctx context.Context) (eventbus.StoreStats, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return eventbus.StoreStats{}, err
	}
	stats := eventbus.StoreStats{
		Letters: int64(len(s.model.letters)), Beside: s.model.beside, HasLease: s.lease != 0,
		Crashed: s.after.crashed, CrashedEvents: s.after.events,
	}
	for _, r := range s.model.records {
		if r.lease == 0 {
			stats.Free++
		}
		switch r.State {
		case eventbus.RecordReady:
			stats.Ready++
		case eventbus.RecordWaiting:
			stats.Waiting++
		case eventbus.RecordScheduled:
			stats.Scheduled++
		case eventbus.RecordParked:
			stats.Parked++
		}
	}
	return stats, nil
}
