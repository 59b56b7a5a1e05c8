package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
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
	// DispatchIncoming: the bus with the lease of the store has not taken the event in. Event reports it, and Dispatches
	// does not. Targets are those of the publisher.
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
	// ParkThrottled: a limit of concurrency or rate is reached, a handler has asked everyone to wait (Throttle), or an
	// earlier delivery of the key is at the door. Of the deliveries that were held, at most 64 come at once: the others are throttled.
	ParkThrottled ParkReason = "throttled"
	// ParkDetached: the subscription is detached, and no other one of its name has taken it over (Detach).
	ParkDetached ParkReason = "detached"
	// ParkSnoozed: its handler has postponed it (Snooze), or the earlier delivery of its key.
	ParkSnoozed ParkReason = "snoozed"
	// ParkMissing: the subscription does not exist. Only a store has such dispatches.
	ParkMissing ParkReason = "missing"
)

// DispatchInfo describes a dispatch that has not settled.
type DispatchInfo struct {
	Event EventID `json:"event_id"`
	Type  string  `json:"event_type"`
	Key   string  `json:"key,omitempty"`
	// IdempotencyKey is that of the event, or empty.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Payload is the event's, as handlers get it, if DispatchQuery.Payloads asks for it.
	Payload   any           `json:"payload,omitempty"`
	Published time.Time     `json:"published"` // in UTC
	State     DispatchState `json:"state"`
	// Subscription is the next one in the dispatch's order: the one whose handler runs, at whose door
	// the dispatch is parked, or at which its next attempt begins. It is empty if the dispatch only has
	// to settle.
	Subscription string `json:"subscription"`
	// Targets lists Subscription and those after it.
	Targets []string `json:"targets"`
	// Attempts is the number of attempts, with the running one. A dispatch that was parked or queued
	// before its first attempt has 0.
	Attempts int `json:"attempts"`
	Replays  int `json:"replays,omitempty"` // number of replays of the event from dead letters
	Snoozes  int `json:"snoozes,omitempty"` // how often its handler has postponed it
	// LastError is the text of the last failure. It is empty while a handler runs.
	LastError string `json:"last_error,omitempty"`
	// Due is when a waiting, snoozed or scheduled dispatch is due, in UTC.
	Due time.Time `json:"due,omitzero"`
	// Expires is from when no handler is called for the event any more, in UTC. It is zero for never.
	Expires time.Time `json:"expires,omitzero"`
	// Parked is why the dispatch is parked. It is empty if this bus was not started, so that it does
	// not know, and for other states.
	Parked ParkReason `json:"parked,omitempty"`
	// InStore is set if only the store has the dispatch. The bus claims it when memory has room, or
	// when it is due.
	InStore bool `json:"in_store,omitempty"`
}

// EventStatus describes what became of an event.
type EventStatus struct {
	ID EventID `json:"event_id"`
	// Dispatches lists the dispatches of the event that have not settled.
	Dispatches []DispatchInfo `json:"dispatches"`
	// Letters is the first page of its dead letters, newest first.
	Letters LetterPage `json:"letters"`
}

// IsSettled reports whether no dispatch of the event is left.
func (s EventStatus) IsSettled() bool { return len(s.Dispatches) == 0 }

// Event returns what became of an event: where each of its dispatches is, and its dead letters. An
// event without either has settled: it was handled, unrouted, dropped or cancelled, or its letters
// were purged.
//
// In memory, the bus finds what it has in memory, and the last 100,000 ids that publishers chose. It
// compares the ids of all dispatches, at about 100 ns each, mostly without a lock. With a store, it reads the store, which
// also knows the ids of WithIdempotencyWindow, and looks in memory for what runs. It does not know the
// outcome of a settled dispatch without a letter.
//
// Each place that is reported was true at some time during the call. A dispatch that changes its place
// meanwhile may be missing, above all while an observer delays it: call Event again.
//
// Event does not wait for dispatches. With a store it blocks for the reads, which ctx bounds.
//
// Errors: ErrUnknownEvent if nothing of the event is known: it has settled and was forgotten, or was
// never accepted; the store's; the context's.
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

func (v *views) eventStatus(ctx context.Context, id EventID) (status EventStatus, err error) {
	// A dispatch that goes back to an earlier place, such as a retry to the queue, may be missed once.
	const looks = 3
	found := make(map[*dispatch]DispatchInfo)
	for look := range looks {
		if ctx.Err() != nil {
			return status, contextError(ctx)
		}
		if status, err = v.lookFor(ctx, id, found); err != nil {
			return status, err
		}
		if look > 0 && len(status.Dispatches)+len(status.Letters.Letters) > 0 {
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
func (v *views) lookFor(ctx context.Context, id EventID, found map[*dispatch]DispatchInfo) (EventStatus, error) {
	status := EventStatus{ID: id, Dispatches: []DispatchInfo{}}
	records, exist, err := v.journal.recordsOf(ctx, id)
	if err != nil {
		return status, err
	}
	v.describeAll(v.candidates("", func(d *dispatch) bool { return d.id == id }), found)
	if exist {
		status.Dispatches = append(status.Dispatches, v.describeRecords(records, found)...)
	} else {
		for _, info := range found {
			status.Dispatches = append(status.Dispatches, info)
		}
		slices.SortFunc(status.Dispatches, compareDispatches)
	}
	letters, err := v.letters.page(ctx, &letterFilter{LetterQuery: LetterQuery{Event: id}, limit: defaultPage})
	status.Letters = letters.page()
	return status, err
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

// spots returns the structures that hold dispatches, in the order in which a dispatch passes through
// them.
func (v *views) spots() []spot {
	type visitor = func(d *dispatch, due int64, why ParkReason)
	plain := func(visit visitor) func(*dispatch) {
		return func(d *dispatch) { visit(d, 0, "") }
	}
	all := []spot{
		{DispatchScheduled, func(visit visitor) {
			v.machine.scheduled.Each(func(d *dispatch) { visit(d, 0, "") })
		}},
		{DispatchQueued, func(visit visitor) { v.machine.pool.Each(plain(visit)) }},
		{DispatchQueued, func(visit visitor) { v.machine.keys.Each(plain(visit)) }},
		{DispatchWaiting, func(visit visitor) {
			v.machine.delay.Each(func(due int64, d *dispatch) { visit(d, due, "") })
		}},
	}
	for _, s := range v.registry.list() {
		if s.gate != nil {
			all = append(all, spot{DispatchQueued, func(visit visitor) { s.gate.Each(plain(visit)) }})
		}
		for _, o := range s.doors() {
			all = append(all, spot{DispatchParked, func(visit visitor) { o.each(v.Bus, visit) }})
		}
	}
	return all
}

// candidates returns the dispatches in memory that match, in a state or in any. One that moves may be
// there twice. matches reads only their fixed fields: it is called without a lock, because to read the memory of many dispatches takes
// milliseconds.
func (v *views) candidates(state DispatchState, matches func(*dispatch) bool) (matching []*dispatch) {
	held := max(v.ledger.waiting.Load(), v.ledger.scheduled.Load(), int64(v.machine.pool.Depth()))
	all := make([]*dispatch, 0, held+64) // so that it rarely grows under a lock
	for _, p := range v.spots() {
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

// describeAll adds the descriptions of dispatches to found. It leaves out those that are in no place.
func (v *views) describeAll(candidates []*dispatch, found map[*dispatch]DispatchInfo) {
	if len(candidates) == 0 {
		return
	}
	wanted := make(map[*dispatch]bool, len(candidates))
	for _, d := range candidates {
		wanted[d] = true
	}
	for _, p := range v.spots() {
		p.each(func(d *dispatch, due int64, why ParkReason) {
			if wanted[d] {
				found[d] = v.describe(d, p.state, due, why)
			}
		})
	}
	for _, c := range v.machine.watch.Running() {
		if wanted[c.dispatch] {
			found[c.dispatch] = v.describeCall(c)
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
		i.Snoozes = int(d.story.detours.snoozes)
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
func (v *views) describeRecords(records []*record, found map[*dispatch]DispatchInfo) (all []DispatchInfo) {
	inMemory := make(map[driver.Ref]DispatchInfo, len(found))
	for d, info := range found {
		inMemory[d.row().ref] = info
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
		Event: EventID(r.ID), Type: r.Type, Key: r.Key, IdempotencyKey: r.IdempotencyKey, Payload: v.config.encoded(r.Payload), Published: r.Published, Targets: r.Targets, Due: r.Due, Expires: r.Expires, InStore: !r.Leased,
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
		i.Attempts, i.Targets, i.Snoozes = p.Attempts, r.Targets[min(next, len(r.Targets)):], p.Snoozes
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
