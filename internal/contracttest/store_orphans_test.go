package contracttest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// requireRoomFor requires that WithMaxUnsettled admits n events more, and no other. They stay unsettled.
func requireRoomFor(t *testing.T, bus *eventbus.Bus, n int) (ids []eventbus.EventID) {
	t.Helper()
	for range n {
		ids = append(ids, mustPublish(t, bus, "a", "later", eventbus.After(time.Hour)))
	}
	_, err := bus.Publish(t.Context(), "a", "x", eventbus.After(time.Hour))
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	return ids
}

func cancelAll(t *testing.T, bus *eventbus.Bus, ids []eventbus.EventID) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, cancelEvent(t.Context(), bus, id))
	}
}

func requireMissing(t *testing.T, logs *observer.ObservedLogs, name string, waiting int64) {
	t.Helper()
	all := logs.FilterMessage("subscription of stored events is missing").All()
	require.Len(t, all, 1)
	require.Equal(t, map[string]any{
		"subscription_id": name, "waiting": waiting, "remedy": "subscribe with Formerly, or Retire it",
	}, all[0].ContextMap())
}

// leaveFor leaves an event in the store for a subscription that no later bus of the test has.
func (d *disk) leaveFor(t *testing.T, name string) {
	t.Helper()
	bus, _ := d.open(t)
	require.NoError(t, d.handles(t, bus, name, nil).Pause())
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	mustPublish(t, bus, "a", "x")
	synctest.Wait()
	shutdown(t, bus)
}

// Events for a subscription that a deploy has removed do not take the room of others for ever.
func TestD8_OrphansTakeNoRoom(t *testing.T) {
	for _, targets := range []string{"coupled", "isolated"} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			opts := []eventbus.Option{eventbus.WithMaxUnsettled(4), eventbus.RefuseWhenFull()}
			if targets == "isolated" {
				opts = append(opts, eventbus.WithIsolation())
			}
			first, _ := disk.open(t, opts...)
			disk.handles(t, first, "mail", nil)
			old := disk.handles(t, first, "old", nil)
			require.NoError(t, first.Start(t.Context()))
			require.NoError(t, old.Pause())
			synctest.Wait()
			for range 2 {
				mustPublish(t, first, "a", "x")
				synctest.Wait()
			}
			shutdown(t, first)

			for range 2 { // when they are found, and when they have been parked before
				bus, logs := disk.open(t, opts...)
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				synctest.Wait()
				require.Equal(t, map[string]int64{"old": 2}, bus.Metrics().Orphaned)
				requireMissing(t, logs, "old", 2)
				cancelAll(t, bus, requireRoomFor(t, bus, 4))
				shutdown(t, bus)
			}

			bus, _ := disk.open(t, opts...)
			disk.handles(t, bus, "mail", nil)
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			again := disk.handles(t, bus, "new", nil, eventbus.Formerly("old"))
			require.NoError(t, again.Pause())
			synctest.Wait()
			require.Empty(t, bus.Metrics().Orphaned)
			require.NoError(t, again.Resume())
			synctest.Wait()
			require.Zero(t, bus.Metrics().Store.Unsettled())
			cancelAll(t, bus, requireRoomFor(t, bus, 4))
			shutdown(t, bus)
		})
	}
}

// A scheduled event that is due after a deploy, and whose subscription is missing then, gives its room to a publisher that waits.
func TestD8_AnOrphanReleasesAPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t)
		disk.handles(t, first, "old", nil)
		require.NoError(t, first.Start(t.Context()))
		synctest.Wait()
		mustPublish(t, first, "a", "x", eventbus.After(time.Hour))
		shutdown(t, first)

		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		waits := publishLater(t.Context(), bus, "y")
		time.Sleep(50 * time.Minute)
		require.Empty(t, disk.took())
		time.Sleep(20 * time.Minute)
		require.NoError(t, <-waits[0])
		require.Equal(t, []string{"mail y 1"}, disk.took())
		require.Equal(t, map[string]int64{"old": 1}, bus.Metrics().Orphaned)
		shutdown(t, bus)
	})
}

// Events that a crash has left are divided: those of the missing subscription stay, and do not count.
func TestD8_OrphansOfACrashTakeNoRoom(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{"coupled": nil, "isolated": {eventbus.WithIsolation()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				first, _ := disk.open(t, opts...)
				runs := func(string, int) error { time.Sleep(time.Second); return nil }
				disk.handles(t, first, "mail", runs)
				disk.handles(t, first, "old", runs)
				require.NoError(t, first.Start(t.Context()))
				synctest.Wait()
				for range 3 {
					mustPublish(t, first, "a", "x")
				}
				synctest.Wait()
				disk.crash(first)
				time.Sleep(time.Minute) // its calls end
				bus, logs := disk.open(t, append(opts, eventbus.WithMaxUnsettled(2), eventbus.RefuseWhenFull())...)
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				synctest.Wait()
				require.Equal(t, map[string]int64{"old": 3}, bus.Metrics().Orphaned)
				requireMissing(t, logs, "old", 3)
				cancelAll(t, bus, requireRoomFor(t, bus, 2))
				disk.handles(t, bus, "old", nil)
				synctest.Wait()
				require.Zero(t, bus.Metrics().Store.Unsettled())
				cancelAll(t, bus, requireRoomFor(t, bus, 2))
				shutdown(t, bus)
			})
		})
	}
}

// A store that fails and is reopened is counted anew.
func TestD8_OrphansAfterARestart(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind storetest.FaultKind) {
		t.Helper()
		disk := newFailingDisk(kind)
		disk.leaveFor(t, "old")
		bus, logs := disk.open(t, eventbus.WithMaxUnsettled(2), eventbus.RefuseWhenFull())
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		requireMissing(t, logs, "old", 1)
		cancelAll(t, bus, requireRoomFor(t, bus, 2))
		disk.fail.Store(1)
		publishAll(t, bus, 2)
		time.Sleep(time.Minute)
		require.True(t, bus.Metrics().Ledger.Balanced(), "%+v", bus.Metrics().Ledger)
		cancelAll(t, bus, requireRoomFor(t, bus, 2))
		requireMissing(t, logs, "old", 1)
		shutdown(t, bus)
	})
}
