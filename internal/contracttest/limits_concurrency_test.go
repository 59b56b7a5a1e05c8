package contracttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// gauge is a handler that notes how many of its calls run at once, for a while each.
type gauge struct {
	mu            sync.Mutex
	running, most int
	order         []any
	during        time.Duration
}

func (g *gauge) handle(_ context.Context, e eventbus.Event) error {
	g.mu.Lock()
	g.running++
	g.most = max(g.most, g.running)
	g.order = append(g.order, e.Payload)
	g.mu.Unlock()
	time.Sleep(g.during)
	g.mu.Lock()
	g.running--
	g.mu.Unlock()
	return nil
}

func (g *gauge) seen() (most int, order []any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most, append([]any(nil), g.order...)
}

func TestD11_BadLimitsAreRefused(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithConcurrency(8))
	for _, n := range []int{0, -2, -1 << 62, 9, 1 << 40} {
		_, err := bus.Subscribe("x", ok, eventbus.Concurrency(n))
		requireOptionError(t, err, "Concurrency")
	}
	for _, n := range []int{1, 8, eventbus.Unlimited} {
		_, err := bus.Subscribe("x", ok, eventbus.Concurrency(n))
		require.NoError(t, err)
	}
	_, err := bus.Subscribe("x", ok, eventbus.WhenFull(17))
	requireOptionError(t, err, "WhenFull")
	_, err = bus.Subscribe("x", ok, eventbus.LineCapacity(0))
	requireOptionError(t, err, "LineCapacity")
	shutdown(t, bus)
}

func TestD11_NoMoreCallsThanTheLimit(t *testing.T) {
	for _, limit := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			g := &gauge{during: time.Second}
			mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(limit), eventbus.Named("limited"))
			other := &gauge{during: time.Second}
			mustSubscribe(t, bus, "x", other.handle, eventbus.Concurrency(eventbus.Unlimited))
			began := time.Now()
			for i := range 12 {
				mustPublish(t, bus, "x", i)
				settleWorkers() // or two workers may reach the door in the other order
			}
			time.Sleep(500 * time.Millisecond)
			m := metricsOf(t, bus, "limited")
			require.Equal(t, limit, m.Running)
			require.Equal(t, 12-limit, m.Throttled)
			requireBalanced(t, bus)
			shutdown(t, bus) // it waits for throttled deliveries
			require.Equal(t, time.Duration(12/limit)*time.Second, time.Since(began).Round(time.Second), "it waits")
			most, order := g.seen()
			require.Equal(t, limit, most)
			require.Len(t, order, 12)
			if limit == 1 {
				for i := range order {
					require.Equal(t, i, order[i], "oldest first")
				}
			}
			most, _ = other.seen()
			require.Greater(t, most, limit, "the other subscription goes on")
			require.Empty(t, letters(t, bus))
		})
	}
}

func TestD11_BeingThrottledSpendsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var attempts journal[int]
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			attempts.add(d.Attempt)
			time.Sleep(time.Second)
			return nil
		}, eventbus.Concurrency(1))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r, err := bus.PublishAndWait(t.Context(), "x", nil)
				require.NoError(t, err)
				require.Equal(t, eventbus.Handled, r.Outcome, "it waits for throttled deliveries")
				require.Empty(t, r.Held)
				require.Equal(t, 1, r.Attempts)
			})
		}
		wg.Wait()
		require.Equal(t, []int{1, 1, 1, 1}, attempts.all())
		shutdown(t, bus)
	})
}

// A throttled delivery becomes a held one when its subscription is paused: the waiter is
// told, and Shutdown does not wait.
func TestD11_AThrottledDeliveryThatBecomesHeld(t *testing.T) {
	for name, order := range map[string]func(*eventbus.Subscription, ...eventbus.DirectiveOption) error{
		"pause": (*eventbus.Subscription).Pause,
		"trip":  (*eventbus.Subscription).Trip,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				g := &gauge{during: time.Second}
				s := mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(1), eventbus.Named("s"))
				mustPublish(t, bus, "x", 0)
				settleWorkers()
				got := make(chan eventbus.Result, 1)
				go func() {
					r, err := bus.PublishAndWait(t.Context(), "x", 1)
					if !errors.Is(err, eventbus.ErrHeld) {
						t.Errorf("PublishAndWait: %v", err)
					}
					got <- r
				}()
				settleWorkers()
				require.Equal(t, 1, metricsOf(t, bus, "s").Throttled)
				require.NoError(t, order(s))
				r := <-got
				require.Equal(t, []string{"s"}, r.Held)
				require.Equal(t, eventbus.Held, r.Outcome)
				m := bus.Metrics()
				require.Equal(t, 1, m.Held)
				require.Zero(t, m.Throttled)
				requireBalanced(t, bus)
				require.Len(t, shutdownLeft(t, bus), 1)
			})
		})
	}
}

// One subscription that hangs does not take all workers of a bus with two.
func TestD11_AHangingSubscriptionLeavesAWorkerToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(8), eventbus.WithTimeout(time.Hour))
		release := make(chan struct{})
		mustSubscribe(t, bus, "stuck", func(context.Context, eventbus.Event) error { <-release; return nil }, eventbus.Named("stuck"))
		mustSubscribe(t, bus, "fine", ok)
		for range 100 {
			mustPublish(t, bus, "stuck", nil)
		}
		time.Sleep(time.Second)
		for range 100 {
			_, err := bus.PublishAndWait(t.Context(), "fine", nil)
			require.NoError(t, err)
		}
		require.Less(t, metricsOf(t, bus, "stuck").Running, 8)
		close(release)
		shutdown(t, bus)
		require.EqualValues(t, 200, bus.Metrics().Ledger.Handled-bus.Metrics().Ledger.Splits)
	})
}

// A subscription that is alone may use every worker.
func TestD11_ASingleSubscriptionUsesEveryWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(4))
		g := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", g.handle)
		for i := range 20 {
			mustPublish(t, bus, "x", i)
		}
		shutdown(t, bus)
		most, _ := g.seen()
		require.Equal(t, 4, most)
	})
}

func TestD11_OneWorkerForTwoSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		a, b := &gauge{during: time.Millisecond}, &gauge{during: time.Millisecond}
		mustSubscribe(t, bus, "x", a.handle)
		mustSubscribe(t, bus, "x", b.handle)
		for i := range 50 {
			mustPublish(t, bus, "x", i)
		}
		shutdown(t, bus)
		for _, g := range []*gauge{a, b} {
			most, order := g.seen()
			require.Equal(t, 1, most)
			require.Len(t, order, 50)
		}
	})
}

// Abandoned calls do not count for Concurrency.
func TestD11_AHandlerThatIgnoresItsCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()))
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
			if e.Payload == 0 {
				<-release
			}
			return nil
		}, eventbus.Concurrency(1), eventbus.MaxAbandoned(2), eventbus.Timeout(time.Second))
		mustPublish(t, bus, "x", 0)
		settleWorkers()
		began := time.Now()
		r, err := bus.PublishAndWait(t.Context(), "x", 1)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		require.InDelta(t, time.Second, time.Since(began), float64(5*time.Millisecond))
		require.Len(t, bus.Abandoned(), 1)
		shutdown(t, bus)
		close(release)
	})
}

// A call that waits in PublishAndWait does not count, and resumes although the limit is
// reached meanwhile.
func TestD11_AHandlerThatWaitsForAnEventToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var depth atomic.Int32
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			n := e.Payload.(int)
			depth.Store(max(depth.Load(), int32(n)))
			if n == 10 {
				return nil
			}
			_, err := bus.PublishAndWait(ctx, "x", n+1)
			return err
		}, eventbus.Concurrency(1), eventbus.Named("s"))
		_, err := bus.PublishAndWait(t.Context(), "x", 0)
		require.NoError(t, err)
		require.EqualValues(t, 10, depth.Load())
		require.Zero(t, metricsOf(t, bus, "s").Running)
		shutdown(t, bus)
	})
}

// A probe that is throttled does not keep its circuit half-open.
func TestD11_AThrottledProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		release := make(chan struct{})
		var calls journal[any]
		s := mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
			calls.add(e.Payload)
			if e.Payload == 0 {
				<-release
			}
			return nil
		}, eventbus.Concurrency(1), eventbus.Timeout(time.Hour), eventbus.Named("s"))
		mustPublish(t, bus, "x", 0)
		settleWorkers()
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", 1)
		settleWorkers()
		mustPublish(t, bus, "x", 2)
		time.Sleep(time.Minute) // the circuit could be half-open; the first call still runs
		require.Equal(t, []any{0}, calls.all())
		require.Equal(t, 2, bus.Metrics().Held)
		close(release)
		time.Sleep(time.Minute)
		require.Equal(t, []any{0, 1, 2}, calls.all())
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "s").Circuit)
		shutdown(t, bus)
	})
}

func TestD12_PublishWaitsWhileALineIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		g := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(1), eventbus.LineCapacity(2), eventbus.Named("s"))
		mustSubscribe(t, bus, "y", ok)
		for i := range 3 {
			mustPublish(t, bus, "x", i)
			settleWorkers()
		}
		began := time.Now()
		mustPublish(t, bus, "y", nil) // other events are unaffected
		require.Zero(t, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := bus.Publish(ctx, "x", nil)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)

		mustPublish(t, bus, "x", 3)
		require.NotZero(t, time.Since(began), "it has waited for room")
		shutdown(t, bus)
		_, order := g.seen()
		require.Equal(t, []any{0, 1, 2, 3}, order)
	})
}

// fillLine starts a bus with a limited subscription to x, whose calls take a second, and fills its
// line. The subscription to y is free.
func fillLine(t *testing.T) (bus *eventbus.Bus, x, y *gauge) {
	t.Helper()
	bus, _ = startBus(t)
	x, y = &gauge{during: time.Second}, &gauge{}
	mustSubscribe(t, bus, "x", x.handle, eventbus.Concurrency(1), eventbus.LineCapacity(2))
	mustSubscribe(t, bus, "y", y.handle)
	for i := range 3 {
		mustPublish(t, bus, "x", i)
		settleWorkers()
	}
	require.Equal(t, 2, bus.Metrics().Throttled)
	return bus, x, y
}

// requireRefusedAfter requires that publish waits for 100 ms until its context ends, and that the
// bus has then accepted nothing.
func requireRefusedAfter(t *testing.T, bus *eventbus.Bus, publish func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began, accepted := time.Now(), bus.Metrics().Ledger.Accepted
	require.ErrorIs(t, publish(ctx), context.DeadlineExceeded)
	require.Equal(t, 100*time.Millisecond, time.Since(began))
	settleWorkers()
	require.Equal(t, accepted, bus.Metrics().Ledger.Accepted)
	requireBalanced(t, bus)
}

// A batch waits for the lines of all its targets before any of it is accepted.
func TestD12_ABatchWaitsWhileALineIsFull(t *testing.T) {
	for _, types := range [][]string{{"x", "y"}, {"y", "x"}} {
		synctest.Test(t, func(t *testing.T) {
			bus, x, y := fillLine(t)
			var batch []eventbus.Publication
			for _, eventType := range types {
				batch = append(batch, eventbus.Publication{Type: eventType, Payload: 3})
			}
			requireRefusedAfter(t, bus, func(ctx context.Context) error {
				ids, err := bus.PublishBatch(ctx, batch)
				require.Empty(t, ids)
				return err
			})
			_, order := y.seen()
			require.Empty(t, order)

			began := time.Now()
			ids, err := bus.PublishBatch(t.Context(), batch)
			require.NoError(t, err)
			require.Len(t, ids, 2)
			require.Greater(t, time.Since(began), 500*time.Millisecond, "it has waited for room")
			shutdown(t, bus)
			_, order = x.seen()
			require.Equal(t, []any{0, 1, 2, 3}, order)
			_, order = y.seen()
			require.Equal(t, []any{3}, order)
		})
	}
}

func TestD12_PublishAndWaitWaitsWhileALineIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, x, _ := fillLine(t)
		requireRefusedAfter(t, bus, func(ctx context.Context) error {
			r, err := bus.PublishAndWait(ctx, "x", nil)
			require.Zero(t, r, "the event has no id: it is not accepted")
			return err
		})

		r, err := bus.PublishAndWait(t.Context(), "x", 3)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		require.Equal(t, 1, r.Attempts)
		_, order := x.seen()
		require.Equal(t, []any{0, 1, 2, 3}, order)
		shutdown(t, bus)
		require.EqualValues(t, 4, bus.Metrics().Ledger.Accepted)
	})
}

func TestD12_AFullLineRefusesWithRefuseWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.RefuseWhenFull())
		g := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(1), eventbus.LineCapacity(1))
		for i := range 2 {
			mustPublish(t, bus, "x", i)
			settleWorkers()
		}
		_, err := bus.Publish(t.Context(), "x", 2)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.PublishAndWait(t.Context(), "x", 2)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "x"}})
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		shutdown(t, bus)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted)
	})
}

// A handler's own publications never wait for a line, and Shutdown ends the wait of others.
func TestD12_AFullLineAndHandlersAndShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		g := &gauge{during: time.Second}
		mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(1), eventbus.LineCapacity(2))
		mustSubscribe(t, bus, "go", func(ctx context.Context, _ eventbus.Event) error {
			for i := range 5 {
				if _, err := bus.Publish(ctx, "x", i); err != nil {
					return err
				}
			}
			return nil
		})
		r, err := bus.PublishAndWait(t.Context(), "go", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		settleWorkers()
		waiting := make(chan error, 1)
		go func() {
			_, err := bus.Publish(t.Context(), "x", 5)
			waiting <- err
		}()
		synctest.Wait()
		shutdown(t, bus)
		require.ErrorIs(t, <-waiting, eventbus.ErrShutdown)
		_, handled := g.seen()
		require.ElementsMatch(t, []any{0, 1, 2, 3, 4}, handled, "in no order: the events have no key")
	})
}

func TestD12_LossyLines(t *testing.T) {
	for _, c := range []struct {
		when    eventbus.WhenFull
		handled []any
		dropped int64
		letters []any
	}{
		{eventbus.DropOldestWhenFull, []any{3, 4, 5}, 3, nil},
		{eventbus.DropNewestWhenFull, []any{0, 1, 2}, 3, nil},
		{eventbus.DeadLetterWhenFull, []any{0, 1, 2}, 0, []any{3, 4, 5}},
	} {
		for _, shut := range []string{"paused", "tripped"} {
			t.Run(fmt.Sprintf("%s,%s", c.when, shut), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus, _ := startBus(t)
					g := &gauge{during: time.Second}
					s := mustSubscribe(t, bus, "x", g.handle, eventbus.LineCapacity(3), c.when, eventbus.Named("s"))
					if shut == "paused" {
						require.NoError(t, s.Pause())
					} else {
						require.NoError(t, s.Trip())
					}
					for i := range 6 {
						mustPublish(t, bus, "x", i)
						settleWorkers()
					}
					requireBalanced(t, bus)
					require.NoError(t, s.Reset())
					require.NoError(t, s.Resume())
					time.Sleep(time.Minute)
					_, order := g.seen()
					require.Equal(t, c.dropped, bus.Metrics().Ledger.Dropped)
					require.ElementsMatch(t, c.handled, order)
					var died []any
					for _, l := range letters(t, bus) {
						require.Equal(t, eventbus.ReasonOverflow, l.Reason)
						died = append([]any{l.Event.Payload}, died...)
					}
					require.Equal(t, c.letters, died)
					shutdown(t, bus)
				})
			})
		}
	}
}

// A lossy line is lossy for throttled deliveries too, and Publish never waits for it. The delivery
// that runs is not dropped.
func TestD12_LossyLinesAtALimit(t *testing.T) {
	for _, c := range []struct {
		when    eventbus.WhenFull
		handled []any
		dropped int64
		letters []any
	}{
		{eventbus.DropOldestWhenFull, []any{0, 5, 6, 7}, 4, nil},
		{eventbus.DropNewestWhenFull, []any{0, 1, 2, 3}, 4, nil},
		{eventbus.DeadLetterWhenFull, []any{0, 1, 2, 3}, 0, []any{7, 6, 5, 4}},
	} {
		t.Run(c.when.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				g := &gauge{during: time.Second}
				mustSubscribe(t, bus, "x", g.handle, eventbus.Concurrency(1), eventbus.LineCapacity(3), c.when, eventbus.Named("s"))
				for i := range 8 {
					began := time.Now()
					mustPublish(t, bus, "x", i)
					require.Zero(t, time.Since(began), "Publish does not wait")
					settleWorkers()
				}
				require.Equal(t, 3, metricsOf(t, bus, "s").Throttled)
				requireBalanced(t, bus)
				shutdown(t, bus)
				_, order := g.seen()
				require.Equal(t, c.handled, order)
				require.Equal(t, c.dropped, bus.Metrics().Ledger.Dropped)
				died := letters(t, bus)
				require.Equal(t, c.letters, payloads(died))
				for _, l := range died {
					require.Equal(t, eventbus.ReasonOverflow, l.Reason)
				}
			})
		})
	}
}

// Deliveries of a key keep their order at a limited subscription, and do not wait for it
// elsewhere.
func TestD5_ThrottledDeliveriesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		limited, free := &gauge{during: time.Second}, &gauge{}
		mustSubscribe(t, bus, "x", limited.handle, eventbus.Concurrency(2))
		mustSubscribe(t, bus, "x", free.handle)
		var want []any
		for i := range 10 {
			mustPublish(t, bus, "x", i, eventbus.Key("k"))
			want = append(want, i)
		}
		shutdown(t, bus)
		most, order := limited.seen()
		require.Equal(t, 1, most, "one of a key at a time")
		require.Equal(t, want, order)
		_, order = free.seen()
		require.Equal(t, want, order)
	})
}

// Time spent at a door does not count, nor the time before a replay.
func TestP6_TimeAtADoorDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second), eventbus.MaxElapsed(10*time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		s := mustSubscribe(t, bus, "x", failing(errBoom), eventbus.Named("s"))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "x", nil)
		time.Sleep(time.Hour)
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 4, l.Attempts)
		time.Sleep(time.Hour)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		time.Sleep(time.Minute)
		require.Equal(t, eventbus.ReasonExhausted, oneLetter(t, bus).Reason)
		require.Equal(t, 4, oneLetter(t, bus).Attempts)
		shutdown(t, bus)
	})
}

// Whatever is mixed, nothing is lost, no limit is exceeded, and the books balance.
func TestD12_LimitsAndEverythingElse(t *testing.T) {
	rounds := searching(60, 15)
	for seed := range rounds {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 11))
			opts := []eventbus.Option{
				eventbus.WithConcurrency(1 + rng.IntN(6)), eventbus.WithQueueCapacity(1 + rng.IntN(20)),
				eventbus.WithRetry(retry(2, 100*time.Millisecond)), eventbus.WithTimeout(5 * time.Second),
			}
			if rng.IntN(4) == 0 {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := startBus(t, opts...)
			type delivery struct {
				sub   string
				event eventbus.EventID
			}
			var mu sync.Mutex
			handled := map[delivery]int{}
			matching := map[eventbus.EventID][]string{}
			var subs []*eventbus.Subscription
			for i := range 1 + rng.IntN(3) {
				limit := eventbus.Unlimited
				if rng.IntN(3) > 0 {
					limit = 1
				}
				name := fmt.Sprint("s", i)
				running := 0
				subs = append(subs, mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
					d, _ := eventbus.FromContext(ctx)
					mu.Lock()
					running++
					if limit > 0 && running > limit {
						t.Errorf("seed %d: %d calls of %s", seed, running, name)
					}
					n := e.Payload.(int)
					mu.Unlock()
					time.Sleep(time.Duration(n%7) * 50 * time.Millisecond)
					if n%11 == 0 {
						if id, err := bus.Publish(ctx, "x", 1, eventbus.Key("inner")); err == nil {
							mu.Lock()
							matching[id] = nil
							mu.Unlock()
						}
					}
					mu.Lock()
					defer mu.Unlock()
					running--
					if n%5 == 0 && d.Attempt == 1 {
						return errors.New("once")
					}
					handled[delivery{name, e.ID}]++
					return nil
				}, eventbus.Named(name), eventbus.Concurrency(limit), eventbus.LineCapacity(1+rng.IntN(6))))
			}
			var wg sync.WaitGroup
			for p := range 3 {
				prng := rand.New(rand.NewPCG(uint64(seed), uint64(p)))
				wg.Go(func() {
					for range 20 {
						var opts []eventbus.PublishOption
						if prng.IntN(2) == 0 {
							opts = append(opts, eventbus.Key(fmt.Sprint("k", prng.IntN(2))))
						}
						id, err := bus.Publish(t.Context(), "x", prng.IntN(1000), opts...)
						if err == nil {
							mu.Lock()
							matching[id] = nil
							mu.Unlock()
						}
						time.Sleep(time.Duration(prng.IntN(100)) * time.Millisecond)
					}
				})
			}
			for range 10 {
				time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
				s := subs[rng.IntN(len(subs))]
				switch rng.IntN(5) {
				case 0:
					_ = s.Pause()
				case 1:
					_ = s.Trip()
				case 2:
					_ = s.Reset()
				default:
					_ = s.Resume()
				}
			}
			for _, s := range subs {
				_ = s.Resume()
				_ = s.Reset()
			}
			wg.Wait()
			if rng.IntN(2) == 0 {
				time.Sleep(time.Minute)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(3000))*time.Millisecond)
			defer cancel()
			_ = bus.Shutdown(ctx)
			time.Sleep(time.Hour) // abandoned handlers have returned
			l := bus.Metrics().Ledger
			require.True(t, l.Balanced(), "seed %d: %+v", seed, l)
			dead := map[delivery]bool{}
			for _, letter := range letters(t, bus) {
				for _, name := range append([]string{letter.Subscription}, letter.NotReached...) {
					dead[delivery{name, letter.Event.ID}] = true
				}
			}
			mu.Lock()
			defer mu.Unlock()
			require.EqualValues(t, len(matching), l.Accepted, "seed %d", seed)
			for id := range matching {
				for _, s := range subs {
					d := delivery{s.ID(), id}
					require.True(t, handled[d] > 0 || dead[d], "seed %d: %v is lost", seed, d)
				}
			}
		})
	}
}

// A handler that waits for another event frees its worker, and so a throttled delivery.
func TestD11_AWaitingHandlerFreesAThrottledDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(4))
		hang, gate, other := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var handled, waiting atomic.Int32
		mustSubscribe(t, bus, "hangs", func(context.Context, eventbus.Event) error {
			if handled.Add(1) <= 2 {
				<-hang
			}
			return nil
		})
		mustSubscribe(t, bus, "waits", func(ctx context.Context, _ eventbus.Event) error {
			waiting.Add(1)
			<-gate
			_, err := bus.PublishAndWait(ctx, "later", nil, eventbus.After(10*time.Second))
			return err
		})
		mustSubscribe(t, bus, "other", func(context.Context, eventbus.Event) error { <-other; return nil })
		mustSubscribe(t, bus, "later", ok)
		for _, eventType := range []string{"hangs", "hangs", "waits", "other"} {
			mustPublish(t, bus, eventType, nil)
			settleWorkers()
		}
		require.Equal(t, 4, bus.Metrics().RunningDispatches)
		mustPublish(t, bus, "hangs", nil) // throttled, because the bus is full
		mustPublish(t, bus, "waits", nil)
		other <- struct{}{}
		settleWorkers()
		require.EqualValues(t, 2, waiting.Load())
		require.Equal(t, 1, bus.Metrics().Throttled)
		close(gate) // two of the four workers are free
		settleWorkers()
		time.Sleep(time.Second)
		require.EqualValues(t, 3, handled.Load())
		close(hang)
		shutdown(t, bus)
	})
}

// While its subscription hangs and one worker is free, a throttled delivery stays in its line: with
// it, the bus would be full, and it would be throttled again. No time passes in a bubble while
// goroutines hand it back and forth, so the test would not end.
func TestD11_AThrottledDeliveryStaysWhileOneWorkerIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(2))
		hang := make(chan struct{})
		mustSubscribe(t, bus, "hangs", func(context.Context, eventbus.Event) error { <-hang; return nil })
		mustSubscribe(t, bus, "other", ok)
		for range 3 {
			mustPublish(t, bus, "hangs", nil)
			settleWorkers()
		}
		time.Sleep(time.Second)
		require.Equal(t, 2, bus.Metrics().Throttled)
		_, err := bus.PublishAndWait(t.Context(), "other", nil)
		require.NoError(t, err)
		close(hang)
		shutdown(t, bus)
	})
}

// The oldest delivery may be behind one of its key that runs.
func TestD12_DropOldestDropsBehindARunningDeliveryOfTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		gate := make(chan struct{})
		var handled []any
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
			<-gate
			handled = append(handled, e.Payload)
			return nil
		}, eventbus.Concurrency(1), eventbus.LineCapacity(3), eventbus.DropOldestWhenFull)
		mustPublish(t, bus, "x", 0)
		settleWorkers()
		for i := range 3 {
			mustPublish(t, bus, "x", i+1, eventbus.Key("k"))
			settleWorkers()
		}
		gate <- struct{}{} // 0 ends and 1 runs, so 2 is the oldest in the line
		settleWorkers()
		require.Equal(t, 2, bus.Metrics().Throttled)
		mustPublish(t, bus, "x", 4, eventbus.Key("k"))
		settleWorkers()
		close(gate)
		shutdown(t, bus)
		require.Equal(t, []any{0, 1, 3, 4}, handled)
	})
}

// A scheduled event does not wait for a line, in a batch either.
func TestD12_ABatchDoesNotWaitForAScheduledEventsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.RefuseWhenFull())
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { <-release; return nil },
			eventbus.Concurrency(1), eventbus.LineCapacity(1))
		mustSubscribe(t, bus, "y", ok)
		for range 2 {
			mustPublish(t, bus, "x", nil)
			settleWorkers()
		}
		_, err := bus.Publish(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "x", Options: []eventbus.PublishOption{eventbus.After(time.Second)}},
			{Type: "y"},
		})
		require.NoError(t, err)
		close(release)
		time.Sleep(2 * time.Second)
		shutdown(t, bus)
	})
}

// The share is for a bus with several subscriptions: when the other one leaves, it ends.
func TestD11_ASingleSubscriptionHasNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(2))
		hang := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { <-hang; return nil })
		other := mustSubscribe(t, bus, "other", ok)
		for range 4 {
			mustPublish(t, bus, "x", nil)
			settleWorkers()
		}
		require.Equal(t, 1, bus.Metrics().RunningDispatches)
		other.Unsubscribe()
		settleWorkers()
		require.Equal(t, 2, bus.Metrics().RunningDispatches, "without waiting for a call to end")
		for range 2 {
			hang <- struct{}{}
			time.Sleep(time.Second)
		}
		require.Equal(t, 2, bus.Metrics().RunningDispatches)
		close(hang)
		shutdown(t, bus)
	})
}
