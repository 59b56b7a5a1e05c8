package contracttest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// A store failure may interrupt the dead-lettering of deliveries whose subscription has ended.
func TestR5_ARemovedSubscriptionLeavesNothingInAStoreThatFails(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := false
				disk := newDisk(storetest.WithFaults(func(_ int, b *eventbus.Batch) (f storetest.Fault) {
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
		var slow atomic.Bool
		disk := newDisk(storetest.WithClaimFaults(func(int, eventbus.ClaimQuery) (f storetest.Fault) {
			if slow.Load() {
				f.Delay = time.Second
			}
			return f
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "old", nil)
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		bus, _ = disk.open(t)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait() // x is parked
		slow.Store(true)
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
		disk.handles(t, bus, "old", nil)
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		bus, _ = disk.open(t)
		require.NoError(t, disk.handles(t, bus, "new", nil, eventbus.Formerly("old")).Pause())
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		shutdown(t, bus)

		bus, _ = disk.open(t)
		disk.handles(t, bus, "old", nil)
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
		disk := newDisk(storetest.WithFaults(func(_ int, b *eventbus.Batch) (f storetest.Fault) {
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
			disk.handles(t, bus, "mail", nil)
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
