package contracttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// incomingReads counts the reads of incoming events, and hears nothing of other commits.
type incomingReads struct {
	deafTxStore
	n *atomic.Int64
}

func (s incomingReads) Incoming(ctx context.Context, q driver.IncomingQuery) (driver.IncomingPage, error) {
	s.n.Add(1)
	return s.deafTxStore.Incoming(ctx, q)
}

// openCounted makes a bus, and counts how often it reads incoming events.
func (d *disk) openCounted(t *testing.T) (*eventbus.Bus, *atomic.Int64) {
	t.Helper()
	store, n := d.Open(), new(atomic.Int64)
	bus, _ := newBus(t, eventbus.WithStore(incomingReads{deafTxStore{deafStore{store}, store.(driver.TxStore)}, n}))
	d.handles(t, bus, "mail", nil)
	return bus, n
}

// readsOf returns how often a publication reads incoming events.
func readsOf(t *testing.T, bus *eventbus.Bus, n *atomic.Int64, payload, key string) int64 {
	t.Helper()
	synctest.Wait()
	before := n.Load()
	mustPublish(t, bus, "a", payload, eventbus.Key(key))
	reads := n.Load() - before
	synctest.Wait()
	return reads
}

// rollBack publishes events in transactions that are rolled back.
func (d *disk) rollBack(t *testing.T, bus *eventbus.Bus, events int, key func(i int) string) {
	t.Helper()
	tx := d.Begin()
	for i := range events {
		_, err := bus.PublishTx(t.Context(), tx, "a", "rolled back", eventbus.Key(key(i)))
		require.NoError(t, err)
	}
	require.NoError(t, tx.Rollback())
}

func sameKey(int) string { return "k" }

// However many events of a key were rolled back, a Publish of the key reads incoming a few times only.
func TestT2_RolledBackEventsOfAKeyAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, n := disk.openCounted(t)
		require.NoError(t, bus.Start(t.Context()))
		disk.rollBack(t, bus, 500, sameKey)
		require.LessOrEqual(t, readsOf(t, bus, n, "1", "k"), int64(16))
		require.Zero(t, readsOf(t, bus, n, "2", "other"))

		tx := disk.Begin()
		for i := range 3 {
			_, err := bus.PublishTx(t.Context(), tx, "a", fmt.Sprint("tx ", i), eventbus.Key("k"))
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit())
		require.LessOrEqual(t, readsOf(t, bus, n, "3", "k"), int64(16))
		require.Equal(t, []string{"mail 1 1", "mail 2 1", "mail tx 0 1", "mail tx 1 1", "mail tx 2 1", "mail 3 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// The events that another bus has taken in cost a standby little when it has the lease, and later nothing.
func TestT2_EventsThatAnotherBusTookInAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, n := disk.openCounted(t)
		tx := disk.Begin()
		for range 500 {
			_, err := second.PublishTx(t.Context(), tx, "a", "x", eventbus.Key("k"))
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit())
		require.Len(t, disk.took(), 500)
		shutdown(t, first)
		require.NoError(t, second.Start(t.Context()))
		require.LessOrEqual(t, readsOf(t, second, n, "1", "k"), int64(16))
		time.Sleep(5 * time.Hour)
		require.Zero(t, readsOf(t, second, n, "2", "k"))
		require.Equal(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, second)
	})
}

// The keys of transactions that were rolled back age out, and those of a transaction that is open for an hour do not.
func TestT2_KeysOfTransactionsAgeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, n := disk.openCounted(t)
		require.NoError(t, bus.Start(t.Context()))
		disk.rollBack(t, bus, 3, sameKey)
		require.EqualValues(t, 3, readsOf(t, bus, n, "1", "k"))
		time.Sleep(time.Hour)
		open := disk.Begin()
		_, err := bus.PublishTx(t.Context(), open, "a", "tx", eventbus.Key("k"))
		require.NoError(t, err)
		time.Sleep(90 * time.Minute)
		require.NoError(t, open.Commit())
		require.NotZero(t, readsOf(t, bus, n, "2", "k"))
		require.Equal(t, []string{"mail 1 1", "mail tx 1", "mail 2 1"}, disk.took())
		time.Sleep(4 * time.Hour)
		require.Zero(t, readsOf(t, bus, n, "3", "k"))
		disk.rollBack(t, bus, 1, sameKey)
		require.EqualValues(t, 1, readsOf(t, bus, n, "4", "k"))
		shutdown(t, bus)
	})
}

// Of more than 10,000 events in transactions, a Publish of any key follows those of its key too, until they have aged.
func TestT2_MoreKeysThanAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, n := disk.openCounted(t)
		require.NoError(t, bus.Start(t.Context()))
		disk.rollBack(t, bus, 10_000, func(i int) string { return fmt.Sprint("k", i) })
		require.Zero(t, readsOf(t, bus, n, "1", "k"))
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "tx", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		require.EqualValues(t, 1, readsOf(t, bus, n, "2", "k"))
		require.Equal(t, []string{"mail 1 1", "mail tx 1", "mail 2 1"}, disk.took())
		require.EqualValues(t, 1, readsOf(t, bus, n, "3", "k"))
		time.Sleep(5 * time.Hour)
		require.Zero(t, readsOf(t, bus, n, "4", "k"))
		shutdown(t, bus)
	})
}

// A transaction is committed while a bus begins to lead, after its last look at incoming. A later publication of the key has
// found a bus that leaves its events in incoming, and is recorded by one that leads.
func TestT2_APublicationFollowsATransactionWhileTheBusBeginsToLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		inner := disk.Open()
		spy := &spyStore{Store: inner}
		bus, _ := newBus(t, eventbus.WithStore(struct {
			*spyStore
			driver.TxStore
		}{spy, inner.(driver.TxStore)}))
		disk.handles(t, bus, "mail", nil)
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "1", eventbus.Key("k"))
		require.NoError(t, err)
		var reads atomic.Int32
		done := make(chan error, 2)
		spy.before = func(method string) {
			if method != "end of Incoming" {
				return
			}
			if reads.Add(1) == 2 { // that of beginToLead
				done <- tx.Commit()
				go func() {
					_, err := bus.Publish(context.Background(), "a", "2", eventbus.Key("k"))
					done <- err
				}()
				time.Sleep(time.Millisecond)
			}
		}
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
