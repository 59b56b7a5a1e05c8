package eventbus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
)

// Of the buses on one store, the one with the lease dispatches. The others are standbys: they publish into incoming, and
// ask the one with the lease for what only it may do.

// toolPatience is how long Start waits for the lease without WithStandby: a tool holds it while it carries out a request.
const toolPatience = time.Second

// awaitLease waits until the bus has the lease. Without WithStandby, that is an error soon. A standby calls it again after a
// failure of the store.
func (j *durable) awaitLease(ctx context.Context) error {
	if err := j.feeder.awaitRestart(ctx); err != nil { // of a store that has failed
		return err
	}
	j.feeder.feeding.Unlock()
	err := j.acquireAtStart(ctx)
	j.feeder.failed(ctx, noFailure(err))
	return err
}

// noFailure returns nil for the error of a store that has not failed: another one has the lease, or another program a lock.
func noFailure(err error) error {
	if errors.Is(err, ErrNoLease) || errors.Is(err, driver.ErrBusy) {
		return nil
	}
	return err
}

// noLease keeps only an error that says which process has the lease, that another program has a lock, or beside the end of
// the context why the store waited, such as for a server that is down.
func noLease(err error) error {
	var beside interface{ Unwrap() []error }
	if noFailure(err) == nil || errors.Is(err, context.DeadlineExceeded) && errors.As(err, &beside) {
		return err
	}
	return nil
}

func (j *durable) acquireAtStart(ctx context.Context) error {
	if j.config.standby {
		return j.acquireToDispatch(ctx)
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
	j.feeder.tookIn.Store(false) // a lease that was lost may have left it set: what came since is in incoming
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
	err = j.operators.obeyOthers()
	_, failed := j.countUnsettled(ctx)
	_, unread := j.lookAtCatalogs(ctx)
	if err := errors.Join(err, failed, unread, j.resumeRetired(ctx)); err != nil {
		return err
	}
	j.answerRequests(true)
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
		j.feeder.tookIn.Store(false)
		if err := j.store.Release(j.feeder.ctx); err != nil {
			j.log.Error("lease of the store was not released", zap.Error(err))
		}
	}
}

// othersCommitted looks at what another process has committed.
func (j *durable) othersCommitted(c driver.Change) {
	f := j.feeder
	later := f.lookLater(func() { // the store must not wait for publishers
		if c&driver.ChangedLease != 0 {
			j.lookAtLease()
		}
		switch {
		case !j.store.leads():
			if c&driver.ChangedDirectives != 0 {
				f.failed(f.claimsContext(), j.operators.obeyOthers())
			}
			if c&driver.ChangedCatalogs != 0 && !j.config.tool {
				j.lookAtInstances() // it may have to know which standbys live
			}
			return
		case c&driver.ChangedIncoming != 0:
			f.looks.Store(true)
			f.lookForIncoming()
		}
		if c&driver.ChangedRequests != 0 {
			j.answerRequests(false)
		}
		if c&driver.ChangedCatalogs != 0 {
			j.lookAtInstances()
		}
	})
	if !later && c&driver.ChangedLease != 0 {
		f.losses.Go(j.lookAtLease)
	}
}

// lookLater runs a function on its own goroutine, for which stop waits, and reports whether it does: once stop has been
// called, it does nothing.
func (f *feeder) lookLater(look func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopping {
		return false
	}
	f.watching.Go(look)
	return true
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
	j.feeder.tookIn.Store(false)
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
	j.emptyMemory(func() {})
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
	j.feeder.tookIn.Store(false) // before the halt: who enters during it leaves events in incoming
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
	// yieldGrace is how long a bus that gets the lease leaves it again to a standby with more subscriptions. Others may
	// be quicker than that standby.
	yieldGrace = 2 * time.Second
	// standbyLives is how long after its last record a standby counts as one that lives, and forgotten when its record
	// is removed.
	standbyLives     = 3 * standbySeen
	standbyForgotten = time.Hour
	// catalogKept is how old by its own time a record is that is removed although nothing is known of the standby.
	catalogKept = 24 * time.Hour
)

// sightings has when the bus saw the records of other buses change. It compares no clocks: those of the processes may
// differ.
type sightings struct {
	mu   sync.Mutex // guards the following
	last map[string]sighting
}

type sighting struct {
	seen  time.Time // driver.Catalog.Seen
	at    int64     // when the bus saw it first
	lives bool      // it has changed since the first look
}

// note fills in which instances live.
func (g *sightings) note(now int64, all []instance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := make(map[string]sighting, len(all))
	for i := range all {
		in := &all[i]
		s, known := g.last[in.Instance]
		if !known || !s.seen.Equal(in.seen) {
			s = sighting{seen: in.seen, at: now, lives: g.last != nil}
		}
		last[in.Instance] = s
		in.idle = time.Duration(now - s.at)
		in.lives = s.lives && in.idle < standbyLives
	}
	g.last = last
}

// instances reads the catalogs of the store, and notes which buses live.
func (j *durable) instances(ctx context.Context) ([]instance, error) {
	all, err := j.operators.storedCatalogs(ctx)
	if err == nil {
		j.sightings.note(j.time.Nanos(), all)
	}
	return all, err
}

// lookAtInstances hands the lease over if a standby that started later has all subscriptions of this bus and more, and
// removes the catalogs of buses that are gone.
func (j *durable) lookAtInstances() {
	claims, epoch := j.feeder.claimsContext(), j.store.epoch.Load()
	all, err := j.lookAtCatalogs(claims)
	if err != nil {
		j.feeder.failed(claims, err)
		return
	}
	mine := slices.IndexFunc(all, func(in instance) bool { return in.Instance == j.instance })
	if epoch == 0 || mine < 0 || !j.feeder.runs.Load() || !j.dispatches() || j.lifecycle.ending.Load() {
		return
	}
	now := j.time.Now().UTC
	for i := range all {
		in := &all[i]
		_, yielded := j.yielded.Load(in.Instance)
		switch {
		case in.Instance == j.instance:
		case in.isGone(now):
			w := newBatch(j.time)
			w.Catalog = &driver.Catalog{Instance: in.Instance}
			w.Epoch = epoch // if another bus has the lease now, the catalog may be its own
			j.store.submit(w, room.Pass{}, func(error) {})
		case in.number > all[mine].number && !yielded && j.yieldsTo(in):
			j.handOver(in.Instance)
			return
		}
	}
}

// isGone reports whether the catalog of another bus is left over, if this bus has the lease: that of the one that had it before, or of a
// standby that has ended.
func (in *instance) isGone(now time.Time) bool {
	return in.Active || in.idle > standbyForgotten || !in.lives && now.Sub(in.seen) > catalogKept
}

// lookAtCatalogs finds out which handlers of dead letters other buses have. For a tool, which has the lease for a moment, that is the bus
// that had it before, too. It returns the catalogs.
func (j *durable) lookAtCatalogs(ctx context.Context) ([]instance, error) {
	j.cataloging.Lock() // of two reads, the later one counts
	defer j.cataloging.Unlock()
	all, err := j.instances(ctx)
	if err != nil {
		return nil, err
	}
	now := j.time.Now().UTC
	j.registry.letters.setElsewhere(slices.DeleteFunc(slices.Clone(all), func(in instance) bool {
		return in.Instance == j.instance || in.isGone(now) && !j.config.tool
	}))
	return all, nil
}

// yieldsTo reports whether a standby that lives has all subscriptions that the bus had when it started, and more.
func (j *durable) yieldsTo(in *instance) bool {
	if in.Instance == j.instance || !in.lives || in.Active || len(in.Subscriptions) <= len(j.atStart) {
		return false
	}
	for _, name := range j.atStart {
		if _, ok := in.Find(name); !ok {
			return false
		}
	}
	return true
}

// acquireToDispatch waits for the lease. If a standby has all of its subscriptions and more, the bus leaves the lease to it
// before it claims anything: when a bus hands the lease over, any standby may be the first to get it.
func (j *durable) acquireToDispatch(ctx context.Context) error {
	for since := j.time.Nanos(); ; {
		if err := j.acquire(ctx, true); err != nil {
			return err
		}
		all, err := j.instances(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(in instance) bool {
			_, yielded := j.yielded.Load(in.Instance)
			return j.yieldsTo(&in) && (!yielded || j.time.Nanos()-since < int64(yieldGrace))
		})
		if i < 0 {
			return nil
		}
		to := all[i].Instance
		if _, yielded := j.yielded.LoadOrStore(to, nil); !yielded {
			since = j.time.Nanos()
			j.log.Info("lease left to a standby with more subscriptions", zap.String("instance", to))
		}
		if err := j.store.Release(ctx); err != nil {
			return err
		}
		if !j.time.Sleep(ctx, handOverPause) {
			return contextError(ctx)
		}
	}
}
