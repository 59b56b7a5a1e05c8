// Package window counts successes and failures over a sliding time window.
package window

import (
	"math"
	"sync/atomic"
	"time"
)

// Steps is the number of steps of a window.
const Steps = 12

// Window counts outcomes over a sliding time window. Quiet, Succeed and Successes are safe
// for concurrent use. The caller must lock the other methods.
//
// Most successes are quiet, and only increment one counter. The window records the counter
// at the beginning of each step, which gives the successes of each step.
type Window struct {
	step      int64 // nanoseconds
	successes atomic.Uint64
	// Successes before this time are quiet: the end of the youngest step, or the minimum while
	// the window has failures.
	quietUntil atomic.Int64

	youngest int64   // number of the youngest step
	marks    int64   // difference between a step's mark and its number
	counts   *counts // nil until the first change: most windows of a large bus never need it
}

type counts struct {
	before   [Steps]uint64 // successes at the beginning of each step
	failures [Steps]uint32 // in each step
	failed   uint64        // the sum of these
}

// Mark is the place of a failure in the window. The zero Mark is no place.
type Mark int64

// Init prepares a window that begins to count at a time.
func (w *Window) Init(length time.Duration, now int64) {
	w.step = int64(length) / Steps
	w.youngest = w.stepAt(now)
	w.marks = Steps - w.youngest // so every mark is greater than 0
	w.quietUntil.Store(w.youngestEnds())
}

// Renew empties the window, gives it another length and moves its end to a time.
func (w *Window) Renew(length time.Duration, now int64) {
	last := w.youngest + w.marks
	w.step = int64(length) / Steps
	w.youngest = w.stepAt(now)
	w.marks = last - w.youngest // Clear leaves all earlier marks behind
	w.Clear(now)
}

// Successes returns the number of successes ever counted.
func (w *Window) Successes() uint64 { return w.successes.Load() }

// Quiet reports whether a success at a time changes only the number of successes.
func (w *Window) Quiet(now int64) bool { return now < w.quietUntil.Load() }

// Succeed counts a success. If it is not quiet, call Advance first: the success would
// otherwise belong to an earlier step.
func (w *Window) Succeed() { w.successes.Add(1) }

// SucceedOutside counts a success that does not belong to the window.
func (w *Window) SucceedOutside() {
	w.successes.Add(1)
	c := w.counted()
	for i := range c.before {
		c.before[i]++
	}
}

// Fail counts a failure in the youngest step.
func (w *Window) Fail() Mark {
	c := w.counted()
	c.failures[index(w.youngest)]++
	c.failed++
	w.setQuiet()
	return Mark(w.youngest + w.marks)
}

// Forget removes a failure, unless it has left the window.
func (w *Window) Forget(m Mark) {
	step := int64(m) - w.marks
	if m == 0 || step <= w.youngest-Steps {
		return
	}
	c := w.counted()
	c.failures[index(step)]--
	c.failed--
	w.setQuiet()
}

// Counts returns the numbers of failures and of outcomes in the window.
func (w *Window) Counts() (failures, outcomes uint64) {
	c := w.counted()
	return c.failed, c.failed + w.successes.Load() - c.before[index(w.youngest+1)]
}

// SucceededSince reports whether the window has a success of the step of an earlier time, or of a later
// step.
func (w *Window) SucceededSince(t int64) bool {
	first := min(max(w.stepAt(t), w.youngest-Steps+1), w.youngest)
	return w.successes.Load() > w.counted().before[index(first)]
}

// Advance moves the window's end to a time. An earlier time than the last one changes nothing.
func (w *Window) Advance(now int64) {
	if now < w.youngestEnds() {
		return
	}
	c, to := w.counted(), w.stepAt(now)
	for s := max(w.youngest+1, to-Steps+1); s <= to; s++ {
		c.before[index(s)] = w.successes.Load()
		c.failed -= uint64(c.failures[index(s)])
		c.failures[index(s)] = 0
	}
	w.youngest = to
	w.setQuiet()
}

// Clear empties the window and moves its end to a time.
func (w *Window) Clear(now int64) {
	c := w.counted()
	c.failures, c.failed = [Steps]uint32{}, 0
	for i := range c.before {
		c.before[i] = w.successes.Load()
	}
	w.youngest = max(w.youngest, w.stepAt(now))
	w.marks += Steps // all earlier marks are left behind
	w.setQuiet()
}

func (w *Window) counted() *counts {
	if w.counts == nil {
		w.counts = new(counts)
	}
	return w.counts
}

func (w *Window) setQuiet() {
	until := w.youngestEnds()
	if w.counts.failed > 0 {
		until = math.MinInt64
	}
	if w.quietUntil.Load() != until { // a store is expensive for the readers
		w.quietUntil.Store(until)
	}
}

// stepAt returns the number of the step at a time, which a clock that was set back can make
// negative.
func (w *Window) stepAt(now int64) int64 {
	if now < 0 {
		return (now+1)/w.step - 1
	}
	return now / w.step
}

func (w *Window) youngestEnds() int64 { return (w.youngest + 1) * w.step }

func index(step int64) int { return int((step%Steps + Steps) % Steps) }
