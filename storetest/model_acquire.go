package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// acquisition is an Acquire in progress.
type acquisition struct {
	store *modelStore
	want  int
	ended chan struct{} // closed when the lease has begun, and earlier batches have been applied, or on err

	// Model.mu guards the following.
	slots driver.SlotSet // that it got; empty while it waits
	lease driver.Lease   // as it began
	crash crashOf
	err   error // set before ended is closed
}

// Acquire acquires the lease. Stores get it in the order of their calls.
func (s *modelStore) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	m := s.model
	m.mu.Lock()
	if err := s.endedLocked(ctx); err != nil {
		m.mu.Unlock()
		return driver.Lease{}, err
	}
	a := &acquisition{store: s, want: q.Want, ended: make(chan struct{})}
	switch {
	case !m.free.IsEmpty():
		m.grantLocked(a)
	case s.lease.IsHeld():
		defer m.mu.Unlock()
		return s.lease, nil
	case !q.Wait:
		defer m.mu.Unlock()
		return driver.Lease{}, fmt.Errorf("storetest: Acquire: %w: another store has it", driver.ErrNoLease)
	default:
		m.waiting = append(m.waiting, a)
	}
	m.mu.Unlock()
	select {
	case <-a.ended:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case a.err != nil:
		return driver.Lease{}, a.err
	case s.crashed.Load():
		return driver.Lease{}, errCrashed
	case isClosed(a.ended):
		return a.lease, nil
	case !a.lease.IsHeld():
		m.waiting = slices.DeleteFunc(m.waiting, func(other *acquisition) bool { return other == a })
	case a.lease.Epoch == s.lease.Epoch: // it has begun, and earlier batches are not applied yet
		m.unreported = a.crash
		s.releaseLocked(a.slots)
	}
	return driver.Lease{}, ctx.Err()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// grantLocked gives free slots to a store. The call returns when the committer has applied the
// batches that were submitted before.
func (m *Model) grantLocked(a *acquisition) {
	a.slots = m.takeLocked(a.want)
	a.crash = m.beginLocked(a.store, a.slots)
	a.lease = a.store.lease
	a.store.enqueue(submitted{call: func() { close(a.ended) }})
}

// handOverLocked gives free slots to the stores that wait.
func (m *Model) handOverLocked() {
	for len(m.waiting) > 0 && !m.free.IsEmpty() {
		first := m.waiting[0]
		m.waiting = m.waiting[1:]
		m.grantLocked(first)
	}
}

// endWaitLocked ends the waiting calls of a store.
func (m *Model) endWaitLocked(s *modelStore, err error) {
	m.waiting = slices.DeleteFunc(m.waiting, func(a *acquisition) bool {
		if a.store != s {
			return false
		}
		a.err = err
		close(a.ended)
		return true
	})
}

func (s *modelStore) Lease() driver.Lease {
	if lease := s.visible.Load(); lease != nil {
		return *lease
	}
	return driver.Lease{}
}

// setLeaseLocked replaces the lease of the store.
func (s *modelStore) setLeaseLocked(lease driver.Lease) {
	s.lease = lease
	s.visible.Store(&lease)
}

// Release ends the lease of some slots, in the order of Submit.
func (s *modelStore) Release(ctx context.Context, slots driver.SlotSet) error {
	m := s.model
	m.mu.Lock()
	if err := s.endedLocked(ctx); err != nil {
		m.mu.Unlock()
		return err
	}
	released, cut := make(chan error, 1), false // cut is guarded by Model.mu
	s.enqueue(submitted{call: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		err := s.brokenLocked()
		if err == nil && !cut {
			s.releaseLocked(slots)
		}
		released <- err
	}})
	m.mu.Unlock()
	select {
	case err := <-released:
		return err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cut = true
	select {
	case err := <-released:
		return err
	default:
		return ctx.Err()
	}
}

func (s *modelStore) releaseLocked(slots driver.SlotSet) {
	m := s.model
	slots = s.slots.Without(s.slots.Without(slots))
	if rest := s.slots.Without(slots); rest.IsEmpty() {
		m.endLeaseLocked(s, false)
	} else {
		m.freeLocked(s.lease.Epoch, slots)
		m.free = m.free.Union(slots)
		s.slots = rest
		lease := s.lease
		lease.Slots = rest
		s.setLeaseLocked(lease)
	}
	m.handOverLocked()
}

// Now returns no time: the clock is that of the process.
func (s *modelStore) Now(ctx context.Context) (time.Time, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return time.Time{}, s.endedLocked(ctx)
}

func (s *modelStore) Reopen(ctx context.Context) error {
	if err := s.idle(ctx); err != nil {
		return err
	}
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := s.failed
	s.failed = nil
	if err := s.endedLocked(ctx); err != nil {
		s.failed = failed
		return err
	}
	if s.lease.IsHeld() {
		m.freeLocked(s.lease.Epoch, s.slots)
		m.epoch++
		s.setLeaseLocked(driver.Lease{Epoch: m.epoch, Slots: s.lease.Slots})
	}
	return nil
}
