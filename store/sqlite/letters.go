package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
)

// Kinds of a letter's payload, in the first byte of the column. NULL stands for nil.
const (
	payloadJSON    = 'J' // json.RawMessage
	payloadEncoded = 'E' // eventbus.EncodedPayload
)

func checkPayload(l *eventbus.DeadLetter) {
	for _, p := range []any{l.Event.Payload, l.Original} {
		switch p.(type) {
		case nil, json.RawMessage, eventbus.EncodedPayload:
		default:
			panic(fmt.Sprintf("sqlite: letter %s has a payload of type %T, not a json.RawMessage or an EncodedPayload", l.ID, p))
		}
	}
}

func encodePayload(payload any) []byte {
	switch p := payload.(type) {
	case json.RawMessage:
		return append([]byte{payloadJSON}, p...)
	case eventbus.EncodedPayload:
		return append([]byte{payloadEncoded}, p...)
	}
	return nil
}

func decodePayload(column []byte) (any, error) {
	switch {
	case column == nil:
		return nil, nil //nolint:nilnil // a payload may be nil
	case len(column) > 0 && column[0] == payloadJSON:
		return json.RawMessage(column[1:]), nil
	case len(column) > 0 && column[0] == payloadEncoded:
		return eventbus.EncodedPayload(column[1:]), nil
	}
	return nil, fmt.Errorf("the payload has an unknown kind")
}

const (
	letterColumns = "id, event, type, key, subscription, reason, fingerprint, published, died_at, failures, letter, payload, original"
	insertLetter  = "INSERT OR IGNORE INTO letter (" + letterColumns + ", crc) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)

// bury inserts a letter, unless its id exists.
func (tx *transaction) bury(l *eventbus.DeadLetter) error {
	failures, err := json.Marshal(l.Failures)
	if err != nil {
		return err
	}
	rest := *l
	rest.Failures, rest.Event.Payload, rest.Original = nil, nil, nil
	text, err := json.Marshal(&rest)
	if err != nil {
		return err
	}
	columns := []any{
		l.ID[:], l.Event.ID[:], l.Event.Type, l.Event.Key, l.Subscription, string(l.Reason), l.Fingerprint,
		timeText(l.Event.Time), timeText(l.DiedAt), failures, text, encodePayload(l.Event.Payload), encodePayload(l.Original),
	}
	sum := uint32(0)
	for i, c := range columns {
		switch c := c.(type) {
		case string:
			sum = addCRC(sum, []byte(c))
		case []byte:
			sum = addCRC(sum, c)
			if c == nil {
				columns[i] = nil
			}
			tx.bytes += len(c)
		}
	}
	inserted, err := tx.w.exec(insertLetter, append(columns, int64(sum))...)
	tx.m.letters += int64(inserted)
	tx.pages += 4
	return err
}

// addCRC adds a column and its length to a checksum.
func addCRC(sum uint32, column []byte) uint32 {
	n := len(column)
	sum = crc32.Update(sum, castagnoli, []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	return crc32.Update(sum, castagnoli, column)
}

// scanLetter reads a row of letterColumns and crc.
func (s *Store) scanLetter(stmt *sqlite3.Stmt) (l eventbus.DeadLetter, err error) {
	const columns = 13
	var column [columns][]byte
	sum := uint32(0)
	for i := range column {
		column[i] = columnBytes(stmt, i)
		sum = addCRC(sum, column[i])
	}
	copy(l.ID[:], column[0])
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "letter", Row: l.ID.String(), Detail: detail}
	}
	if int64(sum) != stmt.ColumnInt64(columns) {
		return l, corrupt("the row does not match its checksum")
	}
	if err := json.Unmarshal(column[10], &l); err != nil {
		return l, corrupt(err.Error())
	}
	if err := json.Unmarshal(column[9], &l.Failures); err != nil {
		return l, corrupt(err.Error())
	}
	if l.Event.Payload, err = decodePayload(column[11]); err != nil {
		return l, corrupt(err.Error())
	}
	if l.Original, err = decodePayload(column[12]); err != nil {
		return l, corrupt(err.Error())
	}
	return l, nil
}

// Letter returns a dead letter. See [eventbus.Store].
//
// Errors: ErrNotFound, *CorruptError, ErrStoreFailed, ErrStoreClosed, the context's error.
func (s *Store) Letter(ctx context.Context, id eventbus.LetterID) (l eventbus.DeadLetter, err error) {
	found := false
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		return query(c, "SELECT "+letterColumns+", crc FROM letter WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			found = true
			l, err = s.scanLetter(stmt)
			return err
		}, id[:])
	})
	if err == nil && !found {
		err = eventbus.ErrNotFound
	}
	if err != nil {
		return eventbus.DeadLetter{}, fmt.Errorf("Letter(%s): %w", id, err)
	}
	return l, nil
}
