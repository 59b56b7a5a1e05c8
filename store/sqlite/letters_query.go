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

func (f *letterFilter) add(condition string, arg any) {
	f.where, f.args = append(f.where, condition), append(f.args, arg)
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
// Until are served by an index if at most 10,000 letters match them. For the other fields, Letters
// scans the letters that these fields select, up to the 10,001st match.
//
// Errors: that of LetterQuery.Parts, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Letters(ctx context.Context, q driver.LetterQuery) (page driver.LetterPage, err error) {
	f := newLetterFilter(q)
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		page = driver.LetterPage{}
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
	total, err := s.total(c, f)
	if err != nil {
		return err
	}
	if page.Total = int(total); total > driver.MaxTotal && !f.q.ExactTotal && len(f.where) > 0 {
		page.Total, page.TotalIsMore = driver.MaxTotal, true
	}
	var more []string
	args := f.args[:len(f.args):len(f.args)]
	if !f.q.Before.IsZero() {
		more, args = append(more, "id < ?"), append(args, f.q.Before[:])
	}
	const order = " ORDER BY id DESC LIMIT ?"
	sql := "SELECT " + letterColumns + ", crc" + f.from(f.index, more...) + order
	if f.byTime {
		// Sorting few ids is faster than passing all newer letters.
		index := "INDEXED BY letter_died_at"
		if total > driver.MaxTotal {
			index = "INDEXED BY sqlite_autoindex_eventbus_letter_1"
		}
		sql = "SELECT " + letterColumns + ", crc FROM eventbus_letter WHERE id IN (SELECT id" + f.from(index, more...) + order + ") ORDER BY id DESC"
	}
	size := 0
	err = query(c, sql, func(stmt *sqlite3.Stmt) error {
		if n := len(page.Letters); n == f.q.Limit || size > maxPageBytes {
			page.Next = page.Letters[n-1].ID
			return errStop
		}
		l, err := s.scanLetter(stmt)
		size += l.Size()
		page.Letters = append(page.Letters, l)
		return err
	}, append(args, f.q.Limit+1)...)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// countedLetters is a total, and what it was counted of. A bulk operation reads many pages of one query, and
// counting may take longer than reading a page.
type countedLetters struct {
	query   string // the SQL and its arguments
	store   storeID
	commits int64
	total   int64
}

// total counts the letters that SQL selects. It stops at one more than driver.MaxTotal, unless the query
// asks for an exact number or matches all letters. It keeps the last total, which holds until the next commit.
// The caller has s.reads.
func (s *Store) total(c *sqlite3.Conn, f *letterFilter) (int64, error) {
	if len(f.where) == 0 {
		return queryInt(c, "SELECT letters FROM eventbus_meta")
	}
	m, err := s.readMeta(c)
	if err != nil {
		return 0, err
	}
	sql, args := "SELECT count(*)"+f.from(f.index), f.args
	if !f.q.ExactTotal {
		sql, args = "SELECT count(*) FROM (SELECT 1"+f.from(f.index)+" LIMIT ?)", append(args[:len(args):len(args)], driver.MaxTotal+1)
	}
	text := fmt.Sprintf("%s %q", sql, args)
	if k := s.counted; k.query == text && k.store == m.store && k.commits == m.commits {
		return k.total, nil
	}
	total, err := queryInt(c, sql, args...)
	if err == nil {
		s.counted = countedLetters{text, m.store, m.commits, total}
	}
	return total, err
}

// scanLetters compares letters one by one, newest first.
func (s *Store) scanLetters(c *sqlite3.Conn, f *letterFilter, page *driver.LetterPage) error {
	selected := storekit.Selection{Query: f.q}
	if err := f.each(c, selected.Visit); err != nil {
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

// each calls visit with the letters that match, newest first, until it returns false. The letters
// have only ID, Fingerprint and DiedAt.
func (f *letterFilter) each(c *sqlite3.Conn, visit func(*driver.Letter) bool) error {
	columns, parts := "id, fingerprint, died_at, type", 4
	if f.q.Parts != nil {
		columns += ", letter, failures"
	}
	err := query(c, "SELECT "+columns+f.from(f.index)+" ORDER BY id DESC", func(stmt *sqlite3.Stmt) (err error) {
		if f.q.Type != nil && !f.q.Type(stmt.ColumnText(3)) {
			return nil
		}
		if f.q.Parts != nil {
			if matches, err := f.q.Parts(orNone(columnBytes(stmt, parts)), orNone(columnBytes(stmt, parts+1))); err != nil {
				return &queryError{err}
			} else if !matches {
				return nil
			}
		}
		l := &driver.Letter{Fingerprint: stmt.ColumnText(1)}
		stmt.ColumnBytes(0, l.ID[:])
		if l.DiedAt, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
			return err
		}
		if !visit(l) {
			return errStop
		}
		return nil
	}, f.args...)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}
