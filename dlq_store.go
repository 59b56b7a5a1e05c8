package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// The functions of this file find the letters where the bus keeps them: in the letterQueue, or in
// the store.

func (b *Bus) listLetters(ctx context.Context, f *letterFilter) (LetterPage, error) {
	if b.store == nil {
		return b.letters.list(f), nil
	}
	q := f.LetterQuery
	q.Limit = f.limit
	page, err := b.store.Letters(ctx, q)
	for i := range page.Letters {
		page.Letters[i].Failures = withErrors(page.Letters[i].Failures)
	}
	return page, err
}

func (b *Bus) getLetter(ctx context.Context, id LetterID) (DeadLetter, error) {
	if b.store == nil {
		if l, ok := b.letters.get(id); ok {
			return l, nil
		}
		return DeadLetter{}, ErrNotFound
	}
	l, err := b.store.Letter(ctx, id)
	l.Failures = withErrors(l.Failures)
	return l, err
}

// snapshotPage is the number of letters that a snapshot reads from a store at once.
const snapshotPage = 1000

// snapshotLetters returns the matching letters, oldest first. Those of a store have only the fields
// that order them.
func (b *Bus) snapshotLetters(ctx context.Context, f *letterFilter) ([]*DeadLetter, error) {
	if b.store == nil {
		return b.letters.snapshot(f), nil
	}
	var all []*DeadLetter
	q := f.LetterQuery
	q.Limit = snapshotPage
	if f.bounded {
		q.Until = f.until
	}
	for more := true; more; more = !q.Before.IsZero() {
		page, err := b.store.Letters(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Letters {
			l := &page.Letters[i]
			all = append(all, &DeadLetter{
				ID: l.ID, Position: l.Position,
				Event: Event{ID: l.Event.ID, Key: l.Event.Key, Time: l.Event.Time},
			})
		}
		q.Before = page.Next // letters that die meanwhile have larger ids
	}
	slices.Reverse(all)
	return all, nil
}

// matchingLetters returns the ids of the letters that match, oldest first.
func (b *Bus) matchingLetters(ctx context.Context, f *letterFilter) ([]LetterID, error) {
	letters, err := b.snapshotLetters(ctx, f)
	ids := make([]LetterID, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
	}
	return ids, err
}

// removeLetters deletes letters and returns how many existed.
func (b *Bus) removeLetters(ctx context.Context, ids []LetterID, audit *AuditEntry) (removed int, err error) {
	defer func() {
		if removed > 0 && err == nil {
			b.audited(audit)
		}
	}()
	if b.store == nil {
		return b.letters.remove(ids), nil
	}
	ids = slices.Clone(ids)
	for len(ids) > 0 {
		err := b.commit(ctx, &Batch{Now: b.time.Now().UTC, Take: ids, Audit: audit.list()})
		var refused *RefusedError
		if err == nil || !errors.As(err, &refused) || refused.Letter.IsZero() {
			return len(ids), err
		}
		before := len(ids)
		ids = slices.DeleteFunc(ids, func(id LetterID) bool { return id == refused.Letter })
		if len(ids) == before {
			return 0, err
		}
	}
	return 0, nil
}

// insertLetters adds letters that have ids, and skips ids that exist.
func (b *Bus) insertLetters(ctx context.Context, letters []*DeadLetter, audit *AuditEntry) (inserted, evicted int, err error) {
	defer func() {
		if audit.Count = inserted; inserted > 0 && err == nil {
			b.audited(audit)
		}
	}()
	if b.store == nil {
		inserted, evicted = b.letters.insert(letters)
		return inserted, evicted, nil
	}
	fresh := make(map[LetterID]bool)
	letters = slices.DeleteFunc(letters, func(l *DeadLetter) bool {
		if err != nil || fresh[l.ID] {
			return true
		}
		var found error
		if _, found = b.store.Letter(ctx, l.ID); found != nil && !errors.Is(found, ErrNotFound) {
			err = found
		}
		fresh[l.ID] = found != nil
		return found == nil
	})
	if err != nil || len(letters) == 0 {
		return 0, 0, err
	}
	audit.Count = len(letters)
	return len(letters), 0, b.commit(ctx, &Batch{Now: b.time.Now().UTC, Bury: letters, Audit: audit.list()})
}

// commit submits a batch that changes no dispatch, and waits for it. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (b *Bus) commit(ctx context.Context, batch *Batch) error {
	committed := make(chan error, 1)
	b.store.Submit(batch, func(err error) { committed <- err })
	select {
	case err := <-committed:
		return err
	case <-ctx.Done():
		return contextError(ctx)
	case <-b.gaveUp:
		return fmt.Errorf("the outcome is unknown: %w", ErrShutdown)
	}
}
