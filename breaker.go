package eventbus

import (
	"fmt"
	"math"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
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

func defaultCircuit() circuit.Config {
	return circuit.Config{FailureRatio: 0.5, MinEvents: 4, Window: time.Minute, OpenFor: 30 * time.Second}
}

// CircuitOption is an option of Circuit and WithCircuit.
type CircuitOption interface {
	applyCircuit(*circuit.Config)
}

type circuitOption func(*circuit.Config)

func (o circuitOption) applyCircuit(c *circuit.Config) { o(c) }

// FailureRatio sets the share of failed events in the window above which a circuit opens. It is at
// least 0 and less than 1; 0.5 by default.
func FailureRatio(ratio float64) CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.FailureRatio = ratio })
}

// MinEvents sets how many events the window must have before the circuit can open. It is from 1 to
// 2,147,483,647; 4 by default.
func MinEvents(n int) CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.MinEvents = n })
}

// Window sets the time span in which a circuit counts events. It slides in twelve steps. It is at
// least 12 ms; a minute by default.
func Window(d time.Duration) CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.Window = d })
}

// OpenFor sets how long a circuit stays open before one delivery probes. It is at least 1 ms; 30 s
// by default. If a delivery has succeeded within this time, one that has not failed at the subscription
// probes at once.
func OpenFor(d time.Duration) CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.OpenFor = d })
}

// CountRejections makes rejections count as failures. Without it, the circuit ignores errors that are Permanent or that
// the retry policy excludes, because they concern the event and not the service. Use it if such an error means that the
// service rejects everything, such as an expired credential.
func CountRejections() CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.CountRejections = true })
}

// NoCircuit disables the circuit.
func NoCircuit() CircuitOption {
	return circuitOption(func(c *circuit.Config) { c.Disabled = true })
}

func validateCircuit(in string, c *circuit.Config) error {
	refuse := func(field string, value any, reason string) error {
		return &OptionError{Option: in + "." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	switch {
	case !(c.FailureRatio >= 0 && c.FailureRatio < 1):
		return refuse("FailureRatio", c.FailureRatio, "must be at least 0 and less than 1; NoCircuit() disables the circuit")
	case c.MinEvents < 1 || c.MinEvents > math.MaxInt32:
		return refuse("MinEvents", c.MinEvents, "must be from 1 to 2147483647")
	case c.Window < window.Steps*time.Millisecond:
		return refuse("Window", c.Window, "must be at least 12ms")
	case c.OpenFor < time.Millisecond:
		return refuse("OpenFor", c.OpenFor, "must be at least 1ms")
	}
	return nil
}

// circuitState returns the state of a door's circuit, and how often it has opened.
func (o *door) circuitState() (CircuitState, uint64) {
	is, opened := o.circuit.State()
	return CircuitState(is), opened
}

// nextLocked returns the delivery of the line to release next, or nil, and the earliest time: the oldest,
// or behind an outage the one whose turn it is to probe. While the store has newer deliveries, and it
// is the turn of the newest or the line has none that is fresh, it gives way to the next that arrives.
func (o *door) nextLocked(gate uint64) (d *dispatch, from int64) {
	if gate&circuit.Outage != 0 {
		turn, since := o.circuit.Turn()
		fresh, ok := o.line.Fresh(turn == circuit.NewestFresh)
		if o.spill.onDisk && (turn == circuit.NewestFresh || turn == circuit.OldestFresh && !ok) {
			from = timeline.Later(since, o.circuit.Config().OpenFor)
		}
		if ok && turn != circuit.OldestOfAll {
			return fresh, from
		}
	}
	d, _ = o.line.Front()
	return d, from
}

// admitsProbeLocked returns how many deliveries like an arrival the circuit admits. A new one, or one with a
// seat that was not chosen, leaves the probe to the line.
func (o *door) admitsProbeLocked(_ *Bus, a arrival) (most int, again int64) {
	if !a.inLine && !a.chosen && o.has(circuit.Outage) && o.terms().whenOpen == HoldWhenOpen && (a.seated || o.isTurnOfLineLocked()) {
		return 0, math.MaxInt64
	}
	return o.circuit.Admits(a.now, a.fresh)
}

// isTurnOfLineLocked reports whether the oldest of the line is to probe, and not a new delivery.
func (o *door) isTurnOfLineLocked() bool {
	turn, _ := o.circuit.Turn()
	_, waits := o.line.Front()
	if turn == circuit.OldestFresh {
		_, waits = o.line.Fresh(false)
	}
	return turn != circuit.NewestFresh && (waits || o.candidate != nil)
}

// chooseLocked notes that a delivery is released to probe, if it was chosen in an outage. The gate is that of
// the choice: the circuit may have changed since, and it is another one's turn.
func (o *door) chooseLocked(d *dispatch, gate uint64) {
	if o.candidate = nil; gate&circuit.Outage != 0 {
		o.candidate, o.chosenIn = d, gate/circuit.Generation
	}
}

// choseLocked reports whether a delivery that arrives, or has settled, was released to probe in this outage.
// Others with a seat, which were released before or come from a retry, go back to it.
func (o *door) choseLocked(d *dispatch) bool {
	if o.candidate != d {
		return false
	}
	o.candidate = nil
	return o.chosenIn == o.circuit.Gate.Load()/circuit.Generation
}

// isNewestLocked reports whether it is the turn of the newest delivery to probe, or of a fresh one that only
// the store may have, and a new delivery is that.
func (o *door) isNewestLocked(d *dispatch) bool {
	turn, _ := o.circuit.Turn()
	_, fresh := o.line.Fresh(false)
	turns := turn == circuit.NewestFresh || turn == circuit.OldestFresh && !fresh
	return turns && d.key == "" && o.circuit.Gate.Load()&circuit.Outage != 0
}
