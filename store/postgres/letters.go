package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

const (
	// pageRows is the number of rows that are read at a time.
	pageRows = 500
	// scanRows is that of a scan, which keeps no row.
	scanRows = 2000
	// maxPageBytes bounds the parts of the letters of a page: a page of large letters ends after the first letter beyond.
	maxPageBytes = 32 << 20
)

const letterColumns = "id, event, type, key, subscription, reason, fingerprint, published, died_at, details, failures, payload, original"

// scanLetter reads a row of letterColumns.
func scanLetter(rows pgx.Row) (l driver.Letter, err error) {
	var eventType, key, subscription, reason, fingerprint []byte
	var published, died string
	if err := rows.Scan((*[16]byte)(&l.ID), (*[16]byte)(&l.Event), &eventType, &key, &subscription, &reason, &fingerprint, &published, &died,
		&l.Details, &l.Failures, &l.Payload, &l.Original); err != nil {
		return l, err
	}
	l.Type, l.Key, l.Subscription = string(eventType), string(key), string(subscription)
	l.Reason, l.Fingerprint = string(reason), string(fingerprint)
	if l.Published, err = storekit.ParseTime(published); err == nil {
		l.DiedAt, err = storekit.ParseTime(died)
	}
	if err != nil {
		err = &CorruptError{Table: "letter", Row: l.ID.String(), Detail: err.Error()}
	}
	return l, err
}

// Letter returns a dead letter. See [driver.Store].
//
// Errors: driver.ErrNotFound, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Letter(ctx context.Context, id driver.ID) (driver.Letter, error) {
	return reading(ctx, s, "Letter("+id.String()+")", func(ctx context.Context, db querier) (driver.Letter, error) {
		l, err := scanLetter(db.QueryRow(ctx, s.sql("SELECT "+letterColumns+" FROM ~.letter WHERE id = $1"), [16]byte(id)))
		if errors.Is(err, pgx.ErrNoRows) {
			err = driver.ErrNotFound
		}
		return l, err
	})
}

// letterFilter is the part of a LetterQuery that SQL evaluates. scan evaluates the rest, Type and Parts.
type letterFilter struct {
	q     driver.LetterQuery
	where string
	args  []any
}

func newLetterFilter(q driver.LetterQuery) *letterFilter {
	f := &letterFilter{q: q, where: "true"}
	if !q.Event.IsZero() {
		f.add("event = ", [16]byte(q.Event))
	}
	if q.Key != "" {
		f.add("key <> '' AND key = ", []byte(q.Key)) // the condition of letter_key
	}
	if len(q.Subscriptions) > 0 {
		f.add("subscription = ANY", bytesOf(q.Subscriptions))
	}
	if q.Reason != "" {
		f.add("reason = ", []byte(q.Reason))
	}
	if q.Fingerprint != "" {
		f.add("fingerprint = ", []byte(q.Fingerprint))
	}
	for _, bound := range []struct {
		condition string
		at        time.Time
	}{
		{"published >= ", q.PublishedSince}, {"published <= ", q.PublishedUntil}, {"died_at >= ", q.Since}, {"died_at <= ", q.Until},
	} {
		if !bound.at.IsZero() {
			f.add(bound.condition, storekit.TimeBound(bound.at))
		}
	}
	return f
}

func (f *letterFilter) add(condition string, arg any) {
	f.args = append(f.args, arg)
	f.where += fmt.Sprintf(" AND %s($%d)", condition, len(f.args))
}

// with returns the condition and the arguments with one condition more.
func (f *letterFilter) with(condition string, arg any) *letterFilter {
	c := &letterFilter{q: f.q, where: f.where, args: slices.Clone(f.args)}
	c.add(condition, arg)
	return c
}

// fromBefore returns the filter with the condition of Before.
func (f *letterFilter) fromBefore() *letterFilter {
	if f.q.Before.IsZero() {
		return f
	}
	return f.with("id < ", [16]byte(f.q.Before))
}

// Letters returns a page of dead letters. See [driver.Store].
//
// Indexes serve Event, Key, Fingerprint, Subscriptions, Reason, Since and Until. For the other fields, Letters scans the
// letters that these fields select, up to the 10,001st match.
//
// Errors: that of LetterQuery.Parts, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	return reading(ctx, s, "Letters", func(ctx context.Context, db querier) (page driver.LetterPage, err error) {
		if f := newLetterFilter(q); q.Compares() {
			err = s.scanLetters(ctx, db, f, &page)
		} else {
			err = s.selectLetters(ctx, db, f, &page)
		}
		return page, err
	})
}

// selectLetters reads a page that SQL selects.
func (s *Store) selectLetters(ctx context.Context, db querier, f *letterFilter, page *driver.LetterPage) error {
	if !f.q.NoTotal {
		total, err := s.countLetters(ctx, db, f)
		if err != nil {
			return err
		}
		if page.Total = int(total); total > driver.MaxTotal && !f.q.ExactTotal && len(f.args) > 0 {
			page.Total, page.TotalIsMore = driver.MaxTotal, true
		}
	}
	return s.readPage(ctx, db, f.fromBefore(), page)
}

// countLetters counts the letters that SQL selects. It stops at one more than driver.MaxTotal, unless the query asks for an
// exact number or matches all letters.
func (s *Store) countLetters(ctx context.Context, db querier, f *letterFilter) (total int64, err error) {
	sql := "SELECT count(*) FROM (SELECT 1 FROM ~.letter WHERE " + f.where + fmt.Sprintf(" LIMIT %d) AS first", driver.MaxTotal+1)
	switch {
	case len(f.args) == 0:
		sql = "SELECT sum(letters)::bigint FROM ~.instance"
	case f.q.ExactTotal:
		sql = "SELECT count(*) FROM ~.letter WHERE " + f.where
	}
	err = db.QueryRow(ctx, s.sql(sql), f.args...).Scan(&total)
	return total, err
}

// readPage reads letters, newest first, until the page is full.
func (s *Store) readPage(ctx context.Context, db querier, f *letterFilter, page *driver.LetterPage) error {
	size := 0
	for from := f; ; {
		left := f.q.Limit - len(page.Letters)
		limit := min(left, pageRows) + 1
		found := 0
		err := each(ctx, db, s.sql("SELECT "+letterColumns+" FROM ~.letter WHERE "+from.where+fmt.Sprintf(" ORDER BY id DESC LIMIT %d", limit)), func(rows pgx.Rows) error {
			found++
			if n := len(page.Letters); page.Next != (driver.ID{}) || n == f.q.Limit || size > maxPageBytes {
				page.Next = page.Letters[n-1].ID
				return nil
			}
			l, err := scanLetter(rows)
			size += l.Size()
			page.Letters = append(page.Letters, l)
			return err
		}, from.args...)
		if err != nil || found < limit || !page.Next.IsZero() {
			return err
		}
		from = f.with("id < ", [16]byte(page.Letters[len(page.Letters)-1].ID))
	}
}

// scanLetters compares letters one by one, newest first.
func (s *Store) scanLetters(ctx context.Context, db querier, f *letterFilter, page *driver.LetterPage) error {
	selected := storekit.Selection{Query: f.q}
	if f.q.NoTotal {
		f = f.fromBefore()
	}
	err := s.scan(ctx, db, f, selected.Visit)
	page.Total, page.TotalIsMore = selected.Total, selected.TotalIsMore
	if err != nil || len(selected.IDs) == 0 {
		return err
	}
	whole := &letterFilter{q: f.q, where: "true"}
	if err := s.readPage(ctx, db, whole.with("id = ANY", sortedIDs(selected.IDs)), page); err != nil {
		return err
	}
	if selected.IsMore && page.Next.IsZero() {
		page.Next = page.Letters[len(page.Letters)-1].ID
	}
	return nil
}

// scan calls visit with the letters that match, newest first, until it returns false. The letters have only ID, Fingerprint
// and DiedAt, and are reused for the next one.
func (s *Store) scan(ctx context.Context, db querier, f *letterFilter, visit func(*driver.Letter) bool) error {
	columns := "id, fingerprint, died_at, type"
	if f.q.Parts != nil {
		columns += ", details, failures"
	}
	row := newScannedLetter(f.q.Parts != nil)
	for from := f; ; {
		found, stopped := 0, false
		err := each(ctx, db, s.sql("SELECT "+columns+" FROM ~.letter WHERE "+from.where+fmt.Sprintf(" ORDER BY id DESC LIMIT %d", scanRows)), func(rows pgx.Rows) error {
			found++
			matches, err := f.compare(rows, row)
			if err == nil && matches && !stopped {
				stopped = !visit(&row.letter)
			}
			return err
		}, from.args...)
		if err != nil || stopped || found < scanRows {
			return err
		}
		from = f.with("id < ", [16]byte(row.letter.ID))
	}
}

// scannedLetter has what a scan reads of a letter. The bytes are the driver's, and valid until the next row: a scan copies only what
// matches.
type scannedLetter struct {
	letter                                    driver.Letter
	fingerprint, eventType, details, failures pgtype.DriverBytes
	died                                      string
	to                                        []any // the arguments of Scan
}

func newScannedLetter(parts bool) *scannedLetter {
	row := new(scannedLetter)
	row.to = []any{(*[16]byte)(&row.letter.ID), &row.fingerprint, &row.died, &row.eventType}
	if parts {
		row.to = append(row.to, &row.details, &row.failures)
	}
	return row
}

// compare reads a row of scan, and compares it with Type and Parts.
func (f *letterFilter) compare(rows pgx.Rows, row *scannedLetter) (matches bool, err error) {
	if err := rows.Scan(row.to...); err != nil {
		return false, err
	}
	if f.q.Type != nil && !f.q.Type(string(row.eventType)) {
		return false, nil
	}
	if f.q.Parts != nil {
		if matches, err := f.q.Parts(row.details, row.failures); err != nil {
			return false, &queryError{err}
		} else if !matches {
			return false, nil
		}
	}
	l := &row.letter
	l.Fingerprint = string(row.fingerprint)
	if l.DiedAt, err = storekit.ParseTime(row.died); err != nil {
		return false, &CorruptError{Table: "letter", Row: l.ID.String(), Detail: err.Error()}
	}
	return true, nil
}

// Groups groups the letters that match. It reads the samples one by one. See [driver.Store].
//
// Errors: those of LetterQuery.Parts and each, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Groups(ctx context.Context, q driver.LetterQuery, eachGroup func(g *driver.Group) error) error {
	var groups storekit.Groups
	err := s.read(ctx, func(ctx context.Context, db querier) error {
		groups = storekit.Groups{}
		return s.countGroups(ctx, db, newLetterFilter(q), &groups)
	})
	if err == nil {
		err = s.eachGroup(ctx, &groups, eachGroup)
	}
	if err != nil {
		return fmt.Errorf("Groups: %w", err)
	}
	return nil
}

func (s *Store) eachGroup(ctx context.Context, of *storekit.Groups, eachGroup func(g *driver.Group) error) error {
	groups, others := of.Largest()
	for i := range groups {
		g := &groups[i]
		sample, err := s.Letter(ctx, g.Newest)
		if errors.Is(err, driver.ErrNotFound) { // it was taken meanwhile
			sample, err = driver.Letter{ID: g.Newest, Fingerprint: g.Fingerprint}, nil
		}
		if err != nil {
			return err
		}
		sample.Payload, sample.Original = nil, nil
		g.Sample = &sample
		if err := eachGroup(g); err != nil {
			return err
		}
	}
	if others.Count > 0 {
		return eachGroup(&others)
	}
	return nil
}

// countGroups collects the groups with their counts, times and newest letters.
func (s *Store) countGroups(ctx context.Context, db querier, f *letterFilter, groups *storekit.Groups) error {
	if f.q.Compares() {
		return s.scan(ctx, db, f, func(l *driver.Letter) bool {
			groups.Add(driver.Group{Fingerprint: l.Fingerprint, Count: 1, First: l.DiedAt, Last: l.DiedAt, Newest: l.ID})
			return true
		})
	}
	// Before Postgres 18 there is no max(uuid). Its text sorts as the bytes do.
	sql := `SELECT fingerprint, count(*), min(died_at), max(died_at), max(id::text COLLATE "C")::uuid AS newest FROM ~.letter WHERE ` + f.where + " GROUP BY fingerprint ORDER BY newest DESC"
	return each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
		var fingerprint []byte
		var first, last string
		var g driver.Group
		if err := rows.Scan(&fingerprint, &g.Count, &first, &last, (*[16]byte)(&g.Newest)); err != nil {
			return err
		}
		var err error
		g.Fingerprint = string(fingerprint)
		if g.First, err = storekit.ParseTime(first); err == nil {
			g.Last, err = storekit.ParseTime(last)
		}
		if err != nil {
			return &CorruptError{Table: "letter", Row: g.Newest.String(), Detail: err.Error()}
		}
		groups.Add(g)
		return nil
	}, f.args...)
}
