package contracttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// foreignLock delays the batches and claims of a Model while a transaction of a caller is open, as the file of SQLite does.
type foreignLock struct{ until atomic.Int64 }

func (l *foreignLock) left() time.Duration { return max(0, time.Until(time.Unix(0, l.until.Load()))) }

func (l *foreignLock) hold(d time.Duration) { l.until.Store(time.Now().Add(d).UnixNano()) }

func (l *foreignLock) disk() *disk {
	return newDisk(
		storetest.WithPatience(10*time.Second),
		storetest.WithFaults(func(int, *driver.Batch) storetest.Fault { return storetest.Fault{Delay: l.left()} }),
		storetest.WithClaimFaults(func(int, driver.ClaimQuery) storetest.Fault { return storetest.Fault{Delay: l.left()} }),
	)
}

// lockedStore says that its commits wait while the lock is held.
type lockedStore struct {
	deafTxStore
	lock *foreignLock
}

func (s lockedStore) Watch(changed func(driver.Change)) (stop func()) { return s.Store.Watch(changed) }

func (s lockedStore) HoldsLock(any) bool { return s.lock.left() > 0 }

func (s lockedStore) Blocked() error {
	if s.lock.left() > 0 {
		return errForeignLock
	}
	return nil
}

func (l *foreignLock) open(disk *disk) driver.Store {
	store := disk.Open()
	return lockedStore{deafTxStore{deafStore{store}, store.(driver.TxStore)}, l}
}

// publishEveryMinute publishes for an hour while the lock is held, and returns the payloads that may have been accepted, by
// their ids.
func publishEveryMinute(t *testing.T, bus *eventbus.Bus) (unknown map[eventbus.EventID]string) {
	t.Helper()
	unknown = map[eventbus.EventID]string{}
	refused := 0
	for i := range 58 {
		began := time.Now()
		payload := fmt.Sprint("plain ", i)
		_, err := bus.Publish(context.Background(), "a", payload, eventbus.Key("k"))
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
		require.Error(t, err)
		if doubt := (*eventbus.IndeterminateError)(nil); errors.As(err, &doubt) {
			require.ErrorIs(t, err, errForeignLock)
			unknown[doubt.ID] = payload
		} else {
			require.ErrorIs(t, err, eventbus.ErrStoreFailed)
			refused++
		}
		time.Sleep(time.Minute - time.Since(began))
	}
	require.NotEmpty(t, unknown)
	require.NotZero(t, refused)
	return unknown
}

// A transaction stays open for an hour. Publishers get errors meanwhile, the store does not fail, and afterwards the bus
// handles everything once.
func TestT5_ATransactionIsOpenForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := new(foreignLock)
		disk := lock.disk()
		bus, logs := newBus(t, eventbus.WithStore(lock.open(disk)))
		var once sync.Once
		disk.handles(t, bus, "mail", func(string, int) (err error) {
			once.Do(func() { time.Sleep(time.Minute); err = errBoom })
			return err
		})
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "running")
		mustPublish(t, bus, "a", "due", eventbus.After(30*time.Minute))
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx := disk.Begin()
		lock.hold(time.Hour)
		_, err := bus.PublishTx(ctx, tx, "a", "tx", eventbus.Key("k"))
		require.NoError(t, err)
		_, err = bus.Publish(ctx, "a", "own")
		require.ErrorIs(t, err, eventbus.ErrWouldDeadlock)
		unknown := publishEveryMinute(t, bus)
		require.NotZero(t, bus.Metrics().StoreSilentSince)
		time.Sleep(2 * time.Minute)
		require.NoError(t, tx.Commit())
		time.Sleep(time.Hour)

		want := []string{"mail running 1", "mail running 2", "mail due 1", "mail tx 1"}
		for id, payload := range unknown {
			want = append(want, "mail "+payload+" 1")
			_, err := bus.Publish(t.Context(), "a", payload, eventbus.Key("k"), eventbus.ID(id))
			require.NoError(t, err)
		}
		require.ElementsMatch(t, want, disk.took())
		require.Zero(t, bus.Metrics().StoreSilentSince)
		require.Zero(t, logs.FilterMessage("store failed: the bus restarts").Len())
		requireBalanced(t, bus)
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// The transaction is open when the bus starts: Start waits for its end.
func TestT5_ATransactionIsOpenForAnHourAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := new(foreignLock)
		disk := lock.disk()
		bus, logs := newBus(t, eventbus.WithStore(lock.open(disk)))
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "left", eventbus.Key("k"))
		tx := disk.Begin()
		lock.hold(time.Hour)
		_, err := bus.PublishTx(t.Context(), tx, "a", "tx", eventbus.Key("k"))
		require.NoError(t, err)
		starts := startLater(t, bus)
		requireBlocked(t, starts)
		unknown := publishEveryMinute(t, bus)
		time.Sleep(2 * time.Minute)
		require.NoError(t, tx.Commit())
		require.NoError(t, <-starts)
		time.Sleep(time.Hour)
		want := []string{"mail left 1", "mail tx 1"}
		for _, payload := range unknown {
			want = append(want, "mail "+payload+" 1")
		}
		require.ElementsMatch(t, want, disk.took())
		require.Zero(t, logs.FilterMessage("store failed: the bus restarts").Len())
		requireBalanced(t, bus)
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// Start obeys its context meanwhile. What it has begun is undone when the transaction has ended, and another Start waits until
// then.
func TestT5_StartObeysItsContextWhileATransactionIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := new(foreignLock)
		disk := lock.disk()
		bus, logs := newBus(t, eventbus.WithStore(lock.open(disk)))
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "left")
		lock.hold(time.Hour)
		for range 2 {
			began := time.Now()
			brief, cancel := context.WithTimeout(t.Context(), time.Minute)
			require.ErrorIs(t, bus.Start(brief), context.DeadlineExceeded)
			cancel()
			require.LessOrEqual(t, time.Since(began), 2*time.Minute)
		}
		began := time.Now()
		require.NoError(t, bus.Start(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 50*time.Minute)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail left 1"}, disk.took())
		require.Zero(t, logs.FilterMessage("store failed: the bus restarts").Len())
		requireBalanced(t, bus)
		shutdown(t, bus)

		other, _ := newBus(t, eventbus.WithStore(lock.open(disk)))
		disk.handles(t, other, "mail", nil)
		mustPublish(t, other, "a", "later")
		lock.hold(time.Hour)
		brief, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, other.Start(brief), context.DeadlineExceeded)
		ended, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		_ = other.Shutdown(ended)
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
		time.Sleep(2 * time.Hour)
	})
}
