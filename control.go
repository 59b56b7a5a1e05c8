package eventbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/names"
)

// Subscription returns the subscription with a name: from Named, from Formerly, or a pattern and number ("order.*#3").
// It never returns nil. Without such a subscription, Exists reports false, and methods with an error return
// ErrNoSubscription, with the nearest name. On a bus WithoutHandlers, every name but "" has a subscription.
func (b *Bus) Subscription(name string) *Subscription {
	if !b.usable() {
		return &Subscription{id: name}
	}
	if s := b.registry.find(name); s != nil {
		return s
	}
	if b.config.tool && name != "" {
		return b.registry.handle(name)
	}
	s := b.absent(name)
	s.gone.Store(true)
	return s
}

// Exists reports whether the bus has the subscription: false after Unsubscribe, and for what
// Bus.Subscription returns for a name that no subscription has.
func (s *Subscription) Exists() bool { return s != nil && s.bus != nil && !s.gone.Load() }

// Trip opens the subscription's circuit for OpenFor, as failures would. After that, one delivery at
// a time probes. The circuit ignores the outcomes of handlers that run now.
//
// A store keeps the directive: after a restart within OpenFor, the circuit is still open. Trip blocks
// until the store has it.
//
// Errors: ErrNoSubscription after Unsubscribe, ErrCircuitDisabled, *OptionError, the store's.
func (s *Subscription) Trip(opts ...DirectiveOption) error {
	return s.order("", AuditTrip, time.Time{}, opts)
}

// switched trips or resets the circuit.
func (o *door) switched(b *Bus, circuitTo func(nanos int64) circuit.Change) (report func()) {
	change := circuitTo(b.time.Nanos())
	return func() {
		b.report.circuitChanged(o, change)
		b.machine.tend(o)
	}
}

// Reset closes the subscription's circuit and clears its window. Held deliveries resume. It blocks
// until the store has the directive.
//
// Errors: ErrNoSubscription after Unsubscribe, ErrCircuitDisabled, *OptionError, the store's.
func (s *Subscription) Reset(opts ...DirectiveOption) error {
	return s.order("", AuditReset, time.Time{}, opts)
}

// Pause holds the subscription's deliveries until Resume, regardless of its circuit and its
// WhenOpen. After Pause has returned, no call of the handler begins. Pause does not wait for
// running calls; their retries are held too. A full line treats later deliveries by WhenFull: by
// default they are dead-lettered with the reason overflow. Shutdown does not wait for held
// deliveries.
//
// A store keeps the directive until Resume, also across restarts. Pause blocks until the store has it.
//
// Errors: ErrNoSubscription after Unsubscribe, *OptionError, the store's.
func (s *Subscription) Pause(opts ...DirectiveOption) error {
	return s.order("", AuditPause, time.Time{}, opts)
}

// HoldUntil pauses the subscription until an instant of the wall clock, or until Resume. A later Pause or HoldUntil
// replaces it. A store keeps the directive across restarts, and HoldUntil blocks until the store has it. If the clock
// is set or the machine is suspended, the pause ends at most 30 s late. It never ends before the clock shows the
// instant.
//
// Errors: ErrNoSubscription after Unsubscribe, an *OptionError for an instant that is not in the
// future or after the year 9999 or an invalid option, the store's.
func (s *Subscription) HoldUntil(t time.Time, opts ...DirectiveOption) error {
	return s.holdUntil("", t, opts)
}

func (s *Subscription) holdUntil(destination string, t time.Time, opts []DirectiveOption) error {
	if err := s.controllable("HoldUntil"); err != nil {
		return err
	}
	if t = t.Round(0).UTC(); !t.After(s.bus.time.Now().UTC) {
		return &OptionError{Option: "HoldUntil", Value: t.String(), Reason: "is not in the future; Resume ends a pause"}
	}
	if !driver.Storable(t) {
		return &OptionError{Option: "HoldUntil", Value: t.String(), Reason: badYear + "; Pause has no end"}
	}
	return s.order(destination, AuditHoldUntil, t, opts)
}

// holds pauses the subscription, or the destination.
func (o *door) holds(b *Bus, by *Directive) (report func()) {
	o.pause(by.Until)
	fields := append(by.fields(), fieldsOf(o)...)
	if !by.Until.IsZero() {
		fields = append(fields, zap.Time("until", by.Until))
	}
	return func() {
		b.log.Info("subscription paused", fields...)
		b.machine.tendAll(o) // the time to wake the doors has changed
	}
}

// Resume ends Pause, HoldUntil and Throttle. Held deliveries resume, oldest first, as the circuit admits them. A hung
// subscription (MaxAbandoned) resumes as if its abandoned calls had returned. On a subscription that is neither paused
// nor hung, Resume only stops counting the abandoned calls. It blocks until the store, if there is one, has the
// directive.
//
// Errors: ErrNoSubscription after Unsubscribe, *OptionError, the store's.
func (s *Subscription) Resume(opts ...DirectiveOption) error {
	return s.order("", AuditResume, time.Time{}, opts)
}

// resumes ends a pause and what a handler has asked for by Throttle, and forgets the calls that hang.
func (o *door) resumes(b *Bus, by *Directive) (report func()) {
	resumed, _ := o.paused(b)
	if resumed {
		o.resume()
	}
	resumed = o.endSlowdown() || resumed
	resumed = o.hanging.Forgive() || resumed
	fields := append(by.fields(), fieldsOf(o)...)
	return func() {
		if resumed {
			b.log.Info("subscription resumed", fields...)
		}
		b.machine.tendAll(o)
	}
}

// fieldsOf returns the log fields of the subscription, or the destination, of a door.
func fieldsOf(o *door) []zap.Field {
	fields := []zap.Field{zap.String("subscription_id", o.set.Load().of.id)}
	if o.name != "" {
		fields = append(fields, zap.String("destination", o.name))
	}
	return fields
}

// Destination controls one destination of a subscription with PerDestination. Subscription.Destination returns it. Its
// methods work as the methods of Subscription, for this destination alone. They are safe for concurrent use. Directives
// outlive the deliveries of the destination. With a store, they outlive the process.
//
// Errors of all methods but Name: an *OptionError if the subscription was made without PerDestination, otherwise those of the
// method of Subscription.
type Destination struct {
	of   *Subscription
	name string
}

// Destination returns the destination with a name; CommonDestination or "" is the common one. It never returns nil, and does not
// check whether the subscription has PerDestination or a delivery for the name. You can pause a destination before its first delivery.
func (s *Subscription) Destination(name string) *Destination {
	return &Destination{of: s, name: destinationName(name)}
}

// Name returns the destination's name, cut to 255 bytes as PerDestination cuts it.
func (d *Destination) Name() string { return d.name }

// Trip opens the destination's circuit. See Subscription.Trip.
func (d *Destination) Trip(opts ...DirectiveOption) error {
	return d.of.order(d.name, AuditTrip, time.Time{}, opts)
}

// Reset closes the destination's circuit. See Subscription.Reset.
func (d *Destination) Reset(opts ...DirectiveOption) error {
	return d.of.order(d.name, AuditReset, time.Time{}, opts)
}

// Pause holds the destination's deliveries until its Resume. See Subscription.Pause.
func (d *Destination) Pause(opts ...DirectiveOption) error {
	return d.of.order(d.name, AuditPause, time.Time{}, opts)
}

// HoldUntil pauses the destination until an instant of the wall clock or its Resume. See Subscription.HoldUntil.
func (d *Destination) HoldUntil(t time.Time, opts ...DirectiveOption) error {
	return d.of.holdUntil(d.name, t, opts)
}

// Resume ends Pause, HoldUntil and Throttle of the destination, and admits deliveries if it is hung. It does not end a Pause of the
// whole subscription. See Subscription.Resume.
func (d *Destination) Resume(opts ...DirectiveOption) error {
	return d.of.order(d.name, AuditResume, time.Time{}, opts)
}

// RetireOption is an option of Retire: DropRetired, By, Because or FromRequest.
type RetireOption interface{ applyRetire(r *retiring) }

type retireOption func(*retiring)

func (o retireOption) applyRetire(r *retiring) { o(r) }

// retiring is what the options of Retire set.
type retiring struct {
	drop     bool
	operator operator
	err      error
}

// DropRetired makes Retire drop the deliveries of the name, without dead letters. Ledger.Dropped counts them.
func DropRetired() RetireOption { return retireOption(func(r *retiring) { r.drop = true }) }

// RetireReport counts the deliveries of a Retire.
type RetireReport struct {
	Parked int `json:"parked"` // deliveries that were parked at the start; a store may stop counting at 100,000
	Ended  int `json:"ended"`  // deliveries that became dead letters, or were dropped
	// Left is set if no bus runs on the store: the name is retired, and the next bus ends the deliveries. Ended is then
	// 0.
	Left bool `json:"left,omitempty"`
}

// Retire ends the name of a subscription that no bus has any more, or that is detached. Its deliveries become dead
// letters with the reason unsubscribed, or are dropped with DropRetired. Parked deliveries end now, scheduled and
// retrying ones when they are due. Events that are published afterwards for a new subscription of the name go to the
// new one.
//
// With a store, Retire returns a *NameInUseError while a live bus has the name in its catalog. The commit that retires
// the name checks this. A bus records a change of its catalog within a second. A killed standby counts as live for up
// to an hour. The bus with the lease then ends the deliveries in parts of at most 500, and commits publications in
// between. Retire waits for the last one. If ctx ends before, the bus continues without the caller, and after a crash
// the next bus does. Audit has an entry from before the first delivery and an entry with the outcome.
//
// Errors: *NameInUseError, which names the bus; ErrNoSubscription if neither a subscription nor a delivery has the name; *OptionError;
// ErrShutdown; the store's; the context's, with a report: the name may be retired then.
func (b *Bus) Retire(ctx context.Context, name string, opts ...RetireOption) (RetireReport, error) {
	r, err := new(retiring), b.ready(ctx)
	for i := 0; i < len(opts) && err == nil; i++ {
		if isNil(opts[i]) {
			err = nilOption("Retire", i)
			break
		}
		opts[i].applyRetire(r)
		err = r.err
	}
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = contextError(ctx)
	default:
		err = checkName("Retire", name)
	}
	var report RetireReport
	if o := &r.operator; err == nil {
		report, err = b.operators.retire(ctx, request{
			Action: AuditRetire, Subscription: name, Drop: r.drop, By: o.by, Why: o.why, Remote: o.remote, RequestID: o.requestID,
		})
	}
	if err != nil {
		return report, fmt.Errorf("Retire(%s): %w", shorten(name), err)
	}
	return report, nil
}

func (op *operators) retire(ctx context.Context, r request) (report RetireReport, err error) {
	for {
		answer, asked, err := op.journal.ask(ctx, r)
		switch {
		case !asked:
			if report, err = op.retireHere(ctx, r); errors.Is(err, ErrLeaseLost) {
				continue // another process carries it out
			}
		case err == nil:
			if err = answer.err(); err == nil && answer.Retired != nil {
				report = *answer.Retired
			}
		}
		if err != nil || report.Left {
			return report, err
		}
		return op.journal.awaitRetired(ctx, r.Subscription, report)
	}
}

// retireHere is Retire on the bus that carries it out: the one with the lease, or in memory this one.
func (op *operators) retireHere(ctx context.Context, r request) (RetireReport, error) {
	s := op.registry.find(r.Subscription)
	if s != nil && !s.Detached() {
		return RetireReport{}, &NameInUseError{Subscription: r.Subscription, Instance: op.instance}
	}
	return op.journal.retire(ctx, r, s)
}

func (s *Subscription) controllable(what string) error {
	switch {
	case s == nil || s.bus == nil:
		return fmt.Errorf("%s: %w", what, ErrUninitialized)
	case s.heir.Load() != nil:
		return fmt.Errorf("%s: %w: %q was taken over by a later subscription; Bus.Subscription(%[3]q) has it", what, ErrNoSubscription, shorten(s.id))
	case s.gone.Load() && s.handler != nil:
		return fmt.Errorf("%s: %w: %q was unsubscribed", what, ErrNoSubscription, shorten(s.id))
	case s.gone.Load():
		return fmt.Errorf("%s: %w: %s", what, ErrNoSubscription, s.bus.operators.noneNamed(s.id))
	}
	return nil
}

// noneNamed says that no subscription has a name, and which name is the nearest.
func (op *operators) noneNamed(name string) string {
	var all []string
	for _, s := range op.registry.list() {
		all = append(all, s.names()...)
	}
	if len(all) == 0 {
		return fmt.Sprintf("%q; the bus has none", shorten(name))
	}
	return fmt.Sprintf("%q; the nearest name is %q", shorten(name), names.Nearest(name, all))
}

// paused reports whether the subscription is paused, and until when for HoldUntil.
func (s *Subscription) paused() (paused bool, until time.Time) { return s.door.paused(s.bus) }

func (o *door) paused(b *Bus) (paused bool, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endPauseLocked(b)
	if o.circuit.Gate.Load()&circuit.Paused == 0 {
		return false, time.Time{}
	}
	return true, o.pausedUntil
}

// pause shuts the door until an instant, or without an end for the zero time.
func (o *door) pause(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pausedUntil = until
	o.circuit.Gate.Or(circuit.Paused)
}

// resume ends a pause.
func (o *door) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.circuit.Gate.And(^uint64(circuit.Paused))
}

func (o *door) endPauseLocked(b *Bus) {
	if o.circuit.Gate.Load()&circuit.Paused != 0 && b.time.HasCome(o.pausedUntil) {
		o.circuit.Gate.And(^uint64(circuit.Paused))
	}
}

// hungPatience is how long a subscription is hung before its throttled deliveries become held and the log
// says so. A handler that returns when its context ends causes neither.
const hungPatience = time.Second

// reportHung reports that a subscription, or a destination, is hung, if it still is after hungPatience.
func (m *machine) reportHung(o *door, shuts uint32) {
	m.time.AfterFunc(hungPatience, func() {
		calls, lasts := o.hanging.Last(shuts)
		if !lasts || m.ledger.closed.Load() {
			return
		}
		m.tendAll(o)
		m.log.Warn("subscription hung: its deliveries are held until abandoned calls return, or Resume",
			append(fieldsOf(o), zap.Int("abandoned", calls), zap.Duration("timeout", o.of().timeout))...)
	})
}

const badYear = "is outside the years 0 to 9999"

// NameInUseError is returned by Retire for a name that a live bus has. It matches ErrNameInUse.
type NameInUseError struct {
	Subscription string `json:"subscription"` // the name
	Instance     string `json:"instance"`     // the bus that has it: Catalog.Instance
}

// Error returns the text of the error.
func (e *NameInUseError) Error() string {
	return fmt.Sprintf("%v: bus %s has %q; unsubscribe or detach it there, or end that process", ErrNameInUse, e.Instance, e.Subscription)
}

// Unwrap returns ErrNameInUse.
func (e *NameInUseError) Unwrap() error { return ErrNameInUse }
