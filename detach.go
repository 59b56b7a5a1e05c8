package eventbus

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/settled"
)

// Detach stops the subscription and keeps its deliveries for a later subscription of its name, in this process. After Detach has
// returned, no call of the handler begins. It does not wait for running calls. The subscription still matches: its
// deliveries, and the retries of running calls, are held. PublishAndWait does not wait for them and names the subscription
// (ErrHeld). In memory, WhenFull decides on deliveries that find the line full: by default they become dead letters with the reason
// overflow. With a store, they stay there.
//
// Subscribe with the name, by Named or Formerly, takes the subscription over. The new one gets its line, the order of
// each key, the counts of running calls, and the directives of operators. The held deliveries resume, oldest first,
// with the new handler and its options. The circuit begins closed. Events that were published before keep their retry
// policy. Subscribe returns an *OptionError if the new subscription differs from the detached one in Isolated or
// PerDestination. After a take-over, the methods of this handle return ErrNoSubscription, and its Unsubscribe does
// nothing.
//
// Unsubscribe and Shutdown treat a detached subscription as any other. Detach is not recorded: with a store, the
// subscriptions of the next process decide. Further calls do nothing.
//
// Errors: ErrNoSubscription after Unsubscribe, and after another subscription has taken over; ErrNoHandlers.
func (s *Subscription) Detach() error {
	if err := s.controllable("Detach"); err != nil {
		return err
	}
	if s.bus.config.tool {
		return fmt.Errorf("Detach(%s): %w", s.id, ErrNoHandlers)
	}
	b := s.bus
	first := false
	here := b.registry.ifPresent(s, func() {
		if first = !s.detached.Swap(true); first {
			s.detachDoors(b.registry.stored)
		}
	})
	if !here {
		return s.controllable("Detach")
	}
	if first {
		b.log.Info("subscription detached", zap.String("subscription_id", s.id))
		b.machine.tendAll(s.door)
		b.operators.cataloged.changed()
	}
	return nil
}

// Detached reports whether Detach was called, and no other subscription has taken over since.
func (s *Subscription) Detached() bool { return s != nil && s.detached.Load() && !s.gone.Load() }

// detachDoors shuts the doors. With a store, deliveries that find a line full stay there.
func (s *Subscription) detachDoors(stored bool) {
	s.door.circuit.Gate.Or(circuit.Detached)
	if stored {
		s.door.spillsAll(s.bus) // first: new destinations do as it does
		for _, o := range s.doors() {
			o.spillsAll(s.bus)
		}
	}
}

// spillsAll makes deliveries that find the line full stay in the store.
func (o *door) spillsAll(b *Bus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.allowed = true
	o.countLocked(b)
}

// Once makes the subscription take one event, and ends it then, as Unsubscribe does. The event is the first one that is
// admitted to the handler. It keeps its retries: the subscription ends when the handler has succeeded or the event has
// become a dead letter. The bus drops all other deliveries of the subscription without dead letters, also those in a
// store. Ledger.Dropped counts them.
//
// No store records that a subscription has taken its event: in another process, it takes one again. After a crash that may
// be the same event. Subscribe returns an *OptionError for Once with PerDestination.
func Once() SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.single = true })
}

// takeLocked notes the event that a subscription with Once takes.
func (o *door) takeLocked(d *dispatch) {
	if o.terms().single {
		o.taken = d.id
	}
}

// isSpentLocked reports whether a subscription with Once has taken another event.
func (o *door) isSpentLocked(d *dispatch) bool {
	return o.terms().single && !o.taken.IsZero() && o.taken != d.id
}

// took reports whether a subscription with Once has taken the event.
func (o *door) took(d *dispatch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.terms().single && o.taken == d.id
}

// endOnce ends a subscription with Once, if the event that has settled there is the one that it has taken.
func (m *machine) endOnce(at *door, d *dispatch) {
	if at.terms().single && at.took(d) {
		m.ended(at.of())
	}
}

// outlives counts a delivery whose subscription has ended for its retirement, and reports whether to drop the delivery.
func (d *dispatch) outlives(s *Subscription) (drops bool) {
	s = s.latest()
	if in := s.retired.Load(); in != nil {
		in.ended.Add(1)
		d.touch(settled.Operators{Ended: in.By})
	}
	return s.door.terms().drops
}

// latest returns the last subscription that has taken this one over, or itself.
func (s *Subscription) latest() *Subscription {
	for heir := s; heir != nil; heir = s.heir.Load() {
		s = heir
	}
	return s
}

// hasEnded reports whether the subscription has ended, and no other one has taken it over.
func (r *registry) hasEnded(s *Subscription) bool {
	r.mu.Lock() // a take-over marks the one as gone before the other is its heir
	defer r.mu.Unlock()
	return !s.latest().Exists()
}

// inherit makes a subscription that is being made take over a detached one: it shares its doors, its places in the order of
// keys and its counters. The doors stay shut until opens is called.
func (s *Subscription) inherit(from *Subscription) (opens func(), err error) {
	differs := func(option string, has bool) error {
		value := "without"
		if has {
			value = "with"
		}
		return &OptionError{Option: option, Value: value, Reason: fmt.Sprintf(
			"differs from %q, which is detached: take it over with the same, or unsubscribe it first", shorten(from.id))}
	}
	switch {
	case s.letters != from.letters:
		return nil, differs("OnDeadLetter", s.letters)
	case s.isolated != from.isolated:
		return nil, differs("Isolated", s.isolated)
	case (s.destinations != nil) != (from.destinations != nil):
		return nil, differs("PerDestination", s.destinations != nil)
	case from.gone.Swap(true): // Unsubscribe was first
		return nil, fmt.Errorf("%w: %q is being unsubscribed", ErrDuplicateName, from.id)
	}
	made, divided := s.door, s.destinations
	// Before renew: from then on, calls of the other one count for this one.
	s.door, s.destinations, s.gate, s.counters, s.since = from.door, from.destinations, from.gate, from.counters, from.since
	s.succeeds = from.succeeds
	for _, name := range from.names() {
		if name != s.id && !slices.Contains(s.formerly, name) {
			s.formerly = append(slices.Clip(s.formerly), name)
		}
	}
	report := func(at *door, change circuit.Change) {
		s.inherited = append(s.inherited, func() { s.bus.report.circuitChanged(at, change) })
	}
	report(from.door, from.door.renew(made, nil))
	if divided != nil {
		from.destinations.renew(divided, made, report)
	}
	from.heir.Store(s)
	s.inherited = append(s.inherited, func() { s.bus.machine.tendAll(s.door) })
	return func() { s.door.circuit.Gate.And(^uint64(circuit.Detached)) }, nil
}

// renew gives the door the terms, the circuit and the limits of one that was made for the subscription that takes it over. For the
// door of a destination, made is that subscription's own, and each has the terms of a destination.
func (o *door) renew(made *door, each *destinationTerms) (change circuit.Change) {
	t, config, abandoned := *made.terms(), *made.circuit.Config(), made.hanging.Most()
	if each != nil {
		t, config, abandoned = made.termsOfEach(each), each.circuit, each.abandoned
	}
	spill := made.spilling()
	o.mu.Lock()
	defer o.mu.Unlock()
	b, was := t.of.bus, o.terms()
	if x, y := was.of.rateLimit, t.of.rateLimit; x != nil && y != nil && *x == *y {
		t.rate = was.rate
	}
	o.sets(t)
	o.hanging.Limit(abandoned)
	now := b.time.Now()
	change = o.circuit.Renew(config, now.Nanos)
	if last := o.lastDirective.Load(); last != nil && last.Trip { // as after a restart
		change.To = max(change.To, o.trippedSince(now, last.At).To)
	}
	o.spill.allowed = spill.allowed
	if o.whole == nil && spill.onDisk { // the store may have deliveries under its other names
		o.spill.begin()
		o.spill.again = true
		o.circuit.Gate.Or(circuit.Line)
	}
	o.countLocked(b)
	return change
}

// spilling returns the door's spill.
func (o *door) spilling() spill {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spill
}

// renew gives the destinations the terms of those that were made for the subscription that takes them over, and its own door.
func (ds *destinations) renew(made *destinations, own *door, report func(*door, circuit.Change)) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	set := made.set.Load()
	ds.set.Store(set)
	for e := ds.used.Front(); e != nil; e = e.Next() {
		o := e.Value.(*door)
		report(o, o.renew(own, set))
	}
}

// detachedLocked returns the detached subscription that has some of the names, or nil if they are free.
func (r *registry) detachedLocked(names []string) (from *Subscription, err error) {
	for i, name := range names {
		other, ok := r.all.Find(name)
		switch {
		case slices.Contains(names[:i], name), ok && !other.detached.Load():
			return nil, fmt.Errorf("%w: %q; choose another, or unsubscribe or detach the first", ErrDuplicateName, name)
		case ok && from != nil && other != from:
			return nil, fmt.Errorf("%w: %q and %q are two detached subscriptions; take over one, or unsubscribe the other", ErrDuplicateName, from.id, other.id)
		case ok:
			from = other
		}
	}
	return from, nil
}

// ifPresent calls do if the bus has the subscription, and reports whether it has. Nothing can take it over meanwhile.
func (r *registry) ifPresent(s *Subscription, do func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.gone.Load() {
		return false
	}
	do()
	return true
}

// ofRecordLocked returns the subscription whose delivery under a name a record has: the present one, the last that has ended,
// which dead-letters it, or nil.
func (r *registry) ofRecordLocked(name string, of *record) *Subscription {
	s, ok := r.all.Find(name)
	old := r.removed[name]
	if letters := of.Type == deadLetterType; ok && s.letters != letters {
		return r.otherKind(name, letters)
	}
	switch {
	case !ok && old == nil:
		return nil
	case !ok && old.retired.Load() == nil:
		return old
	case old == nil:
		return s
	case old.retired.Load() == nil && of.Position < s.firstPosition(), old.retired.Load().has(of, s):
		return old
	case !ok && of.enters: // Retire was called since the record was divided: what memory has then ends
		return old
	case !ok:
		return nil
	}
	return s
}

// retire makes ended the subscription that has ended last under a name, also if no subscription of this process had the name.
func (r *registry) retire(name string, ended *Subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed == nil {
		r.removed = make(map[string]*Subscription)
	}
	r.removed[name] = ended
	delete(r.missing, name)
}

// retirement is the record of a Retire: the JSON of a row among the directives, one for each name of the subscription. Until it is
// Done, the next process that has the lease goes on with it.
type retirement struct {
	Retired string    `json:"retired"` // the name
	At      time.Time `json:"at"`
	Last    int64     `json:"last"` // the largest driver.Record.Position under the name: a later one is of a subscription that came back
	By      string    `json:"by,omitempty"`
	Why     string    `json:"why,omitempty"`
	Drop    bool      `json:"drop,omitempty"`
	Parked  int       `json:"parked,omitempty"`  // deliveries, when it began
	Ended   int64     `json:"ended,omitempty"`   // deliveries, by the process that ended the last one
	Settled bool      `json:"settled,omitempty"` // only deliveries for later are left
	Done    bool      `json:"done,omitempty"`    // nothing is left

	Quiet bool `json:"quiet,omitempty"` // it is another name of a subscription, and not in the audit

	ended atomic.Int64
}

// has reports whether a record of the name was accepted before the Retire. s is the subscription that has the name now, or nil.
func (in *retirement) has(of *record, s *Subscription) bool {
	if in == nil || of.Position > in.Last {
		return false
	}
	if s == nil || !s.succeeds {
		return true
	}
	since := s.since.Load() // 1: since before the lease
	return since <= 1 || of.Position < since
}

// endedOrders returns the directives that end those to subscriptions of names, and to their destinations.
func (op *operators) endedOrders(names []string, by *AuditEntry) (all []Directive) {
	op.mu.Lock()
	defer op.mu.Unlock()
	for at, o := range op.directives {
		if slices.Contains(names, at.subscription) && (o.Pause || o.Trip) {
			ended := Directive{Subscription: at.subscription, Destination: at.destination, By: by.By, Why: by.Why, At: by.At}
			if !ended.At.After(o.At) { // the clock was set back, and the latest counts
				ended.At = o.At.Add(1)
			}
			all = append(all, ended)
		}
	}
	return all
}

// isForRetired reports whether a name was retired since its subscription matched. In memory, the delivery would end as those that were
// accepted before the Retire.
func (o *opening) isForRetired() bool {
	for _, d := range o.all() {
		for _, s := range d.to.subscriptions {
			if s.latest().retired.Load() != nil {
				return true
			}
		}
	}
	return false
}

// newRetired returns a subscription that dead-letters or drops the deliveries of a retired name.
func (j *durable) newRetired(in *retirement) *Subscription {
	s := j.registry.absent(in.Retired)
	s.retired.Store(in)
	s.gone.Store(true)
	s.door.sets(terms{of: s, drops: in.Drop})
	s.door.circuit.Gate.Or(circuit.Removed)
	s.closeDoors(ReasonUnsubscribed)
	return s
}

// retires ends a detached subscription for Retire.
func (s *Subscription) retires(in *retirement, requeue func(...*dispatch)) {
	s.retired.Store(in)
	for _, o := range s.doors() {
		o.dropAtEnd(in.Drop)
	}
	s.end(requeue)
}

// dropAtEnd sets whether the end of the subscription drops the deliveries of the door, instead of dead-lettering them.
func (o *door) dropAtEnd(drop bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := *o.terms()
	t.drops = drop
	o.set.Store(&t)
}

// leftOf reports whether the store has deliveries of a retired name that the bus is ending, and others that end when they are due.
func (j *durable) leftOf(ctx context.Context, in *retirement) (now, later bool, err error) {
	s := j.registry.find(in.Retired)
	for q := (driver.RecordQuery{Targets: []string{in.Retired}, Limit: feederPage}); ; {
		page, err := j.store.Records(ctx, q)
		if err != nil {
			return false, false, err
		}
		records, err := decodeRecords(page.Records)
		if err != nil {
			return false, false, err
		}
		for _, r := range records {
			switch {
			case !in.has(r, s) || !r.isFor(in.Retired):
			case r.State == driver.Scheduled, r.State == driver.Waiting:
				later = true
			default:
				return true, later, nil
			}
		}
		if page.Next == 0 {
			return false, later, nil
		}
		q.After = page.Next
	}
}

// isFor reports whether a name is a target that the dispatch has not passed.
func (r *record) isFor(name string) bool {
	next := 0
	if r.progress != nil {
		next = min(r.progress.Next, len(r.Targets))
	}
	return slices.Contains(r.Targets[next:], name)
}

// retire adds retirements.
func (w *batch) retire(all ...*retirement) {
	for _, in := range all {
		w.Directives = append(w.Directives, driver.Directive{Subscription: retiredPrefix + in.Retired, Body: w.encode(in)})
	}
}
