package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/route"
)

// DispatchState is where a dispatch is that has not settled.
type DispatchState string

const (
	// DispatchQueued: it waits for a worker, or for an earlier dispatch of its key.
	DispatchQueued DispatchState = "queued"
	// DispatchRunning: a handler runs.
	DispatchRunning DispatchState = "running"
	// DispatchWaiting: it waits for its next attempt.
	DispatchWaiting DispatchState = "waiting"
	// DispatchScheduled: the event was published with After or At and is not due.
	DispatchScheduled DispatchState = "scheduled"
	// DispatchParked: it waits at the door of a subscription.
	DispatchParked DispatchState = "parked"
	// DispatchIncoming: the bus with the lease of the store has not taken the event in. Event reports it, and
	// Dispatches does not. Targets lists the subscriptions of the publisher.
	DispatchIncoming DispatchState = "incoming"
)

var dispatchStates = []DispatchState{DispatchQueued, DispatchRunning, DispatchWaiting, DispatchScheduled, DispatchParked}

// ParkReason is why a dispatch waits at the door of a subscription.
type ParkReason string

const (
	// ParkPaused: an operator has paused the subscription.
	ParkPaused ParkReason = "paused"
	// ParkCircuit: the subscription's circuit is open, or probes.
	ParkCircuit ParkReason = "circuit_open"
	// ParkHung: MaxAbandoned calls of the subscription were abandoned and still run.
	ParkHung ParkReason = "hung"
	// ParkThrottled: a limit of concurrency or rate is reached, a handler has returned Throttle, or an earlier delivery
	// of the key waits here. Of formerly held deliveries, at most 64 are admitted at a time; the others are throttled.
	ParkThrottled ParkReason = "throttled"
	// ParkDetached: the subscription is detached, and no new subscription has taken its name over (Detach).
	ParkDetached ParkReason = "detached"
	// ParkSnoozed: its handler has postponed it (Snooze), or the earlier delivery of its key.
	ParkSnoozed ParkReason = "snoozed"
	// ParkMissing: the subscription does not exist. Only a store has such dispatches.
	ParkMissing ParkReason = "missing"
)

// DispatchInfo describes a dispatch that has not settled.
type DispatchInfo struct {
	Event EventID `json:"event_id"`      // the event's id
	Type  string  `json:"event_type"`    // the event's type
	Key   string  `json:"key,omitempty"` // the event's key, or empty
	// IdempotencyKey is the event's idempotency key, or empty.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Payload is the event's payload as handlers receive it. It is nil unless DispatchQuery.Payloads is set.
	Payload   any           `json:"payload,omitempty"`
	Published time.Time     `json:"published"` // when the event was published, in UTC
	State     DispatchState `json:"state"`     // where the dispatch is
	// Subscription is the next subscription of the dispatch: its handler runs, the dispatch is parked there, or the
	// next attempt begins there. It is empty if no subscription is left.
	Subscription string `json:"subscription"`
	// Targets lists Subscription and the subscriptions after it.
	Targets []string `json:"targets"`
	// Destination is the destination at a Subscription with PerDestination, once it is known. It is empty while a
	// handler runs.
	Destination string `json:"destination,omitempty"`
	// Attempts is the number of attempts, including a running one. It is 0 before the first attempt.
	Attempts int `json:"attempts"`
	Replays  int `json:"replays,omitempty"` // how often the event was replayed from dead letters
	Snoozes  int `json:"snoozes,omitempty"` // how often the handler postponed the delivery
	// LastError is the text of the last failure. It is empty while a handler runs.
	LastError string `json:"last_error,omitempty"`
	// Due is when a waiting, snoozed or scheduled dispatch is due, in UTC.
	Due time.Time `json:"due,omitzero"`
	// Expires is when the event expires, in UTC: no call of a handler begins from then on. It is zero for no expiry.
	Expires time.Time `json:"expires,omitzero"`
	// Parked is why the dispatch is parked. It is empty in other states, and on a bus that was not started.
	Parked ParkReason `json:"parked,omitempty"`
	// InStore is set if only the store has the dispatch. The bus claims it when memory has room, or
	// when it is due.
	InStore bool `json:"in_store,omitempty"`
}

// EventStatus has the dispatches, the ended deliveries and the dead letters of an event.
type EventStatus struct {
	ID EventID `json:"event_id"` // the event's id
	// Dispatches lists the dispatches of the event that have not settled.
	Dispatches []DispatchInfo `json:"dispatches"`
	// Settled lists deliveries that have ended, oldest first, as far as the bus remembers them.
	Settled []SettledDelivery `json:"settled"`
	// Replays lists the replays in the event's dispatches and letters, oldest first: at most 10 of each.
	Replays []LetterReplay `json:"replays,omitempty"`
	// Letters is the first page of its dead letters, newest first.
	Letters LetterPage `json:"letters"`
}

// IsSettled reports whether no dispatch of the event is left.
func (s EventStatus) IsSettled() bool { return len(s.Dispatches) == 0 }

// Event returns what became of an event: where each of its dispatches is, how its deliveries ended, and its dead
// letters. An empty status means that the event settled in another process, or before the last 10,000 events of this
// one. It was handled, unrouted, dropped or cancelled, or its letters were purged.
//
// With a store, every process also knows the deliveries upon which operators acted, until the store removes the audit
// entries of that time:
//
//   - deliveries of a replay
//   - deliveries of RetryNow, Cancel and GiveUp with By, Because or FromRequest, or in bulk
//   - deliveries that Retire ended
//   - dead letters that an operator purged
//
// In memory, the bus finds the events in memory and the last 100,000 ids that publishers chose. It compares the ids of
// all dispatches, at about 100 ns each, mostly without a lock. With a store, it reads the store, which also knows the
// ids of WithIdempotencyWindow, and finds running dispatches in memory.
//
// Each place in the result was true at some time during the call. A dispatch that changes its place meanwhile may be
// missing, above all while an observer delays it: call Event again.
//
// Event does not wait for dispatches. With a store it blocks for the reads, which ctx bounds.
//
// Errors: ErrUnknownEvent if nothing of the event is known: it has settled and was forgotten, or was never accepted;
// the store's; the context's.
func (b *Bus) Event(ctx context.Context, id EventID) (EventStatus, error) {
	if err := b.ready(ctx); err != nil {
		return EventStatus{}, fmt.Errorf("Event(%s): %w", id, err)
	}
	status, err := b.views.eventStatus(ctx, id)
	if err != nil {
		return EventStatus{}, fmt.Errorf("Event(%s): %w", id, err)
	}
	withoutPayloads(status.Dispatches)
	return status, nil
}

// EventByIdempotencyKey returns what Event returns, for the event of a type with an idempotency key. A known key
// belongs to the event whose id Publish returns for a repetition. For a free key it is an event that has not settled,
// or else the event of the latest dead letter. If the bus remembers the key only, the event has settled, and the status
// lists nothing.
//
// It works on every bus, also on a standby and WithoutHandlers. A known key needs one lookup. For a free key, the call
// compares all dispatches and dead letters.
//
// Errors: *EventError for an event type or a key that Publish rejects; ErrUnknownEvent; the store's; the context's.
func (b *Bus) EventByIdempotencyKey(ctx context.Context, eventType, key string) (EventStatus, error) {
	err := b.ready(ctx)
	if err == nil {
		err = checkKeyed(eventType, key)
	}
	if err == nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	var status EventStatus
	if err == nil {
		status, err = b.views.keyedStatus(ctx, eventType, key)
	}
	if err != nil {
		return EventStatus{}, fmt.Errorf("EventByIdempotencyKey(%q, %q): %w", shorten(eventType), shorten(key), err)
	}
	withoutPayloads(status.Dispatches)
	return status, nil
}

// checkKeyed refuses a type or an idempotency key that no event has.
func checkKeyed(eventType, key string) error {
	if offence := route.CheckType(eventType); offence != nil {
		return typeError(eventType, offence)
	}
	reason := checkKey(key)
	if key == "" {
		reason = "is empty; give that of the event"
	}
	if reason != "" {
		return &EventError{Field: "idempotency key", Value: shorten(key), Reason: reason}
	}
	return nil
}

// keyedStatus finds an event by its idempotency key.
func (v *views) keyedStatus(ctx context.Context, eventType, key string) (EventStatus, error) {
	id, known, err := v.journal.keyedEvent(ctx, eventType, key)
	if err == nil && !known {
		id, err = v.lookForKey(ctx, eventType, key)
	}
	if err != nil {
		return EventStatus{}, err
	}
	status, err := v.eventStatus(ctx, id)
	if errors.Is(err, ErrUnknownEvent) { // the key is known, so the event was accepted
		err = nil
	}
	return status, err
}

// lookForKey finds the event of a free idempotency key.
func (v *views) lookForKey(ctx context.Context, eventType, key string) (id EventID, err error) {
	q := DispatchQuery{Type: eventType, IdempotencyKey: key, Limit: maxPage}
	for more := true; more; more = q.After != "" {
		page, err := v.dispatches(ctx, q)
		if err != nil {
			return id, err
		}
		if len(page.Dispatches) > 0 {
			return page.Dispatches[0].Event, nil
		}
		q.After = page.Next
	}
	f, err := (&LetterQuery{Type: eventType, IdempotencyKey: key}).filter()
	if err != nil {
		return id, err
	}
	f.limit = 1
	page, err := v.letters.page(ctx, f)
	if err == nil && len(page.letters) == 0 {
		err = ErrUnknownEvent
	}
	if err != nil {
		return id, err
	}
	return page.letters[0].Event.ID, nil
}

func (v *views) eventStatus(ctx context.Context, id EventID) (status EventStatus, err error) {
	// A dispatch that goes back to an earlier place, such as a retry to the queue, may be missed once.
	const looks = 3
	found := make(foundDispatches)
	for look := range looks {
		if ctx.Err() != nil {
			return status, contextError(ctx)
		}
		if status, err = v.lookFor(ctx, id, found); err != nil {
			return status, err
		}
		if look > 0 && len(status.Dispatches)+len(status.Letters.Letters)+len(status.Settled) > 0 {
			return status, nil
		}
		runtime.Gosched()
	}
	if known, err := v.journal.remembers(ctx, id); err != nil || known {
		return status, err
	}
	return status, ErrUnknownEvent
}

// lookFor looks for an event in each place, in the order in which dispatches pass through them. It
// adds the dispatches in memory to found.
func (v *views) lookFor(ctx context.Context, id EventID, found foundDispatches) (EventStatus, error) {
	status := EventStatus{ID: id, Dispatches: []DispatchInfo{}}
	records, exist, err := v.journal.recordsOf(ctx, id)
	if err != nil {
		return status, err
	}
	v.describeAll(v.candidates("", func(d *dispatch) bool { return d.id == id }), found)
	if exist {
		status.Dispatches = append(status.Dispatches, v.describeRecords(records, found)...)
	} else {
		for _, is := range found {
			status.Dispatches = append(status.Dispatches, is.DispatchInfo)
		}
		slices.SortFunc(status.Dispatches, compareDispatches)
	}
	letters, err := v.letters.page(ctx, &letterFilter{LetterQuery: LetterQuery{Event: id}, limit: defaultPage})
	if status.Letters = letters.page(); err != nil {
		return status, err
	}
	status.Settled, err = v.journal.settledOf(ctx, id) // last: it may have settled meanwhile
	status.Replays = replaysOf(records, found, status.Letters.Letters)
	return status, err
}

// replaysOf returns the replays of an event that its dispatches and letters know, oldest first.
func replaysOf(records []*record, found foundDispatches, letters []DeadLetter) (all []LetterReplay) {
	for _, r := range records {
		if r.replay != nil {
			all = append(all, r.replay.Log...)
		}
	}
	for _, is := range found {
		all = append(all, is.replays...)
	}
	for i := range letters {
		all = append(all, letters[i].ReplayLog...)
	}
	slices.SortFunc(all, func(x, y LetterReplay) int {
		return cmp.Or(x.At.Compare(y.At), bytes.Compare(x.Letter[:], y.Letter[:]))
	})
	return slices.CompactFunc(all, func(x, y LetterReplay) bool { return x.Letter == y.Letter })
}

func compareDispatches(x, y DispatchInfo) int {
	return cmp.Or(bytes.Compare(x.Event[:], y.Event[:]), cmp.Compare(x.Subscription, y.Subscription))
}

// views read the state of all other parts, and own nothing. Nothing calls them but the exported methods.
type views struct{ *Bus }

// spot is a structure that holds dispatches. each calls visit with each of them, under the lock of
// the structure, which owns them: their changing fields may be read.
type spot struct {
	state DispatchState
	each  func(visit func(d *dispatch, due int64, why ParkReason))
}

// candidates returns the dispatches in memory that match, in a state or in any. One that moves may be
// there twice. matches reads only their fixed fields: it is called without a lock, because to read the memory of many dispatches takes
// milliseconds.
func (v *views) candidates(state DispatchState, matches func(*dispatch) bool) (matching []*dispatch) {
	held := max(v.ledger.waiting.Load(), v.ledger.scheduled.Load(), int64(v.machine.pool.Depth()))
	all := make([]*dispatch, 0, held+64) // so that it rarely grows under a lock
	for _, p := range v.machine.spots() {
		if state != "" && state != p.state {
			continue
		}
		all = all[:0]
		p.each(func(d *dispatch, _ int64, _ ParkReason) { all = append(all, d) })
		for _, d := range all {
			if matches(d) {
				matching = append(matching, d)
			}
		}
	}
	if state == "" || state == DispatchRunning {
		for _, c := range v.machine.watch.Running() {
			if matches(c.dispatch) {
				matching = append(matching, c.dispatch)
			}
		}
	}
	return matching
}

// foundDispatches has dispatches in memory.
type foundDispatches map[*dispatch]foundDispatch

// foundDispatch describes a dispatch. Readers use it in place of the dispatch, which may fall due meanwhile and then gets another origin.
type foundDispatch struct {
	DispatchInfo
	ref     driver.Ref // of its record; 0 for none
	replays []LetterReplay
}

func (found foundDispatches) add(d *dispatch, info DispatchInfo) {
	is := foundDispatch{DispatchInfo: info, replays: d.replay().log}
	if row := d.row(); row != nil {
		is.ref = row.ref
	}
	found[d] = is
}

// describeAll adds the descriptions of dispatches to found. It leaves out those that are in no place.
func (v *views) describeAll(candidates []*dispatch, found foundDispatches) {
	if len(candidates) == 0 {
		return
	}
	wanted := make(map[*dispatch]bool, len(candidates))
	for _, d := range candidates {
		wanted[d] = true
	}
	for _, p := range v.machine.spots() {
		p.each(func(d *dispatch, due int64, why ParkReason) {
			if wanted[d] {
				found.add(d, v.describe(d, p.state, due, why))
			}
		})
	}
	for _, c := range v.machine.watch.Running() {
		if wanted[c.dispatch] {
			found.add(c.dispatch, v.describeCall(c))
		}
	}
}

// describe describes a dispatch in a place, whose lock the caller holds.
func (v *views) describe(d *dispatch, state DispatchState, due int64, why ParkReason) DispatchInfo {
	i := v.describeFixed(d, d.next)
	i.State, i.Attempts, i.Parked = state, int(d.attempt), why
	if f := d.lastFailure(); f != nil {
		i.LastError = f.text
	}
	if d.story != nil && d.story.detours != nil {
		i.Snoozes, i.Destination = int(d.story.detours.snoozes), d.story.detours.destination
	}
	switch {
	case state == DispatchScheduled:
		i.Due = d.from().due.time(v.time)
	case due != 0:
		i.Due = v.time.At(due)
	}
	return i
}

// describeCall describes a dispatch whose handler runs. It reads fixed fields only.
func (v *views) describeCall(c *call) DispatchInfo {
	i := v.describeFixed(c.dispatch, c.target)
	i.State, i.Attempts = DispatchRunning, int(c.word.Number())
	return i
}

func (v *views) describeFixed(d *dispatch, next int32) DispatchInfo {
	i := DispatchInfo{
		Event: d.id, Type: d.to.eventType, Key: d.key, IdempotencyKey: d.from().once.key, Payload: d.payload, Published: d.published(v.time), Replays: int(d.replay().count),
		Expires: d.expiry(),
		Targets: make([]string, 0, len(d.to.subscriptions)-int(next)),
	}
	for _, s := range d.to.subscriptions[next:] {
		i.Targets = append(i.Targets, s.id)
	}
	if len(i.Targets) > 0 {
		i.Subscription = i.Targets[0]
	}
	return i
}

// describeRecords describes records of the store. found has the dispatches in memory: they know more.
func (v *views) describeRecords(records []*record, found foundDispatches) (all []DispatchInfo) {
	inMemory := make(map[driver.Ref]DispatchInfo, len(found))
	for _, is := range found {
		inMemory[is.ref] = is.DispatchInfo
	}
	for _, r := range records {
		info, ok := inMemory[r.Ref]
		if !ok {
			info = v.describeRecord(r)
		}
		all = append(all, info)
	}
	return all
}

func (v *views) describeRecord(r *record) DispatchInfo {
	i := DispatchInfo{
		Event: EventID(r.ID), Type: r.Type, Key: r.Key, IdempotencyKey: r.IdempotencyKey, Payload: v.config.encoded(r.Payload), Published: r.Published, Targets: r.Targets, Destination: r.Destination, Due: r.Due, Expires: r.Expires, InStore: !r.Leased,
		State: [...]DispatchState{DispatchQueued, DispatchWaiting, DispatchScheduled, DispatchParked}[r.State],
	}
	if r.incoming {
		i.State = DispatchIncoming
	}
	if r.replay != nil {
		i.Replays = r.replay.Count
	}
	if p := r.progress; p != nil {
		next := p.Next
		for slices.Contains(p.Skipped, next) {
			next++
		}
		i.Attempts, i.Targets, i.Snoozes, i.Destination = p.Attempts, r.Targets[min(next, len(r.Targets)):], p.Snoozes, cmp.Or(p.Destination, r.Destination)
		if p.AsleepFor != 0 {
			i.State, i.Parked = DispatchParked, ParkSnoozed
		}
		if n := len(p.Failures); n > 0 {
			i.LastError = p.Failures[n-1].Error
		}
	}
	if len(i.Targets) > 0 {
		i.Subscription = i.Targets[0]
	}
	if r.State == driver.Parked && v.lifecycle.started.Load() {
		i.Parked = v.parkedAt(r.Door)
	}
	return i
}

// parkedAt returns why deliveries to a subscription are parked in the store.
func (v *views) parkedAt(name string) ParkReason {
	s := v.Subscription(name)
	if !s.Exists() {
		return ParkMissing
	}
	return cmp.Or(s.door.shutBy(v.Bus), ParkThrottled)
}
