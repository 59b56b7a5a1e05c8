package eventbus_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// simEvent is an event, and where it stands at each subscription it is for.
type simEvent struct {
	number    int
	eventType string
	key       string
	published time.Duration // when Publish returned
	time      time.Duration // its own time, once a handler has seen it
	pairs     map[string]string
}

// simWaiter is what PublishAndWait must tell.
type simWaiter struct {
	settled  bool
	pending  int
	outcome  eventbus.Outcome
	attempts int
	letters  int
	held     int
	place    simPlace   // that is not free while it waits, if it has a key
	above    *simWaiter // who waits for the event of the handler that waits
	gaveUp   bool
	returned bool // it is seen to have: all that it waits for has settled
}

func (w *simWaiter) ended(o eventbus.Outcome, attempts int) {
	severity := []eventbus.Outcome{
		eventbus.Waiting, eventbus.Unrouted, eventbus.Dropped, eventbus.Handled,
		eventbus.Held, eventbus.Cancelled, eventbus.DeadLettered,
	}
	if slices.Index(severity, o) > slices.Index(severity, w.outcome) {
		w.outcome = o
	}
	w.attempts = max(w.attempts, attempts)
	w.pending--
	w.settled = w.pending == 0
}

// deadlocks reports whether a key at these subscriptions is free only when it no
// longer waits.
func (w *simWaiter) deadlocks(key string, to []*simSub) bool {
	for ; w != nil && !w.gaveUp; w = w.above {
		if w.place.key == key && (w.place.at == nil || slices.Contains(to, w.place.at)) {
			return true
		}
	}
	return false
}

func (e *simEvent) move(sub, from, to string) {
	simCheck(e.pairs[sub] == from, "event %d at %s goes from %q to %q, and was %q", e.number, sub, from, to, e.pairs[sub])
	e.pairs[sub] = to
}

type simSub struct {
	name, pattern string
	number        int
	timeout       time.Duration
	set           string // the fields that override, by their letters: R B M X E J
	retry         eventbus.RetryPolicy
	whenOpen      eventbus.WhenOpen
	circuit       simCircuit
	simHolding
	keys    simKeys // with isolation
	removed bool
	made    *eventbus.Subscription
	counts  eventbus.SubscriptionMetrics
}

type simFailure struct {
	attempt, replays int
	sub              string
}

type simDispatch struct {
	event     *simEvent
	subs      []*simSub
	policy    eventbus.RetryPolicy
	next      int
	attempt   int
	replays   int
	failures  []simFailure
	history   []simFailure // before the replay
	succeeded []string     // before the replay
	skipped   []int
	waiter    *simWaiter
	place     bool   // it has its key's place
	handed    bool   // it had to wait for that
	seat      int    // it has been held, as the so-manieth
	where     string // with a seat: held, coming, inside, or away
	sat       int    // the look at which it was held last

	at       time.Duration // since when it is where it is
	due      time.Duration // while waiting
	deadline time.Duration // of the running call
	pass     simPass
	blocked  bool // its handler waits for another event
}

func (d *simDispatch) sub() *simSub { return d.subs[d.next] }

func (d *simDispatch) name() string {
	return simCallName(d.event.number, d.sub().name, d.attempt, d.replays)
}

func simCallName(event int, sub string, attempt, replays int) string {
	return simPair(event, sub) + "#" + strconv.Itoa(attempt) + "/" + strconv.Itoa(replays)
}

type simLetter struct {
	event                 *simEvent
	reason                eventbus.Reason
	sub                   string
	succeeded, notReached []string
	attempts, replays     int
	failures              []simFailure
	earliest, latest      time.Duration // when it died
}

// story is all that must be the same in the bus's letter.
func (l *simLetter) story() string {
	if n := len(l.failures); n > 100 {
		l.failures = slices.Delete(l.failures, 10, n-90)
	}
	return fmt.Sprintf("e%d %s at %s, succeeded %v, not reached %v, attempts %d, replays %d, failures %v",
		l.event.number, l.reason, l.sub, l.succeeded, l.notReached, l.attempts, l.replays, l.failures)
}

// simPair names what is for one subscription of an event. It is in one place at a
// time.
func simPair(event int, sub string) string { return "e" + strconv.Itoa(event) + "/" + sub }

func (l *simLetter) key() string { return simPair(l.event.number, l.sub) }

// simMatches is the patterns that are used, written out.
var simMatches = map[string]string{
	"*": "a.x a.y b.x c nobody", "a.*": "a.x a.y", "b.x": "b.x", "*.x": "a.x b.x", "{a.y,c}": "a.y c",
}

func (m *simModel) subscribe(s *simSub) {
	m.madeSubs++
	if m.isolation {
		s.keys = simKeys{}
	}
	s.number = m.madeSubs
	m.subs = append(m.subs, s)
}

func (m *simModel) unsubscribe(s *simSub, at time.Duration) {
	s.removed = true
	for _, d := range s.close(eventbus.ReasonUnsubscribed) {
		d.at = at
		m.queue = append(m.queue, d) // workers find it removed
	}
	m.subs = slices.DeleteFunc(m.subs, func(x *simSub) bool { return x == s })
}

// refuses is why a publication is refused: inside by a running handler, for w to
// wait for.
func (m *simModel) refuses(p simPublication, inside bool, w *simWaiter) error {
	need := min(len(m.dispatches(p.eventType)), m.capacity)
	switch {
	case m.cut || m.ending && !inside:
		return eventbus.ErrShutdown
	case p.key != "" && need > 0 && w.deadlocks(p.key, m.targets(p.eventType)):
		return eventbus.ErrWouldDeadlock
	case !inside && p.delay == 0 && need > 0 && len(m.queue)+m.parked+need > m.capacity:
		return eventbus.ErrQueueFull
	}
	return nil
}

// dispatches are the targets of each dispatch of an event.
func (m *simModel) dispatches(eventType string) (all [][]*simSub) {
	to := m.targets(eventType)
	if len(to) == 0 {
		return nil
	}
	return m.isolated(to)
}

func (m *simModel) isolated(to []*simSub) (all [][]*simSub) {
	if !m.isolation {
		return [][]*simSub{to}
	}
	for i := range to {
		all = append(all, to[i:i+1])
	}
	return all
}

func (m *simModel) targets(eventType string) (subs []*simSub) {
	for _, s := range m.subs {
		if slices.Contains(strings.Fields(simMatches[s.pattern]), eventType) {
			subs = append(subs, s)
		}
	}
	return subs
}

func (m *simModel) publish(p simPublication, at time.Duration, waiter *simWaiter) {
	eventType := p.eventType
	e := &simEvent{number: len(m.events), eventType: eventType, key: p.key, published: at, pairs: map[string]string{}}
	m.events = append(m.events, e)
	if m.types[eventType] == nil {
		m.types[eventType] = &eventbus.TypeMetrics{}
	}
	m.types[eventType].Events++
	m.ledger.Accepted++
	all := m.dispatches(eventType)
	if waiter != nil {
		waiter.pending = max(1, len(all))
	}
	if len(all) == 0 {
		m.settle(&simDispatch{event: e, waiter: waiter}, eventbus.Unrouted, at)
		return
	}
	later := &simScheduled{event: e, due: at + p.delay, waiter: waiter}
	for _, subs := range all {
		for _, s := range subs {
			e.move(s.name, "", "pending")
		}
		later.dispatches = append(later.dispatches, &simDispatch{event: e, subs: subs, policy: m.merge(subs), waiter: waiter})
	}
	if p.delay > 0 {
		m.scheduled = append(m.scheduled, later)
		return
	}
	m.open(later, at)
}

// simScheduled is an event for later.
type simScheduled struct {
	event      *simEvent
	due        time.Duration
	dispatches []*simDispatch
	waiter     *simWaiter
}

// open queues the dispatches of an event.
func (m *simModel) open(e *simScheduled, at time.Duration) {
	m.ledger.Copies += int64(len(e.dispatches) - 1)
	for _, d := range e.dispatches {
		m.enqueue(d, at)
	}
}

// cancel takes back an event for later.
func (m *simModel) cancel(e *simScheduled) {
	m.scheduled = slices.DeleteFunc(m.scheduled, func(x *simScheduled) bool { return x == e })
	m.ledger.Cancelled++
	for name := range e.event.pairs {
		e.event.move(name, "pending", "cancelled")
	}
	if w := e.waiter; w != nil {
		w.pending = 1
		w.ended(eventbus.Cancelled, 0)
	}
}

// merge is P5.
func (m *simModel) merge(subs []*simSub) eventbus.RetryPolicy {
	p, seen := m.policy, ""
	for _, s := range subs {
		r := s.retry
		take := func(field string, better bool) bool {
			return strings.Contains(s.set, field) && (better || !strings.Contains(seen, field))
		}
		unlimited := r.MaxRetries == eventbus.Unlimited || p.MaxRetries == eventbus.Unlimited
		if take("R", unlimited && r.MaxRetries < p.MaxRetries || !unlimited && r.MaxRetries > p.MaxRetries) {
			p.MaxRetries = r.MaxRetries
		}
		if take("B", r.BaseDelay < p.BaseDelay) {
			p.BaseDelay = r.BaseDelay
		}
		if take("M", r.MaxDelay > p.MaxDelay) {
			p.MaxDelay = r.MaxDelay
		}
		if take("X", r.BackoffMultiplier > p.BackoffMultiplier) {
			p.BackoffMultiplier = r.BackoffMultiplier
		}
		if take("E", p.MaxElapsed != 0 && (r.MaxElapsed == 0 || r.MaxElapsed > p.MaxElapsed)) {
			p.MaxElapsed = r.MaxElapsed
		}
		seen += s.set
	}
	return p
}

// replay opens a dispatch of a letter, or says why it cannot.
func (m *simModel) replay(l *simLetter, at time.Duration) error {
	if m.ending {
		return eventbus.ErrShutdown
	}
	var subs []*simSub
	for _, name := range append([]string{l.sub}, l.notReached...) {
		i := slices.IndexFunc(m.subs, func(s *simSub) bool { return s.name == name })
		if i < 0 {
			return eventbus.ErrNoSubscription
		}
		subs = append(subs, m.subs[i])
	}
	slices.SortFunc(subs, func(x, y *simSub) int { return x.number - y.number })
	m.remove(l, "pending")
	m.ledger.Replays++
	again := &simScheduled{}
	for _, subs := range m.isolated(subs) {
		again.dispatches = append(again.dispatches, &simDispatch{
			event: l.event, subs: subs, policy: m.merge(subs), replays: l.replays + 1, history: l.failures, succeeded: l.succeeded,
		})
	}
	m.open(again, at)
	return nil
}

// remove takes a letter out, replayed or purged.
func (m *simModel) remove(l *simLetter, to string) {
	for _, name := range append([]string{l.sub}, l.notReached...) {
		l.event.move(name, "letter", to)
	}
	m.letters = slices.DeleteFunc(m.letters, func(x *simLetter) bool { return x == l })
	m.changes++
}
