package eventbus

import (
	"math"
	"time"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/timeline"
)

// worker is what a goroutine of the pool keeps.
type worker struct {
	slot *deadline.Slot[call]
	// calls are the further calls of the attempt: its dispatch embeds the first one only
	// for its first attempt. One allocation for each attempt, so that a context that a
	// handler keeps holds its own event in memory and no other.
	calls []call
	call  running
	seen  uint32 // calls begun, from a random number on; every latencySample-th is timed exactly
	lost  bool   // its call was abandoned: another worker owns the dispatch
}

// running is what a worker notes of its running call. If the call is abandoned, the
// worker that takes over reads it there.
type running struct {
	pass    uint64 // through the circuit
	started int64
	weight  uint32 // calls that this one's latency stands for; 0 if it is not taken
}

// run makes the next attempt of a dispatch: its targets in order, from the next one on,
// until the first failure.
func (b *Bus) run(w *worker, d *dispatch) {
	var event Event
	b.beginAttempt(w, d, &event)
	for ; int(d.next) < len(d.to.subscriptions); d.next++ {
		s := d.to.subscriptions[d.next]
		pass, shut := s.door.enter(b, d)
		if shut == admitted {
			c := b.begin(w, d, s, pass)
			r := c.invoke(w, s, &event)
			if !d.word.End(c.number) {
				b.endedLate(w, c, r) // the watch abandoned it: a fresh worker owns d
				return
			}
			c.cancel()
			if !r.withdrawn {
				if !b.conclude(d, s, &w.call, r) {
					return
				}
				continue
			}
			b.leave(d, s, pass, noOutcome)
			shut = r.shut
		}
		if b.cutting.begun() {
			d.attempt--
			b.bury(d, ReasonShutdown)
			return
		}
		if b.park(d, s, shut) { // that was all that was left: d itself is parked or settled
			return
		}
	}
	b.settle(d, Handled)
}

// beginAttempt prepares the next attempt, and the event for its handlers.
func (b *Bus) beginAttempt(w *worker, d *dispatch, event *Event) {
	d.state, d.worker = stateRunning, w
	w.calls = nil
	d.attempt = max(d.attempt, d.attempt+1) // or it stays the last number
	d.putEvent(event, b.time)
}

// begin makes the call of the next target and shows it to the watch.
//
// While the timeline ticks, the watch looks at every tick and gives the call its deadline
// then: up to a tick late, but never early. Otherwise, and for timeouts of about a tick,
// it is armed at once. A timeline that stops ticking looks once more when it does.
func (b *Bus) begin(w *worker, d *dispatch, s *Subscription, pass uint64) *call {
	b.attemptBegun(d)
	c := &d.first
	if c.dispatch != nil {
		if len(w.calls) == 0 {
			w.calls = make([]call, len(d.to.subscriptions)-int(d.next))
		}
		c, w.calls = &w.calls[0], w.calls[1:]
	}
	c.dispatch, c.number, c.target, c.attempt = d, d.word.Next(), d.next, d.attempt
	now, exact := b.time.Recent()
	w.call = running{pass: pass, started: now.Nanos}
	switch {
	case exact:
		w.call.weight = 1
	case w.samples(): // the others begin up to a tick after the reading
		w.call.started, w.call.weight = b.time.Nanos(), latencySample
	}
	w.slot.Show(c)
	d.word.Begin(c.number)
	if !b.time.Ticks() || s.timeout < 2*timeline.Tick {
		b.watch.Arm(w.slot)
	}
	return c
}

// samples reports whether the next call is one of those whose latency is taken. By a Weyl
// sequence: every 64th call would always be the same subscription's, of events with two.
func (w *worker) samples() bool {
	w.seen++
	return w.seen*0x9e3779b9 < math.MaxUint32/latencySample
}

// conclude applies the result of a call that has ended. It returns whether the attempt
// goes on.
func (b *Bus) conclude(d *dispatch, s *Subscription, ran *running, r result) bool {
	if r.err != nil {
		b.fail(d, s, ran, r)
		return false
	}
	if ran.weight > 0 {
		s.counters.latency.Observe(max(time.Duration(b.time.Nanos()-ran.started), 0), ran.weight)
	}
	b.leave(d, s, ran.pass, succeeded)
	return true
}

// fail notes a failure, decides what follows, and does it.
func (b *Bus) fail(d *dispatch, s *Subscription, ran *running, r result) {
	now := b.time.Now()
	merged := b.policy(d.to)
	by := merged.at(s, &b.config.names)
	if r.verdict == nil {
		r.verdict = b.judge(s, r.err, &by)
	}
	f := failure{
		err: r.err, text: r.verdict.text, subscription: s, at: now.Nanos,
		duration: max(time.Duration(now.Nanos-ran.started), 0),
		attempt:  d.attempt, rule: int32(r.verdict.rule + 1),
	}
	s.counters.failed(r.err, f.duration)
	if run := d.replay().run; run != nil {
		run.failed()
	}
	policy := by.deciding(r.verdict)
	number, previous := by.count(d, r.verdict)
	d.keep(f)
	next := policy.decide(&failedAttempt{
		verdict: r.verdict, number: number, previous: *previous,
		bound: merged.MaxElapsed, elapsed: d.elapsed(now, b.time),
	}, b.randomly(policy, s))
	b.logFailure(d, policy, next.delay)
	outcome := failed
	if r.verdict.rejected {
		outcome = noOutcome
	}
	b.leave(d, s, ran.pass, outcome)
	if !next.retry {
		b.bury(d, next.reason)
		return
	}
	*previous = next.scheduled
	b.wait(d, next.delay, later(now.Nanos, next.delay))
}

// leave ends a delivery's stay inside a door, with its outcome for the circuit.
func (b *Bus) leave(d *dispatch, s *Subscription, pass uint64, o outcome) {
	change := s.door.leave(b, d, pass, o)
	if o == succeeded {
		d.passed()
	}
	b.circuitChanged(s, change)
	if s.door.circuit.gate.Load()&gateLine != 0 {
		b.tend(s)
	}
}

// overran is called by the watch, on its goroutine, when a call exceeds its timeout.
func (b *Bus) overran(c *call) {
	s := c.subscription()
	b.abandon(c, &TimeoutError{Subscription: s.id, Timeout: s.timeout})
}

// abandon leaves a call to itself, and its dispatch to a fresh worker, which concludes the
// attempt with err, or with its end by Shutdown if that is nil.
func (b *Bus) abandon(c *call, err error) {
	c.ask() // even if the handler has not: the context's end must not change when d goes on
	c.cancel()
	b.abandoned.add(c, b.time.Now().UTC)
	b.takeOver(c, err)
}

// exited is called when a handler, or a method of its error, ends its goroutine.
func (b *Bus) exited(w *worker, c *call, err error) {
	if !c.dispatch.word.End(c.number) {
		b.endedLate(w, c, result{err: err})
		return
	}
	w.lost = true
	c.cancel()
	if err == nil {
		err = ErrHandlerExited
	}
	b.takeOver(c, err)
}

// takeOver lets a fresh worker conclude a call that has ended without its own.
func (b *Bus) takeOver(c *call, err error) {
	b.pool.Replace(func(w *worker) {
		d, s := c.dispatch, c.subscription()
		ran := d.worker.call
		d.worker = w
		if err != nil {
			b.fail(d, s, &ran, result{err: err})
			return
		}
		b.leave(d, s, ran.pass, noOutcome)
		d.attempt--
		b.bury(d, ReasonShutdown)
	})
}

// endedLate notes that an abandoned handler has returned. Its result is counted only.
func (b *Bus) endedLate(w *worker, c *call, r result) {
	w.lost = true
	b.abandoned.remove(c)
	c.subscription().counters.lateEnds.Add(1)
	b.logLateEnd(c, r.err)
}

// later is the instant a delay after another one, or the end of time.
func later(nanos int64, delay time.Duration) int64 {
	if due := nanos + int64(delay); due >= nanos {
		return due
	}
	return math.MaxInt64
}

// change is a transition of one dispatch, or of several that open together, as it is
// recorded.
type change struct {
	kind    transition
	d       *dispatch
	batch   []*dispatch   // with toOpen, if there are several; d is the first
	events  []Event       // with toOpen, for Observer.Accepted
	outcome Outcome       // with toSettle
	letter  *DeadLetter   // that is made (toSettle), or taken (toReplay)
	due     int64         // with toWait
	delay   time.Duration // with toWait
}

// transition is a kind of change.
type transition uint8

const (
	toOpen   transition = iota // accepted dispatches become runnable
	toReplay                   // a letter becomes a dispatch
	toWait                     // for the next attempt
	toPark                     // at the next target's door
	toSettle                   // the dispatch ends
)

// all are the dispatches of the change.
func (c *change) all() []*dispatch {
	if c.batch != nil || c.d == nil {
		return c.batch
	}
	return []*dispatch{c.d}
}

// record makes a change durable, and then applies it, once. In memory that is at once. A
// store may do it later, on another goroutine, or refuse the change. Until then the
// dispatch belongs to the record, and nothing else may touch it.
//
// Every transition of a dispatch that outlives a crash passes here. Only toOpen and
// toReplay can be refused; their callers use recordNow.
func (b *Bus) record(c *change) {
	if b.recorder != nil {
		b.recordLater(*c, func(error) {})
		return
	}
	_ = b.apply(c, nil) // only a replay has an error
}

// recordNow is record for a caller that waits for the outcome.
func (b *Bus) recordNow(c *change) error {
	if b.recorder != nil {
		applied := make(chan error, 1)
		b.recordLater(*c, func(err error) { applied <- err })
		return <-applied
	}
	return b.apply(c, nil)
}

func (b *Bus) recordLater(c change, applied func(error)) {
	if c.kind != toOpen && c.kind != toReplay { // those are not in the ledger yet
		c.d.state = stateRecording
		b.ledger.recording.Add(1)
	}
	b.recorder(func(err error) {
		err = b.apply(&c, err)
		if c.kind != toOpen && c.kind != toReplay {
			b.ledger.recording.Add(-1)
		}
		applied(err)
		b.checkDrained()
	})
}

// apply does what follows once a change is recorded, or refused with an error.
func (b *Bus) apply(c *change, err error) error {
	switch c.kind {
	case toOpen:
		for _, d := range c.batch {
			b.opened(d, err)
		}
		if c.batch == nil {
			b.opened(c.d, err)
		}
	case toReplay:
		if err == nil {
			err = b.replayedLetter(c.d, c.letter)
		}
	case toWait:
		b.waits(c.d, c.delay, c.due)
	case toPark:
		b.parked(c.d)
	case toSettle:
		b.settled(c.d, c.outcome, c.letter)
	}
	return err
}

// opened makes an accepted dispatch runnable. Its room in the queue is reserved.
func (b *Bus) opened(d *dispatch, err error) {
	if err != nil {
		b.pool.Unreserve(d.places())
		return
	}
	b.ledger.accepted.Add(1)
	d.to.counters.events.Add(1)
	switch {
	case len(d.to.subscriptions) == 0: // settled by the publisher, after its observers
	case d.from().due != 0:
		b.schedule(d)
	default:
		b.enqueue(d, true)
	}
}

// places is the number of places that an accepted dispatch takes in the queue.
func (d *dispatch) places() int {
	if len(d.to.subscriptions) == 0 || d.from().due != 0 {
		return 0
	}
	return max(len(d.to.each), 1)
}

// enqueue queues a dispatch, or its copies. reserved says that their room is.
func (b *Bus) enqueue(d *dispatch, reserved bool) {
	if d.to.each == nil {
		b.queue(d, reserved)
		return
	}
	for _, copied := range b.copies(d) {
		b.queue(copied, reserved)
	}
}

func (b *Bus) queue(d *dispatch, reserved bool) {
	d.state = stateQueued
	if r := d.replay(); r.at != nil && r.at == d.to.subscriptions[0] {
		d.tell().counted = r.counted
	}
	if gated := d.key != ""; reserved {
		b.pool.Push(d, gated)
	} else {
		b.pool.Return(gated, d)
	}
}

// copies are the dispatches that an event becomes: one, or one for each target on a bus
// with isolation.
func (b *Bus) copies(d *dispatch) []*dispatch {
	if d.to.each == nil {
		return []*dispatch{d}
	}
	all := make([]*dispatch, len(d.to.each))
	for i, to := range d.to.each {
		all[i] = &dispatch{id: d.id, payload: d.payload, key: d.key, values: d.values, origin: d.origin, wall: d.wall, to: to}
	}
	b.ledger.copies.Add(int64(len(all)) - 1)
	if waiter := d.waiter(); waiter != nil {
		waiter.expect(len(all) - 1)
	}
	return all
}

// enterKey decides whether a queued dispatch may run now, or waits in the key gate until
// the one before it leaves. It runs under the pool's lock.
func (b *Bus) enterKey(d *dispatch) bool {
	d.placed = true
	return b.gateOf(d).Enter(d.key, d)
}

func (b *Bus) gateOf(d *dispatch) *keyGate {
	if own := d.to.subscriptions[0].gate; own != nil {
		return own
	}
	return b.keys
}

// leaveKey gives up a dispatch's place in its key's order. The next one may run.
func (b *Bus) leaveKey(d *dispatch) {
	if !d.placed {
		return
	}
	d.placed = false
	if next, ok := b.gateOf(d).Leave(d.key); ok {
		b.pool.Release(next)
	}
}

// wait lets a dispatch wait for its next attempt.
func (b *Bus) wait(d *dispatch, delay time.Duration, due int64) {
	if d.attempt == 1 {
		d.to.counters.retried.Add(1)
	} else {
		d.to.counters.again.Add(1)
	}
	b.record(&change{kind: toWait, d: d, delay: delay, due: due})
}

func (b *Bus) waits(d *dispatch, delay time.Duration, due int64) {
	b.attemptEnded(d, Waiting, "")
	b.retryScheduled(d, delay, due)
	s := d.to.subscriptions[d.next]
	seated := d.seat().Number != 0
	if seated {
		s.door.wait(d)
	}
	d.state = stateWaiting
	b.ledger.waiting.Add(1)
	if !b.delay.Add(due, d) { // Shutdown has ended waiting
		b.ledger.waiting.Add(-1)
		b.bury(d, ReasonShutdown)
	}
	if seated {
		b.tend(s)
	}
}

// retryDue queues dispatches whose next attempt is due.
func (b *Bus) retryDue(due []*dispatch) {
	for _, d := range due {
		d.state = stateQueued
	}
	b.pool.Return(false, due...)
	b.ledger.waiting.Add(int64(-len(due)))
}

// bury ends a dispatch at its next target in a dead letter.
func (b *Bus) bury(d *dispatch, reason Reason) *DeadLetter {
	l := b.letter(d, reason)
	b.record(&change{kind: toSettle, d: d, outcome: DeadLettered, letter: l})
	return l
}

// settle ends a dispatch without a dead letter.
func (b *Bus) settle(d *dispatch, outcome Outcome) {
	b.record(&change{kind: toSettle, d: d, outcome: outcome})
}

// settled follows up on the end of a dispatch. It is counted last, because Shutdown goes
// on once every dispatch has been.
func (b *Bus) settled(d *dispatch, outcome Outcome, l *DeadLetter) {
	var reason Reason
	if l != nil {
		reason = l.Reason
		b.letters.add(l)
	}
	b.attemptEnded(d, outcome, reason)
	count := &b.ledger.handled
	switch outcome { //nolint:exhaustive // the others end no dispatch
	case Handled:
		if d.recovered() {
			d.to.counters.succeededAfterRetry.Add(1)
		}
	case DeadLettered:
		count = &b.ledger.deadLettered
		b.died(d, l)
	case Dropped:
		count = &b.ledger.dropped
	case Unrouted:
		count = &b.ledger.unrouted
		b.unrouted(d)
	case Cancelled:
		count = &b.ledger.cancelled
	}
	if waiter := d.waiter(); waiter != nil {
		waiter.ended(outcome, d.story != nil && d.story.part, int(d.attempt), l)
	}
	d.state = stateSettled
	b.leaveKey(d)
	count.Add(1)
	if d.seat().Number != 0 {
		s := d.seatedAt()
		s.door.release(b, d)
		b.tend(s)
	}
	b.checkDrained()
}

// died counts, logs and reports a dead letter.
func (b *Bus) died(d *dispatch, l *DeadLetter) {
	d.to.counters.deadLettered.Add(1)
	if run := d.replay().run; run != nil && d.lastFailure() == nil { // or its failures have been counted
		run.failed()
	}
	if b.noteUnfinished(l) {
		b.logDeadLetter(d, l)
	}
	b.deadLettered(l)
}
