package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"
)

// sideFiles are the files beside the database that the connections have open. SQLite does not notice that they
// lost their names, and commits into files that no other process finds.
type sideFiles struct {
	wal      *os.File // of this package: SQLite locks nothing in it, so closing it drops no locks
	log, shm fs.FileInfo
	pageSize int64
}

// noteFiles remembers the files that the connections have open.
func (s *Store) noteFiles(w *writer) (err error) {
	if s.side.pageSize, err = queryInt(w.conn, "PRAGMA page_size"); err != nil {
		return err
	}
	if s.side.wal, err = os.Open(s.path + "-wal"); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if s.side.log, err = s.side.wal.Stat(); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if s.cfg.exclusive {
		return nil
	}
	if s.side.shm, err = os.Stat(s.path + "-shm"); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// lockAlone locks the file for this process, and opens the guard again if it was open. It removes the index that inspect
// has made: no process uses it.
func (s *Store) lockAlone(guarded bool) error {
	err := query(s.committer.w.conn, "PRAGMA schema_version", nil)
	if sqlite3.ErrCode(err).ToPrimary() == sqlite3.ResultBusy {
		return fmt.Errorf("%w: %s: %w", ErrShared, s.path, err)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(s.path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sqlite: %w", err)
	}
	if guarded {
		return s.openGuard()
	}
	return nil
}

// forgetFiles is called before the connections are closed: Windows deletes no file that is open.
func (s *Store) forgetFiles() error {
	wal := s.side.wal
	s.side = sideFiles{}
	if wal == nil {
		return nil
	}
	return wal.Close()
}

// moved returns the file that was deleted, renamed or replaced while it was open, or "".
func (s *Store) moved() string {
	for _, f := range []struct { // the log before its index: look saves a log that lost its name
		suffix string
		was    fs.FileInfo
	}{{"", s.file}, {"-wal", s.side.log}, {"-shm", s.side.shm}} {
		if f.was == nil {
			continue
		}
		if now, err := os.Stat(s.path + f.suffix); err != nil || !os.SameFile(f.was, now) {
			return s.path + f.suffix
		}
	}
	if l := s.lock.Load(); l != nil && !l.inPlace() {
		return l.path
	}
	return ""
}

// look returns an error if a file of the store is not in its place, or the log has lost commits.
func (c *committer) look() error {
	s := c.store
	name := s.moved()
	if name == "" {
		return c.checkLog()
	}
	if l := s.lock.Load(); l != nil && name == l.path {
		// Another store may have locked the file that is in its place, and have begun a lease.
		if lost, err := c.findLoss(); lost || err != nil {
			return err
		}
	}
	replaced := fmt.Errorf("%w: %s", ErrReplaced, name)
	if name != s.path+"-wal" || !s.inPlace() {
		return replaced
	}
	if other, err := os.Lstat(name); err == nil && other.Mode().IsRegular() && other.Size() > 0 {
		return replaced // another process may have committed to the new log
	}
	// The log without a name has commits that the database lacks.
	return errors.Join(replaced, c.saveLog())
}

// lookIdle makes a store fail whose files have moved while nothing is submitted, and notes the loss of the lease.
func (c *committer) lookIdle() {
	if c.queue.Failure() != nil {
		return
	}
	err := c.look()
	if err == nil {
		_, err = c.findLoss()
	}
	if err != nil {
		_ = c.queue.Fail(c.store.explain(err))
		c.store.cfg.logger.Error("store failed", zap.String("path", c.store.path), zap.Error(err))
	}
}

// saveLog applies the whole log to the database, unless the log is damaged. It waits for readers.
func (c *committer) saveLog() error {
	if !c.secured {
		return nil // the store has committed nothing: others save the log
	}
	if err := c.checkLog(); err != nil {
		return err
	}
	for range max(1, c.w.lockWait/lockLook) {
		left := int64(0)
		err := query(c.w.conn, "PRAGMA wal_checkpoint(FULL)", func(stmt *sqlite3.Stmt) error {
			left = stmt.ColumnInt64(0) + stmt.ColumnInt64(1) - stmt.ColumnInt64(2)
			return nil
		})
		if left == 0 || err != nil && sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy {
			return err
		}
		time.Sleep(lockLook)
	}
	return fmt.Errorf("%w: commits are left in a log without a name", ErrBusy)
}

// checkLog returns an error if the log does not have the commits that its index has. Another process may empty the
// log between a look at the index and one at the log, so that only the third difference in a row counts.
func (c *committer) checkLog() error {
	for looks, busy := 1, 0; ; looks++ {
		var frames int64
		err := query(c.w.conn, "PRAGMA wal_checkpoint(NOOP)", func(stmt *sqlite3.Stmt) error {
			frames = stmt.ColumnInt64(1)
			return nil
		})
		if sqlite3.ErrCode(err).ToPrimary() == sqlite3.ResultBusy && busy < 100 {
			busy++ // another process is writing the header of the index
			looks--
			time.Sleep(lockLook)
			continue
		}
		if err != nil {
			return err
		}
		if frames <= 0 {
			c.logEnd = 0
			return nil
		}
		var header [logHeader]byte
		if _, err := c.store.side.wal.ReadAt(header[:], 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		c.logEnd = logHeader + frames*(frameHeader+c.store.side.pageSize)
		size, err := c.logSizeNow()
		switch {
		case err != nil:
			return err
		case size >= c.logEnd && header != [logHeader]byte{}:
			return nil
		case looks == 3:
			return fmt.Errorf("%w: %s-wal was truncated", ErrReplaced, c.store.path)
		}
	}
}

// logSizeNow returns the size of the log in bytes.
func (c *committer) logSizeNow() (int64, error) { return c.store.side.wal.Seek(0, io.SeekEnd) }

// beginIntact begins a transaction after a look at the log: a commit behind the end of a log that was truncated hides that
// commits are missing.
func (c *committer) beginIntact() error {
	for looks := 1; ; looks++ {
		if err := c.w.begin(); err != nil {
			return err
		}
		size, err := c.logSizeNow()
		if err == nil && size >= c.logEnd {
			return nil
		}
		c.w.rollback()
		if err == nil {
			err = c.checkLog() // another process may have emptied the log
		}
		if err != nil {
			return err
		}
		if looks == 100 {
			return fmt.Errorf("%w: it empties the log again and again", ErrBusy)
		}
	}
}

// grown notes the size of the log after a commit. It does not forget a larger one: if the log is smaller now, the
// next transaction finds out why.
func (c *committer) grown() {
	if size, err := c.logSizeNow(); err == nil {
		c.logEnd = max(c.logEnd, size)
	}
}

// awaitFiles returns an error if the store would not find the files of a store that has the lease: it would make a second
// index of the log, and the two processes would corrupt the file.
func (s *Store) awaitFiles(ctx context.Context) error {
	const looks, pause = 200, 10 * time.Millisecond // much longer than a bus opens its files
	for look := 1; ; look++ {
		if holderOf(s.path).Exclusive && leaseIsHeld(s.path) {
			held := lockedBy(s.path)
			held.Reason = "it has opened the file with WithExclusive: use the admin API of that bus, for instance with eventbus --url"
			return held
		}
		missing := ""
		for _, suffix := range []string{"-wal", "-shm"} {
			if _, err := os.Lstat(s.path + suffix); errors.Is(err, fs.ErrNotExist) {
				missing = s.path + suffix
			}
		}
		if missing == "" || !leaseIsHeld(s.path) {
			return nil
		}
		if look == looks {
			held := lockedBy(s.path)
			held.Reason = missing + " was deleted: another process would corrupt the file"
			return held
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
