package eventbus

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/timeline"
)

// reporter tells observers and the log what happens on a bus. It calls no other part of the bus.
type reporter struct {
	time      *timeline.Timeline
	log       *zap.Logger
	cut       <-chan struct{}           // closed when Shutdown's context has ended
	observers atomic.Pointer[observers] // nil: none
	attempts  atomic.Uint64             // that were numbered
	stuck     atomic.Bool               // an observer did not return in time after the cut

	mu       sync.Mutex   // guards the following; a leaf
	cutShort []DeadLetter // with the reason shutdown
}

// add adds an observer. remove removes it.
func (r *reporter) add(o Observer) (remove func()) {
	added := &observing{Observer: o}
	r.change(func(all []*observing) []*observing { return append(all, added) })
	return func() {
		added.removed.Store(true)
		r.change(func(all []*observing) []*observing {
			return slices.DeleteFunc(all, func(other *observing) bool { return other == added })
		})
	}
}

// seesAccepted reports whether an observer has the function Accepted.
func (r *reporter) seesAccepted() bool {
	s := r.observers.Load()
	return s != nil && s.accepted
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

// change replaces the observers. f may change the slice that it receives.
func (r *reporter) change(f func([]*observing) []*observing) {
	for {
		before, after := r.observers.Load(), &observers{}
		if before != nil {
			after.all = slices.Clone(before.all)
		}
		after.all = f(after.all)
		for _, o := range after.all {
			after.accepted = after.accepted || o.Accepted != nil
			after.attempts = after.attempts || o.AttemptBegun != nil || o.AttemptEnded != nil
		}
		if len(after.all) == 0 {
			after = nil
		}
		if r.observers.CompareAndSwap(before, after) {
			return
		}
	}
}

// notify calls a function of each observer. pick returns the call, or nil if the observer has not this
// function.
func (r *reporter) notify(s *observers, name string, pick func(*Observer) func()) {
	if s == nil {
		return
	}
	for _, o := range s.all {
		if call := pick(&o.Observer); call != nil && !o.removed.Load() {
			r.observe(name, func() {
				if !o.removed.Load() {
					call()
				}
			})
		}
	}
}

// observe calls a function of an observer.
func (r *reporter) observe(name string, call func()) {
	report := func(panicked string) {
		if panicked != "" {
			r.log.Error("observer panicked", zap.String("observer", name), zap.String("panic", panicked))
		}
	}
	if r.stuck.Load() {
		// After a cut there may be thousands of letters. Each call would cost apart.Grace.
		go func() {
			panicked, _ := apart.Run(nil, nil, panicText, call)
			report(panicked)
		}()
		return
	}
	panicked, done := apart.Run(r.cut, nil, panicText, call)
	report(panicked)
	if !done {
		r.stuck.Store(true)
	}
}

func (r *reporter) accepted(e Event) {
	r.notify(r.observers.Load(), "Accepted", func(o *Observer) func() {
		if o.Accepted == nil {
			return nil
		}
		return func() { o.Accepted(e) }
	})
}

func (r *reporter) unrouted(d *dispatch) {
	r.notify(r.observers.Load(), "Unrouted", func(o *Observer) func() {
		if o.Unrouted == nil {
			return nil
		}
		return func() { o.Unrouted(d.event(r.time)) }
	})
}

// observedAttempt is an attempt, and the observers of its begin. Those that were added later do not see
// its end.
type observedAttempt struct {
	Attempt
	by *observers
}

// attemptBegun reports the begin of an attempt, once.
func (r *reporter) attemptBegun(d *dispatch) {
	if s := r.observers.Load(); s != nil && s.attempts {
		r.beginAttempt(s, d)
	}
}

func (r *reporter) beginAttempt(s *observers, d *dispatch) {
	detours := d.ensureDetours()
	if detours.observed != nil {
		return
	}
	attempt := Attempt{
		ID:      r.attempts.Add(1),
		Event:   d.event(r.time),
		Number:  int(d.attempt),
		Replays: int(d.replay().count),
		BeganAt: r.time.Now().UTC,
	}
	detours.observed = &observedAttempt{attempt, s}
	r.notify(s, "AttemptBegun", func(o *Observer) func() {
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
func (r *reporter) attemptEnded(d *dispatch, outcome Outcome, reason Reason) {
	attempt := d.takeObserved()
	if attempt == nil {
		return
	}
	ended := EndedAttempt{Outcome: outcome, Reason: reason}
	if last := d.lastFailure(); last != nil && int(last.attempt) == attempt.Number {
		failure := d.failureOf(last, r.time)
		ended.Failure = &failure
	}
	r.endAttempt(attempt, ended)
}

// endAttempt reports the end of an attempt to the observers of its begin.
func (r *reporter) endAttempt(attempt *observedAttempt, ended EndedAttempt) {
	ended.Attempt = attempt.Attempt
	r.notify(attempt.by, "AttemptEnded", func(o *Observer) func() {
		if o.AttemptEnded == nil {
			return nil
		}
		told := ended
		told.Duration = max(r.time.Now().UTC.Sub(ended.BeganAt), 0)
		return func() { o.AttemptEnded(told) }
	})
}

// retryScheduled reports the retry after a dispatch's last failure.
func (r *reporter) retryScheduled(d *dispatch, delay time.Duration, due int64) {
	r.notify(r.observers.Load(), "RetryScheduled", func(o *Observer) func() {
		if o.RetryScheduled == nil {
			return nil
		}
		retry := ScheduledRetry{
			Event:   d.event(r.time),
			Replays: int(d.replay().count),
			Failure: d.failureOf(d.lastFailure(), r.time),
			Delay:   delay,
			Due:     r.time.At(due),
		}
		return func() { o.RetryScheduled(retry) }
	})
}

// letter passes a copy of a letter to the function that of returns.
func (r *reporter) letter(l *DeadLetter, name string, of func(*Observer) func(DeadLetter)) {
	r.notify(r.observers.Load(), name, func(o *Observer) func() {
		f := of(o)
		if f == nil {
			return nil
		}
		return func() { f(l.clone()) }
	})
}

// deadLettered reports a dead letter. Of those of a shutdown it logs the first ones.
func (r *reporter) deadLettered(d *dispatch, l *DeadLetter) {
	if r.logs(l) {
		r.logDeadLetter(d, l)
	}
	r.letter(l, "DeadLettered", func(o *Observer) func(DeadLetter) { return o.DeadLettered })
}

// loggedUnfinished is the number of letters of a shutdown that are logged one by one.
const loggedUnfinished = 100

// logs reports whether to log a letter. It keeps those of a shutdown for its error.
func (r *reporter) logs(l *DeadLetter) bool {
	if l.Reason != ReasonShutdown {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cutShort = append(r.cutShort, l.clone())
	return len(r.cutShort) <= loggedUnfinished
}

// unfinished returns the letters of a shutdown.
func (r *reporter) unfinished() []DeadLetter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cutShort
}

// letterEvicted reports a letter that the full queue has evicted.
func (r *reporter) letterEvicted(l *DeadLetter) {
	r.logEviction(l)
	r.letter(l, "LetterEvicted", func(o *Observer) func(DeadLetter) { return o.LetterEvicted })
}

func (r *reporter) replayed(l *DeadLetter) {
	r.letter(l, "Replayed", func(o *Observer) func(DeadLetter) { return o.Replayed })
}

func (r *reporter) observeCircuit(s *Subscription, change circuit.Change) {
	r.notify(r.observers.Load(), "CircuitChanged", func(o *Observer) func() {
		if o.CircuitChanged == nil {
			return nil
		}
		told := CircuitChange{Subscription: s.id, From: CircuitState(change.From), To: CircuitState(change.To), At: r.time.Now().UTC}
		return func() { o.CircuitChanged(told) }
	})
}

// slowHandlers reports calls that have used a third of their timeouts. The watch runs it on its own
// goroutine. The calls may end at any moment.
func (r *reporter) slowHandlers(calls []deadline.Late[call]) {
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
			Elapsed:      max(time.Duration(r.time.Nanos()-late.Began), 0),
		}
		if !s.slow.Swap(true) {
			r.logSlow(&slow)
		}
		r.notify(r.observers.Load(), "SlowHandler", func(o *Observer) func() {
			if o.SlowHandler == nil {
				return nil
			}
			return func() { o.SlowHandler(slow) }
		})
	}
}
