package eventbus

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 9562 demands it
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/dedupe"
	"github.com/surebus/eventbus/internal/texts"
)

// ID sets the event's id. It is an idempotency key: if you do not know whether a Publish succeeded,
// repeat it with the same id. For a known id with the same type and key, Publish returns the id and
// dispatches nothing. With another type or key it returns ErrDuplicateID. The bus knows the last
// 100,000 ids that were set with ID, except those of cancelled events. A store knows them for
// WithIdempotencyWindow, and compares the payload, too.
//
// The id must not be zero. NewEventID returns a new one. The last ID option applies.
func ID(id EventID) PublishOption {
	return func(p publication) publication {
		if id.IsZero() {
			return p.refuse(&EventError{Field: "id", Value: id.String(), Reason: "is zero; omit the option, or use NewEventID; ChildID is zero outside a handler"})
		}
		p.id, p.given = id, true
		return p
	}
}

// IdempotencyKey makes the event happen once: the first event of a type with a key is accepted. Publish of another one with the
// same type and key, whatever its payload, returns the id of the first and dispatches nothing, also while the first is being
// accepted; PublishAndWait returns Repeated. If its Key differs, or ID gives it another id than the first has, it is an
// ErrDuplicateID.
//
// The bus knows a key for WithIdempotencyWindow, or for KeepFor if that is longer, from when the first event was accepted. In
// memory it knows the last 100,000 keys and ids; with a store all, and after a restart. Cancel of the first event makes its
// key free. A refused event does not take its key.
//
// A key has 1 to 255 bytes of UTF-8 without control characters. The last IdempotencyKey option applies.
func IdempotencyKey(key string) PublishOption {
	return func(p publication) publication {
		reason := checkKey(key)
		if key == "" {
			reason = "is empty; omit the option for an event without one"
		}
		if reason != "" {
			return p.refuse(&EventError{Field: "idempotency key", Value: shorten(key), Reason: reason})
		}
		p.once.key = key
		return p
	}
}

// UntilSettled makes the event's IdempotencyKey unique among pending events: the bus knows the key until the event has settled, and
// no longer. An event has settled when none of its deliveries is left: each was handled, dropped, or is in a dead letter. While it is
// pending, the bus does not forget the key, not in memory either; while a replay of it is pending that began before it had settled,
// neither. A replay does not take a free key again. Without IdempotencyKey, and with KeepFor, it is an *OptionError.
func UntilSettled() PublishOption {
	return func(p publication) publication {
		p.once.untilSettled = true
		return p
	}
}

// check refuses options that have no effect.
func (o *idempotency) check() error {
	switch {
	case o.key == "" && o.keep != 0:
		return &OptionError{Option: "KeepFor", Value: o.keep.String(), Reason: "needs IdempotencyKey: it says how long that is known"}
	case o.key == "" && o.untilSettled:
		return &OptionError{Option: "UntilSettled", Reason: "needs IdempotencyKey: it says how long that is known"}
	case o.untilSettled && o.keep != 0:
		return &OptionError{Option: "KeepFor", Value: o.keep.String(), Reason: "contradicts UntilSettled; leave one of them out"}
	}
	return nil
}

// maxKeep is the largest duration of KeepFor.
const maxKeep = 400 * 24 * time.Hour

// KeepFor makes the bus know the event's IdempotencyKey for a duration, if that is longer than WithIdempotencyWindow: from 1 ms to
// 400 days. Without IdempotencyKey it is an *OptionError.
func KeepFor(d time.Duration) PublishOption {
	return func(p publication) publication {
		if d < time.Millisecond || d > maxKeep {
			return p.refuse(&OptionError{Option: "KeepFor", Value: d.String(), Reason: "must be from 1ms to 9600h (400 days); omit the option for WithIdempotencyWindow"})
		}
		p.once.keep = d
		return p
	}
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

// ChildID returns the id of an event that a handler publishes, for the option ID: it is the same each time that the handler handles
// the event, also in a retry and after a crash, so the child is published once. It derives from the event, the name under which its
// delivery to the subscription was recorded, the number of edits, and name, which tells several children apart. Outside a
// handler it is the zero id, which ID refuses.
func ChildID(ctx context.Context, name string) EventID {
	c := callFrom(ctx)
	if c == nil {
		return EventID{}
	}
	d := c.dispatch
	return DeriveID(d.id, fmt.Sprintf("%q %d %s", d.to.nameAt(c.target), d.replay().edits, name))
}

// idempotency is the idempotency key of an event. The zero value is none.
type idempotency struct {
	key  string
	keep time.Duration // how long it is known at least; 0 for the window
	// known is set if a batch has remembered the key: of an event from a store, and of a replay.
	known bool

	untilSettled bool          // it is known until the event has settled
	unsettled    *atomic.Int32 // then, in memory: the unsettled dispatches of the event
}

// untilSettledExpires is the Expires of keys that are known until their events have settled.
var untilSettledExpires = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// isRemembered reports whether the publisher chose the event's id or its idempotency key: the bus remembers them.
func (d *dispatch) isRemembered() bool {
	o := d.from()
	return o.given || o.once.key != "" && !o.once.known
}

// maxGivenIDs bounds givenIDs.
const maxGivenIDs = 100_000

// givenIDs remembers the latest ids and idempotency keys that publishers set.
type givenIDs struct {
	aged   func() time.Time // see Timeline.Aged
	window time.Duration    // in which an idempotency key is known

	mu    sync.Mutex // guards the following
	known *dedupe.Memory[givenName, content]
	// pending has the keys of UntilSettled. Their number is that of pending events.
	pending map[givenName]pendingKey
}

// pendingKey is a key of UntilSettled.
type pendingKey struct {
	content
	unsettled *atomic.Int32 // dispatches of the event
}

// givenName is an id or an idempotency key, as in driver.Dedupe.
type givenName struct {
	scope string // empty for an id, the event type for an idempotency key
	name  string
}

// content is what the bus remembers of an event: the parts that must be the same if its name is given again.
type content struct {
	id             EventID
	eventType, key string
	until          int64 // Unix time in nanoseconds from when the name is not known any more; 0 for ids and pending keys
}

func idName(id EventID) givenName { return givenName{name: string(id[:])} }

// names returns the names of a dispatch that are remembered. Its idempotency key decides before its id.
func (d *dispatch) names() (names []givenName) {
	o := d.from()
	if o.once.key != "" && !o.once.known {
		names = append(names, givenName{d.to.eventType, o.once.key})
	}
	if o.given {
		names = append(names, idName(d.id))
	}
	return names
}

// has reports whether a name of the dispatch is known.
func (g *givenIDs) has(d *dispatch) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(d.names(), func(name givenName) bool {
		_, known := g.lookupLocked(name)
		return known
	})
}

// isKnown reports whether an id was given and is known.
func (g *givenIDs) isKnown(id EventID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.lookupLocked(idName(id))
	return known
}

func (g *givenIDs) lookupLocked(name givenName) (was content, known bool) {
	if is, pending := g.pending[name]; pending {
		return is.content, true
	}
	was, known = g.known.Lookup(name)
	return was, known && (was.until == 0 || was.until > g.aged().UnixNano())
}

// take remembers the given ids and keys of a change, and removes repetitions. If a name is known for another content, take
// remembers none and returns ErrDuplicateID.
func (g *givenIDs) take(c *opening) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.unknownLocked(c); err != nil {
		return err
	}
	for _, d := range c.all() {
		for _, name := range d.names() {
			// Cloned: the texts may be substrings of large ones, and would keep those in memory.
			is := content{id: d.id, eventType: d.to.eventType, key: strings.Clone(d.key)}
			name = givenName{name.scope, strings.Clone(name.name)}
			switch once := &d.origin.once; {
			case name.scope == "":
				g.known.Remember(name, is)
			case once.untilSettled:
				g.pendsLocked(name, is, once)
			default:
				is.until = g.aged().Add(max(g.window, once.keep)).UnixNano()
				g.known.Remember(name, is)
			}
		}
	}
	return nil
}

// pendsLocked remembers a key until its event has settled.
func (g *givenIDs) pendsLocked(name givenName, is content, once *idempotency) {
	once.unsettled = new(atomic.Int32)
	once.unsettled.Add(1)
	if g.pending == nil {
		g.pending = make(map[givenName]pendingKey)
	}
	g.pending[name] = pendingKey{is, once.unsettled}
}

// joins makes the dispatch of a replay count for the key of its event, if that is pending.
func (g *givenIDs) joins(d *dispatch) {
	once := &d.origin.once
	if once.key == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if is, pending := g.pending[givenName{d.to.eventType, once.key}]; pending && is.id == d.id {
		once.unsettled = is.unsettled
		once.unsettled.Add(1)
	}
}

// settled makes the key of UntilSettled free when the last dispatch of its event has settled, in memory.
func (g *givenIDs) settled(d *dispatch) {
	once := &d.from().once
	if once.unsettled == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if once.unsettled.Add(-1) > 0 {
		return
	}
	delete(g.pending, givenName{d.to.eventType, once.key})
	if len(g.pending) == 0 {
		g.pending = nil // a map keeps the memory of removed keys
	}
}

// divided counts further dispatches of an event whose key is known until it has settled, in memory.
func (d *dispatch) divided(more int) {
	if unsettled := d.from().once.unsettled; unsettled != nil {
		unsettled.Add(int32(more))
	}
}

// unknown removes the dispatches whose names are known, as take does, and remembers none.
func (g *givenIDs) unknown(c *opening) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unknownLocked(c)
}

func (g *givenIDs) unknownLocked(c *opening) error {
	batch := make(map[givenName]*dispatch)
	var fresh []*dispatch
	for _, d := range c.all() {
		known, err := g.repeatsLocked(d, batch)
		if err != nil {
			return c.errorAt(d, err)
		}
		if known {
			continue
		}
		fresh = append(fresh, d)
		for _, name := range d.names() {
			batch[name] = d
		}
	}
	c.leave(fresh)
	return nil
}

// repeatsLocked reports whether a dispatch repeats an earlier event, or one before it in its batch, and gives it the id of that one.
func (g *givenIDs) repeatsLocked(d *dispatch, batch map[givenName]*dispatch) (repeats bool, err error) {
	for _, name := range d.names() {
		was, known := g.lookupLocked(name)
		first := batch[name]
		switch {
		case known:
		case first == nil:
			continue
		default:
			was = content{id: first.id, eventType: first.to.eventType, key: first.key}
		}
		if name.scope != "" {
			return true, d.repeatsKey(was.id, was.key)
		}
		is := content{id: d.id, eventType: d.to.eventType, key: d.key}
		switch {
		case was != is:
			return true, fmt.Errorf("%w: %s was given to an event of type %q with key %q, and now to one of %q with %q",
				ErrDuplicateID, d.id, was.eventType, was.key, is.eventType, is.key)
		case !known && !bytes.Equal(payloadBytes(first.payload), payloadBytes(d.payload)) && d.row() != nil:
			return true, fmt.Errorf("%w: %s is twice in the batch, with different payloads", ErrDuplicateID, d.id)
		}
		return true, nil
	}
	return false, nil
}

// repeatsKey gives a dispatch the id of the event that has its idempotency key, unless it must be another event.
func (d *dispatch) repeatsKey(id EventID, key string) error {
	once := d.origin.once.key
	switch {
	case key != d.key:
		return fmt.Errorf("%w: the idempotency key %q was given to an event with key %q, and now to one with %q", ErrDuplicateID, shorten(once), key, d.key)
	case d.origin.given && id != d.id:
		return fmt.Errorf("%w: the idempotency key %q was given to the event %s, and now to %s", ErrDuplicateID, shorten(once), id, d.id)
	}
	d.id = id
	return nil
}

// errorAt returns the error of a publication of the change.
func (c *opening) errorAt(d *dispatch, err error) error {
	if c.batch == nil {
		return err
	}
	return &BatchError{Index: slices.Index(c.published, d), EventType: shorten(d.to.eventType), Err: err}
}

// leave makes fresh the dispatches of the change: the others are repetitions.
func (c *opening) leave(fresh []*dispatch) {
	if c.batch != nil {
		c.batch = fresh
	}
	if c.d = nil; len(fresh) > 0 {
		c.d = fresh[0]
	}
}

// forget removes the id and the idempotency key of a dispatch, so that they are new again.
func (g *givenIDs) forget(d *dispatch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range d.names() {
		if is, known := g.lookupLocked(name); known && is.id != d.id { // it was free, and another event has taken it
			continue
		}
		g.known.Forget(name)
		delete(g.pending, name)
	}
}

// forgetAll removes the names of a change that was refused.
func (g *givenIDs) forgetAll(c *opening) {
	for _, d := range c.all() {
		g.forget(d)
	}
}

// repeated removes the dispatch from a change whose id or idempotency key the store knows.
func (c *opening) repeated(b *Bus, known *driver.Dedupe) error {
	all := c.all()
	i := slices.IndexFunc(all, func(d *dispatch) bool { return d.isNamed(known) })
	if i < 0 {
		return fmt.Errorf("%w: %s", ErrDuplicateID, known.Key)
	}
	if err := b.durable.repeats(all[i], known); err != nil {
		return c.errorAt(all[i], err)
	}
	c.leave(slices.Delete(slices.Clone(all), i, i+1))
	return nil
}

// isNamed reports whether a remembered id or idempotency key is the dispatch's.
func (d *dispatch) isNamed(known *driver.Dedupe) bool {
	if known.Scope == "" {
		return d.from().given && d.id == EventID(known.Event)
	}
	return d.from().once.key == known.Key && d.to.eventType == known.Scope
}

// repeats returns an error unless a dispatch is a repetition of the event whose id or idempotency key the store knows. It gives the
// dispatch the id of that event.
func (j *durable) repeats(d *dispatch, known *driver.Dedupe) error {
	if known.Scope != "" {
		return d.repeatsKey(EventID(known.Event), known.Content)
	}
	if j.rememberedID(d, known.Expires).Content != known.Content {
		return fmt.Errorf("%w: %s was given to another event; its type, key or payload differs", ErrDuplicateID, known.Key)
	}
	return nil
}

// shorten bounds a user's input in error messages.
func shorten(s string) string { return texts.Shorten(s, 80) }
