package eventbustest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/surebus/eventbus"
)

// WaitSettled returns when nothing of the bus is queued, runs or waits for a
// retry, and its books balance. What is held back on purpose (paused, delayed) and
// handlers that have been given up do not count.
//
// It waits up to 10 seconds, or until a second before the test binary's timeout;
// inside a testing/synctest bubble up to a day of virtual time, which takes none.
// After that the test ends, and is told what is unsettled. It looks less often the
// longer it waits, and so returns late by up to a sixtieth of that: when something
// happened, a Recorder knows exactly.
//
// Call it on the test's goroutine, and not from a handler, whose own dispatch
// would never settle.
func WaitSettled(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	waitSettled(t, bus, patience(t))
}

// WaitSettledWithin is WaitSettled with another limit. A limit beyond the test
// binary's timeout ends a second before that.
func WaitSettledWithin(t testing.TB, bus *eventbus.Bus, limit time.Duration) {
	t.Helper()
	waitSettled(t, bus, untilDeadline(t, limit))
}

func waitSettled(t testing.TB, bus *eventbus.Bus, limit time.Duration) {
	t.Helper()
	requireUsable(t, bus)
	if !poll(limit, func() bool { return isSettled(bus) }) {
		t.Fatalf("%s", unsettledText(bus.Metrics(), limit))
	}
}

// Clock is a clock that a test advances, such as a *clock.Mock of
// github.com/benbjohnson/clock.
type Clock interface {
	Add(d time.Duration)
}

// AdvanceUntilSettled advances the mock clock that drives the bus until the bus is
// settled, as WaitSettled says it: by up to a day, in growing steps of up to a
// sixteenth of what it has advanced. For exact instants advance the clock yourself,
// or use testing/synctest.
//
// It advances only while retries are all that is left: a handler that works is
// waited for in real time, up to 10 seconds, since to advance would be to let it
// overrun. One that itself waits for the clock needs a test that advances it.
func AdvanceUntilSettled(t testing.TB, bus *eventbus.Bus, clock Clock) {
	t.Helper()
	requireUsable(t, bus)
	if clock == nil {
		t.Fatalf("eventbustest.AdvanceUntilSettled: the clock is nil; WaitSettled needs none")
	}
	limit := patience(t)
	for advanced := time.Duration(0); ; {
		if !poll(limit, func() bool { return isSettled(bus) || isWaiting(bus) }) {
			t.Fatalf("%s", unsettledText(bus.Metrics(), limit))
		}
		if isSettled(bus) {
			return
		}
		if advanced >= virtualPatience {
			t.Fatalf("%s", unsettledText(bus.Metrics(), advanced))
		}
		step := max(10*time.Millisecond, advanced/16)
		clock.Add(step)
		advanced += step
	}
}

// isSettled looks twice: what moves while it looks is seen in one of the two, or
// makes them differ.
func isSettled(bus *eventbus.Bus) bool {
	l := bus.Metrics().Ledger
	return unsettled(l) == 0 && l.Balanced() && bus.Metrics().Ledger == l
}

// unsettled counts the dispatches that the bus continues without an operator's order.
func unsettled(l eventbus.Ledger) int64 {
	return l.Queued + l.Running + l.Waiting + l.Throttled + l.Recording
}

// isWaiting reports whether retries are all that is left.
func isWaiting(bus *eventbus.Bus) bool {
	l := bus.Metrics().Ledger
	return l.Waiting > 0 && l.Waiting == unsettled(l)
}

func unsettledText(m eventbus.Metrics, limit time.Duration) string {
	l := m.Ledger
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: not settled after %s: %d queued, %d running, %d waiting for a retry, %d throttled\n",
		limit, l.Queued, l.Running, l.Waiting, l.Throttled)
	if l.Queued > 0 && m.Workers == 0 {
		b.WriteString("  nothing takes events from the queue: is the bus started?\n")
	}
	if l.Running > 0 {
		b.WriteString("  running: a handler has not returned, blocks, or waits for this test\n")
	}
	if l.Waiting > 0 {
		b.WriteString("  waiting: in testing/synctest that takes no time; AdvanceUntilSettled drives a mock clock; WaitSettledWithin waits longer\n")
	}
	if l.Throttled > 0 {
		b.WriteString("  throttled: at the concurrency limit of a subscription; a running handler has to return first\n")
	}
	if unsettled(l) == 0 && !l.Balanced() {
		b.WriteString("  " + unbalancedText(l) + "\n")
	}
	for _, s := range m.Subscriptions {
		if s.Failures > 0 {
			fmt.Fprintf(&b, "  %s has failed %d times (%d timeouts, %d panics) and succeeded %d times, its circuit is %s\n",
				s.Subscription, s.Failures, s.Timeouts, s.Panics, s.Successes, s.Circuit)
		}
	}
	fmt.Fprintf(&b, "  ledger: %+v\n", l)
	return b.String()
}
