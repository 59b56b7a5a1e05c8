package eventbus

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/line"
)

// Seat returns the dispatch's seat in the line of its seatDoor.
func (d *dispatch) Seat() *line.Seat { return &d.ensureDetours().seat }

// Key returns the dispatch's key, or "".
func (d *dispatch) Key() string { return d.key }

// seat returns the dispatch's seat, or a zero Seat.
func (d *dispatch) seat() line.Seat {
	if d.story == nil || d.story.detours == nil {
		return line.Seat{}
	}
	return d.story.detours.seat
}

// seatedAt returns the subscription at which the dispatch has its seat: its last target.
func (d *dispatch) seatedAt() *Subscription { return d.to.subscriptions[len(d.to.subscriptions)-1] }

// staysInMemory reports whether memory keeps the delivery if it is refused at a door, however full the line is: it was claimed from
// those that are parked there, or it has waited at a destination, and has its place before others that memory has.
func (d *dispatch) staysInMemory(o *door) bool {
	s := d.row()
	return s != nil && s.from == o || d.hasPassed()
}

// hasPassed reports whether the delivery has passed the subscription's own door before: it has its place at a destination that is
// not its own, or was claimed from those of a destination. All of its key at the own door are later.
func (d *dispatch) hasPassed() bool {
	if home := d.home(); home != nil {
		return home.whole != nil
	}
	s := d.row()
	return s != nil && s.from != nil && s.from.whole != nil
}

// seatDoor returns the door at which the dispatch has its seat, or would get one.
func (d *dispatch) seatDoor() *door {
	if d.story != nil && d.story.detours != nil && d.story.detours.at != nil {
		return d.story.detours.at
	}
	return d.seatedAt().door
}

// sit gives a delivery a seat, so that later deliveries of its key queue behind it. If the line is
// full, it returns the reason for a dead letter, or the delivery to drop: the oldest in the line,
// or d. With spills, the delivery has no seat: only the store keeps it.
func (o *door) sit(b *Bus, d *dispatch, why *barrier) (victim *dispatch, spills bool, refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seated := d.seat().Number != 0
	how := o.parksLocked(b, d, why)
	o.arrivedLocked(d)
	if o.of().destinations != nil && !seated { // also if only the store keeps it
		d.ensureDetours().at = o
	}
	full := o.isFullLocked(d) && (why != stillAsleep || o.spill.allowed)
	switch {
	case o.closed != "":
		return nil, false, o.closed
	case seated:
	case how == snoozed && o.spill.allowed: // it does not come before others: only the store needs to have it, if it has no key
		if d.key == "" && full && !d.staysInMemory(o) {
			return nil, true, ""
		}
	case how != snoozed && (o.goesToStoreLocked(d) || o.spill.allowed && full && !d.staysInMemory(o)):
		o.spillLocked(d, how)
		return nil, true, ""
	case !full || d.staysInMemory(o):
	case o.terms().whenFull == DropNewestWhenFull:
		return d, false, ""
	case o.terms().whenFull == DropOldestWhenFull:
		oldest, ok := o.line.Oldest(false)
		if !ok { // all are inside or on their way
			return d, false, ""
		}
		o.line.Drop(oldest)
		o.countLocked(b) // before the victim settles: see unsettled
		victim = oldest
	case o.terms().whenFull == DeadLetterWhenFull, !parkingRules[how].publishWaits, d.inside && o.seatsLocked()/2 >= o.terms().capacity,
		o.whole != nil: // a publisher does not know the destination
		return nil, false, ReasonOverflow
	}
	if !seated {
		o.line.Sit(d)
		o.circuit.Gate.Or(circuit.Line)
		o.keepHomeLocked(d)
	}
	d.Seat().Reason = uint8(how)
	o.holdBehindLocked(b, d, how)
	return victim, false, ""
}

// holdBehindLocked makes throttled deliveries held ones that are behind one of their key, if callers do not wait for that one.
func (o *door) holdBehindLocked(b *Bus, first *dispatch, how parking) {
	if !parkingRules[how].drains && o.line.Parked()[throttled] > 0 {
		o.holdLocked(b, o.line.Behind(first))
	}
}

// isFullLocked reports whether memory has no room in the line for a delivery. One that would wait there behind one of its key that
// waits for another destination needs none of the line's.
func (o *door) isFullLocked(d *dispatch) bool {
	if o.whole != nil && o.spill.allowed && o.of().destinations.isFull() {
		return true
	}
	return o.seatsLocked() >= o.terms().capacity && !o.line.IsLedElsewhere(d.key)
}

// seatsLocked returns the seats for which the line has its capacity. Deliveries behind one of their key that waits for another
// destination must not take those of this one's: they count in all lines together only.
func (o *door) seatsLocked() int { return o.line.Taken() - o.line.Strangers() }

// parksLocked returns how a delivery is parked that a barrier has refused: as the one that it comes behind,
// or held while the door is shut for long. If the door has opened since, it is throttled until tend releases it.
func (o *door) parksLocked(b *Bus, d *dispatch, why *barrier) parking {
	if why == asleep || why == stillAsleep {
		return snoozed
	}
	holdsAtOnce := why != nil && why.lasts != nil && o.line.Parked()[throttled] == 0 // otherwise they become held together
	if holdsAtOnce || o.shutsForLongLocked(b) {
		return held
	}
	if how, _, behind := o.line.Leads(d.key); behind && why == behindKey {
		if parking(how) != snoozed {
			return parking(how)
		}
		return held // for as long as the handler of the first one has said
	}
	return throttled
}

// join puts a delivery with a seat into the line. If the line is closed, it returns the reason.
func (o *door) join(b *Bus, d *dispatch) (refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed != "":
		return o.closed
	case b.machine.stops(d): // after unloadAll
		return ReasonShutdown
	}
	if how, _, ok := o.line.Leads(d.key); ok && !parkingRules[how].drains && !o.line.IsFirst(d) && d.seat().Reason == uint8(throttled) {
		d.Seat().Reason = uint8(held) // the first one has become held since this one took its seat
	}
	how := d.seat().Reason
	o.line.Park(d, how, b.time.Nanos(), d.takeNotBefore())
	o.countLocked(b)
	if !parkingRules[how].waiterWaits {
		d.unawait(d.seatedAt())
	}
	return ""
}

// away marks a delivery with a seat as waiting for its next attempt.
func (o *door) away(d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Move(d, line.Away)
}

// release removes the seat of a delivery that has settled.
func (o *door) release(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Leave(d)
	o.choseLocked(d)
	o.leaveHomeLocked(d.key)
	o.endLineLocked()
	o.countLocked(b)
}

// sit gives a delivery a seat at the door that has refused it: see door.sit. If it has its place in a key's order at another
// door, it keeps that too.
func (m *machine) sit(d *dispatch, at *door, why *barrier) (victim *dispatch, spills bool, refused Reason) {
	ds := at.of().destinations
	if ds == nil {
		return at.sit(m.Bus, d, why)
	}
	switch from := d.seatDoor(); {
	case d.seat().Number == 0:
		ds.queueAtHome(d, at)
	case from != at:
		from.lend(m.Bus, d)
		defer m.tend(from)
	}
	m.arrivedElsewhere(d, at)
	if at.whole != nil { // it may have been forgotten since it refused the delivery
		var unpin func()
		at, unpin = ds.pinned(at.name)
		defer unpin()
	}
	if victim, spills, refused = at.sit(m.Bus, d, why); refused != "" || victim == d { // it settles, and keeps its place until then
		return victim, spills, refused
	}
	m.freeOwnPlace(d)
	if home := d.home(); home != nil && d.seat().Number != 0 {
		home.leads(m.Bus, d, parking(d.seat().Reason))
	}
	return victim, spills, refused
}

// queueAtHome gives a delivery that takes its first seat its place at the home of its key, if it waits at another door.
func (ds *destinations) queueAtHome(d *dispatch, at *door) {
	home := ds.homes.Of(d.key)
	if home == nil || home == at || d.home() != nil {
		return
	}
	if at.whole == nil && !d.hasPassed() {
		return // it comes home when it has passed the subscription's own door
	}
	home.follow(d)
}

// freeOwnPlace frees the place in its key's order that a delivery has at the subscription's own door, if it has one at its
// destination now: others of its key come to that, and wait there. So the line of the own door has only deliveries that wait
// for what the subscription has, and those of a dead destination do not fill it.
func (m *machine) freeOwnPlace(d *dispatch) {
	if own := d.home(); own != nil && own.whole == nil {
		d.story.detours.home = nil
		own.returned(m.Bus, d)
		m.tend(own)
	}
}

// moveSeat moves the seat of a delivery that enters a door, if it has one at another door.
func (m *machine) moveSeat(d *dispatch, at *door) {
	m.arrivedElsewhere(d, at)
	from := d.seatDoor()
	if d.seat().Number == 0 || from == at {
		return
	}
	from.lend(m.Bus, d)
	at.seatInside(m.Bus, d)
	m.freeOwnPlace(d)
	m.tend(from)
}

// seatInside gives a delivery that has entered a seat.
func (o *door) seatInside(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d.ensureDetours().at = o
	o.line.Sit(d)
	o.line.Move(d, line.Inside)
	o.circuit.Gate.Or(circuit.Line)
	o.keepHomeLocked(d)
	o.countLocked(b)
}

// leads notes how a delivery is parked at another door that has its place in the order of its key here.
func (o *door) leads(b *Bus, d *dispatch, how parking) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Elsewhere(d, uint8(how))
	o.holdBehindLocked(b, d, how)
}

// lend frees the seat of a delivery that takes one at another door. Others of its key stay behind it here, also at the subscription's
// own door, until freeOwnPlace.
func (o *door) lend(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Lend(d)
	o.choseLocked(d)
	if d.key != "" && d.home() == nil {
		d.ensureDetours().home = o
	} else {
		o.line.Return(d)
	}
	o.endLineLocked()
	o.countLocked(b)
}

// follow gives a delivery that takes its seat at another door its place in its key's order here.
func (o *door) follow(d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.has(circuit.Forgotten) { // since it was found: nothing of the key waits there any more
		return
	}
	o.line.Follow(d)
	o.of().destinations.homes.Keep(d.key, o)
	d.ensureDetours().home = o
}

// returned frees the place of a delivery in its key's order that has settled after it had taken a seat elsewhere.
func (o *door) returned(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Return(d)
	o.leaveHomeLocked(d.key)
	o.endLineLocked()
	o.countLocked(b)
}

// leaveSeat frees the seat of a delivery that has settled or leaves memory, and its place at another door.
func (m *machine) leaveSeat(d *dispatch) {
	if d.seat().Number != 0 {
		at := d.seatDoor()
		at.release(m.Bus, d)
		m.tend(at)
	}
	if home := d.home(); home != nil {
		d.story.detours.home = nil
		home.returned(m.Bus, d)
		m.tend(home)
	}
}

// trim keeps the lines of all destinations in memory within their bound: the longest one is the full one.
func (m *machine) trim(ds *destinations) {
	for ds.isFull() {
		victim, drops := ds.evict(m.Bus)
		switch {
		case victim == nil: // all are on their way
			return
		case drops:
			m.settle(victim, Dropped)
		default:
			m.bury(victim, ReasonOverflow)
		}
	}
}

// evict removes a delivery from the longest line, or returns nil. In the longest one all may be on their way, or wait for a retry:
// then it is the turn of the next one.
func (ds *destinations) evict(b *Bus) (victim *dispatch, drops bool) {
	ds.evicting.Lock()
	defer ds.evicting.Unlock()
	if !ds.isFull() { // another call was first
		return nil, false
	}
	type length struct {
		of    *door
		seats int32
	}
	var all []length
	for _, o := range ds.all() {
		all = append(all, length{o, o.seats.Load()})
	}
	shorter := func(x, y length) int { return cmp.Compare(x.seats, y.seats) }
	if victim, drops = slices.MaxFunc(all, shorter).of.shorten(b); victim != nil {
		return victim, drops
	}
	slices.SortFunc(all, shorter)
	for _, next := range slices.Backward(all) {
		if victim, drops = next.of.shorten(b); victim != nil {
			break
		}
	}
	return victim, drops
}

// count counts the seats of all lines. Once these have room again, the doors ask that did not before.
func (ds *destinations) count(b *Bus, more int64) {
	now, most := ds.seats.Add(more), ds.most()
	if more >= 0 || now > most || now-more <= most {
		return
	}
	for o := ds.crowded.next(); o != nil; o = ds.crowded.next() {
		b.machine.doors.Add(b.time.Nanos(), o) // the caller holds the mutex of another one
	}
}

// isFull reports whether the lines have more deliveries than memory keeps of a subscription.
func (ds *destinations) isFull() bool { return ds.seats.Load() > ds.most() }

// most is how many deliveries memory keeps of a subscription.
func (ds *destinations) most() int64 { return linesInMemory * int64(ds.own.terms().capacity) }

// shorten removes the delivery that a full line does not keep, or returns nil. drops is set if it is dropped.
func (o *door) shorten(b *Bus) (victim *dispatch, drops bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spill.allowed {
		return nil, false // sit leaves them to the store
	}
	find := o.line.Newest
	if o.terms().whenFull == DropOldestWhenFull {
		find = o.line.Oldest
	}
	mostly := 2*o.line.Strangers() > o.line.Taken()
	victim, ok := find(mostly)
	if !ok {
		if victim, ok = find(!mostly); !ok {
			return nil, false
		}
	}
	o.line.Evict(victim)
	o.countLocked(b) // before the victim settles: see unsettled
	return victim, o.terms().whenFull == DropOldestWhenFull || o.terms().whenFull == DropNewestWhenFull
}

// home returns the door at which later deliveries of the key stay behind it, if that is not the one of its seat.
func (d *dispatch) home() *door {
	if d.story == nil || d.story.detours == nil {
		return nil
	}
	return d.story.detours.home
}

// Visits reports whether the dispatch waits behind another of its key, at the door of a destination that is not its own: its own
// is not known yet.
func (d *dispatch) Visits() bool { return d.seatDoor().whole != nil && d.destination() == "" }

// vacated tends the doors that may release deliveries because a call does not count at a door any more: its own, the
// subscription's, and those of destinations that wait for the share of the workers, until one uses what the call has freed.
func (m *machine) vacated(at *door) {
	m.tend(at)
	if at.whole == nil {
		return
	}
	m.tend(at.whole)
	ds := at.of().destinations
	for o := ds.shares.next(); o != nil; o = ds.shares.next() {
		if t := m.tendReporting(o); t.released || t.needsShare {
			return
		}
	}
}

// doorQueue has doors that wait for something, each once. It is safe for concurrent use. Its mutex comes after door.mu.
type doorQueue struct {
	n atomic.Int32 // length of doors

	mu    sync.Mutex // guards the following
	doors []*door
}

// add adds a door, unless it waits already.
func (q *doorQueue) add(o *door) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(q.doors, o) {
		q.doors = append(q.doors, o)
		q.n.Store(int32(len(q.doors)))
	}
}

// next removes and returns the door that has waited the longest, or nil.
func (q *doorQueue) next() (o *door) {
	if q.n.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.doors) > 0 {
		o, q.doors[0] = q.doors[0], nil
		q.doors = q.doors[1:]
		q.n.Store(int32(len(q.doors)))
	}
	return o
}
