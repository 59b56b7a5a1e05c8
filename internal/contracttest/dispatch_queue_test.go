package contracttest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestD8_PublishWaitsForRoomInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2))
		var got journal[int]
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
			time.Sleep(time.Second)
			got.add(e.Payload.(int))
			return nil
		})
		mustPublish(t, bus, "x", 0)
		synctest.Wait() // it runs, and two have room
		begin := time.Now()
		var accepted journal[time.Duration]
		for i := 1; i <= 6; i++ {
			go func() {
				if _, err := bus.Publish(context.Background(), "x", i); err == nil {
					accepted.add(time.Since(begin))
				}
			}()
			synctest.Wait()
		}
		require.Equal(t, 2, accepted.len())
		require.Equal(t, 2, bus.Metrics().QueueDepth)
		time.Sleep(10 * time.Second)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, got.all())
		require.Equal(t, []time.Duration{0, 0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, accepted.all())
		require.Zero(t, bus.Metrics().QueueOverflows)
		shutdown(t, bus)
	})
}

// fullBus has one handler running until release is called, and a full queue of
// two.
func fullBus(t *testing.T, opts ...eventbus.Option) (bus *eventbus.Bus, release func()) {
	t.Helper()
	bus, _ = startBus(t, append([]eventbus.Option{
		eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2), eventbus.WithTimeout(time.Hour),
	}, opts...)...)
	released := make(chan struct{})
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
		<-released
		return nil
	})
	mustPublish(t, bus, "x", nil)
	synctest.Wait()
	mustPublish(t, bus, "x", nil)
	mustPublish(t, bus, "x", nil)
	return bus, func() { close(released) }
}

func TestD8_TheWaitForRoomEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t)
		cause := errors.New("the cause")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		begin := time.Now()
		_, err := bus.Publish(ctx, "x", nil)
		require.ErrorIs(t, err, cause)
		require.Equal(t, time.Second, time.Since(begin))
		release()
		shutdown(t, bus)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Handled, "what was refused is not there")
		require.EqualValues(t, 3, bus.Metrics().Types["x"].Events)
	})
}

func TestD8_ABusMayRefuseInstead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t, eventbus.RefuseWhenFull())
		_, err := bus.Publish(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.Publish(t.Context(), "nobody.listens", nil)
		require.NoError(t, err, "needs no room")
		release()
		synctest.Wait()
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.EqualValues(t, 4, bus.Metrics().Ledger.Handled)
	})
}

func TestD8_ShutdownReleasesWhoeverWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t)
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := bus.Publish(context.Background(), "x", nil)
				errs <- err
			}()
		}
		synctest.Wait()
		require.Empty(t, errs)
		go func() { _ = bus.Shutdown(context.Background()) }()
		synctest.Wait()
		for range 3 {
			require.ErrorIs(t, <-errs, eventbus.ErrShutdown)
		}
		release()
		shutdown(t, bus)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Accepted)
	})
}

func TestD8_BeforeStartAFullQueueRefuses(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithQueueCapacity(3))
	handled := 0
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { handled++; return nil })
	for range 3 {
		mustPublish(t, bus, "x", nil)
	}
	_, err := bus.Publish(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	require.NoError(t, bus.Start(t.Context()))
	shutdown(t, bus)
	require.Equal(t, 3, handled)
}

// Fault 27: a bus cannot deadlock on itself.
func TestD8_PublishingInsideAHandlerNeverWaits(t *testing.T) {
	for _, opts := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, append(opts, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(1))...)
			mustSubscribe(t, bus, "seed", func(ctx context.Context, _ eventbus.Event) error {
				derived, cancel := context.WithTimeout(context.WithValue(ctx, key("k"), 1), time.Minute)
				defer cancel()
				for range 100 {
					if _, err := bus.Publish(derived, "leaf", nil); err != nil {
						return err
					}
				}
				errs := make(chan error)
				go func() { // another goroutine, with the handler's context
					_, err := bus.Publish(context.WithoutCancel(ctx), "leaf", nil)
					errs <- err
				}()
				return <-errs
			}, eventbus.Retry(eventbus.MaxRetries(0)))
			leaves := 0
			mustSubscribe(t, bus, "leaf", func(context.Context, eventbus.Event) error { leaves++; return nil })
			_, err := bus.PublishAndWait(t.Context(), "seed", nil)
			require.NoError(t, err)
			shutdown(t, bus)
			require.Equal(t, 101, leaves)
			m := bus.Metrics()
			require.EqualValues(t, 100, m.QueueOverflows)
			require.Zero(t, m.QueueDepth)
		})
	}
}

// The room that overflow has taken is given back.
func TestD8_TheBoundHoldsAfterAnOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2), eventbus.RefuseWhenFull(), eventbus.WithTimeout(time.Hour))
		release := make(chan struct{})
		mustSubscribe(t, bus, "seed", func(ctx context.Context, _ eventbus.Event) error {
			for range 5 {
				if _, err := bus.Publish(ctx, "leaf", nil); err != nil {
					return err
				}
			}
			return nil
		})
		mustSubscribe(t, bus, "leaf", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustPublish(t, bus, "seed", nil)
		synctest.Wait() // one leaf runs, four wait
		require.Equal(t, 4, bus.Metrics().QueueDepth)
		for range 2 {
			_, err := bus.Publish(t.Context(), "leaf", nil)
			require.ErrorIs(t, err, eventbus.ErrQueueFull)
			release <- struct{}{}
			synctest.Wait()
		}
		_, err := bus.Publish(t.Context(), "leaf", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull, "two wait")
		release <- struct{}{}
		synctest.Wait()
		mustPublish(t, bus, "leaf", nil)
		close(release)
		shutdown(t, bus)
	})
}

// A handler's context that is used after its return is an outsider's.
func TestD8_AKeptContextIsAnOutsider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t, eventbus.RefuseWhenFull())
		other, _ := startBus(t)
		var kept context.Context
		mustSubscribe(t, other, "keep", func(ctx context.Context, _ eventbus.Event) error {
			kept = ctx
			_, err := bus.Publish(ctx, "x", nil) // a handler, but of another bus
			return err
		}, eventbus.Retry(eventbus.MaxRetries(0)))
		_, err := other.PublishAndWait(t.Context(), "keep", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = other.Publish(kept, "keep", nil)
		require.ErrorIs(t, err, context.Canceled)
		shutdown(t, other)
		_, err = other.Publish(context.WithoutCancel(kept), "keep", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)

		var mine context.Context
		mustSubscribe(t, bus, "mine", func(ctx context.Context, _ eventbus.Event) error { mine = ctx; return nil })
		release()
		synctest.Wait()
		_, err = bus.PublishAndWait(t.Context(), "mine", nil)
		require.NoError(t, err)
		shutdown(t, bus)
		_, err = bus.Publish(context.WithoutCancel(mine), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
	})
}
