package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/texts"
)

// OrderOption is By, Because or FromRequest: an option of what operators do to subscriptions, dead letters
// and scheduled events. It is a BulkOption too. Audit and the log have it.
type OrderOption interface {
	TransferOption
	applyOrder(*operator) error
}

// operator is who does something, why, and from where.
type operator struct{ by, why, remote, requestID string }

type orderOption func(*operator) error

func (o orderOption) applyOrder(to *operator) error { return o(to) }

func (orderOption) transfers() {}

func (o orderOption) applyBulk(b *bulk) {
	if err := o(&b.operator); err != nil && b.err == nil {
		b.err = err
	}
}

// By names the operator: up to 255 bytes of UTF-8 without control characters.
func By(name string) OrderOption {
	return orderOption(func(o *operator) error {
		o.by = name
		return checkOrderText("By", name)
	})
}

// Because gives the operator's reason: up to 255 bytes of UTF-8 without control characters.
func Because(reason string) OrderOption {
	return orderOption(func(o *operator) error {
		o.why = reason
		return checkOrderText("Because", reason)
	})
}

// FromRequest gives where the operator's call comes from: the address of the client, and the id of the
// request in the logs of a server. Each is up to 255 bytes of UTF-8 without control characters, or
// empty.
func FromRequest(remote, id string) OrderOption {
	return orderOption(func(o *operator) error {
		o.remote, o.requestID = remote, id
		return cmp.Or(checkOrderText("FromRequest", remote), checkOrderText("FromRequest", id))
	})
}

// newOperator applies options.
func newOperator(what string, opts []OrderOption) (o operator, err error) {
	for i, opt := range opts {
		if isNil(opt) {
			return o, nilOption(what, i)
		}
		if err := opt.applyOrder(&o); err != nil {
			return o, err
		}
	}
	return o, nil
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
	same, err := s.bus.namesOf(context.Background(), s.id)
	if err == nil {
		err = s.refreshOrder(same)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	o, err := newOperator(what, opts)
	if err != nil {
		return nil, err
	}
	entry := s.bus.entry(o, actionOf[what])
	next := s.ordered
	next.Subscription, next.At, next.By, next.Why = s.id, entry.At, o.by, o.why
	change(&next)
	if entry.Subscription = s.id; entry.Action == AuditHoldUntil {
		entry.Until = next.Until
	}
	if s.bus.store != nil {
		batch := &Batch{Now: next.At, Audit: entry.list()}
		for _, name := range same.Of(s.id) { // an earlier version of the program, too, finds it
			one := next
			one.Subscription = name
			batch.Orders = append(batch.Orders, one)
		}
		if err := s.bus.commit(context.Background(), batch); err != nil {
			return nil, fmt.Errorf("%s(%s): %w", what, s.id, err)
		}
		s.bus.keepOrders(batch.Orders) // for a subscription of one of the names that is made later
	} else {
		s.bus.keepAudit(*entry) // the caller logs it
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
func (s *Subscription) obeyed(o Order) (change circuit.Change) {
	was := s.ordered
	s.ordered = o
	if s.lastOrder.Store(nil); o.Pause || o.Trip {
		s.lastOrder.Store(&o)
	}
	now := s.bus.time.Now()
	switch {
	case o.Pause: // it ends at once if Until has come
		s.door.pause(o.Until)
	case was.Pause:
		s.door.resume()
	}
	if c := &s.door.circuit; !c.Config().Disabled {
		since := max(now.UTC.Sub(o.At), 0) // not later than now if the clock was set back
		switch left := c.Config().OpenFor - since; {
		case o.Trip && !was.Trip && left > 0:
			change = c.Trip(now.Nanos - int64(since))
		case was.Trip && !o.Trip:
			change = c.Reset(now.Nanos)
		}
	}
	return change
}

// loadOrders reads the orders for subscriptions that are made later.
func (b *Bus) loadOrders(ctx context.Context) error {
	orders, err := b.store.Orders(ctx)
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

// keepOrders replaces the orders of names.
func (b *Bus) keepOrders(all []Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range all {
		b.orders[o.Subscription] = o
	}
}

// obeyOthers applies the orders that another process has recorded.
//
// It reads them while no order is given here. Otherwise, if Resume commits after the read, the
// subscription would be paused again by an order that the store no longer has.
func (b *Bus) obeyOthers() error {
	all := b.list()
	for _, s := range all {
		s.ordering.Lock()
	}
	err := b.loadOrders(b.feeder.ctx)
	changes := make([]circuit.Change, len(all))
	for i, s := range all {
		if err == nil {
			changes[i] = s.obeyed(b.orderOf(s.names()))
		}
		s.ordering.Unlock()
	}
	if err != nil {
		return err
	}
	for i, s := range all {
		b.circuitChanged(s, changes[i])
		b.tend(s)
	}
	return nil
}

// orderOf returns the latest order to a subscription, under any of its names, that the store had when loadOrders
// read it.
func (b *Bus) orderOf(names []string) (latest Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		if o := b.orders[name]; !o.At.Before(latest.At) {
			latest = o
		}
	}
	return latest
}
