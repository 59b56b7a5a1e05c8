package benchmarks

import (
	"fmt"
	"strings"
	"testing"

	tailscale "tailscale.com/util/eventbus"
)

// Tailscale's bus routes by Go types: slow topics have one, all others another.
type (
	tailscaleEvent     struct{ *note }
	tailscaleSlowEvent struct{ *note }
)

// openTailscale has a client for each subscription, as a client may subscribe to a
// type once.
func openTailscale(_ testing.TB, s setup) system {
	bus := tailscale.New()
	for i, sub := range s.subscriptions {
		client := bus.Client(fmt.Sprint("subscriber-", i))
		if strings.HasPrefix(sub.topic, "slow.") {
			tailscale.SubscribeFunc(client, func(e tailscaleSlowEvent) { check(sub.handle(e.n)) })
		} else {
			tailscale.SubscribeFunc(client, func(e tailscaleEvent) { check(sub.handle(e.n)) })
		}
	}
	return system{
		publisher: func(topic string) func(*note) {
			client := bus.Client("publisher")
			if strings.HasPrefix(topic, "slow.") {
				p := tailscale.Publish[tailscaleSlowEvent](client)
				return func(x *note) { p.Publish(tailscaleSlowEvent{x}) }
			}
			p := tailscale.Publish[tailscaleEvent](client)
			return func(x *note) { p.Publish(tailscaleEvent{x}) }
		},
		unbounded: true,
		close:     bus.Close,
	}
}
