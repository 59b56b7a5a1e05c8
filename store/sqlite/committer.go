package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// Bounds of a commit: more batches wait for the next one. A batch that is larger is committed alone.
const (
	maxGroup       = 1024    // batches
	maxGroupWeight = 8 << 20 // by job.weight
)

// job is an item of the committer's queue: a batch, records to lease, or a function.
type job struct {
	batch *driver.Batch
	done  func(error)

	lease *leaseRequest // of Claim; done is set

	control func() // runs outside a transaction
}

// isDeferrable reports whether the job may wait for another one to share its commit.
func (j *job) isDeferrable() bool { return j.batch != nil && j.batch.Deferrable }

// A commit of deferrable jobs alone waits for another job for up to deferral, but not with maxDeferred of them:
// then a commit of their own costs little for each.
const (
	deferral    = time.Millisecond
	maxDeferred = 64
)

// committer applies the batches. Its goroutine takes everything that gathered during the last commit
// and applies it in one transaction.
type committer struct {
	store *Store

	mu     sync.Mutex // guards the following
	queue  []*job
	urgent int   // of queue: the jobs that are not deferrable
	failed error // matches driver.ErrFailed; nil if the store works
	ended  error // driver.ErrClosed after Close was called
	late   []*job

	wake chan struct{} // has an element while the queue may have jobs

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
	spare     []*job                 // a queue to reuse
	fair      fairness
}

type crashedLease struct{ suspects bool }

func (c *committer) init(s *Store) {
	c.store = s
	c.wake = make(chan struct{}, 1)
	c.tx.committer = c
}

// enqueue appends a job to the queue. It does not block.
func (c *committer) enqueue(j *job) {
	c.mu.Lock()
	if c.ended != nil {
		if c.late = append(c.late, j); len(c.late) == 1 {
			go c.refuseLate()
		}
		c.mu.Unlock()
		return
	}
	c.queue = append(c.queue, j)
	if !j.isDeferrable() {
		c.urgent++
	}
	c.mu.Unlock()
	c.signal()
}

func (c *committer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// refuseLate passes driver.ErrClosed to the jobs that came after Close, behind all others.
func (c *committer) refuseLate() {
	<-c.store.closed
	for i := 0; ; i++ {
		c.mu.Lock()
		if i == len(c.late) {
			c.late = nil
			c.mu.Unlock()
			return
		}
		j := c.late[i]
		c.mu.Unlock()
		j.refuse(driver.ErrClosed)
	}
}

// refuse ends a job that is not applied.
func (j *job) refuse(err error) {
	if j.done != nil {
		j.done(err)
	}
}

// weight estimates what the job writes, in bytes.
func (j *job) weight() int {
	const row = 256 // with its share of the indexes
	if j.lease != nil {
		return len(j.lease.records) * row
	}
	b := j.batch
	n := row * (len(b.Remember) + len(b.Forget) + len(b.Take) + len(b.Withdraw) + len(b.Accept) + len(b.Cancel) + len(b.New) +
		len(b.Update) + len(b.Delete) + len(b.Bury) + len(b.Leave) + len(b.Ask) + len(b.Unask) + len(b.Answer))
	for _, r := range b.New {
		n += len(r.Payload) + len(r.Metadata) + len(r.Replay) + len(r.Progress)
	}
	for _, r := range b.Update {
		n += len(r.Progress)
	}
	for _, l := range b.Bury {
		n += l.Size()
	}
	for _, in := range b.Leave {
		n += len(in.Record.Payload) + len(in.Record.Metadata) + len(in.Record.Replay)
	}
	return n
}

// control calls f on the committer's goroutine, after everything that was submitted. If ctx ends
// first, control returns its error. Then f does not run, unless it has begun.
func (c *committer) control(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	const awaited, begun, abandoned = 0, 1, 2
	var state atomic.Int32
	result := make(chan error, 1)
	c.enqueue(&job{
		control: func() {
			if state.CompareAndSwap(awaited, begun) {
				result <- f()
			}
		},
		done: func(err error) { result <- err },
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		state.CompareAndSwap(awaited, abandoned)
		return ctx.Err()
	}
}

// close lets the committer end after everything that was submitted, with a call of last.
func (c *committer) close(last func()) {
	c.mu.Lock()
	c.ended = driver.ErrClosed
	c.queue = append(c.queue, &job{control: func() {
		last()
		c.stopped = true
	}})
	c.urgent++
	c.mu.Unlock()
	c.signal()
}

// state returns the error of a store that has failed or is closed, or nil.
func (c *committer) state() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	return c.failed
}

// fail makes the store fail. A store that has failed keeps its first error.
func (c *committer) fail(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = failed(cause)
	}
	return c.failed
}

// reportFailure makes the store fail and logs the cause.
func (c *committer) reportFailure(cause error) error {
	c.store.cfg.logger.Error("store failed", zap.String("path", c.store.path), zap.Error(cause))
	return c.fail(cause)
}

// recover makes a store work again.
func (c *committer) recover() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = nil
}

func (c *committer) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// run is the committer's goroutine.
func (c *committer) run() {
	for !c.stopped {
		jobs := c.next()
		for len(jobs) > 0 {
			if jobs[0].control != nil {
				jobs[0].control()
				jobs = jobs[1:]
				continue
			}
			n, weight := 1, jobs[0].weight()
			for n < len(jobs) && n < maxGroup && jobs[n].control == nil {
				if weight += jobs[n].weight(); weight > maxGroupWeight {
					break
				}
				n++
			}
			c.leaveGap()
			c.commit(jobs[:n])
			jobs = jobs[n:]
		}
	}
}

// next waits for jobs and takes the whole queue. After idleAfter without a job, it tries to empty the
// write-ahead log.
func (c *committer) next() []*job {
	for {
		if c.hasJobs() {
			c.leaveGap() // before they are taken, so that more join them
		}
		jobs := c.take(false)
		if len(jobs) == 0 && c.defers() {
			c.awaitUrgent()
			jobs = c.take(true)
		}
		if len(jobs) > 0 {
			return jobs
		}
		since := time.Now()
		if c.logSize == 0 || c.failure() != nil {
			<-c.wake
			c.fair.free(since)
			continue
		}
		idle := time.NewTimer(idleAfter)
		select {
		case <-c.wake:
		case <-idle.C:
			c.checkpointIdle()
		}
		idle.Stop()
		c.fair.free(since)
	}
}

// take takes the whole queue, or nothing if it may wait for another job.
func (c *committer) take(now bool) []*job {
	c.mu.Lock()
	defer c.mu.Unlock()
	jobs := c.queue
	if len(jobs) == 0 || !now && c.defersLocked() {
		return nil
	}
	c.queue, c.urgent = c.spare[:0], 0
	c.spare = jobs
	return jobs
}

// awaitUrgent lets a few deferrable jobs wait for another job, up to deferral.
func (c *committer) awaitUrgent() {
	over := time.NewTimer(deferral)
	defer over.Stop()
	for c.defers() {
		select {
		case <-c.wake:
		case <-over.C:
			return
		}
	}
}

// defers reports whether the queue has deferrable jobs only, and few of them.
func (c *committer) defers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.defersLocked()
}

func (c *committer) defersLocked() bool {
	return c.urgent == 0 && len(c.queue) > 0 && len(c.queue) < maxDeferred
}

// commit applies jobs in one transaction and calls their done in order.
func (c *committer) commit(group []*job) {
	c.errs = append(c.errs[:0], make([]error, len(group))...)
	err := c.failure()
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
		j.done(c.errs[i])
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
		if j.lease != nil {
			errs[i], err = tx.lease(j.lease)
			continue
		}
		errs[i], err = tx.apply(j.batch)
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
		ends := errors.Is(c.state(), driver.ErrClosed)
		err := c.beginIntact()
		if sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy || ends {
			return err
		}
		if err := c.look(); err != nil {
			return err
		}
	}
}

// Blocked returns an error that matches ErrBusy while a commit has waited for the write lock for about as long as Patience
// says. See [driver.Blocked].
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
