package eventbus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/surebus/eventbus/internal/delay"
)

// schedule keeps the events that were published for later.
type schedule struct {
	queue *delay.Queue[*scheduled]

	mu sync.Mutex // guards the following, and the entries
	// byID has several entries for an event that was replayed for each of its copies.
	byID      map[EventID][]*scheduled
	most      int // events that this map has had
	cancelled int // entries of the queue that have been cancelled
}

// scheduled is an entry of the queue: one that was cancelled stays until it would have been
// due, without its dispatch, or until most entries are such.
type scheduled struct{ d *dispatch }

func newSchedule(clock delay.Clock, due func(*dispatch)) *schedule {
	s := &schedule{byID: make(map[EventID][]*scheduled)}
	s.queue = delay.New(clock, func(entries []*scheduled) {
		for _, e := range entries {
			if d := s.take(e); d != nil {
				due(d)
			}
		}
	})
	return s
}

// add returns false when the schedule is closed.
func (s *schedule) add(d *dispatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &scheduled{d}
	if !s.queue.Add(d.from().due, e) {
		return false
	}
	s.byID[d.id] = append(s.byID[d.id], e)
	s.most = max(s.most, len(s.byID))
	return true
}

// take is the dispatch of an entry that is due, nil if it was cancelled.
func (s *schedule) take(e *scheduled) *dispatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.d == nil {
		s.cancelled--
		return nil
	}
	return s.removeLocked(e)
}

func (s *schedule) removeLocked(e *scheduled) *dispatch {
	d := e.d
	e.d = nil
	left := slices.DeleteFunc(s.byID[d.id], func(x *scheduled) bool { return x == e })
	if len(left) > 0 {
		s.byID[d.id] = left
		return d
	}
	delete(s.byID, d.id)
	const small = 64
	if s.most > small && len(s.byID) <= s.most/4 {
		// A map does not give its memory back by itself.
		byID := make(map[EventID][]*scheduled, len(s.byID))
		maps.Copy(byID, s.byID)
		s.byID, s.most = byID, len(byID)
	}
	return d
}

// cancel takes an event back, unless it is due.
func (s *schedule) cancel(id EventID) (cancelled []*dispatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slices.Clone(s.byID[id]) {
		cancelled = append(cancelled, s.removeLocked(e))
		s.cancelled++
	}
	if s.cancelled > 64+len(s.byID) {
		s.queue.Prune(func(e *scheduled) bool { return e.d == nil })
		s.cancelled = 0
	}
	return cancelled
}

// close takes back everything that is left, for ever.
func (s *schedule) close() []*dispatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Close()
	var all []*dispatch
	for _, e := range s.queue.Drain() {
		if e.d != nil {
			all = append(all, s.removeLocked(e))
		}
	}
	return all
}

// schedule keeps a dispatch until it is due.
func (b *Bus) schedule(d *dispatch) {
	d.state = stateScheduled
	b.ledger.scheduled.Add(1)
	if !b.scheduled.add(d) { // Shutdown has closed it
		b.ledger.scheduled.Add(-1)
		b.neverDue(d)
	}
	b.checkDrained() // Shutdown does not wait for it any more
}

// due queues a scheduled dispatch. It takes its place in its key's order now.
func (b *Bus) due(d *dispatch) {
	o := *d.origin
	b.ids.Put((*[16]byte)(&o.order), b.time.Now().Millis)
	d.origin = &o
	b.enqueue(d, false)
	b.ledger.scheduled.Add(-1)
}

// neverDue dead-letters a scheduled dispatch: each copy that it would have become.
func (b *Bus) neverDue(d *dispatch) {
	for _, copied := range b.copies(d) {
		b.bury(copied, ReasonShutdown)
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
	cancelled := b.scheduled.cancel(id)
	if cancelled == nil {
		return fmt.Errorf("Cancel(%s): %w", id, ErrNotScheduled)
	}
	for _, d := range cancelled {
		b.settle(d, Cancelled)
		b.ledger.scheduled.Add(-1)
	}
	b.given.forget(id)
	b.checkDrained()
	return nil
}
