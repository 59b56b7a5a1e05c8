package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// maxPageBytes bounds the parts of the letters of a page: a page of large letters ends after the first letter beyond.
const maxPageBytes = 32 << 20

// letterFilter is the part of a LetterQuery that SQL evaluates. each evaluates the rest, Type and Parts.
type letterFilter struct {
	q      driver.LetterQuery
	where  []string
	args   []any
	index  string // INDEXED BY, or empty for the planner's choice
	byTime bool   // only the time of death selects
	few    bool   // the time of death selects at most driver.MaxTotal letters; see narrow
}

func newLetterFilter(q driver.LetterQuery) *letterFilter {
	f := &letterFilter{q: q}
	if !q.Event.IsZero() {
		f.add("event = ?", q.Event[:])
	}
	if q.Key != "" {
		f.add("key <> '' AND key = ?", q.Key) // the condition of letter_key
	}
	if names := q.Subscriptions; len(names) > 0 {
		f.add("subscription IN (?"+strings.Repeat(", ?", len(names)-1)+")", names[0])
		for _, name := range names[1:] {
			f.args = append(f.args, name)
		}
	}
	for _, c := range []struct {
		column, value string
	}{
		{"reason", q.Reason}, {"fingerprint", q.Fingerprint},
	} {
		if c.value != "" {
			f.add(c.column+" = ?", c.value)
		}
	}
	indexed := len(f.where) > 0
	if !q.PublishedSince.IsZero() {
		f.add("published >= ?", storekit.TimeBound(q.PublishedSince))
	}
	if !q.PublishedUntil.IsZero() {
		f.add("published <= ?", storekit.TimeBound(q.PublishedUntil))
	}
	f.byTime = len(f.where) == 0 && !(q.Since.IsZero() && q.Until.IsZero())
	if !q.Since.IsZero() {
		f.add("died_at >= ?", storekit.TimeBound(q.Since))
	}
	if !q.Until.IsZero() {
		f.add("died_at <= ?", storekit.TimeBound(q.Until))
	}
	// The planner has no statistics. It would prefer an index with more columns, and read most of the
	// table for a subscription that has most letters.
	switch {
	case !q.Event.IsZero():
		f.index = "INDEXED BY letter_event"
	case q.Key != "":
		f.index = "INDEXED BY letter_key"
	case q.Fingerprint != "":
		f.index = "INDEXED BY letter_fingerprint"
	case indexed && q.Reason == "":
		f.index = "INDEXED BY letter_subscription"
	case indexed && len(q.Subscriptions) == 0:
		f.index = "INDEXED BY letter_reason"
	case indexed:
		f.index = "INDEXED BY letter_subscription_reason"
	}
	return f
}

// narrow chooses the index of the time of death if that selects few letters.
func (f *letterFilter) narrow(c *sqlite3.Conn) error {
	q := &f.q
	if q.Since.IsZero() && q.Until.IsZero() || !q.Event.IsZero() || q.Key != "" {
		return nil
	}
	until := any(":") // sorts behind all digits
	if !q.Until.IsZero() {
		until = storekit.TimeBound(q.Until)
	}
	const sql = "SELECT count(*) FROM (SELECT 1 FROM eventbus_letter INDEXED BY letter_died_at WHERE died_at >= ? AND died_at <= ? LIMIT ?)"
	n, err := queryInt(c, sql, storekit.TimeBound(q.Since), until, driver.MaxTotal+1)
	if f.few = n <= driver.MaxTotal; f.few {
		f.index = "INDEXED BY letter_died_at"
	}
	return err
}

func (f *letterFilter) add(condition string, arg any) {
	f.where, f.args = append(f.where, condition), append(f.args, arg)
}

// before returns the condition that selects smaller ids than one, unless it is zero, and all arguments with it.
func (f *letterFilter) before(id driver.ID) (more []string, args []any) {
	if id.IsZero() {
		return nil, f.args
	}
	return []string{"id < ?"}, append(f.args[:len(f.args):len(f.args)], id[:])
}

// from returns the FROM and WHERE of a query over the letters that SQL selects.
func (f *letterFilter) from(index string, more ...string) string {
	sql := " FROM eventbus_letter " + index
	if all := append(f.where[:len(f.where):len(f.where)], more...); len(all) > 0 {
		sql += " WHERE " + strings.Join(all, " AND ")
	}
	return sql
}

// Letters returns a page of dead letters. See [driver.Store].
//
// Indexes serve Event, Key, Fingerprint, Subscriptions, Reason, and the last two together. Since and
// Until are served by an index if at most 10,000 letters died in that time. For the other fields, Letters
// scans the letters that these fields select, up to the 10,001st match.
//
// Errors: that of LetterQuery.Parts, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Letters(ctx context.Context, q driver.LetterQuery) (page driver.LetterPage, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		f := newLetterFilter(q)
		page = driver.LetterPage{}
		if err := f.narrow(c); err != nil {
			return err
		}
		if q.Compares() {
			return s.scanLetters(c, f, &page)
		}
		return s.indexedLetters(c, f, &page)
	})
	if err != nil {
		return driver.LetterPage{}, fmt.Errorf("Letters: %w", err)
	}
	return page, nil
}

// indexedLetters reads a page that SQL selects.
func (s *Store) indexedLetters(c *sqlite3.Conn, f *letterFilter, page *driver.LetterPage) error {
	total := int64(0)
	if !f.q.NoTotal {
		var err error
		if total, err = f.total(c); err != nil {
			return err
		}
	}
	switch {
	case f.q.NoTotal:
	case total > driver.MaxTotal && !f.q.ExactTotal && len(f.where) > 0:
		page.Total, page.TotalIsMore = driver.MaxTotal, true
	default:
		page.Total = int(total)
	}
	more, args := f.before(f.q.Before)
	const order = " ORDER BY id DESC LIMIT ?"
	sql := "SELECT " + letterColumns + ", crc" + f.from(f.index, more...) + order
	if f.few || f.byTime {
		// Sorting few ids is faster than passing all newer letters.
		index := f.index
		if !f.few {
			index = "INDEXED BY sqlite_autoindex_eventbus_letter_1"
		}
		sql = "SELECT " + letterColumns + ", crc FROM eventbus_letter WHERE id IN (SELECT id" + f.from(index, more...) + order + ") ORDER BY id DESC"
	}
	size := 0
	err := query(c, sql, func(stmt *sqlite3.Stmt) error {
		if n := len(page.Letters); n == f.q.Limit || size > maxPageBytes {
			page.Next = page.Letters[n-1].ID
			return errStop
		}
		l, err := s.scanLetter(stmt)
		size += l.Size()
		page.Letters = append(page.Letters, l)
		return err
	}, append(args[:len(args):len(args)], f.q.Limit+1)...)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// total counts the letters that SQL selects. It stops at one more than driver.MaxTotal, unless the query
// asks for an exact number or matches all letters.
func (f *letterFilter) total(c *sqlite3.Conn) (int64, error) {
	switch {
	case len(f.where) == 0:
		return queryInt(c, "SELECT letters FROM eventbus_meta")
	case f.q.ExactTotal:
		return queryInt(c, "SELECT count(*)"+f.from(f.index), f.args...)
	}
	return queryInt(c, "SELECT count(*) FROM (SELECT 1"+f.from(f.index)+" LIMIT ?)", append(f.args[:len(f.args):len(f.args)], driver.MaxTotal+1)...)
}

// scanLetters compares letters one by one, newest first.
func (s *Store) scanLetters(c *sqlite3.Conn, f *letterFilter, page *driver.LetterPage) error {
	selected := storekit.Selection{Query: f.q}
	var from driver.ID // the newest letter
	if f.q.NoTotal {
		from = f.q.Before
	}
	if err := f.each(c, from, selected.Visit); err != nil {
		return err
	}
	page.Total, page.TotalIsMore = selected.Total, selected.TotalIsMore
	ids, next, size := selected.IDs, selected.IsMore, 0
	for i, id := range ids {
		if size > maxPageBytes {
			next, ids = true, ids[:i]
			break
		}
		err := query(c, "SELECT "+letterColumns+", crc FROM eventbus_letter WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			l, err := s.scanLetter(stmt)
			size += l.Size()
			page.Letters = append(page.Letters, l)
			return err
		}, id[:])
		if err != nil {
			return err
		}
	}
	if next {
		page.Next = ids[len(ids)-1]
	}
	return nil
}

// errStop ends a scan.
var errStop = errors.New("sqlite: scan stopped")

// each calls visit with the letters that match and have a smaller id than before, unless that is zero, newest first, until
// it returns false. The letters have only ID, Fingerprint and DiedAt. They and the parts are reused for the next one: to allocate them would
// take a third of the time.
func (f *letterFilter) each(c *sqlite3.Conn, before driver.ID, visit func(*driver.Letter) bool) error {
	columns, parts := "id, fingerprint, died_at, type", 4
	if f.q.Parts != nil {
		columns += ", letter, failures"
	}
	more, args := f.before(before)
	var l driver.Letter
	var details, failures []byte
	err := query(c, "SELECT "+columns+f.from(f.index, more...)+" ORDER BY id DESC", func(stmt *sqlite3.Stmt) (err error) {
		if f.q.Type != nil && !f.q.Type(stmt.ColumnText(3)) {
			return nil
		}
		if f.q.Parts != nil {
			details, failures = columnInto(details, stmt, parts), columnInto(failures, stmt, parts+1)
			if matches, err := f.q.Parts(orNone(details), orNone(failures)); err != nil {
				return &queryError{err}
			} else if !matches {
				return nil
			}
		}
		l.Fingerprint = stmt.ColumnText(1)
		stmt.ColumnBytes(0, l.ID[:])
		if l.DiedAt, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
			return err
		}
		if !visit(&l) {
			return errStop
		}
		return nil
	}, args...)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}
