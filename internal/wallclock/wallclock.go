// Package wallclock has a clock for tests whose wall clock can be set.
package wallclock

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/benbjohnson/clock"
)

// outside has a monotonic reading, unlike the times of a synctest bubble.
var outside = time.Now()

// Clock goes with package time, and its wall clock can be set. Timers and monotonic readings do not
// notice that, as after a suspend. Make one with New. Its methods are safe for concurrent use.
type Clock struct {
	clock.Clock
	began time.Time
	ahead atomic.Int64
	reads atomic.Int64
}

// New returns a clock whose wall clock shows the time of package time.
func New() *Clock {
	c := &Clock{Clock: clock.New(), began: time.Now()}
	before := c.Now()
	c.Advance(-time.Hour)
	after := c.Now()
	c.Advance(time.Hour)
	if after.Round(0).Sub(before.Round(0)).Round(time.Minute) != -time.Hour || after.Sub(before).Abs() > time.Minute {
		panic("wallclock: time.Time has another layout in this version of Go")
	}
	return c
}

// Advance sets the wall clock ahead, or back.
func (c *Clock) Advance(by time.Duration) { c.ahead.Add(int64(by)) }

// Ahead returns by how much the wall clock has been set ahead.
func (c *Clock) Ahead() time.Duration { return time.Duration(c.ahead.Load()) }

// Reads returns the number of calls of Now.
func (c *Clock) Reads() int64 { return c.reads.Load() }

// Now returns the time, with a monotonic reading.
func (c *Clock) Now() time.Time {
	c.reads.Add(1)
	now := time.Now()
	elapsed := now.Sub(c.began)
	wall := now.Round(0).Add(c.Ahead()).Sub(outside.Round(0))
	t := outside.Add(wall) // moves both readings
	// Package time has no way to move one of them. New checks this layout of time.Time.
	(*struct {
		wall uint64
		ext  int64 // the monotonic reading
		loc  *time.Location
	})(unsafe.Pointer(&t)).ext -= int64(wall - elapsed)
	return t
}
