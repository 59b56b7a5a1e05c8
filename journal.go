package eventbus

import (
	"context"
	"time"

	"github.com/surebus/eventbus/internal/room"
)

// journal is what a transition means beyond memory. The machine decides on a transition, and the journal applies it, exactly
// once: memoryJournal at once, durable when the store has it, on another goroutine. Until then the journal owns the dispatch,
// and nothing else may touch it.
//
// Arguments are values: a pointer to a struct that crosses the interface would cost an allocation for each event.
type journal interface {
	// open makes accepted dispatches runnable, and waits until they are. The error is a refusal, or an *IndeterminateError.
	open(ctx context.Context, o opening) error
	// replay removes a letter and makes its dispatch runnable, or schedules it again: ErrNotFound if another call was first.
	// end waits until it is done.
	replay(ctx context.Context, o opening, l *keptLetter, audit *AuditEntry) (end func() error)
	// due makes a scheduled dispatch runnable.
	due(d *dispatch)
	// wait keeps a dispatch until its next attempt.
	wait(d *dispatch, delay time.Duration, due int64)
	// park keeps a delivery at its door. If it spills, only the store does.
	park(d *dispatch, spills bool)
	// settle ends a dispatch. It has a letter if it is dead-lettered.
	settle(d *dispatch, outcome Outcome, letter *keptLetter)
	// cutShort ends what Shutdown, or a failure of the store, does not let go on: with a letter in memory. A store keeps it.
	cutShort(d *dispatch)
	// passed notes that the next target has handled the event, in an attempt with further targets.
	passed(on *worker, d *dispatch)
}

// opening has dispatches that become runnable together.
type opening struct {
	d     *dispatch
	batch []*dispatch // if there are several; d is the first
	// published is batch before the dispatches with known ids were removed.
	published []*dispatch
	events    []Event   // for Observer.Accepted
	pass      room.Pass // of acquireRoom
}

// all returns the dispatches.
func (o *opening) all() []*dispatch {
	if o.batch != nil || o.d == nil {
		return o.batch
	}
	return []*dispatch{o.d}
}

// records returns the number of records that a store inserts for them.
func (o *opening) records() (records int64) {
	for _, d := range o.all() {
		records += d.records()
	}
	return records
}

// indeterminate returns the error of a publication whose outcome is unknown.
func (o *opening) indeterminate(why error) error {
	e := &IndeterminateError{ID: o.d.id, Err: why}
	for _, d := range o.published {
		e.IDs = append(e.IDs, d.id)
	}
	if e.IDs != nil {
		e.ID = e.IDs[0]
	}
	return e
}

// memoryJournal is the journal of a bus without a store.
type memoryJournal struct {
	*Bus
	// hook delays transitions, and refuses those that open dispatches: the simulation's. nil otherwise.
	hook func(done func(error))
}

// later applies a transition when the hook says so.
func (j *memoryJournal) later(d *dispatch, apply func()) {
	d.state = stateRecording
	j.ledger.recording.Add(1)
	j.hook(func(error) {
		apply()
		j.ledger.recording.Add(-1)
		j.lifecycle.checkDrained()
	})
}

// opened waits until the hook lets dispatches open.
func (j *memoryJournal) opened(open func(refused error) error) error {
	opened := make(chan error, 1)
	j.hook(func(refused error) {
		opened <- open(refused)
		j.lifecycle.checkDrained()
	})
	return <-opened
}

func (j *memoryJournal) open(_ context.Context, o opening) error {
	if j.hook != nil {
		all := o.all()
		return j.opened(func(refused error) error {
			for _, d := range all {
				if refused == nil {
					j.machine.applyOpen(d, false)
				} else {
					j.machine.pool.Unreserve(d.places())
				}
			}
			return refused
		})
	}
	for _, d := range o.all() {
		j.machine.applyOpen(d, false)
	}
	return nil
}

func (j *memoryJournal) replay(_ context.Context, o opening, l *keptLetter, _ *AuditEntry) (end func() error) {
	open := func(err error) error {
		switch {
		case err != nil:
		case j.kept.take(l.ID) == 0:
			err = ErrNotFound
		default:
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
	return func() error { return err }
}

func (j *memoryJournal) due(d *dispatch) {
	j.ledger.scheduled.Add(-1) // before the dispatch can settle: see unsettled
	j.machine.enqueue(d, false)
}

func (j *memoryJournal) wait(d *dispatch, delay time.Duration, due int64) {
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

func (j *memoryJournal) settle(d *dispatch, outcome Outcome, letter *keptLetter) {
	if j.hook != nil {
		j.later(d, func() { j.keepAndSettle(d, outcome, letter) })
		return
	}
	j.keepAndSettle(d, outcome, letter)
}

func (j *memoryJournal) keepAndSettle(d *dispatch, outcome Outcome, letter *keptLetter) {
	if letter != nil {
		j.kept.add(letter)
	}
	j.machine.applySettle(d, outcome, letter)
}

func (j *memoryJournal) cutShort(d *dispatch) {
	j.settle(d, DeadLettered, j.machine.letter(d, ReasonShutdown))
}

func (j *memoryJournal) passed(*worker, *dispatch) {}
