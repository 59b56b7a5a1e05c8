package benchmarks

import (
	"sync"
	"testing"

	"github.com/surebus/eventbus"
)

// openChannel is a channel of capacity 1,024 and a goroutine that receives, for
// each subscription. To be waited for, it replies on a channel of the publisher.
func openChannel(_ testing.TB, s setup) system {
	type request struct {
		eventbus.Event
		reply chan struct{}
	}
	plain := make(map[string][]chan eventbus.Event)
	answered := make(map[string][]chan request)
	var receivers sync.WaitGroup
	for _, sub := range s.subscriptions {
		if s.wait {
			c := make(chan request, 1024)
			answered[sub.topic] = append(answered[sub.topic], c)
			receivers.Go(func() {
				for r := range c {
					check(sub.handle(r.Payload.(*note).n))
					r.reply <- struct{}{}
				}
			})
			continue
		}
		c := make(chan eventbus.Event, 1024)
		plain[sub.topic] = append(plain[sub.topic], c)
		receivers.Go(func() {
			for e := range c {
				check(sub.handle(e.Payload.(*note).n))
			}
		})
	}
	return system{
		publisher: func(topic string) func(*note) {
			if s.wait {
				channels := answered[topic]
				reply := make(chan struct{}, len(channels))
				return func(x *note) {
					for _, c := range channels {
						c <- request{eventbus.Event{Type: topic, Payload: x}, reply}
					}
					for range channels {
						<-reply
					}
				}
			}
			channels := plain[topic]
			return func(x *note) {
				for _, c := range channels {
					c <- eventbus.Event{Type: topic, Payload: x}
				}
			}
		},
		close: func() {
			for _, channels := range plain {
				for _, c := range channels {
					close(c)
				}
			}
			for _, channels := range answered {
				for _, c := range channels {
					close(c)
				}
			}
			receivers.Wait()
		},
	}
}
