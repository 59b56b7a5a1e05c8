package eventbus

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shut says why a delivery may not enter its subscription now.
type shut uint8

const (
	admitted      shut = iota
	shutOpen           // the circuit is open, or half-open with a probe
	shutPaused         // an operator has paused the subscription
	shutThrottled      // a concurrency limit is reached
	shutBehind         // an earlier delivery of its key is at the door
	shutRemoved        // the subscription has ended
)

// parking is the reason why a delivery waits at a door.
type parking uint8

const (
	held      parking = iota // circuit open, paused, hold-until
	throttled                // a limit is reached
	snoozed                  // its handler asked for a pause
	orphaned                 // its subscription does not exist
	parkings
)

// parkingRules says what each reason means for the others that wait. A delivery behind
// another one of its key is parked for the reason of that one.
var parkingRules = [parkings]struct {
	publishWaits bool // Publish waits while the line is full; otherwise a newcomer overflows to a dead letter
	waiterWaits  bool // PublishAndWait waits for the delivery; otherwise its result names it
	drains       bool // Shutdown waits for the delivery
	stored       bool // it stays in the store: there is no line
}{
	held:      {},
	throttled: {publishWaits: true, waiterWaits: true, drains: true},
	snoozed:   {waiterWaits: true},
	orphaned:  {stored: true},
}

// releaseMost is how many deliveries a door releases at a time beyond those that are
// inside: a service that has recovered does not receive everything at once.
const releaseMost = 64

// door decides whether a delivery may enter a subscription now, and keeps the line of
// those that may not. Each of these is a dispatch of its own.
//
// A delivery in the line has a seat. Its number orders the line, and stays the same
// until the delivery has settled, also while it waits for a retry. Deliveries of a key
// leave one after the other: those after the first are behind it.
type door struct {
	circuit  circuit
	running  atomic.Int32 // calls of the handler; those abandoned, or waiting in PublishAndWait, not counted
	limit    int32        // of running; math.MaxInt32 for none
	share    int32        // of running, while the bus is full; math.MaxInt32 if limit was chosen
	capacity int          // of the line
	whenOpen WhenOpen
	whenFull WhenFull
	ledger   *ledger

	mu          sync.Mutex // guards the following, and the seats of its dispatches
	ready       []*dispatch
	keys        map[string]*keyLine
	at          [seatPlaces]int // seats in each place
	parked      [parkings]int   // seats in the line, by reason
	taken       int             // seats of deliveries that have not settled
	seats       uint64          // number of the last seat
	wakeAt      int64           // when the door is asked again, 0 if that is not known
	pausedUntil int64           // with gatePaused
	room        chan struct{}   // not nil while the line is full; closed when it has room
	closed      Reason          // why the line takes nothing any more
}

// keyLine is the deliveries of a key at a door: the first, wherever it is, and those
// behind it.
type keyLine struct {
	first  *dispatch
	behind []*dispatch
}

// seat is a delivery's place at the door of its target.
type seat struct {
	number uint64 // 0: none
	place  seatPlace
	reason parking
	since  int64 // when it was parked last
}

type seatPlace uint8

const (
	seatAway   seatPlace = iota // it waits for a retry, or is being recorded
	seatParked                  // in the line
	seatComing                  // released, and not at the door yet
	seatInside                  // in the handler
	seatPlaces
)

// seat is the dispatch's, zero if it has none.
func (d *dispatch) seat() seat {
	if d.story == nil || d.story.detours == nil {
		return seat{}
	}
	return d.story.detours.seat
}

// seatedAt is the subscription at which the dispatch has its seat: its last target.
func (d *dispatch) seatedAt() *Subscription { return d.to.subscriptions[len(d.to.subscriptions)-1] }

// enter asks for a delivery to enter, immediately before its handler is to run: a
// subscription that an attempt does not reach holds nothing.
//
// The pass is the gate as it was on the way in. Every delivery that was admitted leaves
// exactly once.
func (o *door) enter(b *Bus, d *dispatch) (pass uint64, why shut) {
	pass = o.circuit.gate.Load()
	n := o.running.Add(1)
	if pass&gateAsk == 0 && n <= o.limit && (n <= o.share || !b.pool.Full()) {
		return pass, admitted
	}
	pass, why, change := o.ask(b, d)
	if why != admitted {
		o.running.Add(-1)
	}
	s := d.to.subscriptions[d.next]
	b.circuitChanged(s, change)
	if why == admitted && d.seat().number != 0 {
		b.tend(s)
	}
	return pass, why
}

// ask is enter for a door that may be shut. The circuit's permit is taken last.
func (o *door) ask(b *Bus, d *dispatch) (pass uint64, why shut, change circuitChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := b.time.Nanos()
	o.endPauseLocked(now)
	seated := d.seat().number != 0
	gate := o.circuit.gate.Load()
	switch {
	case gate&gateRemoved != 0:
		return gate, shutRemoved, change
	case !seated && d.key != "" && o.keys[d.key] != nil:
		return gate, shutBehind, change
	case gate&gatePaused != 0:
		return gate, shutPaused, change
	}
	if most, _ := o.circuit.admits(now); most == 0 {
		return gate, shutOpen, change
	}
	if !seated && o.parked[throttled] > 0 || o.running.Load() > o.limitNow(b) {
		return gate, shutThrottled, change
	}
	pass, admits, change := o.circuit.enter(now)
	if !admits {
		return pass, shutOpen, change
	}
	if seated {
		o.moveLocked(d, seatInside)
	}
	return pass, admitted, change
}

// limitNow is the concurrency limit that holds now. Without one of its own, a
// subscription is limited to its share while the bus has no free worker, so that it
// cannot keep all workers from the others.
func (o *door) limitNow(b *Bus) int32 {
	if b.several.Load() && b.pool.Full() {
		return min(o.limit, o.share)
	}
	return o.limit
}

// outcome is what a delivery that leaves tells the circuit.
type outcome uint8

const (
	succeeded outcome = iota
	failed
	noOutcome
)

// leave ends a delivery's stay inside.
func (o *door) leave(b *Bus, d *dispatch, pass uint64, what outcome) (change circuitChange) {
	o.running.Add(-1)
	var was counted
	if d.story != nil {
		was = d.story.counted
	}
	switch what {
	case succeeded:
		now, _ := b.time.Recent()
		change = o.circuit.succeeded(pass, now.Nanos, was)
	case failed:
		d.story.counted, change = o.circuit.failed(pass, b.time.Nanos(), was)
	case noOutcome:
		o.circuit.released(pass)
	}
	return change
}

// barred is why a call must not start, whatever the circuit says.
func (o *door) barred() shut {
	switch gate := o.circuit.gate.Load(); {
	case gate&gateRemoved != 0:
		return shutRemoved
	case gate&gatePaused != 0:
		return shutPaused
	}
	return admitted
}

// lend does not count a call that waits for another event.
func (b *Bus) lend(s *Subscription) {
	s.door.running.Add(-1)
	if s.door.circuit.gate.Load()&gateLine != 0 {
		b.tend(s)
	}
}

// park puts a delivery that may not enter into the door's line, or ends it as its
// subscription says. If it is not all that is left of its dispatch, it becomes a dispatch
// of its own and park returns false. Being parked spends no attempt.
func (b *Bus) park(d *dispatch, s *Subscription, why shut) (all bool) {
	parked, waiter := d, d.waiter()
	switch {
	case d.seat().number != 0:
		d.attempt--
	case d.isLast():
		s.counters.skipped.Add(1)
		d.narrow()
	default:
		s.counters.skipped.Add(1)
		b.ledger.splits.Add(1)
		parked = d.splitOff(b.policy(d.to))
		if waiter != nil {
			waiter.expect(1)
			parked.tell().part = true
		}
	}
	all = parked == d
	switch {
	case why == shutRemoved:
		b.bury(parked, ReasonUnsubscribed)
		return all
	case why == shutOpen && s.door.whenOpen == DropWhenOpen:
		b.settle(parked, Dropped)
		return all
	case why == shutOpen && s.door.whenOpen == DeadLetterWhenOpen:
		b.bury(parked, ReasonCircuitOpen)
		return all
	}
	victim, reason := s.door.sit(b, parked, why)
	if victim != nil {
		b.settle(victim, Dropped)
	}
	switch {
	case reason != "":
		b.bury(parked, reason)
	case victim != parked:
		b.record(&change{kind: toPark, d: parked})
	}
	return all
}

// parked lets a delivery that has a seat wait in the line.
func (b *Bus) parked(d *dispatch) {
	s := d.seatedAt()
	if attempt := d.leaveAttempt(); attempt != nil {
		b.observeEnd(EndedAttempt{Attempt: *attempt, Outcome: Held})
	}
	b.leaveKey(d)
	d.state = stateParked
	reason := d.seat().reason
	if refused := s.door.join(b, d); refused != "" {
		b.bury(d, refused)
		return
	}
	// From here on the delivery may be released, and is not this function's.
	if reason == throttled && s.door.limit == math.MaxInt32 {
		b.shared.add(s)
	}
	b.checkDrained()
	b.tend(s)
}

// unawait tells the waiter of a delivery that it is held, and waits no longer.
func (d *dispatch) unawait(s *Subscription) {
	waiter := d.waiter()
	if waiter == nil {
		return
	}
	part := d.story.part
	d.story.unawaited = true
	waiter.held(s, part, int(d.attempt))
}

// sit gives a delivery a seat, so that later ones of its key come behind it. It returns
// why there is none, or the delivery that a full line drops: the oldest in it, or the
// newcomer.
func (o *door) sit(b *Bus, d *dispatch, why shut) (victim *dispatch, refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := b.time.Nanos()
	reason := held
	switch {
	case o.shutLocked(now):
	case why == shutThrottled:
		reason = throttled
	case why == shutBehind && o.keys[d.key] != nil:
		reason = o.keys[d.key].first.seat().reason
	}
	first := d.seat().number == 0
	switch {
	case o.closed != "":
		return nil, o.closed
	case !first || o.taken < o.capacity:
	case o.whenFull == DropNewestWhenFull:
		return d, ""
	case o.whenFull == DropOldestWhenFull && len(o.ready) > 0:
		victim = o.ready[0]
		o.ready = o.ready[1:]
	case o.whenFull == DropOldestWhenFull: // all are inside, or on their way there
		return d, ""
	case o.whenFull == DeadLetterWhenFull || !parkingRules[reason].publishWaits:
		return nil, ReasonOverflow
	}
	at := &d.detour().seat
	at.reason, at.since = reason, now
	if first {
		o.seats++
		o.taken++
		at.number = o.seats
		o.circuit.gate.Or(gateLine)
		if d.key != "" {
			o.followLocked(d)
		}
	}
	return victim, ""
}

// followLocked puts a delivery with a new seat behind those of its key.
func (o *door) followLocked(d *dispatch) {
	if line := o.keys[d.key]; line != nil {
		line.behind = append(line.behind, d)
		return
	}
	if o.keys == nil {
		o.keys = make(map[string]*keyLine)
	}
	o.keys[d.key] = &keyLine{first: d}
}

// join lets a delivery with a seat wait in the line. It returns why it cannot.
func (o *door) join(b *Bus, d *dispatch) (refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed != "" {
		return o.closed
	}
	o.moveLocked(d, seatParked)
	if reason := d.seat().reason; !parkingRules[reason].waiterWaits {
		d.unawait(d.seatedAt())
	}
	if line := o.keys[d.key]; line == nil || line.first == d {
		o.readyLocked(d)
	}
	o.roomLocked(b)
	return ""
}

// readyLocked puts a delivery where its number says. New ones have the highest.
func (o *door) readyLocked(d *dispatch) {
	i, _ := slices.BinarySearchFunc(o.ready, d, bySeat)
	o.ready = slices.Insert(o.ready, i, d)
}

func bySeat(x, y *dispatch) int { return cmp.Compare(x.seat().number, y.seat().number) }

func (o *door) moveLocked(d *dispatch, to seatPlace) {
	at := &d.detour().seat
	o.at[at.place]--
	o.at[to]++
	o.at[seatAway] = 0
	if at.place == seatParked {
		o.parked[at.reason]--
		o.ledger.parked[at.reason].Add(-1)
	}
	if to == seatParked {
		o.parked[at.reason]++
		o.ledger.parked[at.reason].Add(1)
	}
	at.place = to
}

// move notes where a delivery with a seat is now.
func (o *door) move(d *dispatch, to seatPlace) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moveLocked(d, to)
}

// release takes back the seat of a delivery that has settled. The next one of its key
// comes first now.
func (o *door) release(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moveLocked(d, seatAway)
	d.detour().seat = seat{}
	if o.taken--; o.taken == 0 {
		o.circuit.gate.And(^uint64(gateLine))
	}
	o.roomLocked(b)
	line := o.keys[d.key]
	switch {
	case line == nil:
	case line.first != d: // an overflow that dropped one behind
		line.behind = slices.DeleteFunc(line.behind, func(x *dispatch) bool { return x == d })
	case len(line.behind) > 0:
		line.first = line.behind[0]
		line.behind[0] = nil
		line.behind = line.behind[1:]
		if line.first.seat().place == seatParked {
			o.readyLocked(line.first)
		}
	default:
		delete(o.keys, d.key)
		if len(o.keys) == 0 {
			o.keys = nil // a map keeps its memory
		}
	}
}

// tend releases deliveries of the line, oldest first: as many as may enter.
func (b *Bus) tend(s *Subscription) {
	o := &s.door
	if o.circuit.gate.Load()&gateLine == 0 {
		return
	}
	o.mu.Lock()
	now := b.time.Nanos()
	converted := o.shutLocked(now) && o.holdThrottledLocked(s)
	for len(o.ready) > 0 && o.releasesLocked(b, s, b.time.Nanos()) {
		d := o.ready[0]
		o.ready[0] = nil
		o.ready = o.ready[1:]
		d.story.parked += time.Duration(max(now-d.seat().since, 0))
		o.moveLocked(d, seatComing)
		d.state = stateQueued
		b.pool.Return(false, d)
	}
	o.roomLocked(b)
	o.mu.Unlock()
	if converted {
		b.checkDrained()
	}
}

// shutLocked reports whether the door is shut by something that may last: a pause or an
// outage.
func (o *door) shutLocked(now int64) bool {
	o.endPauseLocked(now)
	return o.circuit.gate.Load()&(gatePaused|gateShut) != 0
}

// holdThrottledLocked makes throttled deliveries held ones, because the door is shut: no
// waiter and no Shutdown waits for those.
func (o *door) holdThrottledLocked(s *Subscription) bool {
	if o.parked[throttled] == 0 {
		return false
	}
	convert := func(d *dispatch) {
		at := &d.story.detours.seat
		if at.reason != throttled || at.place != seatParked {
			return
		}
		o.moveLocked(d, seatAway)
		at.reason = held
		o.moveLocked(d, seatParked)
		d.unawait(s)
	}
	for _, d := range o.ready {
		convert(d)
	}
	for _, line := range o.keys {
		for _, d := range line.behind {
			convert(d)
		}
	}
	return true
}

// releasesLocked reports whether the first delivery of the line may go to the door. If
// not, something asks again: a delivery that leaves, the timer that it sets, or the
// pool when a worker becomes free.
func (o *door) releasesLocked(b *Bus, s *Subscription, now int64) bool {
	most, again := o.admitsLocked(now)
	coming := o.at[seatComing]
	running := int(o.running.Load()) + coming
	switch {
	case most == 0:
		if again != math.MaxInt64 && (o.wakeAt == 0 || again < o.wakeAt) {
			o.wakeAt = again
			b.doors.Add(again, s)
		}
		return false
	case running >= int(o.limitNow(b)):
		return false
	case most == 1:
		return coming == 0 // or the one that comes is the probe
	case coming >= releaseMost:
		return false
	case o.ready[0].seat().reason == held && coming+o.at[seatInside] >= releaseMost:
		return false
	}
	return running < int(o.share) || coming == 0 // the bus may be full when it arrives
}

// admitsLocked is how many deliveries may come to the door, and if none may, when that
// changes by itself.
func (o *door) admitsLocked(now int64) (most int, again int64) {
	o.endPauseLocked(now)
	switch gate := o.circuit.gate.Load(); {
	case gate&gateRemoved != 0:
		return releaseMost, 0
	case gate&gatePaused != 0:
		return 0, o.pausedUntil
	}
	return o.circuit.admits(now)
}

// wake asks doors again whose time has come.
func (b *Bus) wake(all []*Subscription) {
	for _, s := range all {
		s.door.mu.Lock()
		s.door.wakeAt = 0
		s.door.mu.Unlock()
		b.tend(s)
	}
}

// close empties the line, oldest first, for ever: the line refuses others with the
// reason.
func (o *door) close(b *Bus, why Reason) []*dispatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed == "" {
		o.closed = why
	}
	all := o.ready
	o.ready = nil
	for _, line := range o.keys {
		line.behind = slices.DeleteFunc(line.behind, func(d *dispatch) bool {
			if d.seat().place != seatParked {
				return false
			}
			all = append(all, d)
			return true
		})
	}
	slices.SortFunc(all, bySeat)
	for _, d := range all {
		o.moveLocked(d, seatAway)
	}
	o.roomLocked(b)
	return all
}

// roomLocked notes whether publishers have to wait for room in the line, and wakes them.
func (o *door) roomLocked(b *Bus) {
	full := o.taken >= o.capacity && o.parked[throttled] > 0 && o.whenFull == WaitWhenFull && o.closed == ""
	switch {
	case full && o.room == nil:
		o.room = make(chan struct{})
		b.fullLines.Add(1)
	case !full && o.room != nil:
		close(o.room)
		o.room = nil
		b.fullLines.Add(-1)
	}
}

// full is closed when the line has room; nil if it has.
func (o *door) full() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.room
}

// pause shuts the door until an instant.
func (o *door) pause(until int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pausedUntil = until
	o.circuit.gate.Or(gatePaused)
}

// resume ends a pause.
func (o *door) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.circuit.gate.And(^uint64(gatePaused))
}

func (o *door) endPauseLocked(now int64) {
	if o.circuit.gate.Load()&gatePaused != 0 && now >= o.pausedUntil {
		o.circuit.gate.And(^uint64(gatePaused))
	}
}

// paused reports whether the door is paused, and until when.
func (o *door) paused(now int64) (until int64, paused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endPauseLocked(now)
	return o.pausedUntil, o.circuit.gate.Load()&gatePaused != 0
}

// remove shuts the door for ever.
func (o *door) remove() { o.circuit.gate.Or(gateRemoved) }

// line is how many deliveries wait, by reason.
func (o *door) line() [parkings]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parked
}

// sharedDoors are those that throttle only because the bus is full.
type sharedDoors struct {
	number atomic.Int32 // len(doors)

	mu    sync.Mutex // guards the following
	doors map[*Subscription]bool
}

func (h *sharedDoors) add(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.doors == nil {
		h.doors = make(map[*Subscription]bool)
	}
	h.doors[s] = true
	h.number.Store(int32(len(h.doors)))
}

// freed is called when a worker of a full bus has become free.
func (b *Bus) freed() {
	if b.shared.number.Load() == 0 {
		return
	}
	for _, s := range b.shared.take() {
		b.tend(s)
		if s.door.line()[throttled] == 0 {
			continue
		}
		b.shared.add(s)
		if !b.pool.Full() { // again, before it was added
			b.tend(s)
		}
	}
}

func (h *sharedDoors) take() []*Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Keys(h.doors))
	h.doors = nil
	h.number.Store(0)
	return all
}
