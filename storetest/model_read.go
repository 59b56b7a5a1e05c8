package storetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Claim leases records. See driver.ClaimKind for the rules.
func (s *modelStore) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	m := s.model
	m.mu.Lock()
	if err := s.claimableLocked(ctx); err != nil {
		m.mu.Unlock()
		return driver.Claimed{}, err
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
		return driver.Claimed{}, s.halt(fault.Kind)
	}
	m.mu.Lock()
	if err := s.claimableLocked(ctx); err != nil {
		m.mu.Unlock()
		return driver.Claimed{}, err
	}
	claimed := s.claimLocked(q)
	m.mu.Unlock()
	if fault.Kind == FailAfter || fault.Kind == CrashAfter {
		return driver.Claimed{}, s.halt(fault.Kind)
	}
	return claimed, nil
}

func (s *modelStore) claimableLocked(ctx context.Context) error {
	if err := s.endedLocked(ctx); err != nil {
		return err
	}
	if !s.lease.IsHeld() {
		return driver.ErrNoLease
	}
	return nil
}

func (s *modelStore) claimLocked(q driver.ClaimQuery) driver.Claimed {
	slots, epoch := s.slots, s.lease.Epoch
	if !q.Slots.IsEmpty() {
		slots = slots.Without(slots.Without(q.Slots))
	}
	var matching []*row
	var next time.Time
	for _, r := range s.model.records {
		switch {
		case r.lease != 0 || !slots.Has(r.Slot):
		case r.matches(q, epoch):
			matching = append(matching, r)
		case q.Kind == driver.ClaimDue && r.isTimed() && (next.IsZero() || r.Due.Before(next)):
			next = r.Due
		case q.Kind == driver.ClaimExpired && r.expires() && (next.IsZero() || r.Expires.Before(next)):
			next = r.Expires
		}
	}
	slices.SortFunc(matching, func(x, y *row) int {
		var first int
		switch q.Kind {
		case driver.ClaimReady, driver.ClaimParked:
			first = cmp.Compare(x.Position, y.Position)
		case driver.ClaimDue:
			first = x.Due.Compare(y.Due)
		case driver.ClaimExpired:
			first = x.Expires.Compare(y.Expires)
		case driver.ClaimRefs:
		}
		return cmp.Or(first, cmp.Compare(x.Ref, y.Ref))
	})
	claimed := driver.Claimed{More: len(matching) > q.Limit, NextDue: next}
	for _, r := range matching[:min(q.Limit, len(matching))] {
		own := r.freedIn == epoch
		r.lease, r.Leased, r.Suspect = epoch, true, false
		c := deepCopy(r.Record)
		c.Own = own
		claimed.Records = append(claimed.Records, &c)
	}
	return claimed
}

// isTimed reports whether ClaimDue claims the record once it is due.
func (r *row) isTimed() bool {
	return r.State == driver.Scheduled || r.State == driver.Waiting && r.Key == ""
}

// expires reports whether ClaimExpired claims the record once it has expired.
func (r *row) expires() bool { return r.State != driver.Scheduled && !r.Expires.IsZero() }

// matches reports whether a free record matches a query under a lease.
func (r *row) matches(q driver.ClaimQuery, epoch int64) bool {
	switch q.Kind {
	case driver.ClaimReady:
		keyed := r.Key != "" && (r.State == driver.Waiting || r.State == driver.Parked)
		return r.State == driver.Ready || keyed && r.freedIn != epoch
	case driver.ClaimDue:
		return r.isTimed() && !r.Due.After(q.Now)
	case driver.ClaimParked:
		return r.State == driver.Parked && slices.Contains(q.Doors, r.Door) && (r.Key == "" || r.freedIn == epoch) &&
			(len(q.Destinations) == 0 || slices.Contains(q.Destinations, r.Destination)) && !slices.Contains(q.OtherThan, r.Destination)
	case driver.ClaimRefs:
		return slices.Contains(q.Refs, r.Ref)
	case driver.ClaimExpired:
		return r.expires() && !r.Expires.After(q.Now)
	}
	return false
}

func (s *modelStore) Letter(ctx context.Context, id driver.ID) (driver.Letter, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return driver.Letter{}, err
	}
	l := s.model.letters[id]
	if l == nil {
		return driver.Letter{}, fmt.Errorf("%w: %s", driver.ErrNotFound, id)
	}
	return deepCopy(*l), nil
}

func (s *modelStore) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	var page driver.LetterPage
	err := s.eachLetter(ctx, q, func(l *driver.Letter) {
		switch {
		case q.NoTotal:
		case page.Total == driver.MaxTotal && !q.ExactTotal:
			page.TotalIsMore = true
		default:
			page.Total++
		}
		switch {
		case !q.Before.IsZero() && compareIDs(l.ID, q.Before) >= 0 || !page.Next.IsZero():
		case len(page.Letters) == q.Limit:
			page.Next = page.Letters[q.Limit-1].ID
		default:
			page.Letters = append(page.Letters, deepCopy(*l))
		}
	})
	if err != nil {
		return driver.LetterPage{}, err
	}
	return page, nil
}

// eachLetter calls visit with each letter that matches, newest first.
func (s *modelStore) eachLetter(ctx context.Context, q driver.LetterQuery, visit func(*driver.Letter)) error {
	if parts := q.Parts; parts != nil {
		q.Parts = func(details, failures []byte) (bool, error) {
			return parts(bytes.Clone(details), bytes.Clone(failures))
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return err
	}
	for _, id := range slices.Backward(s.model.order) {
		l := s.model.letters[id]
		matches, err := q.Matches(l)
		if err != nil {
			return err
		}
		if matches {
			visit(l)
		}
	}
	return nil
}

func (s *modelStore) Groups(ctx context.Context, q driver.LetterQuery, each func(g *driver.Group) error) error {
	var groups []*driver.Group
	known := make(map[string]*driver.Group)
	var others *driver.Group
	err := s.eachLetter(ctx, q, func(l *driver.Letter) {
		g := known[l.Fingerprint]
		switch {
		case g != nil:
		case len(groups) < driver.MaxGroups:
			sample := deepCopy(*l)
			sample.Payload, sample.Original = nil, nil
			g = &driver.Group{Fingerprint: l.Fingerprint, First: l.DiedAt, Last: l.DiedAt, Newest: l.ID, Sample: &sample}
			known[l.Fingerprint] = g
			groups = append(groups, g)
		case others != nil:
			g = others
		default:
			g = &driver.Group{First: l.DiedAt, Last: l.DiedAt, Newest: l.ID}
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
		return err
	}
	slices.SortFunc(groups, func(x, y *driver.Group) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), compareIDs(y.Newest, x.Newest))
	})
	if others != nil {
		groups = append(groups, others)
	}
	for _, g := range groups {
		if err := each(g); err != nil {
			return err
		}
	}
	return nil
}

func (s *modelStore) Directives(ctx context.Context) ([]driver.Directive, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	return s.model.directivesLocked(), nil
}

func (s *modelStore) Audit(ctx context.Context, q driver.AuditQuery) (page driver.AuditPage, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return page, err
	}
	for _, e := range slices.Backward(s.model.audit) {
		c := deepCopy(e)
		matches, err := q.Matches(&c)
		switch {
		case err != nil:
			return driver.AuditPage{}, err
		case !matches:
			continue
		case len(page.Entries) == q.Limit:
			page.Next = page.Entries[q.Limit-1].Number
			return page, nil
		}
		page.Entries = append(page.Entries, deepCopy(e))
	}
	return page, nil
}

func (s *modelStore) Outcomes(ctx context.Context, event driver.ID) (found []driver.Outcome, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	for _, o := range s.model.outcomes {
		if o.Event == event {
			found = append(found, deepCopy(o.Outcome))
		}
	}
	return found, nil
}

func (s *modelStore) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	var found []*driver.Record
	for _, r := range s.model.records {
		if r.ID == id {
			c := deepCopy(r.Record)
			found = append(found, &c)
		}
	}
	slices.SortFunc(found, func(x, y *driver.Record) int { return cmp.Compare(x.Ref, y.Ref) })
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
		if r.State == driver.Parked && !except[r.Door] && all < maxParked {
			doors[r.Door]++
			all++
		}
	}
	return doors, nil
}

func (s *modelStore) Records(ctx context.Context, q driver.RecordQuery) (page driver.RecordPage, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return page, err
	}
	for _, ref := range slices.Sorted(maps.Keys(s.model.records)) {
		r := &s.model.records[ref].Record
		if !q.Matches(r) {
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

func (s *modelStore) Remembered(ctx context.Context, scope, key string) (driver.Dedupe, bool, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return driver.Dedupe{}, false, err
	}
	d, known := s.model.remember[dedupeKey{scope, key}]
	return d, known, nil
}

func (s *modelStore) Stats(ctx context.Context) (driver.Stats, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return driver.Stats{}, err
	}
	stats := driver.Stats{Letters: int64(len(s.model.letters)), Incoming: int64(len(s.model.incoming))}
	for _, r := range s.model.records {
		if r.lease == 0 {
			stats.Free++
		}
		switch r.State {
		case driver.Ready:
			stats.Ready++
		case driver.Waiting:
			stats.Waiting++
		case driver.Scheduled:
			stats.Scheduled++
		case driver.Parked:
			stats.Parked++
		}
	}
	return stats, nil
}
