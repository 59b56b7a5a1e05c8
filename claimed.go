package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
)

// enter makes a dispatch of a claimed record. reserved is set if the queue has room for it. It
// reports whether the dispatch has taken that room.
func (f *feeder) enter(r *record, reserved bool) (taken bool) {
	b := f.bus
	d := f.load(r)
	if r.State == driver.Scheduled {
		b.machine.due(d)
		return false
	}
	b.machine.queue(d, reserved)
	return reserved
}

// load makes a dispatch of a claimed record, with its waiter if it has one.
func (f *feeder) load(r *record) *dispatch {
	b := f.bus
	if b.ledger.owns(r) {
		b.ledger.reclaimed.Add(1)
	} else {
		b.ledger.claimed.Add(1)
	}
	to, _ := b.registry.targetsOfRecord(r)
	d := b.durable.decodeRow(r, to)
	if r.State == driver.Parked && (r.Own && !r.inTurn || r.Key == "") { // see ClaimParked
		d.seatedAt().doorTo(r.Destination).comes(d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.origin.waiter = f.waiterLocked(r, d)
	return d
}

// waiterLocked returns the wait for a claimed record, or nil. A replay has the id of its event, and nothing waits for it.
func (f *feeder) waiterLocked(r *record, d *dispatch) *waiter {
	waiter := f.waiters[d.id]
	if waiter == nil || !r.Own || r.replay != nil || d.story != nil && d.story.unawaited {
		return nil
	}
	return waiter
}

// divide divides the claimed records that cannot become one dispatch each, and returns those to
// enter. A delivery whose subscription does not exist gets a record of its own, which stays in the
// store, parked at the door of that name. Each delivery to an isolated subscription gets one too: in an
// earlier process it may not have been isolated.
//
// It waits for the store: the next claim must find the parked deliveries, and no dispatch may run
// before it has a record.
func (f *feeder) divide(ctx context.Context, claimed []*record) (entering []*record, err error) {
	b := f.bus
	w := newBatch(b.time)
	if len(claimed) > 0 && f.bus.registry.succeeding.Load() > 0 {
		// Until every change that the claim has seen is noted here, the first event of a subscription that succeeds
		// another would be taken for one of the other's.
		if err := f.apply(ctx, newBatch(b.time)); err != nil {
			return nil, err
		}
	}
	var missing []string // names of subscriptions
	for _, r := range claimed {
		enters, names := f.divideRecord(w, r)
		entering, missing = append(entering, enters...), append(missing, names...)
	}
	if len(w.Update)+len(w.New) > 0 {
		err = f.apply(ctx, w)
	}
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 { // their parts are free
		for _, r := range claimed {
			f.recordExpires(r)
		}
	}
	b.durable.warnMissing(missing)
	for _, r := range entering {
		r.enters = r.State != driver.Scheduled
	}
	return entering, nil
}

// apply waits for a batch that a claim needs.
func (f *feeder) apply(ctx context.Context, w *batch) (err error) {
	applied := make(chan error, 1)
	f.bus.store.submit(w, room.Pass{}, func(err error) { applied <- err })
	select {
	case err = <-applied:
	case <-ctx.Done():
		err = contextError(ctx)
	}
	if err == nil {
		return nil
	}
	f.failed(ctx, err) // memory has none of the claimed records: they are free again after the restart
	return errClaimsEnded
}

// divideRecord adds the division of a record to a batch. It returns what to enter instead of it, and the names of its
// missing subscriptions.
func (f *feeder) divideRecord(w *batch, r *record) (entering []*record, names []string) {
	b := f.bus
	to, missing := b.registry.targetsOfRecord(r)
	names = r.namesOf(missing)
	switch {
	case r.State == driver.Scheduled:
		if len(missing) > 0 { // its copies are divided when they are claimed
			f.fallBehind()
		}
		return []*record{r}, names
	case len(missing) == 0 && (len(r.Targets) == 1 || !to.hasIsolated()):
		return []*record{r}, nil
	}
	d := b.durable.decodeRow(r, to)
	missing = slices.DeleteFunc(missing, func(i int) bool { return i < int(d.next) })
	names = r.namesOf(missing)
	isolates := to.hasIsolated() && len(r.Targets) > 1 && !d.isVisited()
	f.mu.Lock()
	waiter := f.waiterLocked(r, d)
	f.mu.Unlock()
	part, attempts := d.story != nil && d.story.part, int(d.attempt)
	switch {
	case len(missing) == 0 && !isolates:
		return []*record{r}, names
	case d.isLast() && !isolates: // the record itself parks
		d.narrow()
		if waiter != nil {
			d.ensureStory().unawaited = true
		}
		parked := b.durable.updatedRecord(w, d, driver.Parked, 0)
		parked.Door, parked.Due = r.Targets[d.next], r.Due
		w.Update = append(w.Update, parked)
		b.durable.countDivided(r, parked)
		waiter.divided(0, names, part, attempts)
		return nil, names
	}
	parts := b.durable.parts(w, r, d, missing, waiter != nil)
	w.Delete = append(w.Delete, r.Ref)
	for _, part := range parts {
		w.New = append(w.New, part.Record)
	}
	b.durable.countDivided(r, w.New[len(w.New)-len(parts):]...)
	entering = slices.DeleteFunc(parts, func(part *record) bool { return !part.Leased })
	waiter.divided(len(entering), names, part, attempts)
	return entering, names
}

// namesOf returns the names of some targets.
func (r *record) namesOf(targets []int) (names []string) {
	for _, i := range targets {
		names = append(names, r.Targets[i])
	}
	return names
}

// parts returns the records that replace one with several targets. If the event is awaited, the wait for those that are missing ends.
func (j *durable) parts(w *batch, r *record, d *dispatch, missing []int, awaited bool) (parts []*record) {
	next, due := int(d.next), d.takeNotBefore()
	together := *r.Record // the targets that stay in one record, with the progress of all
	together.Ref, together.Targets = 0, slices.Clone(r.Targets[:next])
	for i := next; i < len(r.Targets); i++ {
		isMissing := slices.Contains(missing, i)
		if !isMissing && !d.to.subscriptions[i].isolated {
			together.Targets = append(together.Targets, r.Targets[i])
			continue
		}
		if d.next = int32(i); i != next {
			d.passed()
		}
		split := d.splitOff(d.to.policy())
		if i == next && due != 0 {
			split.ensureStory().notBefore, split.row().asleep = due, d.row().asleep
		}
		if isMissing && awaited {
			split.ensureStory().unawaited = true
		}
		part := j.encodeRow(w, split, driver.Ready)
		if i == next && r.State != driver.Ready { // it waits, or is parked, as it was
			part.State, part.Door, part.Destination, part.Due = r.State, r.Door, r.Destination, r.Due
		}
		if part.Leased = !isMissing; isMissing { // at the door of all destinations: others of its key come there, too
			part.State, part.Door, part.Destination = driver.Parked, r.Targets[i], ""
		}
		parts = append(parts, w.decode(part))
	}
	if len(together.Targets) > next {
		if together.Targets[next] != r.Targets[next] { // the part that it waited for waits alone
			together.State, together.Door, together.Destination, together.Due = driver.Ready, "", "", time.Time{}
			if r.progress != nil {
				together.Progress = w.encode(r.progress.onward())
			}
		}
		together.Leased = true
		parts = append(parts, w.decode(&together))
	}
	for _, part := range parts {
		part.Position, part.Own, part.inTurn = r.Position, true, !r.Own
	}
	return parts
}

// fallBehind makes new events wait in the store until the feeder has claimed what is there.
func (f *feeder) fallBehind() {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.behind = true
}

// countDivided counts the records that replace a claimed one. They count as left to the store until
// they enter. Those that are parked for a missing subscription do not count for WithMaxUnsettled.
func (j *durable) countDivided(r *record, with ...*driver.Record) {
	parts := int64(len(with))
	j.intake.quota.Add(parts - 1)
	for _, part := range with {
		if part.State == driver.Parked {
			j.orphaned(part.Door)
		}
	}
	if j.ledger.owns(r) { // it is counted as left to the store
		j.ledger.splits.Add(parts - 1)
		j.ledger.stored.Add(parts - 1)
		return
	}
	j.ledger.claimed.Add(parts)
	j.ledger.stored.Add(parts)
}

// firstPosition returns the Record.Position of the first event of a subscription that succeeds another.
func (s *Subscription) firstPosition() int64 {
	if !s.succeeds {
		return math.MaxInt64
	}
	return cmp.Or(s.since.Load(), math.MaxInt64)
}

// noteFirst notes the position of an accepted dispatch that may be the first of a subscription which succeeds another.
func (r *registry) noteFirst(of []*Subscription, position int64) {
	for _, s := range of {
		if s.succeeds && s.since.CompareAndSwap(0, position) {
			r.succeeding.Add(-1)
		}
	}
}

// doubtFirst notes dispatches that may be the first of a subscription which succeeds another, if the store has
// them.
func (f *feeder) doubtFirst(r *changeBatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, d := range r.opened {
		f.doubtful = append(f.doubtful, first{r.batch.New[i], d.to.subscriptions})
	}
}

// first is a dispatch of doubtFirst.
type first struct {
	record *driver.Record
	of     []*Subscription
}

// is reports whether a record of the same event is that of the dispatch: there may be an older one.
func (d first) is(r *driver.Record) bool {
	return slices.Equal(r.Targets, d.record.Targets) && bytes.Equal(r.Replay, d.record.Replay)
}

// resolveFirst notes the positions of those of doubtFirst that the reopened store has. Otherwise a later event would
// count as the first one, and the events before it would become letters of the subscription that has ended.
func (f *feeder) resolveFirst(ctx context.Context) error {
	f.mu.Lock()
	doubtful := f.doubtful
	f.mu.Unlock()
	for _, d := range doubtful { // in the order of their batches
		records, err := f.bus.store.Lookup(ctx, d.record.ID)
		if err != nil {
			return err
		}
		for _, r := range records {
			if d.is(r) {
				f.bus.registry.noteFirst(d.of, r.Position)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubtful = nil
	return nil
}

// endWaiters ends the waits for events that only the store has.
func (f *feeder) endWaiters() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, waiter := range f.waiters {
		f.bus.durable.endWait(waiter)
	}
}

// expectOnDisk registers dispatches that only the store will have.
func (f *feeder) expectOnDisk(r *changeBatch) {
	for _, d := range r.change.all() {
		f.keepWaiter(d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uncommitted++
}

// keepWaiter keeps the waiter of a dispatch that leaves memory, until it is claimed again: during
// Shutdown, it ends the wait. Call it
// before the record is submitted: the feeder may claim the record before it is called back about
// it.
func (f *feeder) keepWaiter(d *dispatch) {
	waiter := d.waiter()
	if waiter == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !waiter.gone {
		f.waiters[d.id] = waiter
		f.bus.durable.endWait(waiter)
	}
}

// waiterOf returns the wait for an event that memory does not have, or nil.
func (f *feeder) waiterOf(id EventID) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiters[id]
}

// forget drops a waiter that no longer waits.
func (f *feeder) forget(id EventID, w *waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.gone = true
	if f.waiters[id] == w {
		delete(f.waiters, id)
	}
}
