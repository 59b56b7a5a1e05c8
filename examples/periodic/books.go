package main

import (
	"fmt"
	"io"
	"time"
)

// books have the events of the ticks.
type books struct {
	first, last time.Time
	events      map[time.Time]string
	repeats     int
	// Ticks after down and before up may be missing: no process ran. up is the one that CatchUp has published.
	down, up time.Time
}

// enter notes an event that was handled. Another event of the same tick is an error. The same event again is none: it is
// handled at least once.
func (b *books) enter(tick time.Time, event string) error {
	if b.events == nil {
		b.events = map[time.Time]string{}
		b.first = tick
	}
	switch known := b.events[tick]; known {
	case "":
		b.events[tick] = event
	case event:
		b.repeats++
	default:
		return fmt.Errorf("the tick %s has two events: %s and %s", tick, known, event)
	}
	if tick.After(b.last) {
		b.last = tick
	}
	if !b.down.IsZero() && b.up.IsZero() {
		b.up = tick
	}
	return nil
}

// outage notes that no process runs from the last tick until the next one that is entered.
func (b *books) outage() { b.down = b.last }

// balance returns an error if a tick is missing.
func (b *books) balance(out io.Writer) error {
	skipped := 0
	for tick := b.first; !tick.After(b.last); tick = tick.Add(period) {
		switch {
		case b.events[tick] != "":
		case tick.After(b.down) && tick.Before(b.up):
			skipped++
		default:
			return fmt.Errorf("the tick %s has no event", tick)
		}
	}
	fmt.Fprintf(out, "\nOK: %d ticks with one event each, and %d before the latest one while no process ran; %d events handled again after kills\n",
		len(b.events), skipped, b.repeats)
	return nil
}
