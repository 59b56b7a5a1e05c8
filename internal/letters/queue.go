// Package letters is the dead letter queue of a bus in memory: it lists letters by their labels, evicts the oldest ones
// and answers queries.
package letters

import (
	"bytes"
	"sync"
	"time"
)

// ID identifies a letter. The queue is sorted by ID: the smallest one is the oldest.
type ID = [16]byte

// Labels are what the queue lists letters by. A letter has no list for an empty one.
type Labels struct {
	Subscription string
	Reason       string
	Fingerprint  string // of its group
	Event        ID
	Key          string // of the event
}

// Facts are what a queue knows of a letter. They never change while the letter is in the queue.
type Facts struct {
	ID ID
	Labels
	DiedAt time.Time
}

// Config has the capacity of a queue, and how it treats letters. No field is optional. The functions do not call the queue.
type Config[L any] struct {
	// Capacity bounds the number of letters, without those of the reason Exempt, which are never evicted.
	Capacity int
	Exempt   string
	// Reasons are all reasons of letters, in any order.
	Reasons []string
	// Number gives a letter its ID. Add calls it with the lock held, so that the order of IDs is that of the calls.
	Number func(L)
	// Facts returns the facts of a letter.
	Facts func(L) Facts
	// Evicted is called for each letter that the queue evicts, without the lock.
	Evicted func(L)
}

// Queue is a bounded dead letter queue. New returns one. It is safe for concurrent use. Letters are immutable once added,
// because readers share them without the lock.
type Queue[L any] struct {
	config Config[L]

	mu        sync.RWMutex // guards the following
	letters   *index[L]
	evictions int64
}

// New returns an empty queue.
func New[L any](c Config[L]) *Queue[L] {
	return &Queue[L]{config: c, letters: newIndex(c.Facts)}
}

// Add gives a letter its ID, adds it, and evicts letters beyond the capacity.
func (q *Queue[L]) Add(l L) {
	q.mu.Lock()
	q.config.Number(l)
	q.letters.add(l)
	out := q.evictLocked()
	q.mu.Unlock()
	q.report(out)
}

// Insert adds letters that have IDs, and evicts letters beyond the capacity. It skips letters whose ID the queue has.
func (q *Queue[L]) Insert(all []L) (inserted, evicted int) {
	q.mu.Lock()
	inserted = q.letters.addAll(all)
	out := q.evictLocked()
	q.mu.Unlock()
	q.report(out)
	return inserted, len(out)
}

// evictLocked removes the oldest letters until the queue is within its capacity, and returns them. Exempt letters do not
// count: a shutdown with many of them would evict its own.
func (q *Queue[L]) evictLocked() (out []L) {
	for q.letters.all.length-q.letters.with(Labels{Reason: q.config.Exempt}).length > q.config.Capacity {
		var oldest *entry[L]
		for _, r := range q.config.Reasons {
			if r == q.config.Exempt {
				continue
			}
			first := q.letters.with(Labels{Reason: r}).first()
			if first != nil && (oldest == nil || bytes.Compare(first.id[:], oldest.id[:]) < 0) {
				oldest = first
			}
		}
		out = append(out, oldest.letter)
		q.letters.remove(oldest.id)
		q.evictions++
	}
	return out
}

func (q *Queue[L]) report(evicted []L) {
	for _, l := range evicted {
		q.config.Evicted(l)
	}
}

// Remove removes letters and returns the number of those that were in the queue.
func (q *Queue[L]) Remove(ids ...ID) (removed int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		if q.letters.remove(id) {
			removed++
		}
	}
	return removed
}

// Find returns the letter with an ID.
func (q *Queue[L]) Find(id ID) (l L, ok bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if e := q.letters.find(id); e != nil {
		return e.letter, true
	}
	return l, false
}

// Count returns the number of letters in the queue, and of all evictions.
func (q *Queue[L]) Count() (letters int, evictions int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.letters.all.length, q.evictions
}
