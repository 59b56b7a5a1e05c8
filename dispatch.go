package eventbus

import (
	"context"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/line"
	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/window"
)

// dispatch is an event on its way to its targets. The queue, the key gate, the delay queue, the
// schedule and the doors' lines all hold *dispatch.
//
// A dispatch has one owner at a time: the caller that opens it, a worker, or the structure that
// holds it. Only the owner changes it. The first group of fields is fixed when it opens, so
// handlers that were abandoned may still read those.
type dispatch struct {
	id      EventID
	payload any
	key     string
	to      *targets
	values  context.Context // of the context given to Publish; nil for none
	origin  *origin         // nil if there is nothing special about it
	wall    int64           // time of publication, see timeline.UTC

	story   *story        // nil until there is something to tell
	worker  *worker       // that runs it, or ran it last
	word    deadline.Word // the state of its last call, for which the worker and the watch compete
	next    int32         // index of the next target
	attempt int32
	state   dispatchState
	placed  bool // it holds its key's place: the next dispatch of the key waits for it
	first   call // its first call; further ones are allocated an attempt at a time
}

// dispatchState says where a dispatch is. It changes in the transitions of dispatcher.go only.
type dispatchState uint8

const (
	stateOpening dispatchState = iota // Publish or a replay makes it
	stateQueued
	stateRunning
	stateWaiting   // for its next attempt
	stateScheduled // until it is due
	stateParked    // at its next target's door
	stateRecording // its next transition is being recorded
	stateSettled
)

// origin is what a dispatch needs if it is more than a new event without metadata. It is fixed when
// the dispatch opens.
type origin struct {
	metadata EventMetadata
	waiter   *waiter // the PublishAndWait in progress, if any
	order    EventID // see orderID
	due      int64   // when a scheduled event is due; 0 if it was not scheduled
	given    bool    // the publisher chose the id
	replay   *replay
}

// replay is what a dispatch has that was opened by a replay.
type replay struct {
	published      time.Time // of the event: it may not lie on this timeline
	due            time.Time // of an event that was scheduled, likewise
	began          int64
	count          int32 // replays of the event, with this one
	run            *bulkRun
	succeeded      []string // subscriptions that handled the event before
	history        []Failure
	historyOmitted int
	edited         bool // the payload is another one than original, with which it was published
	original       any
	at             *Subscription // whose window has the event's last failure
	counted        window.Mark   // the failure's place there
}

// noOrigin stands for a missing origin or replay.
var (
	noOrigin origin
	noReplay replay
)

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

// event is the event as handlers get it.
func (d *dispatch) event(t *timeline.Timeline) (e Event) {
	d.putEvent(&e, t)
	return e
}

func (d *dispatch) putEvent(e *Event, t *timeline.Timeline) {
	e.ID, e.Type, e.Payload, e.Key, e.Time = d.id, d.to.eventType, d.payload, d.key, d.published(t)
	if d.origin != nil {
		e.Metadata = d.origin.metadata
	}
}

// published is the time of publication, in UTC.
func (d *dispatch) published(t *timeline.Timeline) time.Time {
	if d.origin != nil && d.origin.replay != nil {
		return d.origin.replay.published
	}
	return t.UTC(d.wall)
}

// orderID orders the events of a key by publication, or by when they became due. A replay keeps
// that of its letter, which is zero for an imported one.
func (d *dispatch) orderID() EventID {
	if d.origin == nil || d.origin.order.IsZero() && d.origin.replay == nil {
		return d.id
	}
	return d.origin.order
}

// elapsed is the time that MaxElapsed bounds: since the dispatch first became runnable, without the
// time that it was parked.
func (d *dispatch) elapsed(now timeline.Instant, t *timeline.Timeline) time.Duration {
	var parked time.Duration
	if d.story != nil {
		parked = d.story.parked
	}
	if o := d.from(); o.due != 0 || o.replay != nil {
		return time.Duration(now.Nanos-max(o.due, d.replay().began)) - parked
	}
	return now.UTC.Sub(d.published(t)) - parked
}

// isLast reports whether the next target is all that is left of the dispatch, and no other has
// handled the event in it.
func (d *dispatch) isLast() bool {
	return int(d.next) == len(d.to.subscriptions)-1 && d.succeeded() == 0
}

// succeeded is the number of targets that have handled the event in this dispatch.
func (d *dispatch) succeeded() int {
	n := int(d.next)
	if d.story != nil && d.story.detours != nil {
		n -= len(d.story.detours.skipped)
	}
	return n
}

// waiter is the PublishAndWait that waits for the dispatch, if any.
func (d *dispatch) waiter() *waiter {
	if d.origin == nil || d.story != nil && d.story.unawaited {
		return nil
	}
	return d.origin.waiter
}

// story is what happened to a dispatch. Most have none.
type story struct {
	failures    []failure     // the first ones and the last ones
	omitted     int32         // failures between those
	omittedHere int32         // of these, those at the next target
	previous    time.Duration // the delay before this attempt, without RetryAfter
	counted     window.Mark   // the last failure, in the window of the next target
	parked      time.Duration // how long it was parked so far
	unawaited   bool          // its waiter no longer waits for it
	part        bool          // it was split off: its waiter waits for it, but its outcome is not the event's
	detours     *detours
}

// detours are the parts of a story that few dispatches have: most failures need no rule and no door.
type detours struct {
	spent   []spent   // of the budgets of rules
	skipped []int32   // targets that were split off
	seat    line.Seat // at the door of the last target
	told    *Attempt  // the attempt that observers saw begin, until they see it end
}

// spent is what a dispatch has spent of a rule's budget, and its last delay there.
type spent struct {
	of       *Subscription // whose rule; nil for one of the bus's
	rule     int32         // its position
	failures int32
	previous time.Duration // without RetryAfter
}

// failure is a Failure in fewer bytes: many wait in retries.
type failure struct {
	err          error
	text         string
	subscription *Subscription
	at           int64
	duration     time.Duration
	attempt      int32
	rule         int32 // that decided on it, from 1; 0: the policy
}

// tell returns the dispatch's story, and makes it if there is none.
func (d *dispatch) tell() *story {
	if d.story == nil {
		d.story = &story{}
	}
	return d.story
}

func (d *dispatch) detour() *detours {
	s := d.tell()
	if s.detours == nil {
		s.detours = &detours{}
	}
	return s.detours
}

// lastFailure is nil if there is none.
func (d *dispatch) lastFailure() *failure {
	if d.story == nil || len(d.story.failures) == 0 {
		return nil
	}
	return &d.story.failures[len(d.story.failures)-1]
}

// keep adds a failure at the next target. Beyond the limits of F5 it drops one between the first
// and the last ones.
func (d *dispatch) keep(f failure) {
	s := d.tell()
	if len(s.failures) == firstFailures+lastFailures {
		s.omitted++
		if s.failures[firstFailures].subscription == f.subscription {
			s.omittedHere++
		}
	}
	s.failures, _ = keepFailure(s.failures, firstFailures, f)
}

// passed notes that the dispatch goes on to the target after the next.
func (d *dispatch) passed() {
	if d.story != nil {
		d.story.counted, d.story.omittedHere = 0, 0
	}
}

// recovered reports whether every target at which the dispatch has failed has handled the event
// after all. A target that was split off has not.
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

// ruled is the number of failures that rules decided.
func (d *dispatch) ruled() (failures int) {
	if d.story != nil && d.story.detours != nil {
		for i := range d.story.detours.spent {
			failures += int(d.story.detours.spent[i].failures)
		}
	}
	return failures
}

// spentOn returns the record of what the dispatch has spent of a rule's budget, and makes it if
// there is none.
func (d *dispatch) spentOn(of *Subscription, rule int32) *spent {
	r := d.detour()
	i := slices.IndexFunc(r.spent, func(s spent) bool { return s.of == of && s.rule == rule })
	if i < 0 {
		i = len(r.spent)
		r.spent = append(r.spent, spent{of: of, rule: rule})
	}
	return &r.spent[i]
}

// splitOff makes a dispatch for the next target alone, with the attempts and failures that it has
// there.
func (d *dispatch) splitOff(policy *mergedPolicy) *dispatch {
	s := d.to.subscriptions[d.next]
	split := &dispatch{
		id: d.id, payload: d.payload, key: d.key, values: d.values, origin: d.origin, wall: d.wall,
		to: d.to.only(int(d.next), policy),
	}
	if d.story != nil {
		split.story = d.story.at(s)
		if f := split.lastFailure(); f != nil {
			split.attempt = f.attempt
		}
		d.passed()
	}
	d.detour().skipped = append(d.detour().skipped, d.next)
	return split
}

// narrow makes a dispatch's story that of its next target, the only one that is left.
func (d *dispatch) narrow() {
	d.attempt = 0
	if d.story == nil {
		return
	}
	before, whole := d.detour(), d.story
	d.story = whole.at(d.to.subscriptions[d.next])
	d.story.unawaited, d.story.part = whole.unawaited, whole.part
	after := d.detour()
	after.told, after.skipped = before.told, before.skipped
	if f := d.lastFailure(); f != nil {
		d.attempt = f.attempt
	}
}

// at is the part of a story that belongs to one target, the next one.
func (s *story) at(target *Subscription) *story {
	part := &story{counted: s.counted, omitted: s.omittedHere, parked: s.parked}
	for _, f := range s.failures {
		if f.subscription == target {
			part.failures = append(part.failures, f)
		}
	}
	// With its attempts go on its delays and its budgets; without any it begins anew.
	if len(part.failures) > 0 {
		part.previous = s.previous
		if s.detours != nil && len(s.detours.spent) > 0 {
			part.detours = &detours{spent: slices.Clone(s.detours.spent)}
		}
	}
	return part
}
