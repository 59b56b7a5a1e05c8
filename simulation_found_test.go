package eventbus_test

import (
	"context"
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
