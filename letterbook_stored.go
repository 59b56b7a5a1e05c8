package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/timeline"
)

// storedLetters are the dead letters of a store.
type storedLetters struct {
	store *guardedStore
	time  *timeline.Timeline
}

func (s *storedLetters) page(ctx context.Context, f *letterFilter) (keptPage, error) {
	return s.pageOf(ctx, f.stored(f.limit))
}

// pageOf returns a page.
func (s *storedLetters) pageOf(ctx context.Context, q driver.LetterQuery) (page keptPage, err error) {
	read, err := s.store.Letters(ctx, q)
	page.Next, page.Total, page.TotalIsMore = LetterID(read.Next), read.Total, read.TotalIsMore
	for i := range read.Letters {
		l, undecodable := decodeLetter(&read.Letters[i])
		page.letters, err = append(page.letters, keptLetter{DeadLetter: l}), cmp.Or(err, undecodable)
	}
	return page, err
}

func (s *storedLetters) groups(ctx context.Context, f *letterFilter) (all []LetterGroup, err error) {
	all = []LetterGroup{} // in JSON, a list
	err = s.store.Groups(ctx, f.stored(0), func(read *driver.Group) error {
		g := LetterGroup{Message: beyondGroups}
		if read.Sample != nil {
			l, err := decodeLetter(read.Sample)
			if err != nil {
				return err
			}
			g = l.Group()
		}
		g.Fingerprint, g.Count, g.First, g.Last, g.Newest = read.Fingerprint, read.Count, read.First, read.Last, LetterID(read.Newest)
		all = append(all, g)
		return nil
	})
	return all, err
}

func (s *storedLetters) get(ctx context.Context, id LetterID) (keptLetter, error) {
	read, err := s.store.Letter(ctx, driver.ID(id))
	if err != nil {
		return keptLetter{}, err
	}
	l, err := decodeLetter(&read)
	return keptLetter{DeadLetter: l}, err
}

// snapshotPage is the number of letters that a snapshot reads from a store at once.
const snapshotPage = 1000

func (s *storedLetters) snapshot(ctx context.Context, f *letterFilter) (all []letterRef, err error) {
	if f.bounded && f.until.IsZero() { // a query of a store has no zero bound
		return nil, nil
	}
	q := f.stored(snapshotPage)
	q.NoTotal = true
	for more := true; more; more = !q.Before.IsZero() {
		page, err := s.store.Letters(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Letters {
			l := &page.Letters[i]
			of, err := numbersOf(l)
			if err != nil {
				return nil, err
			}
			all = append(all, letterRef{
				id: LetterID(l.ID), position: of.Position, event: EventID(l.Event), key: l.Key, published: l.Published, size: l.Size(),
				subscription: l.Subscription, diedAt: l.DiedAt, attempts: of.Attempts, replays: of.Replays,
			})
		}
		q.Before = page.Next // letters that die meanwhile have larger ids
	}
	slices.Reverse(all)
	return all, nil
}

func (s *storedLetters) read(ctx context.Context, f *letterFilter, part []letterRef) (func(LetterID) (keptLetter, bool), error) {
	found := make(map[LetterID]keptLetter, len(part))
	get := func(id LetterID) (l keptLetter, ok bool) { l, ok = found[id]; return l, ok }
	q := f.stored(len(part))
	if q.Compares() { // a page would compare all newer letters again
		return get, s.lookUp(ctx, letterIDs(part), found)
	}
	q.NoTotal = true
	q.Before = pace.After(part[len(part)-1].id)
	for more := true; more; more = bytes.Compare(q.Before[:], part[0].id[:]) > 0 {
		page, err := s.pageOf(ctx, q)
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

// lookUp reads letters one by one, and adds those that exist to found.
func (s *storedLetters) lookUp(ctx context.Context, ids []LetterID, found map[LetterID]keptLetter) error {
	for _, id := range ids {
		if l, err := s.get(ctx, id); err == nil {
			found[id] = l
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

func (s *storedLetters) remove(ctx context.Context, part []letterRef, by *operator, audit *AuditEntry) (int, error) {
	for len(part) > 0 {
		w := newBatch(s.time)
		w.audit(audit)
		for _, l := range part {
			w.Take = append(w.Take, driver.ID(l.id))
			if by != nil {
				w.outcome(l.event, l.purged(by.by))
			}
		}
		err := s.store.commit(ctx, w)
		var refused *driver.RefusedError
		if err == nil {
			return len(part), nil
		}
		missing := func(l letterRef) bool { return l.id == LetterID(refused.Letter) }
		if !errors.As(err, &refused) || !slices.ContainsFunc(part, missing) {
			return 0, err
		}
		// A refusal names only one missing letter. lookUp finds all of them, so that few commits are needed.
		found := make(map[LetterID]keptLetter)
		if err := s.lookUp(ctx, letterIDs(part), found); err != nil {
			return 0, err
		}
		part = slices.DeleteFunc(slices.Clone(part), func(l letterRef) bool {
			_, exists := found[l.id]
			return !exists || missing(l)
		})
	}
	return 0, nil
}

func (s *storedLetters) erase(ctx context.Context) error { return s.store.Erase(ctx) }

// What an import has committed is noted in the table of remembered ids, under the digest of its letters: the same
// import continues behind it after an error or a crash, and brings no letter back that was replayed meanwhile. The
// note of a part replaces that of the part before. It has its own lifetime, whatever WithIdempotencyWindow is.
const (
	importScope    = "import"
	importNoteKept = 7 * 24 * time.Hour
)

func (s *storedLetters) noteOf(m *importing, done int) driver.Dedupe {
	return driver.Dedupe{
		Scope: importScope, Key: fmt.Sprintf("%s/%d", m.digest, done), Content: importScope,
		Expires: s.time.Now().UTC.Add(importNoteKept),
	}
}

func (s *storedLetters) resume(ctx context.Context, m *importing) (done int, err error) {
	for at := 0; at < len(m.letters); {
		at += len(nextImported(m.letters[at:]))
		mine := s.noteOf(m, at)
		kept, known, err := s.store.Remembered(ctx, mine.Scope, mine.Key)
		if err != nil {
			return 0, err
		}
		if known && kept.Expires.After(s.time.Aged()) {
			done, m.note = at, []driver.Dedupe{mine}
		}
	}
	return done, nil
}

// insert commits the part with a note of it, which replaces that of the part before.
func (s *storedLetters) insert(ctx context.Context, m *importing, part []importedLetter, upTo int) (inserted, evicted int, err error) {
	ctx, cancel := pace.Patient(ctx, s.time, bulkPatience)
	defer cancel()
	note := []driver.Dedupe{s.noteOf(m, upTo)}
	w, ids := newBatch(s.time), make([]LetterID, len(part))
	w.Remember, w.Forget = note, m.note
	for i, l := range part {
		ids[i] = l.ID
		w.bury(l.DeadLetter)
	}
	found := make(map[LetterID]keptLetter)
	if err := s.lookUp(ctx, ids, found); err != nil {
		return 0, 0, err
	}
	err = s.store.commit(ctx, w)
	var refused *driver.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Known != nil: // the same import, running twice, has committed the part
		inserted = 0
	case err != nil:
		return 0, 0, err
	default:
		inserted = len(part) - len(found)
	}
	m.note = note
	return inserted, 0, nil
}

// Kinds of a letter's payload, in the first byte of driver.Letter.Payload and Original.
const (
	payloadJSON    = 'J' // json.RawMessage
	payloadEncoded = 'E' // EncodedPayload
)

func encodedLetterPayload(payload any) []byte {
	switch p := payload.(type) {
	case json.RawMessage:
		return append([]byte{payloadJSON}, p...)
	case EncodedPayload:
		return append([]byte{payloadEncoded}, p...)
	}
	return nil // a bus with a store has encoded the others
}

func decodedLetterPayload(part []byte) (any, error) {
	switch {
	case part == nil:
		return nil, nil //nolint:nilnil // a payload may be nil
	case len(part) > 0 && part[0] == payloadJSON:
		return json.RawMessage(part[1:]), nil
	case len(part) > 0 && part[0] == payloadEncoded:
		return EncodedPayload(part[1:]), nil
	}
	return nil, fmt.Errorf("the payload has an unknown kind")
}

// letter encodes a letter.
func (w *batch) letter(l *DeadLetter) *driver.Letter {
	details := *l
	details.Failures, details.Event.Payload, details.Original = nil, nil, nil
	return &driver.Letter{
		ID: driver.ID(l.ID), Event: driver.ID(l.Event.ID), Type: l.Event.Type, Key: l.Event.Key, Subscription: l.Subscription,
		Reason: string(l.Reason), Fingerprint: l.Fingerprint, Published: l.Event.Time, DiedAt: l.DiedAt,
		Details: w.encode(&details), Failures: w.encode(l.Failures),
		Payload: encodedLetterPayload(l.Event.Payload), Original: encodedLetterPayload(l.Original),
	}
}

// decodeLetter decodes a letter of a store.
func decodeLetter(from *driver.Letter) (l DeadLetter, err error) {
	if err = json.Unmarshal(from.Details, &l); err == nil {
		err = json.Unmarshal(from.Failures, &l.Failures)
	}
	if err == nil {
		l.Event.Payload, err = decodedLetterPayload(from.Payload)
	}
	if err == nil {
		l.Original, err = decodedLetterPayload(from.Original)
	}
	if err != nil {
		return DeadLetter{}, &DecodeError{What: "dead letter " + LetterID(from.ID).String(), Err: err}
	}
	l.Failures = withErrors(l.Failures)
	return l, nil
}

// letterNumbers are numbers of a letter.
type letterNumbers struct {
	Position int64 `json:"position"`
	Attempts int   `json:"attempts"`
	Replays  int   `json:"replays"`
}

// numbersOf returns the numbers of a letter of a store.
func numbersOf(from *driver.Letter) (of letterNumbers, err error) {
	if err := json.Unmarshal(from.Details, &of); err != nil {
		return of, &DecodeError{What: "dead letter " + LetterID(from.ID).String(), Err: err}
	}
	return of, nil
}
