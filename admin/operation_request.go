package admin

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/surebus/eventbus"
)

// OperationRequest is the body of POST /api/v1/operations.
//
// A replay or a purge processes the letters that match Query and died until its Until, or until now without it. Letters
// that die later do not belong to the operation. Set Until to the newest letter of the preview. Otherwise letters that
// die after the preview change the number, and the error is stale_count.
//
// An action on events has Dispatches in place of Query. It processes the events that match it and were published until
// its PublishedUntil, or until now without it.
type OperationRequest struct {
	Action     OperationAction         `json:"action"`               // what to do with the letters or events
	Query      eventbus.LetterQuery    `json:"query"`                // selects dead letters, for a replay or a purge
	Dispatches *eventbus.DispatchQuery `json:"dispatches,omitempty"` // selects events, for the other actions
	Probe      bool                    `json:"probe,omitempty"`      // for RetryNowMatching: try held deliveries, too
	// Expect is the number of letters or events that the operator expects to match. If another number of letters
	// matches, the operation does not begin, and the error is stale_count. Because events settle meanwhile, only a
	// larger number of events is an error.
	Expect *int `json:"expect"`
	// Rate is the number of letters or events a second. 0 means no limit.
	Rate float64 `json:"rate,omitempty"`
	// StopAfter is the number of failures after which a replay stops. 0 means never.
	StopAfter int    `json:"stop_after,omitempty"`
	DryRun    bool   `json:"dry_run,omitempty"` // only count
	Why       string `json:"why,omitempty"`     // for the audit: up to 255 bytes without control characters
}

func (c *call) postOperation() (any, error) {
	var body OperationRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	op, err := c.begin(body)
	if err != nil {
		return nil, err
	}
	return op, nil
}

// begin begins an operation. Each error leaves the letters and events unchanged.
func (c *call) begin(r OperationRequest) (Operation, error) {
	var none Operation
	if _, known := kinds[r.Action]; !known {
		return none, badRequest("the action is unknown", fmt.Sprintf("use one of %s, %s, %s, %s, %s", ReplayMatching, PurgeMatching, CancelMatching, RetryNowMatching, GiveUpMatching))
	}
	if err := c.needFor(r.Action.permission(), r.set(), r.Why); err != nil {
		return none, err
	}
	opts, err := c.bulkOptions(&r)
	if err != nil {
		return none, err
	}
	r.fix(time.Now().UTC())
	// The same operation, while it runs, makes the count stale: name it rather than the count.
	op := &operation{Operation: Operation{
		ID: c.id, Action: r.Action, State: OperationRunning, Query: r.Query, Dispatches: r.Dispatches, Probe: r.Probe, Expect: *r.Expect, DryRun: r.DryRun,
		Rate: r.Rate, StopAfter: r.StopAfter, By: c.who.Name, Why: r.Why, StartedAt: time.Now().UTC(),
	}}
	if err := c.operations.check(op); err != nil {
		return none, err
	}
	if op.Total, err = c.countSet(&r); err != nil {
		return none, err
	}
	if err := r.checkCount(op.Total); err != nil {
		return none, err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	op.cancel = cancel
	if r.Action == ReplayMatching && !r.DryRun {
		op.Again = diedAgain(&op.Operation, c.tool)
	}
	if err := c.operations.add(op); err != nil {
		cancel(nil)
		return none, err
	}
	go c.server.run(ctx, op, append(opts, c.operations.progress(op)))
	return c.operations.show(c.config, op), nil
}

// set returns the query of a request, for the audit.
func (r *OperationRequest) set() bulkSet {
	if r.Action.ofEvents() {
		return bulkSet{events: r.Dispatches}
	}
	return bulkSet{letters: &r.Query}
}

// fix gives the query the instant that fixes its set, if it has none.
func (r *OperationRequest) fix(now time.Time) {
	until := &r.Query.Until
	if r.Action.ofEvents() {
		until = &r.Dispatches.PublishedUntil
	}
	if until.IsZero() {
		*until = now
	}
}

// checkCount refuses a set that is too large, or not the one that the operator has seen.
func (r *OperationRequest) checkCount(matching int) error {
	noun := r.Action.noun()
	switch {
	case matching > maxOperation:
		return &Error{Code: CodeUnprocessable, Message: fmt.Sprintf("%d %s match, more than %d", matching, noun, maxOperation), Remedy: "narrow the query, for example with times"}
	case r.Action.ofEvents() && matching > *r.Expect:
		return &Error{Code: CodeStaleCount, Message: fmt.Sprintf("%d events match now, more than %d", matching, *r.Expect), Remedy: "look at the preview again, and confirm its count"}
	case !r.Action.ofEvents() && matching != *r.Expect:
		return &Error{Code: CodeStaleCount, Message: fmt.Sprintf("%d letters match now, not %d", matching, *r.Expect), Remedy: "look at the preview again, and confirm its count"}
	}
	return nil
}

// countSet returns the number of letters or events that match, and validates the query as the operation does.
func (c *call) countSet(r *OperationRequest) (int, error) {
	if !r.Action.ofEvents() {
		return c.countMatching(r.Query)
	}
	opts := []eventbus.BulkOption{eventbus.DryRun()}
	if r.Probe {
		opts = append(opts, eventbus.Probe())
	}
	report, err := kinds[r.Action].act(c.bus, c.ctx, *r.Dispatches, opts...)
	return report.Matched, err
}

// bulkOptions validates a request, and brings its times into UTC: two queries are then equal if their times are.
func (c *call) bulkOptions(r *OperationRequest) (opts []eventbus.BulkOption, err error) {
	times := []*time.Time{&r.Query.Since, &r.Query.Until, &r.Query.PublishedSince, &r.Query.PublishedUntil}
	if r.Dispatches != nil {
		times = append(times, &r.Dispatches.PublishedUntil)
	}
	for _, t := range times {
		if *t = t.UTC(); t.IsZero() {
			*t = time.Time{}
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for _, o := range c.operator(r.Why) {
		opts = append(opts, o)
	}
	if r.Rate > 0 {
		opts = append(opts, eventbus.Rate(r.Rate))
	}
	if r.StopAfter > 0 {
		opts = append(opts, eventbus.StopAfter(r.StopAfter))
	}
	if r.DryRun {
		opts = append(opts, eventbus.DryRun())
	}
	if r.Probe {
		opts = append(opts, eventbus.Probe())
	}
	return opts, nil
}

// check refuses what the request's action does not have, and what is missing.
func (r *OperationRequest) check() error {
	switch {
	case r.Expect == nil || *r.Expect < 0:
		return badRequest("expect is missing or negative", "give the number of "+r.Action.noun()+" that the preview shows")
	case !(r.Rate >= 0 && r.Rate <= math.MaxFloat64): // NaN too, which would be no limit
		return badRequest("rate must be a finite number that is not negative", "give the number of "+r.Action.noun()+" a second, or 0 for no limit")
	case r.Why != "" && !validName(r.Why):
		return badRequest("why must have up to 255 bytes of UTF-8 without control characters", "correct the value")
	case r.StopAfter < 0 || r.StopAfter > 0 && r.Action != ReplayMatching:
		return badRequest("stop_after must be a number above 0, and is for replays only", "leave it out to continue after any failure")
	case r.Query.Limit != 0 || !r.Query.Before.IsZero() || r.Query.ExactTotal:
		return badRequest("limit, before and exact_total do not select letters", "leave them out")
	case r.Action.ofEvents() && (r.Dispatches == nil || r.Query != (eventbus.LetterQuery{})):
		return badRequest("the action is for events, which dispatches selects", "give the field dispatches, and leave query out")
	case r.Action.ofEvents() && *r.Dispatches == (eventbus.DispatchQuery{}):
		return badRequest("an empty query matches every event that has not settled", "set all to confirm, or set a filter")
	case !r.Action.ofEvents() && (r.Dispatches != nil || r.Probe):
		return badRequest("the action is for letters, which query selects", "leave dispatches and probe out")
	case !r.Action.ofEvents() && r.Query == (eventbus.LetterQuery{}):
		return badRequest("an empty query matches every letter", "set all to confirm, or set a filter")
	}
	return nil
}

// countMatching returns the number of letters that match, and validates the query as the operation does.
func (c *call) countMatching(q eventbus.LetterQuery) (int, error) {
	q.Limit, q.ExactTotal = 1, true
	page, err := c.bus.DLQ().List(c.ctx, q)
	return page.Total, err
}
