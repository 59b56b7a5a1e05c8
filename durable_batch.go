package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
)

// record submits the batch of a change.
//
// The store calls done on its own goroutine, in the order of the batches. Changes that open
// dispatches are applied there: they only queue the dispatches, in that order. All others may run
// observers, so they are applied by the pool of followups.
//
// With an error, it has submitted nothing and does not call done: see feeder.admit.
func (j *durable) record(ctx context.Context, c *change, done func(error)) error {
	r := j.batchOf(c)
	switch {
	case c.kind.opens() && j.feeder.leaves(): // an event without targets too is left to the bus that has the lease
		return j.feeder.admit(ctx, r, done)
	case r.isEmpty():
		j.store.room.Leave(c.pass) // it may have come for the incoming table
		j.followups.Return(false, func() { done(nil) })
	case c.kind.opens():
		return j.feeder.admit(ctx, r, done)
	default:
		if c.unload {
			j.feeder.keepWaiter(c.d)
		}
		j.store.submit(&r.batch, room.Pass{}, func(err error) {
			r.committed(err)
			apply := func() { done(err) }
			if c.here != nil {
				c.here <- apply
				return
			}
			j.followups.Return(false, apply)
		})
	}
	return nil
}

// changeBatch is the batch of a change.
type changeBatch struct {
	bus    *Bus
	change *change
	batch  batch
	opened []*dispatch // the dispatches of batch.New
}

func (j *durable) batchOf(c *change) *changeBatch {
	now, _ := j.time.Recent()
	r := &changeBatch{bus: j.Bus, change: c}
	r.batch.Now = now.UTC
	r.batch.audit(c.audit)
	r.batch.answer(c.answers, nil)
	r.batch.Accept = c.takesIn
	switch c.kind {
	case toAccept:
		for _, d := range c.all() {
			r.batch.Remember = append(r.batch.Remember, j.remembered(d, now.UTC)...)
			if len(d.to.subscriptions) == 0 { // no record is left that could free its key
				r.batch.ForgetSettled = append(r.batch.ForgetSettled, entriesToFree(d)...)
			}
			r.insertEvent(d)
		}
		if c.of != nil {
			r.batch.add(&j.batchOf(c.of).batch)
		}
	case toReplay:
		if c.letter != nil { // otherwise the bus that left the replay in incoming has taken it
			r.batch.Take = []driver.ID{driver.ID(c.letter.ID)}
		}
		r.insertEvent(c.d)
	case toDue:
		r.batch.Delete = []driver.Ref{c.d.row().ref}
		r.insertEvent(c.d)
	case toWait:
		r.keep(driver.Waiting).Due = j.time.At(c.due)
	case toPark:
		if c.due != 0 {
			r.keep(driver.Waiting).Due = j.time.At(c.due)
			break
		}
		parkedHere(c.d, r.keep(driver.Parked))
	case toStore:
		r.keep(driver.Ready)
	case toSettle:
		r.settle()
	case toAct:
		for _, end := range c.acting.ends {
			r.batch.add(&j.batchOf(end).batch)
		}
		c.acting.addTo(&r.batch)
	case toProgress:
		r.batch.Update = []*driver.Record{j.progressOf(&r.batch, c.d)}
	}
	for _, refused := range c.refused {
		r.batch.refuse(refused)
	}
	return r
}

// parkedHere sets the door of the record of a parked dispatch.
func parkedHere(d *dispatch, record *driver.Record) {
	record.Door = d.to.recorded[len(d.to.recorded)-1] // a former name is another process's present one
	record.Destination = d.seatDoor().name
}

// add adds how a dispatch goes on or ends.
func (w *batch) add(other *batch) {
	w.Update, w.Delete = append(w.Update, other.Update...), append(w.Delete, other.Delete...)
	w.Bury, w.ForgetSettled = append(w.Bury, other.Bury...), append(w.ForgetSettled, other.ForgetSettled...)
	w.Forget, w.Audit, w.Answer = append(w.Forget, other.Forget...), append(w.Audit, other.Audit...), append(w.Answer, other.Answer...)
	w.Outcomes = append(w.Outcomes, other.Outcomes...)
	w.err = cmp.Or(w.err, other.err)
}

// insertEvent inserts the records of an event: one, or one for each of its copies. A scheduled event has
// one, also if it has become due meanwhile: it was published without room in the queue.
func (r *changeBatch) insertEvent(d *dispatch) {
	state := driver.Ready
	copies := []*dispatch{d}
	switch {
	case len(d.to.subscriptions) == 0:
		return // it settles at once
	case r.change.kind == toAccept && d.from().due != nil, r.change.kind == toReplay && d.isScheduled(r.bus.time):
		state = driver.Scheduled
	default:
		copies = r.bus.machine.copiesOf(d)
	}
	d.row().copies = copies
	if waiter := d.waiter(); waiter != nil { // the feeder may claim a copy before the store calls back
		waiter.expectCopies(len(copies))
	}
	for i, copied := range copies {
		record := r.bus.durable.encodeRow(&r.batch, copied, state)
		switch {
		case r.change.kind == toDue && r.bus.registry.hasEnded(copied.to.subscriptions[0]): // see isolate
			record.Position = d.row().position // a new one would be that of an event for its successor
		case i > 0 && r.batch.New[len(r.batch.New)-1].Position <= 0:
			record.Position = driver.BesidePrevious
		}
		r.insert(copied, record)
	}
}

func (r *changeBatch) insert(d *dispatch, record *driver.Record) {
	r.batch.New = append(r.batch.New, record)
	r.opened = append(r.opened, d)
}

// leave makes the batch leave the events in incoming. The store remembers their ids, because the bus with the lease may
// settle an event before this one asks whether the store has it.
func (r *changeBatch) leave() {
	b := &r.batch
	b.New, b.Remember, b.ForgetSettled, r.opened = nil, nil, nil, nil
	for _, d := range r.change.all() {
		record := r.bus.durable.encodeIncoming(b, d, r.change.kind == toAccept)
		b.Leave = append(b.Leave, &driver.Incoming{Record: record, Codec: r.bus.config.codecName()})
		if r.change.kind == toAccept {
			entries := r.bus.durable.remembered(d, b.Now)
			if !d.from().given {
				entries = append(entries, r.bus.durable.rememberedID(d, b.Now))
			}
			b.Remember = append(b.Remember, entries...)
		}
	}
}

// encodeIncoming returns the record of an incoming event: a publication, or a replay.
func (j *durable) encodeIncoming(w *batch, d *dispatch, isPublication bool) *driver.Record {
	state := driver.Ready
	if due := d.from().due; due != nil && (isPublication || d.isScheduled(j.time)) {
		state = driver.Scheduled
	}
	return j.encodeRow(w, d, state)
}

// keep records the progress of a dispatch that goes on. A delivery that was split off has no record
// yet: it gets one, and its parent's record says that it was split off.
func (r *changeBatch) keep(state driver.State) *driver.Record {
	d := r.change.d
	if d.row().ref != 0 {
		record := r.bus.durable.updatedRecord(&r.batch, d, state, 0)
		record.Leased, record.Suspect, record.Crashes = !r.change.unload, false, 0 // see acquit
		r.batch.Update = append(r.batch.Update, record)
		return record
	}
	record := r.bus.durable.encodeRow(&r.batch, d, state)
	record.Position, record.Leased = d.row().position, !r.change.unload
	r.insert(d, record)
	r.splitFromParent()
	return record
}

// settle ends a dispatch. One that was split off may end before it has a record.
func (r *changeBatch) settle() {
	d, s := r.change.d, r.change.d.row()
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
	if len(d.to.subscriptions) > 0 { // otherwise the batch that accepted it has freed the key
		r.batch.ForgetSettled = entriesToFree(d)
	}
	if s != nil && d.touchedBy() != nil {
		s.ended = r.batch.Now.UnixMilli() // as memory remembers it
		end := r.bus.machine.endOf(d, r.change.outcome, r.change.letter)
		r.batch.outcome(d.id, deliveriesOf(end.Deliveries())...)
	}
	r.batch.Deferrable = r.change.outcome == Handled && !r.bus.durable.isAwaited(d)
}

// outcome adds how deliveries of an event have ended.
func (w *batch) outcome(id EventID, deliveries ...SettledDelivery) {
	w.Outcomes = append(w.Outcomes, driver.Outcome{Event: driver.ID(id), Body: w.encode(deliveries)})
}

func (j *durable) settledOf(ctx context.Context, id EventID) (all []SettledDelivery, err error) {
	read, err := j.store.Outcomes(ctx, driver.ID(id))
	if err != nil {
		return nil, err
	}
	for _, o := range read {
		var deliveries []SettledDelivery
		if err := json.Unmarshal(o.Body, &deliveries); err != nil {
			return nil, &DecodeError{What: "outcome of event " + id.String(), Err: err}
		}
		all = append(all, deliveries...)
	}
	return joinSettled(append(all, j.machine.settledOf(id)...)), nil
}

func (j *durable) hurried(d *dispatch, from DispatchState) {
	w := newBatch(j.time)
	record := j.updatedRecord(w, d, driver.Waiting, 0)
	if record.Leased, record.Due = true, w.Now; from == DispatchParked {
		record.State, record.Due = driver.Parked, time.Time{}
		parkedHere(d, record)
	}
	w.Update = []*driver.Record{record}
	j.store.submit(w, room.Pass{}, func(error) {})
}

// isAwaited reports whether something waits until a dispatch has settled: a PublishAndWait, the next dispatch of
// its key, the next delivery of a line, a publisher at the quota or for room, or Shutdown.
func (j *durable) isAwaited(d *dispatch) bool {
	return d.waiter() != nil || d.key != "" || d.seat().Number != 0 || j.intake.quota.IsAwaited() || j.store.room.IsAwaited() || j.lifecycle.ending.Load()
}

// splitFromParent records the progress of the dispatch from which another was split off. The
// caller's worker owns both, or the action that is in the batch.
func (r *changeBatch) splitFromParent() {
	if parent := r.change.d.row().parent; parent != nil {
		record := r.bus.durable.updatedRecord(&r.batch, parent, driver.Ready, 0)
		record.Leased = true
		r.batch.Update = append(r.batch.Update, record)
	}
}

func (r *changeBatch) isEmpty() bool {
	b := &r.batch
	return len(b.New)+len(b.Update)+len(b.Delete)+len(b.Bury)+len(b.Take)+len(b.Remember)+len(b.Forget)+len(b.ForgetSettled)+len(b.Accept)+len(b.Answer)+len(b.Audit)+len(b.Outcomes) == 0
}

// obeyDenial leaves the dispatches of a change to the store if the store has not granted a wish Leased: another process may
// claim such a record. Until the feeder is behind, it leaves those of later changes, too, because a later event of a key
// would overtake.
func (r *changeBatch) obeyDenial() {
	f, c := r.bus.durable.feeder, r.change
	if c.unload || !c.kind.opens() {
		return
	}
	wished := 0
	for _, record := range r.batch.New {
		if record.State == driver.Ready {
			wished++
			if !record.Leased {
				f.denied.Store(true)
			}
		}
	}
	if wished == 0 || !f.denied.Load() {
		return
	}
	if c.unload = true; c.kind == toAccept {
		r.bus.machine.pool.Unreserve(wished)
	}
	for _, d := range c.all() {
		f.keepWaiter(d)
		f.willExpire(d)
	}
	r.free()
	f.wakeUp()
}

// free gives the records that the store has leased back to it.
func (r *changeBatch) free() {
	freed := newBatch(r.bus.time)
	for _, record := range r.batch.New {
		if record.State == driver.Ready && record.Leased {
			again := *record
			again.Leased = false
			freed.Update = append(freed.Update, &again)
		}
	}
	if len(freed.Update) > 0 {
		r.bus.store.submit(freed, room.Pass{}, func(error) {})
	}
}

// committed notes where the store has put the new records, or that the outcome is unknown.
func (r *changeBatch) committed(err error) {
	mayBeFirst := r.bus.registry.succeeding.Load() > 0 && (r.change.kind == toAccept || r.change.kind == toReplay)
	if err != nil {
		if r.doubt(err) && mayBeFirst {
			r.bus.durable.feeder.doubtFirst(r)
		}
		return
	}
	r.obeyDenial()
	for i, d := range r.opened {
		s := d.row()
		s.ref, s.position, s.fence, s.parent = r.batch.New[i].Ref, r.batch.New[i].Position, r.batch.Epoch, nil
		if mayBeFirst {
			r.bus.registry.noteFirst(d.to.subscriptions, s.position)
		}
	}
}
