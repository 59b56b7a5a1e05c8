package sqlite

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// leaseFile is the file beside the database. The store that has its lock may begin a lease, and migrate the schema. The
// kernel releases the lock when the process ends. SQLite does not use the file, so closing it drops no lock of SQLite.
//
// The file has the holder in its first bytes, and the number of the last commit behind them. The
// number detects a database that lost commits: see verify.
type leaseFile struct {
	path string
	file *os.File
	info fs.FileInfo
}

const (
	leaseSuffix  = "-lease"
	holderSize   = 512 // the holder, padded with spaces
	witnessSize  = 16 + 1 + 20 + 1
	recentSize   = 20 + 1 + bootSize + 1
	bootSize     = 36
	leaseLockAt  = 1 << 30 // Windows locks this byte, so that others can read the holder
	leaseFileEnd = holderSize + witnessSize + recentSize
)

// holder is the process that has the lease.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
	// Exclusive reports that no other process can open the database.
	Exclusive bool `json:"exclusive,omitempty"`
	// Migrating reports that Open has the lock, to create or migrate the database.
	Migrating bool `json:"migrating,omitempty"`
}

// witness is the last commit of a store, written after the commit.
type witness struct {
	store   storeID
	commits int64 // the last commit that was synced
	// With WithNormalSync, recent is the last commit, and boot is the run of the operating system that made it.
	// A power cut, after which another run begins, can take the commits from commits to recent.
	recent int64
	boot   string // empty if it is unknown
}

// required returns the number of commits that the database must have.
func (w witness) required() int64 {
	if w.boot != "" && w.boot == bootID() {
		return max(w.commits, w.recent)
	}
	return w.commits
}

// isBinding reports whether the database must have each commit that was made.
func (w witness) isBinding() bool { return w.recent <= w.required() }

type storeID [8]byte

// The lock of a lease file that is seen once may be that of leaseIsHeld: only one that is seen shortLooks times, shortLook
// apart, is that of a store.
const (
	shortLooks = 4
	shortLook  = 5 * time.Millisecond
)

// acquireLease locks the lease file of a database. The error is a *LockedError if another store has
// the lock.
func acquireLease(path string) (*leaseFile, error) {
	for look := 1; ; look++ {
		l, err := tryLease(path)
		if look == shortLooks || !errors.Is(err, ErrLocked) {
			return l, err
		}
		time.Sleep(shortLook)
	}
}

// tryLease is acquireLease without a second look.
func tryLease(path string) (*leaseFile, error) {
	name := path + leaseSuffix
	for {
		f, err := openLease(name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, err
		}
		switch err := lockFile(f); {
		case errors.Is(err, errWouldBlock):
			if err := f.Close(); err != nil {
				return nil, err
			}
			return nil, lockedBy(path)
		case err != nil:
			return nil, errors.Join(fmt.Errorf("sqlite: lock %s: %w", name, err), f.Close())
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		l := &leaseFile{path: name, file: f, info: info}
		if l.inPlace() {
			return l, nil
		}
		// The file was deleted between open and lock: another store may have made and locked a new one.
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

func openLease(name string, flag int) (*os.File, error) {
	switch info, err := os.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("sqlite: %w", err)
	case !info.Mode().IsRegular():
		return nil, &PathError{Path: name, Reason: "is not a regular file"}
	}
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	return f, nil
}

// inPlace reports whether the path still names the locked file.
func (l *leaseFile) inPlace() bool {
	now, err := os.Stat(l.path)
	return err == nil && os.SameFile(l.info, now)
}

func readHolder(f *os.File) (h holder) {
	text := make([]byte, holderSize)
	n, _ := f.ReadAt(text, 0) // an unreadable holder is unknown
	if json.Unmarshal(text[:n], &h) != nil {
		return holder{}
	}
	return h
}

// lockedBy returns the error that names the holder of a lease.
func lockedBy(path string) *LockedError {
	h := holderOf(path)
	return &LockedError{Path: path, PID: h.PID, Host: h.Host, Since: h.Since}
}

// holderOf returns the last holder of a lease, which may have released it.
func holderOf(path string) holder {
	f, err := openLease(path+leaseSuffix, os.O_RDONLY)
	if err != nil {
		return holder{}
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return readHolder(f)
}

// sign writes this process into the lease file. h has the other fields of the holder.
func (l *leaseFile) sign(h holder) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	h.PID, h.Host, h.Since = os.Getpid(), host, time.Now().UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(h)
	if err != nil || len(text) > holderSize {
		text = []byte("{}")
	}
	padded := make([]byte, holderSize)
	for i := copy(padded, text); i < holderSize; i++ {
		padded[i] = ' '
	}
	if _, err := l.file.WriteAt(padded, 0); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// release unlocks the file. It stays: deleting it would race with the next store.
func (l *leaseFile) release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// record writes the number of the last commit. It is not synced: SIGKILL keeps it, and after a power
// cut an older number detects less.
func (l *leaseFile) record(w witness) error {
	// Earlier versions read and write the first line only.
	text := fmt.Appendf(nil, "%x %020d\n%020d %-*.*s\n", w.store, w.commits, w.recent, bootSize, bootSize, w.boot)
	_, err := l.file.WriteAt(text, holderSize)
	return err
}

// leaseIsHeld reports whether a store has locked the lease file of a database. It shares the lock itself for a moment,
// for which acquireLease waits.
func leaseIsHeld(path string) bool {
	f, err := openLease(path+leaseSuffix, os.O_RDWR)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return errors.Is(shareFile(f), errWouldBlock)
}

// readWitness returns the last recorded commit of a database, without a lock.
func readWitness(path string) (w witness, ok bool) {
	f, err := openLease(path+leaseSuffix, os.O_RDONLY)
	if err != nil {
		return w, false
	}
	defer f.Close() //nolint:errcheck // nothing was written
	text := make([]byte, witnessSize+recentSize)
	n, _ := f.ReadAt(text, holderSize)
	if n < witnessSize {
		return w, false
	}
	if _, err := hex.Decode(w.store[:], text[:16]); err != nil {
		return w, false
	}
	if _, err := fmt.Sscanf(string(text[17:37]), "%d", &w.commits); err != nil {
		return w, false
	}
	if n == len(text) {
		_, _ = fmt.Sscanf(string(text[witnessSize:]), "%d %s", &w.recent, &w.boot) // an unknown boot is empty
	}
	return w, true
}

// verify returns an error if a database is not the one of the witness, or lacks its last commit:
// its write-ahead log was deleted or damaged, or the file was replaced.
func (w witness) verify(path string, m *meta) error {
	const accept = "; restore the files, or remove " + leaseSuffix + " to accept the database as it is"
	required := w.required()
	switch {
	case m.store != w.store:
		return &CorruptError{Path: path, Detail: "it is another database than the lease file belongs to" + accept}
	case m.commits < required:
		return &CorruptError{
			Path:   path,
			Detail: fmt.Sprintf("it has %d commits, and %d were made: its -wal file was deleted or damaged, or an old copy replaced it%s", m.commits, required, accept),
		}
	}
	return nil
}
