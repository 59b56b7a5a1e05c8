package sqlite

import (
	"context"
	"fmt"
	"hash/crc32"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

const (
	letterColumns = "id, event, type, key, subscription, reason, fingerprint, published, died_at, failures, letter, payload, original"
	insertLetter  = "INSERT OR IGNORE INTO eventbus_letter (" + letterColumns + ", crc) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)

// bury inserts a letter, unless its id exists.
func (tx *transaction) bury(l *driver.Letter) error {
	columns := []any{
		l.ID[:], l.Event[:], l.Type, l.Key, l.Subscription, l.Reason, l.Fingerprint,
		storekit.TimeText(l.Published), storekit.TimeText(l.DiedAt), l.Failures, l.Details, orNull(l.Payload), orNull(l.Original),
	}
	sum := uint32(0)
	for _, c := range columns {
		switch c := c.(type) {
		case nil:
			sum = addCRC(sum, nil)
		case string:
			sum = addCRC(sum, []byte(c))
		case []byte:
			sum = addCRC(sum, c)
			tx.bytes += len(c)
		}
	}
	inserted, err := tx.w.exec(insertLetter, append(columns, int64(sum))...)
	tx.m.letters += int64(inserted)
	tx.pages += 4
	return err
}

// orNull returns the argument for a column that is NULL for nil.
func orNull(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// orNone returns nil for an empty column: JSON is never empty, and the column is not NULL.
func orNone(column []byte) []byte {
	if len(column) == 0 {
		return nil
	}
	return column
}

// addCRC adds a column and its length to a checksum.
func addCRC(sum uint32, column []byte) uint32 {
	n := len(column)
	sum = crc32.Update(sum, castagnoli, []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	return crc32.Update(sum, castagnoli, column)
}

// scanLetter reads a row of letterColumns and crc.
func (s *Store) scanLetter(stmt *sqlite3.Stmt) (l driver.Letter, err error) {
	const columns = 13
	var column [columns][]byte
	sum := uint32(0)
	for i := range column {
		column[i] = columnBytes(stmt, i)
		sum = addCRC(sum, column[i])
	}
	copy(l.ID[:], column[0])
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "eventbus_letter", Row: l.ID.String(), Detail: detail}
	}
	if int64(sum) != stmt.ColumnInt64(columns) {
		return l, corrupt("the row does not match its checksum")
	}
	copy(l.Event[:], column[1])
	l.Type, l.Key, l.Subscription = string(column[2]), string(column[3]), string(column[4])
	l.Reason, l.Fingerprint = string(column[5]), string(column[6])
	if l.Published, err = storekit.ParseTime(string(column[7])); err != nil {
		return l, corrupt(err.Error())
	}
	if l.DiedAt, err = storekit.ParseTime(string(column[8])); err != nil {
		return l, corrupt(err.Error())
	}
	l.Failures, l.Details, l.Payload, l.Original = orNone(column[9]), orNone(column[10]), column[11], column[12]
	return l, nil
}

// Letter returns a dead letter. See [driver.Store].
//
// Errors: driver.ErrNotFound, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Letter(ctx context.Context, id driver.ID) (l driver.Letter, err error) {
	found := false
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		return query(c, "SELECT "+letterColumns+", crc FROM eventbus_letter WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			found = true
			l, err = s.scanLetter(stmt)
			return err
		}, id[:])
	})
	if err == nil && !found {
		err = driver.ErrNotFound
	}
	if err != nil {
		return driver.Letter{}, fmt.Errorf("Letter(%s): %w", id, err)
	}
	return l, nil
}
