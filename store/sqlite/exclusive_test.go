//go:build unix

package sqlite

import (
	"context"
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
			Open:  func(t *testing.T) driver.Store { return openAt(t, path, WithExclusive()) },
			Crash: func(t *testing.T, store driver.Store) { crash(t, store.(*Store)) },
			Fail:  failNextCommit,
		}
	})
}

func TestExclusive_RefusesOtherStores(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path, WithExclusive())
	accept(t, s, ready(""))
	began := time.Now()
	_, err := Open(t.Context(), path, Beside())
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, os.Getpid(), locked.PID)
	require.ErrorContains(t, err, "eventbus --url")
	require.Less(t, time.Since(began), defaultLockWait/2, "they do not wait for the lock")
	require.NoFileExists(t, path+"-shm")

	crash(t, s)
	openAt(t, path, Beside()) // no bus has the file
}

func TestExclusive_NeedsTheFileAlone(t *testing.T) {
	path := killed(t, 1)
	s := openAt(t, path)
	closeStore(t, s)
	cmd, out := child(t, "beside", path)
	require.True(t, out.Scan())
	require.Equal(t, "open", out.Text())
	_, err := Open(t.Context(), path, WithExclusive(), WithLockWait(20*time.Millisecond))
	require.ErrorIs(t, err, ErrShared)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.Len(t, claim(t, openAt(t, path, WithExclusive()), driver.ClaimQuery{}).Records, 1)
}

func TestExclusive_RefusesOptions(t *testing.T) {
	for name, opts := range map[string][]Option{
		"beside": {WithExclusive(), Beside()},
		"before": {Beside(), WithExclusive()},
	} {
		_, err := Open(t.Context(), testPath(t), opts...)
		var wrong *OptionError
		require.ErrorAs(t, err, &wrong, name)
		require.Equal(t, "WithExclusive", wrong.Option)
	}
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
		_ = c.fail(os.ErrInvalid)
		return nil
	})
}
