package sqlite

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// lookNow makes the store look at its files before the next commit.
func lookNow(t *testing.T, s *Store) {
	t.Helper()
	inside(t, s, func(c *committer) error {
		c.lookedAt = time.Time{}
		return nil
	})
}

// withEvents opens a store and accepts 20 events.
func withEvents(t *testing.T) *Store {
	t.Helper()
	skipWindows(t)
	s := openAt(t, testPath(t))
	for range 20 {
		accept(t, s, ready(""))
	}
	return s
}

func submitOne(s *Store) error {
	return submit(s, &driver.Batch{New: []*driver.Record{ready("")}})
}

// The bus goes on by itself: nothing was in the file alone.
func TestVanished_NothingIsLostWithAFile(t *testing.T) {
	for name, vanish := range map[string]func(path string) error{
		"log":           func(path string) error { return os.Remove(path + "-wal") },
		"index":         func(path string) error { return os.Remove(path + "-shm") },
		"log and index": func(path string) error { _ = os.Remove(path + "-shm"); return os.Remove(path + "-wal") },
		"lease":         func(path string) error { return os.Remove(path + leaseSuffix) },
		"log is empty":  func(path string) error { _ = os.Remove(path + "-wal"); return os.WriteFile(path+"-wal", nil, 0o600) },
		"log is moved":  func(path string) error { return os.Rename(path+"-wal", path+"-wal.old") },
		"replaced index": func(path string) error {
			_ = os.Remove(path + "-shm")
			return os.WriteFile(path+"-shm", make([]byte, 32768), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := withEvents(t)
			require.NoError(t, vanish(s.path))
			lookNow(t, s)
			err := submitOne(s)
			require.ErrorIs(t, err, ErrReplaced)
			require.ErrorIs(t, err, driver.ErrFailed)
			require.NoError(t, s.Reopen(t.Context()))
			accept(t, s, ready(""))
			crash(t, s)
			s = openAt(t, s.path)
			require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 21)
			require.Empty(t, problems(verifyAt(t, s.path)))
		})
	}
}

// Nothing has looked at the files since one of them was deleted.
func TestVanished_NothingIsLostAtTheEnd(t *testing.T) {
	for _, end := range []string{"Close", "Close without the lease", "Reopen"} {
		t.Run(end, func(t *testing.T) {
			s := withEvents(t)
			path, n := s.path, 20
			if end == "Close without the lease" {
				crash(t, s)
				s = openOnly(t, path)
				leave(t, s)
				n++
			}
			require.NoError(t, os.Remove(path+"-wal"))
			if end == "Reopen" {
				inside(t, s, func(c *committer) error { _ = c.queue.Fail(os.ErrInvalid); return nil })
				require.NoError(t, s.Reopen(t.Context()))
				closeStore(t, s)
			} else {
				require.ErrorIs(t, s.Close(t.Context()), ErrReplaced)
			}
			s = openAt(t, path)
			takeIn(t, s)
			stats, err := s.Stats(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, n, stats.Ready)
		})
	}
}

// A truncated log has lost commits: no later one hides that.
func TestVanished_ATruncatedLogTakesNoCommit(t *testing.T) {
	for name, size := range map[string]int64{"whole": 0, "half": logHeader + 10*(frameHeader+4096)} {
		t.Run(name, func(t *testing.T) {
			s := withEvents(t)
			db := read(t, s.path)
			inside(t, s, func(*committer) error { return os.Truncate(s.path+"-wal", size) })
			require.ErrorIs(t, submitOne(s), ErrReplaced)
			inside(t, s, func(c *committer) error { c.checkpointIdle(); return nil })
			var corrupt *CorruptError
			require.ErrorAs(t, s.Reopen(t.Context()), &corrupt)
			_ = s.Close(t.Context())
			require.Equal(t, db, read(t, s.path))
		})
	}
}

// A commit that was in progress can write behind the end of a log that was truncated.
func TestVanished_AHoleInTheLogIsNoticed(t *testing.T) {
	s := withEvents(t)
	inside(t, s, func(c *committer) error {
		size, err := c.logSizeNow()
		require.NoError(t, err)
		require.NoError(t, os.Truncate(s.path+"-wal", 0))
		c.lookedAt = time.Time{}
		require.NoError(t, os.Truncate(s.path+"-wal", size+100_000))
		db := read(t, s.path)
		require.ErrorIs(t, c.checkpoint(passive), ErrReplaced)
		require.Equal(t, db, read(t, s.path), "a checkpoint of the hole would damage the database")
		return nil
	})
	require.ErrorIs(t, submitOne(s), ErrReplaced)
	var corrupt *CorruptError
	require.ErrorAs(t, s.Reopen(t.Context()), &corrupt)
}

// Another process may empty the log, which loses nothing.
func TestVanished_ACheckpointOfAnotherProcessIsNone(t *testing.T) {
	s := withEvents(t)
	other := openOnly(t, s.path)
	leave(t, other) // a store empties no log before it has secured it
	for range 5 {
		inside(t, other, func(c *committer) error { return c.checkpoint(truncate) })
		require.True(t, s.logIsEmpty())
		accept(t, s, ready(""))
		lookNow(t, s)
		accept(t, s, ready(""))
		leave(t, other)
	}
}

// A store that opens the file beside a bus would make a second index of the log.
func TestVanished_AnotherStoreRefuses(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"-wal", "-shm"} {
		s := withEvents(t)
		openOnly(t, s.path)
		require.NoError(t, os.Remove(s.path+suffix))
		_, err := Open(t.Context(), s.path)
		var locked *LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, os.Getpid(), locked.PID)
		require.ErrorContains(t, err, s.path+suffix+" was deleted")
		require.NoFileExists(t, s.path+suffix)
	}
	path := killed(t, 1)
	require.NoFileExists(t, path+"-shm")
	openOnly(t, path) // no bus has the file
}

// A bus that accepts nothing notices it by its watch.
func TestVanished_AnIdleStoreNotices(t *testing.T) {
	s := withEvents(t)
	changed := make(chan struct{}, 100)
	defer s.Watch(func(driver.Change) { changed <- struct{}{} })()
	awaitChange := func() {
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			require.Fail(t, "no change")
		}
	}
	awaitChange() // the first look
	require.NoError(t, os.Remove(s.path+"-wal"))
	awaitChange()
	_, err := s.Stats(t.Context())
	require.ErrorIs(t, err, ErrReplaced)
	require.NoError(t, s.Reopen(t.Context()))
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 20)
}
