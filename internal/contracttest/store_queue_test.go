package contracttest

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// The bus catches up while publications that the queue has no room for are still committing.
func TestD8_NothingIsForgottenWhileTheStoreIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *eventbus.Batch) storetest.Fault {
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
		disk.handles(t, bus, "mail", nil)
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

// A line that has room again takes the deliveries in the store before new ones.
func TestD5_NewDeliveriesDoNotOvertakeThoseInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mail := disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Millisecond); return nil })
		require.NoError(t, mail.Pause())
		require.NoError(t, bus.Start(t.Context()))
		var want []string
		publish := func() {
			payload := fmt.Sprint(len(want))
			mustPublish(t, bus, "a", payload, eventbus.Key("k"))
			want = append(want, fmt.Sprintf("mail %s 1", payload))
		}
		for range eventbus.DefaultLineCapacity + 2000 {
			publish()
		}
		require.NoError(t, mail.Resume())
		for range 15 {
			time.Sleep(time.Second)
			publish()
		}
		time.Sleep(time.Minute)
		require.Equal(t, want, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}
