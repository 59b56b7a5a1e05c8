package eventbus

import (
	"context"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/timeline"
)

// opening is what a dispatch begins with. It is what queues hold, so it is small.
type opening struct {
	id      EventID
	payload any
	with    context.Context // the values, or the extras that have them; nil for neither
	to      *targets
	key     string
	wall    int64 // the time of publication, see Timeline.UTC
}

// extras is what most openings do not have. It stands where the values do, so that
// those that have neither need no room for both.
type extras struct {
	context.Context // the values; nil for none

	metadata EventMetadata
	waiter   *waiter
	replay   *replay // the last one, if it was replayed
	due      int64   // when it is due, if it was published for later
	given    bool    // its id was given
}

// replay is what an event has that was replayed.
type replay struct {
	published time.Time  // exactly: it may not have begun on this timeline
	asked     *replaying // if more was asked for than the replay
	count     int32      // how often it has been replayed
}

// extras are the opening's, nil if it has none.
func (o *opening) extras() *extras {
	e, _ := o.with.(*extras)
	return e
}

// values are for the handlers' contexts; nil for none.
func (o *opening) values() context.Context {
	if e := o.extras(); e != nil {
		return e.Context
	}
	return o.with
}

// dispatch is an event on its way to its subscriptions. It belongs to one
// goroutine at a time: whoever opened it, a worker, or nobody while it is queued
// or waits.
//
// A worker runs one dispatch after another in the same piece of memory. One that
// has to wait moves out of there.
type dispatch struct {
	opening
	story   *story // nil until there is something to tell
	attempt int32
	next    int32 // where to go on in to.subscriptions
	apart   bool  // it has an allocation of its own
}

// ticket is what a queue holds of a dispatch that goes on and is apart: the dispatch
// itself, in place of a payload.
func (d *dispatch) ticket() *opening { return &opening{payload: d, to: d.to, key: d.key} }

// event is what the handlers get.
func (d *dispatch) event(t *timeline.Timeline) (e Event) {
	d.put(&e, t)
	return e
}

// put puts the event into place.
func (d *dispatch) put(e *Event, t *timeline.Timeline) {
	e.ID, e.Type, e.Payload, e.Key, e.Time = d.id, d.to.eventType, d.payload, d.key, d.published(t)
	if extras := d.extras(); extras != nil {
		e.Metadata = extras.metadata
	} else {
		e.Metadata = EventMetadata{}
	}
}

// published is the time of publication, in UTC.
func (o *opening) published(t *timeline.Timeline) time.Time {
	if e := o.extras(); e != nil && e.replay != nil {
		return e.replay.published
	}
	return t.UTC(o.wall)
}

// replays is how often the event has been replayed.
func (d *dispatch) replays() int {
	if e := d.extras(); e != nil && e.replay != nil {
		return int(e.replay.count)
	}
	return 0
}

// failedReplay notes a failure of a replay for the ReplayMatching that made it, if
// one did.
func (d *dispatch) failedReplay() {
	if e := d.extras(); e != nil && e.replay != nil && e.replay.asked != nil {
		e.replay.asked.run.failed()
	}
}

// waiter is who waits for it to settle, if anybody.
func (o *opening) waiter() *waiter {
	if e := o.extras(); e != nil {
		return e.waiter
	}
	return nil
}

// story is what most dispatches do not have.
type story struct {
	first    failure       // of no subscription: none
	previous time.Duration // the delay before this attempt, without RetryAfter
	counted  counted       // the last failure, in the window of the next subscription
	rest     *rest         // a pointer, as most that wait have failed once
}

// rest is what follows the first failure, and what most stories do not have.
type rest struct {
	more []failure
	rare *rarities
}

// failures goes through those that are kept, oldest first.
func (s *story) failures(yield func(*failure) bool) {
	if s.last() == nil || !yield(&s.first) || s.rest == nil {
		return
	}
	for i := range s.rest.more {
		if !yield(&s.rest.more[i]) {
			return
		}
	}
}

// last is the last failure, nil if there is none.
func (s *story) last() *failure {
	switch {
	case s.first.subscription == nil:
		return nil
	case s.rest == nil || len(s.rest.more) == 0:
		return &s.first
	}
	return &s.rest.more[len(s.rest.more)-1]
}

func (s *story) others() *rest {
	if s.rest == nil {
		s.rest = &rest{}
	}
	return s.rest
}

// passed notes that the dispatch goes on to its next subscription.
func (d *dispatch) passed() {
	d.story.counted = counted{}
	if rare := d.rare(); rare != nil {
		rare.omittedHere = 0
	}
}

// rarities is what even most stories do not have.
type rarities struct {
	omitted        int       // failures that are not kept
	omittedHere    int       // of these, those at the subscription that is next
	spent          []spent   // on rules
	skipped        []int32   // subscriptions that have been split off
	seat           seat      // of one that has been held
	noPlace        bool      // it does not have its key's place
	succeeded      []string  // in the dispatches before this replay
	history        []Failure // of those
	historyOmitted int
	attempt        *Attempt // that observers know of, until they know of its end
	edited         bool     // the payload is another one than original, the event's own
	original       any
}

// spent is what a dispatch has spent of a rule's budget, and where it is in its delays.
type spent struct {
	of       *Subscription // whose rule; nil for one of the bus's
	rule     int32         // its position
	failures int32
	previous time.Duration // the last delay, without RetryAfter
}

// spentOn is what has been spent on a rule.
func (r *rarities) spentOn(of *Subscription, rule int32) *spent {
	i := slices.IndexFunc(r.spent, func(s spent) bool { return s.of == of && s.rule == rule })
	if i < 0 {
		i = len(r.spent)
		r.spent = append(r.spent, spent{of: of, rule: rule})
	}
	return &r.spent[i]
}

// ruled is how many failures rules have decided on.
func (d *dispatch) ruled() (failures int) {
	if rare := d.rare(); rare != nil {
		for i := range rare.spent {
			failures += int(rare.spent[i].failures)
		}
	}
	return failures
}

// failure is a Failure in fewer bytes: many wait in retries.
type failure struct {
	err          error
	text         string
	subscription *Subscription
	at           int64
	duration     time.Duration
	attempt      int32
	rule         int32 // that has decided on it, from 1; 0: the policy
}

// retried reports whether an attempt of this dispatch has failed.
func (d *dispatch) retried() bool { return d.story != nil && d.story.last() != nil }

// recovered reports whether the subscriptions at which this dispatch has failed
// have handled the event after all; one that was then skipped has not.
func (d *dispatch) recovered() bool {
	if !d.retried() {
		return false
	}
	rare := d.rare()
	if rare == nil {
		return true
	}
	for f := range d.story.failures {
		if slices.ContainsFunc(rare.skipped, func(i int32) bool { return f.subscription == d.to.subscriptions[i] }) {
			return false
		}
	}
	return true
}

func (d *dispatch) tale() *story {
	if d.story == nil {
		d.story = &story{}
	}
	return d.story
}

// rare are its rarities, nil if it has none.
func (d *dispatch) rare() *rarities {
	if d.story == nil || d.story.rest == nil {
		return nil
	}
	return d.story.rest.rare
}

func (d *dispatch) rarities() *rarities {
	s := d.tale().others()
	if s.rare == nil {
		s.rare = &rarities{}
	}
	return s.rare
}

// outlier is a dispatch that has moved out, in one allocation with its story.
type outlier struct {
	dispatch
	told story
}

// moveOut gives a dispatch an allocation of its own, and a story.
func (d *dispatch) moveOut() *dispatch {
	if d.apart {
		return d
	}
	out := &outlier{}
	// Before any pointer: while the collector marks, to put one into memory reads it
	// first, and the system then maps what is new twice.
	out.told.first.attempt = d.attempt
	out.dispatch = *d
	out.apart = true
	if out.story == nil {
		out.story = &out.told
	}
	return &out.dispatch
}

// keep adds a failure at a subscription to the story.
func (d *dispatch) keep(at *Subscription) *failure {
	s := d.tale()
	if s.first.subscription == nil {
		s.first.subscription = at
		return &s.first
	}
	rest := s.others()
	const first = firstFailures - 1
	if len(rest.more) == first+lastFailures {
		r := d.rarities()
		r.omitted++
		if rest.more[first].subscription == at {
			r.omittedHere++
		}
	}
	rest.more, _ = keepFailure(rest.more, first, failure{subscription: at})
	return &rest.more[len(rest.more)-1]
}

// splitOff makes a dispatch for the next subscription alone, with the attempts and
// failures that it has there. With all, that is all that is left of d, and takes
// over its key's place and whoever waits for it.
func (d *dispatch) splitOff(s *Subscription, policy *mergedPolicy, all bool) *dispatch {
	split := &dispatch{opening: d.opening, apart: true}
	split.to = &targets{eventType: d.to.eventType, subscriptions: []*Subscription{s}, counters: d.to.counters}
	split.to.merged.Store(policy)
	if d.story != nil {
		story := split.tale()
		for f := range d.story.failures {
			if f.subscription == s {
				*split.keep(s) = *f
				split.attempt = f.attempt
			}
		}
		story.counted = d.story.counted
		if split.attempt > 0 { // its attempts are counted on, and so are its delays
			story.previous = d.story.previous
		}
		if old := d.rare(); old != nil {
			story.others().rare = &rarities{omitted: old.omittedHere, spent: split.spentOf(old), succeeded: old.succeeded, history: old.history, historyOmitted: old.historyOmitted, edited: old.edited, original: old.original}
		}
		d.passed()
	}
	d.rarities().skipped = append(d.rarities().skipped, d.next)
	if !all {
		split.dropWaiter()
		split.dropPlace()
	} else if !d.hasPlace() {
		split.dropPlace()
	}
	return split
}

// spentOf is what a dispatch that was split off another one has spent: all, as its
// attempts are counted on from there; if it has none, nothing.
func (d *dispatch) spentOf(other *rarities) []spent {
	if d.attempt == 0 {
		return nil
	}
	return slices.Clone(other.spent)
}

// hasPlace reports whether the dispatch has its key's place: the next one of the
// key waits for it.
func (d *dispatch) hasPlace() bool {
	return d.key != "" && (d.rare() == nil || !d.rare().noPlace)
}

func (d *dispatch) dropPlace() {
	if d.key != "" {
		d.rarities().noPlace = true
	}
}

// dropWaiter makes the dispatch one that nobody waits for.
func (d *dispatch) dropWaiter() {
	if d.waiter() != nil {
		// Not in place: another dispatch has the same extras.
		extras := *d.extras()
		extras.waiter = nil
		d.with = &extras
	}
}

// succeeded is how many subscriptions have handled the event in this dispatch.
func (d *dispatch) succeeded() int {
	n := int(d.next)
	if rare := d.rare(); rare != nil {
		n -= len(rare.skipped)
	}
	return n
}
