package eventbustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/surebus/eventbus"
)

// New returns a started bus that Adopt shuts down and checks at the end of the test. Invalid
// options end the test.
//
// The bus logs warnings to stderr by default. eventbus.WithLogger(zaptest.NewLogger(t)), with
// go.uber.org/zap/zaptest, writes its log entries to the test's log.
func New(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus := NewUnstarted(t, opts...)
	if err := bus.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatalf("eventbustest.New: %v", err)
	}
	return bus
}

// NewUnstarted is New without Start, for a service that starts the bus itself or a test that
// publishes before Start.
func NewUnstarted(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(opts...)
	if err != nil {
		t.Fatalf("eventbustest: %v", err)
	}
	Adopt(t, bus)
	return bus
}

// Adopt shuts a bus down at the end of the test and reports problems as test failures. Use it
// for a bus that the code under test makes. New and NewUnstarted adopt their bus. A bus can be
// adopted once.
//
// The shutdown runs in a cleanup: after the cleanups that the test registers later, so services
// that use the bus close first. A bus that is already shut down is checked too. The shutdown
// waits for running and retrying events as long as WaitSettled, or at most a second if the test
// has failed. Then the test fails for:
//
//   - unfinished events, including held and scheduled ones
//   - dead letters that neither DeadLetter nor DeadLetters returned and AllowDeadLetters does
//     not allow, because an unexpected letter is a bug
//   - evicted dead letters
//   - handlers that still run a second after the bus abandoned them (a day in virtual time)
//   - a ledger that does not balance
//
// With a store, Adopt waits until the bus is settled, as WaitSettled defines it, and checks the store for unfinished
// events, incoming events and dead letters. Then it shuts the bus down, which closes the store. It does not check the
// store of a bus that the test itself has shut down: start another bus over the same data to check it.
func Adopt(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	requireUsable(t, bus)
	k := &kit{bus: bus, seen: make(map[eventbus.LetterID]bool)}
	if _, adopted := kits.LoadOrStore(bus, k); adopted {
		t.Fatalf("eventbustest.Adopt: the bus has been adopted already; New and NewUnstarted do it")
	}
	t.Cleanup(func() {
		t.Helper()
		k.end(t)
	})
}

// AllowDeadLetters allows the dead letters that match a query, now or later: they do not fail
// the test when it ends. The bus must be adopted, and Limit, Before and ExactTotal must be zero.
//
// The empty query allows the letters of all reasons but eventbus.ReasonShutdown. Letters with
// that reason are unfinished events. To allow them, set the reason:
// eventbus.LetterQuery{Reason: eventbus.ReasonShutdown}. With a store, unfinished events are no
// letters. A query with this reason allows all of them.
func AllowDeadLetters(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery) {
	t.Helper()
	k := kitOf(bus)
	if k == nil {
		t.Fatalf("eventbustest.AllowDeadLetters: the bus is not adopted; make it with New, or Adopt it")
	}
	lettersOf(t, bus, query) // an invalid query ends the test here
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allowed = append(k.allowed, query)
}

// Crash ends a bus with a store as the end of its process does. It calls crash, which must end the
// store without closing it, such as Model.Crash of package storetest. Then it stops the goroutines of
// the bus. Nothing that the bus does after crash reaches the data. A new bus over the same data
// continues the unfinished events.
func Crash(t testing.TB, bus *eventbus.Bus, crash func()) {
	t.Helper()
	requireUsable(t, bus)
	if bus.Metrics().Store == nil {
		t.Fatalf("eventbustest.Crash: the bus has no store: its events would be lost")
	}
	crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = bus.Shutdown(ctx) // it reports that the store has failed
}

// requireUsable ends the test for a bus that eventbus.New did not make. Such a bus would look
// settled.
func requireUsable(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	if err := bus.Explain("any").Err; err != nil {
		t.Fatalf("eventbustest: %v", err)
	}
}

// kits maps each adopted bus to its kit until the test ends. Tests and services therefore share a
// plain *eventbus.Bus.
var kits sync.Map // *eventbus.Bus to *kit

func kitOf(bus *eventbus.Bus) *kit {
	k, _ := kits.Load(bus)
	found, _ := k.(*kit)
	return found
}

// kit is the state of an adopted bus.
type kit struct {
	bus *eventbus.Bus

	mu      sync.Mutex // guards the following
	seen    map[eventbus.LetterID]bool
	allowed []eventbus.LetterQuery
}

// saw marks letters as expected by the test. k may be nil.
func (k *kit) saw(letters []eventbus.DeadLetter) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range letters {
		k.seen[letters[i].ID] = true
	}
}

// end shuts the bus down and reports problems. It runs on the test's goroutine, as a cleanup.
func (k *kit) end(t testing.TB) {
	t.Helper()
	defer kits.Delete(k.bus)
	limit := patience(t)
	if t.Failed() && !isVirtual() {
		limit = min(limit, leakGrace) // unfinished events are probably a consequence of the failure
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	m := k.bus.Metrics()
	durable := m.Store != nil
	var letters []eventbus.DeadLetter
	if durable && !m.Ledger.Closed { // Shutdown closes the store
		letters = k.endStored(t, limit)
	}
	err := k.bus.Shutdown(ctx)
	var cut *eventbus.ShutdownError // its letters are in the queue too
	if err != nil && (!errors.As(err, &cut) || durable && !m.Ledger.Closed && errors.Is(cut.Cause, eventbus.ErrStoreFailed)) {
		t.Errorf("eventbustest: %v", err)
		return
	}
	if leaked := k.leaked(); len(leaked) > 0 {
		t.Errorf("%s", leakText(leaked))
	}
	if !durable {
		letters = k.unseen(t)
	}
	var unfinished, others []eventbus.DeadLetter
	for _, l := range letters {
		if l.Reason == eventbus.ReasonShutdown {
			unfinished = append(unfinished, l)
		} else {
			others = append(others, l)
		}
	}
	if len(unfinished) > 0 {
		t.Errorf("%s", unfinishedText(unfinished, cut))
	}
	if len(others) > 0 {
		t.Errorf("eventbustest: the test ends with %s that it did not expect; assert on expected letters "+
			"with DeadLetter or DeadLetters, or allow them with AllowDeadLetters:\n%s",
			count(len(others), "dead letter"), stories(others))
	}
	m = k.bus.Metrics()
	if m.LettersEvicted > 0 && !k.allowsAll() {
		t.Errorf("eventbustest: %s evicted from the full queue; "+
			"raise WithDeadLetterCapacity, or allow all with AllowDeadLetters and an empty query",
			count(int(m.LettersEvicted), "dead letter"))
	}
	if !m.Ledger.Balanced() {
		t.Errorf("%s", unbalancedText(m.Ledger))
	}
}

// endStored waits until a bus with a store is settled and reports unfinished events. It returns the
// letters that the test did not expect.
func (k *kit) endStored(t testing.TB, limit time.Duration) []eventbus.DeadLetter {
	t.Helper()
	begun, as := time.Now(), settled{held: true} // what is held is reported at once
	poll(limit, func() bool {
		m := k.bus.Metrics()
		idle := m.Workers == 0 && as.inMemory(m.Ledger) == 0 && m.Store.Waiting == 0
		return as.is(k.bus) || idle && time.Since(begun) >= leakGrace // the bus was not started
	})
	m := k.bus.Metrics()
	if m.Store.Unsettled()+m.Store.Incoming > 0 && !k.allows(eventbus.ReasonShutdown) {
		t.Errorf("%s", unfinishedStoredText(m))
	}
	return k.unseen(t)
}

// leaked returns the abandoned handlers that do not return within the limit.
func (k *kit) leaked() []eventbus.AbandonedHandler {
	limit := leakGrace
	if isVirtual() {
		limit = virtualPatience
	}
	poll(limit, func() bool { return len(k.bus.Abandoned()) == 0 })
	return k.bus.Abandoned()
}

// unseen returns the letters that the test neither asserted on nor allowed, oldest first.
func (k *kit) unseen(t testing.TB) []eventbus.DeadLetter {
	t.Helper()
	k.mu.Lock()
	allowed := k.allowed
	k.mu.Unlock()
	for _, query := range allowed {
		found, err := listLetters(k.bus, query)
		if err != nil {
			t.Errorf("eventbustest: %v", err)
			return nil
		}
		k.saw(slices.DeleteFunc(found, func(l eventbus.DeadLetter) bool {
			return l.Reason == eventbus.ReasonShutdown && query.Reason != eventbus.ReasonShutdown
		}))
	}
	var unseen []eventbus.DeadLetter
	all, err := listLetters(k.bus, eventbus.LetterQuery{})
	if err != nil {
		t.Errorf("eventbustest: %v", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range all {
		if !k.seen[l.ID] {
			unseen = append(unseen, l)
		}
	}
	return unseen
}

// allows reports whether the test allows letters with a reason by naming it.
func (k *kit) allows(reason eventbus.Reason) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.allowed, func(q eventbus.LetterQuery) bool { return q.Reason == reason })
}

// allowsAll reports whether the test allows letters with an empty query.
func (k *kit) allowsAll() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, query := range k.allowed {
		query.All = false
		if query.Since.IsZero() { // in any location
			query.Since = time.Time{}
		}
		if query.Until.IsZero() {
			query.Until = time.Time{}
		}
		if query == (eventbus.LetterQuery{}) {
			return true
		}
	}
	return false
}

func leakText(leaked []eventbus.AbandonedHandler) string {
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: %s abandoned, at the timeout or by Shutdown, and still running; a handler must return "+
		"when its context ends, and a test must release the handlers that it blocks:\n", count(len(leaked), "handler"))
	for _, h := range leaked {
		fmt.Fprintf(&b, "  %s, with %s %s, since %s\n", h.Subscription, h.EventType, h.EventID, h.Since.Format(clockLayout))
	}
	return b.String()
}

func unfinishedText(unfinished []eventbus.DeadLetter, cut *eventbus.ShutdownError) string {
	why := "Shutdown was cut short"
	switch {
	case cut != nil && errors.Is(cut.Cause, eventbus.ErrNotStarted):
		why = "the bus was never started"
	case cut != nil && cut.Cause == nil:
		why = "they were held, paused or scheduled; resume the subscription, advance the time, or allow them with AllowDeadLetters and the reason shutdown"
	case cut != nil:
		why = fmt.Sprintf("Shutdown was cut short (%v); release blocked handlers, and advance a mock clock with AdvanceUntilSettled", cut.Cause)
	}
	return fmt.Sprintf("eventbustest: the test ends with %s unfinished; %s:\n%s", count(len(unfinished), "event"), why, stories(unfinished))
}

func unfinishedStoredText(m eventbus.Metrics) string {
	return fmt.Sprintf("eventbustest: the test ends with %s unfinished in the store: %d ready, %d waiting for a retry, %d scheduled, %d parked, %d incoming; "+
		"start the bus, release blocked handlers, resume subscriptions, advance the time, or allow them with AllowDeadLetters and the reason shutdown\n  ledger: %+v\n",
		count(int(m.Store.Unsettled()+m.Store.Incoming), "event"), m.Store.Ready, m.Store.Waiting, m.Store.Scheduled, m.Store.Parked,
		m.Store.Incoming, m.Ledger)
}

func unbalancedText(l eventbus.Ledger) string {
	return fmt.Sprintf("eventbustest: the ledger does not balance, an event may be lost: %+v", l)
}

// Time limits of the kit.
const (
	realPatience    = 10 * time.Second
	virtualPatience = 24 * time.Hour
	leakGrace       = time.Second
	deadlineMargin  = time.Second // leaves time to report the failure before the test binary is killed
)

// patience returns the default limit of a wait.
func patience(t testing.TB) time.Duration {
	if isVirtual() {
		return virtualPatience
	}
	return untilDeadline(t, realPatience)
}

// untilDeadline returns d, or less if the test binary is killed earlier.
func untilDeadline(t testing.TB, d time.Duration) time.Duration {
	if isVirtual() {
		return d // in a bubble, testing.T.Deadline panics
	}
	if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := limited.Deadline(); ok {
			d = max(0, min(d, time.Until(at)-deadlineMargin))
		}
	}
	return d
}

// isVirtual reports whether the code runs in a testing/synctest bubble, where time begins at
// midnight UTC 2000-01-01.
func isVirtual() bool {
	return time.Now().Before(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
}

// poll calls ask until it returns true or the limit has passed, and returns the last result. The
// interval grows with the time waited, because a day of virtual time must not take a million
// calls. poll therefore returns late by up to 1/pollPart of the wait.
func poll(limit time.Duration, ask func() bool) bool {
	begun := time.Now()
	for {
		if ask() {
			return true
		}
		waited := time.Since(begun)
		if waited >= limit {
			return false
		}
		time.Sleep(min(max(10*time.Microsecond, waited/pollPart), limit-waited))
	}
}

// pollPart divides the time waited into poll's intervals.
const pollPart = 64
