package eventbus

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/keys"
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

	// order is held while a change that opens dispatches is submitted: the order of Submit is the
	// order of acceptance. The functions that a store calls must not lock it.
	order sync.Mutex
	// Guarded by order.
	behind   bool
	arriving int      // subscriptions that are being made
	doors    []string // with deliveries to claim before anything else

	mu          sync.Mutex // guards the following; a leaf
	uncommitted int        // submitted batches with free records
	committed   *sync.Cond // uncommitted is 0
	waiters     map[EventID]*waiter
	timer       *clock.Timer
	nextDue     int64 // when the timer fires; 0: the store must be asked

	wake   chan struct{}
	ctx    context.Context // ends at Shutdown
	cancel context.CancelFunc

	starting sync.Mutex    // held by start and stop
	stopped  chan struct{} // closed when run has returned; nil before Start
	unwatch  func()
}

// feederPage is the largest number of records that the feeder claims at once.
const feederPage = 1024

func newFeeder(b *Bus) *feeder {
	f := &feeder{bus: b, behind: true, waiters: make(map[EventID]*waiter), wake: make(chan struct{}, 1)}
	f.committed = sync.NewCond(&f.mu)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// pages returns how many records to claim at once.
func (f *feeder) page() int { return min(feederPage, max(f.bus.config.queue/2, 1)) }

// submit records a change that opens dispatches. It does not wait for the store.
func (f *feeder) submit(r *recording, done func(error)) {
	c := r.change
	f.order.Lock()
	defer f.order.Unlock()
	ready := 0
	for _, record := range r.batch.New {
		if record.State == RecordReady {
			ready++
		}
	}
	switch {
	case f.behind:
		c.free = true
	case c.kind == toOpen && !f.bus.pool.TryReserve(ready):
		c.free, f.behind = true, true
	}
	for _, record := range r.batch.New {
		record.Leased = record.State == RecordReady && !c.free
	}
	left := c.free || ready < len(r.batch.New)
	if left {
		f.leave(r)
	}
	f.bus.store.Submit(&r.batch, func(err error) {
		r.committed(err)
		done(err)
		if left {
			f.left(r, err)
		}
	})
}

// leave registers dispatches that only the store will have.
func (f *feeder) leave(r *recording) {
	for _, d := range r.change.all() {
		f.keepWaiter(d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uncommitted++
}

// left is called when the store has the records, or has refused them.
func (f *feeder) left(r *recording, err error) {
	f.mu.Lock()
	if f.uncommitted--; f.uncommitted == 0 {
		f.committed.Broadcast()
	}
	for _, d := range r.change.all() {
		if due := d.from().due; due != 0 && err == nil {
			f.wakeAtLocked(due)
		}
	}
	f.mu.Unlock()
	f.wakeUp()
}

// wakeAtLocked makes the feeder look for due records at a time.
func (f *feeder) wakeAtLocked(due int64) {
	if f.nextDue == 0 || f.nextDue <= due {
		return // it looks before, or has not looked yet
	}
	f.nextDue = due
	if f.timer != nil {
		f.timer.Stop()
	}
	f.timer = f.bus.time.AfterFunc(time.Duration(max(due-f.bus.time.Nanos(), 0)), f.wakeUp)
}

// wakeAt is wakeAtLocked for a dispatch that the store keeps until it is due.
func (f *feeder) wakeAt(due int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeAtLocked(due)
}

func (f *feeder) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// start recovers the first records and starts the feeder. The feeder recovers the others in the
// background.
func (f *feeder) start(ctx context.Context) error {
	b := f.bus
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.ctx.Err() != nil {
		return ErrShutdown
	}
	if _, err := f.claim(ctx, ClaimQuery{Kind: ClaimReady, Limit: f.page()}, true); err != nil {
		return err
	}
	f.unwatch = b.store.Watch(f.othersCommitted)
	f.stopped = make(chan struct{})
	go f.run()
	f.wakeUp()
	return nil
}

// stop ends the feeder. Free records stay in the store.
func (f *feeder) stop() {
	f.cancel()
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.stopped == nil {
		return
	}
	f.unwatch()
	<-f.stopped
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
}

// endWaiters ends the waits for events that only the store has.
func (f *feeder) endWaiters() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, waiter := range f.waiters {
		waiter.leave()
	}
}

// keepWaiter keeps the waiter of a dispatch that leaves memory, until it is claimed again. Call it
// before the record is submitted: the feeder may claim the record before it is called back about
// it.
func (f *feeder) keepWaiter(d *dispatch) {
	waiter := d.waiter()
	if waiter == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[d.id] = waiter
}

// forget drops a waiter that no longer waits.
func (f *feeder) forget(id EventID, w *waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiters[id] == w {
		delete(f.waiters, id)
	}
}

// othersCommitted makes the feeder look for records that another process has inserted.
func (f *feeder) othersCommitted() {
	go func() { // the store must not wait for publishers
		f.order.Lock()
		f.behind = true
		f.order.Unlock()
		f.askForDue()
		f.wakeUp()
	}()
}

func (f *feeder) askForDue() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextDue = 0
}

func (f *feeder) run() {
	defer close(f.stopped)
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		}
		if err := f.feed(); err != nil && f.ctx.Err() == nil {
			f.bus.storeFailed(err)
		}
	}
}

// feed claims what is due, and what waits for room in the queue.
func (f *feeder) feed() error {
	if err := f.feedDue(); err != nil {
		return err
	}
	for f.isBehind() {
		for door := f.nextDoor(); door != ""; door = f.nextDoor() {
			if err := f.feedDoor(door); err != nil {
				return err
			}
		}
		more, err := f.claim(f.ctx, ClaimQuery{Kind: ClaimReady, Limit: f.page()}, true)
		if err != nil {
			return err
		}
		if more {
			continue
		}
		if more, err = f.catchUp(); err != nil || !more {
			return err
		}
	}
	return nil
}

func (f *feeder) isBehind() bool {
	f.order.Lock()
	defer f.order.Unlock()
	return f.behind
}

// catchUp ends the time behind if no free record is left. Publishers wait meanwhile, for one
// commit: otherwise it would never end while they are quick. It reports whether there is more to
// claim.
func (f *feeder) catchUp() (more bool, err error) {
	f.order.Lock()
	defer f.order.Unlock()
	f.mu.Lock()
	for f.uncommitted > 0 {
		f.committed.Wait()
	}
	f.mu.Unlock()
	more, err = f.claim(f.ctx, ClaimQuery{Kind: ClaimReady, Limit: f.page()}, false)
	if err == nil && !more {
		more = len(f.doors) > 0
		f.behind = more || f.arriving > 0
	}
	return more, err
}

// feedDue claims records that are due. The others set the timer.
func (f *feeder) feedDue() error {
	f.mu.Lock()
	asks := f.nextDue == 0 || f.nextDue <= f.bus.time.Nanos()
	f.mu.Unlock()
	for asks {
		f.mu.Lock()
		f.nextDue = math.MaxInt64
		f.mu.Unlock()
		more, err := f.claim(f.ctx, ClaimQuery{Kind: ClaimDue, Limit: f.page()}, true)
		if err != nil {
			f.askForDue()
			return err
		}
		asks = more
	}
	return nil
}

// holdBack makes new events wait in the store until the feeder has claimed the deliveries that are
// parked there for a subscription that is being made. Call arrived with its names when it exists.
func (f *feeder) holdBack() (arrived func(names []string)) {
	f.order.Lock()
	defer f.order.Unlock()
	f.behind = true
	f.arriving++
	return func(names []string) {
		f.order.Lock()
		defer f.order.Unlock()
		f.arriving--
		f.doors = append(f.doors, names...)
		f.wakeUp()
	}
}

// nextDoor returns the next name whose deliveries are to be claimed, or "".
func (f *feeder) nextDoor() (name string) {
	f.order.Lock()
	defer f.order.Unlock()
	if len(f.doors) > 0 {
		name, f.doors = f.doors[0], f.doors[1:]
	}
	return name
}

// feedDoor claims the deliveries that are parked in the store at a door.
func (f *feeder) feedDoor(name string) error {
	for more := true; more; {
		var err error
		if more, err = f.claim(f.ctx, ClaimQuery{Kind: ClaimParked, Limit: f.page(), Door: name}, true); err != nil {
			return err
		}
	}
	return nil
}

// errFeederStops is the error of a claim that Shutdown has ended.
var errFeederStops = errors.New("eventbus: shutdown ended the claims")

// claim claims a page of records and queues their dispatches. With waits, it first waits for room
// in the queue. Without room it reports that there are more.
func (f *feeder) claim(ctx context.Context, q ClaimQuery, waits bool) (more bool, err error) {
	pool := f.bus.pool
	switch {
	case pool.TryReserve(q.Limit):
	case !waits:
		return true, nil
	default:
		if err := pool.Reserve(f.ctx, q.Limit, false); err != nil {
			return false, errFeederStops
		}
	}
	q.Now = f.bus.time.Now().UTC
	claimed, err := f.bus.store.Claim(ctx, q)
	queued := 0
	for _, r := range claimed.Records {
		if f.enter(r) {
			queued++
		}
	}
	pool.Unreserve(q.Limit - queued)
	f.bus.checkDrained()
	if !claimed.NextDue.IsZero() {
		f.wakeAt(f.bus.time.Nanos() + int64(claimed.NextDue.Sub(q.Now)))
	}
	return claimed.More, err
}

// enter makes a dispatch of a claimed record. It reports whether the dispatch has taken the room in
// the queue that is reserved for it.
func (f *feeder) enter(r *Record) (queued bool) {
	b := f.bus
	d := f.restore(r)
	if r.State == RecordScheduled {
		b.due(d)
		return false
	}
	b.queue(d, true)
	return true
}

// restore makes a dispatch of a claimed record, with its waiter if it has one.
func (f *feeder) restore(r *Record) *dispatch {
	b := f.bus
	if r.Own {
		b.ledger.reclaimed.Add(1)
	} else {
		b.ledger.claimed.Add(1)
	}
	d := b.restore(r, f.targetsOf(r))
	f.mu.Lock()
	defer f.mu.Unlock()
	if waiter := f.waiters[d.id]; waiter != nil && r.Own {
		d.origin.waiter = waiter
	}
	return d
}

// targetsOf returns the targets of a record. A subscription that does not exist is represented by a
// stand-in, whose door parks the delivery in the store.
func (f *feeder) targetsOf(r *Record) *targets {
	b := f.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	to := &targets{eventType: r.Type, recorded: r.Targets, counters: b.types.Of(r.Type)}
	for _, name := range r.Targets {
		to.subscriptions = append(to.subscriptions, b.namedLocked(name))
	}
	to.retry = b.retryInForce(to.subscriptions)
	if r.State == RecordScheduled { // its copies do not exist yet
		b.isolate(to)
	}
	return to
}

// namedLocked returns the subscription with a name, or its stand-in.
func (b *Bus) namedLocked(name string) *Subscription {
	if s, ok := b.subscriptions.Find(name); ok {
		return s
	}
	if s := b.missing[name]; s != nil {
		return s
	}
	s := &Subscription{bus: b, id: name, named: true, timeout: b.config.timeout}
	s.door.limit, s.door.share, s.door.capacity, s.door.ledger = math.MaxInt32, math.MaxInt32, math.MaxInt, &b.ledger
	s.door.circuit.init(b.config.circuit, b.time)
	s.door.circuit.gate.Or(gateMissing)
	s.retry.Store(&noRetry)
	if b.config.isolation {
		s.gate = keys.New[*dispatch](1)
	}
	if b.missing == nil {
		b.missing = make(map[string]*Subscription)
	}
	b.missing[name] = s
	b.log.Warn("subscription of stored events is missing", zap.String("subscription_id", name))
	return s
}

// cancelScheduled settles a scheduled event that the store has.
func (f *feeder) cancelScheduled(ctx context.Context, id EventID) error {
	b := f.bus
	claimed, err := b.store.Claim(ctx, ClaimQuery{Kind: ClaimEvent, Event: id, Limit: 1})
	if err != nil {
		return err
	}
	if len(claimed.Records) == 0 {
		return ErrNotScheduled
	}
	for _, r := range claimed.Records {
		d := f.restore(r)
		settled := make(chan struct{})
		b.recordLater(change{kind: toSettle, d: d, outcome: Cancelled}, func(error) { close(settled) })
		<-settled
	}
	return nil
}
