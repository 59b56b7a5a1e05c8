package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// OperationAction is what a bulk operation does.
type OperationAction string

// The actions of bulk operations.
const (
	ReplayMatching OperationAction = "replay_matching"
	PurgeMatching  OperationAction = "purge_matching"
)

// OperationState is where a bulk operation is.
type OperationState string

// The states of a bulk operation. All but the first are final.
const (
	OperationRunning   OperationState = "running"
	OperationDone      OperationState = "done"
	OperationStopped   OperationState = "stopped"   // by stop_after
	OperationCancelled OperationState = "cancelled" // by an operator
	OperationFailed    OperationState = "failed"    // by an error, or because the bus was shut down
)

// OperationRequest is the body of POST /api/v1/operations. The letters are those that match Query and died until Until of
// the query, or until now without it: letters that die later do not belong to the operation.
type OperationRequest struct {
	Action OperationAction      `json:"action"`
	Query  eventbus.LetterQuery `json:"query"`
	// Expect is the number of letters that the operator expects to match. If another number matches, the operation
	// does not begin, and the error is stale_count.
	Expect *int `json:"expect"`
	// Rate is the number of letters a second. 0 stands for no limit.
	Rate float64 `json:"rate,omitempty"`
	// StopAfter is the number of failures after which a replay stops. 0 stands for never.
	StopAfter int    `json:"stop_after,omitempty"`
	DryRun    bool   `json:"dry_run,omitempty"` // only counts the letters
	Why       string `json:"why,omitempty"`
}

// Operation is a bulk operation that runs in the process of the bus, and survives the request that has begun it. The
// handler keeps the last 100. The audit has all.
type Operation struct {
	ID     string               `json:"id"`
	Action OperationAction      `json:"action"`
	State  OperationState       `json:"state"`
	Query  eventbus.LetterQuery `json:"query"` // with the Until that fixes the letters
	Expect int                  `json:"expect"`
	DryRun bool                 `json:"dry_run,omitempty"`
	Done   int                  `json:"done"`   // letters processed, with any outcome
	Total  int                  `json:"total"`  // letters in the set
	Failed int                  `json:"failed"` // as ReplayReport.Failures
	// Report is set at the end, for the action: letters that stayed are listed up to 100.
	ReplayReport *eventbus.ReplayReport `json:"replay_report,omitempty"`
	PurgeReport  *eventbus.PurgeReport  `json:"purge_report,omitempty"`
	Error        *Error                 `json:"error,omitempty"` // of OperationFailed
	By           string                 `json:"by"`
	Why          string                 `json:"why,omitempty"`
	CancelledBy  string                 `json:"cancelled_by,omitempty"`
	StartedAt    time.Time              `json:"started_at"`
	EndedAt      time.Time              `json:"ended_at,omitzero"`
}

// OperationPage is a page of operations, newest first.
type OperationPage struct {
	Operations []Operation `json:"operations"`
	Total      int         `json:"total"`          // on all pages
	Next       int         `json:"next,omitempty"` // the offset of the next page
}

// Limits of operations.
const (
	keptOperations    = 100
	runningOperations = 4
	maxOperation      = 1_000_000 // letters
	maxStayed         = 100       // letters in a report
)

// operations are the bulk operations of a handler.
type operations struct {
	mu  sync.Mutex // guards all and the Operations; a leaf
	all []*operation
}

// operation is a bulk operation, and how to cancel it.
type operation struct {
	Operation
	cancel context.CancelCauseFunc // the audit has the cause
}

// permission returns the action that an operation needs.
func (a OperationAction) permission() Action {
	if a == PurgeMatching {
		return ActionPurge
	}
	return ActionReplay
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

// begin begins an operation. Each error leaves the letters unchanged.
func (c *call) begin(r OperationRequest) (Operation, error) {
	var none Operation
	if r.Action != ReplayMatching && r.Action != PurgeMatching {
		return none, badRequest("the action is unknown", fmt.Sprintf("use %s or %s", ReplayMatching, PurgeMatching))
	}
	if err := c.needFor(r.Action.permission(), &r.Query, r.Why); err != nil {
		return none, err
	}
	opts, err := c.bulkOptions(&r)
	if err != nil {
		return none, err
	}
	if r.Query.Until.IsZero() {
		r.Query.Until = time.Now().UTC()
	}
	// The same operation, while it runs, makes the count stale: name it rather than the count.
	if err := c.operations.check(r.Action, r.Query); err != nil {
		return none, err
	}
	matching, err := c.countMatching(r.Query)
	switch {
	case err != nil:
		return none, err
	case matching > maxOperation:
		return none, &Error{Code: CodeUnprocessable, Message: fmt.Sprintf("%d letters match, more than %d", matching, maxOperation), Remedy: "narrow the query, for example with since and until"}
	case matching != *r.Expect:
		return none, &Error{Code: CodeStaleCount, Message: fmt.Sprintf("%d letters match now, not %d", matching, *r.Expect), Remedy: "look at the preview again, and confirm its count"}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	op := &operation{cancel: cancel, Operation: Operation{
		ID: newRequestID(), Action: r.Action, State: OperationRunning, Query: r.Query, Expect: *r.Expect, DryRun: r.DryRun,
		Total: matching, By: c.who.Name, Why: r.Why, StartedAt: time.Now().UTC(),
	}}
	if err := c.operations.add(op); err != nil {
		cancel(nil)
		return none, err
	}
	go c.server.run(ctx, op, append(opts, c.operations.progress(op)))
	return c.operations.show(c.config, op), nil
}

// bulkOptions validates a request, and brings its times into UTC: two queries are then equal if their times are.
func (c *call) bulkOptions(r *OperationRequest) (opts []eventbus.BulkOption, err error) {
	for _, t := range []*time.Time{&r.Query.Since, &r.Query.Until, &r.Query.PublishedSince, &r.Query.PublishedUntil} {
		if *t = t.UTC(); t.IsZero() {
			*t = time.Time{}
		}
	}
	switch {
	case r.Expect == nil || *r.Expect < 0:
		return nil, badRequest("expect is missing or negative", "give the number of letters that the preview shows")
	case !(r.Rate >= 0 && r.Rate <= math.MaxFloat64): // NaN too, which would be no limit
		return nil, badRequest("rate must be a finite number that is not negative", "give the number of letters a second, or 0 for no limit")
	case r.StopAfter < 0 || r.StopAfter > 0 && r.Action == PurgeMatching:
		return nil, badRequest("stop_after must be a number above 0, and is for replays only", "leave it out to continue after any failure")
	case r.Query.Limit != 0 || !r.Query.Before.IsZero() || r.Query.ExactTotal:
		return nil, badRequest("limit, before and exact_total do not select letters", "leave them out")
	case r.Query == (eventbus.LetterQuery{}):
		return nil, badRequest("an empty query matches every letter", "set all to confirm, or set a filter")
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
	return opts, nil
}

// countMatching returns the number of letters that match, and validates the query as the operation does.
func (c *call) countMatching(q eventbus.LetterQuery) (int, error) {
	q.Limit, q.ExactTotal = 1, true
	page, err := c.bus.DLQ().List(c.ctx, q)
	return page.Total, err
}

// check returns a conflict if too many operations run, or one with the same action and filters does.
func (o *operations) check(action OperationAction, q eventbus.LetterQuery) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.checkLocked(action, q)
}

func (o *operations) checkLocked(action OperationAction, q eventbus.LetterQuery) error {
	running := 0
	for _, other := range o.all {
		if other.State != OperationRunning {
			continue
		}
		running++
		same := other.Query
		same.Until = q.Until
		if other.Action == action && same == q {
			return conflict(fmt.Sprintf("operation %s of %q does the same already", other.ID, other.By), "look at its progress, or cancel it")
		}
	}
	if running >= runningOperations {
		return conflict(fmt.Sprintf("%d operations run already", running), "wait for one, or cancel it")
	}
	return nil
}

// add adds an operation, unless it conflicts.
func (o *operations) add(op *operation) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.checkLocked(op.Action, op.Query); err != nil {
		return err
	}
	o.all = append(o.all, op)
	if len(o.all) > keptOperations {
		oldest := slices.IndexFunc(o.all, func(op *operation) bool { return op.State != OperationRunning })
		o.all = slices.Delete(o.all, oldest, oldest+1)
	}
	return nil
}

// progress returns the option that updates an operation.
func (o *operations) progress(op *operation) eventbus.BulkOption {
	return eventbus.OnProgress(func(p eventbus.BulkProgress) {
		o.mu.Lock()
		defer o.mu.Unlock()
		op.Total, op.Done, op.Failed = p.Matched, p.Done, p.Failures
	})
}

// run runs an operation to its end. It ends with the bus.
func (s *server) run(ctx context.Context, op *operation, opts []eventbus.BulkOption) {
	defer op.cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() { // a purge does not end with the bus
		select {
		case <-s.bus.Stopping():
			op.cancel(nil)
		case <-ended:
		}
	}()
	var err error
	switch op.Action {
	case PurgeMatching:
		var report eventbus.PurgeReport
		report, err = s.bus.DLQ().PurgeMatching(ctx, op.Query, opts...)
		s.operations.end(op, err, func() { op.Total, op.Done, op.PurgeReport = report.Matched, report.Purged+report.Gone, &report })
	case ReplayMatching:
		var report eventbus.ReplayReport
		report, err = s.bus.DLQ().ReplayMatching(ctx, op.Query, opts...)
		done := report.Replayed + report.Gone + len(report.Stayed)
		report.Stayed = slices.Clone(report.Stayed[:min(len(report.Stayed), maxStayed)])
		for i := range report.Stayed {
			e := errorOf(report.Stayed[i].Err)
			report.Stayed[i].Error = e.Message
		}
		s.operations.end(op, err, func() { op.Total, op.Done, op.Failed, op.ReplayReport = report.Matched, done, report.Failures, &report })
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, eventbus.ErrShutdown) {
		s.log.Error("admin operation failed", "operation", op.ID, "error", cut(err.Error(), 4096))
	}
}

// end records how an operation ended.
func (o *operations) end(op *operation, err error, report func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	report()
	op.EndedAt = time.Now().UTC()
	switch {
	case err == nil && op.ReplayReport != nil && op.ReplayReport.Stopped:
		op.State = OperationStopped
	case err == nil:
		op.State = OperationDone
	case op.CancelledBy != "":
		op.State = OperationCancelled
	case errors.Is(err, context.Canceled):
		op.State, op.Error = OperationFailed, errorOf(eventbus.ErrShutdown)
	default:
		e := *errorOf(err)
		e.RequestID = op.ID
		op.State, op.Error = OperationFailed, &e
	}
}

// show returns an operation as answers show it.
func (o *operations) show(c *config, op *operation) Operation {
	o.mu.Lock()
	shown := op.Operation
	o.mu.Unlock()
	shown.Query = *c.query(&shown.Query)
	return shown
}

// list returns the operations, newest first.
func (o *operations) list() []*operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.all)
	slices.Reverse(all)
	return all
}

// find returns an operation.
func (o *operations) find(id string) (*operation, error) {
	for _, op := range o.list() {
		if op.ID == id {
			return op, nil
		}
	}
	return nil, notFound("there is no such operation", fmt.Sprintf("the handler keeps the last %d of its process; the audit has all", keptOperations))
}

func (c *call) listOperations() (any, error) {
	var w window
	if err := c.parameters(windowParameters(&w)); err != nil {
		return nil, err
	}
	return c.operationPage(w), nil
}

func (c *call) operationPage(w window) (page OperationPage) {
	all := c.operations.list()
	part, next := windowOf(w, all)
	page = OperationPage{Operations: []Operation{}, Total: len(all), Next: next}
	for _, op := range part {
		page.Operations = append(page.Operations, c.operations.show(c.config, op))
	}
	return page
}

func (c *call) getOperation() (any, error) {
	op, err := c.operations.find(c.args["id"])
	if err != nil {
		return nil, err
	}
	return c.operations.show(c.config, op), nil
}

func (c *call) postCancelOperation() (any, error) {
	var body ChangeRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.cancelOperation(c.args["id"], body.Why)
}

// cancelOperation cancels an operation and waits for nothing: its state changes when the letter in progress is done.
func (c *call) cancelOperation(id, why string) (Operation, error) {
	op, err := c.operations.find(id)
	if err != nil {
		return Operation{}, err
	}
	if err := c.needFor(op.Action.permission(), &op.Query, why); err != nil {
		return Operation{}, err
	}
	if why != "" && !validName(why) {
		return Operation{}, badRequest("why must have up to 255 bytes of UTF-8 without control characters", "correct the value")
	}
	if !c.operations.cancel(op, c.who.Name, why) {
		return Operation{}, conflict("the operation has ended", "look at its report")
	}
	c.log.Info("admin operation cancelled", c.attributes("operation", id, "why", why)...)
	return c.operations.show(c.config, op), nil
}

// cancel reports whether the operation ran. In the audit, the outcome of the operation says who has cancelled it.
func (o *operations) cancel(op *operation, by, why string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op.State != OperationRunning {
		return false
	}
	if op.CancelledBy == "" {
		op.CancelledBy = by
	}
	cause := fmt.Sprintf("cancelled by %q", by)
	if why != "" {
		cause += ": " + why
	}
	op.cancel(errors.New(cause))
	return true
}
