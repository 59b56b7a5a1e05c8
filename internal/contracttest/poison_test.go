package contracttest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A burst of bad events holds up healthy ones for two periods of the circuit at most, however many there are.
func TestC5_ABurstOfPoisonHoldsUpHealthyEventsForAMinute(t *testing.T) {
	for _, c := range []struct {
		poison int
		every  time.Duration
		keys   int
		opts   []eventbus.Option
	}{
		{3, time.Second, 0, nil},
		{12, time.Second, 0, nil},
		{12, 20 * time.Second, 0, nil},
		{30, time.Second, 0, []eventbus.Option{eventbus.WithConcurrency(2)}},
		{1000, time.Second, 0, nil},
		{12, time.Second, 24, nil}, // one of each of half of the keys
	} {
		t.Run(fmt.Sprintf("%d, one healthy every %s, %d keys", c.poison, c.every, c.keys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, c.opts...)
				var mu sync.Mutex
				began := make(map[int]time.Time)
				worst, handled := time.Duration(0), 0
				mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
					n := e.Payload.(int)
					if n < 0 {
						return errBroken
					}
					mu.Lock()
					defer mu.Unlock()
					worst, handled = max(worst, time.Since(began[n])), handled+1
					return nil
				}, eventbus.Named("s"))
				key := func(n int) eventbus.PublishOption {
					if c.keys == 0 {
						return eventbus.Key("")
					}
					return eventbus.Key(fmt.Sprint(n % c.keys))
				}
				for i := range c.poison {
					mustPublish(t, bus, "x", -1-i, key(2*i))
				}
				const healthy = 300
				for i := range healthy {
					time.Sleep(c.every)
					mu.Lock()
					began[i] = time.Now()
					mu.Unlock()
					mustPublish(t, bus, "x", i, key(2*i+1))
				}
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				require.Equal(t, healthy, handled)
				require.LessOrEqual(t, worst, time.Minute)
				require.Len(t, letters(t, bus), c.poison)
				require.EqualValues(t, 4*c.poison, metricsOf(t, bus, "s").Failures, "no attempt is wasted, and none is saved")
				shutdown(t, bus)
			})
		})
	}
}

// A service that answers nothing gets one call in 30 s, whatever is held and whatever comes.
func TestC2_ADeadServiceGetsOneProbeInThirtySeconds(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, time.Second, 7 * time.Second, 31 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(20)))
			var calls journal[time.Time]
			var mended atomic.Bool
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
				if mended.Load() {
					return nil
				}
				calls.add(time.Now())
				return errBroken
			}, eventbus.Named("s"))
			for range int(10 * time.Minute / every) {
				mustPublish(t, bus, "x", nil)
				time.Sleep(every)
			}
			opened := false
			all := calls.all()
			for i := 1; i < len(all); i++ {
				gap := all[i].Sub(all[i-1])
				opened = opened || gap >= 29*time.Second
				if opened {
					require.GreaterOrEqual(t, gap, 29*time.Second, "call %d of %d, one event each %s", i, len(all), every)
				}
			}
			require.True(t, opened)
			mended.Store(true)
			time.Sleep(2 * time.Minute)
			require.Zero(t, bus.Metrics().Held)
			shutdown(t, bus)
			require.Empty(t, letters(t, bus), "the probes were spread over the events")
		})
	}
}
