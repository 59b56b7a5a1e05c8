package eventbus_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

// look compares everything that can be seen with the model. Everything is at rest.
func (s *simulation) look() {
	synctest.Wait()
	m, before := s.model, s.last
	s.looked = [4]int{s.looked[1], s.looked[2], s.looked[3], s.trace.Len()}
	s.last = s.now()
	m.advance(s.last)
	for _, c := range s.calls {
		if c.dispatch != nil && !slices.Contains(m.running, c.dispatch) {
			s.logf("gave up %s", c.name)
			c.dispatch = nil
		}
	}
	metrics := s.bus.Metrics()
	s.mu.Lock()
	arrived := s.arrived
	s.arrived = nil
	s.mu.Unlock()
	slices.SortFunc(arrived, func(x, y *simCall) int { return strings.Compare(x.name, y.name) })
	began := make(map[string]bool, len(arrived))
	for _, c := range arrived {
		s.logf("began %s", c.name)
		simCheck(!began[c.name], "two calls %s", c.name)
		began[c.name] = true
	}
	seen := &simSeen{
		queued: metrics.QueueDepth, began: began, before: before, now: s.last,
		held: map[*simSub][]string{}, dead: s.newLetters(&metrics),
	}
	for _, sub := range m.subs {
		for _, e := range eventbus.HeldAt(sub.made) {
			seen.held[sub] = append(seen.held[sub], simPair(e.Payload.(int), sub.name))
		}
	}
	for _, w := range s.waits {
		broken := w.cancelled || w.call != nil && w.call.dispatch == nil
		w.model.returned = w.done.Load() && !broken
	}
	calls := m.look(seen)
	if m.tie {
		s.tie()
	}
	for _, c := range arrived {
		s.receive(c, calls[c.name])
	}
	if m.ending && !m.drained && m.started && m.unsettled() == 0 {
		m.leaveBehind(before, s.last)
		metrics = s.bus.Metrics()
	}
	for _, sub := range m.subs {
		if !m.drained {
			sub.adopt(seen.held[sub], m.looks)
		}
		sub.full, sub.left = false, 0
	}
	s.lookAtWaits()
	s.compare(&metrics)
}

// tie notes that things at the same instant have come in an order that is nobody's
// decision.
func (s *simulation) tie() {
	s.sure = min(s.sure, s.looked[0])
	s.logf("a tie")
}

// newLetters are the letters that the model does not know of yet, by their keys.
func (s *simulation) newLetters(metrics *eventbus.Metrics) map[string]eventbus.Reason {
	if metrics.Ledger.DeadLettered == s.model.ledger.DeadLettered {
		return nil
	}
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	simCheck(err == nil, "List: %v", err)
	all := make(map[string]eventbus.Reason)
	for i := range page.Letters {
		all[simPair(page.Letters[i].Event.Payload.(int), page.Letters[i].Subscription)] = page.Letters[i].Reason
	}
	for _, l := range s.model.letters {
		delete(all, l.key())
	}
	return all
}

// receive checks what a call was given.
func (s *simulation) receive(c *simCall, d *simDispatch) {
	c.dispatch = d
	d.deadline = c.deadline.Sub(s.origin)
	timeout := c.deadline.Sub(c.start)
	simCheck(timeout >= c.sub.timeout && timeout <= c.sub.timeout+2*time.Millisecond, "%s may take %s", c.name, timeout)
	e, at := d.event, c.event.Time.Sub(s.origin)
	if e.time == 0 {
		e.time = at
		simCheck(at <= e.published && at >= e.published-2*time.Millisecond, "event %d is of %s, published at %s", e.number, at, e.published)
	}
	simCheck(e.time == at && c.event.Type == e.eventType && c.event.Key == e.key && d.sub() == c.sub, "%s was given %+v", c.name, c.event)
	s.calls = append(s.calls, c)
}

// lookAtWaits checks who has come back from PublishAndWait.
func (s *simulation) lookAtWaits() {
	s.waits = slices.DeleteFunc(s.waits, func(w *simWait) bool {
		broken := w.cancelled || w.call != nil && w.call.dispatch == nil
		if !w.done.Load() { // what it returns is not there yet
			simCheck(!w.model.settled && !broken, "PublishAndWait of event %d has not returned, and the event has settled: %v", w.event, w.model.settled)
			return false
		}
		simCheck(w.model.settled || broken, "PublishAndWait of event %d has returned %+v, %v, and the event has not settled", w.event, w.result, w.err)
		if w.call != nil {
			s.tie() // the worker that leaves for it may have taken something before
			if w.call.wait = nil; w.call.dispatch != nil {
				w.call.dispatch.blocked = false
			}
		}
		if broken {
			w.model.gaveUp = true
			return true
		}
		s.logf("e%d has settled for who waits: %v", w.event, w.result.Outcome)
		var died *eventbus.DeliveryError
		letters := 0
		if errors.As(w.err, &died) {
			letters = len(died.Letters)
		}
		simCheck(w.result.Outcome == w.model.outcome && w.result.Attempts == w.model.attempts && len(w.result.Letters) == w.model.letters &&
			letters == w.model.letters && len(w.result.Held) == w.model.held &&
			(w.err == nil) == (letters == 0 && w.model.outcome != eventbus.Cancelled),
			"PublishAndWait of event %d returned %+v, %v, and should %+v", w.event, w.result, w.err, w.model)
		return true
	})
}

// compare compares the books, the counters, the circuits and the letters.
func (s *simulation) compare(metrics *eventbus.Metrics) {
	m := s.model
	books := m.books()
	simCheck(metrics.Ledger == books, "the ledger is\n%+v and should be\n%+v", metrics.Ledger, books)
	simCheck(books.Balanced(), "the model's books do not balance: %+v", books)
	if books != s.books {
		s.books = books
		s.logf("%+v", books)
	}
	simCheck(metrics.AbandonedHandlers == m.abandoned, "%d abandoned, and should be %d", metrics.AbandonedHandlers, m.abandoned)
	simCheck(len(metrics.Subscriptions) == len(m.subs), "%d subscriptions, and should be %d", len(metrics.Subscriptions), len(m.subs))
	for i, sub := range m.subs {
		is, should := metrics.Subscriptions[i], sub.counts
		should.Subscription, should.Pattern = sub.name, sub.pattern
		should.Circuit, should.CircuitOpens, should.Latency = sub.circuit.state(), sub.circuit.opens, is.Latency
		should.Slow = is.Slow
		should.Held = sub.held()
		sub.circuit.endPause(s.last)
		if should.Paused = sub.circuit.paused; should.Paused && sub.circuit.pausedUntil < math.MaxInt64 {
			should.PausedUntil = s.origin.Add(sub.circuit.pausedUntil).UTC()
			is.PausedUntil = is.PausedUntil.Round(0)
			should.PausedUntil = should.PausedUntil.Round(0)
		}
		simCheck(is == should, "subscription\n%+v should be\n%+v", is, should)
	}
	for eventType, should := range m.types {
		simCheck(metrics.Types[eventType] == *should, "type %s is\n%+v and should be\n%+v", eventType, metrics.Types[eventType], *should)
	}
	simCheck(metrics.DeadLetters == len(m.letters), "%d letters, and should be %d", metrics.DeadLetters, len(m.letters))
	if m.changes != s.compared {
		s.compareLetters()
	}
}

func (s *simulation) compareLetters() {
	m := s.model
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	simCheck(err == nil, "List: %v", err)
	simCheck(len(page.Letters) == len(m.letters) && page.Total == len(m.letters), "%d letters of %d, and should be %d", len(page.Letters), page.Total, len(m.letters))
	should := make(map[string]*simLetter, len(m.letters))
	for _, l := range m.letters {
		should[l.key()] = l
	}
	clear(s.letters)
	var younger time.Time
	for i := range page.Letters {
		l := &page.Letters[i]
		key := simPair(l.Event.Payload.(int), l.Subscription)
		s.letters[key] = l.ID
		x := should[key]
		simCheck(x != nil, "letter %s should not be", key)
		is := simLetter{
			event: x.event, reason: l.Reason, sub: l.Subscription, succeeded: l.Succeeded, notReached: l.NotReached,
			attempts: l.Attempts, replays: l.Replays,
		}
		for _, f := range l.Failures {
			is.failures = append(is.failures, simFailure{f.Attempt, f.Replays, f.Subscription})
		}
		simCheck(is.story() == x.story(), "the letter is\n%s and should be\n%s", is.story(), x.story())
		died := l.DiedAt.Sub(s.origin)
		simCheck(died >= x.earliest && died <= x.latest, "letter %s died at %s, and should between %s and %s", key, died, x.earliest, x.latest)
		simCheck(younger.IsZero() || !l.DiedAt.After(younger), "letter %s is younger than the one before", key)
		younger = l.DiedAt
	}
	s.compared = m.changes
}
