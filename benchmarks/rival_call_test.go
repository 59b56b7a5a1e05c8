package benchmarks

import "testing"

// openCall calls the handlers.
func openCall(_ testing.TB, s setup) system {
	return system{
		publisher: func(topic string) func(*note) {
			handlers := s.handlers(topic)
			return func(x *note) {
				for _, handle := range handlers {
					check(handle(x.n))
				}
			}
		},
		close: func() {},
	}
}

// handlers are those of a topic.
func (s setup) handlers(topic string) []func(uint64) error {
	var handlers []func(uint64) error
	for _, sub := range s.subscriptions {
		if sub.topic == topic {
			handlers = append(handlers, sub.handle)
		}
	}
	return handlers
}
