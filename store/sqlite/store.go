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
	"github.com/surebus/eventbus/driver/storekit"
)

// Store is a store in an SQLite file. Its methods are safe for concurrent use. [driver.Store] specifies them.
type Store struct {
	// Immutable after Open.
	path string // absolute, without symbolic links
	cfg  *config
	// fileLocks reports that locks belong to open files: closing the database file drops no other ones.
	fileLocks bool
	committer committer
	claims    *reader // of Claim
	reads     *reader // of all other reads

	// Written by the committer, with both readers taken.
	file   fs.FileInfo
	synced int64 // with WithNormalSync: the last commit of the witness that a power cut cannot take
	guard  *sqlite3.Conn
	side   sideFiles

	lock      atomic.Pointer[leaseFile]    // written by the committer; nil unless the store has locked the lease file
	lease     atomic.Pointer[driver.Lease] // written by the committer; never nil
	acquiring chan struct{}                // held by the Acquire that tries to begin a lease

	claiming chan struct{} // held by Claim, so that two calls do not select the same records
	claimMu  sync.Mutex
	claim    claimState // guarded by claimMu; Reopen replaces it during a Claim

	watch watch

	end *storekit.Closing
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Eraser    = (*Store)(nil)
	_ driver.Exclusive = (*Store)(nil)
	_ driver.TxStore   = (*Store)(nil)
	_ driver.TxLock    = (*Store)(nil)
	_ driver.Blocked   = (*Store)(nil)
)

// Open opens the store at a path, and creates it if there is no file, unless MustExist is given. It makes the path
// absolute. It takes no lease: Acquire does. It waits for locks of other processes up to WithLockWait. The path names a
// file: Open refuses ":memory:" and URIs.
//
// Open migrates a file with an older schema in one commit. While a process has the lease, it returns a *LockedError
// with a Reason instead. So stop the old process before you start a version with a new schema.
//
// Opening takes some milliseconds and does not depend on the number of records. Open verifies the header, the schema
// and the last commit, not each page. Reopen and the command line verify all. Open does not change a file that it
// refuses, nor its write-ahead log. After a crash, Acquire or the first commit writes the write-ahead log again and
// syncs it, because after a failed fsync the disk may lack pages of the system's cache.
//
// Errors: *LockedError (ErrLocked), *CorruptError, *PathError, ErrOtherProgram, ErrSchemaTooNew, ErrNotMigrated,
// ErrNetworkFileSystem, ErrUnsafeSQLite, ErrBusy, ErrFull, ErrShared, *OptionError, those of the
// operating system, the context's error.
func Open(ctx context.Context, path string, opts ...Option) (*Store, error) {
	s, err := open(ctx, path, opts)
	if err != nil {
		return nil, fmt.Errorf("sqlite.Open: %w", err)
	}
	return s, nil
}

func open(ctx context.Context, path string, opts []Option) (*Store, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if linkedVersion < safeVersion {
		return nil, fmt.Errorf("%w: %d is linked, at least %d is needed", ErrUnsafeSQLite, linkedVersion, safeVersion)
	}
	if path, err = locate(path); err != nil {
		return nil, err
	}
	if err := checkFileSystem(path, cfg); err != nil {
		return nil, err
	}
	late := openFileLocks()
	if late {
		cfg.logger.Warn("open file description locks are not available, because this process has locked an SQLite file before",
			zap.String("path", path))
	}
	s := &Store{path: path, cfg: cfg, fileLocks: !late, claiming: make(chan struct{}, 1), acquiring: make(chan struct{}, 1)}
	s.end = storekit.NewClosing()
	s.lease.Store(new(driver.Lease))
	s.committer.init(s)
	s.claims, s.reads = newReader(s), newReader(s)
	s.watch.store, s.watch.set.Run = s, s.watch.run
	if cfg.exclusive {
		l, err := acquireLease(path)
		if err != nil {
			return nil, err
		}
		s.lock.Store(l)
	}
	if err := s.checkWritable(); err != nil {
		return nil, errors.Join(err, s.unlock())
	}
	if err := s.connect(ctx, opening); err != nil {
		return nil, errors.Join(s.explain(err), s.unlock())
	}
	go s.committer.run()
	return s, nil
}

// checkWritable refuses a directory in which the lease file cannot be written, before an event is published. A tool may
// read such a store.
func (s *Store) checkWritable() error {
	if s.cfg.mustExist {
		return nil
	}
	f, err := openLease(s.path+leaseSuffix, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	return f.Close() // SQLite does not use the file: this drops no lock of it
}

// occasion is why connect is called.
type occasion int

const (
	opening occasion = iota
	reopening
)

// connect verifies the file, opens the connections, and replaces the lease that the store has. If it fails, no connection
// is open.
func (s *Store) connect(ctx context.Context, why occasion) (err error) {
	defer func() {
		if err != nil {
			if err = s.explain(err); ctx.Err() != nil {
				err = ctx.Err()
			}
			err = errors.Join(err, s.disconnect(true))
		}
	}()
	if l := s.lock.Load(); l != nil {
		if err := l.sign(holder{Exclusive: s.cfg.exclusive}); err != nil {
			return err
		}
	}
	noted, known := readWitness(s.path)
	expected := known && noted.required() > 0
	locked, err := s.lockToCreate(ctx, expected)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locked.unsign()) }()
	if err := s.prepareFile(expected); err != nil {
		return err
	}
	if s.lock.Load() == nil && locked == nil {
		if err := s.awaitFiles(ctx); err != nil {
			return err
		}
	}
	if err := s.inspect(ctx, why, noted, known); err != nil {
		return err
	}
	if locked == nil {
		if locked, err = s.lockToMigrate(ctx); err != nil {
			return err
		}
	}
	guarded := s.guard != nil
	if s.cfg.exclusive {
		// The guard would have made the index a mapped file.
		if err := s.closeGuard(); err != nil {
			return err
		}
	}
	w, err := openWriter(ctx, s)
	if err != nil {
		return err
	}
	s.committer.w = w
	if s.cfg.exclusive {
		if err := s.lockAlone(guarded); err != nil {
			return err
		}
	}
	reach("open: connected")
	w.conn.SetInterrupt(ctx.Done())
	if s.file, err = os.Stat(s.path); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if err := w.setUp(s); err != nil {
		return err
	}
	reach("open: migrated")
	if s.guard == nil {
		if err := s.openGuard(); err != nil {
			return err
		}
	}
	s.synced = 0
	verify := func(m *meta) error {
		if !known {
			return nil
		}
		s.synced = noted.commits
		return noted.verify(s.path, m)
	}
	if err := s.committer.start(verify); err != nil {
		return err
	}
	if err := s.noteFiles(w); err != nil {
		return err
	}
	if s.committer.epoch != 0 {
		if err := s.committer.renew(verify); err != nil {
			return err
		}
	}
	w.conn.SetInterrupt(nil)
	return errors.Join(s.claims.open(), s.reads.open())
}

// disconnect closes the connections. With keepLog, SQLite does not copy and delete the log: the next connect verifies it.
func (s *Store) disconnect(keepLog bool) (err error) {
	err = s.forgetFiles()
	if !keepLog {
		err = errors.Join(err, s.closeGuard())
	}
	err = errors.Join(err, s.claims.close(), s.reads.close())
	if w := s.committer.w; w != nil {
		s.committer.w = nil
		err = errors.Join(err, w.close())
	}
	return errors.Join(err, s.closeGuard())
}

// leastPatience keeps a short WithLockWait from taking a slow disk for one that does not answer.
const leastPatience = time.Second

// Patience returns what WithLockWait has set, or 1 s if that is less: a commit waits for the lock and
// then for the disk. See [driver.Store].
func (s *Store) Patience() time.Duration { return max(s.cfg.lockWait, leastPatience) }

// Submit enqueues a batch. See [driver.Store].
func (s *Store) Submit(b *driver.Batch, done func(error)) {
	s.committer.queue.Add(&job{Batch: b, Done: done})
}

// Reopen closes the connections and checks the file. It reads the whole file. If the store has the lease, Reopen begins a
// new one, unless another store has begun one meanwhile: then the store has none. See [driver.Store].
//
// Errors: those of Open. The store has still failed then, and Reopen can be called again.
func (s *Store) Reopen(ctx context.Context) error {
	err := s.committer.queue.Control(ctx, func() error { return s.reopen(ctx) })
	if err != nil {
		return fmt.Errorf("Reopen: %w", err)
	}
	return nil
}

// reopen runs on the committer's goroutine.
func (s *Store) reopen(ctx context.Context) error {
	if err := s.claims.take(ctx); err != nil {
		return err
	}
	defer s.claims.give()
	if err := s.reads.take(ctx); err != nil {
		return err
	}
	defer s.reads.give()
	_ = s.committer.queue.Fail(errors.New("sqlite: reopen did not succeed")) // until it does; an earlier failure stays
	reach("reopen: before")
	if s.committer.w != nil {
		_ = s.committer.look() // saves a log that has lost its name; the file is verified below
	}
	if err := s.disconnect(true); err != nil {
		s.cfg.logger.Warn("closing the connections of a failed store failed", zap.String("path", s.path), zap.Error(err))
	}
	reach("reopen: disconnected")
	if old := s.lock.Load(); old != nil && !old.inPlace() {
		l, err := acquireLease(s.path)
		switch {
		case err == nil:
			s.lock.Store(l)
			if err := old.release(); err != nil {
				return err
			}
		case s.cfg.exclusive || !errors.Is(err, ErrLocked):
			return err
		default: // another store has the file that is in its place
			s.committer.lose()
		}
	}
	if err := s.connect(ctx, reopening); err != nil {
		return err
	}
	s.committer.queue.Recover()
	reach("reopen: after")
	return nil
}

// Close applies the submitted batches, ends the lease and closes the file. If ctx ends first, Close returns its error
// and continues in the background. A second Close waits for the first one until its own ctx ends.
//
// Another error means that the lease may not have ended. The next Open then counts a crash. No event is lost.
func (s *Store) Close(ctx context.Context) error {
	return s.end.Close(ctx, func(end func(error)) {
		s.watch.set.Close()
		s.committer.queue.Close(func() {
			err := s.shut()
			s.committer.stopped = true
			end(err)
		})
	})
}

// shut ends the lease and closes the file. It runs on the committer's goroutine.
func (s *Store) shut() error {
	background := context.Background()
	for _, r := range []*reader{s.claims, s.reads} {
		r.interruptAll()
		if err := r.take(background); err != nil {
			return err
		}
		defer r.give()
	}
	reach("close: before")
	err := s.committer.endLease()
	reach("close: lease ended")
	if err == nil && s.committer.queue.Failure() == nil {
		err = s.explain(s.committer.checkpoint(truncate))
	}
	reach("close: checkpointed")
	err = errors.Join(err, s.disconnect(err != nil || s.committer.queue.Failure() != nil || !s.committer.secured))
	reach("close: disconnected")
	err = errors.Join(err, s.unlock())
	reach("close: released")
	return err
}

// state returns the error of a store that has failed or is closed, or nil.
func (s *Store) state() error { return s.committer.queue.State() }

// Sleeping times of the store, in real time.
const (
	leaseInterval = 10 * time.Millisecond // of Watch with the lease: callers wait for what they have left in incoming
	watchInterval = 100 * time.Millisecond
	idleAfter     = time.Second
)
