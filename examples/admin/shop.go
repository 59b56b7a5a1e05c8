package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

// Order is the payload of the shop's events.
type Order struct {
	ID          string         `json:"order"`
	Customer    string         `json:"customer"`
	AmountCents int64          `json:"amount_cents"`
	Items       map[string]int `json:"items,omitempty"` // how many of each
}

// shop publishes the events of orders until it is closed.
type shop struct {
	bus         *eventbus.Bus
	warehouseUp atomic.Bool

	stop    context.CancelFunc
	running sync.WaitGroup
}

// openShop makes a bus with four services, and begins to sell.
func openShop(ctx context.Context) (*shop, error) {
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(2), eventbus.BaseDelay(200*time.Millisecond)))
	if err != nil {
		return nil, err
	}
	s := &shop{bus: bus}
	if err := errors.Join(s.subscribe(), bus.Start(ctx)); err != nil {
		return nil, errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx)))
	}
	selling, stop := context.WithCancel(ctx)
	s.stop = stop
	s.running.Go(func() { s.sell(selling) })
	s.running.Go(func() { s.breakWarehouse(selling) })
	return s, nil
}

func (s *shop) subscribe() error {
	_, err1 := s.bus.Subscribe("**", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("audit"))
	_, err2 := s.bus.Subscribe("{order.paid,payment.*}", eventbus.Typed(bill), eventbus.Named("billing"), eventbus.Timeout(time.Second))
	mail := func(context.Context, Order) error { time.Sleep(5 * time.Millisecond); return nil }
	_, err3 := s.bus.Subscribe("order.*", eventbus.Typed(mail), eventbus.Named("mail"))
	reserve := func(context.Context, Order) error {
		if !s.warehouseUp.Load() {
			return errors.New("the warehouse does not answer")
		}
		return nil
	}
	_, err4 := s.bus.Subscribe("order.{placed,cancelled}", eventbus.Typed(reserve), eventbus.Named("stock"),
		eventbus.Circuit(eventbus.OpenFor(2*time.Second)))
	return errors.Join(err1, err2, err3, err4)
}

// bill is flaky: it refuses invalid refunds for good, and fails one time in twenty.
func bill(_ context.Context, o Order) error {
	if o.AmountCents <= 0 {
		return eventbus.Permanent(fmt.Errorf("a refund of %d cents", o.AmountCents))
	}
	if rand.IntN(20) == 0 {
		return fmt.Errorf("the bank is busy, ticket %d", rand.IntN(1_000_000))
	}
	return nil
}

// sell publishes about 100 events a second, and a reminder now and then that is due later.
func (s *shop) sell(ctx context.Context) {
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		order := Order{
			ID: fmt.Sprintf("o-%06d", n), Customer: fmt.Sprintf("c-%03d", n%500), AmountCents: int64(n%90)*100 + 500,
			Items: map[string]int{"book": 1 + n%3, "pen": n % 5},
		}
		s.publish(ctx, "order.placed", order)
		s.publish(ctx, "order.paid", order)
		if n%7 == 0 {
			s.publish(ctx, "order.cancelled", order)
			if order.AmountCents = 500; n%2 == 0 {
				order.AmountCents = -int64(n%9) * 100 // not valid
			}
			s.publish(ctx, "payment.refunded", order)
		}
		if n%100 == 0 {
			s.publish(ctx, "order.reminded", order, eventbus.After(time.Minute))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *shop) publish(ctx context.Context, eventType string, o Order, opts ...eventbus.PublishOption) {
	opts = append(opts, eventbus.Key(o.ID), eventbus.Metadata("channel", "web"))
	if _, err := s.bus.Publish(ctx, eventType, o, opts...); err != nil && ctx.Err() == nil {
		panic(err) // the types and options above are valid
	}
}

// breakWarehouse has the warehouse down for 3 s of every 15.
func (s *shop) breakWarehouse(ctx context.Context) {
	for {
		for _, up := range []bool{false, true} {
			s.warehouseUp.Store(up)
			wait := 3 * time.Second
			if up {
				wait = 12 * time.Second
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	}
}

// close stops selling, shuts the bus down, and checks the books. Unfinished and scheduled events of this bus
// in memory become dead letters, which a *ShutdownError lists.
func (s *shop) close() error {
	s.stop()
	s.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.bus.Shutdown(ctx)
	if errors.As(err, new(*eventbus.ShutdownError)) {
		err = nil
	}
	if m := s.bus.Metrics(); err == nil && !m.Ledger.Balanced() {
		err = fmt.Errorf("the books do not balance: %+v", m.Ledger)
	}
	return err
}
