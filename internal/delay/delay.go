// Package delay holds items until they are due, with one timer for all of them. A waiting
// entry takes some tens of bytes, no goroutine and no timer. An empty queue has no active
// timer.
//
// The package does not depend on events. Its Clock is its only source of time.
package delay

import (
	"math"
	"sync"
	"time"
)

const (
	// batchMax bounds the items of one call of due. It limits how long the lock is held to pop
	// them, and the scratch memory that remains after a burst.
	batchMax = 256

	// drift is how far the clock may move while the timer is being set. Beyond it, the timer
	// is set again. Only a mock clock that steps then, or a goroutine that is preempted for
	// long, reaches it.
	drift = time.Millisecond

	// earlyPause is the minimum wait after a timer fired early. It prevents a busy loop with a
	// clock that is coarser than its timers.
	earlyPause = 50 * time.Microsecond
)

// Clock is the part of a clock that a Queue needs. It is called with the
// queue's lock held, so it must not call back into the queue on the caller's
// goroutine.
type Clock interface {
	// Nanos returns the nanoseconds since a fixed origin.
	Nanos() int64
	// AfterFunc runs f on its own goroutine after d.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a timer of Clock.AfterFunc. As with time.Timer, a stopped or reset timer may
// still run its function once if it was firing.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Queue holds items until they are due. Its methods are safe for concurrent use, also from
// within due. New creates one.
type Queue[T any] struct {
	clock Clock
	every time.Duration // the timer fires at least as often, to look at the clock
	due   func([]T)

	mu      sync.Mutex // protects following fields; never held while due runs
	waiting agenda[T]
	timer   Timer     // nil until first needed
	handing int       // items that a call of due is processing
	running bool      // a goroutine is in deliver; it sets the timer before it ends
	ended   sync.Cond // signalled when running becomes false
	closed  bool

	batch []T // scratch of the goroutine in deliver
}

// New returns an empty queue. It passes due items to due, in order of due time, then of
// Add.
//
// It calls due one at a time, on a goroutine of the timer or of the queue, without a lock.
// A call delays the items that become due meanwhile, so due must be quick. The slice is
// valid until due returns.
func New[T any](clock Clock, due func([]T)) *Queue[T] {
	q := &Queue[T]{clock: clock, every: math.MaxInt64, due: due}
	q.ended.L = &q.mu
	return q
}

// Add puts item in the queue until at, in the units of Clock.Nanos. If at has passed, item
// is due at once, but Add itself never calls due. Add returns false, and drops item, if the
// queue is closed.
func (q *Queue[T]) Add(at int64, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	isHead := q.waiting.len() == 0 || at < q.waiting.next()
	q.waiting.push(at, item)
	if isHead {
		q.awaitHeadLocked()
	}
	return true
}

// awaitHeadLocked sets the timer for the head of the agenda, or begins to deliver it.
func (q *Queue[T]) awaitHeadLocked() {
	if !q.running && !q.armLocked(0) {
		// Not by a timer of zero: a mock clock fires that only when it next moves.
		q.running = true
		go q.deliver()
	}
}

// Len returns the number of waiting items. An item counts until its call of due has
// returned. A caller that finds it gone can rely on the effects of due.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.len() + q.handing
}

// Each calls f with each waiting item and when it is due, in no order, under the queue's lock. f must
// be quick and must not use the queue. Items that a call of due is processing are left out.
func (q *Queue[T]) Each(f func(at int64, item T)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.each(f)
}

// Drain removes and returns, in due order, the items that were not passed to due. It works
// on a closed queue too.
func (q *Queue[T]) Drain() []T {
	q.mu.Lock()
	waiting := q.waiting
	q.waiting = agenda[T]{}
	q.stopLocked()
	q.mu.Unlock()

	items := make([]T, 0, waiting.len())
	for waiting.len() > 0 {
		items = append(items, waiting.pop())
	}
	return items
}

// Prune removes the items for which drop returns true. It calls drop with the queue's lock
// held. It skips items that a call of due is processing.
func (q *Queue[T]) Prune(drop func(T) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept agenda[T]
	head := int64(math.MinInt64)
	if q.waiting.len() > 0 {
		head = q.waiting.next()
	}
	for q.waiting.len() > 0 {
		at := q.waiting.next()
		if item := q.waiting.pop(); !drop(item) {
			kept.push(at, item)
		}
	}
	switch q.waiting = kept; {
	case kept.len() == 0:
		q.stopLocked()
	case kept.next() != head && !q.closed: // otherwise the timer fires early, and the head is late by earlyPause
		q.awaitHeadLocked()
	}
}

// Take removes and returns, in due order, the items for which takes returns true, as Prune does.
func (q *Queue[T]) Take(takes func(T) bool) (taken []T) {
	q.Prune(func(item T) bool {
		is := takes(item)
		if is {
			taken = append(taken, item)
		}
		return is
	})
	return taken
}

// Close stops the timer and makes Add return false. No call of due starts after Close has
// returned. Close does not wait for a running call. The remaining items stay for Drain.
// Further calls do nothing.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.stopLocked()
}

// Wait blocks until no call of due is running. due must not call it.
func (q *Queue[T]) Wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.ended.Wait()
	}
}

// fire is the timer's function. A late, early or repeated call is harmless: it delivers the
// items that are due by the clock, and sets the timer again.
func (q *Queue[T]) fire() {
	q.mu.Lock()
	if q.running {
		q.mu.Unlock()
		return
	}
	q.running = true
	q.mu.Unlock()
	q.deliver()
}

// deliver passes all due items to due and sets the timer for the rest. Its caller must set
// running.
func (q *Queue[T]) deliver() {
	pause := earlyPause
	q.mu.Lock()
	for !q.closed && q.waiting.len() > 0 {
		q.takeDueLocked()
		if len(q.batch) == 0 {
			if q.armLocked(pause) {
				break
			}
			continue
		}
		pause = 0
		q.handing = len(q.batch)
		q.mu.Unlock()
		q.due(q.batch)
		clear(q.batch)
		q.mu.Lock()
		q.handing = 0
	}
	if q.waiting.len() == 0 {
		q.stopLocked()
	}
	q.running = false
	q.ended.Broadcast()
	q.mu.Unlock()
}

// takeDueLocked moves up to batchMax due items from the agenda to q.batch.
func (q *Queue[T]) takeDueLocked() {
	now := q.clock.Nanos()
	q.batch = q.batch[:0]
	for q.waiting.len() > 0 && q.waiting.next() <= now && len(q.batch) < batchMax {
		q.batch = append(q.batch, q.waiting.pop())
	}
}

// armLocked sets the timer for the head of the agenda, at least pause from now. It returns
// false if the head is due already.
func (q *Queue[T]) armLocked(pause time.Duration) bool {
	at := q.waiting.next()
	for {
		now := q.clock.Nanos()
		if at <= now {
			return false
		}
		d := time.Duration(at - now)
		if d < 0 { // overflow
			d = math.MaxInt64
		}
		d = min(max(d, pause), q.every)
		if q.timer == nil {
			q.timer = q.clock.AfterFunc(d, q.fire)
		} else {
			q.timer.Reset(d)
		}
		// If the clock moved after now was read, the timer is late by that much. A mock clock
		// that stops again would never fire it.
		if q.clock.Nanos()-now < int64(drift) {
			return true
		}
	}
}

func (q *Queue[T]) stopLocked() {
	if q.timer != nil {
		q.timer.Stop()
	}
}
