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
	if waiter := f.waiters[d.id]; waiter != nil && r.Own && !(r.State == RecordParked && waiter.holds(d.seatedAt())) {
		d.origin.waiter = waiter
	}
	return d
}

// holds reports whether the wait for a delivery has ended because it is held.
func (w *waiter) holds(s *Subscription) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.heldAt, s.id)
}

// targetsOf returns the targets of a record. A subscription that does not exist is represented by a
// stand-in, whose door parks the delivery in the store.
func (f *feeder) targetsOf(r *Record) *targets {
	b := f.bus
	b.mu.Lock()
	var missing []string
	defer func() {
		b.mu.Unlock()
		for _, name := range missing {
			b.log.Warn("subscription of stored events is missing", zap.String("subscription_id", name))
		}
	}()
	to := &targets{eventType: r.Type, recorded: r.Targets, counters: b.types.Of(r.Type)}
	for _, name := range r.Targets {
		s, isMissing := b.namedLocked(name)
		if isMissing {
			missing = append(missing, name)
		}
		to.subscriptions = append(to.subscriptions, s)
	}
	to.retry = b.retryInForce(to.subscriptions)
	if r.State == RecordScheduled { // its copies do not exist yet
		b.isolate(to)
	}
	return to
}

// adoptLocked lets a subscription take the place of the stand-ins of its names.
func (b *Bus) adoptLocked(s *Subscription, names []string) {
	for _, name := range names {
		if standIn := b.missing[name]; standIn != nil {
			s.door.adopt(&standIn.door)
			if standIn.gate != nil {
				s.gate = standIn.gate // with isolation, dispatches of the stand-in may be on their way
			}
		}
		delete(b.removed, name)
		delete(b.missing, name)
	}
}

// removedLocked notes that a subscription has ended.
func (b *Bus) removedLocked(s *Subscription) {
	if b.removed == nil {
		b.removed = make(map[string]bool)
	}
	for _, name := range append(slices.Clone(s.formerly), s.id) {
		b.removed[name] = true
	}
	standIn, _ := b.namedLocked(s.id)
	standIn.door.adopt(&s.door)
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

// namedLocked returns the subscription with a name, or its stand-in. It reports whether the name is
// found to be missing for the first time.
func (b *Bus) namedLocked(name string) (s *Subscription, isMissing bool) {
	if s, ok := b.subscriptions.Find(name); ok {
		return s, false
	}
	if s := b.missing[name]; s != nil {
		return s, false
	}
	// Deliveries of a subscription that this process has removed are dead-lettered.
	why, removed := uint64(gateMissing), b.removed[name]
	if removed {
		why = gateRemoved
	}
	s = &Subscription{bus: b, id: name, named: true, timeout: b.config.timeout}
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
	return s, !removed
}

// endWaiters ends the waits for events that only the store has.
func (f *feeder) endWaiters() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, waiter := range f.waiters {
		f.bus.endWait(waiter)
	}
}

// keepWaiter keeps the waiter of a dispatch that leaves memory, until it is claimed again. Call it
// before the record is submitted: the feeder may claim the record before it is called back about
// it.
func (f *feeder) keepWaiter(d *dispatch) {
	waiter := d.waiter()
	if waiter == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !waiter.gone {
		f.waiters[d.id] = waiter
	}
}

// forget drops a waiter that no longer waits.
func (f *feeder) forget(id EventID, w *waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.gone = true
	if f.waiters[id] == w {
		delete(f.waiters, id)
	}
}
