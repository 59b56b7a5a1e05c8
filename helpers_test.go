package eventbus_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
)

// newBus makes a bus that logs to what it returns, and shuts it down at the end
// of the test, cutting short what is left.
func newBus(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithLogger(zap.New(core))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = bus.Shutdown(ctx) // most tests have done so, and looked at the error
	})
	return bus, logs
}

// startBus makes a bus and starts it.
func startBus(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	bus, logs := newBus(t, opts...)
	require.NoError(t, bus.Start(t.Context()))
	return bus, logs
}

func mustSubscribe(t *testing.T, bus *eventbus.Bus, pattern string, h eventbus.Handler, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	s, err := bus.Subscribe(pattern, h, opts...)
	require.NoError(t, err)
	return s
}

func mustPublish(t *testing.T, bus *eventbus.Bus, eventType string, payload any, opts ...eventbus.PublishOption) eventbus.EventID {
	t.Helper()
	id, err := bus.Publish(t.Context(), eventType, payload, opts...)
	require.NoError(t, err)
	require.False(t, id.IsZero())
	return id
}

// shutdown ends the bus without cutting anything short, and looks at its books.
func shutdown(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	require.NoError(t, bus.Shutdown(context.Background()))
	requireBalanced(t, bus)
}

// leftHeld reports whether a shutdown was complete but for what was held, paused or
// published for later.
func leftHeld(err error) bool {
	var left *eventbus.ShutdownError
	return errors.As(err, &left) && left.Cause == nil
}

// requireBalanced is exact only at rest.
func requireBalanced(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	l := bus.Metrics().Ledger
	require.True(t, l.Balanced(), "%+v", l)
}

// letters are all dead letters, newest first.
func letters(t *testing.T, bus *eventbus.Bus) []eventbus.DeadLetter {
	t.Helper()
	page, err := bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	require.NoError(t, err)
	return page.Letters
}

// oneLetter is the only dead letter there is.
func oneLetter(t *testing.T, bus *eventbus.Bus) eventbus.DeadLetter {
	t.Helper()
	all := letters(t, bus)
	require.Len(t, all, 1)
	return all[0]
}

// metricsOf are those of a subscription.
func metricsOf(t *testing.T, bus *eventbus.Bus, subscription string) eventbus.SubscriptionMetrics {
	t.Helper()
	for _, s := range bus.Metrics().Subscriptions {
		if s.Subscription == subscription {
			return s
		}
	}
	require.Fail(t, "no metrics", subscription)
	return eventbus.SubscriptionMetrics{}
}

// retry is a policy without jitter that tries n times more, d apart.
func retry(n int, d time.Duration) eventbus.RetryPolicy {
	return eventbus.RetryPolicy{
		MaxRetries: n, BaseDelay: d, MaxDelay: d, BackoffMultiplier: 1, Jitter: eventbus.NoJitter,
	}
}

// journal collects from many goroutines, in order.
type journal[T any] struct {
	mu      sync.Mutex
	entries []T
}

func (j *journal[T]) add(entry T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal[T]) all() []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]T(nil), j.entries...)
}

func (j *journal[T]) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

func ok(context.Context, eventbus.Event) error { return nil }

// failing is a handler that always returns err.
func failing(err error) eventbus.Handler {
	return func(context.Context, eventbus.Event) error { return err }
}
