package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/surebus/eventbus/internal/index"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
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

func newLetterQueue(capacity int, ids *uuid7.Source, t *timeline.Timeline, evicted func(*DeadLetter)) *letterQueue {
	newID := func() LetterID { return ids.Next(t.Now().Millis) }
	return &letterQueue{capacity: capacity, newID: newID, evicted: evicted, letters: newLetterIndex()}
}

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

func (q *letterQueue) resume(context.Context, *importing) (int, error) { return 0, nil }

func (q *letterQueue) insert(_ context.Context, _ *importing, part []importedLetter, _ int) (inserted, evicted int, err error) {
	kept := make([]*keptLetter, len(part))
	for i, l := range part {
		kept[i] = &keptLetter{DeadLetter: *l.DeadLetter}
	}
	q.mu.Lock()
	inserted = q.letters.AddAll(kept)
	out := q.evictLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(&l.DeadLetter)
	}
	return inserted, len(out), nil
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

func (q *letterQueue) page(_ context.Context, f *letterFilter) (keptPage, error) {
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
	return page, nil
}

func (q *letterQueue) snapshot(_ context.Context, f *letterFilter) (all []letterRef, err error) {
	kept := q.matching(f)
	all = make([]letterRef, 0, len(kept))
	for _, l := range kept {
		all = append(all, letterRef{id: l.ID, position: l.Position, order: l.order(), event: l.Event.ID, key: l.Event.Key, published: l.Event.Time})
	}
	return all, nil
}

// groups holds no lock while it counts.
func (q *letterQueue) groups(ctx context.Context, f *letterFilter) ([]LetterGroup, error) {
	groups := make(map[string]*LetterGroup)
	for i, l := range slices.Backward(q.matching(f)) {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, contextError(ctx)
		}
		key := l.Fingerprint
		if groups[key] == nil && len(groups) >= maxGroups {
			key = ""
		}
		g := groups[key]
		if g == nil {
			g = &LetterGroup{Message: beyondGroups}
			if key != "" {
				*g = l.Group()
			}
			g.First, g.Last, g.Newest = l.DiedAt, l.DiedAt, l.ID
			groups[key] = g
		}
		g.Count++
		// Letters are sorted by id. The order of DiedAt may differ: the id is made later, and the clock
		// may be set back in between.
		if l.DiedAt.Before(g.First) {
			g.First = l.DiedAt
		}
		if l.DiedAt.After(g.Last) {
			g.Last = l.DiedAt
		}
	}
	others := groups[""]
	delete(groups, "")
	all := make([]LetterGroup, 0, len(groups))
	for _, g := range groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(x, y LetterGroup) int {
		return cmp.Or(
			cmp.Compare(y.Count, x.Count),
			slices.Compare(y.Newest[:], x.Newest[:]),
		)
	})
	if others != nil {
		all = append(all, *others)
	}
	return all, nil
}

// matching returns the matching letters, oldest first.
func (q *letterQueue) matching(f *letterFilter) []*keptLetter {
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

func (q *letterQueue) get(_ context.Context, id LetterID) (keptLetter, error) {
	if l, ok := q.find(id); ok {
		return l, nil
	}
	return keptLetter{}, ErrNotFound
}

func (q *letterQueue) read(context.Context, *letterFilter, []letterRef) (func(LetterID) (keptLetter, bool), error) {
	return q.find, nil
}

// find returns a copy of a letter.
func (q *letterQueue) find(id LetterID) (keptLetter, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	l, ok := q.letters.Get(index.ID(id))
	if !ok {
		return keptLetter{}, false
	}
	return keptLetter{l.clone(), l.own}, true
}

func (q *letterQueue) remove(_ context.Context, ids []LetterID, _ *AuditEntry) (int, error) {
	return q.take(ids...), nil
}

func (q *letterQueue) erase(context.Context) error { return nil }

// take deletes letters and returns the number of those that were in the queue.
func (q *letterQueue) take(ids ...LetterID) int {
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
