package eventbus

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/capped"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Bus is an in-process event bus. New creates one. Its methods are safe for concurrent use, and may
// be called from handlers.
type Bus struct {
	// Lock order: the semaphores feeder.starting, feeder.feeding and operators.directing,
	// which may be held while the store works, as may durable.answering; catalogKeeper.mu, feeder.submitting, then the locks of the
	// store; letters.Queue.mu; cancellation.mu, registry.mu, the route table's, operators.mu; abandoned.Calls;
	// destinations.evicting, destinations.mu, door.mu (of a destination, then of the subscription), circuit.mu; feeder.mu; waiter.mu; schedule.mu; then the pools', which may come after any of these, and the key gates'
	// after that. All others are leaves. RetryNow submits under door.mu: a store calls nothing under its locks that takes one of these. A store calls done without its locks, and done may take all
	// but the semaphores and feeder.submitting. No user code runs under any of them: handlers, middleware,
	// observers, options, methods of errors and contexts, log sinks.

	// All is immutable after New, and has its own synchronization.
	config   *config
	instance string // identifies the bus among those on its store
	time     *timeline.Timeline
	log      *zap.Logger
	ids      *uuid7.Source
	halts    *halt.Reasons
	ledger   ledger

	topics    topicTypes
	report    *reporter
	registry  *registry
	letters   letterBook
	kept      *letterQueue // the same in memory; nil with a store
	audits    auditBook
	store     *guardedStore // nil: memory only
	journal   journal
	machine   *machine
	durable   *durable
	intake    *intake
	lifecycle *lifecycle
	operators *operators
	views     *views

	gaveUp chan struct{} // closed when Shutdown gives up on a store that does not answer; nil without one
}

// New returns a bus. It starts no goroutine: events wait until Start. With a store, New reads the directives of
// operators, and blocks for up to 10 s. A failed New does not close the store. Errors: *OptionError, the store's.
func New(opts ...Option) (*Bus, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("New: %w", err)
	}
	b := &Bus{
		config: c,
		time:   timeline.New(c.clock),
		log:    c.logger.Named("eventbus"),
		ids:    uuid7.NewSource(),
		halts:  halt.New(),
	}
	b.instance = EventID(b.ids.Next(b.time.Now().Millis)).String()
	b.report = &reporter{time: b.time, log: b.log, cut: b.halts.IsCut(), unroutedTypes: capped.NewSet(maxTypes), hollowTypes: capped.NewSet(maxTypes)}
	b.report.doubtful("", c.doubts())
	for _, o := range c.observers {
		b.report.add(o)
	}
	b.lifecycle, b.operators, b.intake, b.views = newLifecycle(b), newOperators(b), newIntake(b), &views{b}
	b.registry = newRegistry(c, c.store != nil, b.absent, b.operators.cataloged.changed)
	b.machine, b.durable = newMachine(b), &durable{Bus: b}
	b.machine.ended = (*Subscription).Unsubscribe
	if c.store == nil {
		b.kept = newLetterQueue(c.deadLetters, b.ids, b.time, b.report.letterEvicted)
		b.letters, b.audits = b.kept, newRecentAudits()
		b.journal = &memoryJournal{Bus: b}
		if c.unsettled > 0 {
			b.report.doubtful("", doubts{zap.String("WithMaxUnsettled", "has no effect without WithStore; WithQueueCapacity bounds the queue in memory")})
		}
		return b, nil
	}
	b.gaveUp = make(chan struct{})
	b.store = newGuardedStore(b)
	b.letters, b.audits = &storedLetters{b.store, b.time}, &storedAudits{b.store}
	b.journal = b.durable
	if err := b.durable.connect(); err != nil {
		return nil, fmt.Errorf("New: %w", err)
	}
	return b, nil
}

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
