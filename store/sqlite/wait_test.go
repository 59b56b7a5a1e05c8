package sqlite

import (
	"context"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus/driver"
)

// acquireCall is a call of Acquire in progress.
type acquireCall struct {
	t     *testing.T
	store *Store
	ended chan error
	lease driver.Lease
	after time.Duration
}

func beginAcquire(ctx context.Context, t *testing.T, s *Store) *acquireCall {
	t.Helper()
	c := &acquireCall{t: t, store: s, ended: make(chan error, 1)}
	began := time.Now()
	go func() {
		lease, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true})
		c.lease, c.after = lease, time.Since(began)
		c.ended <- err
	}()
	return c
}

// waits requires that the call has not ended.
func (c *acquireCall) waits() {
	c.t.Helper()
	synctest.Wait()
	require.Empty(c.t, c.ended)
	require.Zero(c.t, c.store.Lease())
}

// locked requires that the call ends because another store has the lease.
func (c *acquireCall) locked() error {
	c.t.Helper()
	err := <-c.ended
	requireLocked(c.t, err)
	require.Zero(c.t, c.store.Lease())
	return err
}

// requireLocked requires the error of a lease that a store of this process has.
func requireLocked(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorIs(t, err, driver.ErrNoLease)
	var held *LockedError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.PID)
	require.NotEmpty(t, held.Host)
	require.False(t, held.Since.IsZero())
	require.Empty(t, held.Reason)
}

func TestS6_AStandbyAcquiresWhenTheOtherReleasesOrCloses(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Store){
		"Close": func(t *testing.T, s *Store) { closeStore(t, s) },
		"Release": func(t *testing.T, s *Store) {
			require.NoError(t, s.Release(t.Context(), driver.SlotsOf(7)), "it has no records")
			require.NotZero(t, s.Lease())
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
			require.Zero(t, s.Lease())
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()), "nothing is left to release")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testPath(t)
				old := openAt(t, path)
				core, logs := observer.New(zapcore.InfoLevel)
				s := openOnly(t, path, WithLogger(zap.New(core)))
				next := beginAcquire(t.Context(), t, s)
				time.Sleep(20 * time.Second)
				next.waits()
				r := ready("")
				accept(t, old, r) // both work meanwhile
				leave(t, s)
				end(t, old)
				require.NoError(t, <-next.ended)
				require.LessOrEqual(t, next.after, 20*time.Second+leaseLook)
				require.False(t, next.lease.Crashed)
				require.Greater(t, next.lease.Epoch, int64(1))
				require.Equal(t, []driver.Ref{r.Ref}, refsOf(claim(t, s, driver.ClaimQuery{}).Records))
				require.Equal(t, 1, logs.FilterMessage("waiting for the lease").Len())
				if name == "Release" {
					require.ErrorIs(t, submit(old, &driver.Batch{Epoch: 1, Delete: []driver.Ref{r.Ref}}), driver.ErrLeaseLost)
					leave(t, old) // it works on
				}
				closeStore(t, s)
				closeStore(t, old)
			})
		})
	}
}

func TestS6_AStandbyAcquiresAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		accept(t, old, ready(""))
		s := openOnly(t, path)
		next := beginAcquire(t.Context(), t, s)
		time.Sleep(time.Second)
		next.waits()
		crash(t, old)
		require.NoError(t, <-next.ended)
		require.True(t, next.lease.Crashed)
		require.EqualValues(t, 1, next.lease.CrashedEvents)
		records := claim(t, s, driver.ClaimQuery{}).Records
		require.Len(t, records, 1)
		require.Equal(t, 1, records[0].Crashes)
		closeStore(t, s)
	})
}

func TestAcquire_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		s := openOnly(t, path)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		call := beginAcquire(ctx, t, s)
		require.ErrorIs(t, call.locked(), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, call.after)

		ctx, cancel = context.WithCancel(t.Context())
		call = beginAcquire(ctx, t, s)
		time.Sleep(time.Second)
		call.waits()
		cancel()
		require.ErrorIs(t, call.locked(), context.Canceled)
		_, err := s.Acquire(ctx, driver.AcquireQuery{})
		require.ErrorIs(t, err, context.Canceled)

		began := time.Now()
		_, err = s.Acquire(t.Context(), driver.AcquireQuery{})
		requireLocked(t, err)
		require.Less(t, time.Since(began), leaseLook, "without Wait, it fails at once")
		closeStore(t, old)
		acquire(t, s)
		closeStore(t, s)
	})
}

func TestAcquire_EndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		s := openOnly(t, path)
		calls := []*acquireCall{beginAcquire(t.Context(), t, s), beginAcquire(t.Context(), t, s)}
		time.Sleep(time.Second)
		calls[0].waits()
		began := time.Now()
		closeStore(t, s)
		for _, call := range calls {
			require.ErrorIs(t, <-call.ended, driver.ErrClosed)
		}
		require.Equal(t, began, time.Now())
		_, err := s.Acquire(t.Context(), driver.AcquireQuery{Wait: true})
		require.ErrorIs(t, err, driver.ErrClosed)
		closeStore(t, old)
	})
}

// All calls of one store get its lease, and one of several stores gets it.
func TestAcquire_SeveralAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		var left []*Store
		calls := make(map[*Store][]*acquireCall)
		for range 3 {
			s := openOnly(t, path)
			left = append(left, s)
			for range 2 {
				calls[s] = append(calls[s], beginAcquire(t.Context(), t, s))
			}
		}
		time.Sleep(time.Second)
		closeStore(t, old)
		for epoch := int64(2); len(left) > 0; epoch++ {
			time.Sleep(time.Second)
			i := slices.IndexFunc(left, func(s *Store) bool { return s.Lease().IsHeld() })
			require.GreaterOrEqual(t, i, 0, "none has the lease")
			s := left[i]
			for _, call := range calls[s] {
				require.NoError(t, <-call.ended)
				require.Equal(t, s.Lease(), call.lease)
			}
			require.Equal(t, s.Lease(), acquire(t, s), "the lease that the store has")
			require.Equal(t, epoch, s.Lease().Epoch)
			for _, other := range slices.Delete(slices.Clone(left), i, i+1) {
				calls[other][0].waits()
			}
			left = slices.Delete(left, i, i+1)
			closeStore(t, s)
		}
	})
}

// A caller that has gone gets no lease, and the store has none.
func TestAcquire_AbandonedWhileTheStoreCommits(t *testing.T) {
	path := testPath(t)
	s := openOnly(t, path)
	hold, held := make(chan struct{}), make(chan struct{})
	s.committer.queue.Add(&job{Control: func() { close(held); <-hold }})
	<-held
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, driver.AcquireQuery{})
		ended <- err
	}()
	require.Eventually(t, func() bool { return leaseIsHeld(path) }, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	close(hold)
	inside(t, s, func(*committer) error { return nil })
	require.Zero(t, s.Lease())
	require.False(t, leaseIsHeld(path))
	require.False(t, openAt(t, path).Lease().Crashed)
}
