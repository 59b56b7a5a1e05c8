package storetest

import (
	"slices"
	"strings"

	"github.com/surebus/eventbus"
)

// oracle is the simplest store: slices, searched from end to end. It predicts the outcome of each
// call of the random test, and shares no code with the Model.
type oracle struct {
	records []oracleRecord // by Ref
	letters []*eventbus.DeadLetter
	known   []eventbus.Dedupe
	orders  []eventbus.Order
	beside  int64 // see StoreStats.Beside
}

type oracleRecord struct {
	eventbus.Record // with Own and Leased as the store with the lease has them
}

// apply applies a batch whose new records have the refs that the store has assigned. holder is set
// for the store with the lease. It returns nil, or the refusal that the store must return.
func (o *oracle) apply(b *eventbus.Batch, refs []eventbus.Ref, holder bool) *eventbus.RefusedError {
	after := oracle{slices.Clone(o.records), slices.Clone(o.letters), slices.Clone(o.known), slices.Clone(o.orders), o.beside}
	if refused := after.change(b, refs, holder); refused != nil {
		return refused
	}
	*o = after
	return nil
}

func (o *oracle) change(b *eventbus.Batch, refs []eventbus.Ref, holder bool) *eventbus.RefusedError {
	same := func(d eventbus.Dedupe) func(eventbus.Dedupe) bool {
		return func(other eventbus.Dedupe) bool { return other.Scope == d.Scope && other.Key == d.Key }
	}
	for _, d := range b.Remember {
		if i := slices.IndexFunc(o.known, same(d)); i >= 0 && o.known[i].Expires.After(b.Aged()) {
			return &eventbus.RefusedError{Err: eventbus.ErrDuplicateID, Known: &o.known[i]}
		}
		o.known = append(slices.DeleteFunc(o.known, same(d)), d)
	}
	for _, d := range b.Forget {
		o.known = slices.DeleteFunc(o.known, same(d))
	}
	for _, id := range b.Take {
		i := slices.IndexFunc(o.letters, func(l *eventbus.DeadLetter) bool { return l.ID == id })
		if i < 0 {
			return &eventbus.RefusedError{Err: eventbus.ErrNotFound, Letter: id}
		}
		o.letters = slices.Delete(o.letters, i, i+1)
	}
	before := len(o.records)
	for _, id := range b.Cancel {
		n := len(o.records)
		o.records = slices.DeleteFunc(o.records, func(r oracleRecord) bool {
			return r.ID == id && r.State == eventbus.RecordScheduled && !r.Leased
		})
		if len(o.records) == n {
			return &eventbus.RefusedError{Err: eventbus.ErrNotScheduled, Event: id}
		}
	}
	if !holder {
		o.beside += int64(len(b.New) - (before - len(o.records)))
	}
	for i, n := range b.New {
		if n.Leased && !holder {
			return &eventbus.RefusedError{Err: eventbus.ErrNotLeased}
		}
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
	find := func(ref eventbus.Ref) int {
		return slices.IndexFunc(o.records, func(r oracleRecord) bool { return r.Ref == ref && r.Leased && holder })
	}
	for _, u := range b.Update {
		i := find(u.Ref)
		if i < 0 {
			return &eventbus.RefusedError{Err: eventbus.ErrNotLeased, Ref: u.Ref}
		}
		r := &o.records[i]
		r.State, r.Due, r.Door, r.Progress, r.Leased, r.Suspect, r.Crashes = u.State, u.Due, u.Door, u.Progress, u.Leased, u.Suspect, u.Crashes
		r.Own = !u.Leased
	}
	for _, ref := range b.Delete {
		i := find(ref)
		if i < 0 {
			return &eventbus.RefusedError{Err: eventbus.ErrNotLeased, Ref: ref}
		}
		o.records = slices.Delete(o.records, i, i+1)
	}
	for _, l := range b.Bury {
		if !slices.ContainsFunc(o.letters, func(other *eventbus.DeadLetter) bool { return other.ID == l.ID }) {
			o.letters = append(o.letters, l)
		}
	}
	for _, order := range b.Orders {
		o.orders = slices.DeleteFunc(o.orders, func(other eventbus.Order) bool { return other.Subscription == order.Subscription })
		o.orders = append(o.orders, order)
	}
	slices.SortFunc(o.orders, func(x, y eventbus.Order) int { return strings.Compare(x.Subscription, y.Subscription) })
	return nil
}

// end ends the lease.
func (o *oracle) end(crash bool) {
	suspects := slices.ContainsFunc(o.records, func(r oracleRecord) bool { return r.Leased && r.Suspect })
	for i := range o.records {
		r := &o.records[i]
		unmarked := !suspects && r.State == eventbus.RecordReady && r.Crashes < eventbus.SuspectCrashes
		if crash && r.Leased && (unmarked || r.Suspect) {
			r.Crashes++
		}
		r.Leased, r.Own = false, false
	}
}

// claim leases the records of a query, one after the other.
func (o *oracle) claim(q eventbus.ClaimQuery) eventbus.Claimed {
	var c eventbus.Claimed
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
		if q.Kind == eventbus.ClaimDue && later.Now.After(q.Now) && o.records[i].isFor(later) && (c.NextDue.IsZero() || later.Now.Before(c.NextDue)) {
			c.NextDue = later.Now
		}
	}
	return c
}

func (r *oracleRecord) isFor(q eventbus.ClaimQuery) bool {
	if r.Leased {
		return false
	}
	switch q.Kind {
	case eventbus.ClaimReady:
		switch r.State {
		case eventbus.RecordReady:
			return true
		case eventbus.RecordWaiting, eventbus.RecordParked:
			return r.Key != "" && !r.Own
		case eventbus.RecordScheduled:
			return false
		}
	case eventbus.ClaimDue:
		if r.State == eventbus.RecordWaiting && r.Key != "" || r.State == eventbus.RecordReady || r.State == eventbus.RecordParked {
			return false
		}
		return q.Now.Compare(r.Due) >= 0
	case eventbus.ClaimParked:
		return r.State == eventbus.RecordParked && slices.Contains(q.Doors, r.Door) && (r.Own || r.Key == "")
	case eventbus.ClaimEvent:
		return r.State == eventbus.RecordScheduled && q.Event == r.ID
	}
	return false
}

func (r *oracleRecord) isBefore(other *oracleRecord, kind eventbus.ClaimKind) bool {
	switch {
	case kind == eventbus.ClaimDue && !r.Due.Equal(other.Due):
		return r.Due.Before(other.Due)
	case (kind == eventbus.ClaimReady || kind == eventbus.ClaimParked) && r.Position != other.Position:
		return r.Position < other.Position
	}
	return r.Ref < other.Ref
}

func (o *oracle) stats() eventbus.StoreStats {
	s := eventbus.StoreStats{Letters: int64(len(o.letters)), Beside: o.beside}
	for _, r := range o.records {
		if !r.Leased {
			s.Free++
		}
		*map[eventbus.RecordState]*int64{
			eventbus.RecordReady: &s.Ready, eventbus.RecordWaiting: &s.Waiting,
			eventbus.RecordScheduled: &s.Scheduled, eventbus.RecordParked: &s.Parked,
		}[r.State]++
	}
	return s
}

func (o *oracle) parkedBy(except string) map[string]int64 {
	doors := make(map[string]int64)
	for _, r := range o.records {
		if r.State == eventbus.RecordParked && r.Door != except {
			doors[r.Door]++
		}
	}
	return doors
}
