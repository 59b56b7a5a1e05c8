package eventbus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/timeline"
)

// ExpiresAt makes the event expire at an instant of the wall clock, which the bus keeps to the nanosecond. From then on
// no call of a handler begins for the event. A subscription whose handler was not called before gets a dead letter with
// the reason too_late, or drops the event (DropExpired). Handlers see the instant in Event.Expires. The last ExpiresAt
// or ExpiresIn option applies.
//
// The bus checks the subscriptions of a dispatch in their order. Those with DropExpired drop the event. The first other
// one gets the letter, which lists the rest in NotReached. The bus notices an expiry at the event's turn, and otherwise
// within a minute: behind an open circuit, a pause or a limit, and in a store.
//
// The bus does not stop a call that has begun. If a retry or the end of a Snooze would come at the expiry or later, the
// event becomes a letter at once. A retry that is due in time but delayed becomes a letter too, and so does a delivery
// that a crash interrupted. All these are letters even with DropExpired, because the handler was called. A call that
// ends with Throttle does not count as one. A replay does not expire.
//
// Publish returns an *EventError for an instant that is zero, in the past, outside the years 0 to 9999, or not after
// the event is due (After, At). With ID or IdempotencyKey, an instant that has passed is no error, because the event
// may be a repetition. An incoming event (PublishTx, a standby) may expire before the bus takes it in. A new event that
// has expired gets its letters, or is dropped.
func ExpiresAt(t time.Time) PublishOption {
	return func(p publication) publication {
		if t.IsZero() {
			return p.refuse(&EventError{Field: "expiry", Value: t.String(), Reason: "is zero; omit the option for an event that does not expire"})
		}
		p.expires = &expiryOption{at: t}
		return p
	}
}

// ExpiresIn makes the event expire a duration after Publish is called, as ExpiresAt does for the instant. The duration counts from the
// call also if After or At delays the event. A duration of 0 or less is an *EventError.
func ExpiresIn(d time.Duration) PublishOption {
	return func(p publication) publication {
		if d <= 0 {
			return p.refuse(&EventError{Field: "expiry", Value: d.String(), Reason: "must be positive; omit the option for an event that does not expire"})
		}
		p.expires = &expiryOption{in: d}
		return p
	}
}

// expiryOption is when an event expires: some time after it is published, or at an instant.
type expiryOption struct {
	in time.Duration
	at time.Time
}

// from returns when the event expires, in UTC. is is when it is due, nil for now. An event whose id or key is remembered may be a
// repetition of one that was published in time.
func (o *expiryOption) from(now timeline.Instant, is *due, remembered bool) (*time.Time, error) {
	at := o.at.Round(0).UTC()
	if o.at.IsZero() {
		at = now.UTC.Add(o.in)
	}
	refuse := func(reason string) (*time.Time, error) {
		return nil, &EventError{Field: "expiry", Value: at.Format(time.RFC3339Nano), Reason: reason}
	}
	if !at.After(now.UTC) && !remembered {
		return refuse("has passed: no handler would be called; give a later one, or do not publish the event")
	}
	if !driver.Storable(at) {
		return refuse(badYear)
	}
	if is == nil {
		return &at, nil
	}
	begins := is.at
	if begins.IsZero() {
		begins = now.UTC.Add(time.Duration(is.nanos - now.Nanos))
	}
	if !at.After(begins) {
		return refuse("is not after the event is due, at " + begins.Format(time.RFC3339Nano) + "; give a later one, or a shorter delay")
	}
	return &at, nil
}

// DropExpired makes the subscription drop events that have expired before its handler was called, without a dead letter.
// Ledger.Dropped counts them. For an hour after the wall clock was set ahead by more than a minute, they become dead letters
// nevertheless: the clock may be wrong.
func DropExpired() SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.dropLate = true })
}

// expiry returns when the dispatch expires, in UTC, or the zero time.
func (d *dispatch) expiry() (at time.Time) {
	if expires := d.from().expires; expires != nil {
		at = *expires
	}
	return at
}

// expiresWithin reports whether a call that begins after a delay would be too late.
func (d *dispatch) expiresWithin(now timeline.Instant, delay time.Duration) bool {
	expires := d.from().expires
	return expires != nil && expires.Sub(now.UTC) <= delay
}

// unlessLate returns the decision, but no retry that would begin too late.
func (next decision) unlessLate(d *dispatch, now timeline.Instant) decision {
	if next.retry && d.expiresWithin(now, next.delay) {
		return decision{reason: ReasonTooLate}
	}
	return next
}

// endsBefore ends the attempt if no call of the next target may begin. It reports whether it has.
func (m *machine) endsBefore(s *Subscription, d *dispatch) bool {
	switch {
	case m.wasUnloaded(s.door, d):
		m.withdraw(d)
	case m.endsNow(d):
	case m.isLate(d):
		m.endLate(d)
	default:
		return false
	}
	return true
}

// endsNow ends the attempt if no call of the dispatch may begin at any door. It reports whether it has.
func (m *machine) endsNow(d *dispatch) bool {
	switch {
	case m.stops(d):
		m.withdraw(d)
	case m.standsCancelled(d):
		d.attempt-- // it calls no further handler
		m.settle(d, Cancelled)
	default:
		return false
	}
	return true
}

// endsAtDoor ends an attempt whose event has expired while the user's function for the destination ran. The door has admitted it.
func (m *machine) endsAtDoor(s *Subscription, d *dispatch, at *door, pass uint64) bool {
	if s.destinations == nil || !m.isLate(d) {
		return false
	}
	m.exit(d, at, pass, notCalled)
	m.endLate(d)
	return true
}

// isLate reports whether the event has expired: no call of the dispatch may begin.
func (m *machine) isLate(d *dispatch) bool {
	expires := d.from().expires
	return expires != nil && m.time.HasCome(*expires)
}

// endLate settles the remaining targets of a dispatch whose event has expired. The caller owns the dispatch, and has taken it out of the
// structure that held it.
func (m *machine) endLate(d *dispatch) {
	runs := d.state == stateRunning
	for ; !d.isVisited(); d.next++ {
		s := d.to.subscriptions[d.next]
		drops, ended := m.dropsLate(d, s), s.door.circuit.Gate.Load()&circuit.Removed != 0
		part := d
		if (drops || ended) && d.seat().Number == 0 && !d.isLast() { // those behind it do not end with it
			part = m.split(d)
		}
		if runs && part == d {
			d.attempt-- // it calls no further handler
		}
		switch {
		case drops:
			m.settle(part, Dropped)
		case ended:
			m.bury(part, ReasonUnsubscribed)
		default:
			m.bury(part, ReasonTooLate)
		}
		if part == d {
			return
		}
	}
	m.settle(d, Handled)
}

// dropsLate reports whether a subscription drops a dispatch that has expired. One with Once, which has taken another event, would
// drop it in time, too.
func (m *machine) dropsLate(d *dispatch, s *Subscription) bool {
	if s.door.terms().single && s.door.isSpent(d) {
		return true
	}
	crashed := d.row() != nil && d.row().crashes > 0 // perhaps in its handler
	begun := crashed || d.failedAt(s) || d.story != nil && d.story.detours != nil && d.story.detours.snoozes > 0
	return s.door.terms().dropLate && !begun && !m.time.Aged().Before(d.expiry())
}

// isSpent is isSpentLocked for callers without the lock.
func (o *door) isSpent(d *dispatch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isSpentLocked(d)
}

// sweepEvery is the time between two looks at the dispatches in memory for those that have expired. It is no multiple of a
// tick: when time is virtual, a worker would take an event at the moment of the look.
const sweepEvery = timeline.CheckEvery - timeline.Tick/3

// expiring counts the dispatches in memory whose events expire. While there are any, sweepLate runs every sweepEvery.
type expiring struct {
	count atomic.Int64
	mu    sync.Mutex // guards the following; a leaf
	armed bool
}

// holdsExpiring counts a dispatch whose event expires, when memory has it.
func (m *machine) holdsExpiring(d *dispatch) {
	if d.origin == nil || d.origin.expires == nil || d.expires {
		return
	}
	d.expires = true
	if m.expiring.count.Add(1) == 1 && m.expiring.arms() {
		m.time.AfterFunc(sweepEvery, m.sweepLate)
	}
}

// forgetsExpiring is the opposite of holdsExpiring.
func (m *machine) forgetsExpiring(d *dispatch) {
	if d.expires {
		d.expires = false
		m.expiring.count.Add(-1)
	}
}

// arms reports whether the caller must set the timer.
func (e *expiring) arms() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	arms := !e.armed && e.count.Load() > 0
	e.armed = e.armed || arms
	return arms
}

// fired notes that the timer has fired.
func (e *expiring) fired() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed = false
}

// sweepLate settles the dispatches in memory that have expired and do not run.
func (m *machine) sweepLate() {
	m.expiring.fired()
	if m.expiring.count.Load() == 0 || m.ledger.closed.Load() { // Shutdown may have given up on a store that hangs
		return
	}
	m.sweep(m.time.Now().UTC)
	if m.expiring.arms() {
		m.time.AfterFunc(sweepEvery, m.sweepLate)
	}
}

// sweep takes late dispatches out of each structure, and settles them afterwards.
func (m *machine) sweep(now time.Time) {
	late := func(d *dispatch) bool {
		if expires := d.from().expires; expires == nil || expires.After(now) {
			return false
		}
		return m.rests(d)
	}
	end := func(_ DispatchState, all []*dispatch) {
		for _, d := range all {
			m.endLate(d)
		}
	}
	queued := func(d *dispatch) bool { return late(d) && !d.seatedAt().ungated() } // they die as unsubscribed
	m.takeResting(late, queued, end)
}

// willExpire makes the feeder look for a dispatch that the store has without memory when it has expired.
func (f *feeder) willExpire(d *dispatch) {
	if expires := d.from().expires; expires != nil {
		f.expiries.Add(*expires)
	}
}

// recordExpires is willExpire for a record.
func (f *feeder) recordExpires(r *record) {
	if !r.Expires.IsZero() {
		f.expiries.Add(r.Expires)
	}
}

// feedExpired settles the records that have expired and that memory does not have, a page at a time. A claim sets the alarm for the next one.
func (f *feeder) feedExpired(ctx context.Context) error {
	for f.expiries.Due() {
		f.expiries.Clear()
		more, err := f.claimExpired(ctx)
		if more || err != nil {
			f.expiries.Ring()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// claimExpired settles a page of records. Their dispatches take no room in the queue.
func (f *feeder) claimExpired(ctx context.Context) (more bool, err error) {
	b := f.bus
	claimed, err := b.store.Claim(ctx, driver.ClaimQuery{Kind: driver.ClaimExpired, Limit: f.page(), Now: b.time.Now().UTC})
	if err != nil {
		return false, err
	}
	if !claimed.NextDue.IsZero() {
		f.expiries.Add(claimed.NextDue)
	}
	records, err := decodeRecords(claimed.Records)
	if err != nil {
		return false, err
	}
	var late, coupled []*record
	for _, r := range records {
		if r.State != driver.Parked {
			coupled = append(coupled, r)
			continue
		}
		if _, missing := b.registry.targetsOfRecord(r); len(missing) > 0 {
			b.intake.quota.Add(b.durable.orphans.Remove(r.Door)) // it counts until it has settled
		}
		late = append(late, r)
	}
	entering, err := f.divide(ctx, coupled)
	if err != nil {
		return false, err
	}
	keyed := false
	for _, r := range append(late, entering...) {
		keyed = keyed || r.Key != ""
		b.machine.endLate(f.load(r))
	}
	b.ledger.checkDrained()
	if keyed { // a later claim may have the next ones of their keys
		err = f.apply(ctx, newBatch(b.time))
	}
	return claimed.More, err
}
