package eventbus

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// timeline is the bus's only source of time: a point on it is a number of
// nanoseconds since the bus was made, on the injected clock.
//
// Reading a clock costs as much as delivering an event. So while there is work,
// the real clock is read once a tick, and what need not be exact makes do with
// that. Sparse events, and all those on another clock, get exact readings.
type timeline struct {
	clock  clock.Clock
	real   bool // the clock is the package's wrapper around time
	origin time.Time
	began  time.Time // origin on the wall clock, in UTC
	// last is the reading of the running tick; nil while nothing ticks.
	last atomic.Pointer[instant]
	// busy reports whether there has been work since its last call; rest is
	// called when the ticking has ended because there was none.
	busy func() bool
	rest func()

	mu      sync.Mutex // guards the following
	ticker  *clock.Timer
	stopped bool
}

// instant is a reading of the clock.
type instant struct {
	nanos  int64
	utc    time.Time
	wall   int64 // utc, in nanoseconds since the bus was made, by the wall clock
	millis int64 // utc, in milliseconds since 1970
}

// tick is how old a reading may be.
const tick = time.Millisecond

func newTimeline(c clock.Clock) *timeline {
	origin := c.Now()
	return &timeline{
		clock:  c,
		real:   reflect.TypeOf(c) == reflect.TypeOf(clock.New()),
		origin: origin,
		began:  wallTime(origin),
	}
}

// nanos is now, exactly.
func (t *timeline) nanos() int64 {
	if t.real {
		return int64(time.Since(t.origin))
	}
	return int64(t.clock.Now().Sub(t.origin))
}

// now is now, exactly.
func (t *timeline) now() instant {
	now := t.clock.Now()
	utc := wallTime(now)
	return instant{nanos: int64(now.Sub(t.origin)), utc: utc, wall: int64(utc.Sub(t.began)), millis: utc.UnixMilli()}
}

// wallTime is a time without its monotonic reading, in UTC.
func wallTime(t time.Time) time.Time { return t.Round(0).UTC() }

// utc is the time that an instant's wall stands for: a third of its size.
func (t *timeline) utc(wall int64) time.Time { return t.began.Add(time.Duration(wall)) }

// recent is now, or up to a tick before, and whether it is exact.
func (t *timeline) recent() (now *instant, exact bool) {
	if last := t.last.Load(); last != nil {
		return last, false
	}
	return t.begin(), true
}

// begin reads the clock, and has it read at every tick from now on.
func (t *timeline) begin() *instant {
	now := t.now()
	if t.real {
		t.startTicking(&now)
	}
	return &now
}

// ticks reports whether readings are refreshed at every tick.
func (t *timeline) ticks() bool { return t.last.Load() != nil }

// at is the wall clock's time at a point on the timeline, in UTC.
func (t *timeline) at(nanos int64) time.Time {
	now := t.now()
	return now.utc.Add(time.Duration(nanos - now.nanos))
}

func (t *timeline) startTicking(now *instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped || t.last.Load() != nil {
		return
	}
	t.last.Store(now)
	if t.ticker == nil {
		t.ticker = t.clock.AfterFunc(tick, t.tick)
	} else {
		t.ticker.Reset(tick)
	}
}

func (t *timeline) tick() {
	busy := t.busy()
	t.mu.Lock()
	if busy && !t.stopped {
		now := t.now()
		t.last.Store(&now)
		t.ticker.Reset(tick)
	} else {
		t.last.Store(nil)
	}
	t.mu.Unlock()
	if !busy {
		t.rest()
	}
}

// stop ends the ticking for good.
func (t *timeline) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.last.Store(nil)
	if t.ticker != nil {
		t.ticker.Stop()
	}
}

func (t *timeline) afterFunc(d time.Duration, f func()) *clock.Timer {
	return t.clock.AfterFunc(d, f)
}
