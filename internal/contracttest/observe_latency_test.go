package contracttest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// The bus times every failure but only a sample of the successes. The quantiles weigh a
// sampled success by the number of successes that it stands for.
func TestO2_LatencyQuantilesWeighSamples(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{
		"one worker":    {eventbus.WithConcurrency(1)},
		"many workers":  {eventbus.WithConcurrency(200)},
		"with observer": {eventbus.WithObserver(eventbus.Observer{AttemptEnded: func(eventbus.EndedAttempt) {}})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const successes, failures = 6_400, 100
				bus, err := eventbus.New(append([]eventbus.Option{
					eventbus.WithLogger(zap.NewNop()),
					eventbus.WithRetry(eventbus.MaxRetries(0)),
					eventbus.WithCircuit(eventbus.NoCircuit()),
					eventbus.WithQueueCapacity(successes + failures),
				}, opts...)...)
				require.NoError(t, err)
				_, err = bus.Subscribe("*", func(_ context.Context, e eventbus.Event) error {
					if e.Payload == nil {
						return nil
					}
					time.Sleep(time.Second)
					return errors.New("slow failure")
				}, eventbus.Named("s"))
				require.NoError(t, err)
				require.NoError(t, bus.Start(t.Context()))
				for i := range successes + failures {
					var payload any
					if i >= successes {
						payload = "fails"
					}
					_, err := bus.Publish(t.Context(), "a", payload)
					require.NoError(t, err)
				}
				require.NoError(t, bus.Shutdown(t.Context()))

				m := bus.Metrics().Subscriptions[0]
				require.EqualValues(t, successes, m.Successes)
				require.EqualValues(t, failures, m.Failures)
				latency := m.Latency
				require.Less(t, latency.P50, 100*time.Millisecond, "%+v", latency)
				require.Less(t, latency.P90, 100*time.Millisecond, "%+v", latency)
				require.GreaterOrEqual(t, latency.P99, 900*time.Millisecond, "%+v", latency)
				require.GreaterOrEqual(t, latency.Max, 900*time.Millisecond)
				require.GreaterOrEqual(t, latency.Samples, int64(failures))
			})
		})
	}
}

// On a clock other than the real one the bus times every call, and each stands for itself.
func TestO2_LatencyOnAnotherClock(t *testing.T) {
	mock := clock.NewMock()
	bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()), eventbus.WithClock(mock),
		eventbus.WithConcurrency(1),
		eventbus.WithRetry(eventbus.MaxRetries(0)),
		eventbus.WithCircuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	_, err = bus.Subscribe("*", func(_ context.Context, e eventbus.Event) error {
		if e.Payload == nil {
			return nil
		}
		mock.Add(time.Second)
		return errors.New("slow failure")
	})
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	for i := range 20 {
		var payload any
		if i < 12 {
			payload = "fails"
		}
		_, err := bus.Publish(t.Context(), "a", payload)
		require.NoError(t, err)
	}
	require.NoError(t, bus.Shutdown(t.Context()))
	latency := bus.Metrics().Subscriptions[0].Latency
	require.EqualValues(t, 20, latency.Samples)
	require.Equal(t, time.Second, latency.P50, "12 of 20 calls are slow")
}
