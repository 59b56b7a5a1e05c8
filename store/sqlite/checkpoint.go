package sqlite

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// Sizes of the write-ahead log, in pages of 4 KiB.
const (
	defaultCheckpoint = 4_000
	warnAt            = 100_000
)

// checkpointMode is the argument of PRAGMA wal_checkpoint.
type checkpointMode string

const (
	passive  checkpointMode = "PASSIVE"
	truncate checkpointMode = "TRUNCATE"
)

var afterCheckpoint = func(err error) error { return err } // a variable for tests

// checkpoint copies the write-ahead log into the database. A passive checkpoint does not wait for
// readers, and the log stays as long as it is. A truncating one empties it.
//
// A log that is not secured is not copied: a power cut could then take frames from the log whose pages are
// in the database.
func (c *committer) checkpoint(mode checkpointMode) error {
	if c.w == nil || !c.secured {
		return nil
	}
	if err := c.checkLog(); err != nil {
		return err // a log that was truncated would damage the database
	}
	var busy, log, done int64
	err := query(c.w.conn, fmt.Sprintf("PRAGMA wal_checkpoint(%s)", mode), func(stmt *sqlite3.Stmt) error {
		busy, log, done = stmt.ColumnInt64(0), stmt.ColumnInt64(1), stmt.ColumnInt64(2)
		return nil
	})
	err = afterCheckpoint(err)
	switch {
	case err != nil:
		return err
	case busy == 0 && log == done:
		c.logSize, c.logWarned = 0, false
		c.erasing = c.erasing && mode != truncate
		return nil
	}
	// A reader needs the old pages, or another process writes. Try again after further commits.
	c.logSize = 1
	if log > warnAt && !c.logWarned {
		c.logWarned = true
		c.store.cfg.logger.Warn("write-ahead log is large: a long read in another process prevents a checkpoint",
			zap.String("path", c.store.path), zap.Int64("pages", log))
	}
	return nil
}

// checkpointIfLarge runs a checkpoint if the log has grown. It truncates a log that Erase could not.
func (c *committer) checkpointIfLarge() {
	if c.logSize >= int64(c.store.cfg.checkpointAt) {
		reach("checkpoint: before")
		mode := passive
		if c.erasing {
			mode = truncate
		}
		_ = c.tryCheckpoint(mode) // it has been handled
		reach("checkpoint: after")
	}
}

// checkpointIdle empties the log while nothing is submitted. It does not wait for other processes.
func (c *committer) checkpointIdle() {
	reach("idle checkpoint: before")
	_ = c.tryCheckpoint(truncate) // it has been handled
	reach("idle checkpoint: after")
	if !c.erasing {
		c.logSize = 0 // not again before the next commit
	}
}

// eraseLook is the time between two tries of Erase. Batches are committed meanwhile.
const eraseLook = 10 * time.Millisecond

// Erase returns when neither the database nor its write-ahead log has a payload that was deleted before. SQLite
// overwrites deleted data (secure_delete). The log still has earlier versions of the pages: Erase copies it into the
// database and empties it. While a read of an earlier commit in any process prevents that, Erase tries again for the
// time of WithLockWait. After an error, the store tries again: at the next checkpoint, once a second while it is idle,
// and at Close. If it is closed before, another process erases the payloads when it next empties the log: after a
// second without a batch, or at its Close.
//
// It does not erase data that a version of this package without Erase deleted: see OPERATIONS.md.
//
// Errors match driver.ErrNotErased, and wrap driver.ErrFailed, driver.ErrClosed or the context's error.
func (s *Store) Erase(ctx context.Context) error {
	for range max(1, s.cfg.lockWait/eraseLook) {
		erased := false
		err := s.committer.queue.Control(ctx, func() (err error) {
			erased, err = s.committer.erase()
			return err
		})
		if err == nil && erased {
			return nil
		}
		if err == nil {
			err = sleep(ctx, eraseLook)
		}
		if err != nil {
			return fmt.Errorf("Erase: %w: %w", driver.ErrNotErased, err)
		}
	}
	return fmt.Errorf("Erase: %w: a read has prevented a checkpoint of %s for %s; the next one that succeeds erases them",
		driver.ErrNotErased, s.path, s.cfg.lockWait)
}

// erase tries to empty the log, and reports whether it is empty.
func (c *committer) erase() (erased bool, err error) {
	if err := c.queue.Failure(); err != nil {
		return false, err
	}
	c.erasing = true
	if !c.secured { // the store has committed nothing
		if err := c.w.transaction(c.secureLog); err != nil {
			return false, c.store.explain(err)
		}
	}
	err = c.tryCheckpoint(truncate)
	return !c.erasing, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tryCheckpoint runs a checkpoint, and handles its error.
func (c *committer) tryCheckpoint(mode checkpointMode) error {
	err := c.checkpoint(mode)
	if err != nil {
		c.checkpointFailed(err)
	}
	return c.store.explain(err)
}

// checkpointFailed handles the error of a checkpoint. A full disk, for example, fails no commit here: the
// commits are in the log. A failed sync makes the store fail, because the next checkpoint would not write
// the same pages again, and its sync would succeed without them. Reopen secures the log, and the next
// checkpoint copies all of it.
func (c *committer) checkpointFailed(err error) {
	cause := c.store.explain(err)
	c.logSize = 1
	if isFailedSync(err) {
		_ = c.reportFailure(fmt.Errorf("sqlite: checkpoint: %w", cause))
		return
	}
	if !c.logWarned {
		c.logWarned = true
		c.store.cfg.logger.Warn("checkpoint failed", zap.String("path", c.store.path), zap.Error(cause))
	}
}
