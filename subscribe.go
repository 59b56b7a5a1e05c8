package eventbus

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/keys"
	"github.com/surebus/eventbus/internal/route"
)

// Middleware wraps a handler. It returns a handler that acts before, after or instead of the
// wrapped one. Subscribe calls it once. The bus calls the returned handler for each attempt, with
// the subscription's timeout and retries.
type Middleware func(Handler) Handler

// Subscription is a pattern, a handler and its options. Its methods are safe for concurrent use.
type Subscription struct {
	bus          *Bus
	number       uint64 // in the order of Subscribe
	id           string
	named        bool   // Named sets id
	pattern      string // Unsubscribe parses it again
	handler      Handler
	timeout      time.Duration
	circuit      circuit.Config // of the door, or of that of each destination
	throttle     time.Duration  // MaxThrottle
	rateLimit    *RateSettings  // nil for none; fixed
	retry        atomic.Pointer[retrySettings]
	door         *door
	destinations *destinations // nil without PerDestination
	concurrency  int32         // limit of running at the door, or at that of each destination; math.MaxInt32 for none
	gate         *keyGate      // if it is isolated
	isolated     bool
	strict       bool // StrictDecoding
	letters      bool // OnDeadLetter made it
	formerly     []string
	counters     *subscriptionCounters
	madeAt       [1]uintptr  // the caller of Subscribe
	slow         atomic.Bool // the log has an entry about a slow call
	place        *route.Place[*Subscription]
	gone         atomic.Bool
	detached     atomic.Bool
	heir         atomic.Pointer[Subscription] // the subscription that has taken it over, see Detach
	retired      atomic.Pointer[retirement]   // set by Retire before the subscription ends
	inherited    []func()                     // reports of a take-over, for Subscribe to call without a lock

	succeeds bool          // another one had one of its names, until Unsubscribe
	since    *atomic.Int64 // Record.Position of its first event, if it succeeds; 0 before
}

// Subscribe registers a handler for the events that match a pattern and are published from now on.
//
// A pattern is a dotted glob. * matches one segment or a part of it ("user.*", "user.cre*"), and ** any number of
// segments. ? matches one character, [ab], [!ab] and [a-z] match a class, and {a,b} alternatives. "*" and the empty
// pattern match every type. An event visits its subscriptions in the order of their Subscribe calls.
//
// Subscribe does not block, and may be called at any time, also from handlers. It changes nothing
// if it returns an error.
//
// Errors: *PatternError, *OptionError, ErrNilHandler, ErrDuplicateName, ErrShutdown, ErrNoHandlers.
func (b *Bus) Subscribe(pattern string, handler Handler, opts ...SubscribeOption) (*Subscription, error) {
	s, err := b.subscribe(pattern, handler, false, opts)
	if err != nil {
		return nil, fmt.Errorf("Subscribe(%q): %w", shorten(pattern), err)
	}
	b.operators.cataloged.changed()
	return s, nil
}

// subscribe makes a subscription to events, or to dead letters.
func (b *Bus) subscribe(pattern string, handler Handler, letters bool, opts []SubscribeOption) (*Subscription, error) {
	if !b.usable() {
		return nil, ErrUninitialized
	}
	if b.config.tool {
		return nil, ErrNoHandlers
	}
	parsed, offence := route.Parse(pattern)
	if offence != nil {
		return nil, patternError(pattern, offence)
	}
	if handler == nil {
		return nil, fmt.Errorf("%w: give Subscribe a function", ErrNilHandler)
	}
	c, err := newSubscriptionConfig(b.config, opts)
	if err != nil {
		return nil, err
	}
	if letters && c.strict {
		return nil, &OptionError{Option: "StrictDecoding", Reason: "has no effect on a handler of dead letters; leave it out"}
	}
	if c.inTx {
		if handler, err = b.inTransaction(handler); err != nil {
			return nil, err
		}
	}
	for i, m := range slices.Backward(slices.Concat(b.config.middleware, c.middleware)) {
		if handler = m(handler); handler == nil {
			return nil, fmt.Errorf("%w: middleware %d, the bus's counted first, returned it", ErrNilHandler, i+1)
		}
	}
	s := &Subscription{
		bus:       b,
		counters:  new(subscriptionCounters),
		pattern:   parsed.String(),
		handler:   handler,
		timeout:   c.timeout,
		throttle:  c.throttle,
		rateLimit: c.rate,
		id:        c.name,
		named:     c.named,
		formerly:  c.formerly,
		strict:    c.strict,
		letters:   letters,
	}
	s.makeDoor(c)
	s.retry.Store(c.ownRetry())
	if s.isolated = c.isolated || b.config.isolation || letters; s.isolated {
		s.gate = keys.New[*dispatch](1)
	}
	runtime.Callers(3+c.callerSkip, s.madeAt[:]) // skip Callers, subscribe and Subscribe
	defer b.journal.comes(s, c.line == 0 && c.whenFull == WaitWhenFull)()
	latest := func() Directive { return b.operators.directiveOf(s.names(), "") }
	b.operators.obeyDestinations(s)
	err = b.registry.add(s, parsed, latest, func(o Directive) { b.report.circuitChanged(s.door, s.door.obeyed(o)) }, s.inherit)
	if err != nil {
		return nil, err
	}
	b.operators.obeyDestinations(s) // directives that came meanwhile, or are under a name that the subscription has only now
	for _, report := range s.inherited {
		report()
	}
	b.report.doubtful(s.id, c.doubts(b.config))
	return s, nil
}

// makeDoor makes the door of a new subscription, and its destinations.
func (s *Subscription) makeDoor(c *subscriptionConfig) {
	b := s.bus
	t := terms{of: s, capacity: cmp.Or(c.line, DefaultLineCapacity), whenOpen: c.whenOpen, whenFull: c.whenFull, rate: newRate(c.rate), single: c.single, drops: c.single, dropLate: c.dropLate}
	t.limit, t.share = c.limits(b.config)
	s.concurrency, s.circuit = t.limit, c.circuit
	s.door = &door{ledger: &b.ledger}
	if c.destination != nil {
		s.divideByDestination(c, t)
		return
	}
	s.door.sets(t)
	s.door.hanging.Init(&s.door.circuit.Gate, c.maxAbandoned())
	s.door.circuit.Init(c.circuit, b.time)
}

// ID returns the subscription's name, or its pattern and number if it has none: "order.*#3".
func (s *Subscription) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// String returns the name and the pattern: mail (pattern "order.*").
func (s *Subscription) String() string {
	if s == nil {
		return "<nil>"
	}
	return fmt.Sprintf("%s (pattern %q)", s.id, s.pattern)
}

// Pattern returns the pattern that was passed to Subscribe.
func (s *Subscription) Pattern() string {
	if s == nil {
		return ""
	}
	return s.pattern
}

// MadeAt returns where Subscribe was called: "/src/shop/mail.go:17", the path as compiled. See
// CallerSkip.
func (s *Subscription) MadeAt() string {
	if s == nil || s.madeAt[0] == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames(s.madeAt[:]).Next()
	return fmt.Sprintf("%s:%d", frame.File, frame.Line)
}

// Unsubscribe ends the subscription. After it has returned, no call of the handler begins. It does not wait for running
// calls. Events that have not reached the handler are dead-lettered with the reason unsubscribed: held ones now,
// scheduled and retrying ones when they are due. The name becomes free. Further calls do nothing.
func (s *Subscription) Unsubscribe() {
	if s == nil || s.bus == nil || s.bus.config.tool {
		return
	}
	s.end(s.bus.machine.requeue) // a worker dead-letters them
}

// end ends the subscription, once, and passes its deliveries to requeue.
func (s *Subscription) end(requeue func(...*dispatch)) {
	if s.gone.Swap(true) {
		return
	}
	s.door.circuit.Gate.Or(circuit.Removed)
	b := s.bus
	// Close the door before the subscription leaves the registry. Otherwise Shutdown, which
	// dead-letters the lines of the subscriptions in the registry, could miss a delivery that is
	// parked in between.
	requeue(s.closeDoors(ReasonUnsubscribed)...)
	if s.gate != nil {
		b.machine.requeue(b.machine.leaveGate(s.gate, func(*dispatch) bool { return true })...)
	}
	b.registry.remove(s)
	b.journal.ends(s)
	b.machine.freed() // the share of the last subscription has ended
	b.operators.cataloged.changed()
}

// targets has the subscriptions of a dispatch, in the order of visit, and values derived from them.
type targets struct {
	eventType     string
	subscriptions []*Subscription
	recorded      []string // the names of the subscriptions in records; nil without a store
	counters      *typeCounters
	merged        atomic.Pointer[mergedPolicy]
	// each has, if one of several targets is isolated, those of each dispatch: of each isolated one, and of the others together.
	each  []*targets
	retry retryInForce
	// dispatches is the number of dispatches that an event has before the first attempt: 1, or for targets in each how many there are. It
	// is 0 if that is not known.
	dispatches int
}

// isolate fills each, if a target is isolated, or for all because one has ended, which dead-letters its own.
func (r *registry) isolate(t *targets, ended bool) {
	alone := func(s *Subscription) bool { return ended || s.isolated }
	if len(t.subscriptions) < 2 || !slices.ContainsFunc(t.subscriptions, alone) {
		return
	}
	var coupled *targets
	for i, s := range t.subscriptions {
		to := coupled
		if to == nil || alone(s) {
			to = &targets{eventType: t.eventType, counters: t.counters, retry: retryInForce{bus: t.retry.bus}}
			t.each = append(t.each, to)
		}
		if !alone(s) {
			coupled = to
		}
		to.subscriptions = append(to.subscriptions, s)
		to.recorded = append(to.recorded, t.recordedAt(i)...)
		if t.retry.own != nil {
			to.retry.own = append(to.retry.own, t.retry.own[i])
		}
	}
	for _, to := range t.each {
		to.dispatches = len(t.each)
	}
}

// only returns the targets of a delivery that is split off at an index, with the policy of all.
func (t *targets) only(index int, policy *mergedPolicy) *targets {
	one := &targets{eventType: t.eventType, subscriptions: t.subscriptions[index : index+1 : index+1], counters: t.counters}
	one.recorded = t.recordedAt(index)
	one.merged.Store(policy)
	return one
}

// hasIsolated reports whether one of the targets is isolated.
func (t *targets) hasIsolated() bool {
	return slices.ContainsFunc(t.subscriptions, func(s *Subscription) bool { return s.isolated })
}

// takePlace reports whether the dispatches of an event take a place in the order by key of a subscription, or in the bus's for nil.
func (t *targets) takePlace(at *Subscription) bool {
	return slices.ContainsFunc(t.subscriptions, func(s *Subscription) bool { return at != nil && s.door == at.door || at == nil && !s.isolated })
}

// policy returns the merged policy. The first failure computes it, from immutable settings.
func (t *targets) policy() *mergedPolicy {
	if m := t.merged.Load(); m != nil {
		return m
	}
	own := make([]ownRetry, len(t.subscriptions))
	for i, s := range t.subscriptions {
		own[i] = ownRetry{of: s, settings: t.retry.of(i)}
	}
	t.merged.CompareAndSwap(nil, mergePolicies(t.retry.bus, own))
	return t.merged.Load()
}

func namesOf(subscriptions []*Subscription) []string {
	ids := make([]string, len(subscriptions))
	for i, s := range subscriptions {
		ids[i] = s.id
	}
	return ids
}

// nameAt returns the name under which the delivery to a target is recorded, or would be.
func (t *targets) nameAt(i int32) string {
	if t.recorded != nil {
		return t.recorded[i]
	}
	return t.subscriptions[i].id
}

// recordedAt returns the recorded name of one subscription.
func (t *targets) recordedAt(i int) []string {
	if t.recorded == nil {
		return nil
	}
	return t.recorded[i : i+1 : i+1]
}

// absent returns a subscription for a name that the bus does not have. It receives nothing.
func (b *Bus) absent(name string) *Subscription {
	s := &Subscription{bus: b, id: name, named: true, isolated: b.config.isolation, counters: new(subscriptionCounters)}
	s.door = &door{ledger: &b.ledger}
	s.door.sets(terms{of: s})
	s.door.circuit.Init(b.config.circuit, b.time)
	s.door.hanging.Init(&s.door.circuit.Gate, math.MaxInt32)
	s.retry.Store(&noRetry)
	return s
}

// matching returns the targets of a valid event type in a table.
func matching(in route.Router[*Subscription, *targets], eventType string) *targets {
	to, hash, known := in.Cached(eventType)
	if !known {
		to = in.Find(eventType, hash)
	}
	return to
}
