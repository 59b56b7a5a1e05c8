package contracttest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// A process beside the one that runs the bus lists, purges, replays and publishes.
func TestL6_AnotherProcessWorksBesideTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		died := map[string]bool{}
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if !died[payload] && payload != "new" {
				died[payload] = true
				return eventbus.Permanent(errDead)
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		for i := range 3 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
			disk.took()
		}

		beside, _ := newBus(t, eventbus.WithStore(disk.Open()))
		disk.handles(t, beside, "mail", nil)
		require.ErrorIs(t, beside.Start(t.Context()), eventbus.ErrNoLease)
		all := letters(t, beside)
		require.Len(t, all, 3)
		require.NoError(t, beside.DLQ().Purge(t.Context(), all[0].ID))
		require.NoError(t, beside.DLQ().Replay(t.Context(), all[1].ID))
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		mustPublish(t, beside, "a", "new")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail new 1"}, disk.took())
		require.Len(t, letters(t, bus), 1)
		shutdown(t, beside)
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

// A tool knows no subscriptions: its replays go to the names in the letters, its orders to any name.
func TestL6_AToolWithoutHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := eventbus.New(eventbus.WithoutHandlers())
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		disk := newDisk()
		bus, _ := disk.open(t)
		var first, second atomic.Bool
		die := func(died *atomic.Bool) func(string, int) error {
			return func(string, int) error {
				if !died.Swap(true) {
					return eventbus.Permanent(errDead)
				}
				return nil
			}
		}
		first.Store(true)
		var subs []*eventbus.Subscription
		for _, s := range []struct {
			name string
			died *atomic.Bool
		}{{"b", &first}, {"c", &second}, {"a", &first}} {
			subs = append(subs, disk.handles(t, bus, s.name, die(s.died)))
		}
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "1")
		require.Equal(t, []string{"b 1 1", "c 1 1"}, disk.took())

		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		require.ErrorIs(t, tool.Start(t.Context()), eventbus.ErrNoHandlers)
		_, err = tool.Subscribe("*", ok, eventbus.Named("mail"))
		require.ErrorIs(t, err, eventbus.ErrNoHandlers)
		require.False(t, tool.Subscription("").Exists())
		require.True(t, tool.Subscription("mail").Exists())
		require.NoError(t, tool.DLQ().Replay(t.Context(), oneLetter(t, tool).ID))
		time.Sleep(time.Second)
		require.Equal(t, []string{"c 1 1", "a 1 1"}, disk.took())

		paused := func() (names []string) {
			time.Sleep(time.Second)
			for _, m := range bus.Metrics().Subscriptions {
				if m.Paused {
					names = append(names, m.Subscription)
				}
			}
			return names
		}
		require.NoError(t, tool.Subscription("c").Pause(eventbus.By("ann")))
		require.Equal(t, []string{"c"}, paused())
		require.NoError(t, tool.Subscription("c").Trip())
		require.NoError(t, subs[1].Resume())
		require.Empty(t, paused())
		require.NoError(t, tool.Subscription("c").Reset(), "it does not pause again")
		require.Empty(t, paused())
		tool.Subscription("c").Unsubscribe()
		require.NoError(t, tool.Subscription("c").Pause())
		require.Equal(t, []string{"c"}, paused())
		require.NoError(t, tool.Subscription("c").Resume())
		shutdown(t, tool)
		require.Empty(t, paused())
		shutdown(t, bus)
	})
}

func TestL7_AStoreEvictsNoLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithDeadLetterCapacity(2))
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errDead)))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 5 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		disk.took()
		require.Len(t, letters(t, bus), 5)
		shutdown(t, bus)
		require.Len(t, disk.Dump().Letters, 5)
	})
}

func TestL3_ReplayAndPurgeOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errDead)))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 3 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		disk.took()
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		all := letters(t, again)
		require.Len(t, all, 3)
		require.NoError(t, again.DLQ().Replay(t.Context(), all[0].ID))
		require.ErrorIs(t, again.DLQ().Replay(t.Context(), all[0].ID), eventbus.ErrNotFound)
		require.NoError(t, again.DLQ().Purge(t.Context(), all[1].ID))
		require.ErrorIs(t, again.DLQ().Purge(t.Context(), all[1].ID), eventbus.ErrNotFound)
		report, err := again.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 1, report.Replayed)
		require.ElementsMatch(t, []string{"mail 0 1", "mail 2 1"}, disk.took())
		require.Empty(t, letters(t, again))
		shutdown(t, again)
	})
}

// The letters, dispatches and audit entries of a file are listed although its catalog cannot be read. Only
// what asks for a subscription by name needs it.
func TestL6_AToolListsWithoutTheCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(0, 0)))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		shutdown(t, bus)

		store := disk.Open()
		done := make(chan error, 1)
		store.Submit(&driver.Batch{Now: time.Now(), Catalog: &driver.Catalog{Instance: disk.Dump().Catalogs[0].Instance, Body: []byte("?")}}, func(err error) { done <- err })
		require.NoError(t, <-done)
		require.NoError(t, store.Close(t.Context()))

		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		require.Equal(t, "mail", oneLetter(t, tool).Subscription)
		_, err := tool.Dispatches(t.Context(), eventbus.DispatchQuery{})
		require.NoError(t, err)
		_, err = tool.Audit(t.Context(), eventbus.AuditQuery{})
		require.NoError(t, err)
		var unreadable *eventbus.DecodeError
		_, err = tool.DLQ().List(t.Context(), eventbus.LetterQuery{Subscription: "mail"})
		require.ErrorAs(t, err, &unreadable)
		shutdown(t, tool)
	})
}

// A bus reads only what another process has changed: a directive makes no publication wait in the store, and an
// event makes no directive be read again.
func TestL6_OnlyWhatOthersChangeIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var reads, standbys journal[string]
		counts := func(in *journal[string]) *spyStore {
			return &spyStore{before: func(method string) {
				if slices.Contains([]string{"Claim", "Directives", "Incoming", "Requests"}, method) {
					in.add(method)
				}
			}}
		}
		bus := disk.spy(t, counts(&reads))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		standby := disk.spy(t, counts(&standbys), eventbus.WithStandby())
		disk.handles(t, standby, "mail", nil)
		began := startLater(t, standby)
		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		time.Sleep(time.Second)
		read := func(of *journal[string], do func()) (methods []string) {
			before := of.len()
			do()
			time.Sleep(time.Second)
			return slices.Compact(slices.Sorted(slices.Values(of.all()[before:])))
		}

		publishes := func() { mustPublish(t, tool, "x", "1") }
		require.Equal(t, []string{"Incoming"}, read(&reads, publishes), "an event of another process is no directive and no request")
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		require.Empty(t, read(&standbys, publishes), "a standby takes nothing in")
		pauses := func() { require.NoError(t, tool.Subscription("mail").Pause()) }
		require.Equal(t, []string{"Requests"}, read(&reads, pauses), "a request is no event, and the bus knows its own directives")
		require.True(t, metricsOf(t, bus, "mail").Paused)
		require.Equal(t, []string{"Directives"}, read(&standbys, func() { require.NoError(t, tool.Subscription("mail").Resume()) }))
		disk.took()
		shutdown(t, tool)
		shutdown(t, bus)
		require.NoError(t, <-began)
		shutdown(t, standby)
	})
}
