package admin

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// A bus WithoutHandlers knows no subscription. What the handler shows of subscriptions and of plans is then that of the
// catalog in the store, which the bus with the handlers has recorded.

// isTool reports whether a bus was made WithoutHandlers.
func isTool(bus *eventbus.Bus) bool {
	return errors.Is(bus.Explain("any.type").Err, eventbus.ErrNoHandlers)
}

// catalog returns the last catalog. A store without one has no subscriptions.
func (s *server) catalog(ctx context.Context) (eventbus.Catalog, error) {
	c, err := s.bus.Catalog(ctx)
	if errors.Is(err, eventbus.ErrNoCatalog) {
		return eventbus.Catalog{}, nil
	}
	return c, err
}

// plan explains a type.
func (c *call) plan(eventType string) (eventbus.Plan, error) {
	p := c.bus.Explain(eventType)
	if !errors.Is(p.Err, eventbus.ErrNoHandlers) {
		return p, p.Err
	}
	catalog, err := c.bus.Catalog(c.ctx)
	if err != nil {
		return eventbus.Plan{}, err
	}
	p = catalog.Explain(eventType)
	return p, p.Err
}

// allSubscriptions returns the subscriptions of the bus. If they are those of a catalog, it returns its time.
func (c *call) allSubscriptions() (all []eventbus.SubscriptionMetrics, catalogAt time.Time, err error) {
	if !c.tool {
		return c.snapshot().metrics.Subscriptions, time.Time{}, nil
	}
	catalog, err := c.catalog(c.ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	all = []eventbus.SubscriptionMetrics{}
	for i := range catalog.Subscriptions {
		all = append(all, catalogued(&catalog.Subscriptions[i]))
	}
	for _, o := range catalog.Directives {
		i := slices.IndexFunc(all, func(m eventbus.SubscriptionMetrics) bool { return m.Subscription == o.Subscription })
		if i < 0 {
			i, all = len(all), append(all, eventbus.SubscriptionMetrics{Subscription: o.Subscription, Circuit: eventbus.CircuitUnknown})
		}
		if o.Destination != "" {
			all[i].Destinations = withDirective(all[i].Destinations, o)
			continue
		}
		all[i].Directive, all[i].Paused, all[i].PausedUntil = &o, o.Pause, o.Until
		if o.Pause {
			all[i].ShutBy = eventbus.ParkPaused
		}
	}
	return all, catalog.At, nil
}

// withDirective adds a destination that a catalog has a directive to. Nothing else is known of it.
func withDirective(all *eventbus.DestinationsMetrics, o eventbus.Directive) *eventbus.DestinationsMetrics {
	if all == nil {
		all = &eventbus.DestinationsMetrics{}
	}
	m := eventbus.DestinationMetrics{Destination: o.Destination, Circuit: eventbus.CircuitUnknown, Directive: &o, Paused: o.Pause, PausedUntil: o.Until}
	if o.Pause {
		m.ShutBy = eventbus.ParkPaused
	}
	all.List = append(all.List, m)
	all.Known, all.Unwell = len(all.List), len(all.List)
	return all
}

// catalogued returns what a catalog has of a subscription.
func catalogued(in *eventbus.CatalogSubscription) eventbus.SubscriptionMetrics {
	m := eventbus.SubscriptionMetrics{
		Subscription: in.Subscription, Pattern: in.Pattern, DeadLetters: in.DeadLetters, Circuit: eventbus.CircuitUnknown,
		Options: eventbus.SubscriptionOptions{
			Timeout: in.Timeout, Concurrency: in.Concurrency, LineCapacity: in.LineCapacity, WhenOpen: in.WhenOpen, WhenFull: in.WhenFull,
		},
	}
	if in.Circuit.Disabled {
		m.Circuit = eventbus.CircuitDisabled
	}
	return m
}

// checkCatalogued refuses a directive to a name that the store does not have: it would have no effect. Without a catalog,
// each valid name may be one.
func (c *call) checkCatalogued(name string) error {
	catalog, err := c.catalog(c.ctx)
	switch {
	case err != nil:
		return err
	case !validName(name):
		return noSubscription(name)
	case catalog.At.IsZero(), slices.ContainsFunc(catalog.Directives, func(o eventbus.Directive) bool { return o.Subscription == name }):
		return nil
	}
	if c.bus.Metrics().Orphaned[name] > 0 { // its deliveries wait for a deployment
		return nil
	}
	if _, ok := catalog.Find(name); ok {
		return nil
	}
	return noSubscription(name)
}
