package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
	"github.com/surebus/eventbus/storetest"
)

// A local order does not erase that of another process which the bus has not read yet.
func TestC6_AnOrderErasesNoneOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := disk.Open()
		bus, _ := newBus(t, eventbus.WithStore(deafStore{store}))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		tool := disk.tool(t)
		require.NoError(t, tool.Subscription("mail").Pause())
		require.NoError(t, mail.Reset())
		require.True(t, metricsOf(t, bus, "mail").Paused)
		time.Sleep(time.Minute)
		require.Len(t, catalog(t, bus).Directives, 1)
		mustPublish(t, bus, "x", "1")
		require.Empty(t, disk.took())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// deafStore never tells what other processes have committed.
type deafStore struct{ driver.Store }

func (deafStore) Watch(func(driver.Change)) (stop func()) { return func() {} }

// slowReads takes its time to return what it has read.
type slowReads struct{ driver.Store }

func (s slowReads) Directives(ctx context.Context) ([]driver.Directive, error) {
	all, err := s.Store.Directives(ctx)
	time.Sleep(50 * time.Millisecond)
	return all, err
}

func TestC6_ASubscriptionMadeWhileOrdersAreReadObeysThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := disk.Open()
		bus, _ := newBus(t, eventbus.WithStore(slowReads{store}))
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		tool := disk.tool(t)
		require.NoError(t, tool.Subscription("mail").Pause())
		time.Sleep(10 * time.Millisecond)
		disk.handles(t, bus, "mail", nil)
		time.Sleep(time.Minute)
		mustPublish(t, bus, "x", "1")
		require.Empty(t, disk.took())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// Whoever has the name when an order is recorded obeys it.
func TestC6_AnOrderWhileTheNameChangesHands(t *testing.T) {
	for name, resumes := range map[string]bool{"pause": false, "resume": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.Directives) > 0 {
						f.Delay = 50 * time.Millisecond
					}
					return f
				}))
				bus, _ := disk.open(t)
				require.NoError(t, bus.Start(t.Context()))
				old := disk.handles(t, bus, "mail", nil)
				order := old.Pause
				if resumes {
					require.NoError(t, old.Pause())
					order = old.Resume
				}
				done := make(chan error, 1)
				go func() { done <- order() }()
				time.Sleep(10 * time.Millisecond)
				old.Unsubscribe()
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, <-done)
				require.Equal(t, !resumes, metricsOf(t, bus, "mail").Paused)
				time.Sleep(time.Minute)
				require.Equal(t, !resumes, len(catalog(t, bus).Directives) > 0)
				require.Equal(t, !resumes, metricsOf(t, bus, "mail").Paused)
				shutdown(t, bus)
			})
		})
	}
}

func TestC6_FormerlyKeepsOrdersOverSeveralNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		require.NoError(t, disk.handles(t, bus, "a", nil).Pause())
		shutdown(t, bus)
		bus, _ = disk.open(t)
		disk.handles(t, bus, "b", nil, eventbus.Formerly("a"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "1")
		require.Empty(t, disk.took())
		shutdown(t, bus)
		bus, _ = disk.open(t)
		c := disk.handles(t, bus, "c", nil, eventbus.Formerly("b"))
		require.NoError(t, bus.Start(t.Context()))
		require.Empty(t, disk.took())
		require.NoError(t, c.Resume())
		require.Equal(t, []string{"c 1 1"}, disk.took())
		shutdown(t, bus)
	})
}

func TestC6_FormerlyTheLatestOrderCountsAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithClock(c))
		require.NoError(t, disk.handles(t, bus, "mail", nil, eventbus.Formerly("post")).Pause())
		shutdown(t, bus)
		c.Advance(-2 * time.Hour)
		bus, _ = disk.open(t, eventbus.WithClock(c)) // rolled back
		require.NoError(t, disk.handles(t, bus, "post", nil).Resume())
		shutdown(t, bus)
		bus, _ = disk.open(t, eventbus.WithClock(c))
		disk.handles(t, bus, "mail", nil, eventbus.Formerly("post"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "1")
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, bus)
	})
}

// The inherited order is recorded although another one is being recorded when Start records the catalog.
func TestC6_FormerlyKeepsOrdersWhileOneIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		require.NoError(t, disk.handles(t, bus, "a", nil).Pause())
		shutdown(t, bus)
		store := disk.Open()
		bus, _ = newBus(t, eventbus.WithStore(slowReads{store}))
		disk.handles(t, bus, "b", nil, eventbus.Formerly("a"))
		other := disk.handles(t, bus, "other", nil)
		done := make(chan error, 1)
		go func() { done <- other.Reset() }()
		time.Sleep(10 * time.Millisecond) // it reads the orders
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, <-done)
		time.Sleep(time.Minute)
		shutdown(t, bus)
		bus, _ = disk.open(t)
		disk.handles(t, bus, "c", nil, eventbus.Formerly("b"))
		require.True(t, metricsOf(t, bus, "c").Paused)
		shutdown(t, bus)
	})
}
