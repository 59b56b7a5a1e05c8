package room

import (
	"sync"
	"sync/atomic"
)

// Quota bounds the unsettled dispatches of a bus. Its methods are safe for concurrent use.
type Quota struct {
	// Most is the bound of TryAdd. Without a bound, it is 0 and the bus calls Add. It is immutable after the first use.
	Most int64

	used atomic.Int64
	full atomic.Bool // publishers wait

	mu   sync.Mutex    // guards the following; a leaf
	room chan struct{} // closed when a dispatch has settled; nil while no publisher waits
}

// Used returns the number of dispatches.
func (q *Quota) Used() int64 { return q.used.Load() }

// Set begins the count anew.
func (q *Quota) Set(n int64) { q.used.Store(n) }

// Add adds n dispatches beyond the bound, if need be.
func (q *Quota) Add(n int64) { q.used.Add(n) }

// TryAdd adds n dispatches if there is room for them, or if there are none.
func (q *Quota) TryAdd(n int64) bool {
	for {
		used := q.used.Load()
		if used > 0 && used+n > q.Most {
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Wait returns a channel that is closed when a dispatch has settled. One may have settled before.
func (q *Quota) Wait() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.room == nil {
		q.room = make(chan struct{})
		q.full.Store(true)
	}
	return q.room
}

// IsAwaited reports whether publishers wait for room.
func (q *Quota) IsAwaited() bool { return q.full.Load() }

// Release removes n dispatches, which have settled or were refused.
func (q *Quota) Release(n int64) {
	q.used.Add(-n)
	if !q.full.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.room != nil {
		close(q.room)
		q.room = nil
		q.full.Store(false)
	}
}
