package eventbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/uuid7"
	"github.com/surebus/eventbus/internal/window"
)

// Reason is why a dispatch became a dead letter.
type Reason string

const (
	// ReasonExhausted: the last attempt of the retry policy, or of a rule, failed.
	ReasonExhausted Reason = "exhausted"
	// ReasonPermanent: the error was marked Permanent, or RetryIf, IncludeErrors or ExcludeErrors
	// ruled out a retry.
	ReasonPermanent Reason = "permanent"
	// ReasonCircuitOpen: the subscription's circuit was open.
	ReasonCircuitOpen Reason = "circuit_open"
	// ReasonOverflow: the line at the subscription's door was full.
	ReasonOverflow Reason = "overflow"
	// ReasonCrash: the event was running each time the process crashed. Only a bus with a durable
	// store makes such letters. Every bus can import them.
	ReasonCrash Reason = "crash"
	// ReasonExpired: the next retry would have started at or after MaxElapsed.
	ReasonExpired Reason = "expired"
	// ReasonTooLate: the event expired (ExpiresAt, ExpiresIn) before a call of the handler began, or would expire
	// before the next call.
	ReasonTooLate Reason = "too_late"
	// ReasonUnsubscribed: Unsubscribe was called before the event reached the handler.
	ReasonUnsubscribed Reason = "unsubscribed"
	// ReasonShutdown: Shutdown ended the bus before the dispatch settled. The dispatch was cut short,
	// parked or scheduled.
	ReasonShutdown Reason = "shutdown"
	// ReasonDuplicate: when the bus took an event in, or accepted an emitted one, an earlier event with other content
	// had its id or idempotency key.
	ReasonDuplicate Reason = "duplicate"
	// ReasonInvalid: an event of another process cannot be decoded, or violates a rule of this bus: payload limit,
	// codec or event type.
	ReasonInvalid Reason = "invalid"
	// ReasonOperator: an operator has given the delivery up (GiveUp).
	ReasonOperator Reason = "operator"
)

var reasons = []Reason{
	ReasonExhausted, ReasonPermanent, ReasonCircuitOpen, ReasonOverflow, ReasonCrash,
	ReasonExpired, ReasonTooLate, ReasonUnsubscribed, ReasonShutdown, ReasonDuplicate, ReasonInvalid,
	ReasonOperator,
}

// Reasons returns all reasons.
func Reasons() []Reason { return slices.Clone(reasons) }

// LetterID identifies a dead letter. It is a UUID of version 7. Later letters have larger ids.
type LetterID [16]byte

// String returns the UUID as 36 characters, in lower case.
func (id LetterID) String() string { return uuid7.Format(id) }

// IsZero reports whether the id is not set.
func (id LetterID) IsZero() bool { return id == LetterID{} }

// MarshalText returns the text that String returns.
func (id LetterID) MarshalText() ([]byte, error) { return []byte(uuid7.Format(id)), nil }

// UnmarshalText parses the id as ParseLetterID does.
func (id *LetterID) UnmarshalText(text []byte) error {
	parsed, err := ParseLetterID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// ParseLetterID parses a UUID of 36 characters. It does not look up the letter. Its error matches
// ErrInvalidLetter.
func ParseLetterID(s string) (LetterID, error) {
	id, ok := uuid7.Parse(s)
	if !ok {
		return LetterID{}, fmt.Errorf("%w: the id %q is not a UUID of the form 8-4-4-4-12 hexadecimal digits", ErrInvalidLetter, shorten(s))
	}
	return id, nil
}

// DeadLetter is the record of a dispatch that the bus does not retry any more. Replay opens a new
// dispatch from it.
type DeadLetter struct {
	ID     LetterID `json:"id"`     // the letter's id, which differs from the event's
	Event  Event    `json:"event"`  // the event as published, or as last edited: see Edited
	Reason Reason   `json:"reason"` // why the dispatch ended
	// Subscription is the subscription at which the dispatch ended.
	Subscription string `json:"subscription"`
	// Succeeded lists the subscriptions that handled the event, in this dispatch or in an earlier one
	// that was replayed.
	Succeeded []string `json:"succeeded,omitempty"`
	// NotReached lists the subscriptions after Subscription in the dispatch's order.
	NotReached []string `json:"not_reached,omitempty"`
	// Attempts is the number of attempts of the dispatch.
	Attempts int `json:"attempts"`
	// Failures lists the failures of all attempts in order, including those before a replay. Of more than 100 failures
	// it has the first 10 and the last 90.
	Failures []Failure `json:"failures,omitempty"`
	// FailuresOmitted is the number of failures left out between the first and the last ones.
	FailuresOmitted int `json:"failures_omitted,omitempty"`
	// Due is when a scheduled event is due, in UTC. It is zero for other events. A replay before Due
	// schedules the event again.
	Due time.Time `json:"due,omitzero"`
	// DiedAt is when the dispatch ended, in UTC.
	DiedAt time.Time `json:"died_at"`
	// Replays is the number of replays of the event before this letter.
	Replays int `json:"replays,omitempty"`
	// ReplayLog lists the last 10 of these replays, oldest first. A letter of an earlier version does not list them.
	ReplayLog []LetterReplay `json:"replay_log,omitempty"`
	// Fingerprint identifies the letter's group (LetterGroup) in every process.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Edited is set if ReplayEdited replaced the payload. Event then has the payload that was
	// delivered last, and Original has the published one. A payload may be nil.
	Edited   bool `json:"edited,omitempty"`
	Original any  `json:"original,omitempty"`
	// Edits is the number of replays that replaced the payload. It is 0 in a letter of an earlier version.
	Edits int `json:"edits,omitempty"`
	// Rule is the rule whose attempts were exhausted, or nil.
	Rule *RuleRef `json:"rule,omitempty"`
	// Position is the event's place in the order of acceptance of its store. It is 0 in a letter of a
	// bus without a store.
	Position int64 `json:"position,omitempty"`
}

// keptLetter is a letter, and what its bus knows of it besides.
type keptLetter struct {
	DeadLetter
	own *ownLetter // nil for a letter that was imported, or read from a store
}

// ownLetter is what only the bus that made a letter knows of it, and only in memory.
type ownLetter struct {
	// The entry of the event's last failure in the circuit window of a subscription. A replay is of
	// the same event, so its outcome replaces that entry.
	mark  window.Mark
	at    *Subscription
	order EventID // orders the letters of a key, see dispatch.orderID
}

// order returns what orders the letters of a key, or zero.
func (l *keptLetter) order() (order EventID) {
	if l.own != nil {
		order = l.own.order
	}
	return order
}

// copy returns a copy for users, who may change it.
func (l *keptLetter) copy() keptLetter { return keptLetter{l.clone(), l.own} }

// Failure is one failed attempt.
type Failure struct {
	Attempt      int           `json:"attempt"`           // number of the attempt, from 1
	Replays      int           `json:"replays,omitempty"` // replays of the event before the attempt
	Subscription string        `json:"subscription"`      // the subscription whose handler failed
	Time         time.Time     `json:"time"`              // when it failed, in UTC
	Duration     time.Duration `json:"duration"`          // how long the call took; in JSON, nanoseconds
	// Error is the error's text, cut at 8 KiB. Invalid UTF-8 in it is replaced by U+FFFD.
	Error string `json:"error"`
	// Class is the Go type of the error without wrappers, such as "*fs.PathError".
	Class string `json:"class,omitempty"`
	// Details is what the error's method Details() json.RawMessage returned: compact JSON of at most 8 KiB, or nil. A
	// JSON string with the reason replaces details that are longer or not JSON.
	Details json.RawMessage `json:"details,omitempty"`
	// Rule is the rule that decided on the failure, or nil if the retry policy did.
	Rule *RuleRef `json:"rule,omitempty"`
	// Err is the error itself. A *PanicError has the stack of a panic. In an imported letter, Err has
	// the text only.
	Err error `json:"-"`
}

// summary describes the letter in one line.
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

// clone returns a copy that shares no slice with the queue.
func (l *DeadLetter) clone() DeadLetter {
	c := *l
	c.Succeeded = slices.Clone(l.Succeeded)
	c.NotReached = slices.Clone(l.NotReached)
	c.Failures = slices.Clone(l.Failures)
	c.ReplayLog = slices.Clone(l.ReplayLog)
	c.Rule = l.Rule.clone()
	for i := range c.Failures {
		c.Failures[i].Rule = c.Failures[i].Rule.clone()
		c.Failures[i].Details = slices.Clone(c.Failures[i].Details)
	}
	return c
}

// Limits of the kept failures of a dispatch.
const (
	firstFailures = 10
	lastFailures  = 90
)

// keepFailure appends f to the kept failures. If they are at their limit, it drops one between the
// first and the last ones. It returns the number of dropped failures.
func keepFailure[F any](kept []F, first int, f F) ([]F, int) {
	if len(kept) < first+lastFailures {
		return append(kept, f), 0
	}
	copy(kept[first:], kept[first+1:])
	kept[len(kept)-1] = f
	return kept, 1
}

// DLQ is the dead letter queue of a bus. Its methods are safe for concurrent use, and work before Start. After
// Shutdown, replays return ErrShutdown. The other methods still work in memory, and return ErrStoreClosed with a store.
type DLQ struct{ bus *Bus }

// DLQ returns the dead letter queue of the bus.
func (b *Bus) DLQ() *DLQ { return &DLQ{b} }

// ready returns the error of a call that cannot proceed, or nil.
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

// operator returns the operator of a call that can proceed.
func (q *DLQ) operator(ctx context.Context, what string, opts []DirectiveOption) (operator, error) {
	if err := q.ready(ctx); err != nil {
		return operator{}, err
	}
	return newOperator(what, opts)
}

// List returns a page of the letters that match a query, newest first. An empty query matches all letters. With a store
// it blocks for the reads, which ctx bounds.
//
// Event, Fingerprint, Key, Subscription and Reason are served by an index. For the other fields,
// List scans the letters that the index yields, at about 0.2 µs a letter.
//
// Errors: *PatternError, *OptionError, the context's error, the store's.
func (q *DLQ) List(ctx context.Context, query LetterQuery) (LetterPage, error) {
	f, err := q.filter(ctx, query)
	if err != nil {
		return LetterPage{}, fmt.Errorf("List: %w", err)
	}
	page, err := q.bus.letters.page(ctx, f)
	if err != nil {
		return LetterPage{}, fmt.Errorf("List: %w", err)
	}
	return page.page(), nil
}

// Get returns the letter with an id. With a store it blocks for the read, which ctx bounds.
//
// Errors: ErrNotFound, the context's error, the store's.
func (q *DLQ) Get(ctx context.Context, id LetterID) (DeadLetter, error) {
	if err := q.ready(ctx); err != nil {
		return DeadLetter{}, fmt.Errorf("Get: %w", err)
	}
	l, err := q.bus.letters.get(ctx, id)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("Get(%s): %w", id, err)
	}
	return l.DeadLetter, nil
}

// Replay removes a letter and opens, in the same step, a dispatch of its event. The dispatch has
// the same event id and goes to the subscriptions that did not succeed, with fresh attempts. If it
// fails again, the new letter has the whole history. Replay returns when the dispatch is queued; it
// does not wait for room in the queue. An event whose Due is in the future is scheduled again.
//
// A letter of an unnamed subscription can be replayed only by the bus that made it. For an imported
// letter, each name must belong to a subscription of this bus by Named or Formerly.
//
// Errors, after which the letter stays in the queue: ErrNotFound for a letter that is unknown, replayed or purged;
// ErrNoSubscription with the missing name; ErrShutdown; an *OptionError; the context's error; the store's.
func (q *DLQ) Replay(ctx context.Context, id LetterID, opts ...DirectiveOption) error {
	o, err := q.operator(ctx, "Replay", opts)
	if err != nil {
		return fmt.Errorf("Replay: %w", err)
	}
	if err := q.bus.intake.replay(ctx, id, &replaying{by: o.by, audit: q.bus.operators.entry(o, AuditReplay)}); err != nil {
		return fmt.Errorf("Replay(%s): %w", id, err)
	}
	return nil
}

// ReplayEdited replays a letter with another payload. The event keeps its id, type, key, metadata
// and time. If the dispatch fails again, the new letter has the new payload in Event, and the
// published payload in Original, after any number of edits. With a store, the codec encodes the payload,
// unless it is an EncodedPayload.
//
// Errors: those of Replay; a *PayloadError; an *EventError for a json.RawMessage that is not valid JSON.
func (q *DLQ) ReplayEdited(ctx context.Context, id LetterID, payload any, opts ...DirectiveOption) error {
	o, err := q.operator(ctx, "ReplayEdited", opts)
	if err == nil {
		err = checkJSON(payload)
	}
	if err == nil {
		payload, err = q.bus.journal.encodePayload(payload)
	}
	if err != nil {
		return fmt.Errorf("ReplayEdited: %w", err)
	}
	if err := q.bus.intake.replay(ctx, id, &replaying{by: o.by, edits: true, payload: payload, audit: q.bus.operators.entry(o, AuditReplayEdited)}); err != nil {
		return fmt.Errorf("ReplayEdited(%s): %w", id, err)
	}
	return nil
}

// checkJSON rejects a json.RawMessage that encoding/json cannot encode: a letter with such a
// payload could not be exported.
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

// Purge deletes a letter. When it returns, a store that implements driver.Eraser has no copy of the payload.
//
// Errors: ErrNotFound, *OptionError, the context's error, the store's; ErrNotErased, after which the letter is deleted.
func (q *DLQ) Purge(ctx context.Context, id LetterID, opts ...DirectiveOption) error {
	o, err := q.operator(ctx, "Purge", opts)
	if err != nil {
		return fmt.Errorf("Purge: %w", err)
	}
	entry := q.bus.operators.entry(o, AuditPurge)
	entry.Letter = id
	by := &o
	l, err := q.bus.letters.get(ctx, id)
	if undecodable := (*DecodeError)(nil); errors.As(err, &undecodable) { // it has no outcome
		by, err = nil, nil
	}
	removed := 0
	if err == nil {
		ref := letterRef{id: id, event: l.Event.ID, subscription: l.Subscription, diedAt: l.DiedAt, attempts: l.Attempts, replays: l.Replays}
		removed, err = q.bus.letters.remove(ctx, []letterRef{ref}, by, entry)
	}
	if err == nil && removed == 0 {
		err = ErrNotFound
	}
	if err == nil {
		audited(q.bus.audits, q.bus.report, entry)
		err = q.bus.letters.erase(ctx)
	}
	if err != nil {
		return fmt.Errorf("Purge(%s): %w", id, err)
	}
	return nil
}

// letter returns the record of a dispatch that ends at its next target.
func (m *machine) letter(d *dispatch, reason Reason) *keptLetter {
	r := d.replay()
	own := &ownLetter{order: d.orderID()}
	l := &keptLetter{own: own, DeadLetter: DeadLetter{
		Event:        d.event(m.time),
		Reason:       reason,
		Subscription: d.to.subscriptions[d.next].id,
		Attempts:     int(d.attempt),
		DiedAt:       m.time.Now().UTC,
		Replays:      int(r.count),
		ReplayLog:    r.log,
		Edited:       r.edits > 0,
		Original:     r.original,
		Edits:        int(r.edits),
		Succeeded:    slices.Clone(r.succeeded),
		Failures:     slices.Clone(r.history),

		FailuresOmitted: r.historyOmitted,
		Due:             r.due,
	}}
	if s := d.row(); s != nil {
		l.ID, l.Position = m.ids.Next(m.time.Now().Millis), s.position
	}
	if due := d.from().due; due != nil && l.Due.IsZero() {
		l.Due = due.time(m.time)
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
		if own.mark = d.story.mark; own.mark != 0 {
			own.at = d.to.subscriptions[d.next]
		}
		l.FailuresOmitted += int(d.story.omitted)
		for i := range d.story.failures {
			var omitted int
			l.Failures, omitted = keepFailure(l.Failures, firstFailures, d.failureOf(&d.story.failures[i], m.time))
			l.FailuresOmitted += omitted
		}
		if n := len(l.Failures); reason == ReasonExhausted && n > 0 {
			l.Rule = l.Failures[n-1].Rule.clone()
		}
	}
	l.Fingerprint = l.Group().Fingerprint
	return l
}

// died counts, logs and reports a dead letter.
func (m *machine) died(d *dispatch, l *DeadLetter) {
	d.to.counters.deadLettered.Add(1)
	if run := d.replay().run; run != nil && d.lastFailure() == nil { // else its failures were counted
		run.failed()
	}
	m.report.deadLettered(d, l)
}
