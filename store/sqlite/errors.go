package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

var (
	// ErrLocked is matched by every *LockedError: another store holds the lease, or Open cannot share or migrate its
	// files.
	ErrLocked = errors.New("sqlite: another store holds the lease")
	// ErrFull is matched by the error of a store that failed because the disk, a quota or a file size limit is
	// exhausted. Reopen works when there is room again.
	ErrFull = errors.New("sqlite: disk is full")
	// ErrBusy is matched by errors of Blocked, Open, Acquire, Release, Reopen and Close if another program holds the
	// write lock for longer than WithLockWait. It is driver.ErrBusy.
	ErrBusy = driver.ErrBusy
	// ErrShared is matched by the error of Open with WithExclusive if another process has the file open.
	ErrShared = errors.New("sqlite: another process has the file open, and WithExclusive needs it alone: end that process")
	// ErrReplaced is matched by the error of a store that failed because one of its files was deleted, renamed or
	// replaced while it was open, or its log (-wal) was truncated. The store checks the files once a second, and the
	// size of the log before each commit. Reopen works if no commit is missing.
	ErrReplaced = errors.New("sqlite: file was deleted or replaced while it was open")
	// ErrOtherProgram is matched by the error of Open for an SQLite database that is no store. Open does not change the
	// file.
	ErrOtherProgram = errors.New("sqlite: another program's database")
	// ErrSchemaTooNew is matched by the error of Open for a file that a newer version of this package
	// has written.
	ErrSchemaTooNew = errors.New("sqlite: schema is newer than this version of the package")
	// ErrNotMigrated is matched by the error of Open with MustExist for a file that has an older schema or no tables
	// yet. Open without MustExist migrates the file.
	ErrNotMigrated = errors.New("sqlite: schema is older than this version of the package")
	// ErrNetworkFileSystem is matched by the error of Open for a file on a network file system, where
	// the write-ahead log does not work. See AllowNetworkFileSystem.
	ErrNetworkFileSystem = errors.New("sqlite: file is on a network file system")
	// ErrUnsafeSQLite is returned by Open if the program was built with a version of SQLite before
	// 3.51.3. Such versions can corrupt a file that two connections write to.
	ErrUnsafeSQLite = errors.New("sqlite: version of SQLite is unsafe")
)

// LockedError reports which process holds the lease of a file. It matches ErrLocked, and driver.ErrNoLease if Reason is
// empty.
type LockedError struct {
	Path  string    // the file
	PID   int       // the process that holds the lease; 0 if unknown
	Host  string    // its host; empty if unknown
	Since time.Time // the beginning of the lease; zero if unknown
	// Reason is why Open failed. It is empty if the caller wanted the lease: in Acquire, and in Open with
	// WithExclusive.
	Reason string
}

// Error returns the text of the error.
func (e *LockedError) Error() string {
	text := fmt.Sprintf("%v: %s", ErrLocked, e.Path)
	if e.PID != 0 {
		text += fmt.Sprintf(": process %d on %s since %s", e.PID, e.Host, e.Since.Format(time.RFC3339))
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Unwrap returns ErrLocked.
func (e *LockedError) Unwrap() error { return ErrLocked }

// Is reports whether target is driver.ErrNoLease and Reason is empty.
func (e *LockedError) Is(target error) bool { return target == driver.ErrNoLease && e.Reason == "" }

// CorruptError reports that a file is damaged, or is no SQLite database. Open does not
// repair, change or recreate such a file or its write-ahead log.
type CorruptError struct {
	Path   string // the damaged file
	Table  string // empty if unknown
	Row    string // identifies the row of the table; empty if unknown
	Detail string // what is damaged
	// Log is the file with a refused write-ahead log: a copy with the suffix -wal-refused (or -wal-refused-2, and so
	// on), or the log itself if copying failed. It is empty if the log is not refused.
	Log string
}

// Error returns the text of the error.
func (e *CorruptError) Error() string {
	at := ""
	if e.Table != "" {
		at = fmt.Sprintf(", table %s", e.Table)
	}
	if e.Row != "" {
		at += fmt.Sprintf(", row %s", e.Row)
	}
	return fmt.Sprintf("sqlite: %s%s is corrupt: %s", e.Path, at, e.Detail)
}

// PathError reports a path that cannot be a database: an empty path, ":memory:", a URI, a directory, a named pipe, a
// link without a target, or a file with several names.
type PathError struct {
	Path   string // the path
	Reason string // why it cannot be a database
}

// Error returns the text of the error.
func (e *PathError) Error() string {
	if e.Path == "" {
		return "sqlite: " + e.Reason
	}
	return fmt.Sprintf("sqlite: %s: %s", e.Path, e.Reason)
}

// OptionError reports an option that is wrong. It matches eventbus.ErrInvalidOption.
type OptionError = storekit.OptionError

// queryError is the error of a function of a query. It says nothing of the file, so explain leaves it as it is.
type queryError struct{ err error }

// Error returns the text of the error.
func (e *queryError) Error() string { return e.err.Error() }
func (e *queryError) Unwrap() error { return e.err }

// explain adds the error of this package to an error of SQLite.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	if q := (*queryError)(nil); errors.As(err, &q) {
		return q.err
	}
	if c := (*CorruptError)(nil); errors.As(err, &c) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	if isFull(err) && !errors.Is(err, ErrFull) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	if p := (*time.ParseError)(nil); errors.As(err, &p) {
		return &CorruptError{Path: s.path, Detail: err.Error()}
	}
	if errors.Is(err, ErrShared) {
		return err
	}
	switch sqlite3.ErrCode(err).ToPrimary() { //nolint:exhaustive // other codes have no error here
	case sqlite3.ResultError:
		// The statements of this package are valid. If SQLite does not compile one, the schema is not the
		// one that the package made.
		if _, inSQL := sqlite3.ErrorOffset(err); inSQL {
			return &CorruptError{Path: s.path, Table: "sqlite_schema", Detail: err.Error()}
		}
	case sqlite3.ResultFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqlite3.ResultBusy:
		return fmt.Errorf("%w: %s: %w", ErrBusy, s.path, err)
	case sqlite3.ResultCorrupt, sqlite3.ResultNotADB:
		return &CorruptError{Path: s.path, Detail: err.Error()}
	case sqlite3.ResultCantOpen, sqlite3.ResultReadOnly:
		if why := s.notWritable(); why != nil {
			return fmt.Errorf("%w: %w", why, err)
		}
	case sqlite3.ResultIOErr:
		if s.noRoom() {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	return err
}
