package eventbus

import (
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/circuit"
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
	ID      uint64    `json:"attempt_id"`
	Event   Event     `json:"event"`
	Number  int       `json:"number"`            // 1 for the first
	Replays int       `json:"replays,omitempty"` // number of replays of the event from dead letters
	BeganAt time.Time `json:"began_at"`          // in UTC
}

// EndedAttempt is an attempt and its outcome.
type EndedAttempt struct {
	Attempt
	Duration time.Duration `json:"duration"` // from BeganAt on, observers included
	// Outcome is the state of the dispatch: Waiting for its next attempt, or how it ended. A
	// Handled dispatch may have skipped subscriptions.
	Outcome Outcome `json:"outcome"`
	// Reason is why the dispatch was dead-lettered, with the outcome DeadLettered.
	Reason Reason `json:"reason,omitempty"`
	// Failure is the failure that ended the attempt. It is nil if no handler failed, or if Shutdown
	// stopped the handler.
	Failure *Failure `json:"failure,omitempty"`
}

// ScheduledRetry is a failed attempt and when the next one is due.
type ScheduledRetry struct {
	Event   Event `json:"event"`
	Replays int   `json:"replays,omitempty"` // number of replays of the event from dead letters
	// Failure is the failure that ended the attempt.
	Failure Failure       `json:"failure"`
	Delay   time.Duration `json:"delay"` // 0 for at once
	Due     time.Time     `json:"due"`   // when the next attempt is due, in UTC
}

// CircuitChange is a change of the state of a subscription's circuit.
type CircuitChange struct {
	Subscription string       `json:"subscription"`
	From         CircuitState `json:"from"`
	To           CircuitState `json:"to"`
	At           time.Time    `json:"at"` // when the bus observed the change, in UTC
}

// SlowHandler is a running call of a handler that has used a third of its timeout.
type SlowHandler struct {
	Subscription string        `json:"subscription"`
	MadeAt       string        `json:"made_at"` // where the subscription was made: "/src/shop/mail.go:17"
	Event        Event         `json:"event"`
	Attempt      int           `json:"attempt"`
	Replays      int           `json:"replays,omitempty"` // number of replays of the event from dead letters
	Timeout      time.Duration `json:"timeout"`
	Elapsed      time.Duration `json:"elapsed"` // since the handler began
}

// Observe adds an observer to a bus that may be running. remove removes it. The bus calls several
// observers in the order in which they were added, one after the other. Observe costs the bus what
// WithObserver costs it, and nothing once the observer is removed.
//
// Events that are published after Observe has returned are reported. After remove has returned, the bus
// begins no call of the observer. Neither waits: a call that is in progress may end later, so a function
// that sends to a channel must not rely on remove before the channel is closed. AttemptEnded is called
// only for attempts that began after Observe. A second remove does nothing. Both may be called from the
// observer's functions and from handlers.
//
// On a bus that New did not make, Observe does nothing.
func (b *Bus) Observe(o Observer) (remove func()) {
	if !b.usable() {
		return func() {}
	}
	added := &observing{Observer: o}
	b.changeObservers(func(all []*observing) []*observing { return append(all, added) })
	return func() {
		added.removed.Store(true)
		b.changeObservers(func(all []*observing) []*observing {
			return slices.DeleteFunc(all, func(other *observing) bool { return other == added })
		})
	}
}

// observing is an observer of a bus.
type observing struct {
	Observer
	removed atomic.Bool // a goroutine that has read the observers before must not call it
}

// observers has the observers of a bus. It is replaced, never changed.
type observers struct {
	all      []*observing
	accepted bool // one has the function Accepted
	attempts bool // one has AttemptBegun or AttemptEnded
}

// changeObservers replaces the observers. change may change the slice that it receives.
func (b *Bus) changeObservers(change func([]*observing) []*observing) {
	for {
		before, after := b.observers.Load(), &observers{}
		if before != nil {
			after.all = slices.Clone(before.all)
		}
		after.all = change(after.all)
		for _, o := range after.all {
			after.accepted = after.accepted || o.Accepted != nil
			after.attempts = after.attempts || o.AttemptBegun != nil || o.AttemptEnded != nil
		}
		if len(after.all) == 0 {
			after = nil
		}
		if b.observers.CompareAndSwap(before, after) {
			return
		}
	}
}

func (s *observers) seeAccepted() bool { return s != nil && s.accepted }

// notify calls a function of each observer. pick returns the call, or nil if the observer has not this
// function.
func (b *Bus) notify(s *observers, name string, pick func(*Observer) func()) {
	if s == nil {
		return
	}
	for _, o := range s.all {
		if call := pick(&o.Observer); call != nil && !o.removed.Load() {
			b.observe(name, func() {
				if !o.removed.Load() {
					call()
				}
			})
		}
	}
}

// observe calls a function of an observer.
func (b *Bus) observe(name string, call func()) {
	report := func(panicked string) {
		if panicked != "" {
			b.log.Error("observer panicked", zap.String("observer", name), zap.String("panic", panicked))
		}
	}
	if b.stuck.Load() {
		// After a cut there may be thousands of letters. Each call would cost apart.Grace.
		go func() {
			panicked, _ := apart.Run(nil, nil, panicText, call)
			report(panicked)
		}()
		return
	}
	panicked, done := apart.Run(b.halts.IsCut(), nil, panicText, call)
	report(panicked)
	if !done {
		b.stuck.Store(true)
	}
}

func (b *Bus) observeAccepted(e Event) {
	b.notify(b.observers.Load(), "Accepted", func(o *Observer) func() {
		if o.Accepted == nil {
			return nil
		}
		return func() { o.Accepted(e) }
	})
}

func (b *Bus) observeUnrouted(d *dispatch) {
	b.notify(b.observers.Load(), "Unrouted", func(o *Observer) func() {
		if o.Unrouted == nil {
			return nil
		}
		return func() { o.Unrouted(d.event(b.time)) }
	})
}

// observedAttempt is an attempt, and the observers of its begin. Those that were added later do not see
// its end.
type observedAttempt struct {
	Attempt
	by *observers
}

// attemptBegun reports the begin of an attempt, once.
func (b *Bus) attemptBegun(d *dispatch) {
	if s := b.observers.Load(); s != nil && s.attempts {
		b.observeBegun(s, d)
	}
}

func (b *Bus) observeBegun(s *observers, d *dispatch) {
	r := d.ensureDetours()
	if r.observed != nil {
		return
	}
	attempt := Attempt{
		ID:      b.attempts.Add(1),
		Event:   d.event(b.time),
		Number:  int(d.attempt),
		Replays: int(d.replay().count),
		BeganAt: b.time.Now().UTC,
	}
	r.observed = &observedAttempt{attempt, s}
	b.notify(s, "AttemptBegun", func(o *Observer) func() {
		if o.AttemptBegun == nil {
			return nil
		}
		return func() { o.AttemptBegun(attempt) }
	})
}

// takeObserved returns the attempt whose begin was reported, and clears it.
func (d *dispatch) takeObserved() *observedAttempt {
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
	ended := EndedAttempt{Outcome: outcome, Reason: reason}
	if last := d.lastFailure(); last != nil && int(last.attempt) == attempt.Number {
		failure := b.failureOf(d, last)
		ended.Failure = &failure
	}
	b.observeEnd(attempt, ended)
}

// observeEnd reports the end of an attempt to the observers of its begin.
func (b *Bus) observeEnd(attempt *observedAttempt, ended EndedAttempt) {
	ended.Attempt = attempt.Attempt
	b.notify(attempt.by, "AttemptEnded", func(o *Observer) func() {
		if o.AttemptEnded == nil {
			return nil
		}
		told := ended
		told.Duration = max(b.time.Now().UTC.Sub(ended.BeganAt), 0)
		return func() { o.AttemptEnded(told) }
	})
}

// failureOf converts a failure to its exported form.
func (b *Bus) failureOf(d *dispatch, f *failure) Failure {
	var details json.RawMessage
	if f.details != nil {
		details = slices.Clone(*f.details) // observers get it too
	}
	return Failure{
		Attempt:      int(f.attempt),
		Replays:      int(d.replay().count),
		Subscription: f.subscription.id,
		Time:         b.time.At(f.at),
		Duration:     f.duration,
		Error:        f.text,
		Class:        classOf(f.err),
		Details:      details,
		Rule:         b.policy(d.to).ruleRef(f),
		Err:          f.err,
	}
}

// observeRetry reports the retry after a dispatch's last failure.
func (b *Bus) observeRetry(d *dispatch, delay time.Duration, due int64) {
	b.notify(b.observers.Load(), "RetryScheduled", func(o *Observer) func() {
		if o.RetryScheduled == nil {
			return nil
		}
		retry := ScheduledRetry{
			Event:   d.event(b.time),
			Replays: int(d.replay().count),
			Failure: b.failureOf(d, d.lastFailure()),
			Delay:   delay,
			Due:     b.time.At(due),
		}
		return func() { o.RetryScheduled(retry) }
	})
}

// observeLetter passes a copy of a letter to the function that of returns.
func (b *Bus) observeLetter(l *DeadLetter, name string, of func(*Observer) func(DeadLetter)) {
	b.notify(b.observers.Load(), name, func(o *Observer) func() {
		f := of(o)
		if f == nil {
			return nil
		}
		return func() { f(l.clone()) }
	})
}

func (b *Bus) observeDeadLetter(l *DeadLetter) {
	b.observeLetter(l, "DeadLettered", func(o *Observer) func(DeadLetter) { return o.DeadLettered })
}

// observeEviction reports a letter that the full queue has evicted.
func (b *Bus) observeEviction(l *DeadLetter) {
	b.logEviction(l)
	b.observeLetter(l, "LetterEvicted", func(o *Observer) func(DeadLetter) { return o.LetterEvicted })
}

func (b *Bus) observeReplay(l *DeadLetter) {
	b.observeLetter(l, "Replayed", func(o *Observer) func(DeadLetter) { return o.Replayed })
}

func (b *Bus) observeCircuit(s *Subscription, change circuit.Change) {
	b.notify(b.observers.Load(), "CircuitChanged", func(o *Observer) func() {
		if o.CircuitChanged == nil {
			return nil
		}
		told := CircuitChange{Subscription: s.id, From: CircuitState(change.From), To: CircuitState(change.To), At: b.time.Now().UTC}
		return func() { o.CircuitChanged(told) }
	})
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
		b.notify(b.observers.Load(), "SlowHandler", func(o *Observer) func() {
			if o.SlowHandler == nil {
				return nil
			}
			return func() { o.SlowHandler(slow) }
		})
	}
}
