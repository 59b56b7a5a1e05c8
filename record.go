package eventbus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
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
	doubts    doubt.Changes // while the store has failed
	leftKeys  sync.Map      // leftKey to nil, see noteLeft
}

// open begins to use the store. It reads the orders and the counts.
func (b *durable) open() error {
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
		return struct{}{}, errors.Join(b.operators.loadOrders(ctx), b.countUnsettled(ctx))
	})
	if err != nil {
		b.releaseStore()
	}
	return err
}

// change is a recorded transition of one dispatch, or of several that open together.
type change struct {
	kind  transition
	d     *dispatch
	batch []*dispatch // with toOpen, if there are several; d is the first
	// published is batch before the dispatches with known ids were removed.
	published []*dispatch
	events    []Event       // with toOpen, for Observer.Accepted
	outcome   Outcome       // with toSettle
	letter    *keptLetter   // new (toSettle), or replayed (toReplay)
	due       int64         // with toWait
	delay     time.Duration // with toWait
	audit     *AuditEntry   // of an operator's change, or nil
	pass      room.Pass     // of acquireRoom

	// here, if it is not nil, receives the function that applies the recorded change. Otherwise a
	// followup applies it.
	here chan<- func()

	// free is set if the store keeps the records of the dispatches and memory does not keep the
	// dispatches. The feeder decides for those that open.
	free bool
}

// transition is a kind of change.
type transition uint8

const (
	toOpen   transition = iota // accepted dispatches become runnable
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

// all returns the dispatches of the change.
func (c *change) all() []*dispatch {
	if c.batch != nil || c.d == nil {
		return c.batch
	}
	return []*dispatch{c.d}
}

// records returns the number of records that a change inserts for accepted dispatches.
func (c *change) records() (records int64) {
	for _, d := range c.all() {
		records += d.records()
	}
	return records
}

// record makes a change durable and then applies it, exactly once. In memory, it applies the change
// immediately. With a store, it applies the change once the store has answered, on another goroutine.
// Until then the record owns the dispatch, and nothing else may touch it.
//
// Every transition that must survive a crash goes through record. Only changes that open dispatches
// can be refused; their callers use recordNow.
func (b *machine) record(c *change) {
	if b.recorder != nil {
		b.recordLater(*c, func(error) {})
		return
	}
	_ = b.apply(c, nil) // only a replay has an error
}

// recordNow records a change and waits until it is applied or refused. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (b *machine) recordNow(ctx context.Context, c *change) error {
	if b.recorder == nil {
		return b.apply(c, nil)
	}
	applied := make(chan error, 1)
	b.recordLater(*c, func(err error) { applied <- err })
	return b.durable.awaitRecorded(ctx, *c, applied)
}

// awaitRecorded waits for the outcome of a change that opens dispatches.
func (b *durable) awaitRecorded(ctx context.Context, c change, applied <-chan error) error {
	var ended <-chan struct{} // the simulation's hook takes its time, but never forgets a change
	if b.store != nil {
		ended = ctx.Done()
	}
	var why error
	select {
	case err := <-applied:
		return err
	case <-ended:
		why = contextError(ctx)
	case <-b.gaveUp:
		why = ErrShutdown
	}
	b.intake.resolveLater(c, applied)
	if c.kind == toReplay {
		return fmt.Errorf("the replay may have been recorded; look whether the letter is left: %w", why)
	}
	return c.indeterminate(why)
}

// indeterminate returns the error of a publication whose outcome is unknown.
func (c *change) indeterminate(why error) error {
	e := &IndeterminateError{ID: c.d.id, Err: why}
	for _, d := range c.published {
		e.IDs = append(e.IDs, d.id)
	}
	if e.IDs != nil {
		e.ID = e.IDs[0]
	}
	return e
}

func (b *machine) recordLater(c change, applied func(error)) {
	if c.kind.isCounted() {
		c.d.state = stateRecording
		b.ledger.recording.Add(1)
	}
	b.recorder(&c, func(err error) {
		err = b.apply(&c, err)
		if c.kind.isCounted() {
			b.ledger.recording.Add(-1)
		}
		applied(err)
		b.lifecycle.checkDrained()
	})
}

// apply applies a change that was recorded, or that was refused with err.
func (b *machine) apply(c *change, err error) error {
	if err != nil && !c.kind.opens() && b.store != nil {
		b.durable.leaveToStore(c.d) // the store has failed, and has the dispatch as it was before the change
		return err
	}
	if b.store != nil && c.kind > toDue {
		b.durable.acquit(c.d)
	}
	switch c.kind {
	case toOpen:
		for _, d := range c.all() {
			b.applyOpen(d, c.free, err)
		}
	case toReplay:
		if err == nil {
			err = b.applyReplay(c.d, c.letter, c.free)
		}
	case toDue:
		b.applyDue(c.d, c.free, err)
	case toWait:
		b.applyWait(c.d, c.delay, c.due, c.free)
	case toPark:
		b.applyPark(c.d, c.free)
	case toSettle:
		b.applySettle(c.d, c.outcome, c.letter)
	case toStore:
		b.durable.leaveToStore(c.d)
	}
	return err
}

// leaveToStore removes a dispatch from memory. The store has it.
//
// Later dispatches of its key leave too: otherwise they would overtake it.
func (b *durable) leaveToStore(d *dispatch) {
	b.acquit(d)
	b.report.attemptEnded(d, Stored, "")
	if waiter := d.waiter(); waiter != nil {
		b.endWait(waiter)
	}
	d.state = stateSettled
	d.arrived()
	if d.placed {
		d.placed = false
		gate := b.machine.gateOf(d)
		b.machine.noteLeft(gate, d) // before Leave, so that enterKey sees it
		if next, ok := gate.Leave(d.key); ok {
			next.stored().leaves = true
			b.machine.pool.Release(next)
		}
	}
	b.ledger.stored.Add(1)
	if d.seat().Number != 0 {
		s := d.seatedAt()
		b.machine.noteLeft(&s.door, d)
		s.door.release(b.Bus, d)
		b.machine.tend(s)
	}
	b.lifecycle.checkDrained()
}

// putBack leaves a dispatch that Shutdown, or a failure of the store, has cut short to the store.
func (b *durable) putBack(d *dispatch) {
	if d.state == stateRunning { // targets may have handled the event since the last record
		b.machine.record(&change{kind: toStore, d: d, free: true})
		return
	}
	b.leaveToStore(d)
}

// withdraw ends an attempt that may not call the next handler. It is not counted.
func (b *machine) withdraw(d *dispatch) {
	d.attempt--
	b.bury(d, ReasonShutdown)
}

// leftKey is a key of which a shutdown has left a dispatch to the store.
type leftKey struct {
	at  any // the *keyGate or the *door where the dispatch had its key's place
	key string
}

// noteLeft notes that a dispatch leaves its key's place at a gate or a door. During Shutdown, later
// ones must not take it: they would overtake.
func (b *machine) noteLeft(at any, d *dispatch) {
	if d.key != "" && b.lifecycle.ending.Load() {
		b.durable.leftKeys.Store(leftKey{at, d.key}, nil)
	}
}

// hasLeft reports whether an earlier dispatch of the key was left to the store.
func (b *machine) hasLeft(at any, d *dispatch) bool {
	if d.key == "" || b.store == nil || !b.lifecycle.ending.Load() {
		return false
	}
	_, left := b.durable.leftKeys.Load(leftKey{at, d.key})
	return left
}

// endWait ends the wait for a dispatch that leaves memory for longer than until there is room.
func (b *durable) endWait(w *waiter) {
	switch {
	case b.halts.Has(halt.Failed):
		w.leave(false)
	case b.lifecycle.ending.Load():
		w.leave(true)
	}
}

// progressAfter is how long an attempt lasts before its successes are recorded one by one.
const progressAfter = 100 * time.Millisecond

// saveProgress records that the next target has handled the event, in a long attempt with further
// targets. It does not wait for the store: the next change of the dispatch is behind this one.
func (b *durable) saveProgress(on *worker, d *dispatch) {
	if b.store == nil || int(d.next) == len(d.to.subscriptions)-1 || time.Duration(b.time.Nanos()-on.began) < progressAfter {
		return
	}
	w := newBatch(b.time)
	record := b.updatedRecord(w, d, driver.Ready, 1)
	record.Leased = true
	w.Update = []*driver.Record{record}
	b.store.submit(w, room.Pass{}, func(error) {})
}

// submit is the recorder of a bus with a store.
//
// The store calls done on its own goroutine, in the order of the batches. Changes that open
// dispatches are applied there: they only queue the dispatches, in that order. All others may run
// observers, so they are applied by the pool of followups.
func (b *durable) submit(c *change, done func(error)) {
	r := b.recordingOf(c)
	switch {
	case r.isEmpty():
		b.followups.Return(false, func() { done(nil) })
	case c.kind.opens():
		b.feeder.submit(r, done)
	default:
		if c.free {
			b.feeder.keepWaiter(c.d)
		}
		b.store.submit(&r.batch, room.Pass{}, func(err error) {
			r.committed(err)
			apply := func() { done(err) }
			if c.here != nil {
				c.here <- apply
				return
			}
			b.followups.Return(false, apply)
		})
	}
}

// recording is the batch of a change.
type recording struct {
	bus    *Bus
	change *change
	batch  batch
	opened []*dispatch // the dispatches of batch.New
}

func (b *durable) recordingOf(c *change) *recording {
	now, _ := b.time.Recent()
	r := &recording{bus: b.Bus, change: c}
	r.batch.Now = now.UTC
	r.batch.audit(c.audit)
	switch c.kind {
	case toOpen:
		for _, d := range c.all() {
			if d.from().given {
				r.batch.Remember = append(r.batch.Remember, b.remembered(d, now.UTC))
			}
			r.open(d)
		}
	case toReplay:
		r.batch.Take = []driver.ID{driver.ID(c.letter.ID)}
		r.open(c.d)
	case toDue:
		r.batch.Delete = []driver.Ref{c.d.stored().ref}
		r.open(c.d)
	case toWait:
		r.keep(driver.Waiting).Due = b.time.At(c.due)
	case toPark:
		r.keep(driver.Parked).Door = c.d.to.recorded[len(c.d.to.recorded)-1] // a former name is another process's present one
	case toStore:
		r.keep(driver.Ready)
	case toSettle:
		r.settle()
	}
	return r
}

// open inserts the records of an event: one, or one for each of its copies. A scheduled event has
// one, also if it has become due meanwhile: it was published without room in the queue.
func (r *recording) open(d *dispatch) {
	state := driver.Ready
	copies := []*dispatch{d}
	switch {
	case len(d.to.subscriptions) == 0:
		return // it settles at once
	case r.change.kind == toOpen && d.from().due != nil, r.change.kind == toReplay && d.isScheduled(r.bus.time):
		state = driver.Scheduled
	default:
		copies = r.bus.machine.copiesOf(d)
	}
	d.stored().copies = copies
	if waiter := d.waiter(); waiter != nil { // the feeder may claim a copy before the store calls back
		waiter.expect(len(copies) - 1)
	}
	for i, copied := range copies {
		record := r.bus.durable.newRecord(&r.batch, copied, state)
		switch {
		case r.change.kind == toDue && !copied.to.subscriptions[0].Exists(): // see isolate
			record.Position = d.stored().position // a new one would be that of an event for its successor
		case i > 0 && r.batch.New[len(r.batch.New)-1].Position <= 0:
			record.Position = driver.BesidePrevious
		}
		r.insert(copied, record)
	}
}

func (r *recording) insert(d *dispatch, record *driver.Record) {
	r.batch.New = append(r.batch.New, record)
	r.opened = append(r.opened, d)
}

// keep records the progress of a dispatch that goes on. A delivery that was split off has no record
// yet: it gets one, and its parent's record says that it was split off.
func (r *recording) keep(state driver.State) *driver.Record {
	d := r.change.d
	if d.stored().ref != 0 {
		record := r.bus.durable.updatedRecord(&r.batch, d, state, 0)
		record.Leased, record.Suspect, record.Crashes = !r.change.free, false, 0 // see acquit
		r.batch.Update = append(r.batch.Update, record)
		return record
	}
	record := r.bus.durable.newRecord(&r.batch, d, state)
	record.Position, record.Leased = d.stored().position, !r.change.free
	r.insert(d, record)
	r.splitFromParent()
	return record
}

// settle ends a dispatch. One that was split off may end before it has a record.
func (r *recording) settle() {
	d, s := r.change.d, r.change.d.stored()
	switch {
	case s == nil: // unrouted
	case s.ref != 0:
		r.batch.Delete = []driver.Ref{s.ref}
	default:
		r.splitFromParent()
	}
	if r.change.letter != nil {
		r.batch.bury(&r.change.letter.DeadLetter)
	}
	if r.change.outcome == Cancelled {
		r.batch.Forget = []driver.Dedupe{eventIDEntry(d.id)}
	}
	r.batch.Deferrable = r.change.outcome == Handled && !r.bus.durable.isAwaited(d)
}

// isAwaited reports whether something waits until a dispatch has settled: a PublishAndWait, the next dispatch of
// its key, the next delivery of a line, a publisher at the quota or for room, or Shutdown.
func (b *durable) isAwaited(d *dispatch) bool {
	return d.waiter() != nil || d.key != "" || d.seat().Number != 0 || b.intake.quota.IsAwaited() || b.store.room.IsAwaited() || b.lifecycle.ending.Load()
}

// splitFromParent records the progress of the dispatch from which another was split off. The
// caller's worker owns both.
func (r *recording) splitFromParent() {
	s := r.change.d.stored()
	if parent := s.parent; parent != nil {
		record := r.bus.durable.updatedRecord(&r.batch, parent, driver.Ready, 0)
		record.Leased = true
		r.batch.Update = append(r.batch.Update, record)
		s.parent = nil
	}
}

func (r *recording) isEmpty() bool {
	b := &r.batch
	return len(b.New)+len(b.Update)+len(b.Delete)+len(b.Bury)+len(b.Take)+len(b.Remember)+len(b.Forget) == 0
}

// committed notes where the store has put the new records, or that the outcome is unknown.
func (r *recording) committed(err error) {
	if err != nil {
		r.doubt(err)
		return
	}
	for i, d := range r.opened {
		s := d.stored()
		s.ref, s.position = r.batch.New[i].Ref, r.batch.New[i].Position
		if f := r.bus.durable.feeder; r.bus.registry.succeeding.Load() > 0 && (r.change.kind == toOpen || r.change.kind == toReplay) {
			f.place(d)
		}
	}
}
