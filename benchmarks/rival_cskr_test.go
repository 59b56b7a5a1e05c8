package benchmarks

import (
	"sync"
	"testing"

	"github.com/cskr/pubsub/v2"
)

func openCskr(_ testing.TB, s setup) system {
	ps := pubsub.New[string, *note](1024)
	var receivers sync.WaitGroup
	for _, sub := range s.subscriptions {
		c := ps.Sub(sub.topic)
		receivers.Go(func() {
			for x := range c {
				check(sub.handle(x.n))
			}
		})
	}
	return system{
		publisher: func(topic string) func(*note) {
			return func(x *note) { ps.Pub(x, topic) }
		},
		close: func() {
			ps.Shutdown()
			receivers.Wait()
		},
	}
}
