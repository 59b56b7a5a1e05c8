package eventbus

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/timeline"
)

// start waits for the lease, recovers the first records and starts the feeder. The feeder recovers the others in the
// background.
//
// If ctx ends while the store waits for the transaction of a service, start returns. When that transaction has ended, a
// goroutine gives back the lease and the claimed records. Another start waits for it.
func (f *feeder) start(ctx context.Context) error {
	select {
	case f.starting <- struct{}{}:
	case <-ctx.Done():
		return contextError(ctx)
	}
	var decided atomic.Bool
	decide := func() bool { return decided.CompareAndSwap(false, true) }
	started := make(chan error, 1)
	go func() {
		defer f.starting.Unlock()
		started <- f.startAlone(ctx, decide)
	}()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
	}
	block := f.bus.store.blocks.Block()
	select {
	case err := <-started:
		return err
	case <-block.Begun:
		if decide() {
			return errors.Join(contextError(ctx), block.Why)
		}
		return <-started
	}
}

// startAlone is start for the holder of starting. The bus runs only if decide returns true: otherwise start has returned.
func (f *feeder) startAlone(ctx context.Context, decide func() bool) error {
	if f.ctx.Err() != nil {
		return ErrShutdown
	}
	f.starts.Store(true)
	defer f.starts.Store(false)
	claims, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)() // Shutdown waits for start
	f.unwatch = f.bus.store.Watch(f.bus.durable.othersCommitted)
	f.bus.durable.atStart = namesOf(f.bus.registry.list())
	if f.bus.config.standby {
		f.bus.operators.cataloged.record()
	}
	var err error
	for again := true; again; {
		if err = f.bus.durable.awaitLease(claims); err == nil {
			if err = f.recoverFirst(claims); err != nil {
				f.bus.durable.dropClaimed()
				f.beginAnew() // for the next lease
			}
		}
		again = err != nil && claims.Err() == nil && f.bus.config.standby // the lease was lost, or the store has failed
	}
	if err == nil && !decide() {
		err = contextError(ctx)
		f.bus.durable.dropClaimed()
		f.beginAnew()
	}
	if err == nil {
		f.stopped = make(chan struct{})
		f.runs.Store(true)
		go f.run()
		if !f.bus.store.leads() { // it was lost since recoverFirst has looked
			f.bus.durable.beginStandby()
		}
		return nil
	}
	f.unwatch()
	f.bus.operators.cataloged.withdraw()
	f.bus.durable.giveUpLease()
	switch {
	case f.ctx.Err() != nil:
		return ErrShutdown
	case ctx.Err() != nil:
		return errors.Join(contextError(ctx), noLease(err))
	}
	return err
}

// recoverFirst claims the first records after the lease has begun.
func (f *feeder) recoverFirst(ctx context.Context) error {
	more, err := false, f.awaitRestart(ctx)
	if err != nil {
		return err
	}
	defer f.feeding.Unlock()
	if err = f.takeInAll(ctx); err == nil {
		err = f.feedDoors(ctx, false) // no worker makes room yet
	}
	if err == nil {
		_, more, err = f.claim(ctx, driver.ClaimQuery{Kind: driver.ClaimReady, Limit: f.page()}, false)
	}
	if err == nil && !more {
		_, err = f.catchUp(ctx)
	}
	f.failed(ctx, err) // otherwise nothing reopens it before the next Start
	return err
}

// awaitRestart locks feeding when the store has not failed, or was reopened: a restart drops what is
// claimed meanwhile.
func (f *feeder) awaitRestart(ctx context.Context) error {
	for {
		select {
		case f.feeding <- struct{}{}:
		case <-ctx.Done():
			return contextError(ctx)
		case <-f.ctx.Done():
			return ErrShutdown
		}
		if !f.bus.halts.Has(halt.Failed | halt.Lost) {
			return nil
		}
		f.feeding.Unlock()
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		f.sleep(timeline.Tick) // the restart is about to begin
	}
}

// stop ends the feeder. Free records stay in the store.
func (f *feeder) stop() {
	f.cancel()
	f.mu.Lock()
	f.stopping = true
	f.mu.Unlock()
	f.restarts.Wait()
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.stopped == nil {
		f.watching.Wait() // after a restart
		return
	}
	f.watching.Wait()
	<-f.stopped
	f.due.Stop()
	f.expiries.Stop()
}
