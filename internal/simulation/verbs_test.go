package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// simStands is how long Cancel also ends what is on its way: what a worker has taken, and does not run yet.
const simStands = 10 * time.Second

// simVerb is an action of an operator for an event.
type simVerb struct {
	action eventbus.AuditAction
	of     string // OfSubscription; "" for the whole event
	probe  bool
}

func (v *simVerb) String() string {
	text := string(v.action)
	if v.of != "" {
		text += " of " + v.of
	}
	if v.probe {
		text += " with Probe"
	}
	return text
}

// apply calls the bus.
func (v *simVerb) apply(ctx context.Context, bus *eventbus.Bus, id eventbus.EventID, options ...eventbus.ActionOption) (eventbus.ActionReport, error) {
	if v.of != "" {
		options = append(options, eventbus.OfSubscription(v.of))
	}
	if v.probe {
		options = append(options, eventbus.Probe())
	}
	switch v.action { //nolint:exhaustive // there are no others
	case eventbus.AuditCancel:
		return bus.Cancel(ctx, id, options...)
	case eventbus.AuditGiveUp:
		return bus.GiveUp(ctx, id, options...)
	}
	return bus.RetryNow(ctx, id, options...)
}

func (v *simVerb) endsAll() bool { return v.action == eventbus.AuditCancel && v.of == "" }

// settles reports whether an action returns an error that says what its report does.
func (v *simVerb) settles(r *eventbus.ActionReport, err error) string {
	done, left := 0, false
	for _, d := range r.Deliveries {
		if d.Done {
			done++
		}
		left = left || d.Left != ""
	}
	fits := false
	switch {
	case done > 0:
		fits = err == nil
	case left:
		fits = errors.Is(err, eventbus.ErrNothingDone)
	case len(r.Deliveries) > 0:
		fits = err == nil
	default: // or it was on its way
		fits = nothingLeft(err) || errors.Is(err, eventbus.ErrNothingDone)
	}
	if !fits || r.Forgotten && !v.endsAll() {
		return fmt.Sprintf("%s has the report %+v, and returns %v", v, r, err)
	}
	return ""
}

// verb orders something of an event, mostly of one that has not settled.
func (s *simulation) verb() {
	d := simPick(s, s.model.open...)
	e, v := d.event, &simVerb{action: simPick(s, eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp)}
	if s.chance(0.05) {
		e = simPick(s, s.events...)
	}
	if s.chance(0.4) {
		v.of = d.rest0()
	}
	v.probe = v.action == eventbus.AuditRetryNow && s.chance(0.5)
	if e.published > 0 { // what a handler has emitted is accepted later
		s.intervene(e, v)
	}
}

// rest0 names the next subscription, or another one if there is none.
func (d *simDispatch) rest0() string {
	if len(d.rest) == 0 {
		return "s1"
	}
	return d.rest[0].name
}

// listed is the state of a dispatch in a report.
func (d *simDispatch) listed() string {
	if d.state == "held" {
		return string(eventbus.DispatchParked)
	}
	return d.state
}

// intervene has the bus and the model carry out an action.
func (s *simulation) intervene(e *simEvent, v *simVerb) {
	m := s.model
	all := m.all(func(d *simDispatch) bool { return d.event == e })
	if slices.ContainsFunc(all, m.isHidden) {
		return
	}
	s.logf("%s e%d", v, e.number)
	report, err := v.apply(context.Background(), s.bus, e.id)
	if wrong := v.settles(&report, err); wrong != "" {
		simCheck(false, "e%d: %s", e.number, wrong)
	}
	isNew, stands := m.now >= e.cancels, v.endsAll() && (len(all) != 1 || all[0].state != "scheduled" || all[0].replays > 0)
	if stands {
		if isNew {
			e.met = 0
		}
		e.cancels = max(e.cancels, m.now+simStands)
	}
	var should []string
	var ends []*simDispatch
	for _, d := range all {
		if d.state == "taken" || v.of != "" && !slices.ContainsFunc(d.rest, func(sub *simSub) bool { return sub.name == v.of }) {
			continue
		}
		selects := v.of == "" || d.rest[0].name == v.of
		was := d.listed()
		done := selects && s.carriesOut(v, d)
		if should = append(should, fmt.Sprintf("%s %s %v", d.rest0(), was, done)); done && v.action != eventbus.AuditRetryNow {
			ends = append(ends, d)
		}
	}
	if stands && isNew && len(should) == 0 {
		e.cancels = 0
	}
	for ; stands && e.met > 0; e.met-- { // by an earlier Cancel
		should = append(should, " running true")
	}
	var is []string
	for _, d := range report.Deliveries {
		is = append(is, fmt.Sprintf("%s %s %v", d.Subscription, d.State, d.Done))
	}
	slices.Sort(is)
	slices.Sort(should)
	simCheck(slices.Equal(is, should), "%s of e%d has found %q, and should %q", v, e.number, is, should)
	found := func(d *simDispatch) int { // their letters have the order in which they were found
		return slices.IndexFunc(report.Deliveries, func(is eventbus.ActedDelivery) bool {
			return is.Subscription == d.rest0() && string(is.State) == d.listed()
		})
	}
	slices.SortStableFunc(ends, func(x, y *simDispatch) int { return found(x) - found(y) })
	s.forgets(e, v, ends, len(should), report.Forgotten)
	for _, d := range ends {
		s.takeBy(d)
	}
	for _, d := range ends {
		s.endBy(v, d)
	}
}

// isHidden reports whether a dispatch may wait for its key's turn at an isolated subscription that was removed: no action finds it
// there.
func (m *simModel) isHidden(d *simDispatch) bool {
	last := d.rest[max(0, len(d.rest)-1):]
	return d.state == "queued" && len(last) > 0 && last[0].removed && last[0].isolated && m.behind(d)
}

// forgets checks whether the event's id and key are free: no call had begun, and all of its dispatches end.
func (s *simulation) forgets(e *simEvent, v *simVerb, ends []*simDispatch, found int, is bool) {
	touched := func(d *simDispatch) bool {
		return d.attempt > 0 || d.called || len(d.handled) > 0 || len(d.failures) > 0 || d.replays > 0
	}
	wholes, parts, splits := 0, 0, 0
	for _, d := range ends {
		if splits += d.splits; d.part {
			parts++
		} else {
			wholes++
		}
	}
	all := wholes == e.dispatches && parts == splits // of none that has ended before
	should := v.endsAll() && wholes > 0 && found == len(ends) && !slices.ContainsFunc(ends, touched) && (ends[0].state == "scheduled" || all)
	simCheck(is == should, "%s of e%d frees its id: %v, and should: %v; it has %d dispatches, of which %d end", v, e.number, is, should, e.dispatches, len(ends))
	if is {
		s.model.forget(e)
	}
}

// carriesOut reports whether an action is carried out for a dispatch, whose next target it is for. It lets those of RetryNow go on.
func (s *simulation) carriesOut(v *simVerb, d *simDispatch) bool {
	retries := v.action == eventbus.AuditRetryNow
	switch d.state {
	case "scheduled":
		return !retries && v.of == ""
	case "queued":
		return !retries && (v.of == "" || len(d.rest) == 1)
	case "running":
		return v.action == eventbus.AuditCancel
	case "held":
		return !retries || v.probe && s.probesNow(d)
	case "waiting":
		if retries {
			d.state, d.due = "queued", 0
		}
		return true
	}
	return false
}

// probesNow is Probe for a held delivery.
func (s *simulation) probesNow(d *simDispatch) bool {
	m, sub := s.model, d.rest[0]
	c := &sub.circuit
	switch seated := m.seated(sub); {
	case m.now < sub.pausedUntil:
		return false
	case sub.hung():
		sub.hanging = 0
		sub.era++
		return true
	case !c.shut(),
		d.event.key != "" && slices.ContainsFunc(seated[:slices.Index(seated, d)], func(x *simDispatch) bool { return x.event.key == d.event.key }),
		slices.ContainsFunc(seated, func(x *simDispatch) bool { return x.chosenIn > 0 && x.state != "held" }):
		return false
	}
	if c.until, c.freshFrom = min(c.until, m.now), min(c.freshFrom, m.now); c.probing {
		return false
	}
	d.state, d.coming, d.chosenIn = "queued", true, c.opens
	d.idle += m.now - d.parked
	return true
}

// takeBy takes a dispatch out of its place. It keeps its seat, if it has one.
func (s *simulation) takeBy(d *simDispatch) {
	m := s.model
	switch d.state {
	case "scheduled":
		if d.wait != nil {
			d.wait.pending = 1
		}
	case "running":
		i := slices.IndexFunc(s.calls, func(c *simCall) bool { return c.dispatch == d })
		c := s.calls[i]
		c.dispatch, c.era, c.cancelled = nil, c.sub.era, true
		m.abandoned++
		d.rest[0].hanging++
		d.rest[0].circuit.release(d.pass)
		m.tend() // before the next of its key can be let go
		return
	}
	d.state = "ending"
}

// endBy ends what an action is for of a dispatch: all of it, or its next delivery.
func (s *simulation) endBy(v *simVerb, d *simDispatch) {
	m, ends, runs := s.model, d, d.state == "running"
	if v.of != "" && len(d.rest) > 1 {
		split := d.split()
		d.splits++
		m.ledger.Splits++
		split.wait, ends = nil, &split
	}
	if v.action == eventbus.AuditCancel {
		s.settleFor(ends)
		m.settle(ends, eventbus.Cancelled)
	} else {
		m.bury(ends, eventbus.ReasonOperator)
	}
	if ends == d {
		return
	}
	if d.wait.note(ends); d.wait != nil && v.action == eventbus.AuditCancel && d.wait.outcome != eventbus.DeadLettered {
		d.wait.outcome = eventbus.Cancelled
	}
	d.rest, d.state, d.due = d.rest[1:], "queued", 0
	if runs {
		d.attempt-- // the rest of the attempt is another one
		d.called = true
	}
}

// cancelledOnItsWay ends a dispatch that a worker had taken when Cancel was called for its event. It reports whether it does.
func (m *simModel) cancelledOnItsWay(d *simDispatch) bool {
	if m.now >= d.event.cancels {
		return false
	}
	d.event.met++
	d.attempt-- // it calls no further handler
	m.cancels(d)
	m.settle(d, eventbus.Cancelled)
	return true
}

// retire detaches a subscription and ends its name, or tries that with a name that is in use, or that does not exist.
func (s *simulation) retire(sub *simSub) {
	var inUse *eventbus.NameInUseError
	_, err := s.bus.Retire(context.Background(), sub.name)
	simCheck(errors.As(err, &inUse), "Retire of %s, which exists: %v", sub.name, err)
	var options []eventbus.RetireOption
	if sub.dropsRetired = s.chance(0.3); sub.dropsRetired {
		options = append(options, eventbus.DropRetired())
	}
	s.logf("retire %s, drops %v", sub.name, sub.dropsRetired)
	simCheck(sub.made.Detach() == nil, "Detach of %s", sub.name)
	report, err := s.bus.Retire(context.Background(), sub.name, options...)
	held := s.model.unsubscribe(sub)
	simCheck(err == nil && report.Parked == len(held) && report.Ended == len(held), "Retire of %s, with %d held: %+v, %v", sub.name, len(held), report, err)
	for _, d := range held {
		s.model.bury(d, eventbus.ReasonUnsubscribed)
	}
	_, err = s.bus.Retire(context.Background(), sub.name)
	simCheck(errors.Is(err, eventbus.ErrNoSubscription), "Retire of %s, again: %v", sub.name, err)
}

// simLater is when an event with a delay is due.
func simLater(now, delay time.Duration) time.Duration {
	if delay == 0 {
		return 0
	}
	return now + delay
}
