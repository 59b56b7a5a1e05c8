// Package pool runs queued items on an elastic number of goroutines.
//
// The queue is first in, first out, and bounded. It has two ends with a mutex each:
// publishers fill an inbox, and workers swap it for their empty outbox, so the two rarely
// contend. A worker takes one item at a time, so a slow item delays no other. The number of
// workers grows while items wait behind slow ones, up to a limit. It shrinks when workers
// find no item.
package pool

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

var (
	// ErrFull is returned by Reserve when there is no room and it may not wait.
	ErrFull = errors.New("pool: full")
	// ErrClosed is returned by Reserve after Refuse, Seal or Close.
	ErrClosed = errors.New("pool: closed")
	// ErrContext is returned by Reserve when its context ended before there was room.
	ErrContext = errors.New("pool: context ended")
)

// Config configures a pool of items T. W is the user's state of a worker goroutine.
type Config[T, W any] struct {
	// Open makes the state of a new worker. Close releases it.
	Open  func() W
	Close func(W)
	// Run runs an item. It returns false if Replace handed the item to another worker: the
	// goroutine then leaves the pool and ends. Run may end its goroutine with runtime.Goexit
	// after it has called Replace.
	Run func(W, T) bool
	// Enter reports whether a gated item may run now. It is called once for each, in queue
	// order. If it returns false, it keeps the item until Release. It is called under the
	// lock out, so it must neither block nor call the pool.
	Enter func(T) bool
	// Idle is called when a worker is about to rest, to release the memory of its last item.
	// It is called under the lock mu.
	Idle func(W)
	// Freed is called without a lock when Spare returns 2 again.
	Freed func()
	// Rest is called without a lock when no item runs or is queued.
	Rest func()
	// Concurrency is the maximum number of workers, not counting blocked ones.
	Concurrency int
	// Capacity is the maximum number of queued items.
	Capacity int
	// Wait makes Reserve wait for room instead of returning ErrFull.
	Wait bool
}

// Phases of a pool.
const (
	open     int32 = iota
	refusing       // Reserve admits only items that may exceed the capacity
	sealed         // Reserve rejects all items
)

// Pool is a queue and the workers that empty it. Its methods are safe for concurrent
// use.
type Pool[T, W any] struct {
	cfg     Config[T, W]
	phase   atomic.Int32
	thirsty atomic.Bool  // a caller of Reserve waits
	spare   atomic.Int32 // see Spare
	crowded atomic.Bool  // some worker must leave

	_         [64]byte   // workers write the following fields
	out       sync.Mutex // guards the following; acquired before mu
	outbox    fifo[entry[T]]
	released  fifo[T]      // items that Enter kept and Release returned
	queueNext bool         // it is the turn of outbox, and not of released
	begun     atomic.Int64 // items taken so far; written under out
	ahead     atomic.Int64 // items in outbox and released; written under out

	_        [64]byte     // publishers write the following fields
	reserved atomic.Int64 // places reserved so far
	limit    atomic.Int64 // upper bound of reserved; see refreshLocked

	mu       sync.Mutex // guards the following
	inbox    fifo[entry[T]]
	waiters  []*waiter
	rested   sync.Cond
	returned int64 // items of Return so far
	over     int64 // items admitted beyond the capacity so far
	running  int   // workers that run an item, and items of TryTake
	workers  int   // alive; neither replaced nor blocked
	resting  int   // workers that wait for an item and were not woken
	woken    int   // wake-ups that no worker has consumed yet
	blocked  int   // workers whose item waits for others (Block)
	surplus  int   // workers that short items do not need
	freed    bool  // Freed is to be called
	started  bool
	closed   bool
	left     bool          // gone is closed
	gone     chan struct{} // closed when the last worker of a closed pool leaves
	growth   growth
}

type entry[T any] struct {
	item  T
	gated bool
}

// waiter is a caller of Reserve that waits for room. It receives nil once its room is
// reserved.
type waiter struct {
	need int
	told chan error
}

// New returns a pool. No worker runs before Start.
func New[T, W any](cfg Config[T, W]) *Pool[T, W] {
	p := &Pool[T, W]{cfg: cfg, gone: make(chan struct{})}
	p.rested.L = &p.mu
	p.limit.Store(int64(cfg.Capacity))
	p.spare.Store(int32(min(cfg.Concurrency, 2)))
	return p
}

// Reserve reserves room for n items. Use it with Push, or free it with Unreserve.
//
// If the queue is full, it waits for room until ctx ends or the pool refuses. If the pool
// does not wait or has not been started, it returns ErrFull. With over it never waits and
// may exceed the capacity, until Seal. A reservation beyond the capacity waits for an empty
// queue.
func (p *Pool[T, W]) Reserve(ctx context.Context, n int, over bool) error {
	switch {
	case over:
		if p.reserved.Add(int64(n)) > p.limit.Load() {
			p.countOver(n)
		}
	case p.thirsty.Load() || !p.fits(n):
		return p.await(ctx, n)
	}
	// Read after the room is reserved: Refuse sets the phase before its caller reads the
	// depth, so one of the two sees the other.
	if phase := p.phase.Load(); phase == sealed || phase == refusing && !over {
		p.Unreserve(n)
		return ErrClosed
	}
	return nil
}

// TryReserve reserves room for n items if there is room now, until Seal.
func (p *Pool[T, W]) TryReserve(n int) bool {
	if p.thirsty.Load() {
		return false
	}
	if !p.fits(n) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.waiters) > 0 || !p.fitsLocked(n) {
			return false
		}
	}
	if p.phase.Load() == sealed {
		p.reserved.Add(int64(-n))
		return false
	}
	return true
}

// fits reserves room for n items if the limit allows it. The limit may be too low.
func (p *Pool[T, W]) fits(n int) bool {
	for {
		reserved := p.reserved.Load()
		if reserved+int64(min(n, p.cfg.Capacity)) > p.limit.Load() {
			return false
		}
		if p.reserved.CompareAndSwap(reserved, reserved+int64(n)) {
			return true
		}
	}
}

// refreshLocked computes the limit of reserved from the number of begun items. Publishers
// read the limit, because they must not read a counter that workers write for each item.
func (p *Pool[T, W]) refreshLocked() {
	p.limit.Store(int64(p.cfg.Capacity) + p.begun.Load() - p.returned)
}

// countOver counts how many of n items, whose room is reserved, exceed the capacity.
func (p *Pool[T, W]) countOver(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refreshLocked()
	p.over += max(0, min(p.reserved.Load()-p.limit.Load(), int64(n)))
}

// await reserves room for n items in the order of arrival.
func (p *Pool[T, W]) await(ctx context.Context, n int) error {
	// Before anything is registered: the context is the caller's code and may panic.
	ended := ctx.Done()
	w := &waiter{need: n, told: make(chan error, 1)}
	p.mu.Lock()
	switch {
	case p.phase.Load() != open:
		p.mu.Unlock()
		return ErrClosed
	case len(p.waiters) == 0 && p.fitsLocked(n):
		p.mu.Unlock()
		return nil
	case !p.cfg.Wait || !p.started:
		p.mu.Unlock()
		return ErrFull
	}
	p.waiters = append(p.waiters, w)
	p.thirsty.Store(true)
	// If a worker takes the last item before thirsty is set, it does not look for waiters.
	p.admitWaitersLocked()
	p.mu.Unlock()
	select {
	case err := <-w.told:
		return err
	case <-ended:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
	} else if err := <-w.told; err == nil {
		p.reserved.Add(int64(-n)) // reserved at the moment the context ended
	}
	p.admitWaitersLocked()
	return ErrContext
}

func (p *Pool[T, W]) fitsLocked(n int) bool {
	p.refreshLocked()
	return p.fits(n)
}

// admitWaitersLocked reserves room for waiters in the order of arrival.
func (p *Pool[T, W]) admitWaitersLocked() {
	for len(p.waiters) > 0 && p.fitsLocked(p.waiters[0].need) {
		p.waiters[0].told <- nil
		p.waiters = slices.Delete(p.waiters, 0, 1)
	}
	p.thirsty.Store(len(p.waiters) > 0)
}

// Unreserve frees reserved room for n items.
func (p *Pool[T, W]) Unreserve(n int) {
	p.reserved.Add(int64(-n))
	if p.thirsty.Load() {
		p.mu.Lock()
		p.admitWaitersLocked()
		p.mu.Unlock()
	}
}

// Push queues an item whose room is reserved. A gated item is passed to Enter in its turn.
func (p *Pool[T, W]) Push(item T, gated bool) {
	p.mu.Lock()
	p.pushLocked(entry[T]{item, gated})
	p.mu.Unlock()
}

// Return queues items without a reservation. It never waits and may exceed the capacity.
func (p *Pool[T, W]) Return(gated bool, items ...T) {
	p.mu.Lock()
	p.returned += int64(len(items))
	p.refreshLocked()
	for _, item := range items {
		p.pushLocked(entry[T]{item, gated})
	}
	p.mu.Unlock()
}

// Release queues an item that Enter kept. Released and queued items alternate, because a
// released item has had its turn in the queue.
func (p *Pool[T, W]) Release(item T) {
	p.out.Lock()
	p.released.push(item)
	p.countAheadLocked()
	p.out.Unlock()
	p.mu.Lock()
	p.wakeLocked()
	p.mu.Unlock()
}

func (p *Pool[T, W]) countAheadLocked() {
	p.ahead.Store(int64(p.outbox.len() + p.released.len()))
}

func (p *Pool[T, W]) pushLocked(e entry[T]) {
	p.inbox.push(e)
	p.wakeLocked()
}

// wakeLocked ensures that a worker takes the item that was just queued. Waking a worker
// costs more than running a short item. So if a worker is busy, none is woken, and growth
// checks whether the busy one comes back.
func (p *Pool[T, W]) wakeLocked() {
	if !p.started {
		return
	}
	if p.resting == p.workers {
		p.addWorkersLocked(1)
		if p.lenLocked() == 1 {
			return
		}
	}
	p.watchGrowthLocked()
}

// addWorkersLocked wakes or starts up to n workers.
func (p *Pool[T, W]) addWorkersLocked(n int) {
	for ; n > 0 && p.resting > 0; n-- {
		p.resting--
		p.woken++
		p.rested.Signal()
	}
	for ; n > 0 && p.workers < p.cfg.Concurrency; n-- {
		p.workers++
		go func() { p.work(p.cfg.Open(), false) }()
	}
	p.countFreeLocked()
}

// countFreeLocked updates spare, freed and crowded. A worker that was woken and finds no item is not
// busy: several are woken for one item.
func (p *Pool[T, W]) countFreeLocked() {
	busy := p.running - p.blocked
	if spare := int32(min(max(p.cfg.Concurrency-busy, 0), 2)); spare != p.spare.Load() {
		p.spare.Store(spare)
		p.freed = spare == 2
	}
	if crowded := p.workers > p.cfg.Concurrency || p.surplus > 0; crowded != p.crowded.Load() {
		p.crowded.Store(crowded)
	}
}

// Spare returns how many more items the concurrency allows to run at once, at most 2.
func (p *Pool[T, W]) Spare() int { return int(p.spare.Load()) }

// work is the main function of a worker. busy is set for a worker of Replace, which has run
// an item already.
func (p *Pool[T, W]) work(w W, busy bool) {
	defer p.cfg.Close(w)
	var turn int64 // the last growth period in which it took an item
	for {
		item, ok := p.take(w, busy, &turn)
		if !ok {
			return
		}
		busy = true
		if !p.cfg.Run(w, item) {
			return
		}
	}
}

// take waits for the next item. busy is set if the worker has just run one. If take returns
// false, the worker must leave.
func (p *Pool[T, W]) take(w W, busy bool, turn *int64) (item T, ok bool) {
	if busy && !p.crowded.Load() {
		if item, ok = p.pop(); ok {
			p.growth.took(turn)
			p.admitWaiters()
			return item, true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if busy {
		p.running--
		p.countFreeLocked()
	}
	for yielded := false; ; {
		if p.retireLocked() {
			p.callHooksLocked()
			return item, false
		}
		if p.lenLocked() > 0 {
			p.mu.Unlock()
			item, ok = p.pop()
			p.mu.Lock()
			if !ok { // another worker took it, or Enter keeps it
				continue
			}
			p.running++
			p.countFreeLocked()
			p.growth.took(turn)
			if p.thirsty.Load() {
				p.admitWaitersLocked()
			}
			p.callHooksLocked()
			return item, true
		}
		if !yielded {
			// A publisher that is ready to run is likely to bring the next item.
			p.mu.Unlock()
			runtime.Gosched()
			p.mu.Lock()
			yielded = true
			if p.lenLocked() == 0 {
				p.mu.Unlock()
				p.trim()
				p.mu.Lock()
			}
			continue
		}
		if p.closed || p.resting >= 4*runtime.GOMAXPROCS(0) {
			p.leaveLocked()
			p.callHooksLocked()
			return item, false
		}
		p.cfg.Idle(w)
		p.resting++
		p.callHooksLocked()
		for p.woken == 0 && !p.closed {
			p.rested.Wait()
		}
		if p.woken > 0 {
			p.woken--
		} else {
			p.resting--
		}
		yielded = false
	}
}

// admitWaiters admits waiters after an item was taken without mu.
func (p *Pool[T, W]) admitWaiters() {
	if p.thirsty.Load() {
		p.mu.Lock()
		p.admitWaitersLocked()
		p.mu.Unlock()
	}
}

// pop takes the next item that may run. Released and queued items alternate: a released
// item has had its turn, but the items of one gate must not delay all others. A look in vain
// changes no turn: how many workers look is up to the scheduler.
func (p *Pool[T, W]) pop() (item T, ok bool) {
	p.out.Lock()
	defer p.out.Unlock()
	if !p.queueNext {
		item, ok = p.released.pop()
	}
	if !ok {
		item, ok = p.popQueueLocked()
	}
	if !ok {
		item, ok = p.released.pop()
	}
	if ok {
		p.queueNext = !p.queueNext
		p.begun.Store(p.begun.Load() + 1)
	}
	p.countAheadLocked()
	return item, ok
}

// popQueueLocked takes the next item of the queue that Enter does not keep.
func (p *Pool[T, W]) popQueueLocked() (item T, ok bool) {
	for {
		e, queued := p.outbox.pop()
		if !queued {
			p.mu.Lock()
			p.inbox, p.outbox = p.outbox, p.inbox
			p.countAheadLocked() // before an item can seem to be in neither
			p.mu.Unlock()
			if e, queued = p.outbox.pop(); !queued {
				return item, false
			}
		}
		if !e.gated || p.cfg.Enter(e.item) {
			return e.item, true
		}
	}
}

// trim frees the memory of a burst.
func (p *Pool[T, W]) trim() {
	p.out.Lock()
	defer p.out.Unlock()
	p.outbox.trim()
	p.released.trim()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox.trim()
}

// retireLocked reports whether the calling worker must leave because the pool has too many:
// one came back from Block, or short items need fewer.
func (p *Pool[T, W]) retireLocked() bool {
	switch {
	case p.workers > p.cfg.Concurrency:
	case p.surplus > 0:
		p.surplus--
	default:
		return false
	}
	p.leaveLocked()
	if p.lenLocked() > 0 {
		p.wakeLocked()
	}
	return true
}

func (p *Pool[T, W]) leaveLocked() {
	p.workers--
	p.countFreeLocked()
	p.closeGoneLocked()
}

// callHooksLocked calls the hooks after a worker has stopped being busy. It unlocks meanwhile.
func (p *Pool[T, W]) callHooksLocked() {
	freed, rests := p.freed, p.resting == p.workers && p.blocked == 0
	if !freed && !rests {
		return
	}
	p.freed = false
	p.mu.Unlock()
	if freed {
		p.cfg.Freed()
	}
	if rests {
		p.cfg.Rest()
	}
	p.mu.Lock()
}

// lenLocked returns the number of items that workers can take, or pass to Enter.
func (p *Pool[T, W]) lenLocked() int { return p.inbox.len() + int(p.ahead.Load()) }

// Replace hands a running item to a fresh worker, because its own is stuck or ends. The
// worker calls rest to complete the item. It takes the place of the old one, which counts no
// longer as a worker.
func (p *Pool[T, W]) Replace(rest func(W)) {
	go func() {
		w := p.cfg.Open()
		rest(w)
		p.work(w, true)
	}()
}

// TryTake takes the next item on the caller's goroutine. The caller must call Finish after
// it.
func (p *Pool[T, W]) TryTake() (item T, ok bool) {
	if item, ok = p.pop(); !ok {
		return item, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running++
	p.countFreeLocked()
	p.admitWaitersLocked()
	return item, true
}

// Finish ends an item of TryTake.
func (p *Pool[T, W]) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.countFreeLocked()
}

// Sift takes the queued items for which takes returns true, and calls done with each, on the caller's
// goroutine. The others are queued again, in their order.
func (p *Pool[T, W]) Sift(takes func(T) bool, done func(T)) {
	var kept []T
	for item, ok := p.TryTake(); ok; item, ok = p.TryTake() {
		if takes(item) {
			done(item)
		} else {
			kept = append(kept, item)
		}
		p.Finish()
	}
	p.Return(false, kept...)
}

// Block marks a running item as waiting for other items. It does not count against the
// concurrency until Unblock.
func (p *Pool[T, W]) Block() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers--
	p.blocked++
	p.countFreeLocked()
	if p.lenLocked() > 0 {
		p.wakeLocked()
	}
	p.callHooksLocked()
}

// Unblock ends Block.
func (p *Pool[T, W]) Unblock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked--
	p.workers++
	p.countFreeLocked()
}

// Start starts running queued items.
func (p *Pool[T, W]) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
	if p.lenLocked() > 0 {
		p.wakeLocked()
	}
}

// Refuse makes Reserve return ErrClosed, also to waiting callers, except for items that may
// exceed the capacity.
func (p *Pool[T, W]) Refuse() { p.refuse(refusing) }

// Seal makes every Reserve return ErrClosed.
func (p *Pool[T, W]) Seal() { p.refuse(sealed) }

// Sealed reports whether Seal or Close has been called.
func (p *Pool[T, W]) Sealed() bool { return p.phase.Load() == sealed }

func (p *Pool[T, W]) refuse(phase int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase.Store(max(p.phase.Load(), phase))
	for _, w := range p.waiters {
		w.told <- ErrClosed
	}
	p.waiters = nil
	p.thirsty.Store(false)
}

// Close makes the workers leave when the queue is empty. It returns a channel that is
// closed when the last worker leaves, not counting replaced workers.
func (p *Pool[T, W]) Close() <-chan struct{} {
	p.Seal()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.closeGoneLocked()
		p.rested.Broadcast()
	}
	return p.gone
}

func (p *Pool[T, W]) closeGoneLocked() {
	if p.closed && !p.left && p.workers == 0 && p.blocked == 0 && !p.growth.growing {
		p.left = true
		close(p.gone)
	}
}

// Each calls f with each item that waits for a worker, under the locks of the pool. f must be quick
// and must not use the pool. Items that Enter keeps, and items that a worker is taking, are left out.
func (p *Pool[T, W]) Each(f func(T)) {
	p.out.Lock()
	defer p.out.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released.each(f)
	queued := func(e entry[T]) { f(e.item) }
	p.outbox.each(queued)
	p.inbox.each(queued)
}

// Depth returns the number of items that are queued, or whose room is reserved.
func (p *Pool[T, W]) Depth() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.depthLocked()
}

func (p *Pool[T, W]) depthLocked() int {
	return int(p.reserved.Load() + p.returned - p.begun.Load())
}

// Stats describes a pool at one moment.
type Stats struct {
	Queued  int   // items that wait for a worker, or that Enter keeps
	Running int   // items that run
	Workers int   // goroutines that may take items
	Over    int64 // items admitted beyond the capacity so far
}

// Stats returns a snapshot.
func (p *Pool[T, W]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Queued: p.depthLocked(), Running: p.running, Workers: p.workers, Over: p.over}
}
