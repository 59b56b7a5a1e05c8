package eventbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Emit publishes an event if and only if the handler whose context is ctx succeeds. It returns the event's id at once.
// A handler that fails, panics, exceeds its timeout or returns Snooze or Throttle emits nothing, so retries publish no
// event twice.
//
// With a store, the commit that records the success has the events. If the handler's event has further targets, the bus
// makes this commit before the next target runs. In memory, the bus accepts the events after the success and before the
// handler's event settles. Their time, their order by Key and their subscriptions are determined at that instant. They
// do not wait for room. After counts from the call of Emit. PublishAndWait of the handler's event does not wait for
// emitted events.
//
// Without the option ID, the id derives from the handler's event, the recorded name of the delivery, the number of
// edits, and the position among the call's events. If an operator imports and replays the letter of a handled event,
// the handler emits again, with the same ids.
//
// If the bus knows the ID or IdempotencyKey when it accepts the event, it drops the event as a repetition. If the
// content differs, the event becomes a dead letter with ReasonDuplicate. Within one call, or one transaction in it,
// Emit compares at once: it returns the id of the first event, or ErrDuplicateID.
//
// With InTx, Emit writes the events in the handler's transaction, as PublishTx does. Middleware with a transaction of
// its own collects them: see CollectEmitted.
//
// One call of a handler may emit as many events as WithQueueCapacity, and 16 MiB of encoded payloads
// (WithMaxEmittedBytes). Emit does not block, and is safe for concurrent use.
//
// After an error the event is not emitted, and the handler may still succeed.
//
// Errors:
//
//   - ErrNotInHandler: ctx is not the context of a running handler, or the handler has exceeded its timeout
//   - ErrBatchTooLarge: the call emits too many events or bytes
//   - ErrNoTransaction: a middleware cannot keep the events (WithoutEmit)
//   - *EventError, *PayloadError, *OptionError, ErrNilContext: an argument is invalid
//   - ErrDuplicateID: this call, or its transaction, has a different event with the ID or the IdempotencyKey
//   - ErrStoreFailed: the bus reopens the store
//   - ErrShutdown, and the context's error
func Emit(ctx context.Context, eventType string, payload any, opts ...PublishOption) (EventID, error) {
	d, err := emit(ctx, eventType, payload, opts)
	if err != nil {
		return EventID{}, fmt.Errorf("Emit(%q): %w", shorten(eventType), err)
	}
	return d.id, nil
}

func emit(ctx context.Context, eventType string, payload any, opts []PublishOption) (*dispatch, error) {
	if ctx == nil {
		return nil, ErrNilContext
	}
	c := callFrom(ctx)
	if c == nil {
		return nil, ErrNotInHandler
	}
	if !c.running() {
		return nil, c.errEnded()
	}
	b, to := c.bus(), c.emitter(ctx)
	if to.refuses {
		return nil, fmt.Errorf("%w: a middleware of %s runs the handler in a transaction that cannot keep events; publish there", ErrNoTransaction, c.subscription().id)
	}
	again, _ := payload.(*collectedEvent)
	if b.config.hooks == nil || again != nil {
		return c.emitTo(ctx, to, eventType, payload, opts, again)
	}
	var d *dispatch
	_, err := b.config.around(ctx, "Emit", eventType, payload, opts, func(opts []PublishOption) (_ EventID, err error) {
		if d, err = c.emitTo(ctx, to, eventType, payload, opts, nil); err != nil {
			return EventID{}, err
		}
		return d.id, nil
	})
	return d, err
}

// emitTo prepares an event and keeps it in an emitter of the call.
func (c *call) emitTo(ctx context.Context, to *emitter, eventType string, payload any, opts []PublishOption, again *collectedEvent) (*dispatch, error) {
	b := c.bus()
	d, err := b.intake.prepare(ctx, c, true, eventType, payload, opts)
	if err == nil && (again != nil || to.encodes) && d.row() == nil && !b.config.encodes {
		d.payload, err = b.intake.encode(payload)
	}
	if err != nil {
		return nil, err
	}
	if again != nil {
		d.origin.given = again.Given
		if !again.Expires.IsZero() { // it may have passed by now
			d.origin.expires = &again.Expires
		}
	}
	return c.ensureCancellation().emit(c, to, d, again != nil)
}

// ErrNotInHandler is returned by Emit without the context of a running handler.
var ErrNotInHandler = errors.New("eventbus: not in a running handler; pass the handler's context before it returns, or use Publish")

// errEnded returns the error of an Emit after the handler has ended.
func (c *call) errEnded() error {
	return fmt.Errorf("%w: the handler has ended: %w", ErrNotInHandler, c.endingErr())
}

// emitter keeps what a call has emitted, or what a part of it has emitted in a transaction. cancellation.mu of the call guards the fields
// but those that are fixed.
type emitter struct {
	call    *call  // fixed, and so are scope, encodes and refuses
	scope   string // tells its derived ids from those of the call's other emitters
	encodes bool   // its events are kept elsewhere, encoded
	refuses bool

	ended   bool
	emitted []*dispatch
	bytes   int                     // of encoded payloads
	names   map[givenName]*dispatch // ids and keys
}

type emitterKey struct{}

// emitter returns where Emit keeps events. A context may also have values of the call of another handler: see WithContextFrom.
func (c *call) emitter(ctx context.Context) *emitter {
	if e, ok := ctx.Value(emitterKey{}).(*emitter); ok && e.call == c {
		return e
	}
	return &c.ensureCancellation().own
}

// within returns a context in which Emit keeps events in an emitter of its own.
func (c *call) within(ctx context.Context, e emitter) (context.Context, *emitter) {
	e.call = c
	c.ensureCancellation().adds(&e)
	return context.WithValue(ctx, emitterKey{}, &e), &e
}

// scopeInTx is that of the emitter of InTx, of which a call has one at most.
const scopeInTx = "tx"

// adds adds an emitter. If a later attempt skips the transaction of InTx, the numbers of others are the same.
func (a *cancellation) adds(e *emitter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inner = append(a.inner, e)
	if e.scope != scopeInTx {
		a.numbered++
		e.scope = strconv.Itoa(a.numbered)
	}
}

// dropEmittedLocked forgets what the call has emitted, when it has ended: a handler may keep its context. If it has ended in time, its
// worker takes the events that it has emitted outside of transactions afterwards.
func (a *cancellation) dropEmittedLocked(inTime bool) {
	dropped := a.inner
	if a.inner = nil; !inTime {
		dropped = append(dropped, &a.own)
	}
	for _, e := range dropped { // Emit may read the fixed fields meanwhile
		e.ended, e.emitted, e.names = true, nil, nil
	}
}

// emit keeps an event until the call succeeds. One that was collected has its id, and is within limits: those of the call that
// emitted it.
func (a *cancellation) emit(c *call, to *emitter, d *dispatch, collected bool) (kept *dispatch, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	config := c.bus().config
	size := to.bytes + len(payloadBytes(d.payload))
	if !d.from().given && !collected {
		d.id = c.emittedID(to.scope, len(to.emitted)) // not remembered: a success is recorded once
	}
	switch first := to.first(d); {
	case a.err != nil || !c.running():
		return nil, c.errEnded()
	case to.ended:
		return nil, fmt.Errorf("%w: the handler has ended, and a middleware goes on", ErrNotInHandler)
	case first != nil:
		return first, d.repeatsInBatch(first)
	case collected:
	case len(to.emitted) >= config.queue:
		return nil, fmt.Errorf("%w: a call may emit %d events", ErrBatchTooLarge, config.queue)
	case size > config.emittedBytes:
		return nil, fmt.Errorf("%w: with this event, the call would have emitted %d bytes of payloads, and may emit %d (WithMaxEmittedBytes)", ErrBatchTooLarge, size, config.emittedBytes)
	}
	if d.origin == nil {
		d.origin = &origin{}
	}
	if to.names == nil {
		to.names = make(map[givenName]*dispatch)
	}
	for _, name := range append(d.names(), idName(d.id)) {
		to.names[name] = d
	}
	to.emitted, to.bytes = append(to.emitted, d), size
	return d, nil
}

// first returns the event that has the id or the key of another one, or nil.
func (e *emitter) first(d *dispatch) *dispatch {
	if first := d.firstOf(e.names); first != nil {
		return first
	}
	return e.names[idName(d.id)] // it was collected, and has no ID
}

// emittedID returns the id of an event without ID. No ChildID is equal: the names of those begin with a quote.
func (c *call) emittedID(scope string, index int) EventID {
	d := c.dispatch
	return DeriveID(d.id, fmt.Sprintf("emitted %q %d %s %d", d.to.nameAt(c.target), d.replay().edits, scope, index))
}

// takeEmitted returns what the handler has emitted, after the call has ended.
func (c *call) takeEmitted() []*dispatch {
	if a := c.cancellation.Load(); a != nil {
		return a.takeEmitted(&a.own)
	}
	return nil
}

// takeEmittedIn ends an emitter of the call, and returns its events. After the call has ended, for instance at its timeout, they are
// gone: that is an error, and the transaction must not be committed.
func (c *call) takeEmittedIn(e *emitter) ([]*dispatch, error) {
	a := c.ensureCancellation()
	all := a.takeEmitted(e)
	if a.cause() != nil {
		return nil, c.errEnded()
	}
	return all, nil
}

// takeEmitted ends an emitter and returns its events.
func (a *cancellation) takeEmitted(e *emitter) (all []*dispatch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, e.ended, e.emitted, e.names = e.emitted, true, nil, nil
	return all
}

// publishNow makes emitted events ones of now.
func (m *machine) publishNow(emitted []*dispatch) {
	now, _ := m.time.Recent()
	for _, d := range emitted {
		d.wall = now.Wall
		m.ids.Put((*[16]byte)(&d.origin.order), now.Millis)
		d.to = matching(m.registry.routes, d.to.eventType)
	}
}

// DefaultMaxEmittedBytes is the default of WithMaxEmittedBytes.
const DefaultMaxEmittedBytes = 16 << 20

// WithMaxEmittedBytes limits the encoded payloads of the events that one call of a handler emits (Emit), in bytes. The default is 16
// MiB. They are in memory until the handler has succeeded, and with a store in one commit. A bus in memory without
// WithEncodedPayloads does not know the size of its payloads. Below 1 it is an *OptionError.
func WithMaxEmittedBytes(n int) Option {
	return option(func(c *config) {
		c.refuseIf(n < 1, "WithMaxEmittedBytes", n, "must be at least 1; leave it out for 16 MiB")
		c.emittedBytes = n
	})
}

// CollectEmitted is for middleware that runs a handler in a database transaction, so that the effects of the handler
// happen once. It returns a context for the handler, in which Emit keeps events for the middleware. The function
// collected ends this and returns the events as JSON, or nil for none.
//
// The middleware calls collected when the handler has returned, and writes the result of a success in its transaction.
// After the commit it calls EmitCollected. An attempt that finds its transaction committed does not call the handler,
// but calls EmitCollected again. So the events are published even if the process dies after the commit.
//
// Further calls of collected return the same result. They return ErrNotInHandler if the call of the handler has ended:
// then roll back. Without the context of a running handler, collected returns nil, and Emit returns an error. Module
// inbox is such middleware.
func CollectEmitted(ctx context.Context) (inner context.Context, collected func() ([]byte, error)) {
	c := callFrom(ctx)
	if c == nil {
		return ctx, func() ([]byte, error) { return nil, nil }
	}
	inner, e := c.within(ctx, emitter{encodes: true})
	return inner, sync.OnceValues(func() ([]byte, error) {
		all, err := c.takeEmittedIn(e)
		if err != nil {
			return nil, err
		}
		return c.bus().collect(all)
	})
}

// WithoutEmit returns a context in which Emit returns ErrNoTransaction. It is for middleware that runs a handler in a
// database transaction and cannot keep events in it. Events would be lost if the process died between the commit and
// the success.
func WithoutEmit(ctx context.Context) context.Context {
	c := callFrom(ctx)
	if c == nil {
		return ctx
	}
	inner, _ := c.within(ctx, emitter{refuses: true})
	return inner
}

// collectedEvent is an event of CollectEmitted. Fields with the same meaning have the names that they have in letters.
type collectedEvent struct {
	ID             EventID       `json:"id"`
	Given          bool          `json:"given,omitempty"`
	Type           string        `json:"type"`
	Key            string        `json:"key,omitempty"`
	Payload        []byte        `json:"payload"`
	Codec          string        `json:"codec"`
	Metadata       EventMetadata `json:"metadata,omitzero"`
	Due            time.Time     `json:"due,omitzero"`
	Expires        time.Time     `json:"expires,omitzero"`
	IdempotencyKey string        `json:"idempotency_key,omitempty"`
	KeepFor        time.Duration `json:"keep_for,omitempty"`
	UntilSettled   bool          `json:"until_settled,omitempty"`
}

func (b *Bus) collect(emitted []*dispatch) ([]byte, error) {
	if len(emitted) == 0 {
		return nil, nil
	}
	all := make([]collectedEvent, len(emitted))
	for i, d := range emitted {
		o := d.from()
		all[i] = collectedEvent{
			ID: d.id, Given: o.given, Type: d.to.eventType, Key: d.key, Payload: payloadBytes(d.payload), Codec: b.config.codecName(),
			Metadata: o.metadata, IdempotencyKey: o.once.key, KeepFor: o.once.keep, UntilSettled: o.once.untilSettled,
		}
		if all[i].Expires = d.expiry(); o.due != nil {
			all[i].Due = o.due.time(b.time)
		}
	}
	return json.Marshal(all)
}

// EmitCollected emits the events that CollectEmitted has returned, in this or an earlier attempt, with their ids. Nil
// emits nothing. The limits of Emit do not apply again.
//
// Errors: those of Emit, *DecodeError for other data and for payloads of another codec.
func EmitCollected(ctx context.Context, collected []byte) error {
	if collected == nil {
		return nil
	}
	if err := emitCollected(ctx, collected); err != nil {
		return fmt.Errorf("EmitCollected: %w", err)
	}
	return nil
}

func emitCollected(ctx context.Context, collected []byte) error {
	var all []collectedEvent
	if err := json.Unmarshal(collected, &all); err != nil {
		return &DecodeError{What: "collected events", Err: err}
	}
	for i := range all { // before the first one is emitted
		if c, e := callFrom(ctx), &all[i]; c != nil {
			if reason := e.problem(c.bus().config.codecName()); reason != "" {
				return &DecodeError{What: "collected event " + e.ID.String(), Err: errors.New(reason)}
			}
		}
	}
	for i := range all {
		e := &all[i]
		if _, err := emit(ctx, e.Type, e, []PublishOption{e.asOption}); err != nil {
			return err
		}
	}
	return nil
}

// problem returns why a bus with a codec cannot emit the event, or "".
func (e *collectedEvent) problem(codec string) string {
	switch {
	case e.Codec != codec:
		return fmt.Sprintf("the payload was encoded by the codec %q, and this bus has %q", e.Codec, codec)
	case e.ID.IsZero():
		return "it has no id"
	}
	return checkKey(e.Key)
}

// asOption sets what the event was emitted with.
func (e *collectedEvent) asOption(p publication) publication {
	p.id, p.given, p.key, p.metadata = e.ID, true, e.Key, e.Metadata
	p.once = idempotency{key: e.IdempotencyKey, keep: e.KeepFor, untilSettled: e.UntilSettled}
	if !e.Due.IsZero() {
		p.when = &dueOption{at: e.Due}
	}
	return p
}
