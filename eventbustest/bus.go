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

// New makes a bus, starts it, and adopts it: see Adopt for what happens at the end
// of the test. It ends the test if the options are bad.
//
// A bus is silent unless it is given a logger: eventbus.WithLogger(zaptest.NewLogger(t)),
// with go.uber.org/zap/zaptest, shows its entries with the test.
func New(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus := NewUnstarted(t, opts...)
	if err := bus.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatalf("eventbustest.New: %v", err)
	}
	return bus
}

// NewUnstarted is New without Start: for a service that starts the bus itself, or a
// test that publishes before.
func NewUnstarted(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(opts...)
	if err != nil {
		t.Fatalf("eventbustest: %v", err)
	}
	Adopt(t, bus)
	return bus
}

// Adopt ends a bus with the test, and fails the test if something is wrong with
// it then: for a bus that the code under test has made.
//
// It shuts the bus down, also if that has been done before, after the cleanups
// that the test registers later, and so after those services are closed that were
// made with the bus. What still runs or waits for a retry is waited for, as long as
// WaitSettled would wait; once the test has failed, not for longer than a second.
// Then the test fails for
//
//   - events that were not finished, those held or published for later included,
//   - dead letters that DeadLetter or DeadLetters have not returned and
//     AllowDeadLetters does not allow: a letter that nobody expects is a bug,
//   - dead letters that have fallen out of the queue unseen,
//   - handlers that still run a second after they were given up (a day, in virtual
//     time),
//   - a ledger that does not balance.
//
// A bus is adopted once; New and NewUnstarted do it.
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

// AllowDeadLetters lets the test end with dead letters that match a query, looked
// at or not. The empty query matches all letters but those of events that the test left
// unfinished: the reason shutdown must be named, as in
// eventbus.LetterQuery{Reason: eventbus.ReasonShutdown}. AllowDeadLetters applies to later
// letters too. Limit, Before and ExactTotal must not be set. The bus must have been adopted.
func AllowDeadLetters(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery) {
	t.Helper()
	k := kitOf(bus)
	if k == nil {
		t.Fatalf("eventbustest.AllowDeadLetters: the bus is not the kit's; make it with New, or Adopt it")
	}
	lettersOf(t, bus, query) // refuses a bad query now
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allowed = append(k.allowed, query)
}

// requireUsable ends the test for a bus that eventbus.New did not make, which would
// pass for one that is settled.
func requireUsable(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	if err := bus.Explain("any").Err; err != nil {
		t.Fatalf("eventbustest: %v", err)
	}
}

// kits has what the kit knows of each bus until its test ends, so that tests and
// services share a plain *eventbus.Bus.
var kits sync.Map // *eventbus.Bus to *kit

func kitOf(bus *eventbus.Bus) *kit {
	k, _ := kits.Load(bus)
	found, _ := k.(*kit)
	return found
}

type kit struct {
	bus *eventbus.Bus

	mu      sync.Mutex // guards the following
	seen    map[eventbus.LetterID]bool
	allowed []eventbus.LetterQuery
}

// saw notes letters that the test has been given. k may be nil.
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

// end ends the bus and reports what is wrong with it. It runs on the test's
// goroutine, when the test is over.
func (k *kit) end(t testing.TB) {
	t.Helper()
	defer kits.Delete(k.bus)
	limit := patience(t)
	if t.Failed() && !isVirtual() {
		limit = min(limit, leakGrace) // what is unfinished is likely a consequence
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := k.bus.Shutdown(ctx)
	var cut *eventbus.ShutdownError // whose letters are in the queue as well
	if err != nil && !errors.As(err, &cut) {
		t.Errorf("eventbustest: %v", err)
		return
	}
	if leaked := k.leaked(); len(leaked) > 0 {
		t.Errorf("%s", leakText(leaked))
	}
	var unfinished, others []eventbus.DeadLetter
	for _, l := range k.unseen(t) {
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
		t.Errorf("eventbustest: the test ends with %s that it has not looked at; if they are right, "+
			"expect them with DeadLetter or DeadLetters, or let them be with AllowDeadLetters:\n%s",
			count(len(others), "dead letter"), stories(others))
	}
	m := k.bus.Metrics()
	if m.LettersEvicted > 0 && !k.allowsAll() {
		t.Errorf("eventbustest: %s fell out of the full queue, seen by nobody here; "+
			"raise WithDeadLetterCapacity, or allow all with AllowDeadLetters and an empty query",
			count(int(m.LettersEvicted), "dead letter"))
	}
	if !m.Ledger.Balanced() {
		t.Errorf("%s", unbalancedText(m.Ledger))
	}
}

// leaked are the handlers that do not come back after they were given up.
func (k *kit) leaked() []eventbus.AbandonedHandler {
	limit := leakGrace
	if isVirtual() {
		limit = virtualPatience
	}
	poll(limit, func() bool { return len(k.bus.Abandoned()) == 0 })
	return k.bus.Abandoned()
}

// unseen are the letters that the test has neither been given nor allowed, oldest
// first.
func (k *kit) unseen(t testing.TB) []eventbus.DeadLetter {
	t.Helper()
	k.mu.Lock()
	allowed := k.allowed
	k.mu.Unlock()
	for _, query := range allowed {
		k.saw(slices.DeleteFunc(lettersOf(t, k.bus, query), func(l eventbus.DeadLetter) bool {
			return l.Reason == eventbus.ReasonShutdown && query.Reason != eventbus.ReasonShutdown
		}))
	}
	var unseen []eventbus.DeadLetter
	all := lettersOf(t, k.bus, eventbus.LetterQuery{})
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range all {
		if !k.seen[l.ID] {
			unseen = append(unseen, l)
		}
	}
	return unseen
}

func (k *kit) allowsAll() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, query := range k.allowed {
		query.All = false
		if query == (eventbus.LetterQuery{}) {
			return true
		}
	}
	return false
}

func leakText(leaked []eventbus.AbandonedHandler) string {
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: %s given up, at the timeout or by Shutdown, and still running; a handler must return "+
		"when its context ends, and what a test blocks it must release:\n", count(len(leaked), "handler"))
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
		why = "they were held, paused or published for later; resume the subscription, let the time pass, or allow them with AllowDeadLetters and the reason shutdown"
	case cut != nil:
		why = fmt.Sprintf("Shutdown was cut short (%v); let blocked handlers go, and advance a mock clock with AdvanceUntilSettled", cut.Cause)
	}
	return fmt.Sprintf("eventbustest: the test ends with %s unfinished; %s:\n%s", count(len(unfinished), "event"), why, stories(unfinished))
}

func unbalancedText(l eventbus.Ledger) string {
	return fmt.Sprintf("eventbustest: the books of the bus do not balance, so that an event may be lost: %+v", l)
}

// How long the kit waits.
const (
	realPatience    = 10 * time.Second
	virtualPatience = 24 * time.Hour
	leakGrace       = time.Second
	deadlineMargin  = time.Second // for telling why, before the test binary is killed
)

// patience is how long to wait for what should come.
func patience(t testing.TB) time.Duration {
	if isVirtual() {
		return virtualPatience
	}
	return untilDeadline(t, realPatience)
}

// untilDeadline is d, or less if the test binary is killed before.
func untilDeadline(t testing.TB, d time.Duration) time.Duration {
	if isVirtual() {
		return d // where a *testing.T panics if it is asked
	}
	if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := limited.Deadline(); ok {
			d = max(0, min(d, time.Until(at)-deadlineMargin))
		}
	}
	return d
}

// isVirtual reports whether the time is that of a testing/synctest bubble: there it
// begins at midnight UTC 2000-01-01, as the package promises, and elsewhere this
// code is younger than that.
func isVirtual() bool {
	return time.Now().Before(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
}

// poll asks until the answer is yes or the limit has passed, and returns the last
// answer. It asks less and less often: what takes a day of virtual time must not
// take a million questions, and an answer may come late by a part of the wait.
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

// pollPart is by which part of the wait poll may be late.
const pollPart = 64
