package eventbus

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/capped"
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

	unroutedTypes *capped.Set // that were logged
	hollowTypes   *capped.Set // Go types that were logged

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

// unrouted reports an event that no subscription matches. It logs each type once, with the pattern that nearest returns.
func (r *reporter) unrouted(d *dispatch, nearest func(eventType string) string) {
	if r.log.Core().Enabled(zap.InfoLevel) && r.unroutedTypes.IsNew(d.to.eventType) {
		fields := []zap.Field{zap.String("event_type", d.to.eventType)}
		if pattern := nearest(d.to.eventType); pattern != "" {
			fields = append(fields, zap.String("nearest_pattern", pattern))
		}
		r.log.Info("event type matches no subscription", fields...)
	}
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

func (r *reporter) observeCircuit(at *door, change circuit.Change) {
	r.notify(r.observers.Load(), "CircuitChanged", func(o *Observer) func() {
		if o.CircuitChanged == nil {
			return nil
		}
		told := CircuitChange{Subscription: at.set.Load().of.id, Destination: at.name, From: CircuitState(change.From), To: CircuitState(change.To), At: r.time.Now().UTC}
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

// handlerFailed logs a failed attempt. p decided on it. delay is 0 after the last attempt.
func (r *reporter) handlerFailed(d *dispatch, p *RetryPolicy, delay time.Duration) {
	if entry := r.log.Check(zap.WarnLevel, "handler failed"); entry != nil {
		f := d.lastFailure()
		entry.Write(append(d.to.policy().ruleRef(f).fields(),
			zap.Stringer("event_id", d.id),
			zap.String("event_type", d.to.eventType),
			zap.String("subscription_id", f.subscription.id),
			zap.Int("attempt", int(d.attempt)),
			zap.Int("max_attempts", p.maxAttempts()),
			zap.Int64("delay_ms", int64(math.Ceil(float64(delay)/float64(time.Millisecond)))),
			zap.String("error", f.text),
		)...)
	}
}

func (r *reporter) logDeadLetter(d *dispatch, l *DeadLetter) {
	if entry := r.log.Check(zap.ErrorLevel, "event dead-lettered"); entry != nil {
		merged := d.to.policy()
		policy := &merged.RetryPolicy
		if f := d.lastFailure(); f != nil {
			policy = merged.decider(f)
		}
		entry.Write(append(l.fields(), zap.Int("max_attempts", policy.maxAttempts()))...)
	}
}

// fields returns the log fields of a rule, or none for nil.
func (r *RuleRef) fields() []zap.Field {
	if r == nil {
		return nil
	}
	fields := []zap.Field{zap.Int("rule", r.Position)}
	if r.Name != "" {
		fields = append(fields, zap.String("rule_name", r.Name))
	}
	return fields
}

// fields returns the log fields of a letter, without the payload.
func (l *DeadLetter) fields() []zap.Field {
	fields := []zap.Field{
		zap.Stringer("event_id", l.Event.ID),
		zap.String("event_type", l.Event.Type),
		zap.String("subscription_id", l.Subscription),
		zap.Int("attempt", l.Attempts),
		zap.String("reason", string(l.Reason)),
		zap.Stringer("letter_id", l.ID),
		zap.Time("died_at", l.DiedAt),
	}
	if len(l.Succeeded) > 0 {
		fields = append(fields, zap.Strings("succeeded", l.Succeeded))
	}
	if len(l.NotReached) > 0 {
		fields = append(fields, zap.Strings("not_reached", l.NotReached))
	}
	fields = append(fields, l.Rule.fields()...)
	if n := len(l.Failures); n > 0 {
		fields = append(fields, zap.String("error", l.Failures[n-1].Error))
	}
	return fields
}

// abandonedEnded logs that an abandoned handler has returned. text is that of its error, and called only if it is logged.
func (r *reporter) abandonedEnded(c *call, text func() string) {
	if entry := r.log.Check(zap.InfoLevel, "abandoned handler ended"); entry != nil {
		d := c.delivery()
		fields := []zap.Field{
			zap.Stringer("event_id", d.Event.ID),
			zap.String("event_type", d.Event.Type),
			zap.String("subscription_id", d.Subscription),
			zap.Int("attempt", d.Attempt),
		}
		if t := text(); t != "" {
			fields = append(fields, zap.String("error", t))
		}
		entry.Write(fields...)
	}
}

// circuitChanged logs and reports a circuit's change of state, if there is one.
func (r *reporter) circuitChanged(at *door, change circuit.Change) {
	if change.From == change.To {
		return
	}
	level := zap.InfoLevel
	if change.To == circuit.Open {
		level = zap.WarnLevel
	}
	if entry := r.log.Check(level, "circuit "+CircuitState(change.To).String()); entry != nil {
		entry.Write(append(fieldsOf(at),
			zap.Stringer("from", CircuitState(change.From)),
			zap.Stringer("to", CircuitState(change.To)),
		)...)
	}
	if at.whole != nil && change.To == circuit.Open {
		at.set.Load().of.destinations.opens.Add(1)
	}
	r.observeCircuit(at, change)
}

// doubtful logs options of the bus, or of a subscription, that look like a mistake.
func (r *reporter) doubtful(subscription string, d doubts) {
	if len(d) == 0 {
		return
	}
	if subscription != "" {
		d = append(d, zap.String("subscription_id", subscription))
	}
	r.log.Warn("options may be a mistake", d...)
}

// notStarted logs that events wait for Start, which the program may not call at all.
func (r *reporter) notStarted() {
	r.log.Warn("bus is not started: events wait for Start", zap.String("remedy", "call Start after the subscriptions are made"))
}

// hollowPayload logs a Go type whose payloads are encoded as {}, once.
func (r *reporter) hollowPayload(goType string) {
	if r.hollowTypes.IsNew(goType) {
		r.log.Warn("payload is encoded as {}: its type has no exported field, or is an error", zap.String("go_type", goType),
			zap.String("remedy", "export the fields, or publish the text of the error"))
	}
}

// throttled logs that a handler has asked everyone to wait.
func (r *reporter) throttled(d *dispatch, at *door, delay time.Duration, why string) {
	r.log.Warn("subscription throttled",
		append(fieldsOf(at), zap.Duration("delay", delay), zap.String("error", why), zap.Stringer("event_id", d.id))...)
}

// snoozed logs the 10th, 100th and 1,000th time that a delivery is snoozed.
func (r *reporter) snoozed(d *dispatch, s *Subscription, times int32) {
	if times == 10 || times == 100 || times == 1000 {
		r.log.Warn("delivery snoozed again and again", zap.Stringer("event_id", d.id), zap.String("event_type", d.to.eventType),
			zap.String("subscription_id", s.id), zap.Int32("snoozes", times))
	}
}

// logSlow logs a subscription's first slow call.
func (r *reporter) logSlow(slow *SlowHandler) {
	if entry := r.log.Check(zap.WarnLevel, "slow handler"); entry != nil {
		entry.Write(
			zap.Stringer("event_id", slow.Event.ID),
			zap.String("event_type", slow.Event.Type),
			zap.String("subscription_id", slow.Subscription),
			zap.Int("attempt", slow.Attempt),
			zap.Duration("timeout", slow.Timeout),
			zap.String("made_at", slow.MadeAt),
		)
	}
}

// logEviction logs a letter that the full queue has evicted.
func (r *reporter) logEviction(l *DeadLetter) {
	if entry := r.log.Check(zap.ErrorLevel, "dead letter queue is full: oldest letter evicted"); entry != nil {
		entry.Write(l.fields()...)
	}
}

// action logs what an operator did.
func (r *reporter) action(e *AuditEntry) {
	if e.operator() != (operator{}) {
		r.log.Info("operator action", e.fields()...)
	}
}
