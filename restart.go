package eventbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/doubt"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/suspects"
	"github.com/surebus/eventbus/internal/timeline"
)

// A store that has failed may or may not have the last batches. So the bus takes the way of a
// crash, within the process: it refuses publications, starts no calls, lets running calls end or be
// abandoned, drops every dispatch from memory, reopens the store, and recovers from it.

// storeFailed notes that the store has failed, and restarts the bus, once. A refusal is no failure.
func (j *durable) storeFailed(err error) {
	var refused *driver.RefusedError
	if errors.As(err, &refused) || errors.Is(err, ErrStoreClosed) || !j.halts.Set(halt.Failed) {
		return
	}
	j.log.Error("store failed: the bus restarts", zap.Error(err))
	j.feeder.noteFailure(j.restart)
}

// noteFailure ends the claims in progress, and runs restart unless it runs. It returns false if the feeder stops.
func (f *feeder) noteFailure(restart func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endClaims()
	if f.stopping {
		return false
	}
	if !f.restarting {
		f.restarting = true
		f.restarts.Go(restart)
	}
	return true
}

// restarted ends a restart. It reports whether another one must follow.
func (f *feeder) restarted() (again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restarting = f.bus.halts.Has(halt.Failed) || f.bus.durable.isStandby()
	return f.restarting
}

// storeRefuses returns the error of a publication while the store has failed, or nil.
func (j *durable) storeRefuses() error {
	if !j.halts.Has(halt.Failed) {
		return nil
	}
	return errReopens()
}

// errReopens returns the error of a publication while the store has failed.
func errReopens() error {
	return fmt.Errorf("%w: the bus reopens it; publish again later", ErrStoreFailed)
}

// Delays between two attempts to reopen a store.
const (
	firstReopenDelay = 100 * time.Millisecond
	lastReopenDelay  = 10 * time.Second
)

// longestReopenDelay returns the largest of these delays. All processes may have lost the store in one outage. After it, a
// standby must look at the lease soon: its time begins with the first look.
func (j *durable) longestReopenDelay() time.Duration {
	if !j.config.standby {
		return lastReopenDelay
	}
	return min(max(j.store.patience/reopensInPatience, firstReopenDelay), lastReopenDelay)
}

// reopensInPatience is how often a standby looks, at least, in the time after which a store gives up.
const reopensInPatience = 20

// restart drops every dispatch from memory, reopens a store that has failed, and waits for a lease that is lost.
func (j *durable) restart() {
	f := j.feeder
	for again := true; again; again = f.restarted() {
		if !j.restartOnce() {
			return
		}
	}
}

// unloadPause is the longest pause between two looks at what memory has.
const unloadPause = 50 * time.Millisecond

// emptyMemory drops every dispatch from memory. It waits for those that have a call, or that the store has not answered for: that
// may take an hour. It returns false if Shutdown has stopped the feeder.
func (j *durable) emptyMemory(beforeWait func()) (done bool) {
	pause := timeline.Tick
	for j.unloadAll(); !j.ledger.isUnloaded(); j.unloadAll() {
		beforeWait()
		if !j.feeder.sleep(pause) {
			return false
		}
		pause = min(2*pause, unloadPause)
	}
	return true
}

// stopLostCalls cancels the calls of a bus whose lease is lost. If it hands the lease over, they end in peace.
func (j *durable) stopLostCalls() {
	if j.halts.Has(halt.Lost) && !j.store.leads() {
		j.stopCalls()
	}
}

// restartOnce returns false if Shutdown has stopped the feeder.
func (j *durable) restartOnce() (goesOn bool) {
	f := j.feeder
	f.feeding.Lock() // it claims nothing meanwhile
	defer f.feeding.Unlock()
	standsBy := j.isStandby() // a loss or a hand-over that begins later is for the next round
	if standsBy {
		f.tookIn.Store(false) // beginToLead may have set it since
	}
	f.endWaiters()
	if !j.emptyMemory(j.stopLostCalls) {
		return false
	}
	if j.halts.Has(halt.Failed) && !j.reopen() {
		return false
	}
	if standsBy && j.store.leads() && !j.release() {
		return false
	}
	if standsBy && !j.standBy() {
		return false
	}
	if j.halts.Has(halt.Failed) { // since it was reopened
		return true
	}
	f.beginAnew()
	if standsBy {
		j.halts.Clear(halt.Lost)
		if !j.store.leads() { // it was lost again, and leaseLost found halt.Lost set
			j.halts.Set(halt.Lost)
		}
	}
	f.wakeUp()
	j.operators.cataloged.recordAgain()
	f.lookLater(func() { j.answerRequests(false) }) // the answer to those that came since the failure may have failed too
	return true
}

// isStandby reports whether a running bus has lost the lease, or hands it over. Otherwise dropClaimed has set halt.Lost.
func (j *durable) isStandby() bool { return j.halts.Has(halt.Lost) && j.feeder.runs.Load() }

// reopen reopens the store after a failure.
func (j *durable) reopen() (goesOn bool) {
	f := j.feeder
	if again := f.pauseBeforeReopen(); again > 0 && !f.sleep(again) {
		return false
	}
	hadLease := j.store.leads()
	var resolved []EventID
	var silence time.Duration // of the log
	var silences pace.Backoff
	for delay := firstReopenDelay; ; delay = min(2*delay, j.longestReopenDelay()) {
		err := j.store.Reopen(f.ctx)
		if err == nil {
			err = j.recount(f.ctx)
		}
		if err == nil {
			err = f.resolveFirst(f.ctx)
		}
		if err == nil {
			resolved, err = j.resolveAll(f.ctx)
		}
		if err == nil {
			break
		}
		if silence <= 0 {
			j.log.Error("store does not reopen", zap.Error(err), zap.Duration("again_in", delay))
			silence = silences.Grow(firstReopenDelay, lastReopenDelay)
		}
		silence -= delay
		if !f.sleep(delay) {
			return false
		}
	}
	f.reopened = max(j.time.Nanos(), 1)
	if !f.runs.Load() { // Start, or who holds it for a request, acquires it again
		j.releaseLease()
	} else if hadLease && !j.store.leads() {
		f.tookIn.Store(false)
		j.halts.Set(halt.Lost)
		j.log.Warn("lease lost: the bus is a standby until it has the lease again")
	}
	f.renewClaims()
	j.halts.Clear(halt.Failed)
	j.unknown.resolved(resolved)
	j.log.Info("store reopened")
	f.lookLater(j.obeyAgain)
	return true
}

// standBy waits for the lease.
func (j *durable) standBy() (goesOn bool) {
	f := j.feeder
	j.ledger.handOver()
	j.operators.cataloged.record()
	err := j.acquireToDispatch(f.ctx)
	switch {
	case f.ctx.Err() != nil:
		return false
	case err != nil:
		j.storeFailed(err)
		return true
	}
	j.log.Info("lease acquired: the bus dispatches again")
	return true
}

// beginAnew makes the feeder take in and claim all that the store has, behind every door.
func (f *feeder) beginAnew() {
	f.submitting.Lock()
	f.behind = true
	for _, s := range f.bus.registry.list() {
		s.recover()
	}
	for name := range f.bus.registry.knownNames() {
		f.doors = append(f.doors, place{subscription: name})
	}
	f.submitting.Unlock()
	f.looks.Store(true)
	f.due.Ring()
	f.expiries.Ring()
	f.renewClaims()
}

// renewClaims allows claims again.
func (f *feeder) renewClaims() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endClaims()
	f.claims, f.endClaims = context.WithCancel(f.ctx)
}

// doubt notes what a batch of unknown outcome would count. The answers of a store, and these calls, are in
// the order of its batches. It reports whether the outcome is unknown.
func (r *changeBatch) doubt(err error) bool {
	var refused *driver.RefusedError
	if errors.As(err, &refused) || errors.Is(err, ErrStoreClosed) {
		return false
	}
	if r.change.left {
		return true // it counts nothing here
	}
	var c doubt.Change
	l, inserted := &r.bus.ledger, int64(len(r.batch.New))
	switch kind := r.change.kind; {
	case kind == toAccept:
		var opened int64
		for _, d := range r.change.all() {
			opened += min(d.records(), 1)
		}
		c.Applied = doubt.Opened(&l.accepted, opened, &l.copies, inserted-opened)
		if r.change.of != nil && inserted > 0 {
			c.Opens = r.batch.New[0].ID
		}
	case kind == toReplay:
		c.Applied = doubt.Opened(&l.replays, 1, &l.copies, inserted-1)
	case kind == toDue:
		c.Applied = doubt.Opened(&l.accepted, 0, &l.copies, inserted-1)
	}
	for _, refused := range r.change.refused {
		c.Applied = c.Applied.And(doubt.Counted(&l.accepted, 1)).And(doubt.Counted(l.counter(refused.outcome()), 1))
	}
	splits := 0
	if r.change.kind > toDue && inserted > 0 {
		splits = 1
	}
	for _, end := range r.change.ends() {
		c.Applied = c.Applied.And(doubt.Ended(l.counter(end.outcome), 1))
		if s := end.d.row(); s == nil || s.ref == 0 {
			splits++
		}
	}
	for range splits { // its parent still has the delivery
		c.Lost = c.Lost.And(doubt.Ended(&l.splits, -1))
	}
	r.bus.durable.doubts.Add(c)
	return true
}

// recount begins the counts of what is left in the store anew, with what the store has. Nothing is in
// memory, and no publication enters.
func (j *durable) recount(ctx context.Context) error {
	l := &j.ledger
	others := j.intake.quota.Used() + j.orphans.Total() - l.unloaded() // that this process has not claimed
	has, err := j.countUnsettled(ctx)
	if err == nil {
		err = j.doubts.Ask(func(event [16]byte) (bool, error) {
			records, err := j.store.Lookup(ctx, event)
			return len(records) > 0, err
		})
	}
	if err != nil {
		return err
	}
	l.stored.Add(j.doubts.Resolve(has - others - l.unloaded()))
	l.gone(has)
	l.owed.Store(l.unloaded())
	return nil
}

// obeyAgain reads the directives again: the read of the last commit of another process may have failed with the
// store. If it fails once more, that does not restart the bus: it might do so without end.
func (j *durable) obeyAgain() {
	if err := j.operators.obeyOthers(); err != nil && j.feeder.ctx.Err() == nil {
		j.log.Error("directives of other processes cannot be read", zap.Error(err))
	}
}

// pauseBeforeReopen returns how long to wait before the store is reopened: 0, but if it fails again
// and again soon after it was reopened, the delays between attempts. Otherwise the bus would restart
// without end, as fast as it can.
func (f *feeder) pauseBeforeReopen() time.Duration {
	if f.reopened == 0 || f.bus.time.Nanos()-f.reopened >= int64(2*lastReopenDelay) {
		f.reopenDelay.Reset()
		return 0
	}
	return f.reopenDelay.Grow(firstReopenDelay, f.bus.durable.longestReopenDelay())
}

// unloadAll leaves the dispatches that wait in memory to the store, except those that halts does not stop. Those
// that run follow when their calls end.
func (j *durable) unloadAll() {
	j.unloadWaiting()
	for _, s := range j.registry.list() {
		for _, o := range s.doors() {
			for _, d := range o.empty(j.Bus) {
				j.unload(d)
			}
		}
	}
	j.machine.pool.Sift(j.machine.stops, j.unload)
}

// empty removes from the line what may not start, oldest first. It keeps its seats.
func (o *door) empty(b *Bus) []*dispatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.line.Take(b.machine.stops)
	o.countLocked(b)
	return all
}

// unloadWaiting leaves the dispatches that wait for their next attempts, or as suspects, to the store.
func (j *durable) unloadWaiting() {
	for _, d := range append(j.suspects.Drain(), j.machine.delay.Take(j.machine.stops)...) {
		j.ledger.waiting.Add(-1)
		j.unload(d)
	}
}

// sleep waits on the bus's clock. It returns false at once when Shutdown stops the feeder.
func (f *feeder) sleep(d time.Duration) bool { return f.bus.time.Sleep(f.ctx, d) }

// An event that crashes the process is isolated. A dispatch that memory had in two crashes is a suspect. Suspects run
// beside other dispatches, one marked group at a time. If the process crashes while a group is marked, only the group
// counts the crash, and its members run in smaller groups after the restart. A dispatch that crashes the process in a
// group of its own is dead-lettered. A suspect that ends its attempt is none any more.

// fatalCrashes is the number of Crashes at which a dispatch is dead-lettered.
const fatalCrashes = driver.SuspectCrashes + suspects.Fatal

// detain keeps a dispatch that was read from a store from running now. It reports whether it does.
func (j *durable) detain(d *dispatch, s *row) bool {
	switch due := d.takeNotBefore(); {
	case s.unloads, j.machine.stops(d):
		j.unload(d)
	case due > j.time.Nanos() && s.asleep != 0:
		j.machine.sleep(d, due)
	case due > j.time.Nanos():
		j.machine.delayUntil(d, due)
	case s.marked || s.crashes < driver.SuspectCrashes || d.isVisited(): // a visited one runs no handler, and only settles
		return false
	case s.crashes >= fatalCrashes:
		j.machine.bury(d, ReasonCrash)
	default:
		j.ledger.waiting.Add(1)
		d.state = stateWaiting
		j.suspects.Add(d)
		j.runSuspects()
	}
	return true
}

// runSuspects runs the next group of suspects, if none runs. The group is marked in the store before that.
func (j *durable) runSuspects() {
	group := j.suspects.Next(func(d *dispatch) int { return d.row().crashes - driver.SuspectCrashes })
	if len(group) == 0 {
		return
	}
	w := newBatch(j.time)
	for _, d := range group {
		record := j.updatedRecord(w, d, driver.Ready, 0)
		record.Leased, record.Suspect = true, true
		w.Update = append(w.Update, record)
	}
	j.store.submit(w, room.Pass{}, func(err error) {
		j.ledger.waiting.Add(int64(-len(group)))
		for _, d := range group {
			d.row().marked = true
			d.row().unloads = err != nil
		}
		j.machine.requeue(group...)
	})
}

// acquit ends the suspicion of a dispatch whose attempt did not crash the process.
func (j *durable) acquit(d *dispatch) {
	s := d.row()
	if s == nil {
		return
	}
	s.crashes = 0
	if !s.marked {
		return
	}
	s.marked = false
	j.suspects.Ended()
	j.runSuspects()
}
