package simulation

import (
	"slices"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// simSweep is the time between two looks for dispatches that have expired.
const simSweep = 30*time.Second - time.Millisecond/3

// expiry gives some publications an expiry.
func (s *simulation) expiry(p *simPublication) []eventbus.PublishOption {
	if s.expiries == nil || s.expiries.IntN(4) > 0 {
		return nil
	}
	p.expires = s.now() + p.delay + time.Duration(s.expiries.Int64N(int64(pick(s.expiries, time.Millisecond, time.Second, 20*time.Second, time.Minute)))) | 1
	return []eventbus.PublishOption{eventbus.ExpiresAt(s.origin.Add(p.expires))}
}

// isLate reports whether no call of a dispatch may begin at an instant.
func (d *simDispatch) isLate(at time.Duration) bool {
	return d.replays == 0 && d.event.expires > 0 && at >= d.event.expires
}

// endLate settles what is left of a dispatch that is late: it is dropped, or becomes a letter, where the first target that does not drop
// it is. attempts is 1 if an attempt ends that calls no handler.
func (m *simModel) endLate(d *simDispatch, attempts int) {
	for ; len(d.rest) > 0; d.rest = d.rest[1:] {
		s := d.rest[0]
		drops := s.dropsLate && d.fresh()
		if (drops || s.removed) && !d.seated && (len(d.rest) > 1 || len(d.handled) > d.before) {
			split := d.split()
			split.wait = nil
			m.ledger.Splits++
			if drops {
				m.settle(&split, eventbus.Dropped)
			} else {
				m.bury(&split, eventbus.ReasonUnsubscribed)
			}
			d.wait.note(&split)
			continue
		}
		d.attempt -= attempts
		switch {
		case drops:
			m.settle(d, eventbus.Dropped)
		case s.removed:
			m.bury(d, eventbus.ReasonUnsubscribed)
		default:
			m.bury(d, eventbus.ReasonTooLate)
		}
		return
	}
	m.settle(d, eventbus.Handled)
}

// expiring reports whether memory has a dispatch that expires.
func (m *simModel) expiring() bool {
	return slices.ContainsFunc(m.open, func(d *simDispatch) bool { return d.state != "scheduled" && d.replays == 0 && d.event.expires > 0 })
}

// armSweep sets when to look for late dispatches, unless that is set.
func (m *simModel) armSweep() {
	if m.sweepAt == 0 && m.expiring() {
		m.sweepAt = m.now + simSweep
	}
}

// lookForLate settles what is late and does not run, if it is time for that.
func (m *simModel) lookForLate() {
	if m.sweepAt == 0 || m.now < m.sweepAt {
		return
	}
	m.sweepAt = 0
	for _, d := range slices.Clone(m.open) {
		ended := d.state == "queued" && d.rest[len(d.rest)-1].removed && d.rest[len(d.rest)-1].isolated
		if d.isLate(m.now) && slices.Contains([]string{"queued", "waiting", "held"}, d.state) && !ended {
			m.endLate(d, 0)
		}
	}
	m.armSweep()
}

// isLate reports whether the wall clock has shown the expiry of a record.
func (m *storeModel) isLate(r *storeRecord) bool {
	return !r.expires.IsZero() && m.hasCome(r.event, r.expires)
}

// checkTooLate checks a letter of an event that has expired. After a failure or a snooze, it may be made before the expiry.
func (m *storeModel) checkTooLate(e *storeEvent, from *storeRecord, l *eventbus.DeadLetter) {
	d := e.deliveries[subOf(l.Subscription)]
	switch begun := len(d.failures) > 0 || d.postponed > 0; {
	case from.expires.IsZero():
		m.failf(e, "it came too late at s%d, and does not expire", d.sub)
	case !m.isLate(from) && !begun:
		m.failf(e, "it came too late at s%d before %v", d.sub, from.expires)
	}
}

// restExpiries checks that nothing is left that has expired, while some subscriptions are missing or shut.
func (s *storeSim) restExpiries() {
	if s.expiries == nil {
		return
	}
	const latest = time.Minute + 2*storeTimeout // the commits of that moment, and calls
	time.Sleep(latest)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.state != driver.Scheduled && !r.expires.IsZero() && !s.wall.now().Add(-latest).Before(r.expires) {
			s.failf(r.event, "it is left, and has expired at %v", r.expires)
		}
	}
}
