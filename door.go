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

// door decides whether a delivery may enter a subscription, or one of its destinations, now. It parks the
// others in its line, each as a separate dispatch.
//
// A parked delivery keeps its seat in the line until it has settled, also while it waits for a
// retry.
type door struct {
	name    string                // of the destination; "" for the subscription's own door
	whole   *door                 // for a destination, the subscription's door; otherwise nil
	set     atomic.Pointer[terms] // what the subscription sets
	circuit circuit.Circuit
	hanging circuit.Hanging
	running atomic.Int32 // handler calls, except those abandoned or waiting in PublishAndWait
	ledger  *ledger

	made          int64                     // when the door was made
	used          atomic.Int64              // the shared reading of the clock when the door last moved to the front of destinations.used
	pins          atomic.Int32              // uses of a destination's door that keep it from being forgotten, beside its deliveries
	seats         atomic.Int32              // of the line, as destinations.seats counts them
	failures      atomic.Int64              // of a destination; subscriptionCounters has those of the subscription
	lastDirective atomic.Pointer[Directive] // directed, for readers that do not wait for the store; nil for none
	directed      Directive                 // the last one; operators.directing guards it

	mu          sync.Mutex // guards the following, and the seats of its dispatches; a destination's comes before whole's
	slowdown    circuit.Slowdown
	spill       spill
	line        line.Line[*dispatch]
	taken       EventID           // with terms.single, the event that was admitted
	reported    [line.Reasons]int // parked deliveries that the ledger includes
	wakeAt      int64             // when the timer tends the door, 0 for no timer
	pausedUntil time.Time         // with circuit.Paused; zero for no end
	room        chan struct{}     // non-nil while publishers wait for room; closed when there is
	closed      Reason            // set once the line accepts no deliveries
	candidate   *dispatch         // the delivery of the line that was released to probe, until it arrives
	chosenIn    uint64            // the circuit's generation in which candidate was chosen
}

// terms are the settings of a subscription at its door. A subscription that takes the door over sets its own. They are immutable:
// a change stores new ones.
type terms struct {
	of       *Subscription
	rate     *circuit.Rate // nil for none
	limit    int32         // limit of running; math.MaxInt32 for none
	share    int32         // limit of running while the bus is full; math.MaxInt32 with Concurrency
	capacity int           // of the line
	whenOpen WhenOpen
	whenFull WhenFull
	single   bool // Once
	drops    bool // deliveries that the subscription has when it ends are dropped, without letters
	dropLate bool // DropExpired
}

func (o *door) terms() *terms { return o.set.Load() }

// of returns the subscription that has the door now: Detach and Subscribe may hand the door over.
func (o *door) of() *Subscription { return o.terms().of }

// enter requests admission for a delivery. Call it immediately before the handler runs: an attempt
// must take no permit of a subscription that it does not reach.
//
// The pass is the gate's value at entry. Every admitted delivery must leave exactly once. A delivery is
// admitted if why is nil.
func (o *door) enter(b *Bus, d *dispatch) (pass uint64, why *barrier) {
	n, all := o.begin()
	pass = o.circuit.Gate.Load()
	if set := o.terms(); n <= set.limit && (all <= set.share || b.machine.pool.Spare() > 0) {
		switch (pass | o.wholeGate()) & circuit.Ask {
		case 0:
			return pass, nil
		case circuit.Rated:
			if set.rate.TryTake(b.time.Nanos()) {
				return pass, nil
			}
		}
	}
	pass, why, change := o.ask(b, d, n, all)
	if why != nil {
		o.end()
	}
	b.report.circuitChanged(o, change)
	// After a refusal too: if the last running call ended while this delivery was counted as running,
	// tend found the limit reached, and no other call would release the line.
	switch {
	case why != nil:
		b.machine.vacated(o)
	case d.seat().Number != 0:
		b.machine.tend(o)
	}
	return pass, why
}

// begin counts a call. It returns the number of calls at the door, and at all of the subscription.
func (o *door) begin() (n, all int32) {
	n = o.running.Add(1)
	if o.whole == nil {
		return n, n
	}
	return n, o.whole.running.Add(1)
}

// runningInAll returns the number of calls of the subscription.
func (o *door) runningInAll() int32 {
	if o.whole == nil {
		return o.running.Load()
	}
	return o.whole.running.Load()
}

// end is the opposite of begin.
func (o *door) end() {
	o.running.Add(-1)
	if o.whole != nil {
		o.whole.running.Add(-1)
	}
}

// wholeGate returns the bits of the subscription's gate that shut the doors of its destinations.
func (o *door) wholeGate() uint64 {
	if o.whole == nil {
		return 0
	}
	return o.whole.circuit.Gate.Load() & circuit.Whole
}

// beside returns the number of calls of the subscription beside others at this door.
func (o *door) beside(others int) int {
	if o.whole == nil {
		return others
	}
	return max(others, int(o.whole.running.Load())-int(o.running.Load())+others)
}

// ask is the slow path of enter, for a door that may be shut. It takes the circuit's permit last.
//
// n and all are what begin has returned. Of several arrivals that are counted at once, the first must be admitted: if each saw all
// others, the door would refuse each of them, and release them again.
func (o *door) ask(b *Bus, d *dispatch, n, all int32) (pass uint64, why *barrier, change circuit.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := arrival{
		dispatch: d, now: b.time.Nanos(), others: int(min(n, o.running.Load())) - 1, all: int(min(all, o.runningInAll())) - 1,
		seated: d.seat().Number != 0, fresh: !d.failedAt(d.to.subscriptions[d.next]), chosen: o.choseLocked(d),
	}
	if why, _, _ = o.refusesLocked(b, a); why != nil {
		return o.circuit.Gate.Load(), why, change
	}
	if rate := o.terms().rate; rate != nil && !rate.TryTake(a.now) { // one that has not asked was quicker
		return o.circuit.Gate.Load(), rated, change
	}
	pass, admits, change := o.circuit.Enter(a.now, a.fresh)
	if !admits {
		return pass, outage, change
	}
	o.takeLocked(d)
	o.arrivedLocked(d)
	if a.seated && d.seatDoor() == o {
		o.line.Move(d, line.Inside)
	}
	return pass, nil, change
}

// comesAfterLocked reports whether an earlier delivery of the key has a seat.
func (o *door) comesAfterLocked(d *dispatch) bool {
	_, behind := o.line.First(d.key)
	return d.key != "" && behind && (o.whole != nil || !d.hasPassed())
}

// isLimited reports whether no call may begin beside others. While the bus has no free worker, a
// subscription without Concurrency is limited to its share, so that others get workers too.
func (o *door) isLimited(b *Bus, others, all int) bool {
	return others >= int(o.terms().limit) || b.machine.pool.Spare() == 0 && o.exceedsShare(b, all)
}

// exceedsShare reports whether a call beside others of the subscription is beyond its share of the workers.
func (o *door) exceedsShare(b *Bus, others int) bool {
	return b.registry.several.Load() && others >= int(o.terms().share)
}

// outcome is the outcome of a delivery for the circuit.
type outcome uint8

const (
	succeeded outcome = iota
	failed
	noOutcome
	notCalled // the delivery was admitted, and the handler was not called
)

// countFailure counts a failed call at a destination. It returns the outcome for the circuit.
func (o *door) countFailure(v *verdict) outcome {
	if o.whole != nil {
		o.failures.Add(1)
	}
	if v.rejected && !o.circuit.Config().CountRejections {
		return noOutcome
	}
	return failed
}

// exit removes a delivery that was admitted, and reports its outcome to the circuit.
func (o *door) exit(b *Bus, d *dispatch, pass uint64, what outcome) (change circuit.Change) {
	o.end()
	var was window.Mark
	if f := d.lastFailure(); f != nil && f.at >= o.made { // otherwise the mark is of a destination that was forgotten, and made anew
		was = d.story.mark
	} else if d.story != nil && o.whole == nil {
		was = d.story.mark // of a replay
	}
	switch what {
	case succeeded:
		now, _ := b.time.Recent()
		change = o.circuit.Succeeded(pass, now.Nanos, was)
		if o.whole != nil {
			o.whole.circuit.Succeeded(0, 0, 0) // the circuit is disabled, and counts successes only
		}
	case failed:
		d.story.mark, change = o.circuit.Failed(pass, b.time.Nanos(), was)
	case noOutcome, notCalled:
		o.circuit.ReturnPermit(pass)
	}
	if pass&circuit.Slowed != 0 && what != notCalled {
		o.quicken(b)
	}
	return change
}

// barred returns why a call must not start, although its delivery was admitted, or nil: after Unsubscribe, Detach and Pause
// have returned, no call begins. The other barriers do not promise that.
func (o *door) barred() *barrier {
	switch gate := o.circuit.Gate.Load() | o.wholeGate(); {
	case gate&circuit.Removed != 0:
		return removed
	case gate&circuit.Detached != 0:
		return detached
	case gate&circuit.Paused != 0:
		return paused
	}
	return nil
}

// tend releases as many deliveries of the line as may enter, oldest first, or the one to probe.
//
// Every function that lowers running (see vacated), frees a seat, adds a delivery to the line, or changes the
// gate calls tend afterwards. Otherwise a delivery could stay in the line while nothing runs.
func (m *machine) tend(o *door) { m.tendReporting(o) }

// tending lists the changes that a call of tend has made, and the work that is left until the door's lock is free.
type tending struct {
	becameHeld []leader // throttled deliveries that became held
	claims     bool     // the feeder must claim deliveries that only the store has
	released   bool     // at least one delivery was released
	needsShare bool     // the next delivery needs a part of the share of the workers, which other destinations use
}

// leader is a delivery that became held, and the door at which others of its key stay behind it, if that is another one.
type leader struct {
	*dispatch
	home *door
}

// tendReporting is tend, and reports the changes.
func (m *machine) tendReporting(o *door) (t tending) {
	if o.circuit.Gate.Load()&circuit.Line == 0 {
		return t
	}
	t = o.releaseReady(m.Bus)
	if t.needsShare {
		o.of().destinations.shares.add(o)
		// The calls of other destinations may have ended before the door was in the queue: look once more.
		again := o.releaseReady(m.Bus)
		t = tending{append(t.becameHeld, again.becameHeld...), t.claims || again.claims, t.released || again.released, again.needsShare}
	}
	for _, d := range t.becameHeld {
		if d.home != nil {
			d.home.leads(m.Bus, d.dispatch, held)
		}
	}
	if len(t.becameHeld) > 0 {
		m.ledger.checkDrained()
	}
	if t.claims {
		m.journal.asksForDoor(o)
	}
	return t
}

// releaseReady does the part of tend that needs the door's lock.
func (o *door) releaseReady(b *Bus) (t tending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := b.time.Nanos()
	for _, d := range o.line.Wake(now) {
		o.line.Change(d, uint8(throttled))
	}
	if at := o.line.Wakes(); at != 0 {
		o.tendAtLocked(b, at)
	}
	o.releaseVisitorsLocked(b)
	if o.shutsForLongLocked(b) {
		t.becameHeld = o.holdThrottledLocked(b)
	}
	for {
		gate := o.circuit.Gate.Load()
		d, from := o.nextLocked(gate)
		if d == nil || !o.releasesLocked(b, d, from) {
			t.needsShare = d != nil && o.whole != nil && o.exceedsShare(b, o.beside(int(o.running.Load())+o.line.Count(line.Coming)))
			break
		}
		t.released = true
		o.goesLocked(b, d)
		o.chooseLocked(d, gate)
		b.machine.requeue(d)
	}
	o.countLocked(b)
	t.claims = o.asksLocked()
	return t
}

// goesLocked takes a delivery out of the line, for the caller to requeue it.
func (o *door) goesLocked(b *Bus, d *dispatch) {
	o.line.Go(d)
	d.story.parked += time.Duration(max(b.time.Nanos()-d.seat().Since, 0))
	o.countLocked(b) // before the delivery can settle: see unsettled
}

// holdThrottledLocked turns throttled deliveries into held ones when the door shuts, because
// waiters and Shutdown do not wait for held deliveries.
func (o *door) holdThrottledLocked(b *Bus) (became []leader) {
	if o.line.Parked()[throttled] == 0 {
		return nil
	}
	return o.holdLocked(b, o.line.All())
}

// holdLocked turns the throttled ones among some parked deliveries into held ones.
func (o *door) holdLocked(b *Bus, all []*dispatch) (became []leader) {
	for _, d := range all {
		if d.seat().Reason == uint8(throttled) {
			o.line.Change(d, uint8(held))
			became = append(became, leader{d, d.home()})
		}
	}
	o.countLocked(b)
	for _, d := range became {
		d.unawait(o.of())
	}
	return became
}

// releasesLocked reports whether to release the next delivery of the line. If not, one of these
// tends the door again: a delivery that leaves or is refused, the timer set here, or a worker that
// becomes free.
func (o *door) releasesLocked(b *Bus, next *dispatch, from int64) bool {
	a := o.inLineLocked(b, next)
	why, most, again := o.refusesLocked(b, a)
	if why == nil && a.now < from {
		why, again = outage, from
	}
	coming := o.line.Count(line.Coming)
	switch {
	case why != nil:
		if again != math.MaxInt64 {
			o.tendAtLocked(b, again)
		}
		return false
	case most == 1 && coming > 0: // that one is the probe, or the next that the rate admits
		return false
	case coming >= releaseMost:
		return false
	case parking(next.seat().Reason) == held && coming+o.line.Count(line.Inside) >= releaseMost:
		return false
	}
	// Beyond its share, a delivery must find a spare worker when it runs. Otherwise it would be
	// throttled again, and the worker that becomes free would release it again, without end.
	return !o.exceedsShare(b, a.all) || coming == 0 && b.machine.pool.Spare() > 1
}

// tendAtLocked sets the timer that tends the door.
func (o *door) tendAtLocked(b *Bus, at int64) {
	if o.wakeAt == 0 || at < o.wakeAt {
		o.wakeAt = at
		b.machine.doors.Add(at, o)
	}
}

// inLineLocked returns a parked delivery as an arrival, for the decision whether to release it.
func (o *door) inLineLocked(b *Bus, d *dispatch) arrival {
	others := int(o.running.Load()) + o.line.Count(line.Coming)
	return arrival{
		dispatch: d, now: b.time.Nanos(), others: others, all: o.beside(others),
		inLine: true, seated: true, fresh: d.Fresh(),
	}
}

// wake tends doors whose timers have fired.
func (m *machine) wake(all []*door) {
	for _, o := range all {
		o.woken()
		m.tend(o)
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
	if o.whole != nil {
		seats := int32(o.line.Taken() - o.line.Count(line.Leaving)) // a store takes its time until an evicted one has left
		o.of().destinations.count(b, int64(seats-o.seats.Swap(seats)))
	}
	full := o.line.Taken() >= o.terms().capacity && !o.spill.allowed && o.terms().whenFull == WaitWhenFull && o.whole == nil && o.closed == "" && publishWaits(parked)
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
		o := key.(*door)
		m.shared.Delete(o)
		m.tend(o)
		if o.parked()[throttled] > 0 {
			m.shared.Store(o, nil)
			if m.pool.Spare() > 1 { // a worker may have become free before Store
				m.tend(o)
			}
		}
		return true
	})
}
