package eventbus

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus/internal/convert"
	"github.com/surebus/eventbus/internal/jsonline"
	"github.com/surebus/eventbus/internal/texts"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Event is one fact: something that happened, as its publisher saw it.
//
// Handlers get a copy of the struct; what its payload points to is shared by all of them, and with
// the publisher.
type Event struct {
	// ID is unique, and later events of a process have larger ones.
	ID EventID `json:"id"`
	// Type is what subscriptions match: dot-separated segments, "order.placed".
	Type string `json:"type"`
	// Payload is what was given to Publish, as it is.
	Payload any `json:"payload,omitempty"`
	// Key is what the event is ordered by: it comes after those with the same key that were published
	// before. Empty: it has no order.
	Key string `json:"key,omitempty"`
	// Metadata is what accompanies the payload.
	Metadata EventMetadata `json:"metadata,omitzero"`
	// Time is when Publish was called, in UTC: up to a millisecond before, while there is work, and
	// further before where no processor is free for the bus to read the clock.
	Time time.Time `json:"time"`
}

// Handler handles an event. Returning nil means that it is done; an error, a panic and
// runtime.Goexit are failures, and so is returning after the subscription's timeout.
//
// Handlers are called concurrently, for different events. ctx is cancelled at the timeout, when the
// handler returns, and when Shutdown's own context ends (with the cause ErrShutdown); it has the
// values of the context given to Publish, and FromContext asks it what is being delivered. Handlers
// steer with Permanent and RetryAfter.
type Handler func(ctx context.Context, e Event) error

// Typed makes a handler of a function that takes the payload as a T. A *T is accepted for a T and
// the other way round; nil for a T that can be nil; and a json.RawMessage, as the events of
// imported dead letters have, is decoded into a T for each call. A payload that cannot become a T
// is a permanent failure, a *PayloadTypeError.
func Typed[T any](handle func(ctx context.Context, payload T) error) Handler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, e Event) error {
		payload, err := convert.To[T](e.Payload)
		if err != nil {
			if err == convert.ErrOtherType { //nolint:errorlint // To returns the very same
				err = nil
			}
			return Permanent(&PayloadTypeError{
				EventType: e.Type,
				Want:      reflect.TypeFor[T]().String(),
				Got:       fmt.Sprintf("%T", e.Payload),
				Err:       err,
			})
		}
		return handle(ctx, payload)
	}
}

// EventID identifies an event: a UUID of version 7 (RFC 9562).
type EventID [16]byte

// NewEventID makes an id, to be given to an event with the option ID.
func NewEventID() EventID { return newEventIDs().Next(time.Now().UnixMilli()) }

var newEventIDs = sync.OnceValue(uuid7.NewSource)

// String is the UUID's usual form, in lower case.
func (id EventID) String() string { return uuid7.Format(id) }

// IsZero reports whether the id is not set.
func (id EventID) IsZero() bool { return id == EventID{} }

// MarshalText is String.
func (id EventID) MarshalText() ([]byte, error) { return []byte(uuid7.Format(id)), nil }

// UnmarshalText is ParseEventID.
func (id *EventID) UnmarshalText(text []byte) error {
	parsed, err := ParseEventID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// ParseEventID reads a UUID in its usual form, of 36 characters. The error is an *EventError.
func ParseEventID(s string) (EventID, error) {
	id, ok := uuid7.Parse(s)
	if !ok {
		return EventID{}, &EventError{Field: "id", Value: shorten(s), Reason: "not a UUID of the form 8-4-4-4-12 hexadecimal digits"}
	}
	return id, nil
}

// EventMetadata are the name-value pairs of an event. It cannot be changed, so handlers share it.
// The zero value is empty.
type EventMetadata struct {
	pairs *[]metadataPair
}

type metadataPair struct{ name, value string }

// Limits of an event's metadata.
const (
	maxMetadataPairs = 64
	maxMetadataValue = 8 << 10
	reservedPrefix   = "eventbus."
)

// Get returns the value of a name, "" if there is none.
func (m EventMetadata) Get(name string) string {
	v, _ := m.Lookup(name)
	return v
}

// Lookup returns the value of a name, and whether there is one.
func (m EventMetadata) Lookup(name string) (string, bool) {
	for n, v := range m.All() {
		if n == name {
			return v, true
		}
	}
	return "", false
}

// All ranges over the names and values, in the order in which they were given, those of
// WithMetadataFrom last and by name.
func (m EventMetadata) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if m.pairs == nil {
			return
		}
		for _, p := range *m.pairs {
			if !yield(p.name, p.value) {
				return
			}
		}
	}
}

// Len is the number of names.
func (m EventMetadata) Len() int {
	if m.pairs == nil {
		return 0
	}
	return len(*m.pairs)
}

// IsZero reports whether there is none.
func (m EventMetadata) IsZero() bool { return m.Len() == 0 }

// MarshalJSON makes an object of it.
func (m EventMetadata) MarshalJSON() ([]byte, error) {
	object := make(map[string]string, m.Len())
	for n, v := range m.All() {
		object[n] = v
	}
	return json.Marshal(object)
}

// UnmarshalJSON reads an object of strings, in the order of the names.
func (m *EventMetadata) UnmarshalJSON(data []byte) error {
	if n, _ := jsonline.CountStrings(data); n > 2*maxMetadataPairs { // before the map takes its memory
		return tooManyNames("")
	}
	var object map[string]string
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	var read EventMetadata
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := read.set(name, object[name]); err != nil {
			return err
		}
	}
	*m = read
	return nil
}

// set adds a pair, or replaces the one of that name.
func (m *EventMetadata) set(name, value string) error {
	if err := checkMetadata(name, value); err != nil {
		return err
	}
	if m.pairs == nil {
		m.pairs = new([]metadataPair)
	}
	for i, p := range *m.pairs {
		if p.name == name {
			(*m.pairs)[i].value = value
			return nil
		}
	}
	if len(*m.pairs) == maxMetadataPairs {
		return tooManyNames(name)
	}
	*m.pairs = append(*m.pairs, metadataPair{name, value})
	return nil
}

func tooManyNames(name string) error {
	return &EventError{
		Field: "metadata", Value: shorten(name),
		Reason: fmt.Sprintf("more than %d names; put what belongs to the event into its payload", maxMetadataPairs),
	}
}

func checkMetadata(name, value string) error {
	refuse := func(of string, offset int, reason string, args ...any) error {
		return &EventError{Field: "metadata", Value: shorten(of), Offset: offset, Reason: fmt.Sprintf(reason, args...)}
	}
	switch reason, offset := texts.Problem(name, maxName); {
	case name == "":
		return refuse(name, 0, "a name is empty")
	case reason != "":
		return refuse(name, offset, "a name %s", reason)
	case strings.HasPrefix(name, reservedPrefix):
		return refuse(name, 0, "names that begin with %q are reserved; use another prefix", reservedPrefix)
	case len(value) > maxMetadataValue:
		return refuse(name, 0, "its value is longer than %d bytes; put it into the payload", maxMetadataValue)
	case !utf8.ValidString(value):
		return refuse(name, 0, "its value is not valid UTF-8")
	}
	return nil
}

// PublishOption is an option of Publish, PublishAndWait and a Publication.
type PublishOption func(publication) publication

// publication is what the options say of an event. They pass it on by value, so that it needs no
// allocation.
type publication struct {
	metadata EventMetadata
	key      string
	id       EventID
	given    bool
	when     *dueOption // nil for now
	err      error      // of the first option that is refused
}

// dueOption is when an event is to be dispatched: a while after it is published, or at an instant.
type dueOption struct {
	after time.Duration
	at    time.Time
}

func (p publication) refuse(err error) publication {
	if p.err == nil {
		p.err = err
	}
	return p
}

// Metadata gives an event a name and a value, which outlive the process where the bus does. A name
// given again replaces its value. At most 64 names of up to 255 bytes, with values of up to 8 KiB,
// in UTF-8; names that begin with "eventbus." are reserved.
func Metadata(name, value string) PublishOption {
	return func(p publication) publication {
		if err := p.metadata.set(name, value); err != nil {
			return p.refuse(err)
		}
		return p
	}
}

// Key orders an event after those that were published with the same key before: it is dispatched
// when they have settled, their retries included. Events with other keys, or none, do not wait for
// it. A delivery that is held (see HoldWhenOpen) does not hold up its key at other subscriptions.
// On a bus with isolation there is an order for each subscription.
//
// Up to 255 bytes of UTF-8 without control characters. An empty key is none. Of several, the last
// holds.
func Key(key string) PublishOption {
	return func(p publication) publication {
		if reason := checkKey(key); reason != "" {
			return p.refuse(&EventError{Field: "key", Value: shorten(key), Reason: reason})
		}
		p.key = key
		return p
	}
}

func checkKey(key string) string {
	reason, _ := texts.Problem(key, maxName)
	if len(key) > maxName {
		reason += "; use a digest of it"
	}
	return reason
}

// ID gives an event its id, so that publishing can be repeated when it is not known whether it
// succeeded: an id that is known, with the same type and key, is answered as the first time, and
// nothing is dispatched. With another type or key it is ErrDuplicateID. The last 100,000 ids that
// were given are known, those of events that were cancelled aside.
//
// Not zero. Of several, the last holds. NewEventID makes one.
func ID(id EventID) PublishOption {
	return func(p publication) publication {
		if id.IsZero() {
			return p.refuse(&EventError{Field: "id", Value: id.String(), Reason: "is zero; leave the option out, or take one of NewEventID"})
		}
		p.id, p.given = id, true
		return p
	}
}

// After has an event dispatched no earlier than d from now. It is accepted at once, for the
// current subscriptions, and Cancel can take it back until it is due. If it matches no subscription,
// it is unrouted at once. Its place in its key's order, and MaxElapsed, count from when it is due.
// Shutdown does not wait for it. A d of 0 or less means at once. Of several After and At options, the
// last holds.
func After(d time.Duration) PublishOption {
	return func(p publication) publication {
		p.when = &dueOption{after: d}
		return p
	}
}

// At is After for an instant; one that has passed is now. Not the zero time.
func At(t time.Time) PublishOption {
	return func(p publication) publication {
		if t.IsZero() {
			return p.refuse(&EventError{Field: "time", Value: t.String(), Reason: "is zero; leave the option out for an event that is due now"})
		}
		p.when = &dueOption{at: t}
		return p
	}
}
