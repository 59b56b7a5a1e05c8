package storetest

import (
	"cmp"
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
	incoming   []driver.Incoming // by ID
	requests   []oracleRequest   // by ID
	catalogs   []driver.Catalog
	outcomes   []driver.Outcome
}

// assigned has what a store has assigned to the parts of a batch.
type assigned struct {
	refs     []driver.Ref
	incoming []driver.IncomingID
	requests []driver.RequestID
}

// assignedIn returns what a store has assigned in a batch.
func assignedIn(b *driver.Batch) (as assigned) {
	for _, n := range b.New {
		as.refs = append(as.refs, n.Ref)
	}
	for _, in := range b.Leave {
		as.incoming = append(as.incoming, in.ID)
	}
	for _, asked := range b.Ask {
		as.requests = append(as.requests, asked.ID)
	}
	return as
}

// oracleRequest is a request with its answer: nil for none.
type oracleRequest struct {
	driver.Request
	answer []byte
}

type oracleRecord struct {
	driver.Record // with Own and Leased as the store with the lease has them
}

// apply applies a batch to which the store has assigned the refs and ids. epoch is that of the lease of
// the store; 0 for none. It returns nil, or the refusal that the store must return.
func (o *oracle) apply(b *driver.Batch, as assigned, epoch int64) *driver.RefusedError {
	leased := len(b.Accept) > 0 || len(b.New) > 0 || len(b.Update) > 0 || len(b.Delete) > 0 ||
		len(b.Directives) > 0 || len(b.Answer) > 0
	if leased && b.Epoch == 0 || b.Epoch != 0 && b.Epoch != epoch {
		return &driver.RefusedError{Err: driver.ErrLeaseLost}
	}
	after := oracle{
		slices.Clone(o.records), slices.Clone(o.letters), slices.Clone(o.known), slices.Clone(o.directives),
		slices.Clone(o.incoming), slices.Clone(o.requests), slices.Clone(o.catalogs), slices.Clone(o.outcomes),
	}
	if refused := after.remove(b); refused != nil {
		return refused
	}
	after.insert(b, as.refs)
	if refused := after.change(b); refused != nil {
		return refused
	}
	if refused := after.leave(b, as); refused != nil {
		return refused
	}
	after.forgetSettled(b)
	after.replace(b)
	*o = after
	return nil
}

// remove applies the fields before New.
func (o *oracle) remove(b *driver.Batch) *driver.RefusedError {
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
	for _, id := range b.Withdraw {
		n := len(o.incoming)
		o.incoming = slices.DeleteFunc(o.incoming, func(in driver.Incoming) bool { return in.Record.ID == id })
		if len(o.incoming) == n {
			return &driver.RefusedError{Err: driver.ErrNotFound, Event: id}
		}
	}
	for _, id := range b.Accept {
		i := slices.IndexFunc(o.incoming, func(in driver.Incoming) bool { return in.ID == id })
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotFound, Incoming: id}
		}
		o.incoming = slices.Delete(o.incoming, i, i+1)
	}
	return nil
}

// forgetSettled applies ForgetSettled.
func (o *oracle) forgetSettled(b *driver.Batch) {
	for _, d := range b.ForgetSettled {
		if slices.ContainsFunc(o.records, func(r oracleRecord) bool { return r.ID == d.Event }) ||
			slices.ContainsFunc(o.incoming, func(in driver.Incoming) bool { return in.Record.ID == d.Event }) {
			continue
		}
		o.known = slices.DeleteFunc(o.known, func(k driver.Dedupe) bool {
			return k.Scope == d.Scope && k.Key == d.Key && k.Event == d.Event && (d.Expires.IsZero() || k.Expires.Equal(d.Expires))
		})
	}
}

// insert applies New.
func (o *oracle) insert(b *driver.Batch, refs []driver.Ref) {
	previous := int64(0)
	for i, n := range b.New {
		r := oracleRecord{*n}
		r.Own, r.Crashes = !n.Leased, 0
		if refs != nil {
			r.Ref = refs[i]
		}
		if n.Position == 0 {
			r.Position = int64(r.Ref)
		} else if n.Position < 0 {
			r.Position = previous
		}
		previous = r.Position
		o.records = append(o.records, r)
	}
	slices.SortStableFunc(o.records, func(x, y oracleRecord) int { return cmp.Compare(x.Ref, y.Ref) })
}

// find returns the index of a leased record; -1 for none.
func (o *oracle) find(ref driver.Ref) int {
	return slices.IndexFunc(o.records, func(r oracleRecord) bool { return r.Ref == ref && r.Leased })
}

// change applies Update, Delete and Bury.
func (o *oracle) change(b *driver.Batch) *driver.RefusedError {
	for _, u := range b.Update {
		i := o.find(u.Ref)
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotLeased, Ref: u.Ref}
		}
		r := &o.records[i]
		r.State, r.Due, r.Door, r.Progress, r.Leased, r.Suspect, r.Crashes = u.State, u.Due, u.Door, u.Progress, u.Leased, u.Suspect, u.Crashes
		r.Destination = u.Destination
		r.Own = !u.Leased
	}
	for _, ref := range b.Delete {
		i := o.find(ref)
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
	return nil
}

// leave applies Leave, Ask, Unask and Answer.
func (o *oracle) leave(b *driver.Batch, as assigned) *driver.RefusedError {
	for i, in := range b.Leave {
		c := *in
		if c.ID = 0; as.incoming != nil {
			c.ID = as.incoming[i]
		}
		o.incoming = append(o.incoming, c)
	}
	slices.SortStableFunc(o.incoming, func(x, y driver.Incoming) int { return cmp.Compare(x.ID, y.ID) })
	for i, asked := range b.Ask {
		c := oracleRequest{Request: *asked}
		if c.ID = 0; as.requests != nil {
			c.ID = as.requests[i]
		}
		o.requests = append(o.requests, c)
	}
	slices.SortStableFunc(o.requests, func(x, y oracleRequest) int { return cmp.Compare(x.ID, y.ID) })
	open := func(id driver.RequestID) int {
		return slices.IndexFunc(o.requests, func(r oracleRequest) bool { return id != 0 && r.ID == id && r.answer == nil })
	}
	for _, id := range b.Unask {
		i := open(id)
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotFound, Request: id}
		}
		o.requests = slices.Delete(o.requests, i, i+1)
	}
	for _, a := range b.Answer {
		i := open(a.Request)
		if i < 0 {
			return &driver.RefusedError{Err: driver.ErrNotFound, Request: a.Request}
		}
		o.requests[i].answer = a.Body
	}
	return nil
}

// replace applies Directives, Outcomes and Catalog.
func (o *oracle) replace(b *driver.Batch) {
	o.outcomes = append(o.outcomes, b.Outcomes...)
	for _, d := range b.Directives {
		o.directives = slices.DeleteFunc(o.directives, func(other driver.Directive) bool { return other.Subscription == d.Subscription })
		o.directives = append(o.directives, d)
	}
	slices.SortFunc(o.directives, func(x, y driver.Directive) int { return strings.Compare(x.Subscription, y.Subscription) })
	if c := b.Catalog; c != nil {
		o.catalogs = slices.DeleteFunc(o.catalogs, func(other driver.Catalog) bool { return other.Instance == c.Instance })
		if c.Body != nil {
			o.catalogs = append(o.catalogs, driver.Catalog{Instance: c.Instance, Seen: b.Now, Body: c.Body})
		}
	}
	slices.SortFunc(o.catalogs, func(x, y driver.Catalog) int { return strings.Compare(x.Instance, y.Instance) })
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
		if later.Now = o.records[i].Due; q.Kind == driver.ClaimExpired {
			later.Now = o.records[i].Expires
		}
		if (q.Kind == driver.ClaimDue || q.Kind == driver.ClaimExpired) && later.Now.After(q.Now) && o.records[i].isFor(later) && (c.NextDue.IsZero() || later.Now.Before(c.NextDue)) {
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
		return r.State == driver.Parked && slices.Contains(q.Doors, r.Door) && (r.Own || r.Key == "") && r.isOf(q)
	case driver.ClaimRefs:
		for _, ref := range q.Refs {
			if ref == r.Ref {
				return true
			}
		}
		return false
	case driver.ClaimExpired:
		return !r.Expires.IsZero() && r.State != driver.Scheduled && q.Now.Compare(r.Expires) >= 0
	}
	return false
}

// isOf reports whether the query selects the destination of the record.
func (r *oracleRecord) isOf(q driver.ClaimQuery) bool {
	for _, d := range q.OtherThan {
		if d == r.Destination {
			return false
		}
	}
	for _, d := range q.Destinations {
		if d == r.Destination {
			return true
		}
	}
	return len(q.Destinations) == 0
}

func (r *oracleRecord) isBefore(other *oracleRecord, kind driver.ClaimKind) bool {
	switch {
	case kind == driver.ClaimDue && !r.Due.Equal(other.Due):
		return r.Due.Before(other.Due)
	case kind == driver.ClaimExpired && !r.Expires.Equal(other.Expires):
		return r.Expires.Before(other.Expires)
	case (kind == driver.ClaimReady || kind == driver.ClaimParked) && r.Position != other.Position:
		return r.Position < other.Position
	}
	return r.Ref < other.Ref
}

func (o *oracle) stats() driver.Stats {
	s := driver.Stats{Letters: int64(len(o.letters)), Incoming: int64(len(o.incoming))}
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
