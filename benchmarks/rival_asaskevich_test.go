package benchmarks

import (
	"testing"

	EventBus "github.com/asaskevich/EventBus"
)

// openAsaskevich handles each event on a goroutine of its own; to be waited for, in
// Publish.
func openAsaskevich(_ testing.TB, s setup) system {
	bus := EventBus.New()
	for _, sub := range s.subscriptions {
		handle := func(x *note) { check(sub.handle(x.n)) }
		if s.wait {
			check(bus.Subscribe(sub.topic, handle))
		} else {
			check(bus.SubscribeAsync(sub.topic, handle, false))
		}
	}
	return system{
		publisher: func(topic string) func(*note) {
			return func(x *note) { bus.Publish(topic, x) }
		},
		unbounded: true,
		few:       4,
		close:     bus.WaitAsync,
	}
}
