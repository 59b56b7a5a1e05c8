package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/room"
)

// The functions of this file find the letters where the bus keeps them: in the letterQueue, or in
// the store.

func (b *Bus) listLetters(ctx context.Context, f *letterFilter) (keptPage, error) {
	if b.store == nil {
		return b.letters.list(f), nil
	}
	return b.storedPage(ctx, f.stored(f.limit))
}

// storedPage returns a page of a store.
func (b *Bus) storedPage(ctx context.Context, q driver.LetterQuery) (page keptPage, err error) {
	read, err := b.store.Letters(ctx, q)
	page.Next, page.Total, page.TotalIsMore = LetterID(read.Next), read.Total, read.TotalIsMore
	for i := range read.Letters {
		l, undecodable := decodeLetter(&read.Letters[i])
		page.letters, err = append(page.letters, keptLetter{DeadLetter: l}), cmp.Or(err, undecodable)
	}
	return page, err
}

func (b *Bus) getLetter(ctx context.Context, id LetterID) (keptLetter, error) {
	if b.store == nil {
		if l, ok := b.letters.get(id); ok {
			return l, nil
		}
		return keptLetter{}, ErrNotFound
	}
	read, err := b.store.Letter(ctx, driver.ID(id))
	if err != nil {
		return keptLetter{}, err
	}
	l, err := decodeLetter(&read)
	return keptLetter{DeadLetter: l}, err
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
}

// snapshotPage is the number of letters that a snapshot reads from a store at once.
const snapshotPage = 1000

// snapshotLetters returns the matching letters, oldest first.
func (b *Bus) snapshotLetters(ctx context.Context, f *letterFilter) (all []letterRef, err error) {
	if b.store == nil {
		kept := b.letters.snapshot(f)
		all = make([]letterRef, 0, len(kept))
		for _, l := range kept {
			all = append(all, letterRef{id: l.ID, position: l.Position, order: l.order(), event: l.Event.ID, key: l.Event.Key, published: l.Event.Time})
		}
		return all, nil
	}
	if f.bounded && f.until.IsZero() { // a query of a store has no zero bound
		return nil, nil
	}
	q := f.stored(snapshotPage)
	for more := true; more; more = !q.Before.IsZero() {
		page, err := b.store.Letters(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Letters {
			l := &page.Letters[i]
			position, err := positionOf(l)
			if err != nil {
				return nil, err
			}
			all = append(all, letterRef{
				id: LetterID(l.ID), position: position, event: EventID(l.Event), key: l.Key, published: l.Published, size: l.Size(),
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

// readLetters returns a function that returns the letters of a part of a snapshot, as far as they still exist.
func (b *Bus) readLetters(ctx context.Context, f *letterFilter, part []letterRef) (func(LetterID) (keptLetter, bool), error) {
	if b.store == nil {
		return b.letters.get, nil
	}
	found := make(map[LetterID]keptLetter, len(part))
	get := func(id LetterID) (l keptLetter, ok bool) { l, ok = found[id]; return l, ok }
	q := f.stored(len(part))
	if q.Compares() { // a page would compare all newer letters again
		return get, b.lookUp(ctx, letterIDs(part), found)
	}
	q.Before = pace.After(part[len(part)-1].id)
	for more := true; more; more = bytes.Compare(q.Before[:], part[0].id[:]) > 0 {
		page, err := b.storedPage(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, l := range page.letters {
			found[l.ID] = l
		}
		q.Before = driver.ID(page.Next) // zero on the last page
	}
	return get, nil
}

// lookUp reads letters of a store one by one, and adds those that exist to found.
func (b *Bus) lookUp(ctx context.Context, ids []LetterID, found map[LetterID]keptLetter) error {
	for _, id := range ids {
		if l, err := b.getLetter(ctx, id); err == nil {
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
		w := b.newBatch()
		w.audit(audit)
		for _, id := range ids {
			w.Take = append(w.Take, driver.ID(id))
		}
		err := b.commit(ctx, w)
		var refused *driver.RefusedError
		if err == nil {
			return len(ids), nil
		}
		if !errors.As(err, &refused) || !slices.Contains(ids, LetterID(refused.Letter)) {
			return 0, err
		}
		// A refusal names only one missing letter. lookUp finds all of them, so that few commits are needed.
		found := make(map[LetterID]keptLetter)
		if err := b.lookUp(ctx, ids, found); err != nil {
			return 0, err
		}
		delete(found, LetterID(refused.Letter))
		ids = slices.Collect(maps.Keys(found))
	}
	return 0, nil
}

// eraseLetters makes the store overwrite the payloads of purged letters, if it can.
func (b *Bus) eraseLetters(ctx context.Context) error {
	if b.store == nil {
		return nil
	}
	return b.store.Erase(ctx)
}

// What an import has committed is noted in the table of remembered ids, under the digest of its letters: the same
// import continues behind it after an error or a crash, and brings no letter back that was replayed meanwhile. The
// note of a part replaces that of the part before. It has its own lifetime, whatever WithIdempotencyWindow is.
const (
	importScope    = "import"
	importNoteKept = 7 * 24 * time.Hour
)

func (b *Bus) importNote(digest string, done int) driver.Dedupe {
	return driver.Dedupe{
		Scope: importScope, Key: fmt.Sprintf("%s/%d", digest, done), Content: importScope,
		Expires: b.time.Now().UTC.Add(importNoteKept),
	}
}

// insertLetters adds letters that have ids, in parts, and skips ids that exist. It returns the note that the import
// leaves in the store.
func (b *Bus) insertLetters(ctx context.Context, letters []importedLetter, digest string, report *ImportReport, progress func(done int)) (note []driver.Dedupe, err error) {
	for at := 0; b.store != nil && at < len(letters); {
		at += len(nextImported(letters[at:]))
		mine := b.importNote(digest, at)
		kept, known, err := b.store.Remembered(ctx, mine.Scope, mine.Key)
		if err != nil {
			return nil, err
		}
		if known && kept.Expires.After(b.time.Aged()) {
			report.Resumed, note = at, []driver.Dedupe{mine}
		}
	}
	report.Skipped += report.Resumed
	for done := report.Resumed; done < len(letters); progress(done) {
		if ctx.Err() != nil {
			return note, contextError(ctx)
		}
		part := nextImported(letters[done:])
		done += len(part)
		var inserted, evicted int
		if b.store == nil {
			inserted, evicted = b.letters.insert(part)
		} else if inserted, err = b.commitPart(ctx, part, note, b.importNote(digest, done)); err != nil {
			return note, err
		}
		note = []driver.Dedupe{b.importNote(digest, done)}
		report.Imported += inserted
		report.Evicted += evicted
		report.Skipped += len(part) - inserted
	}
	return note, nil
}

// commitPart commits a part of an import and its note, which replaces that of the part before.
func (b *Bus) commitPart(ctx context.Context, part []importedLetter, last []driver.Dedupe, note driver.Dedupe) (inserted int, err error) {
	ctx, cancel := pace.Patient(ctx, b.time, bulkPatience)
	defer cancel()
	found := make(map[LetterID]keptLetter)
	w, ids := b.newBatch(), make([]LetterID, len(part))
	w.Remember, w.Forget = []driver.Dedupe{note}, last
	for i, l := range part {
		ids[i] = l.ID
		w.bury(l.DeadLetter)
	}
	if err := b.lookUp(ctx, ids, found); err != nil {
		return 0, err
	}
	err = b.commit(ctx, w)
	var refused *driver.RefusedError
	if errors.As(err, &refused) && refused.Known != nil {
		return 0, nil // the same import, running twice, has committed the part
	}
	return len(part) - len(found), err
}

// commit submits a batch that changes no dispatch, and waits for it. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (b *Bus) commit(ctx context.Context, w *batch) error {
	committed := make(chan error, 1)
	b.store.submit(w, room.Pass{}, func(err error) { committed <- err })
	select {
	case err := <-committed:
		return err
	case <-ctx.Done():
		return contextError(ctx)
	case <-b.gaveUp:
		return fmt.Errorf("the outcome is unknown: %w", ErrShutdown)
	}
}
