package eventbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
)

// change is a recorded transition of one dispatch, or of several that open together.
type change struct {
	kind transition
	opening
	outcome Outcome          // with toSettle
	letter  *keptLetter      // new (toSettle), or replayed (toReplay)
	due     int64            // with toWait, and with toPark of a delivery that sleeps
	delay   time.Duration    // with toWait
	audit   *AuditEntry      // of an operator's change, or nil
	answers driver.RequestID // the request of another process that the change carries out, or 0
	of      *change          // how another dispatch ends or goes on, which opens these: in the same batch, with toAccept
	acting  *acting          // with toAct

	// takesIn has the incoming events that the change takes in. divides is set if a subscription is missing, of their publisher or of
	// those that handle a letter: only the store gets the records then, and divide parks those deliveries.
	takesIn []driver.IncomingID
	divides bool

	// here, if it is not nil, receives the function that applies the recorded change. Otherwise a
	// followup applies it.
	here chan<- func()

	// unload is set if the store keeps the records of the dispatches and memory does not keep the
	// dispatches. The feeder decides for those that open.
	unload bool
}

// transition is a kind of change.
type transition uint8

const (
	toAccept   transition = iota // accepted dispatches become runnable
	toReplay                     // a letter becomes a dispatch
	toDue                        // a scheduled dispatch becomes runnable
	toWait                       // for the next attempt
	toPark                       // at its next target's door
	toSettle                     // the dispatch ends
	toProgress                   // to its next target, with what a handler has emitted
	toStore                      // the dispatch leaves memory for the store
	toAct                        // an action of an operator ends dispatches
)

// opens reports whether the change makes dispatches runnable that were not in memory.
func (k transition) opens() bool { return k <= toDue }

// ends returns the changes of the batch that end dispatches: this one, the one that opens its dispatches, or those of an action.
func (c *change) ends() []*change {
	switch {
	case c.kind == toSettle:
		return []*change{c}
	case c.kind == toAct:
		return c.acting.ends
	case c.of != nil:
		return c.of.ends()
	}
	return nil
}

// isCounted reports whether the ledger has the dispatch before the change.
func (k transition) isCounted() bool { return k >= toDue }

func (j *durable) replay(ctx context.Context, o opening, l *keptLetter, audit *AuditEntry) (end func() error, err error) {
	o.d.addRow(row{})
	if err := j.acquireRoom(ctx, &o, false); err != nil {
		return nil, err
	}
	c := &change{kind: toReplay, opening: o, letter: l, audit: audit}
	applied, err := j.openLater(ctx, c)
	if err != nil {
		return nil, err
	}
	return func() error {
		for {
			err := j.awaitRecorded(ctx, c, applied)
			if !errors.Is(err, ErrLeaseLost) {
				return err
			}
			c.pass, c.unload = room.Pass{}, false               // its room was given back
			if applied, err = j.openLater(ctx, c); err != nil { // it is left in incoming now
				return err
			}
		}
	}, nil
}

// replaysAtOnce: a store commits those that have gathered at once.
func (j *durable) replaysAtOnce() int { return 256 }

func (j *durable) due(d *dispatch) { j.recordLater(&change{kind: toDue, opening: opening{d: d}}) }

func (j *durable) retryLater(d *dispatch, delay time.Duration, due int64) {
	unload := d.key == "" && j.ledger.waiting.Load() >= maxWaiting
	j.recordLater(&change{kind: toWait, opening: opening{d: d}, delay: delay, due: due, unload: unload})
}

// maxWaiting is the number of waiting dispatches from which memory keeps no more of those without a
// key, if there is a store. Those with a key stay, because later ones wait for them there.
const maxWaiting = 50_000

func (j *durable) park(d *dispatch, spills bool) {
	j.recordLater(&change{kind: toPark, opening: opening{d: d}, due: d.sleepsUntil(), unload: spills})
}

func (j *durable) settle(d *dispatch, outcome Outcome, letter *keptLetter, emitted []*dispatch) {
	c := &change{kind: toSettle, opening: opening{d: d}, outcome: outcome, letter: letter}
	told, missing := j.machine.tell(d, letter)
	if emitted = append(emitted, told...); len(emitted) > 0 {
		j.recordOpening(c, emitted, missing)
		return
	}
	j.recordLater(c)
}

// cutShort leaves a dispatch to the store.
func (j *durable) cutShort(d *dispatch) {
	if d.state == stateRunning { // targets may have handled the event since the last record
		j.recordLater(&change{kind: toStore, opening: opening{d: d}, unload: true})
		return
	}
	j.unload(d)
}

// awaitRecorded waits for the outcome of a change that opens dispatches. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (j *durable) awaitRecorded(ctx context.Context, c *change, applied <-chan error) error {
	var why error
	block := j.store.blocks.Block()
	select {
	case err := <-applied:
		return err
	case <-block.Begun:
		why = block.Why
	case <-ctx.Done():
		why = contextError(ctx)
	case <-j.gaveUp:
		why = ErrShutdown
	}
	j.resolveLater(c, applied)
	if c.kind == toReplay {
		return fmt.Errorf("the replay may have been recorded; look whether the letter is left: %w", why)
	}
	return c.indeterminate(why)
}

// recordLater submits a change, and applies it once the store has answered. Changes that open dispatches or answer a
// request can be refused, and after the loss of the lease all others too.
func (j *durable) recordLater(c *change) (applied <-chan error) {
	applied, _ = j.openLater(context.Background(), c) // only publications and replays wait before
	return applied
}

// openLater is recordLater for a publication or a replay: it may wait until ctx ends, or the store is blocked. With an
// error, nothing was submitted.
func (j *durable) openLater(ctx context.Context, c *change) (applied <-chan error, err error) {
	var done chan error
	if c.kind == toAccept || c.kind == toReplay || c.here != nil { // otherwise nobody waits
		done = make(chan error, 1)
	}
	if c.kind.isCounted() {
		c.d.state = stateRecording
		j.ledger.recording.Add(1)
	}
	if err := j.record(ctx, c, func(err error) {
		err = j.apply(c, err)
		if c.kind.isCounted() {
			j.ledger.recording.Add(-1)
		}
		if done != nil {
			done <- err
		}
		j.ledger.checkDrained()
	}); err != nil {
		j.store.room.Leave(c.pass)
		return nil, err
	}
	return done, nil
}

// apply applies a change that was recorded, or that was refused with err.
func (j *durable) apply(c *change, err error) error {
	if c.kind == toAct {
		j.applyAct(c.acting, err)
		return err
	}
	if err != nil && !c.kind.opens() {
		j.unload(c.d) // refused, or the store has failed: it has the dispatch as it was before the change
		return err
	}
	if c.kind > toDue && c.kind != toProgress {
		j.acquit(c.d)
	}
	switch c.kind {
	case toAccept:
		for _, d := range c.all() {
			j.applyAccept(c, d, err)
		}
	case toReplay:
		if err == nil && !c.left {
			j.applyReplay(c.d, c.unload)
		}
	case toDue:
		j.applyDue(c.d, c.unload, err)
	case toWait:
		j.applyWait(c)
	case toPark:
		j.applyPark(c)
	case toSettle:
		if c.outcome != Unrouted {
			j.intake.quota.Release(1) // before a waiter has its answer, and publishes again
			j.feeder.lookIfWaiting()
		}
		j.machine.applySettle(c.d, c.outcome, c.letter)
	case toProgress:
		c.d.state = stateRunning
	case toStore:
		j.unload(c.d)
	case toAct: // see above
	}
	return err
}

func (j *durable) applyAccept(c *change, d *dispatch, err error) {
	switch {
	case err == nil && !c.left:
		j.machine.applyAccept(d, c.unload || d.from().due != nil)
		return
	case err == nil: // the bus that takes it in counts it
		if w := d.waiter(); w != nil && !j.store.leads() {
			w.giveUp(ErrLeaseLost)
		}
	case !c.unload && !c.left:
		j.machine.pool.Unreserve(d.queueRoom())
	}
	j.releaseQuota(&c.opening, d.records())
}

func (j *durable) applyReplay(d *dispatch, unload bool) {
	j.intake.quota.Add(d.records())
	if !unload && !d.isScheduled(j.time) {
		j.machine.applyReplay(d)
		return
	}
	j.machine.cancelling.Withdraw(d.id) // it was cancelled before
	j.ledger.replays.Add(1)
	j.ledger.stored.Add(int64(len(j.machine.copies(d))))
}

// applyDue queues a scheduled dispatch whose new place in the store's order is recorded.
func (j *durable) applyDue(d *dispatch, unload bool, err error) {
	switch {
	case err != nil:
		j.unload(d)
	case unload:
		j.intake.quota.Add(int64(len(j.machine.copiesOf(d))) - 1)
		j.ledger.stored.Add(int64(len(j.machine.copies(d))))
	default:
		j.intake.quota.Add(int64(len(j.machine.copiesOf(d))) - 1)
		j.machine.enqueue(d, false)
	}
}

func (j *durable) applyWait(c *change) {
	if !c.unload {
		j.machine.applyWait(c.d, c.delay, c.due)
		return
	}
	j.report.attemptEnded(c.d, Waiting, "")
	j.report.retryScheduled(c.d, c.delay, c.due)
	j.unload(c.d)
	j.feeder.due.Add(j.time.At(c.due))
}

// applyPark parks a delivery in its line, or leaves it to the store.
func (j *durable) applyPark(c *change) {
	d := c.d
	if !c.unload {
		j.machine.applyPark(d)
		return
	}
	at := d.seatDoor()
	j.machine.attemptHeld(d)
	j.machine.leaveKey(d)
	if c.due != 0 {
		j.unload(d)
		j.feeder.due.Add(j.time.At(c.due))
		return
	}
	at.spillCommitted() // before a restart, which begins to count anew, can find the memory empty
	j.unload(d)
	if at.of().gone.Load() { // it has dead-lettered those that the store had
		j.feeder.askNames(at.of().names()...)
	}
	j.machine.tend(at)
}

// unload removes a dispatch from memory. The store has it.
//
// Later dispatches of its key leave too: otherwise they would overtake it.
func (j *durable) unload(d *dispatch) {
	j.acquit(d)
	j.report.attemptEnded(d, Stored, "")
	if waiter := d.waiter(); waiter != nil {
		j.endWait(waiter)
	}
	d.state = stateSettled
	j.machine.forgetsExpiring(d)
	j.feeder.willExpire(d)
	j.machine.arrived(d)
	if d.hasTurn {
		gate := j.machine.gateOf(d)
		j.machine.noteUnloaded(gate, d) // before it leaves, so that enterKey sees it
		if next, ok := j.machine.nextOfKey(gate, d); ok {
			next.row().unloads = true
			j.machine.pool.Release(next)
		}
	}
	j.ledger.stored.Add(1)
	if d.seat().Number != 0 {
		j.machine.noteUnloaded(d.seatedAt().door, d)
	}
	j.machine.leaveSeat(d)
	j.ledger.checkDrained()
}

// endWait ends the wait for a dispatch that leaves memory for longer than until there is room.
func (j *durable) endWait(w *waiter) {
	switch {
	case j.halts.Has(halt.Failed):
		w.giveUp(ErrStoreFailed)
	case j.halts.Has(halt.Lost):
		w.giveUp(ErrLeaseLost)
	case j.lifecycle.ending.Load():
		w.giveUp(ErrShutdown)
	}
}

// progressAfter is how long an attempt lasts before its successes are recorded one by one.
const progressAfter = 100 * time.Millisecond

func (j *durable) detains(d *dispatch) bool {
	s := d.row()
	return s != nil && j.detain(d, s)
}

func (j *durable) callEnded() { j.unloadAll() }

func (j *durable) asksForDoor(o *door) { j.feeder.askDoor(place{o.of().id, o.name}) }

// passed records it with what the handler has emitted, and otherwise in a long attempt. Without emitted events it does not wait for
// the store: the next change of the dispatch is behind this one.
func (j *durable) passed(on *worker, d *dispatch, emitted []*dispatch) bool {
	switch {
	case len(emitted) > 0:
		here := make(chan func(), 1)
		j.recordOpening(&change{kind: toProgress, opening: opening{d: d}, here: here}, emitted, false)
		(<-here)()
		return d.state == stateRunning
	case time.Duration(j.time.Nanos()-on.began) >= progressAfter:
		w := newBatch(j.time)
		w.Update = []*driver.Record{j.progressOf(w, d)}
		j.store.submit(w, room.Pass{}, func(error) {})
	}
	return true
}

// progressOf returns the record of a dispatch whose next target has handled the event.
func (j *durable) progressOf(w *batch, d *dispatch) *driver.Record {
	record := j.updatedRecord(w, d, driver.Ready, 1)
	record.Leased = true
	return record
}

// recordOpening records how a dispatch goes on or ends, and what that opens: the events that a handler has emitted, or those of a dead
// letter. The journal owns the dispatch until it has applied the change.
func (j *durable) recordOpening(of *change, opened []*dispatch, missing bool) {
	of.d.state = stateRecording
	j.ledger.recording.Add(1)
	j.submitOpening(&change{kind: toAccept, of: of, divides: missing, opening: opening{batch: opened, published: opened, inside: true}})
}

// submitOpening submits the batch.
func (j *durable) submitOpening(c *change) {
	j.follow(&c.opening)
	if j.report.seesAccepted() {
		c.events = nil
		for _, d := range c.batch {
			c.events = append(c.events, d.event(j.time))
		}
	}
	if err := j.record(context.Background(), c, func(err error) { j.opened(c, err) }); err != nil { // the lease is lost, or Shutdown has given up
		j.applyOpening(c, err)
	}
}

// follow waits for the events that these must follow: earlier publications of their ids, whose outcomes are unknown, and earlier
// events of their keys, which it takes in.
// While the store is blocked, the change waits.
func (j *durable) follow(c *opening) {
	claims := j.feeder.claimsContext() // a restart waits for the change, and resolves the unknown outcomes afterwards
	_ = j.unknown.await(claims, j.gaveUp, c)
	for j.takeInFirst(context.Background(), c) != nil && j.time.Sleep(claims, busyPause) {
	}
}

// opened is the answer of the store. What a change opens does not refuse it: repetitions are left out, and the rest is submitted
// again.
func (j *durable) opened(c *change, err error) {
	err = j.apply(c, err)
	var refused *driver.RefusedError
	switch {
	case !errors.As(err, &refused):
	case refused.Known != nil:
		j.followups.Return(false, func() { j.submitOpening(j.withoutKnown(c, refused.Known)) })
		return
	case c.of.acting.isTakenBack(refused):
		again := *c
		again.pass, again.unload = room.Pass{}, false
		j.followups.Return(false, func() { j.submitOpening(&again) })
		return
	}
	j.applyOpening(c, err)
}

func (j *durable) applyOpening(c *change, err error) {
	apply := func() {
		if err == nil {
			j.intake.accepted(&c.opening)
		}
		_ = j.apply(c.of, err)
		if c.of.acting != nil {
			c.of.acting.result <- err
		} else {
			j.ledger.recording.Add(-1)
		}
		j.ledger.checkDrained()
	}
	if here := c.of.here; here != nil {
		here <- apply
		return
	}
	j.followups.Return(false, apply)
}

// withoutKnown returns the change without the events whose ids or keys the store knows, after it has refused one. Those with another
// content become letters. It looks for all at once: a handler that is called again after an import may have emitted thousands.
func (j *durable) withoutKnown(c *change, known *driver.Dedupe) *change {
	again := &change{kind: toAccept, of: c.of, divides: c.divides, opening: opening{batch: []*dispatch{}, refused: c.refused, inside: true}}
	for _, d := range c.batch {
		repeated, err := j.isRepeated(context.Background(), d)
		if d.isNamed(known) {
			repeated, err = true, j.repeats(d, known)
		}
		switch {
		case errors.Is(err, ErrDuplicateID):
			again.refuse(j.machine, d, ReasonDuplicate, err)
		case !repeated: // or the store did not answer: it refuses the batch again, or fails
			again.batch = append(again.batch, d)
		}
	}
	again.published = again.batch
	return again
}
