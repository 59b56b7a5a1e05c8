package contracttest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
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
		slow(t, bus, "old")
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

// Start recovers within its context, and can be repeated.
func TestS1_StartRecoversWithinItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithClaimFaults(func(int, driver.ClaimQuery) storetest.Fault {
			return storetest.Fault{Delay: time.Minute}
		}))
		bus, _ := disk.open(t)
		slow(t, bus, "mail")
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, again.Start(ctx), context.DeadlineExceeded)
		require.Empty(t, disk.took())
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestS3_AMissingSubscriptionHoldsItsOwnDeliveriesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "old", "mail")
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 0 1", "mail 1 1"}, disk.took())
		disk.handles(t, again, "new", nil, eventbus.Formerly("old"))
		mustPublish(t, again, "a", "2", eventbus.Key("k"))
		require.Equal(t, []string{"new 0 1", "new 1 1", "mail 2 1", "new 2 1"}, disk.took())
		shutdown(t, again)
	})
}

// Deliveries of a missing subscription are counted by its name, apart from those that are held, and
// also if an earlier process has parked them.
func TestS3_OrphansAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "old", "former", "mail")
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1")
		disk.crash(bus)
		orphans := map[string]int64{"old": 2, "former": 2}
		for range 2 {
			bus, _ = disk.open(t)
			mail := disk.handles(t, bus, "mail", nil)
			require.NoError(t, mail.Pause())
			require.NoError(t, bus.Start(t.Context()))
			time.Sleep(time.Minute)
			m := bus.Metrics()
			require.Equal(t, orphans, m.Orphaned)
			require.EqualValues(t, 6, m.Store.Parked)
			shutdown(t, bus)
			require.Equal(t, orphans, bus.Metrics().Orphaned, "the last known counts")
		}
		require.Empty(t, disk.took())

		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		disk.handles(t, bus, "new", nil, eventbus.Formerly("former"))
		time.Sleep(time.Minute)
		require.Equal(t, map[string]int64{"old": 2}, bus.Metrics().Orphaned)
		disk.handles(t, bus, "old", nil).Unsubscribe() // its deliveries are handled or dead-lettered
		time.Sleep(time.Minute)
		require.Empty(t, bus.Metrics().Orphaned)
		shutdown(t, bus)
		disk.took()
	})
}

func TestS3_AnEventThatCrashesTheProcessIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		const events = 200
		for i := range events {
			payload := fmt.Sprint("fine ", i)
			if i == 120 {
				payload = "poison"
			}
			mustPublish(t, bus, "a", payload, eventbus.Key(fmt.Sprint(i%5)))
		}
		shutdown(t, bus)

		handled := map[string]int{}
		crashes := 0
		var letters []eventbus.DeadLetter
		for alive := true; alive; {
			bus, _ := disk.open(t, eventbus.WithConcurrency(4))
			dead := false // guarded by disk.mu
			mustSubscribe(t, bus, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
				time.Sleep(time.Millisecond)
				disk.mu.Lock()
				if payload == "poison" && !dead {
					dead = true
					disk.Crash()
				}
				if !dead {
					handled[payload]++
				}
				ended := dead
				disk.mu.Unlock()
				if ended {
					<-ctx.Done()
				}
				return nil
			}), eventbus.Named("mail"))
			require.NoError(t, bus.Start(t.Context()))
			time.Sleep(time.Minute)
			disk.mu.Lock()
			alive = dead
			disk.mu.Unlock()
			if alive {
				crashes++
				require.Less(t, crashes, 10)
				disk.crash(bus)
				time.Sleep(time.Hour)
				continue
			}
			letters = append(letters, oneLetter(t, bus))
			shutdown(t, bus)
		}
		require.Equal(t, 5, crashes, "twice in traffic, then in groups of 64, 8 and 1")
		require.Len(t, letters, 1)
		require.Equal(t, eventbus.ReasonCrash, letters[0].Reason)
		require.JSONEq(t, `"poison"`, string(letters[0].Event.Payload.(json.RawMessage)))
		require.Len(t, handled, events-1)
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

// A suspect whose attempt ends without a crash is none any more, for the next process too.
func TestS3_AnAttemptEndsTheSuspicionInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "x")
		shutdown(t, bus)
		for range 2 {
			bus, _ = disk.open(t)
			disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Hour); return nil })
			require.NoError(t, bus.Start(t.Context()))
			disk.took()
			disk.crash(bus)
			time.Sleep(time.Hour)
		}

		bus, _ = disk.open(t, eventbus.WithRetry(retry(1, time.Hour)))
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		require.Equal(t, []string{"mail x 1"}, disk.took())
		r := disk.Dump().Records[0]
		require.Equal(t, driver.Waiting, r.State)
		require.False(t, r.Suspect)
		require.Zero(t, r.Crashes)
		disk.crash(bus)
	})
}

func TestS3_StartDuringARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) (f storetest.Fault) {
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
