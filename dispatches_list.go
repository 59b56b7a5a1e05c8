package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/route"
)

// DispatchQuery selects the dispatches that match every field that is set.
type DispatchQuery struct {
	State DispatchState
	// Type is a pattern of event types, as for Subscribe.
	Type string
	// Subscription selects dispatches with this target, also one that has handled the event. As to names,
	// it is as in LetterQuery.
	Subscription string
	same         *names.Same
	// Key matches the key of the event. It cannot select events without a key.
	Key string
	// IdempotencyKey matches that of the event.
	IdempotencyKey string

	// Payloads adds the payloads, which the bus leaves out otherwise: for tests, and for tools whose users may see them.
	Payloads bool

	// Limit is the size of a page: 100 if it is 0, at most 10,000.
	Limit int
	// After is the Next of the previous page.
	After string
}

// DispatchPage is a page of dispatches, oldest first.
type DispatchPage struct {
	Dispatches []DispatchInfo `json:"dispatches"`
	// Next is the After of the next page. It is empty on the last page.
	Next string `json:"next,omitempty"`
}

// Dispatches returns a page of the dispatches that have not settled: in memory, and running ones, in
// the order of their event ids; others of a store in its order of acceptance. Events that wait to be
// taken in are no dispatches yet: Event finds them, and Metrics counts them.
//
// In memory, all dispatches of an event are on the same page, which may have more than Limit. Each page
// compares all dispatches, at about 100 ns each, mostly without a lock. With a store, a page may have fewer than Limit, since
// dispatches that run are records as the queued ones, and a bus that was not started sees those of
// another process as queued.
//
// What is reported was true at some time during the call. A dispatch that changes its place meanwhile
// may be missing. With a store the call blocks for its reads, which ctx bounds.
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
	found := make(map[*dispatch]DispatchInfo, len(all))
	v.describeAll(all, found)
	for _, info := range found {
		if q.State == "" || q.State == info.State {
			page.Dispatches = append(page.Dispatches, info)
		}
	}
	slices.SortFunc(page.Dispatches, compareDispatches)
	return page
}

// storedDispatches returns a page of the store's records. exist is false without a store.
func (v *views) storedDispatches(ctx context.Context, q DispatchQuery) (page DispatchPage, exist bool, err error) {
	query := driver.RecordQuery{Key: q.Key, IdempotencyKey: q.IdempotencyKey, Targets: q.same.Of(q.Subscription), Limit: q.Limit}
	if state, ok := recordStates[q.State]; ok {
		query.States = []driver.State{state}
	}
	if query.Type, err = typeMatcher(q.Type); err != nil {
		return page, false, err
	}
	decoded, next, exist, err := v.journal.recordPage(ctx, query, q.After)
	if !exist || err != nil {
		return page, exist, err
	}
	events := make(map[EventID]bool, len(decoded))
	for _, r := range decoded {
		events[EventID(r.ID)] = true
	}
	found := make(map[*dispatch]DispatchInfo)
	v.describeAll(v.candidates("", func(d *dispatch) bool { return events[d.id] }), found)
	for _, info := range v.describeRecords(decoded, found) {
		if q.State == "" || q.State == info.State {
			page.Dispatches = append(page.Dispatches, info)
		}
	}
	page.Next = next
	return page, true, nil
}

// recordStates are the states of records, by those of their dispatches.
var recordStates = map[DispatchState]driver.State{
	DispatchQueued: driver.Ready, DispatchWaiting: driver.Waiting, DispatchScheduled: driver.Scheduled, DispatchParked: driver.Parked,
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
