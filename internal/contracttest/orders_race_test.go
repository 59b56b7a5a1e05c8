package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// slowOrders is a store whose Orders returns some time after it has read them.
type slowOrders struct {
	eventbus.Store
	delay   time.Duration
	changed func()
}

func (s *slowOrders) Orders(ctx context.Context) ([]eventbus.Order, error) {
	orders, err := s.Store.Orders(ctx)
	time.Sleep(s.delay)
	return orders, err
}

func (s *slowOrders) Watch(changed func()) (stop func()) {
	s.changed = changed
	return func() {}
}

func TestC6_AnOrderIsNotUndoneByAnEarlierOneOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		inner, err := disk.Open()
		require.NoError(t, err)
		store := &slowOrders{Store: inner}
		bus, _ := newBus(t, eventbus.WithStore(store))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Pause())
		mustPublish(t, bus, "a", "x")
		require.Empty(t, disk.took())

		store.delay = time.Second
		store.changed() // reads the pause
		time.Sleep(time.Second / 2)
		require.NoError(t, mail.Resume())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		mustPublish(t, bus, "a", "y")
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}
