package contracttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// numbers notes the payloads of a subscription, which are numbers.
type numbers struct {
	journal[string]
	before func(ctx context.Context, n int) error // what the handler does first; nil for nothing
}

// subscribe makes a subscription of a name that notes its calls: the handler, the payload and the attempt.
func (n *numbers) subscribe(bus *eventbus.Bus, name, handler string, opts ...eventbus.SubscribeOption) (*eventbus.Subscription, error) {
	return bus.Subscribe("*", eventbus.Typed(func(ctx context.Context, payload int) error {
		delivery, _ := eventbus.FromContext(ctx)
		n.add(fmt.Sprintf("%s %d %d", handler, payload, delivery.Attempt))
		if n.before != nil {
			return n.before(ctx, payload)
		}
		return nil
	}), append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
}

func (n *numbers) mustSubscribe(t *testing.T, bus *eventbus.Bus, name, handler string, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	s, err := n.subscribe(bus, name, handler, opts...)
	require.NoError(t, err)
	return s
}

// took returns the calls so far, and clears them.
func (n *numbers) took() []string {
	time.Sleep(time.Millisecond)
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.entries
	n.entries = nil
	return all
}

// blocking makes the handler of a payload wait until the channel is closed.
func blocking(payload int, release <-chan struct{}) func(context.Context, int) error {
	return func(_ context.Context, n int) error {
		if n == payload {
			<-release
		}
		return nil
	}
}

func TestD14_DetachHoldsUntilAnotherTakesOver(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		calls := &numbers{before: blocking(0, release)}
		first := calls.mustSubscribe(t, bus, "mail", "first", eventbus.Timeout(time.Hour))
		start(t, bus)
		mustPublish(t, bus, "placed", 0, eventbus.Key("k"))
		require.Equal(t, []string{"first 0 1"}, calls.took())
		mustPublish(t, bus, "placed", 1, eventbus.Key("k"))

		require.NoError(t, first.Detach())
		require.NoError(t, first.Detach(), "it is detached")
		require.True(t, first.Exists())
		require.True(t, first.Detached())
		id := mustPublish(t, bus, "placed", 2)
		mustPublish(t, bus, "placed", 3, eventbus.Key("k"))
		result, err := bus.PublishAndWait(t.Context(), "placed", 4)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, []string{"mail"}, result.Held)
		require.Equal(t, eventbus.ParkDetached, onlyDispatch(t, bus, id).Parked)
		m := metricsOf(t, bus, "mail")
		require.True(t, m.Detached)
		require.Equal(t, eventbus.ParkDetached, m.ShutBy)
		require.Empty(t, calls.took())

		second := calls.mustSubscribe(t, bus, "mail", "second", eventbus.Timeout(time.Hour))
		require.ElementsMatch(t, []string{"second 2 1", "second 4 1"}, calls.took(), "the call of the key still runs")
		require.False(t, metricsOf(t, bus, "mail").Detached)
		require.Len(t, bus.Metrics().Subscriptions, 1)
		close(release)
		require.Equal(t, []string{"second 1 1", "second 3 1"}, calls.took())

		require.False(t, first.Exists())
		require.ErrorIs(t, first.Detach(), eventbus.ErrNoSubscription)
		require.ErrorIs(t, first.Pause(), eventbus.ErrNoSubscription)
		first.Unsubscribe() // of the earlier component: it ends nothing
		mustPublish(t, bus, "placed", 5)
		require.Equal(t, []string{"second 5 1"}, calls.took())
		require.Same(t, second, bus.Subscription("mail"))
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

// A running call keeps its place in the limit, and in the line.
func TestD14_RunningCallsKeepTheirPlaces(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(2, time.Second)))
		release := make(chan struct{})
		fails := errBoom
		calls := &numbers{before: func(_ context.Context, n int) error {
			if n == 0 {
				<-release
			}
			if n == 1 {
				return fails
			}
			return nil
		}}
		first := calls.mustSubscribe(t, bus, "mail", "first", eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		start(t, bus)
		mustPublish(t, bus, "placed", 1, eventbus.Key("k"))
		require.Equal(t, []string{"first 1 1"}, calls.took())
		mustPublish(t, bus, "placed", 0)
		require.Equal(t, []string{"first 0 1"}, calls.took())
		require.NoError(t, first.Detach())
		mustPublish(t, bus, "placed", 2, eventbus.Key("k"))
		mustPublish(t, bus, "placed", 3)
		time.Sleep(10 * time.Second) // the retry is due
		require.Empty(t, calls.took())

		fails = nil
		calls.mustSubscribe(t, bus, "mail", "second", eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		require.Empty(t, calls.took(), "the call of the first one runs")
		close(release)
		got := calls.took()
		require.ElementsMatch(t, []string{"second 1 2", "second 2 1", "second 3 1"}, got)
		require.Less(t, slices.Index(got, "second 1 2"), slices.Index(got, "second 2 1"), "of one key")
		shutdown(t, bus)
	})
}

// A successor has a limit below the number of calls that run: no further one begins before it has room.
func TestD14_ALimitBelowWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var began callTimes
		began.since = time.Now()
		slow := func(context.Context, eventbus.Event) error {
			began.add(time.Since(began.since))
			time.Sleep(10 * time.Second)
			return nil
		}
		first := mustSubscribe(t, bus, "a", slow, eventbus.Named("a"), eventbus.Concurrency(4))
		for range 7 {
			mustPublish(t, bus, "a", 1)
		}
		time.Sleep(time.Second)
		require.NoError(t, first.Detach())
		mustSubscribe(t, bus, "a", slow, eventbus.Named("a"), eventbus.Concurrency(1))
		time.Sleep(8 * time.Second)
		require.Equal(t, 4, metricsOf(t, bus, "a").Running)
		shutdown(t, bus)
		at := began.all()
		require.Len(t, at, 7)
		for i, want := range []float64{0, 0, 0, 0, 10, 20, 30} {
			require.InDelta(t, want, at[i].Seconds(), 0.1)
		}
	})
}

func TestD14_AFullLineOfADetachedSubscription(t *testing.T) {
	for name, want := range map[string]int{"memory": 3, "store": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var bus *eventbus.Bus
				if name == "store" {
					bus, _ = newDisk().open(t)
				} else {
					bus, _ = newBus(t)
				}
				calls := &numbers{}
				first := calls.mustSubscribe(t, bus, "mail", "first", eventbus.LineCapacity(2))
				start(t, bus)
				require.NoError(t, first.Detach())
				for i := range 5 {
					mustPublish(t, bus, "placed", i)
				}
				time.Sleep(time.Second)
				dead := letters(t, bus)
				require.Len(t, dead, want)
				for _, l := range dead {
					require.Equal(t, eventbus.ReasonOverflow, l.Reason)
				}
				calls.mustSubscribe(t, bus, "mail", "second", eventbus.LineCapacity(2))
				time.Sleep(time.Second)
				require.Len(t, calls.took(), 5-want)
				shutdown(t, bus)
			})
		})
	}
}

// The pattern, the options and other names may change. What an operator has ordered stays; the circuit begins closed.
func TestD14_TheSuccessorsOptionsApply(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(0, time.Second)))
		calls := &numbers{before: func(context.Context, int) error { return errBoom }}
		first := calls.mustSubscribe(t, bus, "mail", "first", eventbus.Circuit(eventbus.MinEvents(1), eventbus.OpenFor(time.Hour)))
		start(t, bus)
		mustPublish(t, bus, "placed", 0)
		calls.took()
		require.Equal(t, eventbus.CircuitOpen, metricsOf(t, bus, "mail").Circuit)
		require.NoError(t, first.Pause(eventbus.By("ann")))
		require.NoError(t, first.Detach())
		mustPublish(t, bus, "placed", 1)
		require.Empty(t, calls.took())

		calls.before = func(ctx context.Context, _ int) error { <-ctx.Done(); return nil }
		second, err := bus.Subscribe("other", func(ctx context.Context, _ eventbus.Event) error {
			calls.add("second")
			<-ctx.Done()
			return ctx.Err()
		}, eventbus.Named("post"), eventbus.Formerly("mail"), eventbus.Timeout(time.Minute))
		require.NoError(t, err)
		require.Empty(t, calls.took())
		m := metricsOf(t, bus, "post")
		require.True(t, m.Paused)
		require.Equal(t, eventbus.CircuitClosed, m.Circuit)
		require.NoError(t, second.Resume())
		require.Equal(t, []string{"second"}, calls.took())
		time.Sleep(59 * time.Second)
		require.Len(t, letters(t, bus), 1)
		time.Sleep(2 * time.Second)
		require.Len(t, letters(t, bus), 2, "after the second one's timeout")
		mustPublish(t, bus, "placed", 2)
		require.Empty(t, calls.took(), "it does not match any more")
		require.Same(t, second, bus.Subscription("mail"))
		shutdown(t, bus)
	})
}

func TestD14_WhoMayTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := &numbers{}
		mail := calls.mustSubscribe(t, bus, "mail", "mail")
		post := calls.mustSubscribe(t, bus, "post", "post", eventbus.Isolated())
		require.NoError(t, mail.Detach())
		mustPublish(t, bus, "placed", 1)
		require.Equal(t, []string{"post 1 1"}, calls.took())

		_, err := calls.subscribe(bus, "mail", "x", eventbus.Isolated())
		requireOptionError(t, err, "Isolated")
		_, err = calls.subscribe(bus, "mail", "x", eventbus.PerDestination(func(eventbus.Event) string { return "" }))
		requireOptionError(t, err, "PerDestination")
		_, err = calls.subscribe(bus, "post", "x", eventbus.Formerly("mail"))
		require.ErrorIs(t, err, eventbus.ErrDuplicateName)
		require.NoError(t, post.Detach())
		_, err = calls.subscribe(bus, "post", "x", eventbus.Formerly("mail"), eventbus.Isolated())
		require.ErrorIs(t, err, eventbus.ErrDuplicateName, "two lines")
		require.Equal(t, 1, metricsOf(t, bus, "mail").Held)

		calls.mustSubscribe(t, bus, "mail", "again")
		require.Equal(t, []string{"again 1 1"}, calls.took())
		post.Unsubscribe()
		require.ErrorIs(t, post.Detach(), eventbus.ErrNoSubscription)
		require.False(t, post.Detached())
		tool, _ := newDisk().open(t, eventbus.WithoutHandlers())
		require.ErrorIs(t, tool.Subscription("mail").Detach(), eventbus.ErrNoHandlers)
		shutdown(t, bus)
	})
}

func TestD14_DestinationsAreTakenOver(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		calls := &numbers{before: blocking(0, release)}
		each := eventbus.PerDestination(func(e eventbus.Event) string { return e.Type })
		first := calls.mustSubscribe(t, bus, "mail", "first", each, eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		start(t, bus)
		mustPublish(t, bus, "x", 0)
		mustPublish(t, bus, "x", 1)
		require.Equal(t, []string{"first 0 1"}, calls.took())
		require.NoError(t, first.Detach())
		mustPublish(t, bus, "x", 2)
		mustPublish(t, bus, "y", 3)
		require.Empty(t, calls.took())
		calls.mustSubscribe(t, bus, "mail", "second", each, eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		require.Equal(t, []string{"second 3 1"}, calls.took())
		close(release)
		require.Equal(t, []string{"second 1 1", "second 2 1"}, calls.took())
		shutdown(t, bus)
	})
}

// Detach ends with the process: the next one decides by its subscriptions.
func TestD14_ADetachedSubscriptionAfterARestart(t *testing.T) {
	for _, crash := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			calls := &numbers{}
			require.NoError(t, calls.mustSubscribe(t, bus, "mail", "first", eventbus.LineCapacity(1)).Detach())
			start(t, bus)
			for i := range 3 {
				mustPublish(t, bus, "placed", i, eventbus.Key("k"))
			}
			require.Empty(t, calls.took())
			if crash {
				disk.crash(bus)
			} else {
				require.NoError(t, bus.Shutdown(t.Context()))
			}
			require.Len(t, disk.Dump().Records, 3)
			again, _ := disk.open(t)
			calls.mustSubscribe(t, again, "mail", "second")
			start(t, again)
			require.Equal(t, []string{"second 0 1", "second 1 1", "second 2 1"}, calls.took())
			shutdown(t, again)
		})
	}
}

func TestD14_ShutdownAndUnsubscribeEndADetachedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := &numbers{}
		mail, post := calls.mustSubscribe(t, bus, "mail", "mail"), calls.mustSubscribe(t, bus, "post", "post")
		require.NoError(t, mail.Detach())
		require.NoError(t, post.Detach())
		mustPublish(t, bus, "placed", 1)
		mail.Unsubscribe()
		time.Sleep(time.Second)
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		require.True(t, leftHeld(bus.Shutdown(t.Context())))
		require.Equal(t, eventbus.ReasonShutdown, letters(t, bus)[0].Reason)
		require.Empty(t, calls.took())
		requireBalanced(t, bus)
	})
}

// Whatever comes first, each event is handled once or has one letter, and no call of a subscription begins after its Detach.
func TestD14_DetachBesideEverythingElse(t *testing.T) {
	for range searching(20, 5) {
		inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) { detachBesideEverythingElse(t, open()) })
	}
}

func detachBesideEverythingElse(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	const events = 200
	var mu sync.Mutex
	handled, ended := make(map[int]int), make(map[int]bool)
	subscribe := func(round int) *eventbus.Subscription {
		s, err := bus.Subscribe("*", eventbus.Typed(func(_ context.Context, n int) error {
			mu.Lock()
			defer mu.Unlock()
			if ended[round] {
				return fmt.Errorf("a call of round %d after its Detach", round)
			}
			handled[n]++
			return nil
		}), eventbus.Named("mail"), eventbus.Concurrency(2))
		if errors.Is(err, eventbus.ErrShutdown) {
			return nil
		}
		require.NoError(t, err)
		return s
	}
	sub := subscribe(0)
	start(t, bus)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range events {
			_, err := bus.Publish(context.Background(), "placed", i, eventbus.Key(fmt.Sprint(i%7)))
			require.NoError(t, err)
		}
	})
	for round := range 20 {
		time.Sleep(50 * time.Microsecond)
		require.NoError(t, sub.Detach())
		mu.Lock()
		ended[round] = true
		mu.Unlock()
		sub = subscribe(round + 1)
	}
	wg.Wait()
	wg.Go(sub.Unsubscribe)
	wg.Go(func() { _ = sub.Detach() })
	wg.Go(func() { _ = bus.Shutdown(context.Background()) })
	wg.Wait()
	_ = bus.Shutdown(context.Background())
	for n, times := range handled {
		require.Equal(t, 1, times, "event %d", n)
	}
	l := bus.Metrics().Ledger
	require.True(t, l.Balanced(), "%+v", l)
	require.Equal(t, events, len(handled)+int(l.DeadLettered+l.Stored), "%+v", l)
	require.EqualValues(t, len(handled), l.Handled, "a handler has failed")
}

// Unsubscribe, and a new subscription of the name at once: what the first one had becomes letters.
func TestD14_UnsubscribeIsNoDetach(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		calls := &numbers{before: blocking(0, release)}
		first := calls.mustSubscribe(t, bus, "mail", "first", eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		start(t, bus)
		for i := range 4 {
			mustPublish(t, bus, "placed", i, eventbus.Key("k"))
		}
		require.Equal(t, []string{"first 0 1"}, calls.took())
		first.Unsubscribe()
		calls.mustSubscribe(t, bus, "mail", "second", eventbus.Concurrency(1))
		mustPublish(t, bus, "placed", 4, eventbus.Key("k"))
		close(release)
		require.Equal(t, []string{"second 4 1"}, calls.took())
		time.Sleep(time.Second)
		require.Len(t, letters(t, bus), 3)
		for _, l := range letters(t, bus) {
			require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
		}
		shutdown(t, bus)
	})
}

// A thousand events at once: one is taken, and the others are dropped, without letters.
func TestD14_OnceTakesOneOfAThousand(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		calls, others := &numbers{}, &numbers{}
		calls.before = func(ctx context.Context, _ int) error { time.Sleep(time.Second); return nil }
		once := calls.mustSubscribe(t, bus, "once", "once", eventbus.Once(), eventbus.Isolated(), eventbus.Timeout(time.Hour))
		others.mustSubscribe(t, bus, "others", "others")
		start(t, bus)
		var wg sync.WaitGroup
		for worker := range 10 {
			wg.Go(func() {
				for i := range 100 {
					_, err := bus.Publish(t.Context(), "placed", worker*100+i, eventbus.Key(fmt.Sprint(i%10)))
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		require.Len(t, calls.took(), 1)
		require.Len(t, others.took(), 1000)
		require.False(t, once.Exists())
		require.Empty(t, letters(t, bus))
		l := bus.Metrics().Ledger
		require.EqualValues(t, 999, l.Dropped)
		require.EqualValues(t, 1001, l.Handled)
		calls.mustSubscribe(t, bus, "once", "again", eventbus.Timeout(time.Hour))
		mustPublish(t, bus, "placed", 1000)
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"again 1000 1"}, calls.took(), "the name is free")
		shutdown(t, bus)
	})
}

// The event that is taken keeps its retries, and its letter. Meanwhile others are dropped.
func TestD14_OnceKeepsTheEventThatItTakes(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(2, time.Second)))
		calls := &numbers{before: func(context.Context, int) error { return errBoom }}
		once := calls.mustSubscribe(t, bus, "once", "once", eventbus.Once())
		start(t, bus)
		require.NoError(t, once.Pause())
		for i := range 3 {
			mustPublish(t, bus, "placed", i)
		}
		require.Empty(t, calls.took())
		require.NoError(t, once.Resume())
		require.Equal(t, []string{"once 0 1"}, calls.took())
		require.True(t, once.Exists())
		result, err := bus.PublishAndWait(t.Context(), "placed", 3)
		require.NoError(t, err)
		require.Equal(t, eventbus.Dropped, result.Outcome)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"once 0 2", "once 0 3"}, calls.took())
		require.False(t, once.Exists())
		require.Equal(t, eventbus.ReasonExhausted, oneLetter(t, bus).Reason)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Dropped)
		shutdown(t, bus)
	})
}

// With others in one dispatch, and in the line of its key.
func TestD14_OnceBesideOthers(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		calls := &numbers{}
		calls.mustSubscribe(t, bus, "a", "a")
		once := calls.mustSubscribe(t, bus, "once", "once", eventbus.Once())
		calls.mustSubscribe(t, bus, "b", "b")
		_, err := calls.subscribe(bus, "x", "x", eventbus.Once(), eventbus.PerDestination(byAddress))
		requireOptionError(t, err, "Once")
		start(t, bus)
		require.NoError(t, once.Pause())
		for i := range 3 {
			mustPublish(t, bus, "placed", i, eventbus.Key("k"))
		}
		require.Len(t, calls.took(), 6)
		require.NoError(t, once.Resume())
		require.Equal(t, []string{"once 0 1"}, calls.took())
		mustPublish(t, bus, "placed", 3, eventbus.Key("k"))
		require.Equal(t, []string{"a 3 1", "b 3 1"}, calls.took())
		require.Empty(t, letters(t, bus))
		require.EqualValues(t, 2, bus.Metrics().Ledger.Dropped)
		shutdown(t, bus)
	})
}

// A process that crashes takes one event, and the next process takes one.
func TestD14_OnceAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		calls := &numbers{before: func(ctx context.Context, _ int) error { <-ctx.Done(); return nil }}
		calls.mustSubscribe(t, bus, "once", "once", eventbus.Once(), eventbus.Timeout(time.Hour))
		start(t, bus)
		mustPublish(t, bus, "placed", 0, eventbus.Key("k"))
		mustPublish(t, bus, "placed", 1, eventbus.Key("k"))
		require.Equal(t, []string{"once 0 1"}, calls.took())
		disk.crash(bus)
		again, _ := disk.open(t)
		calls.before = nil
		s := calls.mustSubscribe(t, again, "once", "again", eventbus.Once())
		start(t, again)
		require.Equal(t, []string{"again 0 1"}, calls.took())
		require.False(t, s.Exists())
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, letters(t, again))
		shutdown(t, again)
	})
}
