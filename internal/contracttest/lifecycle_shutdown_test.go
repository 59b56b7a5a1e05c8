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
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

func TestS2_ACutMeetsTheEventThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		q := newQueue(t)
		q.subscribe(t, "order.*")
		q.handle[4] = func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }
		q.run(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, q.bus.Shutdown(ctx))
		synctest.Wait()
		require.Equal(t, count(5), q.ran.all())
		require.Len(t, letters(t, q.bus), n-4)
		require.EqualValues(t, 4, q.bus.Metrics().Ledger.Handled)
		requireBalanced(t, q.bus)
	})
}

func TestS2_ShutdownLeavesWhatIsHeld(t *testing.T) {
	for _, how := range []string{"graceful", "cut"} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t)
			s := mustSubscribe(t, bus, "x", ok, eventbus.Named("s"))
			p := mustSubscribe(t, bus, "x", ok, eventbus.Named("p"))
			mustSubscribe(t, bus, "slow", sleepFor(20*time.Second))
			require.NoError(t, s.Trip())
			require.NoError(t, p.Pause())
			holdUp(t, bus, 2)
			holdUp(t, bus, 2, eventbus.Key("k"))
			later := mustPublish(t, bus, "slow", nil, eventbus.After(time.Hour), eventbus.Key("later"))
			mustPublish(t, bus, "slow", nil)
			settleWorkers()
			began := time.Now()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if how == "cut" {
				cancel()
			}
			var left *eventbus.ShutdownError
			require.ErrorAs(t, bus.Shutdown(ctx), &left)
			want := 9
			if how == "cut" {
				want++ // the slow one
				require.ErrorIs(t, left, context.Canceled)
			} else {
				require.NoError(t, left.Cause)
				require.Equal(t, 20*time.Second, time.Since(began).Round(time.Second), "waits for what runs, and no longer")
				require.ErrorContains(t, left, "left held deliveries or scheduled events")
			}
			require.Len(t, left.Unfinished, want)
			all := letters(t, bus)
			require.Len(t, all, want)
			of := make(map[string]int)
			for _, l := range all {
				require.Equal(t, eventbus.ReasonShutdown, l.Reason)
				of[l.Subscription]++
			}
			require.Equal(t, 4, of["s"])
			require.Equal(t, 4, of["p"])
			require.True(t, slices.ContainsFunc(left.Unfinished, func(l eventbus.DeadLetter) bool { return l.Event.ID == later }))
			require.Equal(t, want, logs.FilterField(zap.String("reason", "shutdown")).Len())
			m := bus.Metrics()
			require.Zero(t, m.Held)
			require.Zero(t, m.Scheduled)
			requireBalanced(t, bus)
			require.ErrorIs(t, bus.Shutdown(context.Background()), left, "idempotent")
		})
	}
}

// Queued events for a paused subscription are not waited for either, nor are the
// retries of calls that have begun before.
func TestS2_ShutdownDoesNotWaitForWhatIsPausedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(3, 5*time.Second)))
		calls := newCallLog()
		s := mustSubscribe(t, bus, "*", calls.handler("s"), eventbus.Named("s"))
		mustPublish(t, bus, "x", scripted("fails", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Second)
			return errBoom
		}))
		for i := range 5 {
			mustPublish(t, bus, "x", i, eventbus.Key("k"))
		}
		settleWorkers()
		done := make(chan error, 1)
		go func() { done <- bus.Shutdown(context.Background()) }()
		settleWorkers()
		require.NoError(t, s.Pause())
		time.Sleep(3 * time.Second)
		require.Empty(t, done, "the retry of what failed comes after 5 s, and finds that it is paused")
		time.Sleep(10 * time.Second)
		err := <-done
		require.True(t, leftHeld(err), "%v", err)
		require.Equal(t, []string{"+0s s:fails"}, calls.all())
		require.Len(t, letters(t, bus), 6)
		requireBalanced(t, bus)
	})
}

// What is let go at the very moment of a shutdown is handled, or a letter: never
// both, never neither, and the error names all letters.
func TestS2_LetGoAtTheMomentOfShutdown(t *testing.T) {
	rounds := searching(400, 100)
	for round := range rounds {
		const n = 100
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, 0)))
		var handled [n]atomic.Int32
		var published atomic.Int64
		var more atomic.Int64
		s := mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			i := e.Payload.(int)
			if i%5 == 0 {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					return errBoom
				}
			}
			if i%10 == 3 {
				if _, err := bus.Publish(ctx, "y", nil, eventbus.After(time.Duration(i%3)*time.Hour)); err == nil {
					published.Add(1)
				}
			}
			handled[i].Add(1)
			return nil
		}, eventbus.Named("s"), eventbus.Circuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "y", func(context.Context, eventbus.Event) error { more.Add(1); return nil })
		require.NoError(t, s.Pause())
		for i := range n {
			mustPublish(t, bus, "x", i, eventbus.Key([]string{"", "k", "l"}[i%3]))
		}
		for bus.Metrics().Held < n/2 {
			runtime.Gosched()
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { err = bus.Shutdown(ctx) })
		wg.Go(func() {
			for range round % 50 {
				runtime.Gosched()
			}
			_ = s.Resume()
		})
		if round%3 == 0 {
			wg.Go(func() {
				for range round % 70 {
					runtime.Gosched()
				}
				cancel()
			})
		}
		wg.Wait()
		cancel()
		requireBalanced(t, bus)
		died := make(map[any]int)
		var diedLater int64
		all := letters(t, bus)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonShutdown, l.Reason)
			if l.Event.Type == "y" {
				diedLater++
				continue
			}
			died[l.Event.Payload]++
		}
		for i := range n {
			ends := int(handled[i].Load()) + died[i]
			if round%3 == 0 && ends == 2 {
				continue // a cut has given up its call, which ended after all
			}
			require.Equal(t, 1, ends, "event %d: %v", i, err)
		}
		require.Equal(t, published.Load(), more.Load()+diedLater)
		var left *eventbus.ShutdownError
		if len(all) > 0 {
			require.ErrorAs(t, err, &left)
			require.Len(t, left.Unfinished, len(all))
		} else {
			require.NoError(t, err)
		}
	}
}

// Handlers that publish for later while the bus shuts down: it is accepted, and
// left.
func TestS2_PublishingForLaterDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "y", ok)
		var id eventbus.EventID
		var outside error
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, outside = bus.Publish(context.Background(), "y", nil, eventbus.After(time.Minute))
			var err error
			id, err = bus.Publish(ctx, "y", nil, eventbus.After(time.Minute))
			return err
		})
		mustPublish(t, bus, "x", nil)
		settleWorkers()
		left := shutdownLeft(t, bus)
		require.ErrorIs(t, outside, eventbus.ErrShutdown)
		require.Len(t, left, 1)
		require.Equal(t, id, left[0].Event.ID)
		require.Equal(t, eventbus.ReasonShutdown, left[0].Reason)
	})
}

// A long line behind a key, cut: every one is a letter.
func TestS2_ALineBehindAKeyIsCut(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		for _, first := range []string{"runs", "waits for a retry"} {
			synctest.Test(t, func(t *testing.T) {
				const n = 3000
				var opts []eventbus.Option
				if isolated {
					opts = append(opts, eventbus.WithIsolation())
				}
				bus, _ := startBus(t, append(opts, eventbus.WithRetry(retry(1, time.Hour)))...)
				mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
					if first == "runs" {
						<-ctx.Done()
					}
					return errBoom
				})
				for i := range n {
					mustPublish(t, bus, "x", i, eventbus.Key("k"))
				}
				settleWorkers()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var left *eventbus.ShutdownError
				require.ErrorAs(t, bus.Shutdown(ctx), &left)
				require.Len(t, left.Unfinished, n)
				requireBalanced(t, bus)
				seen := make(map[any]bool)
				for _, l := range letters(t, bus) {
					require.Equal(t, eventbus.ReasonShutdown, l.Reason)
					seen[l.Event.Payload] = true
				}
				require.Len(t, seen, n)
				settleWorkers()
			})
		}
	}
}

func TestS2_AGracefulShutdownWaitsForALineBehindAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		for i := range 100 {
			mustPublish(t, bus, "x", scripted(fmt.Sprint(i), sleepFor(time.Second)), eventbus.Key("k"))
		}
		shutdown(t, bus)
		require.Equal(t, 100, calls.len())
		require.Equal(t, "+1m39s s:99", calls.all()[99])
	})
}

func TestS2_ShutdownWaitsAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(1, time.Minute)))
		handled := map[any]int{}
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			time.Sleep(time.Second)
			if handled[e.Payload]++; handled[e.Payload] == 1 && e.Payload == "retrying" {
				return errBoom
			}
			if e.Payload == "running" {
				_, err := bus.Publish(ctx, "x", "published meanwhile")
				return err
			}
			return ctx.Err()
		})
		mustPublish(t, bus, "x", "retrying")
		time.Sleep(2 * time.Second)
		mustPublish(t, bus, "x", "running")
		synctest.Wait()
		mustPublish(t, bus, "x", "queued")
		shut := make(chan error, 1)
		go func() { shut <- bus.Shutdown(context.Background()) }()
		synctest.Wait()
		for _, eventType := range []string{"x", "nobody.listens"} {
			_, err := bus.Publish(t.Context(), eventType, nil)
			require.ErrorIs(t, err, eventbus.ErrShutdown)
			_, err = bus.PublishAndWait(t.Context(), eventType, nil)
			require.ErrorIs(t, err, eventbus.ErrShutdown)
		}
		_, err := bus.Subscribe("x", ok)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		require.NoError(t, <-shut)
		require.Equal(t, map[any]int{"retrying": 2, "running": 1, "queued": 1, "published meanwhile": 1}, handled)
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
		require.Zero(t, bus.Metrics().Workers)
	})
}

func TestS2_TheEndOfItsContextCutsAllShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(3, time.Hour)), eventbus.WithTimeout(time.Hour),
			eventbus.WithDeadLetterCapacity(1))
		var err, cause, late error
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			if e.Payload == "retrying" {
				return errBoom
			}
			<-ctx.Done()
			err, cause = ctx.Err(), context.Cause(ctx)
			_, late = bus.Publish(context.WithoutCancel(ctx), "x", nil)
			<-release
			return errBoom
		}, eventbus.Named("s"))
		retrying := mustPublish(t, bus, "x", "retrying")
		synctest.Wait()
		running := mustPublish(t, bus, "x", "running")
		synctest.Wait()
		queued := mustPublish(t, bus, "x", "queued")
		before := metricsOf(t, bus, "s")

		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, why)
		defer cancel()
		begin := time.Now()
		shut := bus.Shutdown(ctx)
		require.Equal(t, time.Minute, time.Since(begin))
		synctest.Wait()
		require.Equal(t, context.Canceled, err)
		require.Equal(t, eventbus.ErrShutdown, cause)
		require.ErrorIs(t, late, eventbus.ErrShutdown)

		var cut *eventbus.ShutdownError
		require.ErrorAs(t, shut, &cut)
		require.ErrorIs(t, shut, why)
		attempts := map[eventbus.EventID]int{}
		for _, l := range cut.Unfinished {
			require.Equal(t, eventbus.ReasonShutdown, l.Reason)
			require.Equal(t, "s", l.Subscription)
			require.Equal(t, begin.Add(time.Minute).UTC(), l.DiedAt)
			require.ErrorContains(t, shut, l.ID.String())
			attempts[l.Event.ID] = l.Attempts
		}
		require.Equal(t, map[eventbus.EventID]int{retrying: 1, running: 0, queued: 0}, attempts)
		require.Len(t, cut.Abandoned, 1)
		require.Equal(t, running, cut.Abandoned[0].EventID)
		require.ElementsMatch(t, cut.Unfinished, letters(t, bus), "beyond the capacity too")
		require.Len(t, logs.FilterField(zap.String("reason", "shutdown")).All(), 3)
		require.Same(t, shut, bus.Shutdown(t.Context()))
		requireBalanced(t, bus)

		close(release)
		synctest.Wait()
		require.Empty(t, bus.Abandoned())
		after := metricsOf(t, bus, "s")
		require.EqualValues(t, 1, after.LateEnds)
		before.Running = 0
		after.LateEnds, after.Latency, before.Latency = 0, eventbus.Latency{}, eventbus.Latency{}
		require.Equal(t, before, after, "neither outcome nor attempt")
		require.Len(t, letters(t, bus), 3)
	})
}

// The cut empties the queue while workers take from it: what becomes of an event must
// not depend on who comes first.
func TestS2_WhatACutFindsQueuedIsNotSkipped(t *testing.T) {
	for name, skips := range map[string]func(*testing.T, *eventbus.Subscription){
		"paused": func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Pause()) },
		"open":   func(t *testing.T, s *eventbus.Subscription) { require.NoError(t, s.Trip()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := newBus(t)
				skips(t, mustSubscribe(t, bus, "x", ok, eventbus.Named("skipped"), eventbus.DropWhenOpen))
				mustSubscribe(t, bus, "x", ok, eventbus.Named("last"))
				const events = 5000
				for range events {
					mustPublish(t, bus, "x", nil)
				}
				var cut *eventbus.ShutdownError
				require.ErrorAs(t, bus.Shutdown(t.Context()), &cut)
				require.Zero(t, metricsOf(t, bus, "skipped").Skipped)
				l := bus.Metrics().Ledger
				require.Zero(t, l.Splits+l.Dropped)
				require.EqualValues(t, events, l.DeadLettered, "one letter an event")
				requireBalanced(t, bus)
			})
		})
	}
}

func TestS2_WaitersAreToldOfACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(1, time.Hour)))
		mustSubscribe(t, bus, "waiting", failing(errBoom))
		mustSubscribe(t, bus, "running", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil })
		var results journal[eventbus.Result]
		for _, eventType := range []string{"waiting", "running", "running"} { // the last one is queued
			go func() {
				r, err := bus.PublishAndWait(context.Background(), eventType, nil)
				var died *eventbus.DeliveryError
				if errors.As(err, &died) && died.Letters[0].Reason == eventbus.ReasonShutdown {
					results.add(r)
				}
			}()
			synctest.Wait()
		}
		require.Error(t, bus.Shutdown(ended()))
		synctest.Wait()
		require.Equal(t, 3, results.len())
		for _, r := range results.all() {
			require.Equal(t, eventbus.DeadLettered, r.Outcome)
		}
	})
}

func TestS2_ShutdownIsIdempotentAndConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil })
		mustPublish(t, bus, "x", nil)
		var wg sync.WaitGroup
		begin := time.Now()
		var ends journal[string]
		for range 16 {
			wg.Go(func() { ends.add(fmt.Sprint(bus.Shutdown(context.Background()), time.Since(begin))) })
		}
		wg.Wait()
		require.Equal(t, slices.Repeat([]string{"<nil> 1s"}, 16), ends.all(), "all wait")
		shutdown(t, bus)
		require.NoError(t, bus.Shutdown(ended()))
	})
}

// One caller's impatience ends the wait of all.
func TestS2_AnyContextCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil })
		mustPublish(t, bus, "x", nil)
		patient := make(chan error, 1)
		go func() { patient <- bus.Shutdown(context.Background()) }()
		synctest.Wait()
		impatient := bus.Shutdown(ended())
		require.ErrorIs(t, impatient, context.Canceled)
		require.Same(t, impatient, <-patient)
	})
}

// Fault 29.
func TestS2_ShutdownFromAHandlerReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var took time.Duration
		var shut, inside, outside error
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			begin := time.Now()
			derived, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			shut = bus.Shutdown(derived)
			took = time.Since(begin)
			_, inside = bus.Publish(ctx, "y", nil)
			_, outside = bus.Publish(context.Background(), "y", nil)
			return nil
		})
		handled := 0
		mustSubscribe(t, bus, "y", func(context.Context, eventbus.Event) error { handled++; return nil })
		// Both before x is handled, which ends the bus.
		_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "x"}, {Type: "y"}})
		require.NoError(t, err)
		synctest.Wait()
		shutdown(t, bus)
		require.NoError(t, shut)
		require.Zero(t, took)
		require.NoError(t, inside)
		require.ErrorIs(t, outside, eventbus.ErrShutdown)
		require.Equal(t, 2, handled)
	})
}

func TestS2_ABusThatWasNotStarted(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { panic("called") })
	id := mustPublish(t, bus, "x", nil)
	err := bus.Shutdown(context.Background())
	var cut *eventbus.ShutdownError
	require.ErrorAs(t, err, &cut)
	require.ErrorIs(t, err, eventbus.ErrNotStarted)
	require.Len(t, cut.Unfinished, 1)
	require.Equal(t, id, cut.Unfinished[0].Event.ID)
	require.Equal(t, eventbus.ReasonShutdown, oneLetter(t, bus).Reason)
	require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrShutdown)
	requireBalanced(t, bus)

	empty, _ := newBus(t)
	require.NoError(t, empty.Shutdown(context.Background()))
}

// Every accepted event is handled or dead-lettered, whenever Shutdown begins.
func TestS2_ShutdownUnderLoadLosesNothing(t *testing.T) {
	for round := range 30 {
		bus, _ := startBus(t, eventbus.WithConcurrency(4), eventbus.WithQueueCapacity(64),
			eventbus.WithRetry(retry(2, 100*time.Microsecond)), eventbus.WithCircuit(eventbus.NoCircuit()))
		var accepted, handled atomic.Int64
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			n := e.Payload.(int)
			if d, _ := eventbus.FromContext(ctx); n%5 == 0 && d.Attempt == 1 {
				return errBoom
			}
			if n%7 == 0 {
				if _, err := bus.Publish(ctx, "x", 1); err == nil {
					accepted.Add(1)
				}
			}
			return nil
		})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { handled.Add(1); return nil })
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for n := 0; ; n++ {
					if _, err := bus.Publish(context.Background(), "x", n); err != nil {
						return
					}
					accepted.Add(1)
				}
			})
		}
		for bus.Metrics().Ledger.Handled < int64(100+50*round) {
			runtime.Gosched()
		}
		ctx := context.Background()
		if round%2 == 1 {
			ctx = ended()
		}
		_ = bus.Shutdown(ctx)
		wg.Wait()
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		// An abandoned handler may have published without counting it yet.
		for len(bus.Abandoned()) > 0 {
			runtime.Gosched()
		}
		require.Equal(t, eventbus.Ledger{Accepted: accepted.Load(), Handled: l.Handled, DeadLettered: l.DeadLettered, Splits: l.Splits, Closed: true}, l)
		require.Equal(t, accepted.Load()+l.Splits, l.Handled+l.DeadLettered)
		require.GreaterOrEqual(t, handled.Load(), l.Handled-l.Splits)
	}
}

// Publish yields after each refusal, so publishers that retry in a loop leave the processors to
// Shutdown. With one processor, the loop gets one refusal for each yield of the test. Without the
// yield in Publish, it would get thousands in each of its time slices.
func TestS2_APublisherThatTriesAgainYieldsAtEachRefusal(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", ok)
	shutdown(t, bus)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var refused atomic.Int64
	var over atomic.Bool
	var spinning sync.WaitGroup
	spinning.Go(func() {
		for !over.Load() {
			if _, err := bus.Publish(context.Background(), "x", nil); errors.Is(err, eventbus.ErrShutdown) {
				refused.Add(1)
			}
		}
	})
	for range 20 {
		runtime.Gosched()
	}
	spins := refused.Load()
	over.Store(true)
	spinning.Wait()
	require.Positive(t, spins)
	require.LessOrEqual(t, spins, int64(1000))
}

// The ledger is closed and balanced when a call of Shutdown returns, also if another call of
// Shutdown runs at the same time.
func TestS2_TwoThatShutDownBothFindBalancedBooks(t *testing.T) {
	for range 500 {
		bus, _ := newBus(t)
		mustSubscribe(t, bus, "a", ok)
		mustPublish(t, bus, "a", nil)
		var wg sync.WaitGroup
		var unbalanced atomic.Int32
		for range 2 {
			wg.Go(func() {
				_ = bus.Shutdown(context.Background())
				if !bus.Metrics().Ledger.Balanced() {
					unbalanced.Add(1)
				}
			})
		}
		wg.Wait()
		require.Zero(t, unbalanced.Load())
	}
}

// A RetryIf, or an error, that does not return holds up its own event, and not
// the end of a Shutdown that has been cut short.
func TestS2_ACutDoesNotWaitForRetryIf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		release := make(chan struct{})
		mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Retry(eventbus.RetryIf(func(error) bool {
			<-release
			return true
		})))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		cut := cutShort(t, bus)
		require.Len(t, cut.Unfinished, 1)
		requireBalanced(t, bus)
		close(release)
	})
}

// Each may shut the bus down, waiting on a goroutine of its own, or with a context
// that has ended; and one that blocks for ever does not hold up a cut.
func TestS2_CallbacksMayEndTheBus(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for manner, end := range map[string]func(*eventbus.Bus, chan struct{}){
		"at once": func(bus *eventbus.Bus, _ chan struct{}) { _ = bus.Shutdown(ended) },
		"aside":   func(bus *eventbus.Bus, _ chan struct{}) { go func() { _ = bus.Shutdown(context.Background()) }() },
		"blocked": func(_ *eventbus.Bus, release chan struct{}) { <-release },
	} {
		for _, name := range callbackNames() {
			t.Run(name+" "+manner, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var bus *eventbus.Bus
					var called atomic.Int64
					release := make(chan struct{})
					bus, _ = newBus(t, append(observedOptions, observerCalling(func(string, any) {
						called.Add(1)
						end(bus, release)
					}, name))...)
					require.NoError(t, bus.Start(t.Context()))
					took := make(chan time.Duration)
					go func() {
						time.Sleep(10 * time.Minute)
						begin := time.Now()
						_ = bus.Shutdown(ended)
						close(release)
						took <- time.Since(begin)
					}()
					causeEverything(t, bus)
					require.LessOrEqual(t, <-took, time.Second)
					require.Positive(t, called.Load())
					synctest.Wait()
					requireBalanced(t, bus)
				})
			})
		}
	}
}

// A cut has thousands of letters to tell of, and does not wait a moment for each.
func TestS2_ACutDoesNotWaitForEachCallOfABlockedObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 2000
		release := make(chan struct{})
		var told atomic.Int64
		bus, logs := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(9, time.Hour)),
			observerCalling(func(string, any) {
				if told.Add(1) == events {
					panic("the last one")
				}
				<-release
			}, "DeadLettered"))
		mustSubscribe(t, bus, "x", failing(errDead), eventbus.Circuit(eventbus.NoCircuit()))
		for range events {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begin := time.Now()
		var cut *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(ctx), &cut)
		require.Len(t, cut.Unfinished, events)
		require.Less(t, time.Since(begin), 2*time.Second)
		synctest.Wait()
		require.EqualValues(t, events, told.Load(), "all are told of")
		require.Equal(t, 1, logs.FilterMessage("observer panicked").Len())
		close(release)
	})
}

// Shutdown does not wait for scheduled events, even if their Publish runs at the same time.
func TestS2_PublishingForLaterWhileShutdownBegins(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			mustSubscribe(t, bus, "a", ok)
			var publishers sync.WaitGroup
			for range 8 {
				publishers.Go(func() {
					for range 300 {
						if _, err := bus.Publish(context.Background(), "a", nil, eventbus.After(time.Hour)); err != nil {
							return
						}
					}
				})
			}
			for bus.Metrics().Scheduled < 10 {
				runtime.Gosched() // without advancing the time
			}
			// A Shutdown that waits for the schedule reaches this timeout in virtual time.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			err := bus.Shutdown(ctx)
			cancel()
			publishers.Wait()

			var left *eventbus.ShutdownError
			require.ErrorAs(t, err, &left)
			require.NoError(t, left.Cause, "it was waited for")
			require.Len(t, left.Unfinished, int(bus.Metrics().Ledger.Accepted))
			requireBalanced(t, bus)
		})
	}
}

// What a batch publishes for later is there for Shutdown, and for Cancel, when the
// first observer is told of it.
func TestS2_AnObserverIsToldOfWhatIsPublishedForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bus *eventbus.Bus
		told, goOn := 0, make(chan struct{})
		bus, _ = startBus(t, eventbus.WithObserver(eventbus.Observer{Accepted: func(e eventbus.Event) {
			if told++; told == 1 {
				require.NoError(t, cancelEvent(context.Background(), bus, e.ID))
				<-goOn
			}
		}}))
		mustSubscribe(t, bus, "a", ok)
		later := eventbus.Publication{Type: "a", Options: []eventbus.PublishOption{eventbus.After(time.Hour)}}
		var err error
		go func() {
			_, err = bus.PublishBatch(context.Background(), []eventbus.Publication{later, later, later})
		}()
		synctest.Wait()
		var left *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(context.Background()), &left)
		require.Len(t, left.Unfinished, 2)
		close(goOn)
		synctest.Wait()
		require.NoError(t, err)
		require.Equal(t, 3, told)
		requireBalanced(t, bus)
	})
}

func TestS2_ACutMeetsTheHandlerThatRuns(t *testing.T) {
	for stuck := range 5 {
		synctest.Test(t, func(t *testing.T) {
			s := newSequence(t, nil)
			s.handle[stuck] = func(ctx context.Context, _ eventbus.Event) error {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), eventbus.ErrShutdown)
				return nil
			}
			s.publish(t)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, s.bus.Shutdown(ctx))
			synctest.Wait()
			l := oneLetter(t, s.bus)
			require.Equal(t, eventbus.ReasonShutdown, l.Reason)
			require.Equal(t, fmt.Sprint(stuck), l.Subscription)
			require.Len(t, l.Succeeded, stuck)
			require.Len(t, l.NotReached, 4-stuck)
			require.Len(t, s.ran.all(), stuck+1)
			requireBalanced(t, s.bus)
		})
	}
}

// A handler that was abandoned and still runs is named, also when nothing else is left.
func TestS2_AnAbandonedHandlerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithTimeout(time.Second), eventbus.WithRetry(eventbus.MaxRetries(0)))
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { <-release; return nil }, eventbus.Named("stuck"))
		id := mustPublish(t, bus, "x", nil)
		time.Sleep(time.Minute)
		var left *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(context.Background()), &left)
		require.Empty(t, left.Unfinished)
		require.NoError(t, left.Cause)
		require.Len(t, left.Abandoned, 1)
		require.Equal(t, "stuck", left.Abandoned[0].Subscription)
		require.Equal(t, id, left.Abandoned[0].EventID)
		require.ErrorContains(t, left, "handlers still running: 1")
		requireBalanced(t, bus)
		close(release)
	})
}

// A publisher whose context ends while it waits for room may get the room at the same moment, and
// gives it back. If the last dispatch settles in between, Shutdown must still notice that nothing is
// left. With one processor, the publisher runs only after event 2 has settled.
func TestS2_RoomThatIsGivenBackDoesNotDelayShutdown(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 50 { // the publisher finds both its room and the end of its context, and takes one of them
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithQueueCapacity(1))
			waits, cancel := context.WithCancel(t.Context())
			hold := make(chan struct{})
			mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
				switch e.Payload {
				case 1:
					<-hold
					cancel()
				case 2:
					return bus.Shutdown(ctx)
				}
				return nil
			})
			mustPublish(t, bus, "x", 1)
			synctest.Wait()
			mustPublish(t, bus, "x", 2)
			go func() { _, _ = bus.Publish(waits, "x", 3) }()
			synctest.Wait()
			close(hold)
			synctest.Wait()
			require.NoError(t, bus.Shutdown(t.Context()))
		})
	}
}

// Until the end of Shutdown's context, events of running handlers are accepted, also after Cancel has
// taken back a scheduled event.
func TestS2_CancelDoesNotEndShutdownEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		hold, accepted := make(chan struct{}), make(chan error, 1)
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			<-hold
			_, err := bus.Publish(ctx, "y", nil)
			accepted <- err
			return nil
		})
		mustSubscribe(t, bus, "y", ok)
		mustSubscribe(t, bus, "later", ok)
		id := mustPublish(t, bus, "later", nil, eventbus.After(time.Hour))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		go func() { _ = bus.Shutdown(context.Background()) }()
		synctest.Wait()
		require.NoError(t, cancelEvent(t.Context(), bus, id))
		time.Sleep(time.Second)
		close(hold)
		require.NoError(t, <-accepted)
		shutdown(t, bus)
	})
}

// A goroutine of a handler that has returned publishes from outside. After Shutdown has returned,
// nothing is accepted from it, whether the event takes room in the queue or not.
func TestS2_NothingIsAcceptedAfterShutdownHasReturned(t *testing.T) {
	for name, c := range map[string]struct {
		eventType string
		options   []eventbus.PublishOption
	}{
		"queued":    {"x", nil},
		"scheduled": {"x", []eventbus.PublishOption{eventbus.After(time.Hour)}},
		"unrouted":  {"y", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, published := make(chan struct{}), make(chan error, 1)
				// The metadata are asked for after Publish has seen that the handler runs.
				bus, _ := startBus(t, eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
					if _, inside := eventbus.FromContext(ctx); inside {
						<-slow
					}
					return nil
				}))
				mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
					go func() {
						_, err := bus.Publish(context.WithoutCancel(ctx), c.eventType, nil, c.options...)
						published <- err
					}()
					time.Sleep(time.Second)
					return nil
				})
				mustPublish(t, bus, "x", nil)
				time.Sleep(time.Millisecond)
				require.NoError(t, bus.Shutdown(t.Context()))
				before := bus.Metrics().Ledger
				close(slow)
				require.ErrorIs(t, <-published, eventbus.ErrShutdown)
				require.Equal(t, before, bus.Metrics().Ledger)
				require.Zero(t, bus.Metrics().DeadLetters)
			})
		})
	}
}

// The same publisher at the moment of Shutdown's end: its event is handled before Shutdown returns,
// or refused. Rounds are real time, because the moment is a matter of scheduling.
func TestS2_APublicationAtTheEndOfShutdownIsHandledOrRefused(t *testing.T) {
	rounds := 2_000
	if *long {
		rounds = 200_000
	}
	for n := range rounds {
		bus, err := eventbus.New()
		require.NoError(t, err)
		var handled atomic.Int32
		published := make(chan error, 1)
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			if e.Payload != nil {
				handled.Add(1)
				return nil
			}
			go func() {
				for i := range n % 400 * 20 { // reaches the end of Shutdown in some rounds
					_ = i
				}
				_, err := bus.Publish(context.WithoutCancel(ctx), "x", 1)
				published <- err
			}()
			runtime.Gosched()
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", nil)
		require.NoError(t, bus.Shutdown(t.Context()))
		ran := handled.Load()
		require.Equal(t, ran == 1, <-published == nil, "round %d", n)
	}
}
