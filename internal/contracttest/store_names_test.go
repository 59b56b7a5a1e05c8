package contracttest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A subscription that is made while the bus runs gets the stored deliveries of all its names in their
// order, and new ones behind them.
func TestD5_AdoptionKeepsTheOrderOfAKey(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated %v", isolated), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				options := []eventbus.Option{eventbus.WithQueueCapacity(6)} // a page has three records
				if isolated {
					options = append(options, eventbus.WithIsolation())
				}
				var want []string
				publish := func(bus *eventbus.Bus, n int) {
					for range n {
						payload := fmt.Sprint(len(want))
						mustPublish(t, bus, "a", payload, eventbus.Key("k"))
						want = append(want, fmt.Sprintf("newest %s 1", payload))
					}
				}
				for _, names := range [][]string{{"old", "new"}, {"new", "old"}, {"old", "new"}} { // there and back
					bus, _ := disk.open(t, options...)
					s := disk.handles(t, bus, names[0], nil, eventbus.Formerly(names[1:]...))
					disk.handles(t, bus, "other", nil)
					require.NoError(t, s.Pause())
					publish(bus, 4)
					disk.crash(bus)
				}
				bus, _ := disk.open(t, options...)
				require.NoError(t, bus.Start(t.Context()))
				require.Empty(t, disk.took(), "its subscription is missing")
				newest := disk.handles(t, bus, "newest", func(string, int) error { time.Sleep(time.Millisecond); return nil },
					eventbus.Formerly("new", "old"))
				require.NoError(t, newest.Resume())
				for range 50 {
					publish(bus, 1)
					time.Sleep(time.Millisecond / 2)
				}
				time.Sleep(time.Second)
				require.Equal(t, want, disk.took())
				shutdown(t, bus)
			})
		})
	}
}

// A delivery that an earlier process has held keeps its place in the order of its key, if a subscription before it is isolated now.
func TestD5_TheOrderOfHeldOnesBehindOneThatIsIsolatedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		calls := newCallLog()
		open := func(opts ...eventbus.SubscribeOption) (*eventbus.Bus, []*eventbus.Subscription) {
			bus, _ := disk.open(t)
			mail := mustSubscribe(t, bus, "a", ok, append(opts, eventbus.Named("mail"))...)
			audit := mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, n int) error {
				calls.add(fmt.Sprint(n))
				return nil
			}), eventbus.Named("audit"))
			require.NoError(t, bus.Start(t.Context()))
			return bus, []*eventbus.Subscription{mail, audit}
		}
		bus, subs := open()
		for _, sub := range subs {
			require.NoError(t, sub.Pause())
		}
		mustPublish(t, bus, "a", 1, eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)

		bus, subs = open(eventbus.Isolated())
		mustPublish(t, bus, "a", 2, eventbus.Key("k"))
		time.Sleep(time.Minute)
		require.NoError(t, subs[1].Resume())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"1", "2"}, calls.all())
		shutdown(t, bus)
	})
}

// A subscription that has handled an event in an earlier process is isolated now. The coupled one after it keeps its order.
func TestD5_TheOrderOfCoupledOnesBehindOneThatIsIsolatedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"))
		mustSubscribe(t, bus, "a", failing(eventbus.RetryAfter(errBoom, time.Hour)), eventbus.Named("audit"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", 1, eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)

		bus, _ = disk.open(t)
		calls := newCallLog()
		mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"), eventbus.Isolated())
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, n int) error {
			calls.add(fmt.Sprint(n))
			return nil
		}), eventbus.Named("audit"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", 2, eventbus.Key("k"))
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"1", "2"}, calls.all())
		shutdown(t, bus)
	})
}

// A process with isolation recovers the records of one without, and the other way round.
func TestD5_IsolationMayChangeBetweenProcesses(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated %v", isolated), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				with := map[bool][]eventbus.Option{true: {eventbus.WithIsolation()}}
				bus, _ := disk.open(t, with[!isolated]...)
				slow(t, bus, "mail", "audit")
				for i := range 3 {
					mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.Key("k"))
				}
				disk.crash(bus)

				bus, _ = disk.open(t, with[isolated]...)
				disk.handles(t, bus, "mail", func(payload string, attempt int) error {
					if payload == "0" && attempt == 1 {
						return errBoom
					}
					return nil
				})
				disk.handles(t, bus, "audit", nil)
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "3", eventbus.Key("k"))
				took := disk.took()
				if isolated { // a failure at mail holds up nothing at audit
					require.ElementsMatch(t, []string{"mail 0 1", "audit 0 1", "audit 1 1", "audit 2 1", "audit 3 1"}, took)
				} else {
					require.ElementsMatch(t, []string{"mail 0 1"}, took)
				}
				time.Sleep(time.Minute)
				took = append(took, disk.took()...)
				for _, name := range []string{"mail", "audit"} {
					var at []string
					for _, call := range took {
						var s, payload string
						var attempt int
						_, err := fmt.Sscan(call, &s, &payload, &attempt)
						require.NoError(t, err)
						if s == name && (payload != "0" || name == "audit" || attempt == 2) {
							at = append(at, payload)
						}
					}
					require.Equal(t, []string{"0", "1", "2", "3"}, at, name)
				}
				require.Empty(t, disk.Dump().Records)
				require.True(t, bus.Metrics().Ledger.Balanced(), "%+v", bus.Metrics().Ledger)
				require.Zero(t, bus.Metrics().Ledger.Stored)
				shutdown(t, bus)
			})
		})
	}
}

// A retry is not early because its subscription was missing meanwhile.
func TestS3_ARetryOfAMissingSubscriptionKeepsItsDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		slow := eventbus.WithRetry(retry(2, time.Hour))
		bus, _ := disk.open(t, slow)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.Key("k"))
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		time.Sleep(time.Minute)
		bus, _ = disk.open(t, slow)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, bus.Metrics().Store.Parked)
		disk.handles(t, bus, "mail", nil)
		time.Sleep(57 * time.Minute)
		require.Empty(t, disk.took())
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"mail x 2"}, disk.took())
		shutdown(t, bus)
	})
}

// A scheduled event that becomes due while one of its subscriptions is missing waits for that one
// only.
func TestS3_AScheduledEventOfAMissingSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "mail", "audit")
		mustPublish(t, bus, "a", "x", eventbus.After(time.Hour))
		disk.crash(bus)

		bus, _ = disk.open(t)
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"audit x 1"}, disk.took())
		require.EqualValues(t, 1, bus.Metrics().Ledger.Stored)
		disk.handles(t, bus, "mail", nil)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.True(t, bus.Metrics().Ledger.Balanced(), "%+v", bus.Metrics().Ledger)
		require.Zero(t, bus.Metrics().Ledger.Stored)
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

// With isolation, a letter of a process without it is replayed to each of its subscriptions.
func TestL3_AnIsolatedBusReplaysALetterForSeveralSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errBoom)))
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, bus)

		bus, _ = disk.open(t, eventbus.WithIsolation())
		disk.handles(t, bus, "mail", nil)
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		disk.crash(bus) // the records alone must do

		bus, _ = disk.open(t, eventbus.WithIsolation())
		disk.handles(t, bus, "mail", nil)
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.ElementsMatch(t, []string{"mail x 1", "audit x 1"}, disk.took())
		shutdown(t, bus)
	})
}
