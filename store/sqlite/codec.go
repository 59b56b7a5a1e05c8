package sqlite

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
	"unicode/utf8"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// timeLayout is the layout of times in columns. Texts in this layout sort as the times do.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// maxYear is the last year that the layout, and JSON, can have. The first is 0.
const maxYear = 9999

func timeText(t time.Time) string { return t.UTC().Format(timeLayout) }

// timeBound returns the text of a time to which times in columns are compared. It may have a year
// that columns cannot have.
func timeBound(t time.Time) string {
	if y := t.UTC().Year(); y < 0 {
		return ""
	} else if y > maxYear {
		return ":" // sorts behind all digits
	}
	return timeText(t)
}

func parseTime(text string) (time.Time, error) { return time.Parse(timeLayout, text) }

// fixedFields are the fields of a record that never change, apart from the event's id and payload.
type fixedFields struct {
	Type      string          `json:"type"`
	Key       string          `json:"key,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	Published time.Time       `json:"published"`
	Targets   []string        `json:"targets"`
	Scheduled time.Time       `json:"scheduled,omitzero"`
	Replay    json.RawMessage `json:"replay,omitempty"`
	Slot      driver.Slot     `json:"slot,omitempty"`
}

// hasPayload is set in the length at the beginning of a body if the payload is not nil. It may be
// empty.
const hasPayload = 1 << 31

// appendBody appends the column body of a record: the length of the JSON of its fixed fields, that
// JSON, and the payload. It writes the JSON by hand, because reflection would take a third of the
// committer's time.
func appendBody(b []byte, r *driver.Record) []byte {
	const lengthSize = 4
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = appendString(append(b, `{"type":`...), r.Type)
	if r.Key != "" {
		b = appendString(append(b, `,"key":`...), r.Key)
	}
	if len(r.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), r.Metadata...)
	}
	b = appendTime(append(b, `,"published":`...), r.Published)
	b = append(b, `,"targets":`...)
	if r.Targets == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, '[')
		for i, t := range r.Targets {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, t)
		}
		b = append(b, ']')
	}
	if !r.Scheduled.IsZero() {
		b = appendTime(append(b, `,"scheduled":`...), r.Scheduled)
	}
	if len(r.Replay) > 0 {
		b = append(append(b, `,"replay":`...), r.Replay...)
	}
	if r.Slot != 0 {
		b = strconv.AppendUint(append(b, `,"slot":`...), uint64(r.Slot), 10)
	}
	b = append(b, '}')
	size := uint32(len(b) - start - lengthSize)
	if r.Payload != nil {
		size |= hasPayload
	}
	binary.LittleEndian.PutUint32(b[start:], size)
	return append(b, r.Payload...)
}

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := json.Marshal(s) // a string has no error
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

var errBody = errors.New("the body is cut off")

// decodeBody sets the fixed fields and the payload of a record.
func decodeBody(body []byte, r *driver.Record) error {
	if len(body) < 4 {
		return errBody
	}
	header := binary.LittleEndian.Uint32(body)
	body = body[4:]
	size := int64(header &^ hasPayload)
	if size > int64(len(body)) {
		return errBody
	}
	var f fixedFields
	if err := json.Unmarshal(body[:size], &f); err != nil {
		return err
	}
	r.Type, r.Key, r.Metadata, r.Published, r.Targets = f.Type, f.Key, f.Metadata, f.Published, f.Targets
	r.Scheduled, r.Replay, r.Slot = f.Scheduled, f.Replay, f.Slot
	if header&hasPayload != 0 {
		r.Payload = body[size:len(body):len(body)]
	}
	return nil
}

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
	due, door string
	progress  []byte
	crc       int64
}

func encodeLive(r *driver.Record) live {
	l := live{door: r.Door, progress: r.Progress}
	if !r.Due.IsZero() {
		l.due = timeText(r.Due)
	}
	l.crc = liveCRC(r.State, l.due, l.door, l.progress)
	return l
}

// plainCRC is the checksum of a new record that is ready.
var plainCRC = liveCRC(driver.Ready, "", "", nil)

// isPlain reports whether a new record has only zero values in the columns that change.
func isPlain(r *driver.Record) bool {
	return r.State == driver.Ready && r.Due.IsZero() && r.Door == "" && r.Progress == nil && !r.Suspect
}

func liveCRC(state driver.State, due, door string, progress []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte{byte(state), byte(len(due))})
	sum = crc32.Update(sum, castagnoli, []byte(due))
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(len(door))))
	sum = crc32.Update(sum, castagnoli, []byte(door))
	return int64(crc32.Update(sum, castagnoli, progress))
}

// bind binds the columns, NULL for empty ones.
func (l *live) bind(stmt *sqlite3.Stmt, due, door, progress int) {
	bindText(stmt, due, l.due)
	bindText(stmt, door, l.door)
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
const recordColumns = "ref, position, kind, due, door, owner, crashes, suspect, event, body, progress, crc, live_crc"

// scanRecord reads a row of recordColumns. owner is the lease that has or had the record.
func (s *Store) scanRecord(stmt *sqlite3.Stmt) (r *driver.Record, owner int64, err error) {
	ref := driver.Ref(stmt.ColumnInt64(0))
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "eventbus_record", Row: fmt.Sprint(int64(ref)), Detail: detail}
	}
	kind := stmt.ColumnInt64(2)
	r = &driver.Record{
		Ref: ref, Position: stmt.ColumnInt64(1), State: driver.State(kind & kindStateMask),
		Door: stmt.ColumnText(4), Progress: columnBytes(stmt, 10), Crashes: stmt.ColumnInt(6), Suspect: stmt.ColumnInt64(7) != 0,
	}
	owner = stmt.ColumnInt64(5)
	event, body, due := columnBytes(stmt, 8), columnBytes(stmt, 9), stmt.ColumnText(3)
	if len(event) != len(r.ID) || stmt.ColumnInt64(11) != fixedCRC(ref, r.Position, event, body) ||
		stmt.ColumnInt64(12) != liveCRC(r.State, due, r.Door, r.Progress) {
		return nil, 0, corrupt("the row does not match its checksum")
	}
	copy(r.ID[:], event)
	if err := decodeBody(body, r); err != nil {
		return nil, 0, corrupt(err.Error())
	}
	if due != "" {
		if r.Due, err = parseTime(due); err != nil {
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
