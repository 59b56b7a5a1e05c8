package sqlite

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
)

// A file keeps this many audit entries. The denied ones have their own bound: otherwise somebody who
// may do nothing could push out what others did.
const (
	maxAudit  = 100_000
	maxDenied = 10_000
)

// audit adds an entry, and removes the oldest one of its kind if there are too many.
func (tx *transaction) audit(e eventbus.AuditEntry) error {
	denied, limit, place := 0, int64(maxAudit), int64(0)
	if e.Denied != "" {
		denied, limit = 1, maxDenied
	}
	// A place beyond the last number is damaged: trimming by it would remove what is not old.
	const last = "SELECT coalesce(max(number), 0), (SELECT coalesce(max(place), 0) FROM audit WHERE denied = ? AND place <= (SELECT max(number) FROM audit)) FROM audit"
	err := tx.one(last, func(stmt *sqlite3.Stmt) error {
		e.Number, place = stmt.ColumnInt64(0)+1, stmt.ColumnInt64(1)+1
		return nil
	}, denied)
	if err != nil {
		return err
	}
	number := e.Number
	e.Number, e.At, e.Until = 0, e.At.UTC(), e.Until.UTC()
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	const insert = "INSERT INTO audit (number, body, crc, denied, place) VALUES (?, ?, ?, ?, ?)"
	if _, err := tx.w.exec(insert, number, body, auditCRC(number, body), denied, place); err != nil {
		return err
	}
	tx.pages += 3
	if place > limit {
		_, err = tx.w.exec("DELETE FROM audit WHERE denied = ? AND place <= ?", denied, place-limit)
	}
	return err
}

func auditCRC(number int64, body []byte) int64 {
	sum := crc32.Checksum(binary.LittleEndian.AppendUint64(nil, uint64(number)), castagnoli)
	return int64(crc32.Update(sum, castagnoli, body))
}

// Audit returns a page of what operators did. It compares the entries one by one, at about 2 µs each. The
// file keeps the newest 100,000, and the newest 10,000 denied ones. See [eventbus.Store].
//
// Errors: *CorruptError, ErrStoreFailed, ErrStoreClosed, the context's error.
func (s *Store) Audit(ctx context.Context, q eventbus.AuditQuery) (page eventbus.AuditPage, err error) {
	before := q.Before
	if before == 0 {
		before = math.MaxInt64
	}
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		page = eventbus.AuditPage{}
		err := query(c, "SELECT number, body, crc FROM audit WHERE number < ? ORDER BY number DESC", func(stmt *sqlite3.Stmt) error {
			e, err := s.scanAudit(stmt)
			if err != nil {
				return err
			}
			if !q.Matches(&e) {
				return nil
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
		return eventbus.AuditPage{}, fmt.Errorf("Audit: %w", err)
	}
	return page, nil
}

// scanAudit reads a row of number, body and crc.
func (s *Store) scanAudit(stmt *sqlite3.Stmt) (e eventbus.AuditEntry, err error) {
	number, body := stmt.ColumnInt64(0), columnBytes(stmt, 1)
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "audit", Row: fmt.Sprint(number), Detail: detail}
	}
	if auditCRC(number, body) != stmt.ColumnInt64(2) {
		return e, corrupt("the row does not match its checksum")
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return e, corrupt(err.Error())
	}
	e.Number = number
	return e, nil
}
