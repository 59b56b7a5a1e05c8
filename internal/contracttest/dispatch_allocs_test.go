//go:build !race

package contracttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// What an event allocates from Publish until it is handled, by all goroutines together: the
// dispatch, and one more for the calls beyond the first.
func TestD7_AnEventAllocatesAtMostOnce(t *testing.T) {
	type key struct{}
	plain, values := context.Background(), context.WithValue(context.Background(), key{}, "value")
	payload := any(&struct{}{})
	publish := func(ctx context.Context, eventType string, opts ...eventbus.PublishOption) func(*eventbus.Bus) error {
		return func(bus *eventbus.Bus) error {
			_, err := bus.Publish(ctx, eventType, payload, opts...)
			return err
		}
	}
	for name, c := range map[string]struct {
		subscriptions int
		options       []eventbus.Option
		publish       func(*eventbus.Bus) error
		most          float64
	}{
		"one subscription":    {1, nil, publish(plain, "order.placed"), 1},
		"ten subscriptions":   {10, nil, publish(plain, "order.placed"), 2},
		"with values":         {1, nil, publish(values, "order.placed"), 1},
		"with a key":          {1, nil, publish(plain, "order.placed", eventbus.Key("o-1")), 1},
		"with isolation":      {10, []eventbus.Option{eventbus.WithIsolation()}, publish(plain, "order.placed"), 12},
		"with a retry policy": {1, []eventbus.Option{eventbus.WithRetry(eventbus.MaxRetries(5))}, publish(plain, "order.placed"), 1},
		"waited for": {1, nil, func(bus *eventbus.Bus) error {
			_, err := bus.PublishAndWait(plain, "order.placed", payload)
			return err
		}, 3},
		"that no subscription gets": {1, nil, publish(plain, "invoice.sent"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			bus, err := eventbus.New(c.options...)
			require.NoError(t, err)
			for range c.subscriptions {
				_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil })
				require.NoError(t, err)
			}
			require.NoError(t, bus.Start(plain))
			for range 2000 { // until the memory that is used again is there
				require.NoError(t, c.publish(bus))
			}
			allocs := testing.AllocsPerRun(20_000, func() {
				if err := c.publish(bus); err != nil {
					panic(err)
				}
			})
			require.NoError(t, bus.Shutdown(plain))
			require.LessOrEqual(t, allocs, c.most)
		})
	}
}
