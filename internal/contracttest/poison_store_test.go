package contracttest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Behind more poison than the line holds, and after a crash.
func TestPoisonWithAStore(t *testing.T) {
	for _, c := range []struct {
		k     int
		crash bool
	}{{30, false}, {30, true}, {eventbus.DefaultLineCapacity + 500, false}} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			published := map[string]time.Time{}
			worst, late, handled := time.Duration(0), 0, 0
			result := func(payload string, _ int) error {
				if payload == "bad" {
					return errBroken
				}
				d := time.Since(published[payload])
				if worst, handled = max(worst, d), handled+1; d > time.Second {
					late++
				}
				return nil
			}
			open := func() *eventbus.Bus {
				bus, _ := disk.open(t, eventbus.WithRetry(retry(3, time.Second)), eventbus.WithIsolation(), eventbus.WithConcurrency(4))
				disk.handles(t, bus, "mail", result)
				require.NoError(t, bus.Start(t.Context()))
				return bus
			}
			bus := open()
			for range c.k {
				mustPublish(t, bus, "x", "bad")
			}
			const healthy = 600
			for i := range healthy {
				time.Sleep(time.Second)
				published[fmt.Sprint(i)] = time.Now()
				mustPublish(t, bus, "x", fmt.Sprint(i))
				if c.crash && i == 20 {
					disk.crash(bus)
					bus = open()
				}
			}
			for range 3000 {
				if handled == healthy {
					break
				}
				time.Sleep(time.Minute)
			}
			fmt.Printf("store, k=%d, crash %v: worst %s, late %d of %d handled, opens %d, letters %d\n", c.k, c.crash, worst.Round(time.Second), late, handled,
				metricsOf(t, bus, "mail").CircuitOpens, metricsOf(t, bus, "mail").Failures/4)
			_ = cutShort(t, bus)
		})
	}
}
