// Package timeline is the only source of time of a bus. A point on a timeline is a
// number of nanoseconds since the timeline was made, on the injected clock.
//
// Reading a clock costs as much as delivering an event. While there is work, a timeline
// reads the real clock once a tick and shares that reading with callers that accept an
// age of one tick. Without work, and on any other clock, every reading is exact.
package timeline

import (
	"context"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// Tick is the age that a shared reading can reach.
const Tick = time.Millisecond

// CheckEvery is how often code that waits for an instant compares it with the wall clock. The
// wall clock can be set, and goes on while the machine is suspended, unlike timers.
const CheckEvery = 30 * time.Second

const (
	stepLeast = time.Minute // a larger advance of the wall clock over the monotonic one is a step
	ageHold   = time.Hour   // how long nothing is removed by age after a step
)

// Timeline reads a clock. Make one with New. Its methods are safe for concurrent use.
type Timeline struct {
	clock  clock.Clock
	real   bool // the clock is the clock package's wrapper around package time
	origin time.Time
	began  time.Time     // origin on the wall clock, in UTC
	check  time.Duration // the longest wait for an instant without a look at the wall clock
	// last is the shared reading, nil while the timeline does not tick.
	last atomic.Pointer[Instant]
	busy func() bool
	rest func()

	mu      sync.Mutex // guards the following
	ticker  *clock.Timer
	stopped bool

	ageMu     sync.Mutex // guards the following
	ahead     int64      // nanoseconds by which the wall clock has gained on the monotonic one, without steps
	heldAt    time.Time  // what Aged returns until heldUntil; zero before the first step
	heldUntil int64
}

// Instant is one reading of the clock.
type Instant struct {
	Nanos  int64     // since the timeline was made
	UTC    time.Time // on the wall clock, without a monotonic reading
	Wall   int64     // UTC as nanoseconds since the timeline was made, by the wall clock
	Millis int64     // UTC as milliseconds since 1970
}

// New returns a timeline that begins now. It starts no timer before the first call of
// Recent.
func New(c clock.Clock) *Timeline {
	origin := c.Now()
	check := CheckEvery
	if origin == origin.Round(0) { // without a monotonic reading, as of a clock.Mock: timers follow the wall clock
		check = math.MaxInt64
	}
	return &Timeline{
		clock:  c,
		real:   reflect.TypeOf(c) == reflect.TypeOf(clock.New()),
		origin: origin,
		began:  wallTime(origin),
		check:  check,
		busy:   func() bool { return false },
		rest:   func() {},
	}
}

// SetHooks sets the functions that a tick calls. Call it before the first call of Recent.
//
//   - busy reports whether there was work since its last call. If not, the ticking ends.
//   - rest is called after the ticking has ended for lack of work.
//
// Both run on the timer's goroutine, without a lock of the timeline.
func (t *Timeline) SetHooks(busy func() bool, rest func()) { t.busy, t.rest = busy, rest }

// Nanos returns the exact time in nanoseconds since the timeline was made.
func (t *Timeline) Nanos() int64 {
	if t.real {
		return int64(time.Since(t.origin))
	}
	return int64(t.clock.Now().Sub(t.origin))
}

// Sleep waits, or until ctx ends. It returns false if ctx has ended.
func (t *Timeline) Sleep(ctx context.Context, d time.Duration) bool {
	over, cancel := context.WithCancel(ctx)
	timer := t.AfterFunc(d, cancel)
	<-over.Done()
	timer.Stop()
	cancel()
	return ctx.Err() == nil
}

// Now returns an exact reading.
func (t *Timeline) Now() Instant {
	now := t.clock.Now()
	utc := wallTime(now)
	return Instant{Nanos: int64(now.Sub(t.origin)), UTC: utc, Wall: int64(utc.Sub(t.began)), Millis: utc.UnixMilli()}
}

// wallTime returns t in UTC, without its monotonic reading.
func wallTime(t time.Time) time.Time { return t.Round(0).UTC() }

// UTC returns the time of an instant from its Wall, which has a third of the size.
func (t *Timeline) UTC(wall int64) time.Time {
	if now := t.last.Load(); now != nil && now.Wall == wall { // most events are young
		return now.UTC
	}
	return t.began.Add(time.Duration(wall))
}

// WallOf returns the Wall of an instant by its time. UTC is its inverse.
func (t *Timeline) WallOf(utc time.Time) int64 { return int64(utc.Sub(t.began)) }

// Point returns the point on the timeline at which the wall clock shows a time, unless it is set
// meanwhile.
func (i Instant) Point(at time.Time) int64 {
	if d := at.Sub(i.UTC); d < 0 {
		return i.Nanos + max(int64(d), math.MinInt64/2)
	}
	return Later(i.Nanos, at.Sub(i.UTC))
}

// HasCome reports whether the wall clock shows a time or a later one. The zero time never comes.
func (t *Timeline) HasCome(at time.Time) bool {
	return !at.IsZero() && !t.Now().UTC.Before(at)
}

// Look returns the point on the timeline at which code that waits for a time must compare it with
// the wall clock again. For the zero time it is math.MaxInt64.
func (t *Timeline) Look(at time.Time) int64 {
	if at.IsZero() {
		return math.MaxInt64
	}
	now := t.Now()
	return min(now.Point(at), Later(now.Nanos, t.check))
}

// Check returns the longest wait for an instant without a look at the wall clock: CheckEvery, or
// the longest duration for a clock whose timers follow its wall clock.
func (t *Timeline) Check() time.Duration { return t.check }

// Aged returns the time, in UTC, that decides what is removed by age. It is the wall clock's. After
// the wall clock has gained more than a minute on the monotonic one, it stands still for an hour: an
// operator can set a wrong clock right before anything is lost.
func (t *Timeline) Aged() time.Time {
	now := t.Now()
	ahead := now.Wall - now.Nanos
	t.ageMu.Lock()
	defer t.ageMu.Unlock()
	switch step := ahead - t.ahead; {
	case step > int64(stepLeast):
		if now.Nanos >= t.heldUntil { // otherwise Aged has stood still since an earlier step
			t.heldAt = now.UTC.Add(-time.Duration(step))
		}
		t.heldUntil, t.ahead = Later(now.Nanos, ageHold), ahead
	case step < 0: // the clock was set back
		t.ahead = ahead
	}
	if !t.heldAt.IsZero() && now.Nanos < t.heldUntil && t.heldAt.Before(now.UTC) {
		return t.heldAt
	}
	return now.UTC
}

// At returns the wall-clock time of a point on the timeline, in UTC.
func (t *Timeline) At(nanos int64) time.Time {
	now := t.Now()
	return now.UTC.Add(time.Duration(nanos - now.Nanos))
}

// Recent returns a reading that is at most one tick old, and whether it is exact. On the
// real clock it starts the ticking. The reading is shared and must not be changed.
func (t *Timeline) Recent() (now *Instant, exact bool) {
	if last := t.last.Load(); last != nil {
		return last, false
	}
	return t.begin(), true
}

// Shared returns the shared reading, or nil while the timeline does not tick.
func (t *Timeline) Shared() *Instant { return t.last.Load() }

// Ticks reports whether the timeline ticks, so that Recent returns shared readings.
func (t *Timeline) Ticks() bool { return t.last.Load() != nil }

// AfterFunc calls f on its own goroutine after d, on the timeline's clock.
func (t *Timeline) AfterFunc(d time.Duration, f func()) *clock.Timer {
	return t.clock.AfterFunc(d, f)
}

// Stop ends the ticking for good. Readings stay available and are exact.
func (t *Timeline) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.last.Store(nil)
	if t.ticker != nil {
		t.ticker.Stop()
	}
}

// begin reads the clock and, if it is the real one, starts the ticking.
func (t *Timeline) begin() *Instant {
	now := t.Now()
	if t.real {
		t.startTicking(&now)
	}
	return &now
}

func (t *Timeline) startTicking(now *Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped || t.last.Load() != nil {
		return
	}
	t.last.Store(now)
	if t.ticker == nil {
		t.ticker = t.clock.AfterFunc(Tick, t.tick)
	} else {
		t.ticker.Reset(Tick)
	}
}

func (t *Timeline) tick() {
	busy := t.busy()
	t.mu.Lock()
	if busy && !t.stopped {
		now := t.Now()
		t.last.Store(&now)
		t.ticker.Reset(Tick)
	} else {
		t.last.Store(nil)
	}
	t.mu.Unlock()
	if !busy {
		t.rest()
	}
}

// Later returns the instant a delay after another one, at most math.MaxInt64.
func Later(nanos int64, delay time.Duration) int64 {
	if due := nanos + int64(delay); due >= nanos {
		return due
	}
	return math.MaxInt64
}
