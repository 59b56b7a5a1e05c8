package contracttest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// hanging is a handler whose calls do not return, whatever their contexts say, until mend.
type hanging struct {
	mended chan struct{}

	mu           sync.Mutex // guards the following
	now, most, n int        // calls that run, at most, and all
	handled      int
}

func newHanging() *hanging { return &hanging{mended: make(chan struct{})} }

func (h *hanging) handle(ctx context.Context, _ eventbus.Event) error {
	h.count(1)
	<-h.mended
	h.count(-1)
	if ctx.Err() == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.handled++
	}
	return nil
}

func (h *hanging) count(d int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now += d
	h.n += max(d, 0)
	h.most = max(h.most, h.now)
}

func (h *hanging) seen() (most, calls, handled int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most, h.n, h.handled
}

// patient retries each event, and has no circuit: nothing else bounds the calls.
func patient() []eventbus.Option {
	return []eventbus.Option{
		eventbus.WithRetry(eventbus.MaxRetries(3), eventbus.BaseDelay(time.Second), eventbus.NoJitter),
		eventbus.WithTimeout(time.Second), eventbus.WithCircuit(eventbus.NoCircuit()),
	}
}

// Running and abandoned calls together are never more than twice the limit. What waits spends no attempt, and is handled
// when the service answers again.
func TestD11_HungCallsAreBounded(t *testing.T) {
	for name, opts := range map[string][]eventbus.SubscribeOption{
		"Concurrency":  {eventbus.Concurrency(2)},
		"MaxAbandoned": {eventbus.Concurrency(2), eventbus.MaxAbandoned(1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, patient()...)
				service := newHanging()
				mustSubscribe(t, bus, "*", service.handle, append(opts, eventbus.Named("s"), eventbus.LineCapacity(1000))...)
				for range 200 {
					mustPublish(t, bus, "x", nil)
				}
				time.Sleep(time.Hour)
				most, calls, _ := service.seen()
				require.LessOrEqual(t, most, 4)
				require.Equal(t, most, calls, "none returned, and none began since")
				m := metricsOf(t, bus, "s")
				require.True(t, m.Hung)
				require.Equal(t, calls, m.Abandoned)
				require.Equal(t, 200, m.Held)
				require.Zero(t, m.Running)
				requireBalanced(t, bus)
				close(service.mended)
				time.Sleep(time.Minute)
				_, _, handled := service.seen()
				require.Equal(t, 200, handled)
				require.False(t, metricsOf(t, bus, "s").Hung)
				require.Empty(t, letters(t, bus))
				shutdown(t, bus)
			})
		})
	}
}

// Without limits, a subscription is held at 100 abandoned calls. Unlimited never is.
func TestD11_HungByDefault(t *testing.T) {
	for _, c := range []struct {
		opts  []eventbus.SubscribeOption
		calls int
		hung  bool
	}{
		{nil, 100, true},
		{[]eventbus.SubscribeOption{eventbus.Concurrency(eventbus.Unlimited)}, 100, true},
		{[]eventbus.SubscribeOption{eventbus.Concurrency(200)}, 100, true},
		{[]eventbus.SubscribeOption{eventbus.MaxAbandoned(7)}, 7, true},
		{[]eventbus.SubscribeOption{eventbus.MaxAbandoned(eventbus.Unlimited)}, 300, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, patient()...)
			service := newHanging()
			mustSubscribe(t, bus, "*", service.handle, append(c.opts, eventbus.Named("s"))...)
			for range 300 {
				mustPublish(t, bus, "x", nil)
				time.Sleep(1100 * time.Millisecond) // one is abandoned before the next begins
			}
			most, _, _ := service.seen()
			require.GreaterOrEqual(t, most, c.calls)
			require.Equal(t, c.hung, metricsOf(t, bus, "s").Hung)
			if c.hung {
				require.LessOrEqual(t, most, c.calls+3, "those that ran when it was reached")
			}
			close(service.mended)
			time.Sleep(time.Minute)
			shutdown(t, bus)
		})
	}
}

// Resume goes on as if the calls that hang had returned, once.
func TestD11_HungGoesOnAfterResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, patient()...)
		service := newHanging()
		s := mustSubscribe(t, bus, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(1))
		for range 5 {
			mustPublish(t, bus, "x", nil)
		}
		for want := range 3 {
			time.Sleep(time.Minute)
			_, calls, _ := service.seen()
			require.Equal(t, want+1, calls)
			require.True(t, metricsOf(t, bus, "s").Hung)
			require.NoError(t, s.Resume())
		}
		require.Equal(t, 3, logs.FilterMessage("subscription resumed").Len())
		time.Sleep(time.Minute)
		require.Equal(t, 1, metricsOf(t, bus, "s").Abandoned)
		close(service.mended)
		time.Sleep(time.Minute)
		_, _, handled := service.seen()
		require.Equal(t, 5, handled, "a forgiven call that returns opens nothing, and the last one does")
		shutdown(t, bus)
	})
}

// A call that Resume has forgiven opens nothing when it returns, while another one hangs.
func TestD11_HungIsNotEndedByForgivenCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, patient()...)
		var calls atomic.Int32
		returns := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}
		s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			<-returns[calls.Add(1)-1]
			return nil
		}, eventbus.Named("s"), eventbus.Concurrency(1), eventbus.MaxAbandoned(1))
		for range 3 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Minute)
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load())
		close(returns[0])
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load())
		require.True(t, metricsOf(t, bus, "s").Hung)
		close(returns[1])
		time.Sleep(time.Minute)
		require.EqualValues(t, 3, calls.Load())
		close(returns[2])
		_ = cutShort(t, bus)
	})
}

// Shutdown does not wait for what a hung subscription holds, and names it.
func TestD11_HungDelaysNoShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, patient()...)
		service := newHanging()
		mustSubscribe(t, bus, "*", service.handle, eventbus.Named("crm"), eventbus.Concurrency(1))
		for range 20 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Minute)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := bus.Shutdown(ctx)
		require.Zero(t, time.Since(began))
		var left *eventbus.ShutdownError
		require.ErrorAs(t, err, &left)
		require.Len(t, left.Unfinished, 20)
		require.Equal(t, "crm", left.Abandoned[0].Subscription)
		require.ErrorContains(t, err, "crm")
		close(service.mended)
	})
}

// What waits for room in the line of a subscription goes on when it is hung: Publish does not hang with it.
func TestD11_HungBlocksNoPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, patient()...)
		service := newHanging()
		mustSubscribe(t, bus, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(1), eventbus.LineCapacity(3))
		for range 4 {
			mustPublish(t, bus, "x", nil)
			settleWorkers()
		}
		began := time.Now()
		for range 4 {
			mustPublish(t, bus, "x", nil)
			settleWorkers()
		}
		require.LessOrEqual(t, time.Since(began), 2100*time.Millisecond)
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err, "the line is full")
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		require.Equal(t, eventbus.ReasonOverflow, letters(t, bus)[0].Reason)
		close(service.mended)
		time.Sleep(time.Minute)
		shutdown(t, bus)
	})
}

// Metrics, lists and, after a second, the log say that a subscription is hung.
func TestD11_HungIsSeen(t *testing.T) {
	for _, returns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, patient()...)
			service := newHanging()
			mustSubscribe(t, bus, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(1))
			mustPublish(t, bus, "x", nil)
			mustPublish(t, bus, "x", nil)
			time.Sleep(1500 * time.Millisecond)
			require.True(t, metricsOf(t, bus, "s").Hung)
			require.Equal(t, eventbus.ParkHung, metricsOf(t, bus, "s").ShutBy)
			require.Zero(t, logs.FilterMessageSnippet("hung").Len(), "it may be a short burst")
			if returns {
				close(service.mended)
			}
			time.Sleep(time.Second)
			entries := logs.FilterMessageSnippet("subscription hung").All()
			if returns {
				require.Empty(t, entries)
			} else {
				require.Len(t, entries, 1)
				require.Equal(t, "s", entries[0].ContextMap()["subscription_id"])
				require.EqualValues(t, 1, entries[0].ContextMap()["abandoned"])
				page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{State: eventbus.DispatchParked})
				require.NoError(t, err)
				require.NotEmpty(t, page.Dispatches)
				for _, d := range page.Dispatches {
					require.Equal(t, eventbus.ParkHung, d.Parked)
				}
				close(service.mended)
			}
			time.Sleep(time.Minute)
			shutdown(t, bus)
		})
	}
}

// With a store, what a hung subscription holds stays there, and the next process goes on.
func TestD11_HungOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		service := newHanging()
		bus, _ := disk.open(t, patient()...)
		mustSubscribe(t, bus, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(2))
		require.NoError(t, bus.Start(t.Context()))
		for range 50 {
			mustPublish(t, bus, "x", "event")
		}
		time.Sleep(time.Minute)
		most, _, _ := service.seen()
		require.LessOrEqual(t, most, 4)
		_ = cutShort(t, bus)
		require.Len(t, disk.Dump().Records, 50)
		close(service.mended)
		again, _ := disk.open(t, patient()...)
		mustSubscribe(t, again, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(2))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		_, _, handled := service.seen()
		require.Equal(t, 50, handled)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Letters)
		shutdown(t, again)
	})
}

func TestD11_HungOptionIsChecked(t *testing.T) {
	bus, _ := newBus(t)
	for _, n := range []int{0, -2} {
		_, err := bus.Subscribe("x", ok, eventbus.MaxAbandoned(n))
		requireOptionError(t, err, "MaxAbandoned")
	}
	shutdown(t, bus)
}

// A handler that returns when its context ends makes no subscription hung: throttled deliveries stay throttled, and
// PublishAndWait and Shutdown wait for them.
func TestD11_HungNeedsCallsThatStay(t *testing.T) {
	for _, lingers := range []time.Duration{0, 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()))
			var calls atomic.Int32
			mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error {
				if calls.Add(1)%10 == 1 {
					<-ctx.Done()
					time.Sleep(lingers)
					return ctx.Err()
				}
				return nil
			}, eventbus.Named("s"), eventbus.Concurrency(1), eventbus.Timeout(time.Second))
			for range 300 {
				mustPublish(t, bus, "x", nil)
			}
			outcome := make(chan eventbus.Outcome)
			go func() {
				r, _ := bus.PublishAndWait(t.Context(), "x", nil)
				outcome <- r.Outcome
			}()
			time.Sleep(2500 * time.Millisecond)
			go func() { _ = bus.Shutdown(context.Background()) }()
			require.NotEqual(t, eventbus.Held, <-outcome)
			time.Sleep(time.Minute)
			require.EqualValues(t, 301, calls.Load())
			for _, l := range letters(t, bus) {
				require.Equal(t, eventbus.ReasonExhausted, l.Reason)
			}
			require.Zero(t, logs.FilterMessageSnippet("subscription hung").Len())
		})
	}
}

// What Shutdown cuts makes no subscription hung: a waiter learns what became of its event, and nothing is logged later.
func TestD11_HungIsNotWhatShutdownCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithTimeout(time.Hour))
		service := newHanging()
		mustSubscribe(t, bus, "*", service.handle, eventbus.Named("s"), eventbus.Concurrency(1))
		mustPublish(t, bus, "x", nil)
		settleWorkers()
		ended := make(chan error)
		var r eventbus.Result
		go func() {
			var err error
			r, err = bus.PublishAndWait(t.Context(), "x", nil)
			ended <- err
		}()
		settleWorkers()
		require.NotNil(t, cutShort(t, bus))
		require.False(t, metricsOf(t, bus, "s").Hung)
		require.Len(t, bus.Abandoned(), 1)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, <-ended, &died)
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		before := logs.Len()
		time.Sleep(time.Minute)
		require.Equal(t, before, logs.Len())
		close(service.mended)
	})
}
