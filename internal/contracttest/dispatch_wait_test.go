package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Who waits for one of many events is told when it has been handled, and not before.
func TestD7_OneOfManyEventsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		q := newQueue(t)
		q.subscribe(t, "order.*")
		release := make(chan struct{})
		q.handle[0] = func(context.Context, eventbus.Event) error { <-release; return nil }
		require.NoError(t, q.bus.Start(t.Context()))
		mustPublish(t, q.bus, "order.placed", 0)
		synctest.Wait()
		told := make(chan int, n)
		for i := 1; i < n; i++ {
			if i%3 != 0 {
				mustPublish(t, q.bus, "order.placed", i)
				continue
			}
			go func() {
				r, err := q.bus.PublishAndWait(t.Context(), "order.placed", i)
				assert.NoError(t, err)
				assert.Equal(t, eventbus.Handled, r.Outcome)
				assert.Equal(t, 1, r.Attempts)
				assert.Contains(t, q.ran.all(), i)
				told <- i
			}()
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		require.Equal(t, count(n), q.ran.all())
		require.Len(t, told, (n-1)/3)
		shutdown(t, q.bus)
	})
}

func TestD7_PublishAndWaitTellsHowItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "fine", ok)
		n := 0
		mustSubscribe(t, bus, "flaky", func(context.Context, eventbus.Event) error {
			if n++; n < 3 {
				return errBoom
			}
			return nil
		})
		mustSubscribe(t, bus, "dies", failing(fmt.Errorf("wrapped: %w", eventbus.Permanent(errBoom))), eventbus.Named("dying"))
		mustSubscribe(t, bus, "drops", failing(errBoom), eventbus.Retry(eventbus.MaxRetries(0)),
			eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DropWhenOpen)

		r, err := bus.PublishAndWait(t.Context(), "fine", nil)
		require.NoError(t, err)
		require.False(t, r.ID.IsZero())
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1}, r)

		r, err = bus.PublishAndWait(t.Context(), "flaky", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 3}, r)

		r, err = bus.PublishAndWait(t.Context(), "nobody.listens", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Unrouted}, r)

		r, err = bus.PublishAndWait(t.Context(), "dies", nil)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.DeadLettered, Attempts: 1, Letters: []eventbus.LetterID{l.ID}}, r)
		require.ErrorIs(t, err, errBoom)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Equal(t, r.ID, died.ID)
		require.Equal(t, "dies", died.EventType)
		require.Equal(t, []eventbus.DeadLetter{l}, died.Letters)
		require.ErrorContains(t, err, "dying")
		require.ErrorContains(t, err, "boom")

		_, err = bus.PublishAndWait(t.Context(), "drops", nil)
		require.ErrorIs(t, err, errBoom)
		r, err = bus.PublishAndWait(t.Context(), "drops", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Dropped}, r)
		shutdown(t, bus)
	})
}

func TestD7_TheWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		handled := false
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			handled = ctx.Err() == nil
			return nil
		})
		cause := errors.New("the cause")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, cause)
		defer cancel()
		r, err := bus.PublishAndWait(ctx, "x", nil)
		require.ErrorIs(t, err, cause)
		require.False(t, r.ID.IsZero())
		require.Equal(t, eventbus.Result{ID: r.ID}, r)
		require.ErrorContains(t, err, r.ID.String())
		shutdown(t, bus)
		require.True(t, handled, "the event goes on")
	})
}

// Who has waited reads the event in Metrics.
func TestD7_MetricsCountWhatWasWaitedFor(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "*", ok, eventbus.LineCapacity(10_000))
	events := searching(10_000, 1_000)
	for i := range events {
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.EqualValues(t, i+1, bus.Metrics().Ledger.Handled)
	}
	require.NoError(t, s.Pause())
	for i := range events {
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, eventbus.Held, r.Outcome)
		require.EqualValues(t, i+1, bus.Metrics().Ledger.Held)
	}
	require.NoError(t, s.Resume())
	shutdown(t, bus)
	require.EqualValues(t, 2*events, bus.Metrics().Ledger.Handled)
}

// Who comes to sleep at the very instant at which the event settles is not left asleep.
func TestD7_NobodySleepsOverTheEnd(t *testing.T) {
	bus, err := eventbus.New()
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		for range e.Payload.(int) { // as long as it takes to lie down, more or less
			runtime.Gosched()
		}
		return nil
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range searching(20_000, 5_000) {
				r, err := bus.PublishAndWait(context.Background(), "x", i%4)
				if err != nil || r.Outcome != eventbus.Handled || r.Attempts != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
	all.Wait()
	shutdown(t, bus)
}

// On a bus with isolation each of the event's dispatches is one to wait for.
func TestD7_TwoDispatchesAreWaitedFor(t *testing.T) {
	for _, subscriptions := range []int{1, 2, 3} {
		bus, err := eventbus.New(eventbus.WithIsolation())
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		var handled atomic.Int64
		for range subscriptions {
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
				runtime.Gosched()
				handled.Add(1)
				return nil
			})
		}
		for i := range searching(5_000, 1_000) {
			r, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.NoError(t, err)
			require.Equal(t, eventbus.Handled, r.Outcome)
			require.Equal(t, 1, r.Attempts)
			require.EqualValues(t, (i+1)*subscriptions, handled.Load())
		}
		shutdown(t, bus)
	}
}

func TestD7_PublishAndWaitBeforeStart(t *testing.T) {
	bus, _ := newBus(t)
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrNotStarted)
	require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger)
}

// Fault 26: a handler that waits does not count against the concurrency.
func TestD7_WaitingInsideAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		depth := 0
		mustSubscribe(t, bus, "nested", func(ctx context.Context, _ eventbus.Event) error {
			if depth++; depth == 50 {
				return nil
			}
			_, err := bus.PublishAndWait(ctx, "nested", nil)
			return err
		})
		begin := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "nested", nil)
		require.NoError(t, err)
		require.Equal(t, 50, depth)
		require.Less(t, time.Since(begin), time.Second)
		shutdown(t, bus)
	})
}

func TestD7_TheConcurrencyHoldsAfterWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		mustSubscribe(t, bus, "inner", ok)
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "inner", nil)
			return err
		})
		var running, most atomic.Int32
		mustSubscribe(t, bus, "work", func(context.Context, eventbus.Event) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		for range 20 {
			_, err := bus.PublishAndWait(t.Context(), "outer", nil)
			require.NoError(t, err)
		}
		for range 50 {
			mustPublish(t, bus, "work", nil)
		}
		shutdown(t, bus)
		require.EqualValues(t, 1, most.Load())
	})
}

// A handler that waits and is given up meanwhile gives its place back once.
func TestD7_WaitingBeyondTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "slow", nil)
			return err
		}, eventbus.Timeout(time.Second))
		for range 5 {
			_, err := bus.PublishAndWait(t.Context(), "outer", nil)
			var late *eventbus.TimeoutError
			require.ErrorAs(t, err, &late)
		}
		var running, most atomic.Int32
		mustSubscribe(t, bus, "work", func(context.Context, eventbus.Event) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		for range 50 {
			mustPublish(t, bus, "work", nil)
		}
		shutdown(t, bus)
		require.EqualValues(t, 1, most.Load())
	})
}

func TestD7_WaitingForOnesOwnKeyWouldDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var errs journal[error]
		waits := func(eventType string, opts ...eventbus.PublishOption) eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				ctx, cancel := context.WithCancel(ctx) // derived
				defer cancel()
				_, err := bus.PublishAndWait(ctx, eventType, nil, opts...)
				errs.add(err)
				return nil
			}
		}
		mustSubscribe(t, bus, "end", ok)
		mustSubscribe(t, bus, "own", waits("end", eventbus.Key("k")))
		mustSubscribe(t, bus, "later", waits("end", eventbus.Key("k"), eventbus.After(time.Second)))
		mustSubscribe(t, bus, "other", waits("end", eventbus.Key("l")))
		mustSubscribe(t, bus, "none", waits("end"))
		mustSubscribe(t, bus, "unrouted", waits("nobody", eventbus.Key("k")))
		mustSubscribe(t, bus, "chain", waits("middle"))
		mustSubscribe(t, bus, "middle", waits("middle2", eventbus.Key("m")))
		mustSubscribe(t, bus, "middle2", waits("own"))
		mustSubscribe(t, bus, "nokey", waits("end", eventbus.Key("k")))
		for _, c := range []struct {
			eventType, key string
			refused, of    int // waits
		}{
			{"own", "k", 1, 1},
			{"later", "k", 1, 1},
			{"other", "k", 0, 1},
			{"none", "k", 0, 1},
			{"unrouted", "k", 0, 1},
			{"chain", "k", 1, 4},
			{"chain", "other", 0, 4},
			{"nokey", "", 0, 1},
		} {
			before := errs.len()
			mustPublish(t, bus, c.eventType, nil, eventbus.Key(c.key))
			time.Sleep(time.Minute)
			all := errs.all()[before:]
			require.Len(t, all, c.of, c)
			for i, err := range all {
				if i < c.refused {
					require.ErrorIs(t, err, eventbus.ErrWouldDeadlock, c)
					require.ErrorContains(t, err, `"k"`)
				} else {
					require.NoError(t, err, c)
				}
			}
		}
		require.Zero(t, bus.Metrics().Subscriptions[0].Timeouts)
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// On a bus with isolation a key has a place for each subscription: it is a deadlock
// only where the event that waits is.
func TestD7_WaitingForOnesOwnKeyInIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		var errs journal[error]
		waits := func(eventType string) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				if e.Payload != nil {
					return nil
				}
				_, err := bus.PublishAndWait(ctx, eventType, "inner", eventbus.Key("k"))
				errs.add(err)
				return nil
			}
		}
		mustSubscribe(t, bus, "{a,both}", waits("b"))
		mustSubscribe(t, bus, "{b,both}", waits("both"))
		mustPublish(t, bus, "a", nil, eventbus.Key("k")) // waits for b, where it has no place
		time.Sleep(time.Second)
		mustPublish(t, bus, "b", nil, eventbus.Key("k")) // waits for both, of which b is one
		time.Sleep(time.Minute)
		require.Equal(t, 2, errs.len())
		require.NoError(t, errs.all()[0])
		require.ErrorIs(t, errs.all()[1], eventbus.ErrWouldDeadlock)
		shutdown(t, bus)
	})
}

// A held delivery has no place but at its subscription, where later ones are held
// behind it: to wait for one of them is no deadlock.
func TestD7_AHeldDeliveryMayWaitForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var results journal[eventbus.Result]
		s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			if e.Payload != nil {
				return nil
			}
			r, err := bus.PublishAndWait(ctx, "x", "inner", eventbus.Key("k"))
			results.add(r)
			if !errors.Is(err, eventbus.ErrHeld) {
				return err
			}
			return nil
		}, eventbus.Named("s"))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "x", nil, eventbus.Key("k"))
		settleWorkers()
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		require.Equal(t, 1, results.len())
		require.Equal(t, eventbus.Held, results.all()[0].Outcome)
		require.Equal(t, []string{"s"}, results.all()[0].Held)
		shutdown(t, bus)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
	})
}

// A handler's wait ends before what it waits for: nothing that is published then
// waits for ever.
func TestD7_AWaitThatEndsEarlyStrandsNothing(t *testing.T) {
	for _, concurrency := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(concurrency), eventbus.WithRetry(retry(1, time.Hour)))
			var after journal[string]
			mustSubscribe(t, bus, "inner", failing(errBoom))
			mustSubscribe(t, bus, "after", func(context.Context, eventbus.Event) error { after.add("ran"); return nil })
			mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				_, _ = bus.PublishAndWait(short, "inner", nil)
				_, err := bus.Publish(ctx, "after", nil)
				return err
			})
			for range concurrency {
				mustPublish(t, bus, "outer", nil)
			}
			time.Sleep(time.Second)
			require.Equal(t, concurrency, after.len())
			_ = cutShort(t, bus)
		})
	}
}

// Who has given up waiting is waited for by nobody: the key that it had is free
// when it is done.
func TestD7_AGivenUpWaitIsNoDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var outer, middle error
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, outer = bus.PublishAndWait(ctx, "middle", nil)
			return nil
		})
		mustSubscribe(t, bus, "middle", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "inner", nil, eventbus.Key("k"))
			require.ErrorIs(t, err, eventbus.ErrWouldDeadlock, "while it is waited for")
			time.Sleep(2 * time.Second)
			_, err = bus.PublishAndWait(ctx, "between", nil)
			return err
		})
		mustSubscribe(t, bus, "between", func(ctx context.Context, _ eventbus.Event) error {
			_, middle = bus.PublishAndWait(ctx, "inner", nil, eventbus.Key("k"))
			return nil
		})
		mustSubscribe(t, bus, "inner", ok)
		mustPublish(t, bus, "outer", nil, eventbus.Key("k"))
		shutdown(t, bus)
		require.ErrorIs(t, outer, context.DeadlineExceeded)
		require.NoError(t, middle)
	})
}

// A handler's goroutine waits on, with its context, when the handler has returned. What it
// stands behind has ended then, and is not what somebody else stands behind who waits.
func TestD7_WhoStandsBehindAnEndedWaitStandsBehindNobody(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what is free again is used by the next one
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		inSecond, goOn, end := make(chan bool), make(chan bool), make(chan bool)
		var first, third error
		var ended sync.WaitGroup
		mustSubscribe(t, bus, "first", func(ctx context.Context, _ eventbus.Event) error {
			ended.Go(func() { _, first = bus.PublishAndWait(context.WithoutCancel(ctx), "second", nil) })
			<-inSecond
			return nil
		})
		mustSubscribe(t, bus, "second", func(ctx context.Context, _ eventbus.Event) error {
			inSecond <- true
			<-goOn
			_, third = bus.PublishAndWait(ctx, "third", nil, eventbus.Key("k"))
			return nil
		})
		mustSubscribe(t, bus, "third", ok)
		mustSubscribe(t, bus, "holder", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "slow", nil)
			return err
		})
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			<-end
			return nil
		})
		_, err := bus.PublishAndWait(t.Context(), "first", nil)
		require.NoError(t, err)
		mustPublish(t, bus, "holder", nil, eventbus.Key("k"))
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		close(end)
		ended.Wait()
		require.NoError(t, first)
		require.NoError(t, third, "nobody waits for the holder of the key")
		shutdown(t, bus)
	})
}

// On a bus with isolation, Shutdown dead-letters a scheduled event for each subscription. The wait
// for the event ends with all of these letters.
func TestD7_ShutdownEndsTheWaitForAScheduledEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		mustSubscribe(t, bus, "a", ok, eventbus.Named("one"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("two"))
		returned := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(context.Background(), "a", nil, eventbus.After(time.Hour))
			returned <- err
		}()
		synctest.Wait()
		var unfinished *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(context.Background()), &unfinished)
		require.Len(t, unfinished.Unfinished, 2)
		synctest.Wait()
		select {
		case err := <-returned:
			var died *eventbus.DeliveryError
			require.ErrorAs(t, err, &died)
			require.Len(t, died.Letters, 2)
		default:
			t.Fatal("PublishAndWait did not return")
		}
	})
}

// PublishAndWait does not wait for a refused or an unrouted event. Its handler counts against the
// concurrency all the time, so no other event runs meanwhile.
func TestD7_ARefusedOrUnroutedEventIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var running, most atomic.Int32
		run := func(during func()) {
			most.Store(max(most.Load(), running.Add(1)))
			during()
			running.Add(-1)
		}
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			run(func() {
				for range 1_000 {
					if _, err := bus.PublishAndWait(ctx, "a", nil, eventbus.Key("k")); !errors.Is(err, eventbus.ErrWouldDeadlock) {
						t.Errorf("it would wait for itself: %v", err)
					}
					if r, err := bus.PublishAndWait(ctx, "nobody's", nil); err != nil || r.Outcome != eventbus.Unrouted {
						t.Errorf("%s, %v", r.Outcome, err)
					}
				}
			})
			return nil
		})
		mustSubscribe(t, bus, "b", func(context.Context, eventbus.Event) error {
			run(func() {})
			return nil
		})
		_, err := bus.PublishBatch(context.Background(), []eventbus.Publication{
			{Type: "a", Options: []eventbus.PublishOption{eventbus.Key("k")}}, {Type: "b"},
		})
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 1, most.Load())
	})
}

// A handler that returns from PublishAndWait may exceed the concurrency, until another handler
// ends. The worker of that one leaves, and does not continue with the next event of its key.
func TestD7_AHandlerThatReturnsFromItsWaitMakesAWorkerLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		wait, cancel := context.WithCancel(context.Background())
		var running, most atomic.Int32
		back, first := make(chan struct{}), make(chan struct{})
		mustSubscribe(t, bus, "later", ok)
		mustSubscribe(t, bus, "waits", func(ctx context.Context, _ eventbus.Event) error {
			inside, stop := context.WithCancel(ctx)
			context.AfterFunc(wait, stop)
			_, err := bus.PublishAndWait(inside, "later", nil, eventbus.After(time.Minute))
			running.Add(1)
			<-back
			running.Add(-1)
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
		mustSubscribe(t, bus, "keyed", func(_ context.Context, e eventbus.Event) error {
			most.Store(max(most.Load(), running.Add(1)))
			if e.Payload == 1 {
				<-first
			}
			running.Add(-1)
			return nil
		})
		for _, p := range []eventbus.Publication{
			{Type: "waits"},
			{Type: "keyed", Payload: 1, Options: []eventbus.PublishOption{eventbus.Key("k")}},
			{Type: "keyed", Payload: 2, Options: []eventbus.PublishOption{eventbus.Key("k")}},
		} {
			_, err := bus.Publish(context.Background(), p.Type, p.Payload, p.Options...)
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		require.EqualValues(t, 2, running.Load(), "the first handler has returned from its wait")
		most.Store(0)
		close(first)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, running.Load())
		require.Zero(t, most.Load(), "the next event of the key waits for a worker")
		close(back)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, most.Load())
	})
}

// Most events settle before their publisher has begun to wait, and he is told of what was
// held and what died all the same.
func TestD7_WhatSettlesBeforeTheWaitIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
			Accepted: func(eventbus.Event) { synctest.Wait() }, // the wait begins after that
		}))
		s := mustSubscribe(t, bus, "x", ok, eventbus.Named("s"), eventbus.LineCapacity(1))
		mustSubscribe(t, bus, "x", ok)
		require.NoError(t, s.Pause())
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1, Held: []string{"s"}}, r)
		r, err = bus.PublishAndWait(t.Context(), "x", nil) // there is no room for it
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1, Letters: []eventbus.LetterID{l.ID}}, r)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Equal(t, []eventbus.DeadLetter{l}, died.Letters)
		require.NoError(t, s.Resume())
		shutdown(t, bus)
	})
}

// A nil error means that all have handled the event, or dropped it: of one that is held, the error says so, and that it
// was accepted.
func TestD7_HeldIsAnError(t *testing.T) {
	for name, hold := range map[string]func(*eventbus.Subscription) error{
		"paused": func(s *eventbus.Subscription) error { return s.Pause() },
		"open":   func(s *eventbus.Subscription) error { return s.Trip() },
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			var handled atomic.Int32
			s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
				handled.Add(1)
				return nil
			}, eventbus.Named("mail"))
			mustSubscribe(t, bus, "b", ok)
			require.NoError(t, hold(s))
			for _, eventType := range []string{"a", "b"} { // alone, and beside one that handles it
				r, err := bus.PublishAndWait(t.Context(), eventType, nil)
				require.ErrorIs(t, err, eventbus.ErrHeld, name)
				require.ErrorContains(t, err, `"mail"`)
				require.ErrorContains(t, err, r.ID.String())
				require.Equal(t, []string{"mail"}, r.Held)
				require.Empty(t, r.Letters)
			}
			require.NoError(t, s.Resume())
			time.Sleep(time.Minute)
			require.EqualValues(t, 2, handled.Load(), "they were accepted")
			shutdown(t, bus)
		})
	}
}

// What a subscription drops, and what no subscription wants, is no error. Of a delivery that dies beside one that is
// held, the error has the letter.
func TestD7_HeldIsNotDroppedOrDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		drops := mustSubscribe(t, bus, "a", ok, eventbus.DropWhenOpen)
		require.NoError(t, drops.Trip())
		held := mustSubscribe(t, bus, "b", ok)
		mustSubscribe(t, bus, "b", failing(eventbus.Permanent(errBroken)))
		require.NoError(t, held.Pause())
		for eventType, outcome := range map[string]eventbus.Outcome{"a": eventbus.Dropped, "nobody": eventbus.Unrouted} {
			r, err := bus.PublishAndWait(t.Context(), eventType, nil)
			require.NoError(t, err)
			require.Equal(t, outcome, r.Outcome)
		}
		r, err := bus.PublishAndWait(t.Context(), "b", nil)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.NotErrorIs(t, err, eventbus.ErrHeld)
		require.Len(t, r.Held, 1)
		_ = cutShort(t, bus)
	})
}

// Whoever waits is told of his own event, however others end.
func TestD7_EveryWaitHasItsOwnResult(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "{handled,both}", ok)
	mustSubscribe(t, bus, "{dead,both}", failing(eventbus.Permanent(errors.New("bad"))))
	mustSubscribe(t, bus, "asks", func(ctx context.Context, _ eventbus.Event) error {
		r, err := bus.PublishAndWait(ctx, "handled", nil)
		if r.Outcome != eventbus.Handled {
			err = fmt.Errorf("it is %s: %w", r.Outcome, err)
		}
		return err
	})
	held := mustSubscribe(t, bus, "held", ok, eventbus.Named("held"))
	require.NoError(t, held.Pause())
	type result struct {
		outcome       eventbus.Outcome
		attempts      int
		letters, held int
	}
	want := map[string]result{
		"handled": {eventbus.Handled, 1, 0, 0},
		"asks":    {eventbus.Handled, 1, 0, 0},
		"nobody":  {eventbus.Unrouted, 0, 0, 0},
		"held":    {eventbus.Held, 0, 0, 1},
		"dead":    {eventbus.DeadLettered, 1, 1, 0},
		"both":    {eventbus.DeadLettered, 1, 1, 0},
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				for eventType, want := range want {
					r, err := bus.PublishAndWait(t.Context(), eventType, nil)
					assert.Equal(t, want, result{r.Outcome, r.Attempts, len(r.Letters), len(r.Held)}, eventType)
					assert.Equal(t, want.letters+want.held > 0, err != nil, eventType)
					assert.Equal(t, want.held > 0, errors.Is(err, eventbus.ErrHeld), eventType)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, held.Resume())
	shutdown(t, bus)
}

// A throttled delivery has its key's place at the door. An event of the key would park behind it.
func TestD7_WaitingBehindOnesOwnSeatWouldDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		hold, waited := make(chan struct{}), make(chan error, 1)
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			switch e.Payload {
			case 0:
				<-hold
			case 1:
				_, err := bus.PublishAndWait(ctx, "x", 2, eventbus.Key("k"))
				waited <- err
			}
			return nil
		}, eventbus.Concurrency(1))
		mustPublish(t, bus, "x", 0)
		settleWorkers()
		mustPublish(t, bus, "x", 1, eventbus.Key("k"))
		settleWorkers()
		require.Equal(t, 1, bus.Metrics().Throttled)
		close(hold)
		require.ErrorIs(t, <-waited, eventbus.ErrWouldDeadlock)
		shutdown(t, bus)
	})
}

// An isolated subscription has an order by key of its own: its event does not wait for one of the coupled ones.
func TestD7_NoDeadlockWithTheOrderOfAnIsolatedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		waited := make(chan error, 1)
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "y", 2, eventbus.Key("k"))
			waited <- err
			return nil
		})
		mustSubscribe(t, bus, "y", ok, eventbus.Isolated())
		mustPublish(t, bus, "x", 1, eventbus.Key("k"))
		require.NoError(t, <-waited)
		shutdown(t, bus)
	})
}

// A handler that has returned holds no key, although its context is still used to wait.
func TestD7_NoDeadlockWithAHandlerThatHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		waited, proceed := make(chan error, 1), make(chan struct{})
		mustSubscribe(t, bus, "first", func(ctx context.Context, _ eventbus.Event) error {
			detached := context.WithoutCancel(ctx)
			go func() { _, _ = bus.PublishAndWait(detached, "second", nil) }()
			time.Sleep(time.Second)
			return nil
		})
		mustSubscribe(t, bus, "second", func(ctx context.Context, _ eventbus.Event) error {
			<-proceed
			_, err := bus.PublishAndWait(ctx, "third", nil, eventbus.Key("k"))
			waited <- err
			return nil
		})
		mustSubscribe(t, bus, "third", ok)
		_, err := bus.PublishAndWait(t.Context(), "first", nil, eventbus.Key("k"))
		require.NoError(t, err)
		close(proceed)
		require.NoError(t, <-waited)
		shutdown(t, bus)
	})
}
