package circuit

import (
	"math"
	"sync/atomic"
	"time"
)

// Rate limits how fast deliveries enter a door. It is the generic cell rate algorithm (ITU-T I.371): each delivery has a
// place on the timeline, a step after the one before, and may enter a burst ahead of it. Its methods are safe for
// concurrent use.
type Rate struct {
	step  int64 // nanoseconds between two deliveries
	ahead int64 // how far ahead of its place a delivery may enter

	next atomic.Int64 // the place of the next delivery
}

// NewRate returns a limit of n deliveries in a time, and of a burst at once.
func NewRate(n int, per time.Duration, burst int) *Rate {
	step := min((int64(per)-1)/int64(n)+1, eternity)
	return &Rate{step: step, ahead: times(burst-1, step)}
}

// eternity bounds spans of time, so that sums of some do not overflow.
const eternity = math.MaxInt64 / 8

// times returns the time of n steps.
func times(n int, step int64) int64 {
	if int64(n) > eternity/step {
		return eternity
	}
	return int64(n) * step
}

// Ready returns how many deliveries may enter now, if others come before them. If none may, it returns when one may.
func (r *Rate) Ready(now int64, others int) (most int, again int64) {
	place := max(r.next.Load(), now) + times(others, r.step)
	if at := place - r.ahead; at > now {
		return 0, at
	}
	return int((r.ahead-(place-now))/r.step) + 1, 0
}

// IsFull reports whether a whole burst may enter now.
func (r *Rate) IsFull(now int64) bool { return r.next.Load() <= now }

// TryTake counts a delivery that enters, if it may.
func (r *Rate) TryTake(now int64) bool {
	for {
		place := r.next.Load()
		at := max(place, now)
		if at-r.ahead > now {
			return false
		}
		if r.next.CompareAndSwap(place, at+r.step) {
			return true
		}
	}
}
