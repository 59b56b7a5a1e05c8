package contracttest

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// An event whose dispatches were all ended before a call began is forgotten, however many they are, and also before it is due.
func TestV1_AnUntouchedEventOfIsolatedSubscriptionsIsForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		for _, name := range []string{"a", "b"} {
			require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named(name)).Pause())
		}
		require.NoError(t, bus.Start(t.Context()))
		for what, opts := range map[string][]eventbus.PublishOption{"now": nil, "scheduled": {eventbus.After(time.Hour)}} {
			id := eventbus.NewEventID()
			mustPublish(t, bus, "x", nil, append(opts, eventbus.ID(id))...)
			time.Sleep(time.Second)
			r, err := bus.Cancel(t.Context(), id)
			require.NoError(t, err)
			require.True(t, r.Forgotten, "%s: %+v", what, r)
			_, err = bus.Publish(t.Context(), "y", nil, eventbus.ID(id))
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Hour)
		requireBalanced(t, bus)
	}, eventbus.WithIsolation())
}

// The same holds for the deliveries of coupled subscriptions, which were split off. If one of them was handled, it does not.
func TestV1_AnUntouchedEventOfCoupledSubscriptionsIsForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		for _, name := range []string{"a", "b"} {
			require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named(name)).Pause())
		}
		mustSubscribe(t, bus, "handled", ok, eventbus.Named("c"))
		mustSubscribe(t, bus, "fails", failing(errBoom), eventbus.Named("d"), eventbus.Retry(retry(5, time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		for eventType, forgotten := range map[string]bool{"x": true, "handled": false, "fails": false} {
			id := eventbus.NewEventID()
			mustPublish(t, bus, eventType, nil, eventbus.ID(id))
			time.Sleep(time.Second)
			r, err := bus.Cancel(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, forgotten, r.Forgotten, "%s: %+v", eventType, r)
		}
		requireBalanced(t, bus)
	})
}

// With a store, what an observer delays is not settled, and the error must not say so.
func TestV1_WhatAnObserverDelaysIsNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observed, goOn := make(chan struct{}, 1), make(chan struct{})
		observer := eventbus.Observer{AttemptBegun: func(eventbus.Attempt) { observed <- struct{}{}; <-goOn }}
		bus, _ := newDisk().open(t, eventbus.WithObserver(observer))
		var called atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return nil }, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
		<-observed
		_, err := bus.Cancel(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "on its way")
		close(goOn)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, called.Load(), "it goes on, as the error says")
		shutdown(t, bus)
	})
}

// RetryNow whose caller does not wait for the store makes the delivery go on nevertheless.
func TestV2_ACallerThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow, fails atomic.Bool
		fails.Store(true)
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if slow.Load() && len(b.Update) > 0 {
				f.Delay = 3 * time.Second
			}
			return f
		}))
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t)
			disk.handles(t, bus, "mail", func(string, int) error {
				if fails.Load() {
					return errBoom
				}
				return nil
			}, eventbus.Retry(retry(5, 1000*time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		first := open()
		id := mustPublish(t, first, "a", "x")
		time.Sleep(time.Second)
		shutdown(t, first)
		fails.Store(false)
		bus := open()
		time.Sleep(time.Second)
		slow.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := bus.RetryNow(ctx, id)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		slow.Store(false)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 1", "mail x 2"}, disk.took(), "it goes on")
		shutdown(t, bus)
	})
}

// A waiting delivery with a key that the bus has not read from the store yet keeps its place in the order of its key, and is not lost.
func TestV2_OfAKeyThatOnlyTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var fails atomic.Bool
		fails.Store(true)
		release := make(chan struct{})
		open := func(opts ...eventbus.Option) *eventbus.Bus {
			bus, _ := disk.open(t, opts...)
			mustSubscribe(t, bus, "blocks", until(release), eventbus.Named("blocks"), eventbus.Timeout(1000*time.Hour))
			mustSubscribe(t, bus, "keyed", func(_ context.Context, e eventbus.Event) error {
				if fails.Load() {
					return errBoom
				}
				disk.note("keyed %s", e.Key)
				return nil
			}, eventbus.Named("keyed"), eventbus.Retry(retry(5, 10*time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		first := open()
		for range 100 {
			mustPublish(t, first, "blocks", nil)
		}
		id := mustPublish(t, first, "keyed", nil, eventbus.Key("k"))
		time.Sleep(time.Second)
		disk.crash(first)
		fails.Store(false)
		bus := open(eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(10))
		time.Sleep(time.Second)
		_, err := bus.GiveUp(t.Context(), id, eventbus.OfSubscription("blocks"))
		requireNothingLeft(t, err, "it has no delivery to that one")
		_, err = bus.RetryNow(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "others come before it")
		close(release)
		time.Sleep(time.Minute)
		_, err = bus.RetryNow(t.Context(), id)
		require.NoError(t, err)
		time.Sleep(20 * time.Hour)
		require.Equal(t, []string{"keyed k"}, disk.took())
		shutdown(t, bus)
	})
}

// A suspect of crashing the process is found, and the error says why it waits.
func TestV2_ASuspectIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		release := make(chan struct{})
		var ids []eventbus.EventID
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t)
			mustSubscribe(t, bus, "*", until(release), eventbus.Named("s"), eventbus.Timeout(1000*time.Hour))
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		for life := range 3 {
			bus := open()
			if life == 0 {
				for i := range 100 {
					ids = append(ids, mustPublish(t, bus, "x", i))
				}
			}
			time.Sleep(time.Second)
			disk.crash(bus)
			time.Sleep(time.Minute)
		}
		bus := open()
		time.Sleep(time.Second)
		id := ids[99]
		_, err := bus.RetryNow(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "suspected of crashing")
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, r.Deliveries, 1)
		close(release)
		time.Sleep(time.Minute)
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// The parked deliveries of a subscription that is detached are found.
func TestV1_OfADetachedSubscription(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		one, two := mustPublish(t, bus, "x", 1, eventbus.Key("k")), mustPublish(t, bus, "x", 2, eventbus.Key("k"))
		synctest.Wait()
		require.NoError(t, s.Detach())
		_, err := bus.Cancel(t.Context(), one)
		require.NoError(t, err)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("heir"), eventbus.Named("s"))
		require.NoError(t, bus.Subscription("s").Resume())
		time.Sleep(time.Minute)
		require.Len(t, calls.all(), 1)
		_, err = bus.Cancel(t.Context(), two)
		requireNothingLeft(t, err)
		shutdown(t, bus)
	})
}

// A handler in a transaction may cancel its own event.
func TestV1_CancelInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		got := make(chan error, 1)
		disk.handlesInTx(t, bus, "mail", func(ctx context.Context, _ int) error {
			d, _ := eventbus.FromContext(ctx)
			_, err := bus.Cancel(ctx, d.Event.ID)
			got <- err
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		require.NoError(t, <-got)
		require.Equal(t, []string{"mail x 1"}, disk.took(), "its transaction has no effect")
		require.EqualValues(t, 1, bus.Metrics().Ledger.Cancelled)
		shutdown(t, bus)
	})
}

// PublishAndWait of a coupled event of which one delivery is cancelled.
func TestV4_PublishAndWaitOfASplitDelivery(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		require.NoError(t, bus.Start(t.Context()))
		mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, eventbus.Named("hangs"), eventbus.Timeout(time.Hour))
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { time.Sleep(time.Minute); return nil }, eventbus.Named("last"), eventbus.Timeout(time.Hour))
		id := eventbus.NewEventID()
		got := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(context.WithoutCancel(t.Context()), "x", nil, eventbus.ID(id))
			got <- err
		}()
		time.Sleep(time.Second)
		_, err := bus.Cancel(t.Context(), id, eventbus.OfSubscription("hangs"))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.ErrorIs(t, <-got, eventbus.ErrCancelled, "a nil error says that every target has handled the event")
		shutdown(t, bus)
	})
}

// While one Cancel finds nothing, because another one has it, that one's order stands.
func TestV1_TwoCancelsOfWhatIsOnItsWay(t *testing.T) {
	ofManyEvents(t)
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			observed, goOn := make(chan struct{}, 1), make(chan struct{})
			observer := eventbus.Observer{AttemptBegun: func(a eventbus.Attempt) { observed <- struct{}{}; <-goOn }}
			bus, _ := newBus(t, eventbus.WithObserver(observer), eventbus.WithIsolation())
			var called atomic.Int64
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return nil }, eventbus.Named("s"))
			require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("paused")).Pause())
			require.NoError(t, bus.Start(t.Context()))
			id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
			<-observed
			time.Sleep(time.Second)
			for range 2 {
				go func() { _, _ = bus.Cancel(context.WithoutCancel(t.Context()), id) }()
			}
			time.Sleep(time.Second)
			close(goOn)
			time.Sleep(time.Second)
			require.Zero(t, called.Load())
			shutdown(t, bus)
		})
	}
}

// The delivery that Probe names is cancelled before it has probed: another one probes, and the circuit closes.
func TestV2_AProbeThatNeverComes(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		release := make(chan struct{})
		mustSubscribe(t, bus, "blocks", until(release), eventbus.Named("blocks"), eventbus.Timeout(time.Hour))
		s := mustSubscribe(t, bus, "x", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Trip())
		var ids []eventbus.EventID
		for range 3 {
			ids = append(ids, mustPublish(t, bus, "x", nil))
		}
		synctest.Wait()
		mustPublish(t, bus, "blocks", nil)
		synctest.Wait()
		_, err := bus.RetryNow(t.Context(), ids[1], eventbus.Probe())
		require.NoError(t, err)
		_, err = bus.Cancel(t.Context(), ids[1])
		require.NoError(t, err)
		close(release)
		time.Sleep(time.Second)
		require.NoError(t, bus.Drain(t.Context()))
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "s").Circuit)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Handled)
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// The quota has room again after each action, wherever the event was.
func TestV1_TheQuotaHasRoomAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newDisk().open(t, eventbus.WithMaxUnsettled(6))
		require.NoError(t, mustSubscribe(t, bus, "x", ok, eventbus.Named("s")).Pause())
		mustSubscribe(t, bus, "w", failing(errBoom), eventbus.Named("w"), eventbus.Retry(retry(5, time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 20 {
			for _, opts := range [][]eventbus.PublishOption{{}, {eventbus.After(time.Hour)}} {
				for _, eventType := range []string{"x", "w", "x"} {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					id, err := bus.Publish(ctx, eventType, nil, opts...)
					cancel()
					require.NoError(t, err, "%d", i)
					time.Sleep(time.Millisecond)
					act := bus.Cancel
					if i%2 == 0 {
						act = bus.GiveUp
					}
					_, err = act(t.Context(), id)
					require.NoError(t, err)
				}
			}
		}
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// What waits behind a running call of its key when an isolated subscription ends becomes a letter at once: no action would find it.
func TestV1_NothingWaitsAtASubscriptionThatHasEnded(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		release := make(chan struct{})
		sub := mustSubscribe(t, bus, "*", until(release), eventbus.Named("mail"), eventbus.Timeout(1000*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "runs", eventbus.Key("k"))
		time.Sleep(time.Second)
		var behind []eventbus.EventID
		for range 3 {
			behind = append(behind, mustPublish(t, bus, "x", "waits", eventbus.Key("k")))
		}
		time.Sleep(time.Second)
		sub.Unsubscribe()
		time.Sleep(time.Second)
		for _, id := range behind {
			status, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			require.Empty(t, status.Dispatches)
			require.Equal(t, eventbus.ReasonUnsubscribed, status.Letters.Letters[0].Reason)
			_, err = bus.Cancel(t.Context(), id)
			requireNothingLeft(t, err)
		}
		close(release)
		time.Sleep(time.Second)
		require.Len(t, letters(t, bus), len(behind))
		requireBalanced(t, bus)
	}, eventbus.WithIsolation())
}

// What the order of a Cancel has ended after it had returned is no end of the next Cancel.
func TestV1_ASecondCancelReportsWhatItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observed, goOn := make(chan struct{}, 1), make(chan struct{})
		observer := eventbus.Observer{AttemptBegun: func(eventbus.Attempt) { observed <- struct{}{}; <-goOn }}
		bus, _ := newBus(t, eventbus.WithObserver(observer), eventbus.WithIsolation())
		mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
		require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("paused")).Pause())
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
		<-observed
		time.Sleep(time.Second)
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{"paused parked done"}, found(r))
		close(goOn)
		time.Sleep(time.Second)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Cancelled)
		r, err = bus.Cancel(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrSettled)
		require.Empty(t, r.Deliveries)
		shutdown(t, bus)
	})
}

// While no bus dispatches, nothing takes an event in: it is no use to try again at once.
func TestV3_AnIncomingEventWhileNoBusDispatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		id := mustPublish(t, bus, "a", "1") // before Start
		tool := disk.tool(t)
		_, err := tool.GiveUp(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "no bus has taken it in; start one")
		_, err = tool.Cancel(t.Context(), id, eventbus.OfSubscription("mail"))
		require.ErrorContains(t, err, "or cancel the whole event")
		_, err = tool.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Empty(t, disk.took())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// The process that has asked to cancel one delivery of several does not wait any more, so the batch is submitted again. After a crash
// that delivery is not repeated.
func TestV4_APartOfARequestThatWasTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Answer) > 0 {
				refused.Add(1)
				f.Delay = 2 * time.Second
			}
			return f
		}))
		calls := &journal[string]{}
		open := func(b eventbus.Handler) *eventbus.Bus {
			bus, _ := disk.open(t)
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				calls.add("a")
				return errBoom
			}, eventbus.Named("a"), eventbus.Retry(retry(5, time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
			mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
				calls.add("b")
				return b(ctx, e)
			}, eventbus.Named("b"), eventbus.Timeout(time.Hour))
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		bus := open(until(nil))
		id := mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second)
		tool := disk.tool(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := tool.Cancel(ctx, id, eventbus.OfSubscription("a"))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, refused.Load())
		require.Equal(t, []string{"a", "b"}, calls.all())
		require.EqualValues(t, 1, bus.Metrics().Ledger.Cancelled)
		disk.crash(bus)
		bus = open(ok)
		time.Sleep(24 * time.Hour)
		require.Equal(t, []string{"a", "b", "b"}, calls.all())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// When a bus acquires the lease, it carries out the requests to the bus before it. RetryNow lets a waiting delivery run under that lease,
// before later ones of its key.
func TestV2_RetryNowIsCarriedOutAtATakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		earlier, _ := disk.open(t, eventbus.WithRetry(retry(5, 10*time.Hour)))
		disk.handles(t, earlier, "mail", func(string, int) error { return errBoom })
		start(t, earlier)
		id := mustPublish(t, earlier, "a", "x", eventbus.Key("k"))
		time.Sleep(time.Second)
		shutdown(t, earlier)
		first, process := disk.stopped(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		require.Equal(t, []string{"mail x 1"}, disk.took())

		process.stop()
		tool := disk.tool(t)
		answer := make(chan error, 1)
		go func() {
			_, err := tool.RetryNow(t.Context(), id)
			answer <- err
		}()
		time.Sleep(time.Second)
		disk.Kill(process.Store)
		require.NoError(t, <-answer)
		process.goOn()
		require.NoError(t, <-waits)
		mustPublish(t, second, "a", "y", eventbus.Key("k"))
		require.Equal(t, []string{"mail x 2", "mail y 1"}, disk.took())
		shutdown(t, tool)
		shutdown(t, second)
		disk.crash(first)
	})
}

// After a crash the records that an event has left do not tell that an isolated subscription has handled it.
func TestV1_AnEventThatAnEarlierProcessHandledIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t)
			for _, name := range []string{"a", "b"} {
				require.NoError(t, disk.handles(t, bus, name, nil).Pause())
			}
			disk.handles(t, bus, "alone", nil, eventbus.Isolated())
			start(t, bus)
			return bus
		}
		first := open()
		once := []eventbus.PublishOption{eventbus.ID(eventbus.NewEventID()), eventbus.IdempotencyKey("k")}
		id := mustPublish(t, first, "x", "1", once...)
		require.Equal(t, []string{"alone 1 1"}, disk.took())
		disk.crash(first)

		bus := open()
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.False(t, r.Forgotten)
		mustPublish(t, bus, "x", "1", once...)
		time.Sleep(time.Minute)
		require.Empty(t, disk.took(), "it is a repetition")
		shutdown(t, bus)
	})
}

// A delivery that was split off from a dispatch that has handled the event does not stand for that dispatch.
func TestV1_APartOfAHandledDispatchIsNoUntouchedEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("alone"), eventbus.Isolated()).Pause())
		mustSubscribe(t, bus, "*", ok, eventbus.Named("handles"))
		require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("waits")).Pause())
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
		time.Sleep(time.Second)
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{"alone parked done", "waits parked done"}, found(r))
		require.False(t, r.Forgotten)
		requireBalanced(t, bus)
	})
}
