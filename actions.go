package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/standing"
)

// ActionOption is an option of Cancel, RetryNow and GiveUp: OfSubscription, Probe, By, Because or FromRequest.
type ActionOption interface{ applyAction(a *action) error }

type actionOption func(*action) error

func (o actionOption) applyAction(a *action) error { return o(a) }

func (o directiveOption) applyAction(a *action) error { return o(&a.operator) }

// OfSubscription makes an action concern the event's delivery to one subscription, by its name or an earlier one, and
// leave the others as they are. The bus visits the subscriptions of one dispatch in order. An action skips a delivery
// behind others in its dispatch, unless it waits alone.
func OfSubscription(name string) ActionOption {
	return actionOption(func(a *action) error {
		a.subscription = name
		return checkName("OfSubscription", name)
	})
}

type probeOption struct{}

func (probeOption) applyBulk(b *bulk) { b.probe = true }

func (probeOption) applyAction(a *action) error {
	if a.verb != AuditRetryNow {
		return &OptionError{Option: "Probe", Value: "true", Reason: "is for RetryNow: Cancel and GiveUp call no handler"}
	}
	a.probe = true
	return nil
}

// Probe makes RetryNow try a held delivery, too. Behind an open circuit it probes now: its success closes the circuit,
// its failure opens it for OpenFor again. If the subscription is hung (MaxAbandoned), all its deliveries resume as if
// the abandoned calls had returned. A delivery that an operator has paused stays held until Resume.
func Probe() ProbeOption { return probeOption{} }

// ProbeOption is what Probe returns: an option of RetryNow and RetryNowMatching.
type ProbeOption interface {
	ActionOption
	BulkOption
}

// action is what an operator orders of events that have not settled.
type action struct {
	verb         AuditAction
	subscription string      // whose deliveries it concerns; "" for all of an event
	same         *names.Same // the names of that
	probe        bool
	operator     operator
	bulk         bool // it is a part of a bulk action, whose entry in the audit is for all parts
	events       map[EventID]bool
	answers      driver.RequestID // the request of another process, or 0
	acquires     bool             // see answerRequests

	reports map[EventID]*ActionReport
	fresh   map[EventID]fresh
	hurried map[*dispatch]bool // by RetryNow, once each: it may fail and wait again meanwhile

	// standing has the orders of Cancel for dispatches that it does not find in their places.
	standing map[EventID]*standing.Order
}

// endsAll reports whether the action ends its events, wherever they are.
func (a *action) endsAll() bool { return a.verb == AuditCancel && a.subscription == "" }

// isOperators reports whether an operator acts, and not the program.
func (a *action) isOperators() bool { return a.bulk || a.operator != (operator{}) }

// newAction applies options.
func newAction(verb AuditAction, opts []ActionOption) (*action, error) {
	a := &action{verb: verb}
	for i, o := range opts {
		if isNil(o) {
			return nil, nilOption(verbNames[verb], i)
		}
		if err := o.applyAction(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

var verbNames = map[AuditAction]string{AuditCancel: "Cancel", AuditRetryNow: "RetryNow", AuditGiveUp: "GiveUp"}

// of sets the events of an action.
func (a *action) of(events []EventID) {
	a.events, a.reports = make(map[EventID]bool, len(events)), make(map[EventID]*ActionReport, len(events))
	for _, id := range events {
		a.events[id] = true
	}
	a.standing = make(map[EventID]*standing.Order)
	a.begin()
}

// begin forgets what an earlier try has found of the events that are left.
func (a *action) begin() {
	a.fresh, a.hurried = make(map[EventID]fresh), make(map[*dispatch]bool)
	for id := range a.events {
		a.reports[id] = &ActionReport{Event: id, Deliveries: []ActedDelivery{}}
	}
}

// ActionReport lists the deliveries of an event that Cancel, RetryNow or GiveUp found, and what happened to each.
type ActionReport struct {
	Event EventID `json:"event_id"` // the event's id
	// Deliveries lists the dispatches that had not settled. It is empty if the event had settled.
	Deliveries []ActedDelivery `json:"deliveries"`
	// Forgotten is set if Cancel ended an event before its first call of a handler. Its id and its idempotency key are
	// free again. A call that returned Throttle does not count.
	Forgotten bool `json:"forgotten,omitempty"`
}

// ActedDelivery is a dispatch of an event that an operator's action has found.
type ActedDelivery struct {
	// Subscription is the next subscription of the dispatch. Targets lists it and the subscriptions after it.
	Subscription string        `json:"subscription"`
	Targets      []string      `json:"targets,omitempty"`
	State        DispatchState `json:"state"`            // where it was
	Parked       ParkReason    `json:"parked,omitempty"` // why it was parked, if it was
	Attempts     int           `json:"attempts"`         // number of attempts
	Done         bool          `json:"done"`             // the action was carried out
	// Left is why nothing was done, and what to do. It is empty if nothing had to be done, for example because a delivery runs already.
	Left string `json:"left,omitempty"`
}

// done returns the number of deliveries for which the action was carried out, and the reason of the first one that was left.
func (r *ActionReport) done() (done int, left string) {
	for _, d := range r.Deliveries {
		switch {
		case d.Done:
			done++
		case left == "" && d.Left != "":
			left = fmt.Sprintf("%s is %s: %s", cmp.Or(shorten(d.Subscription), "the event"), d.State, d.Left)
		}
	}
	return done, left
}

// Cancel ends an event that has not settled, wherever it is: scheduled, queued, waiting for a retry, parked, running,
// or not taken in yet. No further handler is called for it, and it makes no dead letter. The context of a running call
// ends with the cause ErrCancelled, and its result is ignored. Cancel does not wait for that call, not even in the
// event's own handler; until it returns it is an abandoned call (MaxAbandoned). Cancel undoes nothing at subscriptions
// that have handled the event. If no call had begun, the id and the idempotency key of the event can be used again. For
// an event that only the store had, such as one of an earlier process, this holds only if it was scheduled or incoming.
//
// Cancel blocks until the store, if there is one, has recorded the change. With By, Because or FromRequest, it adds an
// entry to Audit. It is safe to repeat. In memory, Cancel does not find an event while an observer delays it. A bus
// without the lease, such as a standby, cancels incoming events itself. For other events it asks the bus that has the
// lease.
//
// Errors: ErrUnknownEvent; ErrSettled if each delivery has settled; ErrNothingDone, with the reason, if the other deliveries could not be
// cancelled; *OptionError; the context's, and then it is unknown whether a store has cancelled the event; ErrShutdown; ErrNoAnswer; the
// store's.
func (b *Bus) Cancel(ctx context.Context, id EventID, opts ...ActionOption) (ActionReport, error) {
	return b.actOn(ctx, AuditCancel, id, opts)
}

// RetryNow ends the wait of an event's deliveries for their next attempt or the end of a Snooze. They run as soon as a
// worker is free. Queued, running and throttled deliveries need no action. Held deliveries stay held, unless the option
// Probe is set. The attempt counts as any other.
//
// RetryNow blocks until the store, if there is one, has recorded the change. With By, Because or FromRequest, it adds
// an entry to Audit. It is safe to repeat. A bus without the lease asks the bus that has it.
//
// Errors: ErrUnknownEvent; ErrSettled; ErrNothingDone, with the reason, if each unsettled delivery has to wait; *OptionError; the context's;
// ErrShutdown; ErrNoAnswer; the store's.
func (b *Bus) RetryNow(ctx context.Context, id EventID, opts ...ActionOption) (ActionReport, error) {
	return b.actOn(ctx, AuditRetryNow, id, opts)
}

// GiveUp turns the waiting deliveries of an event into dead letters with the reason operator, which can be replayed.
// Deliveries wait if they are scheduled, queued, parked or due for a retry. GiveUp does not end a running call; Cancel
// does.
//
// GiveUp blocks until the store, if there is one, has recorded the change. With By, Because or FromRequest, it adds an
// entry to Audit. It is safe to repeat. A bus without the lease asks the bus that has it.
//
// Errors: ErrUnknownEvent; ErrSettled; ErrNothingDone, with the reason, if no unsettled delivery could be given up; *OptionError; the context's;
// ErrShutdown; ErrNoAnswer; the store's.
func (b *Bus) GiveUp(ctx context.Context, id EventID, opts ...ActionOption) (ActionReport, error) {
	return b.actOn(ctx, AuditGiveUp, id, opts)
}

func (b *Bus) actOn(ctx context.Context, verb AuditAction, id EventID, opts []ActionOption) (ActionReport, error) {
	var report ActionReport
	what := verbNames[verb]
	if err := b.ready(ctx); err != nil {
		return report, fmt.Errorf("%s: %w", what, err)
	}
	a, err := newAction(verb, opts)
	if err != nil {
		return report, fmt.Errorf("%s: %w", what, err)
	}
	if ctx.Err() != nil {
		return report, fmt.Errorf("%s: %w", what, contextError(ctx))
	}
	reports, err := b.operators.act(ctx, a, []EventID{id})
	if len(reports) > 0 {
		report = reports[0]
	}
	if err == nil {
		err = b.operators.nothingDone(ctx, a, &report)
	}
	if err != nil {
		return report, fmt.Errorf("%s(%s): %w", what, id, err)
	}
	return report, nil
}

// nothingDone returns why an action has done nothing for an event, or nil if it has, or nothing had to be done.
func (op *operators) nothingDone(ctx context.Context, a *action, r *ActionReport) error {
	switch done, left := r.done(); {
	case done > 0:
		return nil
	case left != "":
		return fmt.Errorf("%w: %s", ErrNothingDone, left)
	case len(r.Deliveries) > 0:
		return nil
	}
	switch its, others, err := op.leftOf(ctx, a, r.Event); {
	case err != nil:
		return err
	case its:
		return fmt.Errorf("%w: %s", ErrNothingDone, onItsWay)
	case others && a.subscription != "":
		return fmt.Errorf("%w for the subscription %q, and not for others", ErrSettled, shorten(a.subscription))
	case others: // a visited dispatch
		return ErrSettled
	}
	if settled, err := op.journal.settledOf(ctx, r.Event); err != nil || len(settled) > 0 {
		return cmp.Or(err, ErrSettled)
	}
	known, err := op.journal.remembers(ctx, r.Event)
	if err == nil && !known {
		var page keptPage
		page, err = op.letters.page(ctx, &letterFilter{LetterQuery: LetterQuery{Event: r.Event}, limit: 1})
		known = len(page.letters) > 0
	}
	switch {
	case err != nil:
		return err
	case known:
		return ErrSettled
	}
	return ErrUnknownEvent
}

// act carries an action out, or asks the bus with the lease to do it. It returns a report for each event, in their order, as far as it came.
func (op *operators) act(ctx context.Context, a *action, events []EventID) (reports []ActionReport, err error) {
	a.of(events)
	if c := callFrom(ctx); c != nil && a.events[c.dispatch.id] { // Cancel ends it
		ctx = context.WithoutCancel(ctx)
	}
	for {
		err = op.actHere(ctx, a)
		if !errors.Is(err, ErrNoLease) && !errors.Is(err, ErrLeaseLost) {
			break
		}
		answer, asked, failed := op.journal.ask(ctx, a.request())
		if !asked {
			continue
		}
		if err = failed; err == nil {
			err = answer.err()
		}
		if err == nil {
			for i := range answer.Actions {
				a.reports[answer.Actions[i].Event] = &answer.Actions[i]
			}
		}
		break
	}
	for _, id := range events {
		reports = append(reports, *a.reports[id])
	}
	return reports, err
}

// actHere carries an action out on this bus.
func (op *operators) actHere(ctx context.Context, a *action) (err error) {
	if a.same, err = op.namesOf(ctx, a.subscription); err != nil {
		return err
	}
	a.begin()
	return op.journal.act(ctx, a, op.actionEntry(a))
}

// request asks another process to act on the deliveries that this process does not have.
func (a *action) request() request {
	o := &a.operator
	r := request{Action: a.verb, Subscription: a.subscription, Probe: a.probe, Bulk: a.bulk, By: o.by, Why: o.why, Remote: o.remote, RequestID: o.requestID}
	for id := range a.events {
		r.Events = append(r.Events, id)
	}
	slices.SortFunc(r.Events, func(x, y EventID) int { return bytes.Compare(x[:], y[:]) })
	return r
}

// action returns the action that another process asks for.
func (r *request) action() *action {
	a := &action{verb: r.Action, subscription: r.Subscription, probe: r.Probe, bulk: r.Bulk, operator: r.operator(), answers: r.id, acquires: r.acquires}
	a.of(r.Events)
	return a
}

// actionEntry returns the entry of an action, or nil if it is a part of a bulk action, or the program acts and no operator.
func (op *operators) actionEntry(a *action) *AuditEntry {
	if a.bulk || !a.isOperators() {
		return nil
	}
	entry := op.entry(a.operator, a.verb)
	entry.Subscription = a.subscription
	if len(a.events) == 1 {
		for id := range a.events {
			entry.Event = id
		}
	}
	return entry
}

// ActionsReport counts the events of CancelMatching, RetryNowMatching or GiveUpMatching by outcome. Events in none of
// Done, Idle, Left and Gone were not processed.
type ActionsReport struct {
	// Matched is the number of matching events when the operation began.
	Matched int `json:"matched"`
	Done    int `json:"done"` // events for which at least one delivery was acted upon
	Idle    int `json:"idle"` // events for which nothing had to be done
	Left    int `json:"left"` // events that could not be acted upon
	Gone    int `json:"gone"` // events that have settled meanwhile
	// Reasons counts the deliveries that were left, by ActedDelivery.Left.
	Reasons map[string]int `json:"reasons,omitempty"`
}

// CancelMatching cancels the events that have a dispatch which matches a query, as Cancel does: wherever they are then. With
// DispatchQuery.Subscription it concerns the deliveries to that one, as OfSubscription. The set is fixed at the start: events that match
// later are left alone. Up to 500 events are one commit. It stops between two commits when ctx ends; the report is valid then, too.
//
// Options: Rate, DryRun, OnProgress, By, Because and FromRequest. Audit has an entry from before the first event and one with the outcome.
//
// Errors: those of Dispatches; an *OptionError for an empty query without All, for Limit, After and Payloads, and for StopAfter; those of Cancel, but
// ErrUnknownEvent, ErrSettled and ErrNothingDone, which the report counts.
func (b *Bus) CancelMatching(ctx context.Context, q DispatchQuery, opts ...BulkOption) (ActionsReport, error) {
	return b.actOnMatching(ctx, AuditCancel, q, opts)
}

// RetryNowMatching calls RetryNow for each event with a dispatch that matches a query. The set is fixed at the start.
// Up to 500 events are one commit. It stops between two commits when ctx ends; the report is valid then too.
//
// Options: Rate, DryRun, OnProgress, Probe, By, Because and FromRequest. Errors: those of CancelMatching.
func (b *Bus) RetryNowMatching(ctx context.Context, q DispatchQuery, opts ...BulkOption) (ActionsReport, error) {
	return b.actOnMatching(ctx, AuditRetryNow, q, opts)
}

// GiveUpMatching calls GiveUp for each event with a dispatch that matches a query. The set is fixed at the start. Up to
// 500 events are one commit. It stops between two commits when ctx ends; the report is valid then too.
//
// Options: Rate, DryRun, OnProgress, By, Because and FromRequest. Errors: those of CancelMatching.
func (b *Bus) GiveUpMatching(ctx context.Context, q DispatchQuery, opts ...BulkOption) (ActionsReport, error) {
	return b.actOnMatching(ctx, AuditGiveUp, q, opts)
}

func (b *Bus) actOnMatching(ctx context.Context, verb AuditAction, q DispatchQuery, opts []BulkOption) (report ActionsReport, err error) {
	what := verbNames[verb] + "Matching"
	var o *bulk
	if err = b.ready(ctx); err == nil {
		o, err = newBulk(what, opts)
	}
	if err == nil {
		err = q.checkBulk(verb, o)
	}
	var events []EventID
	if err == nil {
		events, err = b.views.eventsOf(ctx, q, func(*DispatchInfo) {})
	}
	if report.Matched = len(events); err == nil && !o.dryRun && len(events) > 0 {
		err = b.operators.actOnAll(ctx, verb, q, o, events, &report)
	}
	if err != nil {
		return report, fmt.Errorf("%s: %w", what, err)
	}
	return report, nil
}

// checkBulk checks the query of a bulk action.
func (q *DispatchQuery) checkBulk(verb AuditAction, o *bulk) error {
	refuse := func(option, value, reason string) error {
		return &OptionError{Option: option, Value: value, Reason: reason}
	}
	switch {
	case q.Limit != 0 || q.After != "":
		return refuse("DispatchQuery.Limit", fmt.Sprint(q.Limit), "must be 0, and After empty: a bulk action is for all that match")
	case q.Payloads:
		return refuse("DispatchQuery.Payloads", "true", "is for Dispatches: a bulk action returns no payloads")
	case o.stopAfter != 0:
		return refuse("StopAfter", fmt.Sprint(o.stopAfter), "is for ReplayMatching: these actions have no failures")
	case o.probe && verb != AuditRetryNow:
		return refuse("Probe", "true", "is for RetryNowMatching: the other actions call no handler")
	case !q.All && q.matchesAll():
		return refuse("DispatchQuery.All", "false", "an empty query matches every event that has not settled; set All to confirm")
	}
	return nil
}

// actedAtOnce is the number of events of a bulk action that are one commit.
const actedAtOnce = 500

// actOnAll carries an action out for a fixed set of events, in parts.
func (op *operators) actOnAll(ctx context.Context, verb AuditAction, q DispatchQuery, o *bulk, events []EventID, report *ActionsReport) (err error) {
	entry := op.entry(o.operator, verb)
	entry.Dispatches, entry.Count = q.audited(), len(events)
	if err := op.auditBulk(ctx, entry); err != nil {
		return err
	}
	defer func() { _ = op.auditOutcome(ctx, entry, AuditOutcome{Done: report.Done}, err, nil) }() // it is logged
	rate := pacing{Pace: pace.Pace{Time: op.time, PerSecond: o.perSecond}, shutdown: op.lifecycle.leaving}
	commits, cancel := pace.Patient(ctx, op.time, bulkPatience) // so that the report has the part that has begun
	defer cancel()
	for done := 0; done < len(events); {
		if err := rate.wait(ctx); err != nil {
			return err
		}
		part := events[done:min(done+actedAtOnce, len(events))]
		if o.perSecond != 0 {
			part = part[:1]
		}
		reports, err := op.act(commits, &action{verb: verb, subscription: q.Subscription, probe: o.probe, operator: o.operator, bulk: true}, part)
		if err != nil {
			return err
		}
		for i := range reports {
			report.count(&reports[i])
		}
		done += len(part)
		o.report(len(events), done)
	}
	return nil
}

// count counts the report of an event.
func (r *ActionsReport) count(of *ActionReport) {
	for _, d := range of.Deliveries {
		if d.Left != "" {
			if r.Reasons == nil {
				r.Reasons = make(map[string]int)
			}
			r.Reasons[d.Left]++
		}
	}
	switch done, left := of.done(); {
	case done > 0:
		r.Done++
	case left != "":
		r.Left++
	case len(of.Deliveries) > 0:
		r.Idle++
	default:
		r.Gone++
	}
}
