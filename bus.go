package eventbus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/abandoned"
	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/dedupe"
	"github.com/surebus/eventbus/internal/delay"
	"github.com/surebus/eventbus/internal/doubt"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/idle"
	"github.com/surebus/eventbus/internal/keys"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/suspects"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Bus is an in-process event bus. New creates one. Its methods are safe for concurrent use, and may
// be called from handlers.
type Bus struct {
	// Lock order: the semaphores feeder.starting, feeder.feeding, quota.noting and Bus.ordering,
	// which may be held while the store works; catalogKeeper.mu, feeder.submitting, then the locks of the
	// store; letterQueue.mu; cancellation.mu, registry.mu, the route table's, Bus.mu; abandoned.Calls; door.mu,
	// circuit.mu; feeder.mu; waiter.mu; schedule.mu; then the pools', which may come after any of these, and the key gates'
	// after that. All others are leaves. A store calls done without its locks, and done may take all
	// but the semaphores and feeder.submitting. No user code runs under any of them: handlers, middleware,
	// observers, options, methods of errors and contexts, log sinks.

	// Immutable after New.
	config  *config
	time    *timeline.Timeline
	log     *zap.Logger
	ids     *uuid7.Source
	pool    *pool.Pool[*dispatch, *worker]
	keys    *keyGate
	delay   *delay.Queue[*dispatch]     // retries
	doors   *delay.Queue[*Subscription] // doors to tend at a time
	watch   *deadline.Watch[call]
	letters letterBook
	kept    *letterQueue  // the same in memory; nil with a store
	store   *guardedStore // nil: memory only
	feeder  *feeder
	// recorder records a change and then calls done: submit, or the simulation's hook. nil: changes
	// apply at once.
	recorder  func(c *change, done func(error))
	followups *pool.Pool[func(), struct{}] // with a store: applies recorded changes

	report    *reporter
	machine   *machine
	durable   *durable
	intake    *intake
	lifecycle *lifecycle
	operators *operators
	views     *views
	registry  *registry
	given     givenIDs
	scheduled *delay.Schedule[EventID, *dispatch]
	ledger    ledger
	stats     storeStats
	abandoned abandoned.Calls[*call]
	idle      idle.Watch   // Shutdown and Drain wait until isDrained
	shared    sync.Map     // *Subscription to nil: doors that may throttle because the bus is full
	fullLines atomic.Int32 // doors with room != nil
	entering  atomic.Int64 // calls that open dispatches without room in the queue
	seenIDs   uint64       // of busy

	started  atomic.Bool // Start has been called; set under mu
	ending   atomic.Bool // Shutdown has been called; set under mu
	halts    *halt.Reasons
	quota    quota
	hasLease atomic.Bool // of the store. Without it, another bus may settle what this one publishes

	suspects  suspects.Waiting[*dispatch]
	unknown   unknowns
	doubts    doubt.Changes // while the store has failed
	audits    auditBook
	cataloged catalogKeeper // with a store
	leftKeys  sync.Map      // leftKey to nil, see noteLeft
	leaving   chan struct{} // closed when ending has been set
	gaveUp    chan struct{} // closed when Shutdown gives up on a store that does not answer; nil without one
	closed    chan struct{} // closed when Shutdown is done, or has given up

	ordering semaphore // held while an order is recorded or read, and carried out

	mu          sync.Mutex       // guards the following
	orders      map[string]Order // of the store, by subscription
	cause       error            // of the cut
	storeErr    error            // of a store that did not close
	cutEnded    chan struct{}    // closed when cut is done; nil if there was none
	unfinished  []DeadLetter     // with the reason shutdown
	ended       bool             // closed is closed
	shutdownErr error            // valid once closed is closed
}

// keyGate holds dispatches until earlier ones with the same key have settled. A bus has one, and
// with isolation one for each subscription.
type keyGate = keys.Gate[*dispatch]

// keyGates is the number of shards of a bus's key gate.
const keyGates = 32

// New returns a bus. It leaves no goroutine. Events wait until Start. With a store, New reads the
// operators' orders, and waits up to 10 s for them. The error is an *OptionError, or that of the
// store. A failed New does not close the store.
func New(opts ...Option) (*Bus, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("New: %w", err)
	}
	b := &Bus{
		config:   c,
		time:     timeline.New(c.clock),
		log:      c.logger.Named("eventbus"),
		ids:      uuid7.NewSource(),
		keys:     keys.New[*dispatch](keyGates),
		quota:    quota{Quota: room.Quota{Most: int64(c.unsettled)}, noting: make(semaphore, 1)},
		halts:    halt.New(),
		leaving:  make(chan struct{}),
		closed:   make(chan struct{}),
		ordering: make(semaphore, 1),
		given:    givenIDs{known: dedupe.New[EventID, content](maxGivenIDs)},
	}
	b.machine, b.durable, b.intake = &machine{b}, &durable{b}, &intake{b}
	b.lifecycle, b.operators, b.views = &lifecycle{b}, &operators{b}, &views{b}
	b.report = &reporter{time: b.time, log: b.log, cut: b.halts.IsCut()}
	for _, o := range c.observers {
		b.report.add(o)
	}
	b.registry = newRegistry(c, b.absent, b.operators.catalogChanged)
	b.pool = pool.New(b.machine.workers())
	b.delay = delay.New(delayClock{b.time}, b.machine.retryDue)
	b.doors = delay.New(delayClock{b.time}, b.machine.wake)
	b.watch = deadline.New(deadline.Config[call]{
		Of:        (*call).watched,
		Slow:      b.report.slowHandlers,
		Overrun:   b.machine.overran,
		Nanos:     b.time.Nanos,
		AfterFunc: func(d time.Duration, f func()) deadline.Timer { return b.time.AfterFunc(d, f) },
	})
	b.time.SetHooks(b.machine.busy, func() { b.watch.Look() })
	if c.store == nil {
		b.kept = &letterQueue{
			capacity: c.deadLetters,
			newID:    func() LetterID { return b.ids.Next(b.time.Now().Millis) },
			evicted:  b.report.letterEvicted,
			letters:  newLetterIndex(),
		}
		b.letters, b.audits = b.kept, newRecentAudits()
	}
	b.scheduled = delay.NewSchedule[EventID](delayClock{b.time}, wallClock{delayClock{b.time}}, b.time.Check(), b.machine.due)
	if c.store != nil {
		b.gaveUp = make(chan struct{})
		b.store = newGuardedStore(b)
		b.letters, b.audits = &storedLetters{b.store, b.time}, &storedAudits{b.store}
		b.feeder, b.recorder = newFeeder(b), b.durable.submit
		if err := b.durable.useStore(); err != nil {
			return nil, fmt.Errorf("New: %w", err)
		}
		b.followups = pool.New(pool.Config[func(), struct{}]{
			Open:        func() struct{} { return struct{}{} },
			Close:       func(struct{}) {},
			Run:         func(_ struct{}, apply func()) bool { apply(); return true },
			Enter:       func(func()) bool { return true },
			Idle:        func(struct{}) {},
			Freed:       func() {},
			Rest:        func() {},
			Concurrency: c.concurrency,
			Capacity:    math.MaxInt32,
		})
		b.followups.Start()
	}
	if b.store != nil {
		_, err := pace.Within(newPatience, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, errors.Join(b.operators.loadOrders(ctx), b.durable.countUnsettled(ctx))
		})
		if err != nil {
			b.durable.releaseStore()
			return nil, fmt.Errorf("New: %w", err)
		}
	}
	return b, nil
}

// workers returns the configuration of the pool.
func (b *machine) workers() pool.Config[*dispatch, *worker] {
	return pool.Config[*dispatch, *worker]{
		Open:        func() *worker { return &worker{slot: b.watch.Open(), seen: rand.Uint32()} },
		Close:       func(w *worker) { b.watch.Close(w.slot) },
		Run:         func(w *worker, d *dispatch) bool { b.work(w, d); return !w.lost },
		Enter:       b.enterKey,
		Idle:        func(w *worker) { w.slot.Clear(); w.calls = nil },
		Freed:       b.freed,
		Rest:        func() { b.watch.Rest() },
		Concurrency: b.config.concurrency,
		Capacity:    b.config.queue,
		Wait:        !b.config.refuse || b.config.store != nil,
	}
}

// busy reports whether events were published, or handlers started, since the last call. It also
// sets the deadlines of the handlers that started.
func (b *machine) busy() bool {
	made := b.ids.Count()
	published := made != b.seenIDs
	b.seenIDs = made
	return b.watch.Look() || published
}

// delayClock adapts the timeline to the delay queue.
type delayClock struct{ *timeline.Timeline }

func (c delayClock) AfterFunc(d time.Duration, f func()) delay.Timer {
	return c.Timeline.AfterFunc(d, f)
}

// wallClock is the wall clock of the timeline, for instants.
type wallClock struct{ delayClock }

func (c wallClock) Nanos() int64 { return c.Now().Wall }

// usable reports whether New made the bus.
func (b *Bus) usable() bool { return b != nil && b.config != nil }

// ready returns the error of a call on an unusable bus or with a nil context.
func (b *Bus) ready(ctx context.Context) error {
	switch {
	case !b.usable():
		return ErrUninitialized
	case ctx == nil:
		return ErrNilContext
	}
	return nil
}
