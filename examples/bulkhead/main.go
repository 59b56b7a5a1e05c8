// Bulkhead shows that the trouble of one subscription, or of one of its destinations, delays no other: one handler hangs, one
// service answers 429, one customer's URL is dead, and all others stay fast.
//
// It prints the state every half second, for about 5 s. Deliveries of fraud are first throttled, because five calls run. When
// five of its calls are abandoned, it is hung, and after a second its deliveries are held: see eventbus.MaxAbandoned. Up to nine
// calls are abandoned, because four others may run when the fifth call is abandoned. "well" means no trouble. The exit status is 0 if each subscription has handled each event, or a
// dead letter names it, and the subscriptions and destinations without trouble were never late.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

const (
	orders    = 600
	every     = 5 * time.Millisecond
	customers = 20
	dead      = "customer-7" // its URL refuses connections until the program repairs it
	late      = time.Second  // the limit for subscriptions and destinations without trouble
)

const intro = `This program publishes 600 orders, one every 5 ms, to four subscriptions, three of which have trouble:

  warehouse  has none
  fraud      its handler hangs and ignores its context: 5 calls at a time, with a timeout of 200 ms
  carrier    takes 100 calls a second, and answers 429 to the others (Throttle)
  hooks      calls the webhooks of 20 customers (PerDestination), of which customer-7's is dead

After the last order, the program repairs fraud and customer-7.

`

// order is the payload of an order.placed event.
type order struct {
	Number   int
	Customer string
	PlacedAt time.Time
}

func main() {
	log.SetFlags(0)
	fmt.Print(intro)
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()), eventbus.WithIsolation(), // an event's subscriptions do not wait for each other
		eventbus.WithRetry(eventbus.MaxRetries(5), eventbus.BaseDelay(50*time.Millisecond), eventbus.MaxDelay(200*time.Millisecond)),
		eventbus.WithCircuit(eventbus.OpenFor(500*time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	shop := &shop{tally: make(map[string]*tally)}
	shop.subscribe(bus)
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}

	stop := make(chan struct{})
	var printer sync.WaitGroup
	printer.Go(func() { shop.table(bus, stop) })
	for i := range orders {
		o := order{Number: i, Customer: fmt.Sprintf("customer-%d", rand.IntN(customers)), PlacedAt: time.Now()}
		if _, err := bus.Publish(ctx, "order.placed", o); err != nil {
			log.Fatal(err)
		}
		time.Sleep(every)
	}
	shop.repair(bus)
	if err := bus.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	close(stop)
	printer.Wait()
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	if err := shop.audit(ctx, bus); err != nil {
		log.Fatalln("FAIL:", err)
	}
	fmt.Printf("\nOK: of %d orders, no subscription misses one, and only those with trouble were slow\n", orders)
}

// shop has the services that handle an order.
type shop struct {
	repaired atomic.Bool

	mu    sync.Mutex // guards the following
	tally map[string]*tally
}

// tally is what a subscription, or a destination, has handled.
type tally struct {
	handled int
	slowest time.Duration // from the order to its end
}

func (s *shop) subscribe(bus *eventbus.Bus) {
	must := func(_ *eventbus.Subscription, err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	// The warehouse has no trouble.
	must(bus.Subscribe("order.*", s.handler("warehouse", func(context.Context, order) error { return nil }), eventbus.Named("warehouse")))

	// Fraud detection hangs, and ignores its context. After abandoned calls, the bus holds its deliveries.
	must(bus.Subscribe("order.*", s.handler("fraud", func(context.Context, order) error {
		for !s.repaired.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}), eventbus.Named("fraud"), eventbus.Timeout(200*time.Millisecond), eventbus.Concurrency(5), eventbus.Circuit(eventbus.NoCircuit())))

	// The carrier takes 100 calls a second, and answers the others with the time to wait.
	quota := &quota{perSecond: 100}
	must(bus.Subscribe("order.*", s.handler("carrier", func(context.Context, order) error {
		if wait := quota.take(); wait > 0 {
			return eventbus.Throttle(errors.New("429 Too Many Requests"), wait)
		}
		return nil
	}), eventbus.Named("carrier")))

	// Each customer has a webhook. One is dead.
	must(bus.Subscribe("order.*", s.handler("hooks", func(_ context.Context, o order) error {
		if o.Customer == dead && !s.repaired.Load() {
			return errors.New("connection refused")
		}
		return nil
	}), eventbus.Named("hooks"), eventbus.PerDestination(func(e eventbus.Event) string { return e.Payload.(order).Customer })))
}

// handler counts the successes of a subscription, and of each destination.
func (s *shop) handler(name string, work func(context.Context, order) error) eventbus.Handler {
	return eventbus.Typed(func(ctx context.Context, o order) error {
		if err := work(ctx, o); err != nil {
			return err
		}
		if ctx.Err() != nil { // abandoned: the next attempt counts
			return ctx.Err()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		names := []string{name}
		if name == "hooks" {
			names = append(names, o.Customer)
		}
		for _, n := range names {
			if s.tally[n] == nil {
				s.tally[n] = &tally{}
			}
			s.tally[n].handled++
			s.tally[n].slowest = max(s.tally[n].slowest, time.Since(o.PlacedAt))
		}
		return nil
	})
}

func (s *shop) of(name string) tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tally[name]; t != nil {
		return *t
	}
	return tally{}
}

// repair ends the trouble.
func (s *shop) repair(bus *eventbus.Bus) {
	s.repaired.Store(true)
	for bus.Metrics().Held > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// table prints the state until stop is closed.
func (s *shop) table(bus *eventbus.Bus, stop <-chan struct{}) {
	began := time.Now()
	for tick := time.NewTicker(500 * time.Millisecond); ; {
		fmt.Printf("%-10s %8s %6s %10s %9s  %s\n", fmt.Sprintf("%.1f s", time.Since(began).Seconds()), "handled", "held", "throttled", "abandoned", "state")
		for _, m := range bus.Metrics().Subscriptions {
			state := "well"
			switch {
			case m.Hung:
				state = "hung"
			case !m.ThrottledUntil.IsZero():
				state = "throttled"
			case m.Destinations != nil && m.Destinations.Unwell > 0:
				d := m.Destinations.List[0]
				state = fmt.Sprintf("%s: circuit %s; %d others well", d.Destination, d.Circuit, m.Destinations.Known-m.Destinations.Unwell)
			}
			fmt.Printf("%-10s %8d %6d %10d %9d  %s\n", m.Subscription, s.of(m.Subscription).handled, m.Held, m.Throttled, m.Abandoned, state)
		}
		fmt.Println()
		select {
		case <-tick.C:
		case <-stop:
			tick.Stop()
			return
		}
	}
}

// audit requires that no event is missing, and that subscriptions and destinations without trouble were not late.
func (s *shop) audit(ctx context.Context, bus *eventbus.Bus) error {
	fmt.Println("At the end, with the time from the order to the end of the slowest delivery:")
	for _, m := range bus.Metrics().Subscriptions {
		letters := 0
		for q := (eventbus.LetterQuery{Subscription: m.Subscription, Limit: 1000}); ; {
			page, err := bus.DLQ().List(ctx, q)
			if err != nil {
				return err
			}
			letters += len(page.Letters)
			if q.Before = page.Next; q.Before.IsZero() {
				break
			}
		}
		fmt.Fprintf(os.Stdout, "  %-10s handled %d, dead letters %d, slowest %v\n", m.Subscription, s.of(m.Subscription).handled, letters, s.of(m.Subscription).slowest.Round(time.Millisecond))
		if s.of(m.Subscription).handled+letters != orders {
			return fmt.Errorf("%s has %d of %d orders", m.Subscription, s.of(m.Subscription).handled+letters, orders)
		}
	}
	if !bus.Metrics().Ledger.Balanced() {
		return errors.New("the ledger does not balance")
	}
	well := []string{"warehouse"}
	for i := range customers {
		if name := fmt.Sprintf("customer-%d", i); name != dead {
			well = append(well, name)
		}
	}
	for _, name := range well {
		if took := s.of(name).slowest; took > late {
			return fmt.Errorf("%s was late: an order took %v", name, took)
		}
	}
	return nil
}

// quota limits the calls of a service in each second.
type quota struct {
	perSecond int

	mu    sync.Mutex // guards the following
	began time.Time
	taken int
}

// take returns the time to wait if the second has had its calls, and 0 otherwise.
func (q *quota) take() (wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if now.Sub(q.began) >= time.Second {
		q.began, q.taken = now, 0
	}
	if q.taken == q.perSecond {
		return max(q.began.Add(time.Second).Sub(now), time.Millisecond)
	}
	q.taken++
	return 0
}
