package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// job is an item of the committer's queue. Its Work is a Claim's.
type job = storekit.Job[*leaseRequest]

// committer applies the batches. Its goroutine takes everything that gathered during the last commit
// and applies it in one transaction.
type committer struct {
	store *Store

	queue *storekit.Queue[*leaseRequest]

	waits atomic.Int64 // since when the write lock is waited for in vain, in nanoseconds; 0: it was not held, or nothing waits

	// Only the committer's goroutine uses the following, and Open before it starts.
	w         *writer
	meta      meta                   // after the last commit
	epoch     int64                  // of the lease; 0 without one. See setLease
	leased    map[driver.Ref]uint8   // state of each record that the lease has
	crashed   map[int64]crashedLease // leases that ended without Release and Close, by epoch
	tx        transaction            // reused
	errs      []error                // reused
	logSize   int64                  // estimate of the pages since the last full checkpoint; 1: try again; 0: nothing to do
	logWarned bool                   // the log was reported as large
	logEnd    int64                  // in bytes; if the log is shorter, checkLog finds out whether commits are lost
	erasing   bool                   // Erase has not emptied the log yet: checkpoints truncate it
	lookedAt  time.Time              // when the files were last seen in their places
	pruned    time.Time              // when expired ids were last removed, by Batch.Aged
	stopped   bool                   // Close has ended
	killed    bool                   // by a test: the lease does not end
	broken    error                  // by a test: the error of the next commit
	secured   bool                   // the disk has the write-ahead log that was found at open; see secureLog
	fair      fairness
}

type crashedLease struct{ suspects bool }

func (c *committer) init(s *Store) {
	c.store = s
	c.queue = storekit.NewQueue[*leaseRequest](s.end.Ended())
	c.tx.committer = c
}

// reportFailure makes the store fail and logs the cause.
func (c *committer) reportFailure(cause error) error {
	c.store.cfg.logger.Error("store failed", zap.String("path", c.store.path), zap.Error(cause))
	return c.queue.Fail(cause)
}

// run is the committer's goroutine.
func (c *committer) run() {
	for !c.stopped {
		for jobs := c.next(); len(jobs) > 0; {
			n := storekit.Group(jobs, isAlone)
			if jobs[0].Control != nil {
				jobs[0].Control()
			} else {
				c.leaveGap()
				c.commit(jobs[:n])
			}
			jobs = jobs[n:]
		}
	}
}

// isAlone reports that no job needs a commit of its own.
func isAlone(*job) bool { return false }

// next waits for jobs and takes the whole queue. After idleAfter without a job, it tries to empty the
// write-ahead log.
func (c *committer) next() []*job {
	for {
		if c.queue.HasJobs() {
			c.leaveGap() // before they are taken, so that more join them
		}
		if jobs := c.queue.Take(); len(jobs) > 0 {
			return jobs
		}
		since := time.Now()
		if c.logSize == 0 || c.queue.Failure() != nil {
			<-c.queue.Wake()
			c.fair.free(since)
			continue
		}
		idle := time.NewTimer(idleAfter)
		select {
		case <-c.queue.Wake():
		case <-idle.C:
			c.checkpointIdle()
		}
		idle.Stop()
		c.fair.free(since)
	}
}

// commit applies jobs in one transaction and calls their done in order.
func (c *committer) commit(group []*job) {
	c.errs = append(c.errs[:0], make([]error, len(group))...)
	err := c.queue.Failure()
	if err == nil {
		if err = c.apply(group, c.errs); err != nil {
			err = c.reportFailure(c.store.explain(err))
		}
	}
	for i, j := range group {
		if err != nil {
			c.errs[i] = err
		}
		group[i] = nil
		reach("done: before")
		j.Done(c.errs[i])
		reach("done: after")
	}
	if err == nil {
		c.checkpointIfLarge()
	}
}

// apply applies jobs in one transaction. It puts the refusals into errs. Any other error means that
// the outcome is unknown.
func (c *committer) apply(group []*job, errs []error) error {
	now := time.Now()
	if now.Sub(c.lookedAt) >= time.Second {
		if err := c.look(); err != nil {
			return err
		}
		c.lookedAt = now
	}
	reach("commit: before begin")
	c.waits.CompareAndSwap(0, now.UnixNano()) // Acquire or Release may have met the same lock before
	err := c.awaitLock()
	c.waits.Store(0)
	if err != nil {
		return err
	}
	reach("commit: begun")
	tx := &c.tx
	if _, err = c.noteForeign(); err == nil {
		err = tx.begin()
	}
	if err == nil && !c.secured {
		err = c.secureLog()
	}
	for i, j := range group {
		if err != nil {
			break
		}
		if j.Batch == nil {
			errs[i], err = tx.lease(j.Work)
			continue
		}
		errs[i], err = tx.apply(j.Batch)
	}
	if err == nil {
		err = tx.commit()
	}
	if err != nil {
		c.w.rollback()
		return err
	}
	return nil
}

// awaitLock begins a transaction. While another program holds the write lock, nothing is written, so the store does not
// fail: awaitLock goes on waiting. After Close was called, it gives up when it has waited as long as WithLockWait says.
func (c *committer) awaitLock() error {
	for {
		ends := errors.Is(c.queue.State(), driver.ErrClosed)
		err := c.beginIntact()
		if sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy || ends {
			return err
		}
		if err := c.look(); err != nil {
			return err
		}
	}
}

// Blocked returns an error that matches ErrBusy while a commit has waited for the write lock for about the time of
// Patience. See [driver.Blocked].
func (s *Store) Blocked() error {
	since := s.committer.waits.Load()
	if since == 0 {
		return nil
	}
	// The bus looks when Patience has passed since it submitted the batch, which may be a little earlier.
	waited := time.Since(time.Unix(0, since))
	if waited < s.Patience()-s.Patience()/10 {
		return nil
	}
	return fmt.Errorf("%w: a commit has waited %v for that of %s: a transaction of another program, or of another connection of this one, "+
		"has written and has not ended; end it, and keep such transactions short", ErrBusy, waited.Round(time.Millisecond), s.path)
}

// committed records a commit.
func (c *committer) committed(m meta, pages int64) {
	c.meta = m
	c.logSize += pages
	c.grown()
	if err := c.store.note(); err != nil {
		c.store.cfg.logger.Warn("lease file cannot be written", zap.String("path", c.store.path+leaseSuffix), zap.Error(err))
	}
	reach("commit: witnessed")
}

// noteUnlocked is note for a store without the lock of the lease file. Other stores may write meanwhile: a note of an
// earlier commit that replaces a later one detects less. It makes no lease file, and needs no permission to write it.
func (s *Store) noteUnlocked(w witness) error {
	if !s.inPlace() {
		return nil // the note would be of another database
	}
	f, err := openLease(s.path+leaseSuffix, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	l := &leaseFile{file: f}
	return errors.Join(l.record(w), l.release())
}

// note records the last commit in the lease file. Without full syncs, a power cut can take the commit
// and leave the note, which would refuse an intact file: such a commit is noted with the run of the
// operating system.
func (s *Store) note() error {
	m := &s.committer.meta
	w := witness{store: m.store, commits: m.commits}
	if s.cfg.normal {
		w.commits, w.recent, w.boot = s.synced, m.commits, bootID()
	}
	if l := s.lock.Load(); l != nil {
		return l.record(w)
	}
	return s.noteUnlocked(w)
}

func (c *committer) readMeta() (meta, error) {
	stmt, err := c.w.stmt(metaQuery)
	if err != nil {
		return meta{}, err
	}
	return readMeta(stmt, c.store.path)
}
