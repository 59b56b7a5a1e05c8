package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surebus/eventbus"
)

// verb orders something of an event, whatever happens to it at the same moment.
func (b *simBurst) verb() {
	s := b.simulation
	var known []*simEvent
	for _, e := range s.events[max(0, len(s.events)-1-s.rng.IntN(60)):] {
		if !e.id.IsZero() {
			known = append(known, e)
		}
	}
	if len(known) == 0 {
		return
	}
	e, v := simPick(s, known...), &simVerb{action: simPick(s, eventbus.AuditCancel, eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp)}
	if s.chance(0.4) {
		v.of = fmt.Sprintf("s%d", 1+s.rng.IntN(s.names))
	}
	v.probe = v.action == eventbus.AuditRetryNow && s.chance(0.5)
	before := e.number < b.first // its publication had returned
	b.add(fmt.Sprintf("%s e%d", v, e.number), func() {
		report, err := v.apply(context.Background(), s.bus, e.id)
		if errors.Is(err, eventbus.ErrShutdown) {
			return
		}
		if wrong := v.settles(&report, err); wrong != "" {
			s.spoil("e%d: %s", e.number, wrong)
		}
		s.noted(func() { s.acted(e, v, &report, err == nil, before) })
	})
}

// acted notes what an action has done. before is set if the publication had returned before it. The caller holds s.mu.
func (s *simulation) acted(e *simEvent, v *simVerb, report *eventbus.ActionReport, done, before bool) {
	l := s.loose
	for _, d := range report.Deliveries {
		switch {
		case !d.Done || v.action == eventbus.AuditRetryNow:
		case v.action == eventbus.AuditGiveUp:
			l.givenUp++
		default:
			l.cancelled++
			for i, name := range d.Targets {
				if i > 0 && v.of != "" {
					break
				}
				e.gone[name] = true
				e.raced[name] = e.raced[name] || i == 0 && d.State == eventbus.DispatchRunning
			}
		}
	}
	if v.endsAll() && done {
		if e.meets = true; before {
			e.cancelled = time.Now()
		}
	}
}

// isCancelled reports whether no call of a handler may begin for an event: Cancel has confirmed that, not long ago.
func (c *simCall) isCancelled(e *simEvent) bool {
	return !e.cancelled.IsZero() && c.replays == 0 && c.start.After(e.cancelled) && c.start.Before(e.cancelled.Add(simStands))
}

// retire detaches a subscription and ends its name.
func (b *simBurst) retire(sub *simSub) {
	s := b.simulation
	b.removing[sub] = true
	var options []eventbus.RetireOption
	if s.chance(0.3) {
		options = append(options, eventbus.DropRetired())
		s.loose.drops[sub.name] = true
	}
	b.add("retire "+sub.name, func() {
		err := sub.made.Detach()
		if err == nil {
			_, err = s.bus.Retire(context.Background(), sub.name, options...)
		}
		switch {
		case errors.Is(err, eventbus.ErrShutdown):
			sub.made.Unsubscribe()
		case err != nil && !errors.Is(err, eventbus.ErrNoSubscription) && !errors.Is(err, eventbus.ErrNameInUse): // another call has removed it, or taken it over
			s.spoil("Retire of %s: %v", sub.name, err)
		}
	})
}
