package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/timeline"
	"github.com/surebus/eventbus/internal/uuid7"
)

// Reason is why a dispatch died.
type Reason string

const (
	// ReasonExhausted: the last attempt of the retry policy, or of a rule, failed.
	ReasonExhausted Reason = "exhausted"
	// ReasonPermanent: the error was marked Permanent, or RetryIf or a list of names
	// refused it.
	ReasonPermanent Reason = "permanent"
	// ReasonCircuitOpen: the subscription was skipped, its circuit being open.
	ReasonCircuitOpen Reason = "circuit_open"
	// ReasonOverflow: the line at the subscription's door was full.
	ReasonOverflow Reason = "overflow"
	// ReasonCrash: the event kept ending the process. Only a bus with a durable store makes such
	// letters; any bus imports them.
	ReasonCrash Reason = "crash"
	// ReasonExpired: the next retry would have come at or past MaxElapsed.
	ReasonExpired Reason = "expired"
	// ReasonUnsubscribed: the subscription ended before the event reached it.
	ReasonUnsubscribed Reason = "unsubscribed"
	// ReasonShutdown: Shutdown's context ended before the dispatch did.
	ReasonShutdown Reason = "shutdown"
)

var reasons = []Reason{
	ReasonExhausted, ReasonPermanent, ReasonCircuitOpen, ReasonOverflow, ReasonCrash,
	ReasonExpired, ReasonUnsubscribed, ReasonShutdown,
}

// LetterID identifies a dead letter: a UUID of version 7. Later letters have
// larger ones.
type LetterID [16]byte

// String is the UUID's usual form, in lower case.
func (id LetterID) String() string { return uuid7.Format(id) }

// IsZero reports whether the id is not set.
func (id LetterID) IsZero() bool { return id == LetterID{} }

// MarshalText is String.
func (id LetterID) MarshalText() ([]byte, error) { return []byte(uuid7.Format(id)), nil }

// UnmarshalText is ParseLetterID.
func (id *LetterID) UnmarshalText(text []byte) error {
	parsed, err := ParseLetterID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// ParseLetterID reads a UUID in its usual form, of 36 characters. It does not look for
// the letter. The error matches ErrInvalidLetter.
func ParseLetterID(s string) (LetterID, error) {
	id, ok := uuid7.Parse(s)
	if !ok {
		return LetterID{}, fmt.Errorf("%w: the id %q is not a UUID of the form 8-4-4-4-12 hexadecimal digits", ErrInvalidLetter, shorten(s))
	}
	return id, nil
}

// DeadLetter is the record of a dispatch that will not be tried again by itself.
type DeadLetter struct {
	ID     LetterID `json:"id"`
	Event  Event    `json:"event"`
	Reason Reason   `json:"reason"`
	// Subscription is where it ended.
	Subscription string `json:"subscription"`
	// Succeeded are the subscriptions that handled the event, in this dispatch
	// or, if it is a replay, in one before.
	Succeeded []string `json:"succeeded,omitempty"`
	// NotReached are the subscriptions that were to come after Subscription.
	NotReached []string `json:"not_reached,omitempty"`
	// Attempts is how many attempts the dispatch had.
	Attempts int `json:"attempts"`
	// Failures are the failures of all attempts, also of those before a replay,
	// in order. Of more than 100, the first 10 and the last 90 are kept.
	Failures []Failure `json:"failures,omitempty"`
	// FailuresOmitted is how many were left out after the first 10.
	FailuresOmitted int `json:"failures_omitted,omitempty"`
	// Due is when a scheduled event is due, in UTC; zero for other events. A replay before
	// that schedules the event again.
	Due time.Time `json:"due,omitzero"`
	// DiedAt is when it died, in UTC.
	DiedAt time.Time `json:"died_at"`
	// Replays is how often the event had been replayed.
	Replays int `json:"replays,omitempty"`
	// Fingerprint is that of its group: see LetterGroup.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Edited is set if the event has been replayed with another payload than it
	// was published with: the event is then as it was delivered last, and Original
	// is the payload that it was published with. A payload may be nil.
	Edited   bool `json:"edited,omitempty"`
	Original any  `json:"original,omitempty"`
	// Rule is the rule that was exhausted; nil if none was.
	Rule *RuleRef `json:"rule,omitempty"`

	// Where the event's last failure stands in the window of a subscription: a
	// replay is of the same event, and takes its place.
	counted counted
	at      *Subscription

	madeBy *Bus    // nil: the letter was imported
	order  EventID // of the dispatch, see dispatch.orderID; zero: the letter was imported
}

// Failure is one failed attempt.
type Failure struct {
	Attempt      int           `json:"attempt"`
	Replays      int           `json:"replays,omitempty"` // of the event, at the time
	Subscription string        `json:"subscription"`
	Time         time.Time     `json:"time"`     // when it failed, in UTC
	Duration     time.Duration `json:"duration"` // of the call; in JSON, nanoseconds
	// Error is the error's text, of which at most 8 KiB are kept. What is no UTF-8
	// in it is U+FFFD.
	Error string `json:"error"`
	// Class is the Go type of the error: see LetterGroup.
	Class string `json:"class,omitempty"`
	// Rule is the rule that decided on it; nil if the retry policy did.
	Rule *RuleRef `json:"rule,omitempty"`
	// Err is the error itself: a *PanicError has the stack of a panic. Of an
	// imported letter it is an error that has the text, and nothing else.
	Err error `json:"-"`
}

func (l *DeadLetter) summary() string {
	s := fmt.Sprintf("%s at %s (letter %s)", l.Reason, l.Subscription, l.ID)
	if l.Rule != nil {
		s = fmt.Sprintf("%s by %s at %s (letter %s)", l.Reason, l.Rule, l.Subscription, l.ID)
	}
	if n := len(l.Failures); n > 0 {
		s += ": " + l.Failures[n-1].Error
	}
	return s
}

func (l *DeadLetter) clone() DeadLetter {
	c := *l
	c.Succeeded = slices.Clone(l.Succeeded)
	c.NotReached = slices.Clone(l.NotReached)
	c.Failures = slices.Clone(l.Failures)
	c.Rule = l.Rule.clone()
	for i := range c.Failures {
		c.Failures[i].Rule = c.Failures[i].Rule.clone()
	}
	return c
}

// What is kept of the failures of a dispatch.
const (
	firstFailures = 10
	lastFailures  = 90
)

// keepFailure appends to the failures that are kept, the first and the last ones, and
// returns how many it left out.
func keepFailure[F any](kept []F, first int, f F) ([]F, int) {
	if len(kept) < first+lastFailures {
		return append(kept, f), 0
	}
	copy(kept[first:], kept[first+1:])
	kept[len(kept)-1] = f
	return kept, 1
}

// DLQ is the dead letter queue of a bus. Its methods are safe for concurrent
// use, before Start and after Shutdown too.
type DLQ struct{ bus *Bus }

// DLQ returns the dead letter queue.
func (b *Bus) DLQ() *DLQ { return &DLQ{b} }

// ready is what is wrong with a call, if anything.
func (q *DLQ) ready(ctx context.Context) error {
	if q == nil {
		return ErrUninitialized
	}
	if err := q.bus.ready(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	return nil
}

// List returns a page of the letters that match a query, newest first. It does
// not block; the context is only asked whether it has ended. It reads only letters
// of the query's Fingerprint, or else of its Subscription and Reason; by the other
// fields it may read all of those, at about 0.2 µs a letter. Errors: *PatternError,
// *OptionError, the context's.
func (q *DLQ) List(ctx context.Context, query LetterQuery) (LetterPage, error) {
	f, err := q.filter(ctx, query)
	if err != nil {
		return LetterPage{}, fmt.Errorf("List: %w", err)
	}
	return q.bus.letters.list(f), nil
}

// Get returns a letter. The error matches ErrNotFound if there is none, or is the
// context's.
func (q *DLQ) Get(ctx context.Context, id LetterID) (DeadLetter, error) {
	if err := q.ready(ctx); err != nil {
		return DeadLetter{}, fmt.Errorf("Get: %w", err)
	}
	l, ok := q.bus.letters.get(id)
	if !ok {
		return DeadLetter{}, fmt.Errorf("Get: %w: %s", ErrNotFound, id)
	}
	return l, nil
}

// Replay consumes a letter and opens, in one step, a dispatch of its event, with
// the same id, for the subscriptions that did not succeed, with fresh attempts.
// Dying again makes a new letter with the whole history. It returns when the
// dispatch is queued, and does not wait for room. An event whose Due is in the future is
// scheduled again.
//
// Errors: ErrNotFound if the letter is unknown or has been replayed or purged;
// ErrNoSubscription, naming it, if one of its subscriptions does not exist;
// ErrShutdown; the context's. With any of them the letter is where it was.
//
// A letter of an unnamed subscription can be replayed only by the bus that made it. For an
// imported letter, ErrNoSubscription is also the error if a name in it was not given to
// a subscription of this bus by Named or Formerly.
func (q *DLQ) Replay(ctx context.Context, id LetterID) error {
	if err := q.ready(ctx); err != nil {
		return fmt.Errorf("Replay: %w", err)
	}
	if err := q.bus.replay(id, nil); err != nil {
		return fmt.Errorf("Replay(%s): %w", id, err)
	}
	return nil
}

// ReplayEdited is Replay with another payload, for an event that cannot be handled
// as it is. Its id, type, metadata and time stay. It is the dispatch's payload, for
// all subscriptions that did not succeed, and that of the letter if it dies again,
// which keeps the payload that the event was published with in Original: the very
// first one, however often it is edited. Errors: those of Replay; an *EventError for a
// json.RawMessage that is not valid JSON.
func (q *DLQ) ReplayEdited(ctx context.Context, id LetterID, payload any) error {
	if err := q.ready(ctx); err != nil {
		return fmt.Errorf("ReplayEdited: %w", err)
	}
	if err := checkJSON(payload); err != nil {
		return fmt.Errorf("ReplayEdited: %w", err)
	}
	if err := q.bus.replay(id, &replaying{edits: true, payload: payload}); err != nil {
		return fmt.Errorf("ReplayEdited(%s): %w", id, err)
	}
	return nil
}

// checkJSON refuses a json.RawMessage that encoding/json cannot encode.
func checkJSON(payload any) error {
	raw, ok := payload.(json.RawMessage)
	if !ok || raw == nil {
		return nil
	}
	err := json.Unmarshal(raw, new(json.RawMessage))
	if err == nil {
		return nil
	}
	refused := &EventError{Field: "payload", Value: shorten(string(raw)), Reason: "not valid JSON: " + err.Error()}
	var at *json.SyntaxError
	if errors.As(err, &at) {
		refused.Offset = int(at.Offset)
	}
	return refused
}

// Purge deletes a letter. The error matches ErrNotFound if there is none, or is the
// context's.
func (q *DLQ) Purge(ctx context.Context, id LetterID) error {
	if err := q.ready(ctx); err != nil {
		return fmt.Errorf("Purge: %w", err)
	}
	if q.bus.letters.remove([]LetterID{id}) == 0 {
		return fmt.Errorf("Purge: %w: %s", ErrNotFound, id)
	}
	return nil
}

// letter is the record of a dispatch that dies at its next target.
func (b *Bus) letter(d *dispatch, reason Reason) *DeadLetter {
	r := d.replay()
	l := &DeadLetter{
		Event:        d.event(b.time),
		Reason:       reason,
		Subscription: d.to.subscriptions[d.next].id,
		Attempts:     int(d.attempt),
		DiedAt:       b.time.Now().UTC,
		Replays:      int(r.count),
		Edited:       r.edited,
		Original:     r.original,
		Succeeded:    slices.Clone(r.succeeded),
		Failures:     slices.Clone(r.history),

		FailuresOmitted: r.historyOmitted,
		Due:             r.due,
		madeBy:          b,
		order:           d.orderID(),
	}
	if due := d.from().due; due != 0 && l.Due.IsZero() {
		l.Due = b.time.At(due)
	}
	var skipped []int32
	if d.story != nil && d.story.detours != nil {
		skipped = d.story.detours.skipped
	}
	for i, s := range d.to.subscriptions[:d.next] {
		if !slices.Contains(skipped, int32(i)) {
			l.Succeeded = append(l.Succeeded, s.id)
		}
	}
	for _, s := range d.to.subscriptions[d.next+1:] {
		l.NotReached = append(l.NotReached, s.id)
	}
	if d.story != nil {
		if l.counted = d.story.counted; l.counted != (counted{}) {
			l.at = d.to.subscriptions[d.next]
		}
		l.FailuresOmitted += int(d.story.omitted)
		for i := range d.story.failures {
			var omitted int
			l.Failures, omitted = keepFailure(l.Failures, firstFailures, b.failureOf(d, &d.story.failures[i]))
			l.FailuresOmitted += omitted
		}
		if n := len(l.Failures); reason == ReasonExhausted && n > 0 {
			l.Rule = l.Failures[n-1].Rule.clone()
		}
	}
	l.Fingerprint = l.group().Fingerprint
	return l
}

// replaying is what a replay changes. Its methods may be called on nil.
type replaying struct {
	edits   bool
	payload any      // with edits
	run     *bulkRun // that it is part of, if any
}

// replay opens a dispatch of a letter's event and takes the letter, in one step.
func (b *Bus) replay(id LetterID, r *replaying) error {
	// Counted before ending is read: if that is not set, Shutdown waits for this.
	b.entering.Add(1)
	defer func() {
		b.entering.Add(-1)
		b.checkDrained()
	}()
	if b.ending.Load() {
		return b.refuseShutdown()
	}
	l, ok := b.letters.get(id)
	if !ok {
		return ErrNotFound
	}
	d, err := b.reopen(&l, r)
	if err != nil {
		return err
	}
	if err := b.recordNow(&change{kind: toReplay, d: d, letter: &l}); err != nil {
		return err
	}
	b.replayed(&l)
	return nil
}

// replayedLetter takes the letter of a replay and makes its dispatch runnable, or schedules it again.
// Of several replays of a letter at the same moment one takes it.
func (b *Bus) replayedLetter(d *dispatch, l *DeadLetter) error {
	if b.letters.remove([]LetterID{l.ID}) == 0 {
		return ErrNotFound
	}
	b.ledger.replays.Add(1)
	if d.from().due > b.time.Nanos() {
		b.schedule(d)
	} else {
		b.enqueue(d, false)
	}
	return nil
}

// recipientLocked returns the subscription to which a name in a letter refers. A name such as
// "order.*#1" belongs to an unnamed subscription and depends on the order of the Subscribe
// calls. Another bus may use it for another handler, so only the bus that made the letter
// resolves it.
func (b *Bus) recipientLocked(l *DeadLetter, name string) (*Subscription, error) {
	s := b.subscriptions.find(name)
	switch {
	case s == nil:
		return nil, fmt.Errorf("%w: %q; subscribe with Named(%[2]q) or Formerly(%[2]q), or purge the letter", ErrNoSubscription, name)
	case l.madeBy != b && !s.owns(name):
		return nil, fmt.Errorf("%w: another bus made the letter, and %q is an unnamed subscription here; "+
			"subscribe with Named and Formerly(%[2]q), or purge the letter", ErrNoSubscription, name)
	}
	return s, nil
}

// reopen makes a dispatch for the subscriptions of a letter that did not succeed.
func (b *Bus) reopen(l *DeadLetter, r *replaying) (*dispatch, error) {
	to := &targets{eventType: l.Event.Type, counters: b.types.of(l.Event.Type)}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range append([]string{l.Subscription}, l.NotReached...) {
		s, err := b.recipientLocked(l, id)
		if err != nil {
			return nil, err
		}
		to.subscriptions = append(to.subscriptions, s)
	}
	slices.SortFunc(to.subscriptions, func(x, y *Subscription) int { return cmp.Compare(x.number, y.number) })
	to.subscriptions = slices.Compact(to.subscriptions) // one may have adopted the name of another
	to.retry = b.retryInForce(to.subscriptions)
	b.isolate(to)
	now := b.time.Now()
	again := &replay{
		published:      l.Event.Time,
		due:            l.Due,
		began:          now.Nanos,
		count:          int32(min(l.Replays, math.MaxInt32-1)) + 1,
		succeeded:      l.Succeeded,
		history:        l.Failures,
		historyOmitted: l.FailuresOmitted,
		edited:         l.Edited,
		original:       l.Original,
		at:             l.at,
		counted:        l.counted,
	}
	d := &dispatch{
		id: l.Event.ID, payload: l.Event.Payload, to: to, key: l.Event.Key, wall: now.Wall,
		origin: &origin{metadata: l.Event.Metadata, replay: again},
	}
	if l.Due.After(now.UTC) {
		d.origin.due = timeline.Later(now.Nanos, l.Due.Sub(now.UTC))
	}
	b.ids.Put((*[16]byte)(&d.origin.order), now.Millis)
	if r != nil {
		again.run = r.run
		if r.edits {
			if !l.Edited {
				again.edited, again.original = true, l.Event.Payload
			}
			d.payload = r.payload
		}
	}
	return d, nil
}
