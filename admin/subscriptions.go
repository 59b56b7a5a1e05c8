package admin

import (
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// SubscriptionPage is a page of the subscriptions, in the order in which they were made. On a bus WithoutHandlers they are
// those of the Catalog: they have their options and directives, but no counters, and the states of their circuits are not
// known.
type SubscriptionPage struct {
	Subscriptions []eventbus.SubscriptionMetrics `json:"subscriptions"`
	Total         int                            `json:"total"`               // on all pages
	Next          int                            `json:"next,omitempty"`      // the offset of the next page
	CatalogAt     time.Time                      `json:"catalog_at,omitzero"` // At of the catalog, if they are from one
}

// ControlRequest is the body of a directive to a subscription.
type ControlRequest struct {
	Destination string    `json:"destination,omitempty"` // of a subscription with PerDestination; empty for the whole
	Why         string    `json:"why,omitempty"`
	Until       time.Time `json:"until,omitzero"` // of hold-until, and required there
}

func (c *call) listSubscriptions() (any, error) {
	var w window
	if err := c.parameters(windowParameters(&w)); err != nil {
		return nil, err
	}
	return c.subscriptions(w)
}

func (c *call) subscriptions(w window) (SubscriptionPage, error) {
	all, catalogAt, err := c.allSubscriptions()
	if err != nil {
		return SubscriptionPage{}, err
	}
	page := SubscriptionPage{Total: len(all), CatalogAt: catalogAt}
	page.Subscriptions, page.Next = windowOf(w, all)
	return page, nil
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
	if s := c.bus.Subscription(name); s.Exists() {
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

func (c *call) postDirective() (any, error) {
	var body ControlRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.control(c.args["name"], c.route.audit, body)
}

// directed is a subscription, or one of its destinations.
type directed interface {
	Pause(opts ...eventbus.DirectiveOption) error
	Resume(opts ...eventbus.DirectiveOption) error
	HoldUntil(t time.Time, opts ...eventbus.DirectiveOption) error
	Trip(opts ...eventbus.DirectiveOption) error
	Reset(opts ...eventbus.DirectiveOption) error
}

// control gives a directive to a subscription, or to one of its destinations, and returns the state of the subscription afterwards. A
// bus without handlers does not know the state: it returns the name only.
func (c *call) control(name string, action eventbus.AuditAction, r ControlRequest) (eventbus.SubscriptionMetrics, error) {
	none := eventbus.SubscriptionMetrics{}
	s := c.bus.Subscription(name)
	if !s.Exists() {
		return none, noSubscription(name)
	}
	if c.tool {
		if err := c.checkCatalogued(name); err != nil {
			return none, err
		}
	}
	if hold := action == eventbus.AuditHoldUntil; hold == r.Until.IsZero() {
		return none, badRequest("until is missing, or given for another directive than hold-until", "give hold-until, and no other directive, a time as RFC 3339")
	}
	opts := c.operator(r.Why)
	var to directed = s
	if r.Destination != "" {
		to = s.Destination(r.Destination)
	}
	var err error
	switch action { //nolint:exhaustive // the others are no directives
	case eventbus.AuditPause:
		err = to.Pause(opts...)
	case eventbus.AuditResume:
		err = to.Resume(opts...)
	case eventbus.AuditHoldUntil:
		err = to.HoldUntil(r.Until, opts...)
	case eventbus.AuditTrip:
		err = to.Trip(opts...)
	case eventbus.AuditReset:
		err = to.Reset(opts...)
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
