package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// leaseLook is the time between two looks at a lease that another store has.
const leaseLook = 50 * time.Millisecond

// Acquire locks the lease file and begins a lease. While another store has the lease, Acquire with Wait tries every 50
// ms. It begins the lease within 50 ms after the other store releases it or is closed, or its process ends. Of several
// waiting stores, any one acquires it.
//
// The kernel releases the lock when the process of its store ends, not earlier. A process that is stopped (SIGSTOP, a
// debugger, a suspended machine) keeps the lease, and the others wait until it continues or ends. The new lease counts a
// crash for a process that ended without Release or Close. See [driver.Store].
//
// With WithExclusive, the store has the lock since Open, and Acquire does not wait.
//
// Errors: *LockedError (ErrLocked, driver.ErrNoLease); *CorruptError; ErrBusy; driver.ErrFailed; driver.ErrClosed, also
// if Close is called while Acquire waits; those of the operating system; the context's error.
func (s *Store) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	lease, err := s.acquire(ctx, q.Wait)
	if err != nil {
		return driver.Lease{}, fmt.Errorf("Acquire: %w", err)
	}
	return lease, nil
}

func (s *Store) acquire(ctx context.Context, wait bool) (driver.Lease, error) {
	for look := 1; ; look++ {
		lease, err := s.tryAcquire(ctx)
		held := (*LockedError)(nil)
		if !errors.As(err, &held) || !wait && look == shortLooks {
			return lease, err
		}
		pause := shortLook
		if look >= shortLooks {
			pause = leaseLook
		}
		if look == shortLooks {
			s.cfg.logger.Info("waiting for the lease", zap.String("path", s.path), zap.Int("holder_pid", held.PID), zap.String("holder_host", held.Host))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", held, ctx.Err())
		case <-s.end.Began():
			err = driver.ErrClosed
		}
		timer.Stop()
		return driver.Lease{}, err
	}
}

// States of an acquisition: its caller waits for the result, has gone, or gets it.
const (
	awaited = iota
	abandoned
	delivered
)

// tryAcquire acquires the lease if no other store has it. The error is a *LockedError if one has.
func (s *Store) tryAcquire(ctx context.Context) (driver.Lease, error) {
	select {
	case s.acquiring <- struct{}{}:
	case <-ctx.Done():
		return driver.Lease{}, ctx.Err()
	}
	err := errors.Join(s.state(), ctx.Err())
	if err == nil && s.Lease().IsHeld() {
		err = s.committer.queue.Control(ctx, func() error { // it may be lost
			_, err := s.committer.findLoss()
			return s.explain(err)
		})
	}
	if lease := s.Lease(); err != nil || lease.IsHeld() {
		<-s.acquiring
		return lease, err
	}
	var locked *leaseFile // nil if the store has it already
	if s.lock.Load() == nil {
		if locked, err = tryLease(s.path); err == nil {
			reach("lease: locked")
			if err = locked.sign(holder{}); err != nil {
				err = errors.Join(err, locked.release())
			}
		}
		if err != nil {
			<-s.acquiring
			return driver.Lease{}, err
		}
		reach("lease: signed")
	}
	var state atomic.Int32
	result := make(chan error, 1)
	s.committer.queue.Add(&job{
		Control: func() {
			if state.Load() == abandoned {
				s.committer.refuse(locked)
				<-s.acquiring
				return
			}
			err := s.committer.acquire(locked)
			if !state.CompareAndSwap(awaited, delivered) && err == nil {
				if err := s.committer.release(); err != nil {
					s.cfg.logger.Warn("lease that is not awaited any more cannot be released", zap.String("path", s.path), zap.Error(err))
				}
			}
			<-s.acquiring
			result <- err
		},
		Done: func(err error) { // after Close
			err = errors.Join(err, locked.release())
			<-s.acquiring
			result <- err
		},
	})
	select {
	case err = <-result:
	case <-ctx.Done():
		if state.CompareAndSwap(awaited, abandoned) {
			return driver.Lease{}, ctx.Err()
		}
		err = <-result
	}
	return s.Lease(), err
}

// Lease returns the lease that the store has. See [driver.Store].
func (s *Store) Lease() driver.Lease { return *s.lease.Load() }

// IsExclusive reports whether the store was opened with WithExclusive. See [driver.Exclusive].
func (s *Store) IsExclusive() bool { return s.cfg.exclusive }

// Release ends the lease, and unlocks the lease file unless the store was opened with WithExclusive. The store has all
// slots or none: it releases all if slots contains slot 0, which all records have. See [driver.Store].
//
// Errors: ErrBusy; driver.ErrFailed; driver.ErrClosed; the context's error.
func (s *Store) Release(ctx context.Context, slots driver.SlotSet) error {
	err := s.committer.queue.Control(ctx, func() error {
		if err := s.committer.queue.Failure(); err != nil || !slots.Has(0) {
			return err
		}
		return s.committer.release()
	})
	if err != nil {
		return fmt.Errorf("Release: %w", err)
	}
	return nil
}

// Now returns the zero time: the stores have the clocks of their processes only. See [driver.Store].
func (s *Store) Now(context.Context) (time.Time, error) { return time.Time{}, s.state() }

// setLease notes the lease that the store has from now on, or none. Every caller runs on the committer's goroutine, or
// before it starts.
func (c *committer) setLease(l driver.Lease) {
	c.epoch = l.Epoch
	c.leased = make(map[driver.Ref]uint8)
	c.store.claimMu.Lock()
	c.store.claim = c.newClaimState()
	c.store.claimMu.Unlock()
	c.store.lease.Store(&l)
}

// unlock unlocks the lease file if the store has it.
func (s *Store) unlock() error { return s.lock.Swap(nil).release() }

// start prepares the committer for new connections. verify checks the state of the file.
//
// It does not secure the log: the first commit does, so that a tool that only reads neither waits for the write lock nor
// makes the bus wait.
func (c *committer) start(verify func(*meta) error) error {
	c.logSize, c.logEnd, c.lookedAt = 0, 0, time.Time{} // the store changes nothing before it commits
	m, err := c.readMeta()
	if err == nil {
		err = verify(&m)
	}
	if err == nil {
		_, err = c.noteForeign()
	}
	c.secured = c.store.logIsEmpty()
	c.meta = m
	return err
}

// acquire begins a lease. locked is the lease file, or nil if the store has locked it before. After an error, it is
// unlocked.
func (c *committer) acquire(locked *leaseFile) (err error) {
	if c.epoch != 0 {
		return locked.release() // it was acquired meanwhile, which Acquire excludes
	}
	if err := c.queue.Failure(); err != nil {
		return errors.Join(err, locked.release())
	}
	if locked != nil {
		c.store.lock.Store(locked)
	}
	noted, known := readWitness(c.store.path)
	began, err := c.begin(false, func(m *meta) error {
		if !known {
			return nil
		}
		c.store.synced = noted.commits
		return noted.verify(c.store.path, m)
	})
	if err == nil {
		return nil
	}
	if began || sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy {
		err = c.reportFailure(err)
	}
	if c.epoch != 0 {
		c.setLease(driver.Lease{})
	}
	if locked != nil {
		c.refuse(c.store.lock.Swap(nil))
	}
	return err
}

// refuse unlocks a lease file that Acquire has locked for nothing.
func (c *committer) refuse(locked *leaseFile) {
	if err := locked.release(); err != nil {
		c.store.cfg.logger.Warn("lease file cannot be closed", zap.String("path", c.store.path+leaseSuffix), zap.Error(err))
	}
}

// renew replaces the lease of a store that reopens its file. If another store has begun a lease meanwhile, the store has
// none.
func (c *committer) renew(verify func(*meta) error) error {
	if lost, err := c.findLoss(); lost || err != nil {
		return err
	}
	_, err := c.begin(true, verify)
	return err
}

// begin begins a lease. own reports that it replaces the lease of this store: its records have seen no crash. After an
// error with began, the outcome may be unknown.
func (c *committer) begin(own bool, verify func(*meta) error) (began bool, err error) {
	if err := c.look(); err != nil {
		return false, c.store.explain(err)
	}
	if err := c.noteWait(c.beginIntact); err != nil {
		return false, c.store.explain(err)
	}
	m, lease, crashed, err := c.writeLease(own, verify)
	if err != nil {
		c.w.rollback()
		return true, c.store.explain(err)
	}
	reach("lease: committed")
	c.meta, c.crashed, c.logSize = m, crashed, max(c.logSize, 1)
	c.grown()
	c.setLease(lease)
	if err := c.store.note(); err != nil {
		return true, fmt.Errorf("sqlite: %w", err)
	}
	reach("lease: witnessed")
	return true, nil
}

// noteWait calls a function that gives up after it has waited for the write lock. Commits behind it wait for the same lock,
// and Blocked counts from its beginning then.
func (c *committer) noteWait(begin func() error) error {
	c.waits.CompareAndSwap(0, time.Now().UnixNano())
	err := begin()
	if sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy {
		c.waits.Store(0)
	}
	return err
}

// writeLease writes and commits the beginning of a lease, inside a transaction.
func (c *committer) writeLease(own bool, verify func(*meta) error) (m meta, lease driver.Lease, crashed map[int64]crashedLease, err error) {
	if m, err = c.readMeta(); err != nil {
		return m, lease, nil, err
	}
	if err = verify(&m); err != nil {
		return m, lease, nil, err
	}
	if !c.secured || m.held { // a store that has crashed or failed may have left frames that the disk lacks
		if err = c.secureLog(); err != nil {
			return m, lease, nil, err
		}
	}
	if m.held && !(own && m.epoch == c.epoch) {
		const sql = "INSERT INTO eventbus_crash (epoch, suspects) VALUES (?1, EXISTS (SELECT 1 FROM eventbus_record INDEXED BY record_suspect WHERE suspect = 1 AND owner = ?1))"
		if _, err = c.w.exec(sql, m.epoch); err != nil {
			return m, lease, nil, err
		}
		lease.Crashed, lease.CrashedEvents = true, c.countCrash(&m)
		reach("lease: crash noted")
	}
	m.epoch++
	m.commits++
	m.held, m.leased = true, 0
	lease.Epoch, lease.Slots = m.epoch, driver.AllSlots()
	if err = m.update(c.w); err != nil {
		return m, lease, nil, err
	}
	if crashed, err = c.loadCrashes(); err != nil {
		return m, lease, nil, err
	}
	reach("lease: before commit")
	_, err = c.w.exec("COMMIT")
	return m, lease, crashed, err
}

// release ends the lease, and unlocks the lease file. If the lease was lost, it only notes that.
func (c *committer) release() error {
	if c.epoch == 0 {
		return nil
	}
	if err := c.endLease(); err != nil {
		if sqlite3.ErrCode(err).ToPrimary() == sqlite3.ResultBusy {
			return err // nothing was written
		}
		return c.reportFailure(err)
	}
	c.setLease(driver.Lease{})
	if c.store.cfg.exclusive {
		return nil
	}
	return c.store.unlock()
}

// endLease ends the lease in the file without a crash. A store that has failed tries it as well.
func (c *committer) endLease() error {
	if c.w == nil || c.killed {
		return nil
	}
	if err := c.look(); err != nil {
		return c.store.explain(err)
	}
	if c.epoch == 0 {
		return nil
	}
	err := c.noteWait(func() error {
		return c.w.transaction(func() error {
			m, err := c.readMeta()
			if err != nil || m.epoch != c.epoch {
				return err
			}
			if c.queue.Failure() != nil { // perhaps of a sync: the end of the lease would be behind what the disk lacks
				if err := c.secureLog(); err != nil {
					return err
				}
			}
			m.commits++
			m.held, m.leased = false, 0
			c.meta = m
			return m.update(c.w)
		})
	})
	if err == nil {
		c.committed(c.meta, 1)
	}
	return c.store.explain(err)
}

// findLoss reports whether the store has lost its lease, and notes that. The caller is in no transaction.
func (c *committer) findLoss() (lost bool, err error) {
	if c.epoch == 0 {
		return false, nil
	}
	m, err := c.readMeta()
	if err != nil || m.epoch == c.epoch && m.held {
		return false, err
	}
	c.lose()
	return true, nil
}

// lose notes that another store has begun a lease.
func (c *committer) lose() {
	s := c.store
	s.cfg.logger.Error("lease was lost: another store has begun one", zap.String("path", s.path), zap.Int64("epoch", c.epoch))
	c.setLease(driver.Lease{})
	s.watch.lost.Add(1)
	if s.cfg.exclusive {
		return
	}
	if err := s.unlock(); err != nil {
		s.cfg.logger.Warn("lease file cannot be closed", zap.String("path", s.path+leaseSuffix), zap.Error(err))
	}
}
