package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// simWindow is the idempotency window of the modelled schedules.
const simWindow = 20 * time.Second

// simOnce is the idempotency key of a publication.
type simOnce struct {
	key          string // empty for none
	untilSettled bool
}

// once gives some publications an idempotency key. While changes are not recorded, the bus knows keys of events that the model
// takes for settled: then there is none.
func (s *simulation) once(p *simPublication) (options []eventbus.PublishOption) {
	s.mu.Lock()
	recording := len(s.records) > 0
	s.mu.Unlock()
	if recording || s.onces.IntN(100) >= 25 {
		return nil
	}
	p.once.key = pick(s.onces, "o", "p", "q")
	options = append(options, eventbus.IdempotencyKey(p.once.key))
	if p.once.untilSettled = s.onces.IntN(2) == 0; p.once.untilSettled {
		options = append(options, eventbus.UntilSettled())
	}
	return options
}

// simKnown is a key that the bus knows.
type simKnown struct {
	event *simEvent
	until time.Duration // of a key without UntilSettled
}

func (p *simPublication) name() [2]string { return [2]string{p.eventType, p.once.key} }

// remember notes the key of an accepted event.
func (m *simModel) remember(e *simEvent) {
	if e.once.key == "" {
		return
	}
	if m.known == nil {
		m.known = make(map[[2]string]simKnown)
	}
	m.known[e.name()] = simKnown{e, m.now + simWindow}
}

// first returns the event that has the key of a publication, or nil.
func (m *simModel) first(p *simPublication) *simEvent {
	known, ok := m.known[p.name()]
	switch {
	case !ok, p.once.key == "":
		return nil
	case known.event.once.untilSettled && known.event.settled, !known.event.once.untilSettled && m.now >= known.until:
		return nil
	}
	return known.event
}

// noteSettled notes that an event has settled, if none of its dispatches is left.
func (m *simModel) noteSettled(e *simEvent) {
	if !slices.ContainsFunc(m.open, func(d *simDispatch) bool { return d.event == e }) {
		e.settled = true
	}
}

// forget frees the key of an event that was cancelled.
func (m *simModel) forget(e *simEvent) {
	if m.known[e.name()].event == e {
		delete(m.known, e.name())
	}
}

// repeats checks a publication with a known key. It needs no room, and has the id of the first event.
func (s *simulation) repeats(p simPublication, id eventbus.EventID, err error, inside *simCall) (repeats bool) {
	first := s.model.first(&p)
	if first == nil {
		return false
	}
	should := error(nil)
	switch {
	case s.model.cut || s.model.ending && (inside == nil || inside.dispatch == nil):
		should = eventbus.ErrShutdown
	case first.key != p.key:
		should = eventbus.ErrDuplicateID
	}
	s.logf("repeat e%d with %+v, by %s: %v", first.number, p, inside.by(), should)
	simCheck(errors.Is(err, should), "Publish(%+v) again by %s: %v, and should be %v", p, inside.by(), err, should)
	if should == nil {
		s.repetitions++
		simCheck(id == first.id, "the repetition of e%d has the id %s, and not %s", first.number, id, first.id)
	}
	return true
}
