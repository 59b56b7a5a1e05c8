package eventbus

import (
	"context"

	"github.com/surebus/eventbus/internal/letters"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// letterQueue is the letterBook in memory.
type letterQueue struct {
	letters *letters.Queue[*keptLetter]
}

func newLetterQueue(capacity int, ids *uuid7.Source, t *timeline.Timeline, evicted func(*DeadLetter)) *letterQueue {
	all := make([]string, len(reasons))
	for i, r := range reasons {
		all[i] = string(r)
	}
	return &letterQueue{letters.New(letters.Config[*keptLetter]{
		Capacity: capacity,
		Exempt:   string(ReasonShutdown),
		Reasons:  all,
		Number:   func(l *keptLetter) { l.ID = ids.Next(t.Now().Millis) },
		Facts:    (*keptLetter).facts,
		Evicted:  func(l *keptLetter) { evicted(&l.DeadLetter) },
	})}
}

func (l *keptLetter) facts() letters.Facts {
	return letters.Facts{
		ID: letters.ID(l.ID),
		Labels: letters.Labels{
			Subscription: l.Subscription, Reason: string(l.Reason), Fingerprint: l.Fingerprint,
			Event: letters.ID(l.Event.ID), Key: l.Event.Key,
		},
		DiedAt: l.DiedAt,
	}
}

// add gives a letter its id, adds it, and evicts letters beyond the capacity.
func (q *letterQueue) add(l *keptLetter) { q.letters.Add(l) }

// take deletes a letter and reports whether it was in the queue.
func (q *letterQueue) take(id LetterID) bool { return q.letters.Remove(letters.ID(id)) == 1 }

// count returns the number of letters and of evictions.
func (q *letterQueue) count() (int, int64) { return q.letters.Count() }

func (q *letterQueue) page(_ context.Context, f *letterFilter) (keptPage, error) {
	found := q.letters.Page(f.inMemory())
	page := keptPage{letters: make([]keptLetter, len(found.Letters))}
	page.Next, page.Total, page.TotalIsMore = found.Next, found.Total, found.TotalIsMore
	for i, l := range found.Letters {
		page.letters[i] = l.copy()
	}
	return page, nil
}

func (q *letterQueue) groups(ctx context.Context, f *letterFilter) ([]LetterGroup, error) {
	found, err := q.letters.Groups(ctx, f.inMemory())
	if err != nil {
		return nil, contextError(ctx)
	}
	all := make([]LetterGroup, len(found))
	for i, of := range found {
		g := &all[i]
		if *g = (LetterGroup{Message: beyondGroups}); of.Fingerprint != "" {
			*g = of.Newest.Group()
		}
		g.Count, g.First, g.Last, g.Newest = of.Count, of.First, of.Last, of.Newest.ID
	}
	return all, nil
}

func (q *letterQueue) get(_ context.Context, id LetterID) (keptLetter, error) {
	if l, ok := q.find(id); ok {
		return l, nil
	}
	return keptLetter{}, ErrNotFound
}

// find returns a copy of a letter.
func (q *letterQueue) find(id LetterID) (keptLetter, bool) {
	l, ok := q.letters.Find(letters.ID(id))
	if !ok {
		return keptLetter{}, false
	}
	return l.copy(), true
}

func (q *letterQueue) snapshot(_ context.Context, f *letterFilter) ([]letterRef, error) {
	kept := q.letters.Matching(f.inMemory())
	all := make([]letterRef, len(kept))
	for i, l := range kept {
		all[i] = letterRef{id: l.ID, position: l.Position, order: l.order(), event: l.Event.ID, key: l.Event.Key, published: l.Event.Time}
	}
	return all, nil
}

func (q *letterQueue) read(context.Context, *letterFilter, []letterRef) (func(LetterID) (keptLetter, bool), error) {
	return q.find, nil
}

func (q *letterQueue) remove(_ context.Context, ids []LetterID, _ *AuditEntry) (int, error) {
	all := make([]letters.ID, len(ids))
	for i, id := range ids {
		all[i] = letters.ID(id)
	}
	return q.letters.Remove(all...), nil
}

func (q *letterQueue) erase(context.Context) error { return nil }

func (q *letterQueue) resume(context.Context, *importing) (int, error) { return 0, nil }

func (q *letterQueue) insert(_ context.Context, _ *importing, part []importedLetter, _ int) (inserted, evicted int, err error) {
	kept := make([]*keptLetter, len(part))
	for i, l := range part {
		kept[i] = &keptLetter{DeadLetter: *l.DeadLetter}
	}
	inserted, evicted = q.letters.Insert(kept)
	return inserted, evicted, nil
}
