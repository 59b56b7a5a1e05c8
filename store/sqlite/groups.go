package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Groups groups the letters that match. It reads the samples one by one. See [driver.Store].
//
// Errors: those of LetterQuery.Parts and each, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Groups(ctx context.Context, q driver.LetterQuery, each func(g *driver.Group) error) error {
	err := s.reads.read(ctx, func(c *sqlite3.Conn) error { return s.groupLetters(c, newLetterFilter(q), each) })
	if err != nil {
		return fmt.Errorf("Groups: %w", err)
	}
	return nil
}

func (s *Store) groupLetters(c *sqlite3.Conn, f *letterFilter, each func(g *driver.Group) error) error {
	groups, others, err := f.count(c)
	if err != nil {
		return err
	}
	slices.SortFunc(groups, func(x, y driver.Group) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), bytes.Compare(y.Newest[:], x.Newest[:]))
	})
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

// count returns the groups with their counts, times and newest letters. others counts the letters
// beyond the limit.
func (f *letterFilter) count(c *sqlite3.Conn) (groups []driver.Group, others driver.Group, err error) {
	if f.q.Compares() {
		return f.countByScan(c)
	}
	index := f.index
	if len(f.where) == 0 {
		index = "INDEXED BY letter_fingerprint" // has all columns
	}
	const columns = "SELECT fingerprint, count(*), min(died_at), max(died_at), max(id) AS newest"
	err = query(c, columns+f.from(index)+" GROUP BY fingerprint ORDER BY newest DESC", func(stmt *sqlite3.Stmt) error {
		g := driver.Group{Fingerprint: stmt.ColumnText(0), Count: stmt.ColumnInt(1)}
		stmt.ColumnBytes(4, g.Newest[:])
		var err error
		if g.First, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
			return err
		}
		if g.Last, err = storekit.ParseTime(stmt.ColumnText(3)); err != nil {
			return err
		}
		if len(groups) < driver.MaxGroups {
			groups = append(groups, g)
		} else {
			addToGroup(&others, g.Count, g.First, g.Last, g.Newest)
		}
		return nil
	}, f.args...)
	return groups, others, err
}

func (f *letterFilter) countByScan(c *sqlite3.Conn) (groups []driver.Group, others driver.Group, err error) {
	index := make(map[string]int)
	err = f.each(c, func(l *driver.Letter) bool {
		i, ok := index[l.Fingerprint]
		switch {
		case ok:
			addToGroup(&groups[i], 1, l.DiedAt, l.DiedAt, l.ID)
		case len(groups) == driver.MaxGroups:
			addToGroup(&others, 1, l.DiedAt, l.DiedAt, l.ID)
		default:
			index[l.Fingerprint] = len(groups)
			groups = append(groups, driver.Group{Fingerprint: l.Fingerprint})
			addToGroup(&groups[len(groups)-1], 1, l.DiedAt, l.DiedAt, l.ID)
		}
		return true
	})
	return groups, others, err
}

func addToGroup(g *driver.Group, count int, first, last time.Time, newest driver.ID) {
	if g.Count == 0 || first.Before(g.First) {
		g.First = first
	}
	if g.Count == 0 || last.After(g.Last) {
		g.Last = last
	}
	if bytes.Compare(newest[:], g.Newest[:]) > 0 {
		g.Newest = newest
	}
	g.Count += count
}
