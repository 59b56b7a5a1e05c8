package sqlite

import (
	"fmt"
	"strings"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Rows of an INSERT. Large statements are faster, and each number is a prepared statement.
var insertSizes = []int{64, 8, 1}

// insertBytes bounds the payloads of an INSERT, because SQLite keeps them until it ends.
const insertBytes = 1 << 20

// Statements that insert records. OR ROLLBACK saves the statement journal that SQLite otherwise
// writes for several rows: a failed INSERT makes the store fail, so the transaction is lost anyway.
//
// Most new records are plain: they share ?1 for the owner and ?2 for the checksum of the columns
// that change.
var (
	insertPlain = insertStatements("INSERT OR ROLLBACK INTO eventbus_record", "ref, position, kind, owner, event, body, crc, live_crc", func(p func() string) string {
		return "(" + p() + p() + p() + "?1," + p() + p() + p() + "?2)"
	}, 2)
	insertFull = insertStatements("INSERT OR ROLLBACK INTO eventbus_record", "ref, position, kind, event, body, crc, due, door, destination, progress, live_crc, owner, suspect, expires", func(func() string) string {
		return "(" + strings.Repeat("?,", 13) + "?)"
	}, 0)
)

// insertStatements returns a statement for each number of rows of a table. row returns a row, whose parameters
// begin behind those that the rows share.
func insertStatements(into, columns string, row func(p func() string) string, shared int) map[int]string {
	all := make(map[int]string)
	for _, n := range insertSizes {
		next := shared
		p := func() string {
			next++
			return fmt.Sprintf("?%d,", next)
		}
		rows := make([]string, n)
		for i := range rows {
			rows[i] = row(p)
		}
		all[n] = into + " (" + columns + ") VALUES " + strings.Join(rows, ",")
	}
	return all
}

// insertRecords inserts the collected records that it has not inserted yet.
func (tx *transaction) insertRecords() error {
	rows := tx.inserts[tx.written:]
	tx.written = len(tx.inserts)
	for len(rows) > 0 {
		n := tx.sameKind(rows)
		for _, size := range insertSizes {
			for ; n >= size; n -= size {
				if err := tx.insertRows(rows[:size]); err != nil {
					return err
				}
				reach("commit: inserted")
				rows = rows[size:]
			}
		}
	}
	return nil
}

// sameKind returns how many of the first rows can be part of one statement.
func (tx *transaction) sameKind(rows []insertion) int {
	plain, leased, bytes := isPlain(rows[0].record), rows[0].record.Leased, 0
	for i, row := range rows {
		if bytes += len(row.record.Payload); i > 0 && bytes > insertBytes {
			return i
		}
		if isPlain(row.record) != plain || plain && row.record.Leased != leased {
			return i
		}
	}
	return len(rows)
}

func (tx *transaction) insertRows(rows []insertion) error {
	plain := isPlain(rows[0].record)
	statements := insertFull
	if plain {
		statements = insertPlain
	}
	stmt, err := tx.w.stmt(statements[len(rows)])
	if err != nil {
		return err
	}
	p := 0
	next := func() int { p++; return p }
	if plain {
		stmt.BindInt64(next(), tx.ownerOf(rows[0].record))
		stmt.BindInt64(next(), plainCRC)
	}
	for _, row := range rows {
		r := row.record
		tx.buffer = storekit.AppendBody(tx.buffer[:0], r)
		stmt.BindInt64(next(), int64(row.ref))
		stmt.BindInt64(next(), row.position)
		stmt.BindInt64(next(), kindOf(r))
		stmt.BindBytes(next(), r.ID[:])
		stmt.BindBytes(next(), tx.buffer)
		stmt.BindInt64(next(), fixedCRC(row.ref, row.position, r.ID[:], tx.buffer))
		tx.bytes += len(tx.buffer) + 64
		if plain {
			continue
		}
		live := encodeLive(r)
		live.bind(stmt, next(), next(), next(), next())
		stmt.BindInt64(next(), live.crc)
		stmt.BindInt64(next(), tx.ownerOf(r))
		stmt.BindBool(next(), r.Suspect)
		bindText(stmt, next(), timeColumn(r.Expires))
	}
	return run(stmt, nil)
}

func kindOf(r *driver.Record) int64 {
	kind := int64(r.State)
	if r.Key != "" {
		kind |= kindKeyed
	}
	return kind
}
