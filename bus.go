package eventbus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/delay"
	"github.com/surebus/eventbus/internal/lane"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Bus is an in-process event bus. It is made with New; its methods are safe for
// concurrent use, and may be called from handlers.
type Bus struct {
	// Lock order: letterQueue.mu, Bus.mu, the route table's; abandonedCalls.mu,
	// cancellation.mu; holding.mu, circuit.mu; schedule.mu; then lane's, which may
	// come after any of these, and those of the key gates and of givenIDs, after
	// lane's. The others are leaves. Nothing of the user's runs under any of them:
	// handlers, middleware, observers, options, methods of errors, log sinks.

	// Immutable after New.
	config *config
	time   *timeline.Timeline
	log    *zap.Logger
	ids    *uuid7.Source
	routes *route.Table[*Subscription, *targets]
	lanes  *lane.Pool[opening, *worker]
	delay  *delay.Queue[*dispatch]     // retries
	doors  *delay.Queue[*Subscription] // circuits to be asked again
	watch  *deadline.Watch[call]
	store  store
	types  typeTable
	retry  atomic.Pointer[retrySettings] // of subscriptions that have none; see retryset.go
	era    atomic.Pointer[era]

	scheduled *schedule
	ledger    ledger
	abandoned abandonedCalls
	seenIDs   uint64        // of busy
	attempts  atomic.Uint64 // that observers were told of

	started atomic.Bool // Start has been called; set under mu
	ending  atomic.Bool // Shutdown has been called
	cutting cutting
	stuck   atomic.Bool   // an observer did not return in time for the cut
	leaving chan struct{} // closed when ending has been set
	drained chan struct{} // closed when, ending, nothing is unsettled
	closed  chan struct{} // closed when Shutdown is done

	mu            sync.Mutex // guards the following
	subscriptions registry
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
		time:          timeline.New(c.clock),
		log:           c.logger.Named("eventbus"),
		ids:           uuid7.NewSource(),
		cutting:       cutting{done: make(chan struct{})},
		leaving:       make(chan struct{}),
		drained:       make(chan struct{}),
		closed:        make(chan struct{}),
		subscriptions: registry{named: make(map[string]*Subscription)},
	}
	b.retry.Store(&retrySettings{retryOverride: retryOverride{RetryPolicy: c.retry}, rules: c.rules})
	b.era.Store(&era{})
	b.routes = route.NewTable(b.newTargets)
	b.lanes = lane.New(b.workers())
	b.delay = delay.New(delayClock{b.time}, func(due []*dispatch) {
		b.lanes.ReturnAll(len(due), func(i int) opening { return *due[i].ticket() })
	})
	b.doors = delay.New(delayClock{b.time}, b.wake)
	b.watch = deadline.New(
		b.slow,
		b.overran,
		b.time.Nanos,
		func(d time.Duration, f func()) deadline.Timer { return b.time.AfterFunc(d, f) },
	)
	b.time.SetHooks(b.busy, func() { b.watch.Look() })
	b.store = &memory{
		lanes:  b.lanes,
		keys:   newKeyGate(keyGates),
		copies: &b.ledger.copies,
		letterQueue: &letterQueue{
			capacity: c.deadLetters,
			newID:    func() LetterID { return b.ids.Next(b.time.Now().Millis) },
			evicted:  b.letterEvicted,
		},
	}
	b.scheduled = newSchedule(delayClock{b.time}, func(o *opening) { b.store.open(o) })
	b.abandoned.calls = make(map[*call]time.Time)
	return b, nil
}

// workers says what the lanes run, and how.
func (b *Bus) workers() lane.Config[opening, *worker] {
	return lane.Config[opening, *worker]{
		Open:        b.openWorker,
		Close:       b.closeWorker,
		Place:       func(w *worker) *opening { return &w.places[0].opening },
		Run:         b.run,
		Enter:       func(o *opening) bool { return b.store.enter(o) },
		Ending:      (*worker).ending,
		Next:        (*worker).goOn,
		Counted:     func() int64 { return b.ledger.handled.Load() },
		After:       (*worker).tell,
		Idle:        (*worker).idle,
		Rest:        func() { b.watch.Rest() },
		Concurrency: b.config.concurrency,
		Capacity:    b.config.queue,
		Wait:        !b.config.refuse,
	}
}

// busy reports whether something has been published, or a handler begun, since
// the last call. The handlers that have begun get their deadlines by it.
func (b *Bus) busy() bool {
	made := b.ids.Count()
	published := made != b.seenIDs
	b.seenIDs = made
	return b.watch.Look() || published
}

// delayClock is the timeline, as the delay queue sees it.
type delayClock struct{ *timeline.Timeline }

func (c delayClock) AfterFunc(d time.Duration, f func()) delay.Timer {
	return c.Timeline.AfterFunc(d, f)
}

var _ delay.Timer = (*clock.Timer)(nil)

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
