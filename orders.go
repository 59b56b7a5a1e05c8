package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/texts"
)

// operators are what people order of a bus: orders to subscriptions, the audit of all that they do, and the catalog in which
// a tool finds the subscriptions.
type operators struct {
	*Bus

	ordering  semaphore     // held while an order is recorded or read, and carried out
	cataloged catalogKeeper // with a store

	mu     sync.Mutex       // guards the following
	orders map[string]Order // of the store, by name
}

func newOperators(b *Bus) *operators {
	o := &operators{Bus: b, ordering: make(semaphore, 1)}
	o.cataloged.of = o
	return o
}

// Order is an operator's order to a subscription that survives restarts.
type Order struct {
	Subscription string    `json:"subscription"`
	Pause        bool      `json:"pause,omitempty"` // by Pause, or by HoldUntil with Until
	Until        time.Time `json:"until,omitzero"`
	Trip         bool      `json:"trip,omitempty"` // the circuit was opened
	By           string    `json:"by,omitempty"`
	Why          string    `json:"why,omitempty"`
	At           time.Time `json:"at"`
}

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

// order records an operator's order in the store, if there is one, and then carries it out. The last one that is
// recorded is the last one that is carried out, by whoever has the names then.
func (s *Subscription) order(what string, opts []OrderOption, change func(*Order), act func()) (*Order, error) {
	if err := s.controllable(what); err != nil {
		return nil, err
	}
	b := s.bus
	b.operators.ordering.Lock()
	err := b.operators.loadOrders(context.Background()) // another process may have given one
	before := b.operators.obeyLocked()
	var o *Order
	if err == nil {
		o, err = s.orderLocked(what, opts, change, act)
	} else {
		err = fmt.Errorf("%s(%s): %w", what, s.id, err)
	}
	after := b.operators.obeyLocked()
	b.operators.ordering.Unlock()
	before()
	after()
	return o, err
}

// orderLocked is order for a caller that holds b.ordering and has read the orders.
func (s *Subscription) orderLocked(what string, opts []OrderOption, change func(*Order), act func()) (*Order, error) {
	b := s.bus
	same, err := b.operators.namesOf(context.Background(), s.id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	o, err := newOperator(what, opts)
	if err != nil {
		return nil, err
	}
	if b.config.tool {
		s.ordered = b.operators.orderOf(same.Of(s.id))
	}
	entry := b.operators.entry(o, actionOf[what])
	next := s.ordered
	next.Subscription, next.At, next.By, next.Why = s.id, entry.At, o.by, o.why
	if !next.At.After(s.ordered.At) { // the clock was set back, and the latest counts
		next.At = s.ordered.At.Add(1)
	}
	change(&next)
	if entry.Subscription = s.id; entry.Action == AuditHoldUntil {
		entry.Until = next.Until
	}
	var all []Order
	for _, name := range same.Of(s.id) { // an earlier version of the program, too, finds it
		all = append(all, next.to(name))
	}
	shared, err := b.journal.direct(all, entry)
	if err != nil {
		return nil, fmt.Errorf("%s(%s): %w", what, s.id, err)
	}
	if shared {
		b.operators.keepOrders(all)
	}
	s.ordered = next
	s.lastOrder.Store(&next)
	act()
	return &next, nil
}

// to returns the order as one to the subscription of a name.
func (o Order) to(name string) Order {
	o.Subscription = name
	return o
}

// obeyed applies an order from the store that was given to an earlier process, by another one, or to another
// subscription of a name. The caller holds b.ordering, or nobody knows the subscription yet.
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

// loadOrders reads the orders.
func (b *operators) loadOrders(ctx context.Context) error {
	orders, known, err := b.journal.readOrders(ctx)
	if err != nil || !known {
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
func (b *operators) keepOrders(all []Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range all {
		if !o.At.Before(b.orders[o.Subscription].At) {
			b.orders[o.Subscription] = o
		}
	}
}

// obeyOthers applies the orders that another process has recorded.
func (b *operators) obeyOthers() error {
	b.ordering.Lock()
	err := b.loadOrders(context.Background())
	report := b.obeyLocked()
	b.ordering.Unlock()
	report()
	return err
}

// obeyLocked makes every subscription obey the latest order to it. The caller holds b.ordering, and calls the result
// when it has released it. Subscriptions that are made meanwhile obey in Subscribe.
func (b *operators) obeyLocked() (report func()) {
	var reports []func()
	for _, s := range b.registry.list() {
		if o := b.orderOf(s.names()); !o.At.IsZero() && o != s.ordered {
			change := s.obeyed(o)
			reports = append(reports, func() {
				b.report.circuitChanged(s, change)
				b.machine.tend(s)
			})
		}
	}
	return func() {
		for _, r := range reports {
			r()
		}
	}
}

// orderOf returns the latest order to a subscription, under any of its names, that the store had when loadOrders
// read it, as one to the last of the names.
func (b *operators) orderOf(names []string) (latest Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orderOfLocked(names)
}

func (b *operators) orderOfLocked(names []string) (latest Order) {
	for _, name := range names {
		if o := b.orders[name]; o.At.After(latest.At) {
			latest = o.to(names[len(names)-1])
		}
	}
	return latest
}

// inherited returns orders that a subscription found under another name, as ones to each of its names, for the
// store: the next version of the program may know only the present one.
func (b *operators) inherited() (all []Order) {
	subscriptions := b.registry.list()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range subscriptions {
		latest := b.orderOfLocked(s.names())
		for _, name := range s.names() {
			if latest.At.After(b.orders[name].At) {
				all = append(all, latest.to(name))
			}
		}
	}
	return all
}
