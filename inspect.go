package eventbus

import (
	"fmt"
	"strings"
	"time"

	"github.com/surebus/eventbus/internal/route"
)

// Plan is what becomes of an event of a type that is published now.
type Plan struct {
	EventType string
	// Targets are the subscriptions that get it, in the order in which they are
	// visited. None: it is unrouted.
	Targets []Target
	// Policy is the retry policy of the dispatch, merged from the targets'
	// overrides. Its Jitter, RetryIf, IncludeErrors and ExcludeErrors are the bus's; a
	// target that sets its own says so in Overrides.
	Policy RetryPolicy
	// Origins says where each value of Policy comes from: by the field's name,
	// the subscription, or BusDefault.
	Origins map[string]string
	// Isolated says that every target is a dispatch of its own (WithIsolation):
	// then Policy is the bus's, and each target's is that with its Overrides.
	Isolated bool
	// Err is why there is no plan: an *EventError for a type that Publish would
	// refuse, or ErrUninitialized.
	Err error
}

// BusDefault is the origin of a value of the bus's own retry policy.
const BusDefault = "bus default"

// Target is a subscription that gets an event.
type Target struct {
	Subscription string
	Pattern      string
	Timeout      time.Duration
	// Overrides are the fields of the retry policy that the subscription sets,
	// as text.
	Overrides map[string]string
	// Rules are asked first, in order, about each failure of the subscription.
	Rules []RetryRule
	// RulesOrigin is whose they are: the subscription, or BusDefault; "" without any.
	RulesOrigin string
	Circuit     CircuitState
	WhenOpen    WhenOpen
	Held        int  // deliveries that wait for it
	Paused      bool // by Pause or HoldUntil
}

// Explain tells who gets an event of a type, under which retry policy, and where
// each value of that comes from. It changes nothing.
func (b *Bus) Explain(eventType string) Plan {
	if !b.usable() {
		return Plan{EventType: eventType, Err: ErrUninitialized}
	}
	if offence := route.CheckType(eventType); offence != nil {
		return Plan{EventType: eventType, Err: typeError(eventType, offence)}
	}
	to := &targets{eventType: eventType, subscriptions: b.routes.Match(eventType)}
	to.retry = b.retryInForce(to.subscriptions)
	merged := b.policy(to)
	all := merged
	if b.config.isolation {
		merged = mergePolicies(to.retry.bus, nil)
	}
	p := Plan{EventType: eventType, Policy: merged.clone(), Origins: make(map[string]string), Isolated: b.config.isolation}
	for _, s := range to.subscriptions {
		state, _ := s.door.circuit.state()
		paused, _ := s.paused()
		rules, rulesOf := all.rulesAt(s)
		p.Targets = append(p.Targets, Target{
			Subscription: s.id,
			Pattern:      s.Pattern(),
			Timeout:      s.timeout,
			Overrides:    all.ownOf(s).settings.texts(),
			Rules:        rules.list(),
			RulesOrigin:  rules.origin(rulesOf),
			Circuit:      state,
			WhenOpen:     s.door.whenOpen,
			Held:         s.door.parked()[held],
			Paused:       paused,
		})
	}
	for field, i := range merged.origins() {
		p.Origins[field] = BusDefault
		if i >= 0 {
			p.Origins[field] = to.subscriptions[i].id
		}
	}
	return p
}

// String is the plan as a few lines of text.
func (p Plan) String() string {
	if p.Err != nil {
		return p.Err.Error()
	}
	if len(p.Targets) == 0 {
		return p.EventType + ": no subscription matches; it would be unrouted\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s goes to %d subscription(s)", p.EventType, len(p.Targets))
	if p.Isolated {
		b.WriteString(", each a dispatch of its own")
	}
	b.WriteByte('\n')
	for i, t := range p.Targets {
		fmt.Fprintf(&b, "%3d. %s  pattern %q, timeout %s, circuit %s", i+1, t.Subscription, t.Pattern, t.Timeout, t.Circuit)
		if t.Circuit != CircuitDisabled {
			fmt.Fprintf(&b, ", %s when open", t.WhenOpen)
		}
		for _, field := range retryFields {
			if text, ok := t.Overrides[field.name]; ok && (p.Isolated || field.set&unmergedFields != 0) {
				fmt.Fprintf(&b, ", %s %s", field.name, text)
			}
		}
		if t.Paused {
			b.WriteString(", paused")
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
		if field.set == fieldIncludeErrors && p.Policy.IncludeErrors == nil || field.set == fieldExcludeErrors && len(p.Policy.ExcludeErrors) == 0 {
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

// list is the subscriptions, in the order in which they were made.
func (b *Bus) list() []*Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subscriptions.list()
}

// Abandoned names the handlers that have been given up, at their timeouts or by
// Shutdown, and have not come back.
func (b *Bus) Abandoned() []AbandonedHandler {
	if !b.usable() {
		return nil
	}
	return b.abandoned.list()
}
