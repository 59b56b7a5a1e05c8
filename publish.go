package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/convert"
	"github.com/surebus/eventbus/internal/dedupe"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/timeline"
)

// Publish accepts an event and returns its id. If the error is nil, each subscription that matches the type at this
// moment will handle the event, or a dead letter names the subscription. Without a store, the bus passes the payload by
// reference: do not change it afterwards.
//
// Publish blocks while the queue is full, or the line of throttled deliveries of a matching subscription
// (LineCapacity). It stops waiting when there is room, when ctx ends, or when the bus shuts down. With RefuseWhenFull,
// and before Start, it returns a *FullError instead. It never blocks for a scheduled event (After, At), or in a handler
// that calls it with a context derived from its own.
//
// The context bounds the acceptance only: its cancellation, deadline and values do not reach handlers. WithContextFrom
// and WithMetadataFrom carry values.
//
// With a store, Publish returns nil when the event is durable, and handlers receive the encoded payload. Publish does not
// wait for room in the queue: the disk is the queue, and WithMaxUnsettled bounds it.
//
// Errors:
//
//   - *EventError: the type, the payload or an option is invalid
//   - *OptionError: an option is nil
//   - ErrDuplicateID: a different event has the ID, or the first event with the IdempotencyKey has another Key or ID
//   - *FullError: there is no room, or ctx ended while Publish waited for room
//   - ErrShutdown, and the context's error
//
// Errors with a store:
//
//   - *PayloadError: the payload cannot be encoded, or is too large
//   - ErrStoreFailed: the bus reopens the store, or the store confirms nothing
//   - ErrWouldDeadlock: the commit would wait for a transaction of the caller (see PublishTx)
//   - *IndeterminateError: during the commit, ctx ended, the store failed, or another program held its lock too long
//
// After an *IndeterminateError the store may have the event. After any other error it does not.
func (b *Bus) Publish(ctx context.Context, eventType string, payload any, opts ...PublishOption) (EventID, error) {
	if err := b.ready(ctx); err != nil {
		return EventID{}, fmt.Errorf("Publish: %w", err)
	}
	if b.config.hooks != nil {
		return b.config.around(ctx, "Publish", eventType, payload, opts, func(opts []PublishOption) (EventID, error) {
			return b.publish(ctx, eventType, payload, opts)
		})
	}
	return b.publish(ctx, eventType, payload, opts)
}

func (b *Bus) publish(ctx context.Context, eventType string, payload any, opts []PublishOption) (EventID, error) {
	from := callFrom(ctx)
	inside := b.intake.running(from)
	d, err := b.intake.prepare(ctx, from, inside, eventType, payload, opts)
	if err == nil {
		_, err = b.journal.accept(ctx, inside, d, nil)
	}
	if err != nil {
		return EventID{}, fmt.Errorf("Publish(%q): %w", shorten(eventType), err)
	}
	return d.id, nil
}

// maxValueLinks is the number of handlers' contexts through which values are passed on. Each keeps
// the one before it, and its event, in memory.
const maxValueLinks = 100

// Publication is an event for PublishBatch.
type Publication struct {
	Type    string          // the event type
	Payload any             // the payload, as for Publish
	Options []PublishOption // the options, as for Publish
}

// PublishBatch accepts several events in their order, or none of them. It returns their ids in the
// same order. It blocks for room for all of them, as Publish does for one. An empty batch is
// accepted and does nothing.
//
// Errors: ErrBatchTooLarge for more events than the queue's capacity, *BatchError, which names the
// publication and wraps one of Publish's errors, and those of Publish.
func (b *Bus) PublishBatch(ctx context.Context, batch []Publication) ([]EventID, error) {
	if err := b.ready(ctx); err != nil {
		return nil, fmt.Errorf("PublishBatch: %w", err)
	}
	if b.config.hooks != nil && len(batch) <= b.config.queue {
		return b.config.aroundBatch(ctx, batch, func(batch []Publication) ([]EventID, error) { return b.publishBatch(ctx, batch) })
	}
	return b.publishBatch(ctx, batch)
}

func (b *Bus) publishBatch(ctx context.Context, batch []Publication) ([]EventID, error) {
	refuse := func(err error) ([]EventID, error) { return nil, fmt.Errorf("PublishBatch: %w", err) }
	if len(batch) > b.config.queue {
		return refuse(fmt.Errorf("%w: %d events, and the queue has room for %d", ErrBatchTooLarge, len(batch), b.config.queue))
	}
	from := callFrom(ctx)
	inside := b.intake.running(from)
	dispatches, ids := make([]*dispatch, len(batch)), make([]EventID, len(batch))
	for i, p := range batch {
		d, err := b.intake.prepare(ctx, from, inside, p.Type, p.Payload, p.Options)
		if err != nil {
			return refuse(&BatchError{Index: i, EventType: shorten(p.Type), Err: err})
		}
		dispatches[i], ids[i] = d, d.id
	}
	if len(batch) == 0 {
		return ids, nil
	}
	if _, err := b.journal.accept(ctx, inside, dispatches[0], slices.Clone(dispatches)); err != nil {
		return refuse(err)
	}
	for i, d := range dispatches {
		ids[i] = d.id // a repetition of a key has the id of the first event
	}
	return ids, nil
}

// intake accepts publications and replays.
type intake struct {
	*Bus

	given     givenIDs     // and idempotency keys
	quota     room.Quota   // of unsettled dispatches, with a store: WithMaxUnsettled
	fullLines atomic.Int32 // doors with room != nil
}

func newIntake(b *Bus) *intake {
	return &intake{
		Bus:   b,
		given: givenIDs{aged: b.time.Aged, window: b.config.idempotency, known: dedupe.New[givenName, content](maxGivenIDs)},
		quota: room.Quota{Most: int64(b.config.unsettled)},
	}
}

// prepare validates a publication and returns its dispatch, without accepting it. from is the call
// whose handler publishes, or nil.
func (in *intake) prepare(ctx context.Context, from *call, inside bool, eventType string, payload any, opts []PublishOption) (*dispatch, error) {
	to, hash, known := in.registry.cached(eventType)
	if !known {
		if offence := route.CheckType(eventType); offence != nil {
			return nil, typeError(eventType, offence)
		}
		if eventType == deadLetterType {
			return nil, reservedType()
		}
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	if in.halts.Has(halt.Cut) || in.lifecycle.ending.Load() && !inside {
		return nil, in.refuseShutdown()
	}
	if in.halts.Has(halt.Failed | halt.Unstarted) {
		if in.halts.Has(halt.Failed) {
			return nil, errReopens()
		}
		in.lifecycle.reminder.Arm(in.time, startsWithin, in.report.notStarted)
	}
	if !known {
		to = in.registry.targetsOf(eventType, hash)
	}
	now, _ := in.time.Recent()
	d := &dispatch{payload: payload, to: to, wall: now.Wall, inside: inside}
	given := false
	if len(opts) > 0 || in.config.metadataFrom != nil || in.config.inherited != nil {
		p, err := in.publication(ctx, from, opts)
		if err != nil {
			return nil, err
		}
		d.key, given = p.key, p.given
		if p.metadata.Len() > 0 || given || p.once.key != "" || p.when != nil || p.expires != nil {
			d.origin = &origin{metadata: p.metadata, given: given, once: p.once}
		}
		if p.when != nil || p.expires != nil {
			if d.wall, err = in.timesFrom(d.origin, p.when, p.expires); err != nil {
				return nil, err
			}
		}
		if given {
			d.id = p.id
			in.ids.Put((*[16]byte)(&d.origin.order), now.Millis)
		}
	}
	if !given {
		in.ids.Put((*[16]byte)(&d.id), now.Millis)
	}
	if err := in.journal.prepare(ctx, d); err != nil {
		return nil, err
	}
	return d, nil
}

// refuseShutdown yields and returns ErrShutdown. Without the yield, publishers that retry in a loop
// would take the processors from Shutdown.
func (in *intake) refuseShutdown() error {
	runtime.Gosched()
	return ErrShutdown
}

// accepted reports accepted dispatches to observers, which may block, and settles those without
// targets. It returns how many there are.
func (in *intake) accepted(c *opening) (fresh int) {
	if c.left { // the bus that takes them in reports them
		return len(c.all())
	}
	for i, d := range c.all() {
		if c.events != nil {
			in.report.accepted(c.events[i])
		}
		if len(d.to.subscriptions) == 0 {
			in.machine.settle(d, Unrouted)
		}
		fresh++
	}
	for _, r := range c.refused {
		in.machine.applyRefusal(r)
	}
	return fresh
}

// whileEntering accepts dispatches that take no room in the queue. Shutdown waits for reserved room; for these it waits by
// the count of callers that are entering.
func (in *intake) whileEntering(inside bool, accept func() error) error {
	counter := in.enter(inside)
	defer in.leave(counter)
	if in.halts.Has(halt.Cut) || in.machine.pool.Sealed() || in.lifecycle.ending.Load() && !inside {
		return in.refuseShutdown()
	}
	return accept()
}

// enter counts a caller that opens dispatches. Call it before reading ending: if ending is not set, Shutdown waits for the
// caller.
func (in *intake) enter(inside bool) (counter *atomic.Int64) {
	counter = &in.ledger.entering
	counter.Add(1)
	if !inside && in.halts.Has(halt.Lost) { // they are left in incoming meanwhile
		in.ledger.leaving.Add(1)
		counter.Add(-1)
		counter = &in.ledger.leaving
	}
	return counter
}

// leave ends enter.
func (in *intake) leave(counter *atomic.Int64) {
	counter.Add(-1)
	in.ledger.checkDrained()
}

// needs returns the number of places that dispatches take in the queue, whether some takes none, and whether the id or the
// idempotency key of some is remembered.
func (o *opening) needs() (places int, unqueued, remembered bool) {
	for _, d := range o.all() {
		n := d.queueRoom()
		places += n
		unqueued, remembered = unqueued || n == 0, remembered || d.isRemembered()
	}
	return places, unqueued, remembered
}

// reserve blocks until the queue and the lines of the targets have room.
func (in *intake) reserve(ctx context.Context, c *opening, places int, inside bool) error {
	if in.fullLines.Load() > 0 && !inside {
		for _, d := range c.all() {
			if d.queueRoom() == 0 {
				continue // it is scheduled or unrouted
			}
			if err := in.awaitLines(ctx, d.to); err != nil {
				return err
			}
		}
	}
	err := in.machine.pool.Reserve(ctx, places, inside)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pool.ErrFull):
		return &FullError{Bound: BoundQueue, Most: int64(in.config.queue)}
	case errors.Is(err, pool.ErrContext):
		return &FullError{Bound: BoundQueue, Most: int64(in.config.queue), Err: contextError(ctx)}
	default:
		return in.refuseShutdown()
	}
}

// awaitLines blocks until no target's line is full.
func (in *intake) awaitLines(ctx context.Context, to *targets) error {
	var ended <-chan struct{}
	for i := 0; i < len(to.subscriptions); i++ {
		s := to.subscriptions[i]
		room := s.door.roomSignal()
		if room == nil {
			continue
		}
		full := &FullError{Bound: BoundLine, Subscription: s.id, Most: int64(s.door.terms().capacity)}
		if in.config.refuse {
			return full
		}
		if ended == nil {
			ended = ctx.Done()
		}
		select {
		case <-room:
			i-- // it may be full again
		case <-ended:
			full.Err = contextError(ctx)
			return full
		case <-in.lifecycle.leaving:
			return in.refuseShutdown()
		}
	}
	return nil
}

// timesFrom returns the current time as the time of publication. It sets when the event is due, nil for now, and when it expires.
func (in *intake) timesFrom(o *origin, when *dueOption, expires *expiryOption) (wall int64, err error) {
	now := in.time.Now()
	if when != nil {
		o.due = when.from(now)
	}
	if expires != nil {
		o.expires, err = expires.from(now, o.due, o.given || o.once.key != "")
	}
	return now.Wall, err
}

// from returns when the event is due: nil for now.
func (when *dueOption) from(now timeline.Instant) *due {
	at, delay := when.at.UTC(), when.after
	if !at.IsZero() {
		delay = at.Sub(now.UTC)
	}
	if delay <= 0 {
		return nil
	}
	return &due{nanos: timeline.Later(now.Nanos, delay), at: at}
}

// running reports whether c is a running call of this bus.
func (in *intake) running(c *call) bool {
	return c != nil && c.bus() == in.Bus && c.running()
}

// publication applies the options, and the metadata of WithMetadataFrom and WithInheritedMetadata.
func (in *intake) publication(ctx context.Context, from *call, opts []PublishOption) (p publication, err error) {
	for i, o := range opts {
		if o == nil {
			return p, nilOption("Publish", i)
		}
		if p = o(p); p.err != nil {
			return p, p.err
		}
	}
	if err := p.once.check(); err != nil {
		return p, err
	}
	given := p.metadata.Len()
	for _, f := range slices.Backward(in.config.metadataFrom) {
		more := f(ctx)
		for _, name := range slices.Sorted(maps.Keys(more)) {
			err = cmp.Or(err, p.metadata.add(name, more[name]))
		}
	}
	if from != nil && from.dispatch.origin != nil {
		for _, name := range in.config.inherited {
			if value, ok := from.dispatch.origin.metadata.Lookup(name); ok {
				err = cmp.Or(err, p.metadata.add(name, value))
			}
		}
	}
	if p.hooked != nil {
		p.metadata.addHooked(p.hooked, given)
	}
	return p, err
}

// encode returns an encoded payload, as handlers get it on a bus with a store. A method of the payload may panic.
func (in *intake) encode(payload any) (encoded any, err error) {
	if before, ok := payload.(*collectedEvent); ok {
		return in.config.encoded(before.Payload), nil
	}
	refuse := func(err error) error {
		return &PayloadError{GoType: fmt.Sprintf("%T", payload), Err: err}
	}
	defer func() {
		if p := recover(); p != nil {
			err = refuse(errors.New("a method of the payload panicked: " + panicText(p)))
		}
	}()
	codec := in.config.codec
	var data []byte
	if codec == nil {
		data, err = json.Marshal(payload)
	} else {
		data, err = codec.Marshal(payload)
	}
	switch {
	case err != nil:
		return nil, refuse(err)
	case len(data) > in.config.payloadLimit:
		return nil, &PayloadError{GoType: fmt.Sprintf("%T", payload), Size: len(data), Limit: in.config.payloadLimit}
	}
	if string(data) == "{}" && convert.IsHollow(payload) {
		in.report.hollowPayload(fmt.Sprintf("%T", payload))
	}
	return in.config.encoded(data), nil
}

// encoded returns encoded bytes with the type that says who decodes them.
func (c *config) encoded(data []byte) any {
	if c.codec == nil {
		return json.RawMessage(data)
	}
	return EncodedPayload(data)
}

// valuesOf returns the values for the handlers of an event from the context of WithContextFrom, which may be
// derived from that of a handler.
func valuesOf(ctx context.Context) context.Context {
	c := callFrom(ctx)
	switch {
	case c == nil:
		return ctx
	case ctx == context.Context(c):
		return c.dispatch.values // the handler added none
	}
	links := 1
	if before, ok := c.dispatch.values.(*linkedValues); ok {
		links += before.links
	}
	if links > maxValueLinks {
		return nil
	}
	return &linkedValues{ctx, links}
}

// linkedValues are values that were passed on through the contexts of handlers.
type linkedValues struct {
	context.Context
	links int // the number of these contexts
}
