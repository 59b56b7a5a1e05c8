package sqlite

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// outcome adds an outcome, after the audit entries of its batch.
func (tx *transaction) outcome(o *driver.Outcome) error {
	var number, audit int64
	const last = "SELECT (SELECT coalesce(max(number), 0) FROM eventbus_outcome), (SELECT coalesce(max(number), 0) FROM eventbus_audit)"
	err := tx.one(last, func(stmt *sqlite3.Stmt) error {
		number, audit = stmt.ColumnInt64(0)+1, stmt.ColumnInt64(1)
		return nil
	})
	if err != nil {
		return err
	}
	tx.pages += 4
	tx.bytes += len(o.Body)
	const insert = "INSERT INTO eventbus_outcome (number, event, audit, body, crc) VALUES (?, ?, ?, ?, ?)"
	_, err = tx.w.exec(insert, number, o.Event[:], audit, o.Body, outcomeCRC(number, o.Event, audit, o.Body))
	return err
}

func outcomeCRC(number int64, event driver.ID, audit int64, body []byte) int64 {
	sum := crc32.Checksum(binary.LittleEndian.AppendUint64(nil, uint64(number)), castagnoli)
	sum = crc32.Update(sum, castagnoli, event[:])
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(nil, uint64(audit)))
	return int64(crc32.Update(sum, castagnoli, body))
}

// pruneOutcomes removes outcomes that are older than the oldest audit entry that was not denied, once earlier ones were removed.
func (tx *transaction) pruneOutcomes() (done bool, err error) {
	const some = 1024
	const sql = `DELETE FROM eventbus_outcome WHERE number IN (SELECT number FROM eventbus_outcome INDEXED BY eventbus_outcome_audit
		WHERE audit < (SELECT iif(place > 1, number, 0) FROM eventbus_audit WHERE denied = 0 ORDER BY place LIMIT 1) ORDER BY audit LIMIT ?)`
	n, err := tx.w.exec(sql, some)
	tx.pages += int64(n / 8)
	reach("outcomes: pruned")
	return n < some, err
}

// Outcomes returns the outcomes of an event. The file keeps them as long as the audit entries of their time, see Audit, and
// [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Outcomes(ctx context.Context, event driver.ID) (outcomes []driver.Outcome, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		outcomes = nil
		return query(c, "SELECT "+outcomeColumns+" FROM eventbus_outcome INDEXED BY eventbus_outcome_event WHERE event = ? ORDER BY number", func(stmt *sqlite3.Stmt) error {
			o, err := s.scanOutcome(stmt)
			outcomes = append(outcomes, o)
			return err
		}, event[:])
	})
	if err != nil {
		return nil, fmt.Errorf("Outcomes(%s): %w", event, err)
	}
	return outcomes, nil
}

const outcomeColumns = "number, event, audit, body, crc"

// scanOutcome reads a row of outcomeColumns.
func (s *Store) scanOutcome(stmt *sqlite3.Stmt) (o driver.Outcome, err error) {
	number := stmt.ColumnInt64(0)
	stmt.ColumnBytes(1, o.Event[:])
	if o.Body = columnBytes(stmt, 3); stmt.ColumnLen(1) != len(o.Event) || outcomeCRC(number, o.Event, stmt.ColumnInt64(2), o.Body) != stmt.ColumnInt64(4) {
		return o, &CorruptError{Path: s.path, Table: "eventbus_outcome", Row: fmt.Sprint(number), Detail: "the row does not match its checksum"}
	}
	return o, nil
}
