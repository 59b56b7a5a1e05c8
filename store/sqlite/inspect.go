package sqlite

import (
	"context"
	"errors"
	"fmt"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Lookup returns the unsettled records of an event. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Lookup(ctx context.Context, id driver.ID) (records []*driver.Record, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		m, err := s.readMeta(c)
		if err != nil {
			return err
		}
		return query(c, "SELECT "+recordColumns+" FROM eventbus_record INDEXED BY record_event WHERE event = ? ORDER BY ref", func(stmt *sqlite3.Stmt) error {
			r, owner, err := s.scanRecord(stmt)
			if err == nil {
				r.Leased = m.held && owner == m.epoch
				records = append(records, r)
			}
			return err
		}, id[:])
	})
	if err != nil {
		return nil, fmt.Errorf("Lookup(%s): %w", id, err)
	}
	return records, nil
}

// Records returns a page of records. Each record after q.After is read and compared, apart from those
// in other States. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Records(ctx context.Context, q driver.RecordQuery) (page driver.RecordPage, err error) {
	states := 0 // a bit for each
	for _, state := range q.States {
		states |= 1 << state
	}
	if states == 0 {
		states = 1<<(kindStateMask+1) - 1
	}
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		page = driver.RecordPage{}
		m, err := s.readMeta(c)
		if err != nil {
			return err
		}
		const sql = "SELECT " + recordColumns + " FROM eventbus_record NOT INDEXED WHERE ref > ? AND (? >> (kind & 3)) & 1 ORDER BY ref"
		err = query(c, sql, func(stmt *sqlite3.Stmt) error {
			r, owner, err := s.scanRecord(stmt)
			if err != nil || !q.Matches(r) {
				return err
			}
			if len(page.Records) == q.Limit {
				page.Next = page.Records[q.Limit-1].Ref
				return errStop
			}
			r.Leased = m.held && owner == m.epoch
			page.Records = append(page.Records, r)
			return nil
		}, int64(q.After), states)
		if errors.Is(err, errStop) {
			return nil
		}
		return err
	})
	if err != nil {
		return driver.RecordPage{}, fmt.Errorf("Records: %w", err)
	}
	return page, nil
}

// Remembered returns a remembered id. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Remembered(ctx context.Context, scope, key string) (d driver.Dedupe, known bool, err error) {
	const sql = "SELECT event, content, expires FROM eventbus_dedupe WHERE scope = ? AND key = ?"
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		d, known = driver.Dedupe{}, false
		return query(c, sql, func(stmt *sqlite3.Stmt) (err error) {
			d, known = driver.Dedupe{Scope: scope, Key: key, Content: stmt.ColumnText(1)}, true
			stmt.ColumnBytes(0, d.Event[:])
			if d.Expires, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
				return &CorruptError{Path: s.path, Table: "eventbus_dedupe", Row: key, Detail: err.Error()}
			}
			return nil
		}, scope, key)
	})
	if err != nil {
		return driver.Dedupe{}, false, fmt.Errorf("Remembered: %w", err)
	}
	return d, known, nil
}

// Directives returns the directives. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Directives(ctx context.Context) (directives []driver.Directive, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		return query(c, "SELECT subscription, body, crc FROM eventbus_directive ORDER BY subscription", func(stmt *sqlite3.Stmt) error {
			d, err := s.scanDirective(stmt)
			directives = append(directives, d)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("Directives: %w", err)
	}
	return directives, nil
}

// Stats returns the counts that each commit updates. It reads three rows. See [driver.Store].
//
// The records of a bus that was killed count as leased until the next store acquires the lease.
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Stats(ctx context.Context) (stats driver.Stats, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		m, err := s.readMeta(c)
		stats = driver.Stats{
			Ready: m.states[0], Waiting: m.states[1], Scheduled: m.states[2], Parked: m.states[3],
			Letters: m.letters,
		}
		stats.Free = stats.Unsettled() - m.leased
		if err == nil {
			stats.Incoming, err = countIncoming(c)
		}
		return err
	})
	if err != nil {
		return driver.Stats{}, fmt.Errorf("Stats: %w", err)
	}
	return stats, nil
}

// maxParked bounds the records that Parked counts.
const maxParked = 100_000

// Parked counts parked records by door. It reads an index: an entry for each door and for each counted record. See
// [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Parked(ctx context.Context, except map[string]bool) (doors map[string]int64, err error) {
	const from = "FROM eventbus_record INDEXED BY record_parked WHERE " + whereParked
	doors = make(map[string]int64)
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		left := int64(maxParked)
		for door, found := "", true; found && left > 0; {
			found = false
			err := query(c, "SELECT door "+from+" AND door > ? ORDER BY door LIMIT 1", func(stmt *sqlite3.Stmt) error {
				door, found = stmt.ColumnText(0), true
				return nil
			}, door)
			if err != nil || !found {
				return err
			}
			if except[door] {
				continue
			}
			n, err := queryInt(c, "SELECT count(*) FROM (SELECT 1 "+from+" AND door = ? LIMIT ?)", door, left)
			if err != nil {
				return err
			}
			doors[door] = n
			left -= n
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Parked: %w", err)
	}
	return doors, nil
}

func (s *Store) readMeta(c *sqlite3.Conn) (meta, error) {
	stmt, err := c.Prepare(metaQuery)
	if err != nil {
		return meta{}, err
	}
	return readMeta(stmt, s.path)
}
