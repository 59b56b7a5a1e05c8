package contracttest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// Start's ctx ends after a first page was claimed; Start again.
func TestS6_AFailedStartLeavesNothingInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		spy := &spyStore{claim: func(c context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			if q.Kind == driver.ClaimReady {
				n++
			}
			if q.Kind == driver.ClaimReady && n == 2 {
				cancel()
				return driver.Claimed{}, context.Canceled
			}
			return next()
		}}
		bus := disk.spy(t, spy)
		disk.handles(t, bus, "mail", nil)
		for i := range 3 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		err := bus.Start(ctx)
		require.Error(t, err)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		calls := disk.took()
		require.Len(t, calls, 3)
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// The lease is lost while Start recovers, and the store says so by Watch.
func TestS6_ALeaseLostDuringStartIsRegained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var claims atomic.Int64
		spy := &spyStore{claim: func(c context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			r, err := next()
			if q.Kind == driver.ClaimReady && claims.Add(1) == 2 { // that of catchUp
				disk.LoseLease(false)
				time.Sleep(time.Second) // Watch tells it
			}
			return r, err
		}}
		bus := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Hour)
		mustPublish(t, bus, "a", "1")
		time.Sleep(time.Hour)
		require.True(t, spy.Store.Lease().IsHeld())
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, bus)
	})
}

// PublishAndWait of an isolated event while the bus takes in what was left before.
func TestS6_PublishAndWaitWhileTheBusTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var slow atomic.Bool
		spy := &spyStore{before: func(m string) {
			if m == "Incoming" && slow.Load() {
				time.Sleep(10 * time.Second)
			}
		}}
		bus := disk.spy(t, spy, eventbus.WithIsolation())
		disk.handles(t, bus, "mail", nil)
		disk.handles(t, bus, "audit", nil)
		slow.Store(true)
		began := make(chan error, 1)
		go func() { began <- bus.Start(context.Background()) }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		r, err := bus.PublishAndWait(ctx, "a", "1")
		require.Equal(t, eventbus.Handled, r.Outcome)
		slow.Store(false)
		require.NoError(t, <-began)
		shutdown(t, bus)
		require.NoError(t, err)
	})
}

// A tool's store fails while it holds the lease for a call.
func TestL6_AToolReleasesTheLeaseAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		disk := newDisk()
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Directives) > 0 && fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		tool := disk.tool(t)
		fail.Store(true)
		time.Sleep(time.Minute)
		bus, _ := disk.standby(t, "mail")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := bus.Start(ctx)
		shutdown(t, tool)
		shutdown(t, bus)
		require.NoError(t, err, "the tool holds the lease for the call only")
	})
}

// A directive that a foreign lock delays is committed. The bus obeys it.
func TestT5_ADelayedDirectiveIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = time.Duration(delay.Load())
			return f
		}))
		store := &blockedStore{Store: disk.Open(), why: errForeignLock, holds: func(any) bool { return false }}
		bus, _ := newBus(t, eventbus.WithStore(store))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		delay.Store(int64(5 * time.Second))
		require.ErrorIs(t, mail.Pause(), errForeignLock)
		delay.Store(0)
		time.Sleep(time.Hour)
		mustPublish(t, bus, "a", "x")
		require.Empty(t, disk.took(), "the store has the pause")
		shutdown(t, bus)
	})
}

// An id that became doubtful through a lock, twice.
func TestT5_NoIDStaysInDoubtAfterASecondLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.New) > 0 || len(b.Remember) > 0 {
				f.Delay = time.Duration(delay.Load())
			}
			return f
		}))
		store := &blockedStore{Store: disk.Open(), why: errForeignLock, holds: func(any) bool { return false }}
		bus, _ := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		delay.Store(int64(5 * time.Second))
		_, err := bus.Publish(t.Context(), "a", "x")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		time.Sleep(time.Minute)
		delay.Store(0)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = bus.Publish(ctx, "a", "x", eventbus.ID(unknown.ID))
		shutdown(t, bus)
		require.NoError(t, err)
		require.Equal(t, []string{"mail x 1"}, disk.took())
	})
}

// Publish's context ends while it takes in a transaction's event.
func TestT2_PublishEndsWithItsContextWhileItTakesIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var delay atomic.Int64
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Accept) > 0 {
				f.Delay = time.Duration(delay.Load())
			}
			return f
		}))
		store := disk.Open()
		bus, _ := newBus(t, eventbus.WithStore(deafTxStore{deafStore{store}, store.(driver.TxStore)}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "1", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		delay.Store(int64(5 * time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = bus.Publish(ctx, "a", "2", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The lease is lost when Publish takes in a transaction's event.
func TestS6_PublishSucceedsWhenItsTakeInLosesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var lose atomic.Bool
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Accept) > 0 && lose.Swap(false) {
				disk.LoseLease(false)
			}
			return f
		}))
		store := disk.Open()
		bus, _ := newBus(t, eventbus.WithStore(deafTxStore{deafStore{store}, store.(driver.TxStore)}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "1", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		lose.Store(true)
		_, err = bus.Publish(t.Context(), "a", "2", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.NoError(t, err)
	})
}

// A replay that is left in incoming after the loss gives its room back twice.
func TestS6_AReplayDuringALossKeepsTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var lose atomic.Bool
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Take) > 0 && len(b.New) > 0 && lose.Swap(false) {
				disk.LoseLease(false)
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithMaxUnconfirmed(10, 1000))
		dead := true
		disk.handles(t, bus, "mail", func(string, int) error {
			if dead {
				return eventbus.Permanent(fmt.Errorf("no"))
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		l := oneLetter(t, bus)
		dead = false
		lose.Store(true)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := bus.Publish(ctx, "a", strings.Repeat("x", 2000))
		shutdown(t, bus)
		require.NoError(t, err, "a publication larger than the bound goes when nothing else is outstanding")
	})
}

// Publishers that never pause do not prevent the hand-over.
func TestS6_TheHandOverEndsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = 5 * time.Millisecond
			return f
		}))
		first, _ := disk.lead(t, "mail")
		stop := make(chan struct{})
		for i := range 4 {
			go func() {
				time.Sleep(time.Duration(i) * 1300 * time.Microsecond)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = first.Publish(context.Background(), "a", "x")
					}
				}
			}()
		}
		time.Sleep(time.Second)
		second, _ := disk.standby(t, "mail", "audit")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := second.Start(ctx)
		time.Sleep(time.Second)
		close(stop)
		shutdown(t, first)
		shutdown(t, second)
		require.NoError(t, err)
	})
}

// A hand-over that is asked for while the bus gets its lease again.
func TestS6_AHandOverWhileTheLeaseIsRegained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var fail atomic.Bool
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.New) > 0 && fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		var slow atomic.Bool
		spy := &spyStore{}
		spy.orders = func() {
			if slow.Load() {
				time.Sleep(5 * time.Second)
			}
		}
		first := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		time.Sleep(time.Minute)
		slow.Store(true)
		disk.LoseLease(false) // it is acquired again at once
		time.Sleep(time.Second)
		second, _ := disk.standby(t, "mail", "audit")
		waits := startLater(t, second)
		time.Sleep(time.Minute)
		slow.Store(false)
		time.Sleep(time.Minute)
		disk.Kill(disk.storeOf(second))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = second.Shutdown(ctx)
		require.NoError(t, <-waits)
		time.Sleep(time.Minute)
		fail.Store(true)
		_, err := first.Publish(t.Context(), "a", "1")
		require.Error(t, err)
		time.Sleep(time.Hour)
		held := spy.Store.Lease().IsHeld()
		_, err = first.Publish(t.Context(), "a", "2")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		calls := disk.took()
		shutdown(t, first)
		require.True(t, held)
		require.Equal(t, []string{"mail 2 1"}, calls)
	})
}

// A handler that waits for an event of its own when the bus hands the lease over.
func TestS6_AWaitingHandlerAtTheHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby(), eventbus.WithRetry(retry(0, time.Second)))
		mustSubscribe(t, first, "parent", func(ctx context.Context, e eventbus.Event) error {
			time.Sleep(5 * time.Second)
			_, err := first.PublishAndWait(ctx, "child", "x")
			disk.note("parent %v", err)
			return err
		}, eventbus.Named("parent"), eventbus.Timeout(time.Minute))
		mustSubscribe(t, first, "child", ok, eventbus.Named("child"))
		require.NoError(t, first.Start(t.Context()))
		mustPublish(t, first, "parent", "x")
		time.Sleep(time.Second)
		second, _ := disk.open(t, eventbus.WithStandby())
		for _, n := range []string{"parent", "child", "more"} {
			mustSubscribe(t, second, n, func(ctx context.Context, _ eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				disk.note("%s attempt %d", n, d.Attempt)
				return nil
			}, eventbus.Named(n))
		}
		require.NoError(t, second.Start(t.Context()))
		time.Sleep(time.Minute)
		l := letters(t, second)
		shutdown(t, first)
		shutdown(t, second)
		require.Empty(t, l)
	})
}

// The lease is lost while Shutdown waits for a call.
func TestS6_ALossDuringShutdownCancelsTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby())
		mustSubscribe(t, first, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
			began := time.Now()
			select {
			case <-ctx.Done():
				disk.note("cancelled after %v: %v", time.Since(began), context.Cause(ctx))
				return ctx.Err()
			case <-time.After(10 * time.Minute):
				disk.note("ended")
				return nil
			}
		}), eventbus.Named("mail"), eventbus.Timeout(time.Hour))
		require.NoError(t, first.Start(t.Context()))
		mustPublish(t, first, "a", "1")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		ended := make(chan error, 1)
		go func() { ended <- first.Shutdown(context.Background()) }()
		time.Sleep(time.Second)
		disk.LoseLease(false)
		require.NoError(t, <-waits)
		time.Sleep(time.Minute)
		calls := disk.took()
		require.NoError(t, <-ended)
		shutdown(t, second)
		require.Len(t, calls, 2, "the call was cancelled")
	})
}

// The restart after a loss under load: nobody else wants the lease.
func TestS6_TheLeaseIsRegainedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = 5 * time.Millisecond
			return f
		}))
		first, _ := disk.lead(t, "mail")
		stop := make(chan struct{})
		for i := range 4 {
			go func() {
				time.Sleep(time.Duration(i) * 1300 * time.Microsecond)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = first.Publish(context.Background(), "a", "x")
					}
				}
			}()
		}
		time.Sleep(time.Second)
		disk.LoseLease(false)
		time.Sleep(30 * time.Second)
		held := disk.storeOf(first).Lease().IsHeld()
		close(stop)
		shutdown(t, first)
		require.True(t, held)
	})
}

// A bus whose Start has failed does not keep the lease.
func TestS6_AFailedStartReleasesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		disk := newDisk()
		disk.Model = storetest.NewModel(storetest.WithClaimFaults(func(_ int, q driver.ClaimQuery) (f storetest.Fault) {
			if fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		first, _ := disk.open(t)
		disk.handles(t, first, "mail", nil)
		fail.Store(true)
		require.Error(t, first.Start(t.Context()))
		time.Sleep(time.Minute)
		second, _ := disk.standby(t, "mail")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := second.Start(ctx)
		shutdown(t, first)
		shutdown(t, second)
		require.NoError(t, err)
	})
}

// A publication that waits for a take-in that waits for a foreign lock.
func TestT5_AForeignLockEndsTheTakeInOfAPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = time.Duration(delay.Load())
			return f
		}))
		inner := disk.Open()
		store := &deafBlockedStore{blockedStore{Store: deafStore{inner}, why: errForeignLock, holds: func(any) bool { return false }}, inner.(driver.TxStore)}
		bus, _ := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "1", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		time.Sleep(time.Minute)
		delay.Store(int64(time.Hour))
		began := time.Now()
		go func() { time.Sleep(time.Minute); delay.Store(0) }()
		_, _ = bus.Publish(context.Background(), "a", "2", eventbus.Key("k"))
		took := time.Since(began)
		shutdown(t, bus)
		require.LessOrEqual(t, took, 2*time.Second)
	})
}

type deafBlockedStore struct {
	blockedStore
	tx driver.TxStore
}

func (s *deafBlockedStore) SubmitTx(ctx context.Context, tx any, in []*driver.Incoming) error {
	return s.tx.SubmitTx(ctx, tx, in)
}

// Goroutines that share a context publish after a transaction under it has ended.
func TestT5_PublishersShareAContext(t *testing.T) {
	disk := newDisk()
	var open atomic.Bool
	store := &blockedStore{Store: disk.Open(), why: errForeignLock, holds: func(any) bool { time.Sleep(time.Microsecond); return open.Load() }}
	bus, _ := newBus(t, eventbus.WithStore(store))
	mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
	require.NoError(t, bus.Start(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 200 {
		tx := disk.Begin()
		_, err := bus.PublishTx(ctx, tx, "a", "1")
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		done := make(chan any, 8)
		for range 8 {
			go func() {
				defer func() { done <- recover() }()
				_, _ = bus.Publish(ctx, "a", "2")
			}()
		}
		for range 8 {
			require.Nil(t, <-done)
		}
	}
	shutdown(t, bus)
}

// The store refuses a take-in for a reason that the bus does not know.
func TestT2_ARefusedTakeInIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var refusals atomic.Int64
		spy := &spyStore{submit: func(b *driver.Batch, done func(error)) bool {
			if len(b.Accept) == 0 || refusals.Add(1) > 3 {
				return false
			}
			go done(&driver.RefusedError{Err: fmt.Errorf("an unknown reason")})
			return true
		}}
		bus := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		other, _ := disk.standby(t, "mail")
		mustPublish(t, other, "a", "1")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, other)
		shutdown(t, bus)
	})
}

// busyStore waits in Acquire and Release for the lock of another program, for a second at a time.
type busyStore struct {
	driver.Store
	held atomic.Bool
}

func (s *busyStore) wait() error {
	if !s.held.Load() {
		return nil
	}
	time.Sleep(time.Second)
	return fmt.Errorf("a file: %w", driver.ErrBusy)
}

func (s *busyStore) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	if err := s.wait(); err != nil {
		return driver.Lease{}, err
	}
	return s.Store.Acquire(ctx, q)
}

func (s *busyStore) Release(ctx context.Context, slots driver.SlotSet) error {
	if err := s.wait(); err != nil {
		return err
	}
	return s.Store.Release(ctx, slots)
}

// A lock of another program delays Start, the hand-over and the wait for the lease. It is no failure of the store.
func TestT5_AForeignLockDelaysTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := &busyStore{Store: disk.Open()}
		first, logs := newBus(t, eventbus.WithStore(store), eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		release := func(bus *eventbus.Bus, waits <-chan error) {
			t.Helper()
			for range 10 {
				time.Sleep(10 * time.Second)
				mustPublish(t, bus, "a", "x")
			}
			if waits != nil {
				requireBlocked(t, waits)
			}
			store.held.Store(false)
			time.Sleep(2 * time.Second)
			if waits != nil {
				requireStarted(t, waits)
			}
			require.Len(t, disk.took(), 10)
		}
		store.held.Store(true)
		release(first, startLater(t, first))

		store.held.Store(true)
		disk.LoseLease(false)
		release(first, nil)
		require.True(t, store.Lease().IsHeld())

		store.held.Store(true)
		second, others := disk.standby(t, "mail", "audit")
		waits := startLater(t, second)
		for range 10 {
			time.Sleep(10 * time.Second)
			mustPublish(t, second, "a", "x")
		}
		requireBlocked(t, waits)
		store.held.Store(false)
		time.Sleep(2 * time.Second)
		requireStarted(t, waits)
		require.Len(t, disk.took(), 20)
		for _, l := range []*observer.ObservedLogs{logs, others} {
			require.Zero(t, l.FilterMessageSnippet("store failed").Len())
		}
		shutdown(t, second)
		shutdown(t, first)
	})
}

// Start of a bus that is no standby does not wait for such a lock, and a tool waits no longer than for an answer.
func TestT5_AForeignLockEndsStartAndADirectiveOfATool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := &busyStore{Store: disk.Open()}
		store.held.Store(true)
		bus, logs := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		began := time.Now()
		require.ErrorIs(t, bus.Start(t.Context()), driver.ErrBusy)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Zero(t, logs.FilterMessageSnippet("store failed").Len())
		mustPublish(t, bus, "a", "1")

		store.held.Store(false)
		require.NoError(t, bus.Subscription("mail").Pause())
		store.held.Store(true)
		require.ErrorIs(t, bus.Subscription("mail").Resume(), eventbus.ErrNoAnswer)
		store.held.Store(false)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)

		busy := &busyStore{Store: disk.Open()}
		tool, _ := newBus(t, eventbus.WithStore(&spyStore{Store: busy, before: func(method string) {
			if method == "Requests" {
				busy.held.Store(true) // the tool has the lease
			}
		}}), eventbus.WithoutHandlers())
		require.NoError(t, tool.Subscription("mail").Resume())
		require.NotZero(t, disk.Dump().Lease)
		busy.held.Store(false)
		time.Sleep(2 * time.Second)
		require.Zero(t, disk.Dump().Lease, "it is released later")
		shutdown(t, tool)
	})
}

// While the bus catches up, it waits for a commit, and the commit for a transaction. A publication by the owner of the
// transaction ends, and nothing of it was submitted.
func TestT5_APublicationWhileTheBusCatchesUp(t *testing.T) {
	for _, starts := range []bool{false, true} { // or while it takes in what it has left before Start
		synctest.Test(t, func(t *testing.T) {
			var delay atomic.Int64
			disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
				f.Delay = time.Duration(delay.Load())
				return f
			}))
			var slow atomic.Bool
			spy := &spyStore{
				Store: disk.Open(),
				before: func(method string) {
					if method == "Incoming" && slow.Load() && starts {
						time.Sleep(100 * time.Millisecond)
					}
				},
				claim: func(_ context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
					if q.Kind == driver.ClaimReady && slow.Load() {
						time.Sleep(100 * time.Millisecond)
					}
					return next()
				},
			}
			store := &blockedStore{Store: spy, why: errForeignLock, holds: func(any) bool { return false }}
			bus, _ := newBus(t, eventbus.WithStore(store))
			dead := true
			disk.handles(t, bus, "mail", func(string, int) error {
				if dead {
					return eventbus.Permanent(errBoom)
				}
				return nil
			})
			began := make(chan error, 1)
			slow.Store(starts)
			if starts {
				go func() { began <- bus.Start(context.Background()) }()
				time.Sleep(50 * time.Millisecond)
			} else {
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "letter")
				require.Equal(t, []string{"mail letter 1"}, disk.took())
				began <- nil
				slow.Store(true)
				mustSubscribe(t, bus, "other", ok, eventbus.Named("late")) // it is behind
			}
			dead = false
			delay.Store(int64(time.Minute))
			results := make(chan error, 1)
			go func() { _, err := bus.Publish(context.Background(), "a", "A"); results <- err }()
			time.Sleep(500 * time.Millisecond) // it waits for A

			brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := bus.Publish(brief, "a", "B")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			requireDefiniteRefusal(t, err)
			if !starts {
				l := oneLetter(t, bus)
				brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				err := bus.DLQ().Replay(brief, l.ID)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				requireDefiniteRefusal(t, err)
			}
			since := time.Now()
			_, err = bus.Publish(context.Background(), "a", "C")
			require.ErrorIs(t, err, errForeignLock)
			requireDefiniteRefusal(t, err)
			require.LessOrEqual(t, time.Since(since), time.Second)
			var unknown *eventbus.IndeterminateError
			require.ErrorAs(t, <-results, &unknown)

			slow.Store(false)
			delay.Store(0)
			time.Sleep(time.Hour)
			require.NoError(t, <-began)
			mustPublish(t, bus, "a", "D")
			require.Equal(t, []string{"mail A 1", "mail D 1"}, disk.took())
			requireBalanced(t, bus)
			shutdown(t, bus)
		})
	}
}
