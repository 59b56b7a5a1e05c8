package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// storeCall is a call of a handler.
type storeCall struct {
	ctx      context.Context
	delivery *storeDelivery
	process  *storeProcess
	began    time.Time
	until    time.Time // it hangs until its timeout; zero for other calls

	door     *paceDoor // in a paced schedule
	paced    *paceCall
	throttle time.Duration // its handler returns a Throttle; 0 for none
	emits    []*storeEvent
	ended    time.Time
}

// runs reports whether the call counts as running.
func (c *storeCall) runs() bool {
	return c != nil && !wasCancelled(c.ctx) && (c.until.IsZero() || time.Now().Before(c.until))
}

// begins checks that a handler may be called now. It returns nil for calls that no longer matter.
func (m *storeModel) begins(ctx context.Context, p *storeProcess, sub *storeSub, gone *bool) *storeCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.dead.Load() {
		return nil
	}
	in, _ := eventbus.FromContext(ctx)
	e := m.eventOf(in.Event.Payload.(json.RawMessage))
	if e == nil {
		return nil
	}
	m.logf("call s%d e%d attempt %d", sub.index, e.n, in.Attempt)
	d := e.deliveries[sub.index]
	switch {
	case p.closed || *gone:
		m.failf(e, "s%d is called after Shutdown (%v), or Unsubscribe or Detach (%v)", sub.index, p.closed, *gone)
	case sub.paused && !m.hasEnded(sub):
		m.failf(e, "s%d is called, and was paused until %v", sub.index, sub.until)
	case d == nil:
		m.failf(e, "s%d is called, and no record has that delivery", sub.index)
	case d.place != placeRecord:
		m.failf(e, "s%d is called, and the delivery is %v", sub.index, d.place)
	case d.handled:
		m.failf(e, "s%d is called again, and has handled the event", sub.index)
	case d.call.runs():
		m.failf(e, "s%d is called twice at once", sub.index)
	}
	if m.violation != "" {
		return nil
	}
	r := d.record
	switch {
	case r.state == driver.Scheduled || !m.hasCome(e, r.scheduled) && (!e.at.IsZero() || time.Now().Before(m.wall.monotonic(r.scheduled))):
		m.failf(e, "s%d is called, and the event is not due before %v", sub.index, r.scheduled)
	case d.isHurried():
	case r.state == driver.Waiting && !m.hasCome(e, r.due) && time.Now().Before(m.wall.monotonic(r.due)):
		m.failf(e, "s%d is called, and the retry is not due before %v", sub.index, r.due)
	case r.asleep && !m.hasCome(e, r.due) && time.Now().Before(m.wall.monotonic(r.due)):
		m.failf(e, "s%d is called, and sleeps until %v", sub.index, r.due)
	case m.isLate(r) && !m.wall.now().Before(r.expires) && m.stepped != time.Now() && sub.pace == nil: // a destination was asked first
		m.failf(e, "s%d is called, and the event has expired at %v", sub.index, r.expires)
	case in.Attempt != r.attempts+1:
		m.failf(e, "s%d is called in attempt %d, and the record has %d", sub.index, in.Attempt, r.attempts)
	case in.Replays != r.replays:
		m.failf(e, "s%d is called in replay %d, and the record is of %d", sub.index, in.Replays, r.replays)
	case string(in.Event.Payload.(json.RawMessage)) != r.payload, in.Event.ID != e.id, in.Event.Type != e.eventType,
		in.Event.Key != e.key, !in.Event.Expires.Equal(r.expires), in.Event.Metadata.Get("n") != fmt.Sprint(e.n), !in.Event.Time.Equal(e.published):
		m.failf(e, "s%d receives %+v", sub.index, in.Event)
	}
	if e.key != "" {
		for other := range m.live[storeLine{sub.index, e.key}] {
			switch {
			case other == d || other.handled:
			case other.call.runs() && !other.loose:
				m.failf(e, "s%d is called, and handles e%d of the same key", sub.index, other.event.n)
			case other.endsAsItSubscribes(sub):
			case m.overtakes(sub.index, r, other.record) && !other.loose && !d.loose && !m.isLate(other.record): // that one calls no handler
				m.failf(e, "s%d is called before e%d of the same key", sub.index, other.event.n)
			}
		}
	}
	c := &storeCall{ctx: ctx, delivery: d, process: p, began: time.Now()}
	d.call = c
	m.paces(sub, d, c)
	return c
}

// fails notes a failure before the bus can know of it. The result removes it again.
func (c *storeCall) fails(m *storeModel, attempt int, text string, until time.Time) (unfail func()) {
	if c == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if wasCancelled(c.ctx) { // what it returns is ignored
		return func() {}
	}
	d, n := c.delivery, len(c.delivery.failures)
	c.until = until
	d.failures = append(d.failures, storeFailure{attempt, text})
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(d.failures) == n+1 && d.durable <= n {
			d.failures = d.failures[:n]
		}
	}
}

// ends notes the end of a call.
func (c *storeCall) ends(m *storeModel, handled bool) {
	if c == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.ended = time.Now()
	d := c.delivery
	if d.call == c {
		d.call = nil
	}
	if c.door != nil {
		c.door.ends(c.paced, c.throttle)
	}
	if c.process.dead.Load() || m.process != c.process || !c.until.IsZero() {
		return
	}
	if handled && d.place == placeRecord {
		d.handled, d.by = true, c
	}
	d.hurried = false
	m.logf("end s%d e%d handled=%v", d.sub, d.event.n, handled)
}

// newEvent makes an event to publish.
func (m *storeModel) newEvent(eventType, key string, after time.Duration, given bool) *storeEvent {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &storeEvent{
		n: len(m.events), eventType: eventType, key: key, after: after, given: given,
		deliveries: map[int]*storeDelivery{},
	}
	if after > 0 && m.wall.clock != nil && e.n%2 == 0 {
		e.at = m.wall.now().Add(after)
	}
	switch {
	case given && e.n%2 == 1:
		e.once = fmt.Sprint("once ", e.n)
		e.after, e.at = 0, time.Time{} // Cancel makes the key free: the next event has another id
	case given:
		e.id = eventbus.NewEventID()
	}
	if m.expiries != nil && chance(m.expiries, 30) {
		e.expires = m.wall.now().Add(e.after + ms(m.expiries, pick(m.expiries, 50, 500, 5000, 60_000)) + 1).UTC()
	}
	e.payload = fmt.Sprintf(`{"N":%d}`, e.n)
	m.events = append(m.events, e)
	return e
}

// publishes notes that a call publishes an event.
func (m *storeModel) publishes(how string, events ...*storeEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		e.attempts++
		if e.unknown == 0 { // otherwise the call before may be the one that is accepted, later
			e.changes = maps.Clone(m.changes)
		}
		m.logf("%s e%d type=%s key=%q after=%v at=%v given=%v", how, e.n, e.eventType, e.key, e.after, e.at, e.given)
	}
}

// published compares the result of a publisher with what the store has. must are the subscriptions
// that have existed all the time.
func (m *storeModel) published(p *storeProcess, accepted bool, err error, must []int, events ...*storeEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var indeterminate *eventbus.IndeterminateError
	for _, e := range events {
		m.logf("published e%d: accepted=%v %v", e.n, accepted, err)
		switch {
		case accepted:
			if e.acked++; e.acked == 1 {
				e.returnedAt = time.Now()
			}
		case errors.As(err, &indeterminate):
			e.unknown++
			if e.batch == nil && e.accepted && e.once == "" && indeterminate.ID != e.id {
				m.failf(e, "the id of the *IndeterminateError is %s", indeterminate.ID)
			}
		default:
			e.refused++
		}
		if !accepted {
			continue
		}
		if len(must) > 0 && !e.accepted && !e.unrouted {
			m.failf(e, "Publish has accepted it, and the store has never had it")
		}
		for _, sub := range must {
			if e.attempts == 1 && e.deliveries[sub] == nil {
				m.failf(e, "s%d has existed all the time, and is no target", sub)
			}
		}
	}
}

// checkResult compares the result of PublishAndWait with the fate of the event.
func (m *storeModel) checkResult(e *storeEvent, r eventbus.Result, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf("result of e%d: %v held=%v letters=%d %v", e.n, r.Outcome, r.Held, len(r.Letters), err)
	var died *eventbus.DeliveryError
	switch {
	case errors.As(err, &died) != (len(r.Letters) > 0):
		m.failf(e, "the result has %d letters, the error is %v", len(r.Letters), err)
	case r.Outcome == eventbus.Handled && err == nil:
		held := subsOf(r.Held)
		for sub, d := range e.deliveries {
			ended := d.place == placeHandled || d.place == placeDropped || d.place == placeReplayCancelled // with OfSubscription
			if !ended && !slices.Contains(held, sub) && m.subs[sub].present {                              // a name that is being retired holds nobody's wait
				m.failf(e, "the result is handled, and the delivery to s%d is %v", sub, d.place)
			}
		}
	case r.Outcome == eventbus.Held && len(r.Held) == 0:
		m.failf(e, "the result is held at no subscription")
	case r.Outcome == eventbus.Unrouted && e.accepted && len(e.deliveries) > 0:
		m.failf(e, "the result is unrouted, and it has %d targets", len(e.deliveries))
	case (r.Outcome == eventbus.Cancelled && len(r.Letters) == 0) != errors.Is(err, eventbus.ErrCancelled):
		m.failf(e, "the result is %v, the error is %v", r.Outcome, err)
	}
	for _, id := range r.Letters {
		if !m.process.died[id] {
			m.failf(e, "the result has the letter %s, which the store has never had", id)
		}
	}
}

// opens begins a process: what the one before had not recorded is lost.
func (m *storeModel) opens(p *storeProcess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = p
	m.forget()
	for _, e := range m.events {
		for _, d := range e.deliveries {
			d.call = nil
		}
	}
	m.logf("process %s", p.what)
}

// forget forgets what the handlers have done and the store does not have.
func (m *storeModel) forget() {
	for _, e := range m.events {
		for _, d := range e.deliveries {
			d.handled, d.failures = false, d.failures[:d.durable]
			d.destination, d.wakes = "", time.Time{}
		}
	}
	for _, told := range m.told {
		told.handled = false
	}
}

// loosen exempts the deliveries of a subscription from the order of keys. After Unsubscribe they die,
// unless a crash comes first.
func (m *storeModel) loosen(sub int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes[sub]++
	for _, e := range m.events {
		if d := e.deliveries[sub]; d != nil && (d.place == placeRecord || d.place == placeIncoming) {
			d.loose = true
		}
	}
}

// checkData compares the data of a store with what the batches have done.
func (m *storeModel) checkData(records []driver.Ref, letters []eventbus.LetterID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := slices.Sorted(slices.Values(slices.AppendSeq(m.toldRefs(), maps.Keys(m.records)))); !slices.Equal(known, records) {
		m.failf(nil, "the store has the records %v, the batches have left %v", records, known)
	}
	if len(letters) != len(m.letters) {
		m.failf(nil, "the store has %d letters, the batches have left %d", len(letters), len(m.letters))
	}
	for _, id := range letters {
		if m.letters[id] == nil {
			m.failf(nil, "the store has the unknown letter %s", id)
		}
	}
	for _, e := range m.events {
		switch {
		case e.accepted && e.acked == 0 && e.unknown == 0 && e.attempts == e.refused:
			m.failf(e, "Publish has refused it, and it was accepted")
		case e.batch != nil && e.batch[0].accepted != e.accepted:
			m.failf(e, "a batch was accepted in part")
		}
	}
}

// checkQuiet checks that everything has settled.
func (m *storeModel) checkQuiet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if refs := m.toldRefs(); len(refs) > 0 {
		m.failf(nil, "at rest, the events of letters are in the records %v", refs)
	}
	for _, e := range m.events {
		for sub, d := range e.deliveries {
			if d.place == placeIncoming {
				m.failf(e, "at rest, the delivery to s%d is incoming", sub)
			}
			if d.place == placeRecord {
				m.failf(e, "at rest, the delivery to s%d is in record %d: %+v", sub, d.record.ref, *d.record)
			}
		}
	}
}
