package eventbus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/pace"
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
// that order them, and their size.
func (b *Bus) snapshotLetters(ctx context.Context, f *letterFilter) ([]*DeadLetter, error) {
	if b.store == nil {
		return b.letters.snapshot(f), nil
	}
	var all []*DeadLetter
	q := f.LetterQuery
	q.Limit = snapshotPage
	if f.bounded && f.until.IsZero() { // a query of a store has no zero bound
		return nil, nil
	}
	for more := true; more; more = !q.Before.IsZero() {
		page, err := b.store.Letters(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Letters {
			l := &page.Letters[i]
			all = append(all, &DeadLetter{
				ID: l.ID, Position: l.Position, size: l.weight(),
				Event: Event{ID: l.Event.ID, Key: l.Event.Key, Time: l.Event.Time},
			})
		}
		q.Before = page.Next // letters that die meanwhile have larger ids
	}
	slices.Reverse(all)
	return all, nil
}

// Bounds of a part: the letters of an import or a purge that one commit has, and those that an export reads at once.
// Publications are committed between two parts.
const (
	partLetters = 500 // with another number, an import of an earlier version does not find its note
	partBytes   = 4 << 20
)

// nextPart returns the first letters of a list that are one part.
func nextPart(letters []*DeadLetter) []*DeadLetter {
	return pace.Next(letters, partLetters, partBytes, func(l *DeadLetter) int { return l.size })
}

func letterIDs(letters []*DeadLetter) []LetterID {
	ids := make([]LetterID, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
	}
	return ids
}

// weight estimates the size of a letter from a store, in bytes.
func (l *DeadLetter) weight() int {
	n := len(payloadBytes(l.Event.Payload)) + len(payloadBytes(l.Original))
	for _, f := range l.Failures {
		n += len(f.Error) + len(f.Details)
	}
	return n
}

// readLetters returns a function that returns the letters of a part of a snapshot, as far as they still exist.
func (b *Bus) readLetters(ctx context.Context, f *letterFilter, part []*DeadLetter) (func(LetterID) (DeadLetter, bool), error) {
	if b.store == nil {
		return b.letters.get, nil
	}
	found := make(map[LetterID]DeadLetter, len(part))
	get := func(id LetterID) (l DeadLetter, ok bool) { l, ok = found[id]; return l, ok }
	if f.pattern != nil || f.Error != "" || f.MetadataName != "" { // a page would compare all newer letters again
		return get, b.lookUp(ctx, letterIDs(part), found)
	}
	q := f.LetterQuery
	q.Limit, q.Before = len(part), pace.After(part[len(part)-1].ID)
	for more := true; more; more = bytes.Compare(q.Before[:], part[0].ID[:]) > 0 {
		page, err := b.store.Letters(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, l := range page.Letters {
			found[l.ID] = l
		}
		q.Before = page.Next // zero on the last page
	}
	return get, nil
}

// lookUp reads letters of a store one by one, and adds those that exist to found.
func (b *Bus) lookUp(ctx context.Context, ids []LetterID, found map[LetterID]DeadLetter) error {
	for _, id := range ids {
		if l, err := b.store.Letter(ctx, id); err == nil {
			found[id] = l
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

// bulkPatience is how long a bulk operation waits for a commit in progress when its context ends. After that, the
// outcome of that commit is unknown.
const bulkPatience = time.Second

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
	for len(ids) > 0 {
		err := b.commit(ctx, &Batch{Now: b.time.Now().UTC, Take: ids, Audit: audit.list()})
		var refused *RefusedError
		if err == nil {
			return len(ids), nil
		}
		if !errors.As(err, &refused) || !slices.Contains(ids, refused.Letter) {
			return 0, err
		}
		// A refusal names only one missing letter. lookUp finds all of them, so that few commits are needed.
		found := make(map[LetterID]DeadLetter)
		if err := b.lookUp(ctx, ids, found); err != nil {
			return 0, err
		}
		delete(found, refused.Letter)
		ids = slices.Collect(maps.Keys(found))
	}
	return 0, nil
}

// eraseLetters makes the store overwrite the payloads of purged letters, if it can.
func (b *Bus) eraseLetters(ctx context.Context) error {
	if e, ok := b.store.(Eraser); ok {
		return e.Erase(ctx)
	}
	return nil
}

// What an import has committed is noted in the table of remembered ids, under the digest of its letters: the same
// import continues behind it after an error or a crash, and brings no letter back that was replayed meanwhile. The
// note of a part replaces that of the part before. It has its own lifetime, whatever WithIdempotencyWindow is.
const (
	importScope    = "import"
	importNoteKept = 7 * 24 * time.Hour
)

func (b *Bus) importNote(digest string, done int) Dedupe {
	return Dedupe{
		Scope: importScope, Key: fmt.Sprintf("%s/%d", digest, done), Content: importScope,
		Expires: b.time.Now().UTC.Add(importNoteKept),
	}
}

// insertLetters adds letters that have ids, in parts, and skips ids that exist. It returns the note that the import
// leaves in the store.
func (b *Bus) insertLetters(ctx context.Context, letters []*DeadLetter, digest string, report *ImportReport, progress func(done int)) (note []Dedupe, err error) {
	for at := 0; b.store != nil && at < len(letters); {
		at += len(nextPart(letters[at:]))
		mine := b.importNote(digest, at)
		kept, known, err := b.store.Remembered(ctx, mine.Scope, mine.Key)
		if err != nil {
			return nil, err
		}
		if known && kept.Expires.After(b.time.Aged()) {
			report.Resumed, note = at, []Dedupe{mine}
		}
	}
	report.Skipped += report.Resumed
	for done := report.Resumed; done < len(letters); progress(done) {
		if ctx.Err() != nil {
			return note, contextError(ctx)
		}
		part := nextPart(letters[done:])
		done += len(part)
		var inserted, evicted int
		if b.store == nil {
			inserted, evicted = b.letters.insert(part)
		} else if inserted, err = b.commitPart(ctx, part, note, b.importNote(digest, done)); err != nil {
			return note, err
		}
		note = []Dedupe{b.importNote(digest, done)}
		report.Imported += inserted
		report.Evicted += evicted
		report.Skipped += len(part) - inserted
	}
	return note, nil
}

// commitPart commits a part of an import and its note, which replaces that of the part before.
func (b *Bus) commitPart(ctx context.Context, part []*DeadLetter, last []Dedupe, note Dedupe) (inserted int, err error) {
	ctx, cancel := pace.Patient(ctx, b.time, bulkPatience)
	defer cancel()
	found := make(map[LetterID]DeadLetter)
	if err := b.lookUp(ctx, letterIDs(part), found); err != nil {
		return 0, err
	}
	err = b.commit(ctx, &Batch{Now: b.time.Now().UTC, Remember: []Dedupe{note}, Forget: last, Bury: part})
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Known != nil {
		return 0, nil // the same import, running twice, has committed the part
	}
	return len(part) - len(found), err
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
