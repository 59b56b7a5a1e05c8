package eventbus

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/timeline"
)

// Start begins to dispatch, with the events that were published before. The
// context bounds taking up what an earlier process left unfinished, and not the
// bus's life. Errors: ErrAlreadyStarted, ErrShutdown, the context's.
func (b *Bus) Start(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Start: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("Start: %w", contextError(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ending.Load():
		return fmt.Errorf("Start: %w", ErrShutdown)
	case b.started.Load():
		return fmt.Errorf("Start: %w", ErrAlreadyStarted)
	}
	left, err := b.store.claim(ctx)
	if err != nil {
		return fmt.Errorf("Start: %w", err)
	}
	b.started.Store(true)
	b.ledger.recovered.Add(int64(len(left)))
	for _, d := range left {
		d.apart = true
		b.store.open(d.ticket())
	}
	b.lanes.Start()
	return nil
}

// Shutdown ends the bus. It refuses new work from outside, and waits until what
// runs, is queued or waits for a retry has settled; what handlers publish
// meanwhile is accepted. It does not wait for what is held, paused or published
// for later: that is dead-lettered with the reason shutdown, logged, and returned
// in a *ShutdownError. When ctx ends first, running handlers are cancelled with
// the cause ErrShutdown and not waited for, and what is unfinished is
// dead-lettered with the reason shutdown, logged, and returned in a
// *ShutdownError. A bus that was not started does so at once.
//
// It can be called again, and from anywhere: every call waits, the end of any
// call's context cuts all short, and all return the same error. Called by a
// handler with its context, it begins and returns nil at once.
//
// Afterwards nothing of the bus runs, handlers that ignore their cancellation
// aside. Dead letters and metrics can still be read.
func (b *Bus) Shutdown(ctx context.Context) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Shutdown: %w", err)
	}
	b.mu.Lock()
	first := !b.ending.Swap(true)
	started := b.started.Load()
	b.mu.Unlock()
	if first {
		close(b.leaving)
		b.lanes.Refuse()
		if !started {
			b.cut(ErrNotStarted) // before finish, which would leave the same without a cause
		}
		b.checkDrained()
		go b.finish()
	}
	if b.running(callFrom(ctx)) {
		return nil
	}
	select {
	case <-b.closed:
	case <-ctx.Done():
		b.cut(contextError(ctx))
		<-b.closed
	}
	return b.shutdownErr
}

// finish waits until nothing is unsettled but what is held or published for
// later, and ends the goroutines.
func (b *Bus) finish() {
	<-b.drained
	b.awaitCut() // it leaves the same behind, and would be met halfway and waited for in ticks
	b.leaveBehind()
	b.lanes.Seal()
	for b.unsettled() != 0 {
		// An abandoned handler has published at the last moment, or something held
		// has been let go.
		time.Sleep(timeline.Tick)
	}
	b.scheduled.queue.Wait()
	b.doors.Close()
	b.doors.Wait()
	b.delay.Close()
	b.delay.Wait() // what it has handed over counts as waiting until it returns
	<-b.lanes.Close()
	b.time.Stop()
	b.watch.Rest()
	b.watch.Wait()
	b.awaitCut()
	b.mu.Lock()
	if len(b.unfinished) > 0 {
		b.shutdownErr = &ShutdownError{Unfinished: b.unfinished, Abandoned: b.abandoned.list(), Cause: b.cause}
	}
	b.mu.Unlock()
	close(b.closed)
}

// cutting says whether Shutdown's context has ended.
type cutting struct {
	flag atomic.Bool   // what costs less to read
	done chan struct{} // closed when it is set
}

func (c *cutting) begun() bool { return c.flag.Load() }

// begin is called once.
func (c *cutting) begin() {
	c.flag.Store(true)
	close(c.done)
}

// cut settles what is unfinished as dead.
//
// Whoever begins something after cutting is set sees it, and what had begun
// before is found here: the queues are emptied, and the calls stopped.
func (b *Bus) cut(cause error) {
	b.mu.Lock()
	if b.cutEnded != nil {
		b.mu.Unlock()
		return
	}
	b.cause, b.cutEnded = cause, make(chan struct{})
	b.cutting.begin()
	b.mu.Unlock()
	defer close(b.cutEnded)
	for _, c := range b.watch.StopAll() {
		b.giveUp(c, func(w *worker) {
			c.subscription().circuit.released(c.pass())
			b.cutShort(w, c.takeBack())
		})
	}
	b.lanes.Start() // what is queued from now on is settled by the workers
	b.delay.Close()
	w := &worker{}
	for _, d := range b.delay.Drain() {
		b.bury(w, d, ReasonShutdown)
		w.tell()
	}
	b.leaveBehind()
	for {
		if !b.lanes.TryTake(&w.places[0].opening) {
			return
		}
		b.bury(w, w.taken(), ReasonShutdown)
		b.lanes.Finish()
		w.tell()
	}
}

// awaitCut returns when no cut is under way.
func (b *Bus) awaitCut() {
	b.mu.Lock()
	ended := b.cutEnded
	b.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// leaveBehind dead-letters what is held or published for later: Shutdown does not
// wait for that.
func (b *Bus) leaveBehind() {
	w := &worker{}
	for _, s := range b.list() {
		for _, d := range s.holding.close(ReasonShutdown) {
			b.bury(w, d, ReasonShutdown)
			w.tell()
		}
	}
	for _, e := range b.scheduled.close() {
		b.neverDue(e.opening)
	}
}

// noteUnfinished keeps a letter of a cut for the error of Shutdown.
func (b *Bus) noteUnfinished(l *DeadLetter) {
	if l.Reason != ReasonShutdown {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfinished = append(b.unfinished, l.clone())
}

// checkDrained lets Shutdown go on when nothing is unsettled but what it does not
// wait for.
func (b *Bus) checkDrained() {
	if b.ending.Load() {
		b.lookWhetherDrained()
	}
}

// lookWhetherDrained is apart, so that checkDrained costs a look after each event.
func (b *Bus) lookWhetherDrained() {
	if b.unsettled() != 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.drainedOnce {
		b.drainedOnce = true
		close(b.drained)
	}
}

// unsettled is how many dispatches have been opened and not settled, without those
// that are held or published for later. It may be too large while some settle, and
// is never too small: what has settled is read before what is held, that before
// what is published for later and may come to be held, and that before what has
// been opened.
func (b *Bus) unsettled() int64 {
	l := &b.ledger
	settled := l.handled.Load() + l.unrouted.Load() + l.deadLettered.Load() + l.dropped.Load() + l.cancelled.Load()
	left := l.held.Load()
	left += int64(b.scheduled.len())
	opened := b.lanes.Stats().Admitted + l.direct.Load() + l.copies.Load() + l.splits.Load() + l.replays.Load() + l.recovered.Load()
	return opened - left - settled
}
