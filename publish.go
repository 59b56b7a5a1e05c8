package eventbus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/surebus/eventbus/internal/lane"
	"github.com/surebus/eventbus/internal/route"
)

// PublishOption is an option of Publish, PublishAndWait and a Publication.
type PublishOption func(publication) publication

// publication is what the options say of an event. They pass it on by value, so
// that it needs no allocation.
type publication struct {
	metadata EventMetadata
	key      string
	id       EventID
	given    bool
	when     *dueOption // nil for now
	err      error      // of the first option that is refused
}

// dueOption is when an event is to be dispatched: a while after it is published,
// or at an instant.
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

// Metadata gives an event a name and a value, which outlive the process where
// the bus does. A name given again replaces its value. At most 64 names of up to
// 255 bytes, with values of up to 8 KiB, in UTF-8; names that begin with
// "eventbus." are reserved.
func Metadata(name, value string) PublishOption {
	return func(p publication) publication {
		if err := p.metadata.set(name, value); err != nil {
			return p.refuse(err)
		}
		return p
	}
}

// Key orders an event after those that were published with the same key before:
// it is dispatched when they have settled, their retries included. Events with
// other keys, or none, do not wait for it. A delivery that is held (see
// HoldWhenOpen) does not hold up its key at other subscriptions. On a bus with
// isolation there is an order for each subscription.
//
// Up to 255 bytes of UTF-8 without control characters. An empty key is none. Of
// several, the last holds.
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
	const most = 255
	switch {
	case len(key) > most:
		return fmt.Sprintf("longer than %d bytes; use a digest of it", most)
	case !utf8.ValidString(key):
		return "not valid UTF-8"
	case strings.ContainsFunc(key, unicode.IsControl):
		return "has a control character"
	}
	return ""
}

// ID gives an event its id, so that publishing can be repeated when it is not
// known whether it succeeded: an id that is known, with the same type and key, is
// answered as the first time, and nothing is dispatched. With another type or key
// it is ErrDuplicateID. The last 100,000 ids that were given are known, those of
// events that were cancelled aside.
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

// After has an event dispatched no earlier than d from now. It is accepted at
// once, for the subscriptions that there are now, and can be taken back with
// Cancel until it is due. One that matches none is unrouted at once. It takes its
// key's place when it is due. MaxElapsed counts from Publish. Shutdown does not
// wait for it. Not more than 0 is at once. Of several of After and At, the last
// holds.
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

// Publish accepts an event: when it returns nil, the event is queued, and every
// subscription that matches its type now will handle it or be named in a dead
// letter. The payload is handed over as it is.
//
// When the queue is full, Publish waits until there is room, ctx ends, or the bus
// shuts down; with RefuseWhenFull, and before Start, it is ErrQueueFull. Called
// by a handler, with its context or one derived from it, it never waits.
//
// While thousands of events wait for workers that get on with them, a publisher that
// is faster lets other goroutines run now and then: for two milliseconds, and until it
// has its turn again, which may be longer where processors are short.
//
// The context bounds the acceptance only: its values reach the handlers, its
// cancellation and deadline do not. A chain of handlers that publish with derived
// contexts, each from within the one before, starts afresh, without values, after
// a hundred links.
//
// Errors: *EventError, ErrDuplicateID, ErrQueueFull, ErrShutdown, the context's, an
// *OptionError for a nil option. With an error nothing was accepted.
func (b *Bus) Publish(ctx context.Context, eventType string, payload any, opts ...PublishOption) (EventID, error) {
	if err := b.ready(ctx); err != nil {
		return EventID{}, fmt.Errorf("Publish: %w", err)
	}
	id, err := b.accept(ctx, callFrom(ctx), eventType, payload, opts, nil)
	if err != nil {
		return EventID{}, fmt.Errorf("Publish(%q): %w", shorten(eventType), err)
	}
	return id, nil
}

// maxValueLinks is how many contexts of handlers the values of a context may
// come through. Each keeps the one before it alive, and its event.
const maxValueLinks = 100

// Publication is an event that PublishBatch is to publish.
type Publication struct {
	Type    string
	Payload any
	Options []PublishOption
}

// PublishBatch accepts all of several events, in their order, or none of them.
// The ids are those of the publications, in their order.
//
// It waits for room for all of them, as Publish does for one. An empty batch is
// accepted and does nothing.
//
// Errors: ErrBatchTooLarge for more events than the queue can have, a *BatchError
// that says which publication was refused with which of Publish's errors, and
// those of Publish.
func (b *Bus) PublishBatch(ctx context.Context, batch []Publication) ([]EventID, error) {
	refuse := func(err error) ([]EventID, error) { return nil, fmt.Errorf("PublishBatch: %w", err) }
	if err := b.ready(ctx); err != nil {
		return refuse(err)
	}
	if len(batch) > b.config.queue {
		return refuse(fmt.Errorf("%w: %d events, and the queue has room for %d", ErrBatchTooLarge, len(batch), b.config.queue))
	}
	from := callFrom(ctx)
	inside := b.running(from)
	openings, ids := make([]opening, len(batch)), make([]EventID, len(batch))
	for i, p := range batch {
		if err := b.open(ctx, &openings[i], from, inside, p.Type, p.Payload, p.Options, nil); err != nil {
			return refuse(&BatchError{Index: i, EventType: shorten(p.Type), Err: err})
		}
		ids[i] = openings[i].id
	}
	if err := b.acceptAll(ctx, openings, inside); err != nil {
		return refuse(err)
	}
	return ids, nil
}

// accept opens a dispatch for what is published. from is the call that publishes,
// if it is a handler's.
func (b *Bus) accept(ctx context.Context, from *call, eventType string, payload any, opts []PublishOption, w *waiter) (EventID, error) {
	inside := b.running(from)
	var o opening
	if err := b.open(ctx, &o, from, inside, eventType, payload, opts, w); err != nil {
		return EventID{}, err
	}
	if !o.simple() {
		if err := b.acceptAll(ctx, []opening{o}, inside); err != nil {
			var only *BatchError
			if errors.As(err, &only) {
				err = only.Err
			}
			return EventID{}, err
		}
		return o.id, nil
	}
	place, err := b.store.reserve(ctx, o.to, inside)
	if err != nil {
		return EventID{}, appendError(ctx, err)
	}
	*place = o
	o.to.counters.events.Add(1)
	b.store.commit(place)
	b.accepted(&o)
	return o.id, nil
}

// open puts into place what a dispatch of an event that is published begins with.
func (b *Bus) open(ctx context.Context, o *opening, from *call, inside bool, eventType string, payload any, opts []PublishOption, w *waiter) error {
	to, hash, known := b.routes.Cached(eventType)
	if !known {
		if offence := route.CheckType(eventType); offence != nil {
			return typeError(eventType, offence)
		}
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	if b.cutting.begun() || b.ending.Load() && !inside {
		return ErrShutdown
	}
	if !known {
		to = b.routes.Find(eventType, hash)
	}
	now, _ := b.time.Recent()
	o.payload, o.to, o.wall = payload, to, now.Wall
	switch {
	case from != nil:
		o.with = from.valuesFor(ctx)
	case ctx != context.Background():
		o.with = ctx
	}
	var more *extras
	if len(opts) > 0 || b.config.metadataFrom != nil {
		p, err := b.publication(ctx, opts)
		if err != nil {
			return err
		}
		o.id, o.key = p.id, p.key
		if p.metadata.Len() > 0 || p.given || p.when != nil {
			more = &extras{metadata: p.metadata, given: p.given}
		}
		if p.when != nil {
			o.wall, more.due = b.dueFrom(p.when)
		}
	}
	if w != nil {
		if more == nil {
			more = &w.extras
		}
		more.waiter = w
	}
	if more != nil {
		more.Context, o.with = o.with, more
	}
	if w != nil {
		w.expect(len(to.each))
		if w.wouldDeadlock(o) {
			return fmt.Errorf("%w %q", ErrWouldDeadlock, o.key)
		}
	}
	if len(opts) == 0 || o.id.IsZero() { // only options give one, and to look at it costs more
		b.ids.Put((*[16]byte)(&o.id), now.Millis)
	}
	return nil
}

// simple reports whether to accept the event is to queue it.
func (o *opening) simple() bool {
	return len(o.to.subscriptions) > 0 && !o.given() && o.due() == 0
}

// dueFrom is the time of publication of an event that is published now, and when
// it is due: 0 for at once.
func (b *Bus) dueFrom(when *dueOption) (wall, due int64) {
	now := b.time.Now()
	delay := when.after
	if !when.at.IsZero() {
		delay = when.at.Sub(now.UTC)
	}
	if delay <= 0 {
		return now.Wall, 0
	}
	return now.Wall, max(later(now.Nanos, delay), 1)
}

// acceptAll accepts all openings, or none.
func (b *Bus) acceptAll(ctx context.Context, openings []opening, inside bool) error {
	direct := int64(0) // those that are not queued
	for i := range openings {
		if !openings[i].queues() {
			direct++
		}
	}
	// Counted before ending is read: if it is not set, Shutdown waits for them.
	b.ledger.direct.Add(direct)
	defer func() {
		if direct > 0 { // not accepted, or known
			b.ledger.direct.Add(-direct)
			b.checkDrained()
		}
	}()
	if b.cutting.begun() || b.ending.Load() && !inside {
		return ErrShutdown
	}
	fresh, err := b.store.appendAll(ctx, openings, inside)
	if err != nil {
		return appendError(ctx, err)
	}
	for _, o := range fresh {
		if !o.queues() {
			direct-- // settled, or on the schedule, below
		}
		if len(o.to.subscriptions) == 0 {
			continue
		}
		o.to.counters.events.Add(1)
		if o.due() != 0 {
			b.putOff(o)
		}
	}
	for _, o := range fresh { // last, since observers may wait
		b.accepted(&o)
		if len(o.to.subscriptions) == 0 {
			b.unrouted(o)
		}
	}
	if len(openings) == 1 && len(fresh) == 0 {
		if w := openings[0].waiter(); w != nil {
			w.end(Repeated)
		}
	}
	return nil
}

// appendError is the error of Publish for one of the store.
func appendError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, lane.ErrFull):
		return ErrQueueFull
	case errors.Is(err, lane.ErrClosed):
		return ErrShutdown
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return contextError(ctx)
	}
	return err
}

// running reports whether c is a call of this bus that has not ended.
func (b *Bus) running(c *call) bool {
	return c != nil && c.bus() == b && c.running()
}

// publication is what the options and the bus say of an event.
func (b *Bus) publication(ctx context.Context, opts []PublishOption) (p publication, err error) {
	for i, o := range opts {
		if o == nil {
			return p, nilOption("Publish", i)
		}
		if p = o(p); p.err != nil {
			return p, p.err
		}
	}
	if b.config.metadataFrom == nil {
		return p, nil
	}
	more := b.config.metadataFrom(ctx)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		if _, given := p.metadata.Lookup(name); given {
			continue
		}
		if err := p.metadata.set(name, more[name]); err != nil {
			return p, err
		}
	}
	return p, nil
}

// valuesFor is where the handlers of an event that is published by c's handler,
// with ctx, find their values.
func (c *call) valuesFor(ctx context.Context) context.Context {
	if ctx == context.Context(c) {
		return c.values // nothing was added to them
	}
	links := 1
	if before, ok := c.values.(*linkedValues); ok {
		links += before.links
	}
	if links > maxValueLinks {
		return nil
	}
	return &linkedValues{ctx, links}
}

// linkedValues are values that come through the contexts of handlers.
type linkedValues struct {
	context.Context
	links int // how many those are
}

// linked reports whether values come through the context of a handler. What is
// allocated for such a dispatch is not allocated with anything else: from there one
// would come to the handler's dispatch, what is beside that, and so on.
func linked(values context.Context) bool {
	_, is := values.(*linkedValues)
	return is
}
