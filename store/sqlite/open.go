package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"
)

// safeVersion is the first version of SQLite without the defect that can corrupt a file when two
// connections write and checkpoint at the same time.
const safeVersion = 3_051_003

var linkedVersion = sqlite3.VersionNumber // a variable for tests

// checkPath refuses what SQLite takes for something else than the name of a file.
func checkPath(path string) error {
	const inMemory = "for a bus in memory, leave eventbus.WithStore out"
	switch {
	case path == "":
		return &PathError{Path: path, Reason: "the path is empty: give the path of a file; " + inMemory}
	case strings.HasPrefix(path, ":memory:"):
		return &PathError{Path: path, Reason: "a store keeps events in a file, and a database in memory would lose them: give the path of a file; " + inMemory}
	case strings.HasPrefix(path, "file:"):
		return &PathError{Path: path, Reason: "is a URI: give the path of the file alone, and options of Open instead of parameters; a file whose name begins so is ./" + path}
	}
	return nil
}

// locate makes a path absolute and resolves symbolic links, so that all names of a file have the
// same lease file.
func locate(path string) (string, error) {
	if err := checkPath(path); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	switch _, err := os.Lstat(abs); {
	case errors.Is(err, fs.ErrNotExist):
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", fmt.Errorf("sqlite: %w", err)
		}
		return filepath.Join(dir, filepath.Base(abs)), nil
	case err != nil:
		return "", fmt.Errorf("sqlite: %w", err)
	}
	target, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &PathError{Path: abs, Reason: "is a symbolic link without a target"}
	}
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	return target, nil
}

func checkFileSystem(path string, cfg *config) error {
	if cfg.network {
		return nil
	}
	if kind := networkFileSystem(filepath.Dir(path)); kind != "" {
		return fmt.Errorf("%w: %s is on %s", ErrNetworkFileSystem, path, kind)
	}
	return nil
}

// prepareFile refuses a path that cannot be a database, and creates an empty file if there is none.
// expected reports that the lease file has commits, so that the file must exist.
//
// It never opens an existing file: closing it would drop the locks of SQLite.
func (s *Store) prepareFile(expected bool) error {
	info, err := os.Lstat(s.path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("sqlite: %w", err)
	case missing && s.cfg.mustExist:
		return fmt.Errorf("sqlite: %w", err)
	case !missing && info.IsDir():
		return &PathError{Path: s.path, Reason: "is a directory"}
	case !missing && !info.Mode().IsRegular():
		return &PathError{Path: s.path, Reason: fmt.Sprintf("is not a regular file (%s)", info.Mode().Type())}
	case !missing && hardLinks(info) > 1:
		return &PathError{Path: s.path, Reason: "has several hard links: each name would have its own write-ahead log"}
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if info, err := os.Lstat(s.path + suffix); err == nil && !info.Mode().IsRegular() {
			return &PathError{Path: s.path + suffix, Reason: fmt.Sprintf("is not a regular file (%s): remove it", info.Mode().Type())}
		}
	}
	const smallest = 512 // SQLite takes a smaller file for a new one, and overwrites it
	if !missing && info.Size() > 0 {
		if info.Size() < smallest {
			return &CorruptError{Path: s.path, Detail: fmt.Sprintf("it has only %d bytes", info.Size())}
		}
		return nil
	}
	// SQLite deletes the write-ahead log of a database that is missing or empty.
	what := "the file is missing"
	if !missing {
		what = "the file is empty"
	}
	if log, err := os.Stat(s.path + "-wal"); err == nil && log.Size() > 0 {
		return &CorruptError{Path: s.path, Detail: what + ", and its -wal file is not; restore the file, or remove the -wal file to begin with an empty store"}
	}
	if expected {
		return &CorruptError{Path: s.path, Detail: what + ", and its lease file has commits; restore the file, or remove " + leaseSuffix + " to begin with an empty store"}
	}
	if !missing {
		return nil
	}
	// No connection of this process can have a file that does not exist, so closing it is safe.
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	reach("open: created")
	return f.Close()
}

// openConn opens a connection. With WithExclusive, its first read locks the file for this process, and the index of the
// log is in memory.
func (s *Store) openConn(flags sqlite3.OpenFlags) (*sqlite3.Conn, error) {
	if !s.cfg.exclusive {
		return sqlite3.OpenConn(s.path, flags)
	}
	name := url.URL{Scheme: "file", Path: s.path, RawQuery: "vfs=unix-excl"}
	return sqlite3.OpenConn(name.String(), flags|sqlite3.OpenURI)
}

// isNew reports whether there is no database at the path yet.
func (s *Store) isNew() bool {
	info, err := os.Stat(s.path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
}

// lockToCreate locks the lease file if there is no database yet and the store is to create it. It returns nil if there
// is one, or should be, or if the store has the lock already.
func (s *Store) lockToCreate(ctx context.Context, expected bool) (*migrationLock, error) {
	if s.lock.Load() != nil || s.cfg.mustExist || expected || !s.isNew() {
		return nil, nil
	}
	l, err := s.awaitLock(ctx)
	if l == nil && err == nil && s.isNew() {
		err = s.lockedBy("it has not created the database: end that process, then open the file")
	}
	return l, err
}

// lockToMigrate is lockToCreate for a database with an older schema.
func (s *Store) lockToMigrate(ctx context.Context) (*migrationLock, error) {
	isCurrent := func() (bool, error) {
		if s.guard == nil {
			return false, nil // there is no database
		}
		r := &writer{conn: s.guard}
		version, err := r.version(s)
		return version == len(migrations), err
	}
	current, err := isCurrent()
	if s.lock.Load() != nil || s.cfg.mustExist || current || err != nil {
		return nil, err
	}
	l, err := s.awaitLock(ctx)
	if l != nil || err != nil {
		return l, err
	}
	if current, err = isCurrent(); !current && err == nil {
		err = s.lockedBy("the schema is older than this version of the package, and is not changed under a store that has the lease: " +
			"end that process, then open the file; a deploy that changes the schema needs a stop")
	}
	return nil, err
}

func (s *Store) lockedBy(reason string) error {
	held := lockedBy(s.path)
	held.Reason = reason
	return held
}

// migrationLock is the lock of the lease file while Open creates or migrates the database.
type migrationLock struct{ file *leaseFile }

// awaitLock locks the lease file. It returns nil if another store has the lock, and does not create or migrate the
// database either.
func (s *Store) awaitLock(ctx context.Context) (*migrationLock, error) {
	began := time.Now()
	for looks := 0; ; looks++ {
		l, err := tryLease(s.path)
		if err == nil {
			reach("open: locked")
			if err := l.sign(holder{Migrating: true}); err != nil {
				return nil, errors.Join(err, l.release())
			}
			return &migrationLock{l}, nil
		}
		if !errors.Is(err, ErrLocked) {
			return nil, err
		}
		if holderOf(s.path).Migrating {
			looks = 0
		}
		if looks == shortLooks || time.Since(began) > s.cfg.lockWait {
			return nil, nil
		}
		if err := sleep(ctx, shortLook); err != nil {
			return nil, err
		}
	}
}

// unsign ends the lock. Nothing happens without one.
func (l *migrationLock) unsign() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.file.sign(holder{}), l.file.release())
}

// inPlace reports whether the path still names the file that was opened.
func (s *Store) inPlace() bool {
	now, err := os.Stat(s.path)
	return err == nil && os.SameFile(s.file, now)
}
