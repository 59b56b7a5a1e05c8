package contracttest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// foundBy requires that the event of a type with an idempotency key is the one with an id.
func foundBy(t *testing.T, bus *eventbus.Bus, eventType, key string, id eventbus.EventID) eventbus.EventStatus {
	t.Helper()
	status, err := bus.EventByIdempotencyKey(t.Context(), eventType, key)
	require.NoError(t, err)
	require.Equal(t, id, status.ID)
	return status
}

// notFoundBy requires that no event is known by a type and an idempotency key.
func notFoundBy(t *testing.T, bus *eventbus.Bus, eventType, key string) {
	t.Helper()
	_, err := bus.EventByIdempotencyKey(t.Context(), eventType, key)
	require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
}

// An event is found by its idempotency key and its type, before and after it has settled, and while the window lasts.
func TestO6_AnEventIsFoundByItsIdempotencyKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		id := mustPublish(t, bus, "order", nil, idem("k"), eventbus.Key("of another kind"))
		other := mustPublish(t, bus, "refund", nil, idem("k"))
		time.Sleep(time.Second)
		require.Len(t, foundBy(t, bus, "order", "k", id).Dispatches, 1)
		require.Len(t, foundBy(t, bus, "refund", "k", other).Dispatches, 1)
		notFoundBy(t, bus, "order", "of another kind")
		notFoundBy(t, bus, "orde", "k")
		require.NoError(t, s.Resume())
		time.Sleep(time.Second)
		status := foundBy(t, bus, "order", "k", id)
		require.True(t, status.IsSettled())
		require.Equal(t, "s", status.Settled[0].Subscription)
		time.Sleep(25 * time.Hour)
		notFoundBy(t, bus, "order", "k")
	})
}

// A key that is free finds the event that has not settled, or the latest dead letter.
func TestO6_AFreeKeyFindsWhatIsLeft(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		s := mustSubscribe(t, bus, "order", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		id := mustPublish(t, bus, "order", nil, idem("k"))
		time.Sleep(25 * time.Hour)
		require.Len(t, foundBy(t, bus, "order", "k", id).Dispatches, 1, "it is held for longer than the window")
		require.NoError(t, s.Resume())
		time.Sleep(time.Second)
		require.Len(t, foundBy(t, bus, "order", "k", id).Letters.Letters, 1)
		last := mustPublish(t, bus, "order", nil, idem("k"), eventbus.UntilSettled())
		time.Sleep(time.Second)
		require.Len(t, foundBy(t, bus, "order", "k", last).Letters.Letters, 1)
		_, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		notFoundBy(t, bus, "order", "k")
	}, withoutCircuit)
}

// Every bus on a store finds an event by its key: one without handlers beside the bus and without it, and a standby, which has published it.
func TestO6_AKeyIsFoundFromAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "order", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "order", nil, idem("k"))
		time.Sleep(time.Second)
		tool := disk.tool(t)
		require.True(t, foundBy(t, tool, "order", "k", id).IsSettled())
		standby, _ := disk.standby(t, "s")
		foundBy(t, standby, "order", "k", id)
		shutdown(t, bus)
		shutdown(t, standby)
		foundBy(t, tool, "order", "k", id)
		left, err := tool.Publish(t.Context(), "order", nil, idem("left"))
		require.NoError(t, err)
		require.Equal(t, eventbus.DispatchIncoming, foundBy(t, tool, "order", "left", left).Dispatches[0].State)
		shutdown(t, tool)
	})
}

// A type or a key that no event has is refused.
func TestO6_BadIdempotencyKeysAreRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		require.NoError(t, bus.Start(t.Context()))
		for key, eventType := range map[string]string{"": "order", "a\nb": "order", strings.Repeat("k", 256): "order", "\xff": "order", "k": "order.*", "l": "", "m": "a b"} {
			_, err := bus.EventByIdempotencyKey(t.Context(), eventType, key)
			var bad *eventbus.EventError
			require.ErrorAs(t, err, &bad, "%q", key)
			require.Equal(t, eventType == "order", bad.Field == "idempotency key")
			require.Less(t, len(err.Error()), 500)
		}
		_, err := bus.EventByIdempotencyKey(nil, "order", "k") //nolint:staticcheck // nil is the point
		require.ErrorIs(t, err, eventbus.ErrNilContext)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = bus.EventByIdempotencyKey(ended, "order", "k")
		require.ErrorIs(t, err, context.Canceled)
	})
	_, err := (*eventbus.Bus)(nil).EventByIdempotencyKey(t.Context(), "order", "k")
	require.ErrorIs(t, err, eventbus.ErrUninitialized)
}
