package eventbus

import (
	"context"
	"fmt"
	"time"

	"github.com/surebus/eventbus/driver"
)

// memoryJournal is the journal of a bus without a store.
type memoryJournal struct {
	*Bus
	// hook delays transitions, and refuses those that open dispatches: the simulation's (testhooks.go). nil otherwise.
	hook func(done func(error))
}

// later applies a transition when the hook says so.
func (j *memoryJournal) later(d *dispatch, apply func()) {
	d.state = stateRecording
	j.ledger.recording.Add(1)
	j.hook(func(error) {
		apply()
		j.ledger.recording.Add(-1)
		j.ledger.checkDrained()
	})
}

// opened waits until the hook lets dispatches open.
func (j *memoryJournal) opened(open func(refused error) error) error {
	opened := make(chan error, 1)
	j.hook(func(refused error) {
		opened <- open(refused)
		j.ledger.checkDrained()
	})
	return <-opened
}

// open makes dispatches runnable.
func (j *memoryJournal) open(o *opening) error {
	if j.hook != nil {
		all := o.all()
		return j.opened(func(refused error) error {
			for _, d := range all {
				if refused == nil {
					j.machine.applyAccept(d, false)
				} else {
					j.machine.pool.Unreserve(d.queueRoom())
				}
			}
			return refused
		})
	}
	for _, d := range o.all() {
		j.machine.applyAccept(d, false)
	}
	return nil
}

func (j *memoryJournal) replay(_ context.Context, o opening, l *keptLetter, _ *AuditEntry) (end func() error, _ error) {
	open := func(err error) error {
		switch {
		case err != nil:
		case !j.kept.take(l.ID):
			err = ErrNotFound
		default:
			j.intake.given.joins(o.d)
			j.machine.applyReplay(o.d)
		}
		return err
	}
	var err error
	if j.hook == nil {
		err = open(nil)
	} else {
		err = j.opened(open)
	}
	return func() error { return err }, nil
}

func (j *memoryJournal) replaysAtOnce() int { return 1 }

func (j *memoryJournal) due(d *dispatch) {
	j.ledger.scheduled.Add(-1) // before the dispatch can settle: see unsettled
	j.machine.enqueue(d, false)
}

func (j *memoryJournal) retryLater(d *dispatch, delay time.Duration, due int64) {
	if j.hook != nil {
		j.later(d, func() { j.machine.applyWait(d, delay, due) })
		return
	}
	j.machine.applyWait(d, delay, due)
}

func (j *memoryJournal) park(d *dispatch, _ bool) {
	if j.hook != nil {
		j.later(d, func() { j.machine.applyPark(d) })
		return
	}
	j.machine.applyPark(d)
}

func (j *memoryJournal) settle(d *dispatch, outcome Outcome, letter *keptLetter, emitted []*dispatch) {
	if j.hook != nil {
		j.later(d, func() { j.acceptEmitted(emitted); j.keepAndSettle(d, outcome, letter) })
		return
	}
	if len(emitted) > 0 {
		j.acceptEmitted(emitted)
	}
	j.keepAndSettle(d, outcome, letter)
}

// refuse ends an event that a handler has emitted with a letter.
func (j *memoryJournal) refuse(d *dispatch, reason Reason, why error) {
	r := j.machine.refuse(d, reason, why)
	j.keep(d, r.letter)
	j.machine.applyRefusal(r)
}

// keep keeps a letter, if there is one, and accepts its events. The idempotency key of the dispatch is free before a handler of letters
// runs.
func (j *memoryJournal) keep(d *dispatch, letter *keptLetter) {
	if letter == nil {
		j.intake.given.settled(d)
		return
	}
	j.kept.add(letter) // before tell: it numbers the letter
	j.intake.given.settled(d)
	told, _ := j.machine.tell(d, letter)
	j.acceptEmitted(told)
}

// acceptEmitted accepts what a handler has emitted, before its event settles. Nothing refuses a success.
func (j *memoryJournal) acceptEmitted(emitted []*dispatch) {
	for _, d := range emitted {
		o := &opening{d: d, inside: true}
		if err := j.intake.given.take(o); err != nil {
			j.refuse(d, ReasonDuplicate, err)
			continue
		}
		if o.d == nil { // a repetition
			continue
		}
		if d.to.eventType == deadLetterType && !j.machine.pool.TryReserve(d.queueRoom()) {
			j.refuse(d, ReasonOverflow, &FullError{Bound: BoundQueue, Most: int64(j.config.queue)})
			continue
		}
		if j.report.seesAccepted() {
			o.events = []Event{d.event(j.time)}
		}
		if d.to.eventType != deadLetterType {
			_ = j.machine.pool.Reserve(context.Background(), d.queueRoom(), true) // it refuses only when all has settled
		}
		j.machine.applyAccept(d, false)
		j.intake.accepted(o)
	}
}

func (j *memoryJournal) keepAndSettle(d *dispatch, outcome Outcome, letter *keptLetter) {
	j.keep(d, letter)
	j.machine.applySettle(d, outcome, letter)
}

func (j *memoryJournal) cutShort(d *dispatch) {
	j.settle(d, DeadLettered, j.machine.letter(d, ReasonShutdown), nil)
}

func (j *memoryJournal) detains(*dispatch) bool { return false }

func (j *memoryJournal) callEnded() {}

func (j *memoryJournal) asksForDoor(*door) {}

func (j *memoryJournal) passed(_ *worker, _ *dispatch, emitted []*dispatch) bool {
	if j.hook != nil && len(emitted) > 0 {
		_ = j.opened(func(error) error { j.acceptEmitted(emitted); return nil })
		return true
	}
	j.acceptEmitted(emitted)
	return true
}

func (j *memoryJournal) prepare(ctx context.Context, d *dispatch) (err error) {
	if j.config.encodes {
		if d.payload, err = j.intake.encode(d.payload); err != nil {
			return err
		}
	}
	if j.config.contextFrom != nil {
		d.values = valuesOf(j.config.contextFrom(ctx))
	}
	return nil
}

func (j *memoryJournal) prepareLetter(d *dispatch, l *DeadLetter) {
	if d.payload = l.clone(); j.config.encodes {
		d.payload = encodeLetter(*l)
	}
}

func (j *memoryJournal) accept(ctx context.Context, inside bool, d *dispatch, batch []*dispatch) (fresh int, err error) {
	// A pointer: the compiler copies a value of which it then takes the address, which costs 7 ns.
	o := &opening{d: d, batch: batch, published: batch}
	places, unqueued, given := o.needs()
	if unqueued {
		err = j.acceptUnqueued(ctx, inside, o, places, given)
	} else {
		err = j.acceptQueued(ctx, inside, o, places, given)
	}
	if err != nil {
		return 0, err
	}
	o.nameFolded()
	return j.intake.accepted(o), nil
}

func (j *memoryJournal) isRepeated(_ context.Context, d *dispatch) (bool, error) {
	return j.intake.given.has(d), nil
}

// acceptUnqueued accepts dispatches of which some take no room in the queue.
func (j *memoryJournal) acceptUnqueued(ctx context.Context, inside bool, o *opening, places int, given bool) error {
	return j.intake.whileEntering(inside, func() error { return j.acceptQueued(ctx, inside, o, places, given) })
}

// acceptQueued accepts the dispatches with new ids, and removes the others.
func (j *memoryJournal) acceptQueued(ctx context.Context, inside bool, c *opening, places int, given bool) error {
	if given {
		if err := j.intake.given.unknown(c); err != nil || c.d == nil {
			return err
		}
		places, _, _ = c.needs() // of those that are left
	}
	if places > 0 {
		if err := j.intake.reserve(ctx, c, places, inside); err != nil {
			j.ledger.checkDrained() // it may have reserved room for a moment
			return err
		}
	}
	if given {
		if err := j.intake.given.take(c); err != nil || c.d == nil {
			j.machine.pool.Unreserve(places)
			j.ledger.checkDrained()
			return err
		}
		left, _, _ := c.needs()
		j.machine.pool.Unreserve(places - left) // for ids that another publisher used meanwhile
	}
	if j.report.seesAccepted() { // before open: workers own runnable dispatches
		for _, d := range c.all() {
			c.events = append(c.events, d.event(j.time))
		}
	}
	err := j.open(c)
	if err != nil {
		j.intake.given.forgetAll(c)
		j.ledger.checkDrained()
	}
	return err
}

func (j *memoryJournal) acceptTx(context.Context, bool, any, *dispatch) error {
	return fmt.Errorf("%w: a bus in memory has no database; open a store with WithStore", ErrNoTransaction)
}

func (j *memoryJournal) emitTx(ctx context.Context, tx any, _ []*dispatch) error {
	return j.acceptTx(ctx, true, tx, nil)
}

func (j *memoryJournal) awaits(EventID, *waiter) (ended func()) { return func() {} }

func (j *memoryJournal) act(_ context.Context, a *action, audit *AuditEntry) error {
	if j.halts.Any() {
		return ErrShutdown
	}
	var all []*dispatch
	complete := a.endsAll() && j.machine.takeScheduled(a, &all)
	if !complete {
		all = append(all, j.machine.takeAll(a)...)
	}
	for _, d := range all {
		a.cancelsFresh(d)
		ends, goesOn := j.machine.endsOf(a, d)
		if a.verb == AuditGiveUp {
			j.machine.bury(ends, ReasonOperator)
		} else {
			j.machine.settle(ends, Cancelled)
		}
		if goesOn != nil {
			j.machine.requeue(goesOn)
		}
	}
	if !complete {
		j.machine.leave(a)
	}
	for _, d := range a.freed() {
		j.intake.given.forget(d)
	}
	if a.any() {
		audited(j.audits, j.report, audit)
	}
	j.ledger.checkDrained()
	return nil
}

func (j *memoryJournal) encodePayload(payload any) (any, error) {
	if _, encoded := payload.(EncodedPayload); encoded || !j.config.encodes {
		return payload, nil
	}
	return j.intake.encode(payload)
}

func (j *memoryJournal) ask(context.Context, request) (answer *reply, asked bool, err error) {
	return nil, false, nil
}

func (j *memoryJournal) direct(_ []Directive, audit *AuditEntry, _ driver.RequestID, _ *Directive) (shared bool, err error) {
	j.audits.done(audit)
	return false, nil
}

func (j *memoryJournal) retire(ctx context.Context, r request, s *Subscription) (report RetireReport, err error) {
	if s == nil {
		return report, fmt.Errorf("%w: %s", ErrNoSubscription, j.operators.noneNamed(r.Subscription))
	}
	for _, o := range s.doors() {
		for _, n := range o.parked() {
			report.Parked += n
		}
	}
	entry := j.operators.retireEntry(r, report.Parked)
	if err := j.operators.auditBulk(ctx, entry); err != nil {
		return report, err
	}
	s.retires(&retirement{By: r.By, Drop: r.Drop}, func(all ...*dispatch) {
		report.Ended = len(all)
		for _, d := range all {
			j.machine.bury(d, ReasonUnsubscribed)
		}
	})
	return report, j.operators.auditOutcome(ctx, entry, AuditOutcome{Done: report.Ended}, nil, nil)
}

func (j *memoryJournal) awaitRetired(_ context.Context, _ string, report RetireReport) (RetireReport, error) {
	return report, nil
}

func (j *memoryJournal) readDirectives(context.Context) (directives []Directive, known bool, err error) {
	return nil, false, nil
}

func (j *memoryJournal) untilStop(ctx context.Context) (ending context.Context, done func()) {
	return ctx, func() {}
}

func (j *memoryJournal) recordsOf(context.Context, EventID) (records []*record, exist bool, err error) {
	return nil, false, nil
}

func (j *memoryJournal) recordPage(context.Context, driver.RecordQuery, string) (records []*record, next string, exist bool, err error) {
	return nil, "", false, nil
}

func (j *memoryJournal) remembers(_ context.Context, id EventID) (bool, error) {
	_, known := j.intake.given.lookup(idName(id))
	return known, nil
}

func (j *memoryJournal) keyedEvent(_ context.Context, eventType, key string) (id EventID, known bool, err error) {
	of, known := j.intake.given.lookup(givenName{eventType, key})
	return of.id, known, nil
}

func (j *memoryJournal) settledOf(_ context.Context, id EventID) ([]SettledDelivery, error) {
	return j.machine.settledOf(id), nil
}

func (j *memoryJournal) hurried(*dispatch, DispatchState) {}

func (j *memoryJournal) measure(m *Metrics) { m.DeadLetters, m.LettersEvicted = j.kept.count() }

func (j *memoryJournal) comes(*Subscription, bool) (arrived func()) { return func() {} }

func (j *memoryJournal) ends(*Subscription) {}

func (j *memoryJournal) dispatches() bool { return j.lifecycle.started.Load() }

func (j *memoryJournal) start(context.Context) error { return nil }

func (j *memoryJournal) started() {}

func (j *memoryJournal) unloads() {}

func (j *memoryJournal) stop() {}

func (j *memoryJournal) drainsElsewhere(context.Context) func() bool { return nil }

func (j *memoryJournal) awaitEnd(ended <-chan struct{}) error {
	<-ended
	return nil
}

func (j *memoryJournal) awaitReturns() {}

func (j *memoryJournal) close() error { return nil }
