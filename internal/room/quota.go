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
	// takesIn is set while a take-in waits for room. It goes before publishers, which would leave it none if they come
	// without a pause. What waits to be taken in is bounded too: at the bound, its publishers are refused.
	takesIn atomic.Bool

	mu   sync.Mutex    // guards the following; a leaf
	room chan struct{} // closed when a dispatch has settled; nil while no publisher waits
}

// Used returns the number of dispatches.
func (q *Quota) Used() int64 { return q.used.Load() }

// Set begins the count anew.
func (q *Quota) Set(n int64) { q.used.Store(n) }

// Add adds n dispatches beyond the bound, if need be.
func (q *Quota) Add(n int64) { q.used.Add(n) }

// TryAdd adds n dispatches of a publication if there is room for them, or if there are none, and if no take-in
// waits.
func (q *Quota) TryAdd(n int64) bool {
	for {
		if q.takesIn.Load() {
			return false
		}
		used := q.used.Load()
		if used > 0 && used+n > q.Most {
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// RoomToTakeIn returns for how many of n dispatches there is room. If there is none, publishers wait until TakenIn. Call
// that after the take-in.
func (q *Quota) RoomToTakeIn(n int) int {
	room := q.Most - q.used.Load()
	if room <= 0 {
		q.takesIn.Store(true)
		return 0
	}
	return int(min(int64(n), room))
}

// TakenIn lets publishers go on.
func (q *Quota) TakenIn() {
	if q.takesIn.Swap(false) {
		q.wake()
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
	if q.full.Load() {
		q.wake()
	}
}

// wake wakes the publishers that wait.
func (q *Quota) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.room != nil {
		close(q.room)
		q.room = nil
		q.full.Store(false)
	}
}
