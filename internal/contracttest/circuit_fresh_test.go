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

// A burst of events that fail delays healthy ones for three periods of the circuit at most, however many there are.
func TestC5_FreshEventsPassABurstOfSickOnes(t *testing.T) {
	for _, c := range []struct {
		sick  int
		every time.Duration
		keys  int
		opts  []eventbus.Option
	}{
		{3, time.Second, 0, nil},
		{12, time.Second, 0, nil},
		{12, 20 * time.Second, 0, nil},
		{30, time.Second, 0, []eventbus.Option{eventbus.WithConcurrency(2)}},
		{1000, time.Second, 0, nil},
		{12, time.Second, 24, nil}, // one of each of half of the keys
	} {
		t.Run(fmt.Sprintf("%d, one healthy every %s, %d keys", c.sick, c.every, c.keys), func(t *testing.T) {
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
				for i := range c.sick {
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
				require.LessOrEqual(t, worst, 90*time.Second)
				require.Len(t, letters(t, bus), c.sick)
				require.EqualValues(t, 4*c.sick, metricsOf(t, bus, "s").Failures, "no attempt is wasted, and none is saved")
				shutdown(t, bus)
			})
		})
	}
}

// A service that answers nothing gets one call in 30 s, whatever is held and whatever comes.
func TestC2_FreshEventsProbeADeadServiceOncePerPeriod(t *testing.T) {
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
			require.Empty(t, letters(t, bus), "the probes are spread over the events")
		})
	}
}

// A probe without an outcome leaves the circuit half-open: a fresh delivery probes at once, and one that has failed when
// the period is over.
func TestC2_FreshProbesAtOnceAfterNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(5), eventbus.BaseDelay(time.Second), eventbus.NoJitter))
		calls, began := new(journal[string]), time.Now()
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			calls.add(fmt.Sprint(time.Since(began).Truncate(time.Second), " ", e.Payload))
			switch e.Payload {
			case "sick":
				return errBroken
			case "refused":
				return eventbus.Permanent(errBroken)
			}
			return nil
		}, eventbus.Named("s"))
		mustPublish(t, bus, "x", "healthy")
		for range 3 {
			mustPublish(t, bus, "x", "sick")
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, bus.Subscription("s")))
		time.Sleep(5 * time.Second)
		before := calls.len()
		mustPublish(t, bus, "x", "refused")
		synctest.Wait()
		require.Equal(t, eventbus.CircuitHalfOpen, circuitState(t, bus, bus.Subscription("s")))
		time.Sleep(5 * time.Second)
		mustPublish(t, bus, "x", "refused")
		synctest.Wait()
		require.Equal(t, []string{"5s refused", "10s refused"}, calls.all()[before:], "those that have failed wait")
		time.Sleep(21 * time.Second)
		require.Equal(t, "30s sick", calls.all()[before+2])
		_ = cutShort(t, bus)
	})
}

// After a success within OpenFor, the events may be what fails: a fresh one probes at once.
func TestC1_FreshProbesAtOnceWhileTheServiceIsAlive(t *testing.T) {
	for _, lately := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
				if e.Payload == "sick" {
					return errBroken
				}
				return nil
			}, eventbus.Named("s"))
			mustPublish(t, bus, "x", "healthy")
			synctest.Wait()
			if !lately {
				time.Sleep(40 * time.Second)
			}
			for range 3 {
				mustPublish(t, bus, "x", "sick")
			}
			synctest.Wait()
			require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, bus.Subscription("s")))
			r, err := bus.PublishAndWait(t.Context(), "x", "healthy")
			if lately {
				require.NoError(t, err)
				require.Equal(t, eventbus.Handled, r.Outcome)
				require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, bus.Subscription("s")))
			} else {
				require.ErrorIs(t, err, eventbus.ErrHeld)
				require.Equal(t, eventbus.Held, r.Outcome)
			}
			_ = cutShort(t, bus)
		})
	}
}

// A circuit that an operator has tripped is open for its whole time.
func TestC1_FreshWaitsAfterTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var handled journal[time.Duration]
		began := time.Now()
		s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			handled.add(time.Since(began))
			return nil
		}, eventbus.Named("s"))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.NoError(t, s.Trip())
		mustPublish(t, bus, "x", nil)
		time.Sleep(time.Minute)
		require.Equal(t, []time.Duration{0, 30 * time.Second}, handled.all())
		shutdown(t, bus)
	})
}

// In an outage, the ends of the line take turns, and the third probe is the oldest of all: it does not starve behind
// fresh ones that fail.
func TestC5_FreshEndsOfTheLineTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(50), eventbus.BaseDelay(time.Second), eventbus.MaxDelay(time.Second)))
		var calls journal[string]
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			calls.add(fmt.Sprint(e.Payload))
			return errBroken
		}, eventbus.Named("s"))
		for i := range 14 {
			mustPublish(t, bus, "x", i)
			synctest.Wait()
		}
		require.Equal(t, []string{"0", "1", "2", "3"}, calls.all())
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"4", "13", "4", "5", "12", "4", "6", "11", "4"}, calls.all()[4:13])
		_ = cutShort(t, bus)
	})
}

// A delivery that was let go before the circuit opened goes back to its seat: it is not the probe.
func TestC5_FreshIsChosenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithIsolation())
		var calls journal[string]
		s := mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			calls.add(fmt.Sprint(e.Payload))
			time.Sleep(time.Millisecond)
			if e.Payload != "healthy" {
				return errBroken
			}
			return nil
		}, eventbus.Named("s"))
		require.NoError(t, s.Pause())
		for i := range 8 {
			mustPublish(t, bus, "x", i)
		}
		mustPublish(t, bus, "x", "healthy")
		synctest.Wait()
		require.NoError(t, s.Resume())
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"0", "1", "2", "3"}, calls.all(), "all were on their way")
		time.Sleep(41 * time.Second)
		require.Equal(t, []string{"4", "healthy"}, calls.all()[4:6], "the ends of the line")
		_ = cutShort(t, bus)
	})
}

// With a store, the newest delivery of a line that is longer than memory keeps is the next one that arrives.
func TestC5_FreshBehindALongLineOfAStore(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(3, time.Second)), eventbus.WithIsolation(), eventbus.WithConcurrency(4))
		var mu sync.Mutex // guards the following
		published, worst, handled := map[string]time.Time{}, time.Duration(0), 0
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if payload == "sick" {
				return errBroken
			}
			mu.Lock()
			defer mu.Unlock()
			worst, handled = max(worst, time.Since(published[payload])), handled+1
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		for range eventbus.DefaultLineCapacity + 500 {
			mustPublish(t, bus, "x", "sick")
		}
		for i := range 600 {
			time.Sleep(time.Second)
			mu.Lock()
			published[fmt.Sprint(i)] = time.Now()
			mu.Unlock()
			mustPublish(t, bus, "x", fmt.Sprint(i))
		}
		_ = cutShort(t, bus)
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, handled, 500)
		require.Less(t, worst, time.Second, "those that came while it was their turn")
	})
}

// The same if all that memory keeps has failed already.
func TestC5_FreshBehindKnownFailersOfAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(30, time.Hour)), eventbus.WithIsolation(), eventbus.WithConcurrency(4),
			eventbus.WithCircuit(eventbus.MinEvents(20_000)))
		var handled atomic.Int32
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if payload == "sick" {
				return errBroken
			}
			handled.Add(1)
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		for range eventbus.DefaultLineCapacity + 500 {
			mustPublish(t, bus, "x", "sick")
		}
		time.Sleep(30 * time.Minute)
		for range 200 { // open until all have come back
			require.NoError(t, bus.Subscription("mail").Trip())
			time.Sleep(25 * time.Second)
		}
		for range 600 {
			time.Sleep(time.Second)
			mustPublish(t, bus, "x", "healthy")
		}
		require.Positive(t, handled.Load())
		_ = cutShort(t, bus)
	})
}

// A new delivery does not take the turn of an older one that waits.
func TestC5_FreshWaitsForAnOlderOne(t *testing.T) {
	for range 50 { // the timer and the publisher are ready at once
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
			var calls journal[any]
			s := mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
				calls.add(e.Payload)
				return errBroken
			}, eventbus.Named("s"))
			require.NoError(t, s.Trip())
			mustPublish(t, bus, "x", "older")
			synctest.Wait()
			time.Sleep(30*time.Second - time.Nanosecond)
			var publisher sync.WaitGroup
			publisher.Go(func() {
				time.Sleep(time.Nanosecond)
				if _, err := bus.Publish(t.Context(), "x", "newer"); err != nil {
					t.Error(err)
				}
			})
			publisher.Wait()
			time.Sleep(time.Second)
			require.Equal(t, []any{"older"}, calls.all())
			_ = cutShort(t, bus)
		})
	}
}
