package sqlite

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// afterCrash returns the path of a store as SIGKILL leaves it, with events in the log.
func afterCrash(t *testing.T, events int) string {
	t.Helper()
	path := testPath(t)
	s := openAt(t, path)
	for range events {
		accept(t, s, ready(""))
	}
	return copyFiles(t, path)
}

// setSyncLog replaces the sync of the log during a test.
func setSyncLog(t *testing.T, sync func(*os.File) error) {
	t.Helper()
	before := syncLog
	syncLog = sync
	t.Cleanup(func() { syncLog = before })
}

// The log is written again and synced before anything is acknowledged, and has the same content.
func TestFailedSync_TheLogIsWrittenAgain(t *testing.T) {
	const events = 30
	for name, work := range map[string]func(t *testing.T, path string){
		"bus": func(t *testing.T, path string) { openAt(t, path) },
		"normal sync": func(t *testing.T, path string) {
			openAt(t, path, WithNormalSync())
		},
		"without the lease": func(t *testing.T, path string) { leave(t, openOnly(t, path)) },
		"with the lease later": func(t *testing.T, path string) {
			s := openOnly(t, path)
			acquire(t, s)
			accept(t, s, ready(""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := afterCrash(t, events)
			wal := path + logSuffix
			before, err := os.ReadFile(wal)
			require.NoError(t, err)
			long := time.Now().Add(-time.Hour)
			require.NoError(t, os.Chtimes(wal, long, long))
			synced := 0
			setSyncLog(t, func(f *os.File) error {
				synced++
				info, err := f.Stat()
				require.NoError(t, err)
				require.WithinDuration(t, time.Now(), info.ModTime(), time.Minute, "the log was not written")
				after, err := os.ReadFile(wal)
				require.NoError(t, err)
				require.Equal(t, before, after[:len(before)])
				for _, b := range after[len(before):] {
					require.Zero(t, b, "behind the content")
				}
				return f.Sync()
			})
			work(t, path)
			require.Equal(t, 1, synced)
		})
	}
}

// A tool that only reads does not touch the log, also when it ends.
func TestFailedSync_AReaderLeavesTheLog(t *testing.T) {
	path := afterCrash(t, 10)
	before, err := os.ReadFile(path + logSuffix)
	require.NoError(t, err)
	database, err := os.ReadFile(path)
	require.NoError(t, err)
	setSyncLog(t, func(*os.File) error { t.Error("the log was synced"); return nil })
	s := openOnly(t, path)
	_, err = s.Stats(context.Background())
	require.NoError(t, err)
	closeStore(t, s)
	after, err := os.ReadFile(path + logSuffix)
	require.NoError(t, err)
	require.Equal(t, before, after)
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, database, now, "the log was copied into the database")
}

// While the log cannot be synced, the lease does not begin, and all files stay.
func TestFailedSync_AcquireFailsAndTheLogStays(t *testing.T) {
	path := afterCrash(t, 10)
	database, err := os.ReadFile(path)
	require.NoError(t, err)
	cause := syscall.EIO
	setSyncLog(t, func(f *os.File) error {
		if cause == 0 {
			return f.Sync()
		}
		return cause
	})
	err = openErr(context.Background(), path)
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorIs(t, err, driver.ErrFailed)
	require.NotErrorIs(t, err, ErrFull)
	cause = syscall.ENOSPC
	require.ErrorIs(t, openErr(context.Background(), path), ErrFull)
	standby := openOnly(t, path)
	require.ErrorIs(t, submit(standby, &driver.Batch{Leave: []*driver.Incoming{waiting()}}), ErrFull)
	closeStore(t, standby)
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, database, now, "the log was copied into the database")
	cause = 0
	s := openAt(t, path)
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 10)
}

// A failed sync of a checkpoint makes the store fail. Other errors of a checkpoint do not.
func TestFailedSync_OfACheckpoint(t *testing.T) {
	s := openAt(t, testPath(t), WithNormalSync())
	accept(t, s, ready(""))
	fails := func(code sqlite3.ResultCode) {
		inside(t, s, func(c *committer) error {
			c.checkpointFailed(code.ToError())
			return nil
		})
	}
	fails(sqlite3.ResultFull)
	fails(sqlite3.ResultIOErrWrite)
	accept(t, s, ready(""))
	fails(sqlite3.ResultIOErrFsync)
	require.ErrorIs(t, submit(s, &driver.Batch{New: []*driver.Record{ready("")}}), driver.ErrFailed)
	synced := 0
	setSyncLog(t, func(f *os.File) error { synced++; return f.Sync() })
	require.NoError(t, s.Reopen(context.Background()))
	require.Equal(t, 1, synced, "the log was copied into the database without being written again")
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 2)
	accept(t, s, ready(""))
}

// A sync that fails during Erase makes the store fail, as it does in any other checkpoint.
func TestFailedSync_OfAnErasure(t *testing.T) {
	s := openAt(t, testPath(t))
	accept(t, s, ready(""))
	afterCheckpoint = func(error) error { return sqlite3.ResultIOErrFsync.ToError() }
	defer func() { afterCheckpoint = func(err error) error { return err } }()
	require.ErrorIs(t, s.Erase(t.Context()), driver.ErrNotErased)
	require.ErrorIs(t, submit(s, &driver.Batch{New: []*driver.Record{ready("")}}), driver.ErrFailed)
	afterCheckpoint = func(err error) error { return err }
	require.NoError(t, s.Reopen(t.Context()))
	require.NoError(t, s.Erase(t.Context()))
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 1)
}

// A store that has failed secures its log before it ends its lease: after a power cut, the end of the lease would be
// missing, and the file would be refused.
func TestFailedSync_TheEndOfTheLeaseIsSecured(t *testing.T) {
	s := openAt(t, testPath(t))
	accept(t, s, ready(""))
	synced := 0
	setSyncLog(t, func(f *os.File) error { synced++; return f.Sync() })
	inside(t, s, func(c *committer) error {
		_ = c.queue.Fail(sqlite3.ResultIOErrFsync.ToError())
		return nil
	})
	_ = s.Close(t.Context())
	require.Equal(t, 1, synced)
}

// A read in progress, such as Verify, leaves the log of a store that has failed when it is closed last.
func TestFailedSync_TheLastReaderLeavesTheLog(t *testing.T) {
	s := openAt(t, testPath(t))
	for range 10 {
		accept(t, s, ready(""))
	}
	r := newReader(s)
	require.NoError(t, r.open())
	_, err := queryInt(r.conn, "SELECT count(*) FROM sqlite_master")
	require.NoError(t, err)
	inside(t, s, func(c *committer) error {
		_ = c.queue.Fail(sqlite3.ResultIOErrFsync.ToError())
		return nil
	})
	_ = s.Close(t.Context())
	info, err := os.Stat(s.path + logSuffix)
	require.NoError(t, err)
	require.NotZero(t, info.Size())
	require.NoError(t, r.close())
	after, err := os.Stat(s.path + logSuffix)
	require.NoError(t, err)
	require.Equal(t, info.Size(), after.Size())
}
