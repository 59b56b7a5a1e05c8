package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestD1_HandlersOfADispatchRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var running, most atomic.Int32
		for range 5 {
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				return nil
			})
		}
		begin := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.EqualValues(t, 1, most.Load())
		shutdown(t, bus)
	})
}

func TestD1_DifferentDispatchesRunConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var done atomic.Int32
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Millisecond)
			done.Add(1)
			return nil
		})
		for range 1000 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(50 * time.Millisecond)
		require.EqualValues(t, 1000, done.Load())
		shutdown(t, bus)
	})
}

func TestD1_ConcurrencyIsNeverExceeded(t *testing.T) {
	for _, n := range []int32{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(int(n)))
			var running, most atomic.Int32
			calls := 0
			var mu sync.Mutex
			mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
				now := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				time.Sleep(7 * time.Millisecond)
				mu.Lock()
				calls++
				c := calls
				mu.Unlock()
				switch {
				case c%11 == 0:
					runtime.Goexit() // takes its goroutine along
				case c%7 == 0:
					return errBoom
				}
				return nil
			}, eventbus.Retry(retry(eventbus.Unlimited, time.Millisecond)), eventbus.Circuit(eventbus.NoCircuit()))
			for range 100 {
				mustPublish(t, bus, "x", nil)
			}
			shutdown(t, bus)
			require.Equal(t, n, most.Load())
		})
	}
}

func TestD2_TheFirstFailureEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls []string
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "a"); return nil }, eventbus.Named("a"))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "b"); return errBoom }, eventbus.Named("b"))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "c"); return nil }, eventbus.Named("c"))
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, []string{"a", "b", "b", "b", "b"}, calls)
		l := oneLetter(t, bus)
		require.Equal(t, []string{"a"}, l.Succeeded)
		require.Equal(t, "b", l.Subscription)
		require.Equal(t, []string{"c"}, l.NotReached)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		shutdown(t, bus)
	})
}

// Retries come back to the queue among new events, and go on as themselves.
func TestD3_RetriesAmongNewEventsResumeWhereTheyFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 61
		failures := func(i int) int { return 3 * i % 4 }
		for range 4 { // some runs are timed, and have no step to the next one
			q := newQueue(t, eventbus.WithRetry(retry(3, 5*time.Millisecond)), eventbus.WithCircuit(eventbus.NoCircuit()))
			first, second := 0, make(map[int]int)
			mustSubscribe(t, q.bus, "order.*", func(_ context.Context, e eventbus.Event) error {
				time.Sleep(500 * time.Microsecond) // so that others come due meanwhile
				first++
				return nil
			})
			mustSubscribe(t, q.bus, "order.*", func(ctx context.Context, e eventbus.Event) error {
				i := e.Payload.(int)
				second[i]++
				if second[i] <= failures(i) { // or it asks nothing
					d, _ := eventbus.FromContext(ctx)
					require.Equal(t, second[i], d.Attempt)
					return errBoom
				}
				return nil
			})
			q.run(t, n)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, n, first)
			for i := range n {
				require.Equal(t, 1+failures(i), second[i])
			}
			require.EqualValues(t, n, q.bus.Metrics().Ledger.Handled)
			shutdown(t, q.bus)
		}
	})
}

func TestD3_RetryResumesAtTheOneThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(9, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		var calls []string
		handler := func(name string, failures int) eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				calls = append(calls, fmt.Sprint(name, d.Attempt))
				if failures--; failures >= 0 {
					return errBoom
				}
				return nil
			}
		}
		for i, failures := range []int{0, 2, 0, 1, 0} {
			name := string(rune('a' + i))
			mustSubscribe(t, bus, "x", handler(name, failures), eventbus.Named(name))
		}
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, []string{"a1", "b1", "b2", "b3", "c3", "d3", "d4", "e4"}, calls)
		require.Equal(t, 4, r.Attempts)
		require.Equal(t, eventbus.Handled, r.Outcome)
		shutdown(t, bus)
	})
}

// Attempts are the dispatch's: what fails at another subscription spends them
// too.
func TestD4_AttemptsAreCountedPerDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		n := 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			if n++; n <= 2 {
				return errBoom
			}
			return nil
		})
		m := 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { m++; return errBoom }, eventbus.Named("second"))
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err)
		require.Equal(t, 3, r.Attempts, "MaxRetries + 1")
		require.Equal(t, 1, m)
		require.Equal(t, "second", oneLetter(t, bus).Subscription)
		shutdown(t, bus)
	})
}

func TestD6_AWaitingRetryHoldsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "x", failing(errBoom))
		mustPublish(t, bus, "nobody.listens", nil)
		time.Sleep(time.Second)
		idle := runtime.NumGoroutine()
		for range 1000 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		require.Equal(t, 1000, bus.Metrics().WaitingRetries)
		// Workers that rest are not the retries', nor are goroutines that are just
		// ending.
		require.LessOrEqual(t, runtime.NumGoroutine(), idle+bus.Metrics().Workers+10)
		require.LessOrEqual(t, bus.Metrics().Workers, 4*runtime.GOMAXPROCS(0)+1)
		require.NoError(t, bus.Shutdown(context.Background()))
		require.Len(t, letters(t, bus), 1000)
	})
}

func TestD9_UnroutedEventsSettleAndAreShown(t *testing.T) {
	var seen journal[eventbus.Event]
	bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{Unrouted: seen.add}))
	mustSubscribe(t, bus, "x", ok)
	id := mustPublish(t, bus, "nobody.listens", "payload", eventbus.Metadata("k", "v"))
	require.Equal(t, 1, seen.len())
	got := seen.all()[0]
	require.Equal(t, id, got.ID)
	require.Equal(t, "payload", got.Payload)
	require.Equal(t, "v", got.Metadata.Get("k"))
	m := bus.Metrics()
	require.Equal(t, eventbus.Ledger{Accepted: 1, Unrouted: 1}, m.Ledger)
	require.EqualValues(t, 1, m.Types["nobody.listens"].Events)
	require.Empty(t, letters(t, bus))
	shutdown(t, bus)
}

func TestD9_ObserversSeeWhatIsUnrouted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen journal[eventbus.Event]
		bus, logs := startBus(t, eventbus.WithObserver(eventbus.Observer{Unrouted: func(e eventbus.Event) {
			seen.add(e)
			panic("observers may")
		}}))
		id := mustPublish(t, bus, "nobody", "payload")
		require.Len(t, seen.all(), 1)
		require.Equal(t, id, seen.all()[0].ID)
		require.Equal(t, "payload", seen.all()[0].Payload)
		require.Equal(t, 1, logs.FilterMessage("observer panicked").Len())
		r, err := bus.PublishAndWait(t.Context(), "nobody", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Unrouted, r.Outcome)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Unrouted)
		shutdown(t, bus)
	})
}

func TestD9_WhatIsUnroutedWasAcceptedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines journal[string]
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
			Accepted: func(e eventbus.Event) { lines.add("accepted " + e.ID.String()) },
			Unrouted: func(e eventbus.Event) { lines.add("unrouted " + e.ID.String()) },
		}))
		id := mustPublish(t, bus, "nobody", nil).String()
		require.Equal(t, []string{"accepted " + id, "unrouted " + id}, lines.all())
		shutdown(t, bus)
	})
}

func TestFault40_ASlowHandlerHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			time.Sleep(20 * time.Second)
			return nil
		})
		mustSubscribe(t, bus, "fast", ok)
		for range 50 {
			mustPublish(t, bus, "slow", nil)
			begin := time.Now()
			_, err := bus.PublishAndWait(t.Context(), "fast", nil)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(begin), 20*time.Millisecond)
		}
		shutdown(t, bus)
	})
}

// Fault 25.
func TestFault25_RecursionIsQueuedAndNotNested(t *testing.T) {
	bus, _ := startBus(t)
	n, deepest := 0, 0
	const events = 20_000
	mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
		if n++; n%1000 == 0 {
			deepest = max(deepest, runtime.Callers(0, make([]uintptr, 1000)))
		}
		if n == events {
			return nil
		}
		_, err := bus.Publish(ctx, "x", nil)
		return err
	})
	mustPublish(t, bus, "x", nil)
	shutdown(t, bus)
	require.Equal(t, events, n)
	require.Less(t, deepest, 50)
}

func TestMiddlewareOrder(t *testing.T) {
	var calls []string
	wrap := func(name string) eventbus.Middleware {
		return func(next eventbus.Handler) eventbus.Handler {
			calls = append(calls, "make "+name)
			return func(ctx context.Context, e eventbus.Event) error {
				calls = append(calls, name)
				err := next(ctx, e)
				calls = append(calls, "/"+name)
				return err
			}
		}
	}
	bus, _ := startBus(t, eventbus.WithMiddleware(wrap("a"), wrap("b")), eventbus.WithMiddleware(wrap("c")))
	mustSubscribe(t, bus, "x", ok, eventbus.Use(wrap("d"), wrap("e")), eventbus.Use(wrap("f")))
	require.Len(t, calls, 6, "made by Subscribe, once")
	calls = nil
	for range 2 {
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
	}
	once := []string{"a", "b", "c", "d", "e", "f", "/f", "/e", "/d", "/c", "/b", "/a"}
	require.Equal(t, slices.Concat(once, once), calls)
	shutdown(t, bus)
}

// What goes wrong in a middleware goes wrong in the handler, for each attempt.
func TestMiddlewareIsProtectedAndWatched(t *testing.T) {
	for name, c := range map[string]struct {
		misbehave func()
		is        func(error) bool
	}{
		"panics":  {func() { panic(errBoom) }, func(err error) bool { return errors.Is(err, errBoom) }},
		"exits":   {runtime.Goexit, func(err error) bool { return errors.Is(err, eventbus.ErrHandlerExited) }},
		"is slow": {func() { time.Sleep(time.Hour) }, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
	} {
		for _, before := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				mw := func(next eventbus.Handler) eventbus.Handler {
					return func(ctx context.Context, e eventbus.Event) error {
						calls.Add(1)
						if before {
							c.misbehave()
						}
						err := next(ctx, e)
						c.misbehave()
						return err
					}
				}
				bus, _ := startBus(t, eventbus.WithMiddleware(mw), eventbus.WithRetry(retry(1, time.Second)))
				mustSubscribe(t, bus, "x", ok)
				r, err := bus.PublishAndWait(t.Context(), "x", nil)
				require.Error(t, err, name)
				require.True(t, c.is(err), "%s: %v", name, err)
				require.Equal(t, 2, r.Attempts)
				require.EqualValues(t, 2, calls.Load())
				shutdown(t, bus)
				time.Sleep(2 * time.Hour)
			})
		}
	}
}

// A middleware may handle an event in the handler's stead.
func TestMiddlewareMayAnswerItself(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", failing(errBoom), eventbus.Use(func(eventbus.Handler) eventbus.Handler { return ok }))
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	shutdown(t, bus)
}
