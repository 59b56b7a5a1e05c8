package eventbus

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/window"
)

// CircuitState is the state of a subscription's circuit.
type CircuitState int

const (
	// CircuitClosed admits every delivery.
	CircuitClosed CircuitState = iota
	// CircuitOpen skips the subscription.
	CircuitOpen
	// CircuitHalfOpen admits one delivery at a time, to probe.
	CircuitHalfOpen
	// CircuitDisabled admits every delivery and counts nothing.
	CircuitDisabled
	// CircuitUnknown is the state in a plan of Catalog.Explain.
	CircuitUnknown
)

// String returns "closed", "open", "half-open", "disabled" or "unknown".
func (s CircuitState) String() string {
	return names.Of("CircuitState", circuitStateNames, int(s))
}

var circuitStateNames = []string{"closed", "open", "half-open", "disabled", "unknown"}

// MarshalText returns the text that String returns.
func (s CircuitState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text that String returns.
func (s *CircuitState) UnmarshalText(text []byte) error {
	return names.Read("CircuitState", circuitStateNames, text, s)
}

// circuitConfig configures when a circuit opens and for how long.
type circuitConfig struct {
	failureRatio float64
	minEvents    int
	window       time.Duration
	openFor      time.Duration
	disabled     bool
}

func defaultCircuit() circuitConfig {
	return circuitConfig{failureRatio: 0.5, minEvents: 4, window: time.Minute, openFor: 30 * time.Second}
}

// CircuitOption is an option of Circuit and WithCircuit.
type CircuitOption interface {
	applyCircuit(*circuitConfig)
}

type circuitOption func(*circuitConfig)

func (o circuitOption) applyCircuit(c *circuitConfig) { o(c) }

// FailureRatio sets the share of failed events in the window above which a circuit opens. It is at
// least 0 and less than 1; 0.5 by default.
func FailureRatio(ratio float64) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.failureRatio = ratio })
}

// MinEvents sets how many events the window must have before the circuit can open. It is from 1 to
// 2,147,483,647; 4 by default.
func MinEvents(n int) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.minEvents = n })
}

// Window sets the time span in which a circuit counts events. It slides in twelve steps. It is at
// least 12 ms; a minute by default.
func Window(d time.Duration) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.window = d })
}

// OpenFor sets how long a circuit stays open before one delivery probes. It is at least 1 ms; 30 s
// by default.
func OpenFor(d time.Duration) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.openFor = d })
}

// NoCircuit disables the circuit.
func NoCircuit() CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.disabled = true })
}

func (c *circuitConfig) validate(in string) error {
	refuse := func(field string, value any, reason string) error {
		return &OptionError{Option: in + "." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	switch {
	case !(c.failureRatio >= 0 && c.failureRatio < 1):
		return refuse("FailureRatio", c.failureRatio, "must be at least 0 and less than 1; NoCircuit() disables the circuit")
	case c.minEvents < 1 || c.minEvents > math.MaxInt32:
		return refuse("MinEvents", c.minEvents, "must be from 1 to 2147483647")
	case c.window < window.Steps*time.Millisecond:
		return refuse("Window", c.window, "must be at least 12ms")
	case c.openFor < time.Millisecond:
		return refuse("OpenFor", c.openFor, "must be at least 1ms")
	}
	return nil
}

// Bits of a door's gate. A delivery needs one load to see whether anything is shut. The other bits
// are the circuit's generation, which changes with the circuit's state.
const (
	gateOutage     = 1 << iota // the circuit is open or half-open
	gatePaused                 // Pause or HoldUntil applies
	gateRemoved                // the subscription has ended
	gateLine                   // seats of the line are taken, or the store may have deliveries: see endLineLocked
	gateGeneration             // the lowest bit of the generation

	gateAsk = gateOutage | gatePaused | gateRemoved | gateLine // any of these needs the slow path
)

// errNoOutcome is passed to gobreaker for a probe that ended without an outcome.
var errNoOutcome = errors.New("no outcome")

// errFailure is passed to gobreaker for every failure.
var errFailure = errors.New("failure")

// circuit is the circuit breaker of one subscription.
//
// This package implements the window, and gobreaker the states. A gobreaker lives for one outage.
// Without one the circuit is closed, so a delivery to a healthy subscription only reads the gate
// and counts a success. The bus's clock decides when gobreaker receives a probe. It receives the
// result of every probe exactly once. Its clock, its counts and its callbacks, which run under its
// lock, are not used.
type circuit struct {
	config   circuitConfig
	timeline *timeline.Timeline
	gate     atomic.Uint64

	mu        sync.Mutex // guards the following
	window    window.Window
	breaker   *gobreaker.TwoStepCircuitBreaker[any]
	openUntil int64
	halfOpen  bool
	probe     func(error) // reports the result of the running probe; nil if none runs
	opened    uint64      // number of times that it has opened
}

// init prepares a new circuit.
func (c *circuit) init(config circuitConfig, t *timeline.Timeline) {
	c.config, c.timeline = config, t
	c.gate.Store(gateGeneration)
	c.window.Init(config.window, t.Nanos())
}

// circuitChange is a change of state, to be reported when no lock is held.
type circuitChange struct{ from, to CircuitState }

// enter asks for a permit. A closed circuit admits everything, a half-open one a single probe at a
// time.
//
// The pass is the gate at the time of entry, with gateOutage for a probe. Its holder returns it
// exactly once, with succeeded, failed or released.
func (c *circuit) enter(now int64) (pass uint64, admits bool, change circuitChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pass = c.gate.Load()
	if c.breaker == nil {
		return pass, true, change
	}
	if !c.halfOpen {
		if now < c.openUntil {
			return pass, false, change
		}
		c.halfOpen = true
		change = circuitChange{CircuitOpen, CircuitHalfOpen}
	}
	if c.probe != nil {
		return pass, false, change
	}
	done, err := c.breaker.Allow()
	if err != nil {
		// gobreaker uses the real clock, which has not moved since it opened. The bus's clock has moved,
		// so the probe runs, and this circuit handles its result.
		done = func(error) {}
	}
	c.probe = done
	return pass, true, change
}

// admits returns how many deliveries may ask for a permit. If none may, it returns when that
// changes without an event.
func (c *circuit) admits(now int64) (most int, again int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.breaker == nil:
		return releaseMost, 0
	case !c.halfOpen && now < c.openUntil:
		return 0, c.openUntil
	case c.probe != nil:
		return 0, math.MaxInt64
	}
	return 1, 0
}

// trip opens the circuit, regardless of its counts. It ignores the outcomes of running handlers,
// which belong to an earlier generation.
func (c *circuit) trip(now int64) circuitChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stateLocked()
	c.openLocked(now)
	return circuitChange{was, CircuitOpen}
}

// reset closes the circuit, with an empty window.
func (c *circuit) reset(now int64) circuitChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.stateLocked()
	c.closeLocked(now)
	return circuitChange{was, CircuitClosed}
}

// succeeded records a success. was is the place of the event's last failure in the window: an event
// counts once.
func (c *circuit) succeeded(pass uint64, now int64, was window.Mark) circuitChange {
	quiet := was == 0 && pass&gateOutage == 0 && pass == c.gate.Load() && c.window.Quiet(now)
	if quiet || c.config.disabled {
		c.window.Succeed()
		return circuitChange{}
	}
	_, change := c.record(pass, now, was, nil)
	return change
}

// failed records a failure, and returns its place in the window.
func (c *circuit) failed(pass uint64, now int64, was window.Mark) (window.Mark, circuitChange) {
	if c.config.disabled {
		return 0, circuitChange{}
	}
	return c.record(pass, now, was, errFailure)
}

// returnPermit returns a pass without an outcome.
func (c *circuit) returnPermit(pass uint64) {
	if pass&gateOutage != 0 {
		c.record(pass, 0, 0, errNoOutcome)
	}
}

func (c *circuit) record(pass uint64, now int64, was window.Mark, outcome error) (is window.Mark, change circuitChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pass/gateGeneration != c.gate.Load()/gateGeneration { // of an earlier generation
		if outcome == nil {
			c.window.SucceedOutside()
		}
		return 0, change
	}
	c.window.Advance(now)
	if outcome == nil {
		c.window.Succeed()
	}
	if pass&gateOutage != 0 {
		return 0, c.probedLocked(now, outcome)
	}
	c.window.Forget(was)
	if outcome != nil {
		is = c.window.Fail()
	}
	failures, events := c.window.Counts()
	if failures > 0 && events >= uint64(c.config.minEvents) && float64(failures) > c.config.failureRatio*float64(events) {
		change = c.openLocked(c.timeline.Nanos()) // now may be a tick old
	}
	return is, change
}

// openLocked opens a closed circuit with a new gobreaker.
func (c *circuit) openLocked(now int64) circuitChange {
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
	return circuitChange{CircuitClosed, CircuitOpen}
}

func (c *circuit) beginOutageLocked(now int64) {
	c.openUntil = now + int64(c.config.openFor)
	if c.openUntil < now {
		c.openUntil = math.MaxInt64
	}
	c.halfOpen, c.probe = false, nil
	c.opened++
	c.gate.Or(gateOutage) // first: a delivery must not enter with the new generation as if closed
	c.gate.Add(gateGeneration)
}

// probedLocked handles the result of a probe.
func (c *circuit) probedLocked(now int64, outcome error) circuitChange {
	c.probe(outcome)
	c.probe = nil
	switch {
	case errors.Is(outcome, errNoOutcome):
		return circuitChange{}
	case outcome == nil:
		c.closeLocked(now)
		return circuitChange{CircuitHalfOpen, CircuitClosed}
	default:
		c.beginOutageLocked(now)
		return circuitChange{CircuitHalfOpen, CircuitOpen}
	}
}

// closeLocked ends the outage, with an empty window.
func (c *circuit) closeLocked(now int64) {
	c.breaker, c.probe, c.halfOpen = nil, nil, false
	c.window.Clear(now)
	c.gate.Add(gateGeneration)
	c.gate.And(^uint64(gateOutage))
}

// state returns the current state, and how often the circuit has opened.
func (c *circuit) state() (CircuitState, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateLocked(), c.opened
}

func (c *circuit) stateLocked() CircuitState {
	switch {
	case c.config.disabled:
		return CircuitDisabled
	case c.breaker == nil:
		return CircuitClosed
	case c.halfOpen:
		return CircuitHalfOpen
	default:
		return CircuitOpen
	}
}
