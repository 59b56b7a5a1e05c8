package eventbus

import (
	"context"
	"crypto/sha1" //nolint:gosec // RFC 9562 demands it
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/convert"
	"github.com/surebus/eventbus/internal/jsonline"
	"github.com/surebus/eventbus/internal/texts"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Event is one published fact.
//
// Each handler receives a copy of the struct. The copies share the memory that the payload points
// to, also with the publisher.
type Event struct {
	// ID identifies the event. An id that the bus makes is unique and larger than those it made
	// before.
	ID EventID `json:"id"`
	// Type selects the subscriptions. It consists of segments and dots: "order.placed".
	Type string `json:"type"`
	// Payload is the value that was passed to Publish. On a bus with a store it is encoded: a
	// json.RawMessage, or an EncodedPayload of another codec. Typed decodes it.
	Payload any `json:"payload,omitempty"`
	// Key orders the event after earlier events with the same key. An event without a key has no
	// order.
	Key string `json:"key,omitempty"`
	// Metadata has the names and values of the Metadata options and of WithMetadataFrom.
	Metadata EventMetadata `json:"metadata,omitzero"`
	// IdempotencyKey is the option's value, or empty. Replays keep it.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Expires is when the event expires, in UTC: no call of a handler begins from then on (ExpiresAt). It is zero
	// without an expiry, and in a replay.
	Expires time.Time `json:"expires,omitzero"`
	// Time is when Publish was called, in UTC. Under load it may be a millisecond early, or more if no processor is
	// free to read the clock.
	Time time.Time `json:"time"`
}

// EncodedPayload is the payload of an event from a store, in the encoding of the bus's codec. With
// the default codec it is a json.RawMessage instead.
type EncodedPayload []byte

// Handler handles an event. It succeeds if it returns nil before the subscription's timeout. An
// error, a panic, runtime.Goexit and exceeding the timeout are failures.
//
// A handler is called concurrently for different events. ctx is cancelled at the timeout, when the
// handler returns, and when Shutdown's own context ends (with the cause ErrShutdown). It has no values of
// the publisher's context: see WithContextFrom and WithMetadataFrom. FromContext returns its Delivery. A
// handler controls retries with Permanent and RetryAfter.
type Handler func(ctx context.Context, e Event) error

// Typed returns a Handler that passes the payload to handle as a T. It converts a *T to a T, a T to a *T, and nil to a
// T that can be nil. It decodes a json.RawMessage for each call: the payload of an event from a store or of an imported
// dead letter. It decodes an EncodedPayload with the bus's codec. Any other payload is a permanent failure, a
// *PayloadTypeError.
//
// A JSON number in an interface, as in Typed[map[string]any] or a field of type any, becomes a json.Number with all
// digits of the payload. A float64 would lose digits: 9007199254740993 would become 9007199254740992. Use struct fields
// of number types, or the methods of json.Number. Without a store, a payload is not decoded: if you publish
// map[string]any{"n": 5}, the handler receives the int 5. Typed[any] passes a json.RawMessage on without decoding it.
// Types with an UnmarshalJSON method decode their numbers themselves.
//
// A JSON object without any member of the struct T is a permanent failure too, because it would become a T without
// values. Unknown members beside known ones are ignored, unless the subscription has StrictDecoding. This check skips
// types without exported fields, and types with an UnmarshalJSON or UnmarshalText method.
func Typed[T any](handle func(ctx context.Context, payload T) error) Handler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, e Event) error {
		payload, err := typedPayload[T](ctx, e.Payload)
		if err != nil {
			if err == convert.ErrOtherType { //nolint:errorlint // To returns this value unwrapped
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

// typedPayload converts a payload to a T. The bus's codec decodes an encoded one.
func typedPayload[T any](ctx context.Context, payload any) (T, error) {
	encoded, ok := payload.(EncodedPayload)
	c := callFrom(ctx)
	if !ok || c == nil || c.bus().config.codec == nil {
		return convert.To[T](payload, c != nil && c.subscription().strict)
	}
	return convert.Decode[T](func(pointer any) error { return c.bus().config.codec.Unmarshal(encoded, pointer) })
}

// StrictDecoding makes Typed refuse JSON payloads with members that the Go type does not have, at any depth, as a permanent
// failure. Without it, Typed ignores them. It has no effect on payloads that are not encoded: see WithEncodedPayloads. On a bus
// with WithCodec, Subscribe returns an *OptionError: the codec decodes.
func StrictDecoding() SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.strict = true })
}

// EventID identifies an event. NewEventID and the bus make UUIDs of version 7 (RFC 9562).
type EventID [16]byte

// NewEventID returns a new id for the option ID.
func NewEventID() EventID { return newEventIDs().Next(time.Now().UnixMilli()) }

var newEventIDs = sync.OnceValue(uuid7.NewSource)

// String returns the UUID as 36 characters, in lower case.
func (id EventID) String() string { return uuid7.Format(id) }

// IsZero reports whether the id is not set.
func (id EventID) IsZero() bool { return id == EventID{} }

// MarshalText returns the text that String returns.
func (id EventID) MarshalText() ([]byte, error) { return []byte(uuid7.Format(id)), nil }

// UnmarshalText parses the text as ParseEventID does.
func (id *EventID) UnmarshalText(text []byte) error {
	parsed, err := ParseEventID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// ParseEventID parses a UUID of 36 characters: 8-4-4-4-12 hexadecimal digits. Its error is an
// *EventError.
func ParseEventID(s string) (EventID, error) {
	id, ok := uuid7.Parse(s)
	if !ok {
		return EventID{}, &EventError{Field: "id", Value: shorten(s), Reason: "not a UUID of the form 8-4-4-4-12 hexadecimal digits"}
	}
	return id, nil
}

// DeriveID returns the id that follows from an id and a name: a UUID of version 5 (RFC 9562), the same each time. With the id of a
// request, or of an event in another system, as the parent, a publication that is repeated has the same id.
func DeriveID(parent EventID, name string) (id EventID) {
	hash := sha1.New() //nolint:gosec // RFC 9562 demands it
	_, _ = hash.Write(parent[:])
	_, _ = io.WriteString(hash, name)
	copy(id[:], hash.Sum(nil))
	id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80
	return id
}

// ChildID returns an id for an event that a handler publishes with the option ID. It is the same in each attempt, also
// after a crash, so the child is published once. It derives from the handler's event, the recorded name of the
// delivery, the number of edits, and name, which distinguishes several children. Outside a handler it is the zero id,
// which ID rejects.
func ChildID(ctx context.Context, name string) EventID {
	c := callFrom(ctx)
	if c == nil {
		return EventID{}
	}
	d := c.dispatch
	return DeriveID(d.id, fmt.Sprintf("%q %d %s", d.to.nameAt(c.target), d.replay().edits, name))
}

// EventMetadata is the names and values of an event. It is immutable, so handlers share it. The
// zero value is empty.
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

// Get returns the value of a name, or "" if the name is not set.
func (m EventMetadata) Get(name string) string {
	v, _ := m.Lookup(name)
	return v
}

// Lookup returns the value of a name, and whether the name is set.
func (m EventMetadata) Lookup(name string) (string, bool) {
	for n, v := range m.All() {
		if n == name {
			return v, true
		}
	}
	return "", false
}

// All returns an iterator over the names and values. The options come first, in their order. The names of each
// WithMetadataFrom follow, sorted, beginning with the last option. Inherited names come last.
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

// Len returns the number of names.
func (m EventMetadata) Len() int {
	if m.pairs == nil {
		return 0
	}
	return len(*m.pairs)
}

// IsZero reports whether the metadata is empty.
func (m EventMetadata) IsZero() bool { return m.Len() == 0 }

// MarshalJSON returns a JSON object of strings.
func (m EventMetadata) MarshalJSON() ([]byte, error) {
	object := make(map[string]string, m.Len())
	for n, v := range m.All() {
		object[n] = v
	}
	return json.Marshal(object)
}

// UnmarshalJSON reads a JSON object of strings and sorts it by name.
func (m *EventMetadata) UnmarshalJSON(data []byte) error {
	if n, _ := jsonline.CountStrings(data); n > 2*maxMetadataPairs { // before the map allocates memory
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

// set adds a pair, or replaces the value of a name that is set.
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

// publication is the result of an event's options. Options pass it by value, which avoids an
// allocation.
type publication struct {
	metadata EventMetadata
	hooked   map[string]string // metadata of hooks
	key      string
	id       EventID
	given    bool
	once     idempotency
	when     *dueOption    // nil: due now
	expires  *expiryOption // nil: never
	err      error         // of the first invalid option
}

// dueOption is the time at which an event is due: a delay after it is published, or an instant.
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

// add sets a name that m does not have.
func (m *EventMetadata) add(name, value string) error {
	if _, known := m.Lookup(name); known {
		return nil
	}
	return m.set(name, value)
}

// WithMetadataFrom adds metadata from the context given to Publish, such as a trace id that dead
// letters should keep. Publish calls the function. Of a name that several add, the last option counts;
// Metadata given to Publish takes precedence.
func WithMetadataFrom(from func(ctx context.Context) map[string]string) Option {
	return option(func(c *config) {
		c.refuseIf(from == nil, "WithMetadataFrom", "nil", "must be a function")
		c.metadataFrom = append(c.metadataFrom, from)
	})
}

// WithContextFrom gives handlers, in memory only, the values of the context that the function returns, and nothing else
// of it. Publish calls the function with its own context, and keeps the result until the event has settled. nil is no
// values. Copy the values that handlers need, as in the example. Frameworks such as gin and fiber reuse the context of
// a request for the next one, so a handler that reads it later acts for another user. At most 100 handlers in a row
// pass on a context derived from their own.
func WithContextFrom(from func(ctx context.Context) context.Context) Option {
	return option(func(c *config) {
		c.refuseIf(from == nil, "WithContextFrom", "nil", "must be a function")
		c.refuseIf(c.contextFrom != nil, "WithContextFrom", "a second one", "one function returns all values")
		c.contextFrom = from
	})
}

// WithInheritedMetadata copies metadata with these names from a handler's event to the events that the handler
// publishes with its context. Metadata and WithMetadataFrom take precedence.
func WithInheritedMetadata(names ...string) Option {
	return option(func(c *config) {
		c.refuseIf(len(names) == 0, "WithInheritedMetadata", "", "names nothing; leave it out")
		for _, name := range names {
			err := new(EventMetadata).set(name, "")
			c.refuseIf(err != nil, "WithInheritedMetadata", shorten(name), fmt.Sprint(err))
		}
		c.inherited = append(c.inherited, names...)
	})
}

// Metadata adds a name and a value to an event. Dead letters and their exports keep them. A
// repeated name replaces the earlier value. An event has at most 64 names of up to 255 bytes, with
// values of up to 8 KiB, in UTF-8. Names that begin with "eventbus." are reserved.
func Metadata(name, value string) PublishOption {
	return func(p publication) publication {
		if err := p.metadata.set(name, value); err != nil {
			return p.refuse(err)
		}
		return p
	}
}

// Key orders an event after earlier events with the same key. The event is dispatched when they
// have settled, including their retries. Events with other keys, or without a key, do not wait for
// it. A delivery that is held (see HoldWhenOpen) delays its key at its own subscription only. On a
// bus with isolation, each subscription has its own order.
//
// A key has up to 255 bytes of UTF-8 without control characters. An empty key is no key. The last
// Key option applies.
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

// After schedules an event: it is dispatched no earlier than d from now. Publish accepts it at
// once, for the current subscriptions. Cancel removes it until it is due. An event without a
// matching subscription is unrouted at once. Its place in its key's order, and MaxElapsed, count
// from when it is due. Shutdown does not wait for it. A d of 0 or less means now; one of less than minus a minute is an error. The
// last After or At option applies.
//
// The delay is monotonic: it does not change when the clock is set, and stands still while the machine is
// suspended. A store keeps an instant instead, as for At, that other processes understand.
func After(d time.Duration) PublishOption {
	return func(p publication) publication {
		if d < -time.Minute {
			return p.refuse(&EventError{Field: "delay", Value: d.String(), Reason: "is in the past; omit After for an event that is due now"})
		}
		p.when = &dueOption{after: d}
		return p
	}
}

// At schedules an event as After does, for an instant of the wall clock, which is kept to the nanosecond.
// A past instant means now. The zero time and an instant after the year 9999 are errors.
//
// If the clock is set ahead, or the machine is suspended, the event is at most 30 s late. If the clock is set
// back, the event waits until the clock shows the instant.
func At(t time.Time) PublishOption {
	return func(p publication) publication {
		if t.IsZero() {
			return p.refuse(&EventError{Field: "time", Value: t.String(), Reason: "is zero; omit the option for an event that is due now"})
		}
		if t.Unix() > 0 && !driver.Storable(t) {
			return p.refuse(&EventError{Field: "time", Value: t.String(), Reason: badYear})
		}
		p.when = &dueOption{at: t}
		return p
	}
}
