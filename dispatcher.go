package eventbus

import (
	"math"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/timeline"
)

// worker is the state of one goroutine of the pool.
type worker struct {
	slot *deadline.Slot[call]
	// calls are the attempt's calls after the dispatch's embedded first call. They are allocated per
	// attempt, so that a context that a handler keeps holds only its own event in memory.
	calls []call
	call  callState
	seen  uint32 // number of calls, from a random start; one in latencySample is timed exactly
	lost  bool   // its call was abandoned: another worker owns the dispatch
	began int64  // when the attempt began, if it has several targets
}

// callState has the data of a call that conclude needs. It is a field of the worker, so that the
// worker that takes over an abandoned call can read it.
type callState struct {
	at      *door
	pass    uint64 // through its circuit
	started int64
	weight  uint32 // number of calls that the latency represents; 0 if it is not measured
}

// work runs a dispatch from the queue, unless it was read from a store and may not run now.
func (m *machine) work(w *worker, d *dispatch) {
	if d.row() != nil && m.journal.detains(d) {
		return
	}
	m.run(w, d)
}

// run makes the next attempt of a dispatch: it visits the targets in order, from the next one,
// until the first failure.
func (m *machine) run(w *worker, d *dispatch) {
	var event Event
	var emitted []*dispatch // by the last call
	m.beginAttempt(w, d, &event)
	for ; int(d.next) < len(d.to.subscriptions); d.next++ {
		s, until := d.to.subscriptions[d.next], int64(0)
		if m.endsBefore(s, d) {
			return
		}
		at, pass, shut := m.enter(w, d, s, &event)
		if w.lost || shut == nil && m.endsAtDoor(s, d, at, pass) {
			return
		}
		if shut == nil {
			c := m.begin(w, d, at, pass)
			r := c.invoke(m, w, c.subscription(), &event)
			if !c.word.End() {
				m.endedLate(w, c, r) // the watch abandoned it: a fresh worker owns d
				return
			}
			c.cancel()
			emitted = c.takeEmitted()
			if !r.withdrawn && !r.verdict.postpones() {
				if !m.conclude(d, &w.call, r) || !m.passed(w, d, emitted) {
					return
				}
				continue
			}
			shut, until = m.postpone(d, at, pass, &r)
		}
		emitted = nil
		if m.endsNow(d) {
			return
		}
		if m.park(d, at, shut, until) { // d itself is parked or settled
			return
		}
	}
	m.journal.settle(d, Handled, nil, emitted)
}

// passed goes on after a target that has handled the event. It reports whether the attempt continues.
func (m *machine) passed(w *worker, d *dispatch, emitted []*dispatch) bool {
	if len(emitted) > 0 {
		m.publishNow(emitted)
	}
	return int(d.next) == len(d.to.subscriptions)-1 || m.journal.passed(w, d, emitted)
}

// beginAttempt prepares the next attempt and its event.
func (m *machine) beginAttempt(w *worker, d *dispatch, event *Event) {
	d.state, d.worker = stateRunning, w
	if len(d.to.subscriptions) > 1 { // see journal.passed
		now, _ := m.time.Recent()
		w.began = now.Nanos
	}
	w.calls = nil
	d.attempt = min(d.attempt+1, deadline.MaxNumber) // stays at the largest number
	d.putEvent(event, m.time)
}

// begin sets up the call of the next target and shows it to the watch.
//
// While the timeline ticks, the watch sets the call's deadline at the next tick: up to a tick late,
// but never early. Otherwise, and for timeouts below two ticks, begin arms the watch at once. When
// the ticking ends, the watch looks once more.
func (m *machine) begin(w *worker, d *dispatch, at *door, pass uint64) *call {
	m.report.attemptBegun(d)
	c := &d.first
	if c.dispatch != nil { // a handler of an earlier attempt may still use it
		if len(w.calls) == 0 {
			w.calls = make([]call, len(d.to.subscriptions)-int(d.next))
		}
		c, w.calls = &w.calls[0], w.calls[1:]
	}
	c.dispatch, c.target, c.word = d, d.next, deadline.Begin(uint32(d.attempt))
	if s := d.to.subscriptions[d.next]; s.heir.Load() != nil {
		c.cancellation.Store(&cancellation{heir: s.latest()}) // few calls have one this early: it keeps calls small
	}
	now, exact := m.time.Recent()
	w.call = callState{at: at, pass: pass, started: now.Nanos}
	switch {
	case exact:
		w.call.weight = 1
	case w.samples(): // other calls start up to a tick after the reading
		w.call.started, w.call.weight = m.time.Nanos(), latencySample
	}
	w.slot.Show(c)
	if !m.time.Ticks() || c.subscription().timeout < 2*timeline.Tick {
		m.watch.Arm(w.slot)
	}
	return c
}

// samples reports whether to measure the next call's latency. It uses a Weyl sequence: with two
// subscriptions, every 64th call would always belong to the same one.
func (w *worker) samples() bool {
	w.seen++
	return w.seen*0x9e3779b9 < math.MaxUint32/latencySample
}

// conclude applies the result of a call that has ended. It reports whether the attempt continues.
func (m *machine) conclude(d *dispatch, ran *callState, r result) bool {
	if r.err != nil {
		m.fail(d, ran, r)
		return false
	}
	if ran.weight > 0 {
		ran.at.of().counters.latency.Observe(max(time.Duration(m.time.Nanos()-ran.started), 0), ran.weight)
	}
	m.exit(d, ran.at, ran.pass, succeeded)
	return true
}

// fail records a failure, and retries the dispatch or dead-letters it.
func (m *machine) fail(d *dispatch, ran *callState, r result) {
	s := d.to.subscriptions[d.next]
	if r.verdict != nil && r.verdict.cutShort {
		m.exit(d, ran.at, ran.pass, noOutcome)
		m.withdraw(d)
		return
	}
	now := m.time.Now()
	merged := d.to.policy()
	by := merged.at(s, &m.config.names)
	if r.verdict == nil {
		r.verdict = m.judge(s, r.err, &by)
	}
	f := failure{
		err: r.err, text: r.verdict.text, details: r.verdict.details, subscription: s, at: now.Nanos,
		duration: max(time.Duration(now.Nanos-ran.started), 0),
		attempt:  d.attempt, rule: int32(r.verdict.rule + 1),
	}
	s.counters.failed(r.err, f.text, f.at, f.duration)
	if run := d.replay().run; run != nil {
		run.failed()
	}
	policy := by.deciding(r.verdict)
	number, previous := by.count(d, r.verdict)
	d.keep(f)
	next := policy.decide(&failedAttempt{
		verdict: r.verdict, number: number, previous: *previous,
		bound: merged.MaxElapsed, elapsed: d.elapsed(now, m.time),
	}, m.randomly(policy, s)).unlessLate(d, now)
	m.report.handlerFailed(d, policy, next.delay)
	m.exit(d, ran.at, ran.pass, ran.at.countFailure(r.verdict))
	d.goesTo(ran.at)
	if !next.retry {
		m.bury(d, next.reason)
		return
	}
	*previous = next.scheduled
	m.retryLater(d, next.delay, timeline.Later(now.Nanos, next.delay))
}

// exit removes a delivery from its door and reports its outcome to the circuit.
func (m *machine) exit(d *dispatch, at *door, pass uint64, what outcome) {
	change := at.exit(m.Bus, d, pass, what)
	if what == succeeded {
		d.passed()
	}
	m.report.circuitChanged(at, change)
	if what == succeeded && pass&circuit.Single != 0 {
		m.endOnce(at, d)
	}
	m.vacated(at)
	m.leaveUnawaited()
}

// applyAccept makes an accepted dispatch runnable. Its room in the queue is already reserved, unless
// only the store keeps it.
func (m *machine) applyAccept(d *dispatch, stored bool) {
	m.ledger.accepted.Add(1)
	d.to.counters.events.Add(1)
	m.cancelling.Withdraw(d.id) // an earlier event had the id
	switch {
	case len(d.to.subscriptions) == 0: // intake.accepted settles it after the observers
	case stored:
		m.ledger.stored.Add(int64(len(m.copies(d))))
	case d.from().due != nil:
		m.schedule(d)
	default:
		m.enqueue(d, true)
	}
}

// queueRoom returns how many places an accepted dispatch takes in the queue.
func (d *dispatch) queueRoom() int {
	if len(d.to.subscriptions) == 0 || d.from().due != nil {
		return 0
	}
	return max(len(d.to.each), 1)
}

// enqueue queues a dispatch, or its copies. reserved is set if they have room in the queue.
func (m *machine) enqueue(d *dispatch, reserved bool) {
	if d.to.each == nil {
		m.queue(d, reserved)
		return
	}
	for _, copied := range m.copies(d) {
		m.queue(copied, reserved)
	}
}

func (m *machine) queue(d *dispatch, reserved bool) {
	d.state = stateQueued
	m.holdsExpiring(d)
	// The outcome of a replay replaces the letter's failure in the circuit's window.
	if r := d.replay(); r.at != nil && r.at == d.to.subscriptions[0] && r.at.destinations == nil {
		d.ensureStory().mark = r.mark
	}
	if gated := d.key != ""; reserved {
		m.pool.Push(d, gated)
	} else {
		m.pool.Return(gated, d)
	}
}

// retryLater schedules the next attempt of a dispatch.
func (m *machine) retryLater(d *dispatch, delay time.Duration, due int64) {
	if d.attempt == 1 {
		d.to.counters.retried.Add(1)
	} else {
		d.to.counters.again.Add(1)
	}
	m.journal.retryLater(d, delay, due)
}

func (m *machine) applyWait(d *dispatch, delay time.Duration, due int64) {
	m.report.attemptEnded(d, Waiting, "")
	m.report.retryScheduled(d, delay, due)
	m.delayUntil(d, due)
}

// delayUntil keeps a dispatch until its next attempt is due.
func (m *machine) delayUntil(d *dispatch, due int64) {
	if m.standsCancelled(d) {
		m.settle(d, Cancelled)
		return
	}
	seated := d.seat().Number != 0
	if seated {
		d.seatDoor().away(d)
	}
	d.state = stateWaiting
	m.holdsExpiring(d)
	m.ledger.waiting.Add(1)
	if !m.delay.Add(due, d) { // Shutdown has ended waiting
		m.ledger.waiting.Add(-1)
		m.bury(d, ReasonShutdown)
	}
	if seated {
		m.tend(d.seatDoor())
	}
	m.leaveUnawaited() // Shutdown may have looked before Add
}

// park handles a delivery that the door does not admit, or that is postponed: it parks it in the line, or drops or
// dead-letters it. until is not 0 if it sleeps. If the dispatch has other deliveries, park splits this one off and returns
// false. A parked delivery spends no attempt.
func (m *machine) park(d *dispatch, at *door, why *barrier, until int64) (all bool) {
	s, parked := at.of(), d
	switch {
	case d.seat().Number != 0:
		d.attempt--
	case d.isLast():
		s.counters.skipped.Add(1)
		d.narrow()
	default:
		s.counters.skipped.Add(1)
		parked = m.split(d)
	}
	all = parked == d
	if why != nil && why.ends != nil {
		switch outcome, reason := why.ends(at); outcome { //nolint:exhaustive // the others park it
		case Dropped:
			m.settle(parked, Dropped)
			return all
		case DeadLettered:
			m.bury(parked, reason)
			return all
		}
	}
	if until != 0 {
		if reason := m.sleepsTooLong(parked, until); reason != "" {
			m.bury(parked, reason)
			return all
		}
		parked.ensureStory().notBefore = until
		if row := parked.row(); row != nil {
			row.asleep = time.Duration(until - m.time.Nanos())
		}
		parked.ensureDetours().snoozes++
		m.report.snoozed(parked, s, parked.story.detours.snoozes)
	}
	victim, spills, reason := m.sit(parked, at, why)
	if victim != nil {
		m.settle(victim, Dropped)
	}
	switch {
	case reason != "":
		m.bury(parked, reason)
	case victim != parked:
		m.journal.park(parked, spills)
	}
	return all
}

// attemptHeld reports the end of an attempt whose last delivery is parked.
func (m *machine) attemptHeld(d *dispatch) {
	if attempt := d.takeObserved(); attempt != nil {
		m.report.endAttempt(attempt, EndedAttempt{Outcome: Held})
	}
}

// applyPark puts a delivery that has a seat into the line.
func (m *machine) applyPark(d *dispatch) {
	at := d.seatDoor()
	m.attemptHeld(d)
	m.leaveKey(d)
	d.state = stateParked
	m.holdsExpiring(d)
	if m.standsCancelled(d) {
		m.settle(d, Cancelled)
		return
	}
	how := parking(d.seat().Reason)
	if refused := at.join(m.Bus, d); refused != "" {
		m.bury(d, refused)
		return
	}
	// From here on the line owns the delivery and may release it.
	if how == throttled && (at.terms().limit == math.MaxInt32 || at.whole != nil) {
		m.shared.Store(at, nil)
	}
	m.tend(at)
	if at.whole != nil {
		m.trim(at.of().destinations)
	}
	m.ledger.checkDrained() // after tend: it may be the next to probe
}

// retryDue queues dispatches whose next attempt is due.
func (m *machine) retryDue(due []*dispatch) {
	m.requeue(due...)
	m.ledger.waiting.Add(int64(-len(due)))
}

// requeue queues dispatches that were waiting or parked. They have had their key's turn.
func (m *machine) requeue(all ...*dispatch) {
	for _, d := range all {
		d.state = stateQueued
	}
	m.pool.Return(false, all...)
}

// bury ends a dispatch at its next target with a dead letter. With ReasonShutdown, a store gets it
// back instead.
func (m *machine) bury(d *dispatch, reason Reason) {
	switch {
	case reason == ReasonShutdown:
		m.journal.cutShort(d)
		return
	case reason == ReasonUnsubscribed && d.outlives(d.to.subscriptions[d.next]):
		m.settle(d, Dropped)
		return
	}
	m.journal.settle(d, DeadLettered, m.letter(d, reason), nil)
}

// withdraw ends an attempt that may not call the next handler. It is not counted.
func (m *machine) withdraw(d *dispatch) {
	d.attempt--
	m.journal.cutShort(d)
}

// settle ends a dispatch without a dead letter.
func (m *machine) settle(d *dispatch, outcome Outcome) {
	m.journal.settle(d, outcome, nil, nil)
}

// applySettle ends a dispatch. It counts the dispatch after the observers have seen the end and the
// waiter has its outcome, because Shutdown continues once all dispatches are counted, and answers
// the waiter last, because its caller may read Metrics.
func (m *machine) applySettle(d *dispatch, outcome Outcome, kept *keptLetter) {
	var reason Reason
	var l *DeadLetter
	if kept != nil {
		l, reason = &kept.DeadLetter, kept.Reason
	}
	m.report.attemptEnded(d, outcome, reason)
	switch outcome { //nolint:exhaustive // the others end no dispatch
	case Handled:
		if d.recovered() {
			d.to.counters.succeededAfterRetry.Add(1)
		}
	case DeadLettered:
		m.died(d, l)
	case Unrouted:
		m.report.unrouted(d, m.registry.nearestPattern)
	}
	if outcome != Handled { // otherwise it has left in exit
		for _, s := range d.to.subscriptions {
			m.endOnce(s.door, d)
		}
	}
	waiter := d.waiter()
	last := waiter != nil && waiter.ended(outcome, d.story != nil && d.story.part, int(d.attempt), l)
	m.remember(d, outcome, kept)
	d.state = stateSettled
	m.forgetsExpiring(d)
	m.arrived(d)
	m.leaveKey(d)
	m.ledger.counter(outcome).Add(1)
	m.leaveSeat(d)
	if last {
		waiter.answer()
	}
	m.ledger.checkDrained()
}
