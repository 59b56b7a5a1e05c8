package pool

import (
	"math"
	"sync/atomic"
)

// traySize is the number of items that a tray holds.
const traySize = 32

// tray hands items to workers without a lock. A worker that takes an item from the queue
// under the pool's mutex competes with the publishers for it, at each item: that alone cost
// more than a short item (BenchmarkPool, with trays of 1 and 32). Any worker may take the next item
// of the tray, so a stuck worker still holds its own item only.
type tray[T any] struct {
	items [traySize]T
	_     [64]byte
	next  atomic.Int64 // index of the next item; count or more when the tray is empty
	count atomic.Int64
	left  atomic.Int64 // items that have not been moved out
}

// take takes the next item.
func (t *tray[T]) take() (item T, ok bool) {
	if t.next.Load() >= t.count.Load() {
		return item, false
	}
	i := t.next.Add(1) - 1
	if i >= t.count.Load() {
		return item, false
	}
	var none T
	item, t.items[i] = t.items[i], none
	t.left.Add(-1)
	return item, true
}

// taken is the number of items that were taken.
func (t *tray[T]) taken() int64 { return min(t.next.Load(), t.count.Load()) }

// waiting is the number of items that can be taken.
func (t *tray[T]) waiting() int { return int(t.count.Load() - t.taken()) }

// empty prepares a tray of which every item has been moved out for fill. A worker that
// still looks at it, from the time before, finds nothing until serve.
func (t *tray[T]) empty() {
	t.next.Store(math.MaxInt32)
	t.count.Store(0)
}

// serve lets workers take the first n items.
func (t *tray[T]) serve(n int64) {
	t.left.Store(n)
	t.count.Store(n)
	t.next.Store(0)
}
