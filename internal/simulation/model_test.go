package simulation

import (
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// simModel says what a bus must do: plain code without concurrency. The driver tells
// it what it does, and which of the dispatches that are ready a worker has taken and
// goes on with, since that is the bus's to choose. All the rest follows, and at every
// step what can be seen of the bus must be as it is here.
type simModel struct {
	merge   func([]*simSub) simPolicy      // of a dispatch to them
	random  func(at time.Duration) float64 // what the bus draws at an instant
	cancels func(*simDispatch)             // is told of what is cancelled on its way

	ending, drained, cut bool

	now       time.Duration              // since the bus was made
	subs      []*simSub                  // that exist, in the order of Subscribe
	open      []*simDispatch             // in the order of queueing; those held since, in that of holding
	begun     []*simDispatch             // whose calls must have begun since the driver looked
	letters   []*simDispatch             // oldest first
	ledger    eventbus.Ledger            // what has come in
	ended     map[eventbus.Outcome]int64 // what has gone out
	abandoned int
	events    int                    // how often one was published, or has become due
	known     map[[2]string]simKnown // by event type and idempotency key
	sweepAt   time.Duration          // when late dispatches are looked for; 0: none expires
}

type simDispatch struct {
	event    *simEvent
	order    int       // in that of its key's letters: when the event was published, or became due
	state    string    // scheduled, queued, taken, running, waiting, held; or settled
	rest     []*simSub // to be visited, beginning with the next
	splits   int       // deliveries that were split off because a door has refused them
	part     bool      // it is one of those
	policy   simPolicy
	attempt  int
	called   bool // the call of a delivery that an action has taken out of it had begun
	replays  int
	failures []simFailure
	handled  []string // where it was, in this dispatch and before
	before   int      // of these, those before the last replay
	place    bool     // later ones of its key wait for it
	seated   bool     // it has been held
	coming   bool     // it was, and has been let go
	chosenIn int64    // to probe in this outage of the circuit, from 1; 0: it was not
	pass     int      // the circuit's generation when the call began
	due      time.Duration
	later    time.Duration   // when its event is due; 0 without a delay
	replayed time.Duration   // when
	idle     time.Duration   // its delay, and the time that it was held
	parked   time.Duration   // when it was held last
	reason   eventbus.Reason // of a letter
	wait     *simWait
}

// all are the dispatches that something is true of, in their order.
func (m *simModel) all(is func(*simDispatch) bool) []*simDispatch {
	return slices.DeleteFunc(slices.Clone(m.open), func(d *simDispatch) bool { return !is(d) })
}

// in is how many are in one of the states.
func (m *simModel) in(states ...string) int64 {
	return int64(len(m.all(func(d *simDispatch) bool { return slices.Contains(states, d.state) })))
}

// behind reports whether a dispatch has to wait for one before it of its key. At an isolated subscription that has ended, none has.
func (m *simModel) behind(d *simDispatch) bool {
	if at := d.rest[0].order(); at != nil && at.removed {
		return false
	}
	return slices.ContainsFunc(m.open[:slices.Index(m.open, d)], func(x *simDispatch) bool {
		return d.place && x.place && x.event.key == d.event.key && x.rest[0].order() == d.rest[0].order()
	})
}

// order is whose order by key a dispatch at the subscription has: its own if it is isolated, nil for that of all others.
func (s *simSub) order() *simSub {
	if s.isolated {
		return s
	}
	return nil
}

// places is the subscriptions of each dispatch that an event to them is: of each isolated one, and of the others.
func places(to []*simSub) (each [][]*simSub) {
	coupled := -1
	for _, sub := range to {
		if !sub.isolated && coupled >= 0 {
			each[coupled] = append(each[coupled], sub)
			continue
		}
		if !sub.isolated {
			coupled = len(each)
		}
		each = append(each, []*simSub{sub})
	}
	return each
}

// runnable reports whether a dispatch is queued and its key's turn has come.
func (m *simModel) runnable(d *simDispatch) bool { return d.state == "queued" && !m.behind(d) }

// seated are those that a subscription has held and that have not settled.
func (m *simModel) seated(s *simSub) []*simDispatch {
	return m.all(func(d *simDispatch) bool { return d.seated && d.rest[0] == s })
}

// advance does what happens by itself at an instant.
func (m *simModel) advance(now time.Duration) {
	m.now = now
	for _, d := range slices.Clone(m.open) {
		switch {
		case d.due > now:
		case d.state == "scheduled":
			m.enqueue(d)
		case d.state == "waiting":
			d.state = "queued"
		case d.state == "running":
			m.abandoned++
			d.rest[0].hanging++
			m.fail(d, "timeout", m.delay(d))
		}
	}
	m.lookForLate()
	m.tend()
}

// publish accepts an event for some subscriptions.
func (m *simModel) publish(e *simEvent, to []*simSub, wait *simWait) {
	m.ledger.Accepted++
	m.events++
	d := &simDispatch{event: e, order: m.events, state: "scheduled", rest: to, later: simLater(m.now, e.delay), due: m.now + e.delay, wait: wait, idle: e.delay}
	m.open = append(m.open, d)
	if len(to) == 0 {
		m.settle(d, eventbus.Unrouted)
	} else if e.delay == 0 {
		m.enqueue(d)
	}
}

// enqueue makes an event into its dispatches, which take their keys' places.
func (m *simModel) enqueue(d *simDispatch) {
	var all []*simDispatch
	if d.state == "scheduled" && d.idle > 0 { // it has become due
		m.events++
		d.order = m.events
	}
	for _, to := range places(d.rest) {
		one := *d
		one.state, one.rest, one.policy, one.place, one.due = "queued", to, m.merge(to), d.event.key != "", 0
		one.failures, one.handled = slices.Clip(d.failures), slices.Clip(d.handled)
		all = append(all, &one)
	}
	m.ledger.Copies += int64(len(all) - 1)
	if d.replays == 0 {
		d.event.dispatches = len(all)
	}
	m.open = append(slices.DeleteFunc(m.open, func(x *simDispatch) bool { return x == d }), all...)
	m.armSweep()
}

// run is an attempt, of a dispatch that was taken.
func (m *simModel) run(d *simDispatch) {
	d.attempt++
	d.coming = false
	m.visit(d)
}

// visit goes on until a call begins. What is for a subscription that is skipped is
// split off, unless that is all there is.
func (m *simModel) visit(d *simDispatch) {
	for ; len(d.rest) > 0; d.rest = d.rest[1:] {
		if m.cut {
			d.attempt--
			m.bury(d, eventbus.ReasonShutdown)
			return
		}
		if m.cancelledOnItsWay(d) {
			return
		}
		if d.isLate(m.now) {
			m.endLate(d, 1)
			return
		}
		s := d.rest[0]
		why := m.refuses(d, s)
		switch {
		case why == "":
			m.begin(d, s)
			return
		case d.seated:
			d.attempt--
			m.skip(d, s, why)
			return
		}
		s.skipped++
		split := d.split()
		if len(d.rest) == 1 && len(d.handled) == d.before {
			m.open[slices.Index(m.open, d)] = &split
			m.skip(&split, s, why)
			return
		}
		m.ledger.Splits++
		split.place, split.wait, split.part, split.splits = false, nil, true, 0
		d.splits++
		m.open = append(m.open, &split)
		m.skip(&split, s, why)
		d.wait.note(&split)
	}
	m.settle(d, eventbus.Handled)
}

// split is the delivery to the next subscription alone.
func (d *simDispatch) split() simDispatch {
	split := *d
	split.rest, split.handled, split.attempt = d.rest[:1], slices.Clip(d.handled[:d.before]), 0
	split.failures = slices.DeleteFunc(slices.Clone(d.failures), func(f simFailure) bool {
		return f.replays == d.replays && f.sub != d.rest[0].name
	})
	if n := len(split.failures); n > 0 && split.failures[n-1].replays == d.replays {
		split.attempt = split.failures[n-1].attempt
	}
	return split
}

// refuses is why a dispatch skips a subscription, "" if it does not.
func (m *simModel) refuses(d *simDispatch, s *simSub) string {
	sameKey := func(x *simDispatch) bool { return x.event.key == d.event.key }
	switch {
	case s.removed:
		return "removed"
	case !d.seated && d.event.key != "" && slices.ContainsFunc(m.seated(s), sameKey):
		return "behind"
	case m.now < s.pausedUntil:
		return "paused"
	case s.hung():
		return "hung"
	case s.circuit.shut() && s.whenOpen == eventbus.HoldWhenOpen && (d.seated && d.chosenIn != s.circuit.opens || !d.seated && m.probes(s)):
		return "open"
	case s.circuit.admits(m.now, d.fresh()) == 0:
		return "open"
	}
	return ""
}

// fresh reports whether a dispatch has not failed at the next subscription.
func (d *simDispatch) fresh() bool {
	return !slices.ContainsFunc(d.failures, func(f simFailure) bool { return f.sub == d.rest[0].name && f.replays == d.replays })
}

// ready are those that a subscription holds, but for those behind another of their key.
func (m *simModel) ready(s *simSub) (can []*simDispatch) {
	keys := map[string]bool{}
	for _, d := range m.seated(s) {
		if d.state == "held" && !keys[d.event.key] {
			can = append(can, d)
		}
		keys[d.event.key] = d.event.key != ""
	}
	return can
}

// probes reports whether it is the turn of one that a subscription has held to probe, and not of a new one.
func (m *simModel) probes(s *simSub) bool {
	can := m.ready(s)
	switch {
	case s.circuit.failed == 2:
	case s.circuit.newest:
		return false
	default:
		can = slices.DeleteFunc(can, func(d *simDispatch) bool { return !d.fresh() })
	}
	return len(can) > 0 || slices.ContainsFunc(m.seated(s), func(d *simDispatch) bool { return d.chosenIn > 0 })
}

// skip does with what is for a skipped subscription what that wants.
func (m *simModel) skip(d *simDispatch, s *simSub, why string) {
	switch {
	case why == "removed":
		m.bury(d, eventbus.ReasonUnsubscribed)
	case why == "open" && s.whenOpen == eventbus.DropWhenOpen:
		m.settle(d, eventbus.Dropped)
	case m.drained && (why != "open" || s.whenOpen == eventbus.HoldWhenOpen):
		m.bury(d, eventbus.ReasonShutdown)
	case why == "open" && s.whenOpen == eventbus.DeadLetterWhenOpen:
		m.bury(d, eventbus.ReasonCircuitOpen)
	case !d.seated && len(m.seated(s)) >= s.holds:
		m.bury(d, eventbus.ReasonOverflow)
	default:
		if !d.seated {
			m.open = append(slices.DeleteFunc(m.open, func(x *simDispatch) bool { return x == d }), d)
		}
		d.state, d.seated, d.place, d.parked = "held", true, false, m.now
		d.wait.ended(d, eventbus.Held)
		d.wait = nil
	}
}

// tend lets go what is held, oldest first and one of a key at a time: as many as the
// circuit admits.
func (m *simModel) tend() {
	for _, s := range m.subs {
		coming := len(m.all(func(d *simDispatch) bool { return d.coming && d.rest[0] == s }))
		can := m.ready(s)
		if s.circuit.shut() && len(can) > 0 { // the one to probe
			fresh := slices.DeleteFunc(slices.Clone(can), func(d *simDispatch) bool { return !d.fresh() })
			switch {
			case len(fresh) == 0 || s.circuit.failed == 2:
				can = can[:1]
			case s.circuit.newest:
				can = fresh[len(fresh)-1:]
			default:
				can = fresh[:1]
			}
		}
		for _, d := range can {
			if m.now >= s.pausedUntil && !s.hung() && coming < s.circuit.admits(m.now, d.fresh()) {
				for _, x := range m.seated(s) {
					x.chosenIn = 0
				}
				if d.state, d.coming = "queued", true; s.circuit.shut() {
					d.chosenIn = s.circuit.opens
				}
				d.idle += m.now - d.parked
				coming++
			}
		}
	}
}

func (m *simModel) begin(d *simDispatch, s *simSub) {
	d.pass, d.chosenIn = s.circuit.enter(m.now, d.fresh()), 0
	d.state, d.due = "running", m.now+s.timeout
	m.begun = append(m.begun, d)
}

// succeed is a success. What the handler has emitted is accepted before the dispatch goes on.
func (m *simModel) succeed(d *simDispatch, emit func()) {
	s := d.rest[0]
	s.circuit.record(d.pass, d.event, m.now, false)
	d.due, d.handled, d.rest = 0, append(d.handled, s.name), d.rest[1:]
	emit()
	m.visit(d)
}

// fail is a failure: error, pointless, permanent, after, panic, exit, timeout.
func (m *simModel) fail(d *simDispatch, kind string, delay time.Duration) {
	s := d.rest[0]
	d.failures = append(d.failures, simFailure{s.name, d.attempt, d.replays})
	if kind != "permanent" && (kind != "pointless" || !s.retryIf) { // a rejection says nothing of the subscription
		s.circuit.record(d.pass, d.event, m.now, true)
	}
	s.circuit.release(d.pass)
	m.tend() // before the next of its key can be let go
	switch d.due = m.now + delay; {
	case kind == "permanent" || kind == "pointless" && s.retryIf:
		m.bury(d, eventbus.ReasonPermanent)
	case float64(d.attempt) > d.policy["R"]:
		m.bury(d, eventbus.ReasonExhausted)
	case float64(d.due-d.runnable()) >= d.policy["E"]:
		m.bury(d, eventbus.ReasonExpired)
	case d.isLate(d.due):
		m.bury(d, eventbus.ReasonTooLate)
	case delay == 0:
		d.state = "queued"
	default:
		d.state = "waiting"
	}
}

// runnable is from when on MaxElapsed counts. An event's time is not known before its first
// call.
func (d *simDispatch) runnable() time.Duration {
	if d.replays > 0 {
		return d.replayed + d.idle
	}
	return d.event.time + d.idle
}

// delay is P2 and P3.
func (m *simModel) delay(d *simDispatch) time.Duration {
	full := math.Trunc(min(-d.policy["B"]*math.Pow(d.policy["X"], float64(d.attempt-1)), d.policy["M"]))
	r := m.random(m.now)
	switch d.rest[0].jitter { //nolint:exhaustive // proportional comes last, decorrelated is not tried
	case eventbus.NoJitter:
		return time.Duration(full)
	case eventbus.FullJitter:
		return time.Duration(full * r)
	case eventbus.EqualJitter:
		return time.Duration(full) - time.Duration(full/2*r)
	}
	return time.Duration(full * (0.9 + 0.2*r))
}

func (m *simModel) settle(d *simDispatch, o eventbus.Outcome) {
	m.open = slices.DeleteFunc(m.open, func(x *simDispatch) bool { return x == d })
	m.ended[o]++
	m.noteSettled(d.event)
	d.state = "settled"
	d.wait.ended(d, o)
}

func (m *simModel) bury(d *simDispatch, reason eventbus.Reason) {
	if reason == eventbus.ReasonUnsubscribed && d.rest[0].dropsRetired {
		m.settle(d, eventbus.Dropped)
		return
	}
	d.reason, d.due = reason, m.now
	m.letters = append(m.letters, d)
	m.settle(d, eventbus.DeadLettered)
}

// unsubscribe removes a subscription, and returns what it has held.
func (m *simModel) unsubscribe(s *simSub) (held []*simDispatch) {
	s.removed = true
	m.subs = slices.DeleteFunc(m.subs, func(x *simSub) bool { return x == s })
	return slices.DeleteFunc(m.seated(s), func(d *simDispatch) bool { return d.state != "held" })
}

// end makes letters of what Shutdown does not wait for: of all but what a worker is
// about to run, and what is behind that.
func (m *simModel) end() {
	m.drained = true
	scheduled := m.all(func(d *simDispatch) bool { return d.state == "scheduled" })
	for _, d := range scheduled {
		m.enqueue(d)
	}
	for _, d := range slices.Clone(m.open) {
		if d.state == "running" {
			m.abandoned++
			d.attempt--
			d.rest[0].circuit.release(d.pass)
		}
		never := slices.ContainsFunc(scheduled, func(x *simDispatch) bool { return x.event == d.event })
		if d.state != "taken" && (never || !m.behind(d)) {
			m.bury(d, eventbus.ReasonShutdown)
		}
	}
}

// hung reports whether too many abandoned calls run.
func (s *simSub) hung() bool { return s.hanging >= s.most }

// simCircuit is a circuit, by C1 to C4.
type simCircuit struct {
	ratio      float64
	minEvents  int
	step       time.Duration // a twelfth of the window
	openFor    time.Duration
	state      eventbus.CircuitState
	generation int // of the state
	probing    bool
	until      time.Duration            // from then on any may probe
	freshFrom  time.Duration            // from then on one may that has not failed
	aliveUntil time.Duration            // the success of a probe is a sign of life
	fresh      bool                     // the probe is
	newest     bool                     // the newest of the fresh ones probes
	failed     int                      // probes of fresh ones in a row; after 2, the oldest of all probes
	outcomes   map[*simEvent]simOutcome // the latest: an event counts once
	opens      int64
}

type simOutcome struct {
	step   time.Duration
	failed bool
}

// admits is how many deliveries may come at a time.
func (c *simCircuit) admits(now time.Duration, fresh bool) int {
	switch {
	case !c.shut():
		return math.MaxInt
	case c.probing, fresh && now < c.freshFrom, !fresh && now < c.until:
		return 0
	}
	return 1
}

func (c *simCircuit) shut() bool {
	return c.state == eventbus.CircuitOpen || c.state == eventbus.CircuitHalfOpen
}

func (c *simCircuit) turn(to eventbus.CircuitState, now time.Duration) {
	c.state, c.probing, c.outcomes = to, false, map[*simEvent]simOutcome{}
	c.generation++
	if to == eventbus.CircuitOpen {
		c.opens++
		c.until = now + c.openFor
		c.freshFrom = c.until
	}
}

// enter returns the generation that an outcome must be of.
func (c *simCircuit) enter(now time.Duration, fresh bool) int {
	if c.state == eventbus.CircuitOpen {
		c.turn(eventbus.CircuitHalfOpen, now)
	}
	if c.probing = c.state == eventbus.CircuitHalfOpen; c.probing {
		c.fresh = fresh
	}
	return c.generation
}

// release ends a call without an outcome.
func (c *simCircuit) release(pass int) {
	c.probing = c.probing && pass != c.generation
}

// record takes an outcome.
func (c *simCircuit) record(pass int, e *simEvent, now time.Duration, failed bool) {
	switch {
	case c.state == eventbus.CircuitDisabled || pass != c.generation:
		return
	case c.state == eventbus.CircuitHalfOpen && !failed:
		c.turn(eventbus.CircuitClosed, now)
		c.aliveUntil, c.failed = now+c.openFor, 0
		return
	case c.state == eventbus.CircuitHalfOpen:
		c.turn(eventbus.CircuitOpen, now)
		switch {
		case c.failed == 2:
			c.failed = 0
			c.newest = c.newest || c.fresh
		case c.fresh:
			c.newest = !c.newest
			c.failed++
		}
		return
	}
	c.outcomes[e] = simOutcome{now / c.step, failed}
	events, failures, alive := 0, 0, now < c.aliveUntil
	for _, o := range c.outcomes {
		if o.step > now/c.step-12 {
			events++
			if o.failed {
				failures++
			} else if o.step >= (now-c.openFor)/c.step {
				alive = true
			}
		}
	}
	if events >= c.minEvents && float64(failures) > c.ratio*float64(events) {
		c.newest = c.newest && now < c.aliveUntil
		if c.turn(eventbus.CircuitOpen, now); alive {
			c.freshFrom = now
		}
	}
}
