package contracttest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

func TestS3_ASplitDeliveryIsNotMadeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		held := disk.handles(t, bus, "held", nil)
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Minute); return nil })
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, held.Pause())
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.NoError(t, held.Resume())
		time.Sleep(time.Second)
		require.Equal(t, []string{"held x 1"}, disk.took())
		disk.crash(bus)
		time.Sleep(time.Hour)

		again, _ := disk.open(t)
		disk.handles(t, again, "held", nil)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, again)
	})
}

func TestS3_AnOrphanDoesNotHoldUpItsKeyElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "old", nil)
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		disk.handles(t, again, "old", nil)
		require.Equal(t, []string{"old 0 1", "old 1 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestS3_ARenamedSubscriptionKeepsItsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var bus *eventbus.Bus
		for i, name := range []string{"old", "new", ""} {
			bus, _ = disk.open(t)
			switch name {
			case "old":
				disk.handles(t, bus, name, always(errBoom))
				mustPublish(t, bus, "a", "x", eventbus.Key("k"))
			case "new":
				disk.handles(t, bus, name, always(errBoom), eventbus.Formerly("old"))
			}
			require.NoError(t, bus.Start(t.Context()))
			time.Sleep(100 * time.Millisecond)
			if name != "" {
				require.Equal(t, []string{fmt.Sprintf("%s x %d", name, i+1)}, disk.took())
				disk.crash(bus)
				time.Sleep(time.Minute)
			}
		}
		require.Empty(t, disk.took(), "its subscription is missing")
		disk.handles(t, bus, "newest", always(errBoom), eventbus.Formerly("old", "new"))
		require.Equal(t, []string{"newest x 3"}, disk.took())
		l := oneLetter(t, bus)
		require.Equal(t, 3, l.Attempts)
		require.Len(t, l.Failures, 3)
		shutdown(t, bus)
	})
}

func TestD7_AnIndeterminateEventWithoutTargetsSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *eventbus.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Second}
		}))
		bus, _ := disk.open(t)
		require.NoError(t, bus.Start(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "x", eventbus.ID(eventbus.NewEventID()))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		shutdown(t, bus)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		require.EqualValues(t, 1, l.Unrouted)
	})
}

func TestD7_CancelReportsAFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *eventbus.Batch) (f storetest.Fault) {
			if n == 2 {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", "x", eventbus.After(time.Hour))
		require.Error(t, bus.Cancel(t.Context(), id))
		time.Sleep(time.Minute)
		require.NoError(t, bus.Cancel(t.Context(), id))
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

func TestS3_StartWithMoreThanTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "old", nil)
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

func TestS2_APublicationDuringShutdownDoesNotOvertakeARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *eventbus.Batch) (f storetest.Fault) {
			if n == 3 {
				f.Delay = time.Second
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithRetry(retry(2, time.Hour)))
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		go func() { _, _ = bus.Publish(t.Context(), "a", "1", eventbus.Key("k")) }()
		synctest.Wait()
		shutdown(t, bus)
		require.Empty(t, disk.took())
		require.Len(t, disk.Dump().Records, 2)
	})
}

// Deliveries that no handler runs for at the crashes are no suspects.
func TestS3_CrashesElsewhereKillNoInnocentDelivery(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits ", waits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				for life := range 8 {
					bus, _ := disk.open(t)
					mail := disk.handles(t, bus, "mail", func(_ string, attempt int) error {
						if attempt == 1 {
							return eventbus.RetryAfter(errBoom, time.Hour)
						}
						return nil
					})
					if !waits && life == 0 {
						require.NoError(t, mail.Pause())
					}
					require.NoError(t, bus.Start(t.Context()))
					if life == 0 {
						mustPublish(t, bus, "a", "x", eventbus.Key("k"))
					}
					time.Sleep(time.Second)
					disk.crash(bus)
				}
				bus, _ := disk.open(t)
				mail := disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				require.NoError(t, mail.Resume())
				time.Sleep(2 * time.Hour)
				require.Empty(t, letters(t, bus))
				require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
				shutdown(t, bus)
				disk.took()
			})
		})
	}
}

func TestS3_StartDuringARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *eventbus.Batch) (f storetest.Fault) {
			if n == 2 {
				f.Kind = storetest.FailAfter
			}
			return f
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		_, err := bus.Publish(t.Context(), "a", "1", eventbus.Key("k"))
		require.ErrorIs(t, err, storetest.ErrInjected)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		mustPublish(t, bus, "a", "2", eventbus.Key("k"))
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, bus)
	})
}
