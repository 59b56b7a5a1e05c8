// Package circuit is the circuit breaker of a subscription, and the gate of its door.
package circuit

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/window"
)

// State is the state of a circuit.
type State int

// The states of a circuit.
const (
	Closed State = iota
	Open
	HalfOpen
	Disabled
)

// Config configures when a circuit opens and for how long.
type Config struct {
	FailureRatio float64
	MinEvents    int
	Window       time.Duration
	OpenFor      time.Duration
	Disabled     bool
	// CountRejections makes rejections failures. The caller decides what a rejection is.
	CountRejections bool
}

// Bits of a door's gate. A delivery needs one load to see whether anything is shut. The other bits
// are the circuit's generation, which changes with the circuit's state.
const (
	Outage     = 1 << iota // the circuit is open or half-open
	Paused                 // Pause or HoldUntil applies
	Hung                   // too many abandoned calls run
	Slowed                 // a handler has asked everyone to wait: see Slowdown
	Rated                  // the subscription has a rate limit
	Removed                // the subscription has ended
	Detached               // the subscription waits for another one to take it over
	Single                 // the subscription has Once
	Forgotten              // the door is that of a destination that is being forgotten
	Line                   // seats of the line are taken, or the store may have deliveries: see endLineLocked
	Generation             // the lowest bit of the generation

	Ask   = Generation - 1                     // any of the bits before it needs the slow path
	Whole = Paused | Hung | Removed | Detached // in a subscription's gate, these shut the doors of all its destinations
)

// errNoOutcome is passed to gobreaker for a probe that ended without an outcome.
var errNoOutcome = errors.New("no outcome")

// errFailure is passed to gobreaker for every failure.
var errFailure = errors.New("failure")

// Circuit is the circuit breaker of one subscription.
//
// This package implements the window, and gobreaker the states. A gobreaker lives for one outage.
// Without one the circuit is closed, so a delivery to a healthy subscription only reads the gate
// and counts a success. The bus's clock decides when gobreaker receives a probe. It receives the
// result of every probe exactly once. Its clock, its counts and its callbacks, which run under its
// lock, are not used.
type Circuit struct {
	config   atomic.Pointer[Config] // of Init, or of the last Renew
	timeline *timeline.Timeline
	Gate     atomic.Uint64

	mu         sync.Mutex // guards the following
	window     window.Window
	breaker    *gobreaker.TwoStepCircuitBreaker[any]
	openUntil  int64 // any delivery may probe from then on
	freshFrom  int64 // a fresh one may
	aliveUntil int64 // when the success of a probe is no sign of life any more
	halfOpen   bool
	probe      func(error) // reports the result of the running probe; nil if none runs
	fresh      bool        // the running probe is fresh
	newest     bool        // the last fresh probe to fail was the oldest
	failed     int         // fresh probes that have failed in a row, or 0 after the oldest of all has failed
	opened     uint64      // number of times that it has opened
}

// Init prepares a new circuit.
func (c *Circuit) Init(config Config, t *timeline.Timeline) {
	c.config.Store(&config)
	c.timeline = t
	c.Gate.Add(Generation) // an option may have set bits
	c.window.Init(config.Window, t.Nanos())
}

// Renew closes the circuit, with an empty window and another configuration. It ignores the outcomes of
// running handlers.
func (c *Circuit) Renew(config Config, now int64) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stateLocked()
	c.config.Store(&config)
	c.newest, c.failed, c.aliveUntil = false, 0, 0
	c.window.Renew(config.Window, now)
	c.closeLocked(now)
	if was == Disabled || config.Disabled {
		return Change{}
	}
	return Change{was, Closed}
}

// Change is a change of state, to be reported when no lock is held.
type Change struct{ From, To State }

// Probe says which delivery of a line is to probe. A delivery is fresh if it has not failed behind this
// door yet: another failure of one that has would say little.
type Probe int

// The deliveries that may probe.
const (
	OldestFresh Probe = iota
	NewestFresh
	OldestOfAll // fresh or not: those that have failed in an outage must not starve behind fresh ones that fail
)

// Turn returns which delivery is to probe next, and since when it may if it is fresh. After the oldest
// fresh one has failed, it is the other end of the line, which a burst of events that fail has not reached.
func (c *Circuit) Turn() (p Probe, since int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed == 2:
		p = OldestOfAll
	case c.newest:
		p = NewestFresh
	}
	return p, c.freshFrom
}

// Enter asks for a permit. A closed circuit admits everything, a half-open one a single probe at a
// time.
//
// The pass is the gate at the time of entry, with Outage for a probe. Its holder returns it
// exactly once, with Succeeded, Failed or ReturnPermit.
func (c *Circuit) Enter(now int64, fresh bool) (pass uint64, admits bool, change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pass = c.Gate.Load()
	if c.breaker == nil {
		return pass, true, change
	}
	if c.probe != nil || now < c.probesFromLocked(fresh) {
		return pass, false, change
	}
	if !c.halfOpen {
		c.halfOpen = true
		change = Change{Open, HalfOpen}
	}
	done, err := c.breaker.Allow()
	if err != nil {
		// gobreaker uses the real clock, which has not moved since it opened. The bus's clock has moved,
		// so the probe runs, and this circuit handles its result.
		done = func(error) {}
	}
	c.probe, c.fresh = done, fresh
	return pass, true, change
}

func (c *Circuit) probesFromLocked(fresh bool) int64 {
	if fresh {
		return c.freshFrom
	}
	return c.openUntil
}

// Admits returns how many deliveries, fresh ones or others, may ask for a permit. If none may, it
// returns when that changes without an event.
func (c *Circuit) Admits(now int64, fresh bool) (most int, again int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch from := c.probesFromLocked(fresh); {
	case c.breaker == nil:
		return math.MaxInt, 0
	case c.probe != nil:
		return 0, math.MaxInt64
	case now < from:
		return 0, from
	}
	return 1, 0
}

// ProbeNow lets the next delivery probe now, whenever the circuit was opened. It returns false if one probes already.
func (c *Circuit) ProbeNow(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probe != nil {
		return false
	}
	c.openUntil, c.freshFrom = min(c.openUntil, now), min(c.freshFrom, now)
	return true
}

// Trip opens the circuit, regardless of its counts. It ignores the outcomes of running handlers,
// which belong to an earlier generation.
func (c *Circuit) Trip(now int64) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stateLocked()
	c.newest, c.failed = false, 0
	c.openLocked(now)
	return Change{was, Open}
}

// Reset closes the circuit, with an empty window.
func (c *Circuit) Reset(now int64) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stateLocked()
	c.newest, c.failed = false, 0
	c.closeLocked(now)
	return Change{was, Closed}
}

// Succeeded records a success. was is the place of the event's last failure in the window: an event
// counts once.
func (c *Circuit) Succeeded(pass uint64, now int64, was window.Mark) Change {
	quiet := was == 0 && pass&Outage == 0 && pass == c.Gate.Load() && c.window.Quiet(now)
	if quiet || c.Config().Disabled {
		c.window.Succeed()
		return Change{}
	}
	_, change := c.record(pass, now, was, nil)
	return change
}

// Failed records a failure, and returns its place in the window.
func (c *Circuit) Failed(pass uint64, now int64, was window.Mark) (window.Mark, Change) {
	if c.Config().Disabled {
		return 0, Change{}
	}
	return c.record(pass, now, was, errFailure)
}

// ReturnPermit returns a pass without an outcome.
func (c *Circuit) ReturnPermit(pass uint64) {
	if pass&Outage != 0 {
		c.record(pass, 0, 0, errNoOutcome)
	}
}

func (c *Circuit) record(pass uint64, now int64, was window.Mark, outcome error) (is window.Mark, change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pass/Generation != c.Gate.Load()/Generation { // of an earlier generation
		if outcome == nil {
			c.window.SucceedOutside()
		}
		return 0, change
	}
	c.window.Advance(now)
	if outcome == nil {
		c.window.Succeed()
	}
	if pass&Outage != 0 {
		return 0, c.probedLocked(now, outcome)
	}
	c.window.Forget(was)
	if outcome != nil {
		is = c.window.Fail()
	}
	failures, events := c.window.Counts()
	if failures > 0 && events >= uint64(c.Config().MinEvents) && float64(failures) > c.Config().FailureRatio*float64(events) {
		change = c.tripLocked(c.timeline.Nanos()) // now may be a tick old
	}
	return is, change
}

// tripLocked opens the circuit because of its counts. If the service was alive lately, the events may be
// what fails: a fresh delivery may probe at once.
func (c *Circuit) tripLocked(now int64) Change {
	probed := now < c.aliveUntil
	alive := probed || c.window.SucceededSince(now-int64(c.Config().OpenFor))
	change := c.openLocked(now)
	if alive {
		c.freshFrom = now
	}
	c.newest = c.newest && probed // the old ones that made it open again are before the one that has succeeded
	return change
}

// openLocked opens a closed circuit with a new gobreaker.
func (c *Circuit) openLocked(now int64) Change {
	c.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     1, // the bus's clock decides when it is half-open
		ReadyToTrip: func(gobreaker.Counts) bool { return true },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNoOutcome) },
	})
	if done, err := c.breaker.Allow(); err == nil {
		done(errFailure)
	}
	c.beginOutageLocked(now)
	return Change{Closed, Open}
}

func (c *Circuit) beginOutageLocked(now int64) {
	c.openUntil = timeline.Later(now, c.Config().OpenFor)
	c.freshFrom = c.openUntil
	c.halfOpen, c.probe = false, nil
	c.opened++
	c.Gate.Or(Outage) // first: a delivery must not enter with the new generation as if closed
	c.Gate.Add(Generation)
}

// probedLocked handles the result of a probe.
func (c *Circuit) probedLocked(now int64, outcome error) Change {
	c.probe(outcome)
	c.probe = nil
	switch {
	case errors.Is(outcome, errNoOutcome):
		return Change{}
	case outcome == nil:
		c.closeLocked(now)
		c.aliveUntil, c.failed = timeline.Later(c.timeline.Nanos(), c.Config().OpenFor), 0 // now may be a tick old
		return Change{HalfOpen, Closed}
	default:
		c.nextTurnLocked()
		c.beginOutageLocked(now)
		return Change{HalfOpen, Open}
	}
}

// nextTurnLocked takes turns after a probe has failed.
func (c *Circuit) nextTurnLocked() {
	third := c.failed == 2
	if c.fresh {
		c.newest = third || !c.newest
		c.failed++
	}
	if third {
		c.failed = 0
	}
}

// closeLocked ends the outage, with an empty window.
func (c *Circuit) closeLocked(now int64) {
	c.breaker, c.probe, c.halfOpen = nil, nil, false
	c.window.Clear(now)
	c.Gate.Add(Generation)
	c.Gate.And(^uint64(Outage))
}

// State returns the current state, and how often the circuit has opened.
func (c *Circuit) State() (State, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateLocked(), c.opened
}

func (c *Circuit) stateLocked() State {
	switch {
	case c.Config().Disabled:
		return Disabled
	case c.breaker == nil:
		return Closed
	case c.halfOpen:
		return HalfOpen
	default:
		return Open
	}
}

// IsIdle reports whether the circuit is closed, and has no outcome in its window.
func (c *Circuit) IsIdle(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.window.Advance(now)
	_, outcomes := c.window.Counts()
	return c.breaker == nil && (outcomes == 0 || c.Config().Disabled)
}

// Successes returns the number of successes ever counted.
func (c *Circuit) Successes() uint64 { return c.window.Successes() }

// Config returns the configuration. Do not change it.
func (c *Circuit) Config() *Config { return c.config.Load() }
