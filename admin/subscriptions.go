package admin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// SubscriptionPage is a page of the subscriptions, in the order in which they were made.
type SubscriptionPage struct {
	Subscriptions []eventbus.SubscriptionMetrics `json:"subscriptions"`
	Total         int                            `json:"total"`          // on all pages
	Next          int                            `json:"next,omitempty"` // the offset of the next page
	// CatalogAt is set for a bus WithoutHandlers: the subscriptions are those that the bus with the handlers had then.
	// Their counters are 0, and the states of their circuits unknown.
	CatalogAt time.Time `json:"catalog_at,omitzero"`
}

// ControlRequest is the body of an order to a subscription.
type ControlRequest struct {
	Why   string    `json:"why,omitempty"`
	Until time.Time `json:"until,omitzero"` // of hold-until, and required there
}

func (c *call) listSubscriptions() (any, error) {
	var w window
	if err := c.parameters(windowParameters(&w)); err != nil {
		return nil, err
	}
	page, err := c.subscriptions(w)
	if err != nil {
		return nil, err
	}
	return page, nil
}

func (c *call) subscriptions(w window) (page SubscriptionPage, err error) {
	all, at, err := c.allSubscriptions()
	page.Total, page.CatalogAt = len(all), at
	page.Subscriptions, page.Next = windowOf(w, all)
	return page, err
}

// allSubscriptions returns the subscriptions of the bus, or those of the catalog of its store, with the time of the
// catalog.
func (c *call) allSubscriptions() (all []eventbus.SubscriptionMetrics, at time.Time, err error) {
	if all = c.metrics(c.bus.Metrics()).Subscriptions; len(all) > 0 {
		return all, at, nil
	}
	catalog, err := c.catalog()
	if catalog == nil {
		return nil, at, err
	}
	for _, s := range catalog.Subscriptions {
		m := eventbus.SubscriptionMetrics{
			Subscription: s.Subscription, Pattern: s.Pattern, Circuit: eventbus.CircuitUnknown,
			Options: eventbus.SubscriptionOptions{
				Timeout: s.Timeout, Concurrency: cmp.Or(s.Concurrency, catalog.Concurrency), LineCapacity: s.LineCapacity,
				WhenOpen: s.WhenOpen, WhenFull: s.WhenFull,
			},
		}
		if s.Circuit.Disabled {
			m.Circuit = eventbus.CircuitDisabled
		}
		for _, o := range catalog.Orders {
			if o.Subscription == s.Subscription {
				m.Order, m.Paused, m.PausedUntil = &o, o.Pause, o.Until
			}
		}
		all = append(all, m)
	}
	return all, catalog.At, nil
}

// catalog returns the catalog for a bus that has no subscriptions itself, or nil without one.
func (c *call) catalog() (*eventbus.Catalog, error) {
	if len(c.bus.Metrics().Subscriptions) > 0 {
		return nil, nil //nolint:nilnil // the bus knows more than its catalog
	}
	catalog, err := c.bus.Catalog(c.ctx)
	switch {
	case errors.Is(err, eventbus.ErrNoCatalog) || err == nil && len(catalog.Subscriptions) == 0:
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, err
	}
	return &catalog, nil
}

// explain returns how an event of a type is dispatched.
func (c *call) explain(eventType string) (eventbus.Plan, error) {
	catalog, err := c.catalog()
	if err != nil {
		return eventbus.Plan{}, err
	}
	plan := c.bus.Explain(eventType)
	if catalog != nil {
		plan = catalog.Explain(eventType)
	}
	return plan, plan.Err
}

func (c *call) getSubscription() (any, error) {
	m, err := c.subscription(c.args["name"])
	if err != nil {
		return nil, err
	}
	return m, nil
}

// subscription returns the metrics of a subscription, by its name or one that it had.
func (c *call) subscription(name string) (eventbus.SubscriptionMetrics, error) {
	if s := c.bus.Subscription(name); s != nil {
		all, _, err := c.allSubscriptions()
		if err != nil {
			return eventbus.SubscriptionMetrics{}, err
		}
		if i := slices.IndexFunc(all, func(m eventbus.SubscriptionMetrics) bool { return m.Subscription == s.ID() }); i >= 0 {
			return all[i], nil
		}
	}
	return eventbus.SubscriptionMetrics{}, noSubscription(name)
}

func noSubscription(name string) error {
	return notFound(fmt.Sprintf("there is no subscription %q", cut(name, 80)), "copy the name from the list of subscriptions")
}

func (c *call) postOrder() (any, error) {
	var body ControlRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.control(c.args["name"], c.route.audit, body)
}

// control gives an order to a subscription, and returns its state after it. For a bus without handlers, which does not
// know it, this has the name only.
func (c *call) control(name string, action eventbus.AuditAction, r ControlRequest) (eventbus.SubscriptionMetrics, error) {
	none := eventbus.SubscriptionMetrics{}
	s := c.bus.Subscription(name)
	if s == nil {
		return none, noSubscription(name)
	}
	if hold := action == eventbus.AuditHoldUntil; hold == r.Until.IsZero() {
		return none, badRequest("until is missing, or given for another order than hold-until", "give hold-until, and no other order, a time as RFC 3339")
	}
	opts := c.operator(r.Why)
	var err error
	switch action { //nolint:exhaustive // the others are no orders
	case eventbus.AuditPause:
		err = s.Pause(opts...)
	case eventbus.AuditResume:
		err = s.Resume(opts...)
	case eventbus.AuditHoldUntil:
		err = s.HoldUntil(r.Until, opts...)
	case eventbus.AuditTrip:
		err = s.Trip(opts...)
	case eventbus.AuditReset:
		err = s.Reset(opts...)
	}
	if err != nil {
		return none, err
	}
	m, err := c.subscription(name)
	if err != nil {
		m = eventbus.SubscriptionMetrics{Subscription: name}
	}
	return m, nil
}
