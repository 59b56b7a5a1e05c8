package sqlite

import (
	"context"
	"fmt"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Groups groups the letters that match. It reads the samples one by one. See [driver.Store].
//
// Errors: those of LetterQuery.Parts and each, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Groups(ctx context.Context, q driver.LetterQuery, each func(g *driver.Group) error) error {
	err := s.reads.read(ctx, func(c *sqlite3.Conn) error {
		f := newLetterFilter(q)
		if err := f.narrow(c); err != nil {
			return err
		}
		return s.groupLetters(c, f, each)
	})
	if err != nil {
		return fmt.Errorf("Groups: %w", err)
	}
	return nil
}

func (s *Store) groupLetters(c *sqlite3.Conn, f *letterFilter, each func(g *driver.Group) error) error {
	var all storekit.Groups
	if err := f.count(c, &all); err != nil {
		return err
	}
	groups, others := all.Largest()
	if others.Count > 0 {
		groups = append(groups, others)
	}
	for _, g := range groups {
		err := query(c, "SELECT "+letterColumns+", crc FROM eventbus_letter WHERE id = ? AND ? <> ''", func(stmt *sqlite3.Stmt) error {
			l, err := s.scanLetter(stmt)
			l.Payload, l.Original = nil, nil
			g.Sample = &l
			return err
		}, g.Newest[:], g.Fingerprint)
		if err != nil {
			return err
		}
		if err := each(&g); err != nil {
			return &queryError{err}
		}
	}
	return nil
}

// count collects the groups with their counts, times and newest letters.
func (f *letterFilter) count(c *sqlite3.Conn, groups *storekit.Groups) error {
	if f.q.Compares() {
		return f.each(c, driver.ID{}, func(l *driver.Letter) bool {
			groups.Add(driver.Group{Fingerprint: l.Fingerprint, Count: 1, First: l.DiedAt, Last: l.DiedAt, Newest: l.ID})
			return true
		})
	}
	index := f.index
	switch {
	case len(f.where) == 0:
		index = "INDEXED BY letter_fingerprint" // has all columns
	case index == "" && !f.byTime:
		index = "NOT INDEXED" // by the time of publication: to sort takes half as long as to look up each row from an index
	}
	const columns = "SELECT fingerprint, count(*), min(died_at), max(died_at), max(id) AS newest"
	return query(c, columns+f.from(index)+" GROUP BY fingerprint ORDER BY newest DESC", func(stmt *sqlite3.Stmt) error {
		g := driver.Group{Fingerprint: stmt.ColumnText(0), Count: stmt.ColumnInt(1)}
		stmt.ColumnBytes(4, g.Newest[:])
		var err error
		if g.First, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
			return err
		}
		if g.Last, err = storekit.ParseTime(stmt.ColumnText(3)); err != nil {
			return err
		}
		groups.Add(g)
		return nil
	}, f.args...)
}
