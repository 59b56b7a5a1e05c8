package contracttest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/wallclock"
)

// Deliveries behind one of their key that waits for a dead destination take no place that those of another one, or of all, need:
// neither those that have waited for the subscription as a whole, nor those that have waited at the other one.
func TestD13_FollowersOfADeadDestinationHoldNoOther(t *testing.T) {
	t.Run("after a pause of all", func(t *testing.T) {
		ofManyEvents(t)
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newDisk().open(t)
			s := newShips()
			sub := s.subscribe(t, bus)
			start(t, bus)
			require.NoError(t, sub.Pause())
			require.NoError(t, sub.Destination("dead").Pause())
			const dead, well = eventbus.DefaultLineCapacity * 6 / 10, eventbus.DefaultLineCapacity // the store has a part of them
			publish := func(n int, to string, opts ...eventbus.PublishOption) {
				for first := range n / 1000 {
					var batch []eventbus.Publication
					for i := range 1000 {
						batch = append(batch, eventbus.Publication{Type: "ship", Payload: shipment{to, 1000*first + i}, Options: opts})
					}
					_, err := bus.PublishBatch(t.Context(), batch)
					require.NoError(t, err)
				}
			}
			publish(dead, "dead", eventbus.Key("k"))
			publish(well, "well")
			time.Sleep(time.Second)
			require.NoError(t, sub.Resume())
			time.Sleep(time.Minute)
			require.Len(t, s.at("well"), well)
			require.Empty(t, s.at("dead"))
			require.NoError(t, sub.Destination("dead").Resume())
			require.NoError(t, bus.Drain(t.Context()))
			require.Len(t, s.at("dead"), dead)
			require.True(t, slices.IsSorted(s.at("dead")))
			shutdown(t, bus)
		})
	})
	t.Run("publishers do not wait for them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			s := newShips()
			for _, slow := range []string{"slow", "slower"} {
				s.set(slow, eventbus.Throttle(errBoom, time.Hour))
			}
			sub := s.subscribe(t, bus, eventbus.LineCapacity(8), eventbus.MaxThrottle(time.Hour))
			require.NoError(t, sub.Pause())
			for i := range 8 {
				mustPublish(t, bus, "ship", shipment{[]string{"slow", "slower"}[i%2], i}, eventbus.Key(fmt.Sprint(i%2)))
			}
			time.Sleep(time.Second)
			require.NoError(t, sub.Resume())
			for i := range 3 {
				time.Sleep(time.Second)
				mustPublish(t, bus, "ship", shipment{"slow", 8 + i}, eventbus.Key("0"))
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := bus.Publish(ctx, "ship", shipment{"well", 0})
			require.NoError(t, err, "those of the others wait at their destinations")
			synctest.Wait()
			require.Equal(t, []int{0}, s.at("well"))
			for _, slow := range []string{"slow", "slower"} {
				s.set(slow, nil)
			}
			require.NoError(t, bus.Drain(t.Context()))
			require.Len(t, s.at("slow"), 7)
			require.Len(t, s.at("slower"), 4)
			shutdown(t, bus)
		})
	})
	t.Run("retries after a pause of all", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			s := newShips("dead")
			sub := s.subscribe(t, bus, eventbus.LineCapacity(3), eventbus.Retry(eventbus.MaxRetries(9), eventbus.BaseDelay(time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
			require.NoError(t, sub.Pause())
			for i := range 3 {
				mustPublish(t, bus, "ship", shipment{"dead", i}, eventbus.Key(fmt.Sprint(i%2)))
			}
			time.Sleep(time.Second)
			require.NoError(t, sub.Resume())
			time.Sleep(time.Second)
			require.Equal(t, 2, s.callsTo("dead"))
			require.NoError(t, sub.Pause())
			for i := range 3 {
				mustPublish(t, bus, "ship", shipment{"well", i})
			}
			time.Sleep(time.Second)
			require.Empty(t, letters(t, bus), "what waits for its next attempt has its place at its destination")
			require.NoError(t, sub.Resume())
			time.Sleep(time.Second)
			require.Len(t, s.at("well"), 3)
			shutdown(t, bus)
		})
	})
	t.Run("at another destination", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			s := newShips()
			sub := s.subscribe(t, bus, eventbus.LineCapacity(3))
			require.NoError(t, sub.Destination("dead").Pause())
			require.NoError(t, sub.Destination("well").Pause())
			for i, to := range []string{"well", "dead", "dead"} {
				mustPublish(t, bus, "ship", shipment{to, i}, eventbus.Key("k"))
			}
			time.Sleep(time.Second)
			require.NoError(t, sub.Destination("well").Resume())
			time.Sleep(time.Second)
			require.Equal(t, []int{0}, s.at("well"))
			require.NoError(t, sub.Destination("well").Pause())
			for i := range 3 {
				mustPublish(t, bus, "ship", shipment{"dead", 3 + i}, eventbus.Key("k")) // they wait where the first of the key has waited
				mustPublish(t, bus, "ship", shipment{"well", 1 + i})
			}
			time.Sleep(time.Second)
			require.Empty(t, letters(t, bus))
			require.NoError(t, sub.Destination("well").Resume())
			require.NoError(t, sub.Destination("dead").Resume())
			require.NoError(t, bus.Drain(t.Context()))
			require.Equal(t, []int{0, 1, 2, 3}, s.at("well"))
			require.Equal(t, []int{1, 2, 3, 4, 5}, s.at("dead"))
			shutdown(t, bus)
		})
	})
}

// A subscription that is made after Start gets what waits for it in the order of its key, wherever it has waited.
func TestD13_ASubscriptionThatComesLateKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		s := newShips()
		other := mustSubscribe(t, bus, "ship.of.two", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("other"))
		var order journal[int]
		ships := func(opts ...eventbus.SubscribeOption) *eventbus.Subscription {
			return mustSubscribe(t, bus, "**", eventbus.Typed(func(ctx context.Context, p shipment) error {
				order.add(p.N)
				return s.handle(ctx, p)
			}), append([]eventbus.SubscribeOption{eventbus.Named("ships"), eventbus.PerDestination(byAddress)}, opts...)...)
		}
		sub := ships()
		start(t, bus)
		require.NoError(t, other.Pause())
		require.NoError(t, sub.Destination("dead").Pause())
		mustPublish(t, bus, "ship", shipment{"dead", 1}, eventbus.Key("k"))
		mustPublish(t, bus, "ship.of.two", shipment{"well", 2}, eventbus.Key("k"))
		time.Sleep(time.Second)
		shutdown(t, bus)

		bus, _ = disk.open(t)
		other = mustSubscribe(t, bus, "ship.of.two", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("other"), eventbus.Isolated())
		start(t, bus)
		time.Sleep(time.Second)
		sub = ships()
		time.Sleep(time.Minute)
		require.Empty(t, order.all())
		require.NoError(t, sub.Destination("dead").Resume())
		require.NoError(t, other.Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Equal(t, []int{1, 2}, order.all())
		shutdown(t, bus)
	})
}

// The destination of the next target is that of no other, when the record of a coupled event is divided because a subscription is missing.
func TestD13_ADestinationIsThatOfOneTarget(t *testing.T) {
	for _, missing := range []string{"a", "b"} {
		t.Run(missing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				fails, asked := true, journal[string]{}
				subscribe := func(name string, opts ...eventbus.SubscribeOption) {
					mustSubscribe(t, bus, "ship", func(context.Context, eventbus.Event) error {
						if fails {
							return errBoom
						}
						return nil
					}, append(opts, eventbus.Named(name), eventbus.Retry(eventbus.MaxRetries(3), eventbus.BaseDelay(time.Hour)),
						eventbus.PerDestination(func(eventbus.Event) string {
							asked.add(name)
							return "of " + name
						}))...)
				}
				subscribe("a")
				subscribe("b")
				start(t, bus)
				mustPublish(t, bus, "ship", 1, eventbus.Key("k"))
				time.Sleep(time.Second)
				require.Equal(t, []string{"a"}, asked.all())
				shutdown(t, bus)
				fails = false

				bus, _ = disk.open(t)
				for _, name := range []string{"a", "b"} {
					if name != missing {
						subscribe(name)
					}
				}
				start(t, bus)
				time.Sleep(2 * time.Hour)
				subscribe(missing)
				time.Sleep(2 * time.Hour)
				require.Equal(t, []string{"a", "b"}, asked.all(), "once for each delivery")
				require.Empty(t, disk.Dump().Records)
				shutdown(t, bus)
			})
		})
	}
}

// If the wall clock was set back before a restart, the whole snooze begins anew, also if the subscription comes late: it is not
// late by as much as the clock.
func TestF6_TheClockWasSetBack(t *testing.T) {
	for _, comesLate := range []bool{false, true} {
		t.Run(fmt.Sprint(comesLate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk, c := newDisk(), wallclock.New()
				var calls atomic.Int64
				open := func() *eventbus.Bus {
					bus, _ := disk.open(t, eventbus.WithClock(c))
					return bus
				}
				subscribe := func(bus *eventbus.Bus) {
					disk.handles(t, bus, "mail", func(string, int) error {
						if calls.Add(1) == 1 {
							return eventbus.Snooze(time.Minute)
						}
						return nil
					})
				}
				bus := open()
				subscribe(bus)
				start(t, bus)
				id := mustPublish(t, bus, "a", "1", eventbus.Key("k"))
				time.Sleep(time.Second)
				disk.crash(bus)
				c.Advance(-24 * time.Hour)

				bus = open()
				if !comesLate {
					subscribe(bus)
				}
				start(t, bus)
				if comesLate {
					time.Sleep(time.Second)
					subscribe(bus)
				}
				time.Sleep(30 * time.Second)
				require.EqualValues(t, 1, calls.Load())
				status, err := bus.Event(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, eventbus.ParkSnoozed, status.Dispatches[0].Parked)
				require.Equal(t, 1, status.Dispatches[0].Snoozes)
				time.Sleep(time.Minute)
				require.EqualValues(t, 2, calls.Load())
				shutdown(t, bus)
			})
		})
	}
}

// A line that is full of a destination's own deliveries, and one that is full of others' that wait there behind one of their key.
func TestD13_LinesOfOwnDeliveriesAndOthers(t *testing.T) {
	run := func(name string, behind int, to string, test func(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription, s *ships), opts ...eventbus.SubscribeOption) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				s := newShips()
				sub := s.subscribe(t, bus, append(opts, eventbus.LineCapacity(2))...)
				waitBehindADeadOne(t, bus, sub, behind, to)
				for i := range 2 {
					publishSoon(t, bus, shipment{"a", 1 + i})
				}
				test(t, bus, sub, s)
				require.NoError(t, sub.Destination("dead").Resume())
				require.NoError(t, sub.Destination("a").Resume())
				require.NoError(t, bus.Drain(t.Context()))
				shutdown(t, bus)
			})
		})
	}
	run("one more that waits for another", 1, "well", func(t *testing.T, bus *eventbus.Bus, _ *eventbus.Subscription, _ *ships) {
		publishSoon(t, bus, shipment{"well", 2000}, eventbus.Key("k"))
		require.Empty(t, letters(t, bus), "its destination has an empty line")
	})
	run("the oldest is dropped", 4, "well", func(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription, s *ships) {
		for i := range 4 {
			publishSoon(t, bus, shipment{"a", 3 + i})
		}
		require.NoError(t, sub.Destination("dead").Resume())
		require.NoError(t, sub.Destination("a").Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Equal(t, []int{1000, 1001, 1002, 1003}, s.at("well"), "nothing waits for it")
		require.Equal(t, []int{0, 5, 6}, s.at("a"))
	}, eventbus.DropOldestWhenFull)
	run("all lines are full", 19, "dead", func(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription, s *ships) {
		require.NoError(t, sub.Destination("a").Resume())
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 1, 2}, s.at("a"), "2 have waited, with a line of 2")
		require.Len(t, letters(t, bus), 2)
	})
}

// publishSoon publishes a shipment, and lets it come to its door.
func publishSoon(t *testing.T, bus *eventbus.Bus, p shipment, opts ...eventbus.PublishOption) {
	t.Helper()
	mustPublish(t, bus, "ship", p, opts...)
	time.Sleep(time.Millisecond)
}

// waitBehindADeadOne makes n deliveries wait at "a" behind one of their key that waits for "dead". Both are paused then.
func waitBehindADeadOne(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription, n int, to string) {
	t.Helper()
	require.NoError(t, sub.Destination("dead").Pause())
	require.NoError(t, sub.Destination("a").Pause())
	publishSoon(t, bus, shipment{"a", 0}, eventbus.Key("k"))
	publishSoon(t, bus, shipment{"dead", 0}, eventbus.Key("k"))
	require.NoError(t, sub.Destination("a").Resume())
	time.Sleep(time.Second)
	for i := range n {
		publishSoon(t, bus, shipment{to, 1000 + i}, eventbus.Key("k"))
	}
	require.NoError(t, sub.Destination("a").Pause())
}
