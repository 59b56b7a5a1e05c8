package eventbus_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// simModel says what a bus must do: plain code without concurrency, told what the
// driver does and when. Instants are durations since the bus was made. It checks
// as it goes; what breaks a promise is a panic with a simViolation.
type simModel struct {
	policy      eventbus.RetryPolicy
	concurrency int
	capacity    int
	isolation   bool
	random      func(at time.Duration) float64 // what the bus draws at an instant

	started, ending, drained, cut bool

	events     []*simEvent
	subs       []*simSub // that exist, in the order of Subscribe
	queue      []*simDispatch
	parked     int // behind their keys
	keys       simKeys
	scheduled  []*simScheduled
	running    []*simDispatch
	waiting    []*simDispatch
	abandoned  int
	atDrain    int // abandoned when nothing was left that Shutdown waits for
	letters    []*simLetter
	ledger     eventbus.Ledger
	types      map[string]*eventbus.TypeMetrics
	going      []*simDispatch          // whose worker has been let go on, until the next look
	seen       *simSeen                // at the last look
	calls      map[string]*simDispatch // that have begun since the look before, by name
	looks      int
	met        map[*simSub]int // how many have come to doors that are not open, since the last look
	refused    bool            // a handler was, in PublishAndWait, and may have not counted for a moment
	tie        bool            // whose turn it was at a door since the last look was nobody's decision
	idle       time.Duration   // since when there is something queued and a worker to spare, -1 if not
	madeSubs   int
	changes    int             // letters made or removed
	unfinished map[string]bool // what Shutdown must return, by the letters' keys
}

// unsettled is how many dispatches there are that Shutdown waits for.
func (m *simModel) unsettled() int {
	return len(m.queue) + m.parked + len(m.going) + len(m.running) + len(m.waiting)
}

func (m *simModel) held() (n int) {
	for _, s := range m.subs {
		n += s.held()
	}
	return n
}

type simViolation string

func simFail(format string, args ...any) { panic(simViolation(fmt.Sprintf(format, args...))) }

func simCheck(holds bool, format string, args ...any) {
	if !holds {
		simFail(format, args...)
	}
}

// nextInstant is when something happens by itself.
func (m *simModel) nextInstant() time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, d := range m.waiting {
		next = min(next, d.due)
	}
	for _, d := range m.running {
		next = min(next, d.deadline)
	}
	for _, e := range m.scheduled {
		next = min(next, e.due)
	}
	for _, s := range m.subs {
		next = min(next, s.wakes())
	}
	return next
}

// advance does what happens by itself until now, in the order of time.
func (m *simModel) advance(now time.Duration) {
	m.tie = false
	for at, n := m.nextInstant(), 0; at <= now; at, n = m.nextInstant(), n+1 {
		m.tie = n > 0
		if i := slices.IndexFunc(m.waiting, func(d *simDispatch) bool { return d.due == at }); i >= 0 {
			d := m.waiting[i]
			m.waiting = slices.Delete(m.waiting, i, i+1)
			d.at = at
			m.queue = append(m.queue, d)
			continue
		}
		if i := slices.IndexFunc(m.scheduled, func(e *simScheduled) bool { return e.due == at }); i >= 0 {
			e := m.scheduled[i]
			m.scheduled = slices.Delete(m.scheduled, i, i+1)
			m.open(e, at)
			continue
		}
		if i := slices.IndexFunc(m.subs, func(s *simSub) bool { return s.wakes() == at }); i >= 0 {
			m.subs[i].circuit.endPause(at)
			m.tend(m.subs[i], at)
			continue
		}
		d := m.running[slices.IndexFunc(m.running, func(d *simDispatch) bool { return d.deadline == at })]
		m.abandoned++
		c := &d.sub().circuit
		closed := !c.shut
		m.fail(d, "timeout", 0, at)
		c.opened = c.opened || closed && c.shut
	}
}

// simSeen is what is seen at rest.
type simSeen struct {
	queued      int
	began       map[string]bool            // calls since the look before, by name
	held        map[*simSub][]string       // deliveries, in the order of their seats
	dead        map[string]eventbus.Reason // letters that are new, by key
	before, now time.Duration              // the look before, and this one
}

// moved reports whether it is seen that a dispatch has gone on.
func (seen *simSeen) moved(d *simDispatch) bool {
	return slices.ContainsFunc(d.subs[d.next:], func(s *simSub) bool {
		key := simPair(d.event.number, s.name)
		return seen.dead[key] != "" || slices.Contains(seen.held[s], key) || seen.began[simCallName(d.event.number, s.name, d.attempt+1, d.replays)]
	})
}

// look explains what is seen at rest: who of those that were ready has gone on
// since the look before is the bus's to choose. It returns whose calls have begun.
func (m *simModel) look(seen *simSeen) map[string]*simDispatch {
	before := slices.Concat(m.running, m.going)
	moved := 0
	m.met = map[*simSub]int{}
	m.seen, m.calls = seen, make(map[string]*simDispatch)
	m.looks++
	for d := m.explain(); d != nil; d = m.explain() {
		d.at = max(d.at, seen.before)
		if i := slices.Index(m.going, d); i >= 0 {
			m.going = slices.Delete(m.going, i, i+1)
		} else {
			m.queue = slices.Delete(m.queue, slices.Index(m.queue, d), slices.Index(m.queue, d)+1)
			d.attempt++
			d.handed = false
		}
		moved++
		m.walk(d, d.at, seen.now)
	}
	for _, n := range m.met {
		m.tie = m.tie || n > 1 && moved > 1 && m.concurrency > 1
	}
	for _, s := range m.subs {
		s.circuit.opened = false
	}
	for name := range seen.began {
		simCheck(m.calls[name] != nil, "call %s should not have begun", name)
	}
	for _, d := range m.going {
		simFail("call %s should have begun", d.name())
	}
	for _, d := range m.queue {
		simCheck(seen.queued == len(m.queue)+m.parked, "%d are queued, and %d should be, %d of them behind their keys; %s is, %+v: %+v",
			seen.queued, len(m.queue)+m.parked, m.parked, d.name(), d, seen)
	}
	simCheck(seen.queued == len(m.queue)+m.parked, "%d are queued, and %d should be", seen.queued, len(m.queue)+m.parked)
	fresh := slices.ContainsFunc(m.running, func(d *simDispatch) bool { return !slices.Contains(before, d) })
	simCheck(!fresh || m.refused || m.active() <= m.concurrency, "%d run, with a concurrency of %d", m.active(), m.concurrency)
	m.refused = false
	if !m.started || len(m.queue) == 0 || m.active() >= m.concurrency {
		m.idle = -1
	} else if m.idle < 0 {
		m.idle = seen.now
	}
	simCheck(m.idle < 0 || seen.now-m.idle < 3*time.Millisecond, "%d are queued since %s, with workers to spare", len(m.queue), m.idle)
	return m.calls
}

// explain is who has gone on next, of those that were ready: one of which it is
// seen before one of which it can be, and of these the one that has waited longest.
func (m *simModel) explain() (best *simDispatch) {
	const none = 9
	rank := none
	taken := m.started && len(m.queue)+m.parked > m.seen.queued
	for i, d := range slices.Concat(m.going, m.queue) {
		goes := i < len(m.going)
		if !goes && !taken {
			break
		}
		if r := m.evidence(d, goes); r < rank {
			best, rank = d, r
		}
	}
	return best
}

// evidence tells how sure it is that a ready dispatch has gone on: 9 if it has not.
func (m *simModel) evidence(d *simDispatch, goes bool) int {
	attempt := d.attempt
	if !goes {
		attempt++
	}
	seen, rank := d.waiter != nil && d.waiter.returned, 3
	for _, s := range d.subs[d.next:] {
		name := simCallName(d.event.number, s.name, attempt, d.replays)
		why := s.refuses(d, max(d.at, m.seen.before), m.seen.now, m.seen.began[name])
		key := simPair(d.event.number, s.name)
		dead, held := m.seen.dead[key] != "", slices.Contains(m.seen.held[s], key)
		seen = seen || dead || held || d.place && slices.ContainsFunc(m.keysOf(d)[d.event.key], m.seen.moved)
		switch {
		case why == "" && m.seen.began[name]:
			return 1
		case why == "":
			return 9 // it would have called the handler
		case why == "removed" || why == "open" && s.whenOpen == eventbus.DeadLetterWhenOpen:
			if !dead && !goes {
				return 9
			}
		case why == "open" && s.whenOpen == eventbus.DropWhenOpen: // of that nothing is seen
		case !dead && !held:
			rank = 5 // unless it has been let go again
		}
	}
	switch {
	case goes:
		return 1
	case seen:
		return 2
	case d.handed:
		return rank
	}
	return rank + 1
}

// active is how many runs count against the concurrency.
func (m *simModel) active() int {
	n := len(m.running)
	for _, d := range m.running {
		if d.blocked {
			n--
		}
	}
	return n
}

// walk goes on with an attempt, at an instant between the two, until a call begins.
func (m *simModel) walk(d *simDispatch, earliest, latest time.Duration) {
	for ; d.next < len(d.subs); d.next++ {
		s := d.sub()
		var why string
		if s.circuit.shut || s.circuit.paused || len(s.behind) > 0 {
			m.met[s]++
		}
		if d.pass, why = s.enter(d, earliest, latest, m.seen.began[d.name()]); why == "" {
			d.event.move(s.name, "pending", "running")
			d.deadline = math.MaxInt64 // until it is known
			m.running = append(m.running, d)
			m.calls[d.name()] = d
			return
		}
		if m.passOver(d, s, why, earliest, latest) {
			return
		}
	}
	t := m.types[d.event.eventType]
	if len(d.failures) > 0 && !slices.ContainsFunc(d.skipped, func(i int) bool {
		return slices.ContainsFunc(d.failures, func(f simFailure) bool { return f.sub == d.subs[i].name })
	}) {
		t.SucceededAfterRetry++
	}
	m.settle(d, eventbus.Handled, earliest)
}

// passOver splits off what is for a subscription that is skipped, and reports
// whether that was all.
func (m *simModel) passOver(d *simDispatch, s *simSub, why string, earliest, latest time.Duration) bool {
	if d.seat > 0 {
		d.attempt--
		m.skip(d, s, why, earliest, latest)
		return true
	}
	s.counts.Skipped++
	all := d.next == len(d.subs)-1 && len(d.skipped) == d.next
	d.skipped = append(d.skipped, d.next)
	split := &simDispatch{
		event: d.event, subs: []*simSub{s}, policy: d.policy, replays: d.replays,
		history: d.history, succeeded: d.succeeded,
	}
	for _, f := range d.failures {
		if f.sub == s.name {
			split.failures, split.attempt = append(split.failures, f), f.attempt
		}
	}
	if all {
		split.place, split.waiter = d.place, d.waiter
	} else {
		m.ledger.Splits++
	}
	outcome := m.skip(split, s, why, earliest, latest)
	if w := d.waiter; w != nil && !all {
		if outcome == eventbus.DeadLettered {
			w.letters++
		} else if outcome == eventbus.Held {
			w.held++
		}
	}
	return all
}

// skip does with a dispatch to a skipped subscription what that wants.
func (m *simModel) skip(d *simDispatch, s *simSub, why string, earliest, latest time.Duration) eventbus.Outcome {
	switch {
	case why == "removed":
		m.bury(d, eventbus.ReasonUnsubscribed, earliest, latest)
	case why == "open" && s.whenOpen == eventbus.DropWhenOpen:
		d.event.move(s.name, "pending", "dropped")
		m.settle(d, eventbus.Dropped, earliest)
		return eventbus.Dropped
	case why == "open" && s.whenOpen == eventbus.DeadLetterWhenOpen:
		m.bury(d, eventbus.ReasonCircuitOpen, earliest, latest)
	default:
		if refused := s.sit(d, m.looks, m.seen); refused != "" {
			m.bury(d, refused, earliest, latest)
			return eventbus.DeadLettered
		}
		m.leavePlace(d, earliest)
		if w := d.waiter; w != nil {
			d.waiter = nil
			w.held++
			w.ended(eventbus.Held, d.attempt)
		}
		m.tend(s, earliest)
		return eventbus.Held
	}
	return eventbus.DeadLettered
}

func (m *simModel) settle(d *simDispatch, outcome eventbus.Outcome, at time.Duration) {
	switch outcome { //nolint:exhaustive // those that a dispatch ends with
	case eventbus.Handled:
		m.ledger.Handled++
	case eventbus.Unrouted:
		m.ledger.Unrouted++
	case eventbus.Dropped:
		m.ledger.Dropped++
	case eventbus.DeadLettered:
		m.ledger.DeadLettered++
		m.types[d.event.eventType].DeadLettered++
	}
	if d.waiter != nil {
		d.waiter.ended(outcome, d.attempt)
	}
	m.leavePlace(d, at)
	if d.seat > 0 {
		s := d.subs[0]
		s.stand(d)
		m.tend(s, at)
	}
}

// bury makes a letter of a dispatch that ends at its next subscription.
func (m *simModel) bury(d *simDispatch, reason eventbus.Reason, earliest, latest time.Duration) {
	l := &simLetter{
		event: d.event, reason: reason, sub: d.sub().name, succeeded: slices.Clone(d.succeeded),
		attempts: d.attempt, replays: d.replays, failures: slices.Concat(d.history, d.failures),
		earliest: earliest, latest: latest,
	}
	for i, s := range d.subs {
		switch {
		case slices.Contains(d.skipped, i):
		case i < d.next:
			l.succeeded = append(l.succeeded, s.name)
		default:
			d.event.move(s.name, "pending", "letter")
			if i > d.next {
				l.notReached = append(l.notReached, s.name)
			}
		}
	}
	m.letters = append(m.letters, l)
	if reason == eventbus.ReasonShutdown {
		m.unfinished[l.key()] = true
	}
	m.changes++
	if d.waiter != nil {
		d.waiter.letters++
	}
	m.settle(d, eventbus.DeadLettered, earliest)
}

func (m *simModel) stop(d *simDispatch) {
	m.running = slices.DeleteFunc(m.running, func(x *simDispatch) bool { return x == d })
	d.blocked = false
}

// succeed is a handler's success.
func (m *simModel) succeed(d *simDispatch, at time.Duration) {
	s := d.sub()
	m.stop(d)
	d.event.move(s.name, "running", "done")
	s.counts.Successes++
	s.circuit.record(d.pass, d.event, at, "success")
	m.tend(s, at)
	d.next++
	d.at = at
	m.going = append(m.going, d)
}

// fail is a handler's failure: error, permanent, after, panic, exit, timeout.
func (m *simModel) fail(d *simDispatch, kind string, after, at time.Duration) {
	s, t := d.sub(), m.types[d.event.eventType]
	m.stop(d)
	d.event.move(s.name, "running", "pending")
	if d.failures = append(d.failures, simFailure{d.attempt, d.replays, s.name}); len(d.failures) > 100 {
		d.failures = slices.Delete(d.failures, 10, 11)
	}
	s.counts.Failures++
	outcome := "failure"
	switch kind {
	case "timeout":
		s.counts.Timeouts++
	case "panic", "nil panic", "exit":
		s.counts.Panics++
	case "permanent":
		outcome = ""
	}
	s.circuit.record(d.pass, d.event, at, outcome)
	m.tend(s, at)
	delay := m.delay(d.policy, s, d.attempt+1, at)
	if kind == "after" {
		delay = after
	}
	switch {
	case kind == "permanent":
		m.bury(d, eventbus.ReasonPermanent, at, at)
	case d.policy.MaxRetries != eventbus.Unlimited && d.attempt > d.policy.MaxRetries:
		m.bury(d, eventbus.ReasonExhausted, at, at)
	case d.policy.MaxElapsed != 0 && at-d.event.time+delay >= d.policy.MaxElapsed:
		m.bury(d, eventbus.ReasonExpired, at, at)
	default:
		t.Retries++
		if d.attempt == 1 {
			t.Retried++
		}
		d.at, d.due = at, at+delay
		m.waiting = append(m.waiting, d)
		if d.seat > 0 {
			d.where = "away"
			m.tend(s, at)
		}
	}
}

// delay is P2 and P3.
func (m *simModel) delay(p eventbus.RetryPolicy, s *simSub, attempt int, at time.Duration) time.Duration {
	d := time.Duration(min(float64(p.BaseDelay)*math.Pow(p.BackoffMultiplier, float64(attempt-2)), float64(p.MaxDelay)))
	jitter, r := m.policy.Jitter, m.random(at)
	if strings.Contains(s.set, "J") {
		jitter = s.retry.Jitter
	}
	switch jitter {
	case eventbus.NoJitter:
		return d
	case eventbus.FullJitter:
		return time.Duration(float64(d) * r)
	case eventbus.EqualJitter:
		return d - time.Duration(float64(d)/2*r)
	default:
		return time.Duration(float64(d) * (0.9 + 0.2*r))
	}
}

// cutShort is the end of Shutdown's context.
func (m *simModel) cutShort(at time.Duration) {
	m.cut = true
	for _, d := range slices.Clone(m.running) {
		m.abandoned++
		m.stop(d)
		d.attempt--
		d.event.move(d.sub().name, "running", "pending")
		d.sub().circuit.record(d.pass, d.event, at, "")
		m.bury(d, eventbus.ReasonShutdown, at, at)
	}
	for _, d := range m.waiting {
		m.bury(d, eventbus.ReasonShutdown, at, at)
	}
	m.waiting = nil
	m.leaveBehind(at, at)
	for len(m.queue) > 0 { // what is behind their keys comes there
		d := m.queue[0]
		m.queue = m.queue[1:]
		m.bury(d, eventbus.ReasonShutdown, at, at)
	}
}

// leaveBehind is the end of what Shutdown does not wait for.
func (m *simModel) leaveBehind(earliest, latest time.Duration) {
	m.drained, m.atDrain = true, m.abandoned
	for _, s := range m.subs {
		for _, d := range s.close(eventbus.ReasonShutdown) {
			m.bury(d, eventbus.ReasonShutdown, earliest, latest)
		}
	}
	for _, e := range m.scheduled {
		m.ledger.Copies += int64(len(e.dispatches) - 1)
		for _, d := range e.dispatches {
			m.bury(d, eventbus.ReasonShutdown, earliest, latest)
		}
	}
	m.scheduled = nil
}

// books are the ledger as it must be.
func (m *simModel) books() eventbus.Ledger {
	l := m.ledger
	l.Queued, l.Running, l.Waiting = int64(len(m.queue)+m.parked), int64(len(m.running)), int64(len(m.waiting))
	l.Scheduled, l.Held = int64(len(m.scheduled)), int64(m.held())
	return l
}
