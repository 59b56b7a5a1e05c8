package sqlite

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// What the tests read of the JSON of the bus.
type (
	failureJSON struct {
		Attempt      int    `json:"attempt"`
		Replays      int    `json:"replays"`
		Subscription string `json:"subscription"`
		Error        string `json:"error"`
	}
	progressJSON struct {
		Next     int           `json:"next"`
		Skipped  []int         `json:"skipped"`
		Failures []failureJSON `json:"failures"`
	}
	replayJSON struct {
		Count int `json:"count"`
	}
	orderJSON struct {
		Subscription string `json:"subscription"`
		Why          string `json:"why"`
	}
	auditJSON struct {
		By string `json:"by"`
	}
	detailsJSON struct {
		ID    string `json:"id"`
		Event struct {
			ID       string            `json:"id"`
			Type     string            `json:"type"`
			Key      string            `json:"key"`
			Metadata map[string]string `json:"metadata"`
			Time     time.Time         `json:"time"`
		} `json:"event"`
		Reason       string    `json:"reason"`
		Subscription string    `json:"subscription"`
		Succeeded    []string  `json:"succeeded"`
		NotReached   []string  `json:"not_reached"`
		Attempts     int       `json:"attempts"`
		DiedAt       time.Time `json:"died_at"`
		Replays      int       `json:"replays"`
		Fingerprint  string    `json:"fingerprint"`
	}
)

// decodePart decodes a part. nil is the zero value.
func decodePart[T any](part []byte) (v T, err error) {
	if part == nil {
		return v, nil
	}
	if err = json.Unmarshal(part, &v); err != nil {
		err = fmt.Errorf("%q: %w", part, err)
	}
	return v, err
}

func encodePart(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// testRecord is a record with its parts.
type testRecord struct {
	*driver.Record
	metadata map[string]string
	replay   replayJSON
	progress progressJSON
}

func decodeRecord(r *driver.Record) (*testRecord, error) {
	d := &testRecord{Record: r}
	var err error
	if d.metadata, err = decodePart[map[string]string](r.Metadata); err != nil {
		return nil, err
	}
	if d.replay, err = decodePart[replayJSON](r.Replay); err != nil {
		return nil, err
	}
	d.progress, err = decodePart[progressJSON](r.Progress)
	return d, err
}

// testLetter is a letter with its parts.
type testLetter struct {
	driver.Letter
	details  detailsJSON
	failures []failureJSON
}

// decodeLetter decodes the parts of a letter. It returns an error if the columns are not what the details say.
func decodeLetter(l driver.Letter) (*testLetter, error) {
	d := &testLetter{Letter: l}
	var err error
	if d.details, err = decodePart[detailsJSON](l.Details); err != nil {
		return nil, err
	}
	if d.failures, err = decodePart[[]failureJSON](l.Failures); err != nil {
		return nil, err
	}
	columns := fmt.Sprintln(l.ID, l.Event, l.Type, l.Key, l.Reason, l.Subscription, l.Fingerprint, l.Published, l.DiedAt)
	x := &d.details
	details := fmt.Sprintln(x.ID, x.Event.ID, x.Event.Type, x.Event.Key, x.Reason, x.Subscription, x.Fingerprint, x.Event.Time, x.DiedAt)
	if columns != details {
		return nil, fmt.Errorf("the columns of a letter are %q, and its details say %q", columns, details)
	}
	return d, nil
}

// payload returns the payload of a letter of a bus that encodes JSON.
func (l *testLetter) payload() []byte {
	if len(l.Payload) == 0 || l.Payload[0] != 'J' {
		return nil
	}
	return l.Payload[1:]
}

// encodeLetter returns a letter as the bus encodes it.
func encodeLetter(l eventbus.DeadLetter) *driver.Letter {
	payload := func(p any) []byte {
		switch p := p.(type) {
		case json.RawMessage:
			return append([]byte("J"), p...)
		case eventbus.EncodedPayload:
			return append([]byte("E"), p...)
		}
		return nil
	}
	d := &driver.Letter{
		ID: driver.ID(l.ID), Event: driver.ID(l.Event.ID), Type: l.Event.Type, Key: l.Event.Key, Subscription: l.Subscription,
		Reason: string(l.Reason), Fingerprint: l.Fingerprint, Published: l.Event.Time, DiedAt: l.DiedAt,
		Failures: encodePart(l.Failures), Payload: payload(l.Event.Payload), Original: payload(l.Original),
	}
	l.Failures, l.Event.Payload, l.Original = nil, nil, nil
	d.Details = encodePart(&l)
	return d
}

// letterFor returns a letter of an event with the key "k", as the bus encodes it.
func letterFor(subscription string, reason eventbus.Reason, text string, changes ...func(*eventbus.DeadLetter)) *driver.Letter {
	l := eventbus.DeadLetter{
		ID: eventbus.LetterID(newID()), Reason: reason, Subscription: subscription, Attempts: 1, DiedAt: t0,
		Event: eventbus.Event{ID: eventbus.NewEventID(), Type: "order.placed", Key: "k", Time: t0, Payload: json.RawMessage(`{"a":1}`)},
		Failures: []eventbus.Failure{{
			Attempt: 1, Subscription: subscription, Time: t0, Duration: time.Second, Error: text, Class: "*errors.errorString",
		}},
	}
	l.Fingerprint = l.Group().Fingerprint
	for _, change := range changes {
		change(&l)
	}
	return encodeLetter(l)
}

// orderFor returns an order to a subscription, as the bus encodes it.
func orderFor(o eventbus.Directive) driver.Directive {
	return driver.Directive{Subscription: o.Subscription, Body: encodePart(o)}
}

// auditOf returns an entry of the audit, as the bus encodes it.
func auditOf(e eventbus.AuditEntry) driver.AuditEntry {
	return driver.AuditEntry{Denied: e.Denied != "", Body: encodePart(e)}
}

// auditsBy selects the entries of an operator.
func auditsBy(name string) func(*driver.AuditEntry) (bool, error) {
	return func(e *driver.AuditEntry) (bool, error) {
		body, err := decodePart[auditJSON](e.Body)
		return body.By == name, err
	}
}

// The body of a record, which files of all versions have.
func TestStore_TheBodyOfARecordStays(t *testing.T) {
	r := &driver.Record{
		Type: "order.placed", Key: "k\n\"ü", Published: t0, Targets: []string{"billing", "mail"}, Scheduled: t0.Add(time.Minute),
		Payload: []byte("payload"), Metadata: []byte(`{"a":"1"}`), Replay: []byte(`{"began":"2026-11-24T10:00:00Z","count":1}`),
	}
	const fixed = `{"type":"order.placed","key":"k\n\"ü","metadata":{"a":"1"},"published":"2026-11-24T10:00:00.000000123Z",` +
		`"targets":["billing","mail"],"scheduled":"2026-11-24T10:01:00.000000123Z","replay":{"began":"2026-11-24T10:00:00Z","count":1}}`
	require.Equal(t, string([]byte{byte(len(fixed)), byte(len(fixed) >> 8), 0, 0x80})+fixed+"payload", string(storekit.AppendBody(nil, r)))
	r = &driver.Record{Type: "t", Published: t0, Targets: []string{"s"}}
	const plain = `{"type":"t","published":"2026-11-24T10:00:00.000000123Z","targets":["s"]}`
	require.Equal(t, string([]byte{byte(len(plain)), 0, 0, 0})+plain, string(storekit.AppendBody(nil, r)))
}
