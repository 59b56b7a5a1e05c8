package eventbus_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// On a bus with isolation an event that is not due yet is one dispatch, and whoever
// waits for it is told when Shutdown leaves it.
func TestD7_WaitingInIsolationForAnEventThatShutdownLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("second"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var result eventbus.Result
		var err error
		go func() { result, err = bus.PublishAndWait(ctx, "a", nil, eventbus.After(time.Hour)) }()
		synctest.Wait()
		require.True(t, leftHeld(bus.Shutdown(context.Background())))
		synctest.Wait()

		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Len(t, died.Letters, 1)
		require.Equal(t, []string{"second"}, died.Letters[0].NotReached)
		require.Equal(t, eventbus.DeadLettered, result.Outcome)
		requireBalanced(t, bus)
	})
}
