package contracttest

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// What a parked delivery takes, whatever parks it: no goroutine, and at most 400 bytes.
func TestD12_WhatParkedDeliveriesTake(t *testing.T) {
	ofManyEvents(t)
	const n = 100_000
	throttle := func(context.Context, eventbus.Event) error { return eventbus.Throttle(errBoom, 15*time.Minute) }
	snooze := func(context.Context, eventbus.Event) error { return eventbus.Snooze(time.Hour) }
	for name, c := range map[string]struct {
		handler eventbus.Handler
		pause   bool
		opts    []eventbus.SubscribeOption
	}{
		"held":      {ok, true, nil},
		"throttled": {throttle, false, nil},
		"snoozed":   {snooze, false, nil},
		"held at 100 destinations": {ok, true, []eventbus.SubscribeOption{
			eventbus.PerDestination(func(e eventbus.Event) string { return destinations[e.Payload.(int)] }),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				s := mustSubscribe(t, bus, "a", c.handler, append(c.opts, eventbus.LineCapacity(n+1))...)
				switch {
				case c.pause && c.opts == nil:
					require.NoError(t, s.Pause())
				case c.pause:
					for _, to := range destinations[:100] {
						require.NoError(t, s.Destination(to).Pause())
					}
				default:
					mustPublish(t, bus, "a", 0)
				}
				time.Sleep(time.Second)
				before, goroutines := heldBytes(), runtime.NumGoroutine()
				for i := range n {
					mustPublish(t, bus, "a", i%100)
					if i%1000 == 0 {
						synctest.Wait()
					}
				}
				time.Sleep(time.Second)
				m := bus.Metrics()
				require.GreaterOrEqual(t, m.Held+m.Throttled+m.Snoozed, n)
				bytes := float64(heldBytes()-before) / n
				t.Logf("%.0f bytes", bytes)
				require.LessOrEqual(t, bytes, 400.0)
				require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+10)
				require.NoError(t, s.Resume())
				bus.Subscription(s.ID()).Unsubscribe()
				time.Sleep(time.Minute)
				shutdown(t, bus)
			})
		})
	}
}

// destinations are the names of 1,000 destinations.
var destinations = func() (names []string) {
	for i := range 1000 {
		names = append(names, "to-"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)))
	}
	return names
}()
