package contracttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// The bus catches up while publications that the queue has no room for are still committing.
func TestD8_NothingIsForgottenWhileTheStoreIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: 10 * time.Millisecond}
		}))
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(2))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		for round := range 20 {
			var publishers sync.WaitGroup
			for i := range 6 {
				publishers.Go(func() {
					time.Sleep(time.Duration(i*round) * time.Millisecond)
					_, err := bus.Publish(t.Context(), "a", fmt.Sprint(i), eventbus.Key(fmt.Sprint(i%3)))
					if err != nil {
						t.Error(err)
					}
				})
			}
			publishers.Wait()
			time.Sleep(time.Second)
			require.Len(t, disk.took(), 6)
			require.Empty(t, disk.Dump().Records)
		}
		shutdown(t, bus)
	})
}

// A new event waits until those of an earlier process have been read.
func TestD5_NewEventsDoNotOvertakeThoseOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "mail")
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		mustPublish(t, again, "a", "2", eventbus.Key("k"))
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestS3_StartWithMoreThanTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "old")
		for i := range 10 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		disk.crash(bus)
		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.Empty(t, disk.took())
		mustPublish(t, bus, "a", "10")
		require.Equal(t, []string{"mail 10 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithQueueCapacity(2))
		disk.handles(t, again, "mail", nil)
		disk.handles(t, again, "new", nil, eventbus.Formerly("old"))
		require.NoError(t, again.Start(t.Context()))
		require.Len(t, disk.took(), 10)
		shutdown(t, again)
	})
}

func TestD5_KeysKeepTheirOrderAcrossACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		fails := func(payload string, attempt int) error {
			if payload == "0" && attempt < 3 {
				return errBoom
			}
			return nil
		}
		disk.handles(t, bus, "mail", fails)
		require.NoError(t, bus.Start(t.Context()))
		for i := range 4 {
			mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.Key("k"))
		}
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", fails)
		require.NoError(t, again.Start(t.Context()))
		mustPublish(t, again, "a", "4", eventbus.Key("k"))
		require.Empty(t, disk.took())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 0 3", "mail 1 1", "mail 2 1", "mail 3 1", "mail 4 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestD8_TheDiskIsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1))
		gate := make(chan struct{})
		disk.handles(t, bus, "mail", func(string, int) error { <-gate; return nil })
		require.NoError(t, bus.Start(t.Context()))
		want := map[string][]string{}
		for i := range 100 {
			key := []string{"k", "l"}[i%2]
			mustPublish(t, bus, "a", key+fmt.Sprint(i), eventbus.Key(key))
			want[key] = append(want[key], fmt.Sprintf("mail %s%d 1", key, i))
		}
		require.LessOrEqual(t, bus.Metrics().QueueDepth, 4)
		close(gate)
		got := map[string][]string{}
		for _, call := range disk.took() {
			key := call[len("mail "):][:1]
			got[key] = append(got[key], call)
		}
		require.Equal(t, want, got)
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		l := bus.Metrics().Ledger
		require.Zero(t, l.Stored)
		require.Zero(t, l.Claimed)
		shutdown(t, bus)
	})
}

func TestD8_MaxUnsettledBoundsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDisk().Open()
		_, err := eventbus.New(eventbus.WithStore(store), eventbus.RefuseWhenFull())
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.NoError(t, store.Close(t.Context()))

		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(3))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		for range 3 {
			mustPublish(t, bus, "a", "x", eventbus.Key("k"))
		}
		_, err = bus.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		mustPublish(t, bus, "a", "x", eventbus.Key("k"))
		require.Equal(t, time.Second, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = bus.Publish(ctx, "a", "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithMaxUnsettled(3), eventbus.RefuseWhenFull())
		disk.handles(t, again, "mail", nil)
		_, err = again.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		require.NoError(t, again.Start(t.Context()))
		synctest.Wait()
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		_, err = again.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		time.Sleep(time.Hour + time.Second)
		mustPublish(t, again, "a", "x")
		shutdown(t, again)
		disk.took()
	})
}

// An event without targets settles at once, also if it is scheduled: it takes no room in the store.
func TestD8_AnUnroutedScheduledEventTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1), eventbus.RefuseWhenFull())
		require.NoError(t, bus.Start(t.Context()))
		for range 3 {
			mustPublish(t, bus, "a", "x", eventbus.After(time.Hour))
		}
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "y")
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

// A store denies the lease of some records. The feeder claims nothing while a direct change is on its way: the claim would
// give a denied record before an earlier one of its key, which the bus frees because of the denial.
func TestD5_ADeniedLeaseKeepsTheOrder(t *testing.T) {
	denied := func(r *driver.Record) bool { return string(r.Payload) == `"1"` || string(r.Payload) == `"3"` }
	for wait := range 12 {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk(storetest.WithLeaseDenied(denied), storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
				return storetest.Fault{Delay: 10 * time.Millisecond}
			}))
			bus, _ := disk.open(t)
			disk.handles(t, bus, "mail", nil)
			require.NoError(t, bus.Start(t.Context()))
			time.Sleep(time.Second)
			var published sync.WaitGroup
			for n := 1; n <= 4; n++ {
				published.Go(func() { mustPublish(t, bus, "a", fmt.Sprint(n), eventbus.Key("k")) })
				synctest.Wait()
			}
			time.Sleep(time.Duration(wait) * 5 * time.Millisecond)
			mustSubscribe(t, bus, "none", ok, eventbus.Named("late")) // the feeder is behind meanwhile
			published.Wait()
			time.Sleep(time.Minute)
			require.Equal(t, []string{"mail 1 1", "mail 2 1", "mail 3 1", "mail 4 1"}, disk.took())
			requireBalanced(t, bus)
			shutdown(t, bus)
		})
	}
}
