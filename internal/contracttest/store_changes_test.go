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
	"github.com/surebus/eventbus/storetest"
)

// A store failure may interrupt the dead-lettering of deliveries whose subscription has ended.
func TestR5_ARemovedSubscriptionLeavesNothingInAStoreThatFails(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := false
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.Bury) > 0 && !failed {
						failed = true
						f.Kind = kind
					}
					return f
				}))
				bus, _ := disk.open(t)
				mail := disk.handles(t, bus, "mail", nil)
				require.NoError(t, mail.Pause())
				require.NoError(t, bus.Start(t.Context()))
				for i := range 3 {
					mustPublish(t, bus, "a", fmt.Sprint(i))
				}
				synctest.Wait()
				mail.Unsubscribe()
				time.Sleep(time.Minute)
				require.Len(t, letters(t, bus), 3)
				require.Empty(t, disk.Dump().Records)
				shutdown(t, bus)
			})
		})
	}
}

// Another subscription may take the name of one that has ended, without its former names.
func TestR5_DeliveriesOfAFormerNameAreDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Bool
		disk := newDisk(storetest.WithClaimFaults(func(int, driver.ClaimQuery) (f storetest.Fault) {
			if late.Load() {
				f.Delay = time.Second
			}
			return f
		}))
		bus, _ := disk.open(t)
		slow(t, bus, "old")
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		bus, _ = disk.open(t)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait() // x is parked
		late.Store(true)
		disk.handles(t, bus, "first", nil)
		synctest.Wait() // a claim is in progress
		s := disk.handles(t, bus, "mail", nil, eventbus.Formerly("old"))
		s.Unsubscribe()
		disk.handles(t, bus, "mail", nil)
		time.Sleep(time.Minute)
		require.Empty(t, disk.took())
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

// A delivery that was parked after a rename goes to the name that it was published for, if the next
// process has that name again.
func TestS3_ARenameMayBeUndoneWhileDeliveriesAreParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "old")
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		bus, _ = disk.open(t)
		require.NoError(t, disk.handles(t, bus, "new", nil, eventbus.Formerly("old")).Pause())
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		shutdown(t, bus)

		bus, _ = disk.open(t)
		require.NoError(t, disk.handles(t, bus, "old", nil).Resume())
		require.NoError(t, bus.Start(t.Context()))
		require.Equal(t, []string{"old x 1"}, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

// A process with isolation settles a record without targets that are left.
func TestS3_AnIsolatedBusSettlesARecordWhoseTargetsAreDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crashed := false
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Delete) > 0 && !crashed {
				crashed, f.Kind = true, storetest.CrashBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, disk.handles(t, bus, "mail", nil).Pause())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"audit x 1"}, disk.took())
		disk.crash(bus)
		require.Len(t, disk.Dump().Records, 2)

		bus, _ = disk.open(t, eventbus.WithIsolation(), eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "audit", nil)
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Resume())
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

// The feeder may claim before the workers run, when a full queue refuses.
func TestS3_ABacklogLargerThanTheQueueIsRecovered(t *testing.T) {
	for range 100 { // it is a race
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			slow(t, bus, "mail")
			for i := range 5 {
				mustPublish(t, bus, "a", fmt.Sprint(i))
			}
			disk.crash(bus)
			bus, _ = disk.open(t, eventbus.WithQueueCapacity(2))
			disk.handles(t, bus, "mail", nil)
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			require.Empty(t, disk.Dump().Records)
			shutdown(t, bus)
		})
	}
}

// lateStore calls done late. The store has the batch before.
type lateStore struct {
	driver.Store
	late func(b *driver.Batch) time.Duration
}

func (s *lateStore) Submit(b *driver.Batch, done func(error)) {
	late := s.late(b)
	s.Store.Submit(b, func(err error) {
		time.Sleep(late)
		done(err)
	})
}

// The feeder may claim a copy of an event, and the copy may be held, before the store calls back about
// the event.
func TestD7_ACopyIsHeldBeforeTheStoreCallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		inner := storetest.NewModel(storetest.WithClaimFaults(func(int, driver.ClaimQuery) (f storetest.Fault) {
			if slow.Load() {
				f.Delay = time.Millisecond
			}
			return f
		})).Open()
		store := &lateStore{inner, func(b *driver.Batch) (late time.Duration) {
			if len(b.New) == 2 {
				late = 10 * time.Millisecond
			}
			return late
		}}
		bus, _ := newBus(t, eventbus.WithStore(store), eventbus.WithIsolation())
		handler := func(context.Context, eventbus.Event) error { return nil }
		mail := mustSubscribe(t, bus, "*", handler, eventbus.Named("mail"))
		mustSubscribe(t, bus, "b", handler, eventbus.Named("audit"))
		require.NoError(t, mail.Pause())
		require.NoError(t, bus.Start(t.Context()))
		for range eventbus.DefaultLineCapacity + 1 {
			mustPublish(t, bus, "a", nil)
		}
		synctest.Wait()
		slow.Store(true)
		mustSubscribe(t, bus, "c", handler, eventbus.Named("third")) // new events wait in the store for a claim
		r, err := bus.PublishAndWait(t.Context(), "b", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, []string{"mail"}, r.Held)
		shutdown(t, bus)
	})
}

// Shutdown leaves a part of an event to the store, which ends the wait for the event. Another delivery
// is split off later.
func TestS2_AnEventIsSplitAfterItsWaitHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "first", func(payload string, _ int) error {
			time.Sleep(time.Second)
			if payload == "x" {
				return errBoom
			}
			return nil
		}, eventbus.Concurrency(1))
		disk.handles(t, bus, "slow", func(string, int) error { time.Sleep(4 * time.Second); return nil })
		paused := mustSubscribe(t, bus, "wait", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("paused"))
		require.NoError(t, paused.Pause())
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "busy")
		synctest.Wait()
		down := make(chan error, 1)
		go func() {
			time.Sleep(2500 * time.Millisecond) // x waits for its retry at first, and runs at slow
			down <- bus.Shutdown(context.Background())
		}()
		r, err := bus.PublishAndWait(t.Context(), "wait", "x")
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		require.Equal(t, eventbus.Stored, r.Outcome)
		require.NoError(t, <-down)
		requireBalanced(t, bus)
	})
}

// PublishAndWait waits for the event, and not for a replay of one of its deliveries.
func TestD7_AReplayIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIsolation(), eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if payload == "x" {
				return eventbus.Permanent(errBoom)
			}
			time.Sleep(time.Second)
			return nil
		})
		disk.handles(t, bus, "audit", func(payload string, attempt int) error {
			if payload == "x" && attempt == 1 {
				return errBoom
			}
			return nil
		}, eventbus.Retry(retry(2, time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		fallBehind := func() {
			for i := range 6 {
				mustPublish(t, bus, "a", fmt.Sprint(i))
			}
			require.True(t, bus.Metrics().Behind)
		}
		fallBehind()
		var returned atomic.Bool
		go func() {
			_, _ = bus.PublishAndWait(t.Context(), "a", "x")
			returned.Store(true)
		}()
		time.Sleep(time.Minute)
		fallBehind()
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		time.Sleep(time.Minute)
		require.False(t, returned.Load(), "audit has not handled it")
		time.Sleep(time.Hour)
		require.True(t, returned.Load())
		shutdown(t, bus)
	})
}
