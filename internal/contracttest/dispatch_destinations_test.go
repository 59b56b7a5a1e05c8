package contracttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// shipment is a payload for a destination.
type shipment struct {
	To string
	N  int
}

// byAddress is the function of PerDestination for shipments.
func byAddress(e eventbus.Event) string {
	switch p := e.Payload.(type) {
	case shipment:
		return p.To
	case interface{ MarshalJSON() ([]byte, error) }:
		text, _ := p.MarshalJSON()
		_, rest, _ := strings.Cut(string(text), `"To":"`)
		to, _, _ := strings.Cut(rest, `"`)
		return to
	}
	return ""
}

// ships is a handler of shipments that fails for the addresses in dead, and counts those that arrive.
type ships struct {
	mu      sync.Mutex
	dead    map[string]error
	arrived map[string][]int
	calls   map[string]int
}

func newShips(dead ...string) *ships {
	s := &ships{dead: make(map[string]error), arrived: make(map[string][]int), calls: make(map[string]int)}
	for _, to := range dead {
		s.dead[to] = errBoom
	}
	return s
}

func (s *ships) handle(_ context.Context, p shipment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[p.To]++
	if err := s.dead[p.To]; err != nil {
		return err
	}
	s.arrived[p.To] = append(s.arrived[p.To], p.N)
	return nil
}

func (s *ships) set(to string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[to] = err
}

func (s *ships) at(to string) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.arrived[to])
}

func (s *ships) callsTo(to string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[to]
}

// subscribe subscribes the handler with PerDestination.
func (s *ships) subscribe(t *testing.T, bus *eventbus.Bus, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error { return s.handle(ctx, p) }),
		append([]eventbus.SubscribeOption{eventbus.Named("ships"), eventbus.PerDestination(byAddress)}, opts...)...)
}

// inMemoryAndStore runs a test in memory and with a store.
func inMemoryAndStore(t *testing.T, test func(t *testing.T, open func(opts ...eventbus.Option) *eventbus.Bus)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, func(opts ...eventbus.Option) *eventbus.Bus {
				bus, _ := newBus(t, opts...)
				return bus
			})
		})
	})
	t.Run("store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			test(t, func(opts ...eventbus.Option) *eventbus.Bus {
				bus, _ := disk.open(t, opts...)
				return bus
			})
		})
	})
}

// start starts a bus whose subscriptions are made.
func start(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	require.NoError(t, bus.Start(t.Context()))
}

// One dead address: its circuit opens, and its deliveries are held. The others arrive at once.
func TestD13_ADeadDestinationHoldsNoOther(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		s := newShips("dead")
		sub := s.subscribe(t, bus, eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Second)))
		start(t, bus)
		for i := range 20 {
			mustPublish(t, bus, "ship", shipment{"dead", i})
			mustPublish(t, bus, "ship", shipment{fmt.Sprint("alive", i%3), i})
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for i := range 3 {
			require.Len(t, s.at(fmt.Sprint("alive", i)), 7-i/2)
		}
		m := metricsOf(t, bus, "ships")
		require.Equal(t, 4, m.Destinations.Known)
		require.Equal(t, 1, m.Destinations.Unwell)
		dead := m.Destinations.List[0]
		require.Equal(t, "dead", dead.Destination)
		require.Equal(t, eventbus.CircuitOpen, dead.Circuit)
		require.Equal(t, eventbus.ParkCircuit, dead.ShutBy)
		require.EqualValues(t, s.callsTo("dead"), dead.Failures)
		require.Equal(t, m.Failures, dead.Failures, "the others succeeded")
		require.Zero(t, dead.Successes)
		require.InDelta(t, 1, dead.FailureRate(), 0)
		require.Equal(t, dead.Held, m.Held)
		require.Positive(t, dead.Held)
		require.Equal(t, int64(1), m.CircuitOpens)
		require.EqualValues(t, 20, m.Successes)

		calls := s.callsTo("dead")
		s.set("dead", nil)
		require.NoError(t, sub.Destination("dead").Reset())
		time.Sleep(time.Second)
		require.NoError(t, bus.Drain(t.Context()))
		require.Len(t, s.at("dead"), s.callsTo("dead")-calls)
		require.Zero(t, metricsOf(t, bus, "ships").Destinations.Unwell)
		shutdown(t, bus)
	})
}

// Limits apply to each destination.
func TestD13_LimitsApplyToEachDestination(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		var mu sync.Mutex
		running, most, all, mostOfAll := make(map[string]int), 0, 0, 0
		mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
			mu.Lock()
			running[p.To]++
			all++
			most, mostOfAll = max(most, running[p.To]), max(mostOfAll, all)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			running[p.To]--
			all--
			return nil
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Concurrency(2))
		start(t, bus)
		began := time.Now()
		for i := range 30 {
			mustPublish(t, bus, "ship", shipment{fmt.Sprint("to", i%3), i})
		}
		require.NoError(t, bus.Drain(t.Context()))
		require.Equal(t, 2, most)
		require.Equal(t, 6, mostOfAll)
		require.InDelta(t, 5, time.Since(began).Seconds(), 0.5)
		shutdown(t, bus)
	})
}

// While other destinations have the subscription's share of the workers, a destination is resumed, and another one may go on by its
// rate. Both go on afterwards, although nothing runs there whose end would say so.
func TestD13_DestinationsGoOnOnceTheShareIsFree(t *testing.T) {
	for _, concurrency := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(concurrency))
			s := newShips()
			sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
				if p.To == "busy" {
					time.Sleep(time.Second)
				}
				return s.handle(ctx, p)
			}), eventbus.PerDestination(byAddress), eventbus.RateLimit(1, 2*time.Second, 1))
			mustSubscribe(t, bus, "other", sleepFor(1100*time.Millisecond))
			require.NoError(t, sub.Destination("paused").Pause())
			mustPublish(t, bus, "ship", shipment{"paused", 1})
			mustPublish(t, bus, "ship", shipment{"paced", 1})
			mustPublish(t, bus, "ship", shipment{"paced", 2})
			time.Sleep(1500 * time.Millisecond)
			mustPublish(t, bus, "ship", shipment{"busy", 1})
			mustPublish(t, bus, "other", 1) // takes the other worker
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, sub.Destination("paused").Resume())
			time.Sleep(time.Minute)
			require.Len(t, s.at("busy"), 1)
			require.Len(t, s.at("paced"), 2)
			require.Len(t, s.at("paused"), 1)
			shutdown(t, bus)
		})
	}
}

// A customer's quota: Throttle shuts the door of one destination, and RateLimit paces each.
func TestD13_ThrottleAndRateOfOneDestination(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		began := time.Now()
		var calls journal[string]
		mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
			calls.add(fmt.Sprintf("%s %.0f", p.To, time.Since(began).Seconds()))
			if p.To == "busy" && time.Since(began) < 10*time.Second {
				return eventbus.Throttle(errBoom, 10*time.Second)
			}
			return nil
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.RateLimit(1, time.Second, 1))
		start(t, bus)
		for i := range 3 {
			mustPublish(t, bus, "ship", shipment{"busy", i})
			mustPublish(t, bus, "ship", shipment{"free", i})
		}
		time.Sleep(5 * time.Second)
		m := metricsOf(t, bus, "ships")
		require.Equal(t, 1, m.Destinations.Unwell)
		require.Equal(t, "busy", m.Destinations.List[0].Destination)
		require.Equal(t, 3, m.Destinations.List[0].Throttled)
		require.WithinDuration(t, began.Add(10*time.Second), m.Destinations.List[0].ThrottledUntil, time.Second)
		require.NoError(t, bus.Drain(t.Context()))
		require.Equal(t, []string{"busy 0", "busy 10", "busy 11", "busy 12", "free 0", "free 1", "free 2"}, slices.Sorted(slices.Values(calls.all())))
		shutdown(t, bus)
	})
}

// Calls that hang hold their destination, and ten times as many the subscription.
func TestD13_CallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		release := make(chan struct{})
		sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
			if strings.HasPrefix(p.To, "hangs") {
				<-release
			}
			return nil
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.MaxAbandoned(2), eventbus.Timeout(time.Second), eventbus.Circuit(eventbus.NoCircuit()))
		for i := range 4 {
			mustPublish(t, bus, "ship", shipment{"hangs", i})
			time.Sleep(2 * time.Second)
		}
		mustPublish(t, bus, "ship", shipment{"free", 1})
		time.Sleep(2 * time.Second)
		m := metricsOf(t, bus, "ships")
		require.False(t, m.Hung)
		require.Equal(t, 2, m.Abandoned)
		require.EqualValues(t, 1, m.Successes)
		require.Equal(t, []eventbus.DestinationMetrics{{
			Destination: "hangs", Failures: 2, Circuit: eventbus.CircuitDisabled, Held: 2, ShutBy: eventbus.ParkHung, Abandoned: 2, Hung: true,
		}}, m.Destinations.List)

		for i := range 18 {
			mustPublish(t, bus, "ship", shipment{fmt.Sprint("hangs", i/2), i})
		}
		time.Sleep(2 * time.Second)
		require.True(t, metricsOf(t, bus, "ships").Hung, "20 of all destinations")
		mustPublish(t, bus, "ship", shipment{"free", 2})
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 1, metricsOf(t, bus, "ships").Successes)
		require.NoError(t, sub.Resume())
		time.Sleep(time.Second)
		require.EqualValues(t, 2, metricsOf(t, bus, "ships").Successes)
		close(release)
		time.Sleep(time.Second)
		require.NoError(t, bus.Drain(t.Context()))
		shutdown(t, bus)
	})
}

// Order by key is the subscription's, whatever the destinations.
func TestD13_AKeyKeepsItsOrderAcrossDestinations(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		s := newShips("dead", "dead2")
		var order journal[int]
		sub := mustSubscribe(t, bus, "ship", eventbus.Typed(func(ctx context.Context, p shipment) error {
			err := s.handle(ctx, p)
			if err == nil && p.N > 0 {
				order.add(p.N)
			}
			if err == nil && p.N == 1 {
				time.Sleep(5 * time.Second)
			}
			return err
		}), eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited), eventbus.BaseDelay(time.Second)))
		start(t, bus)
		for _, to := range []string{"dead", "dead2"} {
			for range 4 {
				mustPublish(t, bus, "ship", shipment{to, -1})
			}
		}
		time.Sleep(time.Second)
		for i, to := range []string{"dead", "alive", "dead2", "alive", "other"} {
			mustPublish(t, bus, "ship", shipment{to, i + 1}, eventbus.Key("k"))
		}
		mustPublish(t, bus, "ship", shipment{"alive", 100})
		time.Sleep(time.Second)
		require.Equal(t, []int{100}, order.all())
		m := metricsOf(t, bus, "ships")
		require.Equal(t, 13, m.Held)

		s.set("dead", nil)
		require.NoError(t, sub.Destination("dead").Reset())
		time.Sleep(time.Second)
		require.NoError(t, sub.Destination("dead").Pause(), "2 goes to another one")
		time.Sleep(time.Minute)
		require.Equal(t, []int{100, 1, 2}, order.all(), "3 is held at its own destination, and 4 and 5 behind it")
		mustPublish(t, bus, "ship", shipment{"alive", 6}, eventbus.Key("k"))
		time.Sleep(time.Second)
		require.Equal(t, []int{100, 1, 2}, order.all())
		s.set("dead2", nil)
		require.NoError(t, sub.Destination("dead2").Reset())
		time.Sleep(time.Minute)
		require.NoError(t, sub.Destination("dead").Resume())
		require.Equal(t, []int{100, 1, 2, 3, 4, 5, 6}, order.all())
		require.NoError(t, bus.Drain(t.Context()))
		require.Zero(t, metricsOf(t, bus, "ships").Destinations.Unwell)
		shutdown(t, bus)
	})
}

// What operators order of a destination.
func TestD13_OperatorsHaveEachDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		s := newShips()
		sub := s.subscribe(t, bus)
		paused := sub.Destination("paused")
		require.NoError(t, paused.Pause(eventbus.By("ann"), eventbus.Because("their migration")))
		for i := range 3 {
			mustPublish(t, bus, "ship", shipment{"paused", i})
			mustPublish(t, bus, "ship", shipment{"free", i})
		}
		time.Sleep(time.Second)
		require.Empty(t, s.at("paused"))
		require.Len(t, s.at("free"), 3)
		m := metricsOf(t, bus, "ships")
		require.False(t, m.Paused)
		require.Equal(t, eventbus.ParkPaused, m.Destinations.List[0].ShutBy)
		require.Equal(t, "ann", m.Destinations.List[0].Directive.By)
		require.Equal(t, "paused", m.Destinations.List[0].Directive.Destination)
		require.Equal(t, "paused", logs.FilterMessage("subscription paused").All()[0].ContextMap()["destination"])
		audit, err := bus.Audit(t.Context(), eventbus.AuditQuery{})
		require.NoError(t, err)
		require.Equal(t, "paused", audit.Entries[0].Destination)

		// The subscription's pause holds all.
		require.NoError(t, sub.Pause())
		mustPublish(t, bus, "ship", shipment{"free", 3})
		require.NoError(t, paused.Resume())
		time.Sleep(time.Second)
		require.Empty(t, s.at("paused"))
		require.Len(t, s.at("free"), 3)
		require.NoError(t, sub.Resume())
		time.Sleep(time.Second)
		require.Len(t, s.at("paused"), 3)
		require.Len(t, s.at("free"), 4)

		require.ErrorIs(t, sub.Trip(), eventbus.ErrCircuitDisabled)
		require.NoError(t, sub.Destination("free").Trip())
		mustPublish(t, bus, "ship", shipment{"free", 4})
		mustPublish(t, bus, "ship", shipment{"paused", 4})
		time.Sleep(time.Second)
		require.NoError(t, paused.HoldUntil(time.Now().Add(10*time.Second)))
		mustPublish(t, bus, "ship", shipment{"paused", 5})
		time.Sleep(time.Second)
		require.Len(t, s.at("free"), 4)
		require.Len(t, s.at("paused"), 4)
		time.Sleep(30 * time.Second)
		require.Len(t, s.at("free"), 5)
		require.Len(t, s.at("paused"), 5)

		plain := mustSubscribe(t, bus, "x", ok, eventbus.Named("plain"))
		var refused *eventbus.OptionError
		require.ErrorAs(t, plain.Destination("a").Pause(), &refused)
		require.ErrorContains(t, refused, "PerDestination")
		_, err = bus.Subscribe("x", ok, eventbus.PerDestination(nil))
		requireOptionError(t, err, "PerDestination")
		shutdown(t, bus)
	})
}

// The subscription's pause holds a delivery that waits for its next attempt at a destination.
func TestD13_RetriesObeyThePauseOfAll(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(3, 10*time.Second)))
		s := newShips("slow")
		sub := s.subscribe(t, bus)
		start(t, bus)
		mustPublish(t, bus, "ship", shipment{"slow", 1})
		time.Sleep(time.Second)
		s.set("slow", nil)
		require.NoError(t, sub.Pause())
		time.Sleep(time.Minute)
		require.Equal(t, 1, s.callsTo("slow"))
		require.Equal(t, 1, metricsOf(t, bus, "ships").Held)
		require.NoError(t, sub.Resume())
		time.Sleep(time.Second)
		require.Equal(t, []int{1}, s.at("slow"))
		shutdown(t, bus)
	})
}

// A function that panics, returns nothing, ends its goroutine, blocks, or returns what is no name.
func TestD13_FunctionsThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		release := make(chan struct{})
		var calls journal[string]
		var asked callTimes
		sub := mustSubscribe(t, bus, "ship", func(_ context.Context, e eventbus.Event) error {
			calls.add(e.Payload.(string))
			return errBoom
		}, eventbus.Named("ships"), eventbus.Timeout(time.Second), eventbus.Circuit(eventbus.MinEvents(100)), eventbus.PerDestination(func(e eventbus.Event) string {
			asked.add(0)
			switch p := e.Payload.(string); p {
			case "panics":
				panic("no address")
			case "blocks":
				<-release
			case "nothing":
				return ""
			case "long":
				return strings.Repeat("é", 200)
			case "binary":
				return "a\x00\xffb"
			}
			return "fine"
		}))
		for _, p := range []string{"panics", "nothing", "blocks", "long", "binary", "fine"} {
			mustPublish(t, bus, "ship", p)
		}
		time.Sleep(5 * time.Second)
		require.ElementsMatch(t, []string{"panics", "nothing", "long", "binary", "fine"}, calls.all())
		require.Equal(t, 6, asked.len())
		all := letters(t, bus)
		require.Len(t, all, 6)
		var late *eventbus.TimeoutError
		require.True(t, slices.ContainsFunc(all, func(l eventbus.DeadLetter) bool {
			return l.Event.Payload == "blocks" && errors.As(l.Failures[0].Err, &late)
		}))
		require.Equal(t, 1, logs.FilterMessageSnippet("PerDestination panicked").Len())
		require.Equal(t, 1, metricsOf(t, bus, "ships").Abandoned)
		require.Equal(t, 4, metricsOf(t, bus, "ships").Destinations.Known)
		require.Equal(t, eventbus.CommonDestination, sub.Destination("").Name())
		long := sub.Destination(strings.Repeat("é", 200)).Name()
		require.Len(t, long, 255)
		require.NotEqual(t, long, sub.Destination(strings.Repeat("é", 201)).Name())
		require.Equal(t, "ab", sub.Destination("a\x00\xffb").Name()[:2])
		close(release)
		shutdown(t, bus)
	})
}

// A million destinations: idle ones are forgotten, and those that are not well are kept.
func TestD13_IdleDestinationsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		s := newShips()
		sub := s.subscribe(t, bus)
		require.NoError(t, sub.Destination("paused").Pause())
		require.NoError(t, sub.Destination("paused too").Pause(), "nothing comes to it")
		mustPublish(t, bus, "ship", shipment{"paused", 1})
		for round := range 3 {
			for i := range eventbus.MaxDestinations - 10 {
				mustPublish(t, bus, "ship", shipment{fmt.Sprint(round, "-", i), i})
			}
			require.NoError(t, bus.Drain(t.Context()))
			time.Sleep(2 * time.Minute) // their windows are empty then
		}
		m := metricsOf(t, bus, "ships").Destinations
		require.Equal(t, eventbus.MaxDestinations, m.Known)
		require.Zero(t, m.Shared)
		require.Equal(t, 2, m.Unwell)

		for i := range eventbus.MaxDestinations + 10 { // none is idle
			mustPublish(t, bus, "ship", shipment{fmt.Sprint("now-", i), i})
		}
		require.NoError(t, bus.Drain(t.Context()))
		m = metricsOf(t, bus, "ships").Destinations
		require.Positive(t, m.Shared)
		require.LessOrEqual(t, m.Known, eventbus.MaxDestinations+1)
		require.Equal(t, 1, logs.FilterMessageSnippet("destinations share the common one").Len())
		require.Len(t, s.at("now-10009"), 1)
		require.NoError(t, sub.Destination("paused").Resume())
		time.Sleep(time.Second)
		require.Len(t, s.at("paused"), 1)
		shutdown(t, bus)
	})
}

// In memory, a full line of one destination dead-letters what comes to it, and Publish does not wait.
func TestD13_AFullLineConcernsItsDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		s := newShips()
		sub := s.subscribe(t, bus, eventbus.LineCapacity(5))
		for i := range 20 {
			require.NoError(t, sub.Destination(fmt.Sprint("p", i)).Pause())
		}
		for i := range 8 {
			mustPublish(t, bus, "ship", shipment{"p0", i})
			mustPublish(t, bus, "ship", shipment{"free", i})
		}
		time.Sleep(time.Second)
		require.Len(t, s.at("free"), 8)
		require.Equal(t, 5, metricsOf(t, bus, "ships").Held)
		require.Len(t, letters(t, bus), 3)
		require.Equal(t, eventbus.ReasonOverflow, letters(t, bus)[0].Reason)

		// All lines together have ten times the capacity: the longest is the full one.
		for i := range 4 {
			for to := range 19 {
				mustPublish(t, bus, "ship", shipment{fmt.Sprint("p", to+1), i})
			}
		}
		time.Sleep(time.Second)
		m := metricsOf(t, bus, "ships")
		require.Equal(t, 50, m.Held)
		for _, d := range m.Destinations.List {
			require.LessOrEqual(t, d.Held, 3)
		}
		require.Len(t, letters(t, bus), 3+5+4*19-50)
		shutdownLeft(t, bus)
	})
}

// A store keeps the answer and the order of an operator, and claims by destination.
func TestD13_AfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		const each = 3 * eventbus.DefaultLineCapacity / 2
		var asked callTimes
		count := eventbus.PerDestination(func(e eventbus.Event) string {
			asked.add(0)
			return byAddress(e)
		})
		bus, _ := disk.open(t)
		s := newShips()
		sub := s.subscribe(t, bus, count)
		start(t, bus)
		require.NoError(t, sub.Destination("paused").Pause(eventbus.By("ann")))
		var batch []eventbus.Publication
		for i := range each {
			batch = append(batch, eventbus.Publication{Type: "ship", Payload: shipment{"paused", i}})
			if len(batch) == 1000 {
				_, err := bus.PublishBatch(t.Context(), batch)
				require.NoError(t, err)
				batch = nil
			}
		}
		time.Sleep(time.Minute)
		require.Equal(t, each, asked.len())
		require.Equal(t, eventbus.DefaultLineCapacity, metricsOf(t, bus, "ships").Held)
		shutdown(t, bus)

		bus, _ = disk.open(t)
		sub = s.subscribe(t, bus, count)
		start(t, bus)
		for i := range 10 {
			mustPublish(t, bus, "ship", shipment{"free", i})
		}
		time.Sleep(time.Minute)
		require.Len(t, s.at("free"), 10)
		require.Equal(t, each+10, asked.len(), "once for each delivery")
		m := metricsOf(t, bus, "ships")
		require.Equal(t, "ann", m.Destinations.List[0].Directive.By)
		require.Less(t, m.Held, 3*eventbus.DefaultLineCapacity/2)
		require.Empty(t, s.at("paused"))
		require.NoError(t, sub.Destination("paused").Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Len(t, s.at("paused"), each)
		require.Equal(t, each+10, asked.len())
		shutdown(t, bus)
	})
}

// 1,000 destinations, of which 10 are dead, and 100 events a second: the others are as fast as without the dead.
func TestD13_DeadDestinationsDelayNoOther(t *testing.T) {
	ofManyEvents(t)
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		without, with := p99OfOthers(t, open, 0), p99OfOthers(t, open, 10)
		t.Logf("p99 without dead ones %v, with 10 %v", without, with)
		require.LessOrEqual(t, with, 2*without)
	})
}

// p99OfOthers returns how long 99 % of the events to destinations that live take, of 100 events a second.
func p99OfOthers(t *testing.T, open func(...eventbus.Option) *eventbus.Bus, dead int) time.Duration {
	t.Helper()
	bus := open(eventbus.WithConcurrency(64))
	var took journal[time.Duration]
	mustSubscribe(t, bus, "ship", eventbus.Typed(func(_ context.Context, p shipment) error {
		if slices.Contains(destinations[:dead], p.To) {
			time.Sleep(5 * time.Second)
			return errBoom
		}
		time.Sleep(20 * time.Millisecond)
		took.add(time.Duration(time.Now().UnixNano() - int64(p.N)))
		return nil
	}), eventbus.Named("ships"), eventbus.PerDestination(byAddress))
	start(t, bus)
	for i := range searching(60, 5) * 60 * 100 {
		mustPublish(t, bus, "ship", shipment{destinations[i*7919%1000], int(time.Now().UnixNano())})
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Minute)
	all := took.all()
	require.Greater(t, len(all), searching(60, 5)*60*98)
	slices.Sort(all)
	require.Positive(t, metricsOf(t, bus, "ships").Destinations.Known)
	bus.Subscription("ships").Unsubscribe()
	_ = bus.Shutdown(t.Context())
	return all[len(all)*99/100]
}

// A function that answers differently each time is asked once for a delivery, however often that is tried.
func TestD13_AnswersThatDiffer(t *testing.T) {
	inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(5, time.Second)))
		var asked callTimes
		var calls callTimes
		mustSubscribe(t, bus, "ship", func(context.Context, eventbus.Event) error {
			if calls.add(0); calls.len() < 4 {
				return errBoom
			}
			return nil
		}, eventbus.Named("ships"), eventbus.PerDestination(func(eventbus.Event) string {
			asked.add(0)
			return fmt.Sprint(asked.len())
		}))
		start(t, bus)
		mustPublish(t, bus, "ship", 1, eventbus.Key("k"))
		time.Sleep(time.Minute)
		require.Equal(t, 4, calls.len())
		require.Equal(t, 1, asked.len())
		require.Equal(t, 1, metricsOf(t, bus, "ships").Destinations.Known)
		shutdown(t, bus)
	})
}

// A million destinations, one after the other.
func TestD13_AMillionDestinations(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		sub := mustSubscribe(t, bus, "ship", ok, eventbus.Named("ships"),
			eventbus.PerDestination(func(e eventbus.Event) string { return fmt.Sprint(e.Payload) }))
		require.NoError(t, sub.Destination("7").Pause())
		before := heldBytes()
		for i := range searching(1_000_000, 100_000) {
			mustPublish(t, bus, "ship", i)
			if i%1000 == 0 {
				time.Sleep(20 * time.Second) // their windows are empty after a minute
			}
		}
		require.NoError(t, bus.Drain(t.Context()))
		m := metricsOf(t, bus, "ships")
		require.EqualValues(t, searching(1_000_000, 100_000)-1, m.Successes)
		require.LessOrEqual(t, m.Destinations.Known, eventbus.MaxDestinations+1)
		require.Zero(t, m.Destinations.Shared)
		require.Equal(t, 1, m.Held)
		require.Less(t, heldBytes()-before, int64(64<<20))
		require.NoError(t, sub.Destination("7").Resume())
		shutdown(t, bus)
	})
}

// A line of a destination is full at LineCapacity, 10,000 by default: the next delivery becomes a letter, and others go on.
func TestD13_TheLineOfOneDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		s := newShips()
		sub := s.subscribe(t, bus)
		require.NoError(t, sub.Destination("dead").Pause())
		for i := range eventbus.DefaultLineCapacity + 1 {
			mustPublish(t, bus, "ship", shipment{"dead", i})
		}
		mustPublish(t, bus, "ship", shipment{"alive", 1})
		time.Sleep(time.Second)
		require.Equal(t, eventbus.ReasonOverflow, oneLetter(t, bus).Reason)
		require.Equal(t, eventbus.DefaultLineCapacity, metricsOf(t, bus, "ships").Held)
		require.Len(t, s.at("alive"), 1)
		require.NoError(t, sub.Destination("dead").Resume())
		require.NoError(t, bus.Drain(t.Context()))
		require.Len(t, s.at("dead"), eventbus.DefaultLineCapacity)
		shutdown(t, bus)
	})
}
