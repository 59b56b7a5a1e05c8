package contracttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// sleeps returns a result for disk.handles that takes a second.
func sleeps(string, int) error {
	time.Sleep(time.Second)
	return nil
}

// outer subscribes a handler of "outer" that publishes the event inner after a delay, waits for it, and
// returns the error. result has the result of each wait.
func outer(t *testing.T, bus *eventbus.Bus, delay time.Duration, opts ...eventbus.PublishOption) (result *journal[eventbus.Result]) {
	t.Helper()
	result = new(journal[eventbus.Result])
	mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
		time.Sleep(delay)
		r, err := bus.PublishAndWait(ctx, "inner", "inner", opts...)
		result.add(r)
		return err
	}, eventbus.Named("outer"), eventbus.Timeout(time.Minute))
	return result
}

// handlesInner is disk.handles for other events than "outer".
func (d *disk) handlesInner(t *testing.T, bus *eventbus.Bus, result func(string, int) error, opts ...eventbus.SubscribeOption) {
	t.Helper()
	for _, pattern := range []string{"inner", "a"} {
		mustSubscribe(t, bus, pattern, eventbus.Typed(func(ctx context.Context, payload string) error {
			delivery, _ := eventbus.FromContext(ctx)
			d.note("%s %d", payload, delivery.Attempt)
			return result(payload, delivery.Attempt)
		}), append([]eventbus.SubscribeOption{eventbus.Named(pattern)}, opts...)...)
	}
}

// requireQuick shuts a bus down gracefully, and requires that it takes no longer than within, and 10 ms for
// workers that the pool adds.
func requireQuick(t *testing.T, bus *eventbus.Bus, within time.Duration) {
	t.Helper()
	began := time.Now()
	require.NoError(t, bus.Shutdown(context.Background()))
	require.LessOrEqual(t, time.Since(began), within+10*time.Millisecond)
	requireBalanced(t, bus)
}

// What is queued or throttled stays in the store, and the log entry counts it. Only calls that run are waited for.
func TestS2_LeftBacklogIsNotWaitedFor(t *testing.T) {
	const events = 200
	for name, c := range map[string]struct {
		bus []eventbus.Option
		sub []eventbus.SubscribeOption
		key bool
	}{
		"queued":       {bus: []eventbus.Option{eventbus.WithConcurrency(1)}},
		"throttled":    {sub: []eventbus.SubscribeOption{eventbus.Concurrency(1)}},
		"behind a key": {key: true},
		"throttled, also in the store alone": {
			bus: []eventbus.Option{eventbus.WithQueueCapacity(10)}, sub: []eventbus.SubscribeOption{eventbus.Concurrency(1)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, logs := disk.open(t, c.bus...)
				disk.handles(t, bus, "mail", sleeps, c.sub...)
				require.NoError(t, bus.Start(t.Context()))
				var want []string
				for i := range events {
					var options []eventbus.PublishOption
					if c.key {
						options = append(options, eventbus.Key("k"))
					}
					mustPublish(t, bus, "a", fmt.Sprint(i), options...)
					want = append(want, fmt.Sprintf("mail %d 1", i))
				}
				mustPublish(t, bus, "a", "later", eventbus.After(24*time.Hour))
				time.Sleep(1500 * time.Millisecond)
				requireQuick(t, bus, 500*time.Millisecond)
				calls := disk.took()
				require.Len(t, calls, 2)
				entries := logs.FilterMessage("bus shut down").All()
				require.Len(t, entries, 1)
				require.EqualValues(t, events-2+1, entries[0].ContextMap()["left_in_store"])
				require.Len(t, disk.Dump().Records, events-2+1)

				again, _ := disk.open(t)
				disk.handles(t, again, "mail", nil)
				require.NoError(t, again.Start(t.Context()))
				time.Sleep(time.Minute)
				calls = append(calls, disk.took()...)
				if !c.key {
					slices.Sort(calls)
					slices.Sort(want)
				}
				require.Equal(t, want, calls)
				shutdown(t, again)
			})
		})
	}
}

// A dispatch whose call ends during Shutdown stays with its other subscriptions; its progress is recorded.
func TestS2_LeftSubscriptionsAreCalledByTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "first", sleeps)
		disk.handles(t, bus, "second", sleeps)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(500 * time.Millisecond)
		requireQuick(t, bus, 500*time.Millisecond)
		require.Equal(t, []string{"first x 1"}, disk.took())

		again, _ := disk.open(t)
		disk.handles(t, again, "first", nil)
		disk.handles(t, again, "second", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"second x 1"}, disk.took())
		shutdown(t, again)
	})
}

// What a running call waits for still runs: behind a backlog, behind throttled deliveries, and after a failure.
func TestS2_LeftIsNotWhatARunningCallWaitsFor(t *testing.T) {
	fails := func(payload string, attempt int) error {
		time.Sleep(time.Second)
		if payload == "inner" && attempt == 1 {
			return errBoom
		}
		return nil
	}
	for name, c := range map[string]struct {
		delay time.Duration // Shutdown begins after a second
		inner func(string, int) error
		bus   []eventbus.Option
		sub   []eventbus.SubscribeOption
		takes time.Duration
	}{
		"queued":               {inner: sleeps, bus: []eventbus.Option{eventbus.WithConcurrency(1)}, delay: 10 * time.Millisecond, takes: 3 * time.Second},
		"throttled":            {inner: sleeps, sub: []eventbus.SubscribeOption{eventbus.Concurrency(1)}, delay: 10 * time.Millisecond, takes: 3 * time.Second},
		"published afterwards": {inner: sleeps, sub: []eventbus.SubscribeOption{eventbus.Concurrency(1)}, delay: 2 * time.Second, takes: 3 * time.Second},
		"retried":              {inner: fails, delay: 10 * time.Millisecond, takes: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t, c.bus...)
				result := outer(t, bus, c.delay)
				disk.handlesInner(t, bus, c.inner, c.sub...)
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "outer", "outer")
				for i := range 100 {
					mustPublish(t, bus, "a", fmt.Sprint(i))
				}
				time.Sleep(time.Second)
				requireQuick(t, bus, c.takes)
				require.Len(t, result.all(), 1)
				require.Equal(t, eventbus.Handled, result.all()[0].Outcome)
				require.Contains(t, disk.took(), "inner 1")
				for _, r := range disk.Dump().Records {
					require.Equal(t, "a", r.Type)
				}
			})
		})
	}
}

// A wait that Shutdown ends does not count: the handler's error is no attempt and no failure, and its delivery stays.
func TestS2_LeftCallThatShutdownEndsIsNoAttempt(t *testing.T) {
	const before, meanwhile = 10 * time.Millisecond, 700 * time.Millisecond // Shutdown begins after 500 ms
	for name, c := range map[string]struct {
		delay   time.Duration
		options []eventbus.PublishOption
	}{
		"behind its key":              {before, []eventbus.PublishOption{eventbus.Key("k"), eventbus.ID(eventbus.NewEventID())}},
		"behind its key, meanwhile":   {meanwhile, []eventbus.PublishOption{eventbus.Key("k"), eventbus.ID(eventbus.NewEventID())}},
		"for a later time":            {before, []eventbus.PublishOption{eventbus.After(time.Hour), eventbus.ID(eventbus.NewEventID())}},
		"for a later time, meanwhile": {meanwhile, []eventbus.PublishOption{eventbus.After(time.Hour), eventbus.ID(eventbus.NewEventID())}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				// A single attempt, and a circuit that opens at the first failure.
				bus, _ := disk.open(t, eventbus.WithRetry(retry(0, time.Second)), eventbus.WithCircuit(eventbus.MinEvents(1)))
				result := outer(t, bus, c.delay, c.options...)
				disk.handlesInner(t, bus, sleeps, eventbus.Concurrency(1))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "outer", "outer")
				for i := range 3 {
					mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.Key("k"))
				}
				time.Sleep(500 * time.Millisecond)
				requireQuick(t, bus, 500*time.Millisecond)
				require.Len(t, result.all(), 1)
				require.Equal(t, eventbus.Stored, result.all()[0].Outcome)
				require.Equal(t, []string{"0 1"}, disk.took())
				m := metricsOf(t, bus, "outer")
				require.Zero(t, m.Failures+m.Successes+m.CircuitOpens)
				for _, r := range disk.Dump().Records {
					require.Zero(t, progressOf(t, r).Attempts, "%+v", r)
				}

				again, _ := disk.open(t)
				result = outer(t, again, 0, c.options...)
				disk.handlesInner(t, again, sleeps)
				require.NoError(t, again.Start(t.Context()))
				time.Sleep(2 * time.Hour)
				require.ElementsMatch(t, []string{"1 1", "2 1", "inner 1"}, disk.took())
				require.Len(t, result.all(), 1)
				require.Equal(t, eventbus.Repeated, result.all()[0].Outcome)
				require.Empty(t, letters(t, again))
				shutdown(t, again)
			})
		})
	}
}

// Only ErrShutdown is excused, and only after Shutdown has begun.
func TestS2_LeftAreOnlyCallsThatShutdownHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(0, time.Second)))
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			switch payload {
			case "before":
				return eventbus.ErrShutdown
			case "outside": // a publication with a context that is not the handler's is refused
				time.Sleep(time.Second)
				_, err := bus.Publish(context.Background(), "a", "never")
				return fmt.Errorf("mail: %w", err)
			}
			time.Sleep(time.Second)
			return errBoom
		})
		require.NoError(t, bus.Start(t.Context()))
		for _, payload := range []string{"before", "fails", "outside"} {
			mustPublish(t, bus, "a", payload)
			time.Sleep(100 * time.Millisecond)
		}
		requireQuick(t, bus, time.Second)
		require.Equal(t, []string{"mail before 1", "mail fails 1", "mail outside 1"}, disk.took())
		require.EqualValues(t, 2, bus.Metrics().Ledger.DeadLettered)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail outside 1"}, disk.took())
		shutdown(t, again)
	})
}

// A call from outside that waits learns that the event stays.
func TestS2_LeftEventEndsAWaitFromOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithConcurrency(1))
		disk.handles(t, bus, "mail", sleeps)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0")
		ended := make(chan error, 1)
		go func() {
			r, err := bus.PublishAndWait(t.Context(), "a", "1")
			if r.Outcome != eventbus.Stored {
				err = errors.New(r.Outcome.String())
			}
			ended <- err
		}()
		time.Sleep(500 * time.Millisecond)
		requireQuick(t, bus, 500*time.Millisecond)
		require.ErrorIs(t, <-ended, eventbus.ErrShutdown)
		require.Equal(t, []string{"mail 0 1"}, disk.took())
	})
}

// What a handler publishes during Shutdown is accepted, and stays.
func TestS2_LeftIsWhatHandlersPublishMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "job", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			for i := range 50 {
				if _, err := bus.Publish(ctx, "a", fmt.Sprint(i), eventbus.Key("k")); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("job"))
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, payload string) error {
			disk.note("mail %s", payload)
			return nil
		}), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "job", "job")
		time.Sleep(500 * time.Millisecond)
		requireQuick(t, bus, 500*time.Millisecond)
		require.Empty(t, disk.took())
		require.Len(t, disk.Dump().Records, 50)

		again, _ := disk.open(t)
		mustSubscribe(t, again, "a", eventbus.Typed(func(_ context.Context, payload string) error {
			disk.note("mail %s", payload)
			return nil
		}), eventbus.Named("mail"))
		require.NoError(t, again.Start(t.Context()))
		calls := disk.took()
		require.Len(t, calls, 50)
		for i, call := range calls {
			require.Equal(t, fmt.Sprintf("mail %d", i), call)
		}
		shutdown(t, again)
	})
}

// The error names the handlers that run, and is nil if none does: everything else is safe in the store.
func TestS2_LeftErrorNamesWhatStillRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, obeys := range []bool{true, false} {
			disk := newDisk()
			bus, _ := disk.open(t)
			returns := make(chan struct{})
			mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error {
				<-ctx.Done()
				time.Sleep(50 * time.Millisecond)
				if !obeys {
					<-returns
				}
				return ctx.Err()
			}, eventbus.Named("hangs"))
			require.NoError(t, bus.Start(t.Context()))
			for range 3 {
				mustPublish(t, bus, "a", "x")
				time.Sleep(10 * time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			err := bus.Shutdown(ctx)
			cancel()
			require.LessOrEqual(t, time.Since(began), 1250*time.Millisecond)
			require.Len(t, disk.Dump().Records, 3)
			if obeys {
				require.NoError(t, err)
				continue
			}
			var left *eventbus.ShutdownError
			require.ErrorAs(t, err, &left)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Empty(t, left.Unfinished)
			require.Len(t, left.Abandoned, 3)
			require.Equal(t, "hangs", left.Abandoned[0].Subscription)
			close(returns)
		}
	})
}

// A handler that its timeout has cancelled has 100 ms to return before Shutdown's error names it.
func TestS2_LeftErrorNamesNoHandlerThatObeysItsTimeout(t *testing.T) {
	for took, named := range map[time.Duration]bool{0: false, 50 * time.Millisecond: false, 150 * time.Millisecond: true} {
		t.Run(took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
					<-ctx.Done()
					time.Sleep(took)
					return nil
				}, eventbus.Named("obeys"), eventbus.Timeout(time.Second))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "x")
				time.Sleep(time.Millisecond)
				err := bus.Shutdown(t.Context())
				require.Equal(t, named, errors.As(err, new(*eventbus.ShutdownError)), "%v", err)
				time.Sleep(time.Second)
			})
		})
	}
}

// An event is left once the call that waits for it has ended: at its timeout, or because its wait has.
func TestS2_WhatACallAwaitsIsLeftOnceItWaitsNoMore(t *testing.T) {
	for _, what := range []string{"timeout", "context", "another goroutine"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t, eventbus.WithRetry(retry(3, time.Hour)))
				mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
					var cancel context.CancelFunc
					switch what {
					case "context":
						ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
						defer cancel()
					case "another goroutine":
						wait, stop := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Hour)
						go func() {
							defer stop()
							_, _ = bus.PublishAndWait(wait, "inner", "inner")
						}()
						time.Sleep(10 * time.Second)
						return nil
					}
					_, _ = bus.PublishAndWait(ctx, "inner", "inner")
					return nil
				}, eventbus.Named("outer"), eventbus.Timeout(20*time.Second), eventbus.Retry(eventbus.MaxRetries(0)))
				disk.handlesInner(t, bus, always(errBoom))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "outer", "outer")
				time.Sleep(time.Second)
				requireQuick(t, bus, 20*time.Second)
				require.Equal(t, []string{"inner 1"}, disk.took())
				require.Len(t, disk.Dump().Records, 1)
			})
		})
	}
}

// In memory, Shutdown waits for all of it, as there is no next start.
func TestS2_InMemoryNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var handled atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Second)
			handled.Add(1)
			return nil
		})
		for range 10 {
			mustPublish(t, bus, "a", nil)
		}
		shutdown(t, bus)
		require.EqualValues(t, 10, handled.Load())
	})
}
