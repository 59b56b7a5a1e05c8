package eventbus

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/texts"
	"github.com/surebus/eventbus/internal/timeline"
)

// OrderOption is an option of Trip, Reset, Pause, HoldUntil and Resume: By or Because. A store keeps
// it with the order. The log has it too.
type OrderOption func(*Order) error

// By names the operator: up to 255 bytes of UTF-8 without control characters.
func By(operator string) OrderOption {
	return func(o *Order) error {
		o.By = operator
		return checkOrderText("By", operator)
	}
}

// Because gives the operator's reason: up to 255 bytes of UTF-8 without control characters.
func Because(reason string) OrderOption {
	return func(o *Order) error {
		o.Why = reason
		return checkOrderText("Because", reason)
	}
}

func checkOrderText(option, text string) error {
	if reason, _ := texts.Problem(text, maxName); reason != "" {
		return &OptionError{Option: option, Value: strconv.Quote(shorten(text)), Reason: reason}
	}
	return nil
}

// fields returns the log fields of the operator and the reason.
func (o *Order) fields() (fields []zap.Field) {
	if o.By != "" {
		fields = append(fields, zap.String("by", o.By))
	}
	if o.Why != "" {
		fields = append(fields, zap.String("why", o.Why))
	}
	return fields
}

// order records an operator's order in the store, if there is one, and then carries it out. Of
// concurrent orders, the last one that is recorded is the last one that is carried out.
func (s *Subscription) order(what string, opts []OrderOption, change func(*Order), act func()) (*Order, error) {
	if err := s.controllable(what); err != nil {
		return nil, err
	}
	s.ordering.Lock()
	defer s.ordering.Unlock()
	if err := s.refreshOrder(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	next := s.ordered
	next.Subscription, next.At, next.By, next.Why = s.id, s.bus.time.Now().UTC, "", ""
	change(&next)
	for i, o := range opts {
		if o == nil {
			return nil, nilOption(what, i)
		}
		if err := o(&next); err != nil {
			return nil, err
		}
	}
	if s.bus.store != nil {
		if err := s.bus.commit(context.Background(), &Batch{Now: next.At, Orders: []Order{next}}); err != nil {
			return nil, fmt.Errorf("%s(%s): %w", what, s.id, err)
		}
		s.bus.keepOrder(next) // for a subscription of the name that is made later
	}
	s.ordered = next
	s.lastOrder.Store(&next)
	act()
	return &next, nil
}

// obey applies an order from the store that was given to an earlier process, or by another one.
func (s *Subscription) obey(o Order) {
	s.ordering.Lock()
	change := s.obeyed(o)
	s.ordering.Unlock()
	s.bus.circuitChanged(s, change)
}

// obeyed is obey for a caller that holds s.ordering.
func (s *Subscription) obeyed(o Order) (change circuitChange) {
	was := s.ordered
	s.ordered = o
	if s.lastOrder.Store(nil); o.Pause || o.Trip {
		s.lastOrder.Store(&o)
	}
	now := s.bus.time.Now()
	fromNow := func(t time.Time) int64 { return timeline.Later(now.Nanos, max(t.Sub(now.UTC), 0)) }
	switch {
	case o.Pause && o.Until.IsZero():
		s.door.pause(math.MaxInt64)
	case o.Pause && o.Until.After(now.UTC):
		s.door.pause(fromNow(o.Until))
	case was.Pause && !o.Pause:
		s.door.resume()
	}
	if circuit := &s.door.circuit; !circuit.config.disabled {
		switch left := circuit.config.openFor - now.UTC.Sub(o.At); {
		case o.Trip && !was.Trip && left > 0:
			change = circuit.trip(now.Nanos - int64(now.UTC.Sub(o.At)))
		case was.Trip && !o.Trip:
			change = circuit.reset(now.Nanos)
		}
	}
	return change
}

// loadOrders reads the orders for subscriptions that are made later.
func (b *Bus) loadOrders() error {
	orders, err := b.store.Orders(context.Background())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders = make(map[string]Order, len(orders))
	for _, o := range orders {
		b.orders[o.Subscription] = o
	}
	return nil
}

// keepOrder replaces the order of a name.
func (b *Bus) keepOrder(o Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders[o.Subscription] = o
}

// obeyOthers applies the orders that another process has recorded.
//
// It reads them while no order is given here. Otherwise, if Resume commits after the read, the
// subscription would be paused again by an order that the store no longer has.
func (b *Bus) obeyOthers() {
	all := b.list()
	for _, s := range all {
		s.ordering.Lock()
	}
	err := b.loadOrders()
	changes := make([]circuitChange, len(all))
	for i, s := range all {
		if err == nil {
			changes[i] = s.obeyed(b.orderOf(s.id))
		}
		s.ordering.Unlock()
	}
	if err != nil {
		b.feeder.failed(err)
		return
	}
	for i, s := range all {
		b.circuitChanged(s, changes[i])
		b.tend(s)
	}
}

// orderOf returns the order to a subscription that the store had when loadOrders read it.
func (b *Bus) orderOf(name string) Order {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orders[name]
}
