package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// ended is a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestS1_EventsWaitForStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		var got []any
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got = append(got, e.Payload); return nil })
		for i := range 3 {
			mustPublish(t, bus, "x", i)
		}
		time.Sleep(time.Hour)
		require.Empty(t, got)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Queued)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, bus.Start(ctx))
		cancel() // bounds Start only
		require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrAlreadyStarted)
		synctest.Wait()
		require.Equal(t, []any{0, 1, 2}, got)
		shutdown(t, bus)
		require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrShutdown)
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

// Fault 38.
func TestFault38_ShutdownWithMuchToDo(t *testing.T) {
	for _, patient := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
			mustSubscribe(t, bus, "running", func(ctx context.Context, _ eventbus.Event) error {
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
				return nil
			})
			mustSubscribe(t, bus, "failing", failing(errBoom))
			for range 2000 {
				mustPublish(t, bus, "failing", nil)
			}
			time.Sleep(time.Second)
			for range 1000 {
				mustPublish(t, bus, "running", nil)
			}
			time.Sleep(time.Second)
			if patient {
				shutdown(t, bus)
				require.EqualValues(t, 1000, bus.Metrics().Ledger.Handled)
				require.Len(t, letters(t, bus), 2000)
				return
			}
			var cut *eventbus.ShutdownError
			require.ErrorAs(t, bus.Shutdown(ended()), &cut)
			require.Len(t, cut.Unfinished, 3000)
			require.Less(t, len(cut.Error()), 10_000)
			requireBalanced(t, bus)
			synctest.Wait()
			require.Empty(t, bus.Abandoned())
		})
	}
}

// Whatever is accepted is handled or dead, however Shutdown falls into it.
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
			time.Sleep(50 * time.Microsecond) // waits for progress on the real clock
		}
		ctx := context.Background()
		if round%2 == 1 {
			ctx = ended()
		}
		_ = bus.Shutdown(ctx)
		wg.Wait()
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		// A handler that was cut short may have published, and not counted it yet.
		require.Eventually(t, func() bool { return len(bus.Abandoned()) == 0 }, 10*time.Second, time.Millisecond)
		require.Equal(t, eventbus.Ledger{Accepted: accepted.Load(), Handled: l.Handled, DeadLettered: l.DeadLettered}, l)
		require.Equal(t, accepted.Load(), l.Handled+l.DeadLettered)
		require.GreaterOrEqual(t, handled.Load(), l.Handled)
	}
}

// Fault 15.
func TestFault15_AfterShutdown(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errBoom)))
	mustPublish(t, bus, "x", nil)
	shutdown(t, bus)
	_, err := bus.Publish(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	_, err = bus.PublishAndWait(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	_, err = bus.Subscribe("x", ok)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrShutdown)
	require.ErrorIs(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID), eventbus.ErrShutdown)
	require.Len(t, bus.Explain("x").Targets, 1)
	s.Unsubscribe()
	require.NoError(t, bus.Shutdown(t.Context()))
	oneLetter(t, bus)
	requireBalanced(t, bus)
}

func TestS4_AMockClockDrivesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // of the real time, that is, which stands still
		mock := clock.NewMock()
		origin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		mock.Set(origin)
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(retry(1, time.Hour)))
		var deadline time.Time
		var mu sync.Mutex
		calls := 0
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			mu.Lock()
			calls++
			deadline, _ = ctx.Deadline()
			mu.Unlock()
			<-ctx.Done()
			return nil
		}, eventbus.Timeout(time.Minute))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.Equal(t, origin.Add(time.Minute), deadline)
		mock.Add(time.Minute - 1)
		synctest.Wait()
		require.Zero(t, bus.Metrics().WaitingRetries)
		mock.Add(1)
		synctest.Wait()
		require.Equal(t, 1, bus.Metrics().WaitingRetries)
		mock.Add(time.Hour - 1)
		synctest.Wait()
		require.Equal(t, 1, calls)
		mock.Add(1)
		synctest.Wait()
		require.Equal(t, 2, calls)
		mock.Add(time.Minute)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, origin, l.Event.Time)
		require.Equal(t, origin.Add(time.Hour+2*time.Minute), l.DiedAt)
		require.Equal(t, origin.Add(time.Minute), l.Failures[0].Time)
		require.Equal(t, time.Minute, l.Failures[0].Duration)
		shutdown(t, bus)

		// No timer is left: this one runs all there are.
		at := mock.Now()
		mock.WaitForAllTimers()
		require.Equal(t, at, mock.Now())
	})
}

// Retries without a delay need no move of the clock.
func TestS4_AMockClockThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithClock(clock.NewMock()), eventbus.WithRetry(retry(3, 0)))
		mustSubscribe(t, bus, "x", failing(errBoom))
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, 4, oneLetter(t, bus).Attempts)
		shutdown(t, bus)
	})
}

func TestS4_AMockClockThatIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		origin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		mock.Set(origin)
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(retry(1, time.Minute)), eventbus.WithTimeout(time.Minute))
		calls := 0
		var mu sync.Mutex
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls == 1 {
				mock.Set(origin.Add(-time.Hour)) // while it runs
			}
			return errBoom
		})
		mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second) // the mock sleeps too
		synctest.Wait()
		require.Equal(t, 1, calls)
		mock.Add(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, calls, "the delay begins when the failure was seen")
		require.Len(t, oneLetter(t, bus).Failures, 2)
		mustSubscribe(t, bus, "stuck", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil },
			eventbus.Retry(eventbus.MaxRetries(0)))
		mustPublish(t, bus, "stuck", nil)
		synctest.Wait()
		mock.Add(time.Minute)
		synctest.Wait()
		require.Len(t, letters(t, bus), 2, "and so does the timeout")
		shutdown(t, bus)
	})
}

func TestF5_ADurationIsNeverNegative(t *testing.T) {
	mock := clock.NewMock()
	bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(eventbus.MaxRetries(0)))
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
		mock.Set(mock.Now().Add(-time.Hour))
		return errBoom
	})
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.Error(t, err)
	require.GreaterOrEqual(t, oneLetter(t, bus).Failures[0].Duration, time.Duration(0))
	shutdown(t, bus)
}

func TestS5_AnIdleBusHasNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock))
		for i := range 1000 {
			mustSubscribe(t, bus, fmt.Sprintf("type.%d", i), ok)
		}
		for range 3 {
			for i := range 1000 {
				mustPublish(t, bus, fmt.Sprintf("type.%d", i), nil)
			}
			synctest.Wait()
			time.Sleep(time.Second)
			at := mock.Now()
			mock.WaitForAllTimers()
			require.Equal(t, at, mock.Now())
		}
		shutdown(t, bus)
	})
}

// The last of many workers to be done leaves, and does not rest.
func TestS5_AnIdleBusHasNoTimerAfterManyWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock))
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return hold(release) })
		for range 200 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		running := bus.Metrics().RunningDispatches
		close(release)
		time.Sleep(time.Second)
		at := mock.Now()
		mock.WaitForAllTimers()
		idle := mock.Now().Sub(at)
		shutdown(t, bus)
		require.Equal(t, 200, running)
		require.Zero(t, idle, "a timer was outstanding")
	})
}

// On the real clock a timer cannot be seen, but what it wakes can: in a bubble,
// where a day is nothing unless somebody wakes in it.
func TestS5_AnIdleBusWakesNobody(t *testing.T) {
	const name = "/sched/goroutines-created:goroutines"
	created := func() uint64 {
		sample := []metrics.Sample{{Name: name}}
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			t.Skip("this Go does not count goroutines")
		}
		return sample[0].Value.Uint64()
	}
	created()
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		for i := range 1000 {
			mustSubscribe(t, bus, fmt.Sprintf("type.%d", i), ok)
		}
		for range 3 {
			for i := range 1000 {
				mustPublish(t, bus, fmt.Sprintf("type.%d", i), nil)
			}
			time.Sleep(time.Minute)
			before := created()
			time.Sleep(10 * time.Second) // ten thousand ticks
			require.Less(t, created()-before, uint64(1000))
		}
		shutdown(t, bus)
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
			_ = bCut(t, bus)
		})
	}
}

// A handler that has just overrun can still ask what it is delivering, and its
// late end names it.
func TestF5_AHandlerThatHasOverrunKnowsItsEvent(t *testing.T) {
	bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithTimeout(3*time.Millisecond),
		eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithConcurrency(64))
	var unknown atomic.Int64
	mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
		for ctx.Err() == nil {
			runtime.Gosched()
		}
		if _, ok := eventbus.FromContext(ctx); !ok {
			unknown.Add(1)
		}
		return nil
	})
	mustSubscribe(t, bus, "b", func(ctx context.Context, _ eventbus.Event) error {
		for ctx.Err() == nil {
			runtime.Gosched()
		}
		return nil
	})
	for range 100 {
		mustPublish(t, bus, "a", nil)
		mustPublish(t, bus, "b", nil)
	}
	shutdown(t, bus)
	require.Zero(t, unknown.Load())
	for _, e := range logs.FilterMessage("abandoned handler ended").All() {
		require.NotEmpty(t, e.ContextMap()["event_type"])
		require.NotEmpty(t, e.ContextMap()["subscription_id"])
	}
}

// Who rests keeps neither the payload nor the context of what it has run.
func TestE4_ARestingBusKeepsNothing(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(1, time.Millisecond)))
	type big struct{ _ [1 << 20]byte }
	type key struct{}
	var freed atomic.Int32
	failures := 1
	mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
		if failures--; failures >= 0 {
			return errBoom
		}
		return nil
	})
	func() {
		payload, value := new(big), new(big)
		for _, p := range []*big{payload, value} {
			runtime.AddCleanup(p, func(int) { freed.Add(1) }, 0)
		}
		_, err := bus.PublishAndWait(context.WithValue(context.Background(), key{}, value), "a", payload)
		require.NoError(t, err)
	}()
	require.Eventually(t, func() bool { runtime.GC(); return freed.Load() == 2 }, 10*time.Second, 10*time.Millisecond)
	shutdown(t, bus)
}

// What handlers ask of their contexts does not keep the events of earlier calls, while
// their worker goes on.
func TestE4_AskedContextsLetGoOfTheirEvents(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"with values":    context.WithValue(context.Background(), struct{ key int }{}, "value"),
		"without values": context.Background(),
	} {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		type big struct{ _ [1 << 10]byte }
		var freed atomic.Int32
		begin, reached, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
		mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			_, ok := eventbus.FromContext(ctx)
			require.True(t, ok)
			require.NotNil(t, ctx.Done())
			switch e.Payload {
			case "first": // until all is queued, or the worker would rest, and let go, in between
				<-begin
			case "last":
				close(reached)
				<-release
			}
			return nil
		})
		mustPublish(t, bus, "a", "first")
		const events = 500
		for range events {
			payload := new(big)
			runtime.AddCleanup(payload, func(int) { freed.Add(1) }, 0)
			_, err := bus.Publish(ctx, "a", payload)
			require.NoError(t, err)
		}
		_, err := bus.Publish(ctx, "a", "last")
		require.NoError(t, err)
		close(begin)
		<-reached
		require.Eventually(t, func() bool { runtime.GC(); return freed.Load() > events*3/4 }, 10*time.Second, 10*time.Millisecond, name)
		close(release)
		shutdown(t, bus)
	}
}

// Each handler waits for the next one's event, and gives that up when it has begun.
func TestE4_AChainOfWaitsThatWereGivenUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		const links = 1000
		var values []weak.Pointer[[1024]byte]
		alive := 0
		finished := make(chan struct{})
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			if giveUp, is := e.Payload.(context.CancelFunc); is {
				giveUp()
			}
			if len(values) == links {
				synctest.Wait() // the others have returned, and their workers rest or have left
				runtime.GC()
				for _, v := range values {
					if v.Value() != nil {
						alive++
					}
				}
				close(finished)
				return nil
			}
			value := new([1024]byte)
			values = append(values, weak.Make(value))
			waiting, giveUp := context.WithCancel(context.WithValue(ctx, key("link"), value))
			defer giveUp()
			_, err := bus.PublishAndWait(waiting, "x", giveUp)
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
		mustPublish(t, bus, "x", nil)
		<-finished
		shutdown(t, bus)
		require.LessOrEqual(t, alive, 250)
	})
}

// A chain of handlers that publish with contexts derived from their own keeps a bounded
// part of what was published.
func TestE4_AChainOfDerivedContextsKeepsNoEvents(t *testing.T) {
	type key struct{}
	type big struct {
		link int
		_    [4096]byte
	}
	const links = 20_000
	for _, ask := range []bool{false, true} {
		bus, _ := startBus(t)
		var freed atomic.Int32
		done := make(chan struct{})
		mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			if ask {
				eventbus.FromContext(ctx)
			}
			link := e.Payload.(*big).link
			if link == links {
				runtime.GC()
				runtime.GC()
				close(done)
				return nil
			}
			payload, value := &big{link: link + 1}, &big{}
			for _, p := range []*big{payload, value} {
				runtime.AddCleanup(p, func(int) { freed.Add(1) }, 0)
			}
			_, err := bus.Publish(context.WithValue(ctx, key{}, value), "a", payload)
			return err
		})
		mustPublish(t, bus, "a", &big{})
		<-done
		require.Eventually(t, func() bool { return freed.Load() > 2*links*9/10 }, 10*time.Second, time.Millisecond, "of %d: %d", 2*links, freed.Load())
		shutdown(t, bus)
	}
}

// Whoever's Shutdown returns finds balanced books.
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
		cut := bCut(t, bus)
		require.Len(t, cut.Unfinished, 1)
		requireBalanced(t, bus)
		close(release)
	})
}

// The clock is moved while a timer is being set: the timeout is not late by as much.
func TestS4_AMockClockThatMovesWhileATimerIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &movingClock{Mock: clock.NewMock()}
		bus, _ := startBus(t, eventbus.WithClock(c), eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}, eventbus.Timeout(time.Second))
		c.move.Store(int64(50 * time.Millisecond))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Second)
		c.Add(955 * time.Millisecond) // 5 ms past the deadline
		time.Sleep(time.Second)
		require.Len(t, letters(t, bus), 1)
		shutdown(t, bus)
	})
}

type movingClock struct {
	*clock.Mock
	move atomic.Int64
}

func (c *movingClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	if by := c.move.Swap(0); by != 0 {
		c.Add(time.Duration(by))
	}
	return c.Mock.AfterFunc(d, f)
}
