package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// emitInside has a handler emit an event.
func (s *simulation) emitInside(c *simCall) {
	p := simPublication{eventType: pick(s.emits, "a.x", "a.y", "b.x", "c", "nobody")}
	var options []eventbus.PublishOption
	if s.emits.IntN(3) == 0 {
		p.key = pick(s.emits, "k", "l")
		options = append(options, eventbus.Key(p.key))
	}
	e := s.newEvent(p)
	should := error(nil)
	if len(c.emits) == s.capacity {
		should = eventbus.ErrBatchTooLarge
	}
	var err error
	s.order(c, func() { e.id, err = eventbus.Emit(c.ctx, p.eventType, e.number, options...) })
	s.logf("emit e%d %+v, by %s: %v", e.number, p, c.name, should)
	simCheck(errors.Is(err, should), "Emit by %s: %v, and should be %v", c.name, err, should)
	if should == nil {
		c.emits = append(c.emits, e)
	}
}

// emitted tells the model of the events of a call that has succeeded.
func (s *simulation) emitted(c *simCall) {
	for _, e := range c.emits {
		e.published = s.last
		to := s.targets(e.eventType)
		for _, sub := range to {
			e.to = append(e.to, sub.name)
		}
		s.owed += len(to)
		s.model.publish(e, to, nil)
	}
}

// emits decides whether a handler of a store schedule emits an event, and does so.
func (p *storeProcess) emits(ctx context.Context, c *storeCall, rng *rand.Rand) {
	s := p.sim
	if !s.emitting || !chance(rng, 12) || c.delivery.event.n >= 150 {
		return
	}
	e := s.newEvent(pick(rng, "a.x", "b.x", "none"), pick(rng, "", "k0", "inner"), 0, false)
	before := p.receivers(e.eventType)
	s.publishes("emit", e)
	_, err := eventbus.Emit(ctx, e.eventType, storePayload{e.n}, s.options(e)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("emitted e%d by s%d e%d: %v", e.n, c.delivery.sub, c.delivery.event.n, err)
	if err != nil {
		e.refused++
		return
	}
	e.from, e.before = c, before
	c.emits = append(c.emits, e)
	s.tally.emitted.Add(1)
}

// checkEmitted checks, after a batch, that it has the events of the calls whose successes it records, and no others.
func (m *storeModel) checkEmitted(n int, b *driver.Batch, succeeded []*storeDelivery) {
	for _, record := range b.New {
		e := m.eventOf(record.Payload)
		if e == nil || e.from == nil || e.acked > 0 {
			continue
		}
		if d := e.from.delivery; d.by != e.from || !slices.Contains(succeeded, d) {
			m.failf(e, "batch %d accepts it, and records no success of the call of s%d that has emitted it", n, d.sub)
		}
		e.acked++
	}
	for _, d := range succeeded {
		for _, e := range d.by.emitted() {
			for sub, since := range e.before {
				if m.subs[sub].present && m.subs[sub].since == since && e.deliveries[sub] == nil {
					m.failf(e, "batch %d records the success of s%d with e%d, and does not accept what it has emitted", n, d.sub, d.event.n)
				}
			}
		}
	}
}

// precedes reports whether an event that was left in incoming comes before another one. An emitted event is published when its handler
// succeeds: only what was accepted by then comes before it.
func (e *storeEvent) precedes(other *storeEvent) bool {
	return other.from == nil || e.acked > 0 && e.returnedAt.Before(other.from.ended)
}

func (c *storeCall) emitted() []*storeEvent {
	if c == nil {
		return nil
	}
	return c.emits
}

// toldLetter is the event of a dead letter for its handler.
type toldLetter struct {
	ref     driver.Ref // of its record; 0 once it has settled
	handled bool       // in this process, and not durable yet
}

// deadLetterType is the type of the events of letters.
const deadLetterType = "eventbus.dead_letter"

// hearsLetters registers a handler of dead letters.
func (p *storeProcess) hearsLetters() {
	s := p.sim
	if !s.telling {
		return
	}
	_, err := p.bus.OnDeadLetter("**", func(ctx context.Context, l eventbus.DeadLetter) error {
		in, _ := eventbus.FromContext(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		told := s.told[eventbus.LetterID(in.Event.ID)]
		switch {
		case p.dead.Load() || s.storeModel.process != p:
		case told == nil || told.ref == 0:
			s.failf(nil, "the handler of letters gets %s, and the store has no event of it", l.ID)
		case l.ID != eventbus.LetterID(in.Event.ID):
			s.failf(nil, "the handler of letters gets %s as %s", l.ID, in.Event.ID)
		case told.handled:
			s.failf(nil, "the handler of letters gets %s again", l.ID)
		default:
			told.handled = true
		}
		return nil
	}, eventbus.Named("letters"), eventbus.Timeout(storeTimeout))
	if err != nil {
		panic(err)
	}
}

// withoutTold checks what a batch does with the events of letters, and returns it without them. Each new letter has one, but the
// letters of Shutdown.
func (m *storeModel) withoutTold(n int, p *storeProcess, b *driver.Batch) *driver.Batch {
	rest := *b
	isTold := func(r *driver.Record) bool { return r.Type == deadLetterType }
	refs := map[driver.Ref]eventbus.LetterID{}
	for id, told := range m.told {
		if told.ref != 0 {
			refs[told.ref] = id
		}
	}
	rest.Update = slices.DeleteFunc(slices.Clone(b.Update), func(r *driver.Record) bool { _, is := refs[r.Ref]; return is })
	rest.Delete = slices.DeleteFunc(slices.Clone(b.Delete), func(ref driver.Ref) bool {
		id, is := refs[ref]
		if is && !m.told[id].handled {
			m.failf(nil, "batch %d ends the event of letter %s, which was not handled", n, id)
		}
		if is {
			m.told[id].ref = 0
			m.counts.told.Add(1)
		}
		return is
	})
	for _, l := range b.Bury {
		id := eventbus.LetterID(l.ID)
		if i := slices.IndexFunc(b.New, func(r *driver.Record) bool { return isTold(r) && r.ID == l.ID }); (i >= 0) != (m.telling && !p.beside) {
			m.failf(nil, "batch %d has the letter %s, and its event: %v", n, id, i >= 0)
		} else if i >= 0 {
			m.told[id] = &toldLetter{ref: b.New[i].Ref}
			p.accepted++
		}
	}
	rest.New = slices.DeleteFunc(slices.Clone(b.New), func(r *driver.Record) bool {
		if isTold(r) && m.told[eventbus.LetterID(r.ID)] == nil {
			m.failf(nil, "batch %d has the event of letter %s, and not the letter", n, eventbus.LetterID(r.ID))
		}
		return isTold(r)
	})
	return &rest
}

// toldRefs are the records of events of letters.
func (m *storeModel) toldRefs() (refs []driver.Ref) {
	for _, told := range m.told {
		if told.ref != 0 {
			refs = append(refs, told.ref)
		}
	}
	return refs
}
