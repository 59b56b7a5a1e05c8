package contracttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestD11_RateLimitSpacesCalls(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		per   time.Duration
		burst int
		want  []time.Duration // of the calls, after the publications
	}{
		"evenly":        {10, time.Second, 1, inSeconds(0, 0.1, 0.2, 0.3, 0.4)},
		"with a burst":  {1, time.Second, 3, inSeconds(0, 0, 0, 1, 2)},
		"a slow one":    {2, time.Hour, 1, inSeconds(0, 1800, 3600, 5400, 7200)},
		"not a divisor": {3, time.Second, 1, []time.Duration{0, 333333334, 666666668, 1000000002, 1333333336}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				var calls callTimes
				mustSubscribe(t, bus, "a", calls.failing(nil), eventbus.RateLimit(c.n, c.per, c.burst))
				for range c.want {
					mustPublish(t, bus, "a", 1)
				}
				shutdown(t, bus)
				got := calls.all()
				require.Len(t, got, len(c.want))
				for i, at := range got { // a worker comes up to a tick later
					require.InDelta(t, c.want[i], at, float64(time.Millisecond), "call %d", i)
				}
			})
		})
	}
}

// Retries take part, and so do replays. The others of an event do not wait.
func TestD11_RetriesCountForTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, 0)))
		var limited, others callTimes
		mustSubscribe(t, bus, "a", limited.failing(errBoom), eventbus.RateLimit(1, time.Second, 1))
		mustSubscribe(t, bus, "b", others.failing(nil))
		mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "b", 1)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 1, 2), limited.all())
		require.Equal(t, inSeconds(0), others.all())
		require.Len(t, oneLetter(t, bus).Failures, 3)
	})
}

// A service that takes 10 calls a second gets each event once, as fast as it takes them.
func TestD11_AThirdPartyWithARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 2000
		bus, _ := startBus(t)
		service := newService(10)
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			time.Sleep(50 * time.Millisecond)
			if wait := service.call(); wait > 0 {
				return errBoom
			}
			return nil
		}, eventbus.RateLimit(10, time.Second, 1))
		began := time.Now()
		for range events {
			mustPublish(t, bus, "a", 1)
		}
		shutdown(t, bus)
		require.Equal(t, events, service.taken)
		require.Zero(t, service.refused)
		require.LessOrEqual(t, time.Since(began), 210*time.Second)
		require.Empty(t, letters(t, bus))
	})
}

// What PublishAndWait waits for, what parks, and what Metrics and the catalog say.
func TestD11_ADeliveryBeyondTheRateIsThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("limited"), eventbus.RateLimit(1, time.Minute, 1))
		mustPublish(t, bus, "a", 1)
		began := time.Now()
		waited := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(t.Context(), "a", 2)
			waited <- err
		}()
		synctest.Wait()
		m := metricsOf(t, bus, "limited")
		require.Equal(t, 1, m.Throttled)
		require.Empty(t, m.ShutBy)
		require.Equal(t, &eventbus.RateSettings{Calls: 1, Per: time.Minute, Burst: 1}, m.Options.RateLimit)
		require.NoError(t, <-waited)
		require.Equal(t, time.Minute, time.Since(began))
		shutdown(t, bus)
	})
}

func TestD11_BadRates(t *testing.T) {
	bus, _ := newBus(t)
	for name, o := range map[string]eventbus.SubscribeOption{
		"no call":        eventbus.RateLimit(0, time.Second, 1),
		"negative calls": eventbus.RateLimit(-1, time.Second, 1),
		"no time":        eventbus.RateLimit(1, 0, 1),
		"negative time":  eventbus.RateLimit(1, -time.Second, 1),
		"too fast":       eventbus.RateLimit(1000, 999, 1),
		"no burst":       eventbus.RateLimit(1, time.Second, 0),
	} {
		_, err := bus.Subscribe("a", ok, o)
		requireOptionError(t, err, "RateLimit")
		require.Empty(t, bus.Metrics().Subscriptions, name)
	}
}

// service is a third party that takes a number of calls per second, and tells the others when to come again.
type service struct {
	every time.Duration

	mu             sync.Mutex // guards the following
	next           time.Time
	taken, refused int
}

func newService(perSecond int) *service {
	return &service{every: time.Second / time.Duration(perSecond), next: time.Now()}
}

// call returns 0, or how long the caller has to wait.
func (s *service) call() (wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wait = time.Until(s.next); wait > 0 {
		s.refused++
		return wait
	}
	s.taken++
	s.next = time.Now().Add(s.every)
	return 0
}

// A call that the rate admits must find its share of the workers, too. Those that are released at once take the last workers: each would
// be refused, and released again when another one has left its worker, without end.
func TestD11_ARateWhileTheShareIsInUse(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithConcurrency(3))
		var handled journal[string]
		s := mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
			handled.add(p.To)
			if p.To == "slow" {
				time.Sleep(time.Second)
			}
			return nil
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.RateLimit(10, time.Second, 1))
		mustSubscribe(t, bus, "other", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("other"))
		start(t, bus)
		publishSoon(t, bus, shipment{"slow", 1})
		const places = 8
		for i := range places {
			require.NoError(t, s.Destination(fmt.Sprint("p", i)).Pause())
			publishSoon(t, bus, shipment{fmt.Sprint("p", i), 1})
		}
		require.NoError(t, s.Pause())
		for i := range places {
			require.NoError(t, s.Destination(fmt.Sprint("p", i)).Resume())
		}
		require.NoError(t, s.Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Len(t, handled.all(), 1+places)
		shutdown(t, bus)
	})
}
