package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	sqlite3 "zombiezen.com/go/sqlite"
)

const logSuffix = "-wal"

var syncLog = (*os.File).Sync // a variable for tests

// secureLog writes the write-ahead log again, byte for byte, and syncs it. The caller is in a write transaction: the
// write lock keeps all other writers away from the log.
//
// After a failed fsync, Linux marks the pages as clean, though the disk lacks them. SQLite recovers such a log from the
// page cache and appends to it. A power cut then takes the missing frames, and everything behind them. After this sync,
// the disk has the log as SQLite has read it.
//
// The same has happened to the database if the sync of a checkpoint failed. The log still has these frames. If the cache
// forgets the pages of the database, the next checkpoint writes them as new ones.
//
// A checkpoint is no replacement. It waits for the readers of all processes, and a power cut during it leaves a
// database with some pages of the missing frames.
func (c *committer) secureLog() error {
	err := rewrite(c.store.path + logSuffix)
	if err == nil && c.store.fileLocks && (c.store.lock.Load() != nil || !leaseIsHeld(c.store.path)) { // the holder of the lease has done it
		err = forgetPages(c.store.path)
	}
	if err != nil {
		return fmt.Errorf("sqlite: syncing the write-ahead log again: %w", err)
	}
	c.secured = true
	reach("lease: log synced")
	return nil
}

// logIsEmpty reports whether no frame can have come from the page cache.
func (s *Store) logIsEmpty() bool {
	info, err := os.Stat(s.path + logSuffix)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
}

const (
	diskBlock = 4096 // a multiple of the blocks of a disk
	pieceSize = 64 * diskBlock
)

// rewrite writes the content of a file again and syncs it. A file that does not exist has no content. Zeros may follow
// the content then, which end a log.
//
// It bypasses the page cache if it can. ext4 allocates blocks as unwritten, and the pages of a failed write remember
// them as written: if the same pages were written again, the sync would succeed, and the disk would have zeros.
func rewrite(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0) // no lock of SQLite is on the log, so closing it drops none
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	direct := openDirect(path)
	if direct != nil {
		defer func() { err = errors.Join(err, direct.Close()) }()
	}
	piece, free, err := alignedPiece(pieceSize)
	if err != nil {
		return err
	}
	defer free()
	for at := int64(0); ; {
		n, err := f.ReadAt(piece, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			break
		}
		if err := writePiece(f, direct, piece, n, at); err != nil {
			return err
		}
		at += int64(n)
		if n < len(piece) {
			break
		}
	}
	reach("lease: log written")
	return syncLog(f)
}

// writePiece writes the first n bytes of a piece, past the page cache if direct is not nil and the file system can.
func writePiece(f, direct *os.File, piece []byte, n int, at int64) error {
	if direct != nil {
		whole := (n + diskBlock - 1) &^ (diskBlock - 1)
		clear(piece[n:whole])
		if _, err := direct.WriteAt(piece[:whole], at); !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
	_, err := f.WriteAt(piece[:n], at)
	return err
}

// emptyLog copies the log into the database and empties it. SQLite does the same when the last connection is closed, but
// reports no error of it.
func (w *writer) emptyLog() error {
	var busy bool
	err := query(w.conn, "PRAGMA wal_checkpoint(TRUNCATE)", func(stmt *sqlite3.Stmt) error {
		busy = stmt.ColumnInt64(0) != 0
		return nil
	})
	if err == nil && busy {
		err = sqlite3.ResultBusy.ToError()
	}
	return err
}

// isFull reports whether an error of the operating system means that there is no room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// isFailedSync reports whether SQLite could not sync a file. The pages that were not written count as clean from then
// on: the next sync succeeds without them.
func isFailedSync(err error) bool { return sqlite3.ErrCode(err) == sqlite3.ResultIOErrFsync }
