package eventbus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/timeline"
)

// Start starts dispatching, including the events that were published before. Without a store it does
// not block.
//
// With a store, Start also begins the recovery: it claims the first records that an earlier process
// has left, and the bus claims the others in the background, in the order of acceptance. A new
// event waits until those that were accepted before it are claimed. ctx bounds the first claims
// only.
//
// Errors: ErrAlreadyStarted, ErrShutdown, the context's; with a store ErrNoLease if another bus has
// its lease, and the store's; ErrNoHandlers. After an error, the bus is not started.
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
	if err := b.start(ctx); err != nil {
		return fmt.Errorf("Start: %w", err)
	}
	return nil
}

func (b *Bus) start(ctx context.Context) error {
	b.mu.Lock()
	ending, started := b.ending.Load(), b.started.Load()
	b.started.Store(started || !ending)
	b.mu.Unlock()
	switch {
	case ending:
		return ErrShutdown
	case started:
		return ErrAlreadyStarted
	case b.store != nil:
		if err := b.feeder.start(ctx); err != nil {
			b.mu.Lock()
			b.started.Store(false)
			ending = b.ending.Load()
			b.mu.Unlock()
			if ending { // Shutdown took the bus for started
				b.cut(ErrNotStarted)
			}
			return err
		}
		b.recordCatalog()
		defer b.feeder.wakeUp() // after the pool has started: before, a full queue refuses its claims
	}
	b.pool.Start()
	return nil
}

// Stopping returns a channel that is closed when Shutdown begins. It is nil for a bus that New did not make.
func (b *Bus) Stopping() <-chan struct{} {
	if !b.usable() {
		return nil
	}
	return b.leaving
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
// Shutdown returns a *ShutdownError if dispatches or handlers remain. It has every dead letter with
// the reason shutdown, and every handler that still runs, including abandoned ones. The log has an
// entry for each of the first 100 of these letters, and a summary of the others.
//
// Shutdown is idempotent and may be called from anywhere. All calls wait for the same end and
// return the same error. When the context of one call ends, all calls stop waiting. If a handler
// calls it with its own context, Shutdown starts and returns nil at once.
//
// With a store, nothing is dead-lettered with the reason shutdown: the store keeps retries, held deliveries, scheduled events,
// and events that only the store has. Shutdown does not wait for these, and after its context has
// ended it leaves unfinished dispatches there too. It then closes the store. If that fails, the
// error is a *ShutdownError with the store's error as its cause.
//
// A store that hangs does not block Shutdown for ever. Once ctx has ended and the store has confirmed
// nothing for 2 s, Shutdown returns a *ShutdownError whose cause matches *UnconfirmedError. No
// accepted event is lost: the next process recovers as after a crash. Goroutines that wait for the
// store remain until it answers. They then complete the shutdown.
//
// Otherwise no goroutine of the bus runs afterwards, except those of abandoned handlers. Metrics stay
// readable, and so do dead letters in memory.
func (b *Bus) Shutdown(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Shutdown: %w", err)
	}
	ended := ctx.Done() // before anything begins: the context may panic
	inside := b.running(callFrom(ctx))
	b.mu.Lock()
	first := !b.ending.Swap(true)
	started := b.started.Load()
	b.mu.Unlock()
	if first {
		close(b.leaving)
		b.pool.Refuse()
		if !started {
			b.cut(ErrNotStarted) // before finish, which would dead-letter the same events without a cause
		}
		b.checkDrained()
		go b.finish()
	}
	if inside {
		return nil
	}
	select {
	case <-b.closed:
	case <-ended:
		b.cutBecause(ctx)
		b.awaitEnd()
	}
	return b.shutdownErr
}

// storeGrace is how long Shutdown waits for a store that confirms nothing, after its context has
// ended.
const storeGrace = 2 * time.Second

// awaitEnd waits for the end of Shutdown after its cut, and gives up on a store that does not answer.
func (b *Bus) awaitEnd() {
	if b.store == nil {
		<-b.closed
		return
	}
	// After the cut, a confirmed change opens a dispatch or removes one from memory.
	progress := func() int64 { return b.ledger.opened() + b.ledger.settled() }
	for now := progress(); ; {
		select {
		case <-b.closed:
			return
		case <-time.After(storeGrace): // in the runtime's time, like the context
		}
		before := now
		if now = progress(); now == before {
			b.end(&UnconfirmedError{
				Calls: b.guarded.calls.InProgress(), Recording: b.ledger.recording.Load(), Publishing: b.entering.Load(),
			})
			b.freePublishers()
			return
		}
	}
}

// freePublishers ends the wait of publishers for a claim that hangs. The store keeps their events.
func (b *Bus) freePublishers() {
	f := b.feeder
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.catching = false
	f.caught.Broadcast()
}

// finish drains the bus, dead-letters held deliveries and scheduled events, and ends the
// goroutines.
func (b *Bus) finish() {
	if b.store != nil {
		b.feeder.stop()
		b.closeDelay()
	}
	<-b.drained
	b.awaitCut() // cut dead-letters the same dispatches
	for b.buryParkedAndScheduled(); !b.empty(); b.buryParkedAndScheduled() {
		// Unsubscribe, Resume or a timer released a line at the last moment. The handlers may publish.
		time.Sleep(timeline.Tick)
	}
	b.pool.Seal()
	for ; !b.empty(); b.buryParkedAndScheduled() { // accepted between the last look and Seal
		time.Sleep(timeline.Tick)
	}
	b.scheduled.Wait()
	b.doors.Close()
	b.doors.Wait()
	b.delay.Close()
	b.delay.Wait()
	<-b.pool.Close()
	b.closeStore()
	b.time.Stop()
	b.watch.Rest()
	b.watch.Wait()
	b.awaitCut()
	b.end(nil)
}

// end ends Shutdown, once. unconfirmed is set if the store does not answer: finish goes on then.
func (b *Bus) end(unconfirmed error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	if unconfirmed != nil {
		b.storeErr = errors.Join(b.storeErr, unconfirmed)
		b.log.Error("store does not answer: shutdown does not wait for it", zap.Error(unconfirmed))
		close(b.gaveUp)
	}
	cause := b.cause
	if b.storeErr != nil {
		cause = errors.Join(cause, b.storeErr)
	}
	abandoned := b.abandoned.list()
	if len(b.unfinished) > 0 || len(abandoned) > 0 || b.storeErr != nil || b.store != nil && b.cause != nil && b.started.Load() {
		b.shutdownErr = &ShutdownError{Unfinished: b.unfinished, Abandoned: abandoned, Cause: cause}
	}
	if unlogged := len(b.unfinished) - loggedUnfinished; unlogged > 0 {
		b.log.Warn("more events dead-lettered by shutdown", zap.Int("events", unlogged))
	}
	b.ledger.closed.Store(true)
	close(b.closed)
}

// closeDelay leaves retries to the store: Shutdown does not wait for them.
func (b *Bus) closeDelay() {
	b.delay.Close()
	b.leaveWaiting()
	b.checkDrained()
}

// closeStore closes the store after the last change is applied.
func (b *Bus) closeStore() {
	if b.store == nil {
		return
	}
	<-b.followups.Close()
	b.feeder.endWaiters()
	b.endCatalog()
	defer b.releaseStore()
	_ = b.readStats() // for Metrics after the end
	if err := b.store.Close(context.Background()); err != nil {
		b.log.Error("store did not close", zap.Error(err))
		b.mu.Lock()
		b.storeErr = err
		b.mu.Unlock()
	}
}

// halts records why no call may start.
type halts struct {
	why atomic.Uint32 // haltCut, haltFailed
	cut chan struct{} // closed when haltCut is set
}

const (
	haltCut    = 1 << iota // Shutdown's context has ended, or the bus was not started
	haltFailed             // the store has failed, and the bus restarts
)

// any reports whether no call may start.
func (h *halts) any() bool { return h.why.Load() != 0 }

func (h *halts) has(why uint32) bool { return h.why.Load()&why != 0 }

// set adds a reason. It returns false if it is set already.
func (h *halts) set(why uint32) bool {
	added := h.why.Or(why)&why == 0
	if added && why == haltCut {
		close(h.cut)
	}
	return added
}

func (h *halts) clear(why uint32) { h.why.And(^why) }

// cutBecause cuts because a context has ended, even if a method of the context panics.
func (b *Bus) cutBecause(ctx context.Context) {
	cause := context.Canceled
	defer func() { b.cut(cause) }()
	cause = contextError(ctx)
}

// cut dead-letters every unfinished dispatch. Calls that start after haltCut is set check it; this
// function stops the calls that started earlier and empties the queues.
func (b *Bus) cut(cause error) {
	b.mu.Lock()
	if b.cutEnded != nil {
		b.mu.Unlock()
		return
	}
	b.cause, b.cutEnded = cause, make(chan struct{})
	b.halts.set(haltCut)
	b.mu.Unlock()
	defer close(b.cutEnded)
	for _, c := range b.watch.StopAll() {
		b.abandon(c, nil)
	}
	b.pool.Start() // from now on the workers bury queued dispatches
	b.delay.Close()
	for _, d := range b.delay.Drain() {
		b.ledger.waiting.Add(-1)
		b.bury(d, ReasonShutdown)
	}
	b.buryParkedAndScheduled()
	for {
		d, ok := b.pool.TryTake()
		if !ok {
			return
		}
		b.bury(d, ReasonShutdown)
		b.pool.Finish()
	}
}

// awaitCut returns when no cut is in progress.
func (b *Bus) awaitCut() {
	b.mu.Lock()
	ended := b.cutEnded
	b.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// buryParkedAndScheduled dead-letters parked deliveries and scheduled events.
func (b *Bus) buryParkedAndScheduled() {
	for _, s := range b.list() {
		for _, d := range s.door.close(b, ReasonShutdown) {
			b.bury(d, ReasonShutdown)
		}
	}
	for _, d := range b.scheduled.Close() {
		b.ledger.scheduled.Add(-1)
		b.buryScheduled(d)
	}
}

// loggedUnfinished is the number of letters of a shutdown that are logged one by one.
const loggedUnfinished = 100

// noteUnfinished keeps a letter of a shutdown for its error. It reports whether to log the letter.
func (b *Bus) noteUnfinished(l *DeadLetter) (log bool) {
	if l.Reason != ReasonShutdown {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfinished = append(b.unfinished, l.clone())
	return len(b.unfinished) <= loggedUnfinished
}

// checkDrained wakes Shutdown if the bus is drained.
func (b *Bus) checkDrained() {
	if b.ending.Load() {
		b.lookWhetherDrained()
	}
}

// lookWhetherDrained is a separate function so that checkDrained can be inlined.
func (b *Bus) lookWhetherDrained() {
	if !b.isDrained() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.drainedOnce {
		b.drainedOnce = true
		close(b.drained)
	}
}

// isDrained reports whether every dispatch that Shutdown waits for has settled.
func (b *Bus) isDrained() bool {
	settled := b.ledger.settled()
	left := b.ledger.scheduled.Load()
	for reason := range parkings {
		if !parkingRules[reason].drains {
			left += b.ledger.parked[reason].Load()
		}
	}
	return b.unsettled(settled)-left <= 0
}

// empty reports whether every dispatch has settled.
func (b *Bus) empty() bool { return b.unsettled(b.ledger.settled()) == 0 }

// unsettled returns the number of dispatches that were opened, or are about to open, and have not
// settled. It may be too large for a moment, but never too small: the counters of settled, parked
// and scheduled dispatches are read before those of opened ones.
func (b *Bus) unsettled(settled int64) int64 {
	// An accepted dispatch takes room in the queue before it is counted, and leaves it when it runs:
	// depth is read before accepted.
	opening := b.entering.Load()
	if b.pool.Depth() > 0 {
		opening++
	}
	return opening + b.ledger.opened() - settled
}
