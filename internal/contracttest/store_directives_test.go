package contracttest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func TestC6_OperatorsOrdersSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		paused := disk.handles(t, bus, "paused", nil)
		held := disk.handles(t, bus, "held", nil)
		tripped := disk.handles(t, bus, "tripped", nil)
		resumed := disk.handles(t, bus, "resumed", nil)
		require.NoError(t, paused.Pause(eventbus.By("ann"), eventbus.Because("the disk is full")))
		require.NoError(t, held.HoldUntil(time.Now().Add(time.Hour)))
		require.NoError(t, tripped.Trip())
		require.NoError(t, errors.Join(resumed.Pause(), resumed.Resume()))
		require.ErrorIs(t, resumed.Pause(eventbus.By("\n")), eventbus.ErrInvalidOption)
		disk.crash(bus)
		require.Equal(t, "ann", disk.orders(t)[1].By)
		time.Sleep(10 * time.Second)

		again, _ := disk.open(t)
		var subs []*eventbus.Subscription
		for _, name := range []string{"paused", "held", "tripped", "resumed"} {
			subs = append(subs, disk.handles(t, again, name, nil))
		}
		require.NoError(t, again.Start(t.Context()))
		mustPublish(t, again, "a", "x")
		require.Equal(t, []string{"resumed x 1"}, disk.took())
		time.Sleep(19 * time.Second)
		require.Empty(t, disk.took())
		time.Sleep(time.Second)
		require.Equal(t, []string{"tripped x 1"}, disk.took())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"held x 1"}, disk.took())
		require.NoError(t, subs[0].Resume())
		require.Equal(t, []string{"paused x 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestC6_OrdersOfAnotherProcessAreObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		standby, _ := disk.open(t, eventbus.WithStandby())
		disk.handles(t, standby, "mail", nil)
		began := startLater(t, standby)
		tool := disk.tool(t)
		paused := func(want bool) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, metricsOf(t, bus, "mail").Paused, "the bus has answered")
			time.Sleep(250 * time.Millisecond)
			require.Equal(t, want, metricsOf(t, standby, "mail").Paused)
		}
		require.NoError(t, tool.Subscription("mail").Pause())
		paused(true)
		mustPublish(t, bus, "a", "x")
		require.Empty(t, disk.took())
		require.NoError(t, tool.Subscription("mail").Resume())
		paused(false)
		require.Equal(t, []string{"mail x 1"}, disk.took())

		other, done := disk.Open(), make(chan error, 1) // an order without the lease is refused
		pause := directive(eventbus.Directive{Subscription: "mail", At: time.Now(), Pause: true})
		other.Submit(&driver.Batch{Now: time.Now(), Directives: []driver.Directive{pause}}, func(err error) { done <- err })
		require.ErrorIs(t, <-done, eventbus.ErrLeaseLost)
		time.Sleep(time.Second)
		paused(false)
		require.NoError(t, other.Close(t.Context()))
		shutdown(t, tool)
		shutdown(t, bus)
		require.NoError(t, <-began)
		shutdown(t, standby)
	})
}

// slowOrders is a store whose Directives returns some time after it has read them.
type slowOrders struct {
	driver.Store
	delay   time.Duration
	changed func(driver.Change)
}

func (s *slowOrders) Directives(ctx context.Context) ([]driver.Directive, error) {
	orders, err := s.Store.Directives(ctx)
	time.Sleep(s.delay)
	return orders, err
}

func (s *slowOrders) Watch(changed func(driver.Change)) (stop func()) {
	s.changed = changed
	return func() {}
}

func TestC6_AnOrderIsNotUndoneByAnEarlierOneOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		inner := disk.Open()
		store := &slowOrders{Store: inner}
		bus, _ := newBus(t, eventbus.WithStore(store))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Pause())
		mustPublish(t, bus, "a", "x")
		require.Empty(t, disk.took())

		store.delay = time.Second
		store.changed(driver.AnyChange) // reads the pause
		time.Sleep(time.Second / 2)
		require.NoError(t, mail.Resume())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		mustPublish(t, bus, "a", "y")
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

// failingOrders is a store whose Directives fails some times.
type failingOrders struct {
	driver.Store
	failures atomic.Int64
	delay    time.Duration
}

func (s *failingOrders) Directives(ctx context.Context) ([]driver.Directive, error) {
	time.Sleep(s.delay)
	if s.failures.Add(-1) >= 0 {
		return nil, errBroken
	}
	return s.Store.Directives(ctx)
}

// An order of another process whose read by a standby fails is read again after the restart. If that fails too, the
// standby goes on with the orders that it knows, until it has the lease.
func TestC6_AnOrderIsNotLostWithAFailedRead(t *testing.T) {
	for failures, paused := range map[int64]bool{1: true, 1000: false} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			lead, _ := disk.open(t)
			mail := disk.handles(t, lead, "mail", nil)
			require.NoError(t, lead.Start(t.Context()))
			store := &failingOrders{Store: disk.Open()}
			bus, logs := newBus(t, eventbus.WithStore(store), eventbus.WithStandby())
			disk.handles(t, bus, "mail", nil)
			began := startLater(t, bus)
			time.Sleep(time.Second)
			store.failures.Store(failures)
			require.NoError(t, mail.Pause())
			time.Sleep(time.Minute)
			require.Equal(t, 1, logs.FilterMessage("store reopened").Len())
			require.Equal(t, paused, metricsOf(t, bus, "mail").Paused)
			store.failures.Store(0)
			shutdown(t, lead)
			require.NoError(t, <-began)
			mustPublish(t, bus, "a", "x")
			require.Empty(t, disk.took())
			shutdown(t, bus)
		})
	}
}

// A restart after a Start that failed reads the orders, too, and Shutdown waits for that.
func TestS5_ARestartWithoutAStartLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims := 0
		disk := newDisk(storetest.WithClaimFaults(func(int, driver.ClaimQuery) (f storetest.Fault) {
			if claims++; claims == 1 {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		inner := disk.Open()
		store := &failingOrders{Store: inner}
		bus, logs := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		store.delay = time.Second
		require.Error(t, bus.Start(t.Context()))
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 1, logs.FilterMessage("store reopened").Len())
		began := time.Now()
		shutdown(t, bus)
		require.Equal(t, 500*time.Millisecond, time.Since(began))
	})
}
