package eventbus

import (
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/lane"
)

// worker is what a goroutine of the lanes keeps.
type worker struct {
	slot    *deadline.Slot[call]
	calls   []call  // for the next runs of handlers
	visit   *visit  // of the last one
	visits  []visit // for the next ones
	burst   int     // how many calls were made at once, more while there is more to do
	called  uint32  // how often it has run one, from a random number on
	timed   bool    // the running one has begun at an exact time
	lost    bool    // the watch has given up its call, and somebody else goes on
	handled bool    // the run has ended as the ledger has it under handled
	hasNext bool    // there is next
	settled *waiter // to be told once the run no longer counts
	handed  int     // how many next there have been without a pause

	dispatch dispatch // that it runs, unless it has moved out
	event    Event    // of that, for its handlers
	extras   *extras  // of that
	verdict  verdict  // on the last error
	next     opening  // what the run has let through at its key's gate
}

// maxHanded is how many dispatches of a key a worker runs before somebody looks at
// what else there is to do.
const maxHanded = 32

// workerCalls is how many calls share an allocation: their contexts, which
// handlers may keep, keep the others in memory.
const workerCalls = 36

func (b *Bus) openWorker() *worker { return &worker{slot: b.watch.Open(), called: rand.Uint32()} }

func (b *Bus) closeWorker(w *worker) {
	if w.hasNext { // the handler has ended the goroutine
		b.lanes.Unpark(&w.next)
	}
	b.watch.Close(w.slot)
}

// leave gives up the place of a dispatch's key. The next one of the key is the
// worker's next, or has its turn in the queue.
func (b *Bus) leave(w *worker, o *opening) {
	next, ok := b.store.leave(o)
	if w.handed >= maxHanded && b.lanes.Share() {
		w.handed = 0
	}
	switch {
	case !ok:
	case w.slot != nil && !w.hasNext && w.handed < maxHanded && !b.lanes.Crowded():
		w.next, w.hasNext = next, true
		w.handed++
	default:
		w.handed = 0
		b.lanes.Unpark(&next)
	}
}

// goOn puts into the worker's place what the run before has let through.
func (w *worker) goOn() {
	w.dispatch.opening = w.next
	w.next, w.hasNext = opening{}, false
}

// idle lets go of the event that a worker has run last.
func (b *Bus) idle(w *worker) {
	b.watch.Clear(w.slot)
	w.dispatch, w.event, w.extras = dispatch{}, Event{}, nil
	w.calls, w.visit, w.visits, w.burst = nil, nil, nil, 0
	w.verdict = verdict{}
}

// ending says what the lanes have to do after a run.
func (w *worker) ending() (end lane.Ending) {
	if w.lost {
		return lane.Lost
	}
	if w.handled {
		end, w.handled = lane.Counted, false
	}
	if w.hasNext {
		end |= lane.LetsThrough
	} else {
		w.handed = 0
	}
	if w.settled != nil {
		end |= lane.Tells
	}
	return end
}

// ended notes for whoever waits how a dispatch has ended.
func (w *worker) ended(waiter *waiter, o Outcome, attempts int) {
	if waiter.ended(o, attempts) {
		w.settled = waiter
	}
}

// tell lets whoever waits for what the worker has settled go on.
func (w *worker) tell() {
	if w.settled != nil {
		w.settled.finish()
		w.settled = nil
	}
}

// taken is the dispatch that the worker has taken: a new one, in its own place, or
// one that goes on.
func (w *worker) taken() *dispatch {
	d := &w.dispatch
	if d.resumed != nil {
		return d.resumed
	}
	d.story, d.attempt, d.next = nil, 0, 0
	return d
}

// putEvent puts the event of a dispatch into the worker's place, if it is not there
// from another copy. An id stands for one payload, but for what was replayed with
// another, or published with an id that was given before: these have extras.
func (w *worker) putEvent(d *dispatch, t *timeline) {
	if d.id != w.event.ID || d.extras != w.extras {
		d.put(&w.event, t)
		w.extras = d.extras
	}
}

// visiting is what the calls of the dispatch's next attempt have in common.
func (w *worker) visiting(d *dispatch) *visit {
	if v := w.visit; v != nil && d.values == nil && v.dispatch == d && v.values == nil && v.asked.Load() == nil {
		return v
	}
	if linked(d.values) {
		w.visit = &visit{dispatch: d, values: d.values, slot: w.slot}
		return w.visit
	}
	if len(w.visits) == 0 {
		w.visits = make([]visit, min(w.burst+1, workerCalls))
	}
	v := &w.visits[0]
	w.visits = w.visits[1:]
	v.dispatch, v.values, v.slot = d, d.values, w.slot
	w.visit = v
	return v
}

// run is a dispatch's next attempt: its handlers in order, from the subscription
// that it has come to, until the first failure.
func (b *Bus) run(w *worker) {
	d := w.taken()
	var (
		c         *call
		err       error
		v         *verdict
		inHandler bool
	)
	defer func() {
		if !inHandler {
			return
		}
		// The handler has ended this goroutine, or a method of its error has.
		if err == nil {
			err = ErrHandlerExited
		}
		b.conclude(w, c, err, v)
	}()
	d.attempt = max(d.attempt, d.attempt+1) // or stays the last one that there is
	at := w.visiting(d)
	w.putEvent(d, b.time)
	for ; int(d.next) < len(d.to.subscriptions); d.next++ {
		s := d.to.subscriptions[d.next]
		if why := b.enter(d, s); why != notSkipped {
			if b.passOver(w, d, s, why) {
				return
			}
			continue
		}
		b.attemptBegun(d)
		if at.asked.Load() != nil {
			at = w.visiting(d) // so that what is asked is soon found
		}
		c = b.begin(w, at, s)
		// Whoever sets one of these looks for running calls only afterwards.
		if b.cutting.begun() || s.circuit.barred() != notSkipped {
			if b.withdraw(w, c) {
				return
			}
			continue
		}
		inHandler, err, v = true, nil, nil
		if err = invoke(c, &w.event); err != nil && c.Running() {
			v = &w.verdict
			b.judgeInside(c, err, v)
		}
		inHandler = false
		if !b.conclude(w, c, err, v) {
			return
		}
	}
	w.handled = true
	b.settle(w, d, settlement{outcome: Handled})
}

// enter asks at the subscription's door, immediately before it is its turn: one
// that an attempt does not reach holds no permit.
func (b *Bus) enter(d *dispatch, s *Subscription) skip {
	d.pass = s.circuit.gate.Load()
	held := d.wasHeld()
	behind := !held && d.key != "" && s.holding.hasLine(d.key)
	if d.pass&gateAsk == 0 && !behind {
		if held {
			s.holding.move(d, seatInside)
		}
		return notSkipped
	}
	if behind && !s.circuit.removed() {
		return skipBehind
	}
	pass, why, change := s.circuit.enter(b.time.nanos())
	d.pass = pass
	b.circuitChanged(s, change)
	if held && why == notSkipped {
		s.holding.move(d, seatInside)
	}
	return why
}

// begin makes the call of a subscription, and shows the watch that it begins now.
//
// While the timeline ticks, the watch looks at every tick, and gives the call its
// deadline then; a tick late, but never too early, as a reading that is a tick
// old would be. If the ticking has ended after recent was asked, the last look
// may have been too early to see the slot.
func (b *Bus) begin(w *worker, at *visit, s *Subscription) *call {
	if len(w.calls) == 0 {
		w.burst = min(2*w.burst+1, workerCalls)
		w.calls = make([]call, w.burst)
		w.visit = nil // before numbers come round again
	}
	c := &w.calls[0]
	if linked(at.values) {
		c = &call{}
	} else {
		w.calls = w.calls[1:]
	}
	w.called++
	c.visit, c.subscription, c.number = at, s, w.called
	d := at.dispatch
	now, exact := b.time.recent()
	d.started, w.timed = now.nanos, exact
	// A Weyl sequence: to take every 64th call would always be to take the same
	// subscription, of an event that visits two.
	if w.called*0x9e3779b9 < math.MaxUint32/latencySample && !exact {
		d.started, w.timed = b.time.nanos(), true
	}
	b.watch.Begin(w.slot, c)
	if !b.time.ticks() || s.timeout < 2*tick {
		b.watch.Arm(w.slot, c)
	}
	return c
}

// later is the instant d after another, or the end of time.
func later(nanos int64, d time.Duration) int64 {
	if due := nanos + int64(d); due >= nanos {
		return due
	}
	return math.MaxInt64
}

// invoke calls the handler. What it panics with is its error.
func invoke(c *call, e *Event) (err error) {
	finished := false
	defer func() {
		if finished {
			return
		}
		r := recover()
		if r == nil {
			// Either panic(nil) under GODEBUG=panicnil=1, which recover has
			// stopped, or runtime.Goexit, after which this error is nobody's.
			r = new(runtime.PanicNilError)
		}
		err = &PanicError{Value: r, Stack: debug.Stack()}
	}()
	err = c.subscription.handler(c, *e)
	finished = true
	return err
}

// conclude takes the result of a call, with the verdict on an error if there is one
// already. It reports whether the attempt goes on.
func (b *Bus) conclude(w *worker, c *call, err error, v *verdict) bool {
	if !c.End() {
		b.endedLate(w, c, err)
		return false
	}
	c.cancel()
	if err != nil {
		b.failed(w, c, err, v)
		return false
	}
	d, s := c.dispatch, c.subscription
	var was counted
	if d.story != nil {
		was = d.story.countedAt(s)
		d.story.passed()
	}
	now, _ := b.time.recent()
	if w.timed {
		s.counters.latency.observe(time.Duration(b.time.nanos() - d.started))
	}
	b.probed(s, d.pass, s.circuit.succeeded(d.pass, now.nanos, was))
	return true
}

// failed is what follows from a failure: a retry, or a dead letter.
func (b *Bus) failed(w *worker, c *call, err error, v *verdict) {
	// It is likely to wait, and has something to tell in any case.
	d, s, now := c.dispatch.moveOut(), c.subscription, b.time.nanos()
	duration := max(time.Duration(now-d.started), 0)
	by, story := b.policy(d.to).at(s, &b.config.names), d.tale()
	attempt := failedAttempt{bound: by.policy.MaxElapsed}
	if attempt.bound != 0 {
		attempt.elapsed = b.time.now().utc.Sub(d.published(b.time))
	}
	if v == nil {
		asked := by // what a goroutine gets is on the heap
		v = b.judge(s, err, &asked)
	}
	attempt.verdict = *v
	policy := by.deciding(&attempt.verdict)
	failures, previous := by.count(d, &attempt.verdict)
	attempt.number, attempt.previous = failures, *previous
	d.keep(failure{err, attempt.text, s, now, duration, d.attempt, int32(attempt.rule + 1)})
	s.counters.failed(err, duration)
	d.failedReplay()
	next := policy.decide(attempt, b.randomly(s))
	var change circuitChange
	if attempt.permanent {
		s.circuit.released(d.pass)
	} else {
		story.counted, change = s.circuit.failed(d.pass, now, story.countedAt(s))
		story.at = s
	}
	b.logFailure(d, policy, next.delay)
	b.probed(s, d.pass, change)
	if !next.retry {
		b.bury(w, d, next.reason)
		return
	}
	d.to.counters.retries.Add(1)
	if d.attempt == 1 {
		d.to.counters.retried.Add(1)
	}
	*previous = next.scheduled
	due := later(now, next.delay)
	b.store.settle(d, settlement{outcome: Waiting, due: due})
	b.attemptEnded(d, Waiting, "")
	b.retryScheduled(d, next.delay, due)
	if d.wasHeld() {
		s.holding.move(d, seatAway)
		defer b.tend(s)
	}
	if !b.delay.Add(due, d) {
		b.bury(w, d, ReasonShutdown)
	}
}

// skip is why a subscription is skipped.
type skip int

const (
	notSkipped skip = iota
	skipOpen        // its circuit is open
	skipPaused
	skipBehind // an earlier event of the key is held there
	skipRemoved
)

// passOver goes past a subscription that is skipped: what was for it becomes a
// dispatch of its own; being skipped spends no attempt. It reports whether that
// was all there was to the dispatch.
func (b *Bus) passOver(w *worker, d *dispatch, s *Subscription, why skip) (all bool) {
	if d.wasHeld() {
		d.attempt--
		b.skip(w, d, s, why)
		return true
	}
	s.counters.skipped.Add(1)
	all = int(d.next) == len(d.to.subscriptions)-1 && d.succeeded() == 0
	if !all {
		b.ledger.splits.Add(1)
	}
	split := d.splitOff(s, b.policy(d.to), all)
	if all {
		split.takeAttempt(d)
	}
	outcome, letter := b.skip(w, split, s, why)
	if waiter := d.waiter(); waiter != nil && !all {
		// Nobody waits for the split; who waits for the whole is told of it.
		switch {
		case letter != nil:
			waiter.died(letter)
		case outcome == Held:
			waiter.holds(s)
		}
	}
	return all
}

// skip does with a dispatch to a subscription that is skipped what that wants.
func (b *Bus) skip(w *worker, d *dispatch, s *Subscription, why skip) (Outcome, *DeadLetter) {
	switch {
	case why == skipRemoved:
		return DeadLettered, b.bury(w, d, ReasonUnsubscribed)
	case why == skipOpen && s.whenOpen == DropWhenOpen:
		b.settle(w, d, settlement{outcome: Dropped})
		return Dropped, nil
	case why == skipOpen && s.whenOpen == DeadLetterWhenOpen:
		return DeadLettered, b.bury(w, d, ReasonCircuitOpen)
	}
	if letter := b.hold(w, d, s); letter != nil {
		return DeadLettered, letter
	}
	return Held, nil
}

// withdraw takes back a call that must not start any more. It reports whether
// the attempt is over.
func (b *Bus) withdraw(w *worker, c *call) bool {
	if !c.End() {
		b.endedLate(w, c, nil)
		return true
	}
	d, s := c.dispatch, c.subscription
	s.circuit.released(d.pass)
	b.probed(s, d.pass, circuitChange{})
	if !b.cutting.begun() {
		return b.passOver(w, d, s, s.circuit.barred())
	}
	d.attempt--
	b.bury(w, d, ReasonShutdown)
	return true
}

// overran is told by the watch of a call that it has given up. It runs on the
// watch's goroutine, so the rest is left to a fresh worker.
func (b *Bus) overran(c *call) {
	b.giveUp(c, func(w *worker) {
		b.failed(w, c, &TimeoutError{Subscription: c.subscription.id, Timeout: c.subscription.timeout}, nil)
	})
}

// giveUp leaves a call to itself, and what is left to do to a fresh worker.
func (b *Bus) giveUp(c *call, rest func(*worker)) {
	c.ask().remember(c)
	b.abandoned.add(c, b.time.now().utc)
	c.cancel()
	b.lanes.Replace(rest)
}

// endedLate notes the end of a call that had been given up.
func (b *Bus) endedLate(w *worker, c *call, err error) {
	w.lost = true
	b.abandoned.remove(c)
	c.subscription.counters.lateEnds.Add(1)
	b.logLateEnd(c, err)
}

// bury makes a dead letter of a dispatch that has ended at its next subscription.
func (b *Bus) bury(w *worker, d *dispatch, reason Reason) *DeadLetter {
	return b.settle(w, d, settlement{outcome: DeadLettered, letter: b.letter(d, reason)})
}

// settle ends a dispatch. It is counted last, since Shutdown goes on when all
// have been.
func (b *Bus) settle(w *worker, d *dispatch, s settlement) *DeadLetter {
	letter := b.store.settle(d, s)
	b.attemptEnded(d, s.outcome, s.reason())
	count := &b.ledger.handled
	switch s.outcome { //nolint:exhaustive // those that end an attempt
	case Dropped:
		count = &b.ledger.dropped
	case DeadLettered:
		count = &b.ledger.deadLettered
		d.to.counters.deadLettered.Add(1)
		if !d.retried() { // or its failures have been noted
			d.failedReplay()
		}
		b.logDeadLetter(d, letter)
		b.deadLettered(letter)
		b.noteUnfinished(letter)
	case Handled:
		if d.recovered() {
			d.to.counters.succeededAfterRetry.Add(1)
		}
	}
	if waiter := d.waiter(); waiter != nil {
		if letter != nil {
			waiter.died(letter)
		}
		w.ended(waiter, s.outcome, int(d.attempt))
	}
	if d.hasPlace() {
		b.leave(w, &d.opening)
	}
	count.Add(1)
	if d.wasHeld() {
		at := d.to.subscriptions[0]
		at.holding.leave(d)
		b.tend(at)
	}
	b.checkDrained()
	return letter
}

// unrouted settles an event that nothing matches.
func (b *Bus) unrouted(o opening) {
	d := &dispatch{opening: o}
	d.to.counters.events.Add(1)
	b.store.settle(d, settlement{outcome: Unrouted})
	if f := b.config.observer.Unrouted; f != nil {
		b.observe("Unrouted", func() { f(d.event(b.time)) })
	}
	b.ledger.unrouted.Add(1)
	if waiter := d.waiter(); waiter != nil {
		waiter.end(Unrouted)
	}
	b.checkDrained()
}
