package eventbus

import (
	"context"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/lane"
)

// memory is the store of a bus that has no other: what is accepted lives in the
// bus's own queues, so there is nothing to write and nothing to find.
type memory struct {
	lanes  *lane.Pool[opening, *worker]
	keys   *keyGate
	given  givenIDs
	copies *atomic.Int64 // beyond the first of an event
	*letterQueue
}

func (m *memory) reserve(ctx context.Context, to *targets, inside bool) (*opening, error) {
	return m.lanes.Reserve(ctx, max(len(to.each), 1), inside)
}

func (m *memory) commit(place *opening) {
	gated := place.key != ""
	if each := place.to.each; each != nil {
		o := *place
		m.copies.Add(int64(len(each)) - 1)
		for i, to := range each {
			if i > 0 {
				place = m.lanes.Add(gated)
			}
			o.to = to
			*place = o
		}
	}
	m.lanes.Commit(gated)
}

func (m *memory) appendAll(ctx context.Context, openings []opening, inside bool) (fresh []opening, err error) {
	choose := func(put func(opening, bool)) (events int, err error) {
		if fresh, err = m.given.take(openings); err != nil {
			return 0, err
		}
		for _, o := range fresh {
			if o.queues() {
				events++
				m.split(o, put)
			}
		}
		return events, nil
	}
	// What is known takes no place, and does not wait for one.
	unknown, err := m.given.unknown(openings)
	if err != nil || len(unknown) == 0 {
		return nil, err
	}
	places := 0
	for i := range unknown {
		if o := &unknown[i]; o.queues() {
			places += max(len(o.to.each), 1)
		}
	}
	if places == 0 {
		_, err = choose(nil)
		return fresh, err
	}
	return fresh, m.lanes.PushAll(ctx, places, inside, choose)
}

// split puts the dispatches that an event is made into.
func (m *memory) split(o opening, put func(o opening, gated bool)) {
	if o.to.each == nil {
		put(o, o.key != "")
		return
	}
	m.copies.Add(int64(len(o.to.each)) - 1)
	for _, to := range o.to.each {
		o.to = to
		put(o, o.key != "")
	}
}

// gate is where a dispatch waits for its key: the bus's, but for isolation.
func (m *memory) gate(o *opening) *keyGate {
	if own := o.to.subscriptions[0].gate; own != nil {
		return own
	}
	return m.keys
}

func (m *memory) enter(o *opening) bool { return m.gate(o).Enter(o.key, o) }

func (m *memory) cancelled(id EventID) { m.given.forget(id) }

func (m *memory) open(o *opening) {
	m.split(*o, func(o opening, gated bool) { m.lanes.Return(&o, gated) })
}

func (m *memory) claim(context.Context) ([]*dispatch, error) { return nil, nil }

func (m *memory) settle(d *dispatch, s settlement) *DeadLetter {
	if s.letter != nil {
		m.add(s.letter)
	}
	return s.letter
}

func (m *memory) leave(o *opening) (opening, bool) {
	return m.gate(o).Leave(o.key)
}
