package eventbus

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/settled"
)

// cancelStands is how long Cancel also ends dispatches of the event that it has met nowhere, because they were on their way.
const cancelStands = 10 * time.Second

// lastingLooks is how often an action looks for dispatches, which may go back to a place where it has looked.
const lastingLooks = 3

// standsCancelled reports whether Cancel was called for the event of a dispatch that was on its way.
func (m *machine) standsCancelled(d *dispatch) bool {
	return m.cancelling.Meets(d.id, m.time.Nanos)
}

// takeAll takes what an action is for out of its places until nothing more is found. RetryNow lets it go on at once.
func (m *machine) takeAll(a *action) (all []*dispatch) {
	if a.endsAll() {
		now := m.time.Nanos()
		for id := range a.events {
			a.standing[id] = m.cancelling.Give(id, a.standing[id], now, now+int64(cancelStands))
		}
	}
	for look := 0; look < lastingLooks; look++ {
		found := m.takeOnce(a)
		all = append(all, found...)
		if len(found) > 0 {
			look = 0
		}
		runtime.Gosched()
	}
	return all
}

// takeScheduled takes scheduled dispatches. It reports whether there can be no others: an event has one before it is due.
func (m *machine) takeScheduled(a *action, all *[]*dispatch) (complete bool) {
	complete = true
	for id := range a.events {
		scheduled := m.scheduled.Cancel(id)
		m.ledger.scheduled.Add(int64(-len(scheduled)))
		for _, d := range scheduled {
			a.found(d, d.next, ActedDelivery{State: DispatchScheduled, Attempts: int(d.attempt), Done: true})
			complete = complete && d.from().replay == nil
		}
		complete = complete && len(scheduled) == 1
		*all = append(*all, scheduled...)
	}
	return complete
}

// takeOnce looks at each place once, in the order in which dispatches pass through them: a running call last, and the queue before, because
// the other places move dispatches there.
func (m *machine) takeOnce(a *action) (all []*dispatch) {
	took := func(state DispatchState, some []*dispatch) {
		for _, d := range some {
			a.found(d, d.next, ActedDelivery{State: state, Attempts: int(d.attempt), Done: true})
			all = append(all, d)
		}
	}
	if a.verb == AuditRetryNow {
		m.hurry(a)
		return nil
	}
	if a.subscription == "" {
		m.takeScheduled(a, &all)
	}
	rests := func(d *dispatch) bool { return a.selects(d, d.next) && m.rests(d) }
	alone := func(d *dispatch) bool { return rests(d) && (a.subscription == "" || d.isAtLast()) }
	m.takeResting(rests, alone, took)
	if a.verb == AuditCancel {
		took(DispatchRunning, m.cancelCalls(a))
	}
	return all
}

// rests reports whether a dispatch in a place may be taken out of it: otherwise a store has it soon.
func (m *machine) rests(d *dispatch) bool {
	row := d.row()
	return !m.stops(d) && (row == nil || !row.unloads)
}

// takeResting takes dispatches that do not run out of each structure under its lock, to end them. They keep their places in the order
// of their keys. The queue is the last structure: the others move dispatches there.
func (m *machine) takeResting(takes, takesQueued func(*dispatch) bool, took func(DispatchState, []*dispatch)) {
	waited := append(m.delay.Take(takes), m.durable.suspects.Take(takes)...) // in memory there are no suspects
	m.ledger.waiting.Add(int64(-len(waited)))
	took(DispatchWaiting, waited)
	for _, s := range m.registry.list() {
		if s.gate != nil {
			took(DispatchQueued, m.holdGate(s.gate, takesQueued))
		}
		for _, o := range s.doors() {
			took(DispatchParked, o.takeParked(m.Bus, takes))
		}
	}
	took(DispatchQueued, m.holdGate(m.keys, takesQueued))
	took(DispatchQueued, m.pool.Take(func(d *dispatch) bool {
		takes := takesQueued(d)
		if takes {
			m.holdQueued(d)
		}
		return takes
	}))
}

// cancelCalls ends the contexts of running calls, and returns their dispatches when fresh workers have taken these over.
func (m *machine) cancelCalls(a *action) (all []*dispatch) {
	calls := m.watch.CancelIf(func(c *call) bool { return a.selects(c.dispatch, c.target) })
	for _, c := range calls {
		c.cancel()
		m.addAbandoned(c)
		over := make(chan struct{})
		m.pool.Replace(func(w *worker) {
			d := c.dispatch
			ran := d.worker.call
			d.worker = w
			m.exit(d, ran.at, ran.pass, noOutcome)
			close(over)
		})
		<-over
		all = append(all, c.dispatch)
	}
	return all
}

// endsOf returns what an action ends of a dispatch: all of it, or with OfSubscription the next delivery. goesOn is the rest, or nil.
func (m *machine) endsOf(a *action, d *dispatch) (ends, goesOn *dispatch) {
	if a.isOperators() {
		defer func() { ends.touch(settled.Operators{Ended: a.operator.by}) }()
	}
	if a.subscription == "" || d.isAtLast() {
		return d, nil
	}
	ends = m.split(d)
	d.next++
	if d.state == stateRunning {
		d.attempt-- // the rest of the attempt is another one
		d.state = stateQueued
	}
	return ends, d
}

// hurry lets the deliveries of RetryNow go on that wait for a time, and with Probe those that are held.
func (m *machine) hurry(a *action) {
	waited := m.delay.Take(func(d *dispatch) bool { return a.selects(d, d.next) && !a.hurried[d] && m.rests(d) })
	for _, d := range waited {
		a.hurries(m.Bus, d, DispatchWaiting)
		a.found(d, d.next, ActedDelivery{State: DispatchWaiting, Attempts: int(d.attempt), Done: true})
	}
	m.requeue(waited...)
	m.ledger.waiting.Add(int64(-len(waited)))
	for _, s := range m.registry.list() {
		for _, o := range s.doors() {
			if o.hurry(m.Bus, a) {
				m.tendAll(o)
			}
		}
	}
}

// hurries notes that RetryNow lets a dispatch go on, before it does.
func (a *action) hurries(b *Bus, d *dispatch, from DispatchState) {
	if a.hurried[d] = true; a.isOperators() {
		d.touch(settled.Operators{Retried: a.operator.by})
		b.journal.hurried(d, from)
	}
}

// hurry wakes the sleeping deliveries of an action, and with Probe lets one of them probe. It reports whether to tend the door.
func (o *door) hurry(b *Bus, a *action) (tends bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.line.All() {
		if !a.selects(d, d.next) || a.hurried[d] {
			continue
		}
		is := ActedDelivery{State: DispatchParked, Parked: o.whyParkedLocked(b, d), Attempts: int(d.attempt)}
		switch {
		case d.seat().Until != 0:
			a.hurries(b, d, DispatchWaiting)
			o.line.Rouse(d, b.time.Nanos())
			o.line.Change(d, uint8(throttled))
			is.Done = true
		case a.probe && is.Parked == ParkHung:
			is.Done = o.hanging.Forgive()
			if o.whole != nil {
				is.Done = o.whole.hanging.Forgive() || is.Done
			}
			if is.Done {
				a.hurries(b, d, DispatchParked)
			}
		case a.probe && is.Parked == ParkCircuit:
			is.Done = o.probesLocked(b, a, d)
		}
		if is.Done {
			a.found(d, d.next, is)
			tends = true
		}
	}
	o.countLocked(b)
	return tends
}

// probesLocked releases a held delivery to probe at once, unless it is behind another one of its key or another one probes.
func (o *door) probesLocked(b *Bus, a *action, d *dispatch) bool {
	if d.key != "" && !o.line.IsFirst(d) || o.candidate != nil || !o.circuit.ProbeNow(b.time.Nanos()) {
		return false
	}
	gate := o.circuit.Gate.Load()
	a.hurries(b, d, DispatchParked)
	o.goesLocked(b, d)
	o.chooseLocked(d, gate)
	b.machine.requeue(d)
	return true
}

// takeParked takes deliveries out of the line, oldest first. They keep their seats.
func (o *door) takeParked(b *Bus, takes func(*dispatch) bool) []*dispatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.line.Take(takes)
	o.countLocked(b)
	return all
}

// leave adds what an action has left of its events to their reports.
func (m *machine) leave(a *action) {
	for id, order := range a.standing {
		r := a.reports[id]
		done, _ := r.done()
		for range m.cancelling.TakeMet(id, order, done > 0) { // if nothing was done, those in transit proceed, as the error says
			r.Deliveries = append(r.Deliveries, ActedDelivery{State: DispatchRunning, Done: true})
		}
	}
	for _, p := range m.spots() {
		p.each(func(d *dispatch, due int64, why ParkReason) {
			if a.concerns(d, d.next) && !a.hurried[d] {
				m.left(a, d, d.next, ActedDelivery{State: p.state, Parked: why, Attempts: int(d.attempt)})
			}
		})
	}
	for _, c := range m.watch.Running() {
		if a.concerns(c.dispatch, c.target) && !a.hurried[c.dispatch] {
			m.left(a, c.dispatch, c.target, ActedDelivery{State: DispatchRunning, Attempts: int(c.word.Number())})
		}
	}
}

// left adds a dispatch to the report, with the reason.
func (m *machine) left(a *action, d *dispatch, next int32, is ActedDelivery) {
	is.Left = a.whyLeft(is, a.selects(d, next))
	a.found(d, next, is)
}

// whyLeft returns why an action has left a delivery, or "" if nothing had to be done. isNext is set if the action is for the next target.
func (a *action) whyLeft(is ActedDelivery, isNext bool) string {
	switch {
	case !isNext:
		return "the delivery comes after this one; act on the whole event, or wait for its turn"
	case a.verb == AuditRetryNow:
		return a.whyNotNow(is)
	case is.State == DispatchRunning:
		return "its handler runs; Cancel ends the call"
	case is.State == DispatchScheduled:
		return "it is not due yet; act on the whole event"
	case a.subscription != "" && is.State == DispatchQueued:
		return "others wait behind it in one dispatch; act on the whole event, or wait for its turn"
	}
	return onItsWay
}

// onItsWay is why an action has left a delivery that was in no place when it looked.
const onItsWay = "it is on its way; try again"

// whyNotNow returns why RetryNow has left a delivery, or "" if it runs as soon as there is room.
func (a *action) whyNotNow(is ActedDelivery) string {
	switch is.State {
	case DispatchScheduled:
		return "it is not due yet; cancel it and publish it again without a delay"
	case DispatchWaiting:
		return "it is suspected of crashing the process, and waits for its turn"
	case DispatchParked:
	default:
		return ""
	}
	switch is.Parked { //nolint:exhaustive // see above
	case ParkThrottled:
		return ""
	case ParkPaused:
		return "an operator has paused the subscription; Resume ends that"
	case ParkDetached, ParkMissing:
		return "there is no handler for it"
	case ParkSnoozed:
		return "it waits behind an earlier delivery of its key, which its handler has postponed"
	}
	if a.probe {
		return "another delivery probes, or has to go before it because they have the same key"
	}
	return "it is held; Probe tries it nevertheless"
}

// leftOf looks for what an event has left of which an action has found nothing: deliveries that it is for, which moved from place to place
// meanwhile, and others, or a visited dispatch.
func (op *operators) leftOf(ctx context.Context, a *action, id EventID) (its, others bool, err error) {
	records, _, err := op.journal.recordsOf(ctx, id)
	for _, r := range records {
		isFor := slices.ContainsFunc(r.left(), a.names)
		its, others = its || isFor, others || !isFor
	}
	note := func(d *dispatch, next int32) {
		if d.id == id {
			isFor := a.concerns(d, next)
			its, others = its || isFor, others || !isFor
		}
	}
	for look := 0; look < lastingLooks && len(records) == 0 && !its; look++ {
		for _, p := range op.machine.spots() {
			p.each(func(d *dispatch, _ int64, _ ParkReason) { note(d, d.next) })
		}
		for _, c := range op.machine.watch.Running() {
			note(c.dispatch, c.target)
		}
		runtime.Gosched()
	}
	return its, others, err
}

// isAtLast reports whether the next target is the last one that is left.
func (d *dispatch) isAtLast() bool { return int(d.next) >= len(d.to.subscriptions)-1 }

// isUntouched reports whether a dispatch is of an event that was published, and no call of a handler has begun for it.
func (d *dispatch) isUntouched() bool {
	crashed := d.row() != nil && d.row().crashes > 0 // perhaps in its handler
	begun := d.attempt > 0 || d.succeeded() > 0 || d.lastFailure() != nil || d.story != nil && d.story.detours != nil && d.story.detours.snoozes > 0
	return !begun && !crashed && d.from().replay == nil
}

// spots returns the structures that hold dispatches, in the order in which a dispatch passes through
// them.
func (m *machine) spots() []spot {
	type visitor = func(d *dispatch, due int64, why ParkReason)
	plain := func(visit visitor) func(*dispatch) {
		return func(d *dispatch) { visit(d, 0, "") }
	}
	all := []spot{
		{DispatchScheduled, func(visit visitor) { m.scheduled.Each(plain(visit)) }},
		{DispatchQueued, func(visit visitor) { m.pool.Each(plain(visit)) }},
		{DispatchQueued, func(visit visitor) { m.keys.Each(plain(visit)) }},
		{DispatchWaiting, func(visit visitor) {
			m.delay.Each(func(due int64, d *dispatch) { visit(d, due, "") })
			m.durable.suspects.Each(plain(visit)) // in memory there are none
		}},
	}
	for _, s := range m.registry.list() {
		if s.gate != nil {
			all = append(all, spot{DispatchQueued, func(visit visitor) { s.gate.Each(plain(visit)) }})
		}
		for _, o := range s.doors() {
			all = append(all, spot{DispatchParked, func(visit visitor) { o.each(m.Bus, visit) }})
		}
	}
	return all
}

// isOf reports whether an action concerns a subscription.
func (a *action) isOf(s *Subscription) bool {
	return a.subscription == "" || a.subscription == s.id || a.same.Has(s.id)
}

// concerns reports whether an action is for a target of a dispatch that is left.
func (a *action) concerns(d *dispatch, next int32) bool {
	return a.events[d.id] && slices.ContainsFunc(d.to.subscriptions[next:], a.isOf)
}

// selects reports whether an action is for the next delivery of a dispatch. A visited one has none, and settles by itself.
func (a *action) selects(d *dispatch, next int32) bool {
	return a.events[d.id] && int(next) < len(d.to.subscriptions) && a.isOf(d.to.subscriptions[next])
}

// found adds what was found of a dispatch to the report of its event.
func (a *action) found(d *dispatch, next int32, is ActedDelivery) {
	for _, s := range d.to.subscriptions[next:] {
		is.Targets = append(is.Targets, s.id)
	}
	if len(is.Targets) > 0 {
		is.Subscription = is.Targets[0]
	}
	r := a.reports[d.id]
	r.Deliveries = append(r.Deliveries, is)
}

// any reports whether an action was carried out for a delivery.
func (a *action) any() bool {
	for _, r := range a.reports {
		if done, _ := r.done(); done > 0 {
			return true
		}
	}
	return false
}

// fresh counts the dispatches of an event that Cancel has ended before a call began.
type fresh struct {
	one           *dispatch // that was published, and not split off
	wholes, parts int       // those like one, and those that were split off
	split         int       // deliveries that were split off from the wholes
}

// cancelsFresh notes a dispatch that Cancel ends.
func (a *action) cancelsFresh(d *dispatch) {
	if !a.endsAll() || !d.isUntouched() {
		return
	}
	f := a.fresh[d.id]
	if d.to.dispatches > 0 {
		f.one, f.wholes, f.split = d, f.wholes+1, f.split+d.splits()
	} else {
		f.parts++
	}
	a.fresh[d.id] = f
}

// freed returns a dispatch of each event whose id becomes free: all of its dispatches were ended, and no call had begun.
func (a *action) freed() (all []*dispatch) {
	for id, f := range a.fresh {
		r := a.reports[id]
		if f.one != nil && f.wholes == f.one.to.dispatches && f.parts == f.split && len(r.Deliveries) == f.wholes+f.parts {
			r.Forgotten = true
			all = append(all, f.one)
		}
	}
	return all
}
