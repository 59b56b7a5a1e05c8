package timeline

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// Alarm wakes a goroutine when the wall clock shows the earliest of the times that it was given. It
// has a timer only while there is such a time. Its methods are safe for concurrent use.
type Alarm struct {
	line *Timeline
	wake func()

	mu      sync.Mutex // guards the following
	next    time.Time  // zero: has come
	waits   bool       // for next
	timer   *clock.Timer
	looks   int64 // when the timer fires, as a point on the timeline
	stopped bool
}

// NewAlarm returns an alarm whose time has come. It calls wake on a goroutine of its own, when the
// time may have come and at least every CheckEvery before that. wake must have Due called.
func NewAlarm(line *Timeline, wake func()) *Alarm { return &Alarm{line: line, wake: wake, waits: true} }

// Due reports whether the time has come. If it has not, the alarm will call wake.
func (a *Alarm) Due() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits && (a.next.IsZero() || a.line.HasCome(a.next)) {
		return true
	}
	a.lookLocked()
	return false
}

// Clear makes the alarm wait for no time.
func (a *Alarm) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = false
}

// Ring makes the time come. It does not call wake.
func (a *Alarm) Ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next, a.waits = time.Time{}, true
}

// Add makes the alarm wait for a time too.
func (a *Alarm) Add(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits && !a.next.After(at) {
		return
	}
	a.next, a.waits = at, true
	a.lookLocked()
}

// Stop ends the alarm. It calls wake no more, except for a call that has begun.
func (a *Alarm) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// lookLocked sets the timer for the next look at the wall clock, unless it fires before that.
func (a *Alarm) lookLocked() {
	now, at := a.line.Nanos(), a.line.Look(a.next)
	if !a.waits || a.stopped || now < a.looks && a.looks <= at {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.looks = at
	a.timer = a.line.AfterFunc(time.Duration(max(at-now, 0)), a.wake)
}
