package eventbus

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/surebus/eventbus/internal/timeline"
)

// CircuitState is the state of a subscription's circuit.
type CircuitState int

const (
	// CircuitClosed lets every delivery through.
	CircuitClosed CircuitState = iota
	// CircuitOpen skips the subscription.
	CircuitOpen
	// CircuitHalfOpen lets one delivery through at a time, to probe.
	CircuitHalfOpen
	// CircuitDisabled lets every delivery through and counts nothing.
	CircuitDisabled
)

// String names it: "closed", "open", "half-open", "disabled".
func (s CircuitState) String() string {
	return nameOf("CircuitState", []string{"closed", "open", "half-open", "disabled"}, int(s))
}

// MarshalText is String.
func (s CircuitState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// circuitConfig is when a circuit opens and for how long.
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

// CircuitOption sets one of a circuit's numbers.
type CircuitOption interface {
	applyCircuit(*circuitConfig)
}

type circuitOption func(*circuitConfig)

func (o circuitOption) applyCircuit(c *circuitConfig) { o(c) }

// FailureRatio opens a circuit when more than this part of the events of the
// window failed. At least 0, less than 1; 0.5 by default.
func FailureRatio(ratio float64) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.failureRatio = ratio })
}

// MinEvents is how many events the window must have for the circuit to open. At
// least 1, at most 2147483647; 4 by default.
func MinEvents(n int) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.minEvents = n })
}

// Window is how far back a circuit looks; it moves in twelve steps. At least
// 12 ms; a minute by default.
func Window(d time.Duration) CircuitOption {
	return circuitOption(func(c *circuitConfig) { c.window = d })
}

// OpenFor is how long a circuit stays open before it lets a probe through. At
// least 1 ms; 30 s by default.
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
	case c.window < windowSteps*time.Millisecond:
		return refuse("Window", c.window, "must be at least 12ms")
	case c.openFor < time.Millisecond:
		return refuse("OpenFor", c.openFor, "must be at least 1ms")
	}
	return nil
}

// Bits of a door's gate, which one load tells a delivery. The rest of the gate is the
// circuit's generation, which changes with every change of state.
const (
	gateShut       = 1 << iota // there is an outage
	gatePaused                 // by an operator
	gateRemoved                // the subscription has ended
	gateLine                   // the line has seats
	gateGeneration             // the lowest bit of the generation

	gateAsk = gateShut | gatePaused | gateRemoved | gateLine // before entering
)

// windowSteps is how many steps a window moves in.
const windowSteps = 12

// errNoOutcome tells gobreaker that a probe ended without telling anything.
var errNoOutcome = errors.New("no outcome")

// errFailure is any failure, for gobreaker.
var errFailure = errors.New("failure")

// circuit is the breaker of one subscription.
//
// The window is ours and the states are gobreaker's: its breaker lives for one
// outage, so none means closed, and a healthy subscription costs a load and a
// counter. It is given its permits by our clock and every probe's result exactly
// once; its own clock, its counts and its callbacks, which run under its lock,
// have no part in it.
type circuit struct {
	config   circuitConfig
	timeline *timeline.Timeline
	step     int64 // nanoseconds of a step of the window

	gate      atomic.Uint64
	successes atomic.Uint64 // since ever
	// From when on a success may decide something: the end of the window's youngest step;
	// ever, while that has failures; never, if it is disabled.
	quietUntil atomic.Int64

	mu        sync.Mutex // guards the following
	current   int64      // number of the window's youngest step
	marks     int64      // from a step's number to its mark, see counted
	window    *window    // nil until something is recorded
	breaker   *gobreaker.TwoStepCircuitBreaker[any]
	openUntil int64
	halfOpen  bool
	probe     func(error) // gobreaker's, for the result of the probe that runs
	opened    uint64      // how often it has opened
}

// window is what a circuit has counted. Most subscriptions of a large bus are seldom
// met, and do without.
type window struct {
	before   [windowSteps]uint64 // successes at the beginning of each step
	failures [windowSteps]uint32 // in each step
	failed   uint64              // the sum of these
}

// init makes a new circuit ready.
func (c *circuit) init(config circuitConfig, t *timeline.Timeline) {
	c.config, c.timeline, c.step = config, t, int64(config.window)/windowSteps
	c.gate.Store(gateGeneration)
	c.current = c.stepAt(t.Nanos())
	until := c.stepEndsLocked()
	if config.disabled {
		until = math.MaxInt64
	}
	c.quietUntil.Store(until)
	c.marks = windowSteps - c.current // of a step that a window has: more than 0
}

// stepAt is the number of the step that an instant falls into.
func (c *circuit) stepAt(now int64) int64 {
	if now < 0 { // a clock that was set back to before the bus was made
		return (now+1)/c.step - 1
	}
	return now / c.step
}

// counted says where an event's latest outcome at a subscription stands in the
// window, so that the next one can take its place: an event counts once. The
// zero value is nowhere.
type counted struct {
	mark int64 // the step's number, counted on past the windows that have been emptied; 0: nowhere
}

// circuitChange is a change of state, to be told when no lock is held.
type circuitChange struct{ from, to CircuitState }

// enter asks for a permit. A closed circuit admits everything, a half-open one a single
// probe at a time.
//
// A pass is the gate as it was on the way in, with gateShut for a probe. Its result is
// given to the circuit exactly once, by succeeded, failed or released.
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
		// gobreaker's clock, the runtime's, has not moved since it opened. Ours has: the
		// probe runs, and this circuit draws the conclusion itself.
		done = func(error) {}
	}
	c.probe = done
	return pass, true, change
}

// admits is how many deliveries may ask for a permit, and if none may, when that changes
// by itself.
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

// trip opens the circuit, whatever it has counted. What comes of the handlers that
// run belongs to an earlier state.
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

// quiet reports whether a success decides nothing, and changes nothing but the counter.
func (c *circuit) quiet(pass uint64, now int64) bool {
	return pass&gateShut == 0 && pass == c.gate.Load() && now < c.quietUntil.Load()
}

// quietLocked sets until when successes are quiet.
func (c *circuit) quietLocked() {
	until := c.stepEndsLocked()
	if c.window.failed > 0 {
		until = math.MinInt64
	}
	if c.quietUntil.Load() != until { // to store costs more
		c.quietUntil.Store(until)
	}
}

// succeeded records that a handler was done with an event.
func (c *circuit) succeeded(pass uint64, now int64, was counted) circuitChange {
	if c.config.disabled || was == (counted{}) && c.quiet(pass, now) {
		c.successes.Add(1)
		return circuitChange{}
	}
	_, change := c.record(pass, now, was, nil)
	return change
}

// failed records that a handler failed at an event, and returns where that
// stands.
func (c *circuit) failed(pass uint64, now int64, was counted) (counted, circuitChange) {
	if c.config.disabled {
		return counted{}, circuitChange{}
	}
	return c.record(pass, now, was, errFailure)
}

// released gives a pass back without an outcome.
func (c *circuit) released(pass uint64) {
	if pass&gateShut != 0 {
		c.record(pass, 0, counted{}, errNoOutcome)
	}
}

func (c *circuit) record(pass uint64, now int64, was counted, outcome error) (counted, circuitChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.windowLocked()
	generation := c.gate.Load() / gateGeneration
	if pass/gateGeneration != generation {
		// It belongs to an earlier state of the circuit: counted, but not in the
		// window.
		if outcome == nil {
			c.successes.Add(1)
			for i := range w.before {
				w.before[i]++
			}
		}
		return counted{}, circuitChange{}
	}
	c.advanceLocked(w, now)
	if outcome == nil {
		c.successes.Add(1) // not before, or it would count for the step before
	}
	if pass&gateShut != 0 {
		return counted{}, c.probedLocked(now, outcome)
	}
	oldest := c.current - windowSteps + 1
	if step := was.mark - c.marks; was != (counted{}) && step >= oldest {
		w.failures[index(step)]--
		w.failed--
	}
	var is counted
	if outcome != nil {
		is.mark = c.current + c.marks
		w.failures[index(c.current)]++
		w.failed++
	}
	c.quietLocked()
	total := w.failed + c.successes.Load() - w.before[index(oldest)]
	if w.failed > 0 && total >= uint64(c.config.minEvents) && float64(w.failed) > c.config.failureRatio*float64(total) {
		return is, c.openLocked(c.timeline.Nanos()) // that of a success may be a tick old
	}
	return is, circuitChange{}
}

func (c *circuit) windowLocked() *window {
	if c.window == nil {
		c.window = new(window)
	}
	return c.window
}

func index(step int64) int { return int((step%windowSteps + windowSteps) % windowSteps) }

// advanceLocked moves the window's end to now. A clock that was set back leaves
// it where it is.
func (c *circuit) advanceLocked(w *window, now int64) {
	if now < c.stepEndsLocked() {
		return
	}
	to := c.stepAt(now)
	for s := max(c.current+1, to-windowSteps+1); s <= to; s++ {
		w.before[index(s)] = c.successes.Load()
		w.failed -= uint64(w.failures[index(s)])
		w.failures[index(s)] = 0
	}
	c.current = max(c.current, to)
}

// stepEndsLocked is when the window's youngest step is over.
func (c *circuit) stepEndsLocked() int64 { return (c.current + 1) * c.step }

// openLocked makes a breaker that is open.
func (c *circuit) openLocked(now int64) circuitChange {
	c.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     1, // ours decides when it is half-open
		ReadyToTrip: func(gobreaker.Counts) bool { return true },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNoOutcome) },
	})
	if done, err := c.breaker.Allow(); err == nil {
		done(errFailure)
	}
	c.shutLocked(now)
	return circuitChange{CircuitClosed, CircuitOpen}
}

func (c *circuit) shutLocked(now int64) {
	c.openUntil = now + int64(c.config.openFor)
	if c.openUntil < now {
		c.openUntil = math.MaxInt64
	}
	c.halfOpen, c.probe = false, nil
	c.opened++
	c.gate.Add(gateGeneration)
	c.gate.Or(gateShut)
}

// probedLocked is what follows from a probe.
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
		c.shutLocked(now)
		return circuitChange{CircuitHalfOpen, CircuitOpen}
	}
}

// closeLocked ends the outage, with an empty window.
func (c *circuit) closeLocked(now int64) {
	c.breaker, c.probe, c.halfOpen = nil, nil, false
	w := c.windowLocked()
	w.failures, w.failed = [windowSteps]uint32{}, 0
	for i := range w.before {
		w.before[i] = c.successes.Load()
	}
	c.current = max(c.current, c.stepAt(now))
	c.quietLocked()
	c.marks += windowSteps // what has been marked before is older than the window
	c.gate.Add(gateGeneration)
	c.gate.And(^uint64(gateShut))
}

// state is what the circuit shows, and how often it has opened.
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
