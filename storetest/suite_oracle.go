package storetest

import (
	"slices"
	"strings"

	"github.com/surebus/eventbus/driver"
)

// oracle is the simplest store: slices, searched from end to end. It predicts the outcome of each
// call of the random test, and shares no code with the Model.
type oracle struct {
	records    []oracleRecord // by Ref
	letters    []*driver.Letter
	known      []driver.Dedupe
	directives []driver.Directive
}

type oracleRecord struct {
	driver.Record // with Own and Leased as the store with the lease has them
}

// apply applies a batch whose new records have the refs that the store has assigned. holder is set
// for the store with the lease. It returns nil, or the refusal that the store must return.
func (o *oracle) apply(b *driver.Batch, refs []driver.Ref, holder bool) *driver.RefusedError {
	after := oracle{slices.Clone(o.records), slices.Clone(o.letters), slices.Clone(o.known), slices.Clone(o.directives)}
	if refused := after.change(b, refs, holder); refused != nil {
		return refused
	}
	*o = after
	return nil
}

func (o *oracle) change(b *driver.Batch, refs []driver.Ref, holder bool) *driver.RefusedError {
	same := func(d driver.Dedupe) func(driver.Dedupe) bool {
		return func(other driver.Dedupe) bool { return other.Scope == d.Scope && other.Key == d.Key }
	}
	for _, d := range b.Remember {
		if i := slices.IndexFunc(o.known, same(d)); i >= 0 && o.known[i].Expires.After(b.Aged()) {
			return &driver.RefusedError{Err: driver.ErrDuplicateID, Known: &o.known[i]}
		}
		o.known = append(slices.DeleteFunc(o.known, same(d)), d)
	}
	for _, d := range b.Forget {
		o.known = slices.DeleteFunc(o.known, same(d))
	}
	for _, id := range b.Take {
		i := slices.IndexFunc(o.letters, func(l *driver.Letter) bool { return l.ID == id })
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotFound, Letter: id}
		}
		o.letters = slices.Delete(o.letters, i, i+1)
	}
	for _, id := range b.Cancel {
		n := len(o.records)
		o.records = slices.DeleteFunc(o.records, func(r oracleRecord) bool {
			return r.ID == id && r.State == driver.Scheduled && !r.Leased
		})
		if len(o.records) == n {
			return &driver.RefusedError{Err: driver.ErrNotScheduled, Event: id}
		}
	}
	for i, n := range b.New {
		r := oracleRecord{*n}
		r.Own, r.Crashes = holder && !n.Leased, 0
		if refs != nil {
			r.Ref = refs[i]
		}
		if n.Position == 0 {
			r.Position = int64(r.Ref)
		} else if n.Position < 0 {
			r.Position = o.records[len(o.records)-1].Position
		}
		o.records = append(o.records, r)
	}
	find := func(ref driver.Ref) int {
		return slices.IndexFunc(o.records, func(r oracleRecord) bool { return r.Ref == ref && r.Leased && holder })
	}
	for _, u := range b.Update {
		i := find(u.Ref)
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotLeased, Ref: u.Ref}
		}
		r := &o.records[i]
		r.State, r.Due, r.Door, r.Progress, r.Leased, r.Suspect, r.Crashes = u.State, u.Due, u.Door, u.Progress, u.Leased, u.Suspect, u.Crashes
		r.Own = !u.Leased
	}
	for _, ref := range b.Delete {
		i := find(ref)
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotLeased, Ref: ref}
		}
		o.records = slices.Delete(o.records, i, i+1)
	}
	for _, l := range b.Bury {
		if !slices.ContainsFunc(o.letters, func(other *driver.Letter) bool { return other.ID == l.ID }) {
			o.letters = append(o.letters, l)
		}
	}
	for _, d := range b.Directives {
		o.directives = slices.DeleteFunc(o.directives, func(other driver.Directive) bool { return other.Subscription == d.Subscription })
		o.directives = append(o.directives, d)
	}
	slices.SortFunc(o.directives, func(x, y driver.Directive) int { return strings.Compare(x.Subscription, y.Subscription) })
	return nil
}

// end ends the lease.
func (o *oracle) end(crash bool) {
	suspects := slices.ContainsFunc(o.records, func(r oracleRecord) bool { return r.Leased && r.Suspect })
	for i := range o.records {
		r := &o.records[i]
		unmarked := !suspects && r.State == driver.Ready && r.Crashes < driver.SuspectCrashes
		if crash && r.Leased && (unmarked || r.Suspect) {
			r.Crashes++
		}
		r.Leased, r.Own = false, false
	}
}

// claim leases the records of a query, one after the other.
func (o *oracle) claim(q driver.ClaimQuery) driver.Claimed {
	var c driver.Claimed
	for {
		best := -1
		for i := range o.records {
			if o.records[i].isFor(q) && (best < 0 || o.records[i].isBefore(&o.records[best], q.Kind)) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		if len(c.Records) == q.Limit {
			c.More = true
			break
		}
		r := &o.records[best]
		r.Leased, r.Suspect = true, false
		claimed := r.Record
		r.Own = false
		c.Records = append(c.Records, &claimed)
	}
	for i := range o.records {
		later := q
		later.Now = o.records[i].Due
		if q.Kind == driver.ClaimDue && later.Now.After(q.Now) && o.records[i].isFor(later) && (c.NextDue.IsZero() || later.Now.Before(c.NextDue)) {
			c.NextDue = later.Now
		}
	}
	return c
}

func (r *oracleRecord) isFor(q driver.ClaimQuery) bool {
	if r.Leased {
		return false
	}
	switch q.Kind {
	case driver.ClaimReady:
		switch r.State {
		case driver.Ready:
			return true
		case driver.Waiting, driver.Parked:
			return r.Key != "" && !r.Own
		case driver.Scheduled:
			return false
		}
	case driver.ClaimDue:
		if r.State == driver.Waiting && r.Key != "" || r.State == driver.Ready || r.State == driver.Parked {
			return false
		}
		return q.Now.Compare(r.Due) >= 0
	case driver.ClaimParked:
		return r.State == driver.Parked && slices.Contains(q.Doors, r.Door) && (r.Own || r.Key == "")
	case driver.ClaimEvent:
		return r.State == driver.Scheduled && q.Event == r.ID
	}
	return false
}

func (r *oracleRecord) isBefore(other *oracleRecord, kind driver.ClaimKind) bool {
	switch {
	case kind == driver.ClaimDue && !r.Due.Equal(other.Due):
		return r.Due.Before(other.Due)
	case (kind == driver.ClaimReady || kind == driver.ClaimParked) && r.Position != other.Position:
		return r.Position < other.Position
	}
	return r.Ref < other.Ref
}

func (o *oracle) stats() driver.Stats {
	s := driver.Stats{Letters: int64(len(o.letters))}
	for _, r := range o.records {
		if !r.Leased {
			s.Free++
		}
		*map[driver.State]*int64{
			driver.Ready: &s.Ready, driver.Waiting: &s.Waiting,
			driver.Scheduled: &s.Scheduled, driver.Parked: &s.Parked,
		}[r.State]++
	}
	return s
}

func (o *oracle) parkedBy(except string) map[string]int64 {
	doors := make(map[string]int64)
	for _, r := range o.records {
		if r.State == driver.Parked && r.Door != except {
			doors[r.Door]++
		}
	}
	return doors
}
