package sqlite

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fixedCRC is the checksum of the columns of a record that never change.
func fixedCRC(ref driver.Ref, position int64, event, body []byte) int64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(ref))
	binary.LittleEndian.PutUint64(b[8:], uint64(position))
	sum := crc32.Update(0, castagnoli, b[:])
	sum = crc32.Update(sum, castagnoli, event)
	return int64(crc32.Update(sum, castagnoli, body))
}

// live has the columns of a record that change with each update, encoded. owner, crashes and suspect
// are not part of the checksum: Claim changes them in many rows at once.
type live struct {
	due, door, destination string
	progress               []byte
	crc                    int64
}

func encodeLive(r *driver.Record) live {
	l := live{due: timeColumn(r.Due), door: r.Door, destination: r.Destination, progress: r.Progress}
	l.crc = liveCRC(r.State, l.due, l.door, l.destination, l.progress)
	return l
}

// timeColumn returns the text of a column, "" for the zero time.
func timeColumn(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return storekit.TimeText(t)
}

// plainCRC is the checksum of a new record that is ready.
var plainCRC = liveCRC(driver.Ready, "", "", "", nil)

// isPlain reports whether a new record has only zero values in the columns that change, and never expires.
func isPlain(r *driver.Record) bool {
	return r.State == driver.Ready && r.Due.IsZero() && r.Door == "" && r.Destination == "" && r.Progress == nil && !r.Suspect && r.Expires.IsZero()
}

// liveCRC leaves an empty destination out, as rows of earlier schemas do.
func liveCRC(state driver.State, due, door, destination string, progress []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte{byte(state), byte(len(due))})
	sum = crc32.Update(sum, castagnoli, []byte(due))
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(len(door))))
	sum = crc32.Update(sum, castagnoli, []byte(door))
	sum = crc32.Update(sum, castagnoli, progress)
	if destination != "" {
		sum = crc32.Update(sum, castagnoli, []byte(destination))
		sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(len(destination))))
	}
	return int64(sum)
}

// bind binds the columns, NULL for empty ones.
func (l *live) bind(stmt *sqlite3.Stmt, due, door, destination, progress int) {
	bindText(stmt, due, l.due)
	bindText(stmt, door, l.door)
	bindText(stmt, destination, l.destination)
	if l.progress == nil {
		stmt.BindNull(progress)
	} else {
		stmt.BindBytes(progress, l.progress)
	}
}

func bindText(stmt *sqlite3.Stmt, i int, s string) {
	if s == "" {
		stmt.BindNull(i)
	} else {
		stmt.BindText(i, s)
	}
}

// recordColumns are the columns that scanRecord reads.
const recordColumns = "ref, position, kind, due, door, owner, crashes, suspect, event, body, progress, crc, live_crc, destination, expires"

// scanRecord reads a row of recordColumns. owner is the lease that has or had the record.
func (s *Store) scanRecord(stmt *sqlite3.Stmt) (r *driver.Record, owner int64, err error) {
	ref := driver.Ref(stmt.ColumnInt64(0))
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "eventbus_record", Row: fmt.Sprint(int64(ref)), Detail: detail}
	}
	kind := stmt.ColumnInt64(2)
	r = &driver.Record{
		Ref: ref, Position: stmt.ColumnInt64(1), State: driver.State(kind & kindStateMask),
		Door: stmt.ColumnText(4), Destination: stmt.ColumnText(13), Progress: columnBytes(stmt, 10), Crashes: stmt.ColumnInt(6), Suspect: stmt.ColumnInt64(7) != 0,
	}
	owner = stmt.ColumnInt64(5)
	event, body, due := columnBytes(stmt, 8), columnBytes(stmt, 9), stmt.ColumnText(3)
	if len(event) != len(r.ID) || stmt.ColumnInt64(11) != fixedCRC(ref, r.Position, event, body) ||
		stmt.ColumnInt64(12) != liveCRC(r.State, due, r.Door, r.Destination, r.Progress) {
		return nil, 0, corrupt("the row does not match its checksum")
	}
	copy(r.ID[:], event)
	if err := storekit.DecodeBody(body, r); err != nil {
		return nil, 0, corrupt(err.Error())
	}
	if stmt.ColumnText(14) != timeColumn(r.Expires) {
		return nil, 0, corrupt("the column expires does not match the body")
	}
	if due != "" {
		if r.Due, err = storekit.ParseTime(due); err != nil {
			return nil, 0, corrupt(err.Error())
		}
	}
	if keyed := kind&kindKeyed != 0; keyed != (r.Key != "") || kind>>3 != 0 {
		return nil, 0, corrupt("the column kind does not match the key")
	}
	return r, owner, nil
}

func checksum(body []byte) int64 { return int64(crc32.Checksum(body, castagnoli)) }

// scanDirective reads a row of subscription, body and crc.
func (s *Store) scanDirective(stmt *sqlite3.Stmt) (d driver.Directive, err error) {
	d = driver.Directive{Subscription: stmt.ColumnText(0), Body: columnBytes(stmt, 1)}
	if checksum(d.Body) != stmt.ColumnInt64(2) {
		return d, &CorruptError{Path: s.path, Table: "eventbus_directive", Row: d.Subscription, Detail: "the row does not match its checksum"}
	}
	return d, nil
}
