package simulation

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
)

// storeModel is the oracle of the store schedules. It knows the contract and nothing of the bus. It
// observes every batch when it becomes durable, every call of a handler, and the results of the
// publishers, and it compares them with each other.
//
// Each delivery, an event at a subscription, is in one place: in one record, handled, or in one
// letter, purged or cancelled. Every batch must move deliveries between these places for a reason.
type storeModel struct {
	mu        sync.Mutex // guards the following
	origin    time.Time
	trace     bytes.Buffer
	violation string
	about     *storeEvent // the event of the violation, for the report

	subs     []*storeSub   // by index
	events   []*storeEvent // by number
	records  map[driver.Ref]*storeRecord
	incoming map[driver.IncomingID]*storeIncoming
	letters  map[eventbus.LetterID]*storeLetter
	live     map[storeLine]map[*storeDelivery]bool // with keys, in records that are not scheduled

	changes map[int]int // number of times that a subscription was loosened
	wall    storeWall

	expiries *rand.Rand // decides which events expire; nil: none
	stepped  time.Time  // when the wall clock was set last

	told              map[eventbus.LetterID]*toldLetter
	emitting, telling bool // handlers emit events; a handler of letters exists
	counts            *storeTally

	process *storeProcess
	foreign map[*driver.Batch]*storeProcess // outstanding batches of the process beside
	besides map[int64]bool                  // positions of records of its events
}

// storeIncoming is an event, or a replay, that waits to be taken in.
type storeIncoming struct {
	event   *storeEvent
	process *storeProcess // that has left it
	replay  bool
	counted bool  // as accepted
	subs    []int // of the letter, with replay; otherwise those of the publisher
}

// storeLine is a key at a subscription.
type storeLine struct {
	sub int
	key string
}

type storeEvent struct {
	n          int
	eventType  string
	key        string
	payload    string
	after      time.Duration
	at         time.Time // the instant that it is for, instead of after, or zero
	expires    time.Time // or zero
	shown      time.Time // the latest that the wall clock has shown since, at its steps
	id         eventbus.EventID
	given      bool
	once       string           // the idempotency key of some that are given, instead of an id; empty for none
	returned   eventbus.EventID // for once, by the first Publish
	learned    bool             // the id is that of an *IndeterminateError
	batch      []*storeEvent    // published together
	returnedAt time.Time        // when a Publish had accepted it
	from       *storeCall       // whose handler has emitted it, or nil
	before     map[int]int      // then, the subscriptions that existed

	attempts, acked, unknown, refused int // calls that published it
	accepted, unrouted                bool
	left                              bool // accepted into incoming, and not taken in
	withdrawn                         bool // cancelled there
	acts                              []*storeAct
	freed                             bool                   // its id and its idempotency key were free again
	deliveries                        map[int]*storeDelivery // by subscription
	published                         time.Time
	changes                           map[int]int // storeModel.changes when Publish was called
}

// storePlace is where a delivery is.
type storePlace int

const (
	placeRecord storePlace = iota
	placeIncoming
	placeHandled
	placeLetter
	placePurged
	placeCancelled
	placeReplayCancelled // its event stays known
	placeDropped         // it came too late
)

func (p storePlace) String() string {
	return []string{"in a record", "incoming", "handled", "in a letter", "purged", "cancelled", "cancelled as a replay", "dropped"}[p]
}

type storeDelivery struct {
	event  *storeEvent
	sub    int
	place  storePlace
	record *storeRecord
	letter eventbus.LetterID

	call        *storeCall // in progress
	by          *storeCall // the last one that has handled it
	handled     bool       // by this process, and not durable yet
	failures    []storeFailure
	durable     int         // of the failures
	cancelledBy []*storeAct // one of them
	hurried     bool        // by RetryNow, since its last call
	loose       bool        // unsubscribed: a crash may bring it back, behind later ones of its key

	// In a paced schedule:
	destination      string    // the answer of the function in this process
	asked, postponed int       // times
	wakes            time.Time // of this process: no call before
}

type storeFailure struct {
	attempt int
	text    string
}

// storeRecord is a copy of what a record shows.
type storeRecord struct {
	ref         driver.Ref
	position    int64
	event       *storeEvent
	state       driver.State
	due         time.Time
	scheduled   time.Time
	expires     time.Time
	payload     string
	targets     []int
	next        int
	skipped     []int
	attempts    int
	asleep      bool
	destination string // of the next target
	replays     int
	edited      bool
	history     []eventbus.Failure
	failures    []eventbus.Failure
}

type storeLetter struct {
	event *storeEvent
	subs  []int // that did not handle it
}

func (m *storeModel) logf(format string, args ...any) {
	fmt.Fprintf(&m.trace, "%8.3f ", time.Since(m.origin).Seconds())
	fmt.Fprintf(&m.trace, format+"\n", args...)
}

// logs is logf for callers without the lock.
func (m *storeModel) logs(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf(format, args...)
}

// failf reports a violation. The first one counts.
func (m *storeModel) failf(e *storeEvent, format string, args ...any) {
	if m.violation != "" {
		return
	}
	m.violation = fmt.Sprintf(format, args...)
	if m.about = e; e != nil {
		m.violation = fmt.Sprintf("e%d: %s", e.n, m.violation)
	}
	m.logf("VIOLATION %s", m.violation)
}

func (m *storeModel) failed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.violation != ""
}

// subOf returns the subscription of a name: s0, and s0.1 after it was renamed.
func subOf(name string) int { return int(name[1] - '0') }

func subsOf(names []string) (subs []int) {
	for _, name := range names {
		subs = append(subs, subOf(name))
	}
	return subs
}

// eventOf returns the event of a payload.
func (m *storeModel) eventOf(payload []byte) *storeEvent {
	var p struct{ N int }
	if err := json.Unmarshal(payload, &p); err != nil || p.N >= len(m.events) {
		m.failf(nil, "a payload that was not published: %s", payload)
		return nil
	}
	return m.events[p.N]
}

// remaining returns the subscriptions whose deliveries the record has.
func (r *storeRecord) remaining() (subs []int) {
	for i, sub := range r.targets {
		if i >= r.next && !slices.Contains(r.skipped, i) {
			subs = append(subs, sub)
		}
	}
	return subs
}

// overtakes reports whether a call of a record comes too early, because another one is before it. Of
// two records, one of which another process inserted, the bus may dispatch its own first: it may not
// have noticed the other yet. What another process publishes for a subscription whose name has changed hands dies,
// unless the new subscription has had an event.
func (m *storeModel) overtakes(sub int, r, other *storeRecord) bool {
	dies := m.besides[other.position] && m.changes[sub] > 0
	return other.before(r) && m.besides[r.position] == m.besides[other.position] && !dies
}

func (r *storeRecord) before(other *storeRecord) bool {
	return cmp.Or(cmp.Compare(r.position, other.position), cmp.Compare(r.ref, other.ref)) < 0
}

func (r *storeRecord) progress(n *driver.Record) {
	p := progressOf(n)
	r.state, r.due = n.State, n.Due
	r.next, r.skipped, r.attempts, r.failures = p.Next, p.Skipped, p.Attempts, p.Failures
	r.asleep, r.destination = p.AsleepFor != 0, p.Destination
}

// storeProgress is what the model reads of the JSON in a record.
type storeProgress struct {
	Next     int                `json:"next"`
	Skipped  []int              `json:"skipped"`
	Attempts int                `json:"attempts"`
	Failures []eventbus.Failure `json:"failures"`

	AsleepFor   time.Duration `json:"asleep_for"`
	Destination string        `json:"destination"`
}

func progressOf(n *driver.Record) storeProgress { return decoded[storeProgress](n.Progress) }

// decoded decodes a part of a record or of a letter that only the bus reads. nil is the zero value.
func decoded[T any](part []byte) (v T) {
	if part == nil {
		return v
	}
	if err := json.Unmarshal(part, &v); err != nil {
		panic(fmt.Sprintf("%s: %v", part, err))
	}
	return v
}

// letterOf decodes a letter of a store.
func letterOf(l *driver.Letter) *eventbus.DeadLetter {
	letter := decoded[eventbus.DeadLetter](l.Details)
	letter.Failures = decoded[[]eventbus.Failure](l.Failures)
	letter.Event.Payload = payloadOf(l)
	if l.Original != nil {
		letter.Original = json.RawMessage(l.Original[1:])
	}
	return &letter
}

// payloadOf returns the payload of a letter, which is JSON.
func payloadOf(l *driver.Letter) json.RawMessage { return json.RawMessage(l.Payload[1:]) }

// applied observes a batch that has become durable.
func (m *storeModel) applied(n int, b *driver.Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.process
	if other := m.foreign[b]; other != nil {
		p = other
	}
	delete(m.foreign, b)
	b = m.withoutTold(n, p, b)
	m.logf("batch %d, beside=%v:%s", n, p.beside, m.describe(b))
	if p.beside { // nobody had the lease, and it carries out an action
		m.process.ended += int64(len(b.Delete))
	}
	if len(b.New)+len(b.Leave) == 0 { // without targets
		for _, r := range b.Remember {
			for _, e := range m.events {
				e.unrouted = e.unrouted || (e.given || e.learned) && e.id == eventbus.EventID(r.Event) || e.once != "" && e.once == r.Key && e.eventType == r.Scope
			}
		}
	}
	type place struct {
		event *storeEvent
		sub   int
	}
	before := map[place]bool{} // in records that the batch changes, or in letters that it takes
	ended := map[place]*storeRecord{}
	for _, take := range b.Take {
		id := eventbus.LetterID(take)
		l := m.letters[id]
		if l == nil {
			m.failf(nil, "batch %d takes the unknown letter %s", n, id)
			return
		}
		delete(m.letters, id)
		for _, sub := range l.subs {
			switch {
			case len(b.New) > 0:
				before[place{l.event, sub}] = true
			case len(b.Leave) > 0:
				l.event.deliveries[sub].place = placeIncoming
			default:
				l.event.deliveries[sub].place = placePurged
				p.purged++
			}
		}
		if len(b.New) > 0 {
			p.replays++
		}
	}
	for _, id := range b.Withdraw {
		m.withdrawn(n, eventbus.EventID(id))
	}
	taken := map[*storeEvent]*storeIncoming{} // by the batch
	for _, id := range b.Accept {
		in := m.incoming[id]
		if in == nil {
			m.failf(nil, "batch %d accepts the unknown incoming event %d", n, id)
			return
		}
		if in.replay && len(b.New)+len(b.Bury) == 0 { // Cancel removes the replays that its report has
			m.withdraws(n, id, in)
			continue
		}
		delete(m.incoming, id)
		taken[in.event] = in
		for earlier, other := range m.incoming {
			if earlier < id && in.event.key != "" && other.event.key == in.event.key && other.process == in.process && !other.event.isLater() {
				m.failf(in.event, "batch %d takes it in before e%d of the same key", n, other.event.n)
			}
		}
		in.event.left = in.event.left && in.replay
		for _, sub := range in.subs {
			before[place{in.event, sub}] = true
		}
		if in.replay {
			p.replays++
		}
	}
	for _, in := range b.Leave {
		m.leaves(p, b, in)
	}
	remove := func(ref driver.Ref) *storeRecord {
		r := m.records[ref]
		if r == nil {
			m.failf(nil, "batch %d changes the unknown record %d", n, ref)
			return nil
		}
		for _, sub := range r.remaining() {
			before[place{r.event, sub}], ended[place{r.event, sub}] = true, r
			delete(m.live[storeLine{sub, r.event.key}], r.event.deliveries[sub])
		}
		return r
	}
	var changed []*storeRecord // that remain
	for _, u := range b.Update {
		if r := remove(u.Ref); r != nil {
			if m.checkProgress(r, u) {
				changed = append(changed, r)
			}
		}
	}
	for _, ref := range b.Delete {
		if remove(ref) != nil {
			delete(m.records, ref)
		}
	}
	for _, record := range b.New {
		if r := m.newRecord(p, b, record, taken); r != nil {
			changed = append(changed, r)
			m.records[r.ref] = r
		}
	}
	if m.violation != "" {
		return
	}
	for _, r := range changed {
		for _, sub := range r.remaining() {
			at := place{r.event, sub}
			d := r.event.deliveries[sub]
			switch {
			case before[at]:
				delete(before, at)
			case d == nil: // new, see newRecord
				d = &storeDelivery{event: r.event, sub: sub, loose: m.changes[sub] != r.event.changes[sub]}
				r.event.deliveries[sub] = d
			default:
				m.failf(r.event, "batch %d: the delivery to s%d, %v, appears in record %d", n, sub, d.place, r.ref)
			}
			d.place, d.record = placeRecord, r
			if in := taken[r.event]; in != nil && in.process != m.process {
				d.loose = d.loose || in.replay // the bus learns of the replay later
			}
			if r.event.key != "" && r.state != driver.Scheduled {
				line := storeLine{sub, r.event.key}
				if m.live[line] == nil {
					m.live[line] = map[*storeDelivery]bool{}
				}
				m.live[line][d] = true
			}
		}
		m.checkFailures(r.event, r.remaining(), r.history, r.failures, false)
	}
	for e, in := range taken {
		if !in.replay && !slices.ContainsFunc(b.New, func(r *driver.Record) bool { return m.eventOf(r.Payload) == e }) {
			e.unrouted = true
			if len(in.subs) > 0 {
				m.failf(e, "batch %d takes it in without the targets of its publisher", n)
			}
		}
	}
	for _, l := range b.Bury {
		p.buried++
		e := m.eventOf(payloadOf(l))
		if e == nil {
			return
		}
		l := letterOf(l)
		subs := append([]int{subOf(l.Subscription)}, subsOf(l.NotReached)...)
		for _, sub := range subs {
			if !before[place{e, sub}] {
				m.failf(e, "batch %d: a letter for s%d, which is not about to die there: %v", n, sub, e.deliveries[sub])
				return
			}
			delete(before, place{e, sub})
			d := e.deliveries[sub]
			d.place, d.letter, d.handled = placeLetter, l.ID, false
			d.destination, d.wakes = "", time.Time{}
		}
		from := ended[place{e, subs[0]}]
		if from == nil {
			m.failf(e, "batch %d: a letter for s%d without a record", n, subs[0])
			return
		}
		m.letters[l.ID], m.process.died[l.ID] = &storeLetter{event: e, subs: subs}, true
		m.checkLetter(e, from, l)
	}
	var succeeded []*storeDelivery
	for at := range before {
		d := at.event.deliveries[at.sub]
		switch {
		case slices.ContainsFunc(b.Forget, func(f driver.Dedupe) bool { return eventbus.EventID(f.Event) == at.event.id }):
			d.place, at.event.freed = placeCancelled, true
			if d.record.replays > 0 || !m.cancels(d) {
				m.failf(at.event, "batch %d: the id is free, and it is a replay: %v", n, d.record.replays > 0)
			}
		case d.handled && (len(b.New) > 0 || len(d.by.emitted()) == 0 || len(at.event.actsOn(eventbus.AuditCancel, at.sub)) == 0):
			d.place, d.handled, d.durable = placeHandled, false, len(d.failures)
			succeeded = append(succeeded, d)
		case m.cancels(d):
			d.place, d.handled = placeReplayCancelled, false
		case at.event.n < m.subs[at.sub].drop:
			d.place = placeDropped
		case m.subs[at.sub].drops && m.isLate(d.record) && len(d.failures) == 0:
			d.place = placeDropped
		default:
			m.failf(at.event, "batch %d: the delivery to s%d is lost", n, at.sub)
		}
	}
	m.checkEmitted(n, b, succeeded)
	for _, l := range b.Bury {
		l := letterOf(l)
		for _, name := range l.Succeeded {
			if d := m.letters[l.ID].event.deliveries[subOf(name)]; d == nil || d.place != placeHandled {
				m.failf(m.letters[l.ID].event, "letter %s: s%d did not succeed", l.ID, subOf(name))
			}
		}
	}
}

// storeReplay is what the model reads of the JSON in a record that a replay made.
type storeReplay struct {
	Count    int                `json:"count"`
	History  []eventbus.Failure `json:"history"`
	Edited   bool               `json:"edited"`
	Original []byte             `json:"original"`
}

// newRecord checks a new record. An event that is new becomes accepted.
func (m *storeModel) newRecord(p *storeProcess, b *driver.Batch, n *driver.Record, taken map[*storeEvent]*storeIncoming) *storeRecord {
	e := m.eventOf(n.Payload)
	if e == nil {
		return nil
	}
	r := &storeRecord{
		ref: n.Ref, position: n.Position, event: e, payload: string(n.Payload), targets: subsOf(n.Targets),
		scheduled: n.Scheduled, expires: n.Expires,
	}
	if !n.Expires.IsZero() && (!n.Expires.Equal(e.expires) || n.Replay != nil) {
		m.failf(e, "record %d expires at %v, and not at %v; it is a replay: %v", n.Ref, n.Expires, e.expires, n.Replay != nil)
	}
	r.progress(n)
	if in := taken[e]; in != nil && r.position == int64(r.ref) && in.process.beside {
		m.besides[r.position] = true
	}
	if n.Replay != nil {
		replay := decoded[storeReplay](n.Replay)
		r.replays, r.edited, r.history = replay.Count, replay.Edited, replay.History
		if replay.Edited && string(replay.Original) != e.payload {
			m.failf(e, "the original payload is %s", replay.Original)
		}
	}
	if len(r.targets) == 0 {
		m.failf(e, "record %d has no targets", n.Ref)
	}
	if !r.edited && r.payload != e.payload {
		m.failf(e, "the payload is %s", r.payload)
	}
	if n.Type != e.eventType || n.Key != e.key || decoded[map[string]string](n.Metadata)["n"] != fmt.Sprint(e.n) {
		m.failf(e, "record %d has type %q, key %q and metadata %s", n.Ref, n.Type, n.Key, n.Metadata)
	}
	if len(b.Delete) == 0 && taken[e] == nil {
		e.isNewAgain()
	}
	isNew := len(b.Take)+len(b.Delete)+len(b.Update)+len(taken) == 0 || e.from != nil && e.acked == 0
	for _, in := range m.incoming {
		if isNew && e.key != "" && in.event.key == e.key && in.process == p && !in.replay && len(in.subs) > 0 && !in.event.isLater() && in.event.precedes(e) {
			m.failf(e, "record %d overtakes e%d of the same key, which waits to be taken in", n.Ref, in.event.n)
		}
	}
	switch {
	case taken[e] != nil && !taken[e].replay && !taken[e].counted:
		taken[e].counted = true
		p.accepted++
	case !e.accepted && isNew:
		e.accepted, e.id, e.published = true, eventbus.EventID(n.ID), n.Published
		p.accepted++
	case isNew && n.Ref > 1 && r.position != int64(n.Ref): // another copy
	case isNew:
		m.failf(e, "is accepted twice")
	case eventbus.EventID(n.ID) != e.id:
		m.failf(e, "record %d has the id %s, not %s", n.Ref, n.ID, e.id)
	case !n.Published.Equal(e.published):
		m.failf(e, "record %d was published at %v, not %v", n.Ref, n.Published, e.published)
	}
	return r
}

// isLater reports whether the event is for later: it takes its place in the order of its key then.
func (e *storeEvent) isLater() bool { return e.after > 0 || !e.at.IsZero() }

// isNewAgain forgets that an event was accepted, if it was cancelled: its id is free again.
func (e *storeEvent) isNewAgain() {
	cancelled := len(e.deliveries) > 0
	for _, d := range e.deliveries {
		cancelled = cancelled && d.place == placeCancelled
	}
	if cancelled || e.withdrawn {
		e.deliveries, e.accepted, e.withdrawn = map[int]*storeDelivery{}, false, false
	}
}

// leaves notes an event, or a replay, that was left in incoming.
func (m *storeModel) leaves(p *storeProcess, b *driver.Batch, left *driver.Incoming) {
	r := left.Record
	e := m.eventOf(r.Payload)
	if e == nil {
		return
	}
	in := &storeIncoming{event: e, process: p, replay: r.Replay != nil, subs: subsOf(r.Targets)}
	m.incoming[left.ID] = in
	if in.replay {
		return
	}
	e.isNewAgain()
	if e.accepted {
		m.failf(e, "is accepted twice")
	}
	if len(b.Remember) == 0 {
		m.failf(e, "is left in incoming, and its id is not remembered")
	}
	e.accepted, e.left, e.id, e.published = true, true, eventbus.EventID(r.ID), r.Published
	for _, sub := range in.subs {
		e.deliveries[sub] = &storeDelivery{event: e, sub: sub, place: placeIncoming, loose: m.changes[sub] != e.changes[sub]}
	}
}

// withdrawn notes that Cancel has removed an event from incoming, with all of its replays there.
func (m *storeModel) withdrawn(n int, id eventbus.EventID) {
	found := false
	for at, in := range m.incoming {
		if in.event.id != id {
			continue
		}
		m.withdraws(n, at, in)
		found = true
	}
	if !found {
		m.failf(nil, "batch %d withdraws the unknown event %s", n, id)
	}
}

func (m *storeModel) withdraws(n int, id driver.IncomingID, in *storeIncoming) {
	delete(m.incoming, id)
	in.event.withdrawn, in.event.freed = !in.replay, in.event.freed || !in.replay
	for _, sub := range in.subs {
		d := in.event.deliveries[sub]
		if d.place = placeCancelled; in.replay {
			d.place = placeReplayCancelled
		}
		if !m.cancels(d) {
			m.failf(in.event, "batch %d withdraws it, and nobody cancels it", n)
		}
	}
}

// checkProgress applies an update to a record. Targets may have been handled meanwhile.
func (m *storeModel) checkProgress(r *storeRecord, u *driver.Record) bool {
	old := *r
	r.progress(u)
	for _, sub := range old.remaining() {
		if d := r.event.deliveries[sub]; d != nil && !slices.Contains(r.remaining(), sub) && d.call != nil && !wasCancelled(d.call.ctx) {
			m.failf(r.event, "record %d passes s%d, whose handler runs", r.ref, sub)
		}
	}
	switch {
	case r.next < old.next || r.attempts < old.attempts && len(r.failures) >= len(old.failures):
		m.failf(r.event, "record %d goes back: from target %d, attempt %d to %d, %d", r.ref, old.next, old.attempts, r.next, r.attempts)
	case r.attempts > old.attempts+1:
		m.failf(r.event, "record %d has %d attempts after %d", r.ref, r.attempts, old.attempts)
	case r.state == driver.Waiting && r.attempts > m.process.retries && r.attempts > old.attempts: // otherwise RetryNow has claimed it
		m.failf(r.event, "record %d waits after attempt %d, with %d retries", r.ref, r.attempts, m.process.retries)
	}
	return true
}

// checkFailures compares the recorded failures of deliveries with those of the handlers.
func (m *storeModel) checkFailures(e *storeEvent, subs []int, history, failures []eventbus.Failure, all bool) {
	for i, sub := range subs {
		d, k := e.deliveries[sub], 0
		for _, f := range slices.Concat(history, failures) {
			if subOf(f.Subscription) != sub {
				continue
			}
			if k >= len(d.failures) || d.failures[k].attempt != f.Attempt || !strings.Contains(f.Error, d.failures[k].text) {
				m.failf(e, "s%d: failure %d is recorded as %q in attempt %d, the handler's are %v", sub, k, f.Error, f.Attempt, d.failures)
				return
			}
			k++
		}
		if k < d.durable || all && i == 0 && k < len(d.failures) {
			m.failf(e, "s%d: %d failures are recorded, after %d, of %v", sub, k, d.durable, d.failures)
		}
		d.durable = k
	}
}

// checkLetter checks the content of a letter. from is the record that it ends.
func (m *storeModel) checkLetter(e *storeEvent, from *storeRecord, l *eventbus.DeadLetter) {
	payload := string(l.Event.Payload.(json.RawMessage))
	if sub := m.subs[subOf(l.Subscription)]; l.Reason == eventbus.ReasonOverflow && sub.detached && e.n >= sub.after {
		m.failf(e, "s%d is detached, and the delivery overflows", sub.index)
	}
	ended := false // by a failure
	switch l.Reason {
	case eventbus.ReasonExhausted:
		if ended = true; l.Attempts <= m.process.retries {
			m.failf(e, "exhausted after attempt %d, with %d retries", l.Attempts, m.process.retries)
		}
	case eventbus.ReasonPermanent:
		ended = true
	case eventbus.ReasonUnsubscribed, eventbus.ReasonOverflow, eventbus.ReasonCrash:
	case eventbus.ReasonOperator:
		if len(e.actsOn(eventbus.AuditGiveUp, subOf(l.Subscription))) == 0 {
			m.failf(e, "it is given up at %s, and nobody does that", l.Subscription)
		}
	case eventbus.ReasonTooLate:
		m.checkTooLate(e, from, l)
	case eventbus.ReasonShutdown, eventbus.ReasonCircuitOpen, eventbus.ReasonExpired, eventbus.ReasonDuplicate, eventbus.ReasonInvalid:
		m.failf(e, "a letter with the reason %s", l.Reason)
	}
	if l.Attempts > m.process.retries+1 && l.Attempts > from.attempts+1 {
		m.failf(e, "a letter after attempt %d, with %d retries", l.Attempts, m.process.retries)
	}
	m.checkFailures(e, append([]int{subOf(l.Subscription)}, subsOf(l.NotReached)...), nil, l.Failures, ended)
	switch {
	case l.Event.ID != e.id || l.Event.Type != e.eventType || l.Event.Key != e.key || !l.Event.Time.Equal(e.published),
		l.Event.Metadata.Get("n") != fmt.Sprint(e.n):
		m.failf(e, "the letter's event is %+v", l.Event)
	case l.Edited != from.edited || payload != from.payload:
		m.failf(e, "the letter's payload is %s, not %s", payload, from.payload)
	case l.Edited && string(l.Original.(json.RawMessage)) != e.payload:
		m.failf(e, "the letter's original payload is %s", l.Original)
	case l.Replays != from.replays:
		m.failf(e, "the letter has %d replays, not %d", l.Replays, from.replays)
	case !l.Due.Equal(from.scheduled):
		m.failf(e, "the letter was due at %v, not %v", l.Due, from.scheduled)
	case l.Position != from.position:
		m.failf(e, "the letter has the position %d, not %d", l.Position, from.position)
	}
}

// describe is a line about a batch.
func (m *storeModel) describe(b *driver.Batch) string {
	var s strings.Builder
	number := func(payload []byte) int {
		if e := m.eventOf(payload); e != nil {
			return e.n
		}
		return -1
	}
	for _, n := range b.New {
		fmt.Fprintf(&s, " new %d@%d e%d %v %v leased=%v", n.Ref, n.Position, number(n.Payload), n.Targets, n.State, n.Leased)
	}
	for _, in := range b.Leave {
		fmt.Fprintf(&s, " leave %d e%d %v %v", in.ID, number(in.Record.Payload), in.Record.Targets, in.Record.State)
	}
	for _, id := range b.Accept {
		if in := m.incoming[id]; in != nil {
			fmt.Fprintf(&s, " accept %d e%d", id, in.event.n)
		}
	}
	for _, u := range b.Update {
		if r := m.records[u.Ref]; r != nil {
			fmt.Fprintf(&s, " update %d e%d %v%s/%s leased=%v", u.Ref, r.event.n, u.State, u.Door, u.Destination, u.Leased)
		}
		if u.Progress != nil {
			p := progressOf(u)
			fmt.Fprintf(&s, " next=%d skipped=%v attempts=%d failures=%d destination=%s", p.Next, p.Skipped, p.Attempts, len(p.Failures), p.Destination)
		}
	}
	for _, ref := range b.Delete {
		if r := m.records[ref]; r != nil {
			fmt.Fprintf(&s, " delete %d e%d", ref, r.event.n)
		}
	}
	for _, id := range b.Take {
		if l := m.letters[eventbus.LetterID(id)]; l != nil {
			fmt.Fprintf(&s, " take e%d", l.event.n)
		}
	}
	for _, buried := range b.Bury {
		l := letterOf(buried)
		fmt.Fprintf(&s, " bury e%d %s at %s, not reached %v, succeeded %v", number(payloadOf(buried)), l.Reason, l.Subscription, l.NotReached, l.Succeeded)
	}
	return s.String()
}

// storeWall is the wall clock of a store schedule, if it is set in that schedule. All processes share
// it. An instant of the model is of this clock; everything else is of package time.
type storeWall struct {
	clock *wallclock.Clock // nil: nobody sets it

	// storeModel.mu guards the following.
	most time.Duration // by which it has been ahead at most
}

func (w *storeWall) options() []eventbus.Option {
	if w.clock == nil {
		return nil
	}
	return []eventbus.Option{eventbus.WithClock(w.clock)}
}

// now is what the wall clock shows.
func (w *storeWall) now() time.Time { return time.Now().Add(w.ahead()) }

func (w *storeWall) ahead() time.Duration {
	if w.clock == nil {
		return 0
	}
	return w.clock.Ahead()
}

// monotonic is the earliest end of a delay that is recorded as an instant of the wall clock: it may
// have been set while the record was on its way.
func (w *storeWall) monotonic(at time.Time) time.Time { return at.Add(-w.most) }

// hasCome reports whether the wall clock has shown an instant since an event was published.
func (m *storeModel) hasCome(e *storeEvent, at time.Time) bool {
	return !m.wall.now().Before(at) || !e.shown.Before(at)
}

// pauseEnds is an instant at which the wall clock ends a pause, or the zero time.
func (m *storeModel) pauseEnds(rng *rand.Rand) time.Time {
	if m.wall.clock == nil || chance(rng, 50) {
		return time.Time{}
	}
	return m.wall.now().Add(ms(rng, 3000))
}

// hasEnded reports whether the wall clock has ended a pause.
func (m *storeModel) hasEnded(sub *storeSub) bool {
	return !sub.until.IsZero() && (!m.wall.now().Before(sub.until) || !sub.shown.Before(sub.until))
}

// step sets the wall clock, ahead or back.
func (s *storeSim) step(by time.Duration) {
	m := s.storeModel
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.wall.now()
	for _, sub := range s.subs {
		if now.After(sub.shown) {
			sub.shown = now
		}
	}
	for _, e := range m.events {
		if now.After(e.shown) {
			e.shown = now
		}
	}
	m.wall.clock.Advance(by)
	m.stepped = time.Now()
	m.wall.most = max(m.wall.most, m.wall.ahead())
	m.logf("the wall clock goes %v ahead, and is %v ahead", by, m.wall.ahead())
}

// setClock sets the wall clock now and then.
func (p *storeProcess) setClock(rng *rand.Rand) {
	s := p.sim
	for range rng.IntN(4) {
		time.Sleep(ms(rng, 2000))
		if p.dead.Load() || s.failed() {
			return
		}
		by := pick(rng, ms(rng, 3000), time.Minute+time.Second, 2*time.Hour)
		if chance(rng, 50) {
			by = -by
		}
		s.step(by)
		s.tally.clockSteps.Add(1)
	}
}

// restClock sets the wall clock ahead, so that every instant has come, and checks that nothing waits
// for one any more when the bus has had its time to look.
func (s *storeSim) restClock() {
	if s.wall.clock == nil {
		return
	}
	s.step(max(0, s.wall.most-s.wall.ahead()) + time.Minute)
	const latest = 30*time.Second + 2*storeTimeout // a look, and the commits of that moment
	time.Sleep(latest)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.state == driver.Scheduled && !s.wall.now().Add(-latest).Before(r.scheduled) {
			s.failf(r.event, "it still waits for %v, and the wall clock shows %v", r.scheduled, s.wall.now())
		}
	}
}
