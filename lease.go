package eventbus

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/timeline"
)

// Of the buses on one store, the one with the lease dispatches. The others are standbys: they publish into incoming, and
// ask the one with the lease for what only it may do.

// toolPatience is how long Start waits for the lease without WithStandby: a tool holds it while it carries out a request.
const toolPatience = time.Second

// awaitLease waits until the bus has the lease. Without WithStandby, that is an error soon.
func (j *durable) awaitLease(ctx context.Context) error {
	for {
		if err := j.feeder.awaitRestart(ctx); err != nil { // of a store that has failed
			return err
		}
		j.feeder.feeding.Unlock()
		err := j.acquireAtStart(ctx)
		if err == nil || ctx.Err() != nil || !j.config.standby || !errors.Is(err, ErrStoreFailed) {
			j.feeder.failed(ctx, noFailure(err))
			return err
		}
		j.storeFailed(err)
	}
}

// noFailure returns nil for the error of a store that has not failed: another one has the lease, or another program a lock.
func noFailure(err error) error {
	if errors.Is(err, ErrNoLease) || errors.Is(err, driver.ErrBusy) {
		return nil
	}
	return err
}

// noLease keeps only an error that says which process has the lease, or that another program has a lock.
func noLease(err error) error {
	if noFailure(err) == nil {
		return err
	}
	return nil
}

func (j *durable) acquireAtStart(ctx context.Context) error {
	if j.config.standby {
		return j.acquire(ctx, true)
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	defer j.time.AfterFunc(toolPatience, cancel).Stop()
	err := j.acquire(short, true)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		err = j.acquire(ctx, false) // it names the process that has the lease
	}
	return err
}

// acquire acquires the lease, and reads what another process may have changed meanwhile.
func (j *durable) acquire(ctx context.Context, wait bool) error {
	lease, err := j.store.Acquire(ctx, driver.AcquireQuery{Wait: wait})
	if err != nil {
		return err
	}
	if lease.Crashed {
		j.log.Warn("last process ended without shutdown", zap.Int64("crashed_events", lease.CrashedEvents))
	}
	j.compareClocks(ctx)
	j.registry.forgetEnded()
	j.feeder.looks.Store(true)
	if err := errors.Join(j.operators.obeyOthers(), j.countUnsettled(ctx)); err != nil {
		return err
	}
	j.answerRequests() // before this process orders anything itself
	return nil
}

// clockSkew is the difference to the store's clock from which the log warns: delays that only the store has, and ages, are
// wrong by as much after another process has acquired the lease.
const clockSkew = time.Minute

// compareClocks compares the clock with that of the store, if it has one.
func (j *durable) compareClocks(ctx context.Context) {
	there, err := j.store.Now(ctx)
	if err != nil || there.IsZero() {
		return
	}
	if ahead := j.time.Now().UTC.Sub(there); ahead.Abs() > clockSkew {
		j.log.Warn("clock differs from that of the store", zap.Duration("ahead", ahead))
	}
}

// giveUpLease releases the lease of a bus that does not run, unless its store has failed: reopen releases it then.
func (j *durable) giveUpLease() {
	if !j.halts.Has(halt.Failed) {
		j.releaseLease()
	}
}

func (j *durable) releaseLease() {
	if j.store.leads() {
		j.feeder.leads.Store(false)
		if err := j.store.Release(j.feeder.ctx); err != nil {
			j.log.Error("lease of the store was not released", zap.Error(err))
		}
	}
}

// othersCommitted looks at what another process has committed.
func (j *durable) othersCommitted(c driver.Change) {
	f := j.feeder
	if c&driver.ChangedLease != 0 && f.isStopping() {
		f.losses.Go(j.lookAtLease)
		return
	}
	f.lookLater(func() { // the store must not wait for publishers
		if c&driver.ChangedLease != 0 {
			j.lookAtLease()
		}
		switch {
		case !j.store.leads():
			if c&driver.ChangedDirectives != 0 {
				f.failed(f.claimsContext(), j.operators.obeyOthers())
			}
			return
		case c&driver.ChangedIncoming != 0:
			f.looks.Store(true)
			f.lookForIncoming()
		}
		if c&driver.ChangedRequests != 0 {
			j.answerRequests()
		}
		if c&driver.ChangedCatalogs != 0 {
			j.lookAtInstances()
		}
	})
}

func (f *feeder) isStopping() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopping
}

// lookLater runs a function on its own goroutine, for which stop waits. It does nothing once stop has been called.
func (f *feeder) lookLater(look func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopping {
		f.watching.Go(look)
	}
}

// lookAtLease finds out whether the store has lost the lease.
func (j *durable) lookAtLease() {
	if epoch := j.store.epoch.Load(); j.store.lease().Epoch != epoch {
		j.leaseLost(epoch)
	}
}

// leaseLost makes the bus a standby, once for each lease: it starts no calls, cancels those that run, and drops every
// dispatch from memory, because another process has them.
func (j *durable) leaseLost(epoch int64) {
	if epoch == 0 || !j.store.epoch.CompareAndSwap(epoch, 0) {
		return
	}
	j.feeder.leads.Store(false)
	if !j.feeder.runs.Load() {
		return // Start waits for it, or it was held for a request
	}
	j.beginStandby()
}

// beginStandby makes a bus that has lost the lease wait for it.
func (j *durable) beginStandby() {
	j.halts.Set(halt.Lost)
	j.log.Warn("lease lost: the bus is a standby until it has the lease again")
	if !j.feeder.noteFailure(j.restart) { // Shutdown waits for the calls
		j.stopCalls()
	}
}

// dropClaimed drops from memory what Start has claimed before it failed. The bus may have the lease still, or another process.
func (j *durable) dropClaimed() {
	if j.halts.Has(halt.Failed) || !j.halts.Set(halt.Lost) {
		return // the restart drops it
	}
	defer j.halts.Clear(halt.Lost)
	for j.unloadAll(); !j.ledger.isUnloaded() && j.feeder.sleep(timeline.Tick); j.unloadAll() {
	}
	j.ledger.handOver()
}

// stopCalls cancels the calls that run, with the cause ErrLeaseLost, and leaves their dispatches.
func (j *durable) stopCalls() {
	for _, c := range j.machine.watch.RevokeAll() {
		j.machine.abandon(c, nil)
	}
}

// handOver makes the bus a standby, once its running calls have ended. Another standby has the lease then. It does nothing
// while the bus stands by: restart looks at the instances again when the bus dispatches.
func (j *durable) handOver(to string) {
	if j.halts.Has(halt.Lost) {
		return
	}
	j.feeder.leads.Store(false) // before the halt: who enters during it leaves events in incoming
	if !j.halts.Set(halt.Lost) {
		return
	}
	j.log.Info("lease handed over to a standby with more subscriptions", zap.String("instance", to))
	j.yielded.Store(to, nil)
	j.feeder.noteFailure(j.restart)
}

// release releases the lease that the bus hands over, when it has no dispatch left, and gives the others time to acquire
// it.
func (j *durable) release() (goesOn bool) {
	if err := j.store.Release(j.feeder.ctx); err != nil {
		if j.feeder.ctx.Err() == nil {
			j.storeFailed(err)
		}
		return j.feeder.ctx.Err() == nil
	}
	return j.feeder.sleep(handOverPause)
}

const (
	// handOverPause is how long a bus that has handed the lease over does not ask for it. A store gives it to one that
	// waits within 250 ms.
	handOverPause = 300 * time.Millisecond
	// standbyLives is how long after its last record a standby counts as one that lives, and forgotten when its record
	// is removed.
	standbyLives     = 3 * standbySeen
	standbyForgotten = time.Hour
)

// lookAtInstances hands the lease over if a standby that started later has all subscriptions of this bus and more, and
// removes the catalogs of buses that are gone.
func (j *durable) lookAtInstances() {
	claims, epoch := j.feeder.claimsContext(), j.store.epoch.Load()
	all, err := j.operators.storedCatalogs(claims)
	if err != nil {
		j.feeder.failed(claims, err)
		return
	}
	mine := slices.IndexFunc(all, func(in instance) bool { return in.Instance == j.instance })
	if epoch == 0 || mine < 0 || !j.feeder.runs.Load() || !j.dispatches() || j.lifecycle.ending.Load() {
		return
	}
	now := j.time.Now().UTC
	for _, in := range all {
		age := now.Sub(in.seen)
		switch {
		case in.Instance == j.instance:
		case in.Active || age > standbyForgotten:
			w := newBatch(j.time)
			w.Catalog = &driver.Catalog{Instance: in.Instance}
			w.Epoch = epoch // if another bus has the lease now, the catalog may be its own
			j.store.submit(w, room.Pass{}, func(error) {})
		case in.number > all[mine].number && age < standbyLives && j.yieldsTo(&in.Catalog):
			j.handOver(in.Instance)
			return
		}
	}
}

// yieldsTo reports whether a standby has all subscriptions that the bus had when it started, and more, and the lease was not
// handed over to it before.
func (j *durable) yieldsTo(c *Catalog) bool {
	if len(c.Subscriptions) <= len(j.atStart) {
		return false
	}
	for _, name := range j.atStart {
		if _, ok := c.Find(name); !ok {
			return false
		}
	}
	_, before := j.yielded.Load(c.Instance)
	return !before
}
