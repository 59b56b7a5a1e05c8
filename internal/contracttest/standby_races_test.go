package contracttest

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A lease that is lost again while the bus reads what has changed meanwhile is acquired once more.
func TestS6_ALeaseLostWhileItIsRegainedIsRegained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var lose atomic.Bool
		spy := &spyStore{orders: func() {
			if lose.Swap(false) {
				disk.LoseLease(false)
				time.Sleep(time.Second) // the bus has noted the loss
			}
		}}
		bus := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		lose.Store(true)
		disk.LoseLease(false)
		time.Sleep(time.Minute)
		require.False(t, lose.Load())
		require.True(t, spy.Store.Lease().IsHeld())
		mustPublish(t, bus, "a", "1")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// A standby that appears while the bus regains its lease gets it afterwards.
func TestS6_AHandOverThatCannotBeginFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var fail, slow atomic.Bool
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.New) > 0 && fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		wait := func() {
			if slow.Load() {
				time.Sleep(5 * time.Second)
			}
		}
		spy := &spyStore{orders: wait, before: func(method string) {
			if method == "Stats" {
				wait()
			}
		}}
		first := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		time.Sleep(time.Minute)
		slow.Store(true)
		fail.Store(true)
		_, err := first.Publish(t.Context(), "a", "x")
		require.Error(t, err)
		time.Sleep(time.Second)
		disk.LoseLease(false) // while it reopens the store
		time.Sleep(6 * time.Second)
		require.True(t, spy.Store.Lease().IsHeld(), "it reads the directives")
		second, _ := disk.standby(t, "mail", "audit")
		waits := startLater(t, second)
		time.Sleep(time.Second)
		slow.Store(false)
		time.Sleep(time.Minute)
		requireStarted(t, waits)
		disk.requireLease(t, second, true)
		mustPublish(t, first, "a", "1")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1", "audit 1 1"}, disk.took())
		requireBalanced(t, first)
		shutdown(t, first)
		shutdown(t, second)
	})
}

// failedWait is a store that fails while its first Acquire waits.
type failedWait struct {
	driver.Store
	failed atomic.Bool
}

func (s *failedWait) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	if s.failed.CompareAndSwap(false, true) {
		return driver.Lease{}, driver.ErrFailed
	}
	return s.Store.Acquire(ctx, q)
}

// The store of a standby fails while Start waits for the lease. Start goes on waiting, and dispatches when the lease is free.
func TestS6_AStandbyWhoseStoreFailsGoesOnWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := newBus(t, eventbus.WithStore(&failedWait{Store: disk.Open()}), eventbus.WithStandby())
		disk.handles(t, second, "mail", nil)
		waits := startLater(t, second)
		time.Sleep(time.Minute)
		require.Empty(t, waits, "Start returned although the bus is a standby")
		shutdown(t, first)
		time.Sleep(time.Minute)
		requireStarted(t, waits)
		mustPublish(t, second, "a", "1")
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, second)
	})
}

// An event that the bus leaves in incoming, after it has looked there and before it leads, is before later ones of its key.
func TestT2_WhatIsLeftAtTheLastMomentIsTakenInFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var bus *eventbus.Bus
		var left atomic.Bool
		bus = disk.spy(t, &spyStore{before: func(method string) {
			if method == "end of Incoming" && left.CompareAndSwap(false, true) {
				mustPublish(t, bus, "a", "1", eventbus.Key("k"))
			}
		}})
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "2", eventbus.Key("k"))
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, bus)
	})
}

// requireStarted requires that Start has returned nil.
func requireStarted(t *testing.T, began <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-began:
		require.NoError(t, err)
	default:
		require.FailNow(t, "Start has not returned")
	}
}

// A claim without the lease is no loss of the one that the tool has acquired since.
func TestS6_AToolReleasesALeaseThatItAcquiredMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		id := mustPublish(t, first, "a", "x", eventbus.After(time.Hour))
		shutdown(t, first)

		var tool *eventbus.Bus
		paused := make(chan error, 2)
		pause := func() {
			go func() { paused <- tool.Subscription("mail").Pause() }()
			time.Sleep(500 * time.Millisecond)
		}
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, done func(error)) bool {
			if len(b.Directives) > 0 { // the tool has the lease for a second
				spy.Store.Submit(b, func(err error) { go func() { time.Sleep(time.Second); done(err) }() })
			}
			return len(b.Directives) > 0
		}
		var again atomic.Bool
		spy.claim = func(_ context.Context, _ driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			if again.Swap(true) {
				return next()
			}
			require.NoError(t, <-paused) // the lease is released
			r, err := next()
			require.ErrorIs(t, err, driver.ErrNoLease)
			pause()
			return r, err
		}
		tool = disk.spy(t, spy, eventbus.WithoutHandlers())
		pause()
		ctx, cancel := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer cancel()
		_ = cancelEvent(ctx, tool, id) // it may end with ctx: the tool does nothing more then
		require.NoError(t, <-paused)
		time.Sleep(time.Minute)
		require.Zero(t, disk.Dump().Lease)
		shutdown(t, tool)
	})
}

// unawareStore does not know that it has lost its lease.
type unawareStore struct {
	driver.Store
	had     atomic.Pointer[driver.Lease]
	removed atomic.Int32 // catalogs
}

func (s *unawareStore) Submit(b *driver.Batch, done func(error)) {
	removes := b.Catalog != nil && b.Catalog.Body == nil
	s.Store.Submit(b, func(err error) {
		if removes && err == nil {
			s.removed.Add(1)
		}
		done(err)
	})
}

func (s *unawareStore) Lease() driver.Lease {
	if had := s.had.Load(); had != nil {
		return *had
	}
	return s.Store.Lease()
}

func (s *unawareStore) Watch(changed func(driver.Change)) (stop func()) {
	return s.Store.Watch(func(c driver.Change) {
		if s.had.Load() != nil {
			c &^= driver.ChangedLease
		}
		changed(c)
	})
}

// A bus that does not know yet that it has lost the lease keeps the catalog of the bus that has it.
func TestS6_TheCatalogOfTheNextBusIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := &unawareStore{Store: disk.Open()}
		first, _ := newBus(t, eventbus.WithStore(store), eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, done func(error)) bool {
			removes := b.Catalog != nil && b.Catalog.Body == nil
			if removes {
				done(nil) // a bus that finds its own catalog removed would look no further
			}
			return removes
		}
		second := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, second, "mail", nil)
		waits := startLater(t, second)
		time.Sleep(time.Minute)
		had := store.Lease()
		store.had.Store(&had)
		disk.LoseLease(false)
		requireStarted(t, waits)
		time.Sleep(time.Second)
		tool := disk.tool(t)
		require.True(t, catalog(t, tool).Active)
		require.Zero(t, store.removed.Load())
		shutdown(t, tool)
		store.had.Store(nil)
		mustPublish(t, first, "a", "1")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		requireBalanced(t, first)
		shutdown(t, first)
		shutdown(t, second)
	})
}

// catalogsOf makes the catalogs of a store those of a newer version: this one does not know the text of a setting.
func catalogsOf(s *spyStore) {
	s.submit = func(b *driver.Batch, done func(error)) bool {
		if b.Catalog != nil && b.Catalog.Body != nil {
			b.Catalog.Body = bytes.ReplaceAll(b.Catalog.Body, []byte(`"when_open":"hold"`), []byte(`"when_open":"newer"`))
		}
		return false
	}
}

// An active bus of an older version, and a standby of a newer one whose catalog it cannot read.
func TestS6_AnOlderActiveBusAndANewerStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, logs := disk.lead(t, "mail")
		spy := &spyStore{}
		catalogsOf(spy)
		second := disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, second, "mail", nil)
		disk.handles(t, second, "audit", nil)
		waits := startLater(t, second)
		time.Sleep(10 * time.Minute)
		requireBlocked(t, waits)
		require.Zero(t, logs.FilterMessage("store failed: the bus restarts").Len())
		require.Equal(t, 1, logs.FilterMessage("catalog of another bus cannot be read").Len())
		tool := disk.tool(t)
		require.True(t, catalog(t, tool).Active, "it reads the other one")
		mustPublish(t, second, "a", "1")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, first)
		requireStarted(t, waits)
		_, err := tool.Catalog(t.Context())
		var unreadable *eventbus.DecodeError
		require.ErrorAs(t, err, &unreadable, "there is no other one")
		shutdown(t, tool)
		shutdown(t, second)
	})
}

// A bus whose Start has failed, and a tool, are no standbys: they have no catalog.
func TestS6_AFailedStartLeavesNoCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Leave) > 0 && fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail")
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			ended := make(chan error, 1)
			go func() { ended <- second.Start(ctx) }()
			time.Sleep(time.Second)
			require.Len(t, disk.Dump().Catalogs, 2)
			require.ErrorIs(t, <-ended, context.DeadlineExceeded)
			cancel()
			for range 10 {
				synctest.Wait()
				require.Len(t, disk.Dump().Catalogs, 1)
				time.Sleep(10 * time.Second)
			}
		}
		tool := disk.tool(t)
		for _, bus := range []*eventbus.Bus{second, tool} {
			fail.Store(true)
			_, err := bus.Publish(t.Context(), "a", "x")
			require.Error(t, err)
			time.Sleep(time.Minute)
			require.Len(t, disk.Dump().Catalogs, 1, "the store was reopened")
		}
		shutdown(t, tool)
		shutdown(t, second)
		shutdown(t, first)
	})
}

// Of three buses, a standby with the same subscriptions as the active bus gets the lease before the one with more. It
// leaves it to that one, and dispatches nothing.
func TestS6_TheLeaseIsLeftToMoreSubscriptions(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.open(t, eventbus.WithStandby())
			mustSubscribe(t, first, "*", eventbus.Typed(func(context.Context, string) error {
				time.Sleep(time.Minute)
				return nil
			}), eventbus.Named("mail"), eventbus.Timeout(time.Hour))
			require.NoError(t, first.Start(t.Context()))
			mustPublish(t, first, "a", "running")
			time.Sleep(time.Second)
			equal, _ := disk.open(t, eventbus.WithStandby())
			disk.handles(t, equal, "mail", func(string, int) error { disk.note("by the equal one"); return nil })
			more, _ := disk.standby(t, "mail", "audit")
			var waits [2]<-chan error
			for _, i := range order {
				waits[i] = startLater(t, []*eventbus.Bus{equal, more}[i])
				time.Sleep(5 * time.Second)
			}
			mustPublish(t, more, "a", "1")
			time.Sleep(2 * time.Minute)
			requireStarted(t, waits[1])
			requireBlocked(t, waits[0])
			require.ElementsMatch(t, []string{"mail 1 1", "audit 1 1"}, disk.took())
			time.Sleep(time.Hour)
			disk.requireLease(t, more, true)
			shutdown(t, more)
			time.Sleep(10 * time.Second)
			disk.requireLease(t, more, false)
			shutdown(t, first)
			requireStarted(t, waits[0])
			shutdown(t, equal)
		})
	}
}

// The lease is not left to a standby that has died, and not for long to one that does not take it.
func TestS6_TheLeaseIsNotLeftForLong(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.open(t, eventbus.WithStandby())
			mustSubscribe(t, first, "*", eventbus.Typed(func(context.Context, string) error {
				time.Sleep(time.Minute)
				return nil
			}), eventbus.Named("mail"), eventbus.Timeout(time.Hour))
			require.NoError(t, first.Start(t.Context()))
			mustPublish(t, first, "a", "running")
			equal, _ := disk.standby(t, "mail")
			waits := startLater(t, equal)
			time.Sleep(time.Second)
			more, _ := disk.standby(t, "mail", "audit")
			startLater(t, more)
			time.Sleep(time.Second)
			if dies {
				disk.crash(more)
				time.Sleep(time.Minute)
			} else {
				time.Sleep(50 * time.Second)
				disk.crash(more)
				time.Sleep(20 * time.Second)
			}
			held := disk.Dump().Lease
			require.NotZero(t, held)
			time.Sleep(time.Minute)
			require.Equal(t, held, disk.Dump().Lease, "it stays where it is")
			shutdown(t, first)
			requireStarted(t, waits)
			shutdown(t, equal)
		})
	}
}

// offsetClock is a clock that differs from the real one.
type offsetClock struct {
	clock.Clock
	by time.Duration
}

func (c offsetClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// The clocks of two processes differ by an hour. Each sees that the other one lives, and gets the lease from it.
func TestS6_ClocksThatDiffer(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.lead(t, "mail")
			shifted := eventbus.WithClock(offsetClock{clock.New(), by})
			equal, _ := disk.open(t, eventbus.WithStandby(), shifted)
			disk.handles(t, equal, "mail", nil)
			waits := startLater(t, equal)
			number := disk.Dump().Catalogs[1].Number
			for range 10 {
				time.Sleep(time.Hour)
				require.Equal(t, number, disk.Dump().Catalogs[1].Number, "its catalog stays")
			}
			mustPublish(t, equal, "a", "1")
			mustPublish(t, equal, "a", "2", eventbus.After(2*time.Hour)) // the delay is wrong by the difference
			time.Sleep(time.Minute)
			require.Equal(t, []string{"mail 1 1"}, disk.took())
			time.Sleep(3 * time.Hour)
			require.Equal(t, []string{"mail 2 1"}, disk.took())

			more, _ := disk.open(t, eventbus.WithStandby(), shifted)
			disk.handles(t, more, "mail", nil)
			disk.handles(t, more, "audit", nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			require.NoError(t, more.Start(ctx))
			disk.requireLease(t, more, true)
			most, _ := disk.standby(t, "mail", "audit", "third")
			require.NoError(t, most.Start(ctx), "the other direction")
			mustPublish(t, first, "a", "3")
			time.Sleep(time.Minute)
			require.ElementsMatch(t, []string{"mail 3 1", "audit 3 1", "third 3 1"}, disk.took())
			for _, bus := range []*eventbus.Bus{equal, first, more, most} {
				shutdown(t, bus)
			}
			require.Error(t, <-waits)
			require.Empty(t, disk.Dump().Records)
		})
	}
}
