package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/route"
)

// Catalog describes the subscriptions of a bus and its defaults. A store keeps the catalog of the last bus that had its
// lease, and the catalogs of the standbys. Tools show them while these buses run in other processes, or do not run.
type Catalog struct {
	// At is when the bus had these subscriptions and settings, in UTC. A bus records each change in the
	// store within a second.
	At time.Time `json:"at"`
	// Instance identifies the bus. Active is set if it had the lease of the store at At, and was no standby.
	Instance string `json:"instance,omitempty"`
	Active   bool   `json:"active,omitempty"`

	// Policy is the retry policy of the bus, without RetryIf. RetryIf is set if it has one.
	Policy  RetryPolicy `json:"policy"`
	RetryIf bool        `json:"retry_if"`
	// Rules are the rules of WithRetryRules or SetRetryRules. In a catalog from a store, they have no Is and As.
	Rules         []RetryRule     `json:"rules,omitempty"`
	Timeout       time.Duration   `json:"timeout"`                 // of a call of a handler: WithTimeout
	Circuit       CircuitSettings `json:"circuit"`                 // WithCircuit
	Isolated      bool            `json:"isolated"`                // WithIsolation
	Concurrency   int             `json:"concurrency"`             // WithConcurrency
	QueueCapacity int             `json:"queue_capacity"`          // WithQueueCapacity
	MaxUnsettled  int             `json:"max_unsettled,omitempty"` // WithMaxUnsettled; 0 for no bound

	// Subscriptions are in the order of Subscribe.
	Subscriptions []CatalogSubscription `json:"subscriptions"`
	// Directives lists the directives in force now, and not at At, sorted by Subscription. Their subscriptions need not
	// be in the catalog.
	Directives []Directive `json:"directives,omitempty"`

	// Buses lists the buses that use the store now, and not at At, in the order in which they began to use it. It may
	// still list a bus that was killed.
	Buses []CatalogBus `json:"buses,omitempty"`
}

// CatalogBus is a bus that uses the store.
type CatalogBus struct {
	Instance string    `json:"instance"`         // identifies the bus
	Active   bool      `json:"active,omitempty"` // the bus had the lease at Seen
	Seen     time.Time `json:"seen"`             // when the bus last wrote its catalog, by its own clock; a standby writes it every 15 s
}

// UnmarshalJSON also reads a catalog of an earlier version, whose directives are in "orders".
func (c *Catalog) UnmarshalJSON(text []byte) error {
	type catalog Catalog
	if err := json.Unmarshal(text, (*catalog)(c)); err != nil || c.Directives != nil {
		return err
	}
	var earlier struct {
		Orders []Directive `json:"orders"`
	}
	err := json.Unmarshal(text, &earlier)
	c.Directives = earlier.Orders
	return err
}

// CatalogSubscription describes a subscription and its options.
type CatalogSubscription struct {
	Subscription   string   `json:"subscription"`              // the subscription's name, or its pattern and number
	Pattern        string   `json:"pattern"`                   // the pattern of event types
	Formerly       []string `json:"formerly,omitempty"`        // its earlier names
	Isolated       bool     `json:"isolated,omitempty"`        // has a dispatch of its own: Isolated or WithIsolation
	PerDestination bool     `json:"per_destination,omitempty"` // the option PerDestination
	Once           bool     `json:"once,omitempty"`            // the option Once
	DeadLetters    bool     `json:"dead_letters,omitempty"`    // a handler of OnDeadLetter; Pattern then selects the types of dead events
	Detached       bool     `json:"detached,omitempty"`        // Detach was called
	// Concurrency is the value of the option Concurrency; 0 means the default, which depends on the other
	// subscriptions.
	Concurrency int           `json:"concurrency,omitempty"`
	RateLimit   *RateSettings `json:"rate_limit,omitempty"`   // the option RateLimit; nil without it
	MaxThrottle time.Duration `json:"max_throttle,omitempty"` // the longest delay of Throttle; 0 in a catalog of an earlier version
	Timeout     time.Duration `json:"timeout"`                // of a call of the handler
	// LineCapacity bounds the line. It is 0 if further deliveries wait in the store.
	LineCapacity int             `json:"line_capacity,omitempty"`
	WhenOpen     WhenOpen        `json:"when_open"`              // what becomes of deliveries while the circuit is open
	WhenFull     WhenFull        `json:"when_full"`              // what becomes of deliveries while the line is full
	DropExpired  bool            `json:"drop_expired,omitempty"` // the option DropExpired
	Circuit      CircuitSettings `json:"circuit"`                // the settings of its circuit
	// Overrides maps the names of the retry policy's fields that the subscription sets to their values
	// as text. Retry has the values, without RetryIf; its other fields have no meaning.
	Overrides map[string]string `json:"overrides,omitempty"`
	Retry     RetryPolicy       `json:"retry"`
	// Rules are the subscription's own rules (RetryRules). OwnRules is set if they replace the rules of the bus, even
	// with none.
	Rules    []RetryRule `json:"rules,omitempty"`
	OwnRules bool        `json:"own_rules"`
}

// CircuitSettings has the settings of a circuit, which the options of WithCircuit and Circuit set.
type CircuitSettings struct {
	FailureRatio float64       `json:"failure_ratio"` // share of failed events in the window above which the circuit opens
	MinEvents    int           `json:"min_events"`    // events in the window before the circuit can open
	Window       time.Duration `json:"window"`        // the time span in which events count
	OpenFor      time.Duration `json:"open_for"`      // how long the circuit stays open before a delivery probes
	Disabled     bool          `json:"disabled"`      // the option NoCircuit: there is no circuit
	// CountRejections is set if rejections count as failures.
	CountRejections bool `json:"count_rejections,omitempty"`
}

// Catalog returns the subscriptions of the bus now, and its defaults. On a bus WithoutHandlers, it returns the catalog
// of the last bus that had the lease of the store, or else of a standby. It blocks while it reads the store, until ctx
// ends.
//
// Errors: ErrNoCatalog, with the last directive to each subscription in Directives; ErrUninitialized, ErrNilContext, the store's, the context's.
func (b *Bus) Catalog(ctx context.Context) (Catalog, error) {
	if err := b.ready(ctx); err != nil {
		return Catalog{}, fmt.Errorf("Catalog: %w", err)
	}
	c, err := b.operators.readCatalog(ctx)
	if err != nil {
		return Catalog{Directives: c.Directives}, fmt.Errorf("Catalog: %w", err)
	}
	return c, nil
}

func (op *operators) readCatalog(ctx context.Context) (c Catalog, err error) {
	if ctx.Err() != nil {
		return c, contextError(ctx)
	}
	if !op.config.tool {
		c = op.catalogNow()
	} else {
		stored, err := op.storedCatalog(ctx)
		switch {
		case err != nil:
			return c, err
		case stored == nil:
			c.Directives, _, err = op.journal.readDirectives(ctx)
			return c, cmp.Or(err, ErrNoCatalog)
		}
		c = *stored
	}
	directives, known, err := op.journal.readDirectives(ctx)
	if err != nil {
		return Catalog{}, err
	}
	if !known {
		for _, s := range op.registry.list() {
			for _, at := range s.doors() {
				if o := at.lastDirective.Load(); o != nil {
					directives = append(directives, *o)
				}
			}
		}
	}
	if known {
		all, err := op.storedCatalogs(ctx)
		if err != nil {
			return Catalog{}, err
		}
		for i := range all {
			c.Buses = append(c.Buses, CatalogBus{all[i].Instance, all[i].Active, all[i].seen})
		}
	}
	c.Directives = c.underPresentNames(directives)
	now := op.time.Now().UTC
	for i := range c.Directives {
		if o := &c.Directives[i]; o.Pause && !o.Until.IsZero() && !o.Until.After(now) { // the pause has ended
			o.Pause, o.Until = false, time.Time{}
		}
	}
	c.Directives = slices.DeleteFunc(c.Directives, func(o Directive) bool { return !o.Trip && !o.Pause })
	return c, nil
}

// storedCatalog returns the catalog of the store, or nil. It is an error if none can be read.
func (op *operators) storedCatalog(ctx context.Context) (c *Catalog, err error) {
	all, err := op.storedCatalogs(ctx)
	for i := range all {
		in := &all[i]
		if in.unreadable != nil {
			err = errors.Join(err, in.unreadable)
		} else if c == nil || in.Active && !c.Active || in.Active == c.Active && !in.At.Before(c.At) {
			c = &in.Catalog
		}
	}
	if c != nil {
		return c, nil
	}
	return nil, err
}

// instance is the catalog of a bus, as the store has it.
type instance struct {
	Catalog
	number     int64
	seen       time.Time
	body       []byte
	unreadable error // another version has written the catalog: only Instance is known

	idle  time.Duration // since the bus saw it change; see sightings
	lives bool
}

// storedCatalogs returns the catalogs of the store, in the order in which their buses began to use it.
func (op *operators) storedCatalogs(ctx context.Context) (all []instance, err error) {
	read, err := op.store.Catalogs(ctx)
	for _, r := range read {
		in := instance{number: r.Number, seen: r.Seen, body: r.Body}
		if err := json.Unmarshal(r.Body, &in.Catalog); err != nil {
			in.Catalog, in.unreadable = Catalog{}, &DecodeError{What: "catalog", Err: err}
			if _, known := op.unreadable.LoadOrStore(r.Instance, nil); !known {
				op.log.Warn("catalog of another bus cannot be read", zap.String("instance", r.Instance), zap.Error(err))
			}
		}
		in.Instance = r.Instance
		all = append(all, in)
	}
	return all, err
}

// catalogNow returns the catalog of the bus, without directives.
func (op *operators) catalogNow() Catalog {
	settings := op.registry.retry.Load()
	c := Catalog{
		At: op.time.Now().UTC, Instance: op.instance, Active: op.journal.dispatches() && !op.halts.Has(halt.Lost), Policy: settings.RetryPolicy.clone(), RetryIf: settings.RetryIf != nil, Rules: settings.rules.list(),
		Timeout: op.config.timeout, Circuit: CircuitSettings(op.config.circuit), Isolated: op.config.isolation,
		Concurrency: op.config.concurrency, QueueCapacity: op.config.queue, MaxUnsettled: op.config.unsettled,
		Subscriptions: []CatalogSubscription{},
	}
	c.Policy.RetryIf = nil
	for _, s := range op.registry.list() {
		own := s.retry.Load()
		in := CatalogSubscription{
			Subscription: s.id, Pattern: s.pattern, Formerly: slices.Clone(s.formerly), Isolated: s.isolated,
			Concurrency: s.concurrencyOption(), RateLimit: s.rateLimit, MaxThrottle: s.throttle, Timeout: s.timeout, LineCapacity: s.door.bound(),
			Once: s.door.terms().single, DeadLetters: s.letters, Detached: s.Detached(),
			WhenOpen: s.door.terms().whenOpen, WhenFull: s.door.terms().whenFull, DropExpired: s.door.terms().dropLate, Circuit: CircuitSettings(s.circuit), PerDestination: s.destinations != nil,
			Retry: own.RetryPolicy.clone(), Rules: own.rules.list(), OwnRules: own.rules != nil,
		}
		if in.Retry.RetryIf = nil; own.set != 0 {
			in.Overrides = own.texts()
		}
		c.Subscriptions = append(c.Subscriptions, in)
	}
	return c
}

// concurrencyOption returns the limit as the option Concurrency sets it.
func (s *Subscription) concurrencyOption() int {
	switch {
	case s.concurrency < math.MaxInt32:
		return int(s.concurrency)
	case s.door.terms().share == math.MaxInt32:
		return Unlimited
	}
	return 0
}

// bound returns the capacity of the line, or 0 if further deliveries wait in the store.
func (o *door) bound() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spill.allowed {
		return 0
	}
	return o.terms().capacity
}

// underPresentNames returns the latest directive to each subscription under any of its names, as one to its
// present name, sorted by Subscription.
func (c *Catalog) underPresentNames(directives []Directive) (present []Directive) {
	latest := make(map[place]Directive, len(directives))
	for _, o := range directives {
		if in, ok := c.Find(o.Subscription); ok {
			o.Subscription = in.Subscription
		}
		if was, ok := latest[o.place()]; !ok || o.At.After(was.At) {
			latest[o.place()] = o
		}
	}
	return slices.SortedFunc(maps.Values(latest), func(x, y Directive) int {
		return cmp.Or(cmp.Compare(x.Subscription, y.Subscription), cmp.Compare(x.Destination, y.Destination))
	})
}

// Explain returns how the bus of the catalog would dispatch an event of a type, as Bus.Explain does. CatalogAt of the
// plan is At. A catalog has neither states of circuits nor numbers of held deliveries. Err of the plan is a
// *PatternError if no bus made the catalog.
func (c *Catalog) Explain(eventType string) Plan {
	if offence := route.CheckType(eventType); offence != nil {
		return Plan{EventType: eventType, Err: typeError(eventType, offence)}
	}
	to := &targets{eventType: eventType}
	bus := &retrySettings{retryOverride: retryOverride{RetryPolicy: c.Policy.clone()}, rules: &ruleSet{rules: cloneRules(c.Rules)}}
	if c.RetryIf {
		bus.RetryIf = retryIfElsewhere
	}
	to.retry.bus = bus
	var described []*CatalogSubscription
	for i := range c.Subscriptions {
		in := &c.Subscriptions[i]
		pattern, offence := route.Parse(in.Pattern)
		if offence != nil {
			return Plan{EventType: eventType, Err: patternError(in.Pattern, offence)}
		}
		if in.DeadLetters || !pattern.Match(eventType) {
			continue
		}
		s := &Subscription{id: in.Subscription, pattern: in.Pattern, timeout: in.Timeout, isolated: in.Isolated || c.Isolated}
		s.door = new(door)
		s.door.sets(terms{of: s, whenOpen: in.WhenOpen})
		to.subscriptions = append(to.subscriptions, s)
		to.retry.own = append(to.retry.own, in.settings())
		described = append(described, in)
	}
	p := explain(to, c.Isolated)
	p.CatalogAt = c.At
	for i, in := range described {
		t := &p.Targets[i]
		if t.Circuit = CircuitUnknown; in.Circuit.Disabled {
			t.Circuit = CircuitDisabled
		}
		t.Paused = slices.ContainsFunc(c.Directives, func(o Directive) bool { return o.place() == (place{subscription: in.Subscription}) && o.Pause })
		if t.Paused {
			t.ShutBy = ParkPaused
		}
	}
	return p
}

// retryIfElsewhere stands for a function that another process has.
func retryIfElsewhere(error) bool { return true }

// settings returns the retry settings of a subscription in a catalog.
func (in *CatalogSubscription) settings() *retrySettings {
	s := &retrySettings{retryOverride: retryOverride{RetryPolicy: in.Retry.clone()}}
	for _, field := range retryFields {
		if _, ok := in.Overrides[field.name]; ok {
			s.set |= field.set
		}
	}
	if s.set&fieldRetryIf != 0 && in.Overrides["RetryIf"] != everyError {
		s.RetryIf = retryIfElsewhere
	}
	if in.OwnRules {
		s.rules = &ruleSet{rules: cloneRules(in.Rules)}
	}
	return s
}

// catalogKeeper records the catalog of a bus in its store.
type catalogKeeper struct {
	of *operators

	mu    sync.Mutex // guards the following; see the lock order of Bus
	begun bool       // Start has recorded the catalog
	ended bool
	timer *clock.Timer // of the next record; nil without
	soon  bool         // the timer is that of a change, not of a standby
}

// catalogDelay is how long a change of the catalog waits for further ones.
const catalogDelay = 500 * time.Millisecond

// standbySeen is how often a standby records its catalog, so that others see that it lives.
const standbySeen = 15 * time.Second

// changed makes the bus record its catalog soon. It does not wait for the store.
func (k *catalogKeeper) changed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.begun && !k.ended {
		k.changedLocked()
	}
}

func (k *catalogKeeper) changedLocked() {
	if k.soon {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	k.soon, k.timer = true, k.of.time.AfterFunc(catalogDelay, k.recordAgain)
}

// record submits the catalog. It does not wait for the store.
func (k *catalogKeeper) record() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recordLocked()
}

// recordAgain is record for a bus that has recorded its catalog.
func (k *catalogKeeper) recordAgain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.begun {
		k.recordLocked()
	}
}

// withdraw removes the catalog of a bus whose Start has failed: it is no standby.
func (k *catalogKeeper) withdraw() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.begun || k.ended {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	k.begun, k.soon, k.timer = false, false, nil
	k.removeLocked()
}

func (k *catalogKeeper) removeLocked() {
	w := newBatch(k.of.time)
	w.Catalog = &driver.Catalog{Instance: k.of.instance}
	k.of.store.submit(w, room.Pass{}, func(error) {})
}

// recordLocked keeps the lock while it submits: an older catalog must not come later.
func (k *catalogKeeper) recordLocked() {
	if k.ended {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	k.begun, k.soon, k.timer = true, false, nil
	o := k.of
	c := o.catalogNow()
	w := &batch{Batch: driver.Batch{Now: c.At}}
	w.Catalog = &driver.Catalog{Instance: c.Instance, Body: w.encode(&c)}
	var inherited []Directive
	if !c.Active { // the bus with the lease records directives
		k.timer = o.time.AfterFunc(standbySeen, k.recordAgain)
	} else if o.directing.TryLock() {
		inherited = o.inherited()
		w.direct(inherited...)
		defer o.directing.Unlock()
	} else { // a directive is being read or recorded, which may take long
		k.changedLocked()
	}
	o.store.submit(w, room.Pass{}, func(err error) {
		if err == nil {
			o.keepDirectives(inherited)
		}
		k.recorded(err)
	})
}

// recorded is called when the store has the catalog. If the store has failed, the restart records it again.
func (k *catalogKeeper) recorded(err error) {
	var refused *driver.RefusedError
	switch {
	case err == nil:
		k.of.durable.othersCommitted(driver.ChangedCatalogs)
	case errors.As(err, &refused):
		k.of.log.Error("store refused the catalog of subscriptions", zap.Error(err))
	}
}

// end records the last change, or removes the catalog of a standby. Later changes are not recorded.
func (k *catalogKeeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.begun && !k.of.store.leads():
		k.removeLocked()
	case k.soon:
		k.recordLocked()
	}
	if k.ended = true; k.timer != nil {
		k.timer.Stop()
	}
}
