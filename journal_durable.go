package eventbus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/doubt"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/suspects"
)

// durable is what a store adds: a transition is recorded before it is applied, and what is left there is recovered.
type durable struct {
	*Bus

	feeder    *feeder
	followups *pool.Pool[func(), struct{}] // applies recorded changes
	stats     storeStats
	hasLease  atomic.Bool // of the store. Without it, another bus may settle what this one publishes
	suspects  suspects.Waiting[*dispatch]
	unknown   unknowns
	doubts    doubt.Changes // while the store has failed
}

// connect begins to use the store. It reads the directives and the counts.
func (b *durable) connect() error {
	b.feeder = newFeeder(b.Bus)
	if err := b.useStore(); err != nil {
		return err
	}
	b.followups = pool.New(pool.Config[func(), struct{}]{
		Open:        func() struct{} { return struct{}{} },
		Close:       func(struct{}) {},
		Run:         func(_ struct{}, apply func()) bool { apply(); return true },
		Enter:       func(func()) bool { return true },
		Idle:        func(struct{}) {},
		Freed:       func() {},
		Rest:        func() {},
		Concurrency: b.config.concurrency,
		Capacity:    math.MaxInt32,
	})
	b.followups.Start()
	_, err := pace.Within(newPatience, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, errors.Join(b.operators.loadDirectives(ctx), b.countUnsettled(ctx))
	})
	if err != nil {
		b.releaseStore()
	}
	return err
}

// change is a recorded transition of one dispatch, or of several that open together.
type change struct {
	kind transition
	opening
	outcome Outcome       // with toSettle
	letter  *keptLetter   // new (toSettle), or replayed (toReplay)
	due     int64         // with toWait
	delay   time.Duration // with toWait
	audit   *AuditEntry   // of an operator's change, or nil

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
	toAccept transition = iota // accepted dispatches become runnable
	toReplay                   // a letter becomes a dispatch
	toDue                      // a scheduled dispatch becomes runnable
	toWait                     // for the next attempt
	toPark                     // at its next target's door
	toSettle                   // the dispatch ends
	toStore                    // the dispatch leaves memory for the store
)

// opens reports whether the change makes dispatches runnable that were not in memory.
func (k transition) opens() bool { return k <= toDue }

// isCounted reports whether the ledger has the dispatch before the change.
func (k transition) isCounted() bool { return k >= toDue }

// open makes dispatches runnable, and waits until they are.
func (b *durable) open(ctx context.Context, o *opening) error {
	c := change{kind: toAccept, opening: *o}
	return b.awaitRecorded(ctx, c, b.recordLater(c))
}

func (b *durable) replay(ctx context.Context, o opening, l *keptLetter, audit *AuditEntry) (end func() error, err error) {
	o.d.addRow(row{})
	if err := b.acquireRoom(ctx, &o, false); err != nil {
		return nil, err
	}
	c := change{kind: toReplay, opening: o, letter: l, audit: audit}
	applied := b.recordLater(c)
	return func() error { return b.awaitRecorded(ctx, c, applied) }, nil
}

// replaysAtOnce: a store commits those that have gathered at once.
func (b *durable) replaysAtOnce() int { return 256 }

func (b *durable) due(d *dispatch) { b.recordLater(change{kind: toDue, opening: opening{d: d}}) }

func (b *durable) retryLater(d *dispatch, delay time.Duration, due int64) {
	unload := d.key == "" && b.ledger.waiting.Load() >= maxWaiting
	b.recordLater(change{kind: toWait, opening: opening{d: d}, delay: delay, due: due, unload: unload})
}

// maxWaiting is the number of waiting dispatches from which memory keeps no more of those without a
// key, if there is a store. Those with a key stay, because later ones wait for them there.
const maxWaiting = 50_000

func (b *durable) park(d *dispatch, spills bool) {
	b.recordLater(change{kind: toPark, opening: opening{d: d}, unload: spills})
}

func (b *durable) settle(d *dispatch, outcome Outcome, letter *keptLetter) {
	b.recordLater(change{kind: toSettle, opening: opening{d: d}, outcome: outcome, letter: letter})
}

// cutShort leaves a dispatch to the store.
func (b *durable) cutShort(d *dispatch) {
	if d.state == stateRunning { // targets may have handled the event since the last record
		b.recordLater(change{kind: toStore, opening: opening{d: d}, unload: true})
		return
	}
	b.unload(d)
}

// awaitRecorded waits for the outcome of a change that opens dispatches. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (b *durable) awaitRecorded(ctx context.Context, c change, applied <-chan error) error {
	var why error
	select {
	case err := <-applied:
		return err
	case <-ctx.Done():
		why = contextError(ctx)
	case <-b.gaveUp:
		why = ErrShutdown
	}
	b.resolveLater(c, applied)
	if c.kind == toReplay {
		return fmt.Errorf("the replay may have been recorded; look whether the letter is left: %w", why)
	}
	return c.indeterminate(why)
}

// recordLater submits a change, and applies it once the store has answered. Only changes that open dispatches can be
// refused.
func (b *durable) recordLater(c change) (applied <-chan error) {
	var done chan error
	if c.kind == toAccept || c.kind == toReplay || c.here != nil { // otherwise nobody waits
		done = make(chan error, 1)
	}
	if c.kind.isCounted() {
		c.d.state = stateRecording
		b.ledger.recording.Add(1)
	}
	b.record(&c, func(err error) {
		err = b.apply(&c, err)
		if c.kind.isCounted() {
			b.ledger.recording.Add(-1)
		}
		if done != nil {
			done <- err
		}
		b.ledger.checkDrained()
	})
	return done
}

// apply applies a change that was recorded, or that was refused with err.
func (b *durable) apply(c *change, err error) error {
	if err != nil && !c.kind.opens() {
		b.unload(c.d) // the store has failed, and has the dispatch as it was before the change
		return err
	}
	if c.kind > toDue {
		b.acquit(c.d)
	}
	switch c.kind {
	case toAccept:
		for _, d := range c.all() {
			b.applyAccept(d, c.unload, err)
		}
	case toReplay:
		if err == nil {
			b.applyReplay(c.d, c.unload)
		}
	case toDue:
		b.applyDue(c.d, c.unload, err)
	case toWait:
		b.applyWait(c)
	case toPark:
		b.applyPark(c.d, c.unload)
	case toSettle:
		if c.outcome != Unrouted {
			b.intake.quota.Release(1) // before a waiter has its answer, and publishes again
		}
		b.machine.applySettle(c.d, c.outcome, c.letter)
	case toStore:
		b.unload(c.d)
	}
	return err
}

func (b *durable) applyAccept(d *dispatch, unload bool, err error) {
	switch {
	case err == nil:
		b.machine.applyAccept(d, unload || d.from().due != nil)
		return
	case !unload:
		b.machine.pool.Unreserve(d.queueRoom())
	}
	b.intake.quota.Release(d.records())
}

func (b *durable) applyReplay(d *dispatch, unload bool) {
	b.intake.quota.Add(d.records())
	if !unload && !d.isScheduled(b.time) {
		b.machine.applyReplay(d)
		return
	}
	b.ledger.replays.Add(1)
	b.ledger.stored.Add(int64(len(b.machine.copies(d))))
}

// applyDue queues a scheduled dispatch whose new place in the store's order is recorded.
func (b *durable) applyDue(d *dispatch, unload bool, err error) {
	switch {
	case err != nil:
		b.unload(d)
	case unload:
		b.intake.quota.Add(int64(len(b.machine.copiesOf(d))) - 1)
		b.ledger.stored.Add(int64(len(b.machine.copies(d))))
	default:
		b.intake.quota.Add(int64(len(b.machine.copiesOf(d))) - 1)
		b.machine.enqueue(d, false)
	}
}

func (b *durable) applyWait(c *change) {
	if !c.unload {
		b.machine.applyWait(c.d, c.delay, c.due)
		return
	}
	b.report.attemptEnded(c.d, Waiting, "")
	b.report.retryScheduled(c.d, c.delay, c.due)
	b.unload(c.d)
	b.feeder.due.Add(b.time.At(c.due))
}

// applyPark parks a delivery in its line, or leaves it to the store.
func (b *durable) applyPark(d *dispatch, spills bool) {
	if !spills {
		b.machine.applyPark(d)
		return
	}
	s := d.seatedAt()
	b.machine.attemptHeld(d)
	b.machine.leaveKey(d)
	s.door.spilled() // before a restart, which begins to count anew, can find the memory empty
	b.unload(d)
	if s.gone.Load() { // it has dead-lettered those that the store had
		b.feeder.askDoor(s.names()...)
	}
	b.machine.tend(s)
}

// unload removes a dispatch from memory. The store has it.
//
// Later dispatches of its key leave too: otherwise they would overtake it.
func (b *durable) unload(d *dispatch) {
	b.acquit(d)
	b.report.attemptEnded(d, Stored, "")
	if waiter := d.waiter(); waiter != nil {
		b.endWait(waiter)
	}
	d.state = stateSettled
	d.arrived()
	if d.hasTurn {
		d.hasTurn = false
		gate := b.machine.gateOf(d)
		b.machine.noteUnloaded(gate, d) // before Leave, so that enterKey sees it
		if next, ok := gate.Leave(d.key); ok {
			next.row().unloads = true
			b.machine.pool.Release(next)
		}
	}
	b.ledger.stored.Add(1)
	if d.seat().Number != 0 {
		s := d.seatedAt()
		b.machine.noteUnloaded(&s.door, d)
		s.door.release(b.Bus, d)
		b.machine.tend(s)
	}
	b.ledger.checkDrained()
}

// endWait ends the wait for a dispatch that leaves memory for longer than until there is room.
func (b *durable) endWait(w *waiter) {
	switch {
	case b.halts.Has(halt.Failed):
		w.giveUp(false)
	case b.lifecycle.ending.Load():
		w.giveUp(true)
	}
}

// progressAfter is how long an attempt lasts before its successes are recorded one by one.
const progressAfter = 100 * time.Millisecond

func (b *durable) detains(d *dispatch) bool {
	s := d.row()
	return s != nil && b.detain(d, s)
}

func (b *durable) callEnded() { b.unloadAll() }

func (b *durable) asksForDoor(name string) { b.feeder.askDoor(name) }

// passed records it in a long attempt. It does not wait for the store: the next change of the dispatch is behind this one.
func (b *durable) passed(on *worker, d *dispatch) {
	if time.Duration(b.time.Nanos()-on.began) < progressAfter {
		return
	}
	w := newBatch(b.time)
	record := b.updatedRecord(w, d, driver.Ready, 1)
	record.Leased = true
	w.Update = []*driver.Record{record}
	b.store.submit(w, room.Pass{}, func(error) {})
}
