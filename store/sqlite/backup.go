package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	sqlite3 "zombiezen.com/go/sqlite"
)

// Backup writes a copy of the store to a new file, which has the permissions 0600. A bus may work on the store
// meanwhile: the copy has the data of one commit. It is a store, which Open opens. A bus on the copy resumes the events
// of that commit, even events that were handled since.
//
// Backup syncs the file, and removes it if it fails. It reads about 100 MB a second, and the write-ahead
// log of the store grows meanwhile. To restore a store, stop its bus, move its four files away, and copy
// the backup to its path.
//
// Errors: *PathError if path is empty, ":memory:", a URI, or exists (a symbolic link too); ErrFull; *CorruptError;
// driver.ErrFailed; driver.ErrClosed; those of the operating system; the context's error.
func (s *Store) Backup(ctx context.Context, path string) error {
	if err := s.backup(ctx, path); err != nil {
		return fmt.Errorf("Backup(%s): %w", path, err)
	}
	return nil
}

func (s *Store) backup(ctx context.Context, path string) (err error) {
	if err := checkPath(path); err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal", leaseSuffix} {
		if _, err := os.Lstat(path + suffix); err == nil {
			return &PathError{Path: path + suffix, Reason: "exists; a backup overwrites no file"}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// SQLite writes into an empty file. No connection of this process has it, so closing it drops no locks.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	err = s.copyTo(ctx, path)
	if err == nil {
		err = s.endLeaseOf(ctx, path)
	}
	if err == nil {
		err = syncFile(path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
		for _, suffix := range []string{"-wal", "-shm"} {
			_ = os.Remove(path + suffix) // usually there is none
		}
	}
	return err
}

// endLeaseOf ends the lease in a copy: otherwise the next bus would take the records of the lease for those
// of a crash. It also sets the journal mode of a store, so that opening the copy does not change it.
func (s *Store) endLeaseOf(ctx context.Context, path string) error {
	w, err := openWriter(ctx, &Store{path: path, cfg: s.cfg})
	if err != nil {
		return err
	}
	if _, err := w.pragma("journal_mode = WAL"); err != nil {
		return errors.Join(err, w.close())
	}
	err = w.transaction(func() error {
		stmt, err := w.stmt(metaQuery)
		if err != nil {
			return err
		}
		m, err := readMeta(stmt, path)
		if err != nil {
			return err
		}
		m.held, m.leased = false, 0
		return m.update(w)
	})
	if err == nil {
		err = w.emptyLog()
	}
	return errors.Join(err, w.close())
}

// copyTo copies the store into an empty file.
func (s *Store) copyTo(ctx context.Context, path string) (err error) {
	r := newReader(s)
	if err := r.open(); err != nil {
		return s.explain(err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := s.state(); err != nil {
		return err
	}
	// VACUUM writes, so the connection may not be for reading only. SQLite syncs the new file only if the
	// connection asks for it.
	for _, pragma := range []string{"PRAGMA query_only = 0", "PRAGMA synchronous = FULL"} {
		if err := query(r.conn, pragma, nil); err != nil {
			return s.explain(err)
		}
	}
	r.conn.SetInterrupt(ctx.Done())
	defer r.conn.SetInterrupt(nil)
	err = query(r.conn, "VACUUM INTO ?", nil, path)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if sqlite3.ErrCode(err).ToPrimary() == sqlite3.ResultFull {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return s.explain(err)
}

var syncOpenDir = (*os.File).Sync // a variable for tests

// syncFile makes a new file and its name durable. No connection of this process has the file.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = syncOpenDir(dir)
	if runtime.GOOS == "windows" || errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // Windows, and some file systems, cannot sync a directory
	}
	return errors.Join(err, dir.Close())
}
