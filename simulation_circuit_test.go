package eventbus_test

import (
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// simCircuit is a circuit, by C1 to C4.
type simCircuit struct {
	disabled   bool
	ratio      float64
	minEvents  int
	step       time.Duration // a twelfth of the window
	openFor    time.Duration
	generation int
	shut, half bool
	probing    bool
	until      time.Duration
	outcomes   []simOutcome
	opens      int64
	opened     bool // by itself, since the last look; was it closed, one may have come in before

	paused      bool
	pausedUntil time.Duration
}

type simOutcome struct {
	event  *simEvent
	step   time.Duration
	failed bool
}

// simPass is how a delivery came in.
type simPass struct {
	generation int
	probe      bool
}

// refuses is why there is no pass at an instant between the two, "" if there is
// one. Where the answer changes in between, what was seen decides.
func (c *simCircuit) refuses(earliest, latest time.Duration, seen bool) string {
	switch {
	case c.paused && c.before(c.pausedUntil, earliest, latest, seen):
		return "paused"
	case c.opened && seen:
	case c.shut && (c.probing || !c.half && c.before(c.until, earliest, latest, seen)):
		return "open"
	}
	return ""
}

func (c *simCircuit) before(instant, earliest, latest time.Duration, seen bool) bool {
	return latest < instant || earliest < instant && !seen
}

// enter asks for a pass.
func (c *simCircuit) enter(earliest, latest time.Duration, seen bool) simPass {
	pass, why := simPass{c.generation, c.shut}, c.refuses(earliest, latest, seen)
	if why == "paused" {
		return pass
	}
	c.paused = false
	if c.opened && seen {
		return simPass{generation: c.generation - 1}
	}
	if c.shut && !c.before(c.until, earliest, latest, seen) {
		c.half = true
	}
	c.probing = c.probing || c.shut && why == ""
	return pass
}

func (c *simCircuit) endPause(at time.Duration) { c.paused = c.paused && at < c.pausedUntil }

// close ends an outage, with an empty window.
func (c *simCircuit) close() {
	c.generation++
	c.shut, c.half, c.probing, c.outcomes = false, false, false, nil
}

// record takes a "success", a "failure", or "" for no outcome.
func (c *simCircuit) record(pass simPass, e *simEvent, at time.Duration, outcome string) {
	if c.disabled || pass.generation != c.generation {
		return
	}
	switch {
	case pass.probe:
		c.probing = false
		switch outcome {
		case "success":
			c.close()
		case "failure":
			c.open(at)
		}
		return
	case outcome == "":
		return
	}
	now, failures := at/c.step, 0
	c.outcomes = slices.DeleteFunc(c.outcomes, func(o simOutcome) bool {
		return o.step <= now-12 || o.event == e // an event counts once
	})
	c.outcomes = append(c.outcomes, simOutcome{e, now, outcome == "failure"})
	for _, o := range c.outcomes {
		if o.failed {
			failures++
		}
	}
	if len(c.outcomes) >= c.minEvents && float64(failures) > c.ratio*float64(len(c.outcomes)) {
		c.open(at)
	}
}

func (c *simCircuit) open(at time.Duration) {
	c.generation++
	c.shut, c.half, c.probing, c.until = true, false, false, at+c.openFor
	c.opens++
}

func (c *simCircuit) state() eventbus.CircuitState {
	switch {
	case c.disabled:
		return eventbus.CircuitDisabled
	case !c.shut:
		return eventbus.CircuitClosed
	case c.half:
		return eventbus.CircuitHalfOpen
	}
	return eventbus.CircuitOpen
}
