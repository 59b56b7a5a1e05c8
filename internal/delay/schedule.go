package delay

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Schedule holds items until they are due on one of two clocks. They can be cancelled by key before
// that. Its methods are safe for concurrent use.
type Schedule[K comparable, T any] struct {
	// Two queues, because the clocks move apart: in one queue, an item that is not due on its clock
	// would hide one behind it that is due on the other clock.
	delays, instants *Queue[*planned[K, T]]

	mu        sync.Mutex // guards the following, and the items
	byKey     map[K][]*planned[K, T]
	most      int // largest number of keys in this map
	cancelled int // entries of the queues that were cancelled
}

// planned is an entry of the queue. A cancelled entry stays in the queue, without its item,
// until it is due or until most entries are cancelled.
type planned[K comparable, T any] struct {
	key       K
	item      T
	cancelled bool
}

// NewSchedule returns a schedule that calls due, without a lock, for each item that is due: for those
// of Add by the first clock, for those of AddInstant by wall. Two calls of due, one for each clock,
// can run at once. wall can be set, so a timer looks at it at least every so often.
func NewSchedule[K comparable, T any](clock, wall Clock, every time.Duration, due func(T)) *Schedule[K, T] {
	s := &Schedule[K, T]{byKey: make(map[K][]*planned[K, T])}
	take := func(entries []*planned[K, T]) {
		for _, e := range entries {
			if item, ok := s.take(e); ok {
				due(item)
			}
		}
	}
	s.delays, s.instants = New(clock, take), New(wall, take)
	s.instants.every = every
	return s
}

// Add adds an item. Several items may have the same key. It returns false if the schedule
// is closed.
func (s *Schedule[K, T]) Add(due int64, key K, item T) bool { return s.add(s.delays, due, key, item) }

// AddInstant is Add for an item that is due at an instant of the wall clock.
func (s *Schedule[K, T]) AddInstant(due int64, key K, item T) bool {
	return s.add(s.instants, due, key, item)
}

func (s *Schedule[K, T]) add(q *Queue[*planned[K, T]], due int64, key K, item T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &planned[K, T]{key: key, item: item}
	if !q.Add(due, e) {
		return false
	}
	s.byKey[key] = append(s.byKey[key], e)
	s.most = max(s.most, len(s.byKey))
	return true
}

// take returns the item of an entry that is due, unless it was cancelled.
func (s *Schedule[K, T]) take(e *planned[K, T]) (item T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.cancelled {
		s.cancelled--
		return item, false
	}
	s.removeLocked(e)
	return e.item, true
}

func (s *Schedule[K, T]) removeLocked(e *planned[K, T]) {
	left := slices.DeleteFunc(s.byKey[e.key], func(x *planned[K, T]) bool { return x == e })
	if len(left) > 0 {
		s.byKey[e.key] = left
		return
	}
	delete(s.byKey, e.key)
	const small = 64
	if s.most > small && len(s.byKey) <= s.most/4 {
		// Copied, because a map keeps the memory of removed keys.
		byKey := make(map[K][]*planned[K, T], len(s.byKey))
		maps.Copy(byKey, s.byKey)
		s.byKey, s.most = byKey, len(byKey)
	}
}

// Cancel removes and returns the items with a key that are not due yet.
func (s *Schedule[K, T]) Cancel(key K) (items []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slices.Clone(s.byKey[key]) {
		s.removeLocked(e)
		items = append(items, e.item)
		var none T
		e.item, e.cancelled = none, true
		s.cancelled++
	}
	if s.cancelled > 64+len(s.byKey) {
		for _, q := range s.queues() {
			q.Prune(func(e *planned[K, T]) bool { return e.cancelled })
		}
		s.cancelled = 0
	}
	return items
}

// Get returns the items with a key that are not due yet.
func (s *Schedule[K, T]) Get(key K) (items []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byKey[key] {
		items = append(items, e.item)
	}
	return items
}

// Each calls f with each item that is not due yet, in no order, under the schedule's lock. f must be
// quick and must not use the schedule.
func (s *Schedule[K, T]) Each(f func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entries := range s.byKey {
		for _, e := range entries {
			f(e.item)
		}
	}
}

// Close removes and returns all items that are not due yet. Add returns false from then on.
func (s *Schedule[K, T]) Close() (items []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues() {
		q.Close()
		for _, e := range q.Drain() {
			if !e.cancelled {
				s.removeLocked(e)
				items = append(items, e.item)
			}
		}
	}
	return items
}

// Wait blocks until no call of due runs.
func (s *Schedule[K, T]) Wait() {
	for _, q := range s.queues() {
		q.Wait()
	}
}

func (s *Schedule[K, T]) queues() []*Queue[*planned[K, T]] {
	return []*Queue[*planned[K, T]]{s.delays, s.instants}
}
