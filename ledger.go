package eventbus

import (
	"sync/atomic"

	"github.com/surebus/eventbus/internal/idle"
	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/pool"
)

// ledger counts dispatches, apart from those that the pool has, and knows when none is left for which Shutdown and Drain
// wait.
type ledger struct {
	idle     idle.Watch   // Shutdown and Drain wait until isDrained
	queued   func() int   // the depth of the pool
	entering atomic.Int64 // calls that open dispatches without room in the queue
	leaving  atomic.Int64 // calls that leave their events in incoming while the lease is lost

	_ [64]byte // publishers write the following, and everybody reads what stands before

	accepted atomic.Int64
	copies   atomic.Int64
	splits   atomic.Int64
	replays  atomic.Int64
	claimed  atomic.Int64
	// reclaimed are the dispatches that this process has left to the store and claimed again. Of those
	// that it had left before the store was reopened, which has forgotten by whom, owed are not claimed yet.
	reclaimed, owed atomic.Int64
	closed          atomic.Bool

	// Workers write these: the padding keeps them off the publishers' cache line.
	_            [64]byte
	handled      atomic.Int64
	unrouted     atomic.Int64
	deadLettered atomic.Int64
	dropped      atomic.Int64
	cancelled    atomic.Int64
	stored       atomic.Int64
	handedOver   atomic.Int64
	scheduled    atomic.Int64
	waiting      atomic.Int64
	recording    atomic.Int64
	parked       [line.Reasons]atomic.Int64
	_            [64]byte
}

// counter returns the counter of the dispatches that end with an outcome.
func (l *ledger) counter(o Outcome) *atomic.Int64 {
	switch o { //nolint:exhaustive // the others end no dispatch
	case Unrouted:
		return &l.unrouted
	case DeadLettered:
		return &l.deadLettered
	case Dropped:
		return &l.dropped
	case Cancelled:
		return &l.cancelled
	}
	return &l.handled
}

// unloaded returns the number of dispatches that this process has unloaded to the store.
func (l *ledger) unloaded() int64 { return l.stored.Load() - l.reclaimed.Load() }

// settled returns the number of dispatches that are no longer in memory.
func (l *ledger) settled() int64 {
	return l.stored.Load() + l.handedOver.Load() + l.handled.Load() + l.unrouted.Load() + l.deadLettered.Load() + l.dropped.Load() + l.cancelled.Load()
}

func (l *ledger) opened() int64 {
	return l.claimed.Load() + l.reclaimed.Load() + l.accepted.Load() + l.copies.Load() + l.splits.Load() + l.replays.Load()
}

func (l *ledger) snapshot(pool pool.Stats) Ledger {
	return Ledger{
		Handled:      l.handled.Load(),
		Unrouted:     l.unrouted.Load(),
		DeadLettered: l.deadLettered.Load(),
		Dropped:      l.dropped.Load(),
		Cancelled:    l.cancelled.Load(),
		Scheduled:    l.scheduled.Load(),
		Queued:       int64(pool.Queued),
		Running:      int64(pool.Running),
		Waiting:      l.waiting.Load(),
		Held:         l.parked[held].Load(),
		Throttled:    l.parked[throttled].Load(),
		Snoozed:      l.parked[snoozed].Load(),
		Recording:    l.recording.Load(),
		Stored:       l.unloaded(),
		HandedOver:   l.handedOver.Load(),
		Claimed:      l.claimed.Load(),
		Accepted:     l.accepted.Load(),
		Copies:       l.copies.Load(),
		Splits:       l.splits.Load(),
		Replays:      l.replays.Load(),
		Closed:       l.closed.Load(),
	}
}

// checkDrained wakes Shutdown and Drain if the bus is drained.
func (l *ledger) checkDrained() {
	if l.idle.IsWatched() {
		l.lookWhetherDrained()
	}
}

// lookWhetherDrained is a separate function so that checkDrained can be inlined.
func (l *ledger) lookWhetherDrained() {
	if l.isDrained() {
		l.idle.Reached()
	}
}

// isDrained reports whether every dispatch that Shutdown waits for has settled.
func (l *ledger) isDrained() bool {
	settled := l.settled()
	left := l.scheduled.Load()
	for how, rule := range parkingRules {
		if !rule.drains {
			left += l.parked[how].Load()
		}
	}
	return l.unsettled(settled)-left <= 0
}

// isEmpty reports whether every dispatch has settled.
func (l *ledger) isEmpty() bool { return l.unsettled(l.settled()) == 0 }

// isUnloaded reports whether memory has no dispatch, and no call is about to open one. While the lease is lost, publishers
// that come without a pause must not hold up the restart.
func (l *ledger) isUnloaded() bool {
	leaving := l.leaving.Load()
	return l.unsettled(l.settled())-leaving <= 0
}

// unsettled returns the number of dispatches that were opened, or are about to open, and have not
// settled. It may be too large for a moment, but never too small: the counters of settled, parked
// and scheduled dispatches are read before those of opened ones.
func (l *ledger) unsettled(settled int64) int64 {
	// An accepted dispatch takes room in the queue before it is counted, and leaves it when it runs:
	// depth is read before accepted.
	opening := l.entering.Load() + l.leaving.Load()
	if l.queued() > 0 {
		opening++
	}
	return opening + l.opened() - settled
}

// owns reports whether this process has opened, and left to the store, the dispatch of a claimed record.
func (l *ledger) owns(r *record) bool {
	for owed := l.owed.Load(); !r.Own && owed > 0; owed = l.owed.Load() {
		if l.owed.CompareAndSwap(owed, owed-1) {
			return true
		}
	}
	return r.Own
}

// handOver counts what is left to the store as handed over: another process may have the lease.
func (l *ledger) handOver() {
	left := l.unloaded()
	l.handedOver.Add(left)
	l.stored.Add(-left)
	l.owed.Store(0)
}

// gone counts the dispatches as cancelled that are left to the store, and of which it has fewer: another
// process has cancelled them.
func (l *ledger) gone(has int64) {
	if gone := l.unloaded() - has; gone > 0 {
		l.cancelled.Add(gone)
		l.stored.Add(-gone)
	}
}
