package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/timeline"
)

// Start starts dispatching, including the events that were published before. Without a store it does
// not block.
//
// With a store, Start acquires its lease. While another process has the lease, Start returns ErrNoLease after a second.
// With WithStandby it blocks until it has the lease or ctx ends, which may take days. Start then begins the recovery:
// it claims the first records that an earlier process left. The bus claims the others in the background, in the order
// of acceptance. A new event waits until the bus has claimed all earlier ones.
//
// ctx bounds Start, not the life of the bus. If Start is not called within 5 s of the first Publish, the
// bus logs one warning.
//
// Errors: ErrAlreadyStarted, ErrShutdown, the context's; with a store ErrNoLease if another process has
// its lease (together with the context's error if WithStandby waited), and the store's; ErrNoHandlers.
// After an error, the bus is not started.
func (b *Bus) Start(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Start: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("Start: %w", contextError(ctx))
	}
	if b.config.tool {
		return fmt.Errorf("Start: %w", ErrNoHandlers)
	}
	if err := b.lifecycle.start(ctx); err != nil {
		return fmt.Errorf("Start: %w", err)
	}
	if b.config.retention > 0 {
		b.lifecycle.whileRunning(b.operators.purgeByAge)
	}
	return nil
}

func (lc *lifecycle) start(ctx context.Context) error {
	lc.mu.Lock()
	ending, started := lc.ending.Load(), lc.started.Load()
	lc.started.Store(started || !ending)
	lc.mu.Unlock()
	switch {
	case ending:
		return ErrShutdown
	case started:
		return ErrAlreadyStarted
	}
	lc.halts.Clear(halt.Unstarted)
	lc.reminder.Cancel()
	if err := lc.journal.start(ctx); err != nil {
		lc.mu.Lock()
		lc.started.Store(false)
		ending = lc.ending.Load()
		lc.mu.Unlock()
		if ending { // Shutdown took the bus for started
			lc.cut(ErrNotStarted)
		}
		return err
	}
	lc.machine.pool.Start()
	lc.journal.started()
	return nil
}

// Stopping returns a channel that is closed when Shutdown begins. It is nil for a bus that New did not make.
func (b *Bus) Stopping() <-chan struct{} {
	if !b.usable() {
		return nil
	}
	return b.lifecycle.leaving
}

// Shutdown ends the bus. It rejects new work from outside and waits until every running, queued,
// retrying and throttled dispatch has settled. Running handlers can still publish. It does not wait
// for held deliveries, for scheduled events, or for abandoned handlers: held deliveries and
// scheduled events are dead-lettered with the reason shutdown.
//
// When ctx ends first, Shutdown cancels running handlers with the cause ErrShutdown and does not
// wait for them: their results are neither outcomes nor attempts. Unfinished dispatches are
// dead-lettered with the reason shutdown. On a bus that was not started, Shutdown does this at
// once.
//
// With a store, nothing is dead-lettered with the reason shutdown. Shutdown waits only for running calls, for the
// events for which they wait in PublishAndWait, and for the store's last commits. Everything else stays in the store
// for the next start: the log entry "bus shut down" counts it. Events that handlers publish meanwhile stay too. A
// PublishAndWait for an event that stays returns ErrShutdown. If a call returns an error that matches ErrShutdown, that
// is neither an outcome nor an attempt, and its delivery stays. Shutdown then closes the store.
//
// Shutdown returns a *ShutdownError if dispatches are dead-lettered, if handlers still run, abandoned ones included, or if the
// store does not close. With a store, cancelled handlers have 100 ms to return. The log has an entry for each of the first 100
// letters, and a summary of the others.
//
// Shutdown is idempotent and may be called from anywhere. All calls wait for the same end and
// return the same error. When the context of one call ends, all calls stop waiting. If a handler
// calls it with its own context, Shutdown starts and returns nil at once.
//
// A store that hangs does not block Shutdown for ever. Once ctx has ended and the store has confirmed
// nothing for 2 s, Shutdown returns a *ShutdownError whose cause matches *UnconfirmedError. No
// accepted event is lost: the next process recovers as after a crash. Goroutines that wait for the
// store remain until it answers. They then complete the shutdown.
//
// Otherwise no goroutine of the bus runs afterwards, except abandoned handlers. Metrics, and dead letters in memory,
// stay readable.
func (b *Bus) Shutdown(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Shutdown: %w", err)
	}
	ended := ctx.Done() // before anything begins: the context may panic
	inside := b.intake.running(callFrom(ctx))
	b.lifecycle.beginEnd()
	if inside {
		return nil
	}
	select {
	case <-b.lifecycle.closed:
	case <-ended:
		b.lifecycle.cutBecause(ctx)
		b.lifecycle.awaitEnd()
	}
	b.config.flushLog()
	return b.lifecycle.shutdownErr
}

// startsWithin is how long after the first Publish the bus waits for Start before it logs a warning.
const startsWithin = 5 * time.Second

// lifecycle starts, drains and ends a bus.
type lifecycle struct {
	*Bus

	started  atomic.Bool       // Start has been called; set under mu
	ending   atomic.Bool       // Shutdown has been called; set under mu
	reminder timeline.Reminder // to call Start

	leaving chan struct{}   // closed when ending has been set
	until   context.Context // it ends with leaving
	leave   context.CancelFunc
	tasks   sync.WaitGroup // of whileRunning; Add under mu, before ending
	closed  chan struct{}  // closed when Shutdown is done, or has given up

	mu          sync.Mutex    // guards the following
	cause       error         // of the cut
	storeErr    error         // of a store that did not close
	cutEnded    chan struct{} // closed when cut is done; nil if there was none
	ended       bool          // closed is closed
	shutdownErr error         // valid once closed is closed
}

func newLifecycle(b *Bus) *lifecycle {
	if !b.config.tool {
		b.halts.Set(halt.Unstarted)
	}
	lc := &lifecycle{Bus: b, leaving: make(chan struct{}), closed: make(chan struct{})}
	lc.until, lc.leave = context.WithCancel(context.Background())
	return lc
}

// whileRunning calls run on a goroutine, unless Shutdown has begun. The context ends when it begins, and it waits for run.
func (lc *lifecycle) whileRunning(run func(ctx context.Context)) {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if !lc.ending.Load() {
		lc.tasks.Go(func() { run(lc.until) })
	}
}

// beginEnd begins Shutdown, once.
func (lc *lifecycle) beginEnd() {
	lc.mu.Lock()
	first := !lc.ending.Swap(true)
	started := lc.started.Load()
	lc.mu.Unlock()
	if !first {
		return
	}
	lc.reminder.Cancel()
	lc.registry.close()
	lc.journal.unloads()
	close(lc.leaving)
	lc.leave()
	lc.machine.pool.Refuse()
	if !started {
		lc.cut(ErrNotStarted) // before finish, which would dead-letter the same events without a cause
	}
	go lc.finish()
}

// awaitEnd waits for the end of Shutdown after its cut.
func (lc *lifecycle) awaitEnd() {
	if err := lc.journal.awaitEnd(lc.closed); err != nil {
		lc.end(err)
	}
}

// finish drains the bus, buries or leaves to the store what Shutdown does not wait for, and ends the goroutines.
func (lc *lifecycle) finish() {
	lc.tasks.Wait()
	lc.journal.stop()
	lc.ledger.idle.Await(lc.ledger.isDrained, nil, 0, nil, nil)
	lc.awaitCut() // cut dead-letters the same dispatches
	for lc.buryParkedAndScheduled(); !lc.ledger.isEmpty(); lc.buryParkedAndScheduled() {
		// Unsubscribe, Resume or a timer released a line at the last moment. The handlers may publish.
		time.Sleep(timeline.Tick)
	}
	lc.machine.pool.Seal()
	for ; !lc.ledger.isEmpty(); lc.buryParkedAndScheduled() { // accepted between the last look and Seal
		time.Sleep(timeline.Tick)
	}
	lc.machine.scheduled.Wait()
	lc.machine.doors.Close()
	lc.machine.doors.Wait()
	lc.machine.delay.Close()
	lc.machine.delay.Wait()
	<-lc.machine.pool.Close()
	lc.closeJournal()
	lc.time.Stop()
	lc.machine.watch.Rest()
	lc.machine.watch.Wait()
	lc.awaitCut()
	lc.journal.awaitReturns()
	lc.end(nil)
}

// end ends Shutdown, once. unconfirmed is set if the store does not answer: finish goes on then.
func (lc *lifecycle) end(unconfirmed error) {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if lc.ended {
		return
	}
	lc.ended = true
	if unconfirmed != nil {
		lc.storeErr = errors.Join(lc.storeErr, unconfirmed)
		lc.log.Error("store does not answer: shutdown does not wait for it", zap.Error(unconfirmed))
		close(lc.gaveUp)
	}
	cause := lc.cause
	if lc.storeErr != nil {
		cause = errors.Join(cause, lc.storeErr)
	}
	abandoned := lc.machine.abandonedHandlers()
	unfinished := lc.report.unfinished()
	if len(unfinished) > 0 || len(abandoned) > 0 || lc.storeErr != nil {
		lc.shutdownErr = &ShutdownError{Unfinished: unfinished, Abandoned: abandoned, Cause: cause}
	}
	if unlogged := len(unfinished) - loggedUnfinished; unlogged > 0 {
		lc.log.Error("more events dead-lettered by shutdown", zap.Int("events", unlogged))
	}
	lc.ledger.closed.Store(true)
	close(lc.closed)
}

// closeJournal closes what the bus stands on.
func (lc *lifecycle) closeJournal() {
	if err := lc.journal.close(); err != nil {
		lc.mu.Lock()
		lc.storeErr = err
		lc.mu.Unlock()
	}
}

// cutBecause cuts because a context has ended, even if a method of the context panics.
func (lc *lifecycle) cutBecause(ctx context.Context) {
	cause := context.Canceled
	defer func() { lc.cut(cause) }()
	cause = contextError(ctx)
}

// cut buries every unfinished dispatch, or leaves it to the store. Calls that start after halt.Cut is set check it; this
// function stops the calls that started earlier and empties the queues.
func (lc *lifecycle) cut(cause error) {
	lc.mu.Lock()
	if lc.cutEnded != nil {
		lc.mu.Unlock()
		return
	}
	lc.cause, lc.cutEnded = cause, make(chan struct{})
	lc.halts.Set(halt.Cut)
	lc.mu.Unlock()
	defer close(lc.cutEnded)
	for _, c := range lc.machine.watch.StopAll() {
		lc.machine.abandon(c, nil)
	}
	lc.machine.pool.Start() // from now on the workers bury queued dispatches
	lc.machine.delay.Close()
	for _, d := range lc.machine.delay.Drain() {
		lc.ledger.waiting.Add(-1)
		lc.machine.bury(d, ReasonShutdown)
	}
	lc.buryParkedAndScheduled()
	for {
		d, ok := lc.machine.pool.TryTake()
		if !ok {
			return
		}
		lc.machine.bury(d, ReasonShutdown)
		lc.machine.pool.Finish()
	}
}

// awaitCut returns when no cut is in progress.
func (lc *lifecycle) awaitCut() {
	lc.mu.Lock()
	ended := lc.cutEnded
	lc.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// buryParkedAndScheduled dead-letters parked deliveries and scheduled events.
func (lc *lifecycle) buryParkedAndScheduled() {
	for _, s := range lc.registry.list() {
		for _, o := range s.doors() {
			for _, d := range o.close(lc.Bus, ReasonShutdown) {
				lc.machine.bury(d, ReasonShutdown)
			}
		}
	}
	for _, d := range lc.machine.scheduled.Close() {
		lc.ledger.scheduled.Add(-1)
		lc.machine.buryScheduled(d)
	}
}

// Drain waits until the bus has nothing to do. It returns nil at an instant at which no dispatch is
// queued, running, waiting for a retry or throttled. It does not wait for held deliveries, scheduled
// events, deliveries of missing subscriptions and abandoned handlers.
//
// Drain rejects no publications: while events are published, there may be no such instant. With a store, it also waits
// for dispatches that only the store has, and reads the store up to ten times a second. Before Start, Drain waits for
// queued events, which wait for Start. To end a bus and leave nothing behind, call Drain, then Shutdown.
//
// Errors: the context's; ErrWouldDeadlock if a handler calls it with its own context; ErrShutdown if
// Shutdown ends while it waits.
func (b *Bus) Drain(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Drain: %w", err)
	}
	ended := ctx.Done() // before anything begins: the context may panic
	if b.intake.running(callFrom(ctx)) {
		return fmt.Errorf("Drain: %w: it would wait for the handler that calls it; call it elsewhere", ErrWouldDeadlock)
	}
	elsewhere := b.journal.drainsElsewhere(ctx)
	switch {
	case b.ledger.idle.Await(b.ledger.isDrained, elsewhere, drainPoll, ended, b.lifecycle.closed):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("Drain: %w", contextError(ctx))
	}
	return fmt.Errorf("Drain: %w", ErrShutdown)
}

// drainPoll is how often Drain looks whether the store has dispatches that memory has not.
const drainPoll = 100 * time.Millisecond

func (j *durable) drainsElsewhere(ctx context.Context) func() bool {
	return func() bool { return j.isStoreDrained(ctx) }
}

// isStoreDrained reports whether Drain need not wait for anything in the store, at an instant at which the bus is
// drained. After a failure, or once Shutdown has begun, it leaves there what Drain waits for.
func (j *durable) isStoreDrained(ctx context.Context) bool {
	opened := j.ledger.opened()
	if j.halts.Has(halt.Cut|halt.Failed|halt.Unload) || !j.ledger.isDrained() {
		return false
	}
	stats, err := j.store.Stats(ctx)
	throttles := stats.Parked > 0 && slices.ContainsFunc(j.registry.list(), func(s *Subscription) bool { return s.hasSpilled() })
	return err == nil && stats.Ready == 0 && !throttles && !j.hasRetries(ctx, stats) && !j.hasIncoming(ctx, stats) &&
		j.ledger.isDrained() && j.ledger.opened() == opened
}

// hasRetries reports whether a delivery waits for a retry. Drain does not wait for snoozed ones, whose records are waiting, too.
func (j *durable) hasRetries(ctx context.Context, stats driver.Stats) bool {
	for q, more := (driver.RecordQuery{States: []driver.State{driver.Waiting}, Limit: feederPage}), stats.Waiting > 0; more; {
		page, err := j.store.Records(ctx, q)
		if err != nil {
			return true
		}
		waiting, err := decodeRecords(page.Records)
		if err != nil || slices.ContainsFunc(waiting, func(r *record) bool { return r.progress == nil || r.progress.AsleepFor == 0 }) {
			return true
		}
		q.After, more = page.Next, page.Next != 0
	}
	return false
}

// hasIncoming reports whether events that are not scheduled wait to be taken in.
func (j *durable) hasIncoming(ctx context.Context, stats driver.Stats) bool {
	for q, more := (driver.IncomingQuery{Limit: feederPage}), stats.Incoming > 0; more; {
		page, err := j.store.Incoming(ctx, q)
		if err != nil {
			return true
		}
		for _, in := range page.Events {
			if q.After = in.ID; in.Record.State != driver.Scheduled {
				return true
			}
		}
		more = page.More
	}
	return false
}
