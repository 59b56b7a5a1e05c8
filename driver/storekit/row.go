package storekit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus/driver"
)

// timeLayout is the layout of times in columns. Texts in this layout sort as the times do.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// maxYear is the last year that the layout, and JSON, can have. The first is 0.
const maxYear = 9999

// TimeText returns the text of a time for a column. Such texts sort by their bytes as the times do.
func TimeText(t time.Time) string { return t.UTC().Format(timeLayout) }

// TimeBound returns the text of a time to which times in columns are compared. It may have a year
// that columns cannot have.
func TimeBound(t time.Time) string {
	if y := t.UTC().Year(); y < 0 {
		return ""
	} else if y > maxYear {
		return ":" // sorts behind all digits
	}
	return TimeText(t)
}

// ParseTime returns the time of a TimeText.
func ParseTime(text string) (time.Time, error) { return time.Parse(timeLayout, text) }

// fixedFields are the fields of a record that never change, apart from the event's id and payload.
type fixedFields struct {
	Type      string          `json:"type"`
	Key       string          `json:"key,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	Published time.Time       `json:"published"`
	Targets   []string        `json:"targets"`
	Scheduled time.Time       `json:"scheduled,omitzero"`
	Replay    json.RawMessage `json:"replay,omitempty"`

	IdempotencyKey string      `json:"idempotency_key,omitempty"`
	KeyExpires     time.Time   `json:"key_expires,omitzero"`
	UntilSettled   bool        `json:"until_settled,omitempty"`
	Expires        time.Time   `json:"expires,omitzero"`
	Slot           driver.Slot `json:"slot,omitempty"`
}

// hasPayload is set in the length at the beginning of a body if the payload is not nil. It may be
// empty.
const hasPayload = 1 << 31

// AppendBody appends the body of a record: the length of the JSON of its fixed fields, that
// JSON, and the payload. It writes the JSON by hand, because reflection would take a third of the
// time of a store's goroutine.
func AppendBody(b []byte, r *driver.Record) []byte {
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
	if r.IdempotencyKey != "" {
		b = appendString(append(b, `,"idempotency_key":`...), r.IdempotencyKey)
	}
	if !r.KeyExpires.IsZero() {
		b = appendTime(append(b, `,"key_expires":`...), r.KeyExpires)
	}
	if r.UntilSettled {
		b = append(b, `,"until_settled":true`...)
	}
	if !r.Expires.IsZero() {
		b = appendTime(append(b, `,"expires":`...), r.Expires)
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

// DecodeBody sets the fixed fields and the payload of a record. The payload is a part of body.
func DecodeBody(body []byte, r *driver.Record) error {
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
	r.IdempotencyKey, r.KeyExpires, r.UntilSettled = f.IdempotencyKey, f.KeyExpires, f.UntilSettled
	r.Expires = f.Expires
	if header&hasPayload != 0 {
		r.Payload = body[size:len(body):len(body)]
	}
	return nil
}
