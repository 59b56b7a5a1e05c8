//go:build unix

package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// TestExclusive_Store runs the conformance suite with the option.
func TestExclusive_Store(t *testing.T) {
	if !*search {
		t.Skip("SKIP: only with -search: TestStore is the same without exclusive access")
	}
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		path := testPath(t)
		return storetest.Backend{
			Open: func(t *testing.T) driver.Store {
				s, err := Open(t.Context(), path, WithExclusive())
				if errors.Is(err, ErrLocked) {
					t.Skip("an exclusive store has its file alone: two stores are not tested")
				}
				require.NoError(t, err)
				return s
			},
			Crash: func(t *testing.T, store driver.Store) { crash(t, store.(*Store)) },
			Fail:  failNextCommit,
		}
	})
}

func TestExclusive_RefusesOtherStores(t *testing.T) {
	path := testPath(t)
	s := openOnly(t, path, WithExclusive())
	require.True(t, s.IsExclusive())
	refused := func() {
		began := time.Now()
		for i, opts := range [][]Option{nil, {MustExist()}, {WithExclusive()}} {
			_, err := Open(t.Context(), path, opts...)
			var locked *LockedError
			require.ErrorAs(t, err, &locked)
			require.Equal(t, os.Getpid(), locked.PID)
			if i < 2 {
				require.ErrorContains(t, err, "eventbus --url")
				require.NotErrorIs(t, err, driver.ErrNoLease)
			} else {
				require.ErrorIs(t, err, driver.ErrNoLease)
			}
		}
		require.Less(t, time.Since(began), defaultLockWait/2, "they do not wait for the lock")
		require.NoFileExists(t, path+"-shm")
	}
	require.Zero(t, s.Lease())
	leave(t, s)
	refused() // also without the lease
	acquire(t, s)
	accept(t, s, ready(""))
	refused()
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	refused()
	require.Greater(t, acquire(t, s).Epoch, int64(1))

	crash(t, s)
	require.False(t, openOnly(t, path).IsExclusive()) // no bus has the file
}

func TestExclusive_NeedsTheFileAlone(t *testing.T) {
	path := killed(t, 1)
	s := openAt(t, path)
	closeStore(t, s)
	cmd, out := child(t, "open", path)
	require.True(t, out.Scan())
	require.Equal(t, "open", out.Text())
	_, err := Open(t.Context(), path, WithExclusive(), WithLockWait(20*time.Millisecond))
	require.ErrorIs(t, err, ErrShared)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.Len(t, claim(t, openAt(t, path, WithExclusive()), driver.ClaimQuery{}).Records, 1)
}

// Everything within the process works: several connections, a restart, a crash, files that vanish.
func TestExclusive_WorksWithinTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c%d#e.db")
	s := openAt(t, path, WithExclusive())
	for range 20 {
		accept(t, s, ready(""))
	}
	for range 3 {
		require.NoError(t, s.Reopen(t.Context()))
		require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 20)
		require.NoFileExists(t, path+"-shm")
		if maps, err := os.ReadFile("/proc/self/maps"); err == nil { // Linux
			require.NotContains(t, string(maps), path, "a mapped index would stop the process while the disk hangs")
		}
	}
	report, err := s.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, problems(report))
	copied := testPath(t)
	require.NoError(t, s.Backup(t.Context(), copied))
	require.Len(t, claim(t, openAt(t, copied), driver.ClaimQuery{}).Records, 20)

	require.NoError(t, os.Remove(path+"-wal"))
	lookNow(t, s)
	require.ErrorIs(t, submitOne(s), ErrReplaced)
	require.NoError(t, s.Reopen(t.Context()))
	accept(t, s, ready(""))
	crash(t, s)
	s = openAt(t, path, WithExclusive())
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 21)
	flipMiddleOfLog(t, s)
	require.Error(t, s.Reopen(t.Context()))
	_ = s.Close(context.Background())
	_, err = Open(t.Context(), path, WithExclusive())
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.NotEmpty(t, corrupt.Log)
}

// flipMiddleOfLog damages the log of a store that has failed.
func flipMiddleOfLog(t *testing.T, s *Store) {
	t.Helper()
	for range 20 {
		accept(t, s, ready(""))
	}
	inside(t, s, func(c *committer) error {
		flipMiddle(t, s.path+"-wal")
		_ = c.queue.Fail(os.ErrInvalid)
		return nil
	})
}
