package simulation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/testhooks"
)

// simPair names what is for one subscription of an event. It is in one place at a
// time.
func simPair(event int, sub string) string { return "e" + strconv.Itoa(event) + "/" + sub }

func (d *simDispatch) pair() string { return simPair(d.event.number, d.rest[0].name) }

func simCallName(event int, sub string, attempt, replays int) string {
	return simPair(event, sub) + "#" + strconv.Itoa(attempt) + "/" + strconv.Itoa(replays)
}

func (d *simDispatch) name() string {
	return simCallName(d.event.number, d.rest[0].name, d.attempt, d.replays)
}

func simStory(pair string, reason eventbus.Reason, died time.Duration, succeeded, notReached []string, attempts, replays int, failures []simFailure) string {
	if n := len(failures); n > 100 {
		failures = slices.Delete(slices.Clone(failures), 10, n-90)
	}
	return fmt.Sprintf("%s died at %s: %s, succeeded %v, not reached %v, attempts %d, replays %d, failures %v",
		pair, died, reason, succeeded, notReached, attempts, replays, failures)
}

type simFailure struct {
	sub              string
	attempt, replays int
}

// simWait is a PublishAndWait, and what it must tell.
type simWait struct {
	event     int
	call      *simCall     // whose handler it is
	of        *simDispatch // of that
	cancel    context.CancelFunc
	cancelled bool
	gaveUp    bool
	done      atomic.Bool
	result    eventbus.Result
	err       error

	pending, attempts, letters, held int
	outcome                          eventbus.Outcome
}

// note adds a dispatch that was held or has died.
func (w *simWait) note(d *simDispatch) {
	switch {
	case w == nil:
	case d.state == "held":
		w.held++
	case d.reason != "":
		w.letters++
	}
}

// ended notes how a dispatch of the event has ended: the worst is the event's.
func (w *simWait) ended(d *simDispatch, o eventbus.Outcome) {
	if w == nil {
		return
	}
	severity := []eventbus.Outcome{
		eventbus.Waiting, eventbus.Unrouted, eventbus.Dropped, eventbus.Handled,
		eventbus.Held, eventbus.Cancelled, eventbus.DeadLettered,
	}
	if slices.Index(severity, o) > slices.Index(severity, w.outcome) {
		w.outcome = o
	}
	w.attempts = max(w.attempts, d.attempt)
	w.pending--
	w.note(d)
}

// broken reports whether it no longer waits for the event.
func (w *simWait) broken() bool { return w.cancelled || w.call != nil && w.call.dispatch == nil }

// story is all that must be the same in the bus's letter.
func (d *simDispatch) story() string {
	var notReached []string
	for _, s := range d.rest[1:] {
		notReached = append(notReached, s.name)
	}
	return simStory(d.pair(), d.reason, d.due, d.handled, notReached, d.attempt, d.replays, d.failures)
}

// books are the ledger as it must be.
func (m *simModel) books() eventbus.Ledger {
	l := m.ledger
	l.Handled, l.Unrouted, l.Dropped = m.ended[eventbus.Handled], m.ended[eventbus.Unrouted], m.ended[eventbus.Dropped]
	l.DeadLettered, l.Cancelled = m.ended[eventbus.DeadLettered], m.ended[eventbus.Cancelled]
	l.Scheduled, l.Queued, l.Running = m.in("scheduled"), m.in("queued"), m.in("taken", "running")
	l.Waiting, l.Held = m.in("waiting"), m.in("held")
	return l
}

// look compares everything that can be seen with the model. Everything is at rest.
func (s *simulation) look() {
	for again := true; again; again = s.openGates() {
		synctest.Wait()
	}
	m := s.model
	s.last = s.now()
	m.advance(s.last)
	for _, c := range s.calls {
		if c.dispatch != nil && c.dispatch.state != "running" {
			s.logf("gave up %s", c.name)
			if c.dispatch, c.era = nil, c.sub.era; m.cut {
				c.era = -1 // it does not count
			}
			if !m.cut {
				c.sub.counts.Timeouts++
				c.sub.counts.Failures++
			}
		}
	}
	if m.cut {
		m.end()
	} else if m.ending && !m.drained && s.started && s.unsettled() == 0 {
		m.end()
		s.atDrain = m.abandoned
	}
	s.lookAtCalls()
	s.lookAtRuns()
	s.lookAtWaits() // last: who has come back may be one too many
	s.lookAtObservers()
	s.compare()
}

// openGates opens those that are nobody's decision, and reports whether there were
// any: what is taken after a cut dies as if it had not been.
func (s *simulation) openGates() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	gates := s.next
	if s.model.cut {
		for _, r := range s.taken {
			gates = append(gates, r.gate)
		}
		s.taken = nil
	}
	for _, gate := range gates {
		close(gate)
	}
	s.next = nil
	return len(gates) > 0
}

// lookAtCalls checks which calls have begun, and what they were given.
func (s *simulation) lookAtCalls() {
	m, arrived := s.model, s.arrived
	s.arrived = nil
	simCheck(len(arrived) == len(m.begun), "%d calls have begun, and %d should", len(arrived), len(m.begun))
	for i, c := range arrived { // one at a time
		d := m.begun[i]
		s.logf("began %s", c.name)
		e, at := d.event, c.event.Time.Sub(s.origin)
		if e.time == 0 {
			e.time = at
			simCheck(at <= e.published && at >= e.published-2*time.Millisecond, "event %d is of %s, published at %s", e.number, at, e.published)
		}
		simCheck(c.name == d.name() && c.sub == d.rest[0], "%s should not have begun, but %s", c.name, d.name())
		simCheck(c.deadline.Sub(s.origin) == d.due, "%s has until %s, and not %s", c.name, c.deadline.Sub(s.origin), d.due)
		simCheck(e.time == at && c.event.Type == e.eventType && c.event.Key == e.key, "%s was given %+v", c.name, c.event)
		simCheck(!e.handled[c.sub.name], "%s was handled before", c.name)
		c.dispatch = d
		s.calls = append(s.calls, c)
	}
	m.begun = nil
}

// lookAtRuns checks what workers have taken, and whether they have left something.
func (s *simulation) lookAtRuns() {
	m, taken := s.model, s.taken
	s.taken = nil
	slices.SortFunc(taken, func(x, y *simRun) int { return strings.Compare(x.name, y.name) })
	for _, r := range taken {
		i := slices.IndexFunc(m.open, func(d *simDispatch) bool {
			return d.state == "queued" && r.name == fmt.Sprintf("%s#%d", d.pair(), d.attempt+1)
		})
		simCheck(i >= 0, "%s should not be taken", r.name)
		s.logf("took %s", r.name)
		r.dispatch = m.open[i]
		simCheck(!m.behind(r.dispatch), "%s is taken before one of its key", r.name)
		r.dispatch.state = "taken"
	}
	s.runs = append(s.runs, taken...)
	simCheck(len(taken) == 0 || s.active() <= s.concurrency, "%d run, with a concurrency of %d", s.active(), s.concurrency)
	s.lookAtReady()
}

// lookAtReady checks how long each dispatch waits while a worker is free. The limit of 3 ms is six
// ticks of the pool.
//
// The time counts per dispatch, not for the queue. While the busy workers wait at their gates, the
// pool adds workers only at its ticks, 500 µs apart. If another retry becomes due before each tick,
// the queue can stay non-empty for longer than the limit, but each dispatch waits only a few ticks.
func (s *simulation) lookAtReady() {
	before := s.ready
	s.ready = map[*simDispatch]time.Duration{}
	if !s.room() {
		return
	}
	for _, d := range s.model.all(s.model.runnable) {
		since, waited := before[d]
		if !waited {
			since = s.last
		}
		s.ready[d] = since
		simCheck(s.last-since < 3*time.Millisecond, "%s is queued since %s, with workers to spare", d.pair(), since)
	}
}

// lookAtObservers checks what observers were told.
func (s *simulation) lookAtObservers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.told)
	for _, told := range s.told {
		if !s.model.cut { // whether attempts begin that do not count is open then
			s.logf("e%s", told)
		}
	}
	for _, r := range s.retries {
		i := slices.IndexFunc(s.model.open, func(d *simDispatch) bool {
			return d.event.number == r.Event.Payload.(int) && d.rest[0].name == r.Failure.Subscription
		})
		simCheck(s.model.cut || i >= 0 && r.Due.Sub(s.origin) == s.model.open[i].due, "the retry of %+v is due at %s", r, r.Due.Sub(s.origin))
	}
	s.told, s.retries = nil, nil
}

// lookAtWaits checks who has come back from PublishAndWait.
func (s *simulation) lookAtWaits() {
	s.waits = slices.DeleteFunc(s.waits, func(w *simWait) bool {
		settled := w.pending == 0
		if !w.done.Load() { // what it returns is not there yet
			simCheck(!settled && !w.broken(), "PublishAndWait of event %d has not returned, and the event has settled: %v", w.event, settled)
			return false
		}
		simCheck(settled || w.broken(), "PublishAndWait of event %d has returned %+v, %v, and the event has not settled", w.event, w.result, w.err)
		w.gaveUp = w.broken()
		if w.call != nil {
			w.call.wait = nil
		}
		if w.gaveUp {
			return true
		}
		s.logf("e%d has settled for who waits: %v", w.event, w.result.Outcome)
		var died *eventbus.DeliveryError
		letters := 0
		if errors.As(w.err, &died) {
			letters = len(died.Letters)
		}
		simCheck(w.result.Outcome == w.outcome && w.result.Attempts == w.attempts && len(w.result.Letters) == w.letters &&
			letters == w.letters && len(w.result.Held) == w.held && (w.err == nil) == (letters == 0 && w.held == 0 && w.outcome != eventbus.Cancelled) &&
			errors.Is(w.err, eventbus.ErrHeld) == (letters == 0 && w.held > 0 && w.outcome != eventbus.Cancelled),
			"PublishAndWait of event %d returned %+v, %v, and should %+v", w.event, w.result, w.err, w)
		return true
	})
}

// compare compares the books, the counters, the circuits, what is held and the
// letters.
func (s *simulation) compare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, metrics := s.model, s.bus.Metrics()
	books := m.books()
	simCheck(metrics.Ledger.Balanced(), "the books do not balance: %+v", metrics.Ledger)
	books.Closed = metrics.Ledger.Closed
	simCheck(metrics.Ledger == books, "the ledger is\n%+v and should be\n%+v", metrics.Ledger, books)
	if books != s.books {
		s.books = books
		s.logf("%+v", books)
	}
	simCheck(metrics.AbandonedHandlers == m.abandoned, "%d abandoned, and should be %d", metrics.AbandonedHandlers, m.abandoned)
	simCheck(len(metrics.Subscriptions) == len(m.subs), "%d subscriptions, and should be %d", len(metrics.Subscriptions), len(m.subs))
	for i, sub := range m.subs {
		var held []string
		for _, d := range m.seated(sub) {
			if d.state == "held" {
				held = append(held, simPair(d.event.number, ""))
			}
		}
		var seen []string
		for _, payload := range testhooks.Parked(sub.made) {
			seen = append(seen, simPair(payload.(int), ""))
		}
		simCheck(slices.Equal(seen, held), "%s holds %v, and should %v", sub.name, seen, held)
		is, should := metrics.Subscriptions[i], sub.counts
		should.Subscription, should.Pattern, should.Skipped, should.Held = sub.name, sub.pattern, sub.skipped, len(held)
		should.Circuit, should.CircuitOpens, should.Latency, should.Slow = sub.circuit.state, sub.circuit.opens, is.Latency, is.Slow
		should.Abandoned, should.Hung = sub.hanging, sub.hung()
		should.Directive, should.Options = is.Directive, is.Options
		should.LastError, should.LastFailed = is.LastError, is.LastFailed // failures are compared in letters
		should.Running = is.Running                                       // see what runs of the model
		if m.cut && is.Circuit == eventbus.CircuitHalfOpen && should.Circuit == eventbus.CircuitOpen && m.now >= sub.circuit.freshFrom {
			should.Circuit = is.Circuit // a worker has come to its door, or has left that to the cut
		}
		if should.Paused = m.now < sub.pausedUntil; should.Paused && sub.pausedUntil < math.MaxInt64 {
			is.PausedUntil = is.PausedUntil.Round(0)
			should.PausedUntil = s.origin.Add(sub.pausedUntil).UTC().Round(0)
		}
		switch {
		case should.Paused:
			should.ShutBy = eventbus.ParkPaused
		case should.Hung:
			should.ShutBy = eventbus.ParkHung
		case should.Circuit == eventbus.CircuitOpen || should.Circuit == eventbus.CircuitHalfOpen:
			should.ShutBy = eventbus.ParkCircuit
		}
		simCheck(is == should, "subscription\n%+v should be\n%+v", is, should)
	}
	s.compareTypes(metrics)
	if n := len(m.letters) + 2*s.removed; n != s.compared {
		s.compareLetters()
		s.compared = n
	}
}

// compareTypes compares the counters of event types with what observers were told. The
// caller holds s.mu.
func (s *simulation) compareTypes(metrics eventbus.Metrics) {
	for eventType, should := range s.types {
		is := metrics.Types[eventType]
		simCheck(is.SucceededAfterRetry <= should.SucceededAfterRetry, "type %s is %+v and %d were handled after a retry", eventType, is, should.SucceededAfterRetry)
		is.SucceededAfterRetry = should.SucceededAfterRetry
		simCheck(is == *should, "type %s is\n%+v and should be\n%+v", eventType, is, *should)
	}
}

func (s *simulation) compareLetters() {
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	simCheck(err == nil, "List: %v", err)
	simCheck(len(page.Letters) == page.Total, "%d letters of %d", len(page.Letters), page.Total)
	clear(s.letters)
	var is, should []string
	for i := range page.Letters {
		l := &page.Letters[i]
		simCheck(i == 0 || !l.DiedAt.After(page.Letters[i-1].DiedAt), "letter %d is younger than the one before", i)
		pair := simPair(l.Event.Payload.(int), l.Subscription)
		s.letters[pair] = l.ID
		var failures []simFailure
		for _, f := range l.Failures {
			failures = append(failures, simFailure{f.Subscription, f.Attempt, f.Replays})
		}
		is = append(is, simStory(pair, l.Reason, l.DiedAt.Sub(s.origin), l.Succeeded, l.NotReached, l.Attempts, l.Replays, failures))
	}
	for _, l := range s.model.letters {
		should = append(should, l.story())
	}
	slices.Sort(is)
	slices.Sort(should)
	simCheck(slices.Equal(is, should), "the letters are\n%s\nand should be\n%s", strings.Join(is, "\n"), strings.Join(should, "\n"))
}
