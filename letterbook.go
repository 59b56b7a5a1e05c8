package eventbus

import (
	"context"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/pace"
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
	// remove deletes letters and returns how many existed. A store records audit, which may be nil, in the same commit.
	remove(ctx context.Context, ids []LetterID, audit *AuditEntry) (removed int, err error)
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
