package eventbus

import (
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/deadline"
)

// Observer is called at what happens on the bus. Its functions may be nil; one that is costs
// nothing.
//
// Each call runs on a goroutine of its own, under no lock of the bus, and where it happened waits
// until the call has returned: in Publish, in Replay, or on the worker that has the dispatch in its
// hands. So functions must be quick; they may be called concurrently. A panic is logged and does no
// harm, nor does runtime.Goexit. When a Shutdown is cut short they are waited for no longer than a
// moment, 100 ms, and once that was too short, not at all.
//
// They may use the bus. A Publish there comes from outside, also if it happened in a handler: on a
// full queue it waits for the workers, one of which may wait for it. What waits for the bus,
// PublishAndWait or Shutdown, waits for itself: it needs a goroutine of its own, or a context that
// ends.
//
// Of one dispatch, the calls come in the order in which things happen: AttemptBegun, AttemptEnded,
// then RetryScheduled and the next AttemptBegun, or DeadLettered. Between those of different
// dispatches there is no order, and none at all between those that a Shutdown that is cut short
// does not wait for.
type Observer struct {
	// Accepted is called by Publish and PublishAndWait, before they return, with each event that they
	// accept. Its handlers may have begun by then: Accepted may come after any of the others, Unrouted
	// aside. What is replayed is not accepted anew.
	Accepted func(Event)
	// Unrouted is called with each event that no subscription matched, by Publish, after Accepted.
	Unrouted func(Event)

	// AttemptBegun is called before the first handler of an attempt begins. A dispatch that only skips
	// subscriptions makes no attempt.
	AttemptBegun func(Attempt)
	// AttemptEnded is called once for each AttemptBegun, when it is recorded what the attempt has led
	// to, and before PublishAndWait returns. It is whatever has ended the attempt: a handler that
	// overran, panicked or ended its goroutine, an Unsubscribe, an open circuit, or a Shutdown that
	// was cut short. An abandoned handler may go on.
	AttemptEnded func(EndedAttempt)
	// RetryScheduled is called after an AttemptEnded with the outcome Waiting. The retry may still
	// come to nothing: a Shutdown that is cut short dead-letters what waits.
	RetryScheduled func(ScheduledRetry)

	// DeadLettered is called with each dead letter, when it can be found in the dead letter queue:
	// after the AttemptEnded of an attempt that has died, and before that of one that has only skipped
	// a subscription.
	DeadLettered func(DeadLetter)
	// LetterEvicted is called with each dead letter that fell out of the full queue, by whoever added
	// the next one. It is the last to see it; many workers at once may have it called before
	// DeadLettered.
	LetterEvicted func(DeadLetter)
	// Replayed is called by Replay and ReplayMatching, before they return, with each letter that they
	// have consumed. The handlers may have begun by then.
	Replayed func(DeadLetter)

	// CircuitChanged is called when the state of a subscription's circuit has changed: on the worker
	// whose delivery has changed it, before that goes on. If one of its calls takes longer than the
	// circuit's OpenFor, the next change may be told before it has returned.
	CircuitChanged func(CircuitChange)
	// SlowHandler is called once for each call of a handler that still runs when a third of its
	// timeout has passed; if that is less than a millisecond, perhaps not. Nothing waits for it but
	// Shutdown: it holds up neither the handler nor the deadlines of others, and the handler may have
	// ended when it is called, and the attempt with it.
	SlowHandler func(SlowHandler)
}

// Attempt is one pass of a dispatch over its subscriptions, from where it has come to until the
// first failure.
type Attempt struct {
	// ID tells attempts apart: an AttemptBegun and its AttemptEnded have the same one, which is no
	// other attempt's of the bus.
	ID      uint64
	Event   Event
	Number  int       // 1 for the first
	Replays int       // how often the event has been replayed from a dead letter
	BeganAt time.Time // in UTC
}

// EndedAttempt is an attempt and what it has led to.
type EndedAttempt struct {
	Attempt
	Duration time.Duration // from BeganAt on, observers included
	// Outcome is how the dispatch stands: Waiting for its next attempt, or how it ended. One that was
	// Handled may have skipped subscriptions.
	Outcome Outcome
	// Reason is why it died, with the outcome DeadLettered.
	Reason Reason
	// Failure is what has ended the attempt; nil if none of its handlers failed. One that was cut
	// short by Shutdown has not.
	Failure *Failure
}

// ScheduledRetry is a failed attempt that is going to be followed by another one.
type ScheduledRetry struct {
	Event   Event
	Replays int // how often the event has been replayed from a dead letter
	// Failure is the attempt's: its number, where it failed, and the error.
	Failure Failure
	Delay   time.Duration // 0 for at once
	Due     time.Time     // when the next attempt is due, in UTC
}

// CircuitChange is a change of the state of a subscription's circuit.
type CircuitChange struct {
	Subscription string
	From, To     CircuitState
	At           time.Time // when it was noticed, in UTC
}

// SlowHandler is a call of a handler that has used up a third of its timeout, and runs.
type SlowHandler struct {
	Subscription string
	MadeAt       string // where the subscription was made: "/src/shop/mail.go:17"
	Event        Event
	Attempt      int
	Replays      int // how often the event has been replayed from a dead letter
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
		// A cut may have thousands of letters to tell of, and each would be waited for a moment.
		go func() {
			panicked, _ := guarded(nil, nil, call)
			report(panicked)
		}()
		return
	}
	panicked, done := guarded(b.cutting.done, nil, call)
	report(panicked)
	if !done {
		b.stuck.Store(true)
	}
}

func (b *Bus) accepted(e Event) {
	b.observe("Accepted", func() { b.config.observer.Accepted(e) })
}

func (b *Bus) unrouted(d *dispatch) {
	if f := b.config.observer.Unrouted; f != nil {
		b.observe("Unrouted", func() { f(d.event(b.time)) })
	}
}

// attemptBegun tells of an attempt unless that has been done.
func (b *Bus) attemptBegun(d *dispatch) {
	if o := &b.config.observer; o.AttemptBegun != nil || o.AttemptEnded != nil {
		b.observeBegun(d)
	}
}

func (b *Bus) observeBegun(d *dispatch) {
	r := d.detour()
	if r.told != nil {
		return
	}
	r.told = &Attempt{
		ID:      b.attempts.Add(1),
		Event:   d.event(b.time),
		Number:  int(d.attempt),
		Replays: int(d.replay().count),
		BeganAt: b.time.Now().UTC,
	}
	if f := b.config.observer.AttemptBegun; f != nil {
		attempt := *r.told
		b.observe("AttemptBegun", func() { f(attempt) })
	}
}

// leaveAttempt takes away the attempt that observers know of.
func (d *dispatch) leaveAttempt() *Attempt {
	if d.story == nil || d.story.detours == nil {
		return nil
	}
	a := d.story.detours.told
	d.story.detours.told = nil
	return a
}

// attemptEnded tells of the end of an attempt, if there was one and its beginning was told. It
// comes while the dispatch is still its owner's, and after the outcome has passed the store.
func (b *Bus) attemptEnded(d *dispatch, outcome Outcome, reason Reason) {
	attempt := d.leaveAttempt()
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

// failureOf is a failure as users see it.
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

// retryScheduled tells of the retry after a dispatch's last failure.
func (b *Bus) retryScheduled(d *dispatch, delay time.Duration, due int64) {
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

func (b *Bus) deadLettered(l *DeadLetter) {
	if f := b.config.observer.DeadLettered; f != nil {
		b.observe("DeadLettered", func() { f(l.clone()) })
	}
}

// letterEvicted tells of a letter that has fallen out of the queue.
func (b *Bus) letterEvicted(l *DeadLetter) {
	b.logEviction(l)
	if f := b.config.observer.LetterEvicted; f != nil {
		b.observe("LetterEvicted", func() { f(l.clone()) })
	}
}

func (b *Bus) replayed(l *DeadLetter) {
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

// slow is called by the watch, on a goroutine of its own, with calls that have used a third of
// their timeouts. They may end at any moment.
func (b *Bus) slow(calls []deadline.Late[call]) {
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
