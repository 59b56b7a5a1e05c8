package simulation

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// changeHands detaches subscriptions, and has detached ones taken over. Others stay detached until the process ends, and the
// next one has their deliveries.
func (p *storeProcess) changeHands(rng *rand.Rand) {
	for _, sub := range p.sim.subs {
		switch {
		case !sub.present:
		case !sub.detached && chance(rng, 8):
			p.detach(sub)
		case sub.detached && chance(rng, 30):
			p.takeOverWrongly(sub)
			p.subscribe(sub)
		}
	}
}

func (p *storeProcess) detach(sub *storeSub) {
	s := p.sim
	err := sub.sub.Detach()
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("detach s%d: %v", sub.index, err)
	if err != nil || !sub.sub.Detached() {
		s.failf(nil, "Detach of s%d: %v", sub.index, err)
	}
	*sub.gone, sub.detached, sub.after = true, true, len(s.events)
	s.tally.detached.Add(1)
}

// takeOverWrongly checks that a subscription whose options disagree takes nothing over.
func (p *storeProcess) takeOverWrongly(sub *storeSub) {
	options := []eventbus.SubscribeOption{eventbus.Named(sub.name(sub.names))}
	if sub.pace == nil || !sub.pace.divides {
		options = append(options, eventbus.PerDestination(func(eventbus.Event) string { return "" }))
	}
	gone := true
	_, err := p.bus.Subscribe(sub.pattern, p.handler(sub, &gone), options...)
	var option *eventbus.OptionError
	if s := p.sim; !errors.As(err, &option) && !errors.Is(err, eventbus.ErrShutdown) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failf(nil, "s%d is taken over with other options: %v", sub.index, err)
	}
}

// restDetached checks that PublishAndWait does not wait for detached subscriptions, and names them. The store keeps what finds
// their lines full.
func (p *storeProcess) restDetached() {
	s := p.sim
	if !slices.ContainsFunc(s.subs, func(sub *storeSub) bool { return sub.detached }) {
		return
	}
	for _, sub := range s.subs { // otherwise callers wait for those
		if !sub.detached && sub.present {
			_, _ = p.resume(sub), sub.sub.Reset()
		}
	}
	time.Sleep(time.Hour)
	const limit = time.Hour
	e := s.newEvent("a.x", pick(p.rng, "", "k0"), 0, false)
	began := time.Now()
	err := p.publishAndWait(e, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("published beside detached subscriptions: %v", err)
	if time.Since(began) >= limit {
		s.failf(e, "PublishAndWait waits for a detached subscription: %v", err)
	}
	for _, sub := range s.subs {
		if d := e.deliveries[sub.index]; sub.detached && d != nil && d.place == placeHandled {
			s.failf(e, "s%d is detached, and the delivery is %v", sub.index, d.place)
		}
	}
}
