package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Timeouts at the edges: told at most once, and never after the end.
func TestF1_SlowWithAnyTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{1, 2, time.Microsecond, time.Millisecond, 7 * time.Millisecond, time.Hour, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			var slow journal[time.Duration]
			begin := time.Now()
			bus, _ := startBus(t, eventbus.WithTimeout(timeout), oneAttempt,
				eventbus.WithObserver(eventbus.Observer{SlowHandler: func(eventbus.SlowHandler) { slow.add(time.Since(begin)) }}))
			mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				return nil
			})
			mustPublish(t, bus, "x", nil)
			time.Sleep(2 * time.Hour)
			require.LessOrEqual(t, slow.len(), 1)
			for _, at := range slow.all() {
				require.GreaterOrEqual(t, at, timeout/3)
				require.Less(t, at, timeout)
				require.LessOrEqual(t, at, timeout/3+time.Millisecond+1)
			}
			if timeout >= 7*time.Millisecond && timeout <= time.Hour {
				require.Equal(t, 1, slow.len())
			}
			shutdown(t, bus)
		})
	}
}

// An observer of slow handlers that blocks keeps no deadline from being noticed,
// and Shutdown leaves nothing of it behind.
func TestF1_SlowObserversHoldUpNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		bus, _ := startBus(t, eventbus.WithTimeout(3*time.Second), oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()),
			eventbus.WithObserver(eventbus.Observer{SlowHandler: func(eventbus.SlowHandler) { <-release }}))
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil })
		for range 5 {
			begin := time.Now()
			_, err := bus.PublishAndWait(t.Context(), "x", nil)
			var late *eventbus.TimeoutError
			require.ErrorAs(t, err, &late)
			require.LessOrEqual(t, time.Since(begin), 3*time.Second+time.Millisecond)
		}
		done := make(chan error, 1)
		go func() { done <- bus.Shutdown(context.Background()) }()
		time.Sleep(time.Minute)
		require.Empty(t, done, "its observers run")
		close(release)
		require.NoError(t, <-done)
	})
}
