// Package settled remembers how the last events of a process have settled.
package settled

import (
	"encoding/binary"
	"slices"
	"sync"
)

// Kept is how many events are kept at least.
const Kept = 10_000

const (
	shards = 16
	// inShard is how many events a shard keeps. It is more than its part of Kept, because ids do not spread evenly.
	inShard = Kept/shards + 200
	// near is how far back a shard looks for an earlier dispatch of the same event.
	near = 64
	// slab is how many parts, or details, are allocated at once.
	slab = 256
)

// An End has at most these numbers: more count as these.
const (
	MaxAttempts = 1<<10 - 1
	MaxReplays  = 1<<8 - 1
)

// End is how a dispatch, or one of its deliveries, has ended.
type End struct {
	Outcome  int   // up to 15
	Attempts int   // up to MaxAttempts
	Replays  int   // up to MaxReplays
	Millis   int64 // when, in Unix milliseconds
}

// packed is an End: the outcome in 4 bits, the replays in 8, the attempts in 10, and the time.
type packed uint64

func (e End) pack() packed {
	return packed(e.Millis)<<22 | packed(min(e.Attempts, MaxAttempts))<<12 | packed(min(e.Replays, MaxReplays))<<4 | packed(e.Outcome)
}

func (p packed) end() End {
	return End{Outcome: int(p & 15), Replays: int(p >> 4 & MaxReplays), Attempts: int(p >> 12 & MaxAttempts), Millis: int64(p >> 22)}
}

// Operators names those who have acted upon a dispatch. A name is empty if no operator has, or one without a name.
type Operators struct{ Replayed, Retried, Ended string }

// Delivery is the end of an event at a subscription S.
type Delivery[S any] struct {
	At  S          // the zero S for an event without any
	By  *Operators // nil for none
	End End
}

// Dispatch is a dispatch that settles.
type Dispatch[S any] struct {
	ID      [16]byte
	By      *Operators // nil for none; it must not change
	Handled []S        // the subscriptions that have handled the event; it must not change
	End     End        // with the outcome for these, or without any subscription that of the event

	// Ended is the subscription where it ended otherwise, if HasEnded is set.
	Ended    S
	HasEnded bool
	EndedAs  int // the outcome there

	// Dispatches is the number of dispatches of the event, if it is known, and otherwise 0.
	Dispatches int
}

// Events remembers events. The zero Events is empty. Its methods are safe for concurrent use.
type Events[S any] struct {
	shards [shards]shard[S]
}

type shard[S any] struct {
	mu      sync.Mutex // guards the following; a leaf
	events  []event[S]
	oldest  int          // once there are inShard
	parts   []part[S]    // the rest of the last allocation of partsLocked
	details []details[S] // the rest of the last allocation of detailsLocked
	_       [64]byte
}

// event is small, because every event of a bus writes one.
type event[S any] struct {
	id      [16]byte
	end     packed
	all     *[]S // the subscriptions of an event that is handled and has no details
	details *details[S]
}

type details[S any] struct {
	by      *Operators
	handled []S
	rest    []part[S] // deliveries that ended otherwise, and those of other dispatches
}

type part[S any] struct {
	at  S
	end packed
}

func (e *Events[S]) of(id *[16]byte) *shard[S] {
	bits := binary.LittleEndian.Uint64(id[:8]) ^ binary.LittleEndian.Uint64(id[8:])
	bits ^= bits >> 32
	return &e.shards[(bits^bits>>16)%shards]
}

// AddHandled remembers the only dispatch of an event that all its subscriptions have handled and no operator has acted upon. all
// must not change.
func (e *Events[S]) AddHandled(id *[16]byte, all *[]S, end End) {
	s := e.of(id)
	s.mu.Lock()
	at := s.nextLocked()
	at.id, at.end, at.all, at.details = *id, end.pack(), all, nil
	s.mu.Unlock()
}

// Add remembers a dispatch.
func (e *Events[S]) Add(d *Dispatch[S]) {
	s := e.of(&d.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Dispatches != 1 {
		if was := s.nearLocked(d); was != nil {
			was.details.join(d)
			return
		}
	}
	details := s.detailsLocked()
	*details = d.details(s.partsLocked(d.Dispatches - 1))
	*s.nextLocked() = event[S]{id: d.ID, end: d.End.pack(), details: details}
}

// Deliveries returns how the dispatch has ended at its subscriptions.
func (d *Dispatch[S]) Deliveries() []Delivery[S] {
	details := d.details(nil)
	return details.appendTo(nil, d.End)
}

func (d *Dispatch[S]) details(rest []part[S]) details[S] {
	if d.HasEnded {
		rest = append(rest, d.ended())
	}
	return details[S]{by: d.By, handled: d.Handled, rest: rest}
}

// join adds another dispatch of the event.
func (is *details[S]) join(d *Dispatch[S]) {
	end := d.End.pack()
	for _, s := range d.Handled {
		is.rest = append(is.rest, part[S]{s, end})
	}
	if d.HasEnded {
		is.rest = append(is.rest, d.ended())
	}
}

func (d *Dispatch[S]) ended() part[S] {
	end := d.End
	end.Outcome = d.EndedAs
	return part[S]{d.Ended, end.pack()}
}

// nextLocked returns the place of the next event: the oldest one's, once there are enough.
func (s *shard[S]) nextLocked() *event[S] {
	if len(s.events) < inShard {
		if len(s.events) == cap(s.events) { // append would reserve more than is ever used
			s.events = slices.Grow(s.events, min(max(len(s.events), 8), inShard-len(s.events)))
		}
		s.events = s.events[:len(s.events)+1]
		return &s.events[len(s.events)-1]
	}
	at := &s.events[s.oldest]
	s.oldest = (s.oldest + 1) % inShard
	return at
}

// partsLocked returns an empty list with room for n parts. One allocation serves many events.
func (s *shard[S]) partsLocked(n int) []part[S] {
	if n <= 0 || n > slab {
		return nil
	}
	if len(s.parts) < n {
		s.parts = make([]part[S], slab)
	}
	parts := s.parts[:0:n]
	s.parts = s.parts[n:]
	return parts
}

// detailsLocked returns new details. One allocation serves many events.
func (s *shard[S]) detailsLocked() *details[S] {
	if len(s.details) == 0 {
		s.details = make([]details[S], slab)
	}
	is := &s.details[0]
	s.details = s.details[1:]
	return is
}

// nearLocked returns the event of a dispatch among the last ones, or nil. A replay is another one.
func (s *shard[S]) nearLocked(d *Dispatch[S]) *event[S] {
	n, replays := len(s.events), min(d.End.Replays, MaxReplays)
	for i := range min(near, n) {
		if at := &s.events[(s.oldest+n-1-i)%n]; at.id == d.ID && at.details != nil && at.details.by.equals(d.By) && at.end.end().Replays == replays {
			return at
		}
	}
	return nil
}

func (o *Operators) equals(other *Operators) bool {
	return o == other || o != nil && other != nil && *o == *other
}

// Of returns how an event has ended at its subscriptions, oldest first.
func (e *Events[S]) Of(id [16]byte) (all []Delivery[S]) {
	s := e.of(&id)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.events)
	for i := range n {
		if at := &s.events[(s.oldest+i)%n]; at.id == id {
			all = at.appendTo(all)
		}
	}
	return all
}

func (e *event[S]) appendTo(all []Delivery[S]) []Delivery[S] {
	if e.details != nil {
		return e.details.appendTo(all, e.end.end())
	}
	for _, s := range *e.all {
		all = append(all, Delivery[S]{At: s, End: e.end.end()})
	}
	return all
}

func (is *details[S]) appendTo(all []Delivery[S], end End) []Delivery[S] {
	for _, s := range is.handled {
		all = append(all, Delivery[S]{At: s, By: is.by, End: end})
	}
	for _, p := range is.rest {
		all = append(all, Delivery[S]{At: p.at, By: is.by, End: p.end.end()})
	}
	if len(is.handled)+len(is.rest) == 0 {
		all = append(all, Delivery[S]{By: is.by, End: end})
	}
	return all
}
