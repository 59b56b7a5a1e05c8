package eventbus

import (
	"bytes"
	"sync"

	"github.com/surebus/eventbus/internal/index"
)

// letterQueue is the bounded dead letter queue in memory. Letters are immutable once added, because
// readers share them without the lock.
type letterQueue struct {
	capacity int
	newID    func() LetterID
	evicted  func(*DeadLetter) // called without the lock

	mu        sync.RWMutex // guards the following
	letters   *letterIndex
	evictions int64
}

type (
	letterIndex = index.Index[letterKey, *keptLetter]
	letterList  = index.List[letterKey, *keptLetter]
)

// letterKey holds the values that all letters of a list share. Empty fields do not matter.
type letterKey struct {
	subscription string
	reason       Reason
	fingerprint  string
	event        EventID
	key          string
}

func newLetterIndex() *letterIndex {
	return index.New(
		func(l *keptLetter) index.ID { return index.ID(l.ID) },
		func(l *keptLetter) [index.Keys]letterKey {
			return [...]letterKey{
				{subscription: l.Subscription},
				{reason: l.Reason},
				{subscription: l.Subscription, reason: l.Reason},
				{fingerprint: l.Fingerprint},
				{event: l.Event.ID},
				{key: l.Event.Key},
			}
		})
}

// evictLocked removes the oldest letters until the queue is within its capacity, and returns them.
// Shutdown letters do not count: a shutdown with many of them would evict its own.
func (q *letterQueue) evictLocked() []*keptLetter {
	var out []*keptLetter
	for q.letters.All().Len()-q.letters.With(letterKey{reason: ReasonShutdown}).Len() > q.capacity {
		var oldest *keptLetter
		for _, r := range reasons {
			l, ok := q.letters.With(letterKey{reason: r}).First()
			if ok && r != ReasonShutdown && (oldest == nil || bytes.Compare(l.ID[:], oldest.ID[:]) < 0) {
				oldest = l
			}
		}
		q.letters.Remove(index.ID(oldest.ID))
		out = append(out, oldest)
		q.evictions++
	}
	return out
}

// add gives a letter its id, adds it, and evicts letters beyond the capacity.
func (q *letterQueue) add(l *keptLetter) {
	q.mu.Lock()
	l.ID = q.newID()
	q.letters.Add(l)
	out := q.evictLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(&l.DeadLetter)
	}
}

// insert adds letters that have ids, and skips ids that the queue has.
func (q *letterQueue) insert(letters []importedLetter) (inserted, evicted int) {
	kept := make([]*keptLetter, len(letters))
	for i, l := range letters {
		kept[i] = &keptLetter{DeadLetter: *l.DeadLetter}
	}
	q.mu.Lock()
	inserted = q.letters.AddAll(kept)
	out := q.evictLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(&l.DeadLetter)
	}
	return inserted, len(out)
}

// candidatesLocked returns the shortest list that contains all matching letters.
func (q *letterQueue) candidatesLocked(f *letterFilter) *letterList {
	shortest := q.letters.All()
	for _, key := range f.lists() {
		if l := q.letters.With(key); l.Len() < shortest.Len() {
			shortest = l
		}
	}
	return shortest
}

// keptPage is a LetterPage of kept letters.
type keptPage struct {
	LetterPage // without Letters
	letters    []keptLetter
}

// page returns the page for users.
func (p *keptPage) page() LetterPage {
	page := p.LetterPage
	page.Letters = make([]DeadLetter, len(p.letters)) // in JSON, a list
	for i := range p.letters {
		page.Letters[i] = p.letters[i].DeadLetter
	}
	return page
}

// list returns a page of matching letters, newest first.
func (q *letterQueue) list(f *letterFilter) keptPage {
	q.mu.RLock()
	defer q.mu.RUnlock()
	var page keptPage
	candidates := q.candidatesLocked(f)
	from, counted := LetterID{}, f.byIndex()
	if counted {
		from, page.Total = f.Before, candidates.Len()
	}
	for l := range candidates.Descending(index.ID(from)) {
		if !f.matches(&l.DeadLetter) {
			continue
		}
		switch {
		case !f.isBefore(l.ID) || !page.Next.IsZero():
		case len(page.letters) == f.limit:
			page.Next = page.letters[f.limit-1].ID
		default:
			page.letters = append(page.letters, keptLetter{l.clone(), l.own})
		}
		switch {
		case counted:
		case page.Total == maxTotal && !f.ExactTotal:
			page.TotalIsMore = true
		default:
			page.Total++
		}
		if !page.Next.IsZero() && (counted || page.TotalIsMore) {
			break
		}
	}
	return page
}

// snapshot returns the matching letters, oldest first.
func (q *letterQueue) snapshot(f *letterFilter) []*keptLetter {
	q.mu.RLock()
	defer q.mu.RUnlock()
	var letters []*keptLetter
	candidates := q.candidatesLocked(f)
	if f.byIndex() {
		letters = make([]*keptLetter, 0, candidates.Len())
	}
	for l := range candidates.Ascending() {
		if f.matches(&l.DeadLetter) {
			letters = append(letters, l)
		}
	}
	return letters
}

// get returns a copy of a letter.
func (q *letterQueue) get(id LetterID) (keptLetter, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	l, ok := q.letters.Get(index.ID(id))
	if !ok {
		return keptLetter{}, false
	}
	return keptLetter{l.clone(), l.own}, true
}

// remove deletes letters and returns the number of those that were in the queue.
func (q *letterQueue) remove(ids []LetterID) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, id := range ids {
		if q.letters.Remove(index.ID(id)) {
			n++
		}
	}
	return n
}

// count returns the number of letters and of evictions.
func (q *letterQueue) count() (int, int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.letters.All().Len(), q.evictions
}
