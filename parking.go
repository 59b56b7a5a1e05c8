package eventbus

import (
	"math"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/timeline"
)

// parking is how a delivery is parked: who waits for it, and what happens when the line is full. There are
// line.Reasons of them.
type parking uint8

const (
	held      parking = iota // no caller waits
	throttled                // a running handler will return soon, or the service can be called again, so callers wait
	snoozed                  // its handler has postponed it
)

var parkingRules = [line.Reasons]struct {
	publishWaits bool // Publish waits while the line is full; otherwise the delivery overflows
	waiterWaits  bool // PublishAndWait waits for the delivery; otherwise its result names it
	drains       bool // Drain waits for the delivery, and Shutdown without a store
}{
	held:      {},
	throttled: {publishWaits: true, waiterWaits: true, drains: true},
	snoozed:   {waiterWaits: true},
}

// publishWaits reports whether Publish waits for one of the parked deliveries.
func publishWaits(parked [line.Reasons]int) bool {
	for how, rule := range parkingRules {
		if rule.publishWaits && parked[how] > 0 {
			return true
		}
	}
	return false
}

// barrier is a reason not to admit a delivery. Its value is all that doors, Metrics, the page and the command
// know of it. A door looks at barriers only if a limit is reached or its gate has a bit of circuit.Ask: the
// option or the method behind a barrier sets such a bit. Whoever begins to shut a door tends it afterwards,
// a barrier that begins at a time by a timer (machine.doors): otherwise what is throttled stays so, and
// callers wait for it.
//
// The functions are called with the door's mutex.
type barrier struct {
	name ParkReason
	as   parking // how it parks deliveries

	// shuts reports whether it keeps out all deliveries now, and when to look again: math.MaxInt64 if that
	// takes a call of tend.
	shuts func(o *door, b *Bus) (shut bool, again int64)

	// admits, if set, decides instead of shuts on an arrival: how many deliveries like it may enter now. If
	// none may, again is as for shuts.
	admits func(o *door, b *Bus, a arrival) (most int, again int64)

	// lasts, if set, reports whether shuts will be true for long. Until then, throttled deliveries stay throttled.
	lasts func(o *door) bool

	// ends, if set, returns the outcome of a delivery that is refused and not parked, and the reason of its
	// dead letter. It returns Waiting for one that is parked.
	ends func(o *door) (Outcome, Reason)
}

// arrival is a delivery that asks for admission.
type arrival struct {
	*dispatch
	now    int64
	others int  // calls that run, and deliveries that were released before
	all    int  // others, and the same of the subscription's other destinations
	inLine bool // it is parked; when it is released, it asks again at the door
	seated bool // it has a seat, in the line or from an earlier attempt
	fresh  bool // it has not failed at the subscription
	chosen bool // it was released to probe
}

var (
	// forgotten: the destination's door is being forgotten. The delivery takes another one: see destinations.
	forgotten = &barrier{
		admits: func(o *door, _ *Bus, a arrival) (int, int64) { return unless(!a.inLine && o.has(circuit.Forgotten)) },
	}

	// removed: the subscription has ended.
	removed = &barrier{
		admits: func(o *door, _ *Bus, a arrival) (int, int64) { return unless(!a.inLine && o.has(circuit.Removed)) },
		ends:   func(*door) (Outcome, Reason) { return DeadLettered, ReasonUnsubscribed },
	}

	// taken: the subscription has Once, and has taken another event.
	taken = &barrier{
		admits: func(o *door, _ *Bus, a arrival) (int, int64) { return unless(!a.inLine && o.isSpentLocked(a.dispatch)) },
		ends:   func(*door) (Outcome, Reason) { return Dropped, "" },
	}

	// behindKey: an earlier delivery of the key has a seat. This one is parked as that one is.
	behindKey = &barrier{
		name: ParkThrottled, as: throttled,
		admits: func(o *door, _ *Bus, a arrival) (int, int64) {
			return unless(!a.seated && o.comesAfterLocked(a.dispatch))
		},
	}

	// detached: Detach was called, and no other subscription of the name has taken over.
	detached = &barrier{
		name:  ParkDetached,
		shuts: func(o *door, _ *Bus) (bool, int64) { return o.has(circuit.Detached), math.MaxInt64 },
	}

	paused = &barrier{
		name: ParkPaused,
		shuts: func(o *door, b *Bus) (bool, int64) {
			if o.whole != nil {
				if shut, until := o.whole.paused(b); shut {
					return true, b.time.Look(until)
				}
			}
			o.endPauseLocked(b)
			return o.has(circuit.Paused), b.time.Look(o.pausedUntil)
		},
	}

	// hung: too many abandoned calls run. One that was cancelled just now may be about to return.
	hung = &barrier{
		name:  ParkHung,
		shuts: func(o *door, _ *Bus) (bool, int64) { return o.has(circuit.Hung), math.MaxInt64 },
		lasts: func(o *door) bool { return o.hanging.Lasts() || o.whole != nil && o.whole.hanging.Lasts() },
	}

	// outage: the circuit is open, or half-open with a probe.
	outage = &barrier{
		name:   ParkCircuit,
		shuts:  func(o *door, _ *Bus) (bool, int64) { return o.has(circuit.Outage), math.MaxInt64 },
		admits: (*door).admitsProbeLocked,
		ends: func(o *door) (Outcome, Reason) {
			switch o.terms().whenOpen {
			case DropWhenOpen:
				return Dropped, ""
			case DeadLetterWhenOpen:
				return DeadLettered, ReasonCircuitOpen
			default:
				return Waiting, ""
			}
		},
	}

	// slowed: a handler has asked everyone to wait (Throttle).
	slowed = &barrier{
		name: ParkThrottled, as: throttled,
		admits: func(o *door, _ *Bus, a arrival) (int, int64) {
			if !o.has(circuit.Slowed) {
				return math.MaxInt, 0
			}
			return o.slowdown.Admits(a.now, a.others)
		},
	}

	// rated: the rate limit is reached.
	rated = &barrier{
		name: ParkThrottled, as: throttled,
		admits: func(o *door, _ *Bus, a arrival) (int, int64) {
			switch rate := o.terms().rate; {
			case rate == nil:
				return math.MaxInt, 0
			case a.seated && !a.inLine: // it has a place among those that come
				return rate.Ready(a.now, 0)
			default:
				return rate.Ready(a.now, o.line.Count(line.Coming))
			}
		},
	}

	// asleep: its handler has postponed it (Snooze). No door refuses a delivery for that.
	asleep = &barrier{name: ParkSnoozed, as: snoozed}
	// stillAsleep is asleep for a delivery that was read from a store, which asks for no room that others have.
	stillAsleep = &barrier{name: ParkSnoozed, as: snoozed}

	// behindLine: earlier deliveries are throttled, or in the store.
	behindLine = &barrier{
		name: ParkThrottled, as: throttled,
		admits: func(o *door, _ *Bus, a arrival) (int, int64) {
			return unless(!a.seated && (o.line.Parked()[throttled] > 0 || o.goesToStoreLocked(a.dispatch) && !o.isNewestLocked(a.dispatch)))
		},
	}

	// limited: a concurrency limit is reached.
	limited = &barrier{
		name: ParkThrottled, as: throttled,
		admits: func(o *door, b *Bus, a arrival) (int, int64) { return unless(o.isLimited(b, a.others, a.all)) },
	}
)

// barriers lists all reasons not to admit a delivery. A door refuses a delivery for the first that applies,
// which gives the name and the outcome: what an operator has paused is held, and not dropped by DropWhenOpen.
var barriers = [...]*barrier{forgotten, removed, taken, behindKey, detached, paused, hung, outage, slowed, rated, behindLine, limited}

// unless returns the result of admits for a barrier that admits all deliveries or none.
func unless(refuses bool) (most int, again int64) {
	if refuses {
		return 0, math.MaxInt64
	}
	return math.MaxInt, 0
}

// has reports whether the gate has a bit, or for a destination the subscription's gate.
func (o *door) has(bit uint64) bool { return (o.circuit.Gate.Load()|o.wholeGate())&bit != 0 }

// ask returns how many deliveries like an arrival the barrier admits now. If it admits none, something
// tends the door at the time again or before.
func (r *barrier) ask(o *door, b *Bus, a arrival) (most int, again int64) {
	if r.admits != nil {
		return r.admits(o, b, a)
	}
	if shut, again := r.shuts(o, b); shut {
		return 0, again
	}
	return math.MaxInt, 0
}

// refusesLocked returns the first barrier that does not admit an arrival, and when to look again. Without
// one, most is how many deliveries like it may enter.
func (o *door) refusesLocked(b *Bus, a arrival) (why *barrier, most int, again int64) {
	most = math.MaxInt
	for _, r := range barriers {
		n, again := r.ask(o, b, a)
		if n == 0 {
			return r, 0, again
		}
		most = min(most, n)
	}
	return nil, most, 0
}

// shutLocked returns the first barrier that keeps out all deliveries now, or nil.
func (o *door) shutLocked(b *Bus) *barrier {
	for _, r := range barriers {
		if r.shuts == nil {
			continue
		}
		if shut, _ := r.shuts(o, b); shut {
			return r
		}
	}
	return nil
}

// shutsForLongLocked reports whether the throttled deliveries must be held too.
func (o *door) shutsForLongLocked(b *Bus) bool {
	for _, r := range barriers {
		if r.as != held || r.shuts == nil || r.lasts != nil && !r.lasts(o) {
			continue
		}
		if shut, _ := r.shuts(o, b); shut {
			return true
		}
	}
	return false
}

// shutBy returns why no delivery may enter now, or "".
func (o *door) shutBy(b *Bus) ParkReason {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := o.shutLocked(b); r != nil {
		return r.name
	}
	return ""
}

// each calls visit with the deliveries of the line, and why they are parked.
func (o *door) each(b *Bus, visit func(d *dispatch, due int64, why ParkReason)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.line.All() {
		visit(d, d.seat().Until, o.whyParkedLocked(b, d))
	}
}

// whyParkedLocked returns why a delivery is in the line.
func (o *door) whyParkedLocked(b *Bus, d *dispatch) ParkReason {
	if _, sleeps, _ := o.line.Leads(d.key); sleeps || d.seat().Until != 0 {
		return asleep.name
	}
	r, _, _ := o.refusesLocked(b, o.inLineLocked(b, d))
	if r == nil {
		r = o.shutLocked(b) // it is about to probe
	}
	if r == nil {
		r = limited // of those that were held, releaseMost come at once
	}
	return r.name
}

// newRate returns a rate limit, or nil for none.
func newRate(c *RateSettings) *circuit.Rate {
	if c == nil {
		return nil
	}
	return circuit.NewRate(c.Calls, c.Per, c.Burst)
}

// sets sets the terms of a door. The caller holds the lock, or the door is new.
func (o *door) sets(t terms) {
	o.set.Store(&t)
	if t.rate != nil {
		o.circuit.Gate.Or(circuit.Rated)
	} else {
		o.circuit.Gate.And(^uint64(circuit.Rated))
	}
	if o.taken = (EventID{}); t.single {
		o.circuit.Gate.Or(circuit.Single)
	} else {
		o.circuit.Gate.And(^uint64(circuit.Single))
	}
}

// slow keeps all deliveries out until a point on the timeline, for one that has asked for that. It reports whether none had.
func (o *door) slow(until int64) (begins bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.slowdown.Begin(&o.circuit.Gate, until)
}

// quicken lets more calls run after one has ended that began during a slowdown.
func (o *door) quicken(b *Bus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.has(circuit.Slowed) {
		o.slowdown.Ended(&o.circuit.Gate, b.time.Nanos(), int(o.terms().limit))
	}
}

// endSlowdown lets all deliveries in again. It reports whether they were kept out.
func (o *door) endSlowdown() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.slowdown.End(&o.circuit.Gate)
}

// slowUntil returns when the first call may begin of a door that is slowed, or 0.
func (o *door) slowUntil() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.has(circuit.Slowed) {
		return 0
	}
	return o.slowdown.Until()
}

// postpone ends a call without an outcome: it was withdrawn, or the handler has asked for that. It returns how the delivery is
// parked, and until when if it sleeps.
func (m *machine) postpone(d *dispatch, at *door, pass uint64, r *result) (as *barrier, until int64) {
	v, now, what := r.verdict, m.time.Nanos(), noOutcome
	d.goesTo(at)
	switch {
	case !v.postpones():
		as, what = r.shut, notCalled
	case v.snooze != nil:
		as, until = asleep, timeline.Later(now, v.snooze.delay)
	default:
		as = slowed
		// Before exit, which would take this call for one that lets more run.
		if delay := min(v.throttle.delay, at.of().throttle); at.slow(timeline.Later(now, delay)) {
			m.report.throttled(d, at, delay, v.text)
		}
	}
	m.exit(d, at, pass, what)
	return as, until
}

// split splits the delivery to the next target off as a dispatch of its own.
func (m *machine) split(d *dispatch) *dispatch {
	m.ledger.splits.Add(1)
	m.intake.quota.Add(1)
	d.divided(1)
	waiter, delivery := d.waiter(), d.splitOff(d.to.policy())
	if waiter != nil {
		waiter.expect(1)
		delivery.ensureStory().part = true
	}
	return delivery
}

// sleepsTooLong returns the reason of the dead letter of a delivery that would sleep until a point on the timeline beyond MaxElapsed
// or its event's expiry, or "".
func (m *machine) sleepsTooLong(d *dispatch, until int64) Reason {
	now := m.time.Now()
	delay := time.Duration(until - now.Nanos)
	switch {
	case runsOut(d.to.policy().MaxElapsed, d.elapsed(now, m.time), delay):
		return ReasonExpired
	case d.expiresWithin(now, delay):
		return ReasonTooLate
	}
	return ""
}

// sleep parks a delivery that was read from a store, where it sleeps until a point on the timeline.
func (m *machine) sleep(d *dispatch, until int64) {
	d.ensureStory().notBefore = until
	victim, spills, reason := m.sit(d, d.seatedAt().doorTo(d.destination()), stillAsleep)
	if victim != nil {
		m.settle(victim, Dropped)
	}
	switch {
	case reason != "":
		m.bury(d, reason)
	case spills:
		m.journal.park(d, true) // otherwise its record stays leased, and no claim finds it
	case victim != d:
		m.applyPark(d)
	}
}
