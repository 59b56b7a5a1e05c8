package simulation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// storeAct is an action for an event. While it lasts, deliveries may end for it.
type storeAct struct {
	*simVerb
	until     time.Time // when it can end nothing any more, or zero: it has not returned, or its outcome is unknown
	nothing   bool      // it has returned that it did nothing
	since     []int     // storeSub.since of each, when it began
	cancelled []*storeDelivery
}

// lasts reports whether deliveries may still end for an action.
func (a *storeAct) lasts() bool {
	return !a.nothing && (a.until.IsZero() || time.Now().Before(a.until))
}

// endsAsItSubscribes reports whether a delivery may be about to end for an action, which began before its subscription was made: that
// one does not know of it.
func (d *storeDelivery) endsAsItSubscribes(of *storeSub) bool {
	acts := append(d.event.actsOn(eventbus.AuditCancel, d.sub), d.event.actsOn(eventbus.AuditGiveUp, d.sub)...)
	return slices.ContainsFunc(acts, func(a *storeAct) bool { return a.since[d.sub] != of.since })
}

// actsOn returns the actions for which something may happen to a delivery now.
func (e *storeEvent) actsOn(action eventbus.AuditAction, sub int) (acts []*storeAct) {
	for _, a := range e.acts {
		if a.action == action && a.lasts() && (a.of == "" || subOf(a.of) == sub) {
			acts = append(acts, a)
		}
	}
	return acts
}

// cancels reports whether Cancel may have ended a delivery, and notes that it has.
func (m *storeModel) cancels(d *storeDelivery) bool {
	acts := d.event.actsOn(eventbus.AuditCancel, d.sub)
	for _, a := range acts {
		a.cancelled = append(a.cancelled, d)
	}
	d.cancelledBy = acts
	return len(acts) > 0
}

// isHurried reports whether a delivery need not wait for its time, because of RetryNow: for it, or for another one of its dispatch.
func (d *storeDelivery) isHurried() bool {
	return d.hurried || slices.ContainsFunc(d.event.acts, func(a *storeAct) bool { return a.action == eventbus.AuditRetryNow && a.lasts() })
}

// act orders something of an event, mostly of one that has not settled.
func (p *storeProcess) act(rng *rand.Rand) {
	s := p.sim
	s.mu.Lock()
	var known, open []*storeEvent
	for _, e := range s.events {
		if !e.accepted || e.id.IsZero() {
			continue
		}
		known = append(known, e)
		for _, d := range e.deliveries {
			if d.place == placeRecord || d.place == placeIncoming {
				open = append(open, e)
				break
			}
		}
	}
	s.mu.Unlock()
	if len(known) == 0 {
		return
	}
	e := pick(rng, known...)
	if len(open) > 0 && chance(rng, 90) {
		e = pick(rng, open...)
	}
	v := &simVerb{action: pick(rng, eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp)}
	if chance(rng, 35) {
		sub := pick(rng, s.subs...)
		v.of = sub.name(sub.names)
	}
	v.probe = v.action == eventbus.AuditRetryNow && chance(rng, 50)
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second) // nobody may answer a bus beside
	defer cancel()
	a := &storeAct{simVerb: v}
	s.mu.Lock()
	for _, sub := range s.subs {
		a.since = append(a.since, sub.since)
	}
	e.acts = append(e.acts, a)
	attempts := e.attempts
	s.logf("%s e%d, beside=%v", v, e.n, p.beside)
	s.mu.Unlock()
	report, err := v.apply(ctx, p.bus, e.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s e%d: %+v %v", v, e.n, report.Deliveries, err)
	s.tally.acts.Add(1)
	s.acted(e, a, &report, err, e.attempts == attempts, p.beside)
}

// acted compares what an action has returned with what the batches have done.
func (m *storeModel) acted(e *storeEvent, a *storeAct, report *eventbus.ActionReport, err error, isSame, beside bool) {
	switch {
	case err == nil:
		if wrong := a.settles(report, err); wrong != "" {
			m.failf(e, "%s", wrong)
		}
		a.until = time.Now()
		if a.endsAll() {
			a.until = time.Now().Add(simStands + storeTimeout) // and a commit, after a restart
		}
	case nothingLeft(err), errors.Is(err, eventbus.ErrNothingDone):
		a.nothing = true
		for _, d := range a.cancelled {
			if d.place == placeCancelled && !slices.ContainsFunc(d.cancelledBy, func(by *storeAct) bool { return !by.nothing }) {
				m.failf(e, "%s returns %v, and the delivery to s%d is %v", a, err, d.sub, d.place)
			}
		}
		return
	default:
		return
	}
	e.hurries(a, report)
	for _, is := range report.Deliveries {
		for i, name := range is.Targets {
			d := e.deliveries[subOf(name)]
			if !is.Done || !isSame || a.of != "" && i > 0 || a.action == eventbus.AuditRetryNow {
				break
			}
			switch {
			case d == nil:
				m.failf(e, "%s has ended the delivery to %s, which does not exist", a, name)
			case beside && is.State == eventbus.DispatchIncoming && d.record != nil && d.record.replays > 0: // the other bus has just taken it in (V1)
			case a.action == eventbus.AuditGiveUp && (d.place == placeCancelled || d.place == placeReplayCancelled) && len(e.actsOn(eventbus.AuditCancel, d.sub)) == 0:
				m.failf(e, "%s has ended the delivery to %s, and it is %v", a, name, d.place)
			case a.action == eventbus.AuditCancel && d.place != placeCancelled && d.place != placeReplayCancelled &&
				!(d.place == placeHandled && i == 0 && is.State == eventbus.DispatchRunning):
				m.failf(e, "%s has ended the delivery to %s, and it is %v", a, name, d.place)
			}
		}
	}
}

// hurries notes the deliveries that RetryNow has let go on, with those behind them in a dispatch, until their next calls.
func (e *storeEvent) hurries(a *storeAct, report *eventbus.ActionReport) {
	for _, is := range report.Deliveries {
		for _, name := range is.Targets {
			if d := e.deliveries[subOf(name)]; d != nil && is.Done && a.action == eventbus.AuditRetryNow {
				d.hurried = true
			}
		}
	}
}

// retire detaches a subscription and ends its name.
func (p *storeProcess) retire(rng *rand.Rand, sub *storeSub) {
	s := p.sim
	drops := chance(rng, 40)
	if !sub.detached {
		p.detach(sub)
	}
	var options []eventbus.RetireOption
	s.mu.Lock()
	sub.present = false // from now on, events may be published without it
	sub.since++
	if drops {
		options = append(options, eventbus.DropRetired())
		sub.drop = math.MaxInt
	}
	s.mu.Unlock()
	returned := s.forgetsPauses(sub)
	report, err := p.bus.Retire(p.ctx, sub.name(sub.names), options...)
	returned()
	s.logs("retire s%d, drops=%v: %+v %v", sub.index, drops, report, err)
	s.mu.Lock()
	sub.drop = min(sub.drop, len(s.events))
	s.mu.Unlock()
	p.unsubscribe(sub) // the model's part, and what is left of an error
}

// wasCancelled reports whether Cancel has ended a call.
func wasCancelled(ctx context.Context) bool {
	return ctx != nil && errors.Is(context.Cause(ctx), eventbus.ErrCancelled)
}

// forgetsPauses notes that the orders for a name may end, until Retire has returned.
func (m *storeModel) forgetsPauses(sub *storeSub) (returned func()) {
	each := func(more int) {
		if sub.pace != nil {
			for _, name := range storeDestinations {
				m.resumesDestination(sub, name, more)
			}
		}
	}
	whole := m.mayResume(sub)
	each(1)
	return func() {
		each(-1)
		whole()
	}
}
