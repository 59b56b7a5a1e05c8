package eventbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/texts"
	"github.com/surebus/eventbus/internal/timeline"
)

// operators has the directives to subscriptions, the audit of what operators do, and the catalog in which a tool finds the
// subscriptions.
type operators struct {
	*Bus

	directing semaphore     // held while a directive is recorded or read, and carried out
	cataloged catalogKeeper // with a store

	unreadable sync.Map // instances of whose catalogs the log has an entry, to nil

	mu         sync.Mutex          // guards the following
	directives map[place]Directive // of the store
}

func newOperators(b *Bus) *operators {
	o := &operators{Bus: b, directing: make(semaphore, 1)}
	o.cataloged.of = o
	return o
}

// Directive is an order of an operator to a subscription or a destination. A store keeps it across restarts.
type Directive struct {
	Subscription string    `json:"subscription"`          // the subscription's name
	Destination  string    `json:"destination,omitempty"` // one destination; "" for the whole subscription
	Pause        bool      `json:"pause,omitempty"`       // deliveries are held: by Pause, or by HoldUntil
	Until        time.Time `json:"until,omitzero"`        // the end of HoldUntil; zero for Pause
	Trip         bool      `json:"trip,omitempty"`        // an operator opened the circuit
	By           string    `json:"by,omitempty"`          // the operator, from the option By
	Why          string    `json:"why,omitempty"`         // the reason, from the option Because
	At           time.Time `json:"at"`                    // when the directive was given, in UTC
}

// DirectiveOption is By, Because or FromRequest: an option of the calls of operators on subscriptions, dead letters and
// events. It is a BulkOption too. The values are in Audit and in the log.
type DirectiveOption interface {
	TransferOption
	RetireOption
	ActionOption
	applyDirective(*operator) error
}

// operator is who does something, why, and from where.
type operator struct{ by, why, remote, requestID string }

type directiveOption func(*operator) error

func (o directiveOption) applyDirective(to *operator) error { return o(to) }

func (directiveOption) transfers() {}

func (o directiveOption) applyRetire(r *retiring) {
	if err := o(&r.operator); err != nil && r.err == nil {
		r.err = err
	}
}

func (o directiveOption) applyBulk(b *bulk) {
	if err := o(&b.operator); err != nil && b.err == nil {
		b.err = err
	}
}

// By sets the name of the operator: up to 255 bytes of UTF-8 without control characters.
func By(name string) DirectiveOption {
	return directiveOption(func(o *operator) error {
		o.by = name
		return checkDirectiveText("By", name)
	})
}

// Because sets the operator's reason: up to 255 bytes of UTF-8 without control characters.
func Because(reason string) DirectiveOption {
	return directiveOption(func(o *operator) error {
		o.why = reason
		return checkDirectiveText("Because", reason)
	})
}

// FromRequest sets the origin of an operator's call: the address of the client, and the id of the request in the logs
// of a server. Each is up to 255 bytes of UTF-8 without control characters, or empty.
func FromRequest(remote, id string) DirectiveOption {
	return directiveOption(func(o *operator) error {
		o.remote, o.requestID = remote, id
		return cmp.Or(checkDirectiveText("FromRequest", remote), checkDirectiveText("FromRequest", id))
	})
}

// newOperator applies options.
func newOperator(what string, opts []DirectiveOption) (o operator, err error) {
	for i, opt := range opts {
		if isNil(opt) {
			return o, nilOption(what, i)
		}
		if err := opt.applyDirective(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

func checkDirectiveText(option, text string) error {
	if reason, _ := texts.Problem(text, maxName); reason != "" {
		return &OptionError{Option: option, Value: strconv.Quote(shorten(text)), Reason: reason}
	}
	return nil
}

// fields returns the log fields of the operator and the reason.
func (o *Directive) fields() (fields []zap.Field) {
	if o.By != "" {
		fields = append(fields, zap.String("by", o.By))
	}
	if o.Why != "" {
		fields = append(fields, zap.String("why", o.Why))
	}
	return fields
}

// verb is what an operator orders of a subscription.
type verb struct {
	what   string // the method of Subscription
	change func(o *Directive, until time.Time)
	// act carries it out, under operators.directing. The caller calls the result when it has released it.
	act func(at *door, b *Bus, o *Directive) (report func())
}

// verbs has the orders to subscriptions.
var verbs = map[AuditAction]*verb{
	AuditPause: {
		what:   "Pause",
		change: func(o *Directive, _ time.Time) { o.Pause, o.Until = true, time.Time{} },
		act:    (*door).holds,
	},
	AuditHoldUntil: {
		what:   "HoldUntil",
		change: func(o *Directive, until time.Time) { o.Pause, o.Until = true, until },
		act:    (*door).holds,
	},
	AuditResume: {
		what:   "Resume",
		change: func(o *Directive, _ time.Time) { o.Pause, o.Until = false, time.Time{} },
		act:    (*door).resumes,
	},
	AuditTrip: {
		what:   "Trip",
		change: func(o *Directive, _ time.Time) { o.Trip = true },
		act:    func(at *door, b *Bus, _ *Directive) func() { return at.switched(b, at.circuit.Trip) },
	},
	AuditReset: {
		what:   "Reset",
		change: func(o *Directive, _ time.Time) { o.Trip = false },
		act:    func(at *door, b *Bus, _ *Directive) func() { return at.switched(b, at.circuit.Reset) },
	},
}

// place is a subscription, or one of its destinations.
type place struct{ subscription, destination string }

// order carries out what an operator orders of the subscription, or of a destination, or asks the bus with the lease to do it.
// until is that of AuditHoldUntil.
func (s *Subscription) order(destination string, action AuditAction, until time.Time, opts []DirectiveOption) error {
	what := verbs[action].what
	if err := s.controllable(what); err != nil {
		return err
	}
	if err := s.checkDestination(destination); err != nil {
		return err
	}
	o, err := newOperator(what, opts)
	if err != nil {
		return err
	}
	r := request{Action: action, Subscription: s.id, Destination: destination, Until: until, By: o.by, Why: o.why, Remote: o.remote, RequestID: o.requestID}
	if err := s.bus.operators.order(s, r); err != nil {
		return fmt.Errorf("%s(%s): %w", what, s.id, err)
	}
	return nil
}

// checkDestination returns an error if an order is to a destination and the subscription was made without PerDestination. A stand-in
// for a subscription of another process accepts every destination: that process checks.
func (s *Subscription) checkDestination(destination string) error {
	if destination == "" || s.destinations != nil {
		return nil
	}
	return &OptionError{Option: "Destination", Value: strconv.Quote(destination), Reason: fmt.Sprintf("needs PerDestination, and %s was made without it", s.id)}
}

func (op *operators) order(s *Subscription, r request) error {
	for {
		answer, asked, err := op.journal.ask(context.Background(), r)
		if !asked {
			if err = op.direct(s, r); errors.Is(err, ErrLeaseLost) {
				continue // another process carries it out
			}
			return err
		}
		if err == nil {
			err = answer.err()
		}
		if err != nil {
			return err
		}
		at, unpin := s.pinned(r.Destination)
		defer unpin()
		at.lastDirective.Store(answer.Directive)
		return op.obeyOthers()
	}
}

// carryOut does what another process has asked for.
func (op *operators) carryOut(ctx context.Context, r request) error {
	switch {
	case r.Action == AuditRetire:
		_, err := op.retireHere(ctx, r)
		return err
	case verbNames[r.Action] != "":
		return op.actHere(ctx, r.action())
	case verbs[r.Action] == nil:
		return fmt.Errorf("eventbus: unknown request %q: it is one of a later version", shorten(string(r.Action)))
	}
	s := op.registry.find(r.Subscription)
	if s == nil {
		s = op.registry.handle(r.Subscription)
	}
	return op.direct(s, r)
}

// direct records a directive, and then carries it out. Directives are carried out in the order in which they are recorded,
// by the subscriptions that have the names then.
func (op *operators) direct(s *Subscription, r request) error {
	v := verbs[r.Action]
	if err := s.checkDestination(r.Destination); err != nil { // a tool cannot check
		return err
	}
	at, unpin := s.pinned(r.Destination)
	defer unpin()
	if at.circuit.Config().Disabled && (r.Action == AuditTrip || r.Action == AuditReset) {
		if at.whole == nil && s.destinations != nil {
			return fmt.Errorf("%w: each destination has one, see Subscription.Destination", ErrCircuitDisabled)
		}
		return ErrCircuitDisabled
	}
	op.directing.Lock()
	report, err := op.directLocked(at, v, r)
	after := op.obeyLocked()
	op.directing.Unlock()
	report()
	after()
	return err
}

// directLocked is direct for a caller that holds operators.directing.
func (op *operators) directLocked(at *door, v *verb, r request) (report func(), err error) {
	nothing, s := func() {}, at.of()
	same, err := op.namesOf(context.Background(), s.id)
	if err != nil {
		return nothing, err
	}
	if s.handler == nil || at.directed.At.IsZero() { // a stand-in, or a destination that was forgotten
		at.directed = op.directiveOf(same.Of(s.id), at.name)
	}
	entry := op.entry(r.operator(), r.Action)
	next := at.directed
	next.Subscription, next.Destination, next.At, next.By, next.Why = s.id, at.name, entry.At, r.By, r.Why
	if !next.At.After(at.directed.At) { // the clock was set back, and the latest counts
		next.At = at.directed.At.Add(1)
	}
	v.change(&next, r.Until)
	entry.Destination = at.name
	if entry.Subscription = s.id; entry.Action == AuditHoldUntil {
		entry.Until = next.Until
	}
	var all []Directive
	for _, name := range same.Of(s.id) { // an earlier version of the program, too, finds it
		all = append(all, next.to(name))
	}
	shared, err := op.journal.direct(all, entry, r.id, &next)
	if err != nil {
		return nothing, err
	}
	if shared {
		op.keepDirectives(all)
	}
	at.directed = next
	at.lastDirective.Store(&next)
	return v.act(at, op.Bus, &next), nil
}

// to returns the directive as one to the subscription of a name.
func (o Directive) to(name string) Directive {
	o.Subscription = name
	return o
}

// obeyed applies a directive from the store that was given to an earlier process, by another one, or to another
// subscription of a name. The caller holds operators.directing, or has not added the subscription yet.
func (at *door) obeyed(o Directive) (change circuit.Change) {
	was := at.directed
	at.directed = o
	if at.lastDirective.Store(nil); o.Pause || o.Trip {
		at.lastDirective.Store(&o)
	}
	now := at.of().bus.time.Now()
	switch {
	case o.Pause: // it ends at once if Until has come
		at.pause(o.Until)
	case was.Pause:
		at.resume()
	}
	switch {
	case o.Trip && !was.Trip:
		change = at.trippedSince(now, o.At)
	case was.Trip && !o.Trip && !at.circuit.Config().Disabled:
		change = at.circuit.Reset(now.Nanos)
	}
	return change
}

// trippedSince opens the circuit for the rest of OpenFor after a Trip. It does nothing once OpenFor is over.
func (at *door) trippedSince(now timeline.Instant, tripped time.Time) (change circuit.Change) {
	c := &at.circuit
	since := max(now.UTC.Sub(tripped), 0) // not later than now if the clock was set back
	if c.Config().Disabled || since >= c.Config().OpenFor {
		return change
	}
	return c.Trip(now.Nanos - int64(since))
}

// loadDirectives reads the directives. It ends with Shutdown too.
func (op *operators) loadDirectives(ctx context.Context) error {
	ctx, done := op.journal.untilStop(ctx)
	defer done()
	directives, known, err := op.journal.readDirectives(ctx)
	if err != nil || !known {
		return err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	op.directives = make(map[place]Directive, len(directives))
	for _, o := range directives {
		op.directives[o.place()] = o
	}
	return nil
}

// keepDirectives replaces the directives of names.
func (op *operators) keepDirectives(all []Directive) {
	op.mu.Lock()
	defer op.mu.Unlock()
	for _, o := range all {
		if !o.At.Before(op.directives[o.place()].At) {
			op.directives[o.place()] = o
		}
	}
}

// obeyOthers applies the directives that another process has recorded.
func (op *operators) obeyOthers() error {
	op.directing.Lock()
	err := op.loadDirectives(context.Background())
	report := op.obeyLocked()
	op.directing.Unlock()
	report()
	return err
}

// obeyLocked makes every subscription obey the latest directive to it. The caller holds directing, and calls the result
// when it has released it. Subscriptions that are made meanwhile obey in Subscribe.
func (op *operators) obeyLocked() (report func()) {
	var reports []func()
	for _, s := range op.registry.list() {
		for _, name := range op.destinationsOf(s) {
			at, unpin := s.pinned(name)
			if o := op.directiveOf(s.names(), name); !o.At.IsZero() && o != at.directed {
				change := at.obeyed(o)
				reports = append(reports, func() {
					op.report.circuitChanged(at, change)
					op.machine.tendAll(at)
				})
			}
			unpin()
		}
	}
	return func() {
		for _, r := range reports {
			r()
		}
	}
}

// destinationsOf returns "", which stands for the whole subscription, and the names of its destinations with a directive: one that is
// in force, or one to a destination that is known.
func (op *operators) destinationsOf(s *Subscription) []string {
	all := []string{""}
	if s.destinations == nil {
		return all
	}
	names := s.names()
	op.mu.Lock()
	defer op.mu.Unlock()
	for at, o := range op.directives {
		if at.destination != "" && slices.Contains(names, at.subscription) && (op.inForce(s, &o) || s.destinations.find(at.destination) != nil) {
			all = append(all, at.destination)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// inForce reports whether a directive to a destination still pauses it or opens its circuit.
func (op *operators) inForce(s *Subscription, o *Directive) bool {
	return o.Pause && !op.time.HasCome(o.Until) || o.Trip && op.time.Now().UTC.Sub(o.At) < s.circuit.OpenFor
}

// storedAs returns the name under which a store keeps the directive. No name of a subscription contains the separator.
func (o *Directive) storedAs() string {
	if o.Destination == "" {
		return o.Subscription
	}
	return o.Subscription + "\x1f" + o.Destination
}

// place returns the subscription or the destination that the directive is for.
func (o *Directive) place() place { return place{o.Subscription, o.Destination} }

// obeyDestinations applies the directives to the destinations of a new subscription.
func (op *operators) obeyDestinations(s *Subscription) {
	for _, name := range op.destinationsOf(s) {
		if at, unpin := s.pinned(name); name != "" {
			if o := op.directiveOf(s.names(), name); o != at.directed {
				op.report.circuitChanged(at, at.obeyed(o))
			}
			unpin()
		}
	}
}

// directiveOf returns the latest directive to a subscription or a destination, under any of its names, that the store had when loadDirectives
// read it, as one to the last of the names.
func (op *operators) directiveOf(names []string, destination string) (latest Directive) {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.directiveOfLocked(names, destination)
}

func (op *operators) directiveOfLocked(names []string, destination string) (latest Directive) {
	for _, name := range names {
		if o := op.directives[place{name, destination}]; o.At.After(latest.At) {
			latest = o.to(names[len(names)-1])
		}
	}
	return latest
}

// inherited returns directives that a subscription found under another name, as ones to each of its names, for the
// store: the next version of the program may know only the present one.
func (op *operators) inherited() (all []Directive) {
	for _, s := range op.registry.list() {
		for _, destination := range op.destinationsOf(s) {
			all = append(all, op.inheritedBy(s.names(), destination)...)
		}
	}
	return all
}

func (op *operators) inheritedBy(names []string, destination string) (all []Directive) {
	op.mu.Lock()
	defer op.mu.Unlock()
	latest := op.directiveOfLocked(names, destination)
	for _, name := range names {
		if latest.At.After(op.directives[place{name, destination}].At) {
			all = append(all, latest.to(name))
		}
	}
	return all
}
