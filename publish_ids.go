package eventbus

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/dedupe"
	"github.com/surebus/eventbus/internal/texts"
)

// ID sets the event's id. If you do not know whether a Publish succeeded, repeat it with the same id. For a known id
// with the same type and key, Publish returns the id and dispatches nothing. With another type or key it returns
// ErrDuplicateID. In memory, the bus remembers the last 100,000 ids that were set with ID, except ids of cancelled
// events. A store remembers them for WithIdempotencyWindow, and also compares the payload.
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

// IdempotencyKey makes the event happen once: the first event of a type with a key is accepted. Publish of another
// event with the same type and key returns the id of the first and dispatches nothing, whatever the payload.
// PublishAndWait returns the outcome Repeated. If the option Key or ID differs from the first event's, the error is
// ErrDuplicateID.
//
// The bus remembers a key for WithIdempotencyWindow, or for KeepFor if that is longer, from the acceptance of the first
// event. In memory it remembers the last 100,000 keys and ids, and with a store all, also after a restart. Cancel of
// the first event makes its key free. A refused event does not take its key.
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

// UntilSettled makes the event's IdempotencyKey unique among pending events: the bus remembers the key until the event
// has settled, and no longer. An event has settled when each of its deliveries was handled or dropped, or became a dead
// letter. A replay that began before the event settled extends this. In memory too, the bus keeps the key of a pending
// event. A replay does not take a free key again. An event that is published while the handler runs is a repetition
// too, even if the handler has already read its data: give such work its own key. Without IdempotencyKey, and with
// KeepFor, it is an *OptionError.
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

// KeepFor makes the bus remember the event's IdempotencyKey for a duration from 1 ms to 400 days, if that is longer
// than WithIdempotencyWindow. Without IdempotencyKey, Publish returns an *OptionError.
func KeepFor(d time.Duration) PublishOption {
	return func(p publication) publication {
		if d < time.Millisecond || d > maxKeep {
			return p.refuse(&OptionError{Option: "KeepFor", Value: d.String(), Reason: "must be from 1ms to 9600h (400 days); omit the option for WithIdempotencyWindow"})
		}
		p.once.keep = d
		return p
	}
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

// lookup returns what is remembered of an id or an idempotency key.
func (g *givenIDs) lookup(name givenName) (was content, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lookupLocked(name)
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
	if name := (givenName{d.to.eventType, once.key}); g.pending[name].unsettled == once.unsettled {
		delete(g.pending, name)
	}
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

// unknownLocked begins with all that was published. What was folded into a dispatch that has turned out to be a repetition may be
// new: it may share only one of two names with it.
func (g *givenIDs) unknownLocked(c *opening) error {
	batch := make(map[givenName]*dispatch)
	var fresh []*dispatch
	c.folded = nil
	for _, d := range c.notRepeated() {
		known, err := g.repeatsKnownLocked(d)
		switch first := d.firstOf(batch); {
		case err != nil:
		case known:
			c.repeats(d)
			continue
		case first != nil:
			if err = d.repeatsInBatch(first); err == nil {
				c.folded = append(c.folded, folded{d, first})
				continue
			}
		}
		if err != nil {
			return c.errorAt(d, err)
		}
		fresh = append(fresh, d)
		for _, name := range d.names() {
			batch[name] = d
		}
	}
	c.leave(fresh)
	return nil
}

// firstOf returns the dispatch of a batch that has a name of this one, or nil.
func (d *dispatch) firstOf(batch map[givenName]*dispatch) *dispatch {
	if len(batch) == 0 {
		return nil
	}
	for _, name := range d.names() {
		if first := batch[name]; first != nil {
			return first
		}
	}
	return nil
}

// repeatsKnownLocked reports whether a dispatch repeats an earlier event, and gives it the id of that.
func (g *givenIDs) repeatsKnownLocked(d *dispatch) (repeats bool, err error) {
	for _, name := range d.names() {
		was, known := g.lookupLocked(name)
		switch {
		case !known:
			continue
		case name.scope != "":
			if err = d.differsByKey(was.id, was.key); err == nil {
				d.id = was.id
			}
		default:
			err = d.differsByID(was.eventType, was.key)
		}
		return true, err
	}
	return false, nil
}

// repeatsInBatch returns an error unless a dispatch is a repetition of another one of its batch, one of whose names it has.
func (d *dispatch) repeatsInBatch(first *dispatch) error {
	if once := d.from().once.key; once != "" && once == first.from().once.key && d.to.eventType == first.to.eventType {
		return d.differsByKey(first.id, first.key)
	}
	if err := d.differsByID(first.to.eventType, first.key); err != nil {
		return err
	}
	if d.row() != nil && !bytes.Equal(payloadBytes(first.payload), payloadBytes(d.payload)) {
		return fmt.Errorf("%w: %s is twice in the batch, with different payloads", ErrDuplicateID, d.id)
	}
	return nil
}

// differsByKey returns an error if a dispatch must be another event than the one that has its idempotency key.
func (d *dispatch) differsByKey(id EventID, key string) error {
	once := d.origin.once.key
	switch {
	case key != d.key:
		return fmt.Errorf("%w: the idempotency key %q was given to an event with key %q, and now to one with %q", ErrDuplicateID, shorten(once), key, d.key)
	case d.origin.given && id != d.id:
		return fmt.Errorf("%w: the idempotency key %q was given to the event %s, and now to %s", ErrDuplicateID, shorten(once), id, d.id)
	}
	return nil
}

// differsByID returns an error if a dispatch must be another event than the one that has its id.
func (d *dispatch) differsByID(eventType, key string) error {
	if eventType == d.to.eventType && key == d.key {
		return nil
	}
	return fmt.Errorf("%w: %s was given to an event of type %q with key %q, and now to one of %q with %q",
		ErrDuplicateID, d.id, eventType, key, d.to.eventType, d.key)
}

// errorAt returns the error of a publication of the change.
func (c *opening) errorAt(d *dispatch, err error) error {
	if c.batch == nil {
		return err
	}
	return &BatchError{Index: slices.Index(c.published, d), EventType: shorten(d.to.eventType), Err: err}
}

// repeats notes that a dispatch repeats an earlier event.
func (c *opening) repeats(d *dispatch) {
	if c.repetitions == nil {
		c.repetitions = make(map[*dispatch]bool)
	}
	c.repetitions[d] = true
}

// notRepeated returns the published dispatches that repeat no earlier event.
func (c *opening) notRepeated() []*dispatch {
	if c.published == nil {
		return c.all()
	}
	return slices.DeleteFunc(slices.Clone(c.published), func(d *dispatch) bool { return c.repetitions[d] })
}

// nameFolded gives the dispatches that repeat another one of the batch the id of that, which is final.
func (c *opening) nameFolded() {
	for _, f := range c.folded {
		f.again.id = f.first.id
	}
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
	d := all[i]
	if err := b.durable.repeats(d, known); err != nil {
		return c.errorAt(d, err)
	}
	return c.remove(b, d)
}

// remove removes a dispatch that repeats an earlier event.
func (c *opening) remove(b *Bus, d *dispatch) error {
	c.repeats(d)
	if c.published == nil {
		c.leave(nil)
		return nil
	}
	return b.intake.given.unknown(c)
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
		err := d.differsByKey(EventID(known.Event), known.Content)
		if err == nil {
			d.id = EventID(known.Event)
		}
		return err
	}
	if j.rememberedID(d, known.Expires).Content != known.Content {
		return fmt.Errorf("%w: %s was given to another event; its type, key or payload differs", ErrDuplicateID, known.Key)
	}
	return nil
}

// shorten bounds a user's input in error messages.
func shorten(s string) string { return texts.Shorten(s, 80) }
