// Package testhooks gives internal/simulation access to the inside of a bus. The root sets the
// functions when it is initialized, and only the simulation calls them. They change the parts of one
// bus, so other buses pay nothing for them.
package testhooks

// SetGates makes each worker call run before it runs a dispatch, and next afterwards if the dispatch
// has settled an event for which a PublishAndWait waited. attempt is the number of the attempt that
// follows. bus is an *eventbus.Bus. Call SetGates before the first Publish.
var SetGates func(bus any, run func(payload any, subscription string, attempt int), next func())

// SetRecord passes the second half of each transition of a bus without a store to record, which must
// call done once: at once or later, and with an error to refuse the transition. bus is an
// *eventbus.Bus. Call SetRecord before the first Publish.
var SetRecord func(bus any, record func(done func(error)))

// Parked returns the payloads of the deliveries that are parked at a subscription, oldest first.
// subscription is an *eventbus.Subscription.
var Parked func(subscription any) []any
