package sqlite

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// watched returns a channel with the changes that a store reports, after its first look.
func watched(t *testing.T, s *Store) <-chan driver.Change {
	t.Helper()
	changes := make(chan driver.Change, 1000)
	t.Cleanup(s.Watch(func(c driver.Change) { changes <- c }))
	require.Equal(t, driver.AnyChange, next(t, changes))
	return changes
}

func next(t *testing.T, changes <-chan driver.Change) driver.Change {
	t.Helper()
	select {
	case c := <-changes:
		return c
	case <-time.After(20 * time.Second):
		require.FailNow(t, "no change")
		return 0
	}
}

// A store whose lease file was deleted loses its lease to another one: at its next commit, by its watch, at its look for
// its files, and when it reopens. It does not fail, and goes on without the lease.
func TestS6_ALostLeaseMakesAStandby(t *testing.T) {
	skipWindows(t)
	refused := func(t *testing.T, s *Store, old driver.Lease, r *driver.Record) {
		for _, b := range []*driver.Batch{
			{Delete: []driver.Ref{r.Ref}},
			{Leave: []*driver.Incoming{waiting()}},
		} {
			b.Epoch = old.Epoch
			err := submit(s, b)
			var refusal *driver.RefusedError
			require.ErrorAs(t, err, &refusal)
			require.ErrorIs(t, err, driver.ErrLeaseLost)
			require.NotErrorIs(t, err, driver.ErrFailed)
		}
	}
	for name, notice := range map[string]func(*testing.T, *Store, driver.Lease, *driver.Record){
		"commit": refused,
		"watch": func(t *testing.T, s *Store, _ driver.Lease, _ *driver.Record) {
			require.Eventually(t, func() bool { return !s.Lease().IsHeld() }, 20*time.Second, time.Millisecond)
		},
		"look": func(t *testing.T, s *Store, _ driver.Lease, _ *driver.Record) {
			lookNow(t, s)
			leave(t, s)
		},
		"reopen": func(t *testing.T, s *Store, _ driver.Lease, _ *driver.Record) {
			inside(t, s, func(c *committer) error { _ = c.queue.Fail(os.ErrInvalid); return nil })
			require.NoError(t, s.Reopen(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := testPath(t)
			s := openAt(t, path)
			r := ready("")
			accept(t, s, r)
			changes := watched(t, s)
			old := s.Lease()
			var second *Store
			// A look in between would find that the file is gone, and no other lease: the store fails then.
			require.NoError(t, s.claims.read(t.Context(), func(*sqlite3.Conn) error {
				require.NoError(t, os.Remove(path+leaseSuffix))
				second = openAt(t, path)
				return nil
			}))
			require.Len(t, claim(t, second, driver.ClaimQuery{}).Records, 1)
			notice(t, s, old, r)
			refused(t, s, old, r)
			require.Zero(t, s.Lease())
			for c := next(t, changes); c&driver.ChangedLease == 0; {
				c = next(t, changes)
			}
			_, err := s.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
			require.ErrorIs(t, err, driver.ErrNoLease)
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()), "it has none")
			leave(t, s)
			_, err = s.Acquire(t.Context(), driver.AcquireQuery{})
			requireLocked(t, err)

			takeIn(t, second) // the new lease is not disturbed
			require.NoError(t, submit(second, &driver.Batch{Delete: []driver.Ref{r.Ref}}))
			closeStore(t, second)
			require.False(t, acquire(t, s).Crashed)
			require.NotEmpty(t, claim(t, s, driver.ClaimQuery{}).Records)
			require.Empty(t, problems(verifyAt(t, path)))
		})
	}
}

// A store that has not noticed the loss of its lease commits nothing under it.
func TestS6_ACommitUnderALostLeaseIsRefused(t *testing.T) {
	skipWindows(t)
	path := testPath(t)
	s := openAt(t, path) // without a watcher
	r := ready("")
	accept(t, s, r)
	lease := s.Lease()
	inside(t, s, func(c *committer) error {
		c.lookedAt = time.Now().Add(time.Hour) // it does not look at its files
		return nil
	})
	require.NoError(t, os.Remove(path+leaseSuffix))
	second := openAt(t, path)
	require.Equal(t, lease, s.Lease(), "it has noticed nothing")
	for _, b := range []*driver.Batch{
		{Delete: []driver.Ref{r.Ref}, Bury: []*driver.Letter{letterFor("mail", eventbus.ReasonPermanent, "dead")}},
		{New: []*driver.Record{ready("")}},
	} {
		b.Epoch = lease.Epoch
		require.ErrorIs(t, submit(s, b), driver.ErrLeaseLost)
	}
	require.Equal(t, []driver.Ref{r.Ref}, refsOf(claim(t, second, driver.ClaimQuery{}).Records))
	stats, err := second.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Unsettled())
	require.Zero(t, stats.Letters)
}

// A store that commits nothing notices the lease of another store by its watch, also when its lease file is in its place.
func TestS6_AnIdleStoreNoticesTheLossOfItsLease(t *testing.T) {
	skipWindows(t)
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	require.NoError(t, os.Rename(path+leaseSuffix, path+".aside"))
	second := openAt(t, path)
	require.Len(t, claim(t, second, driver.ClaimQuery{}).Records, 1)
	require.NoError(t, os.Rename(path+".aside", path+leaseSuffix))
	require.True(t, s.Lease().IsHeld(), "it has not looked")
	watched(t, s)
	require.Eventually(t, func() bool { return !s.Lease().IsHeld() }, 20*time.Second, time.Millisecond)
	require.NoError(t, s.committer.queue.State())
}

// A store whose lease file was deleted, and whose lease no other store has taken, locks the new file when it reopens.
func TestS6_ReopenLocksANewLeaseFile(t *testing.T) {
	skipWindows(t)
	path := testPath(t)
	s := openAt(t, path)
	standby := openOnly(t, path)
	require.NoError(t, os.Remove(path+leaseSuffix))
	lookNow(t, s)
	require.ErrorIs(t, submitOne(s), ErrReplaced)
	require.NoError(t, s.Reopen(t.Context()))
	require.EqualValues(t, 2, s.Lease().Epoch)
	_, err := standby.Acquire(t.Context(), driver.AcquireQuery{})
	requireLocked(t, err)
	accept(t, s, ready(""))
}

// A store that has failed keeps its lease until it reopens. A standby that has failed reopens as one.
func TestS6_AFailedStoreKeepsItsLease(t *testing.T) {
	path := testPath(t)
	s, standby := openAt(t, path), openOnly(t, path)
	fail := func(s *Store) {
		inside(t, s, func(c *committer) error { _ = c.queue.Fail(os.ErrInvalid); return nil })
		require.ErrorIs(t, s.Release(t.Context(), driver.AllSlots()), driver.ErrFailed)
		_, err := s.Acquire(t.Context(), driver.AcquireQuery{Wait: true})
		require.ErrorIs(t, err, driver.ErrFailed)
		_, err = s.Now(t.Context())
		require.ErrorIs(t, err, driver.ErrFailed)
	}
	fail(s)
	require.EqualValues(t, 1, s.Lease().Epoch)
	_, err := standby.Acquire(t.Context(), driver.AcquireQuery{})
	requireLocked(t, err)
	fail(standby)
	require.NoError(t, standby.Reopen(t.Context()))
	require.Zero(t, standby.Lease())
	require.NoError(t, s.Reopen(t.Context()))
	require.EqualValues(t, 2, s.Lease().Epoch)
	require.False(t, s.Lease().Crashed)
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.NoError(t, s.Reopen(t.Context()))
	require.Zero(t, s.Lease(), "it had none to replace")
	acquire(t, standby)
}

// Acquire finds out that the file lacks commits of the last lease.
func TestAcquire_VerifiesTheLastCommit(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	closeStore(t, s)
	s = openOnly(t, path)
	l, err := acquireLease(path)
	require.NoError(t, err)
	require.NoError(t, l.record(witness{store: s.committer.meta.store, commits: 1000}))
	require.NoError(t, l.release())
	_, err = s.Acquire(t.Context(), driver.AcquireQuery{})
	require.True(t, isCorrupt(err), "%v", err)
	require.ErrorContains(t, err, "1000 were made")
	require.Zero(t, s.Lease())
	require.False(t, leaseIsHeld(path))
}

// What a store commits without the lease is noted as well: a file without it is refused.
func TestS6_CommitsOfAStandbyAreNoted(t *testing.T) {
	path := testPath(t)
	s := openOnly(t, path)
	leave(t, s)
	closeStore(t, s)
	require.NoError(t, os.Remove(path))
	for _, opts := range [][]Option{nil, {MustExist()}} {
		_, err := Open(t.Context(), path, opts...)
		require.Error(t, err)
		require.NoFileExists(t, path)
	}
	require.NoError(t, os.Remove(path+leaseSuffix))
	openOnly(t, path)
}

// The write lock of another process lets Acquire and Release fail, and not the store.
func TestAcquire_WhileTheFileIsLocked(t *testing.T) {
	path := testPath(t)
	s := openOnly(t, path, WithLockWait(20*time.Millisecond))
	tx := beginTx(t, path)
	_, err := s.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, ErrBusy)
	require.NotErrorIs(t, err, driver.ErrFailed)
	require.False(t, leaseIsHeld(path))
	require.NoError(t, tx.Rollback())
	acquire(t, s)
	tx = beginTx(t, path)
	require.ErrorIs(t, s.Release(t.Context(), driver.AllSlots()), ErrBusy)
	require.NotZero(t, s.Lease())
	require.NoError(t, tx.Rollback())
	accept(t, s, ready(""))
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.False(t, leaseIsHeld(path))
}

// Several stores create a file at once.
func TestOpen_SeveralAtOnce(t *testing.T) {
	for range 5 {
		path := testPath(t)
		stores := make([]*Store, 4)
		var opening sync.WaitGroup
		for i := range stores {
			opening.Go(func() {
				s, err := Open(context.Background(), path)
				if err != nil {
					t.Error(err)
					return
				}
				stores[i] = s
			})
		}
		opening.Wait()
		if t.Failed() {
			return
		}
		acquire(t, stores[0])
		for _, s := range stores {
			leave(t, s)
		}
		takeIn(t, stores[0])
		for _, s := range stores {
			closeStore(t, s)
		}
		require.NoFileExists(t, path+refusedSuffix)
		require.Empty(t, problems(verifyAt(t, path)))
	}
}

// A tool neither creates nor migrates a file.
func TestMustExist(t *testing.T) {
	path := testPath(t)
	_, err := Open(t.Context(), path, MustExist())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoFileExists(t, path)
	require.NoFileExists(t, path+leaseSuffix)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = Open(t.Context(), path, MustExist())
	require.ErrorIs(t, err, ErrNotMigrated)
	require.Empty(t, read(t, path))
	s := openAt(t, path)
	tool := openOnly(t, path, MustExist())
	leave(t, tool)
	closeStore(t, s)
	acquire(t, tool)
}

// A store whose process has the lease file for a migration is waited for.
func TestOpen_WaitsForAMigration(t *testing.T) {
	path := testPath(t)
	l, err := acquireLease(path)
	require.NoError(t, err)
	require.NoError(t, l.sign(holder{Migrating: true}))
	opened := make(chan error, 1)
	go func() {
		s, err := Open(context.Background(), path)
		if err == nil {
			err = s.Close(context.Background())
		}
		opened <- err
	}()
	time.Sleep(3 * shortLooks * shortLook)
	require.Empty(t, opened)
	require.NoError(t, l.release())
	require.NoError(t, <-opened)

	path = testPath(t)
	l, err = acquireLease(path)
	require.NoError(t, err)
	require.NoError(t, l.sign(holder{}))
	_, err = Open(t.Context(), path)
	require.ErrorIs(t, err, ErrLocked, "it has the lease of a file that is not there")
	require.NoFileExists(t, path)
	require.NoError(t, l.release())
}

// A look between a commit of the store and what comes after it hides no later commit of another store.
func TestT2_ALookDuringACommitHidesNoEvent(t *testing.T) {
	path := testPath(t)
	s, other := openOnly(t, path), openOnly(t, path)
	var was seen
	var at version
	look := func() driver.Change {
		now, ok := s.watch.look(was, &at, false)
		require.True(t, ok)
		defer func() { was = now }()
		return now.changes(was)
	}
	look()
	setFailpoint(func(name string) {
		if name == "commit: committed" {
			look()
		}
	})
	leave(t, s)
	setFailpoint(nil)
	require.Zero(t, look())
	leave(t, other)
	require.Equal(t, driver.ChangedIncoming, look())
}
