package sqlite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
)

const (
	// maxTotal bounds LetterPage.Total, unless the query asks for an exact one.
	maxTotal = 10_000
	// maxPageBytes bounds the payloads and failures of a page: a page of large letters ends after the first letter
	// beyond.
	maxPageBytes = 32 << 20
)

// letterFilter is the part of a LetterQuery that SQL evaluates. Matcher evaluates the rest.
type letterFilter struct {
	q       eventbus.LetterQuery
	where   []string
	args    []any
	index   string                          // INDEXED BY, or empty for the planner's choice
	byTime  bool                            // only the time of death selects
	scan    bool                            // each letter is compared
	matches func(*eventbus.DeadLetter) bool // if scan is set
}

func newLetterFilter(q eventbus.LetterQuery) (*letterFilter, error) {
	f := &letterFilter{q: q, scan: q.Type != "" || q.Error != "" || q.MetadataName != ""}
	if !q.Event.IsZero() {
		f.add("event = ?", q.Event[:])
	}
	if q.Key != "" {
		f.add("key <> '' AND key = ?", q.Key) // the condition of letter_key
	}
	if names := q.Names(); len(names) > 0 {
		f.add("subscription IN (?"+strings.Repeat(", ?", len(names)-1)+")", names[0])
		for _, name := range names[1:] {
			f.args = append(f.args, name)
		}
	}
	for _, c := range []struct {
		column, value string
	}{
		{"reason", string(q.Reason)}, {"fingerprint", q.Fingerprint},
	} {
		if c.value != "" {
			f.add(c.column+" = ?", c.value)
		}
	}
	indexed := len(f.where) > 0
	if !q.PublishedSince.IsZero() {
		f.add("published >= ?", timeBound(q.PublishedSince))
	}
	if !q.PublishedUntil.IsZero() {
		f.add("published <= ?", timeBound(q.PublishedUntil))
	}
	f.byTime = len(f.where) == 0 && !(q.Since.IsZero() && q.Until.IsZero())
	if !q.Since.IsZero() {
		f.add("died_at >= ?", timeBound(q.Since))
	}
	if !q.Until.IsZero() {
		f.add("died_at <= ?", timeBound(q.Until))
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
	case indexed && q.Subscription == "":
		f.index = "INDEXED BY letter_reason"
	case indexed:
		f.index = "INDEXED BY letter_subscription_reason"
	}
	if !f.scan {
		return f, nil
	}
	var err error
	f.matches, err = q.Matcher()
	return f, err
}

func (f *letterFilter) add(condition string, arg any) {
	f.where, f.args = append(f.where, condition), append(f.args, arg)
}

// from returns the FROM and WHERE of a query over the letters that SQL selects.
func (f *letterFilter) from(index string, more ...string) string {
	sql := " FROM letter " + index
	if all := append(f.where[:len(f.where):len(f.where)], more...); len(all) > 0 {
		sql += " WHERE " + strings.Join(all, " AND ")
	}
	return sql
}

// Letters returns a page of dead letters. See [eventbus.Store].
//
// Indexes serve Event, Key, Fingerprint, Subscription, Reason, and the last two together. Since and
// Until are served by an index if at most 10,000 letters match them. For the other fields, Letters
// scans the letters that these fields select, up to the 10,001st match.
//
// Errors: *PatternError, *CorruptError, ErrStoreFailed, ErrStoreClosed, the context's error.
func (s *Store) Letters(ctx context.Context, q eventbus.LetterQuery) (page eventbus.LetterPage, err error) {
	f, err := newLetterFilter(q)
	if err == nil {
		err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
			page = eventbus.LetterPage{}
			if f.scan {
				return s.scanLetters(c, f, &page)
			}
			return s.indexedLetters(c, f, &page)
		})
	}
	if err != nil {
		return eventbus.LetterPage{}, fmt.Errorf("Letters: %w", err)
	}
	return page, nil
}

// indexedLetters reads a page that SQL selects.
func (s *Store) indexedLetters(c *sqlite3.Conn, f *letterFilter, page *eventbus.LetterPage) error {
	total, err := s.total(c, f)
	if err != nil {
		return err
	}
	if page.Total = int(total); total > maxTotal && !f.q.ExactTotal && len(f.where) > 0 {
		page.Total, page.TotalIsMore = maxTotal, true
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
		if total > maxTotal {
			index = "INDEXED BY sqlite_autoindex_letter_1"
		}
		sql = "SELECT " + letterColumns + ", crc FROM letter WHERE id IN (SELECT id" + f.from(index, more...) + order + ") ORDER BY id DESC"
	}
	size := 0
	err = query(c, sql, func(stmt *sqlite3.Stmt) error {
		if n := len(page.Letters); n == f.q.Limit || size > maxPageBytes {
			page.Next = page.Letters[n-1].ID
			return errStop
		}
		l, err := s.scanLetter(stmt)
		size += letterWeight(&l)
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
	query   eventbus.LetterQuery
	store   storeID
	commits int64
	total   int64
}

// total returns f.total. It keeps the last one, which holds until the next commit. The caller has s.reads.
func (s *Store) total(c *sqlite3.Conn, f *letterFilter) (int64, error) {
	if len(f.where) == 0 {
		return f.total(c)
	}
	m, err := s.readMeta(c)
	if err != nil {
		return 0, err
	}
	q := f.q
	q.Limit, q.Before = 0, eventbus.LetterID{}
	if k := s.counted; k.query == q && k.store == m.store && k.commits == m.commits {
		return k.total, nil
	}
	total, err := f.total(c)
	if err == nil {
		s.counted = countedLetters{q, m.store, m.commits, total}
	}
	return total, err
}

// total counts the letters that SQL selects. It stops at one more than maxTotal, unless the query
// asks for an exact number or matches all letters.
func (f *letterFilter) total(c *sqlite3.Conn) (int64, error) {
	if len(f.where) == 0 {
		return queryInt(c, "SELECT letters FROM meta")
	}
	if f.q.ExactTotal {
		return queryInt(c, "SELECT count(*)"+f.from(f.index), f.args...)
	}
	return queryInt(c, "SELECT count(*) FROM (SELECT 1"+f.from(f.index)+" LIMIT ?)", append(f.args[:len(f.args):len(f.args)], maxTotal+1)...)
}

// scanLetters compares letters one by one, newest first.
func (s *Store) scanLetters(c *sqlite3.Conn, f *letterFilter, page *eventbus.LetterPage) error {
	var next bool
	var ids []eventbus.LetterID
	err := f.each(c, func(l *eventbus.DeadLetter) bool {
		older := f.q.Before.IsZero() || bytes.Compare(l.ID[:], f.q.Before[:]) < 0
		switch {
		case !older || next:
		case len(ids) == f.q.Limit:
			next = true
		default:
			ids = append(ids, l.ID)
		}
		if page.Total == maxTotal && !f.q.ExactTotal {
			page.TotalIsMore = true
		} else {
			page.Total++
		}
		return !(next && page.TotalIsMore)
	})
	if err != nil {
		return err
	}
	size := 0
	for i, id := range ids {
		if size > maxPageBytes {
			next, ids = true, ids[:i]
			break
		}
		err := query(c, "SELECT "+letterColumns+", crc FROM letter WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			l, err := s.scanLetter(stmt)
			size += letterWeight(&l)
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
// have only the fields that a filter compares.
func (f *letterFilter) each(c *sqlite3.Conn, visit func(*eventbus.DeadLetter) bool) error {
	columns, failures, rest := "id, event, type, key, subscription, reason, fingerprint, published, died_at", 0, 0
	next := strings.Count(columns, ",") + 1
	if f.q.Error != "" {
		columns, failures, next = columns+", failures", next, next+1
	}
	if f.q.MetadataName != "" {
		columns, rest = columns+", letter", next
	}
	err := query(c, "SELECT "+columns+f.from(f.index)+" ORDER BY id DESC", func(stmt *sqlite3.Stmt) (err error) {
		l := new(eventbus.DeadLetter)
		if rest > 0 {
			var text struct {
				Event struct {
					Metadata eventbus.EventMetadata `json:"metadata"`
				} `json:"event"`
			}
			if err := json.Unmarshal(columnBytes(stmt, rest), &text); err != nil {
				return err
			}
			l.Event.Metadata = text.Event.Metadata
		}
		if failures > 0 {
			if err := json.Unmarshal(columnBytes(stmt, failures), &l.Failures); err != nil {
				return err
			}
		}
		stmt.ColumnBytes(0, l.ID[:])
		stmt.ColumnBytes(1, l.Event.ID[:])
		l.Event.Type, l.Event.Key = stmt.ColumnText(2), stmt.ColumnText(3)
		l.Subscription, l.Reason, l.Fingerprint = stmt.ColumnText(4), eventbus.Reason(stmt.ColumnText(5)), stmt.ColumnText(6)
		if l.Event.Time, err = parseTime(stmt.ColumnText(7)); err != nil {
			return err
		}
		if l.DiedAt, err = parseTime(stmt.ColumnText(8)); err != nil {
			return err
		}
		if f.matches(l) && !visit(l) {
			return errStop
		}
		return nil
	}, f.args...)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}
