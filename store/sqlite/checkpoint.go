package sqlite

import (
	"fmt"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"
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

// checkpoint copies the write-ahead log into the database. A passive checkpoint does not wait for
// readers, and the log stays as long as it is. A truncating one empties it.
func (c *committer) checkpoint(mode checkpointMode) error {
	if c.w == nil {
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
	switch {
	case err != nil:
		return err
	case busy == 0 && log == done:
		c.logSize, c.logWarned = 0, false
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

// checkpointIfLarge runs a checkpoint if the log has grown.
func (c *committer) checkpointIfLarge() {
	if c.logSize >= int64(c.store.cfg.checkpointAt) {
		reach("checkpoint: before")
		c.tryCheckpoint(passive)
		reach("checkpoint: after")
	}
}

// checkpointIdle empties the log while nothing is submitted. It does not wait for other processes.
func (c *committer) checkpointIdle() {
	reach("idle checkpoint: before")
	c.tryCheckpoint(truncate)
	reach("idle checkpoint: after")
	c.logSize = 0 // not again before the next commit
}

// tryCheckpoint runs a checkpoint. A full disk fails no commit here: the commits are in the log.
func (c *committer) tryCheckpoint(mode checkpointMode) {
	err := c.store.explain(c.checkpoint(mode))
	if err == nil {
		return
	}
	c.logSize = 1
	if !c.logWarned {
		c.logWarned = true
		c.store.cfg.logger.Warn("checkpoint failed", zap.String("path", c.store.path), zap.Error(err))
	}
}
