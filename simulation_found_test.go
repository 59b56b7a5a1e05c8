package eventbus_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// On a bus with isolation an event for later that Shutdown leaves behind ends in a
// letter for each subscription.
func TestD7_WhoWaitsForAnEventForLaterIsToldOfShutdown(t *testing.T) {
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
			t.Fatal("PublishAndWait waits for ever")
		}
	})
}

// What is refused, or unrouted, is not waited for: nothing else runs meanwhile.
func TestD7_WhoNeedNotWaitCountsAgainstTheConcurrency(t *testing.T) {
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

// A handler that has come back from PublishAndWait may be one too many, until
// another one has ended. The worker of that one does not go on with the next
// event of its key.
func TestD7_WhoComesBackFromWaitingMakesAnotherLeave(t *testing.T) {
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
		require.EqualValues(t, 2, running.Load(), "one has come back")
		most.Store(0)
		close(first)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, running.Load())
		require.Zero(t, most.Load(), "the next of the key had to wait")
		close(back)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, most.Load())
	})
}
