package eventbus

import (
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/deadline"
)

// Observer has functions that the bus calls at the events below. A nil function costs nothing.
//
// Each call runs on a goroutine of its own, under no lock of the bus. The caller waits until the
// function has returned: Publish, Replay, or the worker that owns the dispatch. Functions must be
// quick. They may be called concurrently. A panic is logged. It does no harm, and neither does
// runtime.Goexit. After Shutdown's context has ended, the bus waits up to 100 ms for a function.
// Once a function exceeds that, the bus waits for none.
//
// The functions may use the bus. Publish in a function counts as a call from outside, even if a
// handler caused it. If the queue is full, it waits for the workers, and one of them may wait for
// the function. PublishAndWait and Shutdown would wait for themselves: call them on another
// goroutine, or with a context that ends.
//
// The calls of one dispatch come in the order of events: AttemptBegun, AttemptEnded, then
// RetryScheduled and the next AttemptBegun, or DeadLettered. Calls of different dispatches have no
// order. After Shutdown's context has ended, no calls have one.
type Observer struct {
	// Accepted is called by Publish, PublishAndWait and PublishBatch, before they return, with each
	// event that they accept. The handlers may have begun before, so Accepted may come after any call
	// but Unrouted. Replays do not call it.
	Accepted func(Event)
	// Unrouted is called by the same methods, after Accepted, with each event that matches no
	// subscription.
	Unrouted func(Event)

	// AttemptBegun is called before the first handler of an attempt. A dispatch that only skips
	// subscriptions makes no attempt.
	AttemptBegun func(Attempt)
	// AttemptEnded is called once for each AttemptBegun, after the outcome was recorded and before
	// PublishAndWait returns. An attempt ends with its last handler, a failure, an Unsubscribe, an
	// open circuit, or the end of Shutdown's context. An abandoned handler may go on.
	AttemptEnded func(EndedAttempt)
	// RetryScheduled is called after an AttemptEnded with the outcome Waiting. The retry is not
	// made if Shutdown's context ends before.
	RetryScheduled func(ScheduledRetry)

	// DeadLettered is called with each dead letter, once the dead letter queue has it: after the
	// AttemptEnded of an attempt that failed, and before that of an attempt that only skipped a
	// subscription.
	DeadLettered func(DeadLetter)
	// LetterEvicted is called with each dead letter that the full queue has evicted, by the
	// goroutine that added the next letter. With many workers it may come before the DeadLettered
	// of the same letter.
	LetterEvicted func(DeadLetter)
	// Replayed is called by Replay and ReplayMatching, before they return, with each letter that
	// they took. The handlers may have begun before.
	Replayed func(DeadLetter)

	// CircuitChanged is called after the state of a subscription's circuit has changed, on the
	// worker whose delivery changed it. If a call takes longer than the circuit's OpenFor, the next
	// call may overlap it.
	CircuitChanged func(CircuitChange)
	// SlowHandler is called once for each call of a handler that runs for a third of its timeout.
	// If a third is less than a millisecond, it may not be called. Only Shutdown waits for it:
	// neither the handler nor other deadlines are delayed, and the handler may have ended when it
	// is called.
	SlowHandler func(SlowHandler)
}

// Attempt is one pass of a dispatch over its subscriptions, from the next one to the first failure.
type Attempt struct {
	// ID is unique on the bus. An AttemptBegun and its AttemptEnded have the same one.
	ID      uint64
	Event   Event
	Number  int       // 1 for the first
	Replays int       // number of replays of the event from dead letters
	BeganAt time.Time // in UTC
}

// EndedAttempt is an attempt and its outcome.
type EndedAttempt struct {
	Attempt
	Duration time.Duration // from BeganAt on, observers included
	// Outcome is the state of the dispatch: Waiting for its next attempt, or how it ended. A
	// Handled dispatch may have skipped subscriptions.
	Outcome Outcome
	// Reason is why the dispatch was dead-lettered, with the outcome DeadLettered.
	Reason Reason
	// Failure is the failure that ended the attempt. It is nil if no handler failed, or if Shutdown
	// stopped the handler.
	Failure *Failure
}

// ScheduledRetry is a failed attempt and when the next one is due.
type ScheduledRetry struct {
	Event   Event
	Replays int // number of replays of the event from dead letters
	// Failure is the failure that ended the attempt.
	Failure Failure
	Delay   time.Duration // 0 for at once
	Due     time.Time     // when the next attempt is due, in UTC
}

// CircuitChange is a change of the state of a subscription's circuit.
type CircuitChange struct {
	Subscription string
	From, To     CircuitState
	At           time.Time // when the bus observed the change, in UTC
}

// SlowHandler is a running call of a handler that has used a third of its timeout.
type SlowHandler struct {
	Subscription string
	MadeAt       string // where the subscription was made: "/src/shop/mail.go:17"
	Event        Event
	Attempt      int
	Replays      int // number of replays of the event from dead letters
	Timeout      time.Duration
	Elapsed      time.Duration // since the handler began
}

// observe calls an observer.
func (b *Bus) observe(name string, call func()) {
	report := func(panicked string) {
		if panicked != "" {
			b.log.Error("observer panicked", zap.String("observer", name), zap.String("panic", panicked))
		}
	}
	if b.stuck.Load() {
		// After a cut there may be thousands of letters. Each call would cost guardedGrace.
		go func() {
			panicked, _ := guarded(nil, nil, call)
			report(panicked)
		}()
		return
	}
	panicked, done := guarded(b.halts.cut, nil, call)
	report(panicked)
	if !done {
		b.stuck.Store(true)
	}
}

func (b *Bus) observeAccepted(e Event) {
	b.observe("Accepted", func() { b.config.observer.Accepted(e) })
}

func (b *Bus) observeUnrouted(d *dispatch) {
	if f := b.config.observer.Unrouted; f != nil {
		b.observe("Unrouted", func() { f(d.event(b.time)) })
	}
}

// attemptBegun reports the begin of an attempt, once.
func (b *Bus) attemptBegun(d *dispatch) {
	if o := &b.config.observer; o.AttemptBegun != nil || o.AttemptEnded != nil {
		b.observeBegun(d)
	}
}

func (b *Bus) observeBegun(d *dispatch) {
	r := d.ensureDetours()
	if r.observed != nil {
		return
	}
	r.observed = &Attempt{
		ID:      b.attempts.Add(1),
		Event:   d.event(b.time),
		Number:  int(d.attempt),
		Replays: int(d.replay().count),
		BeganAt: b.time.Now().UTC,
	}
	if f := b.config.observer.AttemptBegun; f != nil {
		attempt := *r.observed
		b.observe("AttemptBegun", func() { f(attempt) })
	}
}

// takeObserved returns the attempt whose begin was reported, and clears it.
func (d *dispatch) takeObserved() *Attempt {
	if d.story == nil || d.story.detours == nil {
		return nil
	}
	a := d.story.detours.observed
	d.story.detours.observed = nil
	return a
}

// attemptEnded reports the end of an attempt whose beginning was reported. It is called after the
// outcome was recorded, while the caller owns the dispatch.
func (b *Bus) attemptEnded(d *dispatch, outcome Outcome, reason Reason) {
	attempt := d.takeObserved()
	if attempt == nil {
		return
	}
	ended := EndedAttempt{Attempt: *attempt, Outcome: outcome, Reason: reason}
	if last := d.lastFailure(); last != nil && int(last.attempt) == ended.Number {
		failure := b.failureOf(d, last)
		ended.Failure = &failure
	}
	b.observeEnd(ended)
}

func (b *Bus) observeEnd(ended EndedAttempt) {
	if f := b.config.observer.AttemptEnded; f != nil {
		ended.Duration = max(b.time.Now().UTC.Sub(ended.BeganAt), 0)
		b.observe("AttemptEnded", func() { f(ended) })
	}
}

// failureOf converts a failure to its exported form.
func (b *Bus) failureOf(d *dispatch, f *failure) Failure {
	return Failure{
		Attempt:      int(f.attempt),
		Replays:      int(d.replay().count),
		Subscription: f.subscription.id,
		Time:         b.time.At(f.at),
		Duration:     f.duration,
		Error:        f.text,
		Class:        classOf(f.err),
		Rule:         b.policy(d.to).ruleRef(f),
		Err:          f.err,
	}
}

// observeRetry reports the retry after a dispatch's last failure.
func (b *Bus) observeRetry(d *dispatch, delay time.Duration, due int64) {
	if f := b.config.observer.RetryScheduled; f != nil {
		retry := ScheduledRetry{
			Event:   d.event(b.time),
			Replays: int(d.replay().count),
			Failure: b.failureOf(d, d.lastFailure()),
			Delay:   delay,
			Due:     b.time.At(due),
		}
		b.observe("RetryScheduled", func() { f(retry) })
	}
}

func (b *Bus) observeDeadLetter(l *DeadLetter) {
	if f := b.config.observer.DeadLettered; f != nil {
		b.observe("DeadLettered", func() { f(l.clone()) })
	}
}

// observeEviction reports a letter that the full queue has evicted.
func (b *Bus) observeEviction(l *DeadLetter) {
	b.logEviction(l)
	if f := b.config.observer.LetterEvicted; f != nil {
		b.observe("LetterEvicted", func() { f(l.clone()) })
	}
}

func (b *Bus) observeReplay(l *DeadLetter) {
	if f := b.config.observer.Replayed; f != nil {
		b.observe("Replayed", func() { f(l.clone()) })
	}
}

func (b *Bus) observeCircuit(s *Subscription, change circuitChange) {
	if f := b.config.observer.CircuitChanged; f != nil {
		told := CircuitChange{Subscription: s.id, From: change.from, To: change.to, At: b.time.Now().UTC}
		b.observe("CircuitChanged", func() { f(told) })
	}
}

// observeSlow reports calls that have used a third of their timeouts. The watch runs it on its own
// goroutine. The calls may end at any moment.
func (b *Bus) observeSlow(calls []deadline.Late[call]) {
	for _, late := range calls {
		c, s := late.Call, late.Call.subscription()
		if !c.running() {
			continue
		}
		s.counters.slow.Add(1)
		d := c.delivery()
		slow := SlowHandler{
			Subscription: s.id,
			MadeAt:       s.MadeAt(),
			Event:        d.Event,
			Attempt:      d.Attempt,
			Replays:      d.Replays,
			Timeout:      s.timeout,
			Elapsed:      max(time.Duration(b.time.Nanos()-late.Began), 0),
		}
		if !s.slow.Swap(true) {
			b.logSlow(&slow)
		}
		if f := b.config.observer.SlowHandler; f != nil {
			b.observe("SlowHandler", func() { f(slow) })
		}
	}
}
