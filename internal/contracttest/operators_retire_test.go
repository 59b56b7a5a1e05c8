package contracttest

import (
	"context"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
	"github.com/surebus/eventbus/storetest"
)

// orphans leaves n deliveries of "mail" in a store, every second one with a key. The next process does not have that subscription.
func orphans(t *testing.T, disk *disk, n int) {
	t.Helper()
	bus, _ := disk.open(t)
	require.NoError(t, (&numbers{}).mustSubscribe(t, bus, "mail", "mail").Pause())
	start(t, bus)
	for i := range n {
		var opts []eventbus.PublishOption
		if i%2 == 0 {
			opts = append(opts, eventbus.Key("k"))
		}
		mustPublish(t, bus, "placed", i, opts...)
	}
	synctest.Wait()
	require.NoError(t, bus.Shutdown(t.Context()))
}

// retireEntries returns the audit's entries of Retire, the oldest first.
func retireEntries(t *testing.T, bus *eventbus.Bus) (entries []eventbus.AuditEntry) {
	t.Helper()
	for _, e := range audit(t, bus, eventbus.AuditQuery{Action: eventbus.AuditRetire}) {
		entries = append([]eventbus.AuditEntry{e}, entries...)
	}
	return entries
}

func TestD14_RetireEndsANameThatNoBusHas(t *testing.T) {
	for _, drop := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			orphans(t, disk, 1200)
			bus, _ := disk.open(t)
			calls := &numbers{}
			calls.mustSubscribe(t, bus, "post", "post")
			start(t, bus)
			opts := []eventbus.RetireOption{eventbus.By("ann"), eventbus.Because("gone for good")}
			if drop {
				opts = append(opts, eventbus.DropRetired())
			}
			began := time.Now()
			report, err := bus.Retire(t.Context(), "mail", opts...)
			require.NoError(t, err)
			require.Less(t, time.Since(began), 10*time.Second)
			require.Equal(t, eventbus.RetireReport{Parked: 1200, Ended: 1200}, report)
			require.Empty(t, disk.Dump().Records)
			if dead := letters(t, bus); drop {
				require.Empty(t, dead)
				require.EqualValues(t, 1200, bus.Metrics().Ledger.Dropped)
			} else {
				require.Len(t, dead, 1200)
				require.Equal(t, eventbus.ReasonUnsubscribed, dead[0].Reason)
				require.Equal(t, "mail", dead[0].Subscription)
			}
			entries := retireEntries(t, bus)
			require.Len(t, entries, 2)
			require.Equal(t, "ann", entries[1].By)
			require.Equal(t, "gone for good", entries[1].Why)
			require.Equal(t, drop, entries[1].Drop)
			require.Equal(t, 1200, entries[0].Count)
			require.Equal(t, 1200, entries[1].Outcome.Done)
			require.Equal(t, "mail", entries[0].Subscription)

			calls.mustSubscribe(t, bus, "mail", "mail")
			mustPublish(t, bus, "placed", 1)
			require.Equal(t, []string{"post 1 1", "mail 1 1"}, calls.took(), "the name is free")
			shutdown(t, bus)
		})
	}
}

// A name of a live bus is refused, with the bus that has it: this one, or a standby.
func TestD14_RetireOfALiveName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		orphans(t, disk, 2)
		bus, _ := disk.open(t)
		(&numbers{}).mustSubscribe(t, bus, "post", "post")
		start(t, bus)
		standby, _ := disk.open(t, eventbus.WithStandby())
		sub := (&numbers{}).mustSubscribe(t, standby, "mail", "mail")
		began := startLater(t, standby)
		time.Sleep(time.Second)

		for name, has := range map[string]*eventbus.Bus{"post": bus, "mail": standby} {
			for _, asked := range []*eventbus.Bus{bus, standby} {
				_, err := asked.Retire(t.Context(), name)
				require.ErrorIs(t, err, eventbus.ErrNameInUse)
				var inUse *eventbus.NameInUseError
				require.ErrorAs(t, err, &inUse)
				require.Equal(t, catalog(t, has).Instance, inUse.Instance, name)
				require.Equal(t, name, inUse.Subscription)
			}
		}
		require.Empty(t, retireEntries(t, bus))
		require.Len(t, disk.Dump().Records, 2)

		sub.Unsubscribe()
		time.Sleep(time.Second) // its catalog
		report, err := standby.Retire(t.Context(), "mail")
		require.NoError(t, err)
		require.Equal(t, eventbus.RetireReport{Parked: 2, Ended: 2}, report)
		require.Len(t, letters(t, bus), 2)
		_, err = bus.Retire(t.Context(), "mial")
		require.ErrorIs(t, err, eventbus.ErrNoSubscription)
		require.ErrorContains(t, err, `"post"`)
		_, err = bus.Retire(t.Context(), "")
		requireOptionError(t, err, "Retire")
		require.NoError(t, standby.Shutdown(t.Context()))
		require.Error(t, <-began)
		shutdown(t, bus)
	})
}

// A killed process leaves its catalog, which ends nothing of others.
func TestD14_RetireAfterTheBusOfTheNameWasKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		(&numbers{}).mustSubscribe(t, bus, "post", "post")
		start(t, bus)
		standby, _ := disk.open(t, eventbus.WithStandby())
		calls := &numbers{}
		calls.mustSubscribe(t, standby, "mail", "mail")
		mustPublish(t, standby, "placed", 1)
		startLater(t, standby)
		time.Sleep(time.Minute)
		disk.crash(standby)
		_, err := bus.Retire(t.Context(), "mail")
		require.ErrorIs(t, err, eventbus.ErrNameInUse, "it may live")
		time.Sleep(2 * time.Minute)
		report, err := bus.Retire(t.Context(), "mail")
		require.NoError(t, err)
		require.Equal(t, 1, report.Ended)
		require.Equal(t, "mail", oneLetter(t, bus).Subscription)
		require.Empty(t, calls.took())
		shutdown(t, bus)
	})
}

// What a crash cuts short goes on at the next start, and so does what a tool has retired while no bus ran.
func TestD14_RetireGoesOnAtTheNextStart(t *testing.T) {
	for _, crash := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			orphans(t, disk, 2000)
			if crash {
				var dead atomic.Int32
				bus, _ := disk.open(t, eventbus.WithObserver(eventbus.Observer{DeadLettered: func(eventbus.DeadLetter) {
					if dead.Add(1) == 100 {
						disk.Crash()
					}
				}}))
				start(t, bus)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := bus.Retire(ctx, "mail", eventbus.By("ann"))
				require.Error(t, err)
				disk.crash(bus)
				cancel()
			} else {
				tool, _ := disk.open(t, eventbus.WithoutHandlers())
				report, err := tool.Retire(t.Context(), "mail", eventbus.By("ann"))
				require.NoError(t, err)
				require.Equal(t, eventbus.RetireReport{Parked: 2000, Left: true}, report)
				require.NoError(t, tool.Shutdown(t.Context()))
			}
			require.NotEmpty(t, disk.Dump().Records)
			time.Sleep(time.Second)

			again, _ := disk.open(t)
			calls := &numbers{}
			calls.mustSubscribe(t, again, "mail", "mail") // it has the name anew
			start(t, again)
			mustPublish(t, again, "placed", 7, eventbus.Key("k"))
			time.Sleep(10 * time.Second)
			require.Equal(t, []string{"mail 7 1"}, calls.took())
			require.Empty(t, disk.Dump().Records)
			require.Len(t, disk.Dump().Letters, 2000)
			entries := retireEntries(t, again)
			require.NotNil(t, entries[len(entries)-1].Outcome)
			shutdown(t, again)

			once, _ := disk.open(t)
			calls.mustSubscribe(t, once, "mail", "mail")
			start(t, once)
			mustPublish(t, once, "placed", 8)
			require.Equal(t, []string{"mail 8 1"}, calls.took())
			require.Len(t, retireEntries(t, once), len(entries))
			shutdown(t, once)
		})
	}
}

// Retire ends a detached subscription, in memory too.
func TestD14_RetireOfADetachedSubscription(t *testing.T) {
	for _, drop := range []bool{false, true} {
		inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
			bus := open()
			calls := &numbers{}
			s := calls.mustSubscribe(t, bus, "mail", "mail", eventbus.Formerly("letters"))
			start(t, bus)
			require.NoError(t, s.Detach())
			for i := range 5 {
				mustPublish(t, bus, "placed", i, eventbus.Key("k"))
			}
			later := mustPublish(t, bus, "placed", 5, eventbus.After(time.Hour))
			synctest.Wait()
			opts := []eventbus.RetireOption{eventbus.By("ann")}
			if drop {
				opts = append(opts, eventbus.DropRetired())
			}
			report, err := bus.Retire(t.Context(), "mail", opts...)
			require.NoError(t, err)
			require.Equal(t, eventbus.RetireReport{Parked: 5, Ended: 5}, report)
			require.False(t, s.Exists())
			dead := 5
			if drop {
				dead = 0
			}
			require.Len(t, letters(t, bus), dead)
			entries := retireEntries(t, bus)
			require.Len(t, entries, 2)
			require.Equal(t, 5, entries[1].Outcome.Done)
			require.Equal(t, eventbus.DispatchScheduled, onlyDispatchOrLetters(t, bus, later))
			time.Sleep(2 * time.Hour)
			if !drop {
				dead++
			}
			require.Len(t, letters(t, bus), dead)
			require.EqualValues(t, 6-dead, bus.Metrics().Ledger.Dropped)
			require.Empty(t, calls.took())
			shutdown(t, bus)
		})
	}
}

func onlyDispatchOrLetters(t *testing.T, bus *eventbus.Bus, id eventbus.EventID) eventbus.DispatchState {
	t.Helper()
	status := whereabouts(t, bus, id)
	require.Len(t, status.Dispatches, 1)
	return status.Dispatches[0].State
}

// After the end of its context, Retire goes on.
func TestD14_RetireWithAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		orphans(t, disk, 100)
		bus, _ := disk.open(t)
		start(t, bus)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Retire(ctx, "mail")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Len(t, letters(t, bus), 100)
		entries := retireEntries(t, bus)
		require.Len(t, entries, 2)
		require.Equal(t, 100, entries[1].Outcome.Done)
		_, err = bus.Retire(ended(), "mail")
		require.ErrorIs(t, err, context.Canceled)
		_, err = bus.Retire(t.Context(), "mail", nil)
		requireOptionError(t, err, "Retire")
		_, err = bus.Retire(t.Context(), "mail", eventbus.By("a\x00"))
		requireOptionError(t, err, "By")
		shutdown(t, bus)
	})
}

// A retirement that an earlier version has not finished has no place in the order: it ends what is there when it goes on.
func TestD14_ARetirementOfAnEarlierVersionGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t)
		disk.handles(t, first, "mail", nil)
		start(t, first)
		mustPublish(t, first, "x", "old", eventbus.After(24*time.Hour))
		shutdown(t, first)

		place := regexp.MustCompile(`"last":\d+,`)
		written := 0
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, _ func(error)) bool {
			for i := range b.Directives {
				d := &b.Directives[i]
				written += len(place.FindAll(d.Body, -1))
				d.Body = place.ReplaceAll(d.Body, nil)
			}
			return false
		}
		earlier := disk.spy(t, spy)
		start(t, earlier)
		_, err := earlier.Retire(t.Context(), "mail")
		require.NoError(t, err)
		require.Positive(t, written)
		shutdown(t, earlier)

		bus, _ := disk.open(t)
		start(t, bus)
		time.Sleep(25 * time.Hour)
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		shutdown(t, bus)
	})
}

// A bus that begins to have the name while Retire is committed is found.
func TestD14_RetireLooksInItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		orphans(t, disk, 2)
		spy := &spyStore{}
		var late atomic.Bool
		spy.submit = func(b *driver.Batch, _ func(error)) bool {
			if b.IfCatalogs != nil && !late.Swap(true) {
				spy.Store.Submit(&driver.Batch{Now: b.Now, Catalog: &driver.Catalog{Instance: "late", Body: []byte(`{"subscriptions":[{"subscription":"mail"}]}`)}}, func(error) {})
			}
			return false
		}
		bus := disk.spy(t, spy)
		start(t, bus)
		_, err := bus.Retire(t.Context(), "mail")
		var inUse *eventbus.NameInUseError
		require.ErrorAs(t, err, &inUse)
		require.Equal(t, "late", inUse.Instance)
		require.Len(t, disk.Dump().Records, 2)
		require.Empty(t, retireEntries(t, bus))
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// While something of a retired name is left for later, a new subscription of the name has its own deliveries after a crash.
func TestD14_RetireLeavesNewDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		calls := &numbers{}
		first, _ := disk.open(t)
		calls.mustSubscribe(t, first, "mail", "first")
		start(t, first)
		mustPublish(t, first, "placed", 1, eventbus.After(24*time.Hour))
		shutdown(t, first)

		second, _ := disk.open(t)
		start(t, second)
		_, err := second.Retire(t.Context(), "mail")
		require.NoError(t, err)
		shutdown(t, second)
		time.Sleep(time.Second)

		third, _ := disk.open(t)
		calls.before = func(ctx context.Context, _ int) error { <-ctx.Done(); return nil }
		calls.mustSubscribe(t, third, "mail", "third", eventbus.Timeout(time.Hour))
		start(t, third)
		mustPublish(t, third, "placed", 2)
		require.Equal(t, []string{"third 2 1"}, calls.took())
		disk.crash(third)

		fourth, _ := disk.open(t)
		calls.before = nil
		calls.mustSubscribe(t, fourth, "mail", "fourth")
		start(t, fourth)
		require.Equal(t, []string{"fourth 2 1"}, calls.took())
		time.Sleep(25 * time.Hour)
		require.Empty(t, calls.took())
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, fourth).Reason)
		shutdown(t, fourth)
	})
}

// An event that was published before the Retire and waited for room is accepted after it: its delivery is held for who has the name next.
func TestD14_AcceptedAfterTheRetirement(t *testing.T) {
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, append(opts, eventbus.WithMaxUnsettled(2))...)
			calls := &numbers{}
			subscribe := func(name, handler string) *eventbus.Subscription {
				return mustSubscribe(t, bus, "placed", func(context.Context, eventbus.Event) error {
					calls.add(handler)
					return nil
				}, eventbus.Named(name))
			}
			free := make(chan struct{})
			mustSubscribe(t, bus, "blocks", until(free), eventbus.Named("blocks"))
			subscribe("mail", "mail")
			crm := subscribe("crm", "old")
			start(t, bus)
			for range 2 {
				mustPublish(t, bus, "blocks", nil)
			}
			var published sync.WaitGroup
			published.Go(func() { mustPublish(t, bus, "placed", 1) })
			synctest.Wait() // for room
			require.NoError(t, crm.Detach())
			_, err := bus.Retire(t.Context(), "crm")
			require.NoError(t, err)
			close(free)
			published.Wait()
			time.Sleep(time.Minute)
			require.Equal(t, []string{"mail"}, calls.took())
			subscribe("crm", "new")
			time.Sleep(time.Minute)
			require.Equal(t, []string{"new"}, calls.took())
			require.Empty(t, disk.Dump().Letters)
			shutdown(t, bus)
		})
	}
}

// What was published under a retired name after the retirement stays parked. The feeder claims it once, and not without end.
func TestD14_LaterDeliveriesOfARetiredNameAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batches := 0
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if batches++; batches > 1000 {
				panic("batches without end")
			}
			return f
		}))
		calls := &numbers{}
		first, _ := disk.open(t)
		calls.mustSubscribe(t, first, "mail", "first")
		start(t, first)
		mustPublish(t, first, "placed", 1, eventbus.After(24*time.Hour))
		shutdown(t, first)

		second, _ := disk.open(t)
		start(t, second)
		_, err := second.Retire(t.Context(), "mail")
		require.NoError(t, err)
		shutdown(t, second)

		third, _ := disk.open(t)
		require.NoError(t, calls.mustSubscribe(t, third, "mail", "third").Pause())
		start(t, third)
		for i := range 5 {
			mustPublish(t, third, "placed", 2+i)
		}
		shutdown(t, third)

		fourth, _ := disk.open(t, eventbus.WithQueueCapacity(2)) // it claims one at a time
		start(t, fourth)
		time.Sleep(time.Hour)
		require.Len(t, disk.Dump().Records, 6)
		require.NoError(t, calls.mustSubscribe(t, fourth, "mail", "fourth").Resume())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"fourth 2 1", "fourth 3 1", "fourth 4 1", "fourth 5 1", "fourth 6 1"}, calls.took())
		time.Sleep(24 * time.Hour)
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, fourth).Reason)
		shutdown(t, fourth)
	})
}

// A bus that starts with less room than the names have deliveries goes on with all of their retirements.
func TestD14_RetirementsAtAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		calls := &numbers{}
		first, _ := disk.open(t)
		names := []string{"s0", "s1", "s2", "s3", "s4"}
		for _, name := range names {
			require.NoError(t, calls.mustSubscribe(t, first, name, "x", eventbus.Isolated()).Pause())
		}
		start(t, first)
		for i := range 4 {
			mustPublish(t, first, "placed", i)
		}
		synctest.Wait()
		shutdown(t, first)
		time.Sleep(time.Minute)

		tool := disk.tool(t)
		for _, name := range names {
			_, err := tool.Retire(t.Context(), name)
			require.NoError(t, err)
		}
		shutdown(t, tool)

		second, _ := disk.open(t, eventbus.WithQueueCapacity(2))
		start(t, second)
		time.Sleep(time.Hour)
		require.Empty(t, disk.Dump().Records)
		require.Len(t, disk.Dump().Letters, 20)
		shutdown(t, second)
	})
}

// The order in which events were accepted tells the deliveries of a retired name from later ones, not the wall clock.
func TestD14_RetireAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t, eventbus.WithClock(c))
			return bus
		}
		bus := open()
		require.NoError(t, disk.handles(t, bus, "mail", nil).Pause())
		start(t, bus)
		old := mustPublish(t, bus, "x", "old")
		later := mustPublish(t, bus, "x", "old and later", eventbus.After(24*time.Hour))
		disk.crash(bus)

		c.Advance(-time.Hour)
		retires := open()
		start(t, retires)
		report, err := retires.Retire(t.Context(), "mail")
		require.NoError(t, err)
		require.Equal(t, 1, report.Ended)
		require.Equal(t, old, oneLetter(t, retires).Event.ID)
		shutdown(t, retires)

		c.Advance(-time.Hour)
		back := open()
		sub := disk.handles(t, back, "mail", nil)
		start(t, back)
		require.NoError(t, sub.Pause())
		mustPublish(t, back, "x", "new")
		disk.crash(back)

		last := open()
		sub = disk.handles(t, last, "mail", nil)
		start(t, last)
		require.NoError(t, sub.Resume())
		time.Sleep(27 * time.Hour)
		require.Equal(t, []string{"mail new 1"}, disk.took())
		require.Equal(t, later, letters(t, last)[0].Event.ID)
		shutdown(t, last)
	})
}
