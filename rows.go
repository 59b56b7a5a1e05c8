package eventbus

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/settled"
	"github.com/surebus/eventbus/internal/timeline"
)

// batch is a driver.Batch in the making. If a part of it cannot be encoded, the store refuses it: see guardedStore.
type batch struct {
	driver.Batch
	err error // the first of encode
}

func newBatch(t *timeline.Timeline) *batch { return &batch{Batch: driver.Batch{Now: t.Now().UTC}} }

// encode returns the JSON of a part.
func (w *batch) encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = err
	}
	return text
}

// bury adds dead letters.
func (w *batch) bury(letters ...*DeadLetter) {
	for _, l := range letters {
		w.Bury = append(w.Bury, w.letter(l))
	}
}

// audit adds an entry. nil stands for none.
func (w *batch) audit(e *AuditEntry) {
	if e != nil {
		body := *e
		body.Number, body.At, body.Until = 0, e.At.UTC(), e.Until.UTC()
		w.Audit = append(w.Audit, driver.AuditEntry{Denied: e.Denied != "", Body: w.encode(&body)})
	}
}

// direct adds directives.
func (w *batch) direct(directives ...Directive) {
	for _, o := range directives {
		w.Directives = append(w.Directives, driver.Directive{Subscription: o.storedAs(), Body: w.encode(o)})
	}
}

// record is a record of the store, decoded.
type record struct {
	*driver.Record
	metadata EventMetadata
	replay   *recordReplay   // nil for a publication
	progress *recordProgress // nil for a dispatch that has not begun
	incoming bool            // it is that of an incoming event
	inTurn   bool            // it is a part of a parked record that was claimed with those that are ready, and not from its door
	enters   bool            // it was claimed and divided: only memory has it now
}

// recordReplay is the JSON of driver.Record.Replay: the letter from which a replay opened a dispatch.
type recordReplay struct {
	Began          time.Time `json:"began"`
	Count          int       `json:"count"` // replays of the event, with this one
	Succeeded      []string  `json:"succeeded,omitempty"`
	History        []Failure `json:"history,omitempty"`
	HistoryOmitted int       `json:"history_omitted,omitempty"`
	Edited         bool      `json:"edited,omitempty"`
	Edits          int       `json:"edits,omitempty"`    // 0 if Edited was set by an earlier version
	Original       []byte    `json:"original,omitempty"` // the published payload, if Edited

	Log []LetterReplay `json:"log,omitempty"` // empty in a record of an earlier version
}

// editsOf returns the number of edits of an event. Earlier versions recorded only that there are some.
func editsOf(edited bool, edits int) int32 {
	if edited {
		return int32(max(edits, 1))
	}
	return 0
}

// recordProgress is the JSON of driver.Record.Progress: how far a dispatch is. Positions count from 0.
type recordProgress struct {
	Next          int            `json:"next,omitempty"`    // position of the target to visit next
	Skipped       []int          `json:"skipped,omitempty"` // positions of targets that were split off
	Attempts      int            `json:"attempts,omitempty"`
	Failures      []Failure      `json:"failures,omitempty"`
	FirstFailures int            `json:"first_failures,omitempty"` // of these, those before the omitted ones
	Omitted       int            `json:"omitted,omitempty"`
	OmittedHere   int            `json:"omitted_here,omitempty"` // of these, those at the next target
	PreviousDelay time.Duration  `json:"previous_delay,omitempty"`
	ParkedFor     time.Duration  `json:"parked_for,omitempty"`
	Budgets       []recordBudget `json:"budgets,omitempty"`
	Part          bool           `json:"part,omitempty"`      // it was split off: its outcome is not the event's
	Unawaited     bool           `json:"unawaited,omitempty"` // PublishAndWait no longer waits for it: it was held
	Snoozes       int            `json:"snoozes,omitempty"`
	Destination   string         `json:"destination,omitempty"` // of the next target, once it was asked
	AsleepFor     time.Duration  `json:"asleep_for,omitempty"`  // how long it is snoozed until Due; 0 for a wait for a retry
	RetriedBy     *string        `json:"retried_by,omitempty"`  // the operator of RetryNow; nil for none
}

// onward returns the progress for the target after the next one.
func (p recordProgress) onward() recordProgress {
	p.OmittedHere, p.Destination, p.AsleepFor = 0, "", 0
	return p
}

// left returns those targets of a record that it has to visit. Of nil, they are all.
func (p *recordProgress) left(targets []string) (left []string) {
	if p == nil {
		return targets
	}
	for i := p.Next; i < len(targets); i++ {
		if !slices.Contains(p.Skipped, i) {
			left = append(left, targets[i])
		}
	}
	return left
}

// recordBudget is how much of a retry rule's budget a dispatch has spent.
type recordBudget struct {
	Subscription  string        `json:"subscription,omitempty"` // empty for a rule of the bus
	Rule          int           `json:"rule"`                   // its position
	Failures      int           `json:"failures"`
	PreviousDelay time.Duration `json:"previous_delay,omitempty"`
}

// encodeRow returns the record of a dispatch that has none.
func (j *durable) encodeRow(w *batch, d *dispatch, state driver.State) *driver.Record {
	r := j.updatedRecord(w, d, state, 0)
	r.ID, r.Type, r.Key, r.Payload = driver.ID(d.id), d.to.eventType, d.key, payloadBytes(d.payload)
	r.Published, r.Targets = d.published(j.time), d.to.recorded
	if m := d.from().metadata; !m.IsZero() {
		r.Metadata = w.encode(m)
	}
	r.IdempotencyKey, r.UntilSettled = d.from().once.key, d.from().once.untilSettled
	r.Expires = d.expiry()
	if due := d.from().due; due != nil {
		r.Scheduled = due.time(j.time)
		if state == driver.Scheduled {
			r.Due = r.Scheduled
		}
	}
	if replay := d.from().replay; replay != nil {
		r.Scheduled = replay.due
		r.Replay = w.encode(&recordReplay{
			Began: j.time.At(replay.began), Count: int(replay.count), Succeeded: replay.succeeded,
			History: replay.history, HistoryOmitted: replay.historyOmitted,
			Edited: replay.edits > 0, Edits: int(replay.edits), Original: payloadBytes(replay.original), Log: replay.log,
		})
	}
	return r
}

// updatedRecord returns the part of a dispatch's record that changes. Of the next targets, passed have handled the event.
func (j *durable) updatedRecord(w *batch, d *dispatch, state driver.State, passed int) *driver.Record {
	r := &driver.Record{Ref: d.row().ref, State: state, Suspect: d.row().marked, Crashes: d.row().crashes}
	p := recordProgress{Next: int(d.next) + passed, Attempts: int(d.attempt)}
	if d.state == stateRunning || passed > 0 {
		p.Attempts-- // the attempt is not over
	}
	if s := d.story; s != nil {
		p.Omitted, p.OmittedHere, p.FirstFailures = int(s.omitted), int(s.omittedHere), int(s.first)
		p.PreviousDelay, p.ParkedFor, p.Part, p.Unawaited = s.previous, s.parked, s.part, s.unawaited
		if s.notBefore != 0 {
			p.AsleepFor = d.row().asleep
		}
		for i := range s.failures {
			f := d.failureOf(&s.failures[i], j.time)
			f.Subscription = d.to.recordedName(s.failures[i].subscription)
			p.Failures = append(p.Failures, f)
		}
		if s.detours != nil {
			p.Snoozes, p.Destination = int(s.detours.snoozes), s.detours.destination
			if passed > 0 {
				p.Destination = ""
			}
			if by := s.detours.by; by != nil {
				p.RetriedBy = &by.Retried
			}
			for _, i := range s.detours.skipped {
				p.Skipped = append(p.Skipped, int(i))
			}
			for _, x := range s.detours.spent {
				p.Budgets = append(p.Budgets, recordBudget{
					Subscription: d.to.recordedName(x.of), Rule: int(x.rule), Failures: int(x.failures), PreviousDelay: x.previous,
				})
			}
		}
	}
	if d.state == stateRunning || p.Next != 0 || p.Attempts != 0 || d.story != nil {
		r.Progress = w.encode(&p)
	}
	return r
}

// decodeRecords decodes what a store has returned.
func decodeRecords(read []*driver.Record) (all []*record, err error) {
	for _, r := range read {
		decoded, err := decodeRecord(r)
		if err != nil {
			return nil, err
		}
		all = append(all, decoded)
	}
	return all, nil
}

func decodeRecord(r *driver.Record) (decoded *record, err error) {
	decoded = &record{Record: r}
	if r.Metadata != nil {
		err = json.Unmarshal(r.Metadata, &decoded.metadata)
	}
	if r.Replay != nil && err == nil {
		err = json.Unmarshal(r.Replay, &decoded.replay)
	}
	if r.Progress != nil && err == nil {
		err = json.Unmarshal(r.Progress, &decoded.progress)
	}
	if p := decoded.progress; err == nil && p != nil && (p.Next < 0 || p.Next > len(r.Targets)) {
		err = fmt.Errorf("the next target is %d of %d", p.Next, len(r.Targets))
	}
	if err != nil {
		return nil, &DecodeError{What: "record of event " + EventID(r.ID).String(), Err: err}
	}
	return decoded, nil
}

// decode is decodeRecord for a record that was encoded for the batch.
func (w *batch) decode(r *driver.Record) *record {
	decoded, err := decodeRecord(r)
	if err != nil {
		w.err = cmp.Or(w.err, err)
		return &record{Record: r} // the batch is refused
	}
	return decoded
}

// decodeRow returns the dispatch of a record.
func (j *durable) decodeRow(r *record, to *targets) *dispatch {
	now := j.time.Now()
	d := &dispatch{
		id: EventID(r.ID), payload: j.config.encoded(r.Payload), key: r.Key, to: to, wall: j.time.WallOf(r.Published),
		origin: &origin{metadata: r.metadata, row: &row{ref: r.Ref, position: r.Position, fence: j.store.epoch.Load(), crashes: r.Crashes}},
	}
	if r.IdempotencyKey != "" {
		d.origin.once = idempotency{key: r.IdempotencyKey, known: r.KeyExpires.IsZero(), untilSettled: r.UntilSettled}
		if !d.origin.once.known && !r.UntilSettled {
			d.origin.once.keep = r.KeyExpires.Sub(r.Published) // from when the event is taken in
		}
	}
	if !r.Scheduled.IsZero() {
		d.origin.due = &due{nanos: now.Point(r.Scheduled), at: r.Scheduled}
	}
	if !r.Expires.IsZero() {
		d.origin.expires = &r.Expires
	}
	if p := r.replay; p != nil {
		d.origin.replay = &replay{
			published: r.Published, due: r.Scheduled, began: now.Point(p.Began), count: int32(p.Count),
			succeeded: p.Succeeded, history: withErrors(p.History), historyOmitted: p.HistoryOmitted, edits: editsOf(p.Edited, p.Edits), log: p.Log,
		}
		if p.Edited {
			d.origin.replay.original = j.config.encoded(p.Original)
		}
	}
	if r.progress != nil {
		j.decodeProgress(d, r.progress, now)
	}
	if r.State != driver.Scheduled && !r.Due.IsZero() {
		d.ensureStory().notBefore = now.Point(r.dueAfter(now.UTC))
	}
	return d
}

// dueAfter returns the Due of a waiting record. If the clock was set back after the failure or the snooze that it
// follows, the whole delay begins now: otherwise it would be late by as much.
func (r *record) dueAfter(now time.Time) time.Time {
	began := r.delayedSince()
	if began.After(now) {
		return now.Add(r.Due.Sub(began))
	}
	return r.Due
}

// wakes notes that RetryNow has ended a delay.
func (r *record) wakes() {
	if r.progress == nil {
		r.progress = &recordProgress{}
	}
	r.progress.AsleepFor = 0
}

// delayedSince returns when the delay began that ends at Due, or the zero time.
func (r *record) delayedSince() time.Time {
	switch p := r.progress; {
	case p == nil:
		return time.Time{}
	case p.AsleepFor != 0:
		return r.Due.Add(-p.AsleepFor)
	case len(p.Failures) > 0:
		return p.Failures[len(p.Failures)-1].Time
	default:
		return time.Time{}
	}
}

func (j *durable) decodeProgress(d *dispatch, p *recordProgress, now timeline.Instant) {
	find := func(name string) *Subscription {
		if i := slices.Index(d.to.recorded, name); i >= 0 {
			return d.to.subscriptions[i]
		}
		for _, s := range d.to.subscriptions { // it failed under a later name than the recorded one
			if s.owns(name) {
				return s
			}
		}
		return &Subscription{id: name} // of a target that the record no longer has
	}
	d.next, d.attempt = int32(p.Next), int32(p.Attempts)
	d.story = &story{
		omitted: int32(p.Omitted), omittedHere: int32(p.OmittedHere), first: uint8(p.FirstFailures),
		previous: p.PreviousDelay, parked: p.ParkedFor, part: p.Part, unawaited: p.Unawaited,
	}
	for _, f := range withErrors(p.Failures) {
		kept := failure{
			err: f.Err, text: f.Error, subscription: find(f.Subscription), at: now.Point(f.Time),
			duration: f.Duration, attempt: int32(f.Attempt),
		}
		if f.Details != nil {
			kept.details = &f.Details
		}
		if f.Rule != nil {
			kept.rule = int32(f.Rule.Position) + 1
		}
		d.story.failures = append(d.story.failures, kept)
	}
	d.origin.row.asleep = p.AsleepFor
	if len(p.Skipped)+len(p.Budgets)+p.Snoozes+len(p.Destination) == 0 && p.RetriedBy == nil {
		return
	}
	detours := d.ensureDetours()
	if p.RetriedBy != nil {
		detours.by = &settled.Operators{Retried: *p.RetriedBy}
	}
	detours.snoozes, detours.destination = int32(p.Snoozes), p.Destination
	for _, i := range p.Skipped {
		detours.skipped = append(detours.skipped, int32(i))
	}
	for slices.Contains(detours.skipped, d.next) { // the last record is of when this target was split off
		d.next++
		detours.destination = ""
	}
	for _, x := range p.Budgets {
		budget := spent{rule: int32(x.Rule), failures: int32(x.Failures), previous: x.PreviousDelay}
		if x.Subscription != "" {
			budget.of = find(x.Subscription)
		}
		detours.spent = append(detours.spent, budget)
	}
}

// recordedName returns the name of a target in records, which may be a former one. A failure or a
// budget must find its target again, whatever name the subscription has then, and if it is missing.
func (t *targets) recordedName(s *Subscription) string {
	if i := slices.Index(t.subscriptions, s); i >= 0 {
		return t.recorded[i]
	}
	return s.ID()
}

// Codec encodes the payloads of a bus with a store. Its methods must be safe for concurrent use.
type Codec interface {
	// Marshal returns the encoded payload. An error, or a panic, makes Publish return a *PayloadError.
	Marshal(payload any) ([]byte, error)
	// Unmarshal decodes data into the value that a pointer points to, as json.Unmarshal does. For any,
	// maps and lists of any, the bus passes a pointer with an UnmarshalJSON method first, which keeps all
	// digits of numbers. If Unmarshal does not call it, it is called again, with the type. A field of type
	// any in a struct has the digits that Unmarshal keeps.
	Unmarshal(data []byte, pointer any) error
}

// codecName names the codec of payloads, in incoming events.
func (c *config) codecName() string {
	if c.codec == nil {
		return "json"
	}
	return fmt.Sprintf("%T", c.codec)
}

// payloadBytes returns the bytes of an encoded payload.
func payloadBytes(payload any) []byte {
	switch p := payload.(type) {
	case json.RawMessage:
		return p
	case EncodedPayload:
		return p
	}
	return nil
}

// recordedError is the error of a failure that was read from a store.
type recordedError struct{ text, class string }

func (e *recordedError) Error() string { return e.text }

// withErrors returns failures that have their recorded errors.
func withErrors(failures []Failure) []Failure {
	all := slices.Clone(failures)
	for i := range all {
		if all[i].Err == nil {
			all[i].Err = &recordedError{all[i].Error, all[i].Class}
		}
	}
	return all
}

// remembered returns the entries for the idempotency key and the id that a publisher gave to an event. The key is the first: it
// decides if both are known.
func (j *durable) remembered(d *dispatch, now time.Time) (entries []driver.Dedupe) {
	o := d.from()
	if o.once.key != "" && !o.once.known {
		entry := keyEntry(d.to.eventType, o.once.key)
		entry.Event, entry.Content, entry.Expires = driver.ID(d.id), d.key, now.Add(max(j.config.idempotency, o.once.keep))
		if o.once.untilSettled {
			entry.Expires = untilSettledExpires
		}
		entries = append(entries, entry)
	}
	if o.given {
		entries = append(entries, j.rememberedID(d, now))
	}
	return entries
}

// keyEntry returns the entry of the table of remembered ids for an idempotency key.
func keyEntry(eventType, key string) driver.Dedupe { return driver.Dedupe{Scope: eventType, Key: key} }

// entriesToFree returns the entry of the event's idempotency key that the store forgets if the event has settled. An event that is
// replayed may have one, and its letter does not say so.
func entriesToFree(d *dispatch) []driver.Dedupe {
	once := d.from().once
	if once.key == "" || !once.untilSettled && d.from().replay == nil {
		return nil
	}
	entry := keyEntry(d.to.eventType, once.key)
	entry.Event, entry.Expires = driver.ID(d.id), untilSettledExpires
	return []driver.Dedupe{entry}
}

// cancels makes the batch forget the id of an event that it cancels, and its idempotency key if no other event has taken that.
func (w *batch) cancels(id EventID, eventType, once string) {
	w.Forget = append(w.Forget, eventIDEntry(id))
	if once != "" {
		entry := keyEntry(eventType, once)
		entry.Event = driver.ID(id)
		w.ForgetSettled = append(w.ForgetSettled, entry)
	}
}

// eventIDEntry returns the entry of the table of remembered ids for an event id.
func eventIDEntry(id EventID) driver.Dedupe {
	return driver.Dedupe{Key: id.String(), Event: driver.ID(id)}
}

// rememberedID returns the entry for the id of an event.
func (j *durable) rememberedID(d *dispatch, now time.Time) driver.Dedupe {
	entry := eventIDEntry(d.id)
	digest := sha256.New()
	for _, part := range [...]string{d.to.eventType, d.key, string(payloadBytes(d.payload))} {
		_, _ = fmt.Fprintf(digest, "%d %s", len(part), part) // the length separates the parts
	}
	entry.Content = hex.EncodeToString(digest.Sum(nil))
	entry.Expires = now.Add(j.config.idempotency)
	return entry
}
