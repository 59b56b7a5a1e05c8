package eventbustest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// WaitSettled returns when no event of the bus is queued, running, throttled or waiting for a
// retry, and the ledger balances. It does not wait for held or scheduled events, nor for
// abandoned handlers.
//
// With a store, it also waits for the events that the bus has left to the store, and for those of
// an earlier process: until no record is ready or waiting. It does not wait for deliveries to a
// subscription that does not exist.
//
// It waits up to 10 seconds, or until a second before the test binary's timeout. Inside a
// testing/synctest bubble it waits up to a day of virtual time. Then it ends the test with a
// list of the unsettled events. It polls at growing intervals and returns late by up to a
// sixtieth of the wait. Use a Recorder for exact times.
//
// Call it on the test's goroutine. In a handler it would wait for the handler's own dispatch.
func WaitSettled(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	waitSettled(t, bus, patience(t))
}

// WaitSettledWithin is WaitSettled with another limit. The wait ends at the latest a second before
// the test binary's timeout.
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

// AdvanceUntilSettled advances the bus's mock clock until the bus is settled, as WaitSettled
// defines it. It advances by up to a day, in steps that grow to a sixteenth of the time advanced.
// For exact times, advance the clock in the test or use testing/synctest.
//
// It advances the clock only while all unsettled events wait for retries. It waits for running
// handlers in real time, up to 10 seconds, because advancing the clock could exceed their
// timeouts. If a handler itself waits for the clock, the test must advance it.
func AdvanceUntilSettled(t testing.TB, bus *eventbus.Bus, clock Clock) {
	t.Helper()
	requireUsable(t, bus)
	if clock == nil {
		t.Fatalf("eventbustest.AdvanceUntilSettled: the clock is nil; without a mock clock use WaitSettled")
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

// isSettled reads the ledger twice. An event that moves while one ledger is read can be missed
// there, but then the two ledgers differ.
func isSettled(bus *eventbus.Bus) bool {
	m := bus.Metrics()
	current := m.StoreError == "" || m.Ledger.Closed
	return current && unsettled(m) == 0 && !m.Behind && m.Ledger.Balanced() && bus.Metrics().Ledger == m.Ledger
}

// unsettled counts the dispatches that the bus continues without a directive. A dispatch
// that is in memory and in the store counts twice.
func unsettled(m eventbus.Metrics) int64 {
	stored := storeStats(m)
	return unsettledInMemory(m.Ledger) + stored.Ready + stored.Waiting + stored.Incoming
}

func unsettledInMemory(l eventbus.Ledger) int64 {
	return l.Queued + l.Running + l.Waiting + l.Throttled + l.Recording
}

// storeStats returns what the store has. It is zero for a bus in memory or after Shutdown.
func storeStats(m eventbus.Metrics) driver.Stats {
	if m.Store == nil || m.Ledger.Closed { // after Shutdown nothing continues
		return driver.Stats{}
	}
	return *m.Store
}

// isWaiting reports whether all unsettled dispatches wait for retries.
func isWaiting(bus *eventbus.Bus) bool {
	m := bus.Metrics()
	stored := storeStats(m)
	return m.Ledger.Waiting == unsettledInMemory(m.Ledger) && stored.Ready+stored.Incoming == 0 && !m.Behind && m.Ledger.Waiting+stored.Waiting > 0
}

func unsettledText(m eventbus.Metrics, limit time.Duration) string {
	l := m.Ledger
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: not settled after %s: %d queued, %d running, %d waiting for a retry, %d throttled\n",
		limit, l.Queued, l.Running, l.Waiting, l.Throttled)
	if stored := storeStats(m); stored.Ready+stored.Waiting+stored.Incoming > 0 {
		fmt.Fprintf(&b, "  the store has %d ready and %d waiting for a retry, those in memory included, and %d incoming\n",
			stored.Ready, stored.Waiting, stored.Incoming)
		if m.Workers == 0 && unsettledInMemory(l) == 0 {
			b.WriteString("  nothing takes events from the store; is the bus started?\n")
		}
	}
	if m.Behind {
		b.WriteString("  the bus has not claimed all records of its store\n")
	}
	if l.Queued > 0 && m.Workers == 0 {
		b.WriteString("  queued: no worker takes events from the queue; is the bus started?\n")
	}
	if l.Running > 0 {
		b.WriteString("  running: a handler has not returned; it blocks or waits for this test\n")
	}
	if l.Waiting > 0 {
		b.WriteString("  waiting: use testing/synctest for virtual time, AdvanceUntilSettled for a mock clock, or WaitSettledWithin for a longer wait\n")
	}
	if l.Throttled > 0 {
		b.WriteString("  throttled: at the concurrency limit of a subscription; a running handler has to return first\n")
	}
	if unsettled(m) == 0 && !l.Balanced() {
		b.WriteString("  " + unbalancedText(l) + "\n")
	}
	for _, s := range m.Subscriptions {
		if s.Failures > 0 {
			fmt.Fprintf(&b, "  %s failed %d times (%d timeouts, %d panics) and succeeded %d times, its circuit is %s\n",
				s.Subscription, s.Failures, s.Timeouts, s.Panics, s.Successes, s.Circuit)
		}
	}
	fmt.Fprintf(&b, "  ledger: %+v\n", l)
	return b.String()
}
