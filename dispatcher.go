package eventbus

import (
	"math"
	"runtime"
	"runtime/debug"
	"time"
)

// run runs what the worker has taken, and with next what it takes ahead.
func (b *Bus) run(w *worker, next func(*opening) bool) {
	w.place, w.takeNext = 0, next
	for {
		b.attempt(w, w.taken())
		switch {
		case w.lost: // and what it ran is somebody else's
			return
		case !w.ahead:
			if w.places[1].to != nil {
				w.places[1].opening = opening{} // what is taken next comes into the other one
			}
			return
		}
		w.ahead, w.handled = false, false
		w.places[1-w.place].opening = opening{} // or the worker keeps it as long as this one runs
	}
}

// attempt is a dispatch's next attempt: its handlers in order, from the subscription
// that it has come to, until the first failure. It ends with that of another dispatch if
// one call has been passed on to the next.
func (b *Bus) attempt(w *worker, d *dispatch) {
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
		if at.asked.Load() != nil {
			at = w.visiting(d) // so that what is asked is soon found
		}
		pass, why := b.enter(d, s)
		if why != notSkipped {
			if b.cutting.begun() {
				b.cutShort(w, d)
				return
			}
			if b.passOver(w, d, s, why) {
				return
			}
			continue
		}
		b.attemptBegun(d)
		// What is somebody else's as soon as the call is given up is read before it begins.
		w.to, w.steps = d.to, d.story == nil && !d.apart
		c = b.begin(w, at, s, pass)
		inHandler, err, v = true, nil, nil
		var may bool
		if may, err = b.handle(w, &c, s); err != nil && c.running() {
			v = &w.verdict
			b.judgeInside(w.to.subscriptions[c.position()], w.to, err, v)
		}
		inHandler = false
		d, at = c.dispatch, c.visit // what is in there may be somebody else's
		if !may {
			if b.withdraw(w, c) {
				return
			}
			continue
		}
		if !b.conclude(w, c, err, v) {
			return
		}
	}
	w.handled = true
	b.settle(w, d, settlement{outcome: Handled})
}

// enter asks at the subscription's door, immediately before it is its turn: one
// that an attempt does not reach holds no permit.
func (b *Bus) enter(d *dispatch, s *Subscription) (pass uint64, why skip) {
	pass = s.circuit.gate.Load()
	held := d.wasHeld()
	behind := !held && d.key != "" && s.holding.hasLine(d.key)
	if pass&gateAsk == 0 && !behind {
		if held {
			s.holding.move(d, seatInside)
		}
		return pass, notSkipped
	}
	if behind && !s.circuit.removed() {
		return pass, skipBehind
	}
	pass, why, change := s.circuit.enter(b.time.Nanos())
	b.circuitChanged(s, change)
	if held && why == notSkipped {
		s.holding.move(d, seatInside)
	}
	return pass, why
}

// later is the instant d after another, or the end of time.
func later(nanos int64, d time.Duration) int64 {
	if due := nanos + int64(d); due >= nanos {
		return due
	}
	return math.MaxInt64
}

// handle runs the handler of c, which is that of s, and as far as one call can be passed
// on to the next, those after it. c is then the last one, also if its handler ends the
// goroutine, and err what it has returned, or panicked with. With false, it must not be
// called any more.
func (b *Bus) handle(w *worker, c **call, s *Subscription) (may bool, err error) {
	inHandler := false
	defer func() {
		if !inHandler {
			return
		}
		r := recover()
		if r == nil {
			// Either panic(nil) under GODEBUG=panicnil=1, which recover has
			// stopped, or runtime.Goexit, after which this error is nobody's.
			r = new(runtime.PanicNilError)
		}
		may, err = true, &PanicError{Value: r, Stack: debug.Stack()}
	}()
	event := w.event // here, it is copied once a call and not twice
	for {
		// Whoever sets one of these looks for running calls only afterwards.
		if b.cutting.begun() || s.circuit.barred() != notSkipped {
			return false, nil
		}
		inHandler = true
		err = s.handler(*c, event)
		inHandler = false
		if err != nil {
			return true, err
		}
		var next *call
		if next, s = b.passOn(w, *c, s); next == nil {
			return true, nil
		}
		if next.visit != (*c).visit {
			event = w.event
		}
		*c = next
	}
}

// conclude takes the result of a call, with the verdict on an error if there is one
// already. It reports whether the attempt goes on.
func (b *Bus) conclude(w *worker, c *call, err error, v *verdict) bool {
	if !w.slot.End(c.number) {
		b.putBack(w)
		b.endedLate(w, c, err)
		return false
	}
	if c.asked.Load() != nil {
		c.cancel()
	}
	if err != nil {
		b.failed(w, c, err, v)
		return false
	}
	d, s := c.takeBack(), c.subscription()
	now, _ := b.time.Recent()
	if d.story == nil && w.weight == 0 && s.circuit.quiet(c.pass(), now.Nanos) {
		s.circuit.successes.Add(1)
		return true
	}
	b.putBack(w) // what follows may take its time
	var was counted
	if d.story != nil {
		was = d.story.counted
		d.passed()
	}
	if w.weight > 0 {
		s.counters.latency.Observe(time.Duration(b.time.Nanos()-c.started), w.weight)
	}
	b.probed(s, c.pass(), s.circuit.succeeded(c.pass(), now.Nanos, was))
	return true
}

// failed is what follows from a failure: a retry, or a dead letter.
func (b *Bus) failed(w *worker, c *call, err error, v *verdict) {
	// It is likely to wait, and has something to tell in any case.
	d, s, now := c.takeBack().moveOut(), c.subscription(), b.time.Nanos()
	duration := max(time.Duration(now-c.started), 0)
	by, story := b.policy(d.to).at(s, &b.config.names), d.tale()
	attempt := failedAttempt{bound: by.policy.MaxElapsed}
	if attempt.bound != 0 {
		attempt.elapsed = b.time.Now().UTC.Sub(d.published(b.time))
	}
	if v == nil {
		asked := by // what a goroutine gets is on the heap
		v = b.judge(s, err, &asked)
	}
	attempt.verdict = v
	policy := by.deciding(v)
	failures, previous := by.count(d, v)
	attempt.number, attempt.previous = failures, *previous
	kept := d.keep(s)
	kept.err, kept.text, kept.at, kept.duration = err, attempt.text, now, duration
	kept.attempt, kept.rule = d.attempt, int32(attempt.rule+1)
	s.counters.failed(err, duration)
	d.failedReplay()
	next := policy.decide(&attempt, b.randomly(policy, s))
	var change circuitChange
	if attempt.permanent {
		s.circuit.released(c.pass())
	} else {
		story.counted, change = s.circuit.failed(c.pass(), now, story.counted)
	}
	b.logFailure(d, policy, next.delay)
	b.probed(s, c.pass(), change)
	if !next.retry {
		b.bury(w, d, next.reason)
		return
	}
	if d.attempt == 1 {
		d.to.counters.retried.Add(1)
	} else {
		d.to.counters.again.Add(1)
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
	if !w.slot.End(c.number) {
		b.endedLate(w, c, nil)
		return true
	}
	c.cancel()
	d, s := c.takeBack(), c.subscription()
	s.circuit.released(c.pass())
	b.probed(s, c.pass(), circuitChange{})
	if !b.cutting.begun() {
		return b.passOver(w, d, s, s.circuit.barred())
	}
	b.cutShort(w, d)
	return true
}

// cutShort settles what a cut has met before its attempt has had a result: what is left
// of it is one letter, whether a worker or the cut itself has come to it first.
func (b *Bus) cutShort(w *worker, d *dispatch) {
	d.attempt--
	b.bury(w, d, ReasonShutdown)
}

// overran is told by the watch of a call that it has given up. It runs on the
// watch's goroutine, so the rest is left to a fresh worker.
func (b *Bus) overran(c *call) {
	b.giveUp(c, func(w *worker) {
		s := c.subscription()
		b.failed(w, c, &TimeoutError{Subscription: s.id, Timeout: s.timeout}, nil)
	})
}

// giveUp leaves a call to itself, and what is left to do to a fresh worker.
func (b *Bus) giveUp(c *call, rest func(*worker)) {
	c.ask().remember(c)
	b.abandoned.add(c, b.time.Now().UTC)
	c.cancel()
	b.lanes.Replace(rest)
}

// endedLate notes the end of a call that had been given up.
func (b *Bus) endedLate(w *worker, c *call, err error) {
	w.lost = true
	b.abandoned.remove(c)
	_, s := c.delivery() // as its dispatch may have gone on by now
	s.counters.lateEnds.Add(1)
	b.logLateEnd(c, s, err)
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

// settleHandled is settle for a dispatch that has been handled, and has neither a story nor
// extras nor a key: nobody is to be told of its end, and nothing lets another one in. It may
// be the last one all the same: what follows it in the step may have been given up, and
// settled by somebody else, before this is counted.
func (b *Bus) settleHandled(d *dispatch) {
	b.store.settle(d, settlement{outcome: Handled})
	b.ledger.handled.Add(1)
	b.checkDrained()
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
