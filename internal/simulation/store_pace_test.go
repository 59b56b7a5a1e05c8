package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// Half of the store schedules are paced: see makePaced for what differs in them.

// storePace is what a paced schedule adds to a subscription.
type storePace struct {
	divided bool // PerDestination, in most processes
	limits  paceLimits
	paused  map[string]bool // destinations, by orders that have returned
	resumes map[string]int  // orders that have not returned, by destination

	// Of the present process:
	divides, isolated bool
	doors             map[string]*paceDoor // by destination; "" without PerDestination
}

var storeDestinations = []string{"d0", "d1", "d2", eventbus.CommonDestination}

// makePaced makes a schedule a paced one: its subscriptions have limits, destinations and isolation, and their handlers return Snooze and
// Throttle.
func (s *storeSim) makePaced() {
	rng := rand.New(rand.NewPCG(s.seed, 34))
	if !chance(rng, 50) {
		return
	}
	for _, sub := range s.subs {
		sub.pace = &storePace{divided: chance(rng, 60), limits: newPaceLimits(rng, 3), paused: map[string]bool{}, resumes: map[string]int{}}
		sub.pace.limits.concurrency = min(sub.pace.limits.concurrency, 1) // the least concurrency of a bus
		s.what += fmt.Sprintf("s%d per destination %v, %v\n", sub.index, sub.pace.divided, &sub.pace.limits)
	}
}

// pacedOptions returns the options of a subscription of a paced schedule that is being made.
func (p *storeProcess) pacedOptions(sub *storeSub) (options []eventbus.SubscribeOption) {
	s, pace := p.sim, sub.pace
	if pace == nil {
		return nil
	}
	rng := rand.New(rand.NewPCG(s.seed, 120+uint64(s.n)*8+uint64(sub.index)))
	divides, isolated, doors := pace.divided && !chance(rng, 10), chance(rng, 30), map[string]*paceDoor{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.detached { // it must agree with the one that it takes over, and has its doors
		divides, isolated, doors = pace.divides, pace.isolated, pace.doors
	}
	options = pace.limits.options()
	if isolated {
		options = append(options, eventbus.Isolated())
	}
	if divides {
		options = append(options, eventbus.PerDestination(func(e eventbus.Event) string { return p.destinationOf(sub, e) }))
	}
	pace.divides, pace.isolated, pace.doors = divides, isolated, doors
	return options
}

// destinationOf is the function of PerDestination. Each answer is another one: the bus must keep the first.
func (p *storeProcess) destinationOf(sub *storeSub, e eventbus.Event) string {
	name, slow := p.asks(sub, e)
	if slow > 0 {
		time.Sleep(slow)
	}
	if name == "panic" {
		panic(name)
	}
	return name
}

func (p *storeProcess) asks(sub *storeSub, ev eventbus.Event) (name string, slow time.Duration) {
	m := p.sim.storeModel
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.eventOf(ev.Payload.(json.RawMessage))
	if e == nil || p.dead.Load() {
		return "", 0
	}
	d := e.deliveries[sub.index]
	if d == nil || d.place != placeRecord {
		m.failf(e, "s%d is asked for a destination, and no record has that delivery", sub.index)
		return "", 0
	}
	if d.record.destinationAt(sub.index) != "" {
		m.failf(e, "s%d is asked for a destination, and record %d has %q", sub.index, d.record.ref, d.record.destination)
	}
	d.asked++
	rng := rand.New(rand.NewPCG(uint64(e.n), uint64(sub.index<<8+d.asked)))
	name = fmt.Sprint("d", rng.IntN(3))
	switch rng.IntN(12) {
	case 0:
		name = ""
	case 1:
		name = "panic"
	case 2:
		slow = ms(rng, 50)
	}
	if d.destination = name; name == "" || name == "panic" {
		d.destination = eventbus.CommonDestination
	}
	m.logf("s%d is asked for the destination of e%d: %q", sub.index, e.n, d.destination)
	return name, slow
}

// destinationAt returns the destination that a record has for a subscription: that of its next target.
func (r *storeRecord) destinationAt(sub int) string {
	if rest := r.remaining(); len(rest) > 0 && rest[0] == sub {
		return r.destination
	}
	return ""
}

// goesTo returns the destination of a delivery, or "" without.
func (d *storeDelivery) goesTo() string {
	if d.destination != "" {
		return d.destination
	}
	return d.record.destinationAt(d.sub)
}

// paces checks a call of a paced schedule that begins.
func (m *storeModel) paces(sub *storeSub, d *storeDelivery, c *storeCall) {
	pace := sub.pace
	if pace == nil {
		return
	}
	name := ""
	if pace.divides {
		name = d.goesTo()
	}
	switch {
	case pace.divides && name == "":
		m.failf(d.event, "s%d is called, and was not asked for a destination", sub.index)
	case pace.divides && pace.paused[name]:
		m.failf(d.event, "s%d is called, and its destination %q is paused", sub.index, name)
	case time.Now().Before(d.wakes) && !d.isHurried():
		m.failf(d.event, "s%d is called, and sleeps until %v", sub.index, d.wakes)
	}
	d.wakes = time.Time{}
	if pace.doors[name] == nil {
		pace.doors[name] = newPaceDoor(&pace.limits)
	}
	if sub.ordering+pace.resumes[name] > 0 {
		pace.doors[name].resumes()
	}
	c.door, c.paced = pace.doors[name], &paceCall{ctx: c.ctx, deadline: c.began.Add(storeTimeout)} // its context has the wall clock's
	if wrong := c.door.begins(c.paced); wrong != "" {
		m.failf(d.event, "s%d at %q: %s", sub.index, name, wrong)
	}
}

// postpones returns what a handler of a paced schedule returns to postpone its delivery, or nil.
func (p *storeProcess) postpones(ctx context.Context, sub *storeSub, c *storeCall, replays int) error {
	m := p.sim.storeModel
	if sub.pace == nil {
		return nil
	}
	m.mu.Lock()
	d := c.delivery
	rng := rand.New(rand.NewPCG(p.sim.seed, uint64(d.event.n)<<32+uint64(sub.index)<<24+uint64(d.postponed)<<8+uint64(replays)<<4+4))
	what, delay := rng.IntN(100), time.Millisecond+ms(rng, pick(rng, 20, 500, 3000))
	if hasEnded(ctx) || what >= 16 || p.quiet && d.postponed > 3 {
		m.mu.Unlock()
		return nil
	}
	d.postponed++
	m.mu.Unlock()
	if what < 8 {
		c.snoozes(m, delay)
		c.ends(m, false)
		return eventbus.Snooze(delay)
	}
	c.throttle = delay
	c.ends(m, false)
	return eventbus.Throttle(errStoreSim, delay)
}

func hasEnded(ctx context.Context) bool { return ctx.Err() != nil }

// snoozes notes that a delivery sleeps.
func (c *storeCall) snoozes(m *storeModel, delay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf("snooze s%d e%d for %v", c.delivery.sub, c.delivery.event.n, delay)
	if !c.process.dead.Load() && m.process == c.process {
		c.delivery.wakes = time.Now().Add(delay)
	}
}

// orderDestination orders something of a destination.
func (p *storeProcess) orderDestination(sub *storeSub, name, what string) {
	s := p.sim
	s.mu.Lock()
	made, divides := sub.sub, sub.pace != nil && sub.pace.divides
	s.mu.Unlock()
	if made == nil || !divides {
		return
	}
	at := made.Destination(name)
	var err error
	switch what {
	case "pause":
		err = at.Pause()
	case "resume":
		s.resumesDestination(sub, name, 1)
		err = at.Resume()
		s.resumesDestination(sub, name, -1)
	case "trip":
		err = at.Trip()
	case "reset":
		err = at.Reset()
	}
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s s%d %s: %v", what, sub.index, name, err)
	if err == nil && what == "pause" {
		sub.pace.paused[name] = true
	}
	var option *eventbus.OptionError
	if errors.As(err, &option) {
		s.failf(nil, "%s s%d %s: %v", what, sub.index, name, err)
	}
}

// resumesDestination notes that an order begins, or has returned.
func (m *storeModel) resumesDestination(sub *storeSub, name string, more int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sub.pace.resumes[name] += more
	delete(sub.pace.paused, name)
	if o := sub.pace.doors[name]; o != nil {
		o.resumes()
	}
}

// resumesWhole ends a Throttle of a subscription without destinations.
func (m *storeModel) resumesWhole(sub *storeSub) {
	if sub.pace != nil && sub.pace.doors[""] != nil {
		sub.pace.doors[""].resumes()
	}
}

// operateDestinations is what an operator does to destinations.
func (p *storeProcess) operateDestinations(rng *rand.Rand) {
	for range 6 {
		time.Sleep(ms(rng, 250))
		if p.dead.Load() || p.sim.failed() {
			return
		}
		p.orderDestination(pick(rng, p.sim.subs...), pick(rng, storeDestinations...), pick(rng, "pause", "resume", "resume", "trip", "reset"))
	}
}

// openDestinations gives all orders that open destinations, but for one that stays shut.
func (p *storeProcess) openDestinations(but string) {
	for _, sub := range p.sim.subs {
		for _, name := range storeDestinations {
			if name != but {
				p.orderDestination(sub, name, "resume")
				p.orderDestination(sub, name, "reset")
			}
		}
	}
}

// restPaced keeps a destination of each subscription shut for an hour, and checks that all other deliveries settle.
func (p *storeProcess) restPaced() {
	s := p.sim
	if s.subs[0].pace == nil {
		return
	}
	const shut = "d1"
	for _, sub := range s.subs {
		p.orderDestination(sub, shut, "pause")
	}
	p.openDestinations(shut)
	for i := range 6 {
		_ = p.publish(context.Background(), s.newEvent("a.x", pick(p.rng, "", "k0"), time.Duration(i%2)*time.Second, false))
	}
	time.Sleep(3 * time.Hour) // a retry or a snooze of before a restart is late by a step of the wall clock
	s.mu.Lock()
	for _, e := range s.events {
		for _, d := range e.deliveries {
			if d.place == placeRecord && !s.excused(d, shut) {
				s.failf(e, "only destination %s is paused, and the delivery to s%d is left at %q: %+v", shut, d.sub, d.goesTo(), *d.record)
			}
		}
	}
	s.mu.Unlock()
	p.openDestinations("")
	time.Sleep(time.Hour)
}

// excused reports whether a delivery is for a destination that is shut, or behind one of its key that is, or whether such ones
// have filled all lines of the subscription.
func (s *storeSim) excused(d *storeDelivery, shut string) bool {
	sub := s.subs[d.sub]
	if !sub.pace.divides {
		return false
	}
	if s.waitsFor(d, shut) {
		return true
	}
	waiting := 0
	for _, e := range s.events {
		if x := e.deliveries[d.sub]; x != nil && x.place == placeRecord && s.waitsFor(x, shut) {
			waiting++
		}
	}
	return sub.line > 0 && waiting >= 5*sub.line // all together have ten times that, of which any may take a part
}

// waitsFor reports whether a delivery is for a destination, or behind one of its key that is.
func (s *storeSim) waitsFor(d *storeDelivery, shut string) bool {
	at := func(x *storeDelivery) bool { return x.place == placeRecord && x.goesTo() == shut }
	return at(d) || d.event.key != "" && slices.ContainsFunc(s.events, func(e *storeEvent) bool {
		x := e.deliveries[d.sub]
		return x != nil && e.key == d.event.key && at(x)
	})
}
