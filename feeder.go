package eventbus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/timeline"
)

// feeder moves dispatches between the store and memory. The disk is the queue: what does not fit
// into memory stays in the store until there is room.
//
// While the bus keeps up, a new dispatch is leased when it is recorded, and queued once it is
// durable. When the queue is full, the feeder falls behind: new records stay free in the store, and
// from then on all that are new do, because a later event of a key must not overtake. It claims
// them in the order of acceptance as the queue has room, and has caught up when none is left. A bus
// is behind until Start has recovered what an earlier process left.
type feeder struct {
	bus *Bus

	// submitting is held while a change that opens dispatches is submitted: the order of Submit is the
	// order of acceptance. The functions that a store calls must not lock it.
	submitting sync.Mutex
	// Guarded by submitting.
	behind   bool
	again    bool          // a free record was inserted since catching began
	caught   chan struct{} // closed when catchUp or beginToLead ends; nil otherwise. Publications and replays wait meanwhile
	arriving int           // subscriptions that are being made
	doors    []place       // with deliveries to claim before anything else

	// tookIn is set once the bus with the lease has taken in what this process had left: new events get records then, see
	// leaves. It is set under submitting, and cleared without it.
	tookIn atomic.Bool
	looks  atomic.Bool  // there may be incoming events
	direct atomic.Int64 // submitted changes with leased records
	denied atomic.Bool  // the store may have records of direct changes that it did not lease, see obeyDenial
	own    ownIncoming

	mu          sync.Mutex // guards the following
	uncommitted int        // submitted batches with free records, or with incoming events
	committed   *sync.Cond // uncommitted is 0
	waiters     map[EventID]*waiter
	doubtful    []first         // of doubtFirst
	stopping    bool            // stop has been called
	restarting  bool            // restart runs
	claims      context.Context // ends when the store fails, and at Shutdown
	endClaims   context.CancelFunc

	due      *timeline.Alarm // for the next record of the store that becomes due; it has come if the store must be asked
	expiries *timeline.Alarm // likewise for the next one whose event expires
	wake     chan struct{}
	comes    chan struct{}   // see lookForIncoming
	ctx      context.Context // ends at Shutdown
	cancel   context.CancelFunc

	feeding     semaphore    // held while records are claimed, while the store is reopened, and while the bus waits for a lost lease
	reopened    int64        // when the store was reopened last, or 0. Guarded by feeding
	reopenDelay pace.Backoff // before it was. Guarded by feeding

	restarts sync.WaitGroup // goroutines that reopen the store
	starting semaphore      // held by start, stop and answerInstead
	stopped  chan struct{}  // closed when run has returned; nil before Start
	starts   atomic.Bool    // Start is under way
	runs     atomic.Bool    // run was called
	losses   sync.WaitGroup // looks for a loss of the lease while Shutdown waits for calls
	unwatch  func()
	watching sync.WaitGroup // goroutines of lookLater
}

// semaphore is a lock that is held while the store works.
type semaphore = pace.Semaphore

// feederPage is the largest number of records that the feeder claims at once.
const feederPage = 1024

func newFeeder(b *Bus) *feeder {
	f := &feeder{bus: b, behind: true, waiters: make(map[EventID]*waiter), wake: make(chan struct{}, 1), comes: make(chan struct{}, 1)}
	f.due, f.expiries = timeline.NewAlarm(b.time, f.wakeUp), timeline.NewAlarm(b.time, f.lookForIncoming)
	f.committed = sync.NewCond(&f.mu)
	f.feeding, f.starting = make(semaphore, 1), make(semaphore, 1)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.claims, f.endClaims = context.WithCancel(f.ctx)
	return f
}

// page returns how many records to claim at once.
func (f *feeder) page() int { return min(feederPage, max(f.bus.config.queue/2, 1)) }

// admit records a change that opens dispatches. It waits while the bus catches up, and otherwise not for the store. With an
// error, nothing was submitted.
func (f *feeder) admit(ctx context.Context, r *changeBatch, done func(error)) error {
	c := r.change
	f.submitting.Lock()
	defer f.submitting.Unlock()
	for f.caught != nil && c.kind != toDue && c.takesIn == nil {
		caught := f.caught
		f.submitting.Unlock()
		err := f.awaitCaught(ctx, c, caught)
		f.submitting.Lock()
		if err != nil {
			return err
		}
	}
	if c.of != nil && !f.bus.store.leads() {
		return ErrLeaseLost
	}
	if c.left = c.kind != toDue && c.takesIn == nil && f.leaves() && !(c.inside && f.bus.store.leads()); c.left {
		r.leave()
		f.submitLocked(r, true, done)
		return nil
	}
	if c.kind == toAccept && c.takesIn == nil && !c.follows { // a transaction may have been committed since beginToLead looked
		return errBeganToLead
	}
	if c.kind == toAccept && !c.counted { // it has the lease only now
		f.bus.intake.quota.Add(c.records())
		c.counted = true
	}
	ready := 0
	for _, record := range r.batch.New {
		if record.State == driver.Ready {
			ready++
		}
	}
	switch {
	case f.behind:
		c.unload = true
	case c.divides, c.isForRetired(): // divide parks a delivery whose subscription does not exist
		c.unload, f.behind = true, true
	case c.kind == toReplay && ready == 0: // it is scheduled again, and may be due when this is applied
		c.unload = true
	case c.kind == toAccept && !f.bus.machine.pool.TryReserve(ready):
		c.unload, f.behind = true, true
	}
	for _, record := range r.batch.New {
		record.Leased = record.State == driver.Ready && !c.unload
	}
	if f.caught != nil && c.unload { // a publisher takes events in meanwhile: the claim of catchUp may miss them
		f.again = true
	}
	f.submitLocked(r, c.unload || ready < len(r.batch.New), done)
	return nil
}

// awaitCaught waits for the end of catching, which waits for the store. The store may wait for a transaction that the
// caller has to end. A change that opens dispatches has no such caller.
func (f *feeder) awaitCaught(ctx context.Context, c *change, caught <-chan struct{}) error {
	block := f.bus.store.blocks.Block()
	begun := block.Begun
	if c.of != nil {
		begun = nil
	}
	var why error
	select {
	case <-caught:
		return nil
	case <-begun:
		why = block.Why
	case <-ctx.Done():
		why = contextError(ctx)
	case <-f.bus.gaveUp:
		return ErrShutdown
	}
	return fmt.Errorf("%w: it has not confirmed what was submitted before, and has nothing of this: %w", ErrStoreFailed, why)
}

// submitLocked submits a change that opens dispatches. onDisk is set if only the store will have some of them. The caller
// holds submitting.
func (f *feeder) submitLocked(r *changeBatch, onDisk bool, done func(error)) {
	if onDisk {
		f.expectOnDisk(r)
	}
	direct := int64(0)
	if !r.change.unload && !r.change.left {
		direct = 1
	}
	f.direct.Add(direct)
	f.bus.store.submit(&r.batch, r.change.pass, func(err error) {
		f.own.note(r, err)
		r.committed(err)
		f.direct.Add(-direct)
		done(err)
		if onDisk {
			f.onDisk(r, err)
		}
	})
}

// leaves reports whether new events are left in incoming: the bus has no lease, or has not taken in yet what this process
// has left there before.
func (f *feeder) leaves() bool { return !f.tookIn.Load() || !f.bus.store.leads() }

// onDisk is called when the store has the records, or has refused them.
func (f *feeder) onDisk(r *changeBatch, err error) {
	f.mu.Lock()
	if f.uncommitted--; f.uncommitted == 0 {
		f.committed.Broadcast()
	}
	for _, d := range r.change.all() {
		if due := d.from().due; due != nil && err == nil && !r.change.left {
			f.due.Add(due.at)
		}
		if err == nil && !r.change.left {
			f.willExpire(d)
		}
	}
	f.mu.Unlock()
	f.wakeUp()
}

func (f *feeder) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (f *feeder) run() {
	defer close(f.stopped)
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		}
		f.feed()
	}
}

// failed handles the error, if any, of a read or a claim that began under the claimsContext. If that has
// ended, it is Shutdown, or a failure that is known: the bus may have restarted since.
func (f *feeder) failed(claims context.Context, err error) {
	switch {
	case err == nil, claims.Err() != nil, errors.Is(err, errClaimsEnded):
	case errors.Is(err, ErrNoLease), errors.Is(err, ErrLeaseLost): // guardedStore has noted it
	default:
		f.bus.durable.storeFailed(asFailure(err))
	}
}

// asFailure returns the error of what the store must not refuse: the feeder cannot go on without it. So the bus restarts,
// and logs it.
func asFailure(err error) error {
	var refused *driver.RefusedError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: it has refused what the feeder needs: %v", ErrStoreFailed, err) //nolint:errorlint // the refusal is a failure here
	}
	return err
}

func (f *feeder) feed() {
	f.feeding.Lock()
	defer f.feeding.Unlock()
	if f.bus.halts.Has(halt.Failed | halt.Lost) {
		return // restart wakes the feeder
	}
	claims := f.claimsContext()
	f.failed(claims, f.claimAll(claims))
}

// claimAll claims the records that are due, and those that wait for room in the queue. Incoming events do not wait for
// that.
func (f *feeder) claimAll(ctx context.Context) error {
	for {
		if err := f.claimFree(ctx); !errors.Is(err, errIncoming) {
			return err
		}
	}
}

func (f *feeder) claimFree(ctx context.Context) error {
	if f.denied.Load() {
		f.fallBehind()
	}
	for {
		if err := f.takeInAll(ctx); err != nil {
			return err
		}
		if err := f.feedExpired(ctx); err != nil { // before what waits for room in the queue
			return err
		}
		if err := f.feedDue(ctx); err != nil {
			return err
		}
		if !f.hasWork() {
			return nil
		}
		if err := f.feedDoors(ctx, true); err != nil {
			return err
		}
		if !f.isBehind() {
			continue
		}
		if err := f.awaitDirect(ctx); err != nil {
			return err
		}
		_, more, err := f.claim(ctx, driver.ClaimQuery{Kind: driver.ClaimReady, Limit: f.page()}, true)
		if err != nil {
			return err
		}
		if more {
			continue
		}
		if more, err = f.catchUp(ctx); err != nil || !more {
			return err
		}
	}
}

// awaitDirect waits, behind, until no direct change is left. If the store has denied the lease of one, a claim would give
// that record before an earlier one of its key, which is leased, and is freed only when the denial is obeyed.
func (f *feeder) awaitDirect(ctx context.Context) error {
	if f.direct.Load() > 0 {
		if err := f.apply(ctx, newBatch(f.bus.time)); err != nil { // the answers come in order
			return err
		}
	}
	if !f.denied.Load() {
		return nil
	}
	err := f.apply(ctx, newBatch(f.bus.time)) // then what obeyDenial frees is free
	if err == nil {
		f.denied.Store(false)
	}
	return err
}

// claimsContext returns a context that ends when the store fails, and at Shutdown.
func (f *feeder) claimsContext() context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims
}

func (f *feeder) hasWork() bool {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	return f.behind || len(f.doors) > 0
}

func (f *feeder) isBehind() bool {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	return f.behind
}

// catchUp ends the time behind if no free record is left. Publishers wait meanwhile, for one
// commit: otherwise it would never end while they are quick. It reports whether there is more to
// claim.
func (f *feeder) catchUp(ctx context.Context) (more bool, err error) {
	f.beginCatching()
	_, more, err = f.claim(ctx, driver.ClaimQuery{Kind: driver.ClaimReady, Limit: f.page()}, false)
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.endCatchingLocked()
	more = more || f.again || len(f.doors) > 0
	f.behind = err != nil || more || f.arriving > 0
	return more, err
}

// beginCatching makes publishers wait, and waits until the store has what they have submitted.
func (f *feeder) beginCatching() {
	f.submitting.Lock()
	f.caught, f.again = make(chan struct{}), false
	f.submitting.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.uncommitted > 0 {
		f.committed.Wait()
	}
}

// endCatchingLocked lets publishers go on. The caller holds submitting.
func (f *feeder) endCatchingLocked() {
	close(f.caught)
	f.caught = nil
}

// feedDue claims records that are due. A claim sets the alarm for the next one.
func (f *feeder) feedDue(ctx context.Context) error {
	for asks := f.due.Due(); asks; {
		f.due.Clear()
		_, more, err := f.claim(ctx, driver.ClaimQuery{Kind: driver.ClaimDue, Limit: f.page()}, true)
		if err != nil {
			f.due.Ring()
			return err
		}
		asks = more
	}
	return nil
}

// errClaimsEnded is the error of a claim that Shutdown or a failure of the store has ended, or a full queue.
var errClaimsEnded = errors.New("eventbus: claims were ended")

// errIncoming is the error of a claim that has ended its wait for room in the queue, because there may be incoming events.
var errIncoming = errors.New("eventbus: incoming events are taken in first")

// reserve waits for room in the queue.
func (f *feeder) reserve(ctx context.Context, n int) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan bool, 1)
	go func() {
		select {
		case <-f.comes:
			cancel()
			ended <- true
		case <-waiting.Done():
			ended <- false
		}
	}()
	err := f.bus.machine.pool.Reserve(waiting, n, false)
	cancel()
	switch incoming := <-ended; {
	case incoming && err == nil:
		f.lookForIncoming() // later
		return nil
	case incoming && ctx.Err() == nil:
		return errIncoming
	case err != nil:
		return errClaimsEnded
	}
	return nil
}

// claim claims a page of records and queues their dispatches. With waits, it first waits for room
// in the queue. Without room it reports that there are more.
func (f *feeder) claim(ctx context.Context, q driver.ClaimQuery, waits bool) (queued int, more bool, err error) {
	pool := f.bus.machine.pool
	switch {
	case pool.TryReserve(q.Limit):
	case !waits:
		return 0, true, nil
	default:
		if err := f.reserve(ctx, q.Limit); err != nil {
			return 0, false, err
		}
	}
	q.Now = f.bus.time.Now().UTC
	claimed, err := f.bus.store.Claim(ctx, q)
	var records, entering []*record
	if err == nil {
		records, err = decodeRecords(claimed.Records)
	}
	if err == nil {
		entering, err = f.divide(ctx, records)
	}
	for _, r := range entering {
		if f.enter(r, queued < q.Limit) {
			queued++
		}
	}
	pool.Unreserve(q.Limit - queued)
	f.bus.ledger.checkDrained()
	if !claimed.NextDue.IsZero() {
		f.due.Add(claimed.NextDue)
	}
	return queued, claimed.More, err
}
