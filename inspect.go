package eventbus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/route"
)

// Plan describes how the bus would dispatch an event of a type now.
type Plan struct {
	EventType string `json:"event_type"` // the type that Explain was asked about
	// Targets lists the subscriptions that match, in the order of delivery. If it is empty, the event
	// is unrouted.
	Targets []Target `json:"targets"`
	// Policy is the retry policy of the dispatch, merged from the overrides of the targets. Jitter, RetryIf,
	// IncludeErrors and ExcludeErrors are not merged: Policy has the values of the bus, and Overrides the values of a
	// target.
	Policy RetryPolicy `json:"policy"`
	// Origins maps the field names of Policy to the subscription that set the value, or to BusDefault.
	Origins map[string]string `json:"origins"`
	// Isolated is set if each target is a separate dispatch (WithIsolation). Policy is then the policy
	// of the bus, and each target applies its Overrides to it.
	Isolated bool `json:"isolated"`
	// CatalogAt is Catalog.At in a plan of Catalog.Explain, which describes the bus at that time. Otherwise it is zero.
	CatalogAt time.Time `json:"catalog_at,omitzero"`
	// Err is an *EventError for an event type that Publish rejects, ErrUninitialized, or ErrNoHandlers.
	Err error `json:"-"`
}

// BusDefault is the origin of a value that is set by the bus's retry policy.
const BusDefault = "bus default"

// Target is a subscription that receives an event.
type Target struct {
	Subscription string        `json:"subscription"`       // the subscription's name, or its pattern and number
	Pattern      string        `json:"pattern"`            // the pattern that matches the type
	Timeout      time.Duration `json:"timeout"`            // of a call of the handler
	Isolated     bool          `json:"isolated,omitempty"` // the subscription has a dispatch of its own
	// Overrides maps the names of the retry policy's fields that the subscription sets to their values
	// as text.
	Overrides map[string]string `json:"overrides,omitempty"`
	// Rules apply to each failure of the subscription, in order, before the policy.
	Rules []RetryRule `json:"rules,omitempty"`
	// RulesOrigin is the subscription, BusDefault, or "" without rules.
	RulesOrigin string       `json:"rules_origin,omitempty"`
	Circuit     CircuitState `json:"circuit"`           // the state of its circuit
	WhenOpen    WhenOpen     `json:"when_open"`         // what becomes of deliveries while the circuit is open
	Held        int          `json:"held"`              // deliveries that are held now
	Paused      bool         `json:"paused"`            // Pause or HoldUntil applies
	ShutBy      ParkReason   `json:"shut_by,omitempty"` // why new deliveries are held; empty if they are admitted
}

// Explain returns the subscriptions that receive an event of a type, the retry policy of the dispatch, and the origin
// of each of its values. It changes nothing. On a bus WithoutHandlers, use Catalog.Explain.
func (b *Bus) Explain(eventType string) Plan {
	if !b.usable() {
		return Plan{EventType: eventType, Err: ErrUninitialized}
	}
	if offence := route.CheckType(eventType); offence != nil {
		return Plan{EventType: eventType, Err: typeError(eventType, offence)}
	}
	if b.config.tool {
		return Plan{EventType: eventType, Err: ErrNoHandlers}
	}
	to := &targets{eventType: eventType, subscriptions: b.registry.routes.Match(eventType)}
	to.retry = b.registry.retryInForce(to.subscriptions)
	p := explain(to, b.config.isolation)
	for i, s := range to.subscriptions {
		t := &p.Targets[i]
		t.Circuit, _ = s.door.circuitState()
		t.Held = s.door.parked()[held]
		t.Paused, _ = s.paused()
		t.ShutBy = s.door.shutBy(b)
	}
	return p
}

// explain returns the part of a plan that follows from the options of the targets.
func explain(to *targets, isolated bool) Plan {
	var own, coupled []ownRetry
	for i, s := range to.subscriptions {
		own = append(own, ownRetry{of: s, settings: to.retry.of(i)})
		if !s.isolated {
			coupled = append(coupled, own[i])
		}
	}
	all, merged := mergePolicies(to.retry.bus, own), mergePolicies(to.retry.bus, coupled)
	p := Plan{EventType: to.eventType, Targets: []Target{}, Policy: merged.clone(), Origins: make(map[string]string), Isolated: isolated}
	for _, s := range to.subscriptions {
		rules, rulesOf := all.rulesAt(s)
		p.Targets = append(p.Targets, Target{
			Subscription: s.id,
			Pattern:      s.Pattern(),
			Timeout:      s.timeout,
			Overrides:    all.ownOf(s).settings.texts(),
			Rules:        rules.list(),
			RulesOrigin:  rules.origin(rulesOf),
			WhenOpen:     s.door.terms().whenOpen,
			Isolated:     s.isolated,
		})
	}
	for field, i := range merged.origins() {
		p.Origins[field] = BusDefault
		if i >= 0 {
			p.Origins[field] = coupled[i].of.id
		}
	}
	return p
}

// String returns the plan as a few lines of text.
func (p Plan) String() string {
	if p.Err != nil {
		return p.Err.Error()
	}
	asOf := ""
	if !p.CatalogAt.IsZero() {
		asOf = ", by the catalog of " + p.CatalogAt.UTC().Format(time.RFC3339)
	}
	if len(p.Targets) == 0 {
		return p.EventType + ": no subscription matches; it would be unrouted" + asOf + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s goes to %d subscription(s)", p.EventType, len(p.Targets))
	if p.Isolated {
		b.WriteString(", each a dispatch of its own")
	}
	b.WriteString(asOf + "\n")
	for i, t := range p.Targets {
		fmt.Fprintf(&b, "%3d. %s  pattern %q, timeout %s, circuit %s", i+1, t.Subscription, t.Pattern, t.Timeout, t.Circuit)
		if t.Circuit != CircuitDisabled {
			fmt.Fprintf(&b, ", %s when open", t.WhenOpen)
		}
		if t.Isolated && !p.Isolated {
			b.WriteString(", isolated")
		}
		for _, field := range retryFields {
			if text, ok := t.Overrides[field.name]; ok && (t.Isolated || field.set&unmergedFields != 0) {
				fmt.Fprintf(&b, ", %s %s", field.name, text)
			}
		}
		if t.ShutBy != "" && t.ShutBy != ParkCircuit {
			fmt.Fprintf(&b, ", %s", t.ShutBy)
		}
		if t.Held > 0 {
			fmt.Fprintf(&b, ", %d held", t.Held)
		}
		b.WriteByte('\n')
		for i, rule := range t.Rules {
			fmt.Fprintf(&b, "     rule %d  %s  (%s)\n", i, rule, t.RulesOrigin)
		}
	}
	for _, field := range retryFields {
		if field.set == fieldIncludeErrors && p.Policy.IncludeErrors == nil || field.set == fieldExcludeErrors && len(p.Policy.ExcludeErrors) == 0 ||
			field.set == fieldDelays && len(p.Policy.Delays) == 0 {
			continue
		}
		origin, merged := p.Origins[field.name]
		if !merged || p.Isolated {
			origin = BusDefault + ", for those that set none"
		}
		fmt.Fprintf(&b, "     %s = %s  (%s)\n", field.name, field.text(&p.Policy), origin)
	}
	return b.String()
}

// Abandoned returns the handlers that were abandoned, at their timeouts or by Shutdown, and have
// not returned yet.
func (b *Bus) Abandoned() []AbandonedHandler {
	if !b.usable() {
		return nil
	}
	return b.machine.abandonedHandlers()
}

// names returns the names of Formerly and Named: what belongs to one of them belongs to the subscription.
func (s *Subscription) names() []string { return append(slices.Clone(s.formerly), s.id) }

// owns reports whether Named or Formerly gives the subscription a name.
func (s *Subscription) owns(name string) bool {
	return s.named && s.id == name || slices.Contains(s.formerly, name)
}

// namesOf returns all names of the subscription that has a name. A tool knows those of the store's catalog.
func (op *operators) namesOf(ctx context.Context, name string) (*names.Same, error) {
	var all []string
	switch {
	case name == "": // whoever asks for no subscription needs no catalog
	case op.config.tool:
		c, err := op.storedCatalog(ctx)
		if err != nil {
			return nil, err
		}
		if in, ok := c.Find(name); ok {
			all = append(slices.Clone(in.Formerly), in.Subscription)
		}
	default:
		if s := op.registry.find(name); s != nil {
			all = s.names()
		}
	}
	return names.NewSame(all), nil
}

// Find returns the subscription with a name, or with the name in its Formerly, and false if there is none.
func (c *Catalog) Find(name string) (*CatalogSubscription, bool) {
	if c == nil {
		return nil, false
	}
	for i := range c.Subscriptions {
		if in := &c.Subscriptions[i]; in.Subscription == name || slices.Contains(in.Formerly, name) {
			return in, true
		}
	}
	return nil, false
}

// maxCompared bounds the patterns that an unrouted type is compared with: a publisher waits meanwhile.
const maxCompared = 1000

// nearestPattern returns the pattern that an unrouted type is one letter apart from, or "".
func (r *registry) nearestPattern(eventType string) (nearest string) {
	const far = 2
	least := far
	all := r.list()
	for _, s := range all[:min(len(all), maxCompared)] {
		if parsed, offence := route.Parse(s.pattern); offence == nil {
			if edits, near := parsed.Edits(eventType); near && edits < least {
				nearest, least = s.pattern, edits
			}
		}
	}
	return nearest
}
