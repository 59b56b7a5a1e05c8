package eventbus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/delay"
	"github.com/surebus/eventbus/internal/lane"
	"github.com/surebus/eventbus/internal/route"
)

// Bus is an in-process event bus. It is made with New; its methods are safe for
// concurrent use, and may be called from handlers.
type Bus struct {
	// Lock order: letterQueue.mu, Bus.mu, the route table's; abandonedCalls.mu,
	// cancellation.mu; then lane's, which may come after any of these. The others are
	// leaves. Nothing of the user's runs under any of them: handlers, middleware,
	// observers, options, methods of errors, log sinks.

	// Immutable after New.
	config *config
	time   *timeline
	log    *zap.Logger
	ids    *idSource
	routes *route.Table[*Subscription, *targets]
	lanes  *lane.Pool[opening, *worker]
	delay  *delay.Queue[*dispatch]
	watch  *deadline.Watch[call]
	store  store
	types  typeTable
	random func() float64 // in [0, 1)

	ledger    ledger
	abandoned abandonedCalls
	seenIDs   uint64 // of busy

	ending  atomic.Bool // Shutdown has been called
	cutting cutting
	leaving chan struct{} // closed when ending has been set
	drained chan struct{} // closed when, ending, nothing is unsettled
	closed  chan struct{} // closed when Shutdown is done

	mu            sync.Mutex // guards the following
	started       bool
	made          uint64                   // subscriptions, ever
	subscriptions map[string]*Subscription // by id
	drainedOnce   bool
	cause         error         // of cutting
	cutEnded      chan struct{} // closed when cut is done; nil if there was none
	unfinished    []DeadLetter  // of a cut
	shutdownErr   error         // valid once closed is closed
}

// New makes a bus. It starts no goroutine; events wait until Start. The error is
// an *OptionError.
func New(opts ...Option) (*Bus, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("New: %w", err)
	}
	b := &Bus{
		config:        c,
		time:          newTimeline(c.clock),
		log:           c.logger.Named("eventbus"),
		ids:           newIDSource(),
		random:        rand.Float64,
		cutting:       cutting{done: make(chan struct{})},
		leaving:       make(chan struct{}),
		drained:       make(chan struct{}),
		closed:        make(chan struct{}),
		subscriptions: make(map[string]*Subscription),
	}
	b.routes = route.NewTable(b.newTargets)
	b.lanes = lane.New(lane.Config[opening, *worker]{
		Open:        b.openWorker,
		Close:       b.closeWorker,
		Place:       func(w *worker) *opening { return &w.dispatch.opening },
		Run:         b.run,
		Lost:        func(w *worker) bool { return w.lost },
		After:       (*worker).tell,
		Idle:        b.idle,
		Rest:        func() { b.watch.Rest() },
		Concurrency: c.concurrency,
		Capacity:    c.queue,
		Wait:        !c.refuse,
	})
	b.delay = delay.New(delayClock{b.time}, func(due []*dispatch) {
		for _, d := range due {
			b.lanes.Return(&opening{resumed: d})
		}
	})
	b.watch = deadline.New(
		func(c *call) (*deadline.Call, time.Duration) { return &c.Call, c.subscription.timeout },
		b.overran,
		b.time.nanos,
		func(d time.Duration, f func()) deadline.Timer { return b.time.afterFunc(d, f) },
	)
	b.time.busy, b.time.rest = b.busy, func() { b.watch.Look() }
	b.store = memory{b.lanes, &letterQueue{
		capacity: c.deadLetters,
		newID:    func() LetterID { return b.ids.next(b.time.now().utc) },
		evicted:  b.letterEvicted,
	}}
	b.abandoned.calls = make(map[*call]time.Time)
	return b, nil
}

// busy reports whether something has been published, or a handler begun, since
// the last call. The handlers that have begun get their deadlines by it.
func (b *Bus) busy() bool {
	made := b.ids.counter.Load()
	published := made != b.seenIDs
	b.seenIDs = made
	return b.watch.Look() || published
}

// delayClock is the timeline, as the delay queue sees it.
type delayClock struct{ *timeline }

func (c delayClock) Nanos() int64 { return c.nanos() }

func (c delayClock) AfterFunc(d time.Duration, f func()) delay.Timer { return c.afterFunc(d, f) }

var _ delay.Timer = (*clock.Timer)(nil)

// Publish accepts an event: when it returns nil, the event is queued, and every
// subscription that matches its type now will handle it or be named in a dead
// letter. The payload is handed over as it is.
//
// When the queue is full, Publish waits until there is room, ctx ends, or the bus
// shuts down; with RefuseWhenFull, and before Start, it is ErrQueueFull. Called
// by a handler, with its context or one derived from it, it never waits.
//
// The context bounds the acceptance only: its values reach the handlers, its
// cancellation and deadline do not. A chain of handlers that publish with derived
// contexts, each from within the one before, starts afresh, without values, after
// a hundred links.
//
// Errors: *EventError, ErrQueueFull, ErrShutdown, the context's, an *OptionError for
// a nil option. With an error nothing was accepted.
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

// Outcome is how a dispatch stands.
type Outcome int

const (
	// Waiting for its next attempt. A Result is never Waiting.
	Waiting Outcome = iota
	// Handled by all of its subscriptions that were not skipped.
	Handled
	// Unrouted: no subscription matched.
	Unrouted
	// DeadLettered: it ended in a dead letter.
	DeadLettered
	// Dropped: its only subscription was skipped, and drops what it is skipped
	// for.
	Dropped
)

// String names it: "waiting", "handled", "unrouted", "dead-lettered", "dropped".
func (o Outcome) String() string {
	return nameOf("Outcome", []string{"waiting", "handled", "unrouted", "dead-lettered", "dropped"}, int(o))
}

// Result is how an event has settled.
type Result struct {
	ID       EventID
	Outcome  Outcome
	Attempts int
	// Letters are the dead letters that it ended in: of the dispatch itself, and
	// of the subscriptions that it skipped.
	Letters []LetterID
}

// PublishAndWait publishes an event and waits until it has settled, retries
// included. The error is a *DeliveryError if anything died.
//
// The context bounds the wait too: if it ends first, the result has only the id,
// the error is the context's, and the event goes on. A handler that waits does
// not count against WithConcurrency.
//
// Errors: those of Publish, ErrNotStarted, *DeliveryError.
func (b *Bus) PublishAndWait(ctx context.Context, eventType string, payload any, opts ...PublishOption) (Result, error) {
	if err := b.ready(ctx); err != nil {
		return Result{}, fmt.Errorf("PublishAndWait: %w", err)
	}
	refuse := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("PublishAndWait(%q): %w", shorten(eventType), err)
	}
	b.mu.Lock()
	started := b.started
	b.mu.Unlock()
	if !started && !b.ending.Load() {
		return refuse(ErrNotStarted)
	}
	from := callFrom(ctx)
	if b.running(from) {
		defer from.waiting()()
	}
	w := &waiter{done: make(chan struct{})}
	id, err := b.accept(ctx, from, eventType, payload, opts, w)
	if err != nil {
		return refuse(err)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		select {
		case <-w.done:
		default:
			return Result{ID: id}, fmt.Errorf("PublishAndWait(%q): event %s was accepted and goes on: %w",
				shorten(eventType), id, contextError(ctx))
		}
	}
	r := Result{ID: id, Outcome: w.outcome, Attempts: w.attempts}
	if len(w.letters) == 0 {
		return r, nil
	}
	for i := range w.letters {
		r.Letters = append(r.Letters, w.letters[i].ID)
	}
	return r, &DeliveryError{ID: id, EventType: eventType, Letters: w.letters}
}

// waiter is somebody who waits for an event to settle. Its other fields are
// written before done is closed.
type waiter struct {
	done     chan struct{}
	outcome  Outcome
	attempts int
	letters  []DeadLetter
}

// maxValueLinks is how many contexts of handlers the values of a context may
// come through. Each keeps the one before it alive, and its event.
const maxValueLinks = 100

// accept opens a dispatch for what is published. from is the call that publishes,
// if it is a handler's.
func (b *Bus) accept(ctx context.Context, from *call, eventType string, payload any, opts []PublishOption, w *waiter) (EventID, error) {
	to, known := b.routes.Cached(eventType)
	if !known {
		if offence := route.CheckType(eventType); offence != nil {
			return EventID{}, typeError(eventType, offence)
		}
	}
	if ctx.Err() != nil {
		return EventID{}, contextError(ctx)
	}
	inside := b.running(from)
	if b.cutting.begun() || b.ending.Load() && !inside {
		return EventID{}, ErrShutdown
	}
	if !known {
		to = b.routes.Lookup(eventType)
	}
	now, _ := b.time.recent()
	o := opening{id: b.ids.next(now.utc), payload: payload, values: ctx, to: to, time: now.utc}
	if from != nil || w != nil || len(opts) > 0 || b.config.metadataFrom != nil {
		metadata, err := b.metadata(ctx, opts)
		if err != nil {
			return EventID{}, err
		}
		o.extras = &extras{metadata: metadata, waiter: w, inside: inside}
		if from != nil {
			o.values, o.extras.links = from.valuesFor(ctx)
		}
	}
	if len(to.subscriptions) == 0 {
		b.unrouted(o)
		return o.id, nil
	}
	to.counters.events.Add(1)
	err := b.store.append(ctx, o)
	if err == nil {
		return o.id, nil
	}
	to.counters.events.Add(-1)
	switch {
	case errors.Is(err, lane.ErrFull):
		return EventID{}, ErrQueueFull
	case errors.Is(err, lane.ErrClosed):
		return EventID{}, ErrShutdown
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return EventID{}, contextError(ctx)
	}
	return EventID{}, err
}

// running reports whether c is a call of this bus that has not ended.
func (b *Bus) running(c *call) bool {
	return c != nil && c.subscription.bus == b && c.Running()
}

// metadata is what the options and the bus say of an event.
func (b *Bus) metadata(ctx context.Context, opts []PublishOption) (EventMetadata, error) {
	var p publication
	for i, o := range opts {
		if o == nil {
			return p.metadata, nilOption("Publish", i)
		}
		if o(&p); p.err != nil {
			return p.metadata, p.err
		}
	}
	if b.config.metadataFrom == nil {
		return p.metadata, nil
	}
	more := b.config.metadataFrom(ctx)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		if _, given := p.metadata.Lookup(name); given {
			continue
		}
		if err := p.metadata.set(name, more[name]); err != nil {
			return p.metadata, err
		}
	}
	return p.metadata, nil
}

// valuesFor is where the handlers of an event that is published by c's handler,
// with ctx, find their values, and the number of links in that.
func (c *call) valuesFor(ctx context.Context) (context.Context, int) {
	switch {
	case ctx == context.Context(c):
		return c.values, int(c.links) // nothing was added to them
	case c.links >= maxValueLinks:
		return context.Background(), 0
	default:
		return ctx, int(c.links) + 1
	}
}

// usable reports whether New made the bus.
func (b *Bus) usable() bool { return b != nil && b.config != nil }

// ready is what is wrong with a call, if anything.
func (b *Bus) ready(ctx context.Context) error {
	switch {
	case !b.usable():
		return ErrUninitialized
	case ctx == nil:
		return ErrNilContext
	}
	return nil
}
