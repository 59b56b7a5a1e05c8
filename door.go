package eventbus

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/window"
)

// releaseMost limits the released deliveries that have not reached the door yet. For held ones it
// also includes those inside: it protects a service that has just recovered from a burst.
const releaseMost = 64

// door decides whether a delivery may enter a subscription now. It parks the others in its line,
// each as a separate dispatch.
//
// A parked delivery keeps its seat in the line until it has settled, also while it waits for a
// retry.
type door struct {
	circuit  circuit.Circuit
	hanging  circuit.Hanging
	rate     *circuit.Rate // nil for none
	running  atomic.Int32  // handler calls, except those abandoned or waiting in PublishAndWait
	limit    int32         // limit of running; math.MaxInt32 for none
	share    int32         // limit of running while the bus is full; math.MaxInt32 with Concurrency
	capacity int           // of the line
	whenOpen WhenOpen
	whenFull WhenFull
	ledger   *ledger

	mu          sync.Mutex // guards the following, and the seats of its dispatches
	slowdown    circuit.Slowdown
	spill       spill
	line        line.Line[*dispatch]
	reported    [line.Reasons]int // parked deliveries that the ledger includes
	wakeAt      int64             // when the timer tends the door, 0 for no timer
	pausedUntil time.Time         // with circuit.Paused; zero for no end
	room        chan struct{}     // non-nil while publishers wait for room; closed when there is
	closed      Reason            // set once the line accepts no deliveries
	candidate   *dispatch         // the delivery of the line that was released to probe, until it arrives
	chosenIn    uint64            // the circuit's generation in which candidate was chosen
}

// Seat returns the dispatch's seat at the door of its last target.
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

// enter requests admission for a delivery. Call it immediately before the handler runs: an attempt
// must take no permit of a subscription that it does not reach.
//
// The pass is the gate's value at entry. Every admitted delivery must leave exactly once. A delivery is
// admitted if why is nil.
func (o *door) enter(b *Bus, d *dispatch) (pass uint64, why *barrier) {
	pass = o.circuit.Gate.Load()
	n := o.running.Add(1)
	if n <= o.limit && (n <= o.share || b.machine.pool.Spare() > 0) {
		switch pass & circuit.Ask {
		case 0:
			return pass, nil
		case circuit.Rated:
			if o.rate.TryTake(b.time.Nanos()) {
				return pass, nil
			}
		}
	}
	pass, why, change := o.ask(b, d)
	if why != nil {
		o.running.Add(-1)
	}
	s := d.to.subscriptions[d.next]
	b.report.circuitChanged(s, change)
	// After a refusal too: if the last running call ended while this delivery was counted as running,
	// tend found the limit reached, and no other call would release the line.
	if why != nil || d.seat().Number != 0 {
		b.machine.tend(s)
	}
	return pass, why
}

// ask is the slow path of enter, for a door that may be shut. It takes the circuit's permit last.
func (o *door) ask(b *Bus, d *dispatch) (pass uint64, why *barrier, change circuit.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := arrival{
		dispatch: d, now: b.time.Nanos(), others: int(o.running.Load()) - 1,
		seated: d.seat().Number != 0, fresh: !d.failedAt(d.to.subscriptions[d.next]), chosen: o.choseLocked(d),
	}
	if why, _, _ = o.refusesLocked(b, a); why != nil {
		return o.circuit.Gate.Load(), why, change
	}
	if o.rate != nil && !o.rate.TryTake(a.now) { // one that has not asked was quicker
		return o.circuit.Gate.Load(), rated, change
	}
	pass, admits, change := o.circuit.Enter(a.now, a.fresh)
	if !admits {
		return pass, outage, change
	}
	o.arrivedLocked(d)
	if a.seated {
		o.line.Move(d, line.Inside)
	}
	return pass, nil, change
}

// comesAfterLocked reports whether an earlier delivery of the key has a seat.
func (o *door) comesAfterLocked(d *dispatch) bool {
	_, behind := o.line.First(d.key)
	return d.key != "" && behind
}

// limitNow returns the concurrency limit that applies now. While the bus has no free worker, a
// subscription without Concurrency is limited to its share, so that others get workers too.
func (o *door) limitNow(b *Bus) int32 {
	if b.registry.several.Load() && b.machine.pool.Spare() == 0 {
		return min(o.limit, o.share)
	}
	return o.limit
}

// outcome is the outcome of a delivery for the circuit.
type outcome uint8

const (
	succeeded outcome = iota
	failed
	noOutcome
)

// exit removes a delivery that was admitted, and reports its outcome to the circuit.
func (o *door) exit(b *Bus, d *dispatch, pass uint64, what outcome) (change circuit.Change) {
	o.running.Add(-1)
	var was window.Mark
	if d.story != nil {
		was = d.story.mark
	}
	switch what {
	case succeeded:
		now, _ := b.time.Recent()
		change = o.circuit.Succeeded(pass, now.Nanos, was)
	case failed:
		d.story.mark, change = o.circuit.Failed(pass, b.time.Nanos(), was)
	case noOutcome:
		o.circuit.ReturnPermit(pass)
	}
	if pass&circuit.Slowed != 0 {
		o.quicken(b)
	}
	return change
}

// barred returns why a call must not start, although its delivery was admitted, or nil: after Unsubscribe and Pause
// have returned, no call begins. The other barriers do not promise that.
func (o *door) barred() *barrier {
	switch gate := o.circuit.Gate.Load(); {
	case gate&circuit.Removed != 0:
		return removed
	case gate&circuit.Paused != 0:
		return paused
	}
	return nil
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
	switch {
	case o.closed != "":
		return nil, false, o.closed
	case seated:
	case how == snoozed && o.spill.allowed: // it does not come before others: only the store needs to have it, if it has no key
		if d.key == "" && o.line.Taken() >= o.capacity && !d.isClaimed() {
			return nil, true, ""
		}
	case o.goesToStoreLocked(d), o.spill.allowed && o.line.Taken() >= o.capacity && !d.isClaimed():
		o.spillLocked(d, how)
		return nil, true, ""
	case o.line.Taken() < o.capacity || d.isClaimed():
	case o.whenFull == DropNewestWhenFull:
		return d, false, ""
	case o.whenFull == DropOldestWhenFull:
		oldest, ok := o.line.Oldest()
		if !ok { // all are inside or on their way
			return d, false, ""
		}
		o.line.Drop(oldest)
		o.countLocked(b) // before the victim settles: see unsettled
		victim = oldest
	case o.whenFull == DeadLetterWhenFull || !parkingRules[how].publishWaits:
		return nil, false, ReasonOverflow
	}
	if !seated {
		o.line.Sit(d)
		o.circuit.Gate.Or(circuit.Line)
	}
	d.Seat().Reason = uint8(how)
	return victim, false, ""
}

// parksLocked returns how a delivery is parked that a barrier has refused: as the one that it comes behind,
// or held while the door is shut for long. If the door has opened since, it is throttled until tend releases it.
func (o *door) parksLocked(b *Bus, d *dispatch, why *barrier) parking {
	if why == asleep {
		return snoozed
	}
	holdsAtOnce := why != nil && why.lasts != nil && o.line.Parked()[throttled] == 0 // otherwise they become held together
	if holdsAtOnce || o.shutsForLongLocked(b) {
		return held
	}
	if first, behind := o.line.First(d.key); behind && why == behindKey {
		if how := parking(first.seat().Reason); how != snoozed {
			return how
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
	o.endLineLocked()
	o.countLocked(b)
}

// tend releases as many deliveries of the line as may enter, oldest first, or the one to probe.
//
// Every function that lowers running, frees a seat, adds a delivery to the line, or changes the
// gate calls tend afterwards. Otherwise a delivery could stay in the line while nothing runs.
func (m *machine) tend(s *Subscription) {
	if s.door.circuit.Gate.Load()&circuit.Line == 0 {
		return
	}
	held, asks := s.door.tend(m.Bus, s)
	if held {
		m.ledger.checkDrained()
	}
	if asks {
		m.journal.asksForDoor(s.id)
	}
}

// tend reports whether throttled deliveries became held ones, and whether to claim others that the store has.
func (o *door) tend(b *Bus, s *Subscription) (held, asks bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := b.time.Nanos()
	for _, d := range o.line.Wake(now) {
		o.line.Change(d, uint8(throttled))
	}
	if at := o.line.Wakes(); at != 0 {
		o.tendAtLocked(b, s, at)
	}
	held = o.shutsForLongLocked(b) && o.holdThrottledLocked(b, s)
	for {
		gate := o.circuit.Gate.Load()
		d, from := o.nextLocked(gate)
		if d == nil || !o.releasesLocked(b, s, d, from) {
			break
		}
		o.line.Go(d)
		o.chooseLocked(d, gate)
		d.story.parked += time.Duration(max(now-d.seat().Since, 0))
		o.countLocked(b) // before the delivery can settle: see unsettled
		b.machine.requeue(d)
	}
	o.countLocked(b)
	return held, o.asksLocked()
}

// holdThrottledLocked turns throttled deliveries into held ones when the door shuts, because
// waiters and Shutdown do not wait for held deliveries.
func (o *door) holdThrottledLocked(b *Bus, s *Subscription) bool {
	if o.line.Parked()[throttled] == 0 {
		return false
	}
	var all []*dispatch
	for _, d := range o.line.All() {
		if d.seat().Reason == uint8(throttled) {
			o.line.Change(d, uint8(held))
			all = append(all, d)
		}
	}
	o.countLocked(b)
	for _, d := range all {
		d.unawait(s)
	}
	return true
}

// releasesLocked reports whether to release the next delivery of the line. If not, one of these
// tends the door again: a delivery that leaves or is refused, the timer set here, or a worker that
// becomes free.
func (o *door) releasesLocked(b *Bus, s *Subscription, next *dispatch, from int64) bool {
	a := o.inLineLocked(b, next)
	why, most, again := o.refusesLocked(b, a)
	if why == nil && a.now < from {
		why, again = outage, from
	}
	coming := o.line.Count(line.Coming)
	switch {
	case why != nil:
		if again != math.MaxInt64 {
			o.tendAtLocked(b, s, again)
		}
		return false
	case most == 1:
		return coming == 0 // otherwise the coming delivery is the probe
	case coming >= releaseMost:
		return false
	case parking(next.seat().Reason) == held && coming+o.line.Count(line.Inside) >= releaseMost:
		return false
	}
	// Beyond its share, a delivery must find a spare worker when it runs. Otherwise it would be
	// throttled again, and the worker that becomes free would release it again, without end.
	return a.others < int(o.share) || !b.registry.several.Load() || coming == 0 && b.machine.pool.Spare() > 1
}

// tendAtLocked sets the timer that tends the door.
func (o *door) tendAtLocked(b *Bus, s *Subscription, at int64) {
	if o.wakeAt == 0 || at < o.wakeAt {
		o.wakeAt = at
		b.machine.doors.Add(at, s)
	}
}

// inLineLocked returns a parked delivery as an arrival, for the decision whether to release it.
func (o *door) inLineLocked(b *Bus, d *dispatch) arrival {
	return arrival{
		dispatch: d, now: b.time.Nanos(), others: int(o.running.Load()) + o.line.Count(line.Coming),
		inLine: true, seated: true, fresh: d.Fresh(),
	}
}

// wake tends doors whose timers have fired.
func (m *machine) wake(all []*Subscription) {
	for _, s := range all {
		s.door.woken()
		m.tend(s)
	}
}

// woken notes that the door's timer has fired.
func (o *door) woken() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wakeAt = 0
}

// close empties the line for good and returns its deliveries, oldest first. The line rejects later
// deliveries with the reason.
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

// countLocked updates the ledger's parked deliveries, and blocks or unblocks publishers that need
// room in the line.
func (o *door) countLocked(b *Bus) {
	parked := o.line.Parked()
	for reason, n := range parked {
		if n != o.reported[reason] {
			o.ledger.parked[reason].Add(int64(n - o.reported[reason]))
		}
	}
	o.reported = parked
	full := o.line.Taken() >= o.capacity && !o.spill.allowed && o.whenFull == WaitWhenFull && o.closed == "" && publishWaits(parked)
	switch {
	case full && o.room == nil:
		o.room = make(chan struct{})
		b.intake.fullLines.Add(1)
	case !full && o.room != nil:
		close(o.room)
		o.room = nil
		b.intake.fullLines.Add(-1)
	}
}

// roomSignal returns a channel that is closed when the line has room. It returns nil if publishers
// need not wait.
func (o *door) roomSignal() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.room
}

// parked returns the number of parked deliveries, by reason.
func (o *door) parked() [line.Reasons]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.line.Parked()
}

// freed tends the doors that throttle because the bus was full. It runs when the bus has two spare
// workers again, and when the share may have ended.
func (m *machine) freed() {
	m.shared.Range(func(key, _ any) bool {
		s := key.(*Subscription)
		m.shared.Delete(s)
		m.tend(s)
		if s.door.parked()[throttled] > 0 {
			m.shared.Store(s, nil)
			if m.pool.Spare() > 1 { // a worker may have become free before Store
				m.tend(s)
			}
		}
		return true
	})
}
