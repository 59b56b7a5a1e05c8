package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the driver of a service

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// runCrashChild does the work of a child process of TestCrash. It is nil where the test is skipped.
var runCrashChild func(spec string)

// crashEnv is the environment variable with the crashSpec of a child process.
const crashEnv = "EVENTBUS_SQLITE_CRASH"

func TestMain(m *testing.M) {
	if spec := os.Getenv(crashEnv); spec != "" && runCrashChild != nil {
		runCrashChild(spec)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// failNextCommit makes the next commit of a store fail.
func failNextCommit(t *testing.T, store driver.Store) {
	t.Helper()
	inside(t, store.(*Store), func(c *committer) error {
		c.broken = errors.New("of the test")
		return nil
	})
}

// loseLease takes the lease away from a store: another one locks a new lease file and begins a lease.
func loseLease(t *testing.T, store driver.Store) {
	t.Helper()
	path := store.(*Store).path
	require.NoError(t, os.Remove(path+leaseSuffix))
	other := openOnly(t, path)
	if _, err := other.Acquire(context.Background(), driver.AcquireQuery{}); err != nil {
		require.ErrorIs(t, err, driver.ErrNoLease, "a store that waits may have begun a lease")
	}
	closeStore(t, other)
}

// beginTx begins a transaction in the file of a store, as a service does.
func beginTx(t testing.TB, path string) *sql.Tx {
	t.Helper()
	db := openDB(t, path)
	tx, err := db.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	return tx
}

func openDB(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// TestStore runs the conformance suite of stores.
func TestStore(t *testing.T) {
	t.Parallel()
	var parts []string // all
	if testing.Short() {
		// What the race detector looks at, and planted bugs.
		parts = []string{"Submit", "Lease", "Tx", "Failure", "Close", "Watch", "Concurrent", "Remember", "Expired"}
	}
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		path := testPath(t)
		return storetest.Backend{
			Open:      func(t *testing.T) driver.Store { return openOnly(t, path) },
			Crash:     func(t *testing.T, store driver.Store) { crash(t, store.(*Store)) },
			Fail:      failNextCommit,
			LoseLease: loseLease,
			Begin: func(t *testing.T) (tx any, commit, rollback func() error) {
				sqlTx := beginTx(t, path)
				return sqlTx, sqlTx.Commit, sqlTx.Rollback
			},
			TxBlocks: true,
		}
	}, parts...)
}
