package benchmarks

import (
	"context"
	"math"
	"testing"

	"github.com/surebus/eventbus"
)

// openEventbus is this bus as New makes it: timeouts, retries, circuits, counters,
// ids are on. The subscriptions are globs.
func openEventbus(_ testing.TB, s setup) system {
	ctx := context.Background()
	var opts []eventbus.Option
	if s.retry > 0 {
		opts = append(opts,
			eventbus.WithRetry(eventbus.BaseDelay(s.retry), eventbus.NoJitter),
			eventbus.WithCircuit(eventbus.MinEvents(math.MaxInt32)))
	}
	bus, err := eventbus.New(opts...)
	check(err)
	for _, sub := range s.subscriptions {
		_, err := bus.Subscribe(sub.glob(), func(_ context.Context, e eventbus.Event) error {
			return sub.handle(e.Payload.(*note).n)
		})
		check(err)
	}
	check(bus.Start(ctx))
	return system{
		publisher: func(topic string) func(*note) {
			if s.wait {
				return func(x *note) {
					_, err := bus.PublishAndWait(ctx, topic, x)
					check(err)
				}
			}
			return func(x *note) {
				_, err := bus.Publish(ctx, topic, x)
				check(err)
			}
		},
		close: func() {
			check(bus.Shutdown(ctx))
			if l := bus.Metrics().Ledger; !l.Balanced() || l.DeadLettered+l.Dropped+l.Unrouted > 0 {
				panic("not every event was handled")
			}
		},
	}
}
