package admin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// Overview is the state of the bus at a glance.
type Overview struct {
	At      time.Time        `json:"at"`      // when the figures were read, in UTC
	Metrics eventbus.Metrics `json:"metrics"` // the metrics of the bus
	// Instance identifies the bus, and Active is set if it has the lease of its store. Instance is empty for a bus in
	// memory, and if the store does not answer.
	Instance string `json:"instance,omitempty"`
	Active   bool   `json:"active,omitempty"`
	// Buses lists the buses that use the store, as eventbus.Catalog.Buses.
	Buses []eventbus.CatalogBus `json:"buses"`
	// History has the minutes of the last hour, or since New, oldest first. The last minute is in progress.
	History []Minute `json:"history"`
	// OldestWaiting is the oldest unsettled dispatch, without scheduled ones, as of a few seconds ago. It is nil if
	// there is none.
	OldestWaiting *eventbus.DispatchInfo `json:"oldest_waiting,omitempty"`
	// OpenCircuits names the subscriptions whose circuit is open or probes.
	OpenCircuits []string `json:"open_circuits"`
	// Causes lists the causes of dead letters, at most 20, those with most letters in the last 5 minutes first.
	// CausesTotal counts all. CausesKnown is false while the store does not answer.
	Causes      []Cause `json:"causes"`
	CausesTotal int     `json:"causes_total"`
	CausesKnown bool    `json:"causes_known"`
	// Concerns lists other conditions that need attention: at most 20, and an entry that counts the others.
	Concerns []Concern `json:"concerns"`
	// NeedAttention counts all causes and all concerns.
	NeedAttention int `json:"need_attention"`
	// Balanced is the result of eventbus.Ledger.Balanced, and Imbalance names the sides that differ. Under load they
	// may differ by the dispatches in progress.
	Balanced  bool   `json:"balanced"`
	Imbalance string `json:"imbalance,omitempty"`
}

func (c *call) getOverview() (any, error) {
	if err := c.parameters(nil); err != nil {
		return nil, err
	}
	return c.overview(c.ctx, c.snapshot()), nil
}

// overview returns the overview of a snapshot.
func (s *server) overview(ctx context.Context, taken *snapshot) Overview {
	m := &taken.metrics
	concerns := taken.concerns(s.prefix)
	o := Overview{
		At: taken.at, Metrics: *m, History: s.history.list(m), OldestWaiting: s.oldest.find(ctx, s), OpenCircuits: []string{},
		Instance: taken.catalog.Instance, Active: taken.catalog.Active, Buses: append([]eventbus.CatalogBus{}, taken.catalog.Buses...),
		Causes: append([]Cause{}, taken.causes.worst...), CausesTotal: taken.causes.total, CausesKnown: taken.causesKnown,
		Concerns: append([]Concern{}, listed(concerns, s.prefix)...), NeedAttention: taken.causes.total + len(concerns),
		Balanced: m.Ledger.Balanced(),
	}
	for i := range m.Subscriptions {
		sub := &m.Subscriptions[i]
		if sub.Circuit == eventbus.CircuitOpen || sub.Circuit == eventbus.CircuitHalfOpen {
			o.OpenCircuits = append(o.OpenCircuits, sub.Subscription)
		}
	}
	if !o.Balanced {
		o.Imbalance = imbalance(m.Ledger)
	}
	return o
}

// imbalance describes a ledger that does not balance.
func imbalance(l eventbus.Ledger) string {
	opened := l.Accepted + l.Copies + l.Splits + l.Replays + l.Claimed
	settled := l.Handled + l.Unrouted + l.DeadLettered + l.Dropped + l.Cancelled
	left := l.Scheduled + l.Queued + l.Running + l.Waiting + l.Held + l.Throttled + l.Snoozed + l.Recording + l.Stored + l.HandedOver
	text := fmt.Sprintf("opened %d, settled %d and left %d: off by %d", opened, settled, left, opened-settled-left)
	switch {
	case opened == settled+left:
		return fmt.Sprintf("the bus is shut down, and %d dispatches are left in memory", left-l.Stored-l.HandedOver)
	case l.Running+l.Recording > 0:
		return text + fmt.Sprintf(", while %d dispatches are in progress", l.Running+l.Recording)
	}
	return text
}

// oldest finds the oldest dispatch, which compares all of them, at most once in oldestAge.
type oldest struct {
	mu    sync.Mutex // guards the following; a leaf
	found *eventbus.DispatchInfo
	at    time.Time
	busy  bool
}

const oldestAge = 5 * time.Second

// find returns the oldest dispatch that is not scheduled for later, or nil.
func (o *oldest) find(ctx context.Context, s *server) *eventbus.DispatchInfo {
	o.mu.Lock()
	if o.busy || time.Since(o.at) < oldestAge {
		defer o.mu.Unlock()
		return o.found
	}
	o.busy = true
	o.mu.Unlock()

	var found *eventbus.DispatchInfo
	var failed bool
	for _, state := range []eventbus.DispatchState{
		eventbus.DispatchQueued, eventbus.DispatchRunning, eventbus.DispatchWaiting, eventbus.DispatchParked,
	} {
		page, err := s.bus.Dispatches(ctx, eventbus.DispatchQuery{State: state, Limit: 1})
		if err != nil {
			failed = true // such as for a peer that has gone
			break
		}
		for _, d := range page.Dispatches {
			if found == nil || d.Published.Before(found.Published) {
				shown := s.dispatch(d)
				found = &shown
			}
		}
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at, o.busy = time.Now(), false; !failed { // otherwise the last one stays
		o.found = found
	}
	return o.found
}
