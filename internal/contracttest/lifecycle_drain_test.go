package contracttest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// onBoth runs a test in memory and with a store, each time with a bus that is not started.
func onBoth(t *testing.T, test func(t *testing.T, bus *eventbus.Bus), opts ...eventbus.Option) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newBus(t, opts...)
			test(t, bus)
			_ = bus.Shutdown(context.Background())
		})
	})
	t.Run("store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newDisk().open(t, opts...)
			test(t, bus)
			_ = bus.Shutdown(context.Background())
		})
	})
}

// drain calls Drain and returns how long it took.
func drain(t *testing.T, bus *eventbus.Bus) time.Duration {
	t.Helper()
	began := time.Now()
	require.NoError(t, bus.Drain(t.Context()))
	return time.Since(began)
}

// Drain waits for what is queued, running, retrying and throttled, and refuses nothing meanwhile.
func TestS2_LeftDrainWaitsForIt(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var calls, throttled atomic.Int64
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if calls.Add(1) == 1 {
				return errBoom
			}
			return nil
		}, eventbus.Named("a"))
		mustSubscribe(t, bus, "b", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(100 * time.Millisecond)
			if throttled.Add(1) == 20 {
				_, err := bus.Publish(ctx, "a", "at the end")
				return err
			}
			return nil
		}, eventbus.Concurrency(1), eventbus.Named("b"))
		require.Zero(t, drain(t, bus), "nothing is queued")
		for range 20 {
			mustPublish(t, bus, "b", "x")
		}
		require.NoError(t, bus.Start(t.Context()))
		require.GreaterOrEqual(t, drain(t, bus), time.Hour)
		require.EqualValues(t, 20, throttled.Load())
		require.EqualValues(t, 2, calls.Load())
		require.Zero(t, bus.Metrics().WaitingRetries)
	}, eventbus.WithRetry(retry(1, time.Hour)))
}

// What is held, paused or scheduled is no work to wait for, nor is what the store has without a subscription.
func TestS2_LeftDrainDoesNotWaitForWhatIsHeld(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		paused := mustSubscribe(t, bus, "a", ok, eventbus.Named("a"))
		throttles := mustSubscribe(t, bus, "b", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Hour)
			return nil
		}, eventbus.Concurrency(1), eventbus.Timeout(2*time.Hour), eventbus.Named("b"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, paused.Pause())
		for range 2000 { // with a store, those beyond the line stay there
			mustPublish(t, bus, "a", "held")
		}
		mustPublish(t, bus, "a", "later", eventbus.After(24*time.Hour))
		for range 3 {
			mustPublish(t, bus, "b", "throttled")
		}
		time.Sleep(time.Second)
		go func() { // what is throttled becomes held, and the running call ends
			time.Sleep(time.Minute)
			_ = throttles.Pause()
		}()
		require.LessOrEqual(t, drain(t, bus), time.Hour)
		require.Positive(t, bus.Metrics().Ledger.Held)
		require.NoError(t, paused.Resume())
		require.Positive(t, bus.Metrics().Ledger.Held)
	}, eventbus.WithQueueCapacity(5000))
}

// With a store, Drain waits for what memory does not have.
func TestS2_LeftDrainWaitsForTheStore(t *testing.T) {
	t.Run("throttled deliveries", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, eventbus.WithQueueCapacity(10))
			disk.handles(t, bus, "mail", func(string, int) error {
				time.Sleep(time.Millisecond)
				return nil
			}, eventbus.Concurrency(1))
			require.NoError(t, bus.Start(t.Context()))
			for i := range 3000 {
				mustPublish(t, bus, "a", fmt.Sprint(i))
			}
			drain(t, bus)
			require.Len(t, disk.took(), 3000)
			require.Empty(t, disk.Dump().Records)
			shutdown(t, bus)
		})
	})
	t.Run("retries of an earlier process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, eventbus.WithRetry(retry(2, time.Hour)))
			disk.handles(t, bus, "mail", always(errBoom))
			require.NoError(t, bus.Start(t.Context()))
			mustPublish(t, bus, "a", "x")
			synctest.Wait()
			shutdown(t, bus)

			again, _ := disk.open(t)
			disk.handles(t, again, "mail", nil)
			require.NoError(t, again.Start(t.Context()))
			require.GreaterOrEqual(t, drain(t, again), 59*time.Minute)
			require.Equal(t, []string{"mail x 1", "mail x 2"}, disk.took())
			shutdown(t, again)
		})
	})
	t.Run("orphans do not count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			disk.handles(t, bus, "gone", nil)
			mustPublish(t, bus, "a", "x")
			_ = bus.Shutdown(t.Context()) // it was not started

			again, _ := disk.open(t)
			require.NoError(t, again.Start(t.Context()))
			require.Less(t, drain(t, again), time.Second)
			require.Len(t, disk.Dump().Records, 1)
			shutdown(t, again)
		})
	})
}

// The errors of Drain, all of which leave the bus as it is.
func TestS2_LeftDrainErrors(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		inside := make(chan error, 1)
		mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error {
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			inside <- bus.Drain(derived)
			time.Sleep(time.Minute)
			return nil
		}, eventbus.Timeout(time.Hour), eventbus.Named("b"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.ErrorIs(t, <-inside, eventbus.ErrWouldDeadlock)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, bus.Drain(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, bus.Drain(nil), eventbus.ErrNilContext) //nolint:staticcheck // on purpose
		var none *eventbus.Bus
		require.ErrorIs(t, none.Drain(ctx), eventbus.ErrUninitialized)
	})
}

// A Drain during which Shutdown begins ends with it: with a store, what it waits for stays.
func TestS2_LeftDrainEndsWithShutdown(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Second)
			return nil
		}, eventbus.Concurrency(1), eventbus.Named("b"))
		require.NoError(t, bus.Start(t.Context()))
		for range 10 {
			mustPublish(t, bus, "a", "x")
		}
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- bus.Drain(t.Context()) }()
		}
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, bus.Shutdown(t.Context()))
		for range 2 {
			err := <-ended
			if l := bus.Metrics().Ledger; l.Stored == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, eventbus.ErrShutdown)
				require.EqualValues(t, 9, l.Stored)
			}
		}
		if err := bus.Drain(t.Context()); err != nil {
			require.ErrorIs(t, err, eventbus.ErrShutdown)
		}
	})
}

// An instant suffices, also if more is published at once.
func TestS2_LeftDrainSeesAnInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var publishing atomic.Bool
		publishing.Store(true)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for publishing.Load() {
				if _, err := bus.PublishAndWait(ctx, "a", nil); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		}()
		time.Sleep(time.Second + 5*time.Millisecond)
		require.NoError(t, bus.Drain(ctx))
		publishing.Store(false)
		<-done
		shutdown(t, bus)
	})
}
