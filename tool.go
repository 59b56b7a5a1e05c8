package eventbus

import (
	"math"
)

// WithoutHandlers makes a bus for a tool: a command, or an admin page, in another process than the bus
// that runs the handlers, or while none runs. It needs a store, usually one that has not the lease. Use
// its DLQ, Event, Dispatches, Audit, Catalog and Cancel, and the directives of Subscription. Subscribe and Start
// return ErrNoHandlers. Shutdown closes the store.
//
// The tool does not know the subscriptions. A replay opens a dispatch for the names in the letter. If
// one of them does not exist in the bus that runs the handlers, its delivery waits there, as after a
// restart, and the replay returns no ErrNoSubscription. Subscription returns a handle for any name: its
// directives, such as Pause, are recorded in the store, and the bus that runs the handlers obeys them within
// 250 ms. Publish sees no subscription, so its events are unrouted.
func WithoutHandlers() Option {
	return option(func(c *config) { c.tool = true })
}

// checkTool refuses a tool without a store.
func (c *config) checkTool() error {
	if c.tool && c.store == nil {
		return &OptionError{Option: "WithoutHandlers", Reason: "needs WithStore: a bus in memory has nothing but what its handlers do"}
	}
	return nil
}

// absent returns a subscription for a name that the bus does not have. It receives nothing.
func (b *Bus) absent(name string) *Subscription {
	s := &Subscription{bus: b, id: name, named: true}
	s.door.ledger = &b.ledger
	s.door.circuit.Init(b.config.circuit, b.time)
	s.door.hanging.Init(&s.door.circuit.Gate, math.MaxInt32)
	s.retry.Store(&noRetry)
	return s
}
