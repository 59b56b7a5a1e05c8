package simulation

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// pacedModel is the oracle of the paced schedules. It observes the calls of handlers and of the functions of PerDestination, the
// dead letters, and the results of the publishers.
type pacedModel struct {
	mu        sync.Mutex // guards the following, and what they point to
	origin    time.Time
	trace     bytes.Buffer
	violation string

	subs     []*pacedSub
	events   []*pacedEvent
	accepted int64
	calm     bool            // handlers succeed
	bad      map[string]bool // the doors that stay shut, see pacedSub.doorName
	refuses  map[string]bool // of these, those whose handlers return a Throttle
	closed   bool            // Shutdown has returned
	cuts     bool            // its context may end
}

// pacedSub is a subscription.
type pacedSub struct {
	*eventbus.Subscription
	number   int
	isolated bool
	divided  bool // PerDestination
	lossy    bool // it may drop deliveries
	circuit  bool
	failing  int // percentage of failures
	limits   paceLimits
	options  []eventbus.SubscribeOption // the others

	doors             map[string]*paceDoor // by destination; "" without PerDestination
	pauses            map[string]time.Time // likewise, "" for the whole: until when
	deliveries        map[int]*pacedDelivery
	keys              map[string][]*pacedDelivery // in the order of publication
	removed, gone     bool                        // Unsubscribe has begun, has returned
	turn, left        int                         // subscriptions that had the name before this one; those whose Detach has returned
	stays             bool                        // the last one stays detached until Shutdown
	success, failures int64
}

var forEver = time.Unix(1<<40, 0)

// pacedEvent is an event that was published.
type pacedEvent struct {
	n        int
	key      string
	ordered  bool // one publisher has published all of its key, and none for later
	accepted bool
	refused  bool
	to       []*pacedSub
	id       eventbus.EventID
}

// pacedDelivery is an event at a subscription.
type pacedDelivery struct {
	event *pacedEvent
	sub   *pacedSub
	must  bool // the subscription has existed all the time

	handled, perhaps, dead, cancelled, dropped bool
	replays                                    int
	loose                                      bool // it was replayed: it has another place in its key's order

	destination string // what the function has returned last
	asked       int    // times that it may be, or was
	mayAsk      int
	call        *paceCall // that runs, or was abandoned
	calls       int
	attempt     int       // of the last call
	postponed   bool      // by that
	wakes       time.Time // no call before
	failures    int       // since the last replay
	all         int
}

func (m *pacedModel) logf(format string, args ...any) {
	fmt.Fprintf(&m.trace, "%9.3f ", time.Since(m.origin).Seconds())
	fmt.Fprintf(&m.trace, format+"\n", args...)
}

func (m *pacedModel) logs(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf(format, args...)
}

func (m *pacedModel) failf(format string, args ...any) {
	if m.violation == "" {
		m.violation = fmt.Sprintf(format, args...)
		m.logf("VIOLATION %s", m.violation)
	}
}

// fails is failf for callers without the lock.
func (m *pacedModel) fails(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failf(format, args...)
}

func (d *pacedDelivery) String() string { return fmt.Sprintf("e%d/%s", d.event.n, d.sub.ID()) }

// door returns the door of a delivery.
func (d *pacedDelivery) door() *paceDoor {
	name := d.destination
	if d.sub.doors[name] == nil {
		d.sub.doors[name] = newPaceDoor(&d.sub.limits)
	}
	return d.sub.doors[name]
}

// doorName is the name of a door in pacedModel.bad: "s1 d2", or "s1 " for the whole.
func (s *pacedSub) doorName(destination string) string { return s.ID() + " " + destination }

func (d *pacedDelivery) settled() bool { return d.handled || d.dead || d.cancelled || d.dropped }

// delivery returns the delivery of an event at a subscription. It makes a missing one: the subscription came or went meanwhile.
func (m *pacedModel) delivery(e *pacedEvent, s *pacedSub) *pacedDelivery {
	d := s.deliveries[e.n]
	if d == nil {
		d = &pacedDelivery{event: e, sub: s, mayAsk: 1}
		s.deliveries[e.n] = d
		if e.key != "" {
			s.keys[e.key] = append(s.keys[e.key], d)
		}
	}
	return d
}

// publishes makes an event that is about to be published.
func (m *pacedModel) publishes(key string, ordered bool) *pacedEvent {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &pacedEvent{n: len(m.events), key: key, ordered: ordered}
	m.events = append(m.events, e)
	for _, s := range m.subs {
		if !s.removed {
			e.to = append(e.to, s)
			m.delivery(e, s)
		}
	}
	m.logf("publish e%d key=%q", e.n, key)
	return e
}

// published notes the result of a publication.
func (m *pacedModel) published(e *pacedEvent, id eventbus.EventID, accepted bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf("published e%d accepted=%v %v", e.n, accepted, err)
	e.id, e.accepted, e.refused = id, accepted, !accepted
	if !accepted {
		return
	}
	m.accepted++
	for _, s := range e.to {
		s.deliveries[e.n].must = !s.removed
	}
}

// asks notes that a function of PerDestination is asked, and returns the destination that it returns.
func (m *pacedModel) asks(s *pacedSub, by, n int) (name string, rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.delivery(m.events[n], s)
	if by < s.left {
		m.failf("%v is asked for its destination after Detach, by subscription %d of the name", d, by)
	}
	d.asked++
	if d.asked > d.mayAsk {
		m.failf("%v is asked for its destination again: %d times, and may be %d", d, d.asked, d.mayAsk)
	}
	rng = rand.New(rand.NewPCG(uint64(n), uint64(s.number<<8+d.asked)))
	name = fmt.Sprint("d", (n+d.asked)%4)
	switch rng.IntN(20) {
	case 0:
		name = ""
	case 1:
		name = "panic"
	case 2:
		if !m.calm {
			name = "slow"
		}
	case 3:
		if !m.calm && rng.IntN(3) == 0 {
			name = "hangs"
			d.mayAsk++
			d.failures++
			d.all++
			s.failures++
		}
	}
	if d.destination = name; name == "" || name == "panic" {
		d.destination = eventbus.CommonDestination
	}
	m.logf("%v is asked, and goes to %s", d, name)
	return name, rng
}

// begins checks that a handler may be called now.
func (m *pacedModel) begins(ctx context.Context, s *pacedSub, by, n int) *pacedDelivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, _ := eventbus.FromContext(ctx)
	d := m.delivery(m.events[n], s)
	m.logf("call %v attempt %d at %s", d, in.Attempt, d.destination)
	now := time.Now()
	switch {
	case s.gone || m.closed:
		m.failf("%v is called after Unsubscribe (%v) or Shutdown (%v)", d, s.gone, m.closed)
	case by < s.left:
		m.failf("%v is called after Detach, by subscription %d of the name", d, by)
	case d.event.refused:
		m.failf("%v is called, and was refused", d)
	case d.settled():
		m.failf("%v is called, and was handled (%v), is dead (%v) or cancelled (%v)", d, d.handled, d.dead, d.cancelled)
	case d.call.runs():
		m.failf("%v is called twice at once", d)
	case s.divided && d.asked == 0:
		m.failf("%v is called, and was not asked for its destination", d)
	case now.Before(s.pauses[""]), s.divided && now.Before(s.pauses[d.destination]):
		m.failf("%v is called, and its door is paused: %v", d, s.pauses)
	case now.Before(d.wakes):
		m.failf("%v is called, and sleeps until %v", d, d.wakes)
	case d.postponed && in.Attempt > d.attempt:
		m.failf("%v is called in attempt %d, and was postponed in attempt %d", d, in.Attempt, d.attempt)
	case s.isolated && in.Attempt != d.failures+1:
		m.failf("%v is called in attempt %d after %d failures", d, in.Attempt, d.failures)
	case in.Replays != d.replays:
		m.failf("%v is called in replay %d, and there were %d", d, in.Replays, d.replays)
	}
	m.inOrder(d)
	deadline, _ := ctx.Deadline()
	d.call = &paceCall{deadline: deadline}
	d.calls++
	d.attempt, d.postponed = in.Attempt, false
	if wrong := d.door().begins(d.call); wrong != "" {
		m.failf("%v at %q: %s", d, d.destination, wrong)
	}
	return d
}

func (c *paceCall) runs() bool { return c != nil && time.Now().Before(c.deadline) }

// inOrder checks that no earlier delivery of the key is left, and none runs.
func (m *pacedModel) inOrder(d *pacedDelivery) {
	if d.event.key == "" {
		return
	}
	for _, other := range d.sub.keys[d.event.key] {
		switch {
		case other == d:
		case other.call.runs():
			m.failf("%v is called beside %v, which has the same key", d, other)
		case other.event.n < d.event.n && d.event.ordered && other.event.ordered && !d.loose && !other.loose && !other.settled() && !other.event.refused && !d.sub.lossy:
			m.failf("%v is called before %v, which has the same key", d, other)
		}
	}
}

// ends notes the end of a call. how is "" for a success, "snooze" and "throttle" with a delay, or a failure.
func (m *pacedModel) ends(ctx context.Context, d *pacedDelivery, how string, delay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := d.call
	m.logf("end %v: %s %v", d, how, delay)
	late := ctx.Err() != nil
	if how != "throttle" || late {
		d.door().ends(c, 0)
	} else {
		d.door().ends(c, delay)
	}
	d.call = nil
	switch {
	case late && m.cuts:
		d.perhaps = true // handled, or cut short
	case how == "timeout":
	case late:
		d.failed()
	case how == "":
		d.handled = true
		d.sub.success++
	case how == "snooze":
		d.postponed, d.wakes = true, time.Now().Add(delay)
	case how == "throttle":
		d.postponed = true
	default:
		d.failed()
	}
}

func (d *pacedDelivery) failed() {
	d.failures++
	d.all++
	d.sub.failures++
}

// observer notes dead letters and replays.
func (m *pacedModel) observer() eventbus.Observer {
	each := func(l *eventbus.DeadLetter, f func(d *pacedDelivery)) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, name := range append([]string{l.Subscription}, l.NotReached...) {
			f(m.delivery(m.events[l.Event.Payload.(int)], m.subs[subOf(name)]))
		}
	}
	return eventbus.Observer{
		DeadLettered: func(l eventbus.DeadLetter) {
			each(&l, func(d *pacedDelivery) {
				m.logf("%v has died: %s", d, l.Reason)
				if d.settled() {
					m.failf("%v dies, and was handled (%v), is dead (%v) or cancelled (%v)", d, d.handled, d.dead, d.cancelled)
				}
				d.dead = true
			})
			m.checkLetter(&l)
		},
		Replayed: func(l eventbus.DeadLetter) {
			each(&l, func(d *pacedDelivery) { m.logf("%v is replayed", d) })
		},
	}
}

// checkLetter compares the failures of a letter with those of the handlers: a snooze and a Throttle are none.
func (m *pacedModel) checkLetter(l *eventbus.DeadLetter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range append([]string{l.Subscription}, l.NotReached...) {
		d, n := m.delivery(m.events[l.Event.Payload.(int)], m.subs[subOf(name)]), 0
		for _, f := range l.Failures {
			if f.Subscription == name {
				n++
			}
		}
		if n != d.all && !m.cuts {
			m.failf("the letter of %v has %d failures, and its handler %d", d, n, d.all)
		}
	}
}

// replays notes that a letter is about to be replayed: its delivery gets another place, and may be called again.
func (m *pacedModel) replays(l *eventbus.DeadLetter, again int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range append([]string{l.Subscription}, l.NotReached...) {
		d := m.delivery(m.events[l.Event.Payload.(int)], m.subs[subOf(name)])
		d.dead, d.loose, d.failures, d.postponed, d.wakes = again < 0, true, 0, false, time.Time{}
		d.replays += again
		d.mayAsk += again
	}
}

// outstanding returns the deliveries that have not settled.
func (m *pacedModel) outstanding() (all []*pacedDelivery) {
	for _, s := range m.subs {
		for _, e := range m.events {
			if d := s.deliveries[e.n]; d != nil && d.must && !d.settled() {
				all = append(all, d)
			}
		}
	}
	return all
}

// excused reports whether a delivery may be outstanding although nothing else happens: its door stays shut, or that of one of its key.
func (m *pacedModel) excused(d *pacedDelivery) bool {
	if m.bad[d.sub.doorName("")] || d.asked > 0 && m.bad[d.sub.doorName(d.destination)] {
		return true
	}
	return d.event.key != "" && slices.ContainsFunc(d.sub.keys[d.event.key], func(other *pacedDelivery) bool {
		return other != d && !other.settled() && other.asked > 0 && m.bad[d.sub.doorName(other.destination)]
	})
}

// isSlowed reports whether a delivery may be throttled at rest: a Throttle shuts its door, or that of one of its key. Otherwise it is held,
// so that no caller waits for it.
func (m *pacedModel) isSlowed(d *pacedDelivery) bool {
	slowed := func(x *pacedDelivery) bool {
		return !x.settled() && x.asked > 0 && m.refuses[x.sub.doorName(x.destination)]
	}
	return slowed(d) || d.event.key != "" && slices.ContainsFunc(d.sub.keys[d.event.key], slowed)
}

func (m *pacedModel) report() string {
	lines := strings.Split(m.trace.String(), "\n")
	if *simPacedSeed >= 0 {
		return m.trace.String()
	}
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}
