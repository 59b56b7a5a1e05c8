package eventbus

import (
	"context"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/letters"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/settled"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// letterBook keeps the dead letters of a bus: in memory (letterQueue) or in its store (storedLetters).
type letterBook interface {
	// page returns a page of matching letters, newest first.
	page(ctx context.Context, f *letterFilter) (keptPage, error)
	// groups returns the groups of the matching letters, see DLQ.Groups.
	groups(ctx context.Context, f *letterFilter) ([]LetterGroup, error)
	// get returns a copy of a letter, or ErrNotFound.
	get(ctx context.Context, id LetterID) (keptLetter, error)
	// snapshot returns the matching letters, oldest first.
	snapshot(ctx context.Context, f *letterFilter) ([]letterRef, error)
	// read returns a function that returns the letters of a part of a snapshot, as far as they still exist.
	read(ctx context.Context, f *letterFilter, part []letterRef) (func(LetterID) (keptLetter, bool), error)
	// remove deletes letters and returns how many existed. A store records audit, which may be nil, in the same commit, and the outcomes
	// if by is not nil: the operator.
	remove(ctx context.Context, letters []letterRef, by *operator, audit *AuditEntry) (removed int, err error)
	// erase returns when no copy of the payloads of removed letters is left.
	erase(ctx context.Context) error
	// resume returns how many letters of an import an earlier one has added, which did not complete.
	resume(ctx context.Context, m *importing) (done int, err error)
	// insert adds a part of an import, up to a position, and skips ids that exist. Only memory evicts.
	insert(ctx context.Context, m *importing, part []importedLetter, upTo int) (inserted, evicted int, err error)
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

// letterRef is a letter of a set that is fixed: what orders it, and its size in a store.
type letterRef struct {
	id        LetterID
	position  int64
	order     EventID
	event     EventID
	key       string
	published time.Time
	size      int

	// How the delivery has ended, for the outcome of a purge.

	subscription      string
	diedAt            time.Time
	attempts, replays int
}

// purged describes the end of the delivery whose letter an operator purges, as the end was described when the letter was made.
func (l *letterRef) purged(by string) SettledDelivery {
	return SettledDelivery{
		Subscription: l.subscription, Outcome: DeadLettered, At: l.diedAt.Truncate(time.Millisecond), PurgedBy: by,
		Attempts: min(l.attempts, settled.MaxAttempts), Replays: min(l.replays, settled.MaxReplays),
	}
}

// Bounds of a part: the letters of an import or a purge that one commit has, and those that an export reads at once.
// Publications are committed between two parts.
const (
	partLetters = 500 // with another number, an import of an earlier version does not find its note
	partBytes   = 4 << 20
)

// nextPart returns the first letters of a list that are one part.
func nextPart(letters []letterRef) []letterRef {
	return pace.Next(letters, partLetters, partBytes, func(l letterRef) int { return l.size })
}

// nextImported is nextPart for an import.
func nextImported(letters []importedLetter) []importedLetter {
	return pace.Next(letters, partLetters, partBytes, func(l importedLetter) int { return l.size })
}

func letterIDs(letters []letterRef) []LetterID {
	ids := make([]LetterID, len(letters))
	for i, l := range letters {
		ids[i] = l.id
	}
	return ids
}

// bulkPatience is how long a bulk operation waits for a commit in progress when its context ends. After that, the
// outcome of that commit is unknown.
const bulkPatience = time.Second

// importedLetter is a letter of an import, and the length of its line.
type importedLetter struct {
	*DeadLetter
	size int
}

// importing is an import: its letters, and the digest of its lines, by which a store knows it again.
type importing struct {
	letters []importedLetter
	digest  string
	note    []driver.Dedupe // what the store has of its progress; nil in memory, and before the first part
}

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

func (q *letterQueue) remove(_ context.Context, part []letterRef, _ *operator, _ *AuditEntry) (int, error) {
	all := make([]letters.ID, len(part))
	for i, l := range part {
		all[i] = letters.ID(l.id)
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
