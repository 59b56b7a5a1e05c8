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

// OperationAction is the action of a bulk operation.
type OperationAction string

// The actions of bulk operations.
const (
	ReplayMatching OperationAction = "replay_matching"
	PurgeMatching  OperationAction = "purge_matching"

	// The following act on events that have not settled.
	CancelMatching   OperationAction = "cancel_matching"
	RetryNowMatching OperationAction = "retry_now_matching"
	GiveUpMatching   OperationAction = "give_up_matching"
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

// Operation is a bulk operation. It runs in the process of the bus, and continues after the request that began it. The
// handler keeps the last 100 operations, and the audit all.
type Operation struct {
	ID     string               `json:"id"`     // identifies the operation
	Action OperationAction      `json:"action"` // what it does
	State  OperationState       `json:"state"`  // how far it is
	Query  eventbus.LetterQuery `json:"query"`  // selects the letters, with the Until that fixes their set
	// Dispatches is the query of an action on events, with the PublishedUntil that fixes them.
	Dispatches *eventbus.DispatchQuery `json:"dispatches,omitempty"`
	Probe      bool                    `json:"probe,omitempty"`   // as in OperationRequest
	Expect     int                     `json:"expect"`            // as in OperationRequest
	DryRun     bool                    `json:"dry_run,omitempty"` // only counts
	// Rate and StopAfter are the values of the request.
	Rate      float64 `json:"rate,omitempty"`
	StopAfter int     `json:"stop_after,omitempty"`
	Done      int     `json:"done"`   // letters or events processed, with any outcome
	Total     int     `json:"total"`  // letters or events in the set
	Failed    int     `json:"failed"` // failures, as in ReplayReport.Failures
	// ReplayReport, with at most 100 letters that stayed, and PurgeReport are set at the end of a replay or a purge.
	ReplayReport *eventbus.ReplayReport `json:"replay_report,omitempty"`
	PurgeReport  *eventbus.PurgeReport  `json:"purge_report,omitempty"`
	// ActionsReport is set at the end of an action on events.
	ActionsReport *eventbus.ActionsReport `json:"actions_report,omitempty"`
	Error         *Error                  `json:"error,omitempty"`        // why it failed, in the state failed
	By            string                  `json:"by"`                     // the operator who started it
	Why           string                  `json:"why,omitempty"`          // the reason
	CancelledBy   string                  `json:"cancelled_by,omitempty"` // the operator who cancelled it
	StartedAt     time.Time               `json:"started_at"`             // in UTC
	EndedAt       time.Time               `json:"ended_at,omitzero"`      // in UTC; zero while it runs
	// Elapsed is the time from StartedAt until EndedAt or now. PerSecond is the number of letters or events per second
	// in it.
	Elapsed   time.Duration `json:"elapsed"`
	PerSecond float64       `json:"per_second"`
	// Left is an estimate of the time until the end. It is 0 at the end and before the first letter or event.
	Left time.Duration `json:"left,omitempty"`
	// Again selects the letters of replayed events that died again. It is nil for other actions.
	Again *eventbus.LetterQuery `json:"again,omitempty"`
}

// measure sets Elapsed, PerSecond and Left.
func (o *Operation) measure(now time.Time) {
	if !o.EndedAt.IsZero() {
		now = o.EndedAt
	}
	if o.Elapsed = now.Sub(o.StartedAt); o.Elapsed <= 0 || o.Done == 0 {
		return
	}
	o.PerSecond = float64(o.Done) / o.Elapsed.Seconds()
	if left := float64(o.Total-o.Done) / o.PerSecond * float64(time.Second); o.EndedAt.IsZero() && left > 0 {
		o.Left = time.Duration(min(left, math.MaxInt64/2))
	}
}

// OperationPage is a page of operations, newest first.
type OperationPage struct {
	Operations []Operation `json:"operations"`     // newest first
	Total      int         `json:"total"`          // operations on all pages
	Next       int         `json:"next,omitempty"` // the offset of the next page; 0 on the last one
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

// kind is what an action of bulk operations needs and does.
type kind struct {
	permission Action
	audit      eventbus.AuditAction
	act        eventAction // of an action on events
}

// eventAction is a method of the bus, such as CancelMatching.
type eventAction func(*eventbus.Bus, context.Context, eventbus.DispatchQuery, ...eventbus.BulkOption) (eventbus.ActionsReport, error)

var kinds = map[OperationAction]kind{
	ReplayMatching:   {ActionReplay, eventbus.AuditReplayMatching, nil},
	PurgeMatching:    {ActionPurge, eventbus.AuditPurgeMatching, nil},
	CancelMatching:   {ActionCancel, eventbus.AuditCancel, (*eventbus.Bus).CancelMatching},
	RetryNowMatching: {ActionRetry, eventbus.AuditRetryNow, (*eventbus.Bus).RetryNowMatching},
	GiveUpMatching:   {ActionGiveUp, eventbus.AuditGiveUp, (*eventbus.Bus).GiveUpMatching},
}

// permission returns the action that an operation needs.
func (a OperationAction) permission() Action { return kinds[a].permission }

// ofEvents reports whether the action is for events, and not for letters.
func (a OperationAction) ofEvents() bool { return kinds[a].act != nil }

// noun is what operations of the action process, in the plural.
func (a OperationAction) noun() string {
	if a.ofEvents() {
		return "events"
	}
	return "letters"
}

// check returns a conflict if too many operations run, or one with the same action and filters does.
func (o *operations) check(op *operation) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.checkLocked(op)
}

func (o *operations) checkLocked(op *operation) error {
	running := 0
	for _, other := range o.all {
		if other.State != OperationRunning {
			continue
		}
		running++
		if other.Action == op.Action && other.filter() == op.filter() {
			return conflict(fmt.Sprintf("operation %s of %q does the same already", other.ID, other.By), "look at its progress, or cancel it")
		}
	}
	if running >= runningOperations {
		return conflict(fmt.Sprintf("%d operations run already", running), "wait for one, or cancel it")
	}
	return nil
}

// filters are the queries of an operation without the instant that fixes its set.
type filters struct {
	letters eventbus.LetterQuery
	events  eventbus.DispatchQuery
}

func (o *Operation) filter() (f filters) {
	f.letters = o.Query
	f.letters.Until = time.Time{}
	if o.Dispatches != nil {
		f.events = *o.Dispatches
		f.events.PublishedUntil = time.Time{}
	}
	return f
}

// add adds an operation, unless it conflicts.
func (o *operations) add(op *operation) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.checkLocked(op); err != nil {
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
	case CancelMatching, RetryNowMatching, GiveUpMatching:
		var report eventbus.ActionsReport
		report, err = kinds[op.Action].act(s.bus, ctx, *op.Dispatches, opts...)
		s.operations.end(op, err, report.Matched, func() { op.Done, op.ActionsReport = report.Done+report.Idle+report.Left+report.Gone, &report })
	case PurgeMatching:
		var report eventbus.PurgeReport
		report, err = s.bus.DLQ().PurgeMatching(ctx, op.Query, opts...)
		s.operations.end(op, err, report.Matched, func() { op.Done, op.PurgeReport = report.Purged+report.Gone, &report })
	case ReplayMatching:
		var report eventbus.ReplayReport
		report, err = s.bus.DLQ().ReplayMatching(ctx, op.Query, opts...)
		done := report.Replayed + report.Gone + len(report.Stayed)
		report.Stayed = slices.Clone(report.Stayed[:min(len(report.Stayed), maxStayed)])
		for i := range report.Stayed {
			e := errorOf(report.Stayed[i].Err)
			report.Stayed[i].Error = e.Message
		}
		s.operations.end(op, err, report.Matched, func() { op.Done, op.Failed, op.ReplayReport = done, report.Failures, &report })
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, eventbus.ErrShutdown) {
		s.log.Error("admin operation failed", "operation", op.ID, "error", cut(err.Error(), 4096))
	}
}

// end records how an operation ended. matched is 0 if it ended before it had fixed its set: then the number at its
// beginning is what is left.
func (o *operations) end(op *operation, err error, matched int, report func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil || matched > 0 {
		op.Total = matched
	}
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
	shown.measure(time.Now())
	shown.Query, shown.Again, shown.Dispatches = *c.query(&shown.Query), c.query(shown.Again), c.dispatchQuery(shown.Dispatches)
	return shown
}

// diedAgain selects the letters of events that an operation has replayed. An event may die of another cause and at another
// subscription than before: only what belongs to the event selects them. beside is set if another process has set Until,
// whose clock may be behind.
func diedAgain(op *Operation, beside bool) *eventbus.LetterQuery {
	q := eventbus.LetterQuery{
		Type: op.Query.Type, Event: op.Query.Event, Key: op.Query.Key, IdempotencyKey: op.Query.IdempotencyKey,
		MetadataName: op.Query.MetadataName, MetadataValue: op.Query.MetadataValue,
		PublishedSince: op.Query.PublishedSince, PublishedUntil: op.Query.PublishedUntil, Since: op.StartedAt, Replayed: true,
	}
	if q.PublishedUntil.IsZero() || q.PublishedUntil.After(op.Query.Until) {
		q.PublishedUntil = op.Query.Until
	}
	if beside {
		q.Since = op.Query.Until.Add(1)
	}
	return &q
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
	set := bulkSet{letters: &op.Query}
	if op.Action.ofEvents() {
		set = bulkSet{events: op.Dispatches}
	}
	if err := c.needFor(op.Action.permission(), set, why); err != nil {
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
