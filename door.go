package eventbus

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/window"
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

// parkingRules says what each reason means for the others that wait. A delivery behind another one
// of its key is parked for the reason of that one.
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

// releaseMost is how many deliveries a door releases at a time beyond those that are inside: a
// service that has recovered does not receive everything at once.
const releaseMost = 64

// door decides whether a delivery may enter a subscription now, and keeps the line of those that
// may not. Each of these is a dispatch of its own.
//
// A delivery that was parked has a seat in the line until it has settled, also while it waits for a
// retry.
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
	line        line.Line[*dispatch]
	counted     [line.Reasons]int // parked deliveries that the ledger knows of
	wakeAt      int64             // when the door is asked again, 0 if that is not known
	pausedUntil int64             // with gatePaused
	room        chan struct{}     // not nil while the line is full; closed when it has room
	closed      Reason            // why the line takes nothing any more
}

// Seat is the dispatch's seat at the door of its last target.
func (d *dispatch) Seat() *line.Seat { return &d.detour().seat }

// Key is the dispatch's key, "" for none.
func (d *dispatch) Key() string { return d.key }

// seat is the dispatch's, zero if it has none.
func (d *dispatch) seat() line.Seat {
	if d.story == nil || d.story.detours == nil {
		return line.Seat{}
	}
	return d.story.detours.seat
}

// seatedAt is the subscription at which the dispatch has its seat: its last target.
func (d *dispatch) seatedAt() *Subscription { return d.to.subscriptions[len(d.to.subscriptions)-1] }

// enter asks for a delivery to enter, immediately before its handler is to run: a subscription that
// an attempt does not reach holds nothing.
//
// The pass is the gate as it was on the way in. Every delivery that was admitted leaves exactly
// once.
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
	// After a refusal too: if the last running call ended while this delivery was counted as running,
	// tend found the limit reached, and no other call would release the line.
	if why != admitted || d.seat().Number != 0 {
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
	seated := d.seat().Number != 0
	gate := o.circuit.gate.Load()
	switch {
	case gate&gateRemoved != 0:
		return gate, shutRemoved, change
	case !seated && o.isBehindLocked(d):
		return gate, shutBehind, change
	case gate&gatePaused != 0:
		return gate, shutPaused, change
	}
	if most, _ := o.circuit.admits(now); most == 0 {
		return gate, shutOpen, change
	}
	if !seated && o.line.Parked()[throttled] > 0 || o.running.Load() > o.limitNow(b) {
		return gate, shutThrottled, change
	}
	pass, admits, change := o.circuit.enter(now)
	if !admits {
		return pass, shutOpen, change
	}
	if seated {
		o.line.Move(d, line.Inside)
	}
	return pass, admitted, change
}

// isBehindLocked reports whether an earlier delivery of the key has a seat.
func (o *door) isBehindLocked(d *dispatch) bool {
	_, behind := o.line.First(d.key)
	return behind && d.key != ""
}

// limitNow is the concurrency limit that holds now. Without one of its own, a subscription is
// limited to its share while the bus has no free worker, so that it cannot keep all workers from
// the others.
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
	var was window.Mark
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

// sit gives a delivery a seat, so that later ones of its key come behind it. It returns why there
// is none, or the delivery that a full line drops: the oldest in it, or the newcomer.
func (o *door) sit(b *Bus, d *dispatch, why shut) (victim *dispatch, refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seated := d.seat().Number != 0
	reason := o.reasonLocked(b, d, why)
	switch {
	case o.closed != "":
		return nil, o.closed
	case seated || o.line.Taken() < o.capacity:
	case o.whenFull == DropNewestWhenFull:
		return d, ""
	case o.whenFull == DropOldestWhenFull:
		oldest, ok := o.line.Front()
		if !ok { // all are inside, or on their way there
			return d, ""
		}
		o.line.Drop(oldest)
		victim = oldest
	case o.whenFull == DeadLetterWhenFull || !parkingRules[reason].publishWaits:
		return nil, ReasonOverflow
	}
	if !seated {
		o.line.Sit(d)
		o.circuit.gate.Or(gateLine)
	}
	d.Seat().Reason = uint8(reason)
	return victim, ""
}

// reasonLocked returns why a delivery is parked: held while the door is shut by a pause or an
// outage, else for the reason of the delivery that it comes behind. If the door has opened since it
// refused the delivery, the delivery is throttled until tend releases it.
func (o *door) reasonLocked(b *Bus, d *dispatch, why shut) parking {
	if o.shutLocked(b.time.Nanos()) {
		return held
	}
	if first, behind := o.line.First(d.key); behind && why == shutBehind {
		return parking(first.seat().Reason)
	}
	return throttled
}

// join lets a delivery with a seat wait in the line. It returns why it cannot.
func (o *door) join(b *Bus, d *dispatch) (refused Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed != "" {
		return o.closed
	}
	reason := d.seat().Reason
	o.line.Park(d, reason, b.time.Nanos())
	if !parkingRules[reason].waiterWaits {
		d.unawait(d.seatedAt())
	}
	o.countLocked(b)
	return ""
}

// wait notes that a delivery with a seat waits for its next attempt.
func (o *door) wait(d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line.Move(d, line.Away)
}

// release takes back the seat of a delivery that has settled.
func (o *door) release(b *Bus, d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line.Leave(d); o.line.Taken() == 0 {
		o.circuit.gate.And(^uint64(gateLine))
	}
	o.countLocked(b)
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
	for {
		first, ok := o.line.Front()
		if !ok || !o.releasesLocked(b, s, parking(first.seat().Reason), b.time.Nanos()) {
			break
		}
		d := o.line.Next()
		d.story.parked += time.Duration(max(now-d.seat().Since, 0))
		d.state = stateQueued
		b.pool.Return(false, d)
	}
	o.countLocked(b)
	o.mu.Unlock()
	if converted {
		b.checkDrained()
	}
}

// shutLocked reports whether the door is shut by something that may last: a pause or an outage.
func (o *door) shutLocked(now int64) bool {
	o.endPauseLocked(now)
	return o.circuit.gate.Load()&(gatePaused|gateShut) != 0
}

// holdThrottledLocked makes throttled deliveries held ones, because the door is shut: no waiter and
// no Shutdown waits for those.
func (o *door) holdThrottledLocked(s *Subscription) bool {
	if o.line.Parked()[throttled] == 0 {
		return false
	}
	for _, d := range o.line.All() {
		if d.seat().Reason == uint8(throttled) {
			o.line.Change(d, uint8(held))
			d.unawait(s)
		}
	}
	return true
}

// releasesLocked reports whether the first delivery of the line may go to the door. If not,
// something asks again: a delivery that leaves, the timer that it sets, or the pool when a worker
// becomes free.
func (o *door) releasesLocked(b *Bus, s *Subscription, reason parking, now int64) bool {
	most, again := o.admitsLocked(now)
	coming := o.line.Count(line.Coming)
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
	case reason == held && coming+o.line.Count(line.Inside) >= releaseMost:
		return false
	}
	return running < int(o.share) || coming == 0 // the bus may be full when it arrives
}

// admitsLocked is how many deliveries may come to the door, and if none may, when that changes by
// itself.
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

// close empties the line, oldest first, for ever: the line refuses others with the reason.
func (o *door) close(b *Bus, why Reason) []*dispatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed == "" {
		o.closed = why
	}
	all := o.line.Empty()
	o.countLocked(b)
	return all
}

// countLocked tells the ledger of the parked deliveries, and publishers whether they have to wait
// for room in the line.
func (o *door) countLocked(b *Bus) {
	parked := o.line.Parked()
	for reason, n := range parked {
		if n != o.counted[reason] {
			o.ledger.parked[reason].Add(int64(n - o.counted[reason]))
		}
	}
	o.counted = parked
	full := o.line.Taken() >= o.capacity && parked[throttled] > 0 && o.whenFull == WaitWhenFull && o.closed == ""
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

// remove shuts the door for ever.
func (o *door) remove() { o.circuit.gate.Or(gateRemoved) }

// parked is how many deliveries wait, by reason.
func (o *door) parked() [line.Reasons]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.line.Parked()
}

// sharedDoors are the doors that may throttle because the bus is full. A worker that becomes free
// tends them.
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
		if s.door.parked()[throttled] == 0 {
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
