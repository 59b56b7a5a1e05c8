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

// requireFull requires that publish, which waits until its context ends, returns a *FullError.
func requireFull(t *testing.T, want eventbus.FullError, publish func(context.Context) error) {
	t.Helper()
	cause := errors.New("the request is gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, cause)
	defer cancel()
	began := time.Now()
	err := publish(ctx)
	require.Equal(t, time.Millisecond, time.Since(began))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, cause)
	requireBound(t, want, err)
}

func requireBound(t *testing.T, want eventbus.FullError, err error) {
	t.Helper()
	var full *eventbus.FullError
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	got := *full
	got.Err = nil
	require.Equal(t, want, got)
	if full.Err != nil {
		require.ErrorContains(t, err, full.Err.Error())
	}
}

// publishers are the three ways to publish an event and to wait for room.
func publishers(bus *eventbus.Bus, eventType string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Publish": func(ctx context.Context) error {
			_, err := bus.Publish(ctx, eventType, "x")
			return err
		},
		"PublishAndWait": func(ctx context.Context) error {
			_, err := bus.PublishAndWait(ctx, eventType, "x")
			return err
		},
		"PublishBatch": func(ctx context.Context) error {
			_, err := bus.PublishBatch(ctx, []eventbus.Publication{{Type: eventType, Payload: "x"}})
			return err
		},
	}
}

func TestD8_AFullQueueIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := eventbus.FullError{Bound: eventbus.BoundQueue, Most: 2}
		bus, release := fullBus(t)
		for _, publish := range publishers(bus, "x") {
			requireFull(t, want, publish)
		}
		release()
		shutdown(t, bus)

		refusing, release := fullBus(t, eventbus.RefuseWhenFull())
		for _, publish := range publishers(refusing, "x") {
			err := publish(t.Context())
			requireBound(t, want, err)
			require.ErrorContains(t, err, "WithQueueCapacity")
		}
		release()
		shutdown(t, refusing)
	})
}

func TestD12_AFullLineIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
			bus, _ := startBus(t, opts...)
			g := &gauge{during: time.Second}
			mustSubscribe(t, bus, "x", ok, eventbus.Named("audit"))
			mustSubscribe(t, bus, "x", g.handle, eventbus.Named("mail"), eventbus.Concurrency(1), eventbus.LineCapacity(1))
			for range 2 {
				mustPublish(t, bus, "x", nil)
				settleWorkers()
			}
			want := eventbus.FullError{Bound: eventbus.BoundLine, Subscription: "mail", Most: 1}
			for _, publish := range publishers(bus, "x") {
				if opts == nil {
					requireFull(t, want, publish)
					continue
				}
				err := publish(t.Context())
				requireBound(t, want, err)
				require.ErrorContains(t, err, "line of mail is full")
			}
			shutdown(t, bus)
		}
	})
}

func TestD8_AFullStoreIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := eventbus.FullError{Bound: eventbus.BoundUnsettled, Most: 1}
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		mustPublish(t, bus, "a", "x")
		_, err := bus.Publish(t.Context(), "a", "x")
		requireBound(t, want, err)
		require.NoError(t, bus.Start(t.Context()))
		for _, publish := range publishers(bus, "a") {
			requireFull(t, want, publish)
		}
		shutdown(t, bus)

		refusing, _ := disk.open(t, eventbus.WithMaxUnsettled(1), eventbus.RefuseWhenFull())
		disk.handles(t, refusing, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		require.NoError(t, refusing.Start(t.Context()))
		synctest.Wait()
		mustPublish(t, refusing, "a", "x")
		_, err = refusing.Publish(t.Context(), "a", "x")
		requireBound(t, want, err)
		require.ErrorContains(t, err, "WithMaxUnsettled")
		shutdown(t, refusing)
	})
}

// The error of a wait for the store's confirmations matches ErrStoreFailed too, as before.
func TestS7_TheBoundOfWhatIsUnconfirmedIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(1, 1<<20))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		disk.hold()
		first := publishLater(t.Context(), bus, "first")
		for _, publish := range publishers(bus, "a") {
			requireFull(t, eventbus.FullError{Bound: eventbus.BoundUnconfirmed, Most: 1}, func(ctx context.Context) error {
				err := publish(ctx)
				require.ErrorIs(t, err, eventbus.ErrStoreFailed)
				return err
			})
		}
		disk.release()
		require.NoError(t, <-first[0])
		shutdown(t, bus)
	})
}
