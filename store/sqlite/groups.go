package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
)

// maxGroups is the largest number of groups that Groups returns, without the one for all others.
const maxGroups = 10_000

// Groups returns the groups of the letters that match. See [eventbus.Store].
//
// Errors: *PatternError, *CorruptError, ErrStoreFailed, ErrStoreClosed, the context's error.
func (s *Store) Groups(ctx context.Context, q eventbus.LetterQuery) (groups []eventbus.LetterGroup, err error) {
	f, err := newLetterFilter(q)
	if err == nil {
		err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
			groups, err = s.groupLetters(c, f)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("Groups: %w", err)
	}
	return groups, nil
}

func (s *Store) groupLetters(c *sqlite3.Conn, f *letterFilter) ([]eventbus.LetterGroup, error) {
	groups, others, err := f.count(c)
	if err != nil {
		return nil, err
	}
	for i := range groups {
		g := &groups[i]
		err := query(c, "SELECT "+letterColumns+", crc FROM letter WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			l, err := s.scanLetter(stmt)
			if err != nil {
				return err
			}
			of := l.Group()
			g.Subscription, g.Class, g.Message = of.Subscription, of.Class, of.Message
			return nil
		}, g.Newest[:])
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(groups, func(x, y eventbus.LetterGroup) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), bytes.Compare(y.Newest[:], x.Newest[:]))
	})
	if others.Count > 0 {
		others.Message = fmt.Sprintf("(beyond %d groups)", maxGroups)
		groups = append(groups, others)
	}
	return groups, nil
}

// count returns the groups with their counts, times and newest letters. others counts the letters
// beyond the limit.
func (f *letterFilter) count(c *sqlite3.Conn) (groups []eventbus.LetterGroup, others eventbus.LetterGroup, err error) {
	if f.scan {
		return f.countByScan(c)
	}
	index := f.index
	if len(f.where) == 0 {
		index = "INDEXED BY letter_fingerprint" // has all columns
	}
	const columns = "SELECT fingerprint, count(*), min(died_at), max(died_at), max(id) AS newest"
	err = query(c, columns+f.from(index)+" GROUP BY fingerprint ORDER BY newest DESC", func(stmt *sqlite3.Stmt) error {
		g := eventbus.LetterGroup{Fingerprint: stmt.ColumnText(0), Count: stmt.ColumnInt(1)}
		stmt.ColumnBytes(4, g.Newest[:])
		var err error
		if g.First, err = parseTime(stmt.ColumnText(2)); err != nil {
			return err
		}
		if g.Last, err = parseTime(stmt.ColumnText(3)); err != nil {
			return err
		}
		if len(groups) < maxGroups {
			groups = append(groups, g)
		} else {
			addToGroup(&others, g.Count, g.First, g.Last, g.Newest)
		}
		return nil
	}, f.args...)
	return groups, others, err
}

func (f *letterFilter) countByScan(c *sqlite3.Conn) (groups []eventbus.LetterGroup, others eventbus.LetterGroup, err error) {
	index := make(map[string]int)
	err = f.each(c, func(l *eventbus.DeadLetter) bool {
		i, ok := index[l.Fingerprint]
		switch {
		case ok:
			addToGroup(&groups[i], 1, l.DiedAt, l.DiedAt, l.ID)
		case len(groups) == maxGroups:
			addToGroup(&others, 1, l.DiedAt, l.DiedAt, l.ID)
		default:
			index[l.Fingerprint] = len(groups)
			groups = append(groups, eventbus.LetterGroup{Fingerprint: l.Fingerprint})
			addToGroup(&groups[len(groups)-1], 1, l.DiedAt, l.DiedAt, l.ID)
		}
		return true
	})
	return groups, others, err
}

func addToGroup(g *eventbus.LetterGroup, count int, first, last time.Time, newest eventbus.LetterID) {
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
