package eventbus

import (
	"math"
	"slices"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/keys"
)

// enter makes a dispatch of a claimed record. It reports whether the dispatch has taken the room in
// the queue that is reserved for it.
func (f *feeder) enter(r *Record) (queued bool) {
	b := f.bus
	d := f.restore(r)
	if r.State == RecordScheduled {
		b.due(d)
		return false
	}
	b.queue(d, true)
	return true
}

// restore makes a dispatch of a claimed record, with its waiter if it has one.
func (f *feeder) restore(r *Record) *dispatch {
	b := f.bus
	if r.Own {
		b.ledger.reclaimed.Add(1)
	} else {
		b.ledger.claimed.Add(1)
	}
	d := b.restore(r, f.targetsOf(r))
	if r.State == RecordParked {
		d.origin.stored.parked = true
		if r.Own {
			d.seatedAt().door.unspill()
			d.origin.stored.spilled = r.Key != ""
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if waiter := f.waiters[d.id]; waiter != nil && r.Own {
		d.origin.waiter = waiter
	}
	return d
}

// targetsOf returns the targets of a record. A subscription that does not exist is represented by a
// stand-in, whose door parks the delivery in the store.
func (f *feeder) targetsOf(r *Record) *targets {
	b := f.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	to := &targets{eventType: r.Type, recorded: r.Targets, counters: b.types.Of(r.Type)}
	for _, name := range r.Targets {
		to.subscriptions = append(to.subscriptions, b.namedLocked(name))
	}
	to.retry = b.retryInForce(to.subscriptions)
	if r.State == RecordScheduled { // its copies do not exist yet
		b.isolate(to)
	}
	return to
}

// removedLocked notes that a subscription has ended.
func (b *Bus) removedLocked(s *Subscription) {
	if b.removed == nil {
		b.removed = make(map[string]bool)
	}
	for _, name := range append(slices.Clone(s.formerly), s.id) {
		b.removed[name] = true
		delete(b.missing, name) // that stand-in was made for the time before the subscription
	}
}

// isAdopted reports whether a subscription has taken the place of a stand-in.
func (b *Bus) isAdopted(s *Subscription) bool {
	if s.door.circuit.gate.Load()&gateMissing == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, exists := b.subscriptions.Find(s.id)
	return exists
}

// namedLocked returns the subscription with a name, or its stand-in.
func (b *Bus) namedLocked(name string) *Subscription {
	if s, ok := b.subscriptions.Find(name); ok {
		return s
	}
	if s := b.missing[name]; s != nil {
		return s
	}
	// Deliveries of a subscription that this process has removed are dead-lettered.
	why, removed := uint64(gateMissing), b.removed[name]
	if removed {
		why = gateRemoved
	}
	s := &Subscription{bus: b, id: name, named: true, timeout: b.config.timeout}
	s.door.limit, s.door.share, s.door.capacity, s.door.ledger = math.MaxInt32, math.MaxInt32, math.MaxInt, &b.ledger
	s.door.circuit.init(b.config.circuit, b.time)
	s.door.circuit.gate.Or(why)
	s.retry.Store(&noRetry)
	if b.config.isolation {
		s.gate = keys.New[*dispatch](1)
	}
	if b.missing == nil {
		b.missing = make(map[string]*Subscription)
	}
	b.missing[name] = s
	if !removed {
		b.log.Warn("subscription of stored events is missing", zap.String("subscription_id", name))
	}
	return s
}
