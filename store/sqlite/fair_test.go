package sqlite

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// service is a connection of a service to the file, which commits transactions of its own.
type service struct {
	t    *testing.T
	conn *sqlite3.Conn
}

func serviceAt(t *testing.T, path string) *service {
	t.Helper()
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	s := &service{t, c}
	s.exec("CREATE TABLE IF NOT EXISTS booking (id INTEGER PRIMARY KEY)")
	return s
}

func (s *service) exec(sql string) { require.NoError(s.t, query(s.conn, sql, nil), sql) }

func (s *service) commit() { s.exec("INSERT INTO booking DEFAULT VALUES") }

// gapBefore returns how long the write lock is free before the next commit, at the end of a while of commits. free is
// called while it is free.
func gapBefore(t *testing.T, s *Store, busy time.Duration, free func()) (gap time.Duration) {
	t.Helper()
	busyUntil := make(chan time.Time, 1)
	s.committer.queue.Add(&job{Control: func() {
		time.Sleep(busy) // as a commit does
		busyUntil <- time.Now()
	}})
	committed := make(chan time.Time, 1)
	s.Submit(&driver.Batch{Now: t0, Leave: []*driver.Incoming{waiting()}}, func(err error) {
		if err != nil {
			t.Error(err)
		}
		committed <- time.Now()
	})
	began := <-busyUntil
	if free != nil {
		go free()
	}
	return (<-committed).Sub(began)
}

// gapsLeft returns how many gaps the committer has left.
func gapsLeft(t *testing.T, s *Store) (n int) {
	t.Helper()
	inside(t, s, func(c *committer) error {
		n = c.fair.left
		return nil
	})
	return n
}

// seesForeign reports whether the committer has noticed another program.
func seesForeign(t *testing.T, s *Store) (sees bool) {
	t.Helper()
	inside(t, s, func(c *committer) error {
		sees = !c.fair.foreign.IsZero()
		return nil
	})
	return sees
}

func TestT5_TheCommitterLeavesGapsWhileOtherProgramsCommit(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		defer closeStore(t, s)
		other := serviceAt(t, path)
		other.commit()
		leave(t, s) // its commit finds that of the service
		require.Equal(t, longGap, gapBefore(t, s, longEvery, nil))
		require.Zero(t, gapBefore(t, s, shortEvery-1, nil))
		require.Equal(t, shortGap, gapBefore(t, s, 1, nil))
		require.Equal(t, longGap, gapBefore(t, s, longEvery, nil))

		// A commit of the service in a gap ends it.
		inTheGap := func() {
			time.Sleep(longGap/2 + gapLook/2) // between two looks
			other.commit()
		}
		require.Equal(t, longGap/2+gapLook, gapBefore(t, s, longEvery, inTheGap))

		// A second after the last one, no gap is left any more.
		gapBefore(t, s, foreignWindow, nil)
		left := gapsLeft(t, s)
		for range 10 {
			require.Zero(t, gapBefore(t, s, longEvery, nil))
		}
		require.Equal(t, left, gapsLeft(t, s))
	})
}

// Time without jobs is as good as a gap.
func TestT5_AnIdleStoreLeavesNoGaps(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		defer closeStore(t, s)
		other := serviceAt(t, path)
		for range 10 {
			other.commit()
			time.Sleep(longGap)
			leave(t, s)
		}
		require.Zero(t, gapsLeft(t, s))
		require.Zero(t, gapBefore(t, s, shortEvery-1, nil))
	})
}

// A write lock of another program that the committer meets is as good as its commit.
func TestT5_AMetLockLeavesGaps(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	other := serviceAt(t, path)
	leave(t, s)
	require.True(t, seesForeign(t, s), "the table of the service")
	inside(t, s, func(c *committer) error {
		c.fair = fairness{at: c.fair.at}
		return nil
	})
	leave(t, s)
	require.False(t, seesForeign(t, s))
	other.exec("BEGIN IMMEDIATE")
	done := make(chan error, 1)
	s.Submit(&driver.Batch{Now: t0, Leave: []*driver.Incoming{waiting()}}, func(err error) { done <- err })
	require.Eventually(t, func() bool { return s.committer.waits.Load() != 0 }, time.Minute, time.Millisecond)
	time.Sleep(5 * lockLook)
	other.exec("ROLLBACK")
	require.NoError(t, <-done)
	require.True(t, seesForeign(t, s))
}

// A store that is alone on its file leaves no gap, whatever it does.
func TestT5_AStoreAloneLeavesNoGaps(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		defer closeStore(t, s)
		alone := func() {
			t.Helper()
			require.Zero(t, gapBefore(t, s, longEvery, nil))
			require.False(t, seesForeign(t, s))
		}
		alone()
		for _, mode := range []checkpointMode{passive, truncate} {
			inside(t, s, func(c *committer) error { return c.checkpoint(mode) })
			alone()
		}
		accept(t, s, ready(""))
		claim(t, s, driver.ClaimQuery{})
		alone()
		require.NoError(t, s.Reopen(context.Background()))
		alone()
		require.NoError(t, s.Release(context.Background(), driver.AllSlots()))
		alone()
		acquire(t, s)
		alone()
		require.Zero(t, gapsLeft(t, s))
	})
}
