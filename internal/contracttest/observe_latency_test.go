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

// The quantiles since a snapshot are those of the calls after it. Fast calls of the past hide no slow one of now.
func TestO2_LatencySinceASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()))
		require.NoError(t, err)
		takes := time.Millisecond
		_, err = bus.Subscribe("a", func(context.Context, eventbus.Event) error {
			time.Sleep(takes)
			return eventbus.Permanent(errors.New("refused")) // the bus times every failure
		}, eventbus.Named("s"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, err)
		start(t, bus)
		call := func(n int) {
			for range n {
				_, err := bus.PublishAndWait(t.Context(), "a", nil)
				require.Error(t, err)
			}
		}
		call(1000)
		before := metricsOf(t, bus, "s").Latency
		require.Equal(t, before, before.Since(eventbus.Latency{}))
		takes = time.Second
		call(3)
		now := metricsOf(t, bus, "s").Latency
		require.Less(t, now.P99, 10*time.Millisecond)
		since := now.Since(before)
		require.EqualValues(t, 3, since.Samples)
		require.InDelta(t, 1, since.P50.Seconds(), 0.25)
		require.InDelta(t, 1, since.P99.Seconds(), 0.25)
		require.Zero(t, now.Since(now).P99)
		require.Zero(t, now.Since(now).Samples)
		require.Equal(t, before, before.Since(now), "of another subscription")
		shutdown(t, bus)
	})
}

// Exporters make histograms of the buckets.
func TestO2_LatencyHasBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()))
		require.NoError(t, err)
		_, err = bus.Subscribe("a", func(_ context.Context, e eventbus.Event) error {
			time.Sleep(e.Payload.(time.Duration))
			return eventbus.Permanent(errors.New("refused")) // the bus times every failure
		}, eventbus.Named("s"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, err)
		start(t, bus)
		for range metricsOf(t, bus, "s").Latency.Buckets() {
			t.Error("a bucket without a call")
		}
		takes := []time.Duration{time.Millisecond, time.Millisecond, 3 * time.Second}
		for _, d := range takes {
			_, err := bus.PublishAndWait(t.Context(), "a", d)
			require.Error(t, err)
		}
		var bounds []time.Duration
		for below, calls := range metricsOf(t, bus, "s").Latency.Buckets() {
			for range calls {
				bounds = append(bounds, below)
			}
		}
		require.Len(t, bounds, len(takes))
		for i, d := range takes {
			require.Greater(t, bounds[i], d)
			require.LessOrEqual(t, bounds[i], d+d/4)
		}
		for range metricsOf(t, bus, "s").Latency.Buckets() {
			break // a caller may stop
		}
		shutdown(t, bus)
	})
}
