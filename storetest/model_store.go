package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
)

// modelStore is a store over a Model.
type modelStore struct {
	model *Model
	gone  chan struct{} // closed by a crash

	crashed atomic.Bool                  // set under Model.mu
	visible atomic.Pointer[driver.Lease] // lease, for Lease; nil for none
	// Model.mu guards the following.
	lease    driver.Lease
	slots    driver.SlotSet // of the lease, without those that the Model does not have
	failed   error          // matches driver.ErrFailed; nil if the store has not failed
	watchers []*watcher

	// mu is the lock of Submit. It is acquired after Model.mu, and never held during a commit.
	mu      sync.Mutex
	queue   []submitted
	running chan struct{} // closed when the committer ends; nil if there is none
	closing bool
	closed  bool // the lease is released
}

// submitted is a batch in the queue, or a call.
type submitted struct {
	batch *driver.Batch
	done  func(error)
	err   error  // set if the store had ended before Submit
	call  func() // runs after the done of all batches before it; nil for a batch
}

func (s *modelStore) Submit(b *driver.Batch, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item := submitted{batch: b, done: done}
	switch {
	case s.crashed.Load():
		item.err = errCrashed
	case s.closing:
		item.err = driver.ErrClosed
	}
	s.queue = append(s.queue, item)
	s.runLocked()
}

// enqueue adds an item to the queue.
func (s *modelStore) enqueue(item submitted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, item)
	s.runLocked()
}

var errCrashed = fmt.Errorf("%w: the process has crashed", driver.ErrFailed)

// runLocked starts the committer if none runs, and returns the channel that is closed at its end.
func (s *modelStore) runLocked() <-chan struct{} {
	if s.running == nil {
		s.running = make(chan struct{})
		go s.run()
	}
	return s.running
}

// run commits until the queue is empty.
func (s *modelStore) run() {
	for {
		s.mu.Lock()
		group := s.queue
		s.queue = nil
		release := len(group) == 0 && s.closing && !s.closed
		if release {
			s.closed = true
		} else if len(group) == 0 {
			close(s.running)
			s.running = nil
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if release {
			s.release()
		} else {
			s.commit(group)
		}
	}
}

// release ends the lease of a store that is closed.
func (s *modelStore) release() {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if s.crashed.Load() {
		return
	}
	s.model.removeLocked(s)
	s.model.endLeaseLocked(s, false)
	s.model.handOverLocked()
}

// commit applies a group of batches and calls their done, and runs the calls between them.
func (s *modelStore) commit(group []submitted) {
	var errs []error // of the first batches of the group
	flush := func() {
		for i, err := range errs {
			if err == nil && s.crashed.Load() {
				err = errCrashed // the process did not get to know
			}
			group[i].done(err)
		}
		group, errs = group[len(errs):], nil
	}
	for i := 0; i < len(group); i++ {
		if call := group[i].call; call != nil {
			flush()
			group, i = group[1:], -1
			call()
			continue
		}
		if group[i].err != nil {
			errs = append(errs, group[i].err)
			continue
		}
		n, err := s.next()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fault := s.model.faultOf(n, group[i].batch)
		if fault != (Fault{}) {
			flush()
			i = 0
			s.wait(fault.Delay)
		}
		if fault.Kind == Refuse {
			if err := refusalOf(group[i].batch); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if fault.Kind == FailBefore || fault.Kind == CrashBefore {
			errs = append(errs, s.halt(fault.Kind))
			continue
		}
		err = s.apply(n, group[i].batch)
		if fault.Kind != FailAfter && fault.Kind != CrashAfter {
			errs = append(errs, err)
			continue
		}
		for _, behind := range group[i+1:] {
			if behind.call != nil {
				break
			}
			if behind.err != nil {
				continue
			}
			if n, err := s.next(); err == nil {
				_ = s.apply(n, behind.batch) // a refusal changes nothing, and stays unknown
			}
		}
		errs = append(errs, s.halt(fault.Kind))
	}
	flush()
}

// faultOf returns the fault of a batch.
func (m *Model) faultOf(n int, b *driver.Batch) Fault {
	if m.faults == nil {
		return Fault{}
	}
	return m.faults(n, b)
}

// next counts a batch that reaches the store, or returns why it cannot apply.
func (s *modelStore) next() (n int, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.brokenLocked(); err != nil {
		return 0, err
	}
	s.model.batches++
	return s.model.batches, nil
}

// brokenLocked returns the error of a store that has failed or crashed.
func (s *modelStore) brokenLocked() error {
	if s.crashed.Load() {
		return errCrashed
	}
	return s.failed
}

// wait waits for a delay or the crash.
func (s *modelStore) wait(delay time.Duration) {
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.gone:
	}
}

// halt fails or crashes the store.
func (s *modelStore) halt(kind FaultKind) error {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if kind == CrashBefore || kind == CrashAfter {
		s.model.crashLocked(s)
		return errCrashed
	}
	s.failed = fmt.Errorf("%w: %w", driver.ErrFailed, ErrInjected)
	s.model.endWaitLocked(s, s.failed)
	return ErrInjected
}

// apply applies a batch, and calls the watchers of the other stores.
func (s *modelStore) apply(n int, b *driver.Batch) error {
	m := s.model
	m.mu.Lock()
	err := s.brokenLocked() // a crash during the delay
	if err == nil {
		err = m.applyLocked(s, b)
	}
	var watchers []*watcher
	if err == nil {
		if m.applied != nil {
			m.applied(n, b)
		}
		if b.Changes() != 0 {
			watchers = m.watchersLocked(s)
		}
	}
	m.mu.Unlock()
	for _, w := range watchers {
		w.call(b.Changes())
	}
	return err
}

// watchersLocked returns the watchers of all stores but one.
func (m *Model) watchersLocked(but *modelStore) (all []*watcher) {
	for _, s := range m.stores {
		if s != but {
			all = append(all, s.watchers...)
		}
	}
	return all
}

// watcher is a Watch in progress.
type watcher struct {
	changed func(driver.Change)

	mu      sync.Mutex // held during a call
	stopped bool
}

func (w *watcher) call(c driver.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.changed(c)
	}
}

func (s *modelStore) Watch(changed func(driver.Change)) (stop func()) {
	w := &watcher{changed: changed}
	s.model.mu.Lock()
	s.watchers = append(s.watchers, w)
	s.model.mu.Unlock()
	return func() {
		s.model.mu.Lock()
		s.watchers = slices.DeleteFunc(slices.Clone(s.watchers), func(other *watcher) bool { return other == w })
		s.model.mu.Unlock()
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
	}
}

func (s *modelStore) Patience() time.Duration { return s.model.patience }

func (s *modelStore) Close(ctx context.Context) error {
	s.mu.Lock()
	again := s.closed
	s.closing = true
	s.mu.Unlock()
	s.model.mu.Lock()
	s.model.endWaitLocked(s, driver.ErrClosed)
	s.model.mu.Unlock()
	if err := s.idle(ctx); err != nil {
		return err
	}
	if s.crashed.Load() && !again {
		return errCrashed
	}
	return nil
}

// idle waits until all done have returned, and a store that is closing has released its lease.
func (s *modelStore) idle(ctx context.Context) error {
	s.mu.Lock()
	ended := s.runLocked()
	s.mu.Unlock()
	select {
	case <-ended:
		return nil
	default:
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endedLocked returns the error of a call on a store that has failed, crashed or been closed, or
// whose context has ended.
func (s *modelStore) endedLocked(ctx context.Context) error {
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if closing && !s.crashed.Load() {
		return driver.ErrClosed
	}
	if err := s.brokenLocked(); err != nil {
		return err
	}
	return ctx.Err()
}
