package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/settled"
	"github.com/surebus/eventbus/internal/texts"
)

// DispatchQuery selects the dispatches that match every field that is set.
type DispatchQuery struct {
	State DispatchState `json:"state,omitzero"` // selects dispatches in one state
	// Type is a pattern of event types, as for Subscribe.
	Type string `json:"type,omitzero"`
	// Subscription selects dispatches with this target, even if it has handled the event. A name that a subscription
	// has, or lists in Formerly, matches all names of that subscription.
	Subscription string `json:"subscription,omitzero"`
	same         *names.Same
	// Key matches the key of the event. It cannot select events without a key.
	Key string `json:"key,omitzero"`
	// IdempotencyKey matches the idempotency key of the event.
	IdempotencyKey string `json:"idempotency_key,omitzero"`

	// Destination matches DispatchInfo.Destination, which is empty while a handler runs.
	Destination string `json:"destination,omitzero"`
	// Error is a substring of the text of the last failure.
	Error string `json:"error,omitzero"`
	// PublishedUntil selects events that were published at this time or before.
	PublishedUntil time.Time `json:"published_until,omitzero"`
	// All confirms a bulk action with a query that matches every event. Dispatches ignores it.
	All bool `json:"all,omitzero"`

	// Payloads adds the payloads, which the bus leaves out otherwise: for tests, and for tools whose users may see them.
	Payloads bool `json:"payloads,omitzero"`

	// Limit is the size of a page: 100 if it is 0, at most 10,000.
	Limit int `json:"limit,omitzero"`
	// After is the Next of the previous page.
	After string `json:"after,omitzero"`
}

// DispatchPage is a page of dispatches, oldest first.
type DispatchPage struct {
	Dispatches []DispatchInfo `json:"dispatches"` // oldest first
	// Next is the After of the next page. It is empty on the last page.
	Next string `json:"next,omitempty"`
}

// Dispatches returns a page of the dispatches that have not settled. Running dispatches, and all of a bus in memory,
// are in the order of their event ids. Other dispatches of a store are in its order of acceptance. Incoming events are
// not dispatches yet: Event finds them, and Metrics counts them.
//
// In memory, all dispatches of an event are on the same page, which may have more than Limit. Each page compares all
// dispatches, at about 100 ns each, mostly without a lock. With a store, a page may have fewer than Limit, and none,
// before the last one: it ends after 10,000 records of which few match. A bus that was not started lists running dispatches of
// another process as queued.
//
// Each entry was true at some time during the call. A dispatch that changes its place meanwhile may be missing. With a
// store the call blocks for its reads, which ctx bounds.
//
// Errors: *PatternError, *OptionError, the store's, the context's.
func (b *Bus) Dispatches(ctx context.Context, q DispatchQuery) (DispatchPage, error) {
	if err := b.ready(ctx); err != nil {
		return DispatchPage{}, fmt.Errorf("Dispatches: %w", err)
	}
	page, err := b.views.dispatches(ctx, q)
	if err != nil {
		return DispatchPage{}, fmt.Errorf("Dispatches: %w", err)
	}
	if page.Dispatches == nil {
		page.Dispatches = []DispatchInfo{} // in JSON, a list
	}
	if !q.Payloads {
		withoutPayloads(page.Dispatches)
	}
	return page, nil
}

func withoutPayloads(all []DispatchInfo) {
	for i := range all {
		all[i].Payload = nil
	}
}

func (v *views) dispatches(ctx context.Context, q DispatchQuery) (DispatchPage, error) {
	refuse := func(field string, value any, reason string) (DispatchPage, error) {
		return DispatchPage{}, &OptionError{Option: "DispatchQuery." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	switch {
	case ctx.Err() != nil:
		return DispatchPage{}, contextError(ctx)
	case q.State != "" && !slices.Contains(dispatchStates, q.State):
		return refuse("State", q.State, fmt.Sprintf("must be one of %v", dispatchStates))
	case q.Limit < 0 || q.Limit > maxPage:
		return refuse("Limit", q.Limit, fmt.Sprintf("must be from 1 to %d, or 0 for %d", maxPage, defaultPage))
	}
	var err error
	if q.same, err = v.operators.namesOf(ctx, q.Subscription); err != nil {
		return DispatchPage{}, err
	}
	q.Limit = cmp.Or(q.Limit, defaultPage)
	if q.State != DispatchRunning { // memory has those that run
		if page, exist, err := v.storedDispatches(ctx, q); exist || err != nil {
			return page, err
		}
	}
	var after EventID
	if q.After != "" {
		if after, err = ParseEventID(q.After); err != nil {
			return refuse("After", shorten(q.After), "must be the Next of the previous page")
		}
	}
	matches, err := q.matcher()
	if err != nil {
		return DispatchPage{}, err
	}
	return v.dispatchesInMemory(q, after, matches), nil
}

// matcher returns a function that compares the fixed fields of dispatches.
func (q *DispatchQuery) matcher() (func(*dispatch) bool, error) {
	matchesType, err := typeMatcher(q.Type)
	if err != nil {
		return nil, err
	}
	return func(d *dispatch) bool {
		return (q.Key == "" || q.Key == d.key) && (q.IdempotencyKey == "" || q.IdempotencyKey == d.from().once.key) && (matchesType == nil || matchesType(d.to.eventType)) &&
			(q.Subscription == "" || slices.ContainsFunc(d.to.subscriptions, func(s *Subscription) bool { return s.id == q.Subscription || q.same.Has(s.id) }))
	}, nil
}

// matches compares what changes while a dispatch goes on.
func (q *DispatchQuery) matches(i *DispatchInfo) bool {
	return (q.State == "" || q.State == i.State) && (q.Destination == "" || q.Destination == i.Destination) && strings.Contains(i.LastError, q.Error) &&
		(q.PublishedUntil.IsZero() || !i.Published.After(q.PublishedUntil))
}

// matchesAll reports whether no field excludes a dispatch.
func (q *DispatchQuery) matchesAll() bool {
	return q.State == "" && q.Type == "" && q.Subscription == "" && q.Key == "" && q.IdempotencyKey == "" && q.Destination == "" && q.Error == "" && q.PublishedUntil.IsZero()
}

// audited returns the query as the audit keeps it.
func (q DispatchQuery) audited() *DispatchQuery {
	for _, text := range []*string{&q.Type, &q.Subscription, &q.Key, &q.IdempotencyKey, &q.Destination, &q.Error} {
		*text = texts.Shorten(*text, maxName)
	}
	if !driver.Storable(q.PublishedUntil) {
		q.PublishedUntil = time.Time{}
	}
	return &q
}

// eventsOf returns the events that have a dispatch which matches. It calls visit with each dispatch.
func (v *views) eventsOf(ctx context.Context, q DispatchQuery, visit func(*DispatchInfo)) (events []EventID, err error) {
	seen := make(map[EventID]bool)
	for q.Limit = maxPage; ; {
		page, err := v.dispatches(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Dispatches {
			d := &page.Dispatches[i]
			if !seen[d.Event] {
				seen[d.Event] = true
				events = append(events, d.Event)
			}
			visit(d)
		}
		if q.After = page.Next; q.After == "" {
			return events, nil
		}
	}
}

// ActionPreview describes what CancelMatching, RetryNowMatching or GiveUpMatching would act on now.
type ActionPreview struct {
	// Matched is the number of events that have a matching dispatch.
	Matched int `json:"matched"`
	// Sample has the first matching dispatches, at most 10.
	Sample []DispatchInfo `json:"sample"`
	// Oldest and Newest are the earliest and the latest time of publication.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// States counts the matching dispatches by their states.
	States map[DispatchState]int `json:"states"`
}

// PreviewMatching returns how many events a bulk action with a query would act on, and some of their dispatches. It changes nothing. An empty
// query matches all. It reads all matching dispatches, as Dispatches does.
//
// The set may be another one when the action begins. Give the action Newest as PublishedUntil to leave out later events.
//
// Errors: those of Dispatches; an *OptionError for Limit, After and Payloads.
func (b *Bus) PreviewMatching(ctx context.Context, q DispatchQuery) (ActionPreview, error) {
	p := ActionPreview{Sample: []DispatchInfo{}, States: make(map[DispatchState]int)}
	err := b.ready(ctx)
	if err == nil {
		q.All = true // nothing is done, so nothing is to confirm
		err = q.checkBulk(AuditRetryNow, &bulk{})
	}
	var events []EventID
	if err == nil {
		events, err = b.views.eventsOf(ctx, q, p.add)
	}
	if err != nil {
		return ActionPreview{}, fmt.Errorf("PreviewMatching: %w", err)
	}
	p.Matched = len(events)
	return p, nil
}

func (p *ActionPreview) add(d *DispatchInfo) {
	if p.States[d.State]++; len(p.Sample) < previewSample {
		p.Sample = append(p.Sample, *d)
		withoutPayloads(p.Sample)
	}
	if p.Oldest.IsZero() || d.Published.Before(p.Oldest) {
		p.Oldest = d.Published
	}
	if d.Published.After(p.Newest) {
		p.Newest = d.Published
	}
}

func (v *views) dispatchesInMemory(q DispatchQuery, after EventID, matches func(*dispatch) bool) (page DispatchPage) {
	all := v.candidates(q.State, func(d *dispatch) bool {
		return matches(d) && (after.IsZero() || bytes.Compare(d.id[:], after[:]) > 0)
	})
	ids := pace.Smallest(q.Limit+1, all, func(d *dispatch) [16]byte { return d.id })
	if len(ids) > q.Limit {
		last := EventID(ids[q.Limit-1])
		page.Next = last.String()
		all = slices.DeleteFunc(all, func(d *dispatch) bool { return bytes.Compare(d.id[:], last[:]) > 0 })
	}
	found := make(foundDispatches, len(all))
	v.describeAll(all, found)
	for _, is := range found {
		if q.matches(&is.DispatchInfo) {
			page.Dispatches = append(page.Dispatches, is.DispatchInfo)
		}
	}
	slices.SortFunc(page.Dispatches, compareDispatches)
	return page
}

// Bounds of the reads for one page of dispatches, of which few may match.
const (
	listedAtOnce = 100    // records in one read, at least
	listedInAll  = 10_000 // records after which the page ends
)

// storedDispatches returns a page of the store's records. exist is false without a store.
func (v *views) storedDispatches(ctx context.Context, q DispatchQuery) (page DispatchPage, exist bool, err error) {
	query := driver.RecordQuery{Key: q.Key, IdempotencyKey: q.IdempotencyKey, Targets: q.same.Of(q.Subscription), Limit: max(q.Limit, listedAtOnce)}
	query.States = recordStates[q.State]
	if query.Type, err = typeMatcher(q.Type); err != nil {
		return page, false, err
	}
	page.Next = q.After
	for read := 0; read < listedInAll; {
		records, next, exist, err := v.journal.recordPage(ctx, query, page.Next)
		if !exist || err != nil {
			return DispatchPage{}, exist, err
		}
		for i, info := range v.describeAsListed(records) {
			if !q.matches(&info) {
				continue
			}
			page.Dispatches = append(page.Dispatches, info)
			if len(page.Dispatches) == q.Limit && (i < len(records)-1 || next != "") {
				page.Next = pageAfter(records[i].Ref)
				return page, true, nil
			}
		}
		if page.Next = next; next == "" {
			break
		}
		read += len(records)
	}
	return page, true, nil
}

// describeAsListed describes records of the store, and those of them that memory has as they are there.
func (v *views) describeAsListed(records []*record) []DispatchInfo {
	events := make(map[EventID]bool, len(records))
	for _, r := range records {
		events[EventID(r.ID)] = true
	}
	found := make(foundDispatches)
	v.describeAll(v.candidates("", func(d *dispatch) bool { return events[d.id] }), found)
	return v.describeRecords(records, found)
}

// recordStates has, for the state of a dispatch, the states that its record may have. A snoozed dispatch is listed as parked, and its
// record is waiting. After a wait a dispatch is queued, and its record keeps the state of the wait until the next commit.
var recordStates = map[DispatchState][]driver.State{
	DispatchQueued: {driver.Ready, driver.Waiting, driver.Parked}, DispatchWaiting: {driver.Waiting}, DispatchScheduled: {driver.Scheduled},
	DispatchParked: {driver.Parked, driver.Waiting},
}

// typeMatcher returns a function that compares event types with a pattern, or nil for an empty one.
func typeMatcher(pattern string) (matches func(string) bool, err error) {
	if pattern == "" {
		return nil, nil //nolint:nilnil // nil matches all
	}
	parsed, offence := route.Parse(pattern)
	if offence != nil {
		return nil, patternError(pattern, offence)
	}
	return parsed.Match, nil
}

// SettledDelivery describes how an event ended at a subscription. Operators are named as in the option By, which may be
// empty.
type SettledDelivery struct {
	Subscription string    `json:"subscription,omitempty"` // where the event ended; empty for an unrouted event
	Outcome      Outcome   `json:"outcome"`                // how it ended
	At           time.Time `json:"at"`                     // when it ended, in UTC, to the millisecond
	Attempts     int       `json:"attempts"`               // attempts of the dispatch; 1,023 means 1,023 or more
	Replays      int       `json:"replays,omitempty"`      // replays of the event from dead letters; 255 means 255 or more
	ReplayedBy   string    `json:"replayed_by,omitempty"`  // the operator of the last replay
	RetriedBy    string    `json:"retried_by,omitempty"`   // the operator of the last RetryNow
	EndedBy      string    `json:"ended_by,omitempty"`     // the operator of a Cancel, a GiveUp, or a Retire of the subscription
	PurgedBy     string    `json:"purged_by,omitempty"`    // the operator who purged the dead letter; only with a store
}

// settledOf returns how the deliveries of an event have ended that this process remembers.
func (m *machine) settledOf(id EventID) []SettledDelivery { return deliveriesOf(m.settled.Of(id)) }

func deliveriesOf(ends []settled.Delivery[*Subscription]) []SettledDelivery {
	all := []SettledDelivery{} // in JSON, a list
	for _, d := range ends {
		is := SettledDelivery{Outcome: Outcome(d.End.Outcome), At: time.UnixMilli(d.End.Millis).UTC(), Attempts: d.End.Attempts, Replays: d.End.Replays}
		if d.At != nil {
			is.Subscription = d.At.id
		}
		if by := d.By; by != nil {
			is.ReplayedBy, is.RetriedBy = by.Replayed, by.Retried
			if is.Outcome != Handled { // the others of the dispatch
				is.EndedBy = by.Ended
			}
		}
		all = append(all, is)
	}
	return all
}

// joinSettled returns deliveries, oldest first, each once: what the store says of one that this process remembers, and of a purge,
// is about the same one.
func joinSettled(all []SettledDelivery) []SettledDelivery {
	type end struct {
		subscription string
		outcome      Outcome
		replays      int
		millis       int64
	}
	places := make(map[end]int, len(all))
	joined := []SettledDelivery{}
	for _, d := range all {
		is := end{d.Subscription, d.Outcome, d.Replays, d.At.UnixMilli()}
		at, known := places[is]
		if !known {
			places[is] = len(joined)
			joined = append(joined, d)
			continue
		}
		joined[at].PurgedBy = cmp.Or(joined[at].PurgedBy, d.PurgedBy)
	}
	slices.SortStableFunc(joined, func(x, y SettledDelivery) int {
		return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.Replays, y.Replays))
	})
	return joined
}

// remember notes how a dispatch has settled.
func (m *machine) remember(d *dispatch, outcome Outcome, letter *keptLetter) {
	if outcome == Handled && d.story == nil && d.to.dispatches == 1 && d.from().replay == nil && d.row() == nil { // as are most of a bus in memory
		now, _ := m.time.Recent()
		m.settled.AddHandled((*[16]byte)(&d.id), &d.to.subscriptions, settled.End{Outcome: int(Handled), Attempts: int(d.attempt), Millis: now.Millis})
		return
	}
	is := m.endOf(d, outcome, letter)
	m.settled.Add(&is)
}

// endOf describes the end of a dispatch, now or, with a letter, when it died.
func (m *machine) endOf(d *dispatch, outcome Outcome, letter *keptLetter) settled.Dispatch[*Subscription] {
	now, _ := m.time.Recent()
	is := settled.Dispatch[*Subscription]{
		ID: d.id, By: d.touchedBy(), Handled: d.to.subscriptions[:d.next], Dispatches: d.to.dispatches,
		End: settled.End{Outcome: int(outcome), Attempts: int(d.attempt), Replays: int(d.replay().count), Millis: now.Millis},
	}
	if row := d.row(); letter != nil {
		is.End.Millis = letter.DiedAt.UnixMilli()
	} else if row != nil && row.ended != 0 {
		is.End.Millis = row.ended
	}
	if d.story != nil && d.story.detours != nil && len(d.story.detours.skipped) > 0 {
		is.Handled, is.Dispatches = d.handled(), 0
	}
	if outcome != Handled && !d.isVisited() {
		is.Ended, is.HasEnded, is.EndedAs = d.to.subscriptions[d.next], true, int(outcome)
		is.End.Outcome = int(Handled)
	}
	return is
}

// handled returns the targets that have handled the event in a dispatch from which others were split off.
func (d *dispatch) handled() (all []*Subscription) {
	for i, s := range d.to.subscriptions[:d.next] {
		if !slices.Contains(d.story.detours.skipped, int32(i)) {
			all = append(all, s)
		}
	}
	return all
}

// touch notes operators that have acted upon the dispatch.
func (d *dispatch) touch(by settled.Operators) {
	if was := d.ensureDetours().by; was != nil {
		by.Retried = cmp.Or(by.Retried, was.Retried)
	}
	d.story.detours.by = &by
}

// touchedBy returns the operators that have acted upon the dispatch, or nil.
func (d *dispatch) touchedBy() (by *settled.Operators) {
	if d.story != nil && d.story.detours != nil {
		by = d.story.detours.by
	}
	replay := d.from().replay
	if replay == nil {
		return by
	}
	all := settled.Operators{Replayed: replayer(replay.log)}
	if by != nil {
		all.Retried, all.Ended = by.Retried, by.Ended
	}
	return &all
}

// String returns a sentence, such as "handled by billing at 2026-11-25 12:03:04Z, attempt 1, replayed by alice". Names are not escaped.
func (d SettledDelivery) String() string {
	var b strings.Builder
	b.WriteString(d.Outcome.String())
	if d.Subscription != "" {
		b.WriteString(map[bool]string{true: " by ", false: " at "}[d.Outcome == Handled] + d.Subscription)
	}
	b.WriteString(" at " + d.At.UTC().Format("2006-01-02 15:04:05Z"))
	if d.Attempts > 0 {
		fmt.Fprintf(&b, ", attempt %d", d.Attempts)
	}
	if d.Replays > 0 {
		b.WriteString(", replayed")
		if d.ReplayedBy != "" {
			b.WriteString(" by " + d.ReplayedBy)
		}
	}
	for _, did := range [...]struct{ what, by string }{{"retried", d.RetriedBy}, {"ended", d.EndedBy}, {"its letter purged", d.PurgedBy}} {
		if did.by != "" {
			b.WriteString(", " + did.what + " by " + did.by)
		}
	}
	return b.String()
}
