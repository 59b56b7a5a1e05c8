// Package delay keeps things that wait for an instant: one timer over their due
// times. A waiting entry is data, some tens of bytes; it holds no goroutine
// and no timer of its own, and an empty queue holds no timer at all.
//
// The package knows nothing of events. Time is what its Clock says.
package delay

import (
	"math"
	"sync"
	"time"
)

const (
	// batchMax bounds one call of due, and so the time that the lock is held
	// to pop and the scratch memory that stays behind after a burst.
	batchMax = 256

	// drift is how far the clock may move while the timer is being set before
	// it is set again. Only a mock clock stepped at that moment, or a goroutine
	// held up for long, gets there.
	drift = time.Millisecond

	// earlyPause is the least wait after a timer fired before anything was due,
	// so that a clock coarser than its timers is not polled in a busy loop.
	earlyPause = 50 * time.Microsecond
)

// Clock is the part of a clock that a Queue needs. It is called with the
// queue's lock held, so it must not call back into the queue on the caller's
// goroutine.
type Clock interface {
	// Nanos returns nanoseconds since an origin that stays the same.
	Nanos() int64
	// AfterFunc runs f on a goroutine of its own once d has passed.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what Clock.AfterFunc returns, with the meaning of time.Timer: a
// stopped or reset timer may still run its function once if it was firing.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Queue holds items until they are due. Its methods are safe for concurrent
// use, also from within due. Make one with New.
type Queue[T any] struct {
	clock Clock
	due   func([]T)

	mu      sync.Mutex // protects following fields; never held while due runs
	waiting agenda[T]
	timer   Timer     // nil until first needed
	handing int       // items in the hands of a due call
	running bool      // a goroutine is in deliver; it sees to the timer when it ends
	ended   sync.Cond // running has become false
	closed  bool

	batch []T // scratch of the goroutine in deliver
}

// New returns an empty queue. What has come due is handed to due in order of
// due time, then of Add.
//
// Calls of due are made one at a time, on a goroutine of the timer or of the
// queue, without a lock held. Whatever comes due during a call waits for it to
// return, so due should hand on and not work. The slice is valid until due
// returns.
func New[T any](clock Clock, due func([]T)) *Queue[T] {
	q := &Queue[T]{clock: clock, due: due}
	q.ended.L = &q.mu
	return q
}

// Add puts item in the queue until at, in the units of Clock.Nanos. When at has
// passed already, item is due at once, but due is never called by Add itself.
// Add reports false, and has kept nothing, when the queue is closed.
func (q *Queue[T]) Add(at int64, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	isHead := q.waiting.len() == 0 || at < q.waiting.next()
	q.waiting.push(at, item)
	if isHead && !q.running && !q.armLocked(0) {
		// Not by a timer of zero: a mock clock fires that only when it is
		// next moved.
		q.running = true
		go q.deliver()
	}
	return true
}

// Len returns how many items are waiting. An item counts until the due call
// that got it has returned: whoever sees it gone finds it where due put it.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.len() + q.handing
}

// Drain removes and returns, in due order, everything that has not been handed
// to due. It works on a closed queue too.
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

// Prune removes the items that drop reports. It calls drop with the queue's lock
// held. Items in the hands of a due call stay.
func (q *Queue[T]) Prune(drop func(T) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept agenda[T]
	for q.waiting.len() > 0 {
		at := q.waiting.next()
		if item := q.waiting.pop(); !drop(item) {
			kept.push(at, item)
		}
	}
	q.waiting = kept
	if kept.len() == 0 {
		q.stopLocked()
	}
}

// Close stops the timer and makes Add refuse. No call of due starts after Close
// has returned; one may still be running, and Close does not wait for it. What
// is left stays for Drain. Closing again does nothing.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.stopLocked()
}

// Wait waits until no call of due is running. It must not be called by due.
func (q *Queue[T]) Wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.ended.Wait()
	}
}

// fire is the timer's function. A call that is late, early or twice does no
// harm: it hands over what is due by the clock, if anything, and sets the timer
// again.
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

// deliver hands over everything that is due and sets the timer for the rest.
// Its caller has set running.
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

// takeDueLocked moves what is due, up to batchMax items, from the agenda
// to q.batch.
func (q *Queue[T]) takeDueLocked() {
	now := q.clock.Nanos()
	q.batch = q.batch[:0]
	for q.waiting.len() > 0 && q.waiting.next() <= now && len(q.batch) < batchMax {
		q.batch = append(q.batch, q.waiting.pop())
	}
}

// armLocked sets the timer for the head of the agenda, at least pause from now.
// It reports false if the head is due already.
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
		d = max(d, pause)
		if q.timer == nil {
			q.timer = q.clock.AfterFunc(d, q.fire)
		} else {
			q.timer.Reset(d)
		}
		// A clock that was moved after now was read has left the timer late
		// by as much, for good if it is a mock clock and stands still again.
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
