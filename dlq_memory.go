package eventbus

import (
	"bytes"
	"slices"
	"sync"
)

// letterQueue is the bounded dead letter queue in memory. Letters are immutable once added,
// because readers share them without the lock.
type letterQueue struct {
	capacity int
	newID    func() LetterID
	evicted  func(*DeadLetter) // called without the lock

	mu        sync.RWMutex // guards the following, and the indexes
	all       letterIndex
	indexes   map[indexKey]*letterIndex // without empty ones
	counted   int                       // letters that count against the capacity
	evictions int64
}

// indexKey holds the values that all letters of an index share. Empty fields do not matter.
type indexKey struct {
	subscription string
	reason       Reason
	fingerprint  string
}

// letterIndex lists letters by id, oldest first. A removed letter leaves a tombstone.
type letterIndex struct {
	key     indexKey
	entries []*letterEntry // the first one is not a tombstone
	letters int            // entries without tombstones
	removed int            // letters removed since the last compaction
}

// letterEntry is a letter with its indexes.
type letterEntry struct {
	id      LetterID
	letter  *DeadLetter // nil for a tombstone
	indexes [5]*letterIndex
}

func compareEntries(e, other *letterEntry) int { return bytes.Compare(e.id[:], other.id[:]) }

// find returns the position of an id, or the position at which to insert it.
func (x *letterIndex) find(id LetterID) (int, bool) {
	return slices.BinarySearchFunc(x.entries, id, func(e *letterEntry, id LetterID) int {
		return bytes.Compare(e.id[:], id[:])
	})
}

// insert adds an entry in the order of ids. A new letter has the largest id, unless letters
// were imported from a process whose clock is ahead.
func (x *letterIndex) insert(e *letterEntry) {
	i := len(x.entries)
	if i > 0 && compareEntries(e, x.entries[i-1]) < 0 {
		i, _ = x.find(e.id)
	}
	x.entries = slices.Insert(x.entries, i, e)
	x.letters++
}

// release updates the index after an entry became a tombstone. It frees tombstones at the
// old end at once, because evictions make them there. It frees the others when there are as
// many as letters.
func (x *letterIndex) release() {
	x.letters--
	x.removed++
	for len(x.entries) > 0 && x.entries[0].letter == nil {
		x.entries[0] = nil
		x.entries = x.entries[1:]
	}
	if x.removed <= x.letters+64 && x.letters > 0 {
		return
	}
	entries := make([]*letterEntry, 0, x.letters)
	for _, e := range x.entries {
		if e.letter != nil {
			entries = append(entries, e)
		}
	}
	x.entries, x.removed = entries, 0
}

// entryLocked makes an entry for a letter with an id. The caller adds it to the indexes.
func (q *letterQueue) entryLocked(l *DeadLetter) *letterEntry {
	e := &letterEntry{id: l.ID, letter: l}
	e.indexes[0] = &q.all
	for i, key := range []indexKey{
		{subscription: l.Subscription},
		{reason: l.Reason},
		{subscription: l.Subscription, reason: l.Reason},
		{fingerprint: l.Fingerprint},
	} {
		x := q.indexes[key]
		if x == nil {
			x = &letterIndex{key: key}
			if q.indexes == nil {
				q.indexes = make(map[indexKey]*letterIndex)
			}
			q.indexes[key] = x
		}
		e.indexes[i+1] = x
	}
	if l.Reason != ReasonShutdown {
		q.counted++
	}
	return e
}

// removeLocked removes the letter of an entry and makes the entry a tombstone.
func (q *letterQueue) removeLocked(e *letterEntry) *DeadLetter {
	l := e.letter
	e.letter = nil
	for _, x := range e.indexes {
		x.release()
		if x.letters == 0 && x != &q.all {
			delete(q.indexes, x.key)
		}
	}
	if l.Reason != ReasonShutdown {
		q.counted--
	}
	return l
}

// evictLocked removes the oldest letters until the queue is within its capacity, and returns
// them. Shutdown letters do not count: a shutdown with many of them would evict its own.
func (q *letterQueue) evictLocked() []*DeadLetter {
	var out []*DeadLetter
	for q.counted > q.capacity {
		var oldest *letterEntry
		for _, r := range reasons {
			x := q.indexes[indexKey{reason: r}]
			if r == ReasonShutdown || x == nil {
				continue
			}
			if oldest == nil || compareEntries(x.entries[0], oldest) < 0 {
				oldest = x.entries[0]
			}
		}
		out = append(out, q.removeLocked(oldest))
		q.evictions++
	}
	return out
}

// add gives a letter its id, inserts it, and evicts letters beyond the capacity.
func (q *letterQueue) add(l *DeadLetter) {
	q.mu.Lock()
	l.ID = q.newID()
	e := q.entryLocked(l)
	for _, x := range e.indexes {
		x.insert(e)
	}
	out := q.evictLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(l)
	}
}

// insert adds letters that have ids, and skips ids that the queue has. It sorts each index
// once: inserting old letters one by one would move all newer entries each time.
func (q *letterQueue) insert(letters []*DeadLetter) (inserted, evicted int) {
	q.mu.Lock()
	seen := make(map[LetterID]bool, len(letters))
	var entries []*letterEntry
	for _, l := range letters {
		if _, known := q.findLocked(l.ID); !known && !seen[l.ID] {
			seen[l.ID] = true
			entries = append(entries, q.entryLocked(l))
		}
	}
	unsorted := make(map[*letterIndex]bool)
	for _, e := range entries {
		for _, x := range e.indexes {
			x.entries = append(x.entries, e)
			x.letters++
			unsorted[x] = true
		}
	}
	for x := range unsorted {
		// A tombstone may have the id of a letter that is imported again. If both stayed, find
		// could return the tombstone.
		x.entries = slices.DeleteFunc(x.entries, func(e *letterEntry) bool { return e.letter == nil })
		x.removed = 0
		slices.SortFunc(x.entries, compareEntries)
	}
	out := q.evictLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(l)
	}
	return len(entries), len(out)
}

// findLocked returns the entry of a letter in the queue.
func (q *letterQueue) findLocked(id LetterID) (*letterEntry, bool) {
	i, ok := q.all.find(id)
	if !ok || q.all.entries[i].letter == nil {
		return nil, false
	}
	return q.all.entries[i], true
}

// indexLocked returns the smallest index that contains all matching letters.
func (q *letterQueue) indexLocked(f *letterFilter) *letterIndex {
	key := indexKey{subscription: f.Subscription, reason: f.Reason}
	if f.Fingerprint != "" {
		key = indexKey{fingerprint: f.Fingerprint}
	}
	if key == (indexKey{}) {
		return &q.all
	}
	if x := q.indexes[key]; x != nil {
		return x
	}
	return &letterIndex{}
}

// list returns a page of matching letters, newest first.
func (q *letterQueue) list(f *letterFilter) LetterPage {
	q.mu.RLock()
	defer q.mu.RUnlock()
	x := q.indexLocked(f)
	end := len(x.entries)
	if !f.Before.IsZero() {
		end, _ = x.find(f.Before)
	}
	var page LetterPage
	from, known := len(x.entries), f.byIndex()
	if known {
		from, page.Total = end, x.letters
	}
	for i, e := range slices.Backward(x.entries[:from]) {
		if e.letter == nil || !f.matches(e.letter) {
			continue
		}
		switch {
		case i >= end || !page.Next.IsZero():
		case len(page.Letters) == f.limit:
			page.Next = page.Letters[f.limit-1].ID
		default:
			page.Letters = append(page.Letters, e.letter.clone())
		}
		switch {
		case known:
		case page.Total == maxTotal && !f.ExactTotal:
			page.TotalIsMore = true
		default:
			page.Total++
		}
		if !page.Next.IsZero() && (known || page.TotalIsMore) {
			break
		}
	}
	return page
}

// snapshot returns the matching letters, oldest first.
func (q *letterQueue) snapshot(f *letterFilter) []*DeadLetter {
	q.mu.RLock()
	defer q.mu.RUnlock()
	x := q.indexLocked(f)
	var letters []*DeadLetter
	if f.byIndex() {
		letters = make([]*DeadLetter, 0, x.letters)
	}
	for _, e := range x.entries {
		if e.letter != nil && f.matches(e.letter) {
			letters = append(letters, e.letter)
		}
	}
	return letters
}

// match returns the ids of the matching letters, oldest first.
func (q *letterQueue) match(f *letterFilter) []LetterID {
	q.mu.RLock()
	defer q.mu.RUnlock()
	x := q.indexLocked(f)
	var ids []LetterID
	if f.byIndex() {
		ids = make([]LetterID, 0, x.letters)
	}
	for _, e := range x.entries {
		if e.letter != nil && f.matches(e.letter) {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// get returns a copy of a letter.
func (q *letterQueue) get(id LetterID) (DeadLetter, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	e, ok := q.findLocked(id)
	if !ok {
		return DeadLetter{}, false
	}
	return e.letter.clone(), true
}

// remove deletes letters and returns the number of those that were in the queue.
func (q *letterQueue) remove(ids []LetterID) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, id := range ids {
		if e, ok := q.findLocked(id); ok {
			q.removeLocked(e)
			n++
		}
	}
	return n
}

// count returns the number of letters and of evictions.
func (q *letterQueue) count() (int, int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.all.letters, q.evictions
}
