package eventbustest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// WaitSettled returns when no event of the bus is queued, running, parked or waiting for a retry, and the
// ledger balances. It does not wait for scheduled events, nor for abandoned handlers. With HeldIsSettled it
// does not wait for held and snoozed deliveries.
//
// With a store, it also waits until no record in the store is ready, waiting or parked, including records of an earlier
// process. It does not wait for deliveries to a subscription that does not exist.
//
// It waits up to 10 seconds, or until a second before the test binary's timeout. Inside a
// testing/synctest bubble it waits up to a day of virtual time. Then it ends the test with a
// list of the unsettled events. It polls at growing intervals and returns late by up to a
// sixtieth of the wait. Use a Recorder for exact times.
//
// Call it on the test's goroutine. In a handler it would wait for the handler's own dispatch.
func WaitSettled(t testing.TB, bus *eventbus.Bus, opts ...SettledOption) {
	t.Helper()
	waitSettled(t, bus, patience(t), settledFor(opts))
}

// WaitSettledWithin is WaitSettled with another limit. The wait ends at the latest a second before
// the test binary's timeout.
func WaitSettledWithin(t testing.TB, bus *eventbus.Bus, limit time.Duration, opts ...SettledOption) {
	t.Helper()
	waitSettled(t, bus, untilDeadline(t, limit), settledFor(opts))
}

// SettledOption is an option of WaitSettled, WaitSettledWithin and AdvanceUntilSettled.
type SettledOption func(*settled)

// HeldIsSettled makes held and snoozed deliveries count as settled. They wait for an operator, a circuit or the end of
// the snooze.
func HeldIsSettled() SettledOption { return func(s *settled) { s.held = true } }

// settled says what counts as settled.
type settled struct{ held bool }

func settledFor(opts []SettledOption) (s settled) {
	for _, o := range opts {
		o(&s)
	}
	return s
}

func waitSettled(t testing.TB, bus *eventbus.Bus, limit time.Duration, as settled) {
	t.Helper()
	requireUsable(t, bus)
	if !poll(limit, func() bool { return as.is(bus) }) {
		t.Fatalf("%s", as.otherwiseText(bus.Metrics(), limit))
	}
}

// Clock is a clock that a test advances, such as a *clock.Mock of
// github.com/benbjohnson/clock.
type Clock interface {
	// Add advances the clock, and runs the timers that become due.
	Add(d time.Duration)
}

// AdvanceUntilSettled advances the bus's mock clock until the bus is settled, as WaitSettled
// defines it. It advances by up to a day, in steps that grow to a sixteenth of the time advanced.
// For exact times, advance the clock in the test or use testing/synctest.
//
// It advances the clock only while all unsettled events are held, snoozed or wait for retries. It waits for running
// handlers in real time, up to 10 seconds, because advancing the clock could exceed their
// timeouts. If a handler itself waits for the clock, the test must advance it.
func AdvanceUntilSettled(t testing.TB, bus *eventbus.Bus, clock Clock, opts ...SettledOption) {
	t.Helper()
	requireUsable(t, bus)
	if clock == nil {
		t.Fatalf("eventbustest.AdvanceUntilSettled: the clock is nil; without a mock clock use WaitSettled")
	}
	limit, as := patience(t), settledFor(opts)
	for advanced := time.Duration(0); ; {
		if !poll(limit, func() bool { return as.is(bus) || as.isLater(bus) }) {
			t.Fatalf("%s", as.otherwiseText(bus.Metrics(), limit))
		}
		if as.is(bus) {
			return
		}
		if advanced >= virtualPatience {
			t.Fatalf("%s", as.otherwiseText(bus.Metrics(), advanced))
		}
		step := max(10*time.Millisecond, advanced/16)
		clock.Add(step)
		advanced += step
	}
}

// is reports whether the bus is settled. It reads the ledger twice. An event that moves while one ledger is read can be missed
// there, but then the two ledgers differ.
func (s settled) is(bus *eventbus.Bus) bool {
	m := bus.Metrics()
	current := m.StoreError == "" || m.Ledger.Closed
	return current && s.unsettled(m) == 0 && !m.Behind && m.Ledger.Balanced() && bus.Metrics().Ledger == m.Ledger
}

// unsettled counts the dispatches that are not settled. A dispatch that is in memory and in the store counts twice.
func (s settled) unsettled(m eventbus.Metrics) int64 {
	stored := storeStats(m)
	return s.inMemory(m.Ledger) + stored.Ready + stored.Waiting + stored.Incoming + s.parked(m)
}

func (s settled) inMemory(l eventbus.Ledger) int64 {
	n := l.Queued + l.Running + l.Waiting + l.Throttled + l.Recording
	if !s.held {
		n += l.Held + l.Snoozed
	}
	return n
}

// parked returns the number of deliveries that the store has parked for subscriptions of the bus, unless they count as settled.
func (s settled) parked(m eventbus.Metrics) int64 {
	n := storeStats(m).Parked
	for _, missing := range m.Orphaned {
		n -= missing
	}
	if s.held {
		n = 0
	}
	return max(n, 0)
}

// storeStats returns what the store has. It is zero for a bus in memory or after Shutdown.
func storeStats(m eventbus.Metrics) driver.Stats {
	if m.Store == nil || m.Ledger.Closed { // after Shutdown nothing continues
		return driver.Stats{}
	}
	return *m.Store
}

// isLater reports whether all unsettled dispatches wait for a time.
func (s settled) isLater(bus *eventbus.Bus) bool {
	m := bus.Metrics()
	l, stored := m.Ledger, storeStats(m)
	later := l.Waiting
	if !s.held {
		later += l.Held + l.Snoozed
	}
	return later == s.inMemory(l) && stored.Ready+stored.Incoming == 0 && !m.Behind && later+stored.Waiting+s.parked(m) > 0
}

func (s settled) otherwiseText(m eventbus.Metrics, limit time.Duration) string {
	l := m.Ledger
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: not settled after %s: %d queued, %d running, %d waiting for a retry, %d throttled, %d held, %d snoozed\n",
		limit, l.Queued, l.Running, l.Waiting, l.Throttled, l.Held, l.Snoozed)
	if stored := storeStats(m); stored.Ready+stored.Waiting+stored.Incoming > 0 {
		fmt.Fprintf(&b, "  the store has %d ready and %d waiting for a retry, those in memory included, and %d incoming\n",
			stored.Ready, stored.Waiting, stored.Incoming)
		if m.Workers == 0 && s.inMemory(l) == 0 {
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
	if !s.held && l.Held+l.Snoozed+s.parked(m) > 0 {
		b.WriteString("  held or snoozed: " + heldText(m) + "; if the test means that, use HeldIsSettled()\n")
	}
	if s.unsettled(m) == 0 && !l.Balanced() {
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

// heldText names the subscriptions that are shut.
func heldText(m eventbus.Metrics) string {
	var shut []string
	for _, sub := range m.Subscriptions {
		if sub.ShutBy != "" {
			shut = append(shut, fmt.Sprintf("%s is shut (%s)", sub.Subscription, sub.ShutBy))
		}
	}
	if len(shut) == 0 {
		return "they wait for a destination, or until their handlers want them again"
	}
	return strings.Join(shut, ", ")
}
