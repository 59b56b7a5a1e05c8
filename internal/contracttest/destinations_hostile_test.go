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

// When a slow call of a subscription ends, the share of the workers goes to the next destination that waits, although other
// events keep all workers busy.
func TestD13_ShareOfTheWorkersIsPassedOn(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithConcurrency(4), eventbus.WithRetry(retry(3, 2*time.Second)))
		s := newShips("quick")
		mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
			switch p.To {
			case "slow":
				time.Sleep(10 * time.Second)
			case "slower":
				time.Sleep(10 * time.Minute)
			}
			return s.handle(ctx, p)
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Timeout(time.Hour))
		mustSubscribe(t, bus, "noise", func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil },
			eventbus.Named("noise"), eventbus.Timeout(time.Hour), eventbus.Concurrency(eventbus.Unlimited))
		start(t, bus)
		mustPublish(t, bus, "ship", shipment{"quick", 1})
		time.Sleep(time.Second)
		s.set("quick", nil)
		mustPublish(t, bus, "ship", shipment{"slow", 1})
		mustPublish(t, bus, "ship", shipment{"slower", 2})
		time.Sleep(100 * time.Millisecond)
		for i := range 2 {
			mustPublish(t, bus, "noise", i)
		}
		for i := range 8 {
			mustPublish(t, bus, "noise", i)
		}
		for i := range 4 * 60 { // as many as the workers do
			mustPublish(t, bus, "noise", i)
			time.Sleep(250 * time.Millisecond)
		}
		require.Len(t, s.at("slow"), 1)
		require.Empty(t, s.at("slower"))
		require.Positive(t, bus.Metrics().QueueDepth)
		require.Len(t, s.at("quick"), 1)
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// Deliveries behind the first of their key are held when that one is held at another destination.
func TestD13_FollowersAreHeldAsTheFirstIs(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		s := newShips()
		sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
			if p.To == "busy" {
				time.Sleep(10 * time.Second)
			}
			return s.handle(ctx, p)
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Concurrency(1))
		start(t, bus)
		require.NoError(t, sub.Destination("paused").Pause())
		mustPublish(t, bus, "ship", shipment{"busy", 0})
		time.Sleep(time.Second)
		mustPublish(t, bus, "ship", shipment{"busy", 1}, eventbus.Key("k"))
		mustPublish(t, bus, "ship", shipment{"paused", 2}, eventbus.Key("k"))
		time.Sleep(time.Second)
		waited := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := bus.PublishAndWait(ctx, "ship", shipment{"free", 3}, eventbus.Key("k"))
			waited <- err
		}()
		time.Sleep(time.Minute)
		require.Len(t, s.at("busy"), 2)
		select {
		case err := <-waited:
			require.ErrorIs(t, err, eventbus.ErrHeld)
		default:
			require.Fail(t, "still waits")
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, bus.Drain(ctx))
		_, err := bus.PublishAndWait(ctx, "ship", shipment{"free", 4}, eventbus.Key("k"))
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, 3, metricsOf(t, bus, "ships").Held)
		require.NoError(t, sub.Destination("paused").Resume())
		time.Sleep(time.Second)
		require.Equal(t, []int{3, 4}, s.at("free"))
		shutdown(t, bus)
	})
}

// With a store too, each delivery beyond the bound of all lines ends one, and no more.
func TestD13_AFullSubscriptionLosesNoMoreThanItMust(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		s := newShips()
		sub := s.subscribe(t, bus, eventbus.LineCapacity(5))
		start(t, bus)
		for i := range 20 {
			require.NoError(t, sub.Destination(fmt.Sprint("p", i)).Pause())
		}
		for i := range 4 {
			for to := range 20 {
				mustPublish(t, bus, "ship", shipment{fmt.Sprint("p", to), i})
			}
		}
		time.Sleep(time.Second)
		require.Equal(t, 50, metricsOf(t, bus, "ships").Held)
		require.Len(t, letters(t, bus), 30)
		for i := range 20 {
			require.NoError(t, sub.Destination(fmt.Sprint("p", i)).Resume())
		}
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// What a Throttle or HoldUntil has ended does not keep a destination from being forgotten.
func TestD13_DestinationsAreIdleAgain(t *testing.T) {
	for name, quiet := range map[string]func(t *testing.T, sub *eventbus.Subscription, to string){
		"throttled": func(*testing.T, *eventbus.Subscription, string) {},
		"hold until": func(t *testing.T, sub *eventbus.Subscription, to string) {
			require.NoError(t, sub.Destination(to).HoldUntil(time.Now().Add(time.Second)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				began := time.Now()
				sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
					if name == "throttled" && time.Since(began) < time.Second {
						return eventbus.Throttle(errBoom, time.Second)
					}
					return nil
				}), eventbus.Named("ships"), eventbus.PerDestination(byAddress))
				require.NoError(t, sub.Destination("kept").Pause())
				for i := range eventbus.MaxDestinations - 1 {
					mustPublish(t, bus, "ship", shipment{fmt.Sprint("old", i), i})
				}
				require.NoError(t, bus.Drain(t.Context()))
				for i := range eventbus.MaxDestinations - 1 {
					quiet(t, sub, fmt.Sprint("old", i)) // no delivery comes afterwards that would find it over
				}
				time.Sleep(time.Hour)
				for i := range 100 {
					mustPublish(t, bus, "ship", shipment{fmt.Sprint("new", i), i})
				}
				require.NoError(t, bus.Drain(t.Context()))
				require.Zero(t, metricsOf(t, bus, "ships").Destinations.Shared)
				mustPublish(t, bus, "ship", shipment{"kept", 1})
				time.Sleep(time.Second)
				require.Equal(t, 1, metricsOf(t, bus, "ships").Held, "a pause that lasts")
				require.NoError(t, sub.Destination("kept").Resume())
				require.NoError(t, bus.Drain(t.Context()))
				shutdown(t, bus)
			})
		})
	}
}

// A tool does not know whether a subscription has destinations. An order to one that it does not have is not one to all.
func TestD13_AnOrderToADestinationOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		var calls callTimes
		mustSubscribe(t, bus, "ship", func(context.Context, eventbus.Event) error { calls.add(0); return nil }, eventbus.Named("plain"))
		start(t, bus)
		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		err := tool.Subscription("plain").Destination("a").Pause()
		mustPublish(t, bus, "ship", 1)
		time.Sleep(time.Second)
		require.Equal(t, 1, calls.len())
		require.ErrorContains(t, err, "needs PerDestination")

		// One that comes later.
		require.NoError(t, tool.Subscription("ships").Destination("a").Pause())
		s := newShips()
		s.subscribe(t, bus)
		mustPublish(t, bus, "ship", shipment{"a", 1})
		mustPublish(t, bus, "ship", shipment{"b", 1})
		time.Sleep(time.Second)
		require.Empty(t, s.at("a"))
		require.Len(t, s.at("b"), 1)
		shutdown(t, bus)
	})
}

// After a pause of all, a slow destination does not hold up the others.
func TestD13_SlowDestinationAfterAPauseOfAll(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithConcurrency(1000))
		s := newShips()
		sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
			if p.To == "slow" {
				time.Sleep(20 * time.Second)
			}
			return s.handle(ctx, p)
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress))
		start(t, bus)
		require.NoError(t, sub.Pause())
		for i := range 200 {
			mustPublish(t, bus, "ship", shipment{"slow", i})
		}
		mustPublish(t, bus, "ship", shipment{"quick", 1})
		time.Sleep(time.Second)
		require.NoError(t, sub.Resume())
		time.Sleep(10 * time.Second)
		require.Len(t, s.at("quick"), 1)
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// A delivery that has left for its own destination does not keep the one where it waited from probing.
func TestD13_AVisitorElsewhereBlocksNoProbe(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(0, time.Second)))
		s := newShips("dead")
		mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
			if p.To == "slow" {
				time.Sleep(10 * time.Minute)
			}
			return s.handle(ctx, p)
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Timeout(time.Hour))
		start(t, bus)
		for range 4 {
			mustPublish(t, bus, "ship", shipment{"dead", -1})
		}
		time.Sleep(time.Second)
		mustPublish(t, bus, "ship", shipment{"dead", 1}, eventbus.Key("k"))
		mustPublish(t, bus, "ship", shipment{"slow", 2}, eventbus.Key("k"))
		mustPublish(t, bus, "ship", shipment{"dead", 3})
		time.Sleep(40 * time.Second) // 1 has probed and died, 2 is at the slow one
		s.set("dead", nil)
		time.Sleep(2 * time.Minute)
		require.Equal(t, []int{3}, s.at("dead"))
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// As TestD13_FollowersAreHeldAsTheFirstIs, of one line.
func TestF6_FollowersOfASleeper(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			time.Sleep(10 * time.Second)
			if e.Key != "" {
				return eventbus.Snooze(24 * time.Hour)
			}
			return nil
		}, eventbus.Named("s"), eventbus.Concurrency(1))
		start(t, bus)
		mustPublish(t, bus, "a", 0)
		time.Sleep(time.Second)
		mustPublish(t, bus, "a", 1, eventbus.Key("k"))
		mustPublish(t, bus, "a", 2, eventbus.Key("k"))
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, bus.Drain(ctx))
	})
}

// With a store, Drain does not wait for what sleeps either.
func TestF6_DrainLeavesSleepersInTheStore(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mustSubscribe(t, bus, "a", failing(eventbus.Snooze(24*time.Hour)), eventbus.Named("s"))
		start(t, bus)
		mustPublish(t, bus, "a", 0)
		mustPublish(t, bus, "a", 1, eventbus.Key("k"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, bus.Drain(ctx))
		require.Equal(t, 2, metricsOf(t, bus, "s").Snoozed)
	})
}

// With a store, memory keeps about ten lines' worth of the parked deliveries of all destinations, also after a restart.
func TestD13_MemoryIsBoundedWithAStore(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		const places, each, bound = 120, 1000, 10 * eventbus.DefaultLineCapacity
		bus, _ := disk.open(t)
		s := newShips()
		sub := s.subscribe(t, bus)
		start(t, bus)
		for i := range places {
			require.NoError(t, sub.Destination(fmt.Sprint("p", i)).Pause())
		}
		for range each {
			var batch []eventbus.Publication
			for i := range places {
				batch = append(batch, eventbus.Publication{Type: "ship", Payload: shipment{fmt.Sprint("p", i), i}})
			}
			_, err := bus.PublishBatch(t.Context(), batch)
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		held := metricsOf(t, bus, "ships").Held
		require.Less(t, held, bound+bound/20)
		require.Greater(t, held, bound/2)
		shutdown(t, bus)

		bus, _ = disk.open(t)
		sub = s.subscribe(t, bus)
		start(t, bus)
		mustPublish(t, bus, "ship", shipment{"free", 1})
		time.Sleep(time.Minute)
		held = metricsOf(t, bus, "ships").Held
		require.Less(t, held, bound+bound/20)
		require.Len(t, s.at("free"), 1)
		for i := range places {
			require.NoError(t, sub.Destination(fmt.Sprint("p", i)).Resume())
		}
		require.NoError(t, bus.Drain(t.Context()))
		for i := range places {
			require.Len(t, s.at(fmt.Sprint("p", i)), each)
		}
		shutdown(t, bus)
	})
}

// A delivery that waits behind one of its key, at the destination of that one, has its whole time for retries after that.
func TestD13_TheTimeBehindAKeyIsNoTimeOfRetries(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		s := newShips()
		sub := s.subscribe(t, bus, eventbus.Retry(eventbus.MaxRetries(3), eventbus.BaseDelay(time.Second), eventbus.MaxElapsed(30*time.Minute)))
		start(t, bus)
		require.NoError(t, sub.Destination("a").Pause())
		mustPublish(t, bus, "ship", shipment{"a", 1}, eventbus.Key("k"))
		synctest.Wait()
		mustPublish(t, bus, "ship", shipment{"b", 2}, eventbus.Key("k"))
		s.set("b", errBoom)
		time.Sleep(time.Hour)
		require.NoError(t, sub.Destination("a").Resume())
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, s.callsTo("b"))
		s.set("b", nil)
		time.Sleep(time.Minute)
		require.Empty(t, letters(t, bus))
		require.Equal(t, []int{2}, s.at("b"))
		shutdown(t, bus)
	})
}

// The bound of all lines holds although the longest of them has only deliveries that wait for their retries.
func TestD13_AllLinesTogetherAreBoundedWhileTheLongestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, silent(eventbus.WithDeadLetterCapacity(10_000))...)
		s := newShips("retries")
		sub := s.subscribe(t, bus, eventbus.LineCapacity(10), eventbus.Concurrency(1), eventbus.Circuit(eventbus.NoCircuit()),
			eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(24*time.Hour), eventbus.MaxDelay(24*time.Hour), eventbus.NoJitter))
		require.NoError(t, sub.Destination("retries").Pause()) // they take their places in the line, and keep them
		for i := range 10 {
			mustPublish(t, bus, "ship", shipment{"retries", i})
		}
		synctest.Wait()
		require.NoError(t, sub.Destination("retries").Resume())
		synctest.Wait()
		require.Equal(t, 10, bus.Metrics().WaitingRetries)
		const more, each = 30, 9
		for i := range more * each {
			to := fmt.Sprint("paused", i%more)
			require.NoError(t, sub.Destination(to).Pause())
			mustPublish(t, bus, "ship", shipment{to, i})
		}
		synctest.Wait()
		is := metricsOf(t, bus, "ships")
		require.LessOrEqual(t, is.Held, 100)
		require.GreaterOrEqual(t, is.Held, 90)
		require.Len(t, letters(t, bus), more*each-is.Held)
		sub.Unsubscribe()
		time.Sleep(48 * time.Hour)
		requireBalanced(t, bus)
	})
}
