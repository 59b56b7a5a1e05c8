package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// A file keeps this many audit entries. The denied ones have their own bound: otherwise somebody who
// may do nothing could push out what others did.
const (
	maxAudit  = 100_000
	maxDenied = 10_000
)

// audit adds an entry, and removes the oldest one of its kind if there are too many.
func (tx *transaction) audit(e *driver.AuditEntry) error {
	denied, limit, number, place := 0, int64(maxAudit), int64(0), int64(0)
	if e.Denied {
		denied, limit = 1, maxDenied
	}
	// A place beyond the last number is damaged: trimming by it would remove what is not old.
	const last = "SELECT coalesce(max(number), 0), (SELECT coalesce(max(place), 0) FROM eventbus_audit WHERE denied = ? AND place <= (SELECT max(number) FROM eventbus_audit)) FROM eventbus_audit"
	err := tx.one(last, func(stmt *sqlite3.Stmt) error {
		number, place = stmt.ColumnInt64(0)+1, stmt.ColumnInt64(1)+1
		return nil
	}, denied)
	if err != nil {
		return err
	}
	const insert = "INSERT INTO eventbus_audit (number, body, crc, denied, place) VALUES (?, ?, ?, ?, ?)"
	if _, err := tx.w.exec(insert, number, e.Body, auditCRC(number, e.Body), denied, place); err != nil {
		return err
	}
	tx.pages += 3
	if place > limit {
		_, err = tx.w.exec("DELETE FROM eventbus_audit WHERE denied = ? AND place <= ?", denied, place-limit)
	}
	return err
}

func auditCRC(number int64, body []byte) int64 {
	sum := crc32.Checksum(binary.LittleEndian.AppendUint64(nil, uint64(number)), castagnoli)
	return int64(crc32.Update(sum, castagnoli, body))
}

// Audit returns a page of what operators did. It compares the entries one by one, at about 2 µs each. The
// file keeps the newest 100,000, and the newest 10,000 denied ones. See [driver.Store].
//
// Errors: that of AuditQuery.Match, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Audit(ctx context.Context, q driver.AuditQuery) (page driver.AuditPage, err error) {
	before := q.Before
	if before == 0 {
		before = math.MaxInt64
	}
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		page = driver.AuditPage{}
		err := query(c, "SELECT number, body, crc, denied FROM eventbus_audit WHERE number < ? ORDER BY number DESC", func(stmt *sqlite3.Stmt) error {
			e, err := s.scanAudit(stmt)
			if err != nil {
				return err
			}
			if q.Match != nil {
				if matches, err := q.Match(&e); err != nil {
					return &queryError{err}
				} else if !matches {
					return nil
				}
			}
			if len(page.Entries) == q.Limit {
				page.Next = page.Entries[q.Limit-1].Number
				return errStop
			}
			page.Entries = append(page.Entries, e)
			return nil
		}, before)
		if errors.Is(err, errStop) {
			return nil
		}
		return err
	})
	if err != nil {
		return driver.AuditPage{}, fmt.Errorf("Audit: %w", err)
	}
	return page, nil
}

// scanAudit reads a row of number, body, crc and denied.
func (s *Store) scanAudit(stmt *sqlite3.Stmt) (e driver.AuditEntry, err error) {
	e = driver.AuditEntry{Number: stmt.ColumnInt64(0), Body: columnBytes(stmt, 1), Denied: stmt.ColumnBool(3)}
	if auditCRC(e.Number, e.Body) != stmt.ColumnInt64(2) {
		return e, &CorruptError{Path: s.path, Table: "eventbus_audit", Row: fmt.Sprint(e.Number), Detail: "the row does not match its checksum"}
	}
	return e, nil
}
