package contracttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// keyed notes the deliveries of each key that have succeeded, and those that have begun.
type keyed struct {
	mu      sync.Mutex
	done    map[string][]int
	running map[string]int
	calls   map[string]int // by destination
	broken  []string
}

func (k *keyed) begin(p shipment, key string, limit int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls[p.To]++
	if k.calls[p.To] > limit {
		k.broken = append(k.broken, fmt.Sprint("calls at once at ", p.To))
	}
	if key == "" {
		return
	}
	if k.running[key]++; k.running[key] > 1 {
		k.broken = append(k.broken, fmt.Sprint("two of a key run: ", key))
	}
	for _, n := range k.done[key] {
		if n > p.N {
			k.broken = append(k.broken, fmt.Sprintf("%s: %d after %d", key, p.N, n))
			break
		}
	}
}

func (k *keyed) end(p shipment, key string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls[p.To]--
	if key != "" {
		k.running[key]--
	}
	if err == nil {
		k.done[key] = append(k.done[key], p.N)
	}
}

// stormy is a bus with a subscription whose handler fails, sleeps and throttles at random while it is sick.
type stormy struct {
	keyed
	limit int
	sick  bool
	w     *rand.Rand
	n     int // published
}

func newStormy(seed uint64) *stormy {
	s := &stormy{keyed: keyed{done: make(map[string][]int), running: make(map[string]int), calls: make(map[string]int)}, sick: true}
	s.w = rand.New(rand.NewPCG(seed, 7))
	if s.limit = s.w.IntN(4); s.limit == 0 {
		s.limit = 1000
	}
	return s
}

func (s *stormy) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.IntN(n)
}

func (s *stormy) isSick() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sick
}

func (s *stormy) handle(ctx context.Context, p shipment) (err error) {
	d, _ := eventbus.FromContext(ctx)
	err = errBoom // of a panic
	s.begin(p, d.Event.Key, s.limit)
	defer func() { s.end(p, d.Event.Key, err) }()
	if !s.isSick() {
		return nil
	}
	time.Sleep(time.Duration(s.random(3000)) * time.Millisecond)
	switch n := s.random(12); {
	case p.To == "to0" && n < 10, n == 0:
		return errBoom
	case n == 1:
		return eventbus.Snooze(time.Duration(1+s.random(20)) * time.Second)
	case n == 2:
		return eventbus.Throttle(errBoom, time.Duration(1+s.random(10))*time.Second)
	case n == 3:
		panic("at the handler")
	}
	return nil
}

func (s *stormy) start(t *testing.T, bus *eventbus.Bus) *eventbus.Subscription {
	t.Helper()
	opts := []eventbus.SubscribeOption{eventbus.Named("ships"), eventbus.PerDestination(byAddress), eventbus.Timeout(time.Hour)}
	if s.limit < 1000 {
		opts = append(opts, eventbus.Concurrency(s.limit))
	}
	sub := mustSubscribe(t, bus, "ship", eventbus.Typed(s.handle), opts...)
	mustSubscribe(t, bus, "other", ok, eventbus.Named("other"))
	start(t, bus)
	return sub
}

// storm publishes events, and orders at random.
func (s *stormy) storm(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription, events int) {
	t.Helper()
	for range events {
		var opts []eventbus.PublishOption
		if s.random(3) > 0 {
			opts = append(opts, eventbus.Key(fmt.Sprint("k", s.random(4))))
		}
		mustPublish(t, bus, "ship", shipment{fmt.Sprint("to", s.random(5)), s.n}, opts...)
		s.n++
		time.Sleep(time.Duration(s.random(400)) * time.Millisecond)
		to := sub.Destination(fmt.Sprint("to", s.random(5)))
		soon := time.Now().Add(time.Duration(1+s.random(10)) * time.Second)
		orders := []func() error{
			func() error { return to.Pause() }, func() error { return to.Resume() }, func() error { return to.Resume() },
			func() error { return to.Trip() }, func() error { return to.Reset() },
			func() error { return sub.Pause() }, func() error { return sub.Resume() }, func() error { return sub.Resume() },
			func() error { return sub.HoldUntil(soon) }, func() error { return to.HoldUntil(soon) },
		}
		if i := s.random(4 * len(orders)); i < len(orders) {
			require.NoError(t, orders[i]())
		}
	}
}

// calm ends all that keeps deliveries out, and looks whether all have been handled.
func (s *stormy) calm(t *testing.T, bus *eventbus.Bus, sub *eventbus.Subscription) {
	t.Helper()
	s.mu.Lock()
	s.sick = false
	s.mu.Unlock()
	require.NoError(t, sub.Resume())
	for i := range 5 {
		require.NoError(t, sub.Destination(fmt.Sprint("to", i)).Resume())
	}
	time.Sleep(10 * time.Minute)
	m := metricsOf(t, bus, "ships")
	require.Zero(t, m.Held+m.Throttled+m.Snoozed, "%+v", m)
	require.Empty(t, s.broken)
	handled := make(map[int]bool)
	for _, all := range s.done {
		for _, n := range all {
			handled[n] = true
		}
	}
	require.Len(t, handled, s.n)
	require.Empty(t, letters(t, bus))
	shutdown(t, bus)
}

// Random failures, snoozes, throttles and orders: no delivery is lost or stays, and keys keep their order.
func TestD13_RandomDestinations(t *testing.T) {
	for round := range searching(200, 8) {
		inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
			s := newStormy(uint64(round))
			bus := open(eventbus.WithConcurrency(3+s.random(8)), eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)))
			sub := s.start(t, bus)
			s.storm(t, bus, sub, 300)
			s.calm(t, bus, sub)
		})
	}
}

// The same with crashes and restarts.
func TestD13_RandomRestartsOfDestinations(t *testing.T) {
	for round := range searching(100, 4) {
		synctest.Test(t, func(t *testing.T) {
			s, disk := newStormy(uint64(round)), newDisk()
			for range 4 {
				bus, _ := disk.open(t, eventbus.WithConcurrency(3+s.random(8)), eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)))
				sub := s.start(t, bus)
				s.storm(t, bus, sub, 100)
				if s.random(2) == 0 {
					disk.crash(bus)
					time.Sleep(time.Minute) // its calls have ended
				} else {
					shutdown(t, bus)
				}
			}
			bus, _ := disk.open(t, eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)))
			s.calm(t, bus, s.start(t, bus))
		})
	}
}

// Keys keep their order when the line of a destination continues in the store, also after a crash.
func TestD13_KeysOfASpilledLine(t *testing.T) {
	ofManyEvents(t)
	for _, crashes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, disk := newStormy(1), newDisk()
			s.sick, s.limit = false, 1000
			bus, _ := disk.open(t)
			sub := s.start(t, bus)
			require.NoError(t, sub.Destination("to0").Pause())
			require.NoError(t, sub.Destination("to1").Pause())
			for range 12 {
				var batch []eventbus.Publication
				for range 1000 {
					to, key := "to0", ""
					if s.n%10 == 0 {
						to, key = fmt.Sprint("to", s.n/10%4), fmt.Sprint("k", s.random(30))
					}
					p := eventbus.Publication{Type: "ship", Payload: shipment{to, s.n}}
					if s.n++; key != "" {
						p.Options = []eventbus.PublishOption{eventbus.Key(key)}
					}
					batch = append(batch, p)
				}
				_, err := bus.PublishBatch(t.Context(), batch)
				require.NoError(t, err)
				time.Sleep(time.Second)
			}
			if crashes {
				disk.crash(bus)
				bus, _ = disk.open(t)
				sub = s.start(t, bus)
				time.Sleep(time.Minute)
			}
			require.NoError(t, sub.Destination("to1").Resume())
			time.Sleep(time.Second)
			s.calm(t, bus, sub)
		})
	}
}
