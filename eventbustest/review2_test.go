package eventbustest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

// With isolation the attempts of an event's subscriptions come between each other.
func TestD10_DelaysOfEachSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, eventbus.WithIsolation(), eventbus.WithMiddleware(rec.Wrap),
			eventbus.WithRetry(eventbus.NoJitter, eventbus.MaxRetries(1)))
		for _, delay := range []time.Duration{time.Second, 5 * time.Second} {
			_, err := bus.Subscribe("a", func(context.Context, eventbus.Event) error { return nil },
				eventbus.Retry(eventbus.BaseDelay(delay)))
			require.NoError(t, err)
		}
		rec.FailNext(2, nil)
		id, err := bus.Publish(t.Context(), "a", nil)
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []time.Duration{time.Second, 5 * time.Second}, rec.Delays(id))
	})
}
