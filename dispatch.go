package eventbus

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/settled"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/window"
)

// dispatch is an event on its way to its targets. The queue, the key gate, the delay queue, the
// schedule and the doors' lines all hold *dispatch.
//
// A dispatch has one owner at a time: the caller that opens it, a worker, or the structure that
// holds it. Only the owner changes it. The first group of fields is fixed before the first attempt,
// so abandoned handlers may read them.
type dispatch struct {
	id      EventID
	payload any
	key     string
	to      *targets
	values  context.Context // of WithContextFrom; nil for none
	origin  *origin         // nil for a new event without metadata
	wall    int64           // time of publication, see timeline.UTC

	story   *story  // nil until its first failure or detour
	worker  *worker // the worker that runs it, or ran it last
	next    int32   // index of the target to visit now, or in the next attempt
	attempt int32
	state   dispatchState
	hasTurn bool // it has its key's place: the next dispatch of the key waits for it
	held    bool // it waits for its key's place, or has it, and never runs; see keys.Gate.Hold
	inside  bool // a running handler published it, so the publication did not wait for room; fixed
	expires bool // machine.expiring counts it
	first   call // its first call; further ones are allocated an attempt at a time
}

// dispatchState is the state of a dispatch. Its owner changes it at each transition.
type dispatchState uint8

const (
	stateOpening dispatchState = iota // Publish or a replay creates it
	stateQueued
	stateRunning
	stateWaiting   // for its next attempt
	stateScheduled // until it is due
	stateParked    // at its next target's door
	stateRecording // its next transition is being recorded
	stateSettled
)

// origin has the rarely used fields of a dispatch. They are fixed before its first attempt.
type origin struct {
	metadata EventMetadata
	waiter   *waiter    // the PublishAndWait in progress, if any
	order    EventID    // see orderID
	due      *due       // of a scheduled event; nil if it was not scheduled
	expires  *time.Time // in UTC; nil for never
	given    bool       // the publisher chose the id, or may have to repeat it: it is remembered
	once     idempotency
	replay   *replay
	row      *row // nil without a store; the only field that changes later
}

// due is when a scheduled event is due: after a delay, or at an instant.
type due struct {
	nanos int64     // as a point on the timeline. That of an instant is final when it has come
	at    time.Time // the instant as given, in UTC. Zero for a delay, which a store keeps as an instant
}

// time returns when the event is due, in UTC.
func (d *due) time(t *timeline.Timeline) time.Time {
	if d.at.IsZero() {
		return t.At(d.nanos)
	}
	return d.at
}

// replay has the fields of a dispatch that a replay opened.
type replay struct {
	published      time.Time // of the event, which may be from another timeline
	due            time.Time // of an event that was scheduled, likewise
	began          int64
	count          int32          // replays of the event, with this one
	log            []LetterReplay // ends with this one
	run            *bulkRun
	succeeded      []string // subscriptions that handled the event before
	history        []Failure
	historyOmitted int
	edits          int32 // if there are any, the payload replaces original, the published one
	original       any
	at             *Subscription // the subscription whose window has the event's last failure
	mark           window.Mark   // the failure's place in that window
}

// noOrigin stands for a missing origin or replay.
var noOrigin, noReplay = origin{}, replay{}

func (d *dispatch) from() *origin {
	if d.origin == nil {
		return &noOrigin
	}
	return d.origin
}

func (d *dispatch) replay() *replay {
	if r := d.from().replay; r != nil {
		return r
	}
	return &noReplay
}

// event returns the event for handlers.
func (d *dispatch) event(t *timeline.Timeline) (e Event) {
	d.putEvent(&e, t)
	return e
}

func (d *dispatch) putEvent(e *Event, t *timeline.Timeline) {
	e.ID, e.Type, e.Payload, e.Key, e.Time = d.id, d.to.eventType, d.payload, d.key, d.published(t)
	if d.origin != nil {
		e.Metadata, e.IdempotencyKey = d.origin.metadata, d.origin.once.key
		e.Expires = d.expiry()
	}
}

// published returns the time of publication, in UTC.
func (d *dispatch) published(t *timeline.Timeline) time.Time {
	if d.origin != nil && d.origin.replay != nil {
		return d.origin.replay.published
	}
	return t.UTC(d.wall)
}

// orderID returns the id that orders the events of a key: by publication, or by when they became
// due. A replay keeps the order of its letter, which is zero for an imported letter.
func (d *dispatch) orderID() EventID {
	if d.origin == nil || d.origin.order.IsZero() && d.origin.replay == nil {
		return d.id
	}
	return d.origin.order
}

// elapsed returns the time that MaxElapsed bounds: the time since the dispatch first became
// runnable, minus the time in which it was parked.
func (d *dispatch) elapsed(now timeline.Instant, t *timeline.Timeline) time.Duration {
	var parked time.Duration
	if d.story != nil {
		parked = d.story.parked
	}
	switch o := d.from(); {
	case o.replay != nil && (o.due == nil || o.due.nanos < o.replay.began):
		return time.Duration(now.Nanos-o.replay.began) - parked
	case o.due != nil:
		return time.Duration(now.Nanos-o.due.nanos) - parked
	}
	return now.UTC.Sub(d.published(t)) - parked
}

// isVisited reports whether every target has been visited. A dispatch that was read from a store may then only have to
// settle: its last target was split off, and the process ended.
func (d *dispatch) isVisited() bool { return int(d.next) == len(d.to.subscriptions) }

// isLast reports whether the next target is the last, and no earlier target has handled the event
// in this dispatch.
func (d *dispatch) isLast() bool {
	return int(d.next) == len(d.to.subscriptions)-1 && d.succeeded() == 0
}

// succeeded returns the number of targets that have handled the event in this dispatch.
func (d *dispatch) succeeded() int {
	return int(d.next) - d.splits()
}

// splits returns the number of targets that were split off from the dispatch.
func (d *dispatch) splits() int {
	if d.story == nil || d.story.detours == nil {
		return 0
	}
	return len(d.story.detours.skipped)
}

// waiter returns the PublishAndWait that waits for the dispatch, or nil.
func (d *dispatch) waiter() *waiter {
	if d.origin == nil || d.story != nil && d.story.unawaited {
		return nil
	}
	return d.origin.waiter
}

// isAwaitedByCall reports whether a running handler waits for the dispatch.
func (d *dispatch) isAwaitedByCall() bool {
	if w := d.waiter(); w != nil {
		hold := w.hold.Load()
		return hold != nil && hold.of.running()
	}
	return false
}

// row is the part of a dispatch that only a bus with a store has.
type row struct {
	ref      driver.Ref    // 0 until it has a record
	position int64         // see Record
	fence    int64         // the epoch of the lease under which it is in memory
	parent   *dispatch     // from which it was split off, until that is recorded
	copies   []*dispatch   // once they are recorded
	asleep   time.Duration // of the snooze that ends at story.notBefore, if that is set; 0 for none
	crashes  int           // see Record; 0 once an attempt has not crashed the process
	from     *door         // at which it was parked when it was claimed; nil for another
	counted  bool          // that door counts it in spill.coming
	ended    int64         // when it has ended, in Unix milliseconds, if the store has its outcome
	unloads  bool          // it leaves memory, as the dispatch before it in its key's order did
	marked   bool          // it runs in a group of suspects
}

// row returns nil without a store.
func (d *dispatch) row() *row {
	if d.origin == nil {
		return nil
	}
	return d.origin.row
}

// addRow gives a dispatch a place for its record. Copies and split deliveries share their origin, so
// each gets one of its own.
func (d *dispatch) addRow(s row) {
	var o origin
	if d.origin != nil {
		o = *d.origin
	}
	o.row = &s
	d.origin = &o
}

// isScheduled reports whether a replayed dispatch is not due yet.
func (d *dispatch) isScheduled(t *timeline.Timeline) bool {
	due := d.from().due
	return due != nil && !t.HasCome(due.at)
}

// story is the history of a dispatch. Most dispatches have none.
type story struct {
	failures    []failure     // the first ones and the last ones
	omitted     int32         // failures between those
	omittedHere int32         // of these, those at the next target
	previous    time.Duration // the delay before this attempt, without RetryAfter
	mark        window.Mark   // the last failure, in the window of the next target
	parked      time.Duration // total time in which it was parked
	first       uint8         // failures before the omitted ones
	unawaited   bool          // its waiter no longer waits for it
	part        bool          // it was split off: its outcome is not the event's
	notBefore   int64         // when its next attempt is due, while a store or a line takes it over that keeps it until then
	detours     *detours
}

// detours has the parts of a story that few dispatches have: most failures involve no rule and no
// door.
type detours struct {
	destination string             // at the next target; "" while it is not known
	at          *door              // at which it has its seat, or was refused one; nil for the last target's own
	home        *door              // another one, at which later ones of its key stay behind it; mostly nil
	spent       []spent            // records of rules' budgets
	skipped     []int32            // targets that were split off
	seat        line.Seat          // in the line of at
	snoozes     int32              // times that it was snoozed there
	by          *settled.Operators // who have let it go on, or have ended it; nil for none. It does not change
	observed    *observedAttempt   // whose begin was reported and whose end was not
}

// spent records how much of a rule's budget a dispatch has used, and its last delay there.
type spent struct {
	of       *Subscription // the rule's subscription; nil for the bus
	rule     int32         // its position
	failures int32
	previous time.Duration // without RetryAfter
}

// failure is a compact Failure: every dispatch that waits for a retry keeps some.
type failure struct {
	err          error
	text         string
	subscription *Subscription
	at           int64
	duration     time.Duration
	attempt      int32
	rule         int32            // the rule that decided on it, from 1; 0: the policy
	details      *json.RawMessage // nil for none; a pointer, because few failures have details
}

// ensureStory returns the dispatch's story. It creates a missing one.
func (d *dispatch) ensureStory() *story {
	if d.story == nil {
		d.story = &story{}
	}
	return d.story
}

func (d *dispatch) ensureDetours() *detours {
	s := d.ensureStory()
	if s.detours == nil {
		s.detours = &detours{}
	}
	return s.detours
}

// lastFailure returns the last failure, or nil.
func (d *dispatch) lastFailure() *failure {
	if d.story == nil || len(d.story.failures) == 0 {
		return nil
	}
	return &d.story.failures[len(d.story.failures)-1]
}

// failedAt reports whether the dispatch has failed at its next target.
func (d *dispatch) failedAt(next *Subscription) bool {
	f := d.lastFailure()
	return f != nil && f.subscription == next
}

// Fresh reports whether the dispatch has not failed yet at the subscription at which it has its seat.
func (d *dispatch) Fresh() bool { return !d.failedAt(d.seatedAt()) }

// keep adds a failure at the next target. Beyond firstFailures and lastFailures it drops one from the middle.
func (d *dispatch) keep(f failure) {
	s := d.ensureStory()
	if s.omitted == 0 {
		s.first = firstFailures
	}
	if len(s.failures) == int(s.first)+lastFailures {
		s.omitted++
		if s.failures[s.first].subscription == f.subscription {
			s.omittedHere++
		}
	}
	s.failures, _ = keepFailure(s.failures, int(s.first), f)
}

// passed resets the parts of the story that belong to the next target, before the dispatch moves on.
func (d *dispatch) passed() {
	if d.story == nil {
		return
	}
	if d.story.mark, d.story.omittedHere = 0, 0; d.story.detours != nil {
		d.story.detours.destination = ""
	}
}

// takeNotBefore returns when the next attempt is due of a dispatch that was read from a store, or that is put to sleep, and
// clears it. Without such a time it is 0.
func (d *dispatch) takeNotBefore() (due int64) {
	if d.story != nil {
		due, d.story.notBefore = d.story.notBefore, 0
	}
	return due
}

// sleepsUntil returns until when the dispatch is put to sleep, or 0.
func (d *dispatch) sleepsUntil() int64 {
	if d.story == nil {
		return 0
	}
	return d.story.notBefore
}

// recovered reports whether the dispatch has failures and every failed target has handled the event
// since. A target that was split off has not.
func (d *dispatch) recovered() bool {
	if d.lastFailure() == nil {
		return false
	}
	if d.story.detours == nil {
		return true
	}
	return !slices.ContainsFunc(d.story.detours.skipped, func(i int32) bool {
		return slices.ContainsFunc(d.story.failures, func(f failure) bool { return f.subscription == d.to.subscriptions[i] })
	})
}

// splitOff returns a dispatch for the next target alone, with the attempts and failures at that
// target.
func (d *dispatch) splitOff(policy *mergedPolicy) *dispatch {
	s := d.to.subscriptions[d.next]
	split := &dispatch{
		id: d.id, payload: d.payload, key: d.key, values: d.values, origin: d.origin, wall: d.wall, inside: d.inside,
		to: d.to.only(int(d.next), policy),
	}
	if d.story != nil {
		split.story = d.story.at(s)
		split.story.unawaited = d.story.unawaited
		if f := split.lastFailure(); f != nil {
			split.attempt = f.attempt
		}
		d.passed()
	}
	if s := d.row(); s != nil {
		split.addRow(row{position: s.position, fence: s.fence, parent: d})
	}
	d.ensureDetours().skipped = append(d.ensureDetours().skipped, d.next)
	return split
}

// narrow reduces a dispatch's story to its next target, the only remaining one.
func (d *dispatch) narrow() {
	d.attempt = 0
	if d.story == nil {
		return
	}
	before, whole := d.ensureDetours(), d.story
	d.story = whole.at(d.to.subscriptions[d.next])
	d.story.unawaited, d.story.part, d.story.notBefore = whole.unawaited, whole.part, whole.notBefore
	after := d.ensureDetours()
	after.observed, after.skipped = before.observed, before.skipped
	if f := d.lastFailure(); f != nil {
		d.attempt = f.attempt
	}
}

// at returns the part of a story that belongs to the next target.
func (s *story) at(target *Subscription) *story {
	part := &story{mark: s.mark, omitted: s.omittedHere, parked: s.parked}
	for i, f := range s.failures {
		if f.subscription != target {
			continue
		}
		if i < int(s.first) {
			part.first++
		}
		part.failures = append(part.failures, f)
	}
	if len(part.failures) > 0 { // attempts at the target keep their delays and budgets; a target without attempts starts anew
		part.previous = s.previous
		if s.detours != nil && len(s.detours.spent) > 0 {
			part.detours = &detours{spent: slices.Clone(s.detours.spent)}
		}
	}
	if from := s.detours; from != nil && (from.destination != "" || from.snoozes > 0 || from.by != nil) {
		if part.detours == nil {
			part.detours = &detours{}
		}
		part.detours.destination, part.detours.snoozes, part.detours.by = from.destination, from.snoozes, from.by
	}
	return part
}

// copies returns the dispatches of an event: one, or one for each target on a bus with isolation.
func (m *machine) copies(d *dispatch) []*dispatch {
	if d.to.each == nil {
		return []*dispatch{d}
	}
	all := m.copiesOf(d)
	m.ledger.copies.Add(int64(len(all)) - 1)
	if waiter := d.waiter(); waiter != nil && d.row() == nil { // otherwise see insertEvent
		waiter.expect(len(all) - 1)
	}
	return all
}

// copiesOf returns the copies of an event, the recorded ones if there are any.
func (m *machine) copiesOf(d *dispatch) []*dispatch {
	s := d.row()
	switch {
	case d.to.each == nil:
		return []*dispatch{d}
	case s != nil && s.copies != nil:
		return s.copies
	}
	d.divided(len(d.to.each) - 1)
	all := make([]*dispatch, len(d.to.each))
	for i, to := range d.to.each {
		all[i] = &dispatch{id: d.id, payload: d.payload, key: d.key, values: d.values, origin: d.origin, wall: d.wall, inside: d.inside, to: to}
		if s != nil {
			all[i].addRow(row{})
		}
	}
	return all
}
