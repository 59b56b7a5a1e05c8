package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

const (
	newIncomingColumns = "event, slot, state, due, body, given, codec, crc"
	incomingColumns    = "id, " + newIncomingColumns
)

// insertOneIncoming is for the transaction of a caller. After OR ROLLBACK, an error would end it unseen, and what the caller
// executes next would commit by itself.
const insertOneIncoming = "INSERT INTO main.eventbus_incoming (" + newIncomingColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

var insertIncoming = insertStatements("INSERT OR ROLLBACK INTO main.eventbus_incoming", newIncomingColumns, func(func() string) string {
	return "(?, ?, ?, ?, ?, ?, ?, ?)"
}, 0)

// incomingArgs returns the arguments of a row of insertIncoming, of types that all drivers of database/sql take.
func incomingArgs(in *driver.Incoming) []any {
	r := in.Record
	due, given := any(nil), int64(0)
	if !r.Due.IsZero() {
		due = storekit.TimeText(r.Due)
	}
	if in.Given {
		given = 1
	}
	body := storekit.AppendBody(nil, r)
	text, _ := due.(string)
	return []any{
		r.ID[:], int64(r.Slot), int64(r.State), due, body, given, in.Codec,
		incomingCRC(r.ID[:], int64(r.Slot), int64(r.State), text, body, given, in.Codec),
	}
}

func incomingCRC(event []byte, slot, state int64, due string, body []byte, given int64, codec string) int64 {
	sum := uint32(0)
	for _, column := range [][]byte{event, []byte(due), body, []byte(codec)} {
		sum = addCRC(sum, column)
	}
	var b [24]byte
	for i, n := range []int64{slot, state, given} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
	return int64(crc32.Update(sum, castagnoli, b[:]))
}

// scanIncoming reads a row of incomingColumns.
func (s *Store) scanIncoming(stmt *sqlite3.Stmt) (*driver.Incoming, error) {
	in := &driver.Incoming{ID: driver.IncomingID(stmt.ColumnInt64(0)), Given: stmt.ColumnInt64(6) != 0, Codec: stmt.ColumnText(7)}
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "eventbus_incoming", Row: fmt.Sprint(int64(in.ID)), Detail: detail}
	}
	event, slot, state, due, body := columnBytes(stmt, 1), stmt.ColumnInt64(2), stmt.ColumnInt64(3), stmt.ColumnText(4), columnBytes(stmt, 5)
	r := &driver.Record{State: driver.State(state), Slot: driver.Slot(slot)}
	if len(event) != len(r.ID) || incomingCRC(event, slot, state, due, body, stmt.ColumnInt64(6), in.Codec) != stmt.ColumnInt64(8) {
		return nil, corrupt("the row does not match its checksum")
	}
	copy(r.ID[:], event)
	if err := storekit.DecodeBody(body, r); err != nil {
		return nil, corrupt(err.Error())
	}
	if due != "" {
		var err error
		if r.Due, err = storekit.ParseTime(due); err != nil {
			return nil, corrupt(err.Error())
		}
	}
	in.Record = r
	return in, nil
}

// leaving is a new incoming event.
type leaving struct {
	in *driver.Incoming
	id driver.IncomingID
}

// insertIncoming inserts the collected incoming events that it has not inserted yet.
func (tx *transaction) insertIncoming() error {
	rows := tx.left[tx.leftWritten:]
	tx.leftWritten = len(tx.left)
	for len(rows) > 0 {
		n, bytes := 0, 0
		for ; n < len(rows) && (n == 0 || bytes < insertBytes); n++ {
			bytes += len(rows[n].in.Record.Payload)
		}
		for _, size := range insertSizes {
			for ; n >= size; n -= size {
				if err := tx.insertIncomingRows(rows[:size]); err != nil {
					return err
				}
				reach("commit: left")
				rows = rows[size:]
			}
		}
	}
	return nil
}

func (tx *transaction) insertIncomingRows(rows []leaving) error {
	args := tx.args[:0]
	for i := range rows {
		args = append(args, incomingArgs(rows[i].in)...)
		tx.bytes += len(args[len(args)-4].([]byte)) + 64
		tx.pages++
	}
	_, err := tx.w.exec(insertIncoming[len(rows)], args...)
	clear(args)
	tx.args = args[:0]
	last := tx.w.conn.LastInsertRowID() // AUTOINCREMENT counts by one
	for i := range rows {
		rows[i].id = driver.IncomingID(last - int64(len(rows)-1-i))
	}
	return err
}

// checkRemove returns the refusal of a batch that withdraws or accepts an incoming event that is not there.
func (tx *transaction) checkRemove(b *driver.Batch) (refusal, err error) {
	if len(b.Withdraw)+len(b.Accept) == 0 {
		return nil, nil
	}
	if err := tx.insertIncoming(); err != nil { // an earlier batch may have left what this one removes
		return nil, err
	}
	const withdraws = "SELECT 1 FROM eventbus_incoming INDEXED BY eventbus_incoming_event WHERE event = ? LIMIT 1"
	for i, id := range b.Withdraw {
		found, err := tx.exists(withdraws, id[:])
		if err != nil {
			return nil, err
		}
		if !found || slices.Contains(b.Withdraw[:i], id) {
			return &driver.RefusedError{Event: id, Err: driver.ErrNotFound}, nil
		}
	}
	seen := make(map[driver.IncomingID]bool, len(b.Accept))
	for _, id := range b.Accept {
		found := false
		err := tx.one("SELECT event FROM eventbus_incoming WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			var event driver.ID
			stmt.ColumnBytes(0, event[:])
			found = !slices.Contains(b.Withdraw, event)
			return nil
		}, int64(id))
		if err != nil {
			return nil, err
		}
		if !found || seen[id] {
			return &driver.RefusedError{Incoming: id, Err: driver.ErrNotFound}, nil
		}
		seen[id] = true
	}
	return nil, nil
}

// exists reports whether a query has a row.
func (tx *transaction) exists(sql string, args ...any) (found bool, err error) {
	err = tx.one(sql, func(*sqlite3.Stmt) error {
		found = true
		return nil
	}, args...)
	return found, err
}

// remove removes the incoming events of Withdraw and Accept.
func (tx *transaction) remove(b *driver.Batch) error {
	count := func(n int, err error) error {
		tx.removed += int64(n)
		tx.pages += 2
		return err
	}
	for _, id := range b.Withdraw {
		const sql = "DELETE FROM eventbus_incoming INDEXED BY eventbus_incoming_event WHERE event = ?"
		if err := count(tx.w.exec(sql, id[:])); err != nil {
			return err
		}
		reach("batch: withdrawn")
	}
	for _, id := range b.Accept {
		if err := count(tx.w.exec("DELETE FROM eventbus_incoming WHERE id = ?", int64(id))); err != nil {
			return err
		}
		reach("batch: accepted")
	}
	return nil
}

// Incoming returns a page of the events that wait to be taken in. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Incoming(ctx context.Context, q driver.IncomingQuery) (page driver.IncomingPage, err error) {
	sql, args := "SELECT "+incomingColumns+" FROM eventbus_incoming NOT INDEXED WHERE id > ? ORDER BY id", []any{int64(q.After)}
	if !q.Event.IsZero() {
		sql = "SELECT " + incomingColumns + " FROM eventbus_incoming INDEXED BY eventbus_incoming_event WHERE id > ? AND event = ? ORDER BY id"
		args = append(args, q.Event[:])
	}
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		page = driver.IncomingPage{}
		err := query(c, sql, func(stmt *sqlite3.Stmt) error {
			if slot := stmt.ColumnInt64(2); !q.Slots.IsEmpty() && !q.Slots.Has(driver.Slot(slot)) {
				return nil
			}
			if len(page.Events) == q.Limit {
				page.More = true
				return errStop
			}
			in, err := s.scanIncoming(stmt)
			page.Events = append(page.Events, in)
			return err
		}, args...)
		if errors.Is(err, errStop) {
			return nil
		}
		return err
	})
	if err != nil {
		return driver.IncomingPage{}, fmt.Errorf("Incoming: %w", err)
	}
	return page, nil
}

// countIncoming returns the number of incoming events: those inserted, also by transactions of callers, less those removed.
func countIncoming(c *sqlite3.Conn) (int64, error) {
	inserted, err := insertedIncoming(c)
	if err != nil {
		return 0, err
	}
	removed, err := queryInt(c, "SELECT removed FROM eventbus_counter")
	return max(0, inserted-removed), err
}

// insertedIncoming returns the largest id that was used. Ids have no gaps: a transaction that is rolled back uses none.
func insertedIncoming(c *sqlite3.Conn) (int64, error) {
	return queryInt(c, "SELECT seq FROM sqlite_sequence WHERE name = 'eventbus_incoming'")
}
