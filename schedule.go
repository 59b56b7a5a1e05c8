package eventbus

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/surebus/eventbus/internal/delay"
)

// schedule has the events that have been published for later.
type schedule struct {
	queue *delay.Queue[*scheduledEvent]

	mu      sync.Mutex // guards the following
	byID    map[EventID]*scheduledEvent
	most    int // events that there have been in this map
	waiting int
	left    int // entries of the queue that have been cancelled
}

type scheduledEvent struct {
	opening
	gone bool // due, or cancelled; guarded by schedule.mu
}

func newSchedule(clock delay.Clock, due func(*opening)) *schedule {
	s := &schedule{byID: make(map[EventID]*scheduledEvent)}
	s.queue = delay.New(clock, func(events []*scheduledEvent) {
		for _, e := range events {
			if s.take(e) {
				due(&e.opening)
			}
		}
	})
	return s
}

// add reports false when the schedule is closed.
func (s *schedule) add(o opening) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &scheduledEvent{opening: o}
	if !s.queue.Add(o.due(), e) {
		return false
	}
	s.byID[o.id] = e
	s.most = max(s.most, len(s.byID))
	s.waiting++
	return true
}

// take reports whether an event that is due is still to be dispatched.
func (s *schedule) take(e *scheduledEvent) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.gone {
		s.left--
		return false
	}
	s.removeLocked(e)
	return true
}

func (s *schedule) removeLocked(e *scheduledEvent) {
	e.gone = true
	s.waiting--
	if s.byID[e.id] == e {
		delete(s.byID, e.id)
	}
	const small = 64
	if s.most > small && len(s.byID) <= s.most/4 {
		// A map does not give its memory back by itself.
		byID := make(map[EventID]*scheduledEvent, len(s.byID))
		maps.Copy(byID, s.byID)
		s.byID, s.most = byID, len(byID)
	}
}

// cancel takes an event back, unless it is due.
func (s *schedule) cancel(id EventID) (o opening, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil {
		return o, false
	}
	s.removeLocked(e)
	o = e.opening
	// What is left waits until it would have been due, without the payload, or
	// until most of the queue is such.
	e.opening = opening{id: id}
	if s.left++; s.left > 64+s.waiting {
		s.queue.Prune(func(e *scheduledEvent) bool { return e.gone })
		s.left = 0
	}
	return o, true
}

// close takes back all that is left.
func (s *schedule) close() []*scheduledEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Close()
	var all []*scheduledEvent
	for _, e := range s.queue.Drain() {
		if !e.gone {
			s.removeLocked(e)
			all = append(all, e)
		}
	}
	return all
}

func (s *schedule) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// putOff keeps an event until it is due.
func (b *Bus) putOff(o opening) {
	if !b.scheduled.add(o) {
		b.neverDue(o)
	}
	b.checkDrained() // Shutdown does not wait for it any more
}

// neverDue dead-letters an event that was published for later: what it would have
// been made into when due. None of that has its key's place.
func (b *Bus) neverDue(o opening) {
	w := &worker{}
	copies := o.to.copies()
	b.ledger.copies.Add(int64(len(copies)) - 1)
	for _, to := range copies {
		o.to = to
		d := &dispatch{opening: o}
		d.dropPlace()
		b.bury(w, d, ReasonShutdown)
		w.tell()
	}
}

// Cancel takes back an event that was published with After or At and is not due
// yet: nobody will see it, and its id may be given again. It does not block.
//
// Errors: ErrNotScheduled for an id that no such event has, also when it is due
// or cancelled already; the context's.
func (b *Bus) Cancel(ctx context.Context, id EventID) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Cancel: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("Cancel: %w", contextError(ctx))
	}
	o, ok := b.scheduled.cancel(id)
	if !ok {
		return fmt.Errorf("Cancel(%s): %w", id, ErrNotScheduled)
	}
	if waiter := o.waiter(); waiter != nil {
		waiter.end(Cancelled)
	}
	b.store.cancelled(id)
	b.ledger.cancelled.Add(1)
	b.checkDrained()
	return nil
}
