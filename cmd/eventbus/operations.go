package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// operation is a bulk operation: one of a running bus, in the process of its admin page, or what the audit of a store says
// of one.
type operation struct {
	ID            string                  `json:"id"`
	Action        string                  `json:"action"`
	State         string                  `json:"state"`
	Query         *eventbus.LetterQuery   `json:"query,omitempty"`
	Again         *eventbus.LetterQuery   `json:"again,omitempty"`
	Dispatches    *eventbus.DispatchQuery `json:"dispatches,omitempty"`
	Probe         bool                    `json:"probe,omitempty"`
	Rate          float64                 `json:"rate,omitempty"`
	StopAfter     int                     `json:"stop_after,omitempty"`
	Done          int                     `json:"done"`
	Total         int                     `json:"total"`
	Failed        int                     `json:"failed"`
	ReplayReport  *eventbus.ReplayReport  `json:"replay_report,omitempty"`
	PurgeReport   *eventbus.PurgeReport   `json:"purge_report,omitempty"`
	ActionsReport *eventbus.ActionsReport `json:"actions_report,omitempty"`
	Error         *apiError               `json:"error,omitempty"`
	By            string                  `json:"by,omitempty"`
	Why           string                  `json:"why,omitempty"`
	CancelledBy   string                  `json:"cancelled_by,omitempty"`
	StartedAt     time.Time               `json:"started_at,omitzero"`
	EndedAt       time.Time               `json:"ended_at,omitzero"`
	Elapsed       time.Duration           `json:"elapsed,omitempty"`
	PerSecond     float64                 `json:"per_second,omitempty"`
	Left          time.Duration           `json:"left,omitempty"`
}

// The states of an operation that the command distinguishes. stateUnfinished is of the audit.
const (
	stateRunning    = "running"
	stateDone       = "done"
	stateStopped    = "stopped"
	stateCancelled  = "cancelled"
	stateFailed     = "failed"
	stateUnfinished = "unfinished"
)

func (a *app) operationsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "operations",
		Short: "Find bulk operations, and cancel them",
		Long: `Find bulk replays and purges of letters and bulk actions on events, and cancel them.

With --url, they run in the process of the admin page: also when the command that
has begun one was killed. That process keeps the last 100.

With --store, a bulk operation runs in the command that has begun it. 'list' and
'show' read the audit: an operation without an end is unfinished, because it runs in
another process or was killed. 'cancel' needs --url.`,
	}
	c.AddCommand(a.operationsList(), a.operationsShow(), a.operationsCancel())
	return group(c)
}

func (a *app) operationsList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List bulk operations, newest first"}
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		all, err := b.Operations(ctx)
		if err != nil {
			return err
		}
		if a.json {
			for i := range all {
				if err := a.printJSON(all[i]); err != nil {
					return err
				}
			}
		} else if err := a.operationTable(all); err != nil {
			return err
		}
		a.notef("%s\n", plural(len(all), "operation"))
		a.noteUnfinished(all...)
		return nil
	})
}

func (a *app) operationTable(all []operation) error {
	t := term.NewTable(
		term.Column{Name: "ID"}, term.Column{Name: "STARTED", Drop: true}, term.Column{Name: "ACTION"}, term.Column{Name: "STATE"},
		term.Column{Name: "DONE", Right: true}, term.Column{Name: "FAILURES", Right: true, Drop: true}, term.Column{Name: "LEFT", Drop: true},
		term.Column{Name: "BY", Min: 6}, term.Column{Name: "WHY", Min: 10, Drop: true},
	)
	for i := range all {
		op := &all[i]
		left := ""
		if op.Left > 0 {
			left = "about " + duration(op.Left)
		}
		t.Add(op.ID, timeText(op.StartedAt), op.Action, op.State, count(op.Done)+" of "+count(op.Total), count(op.Failed), left, op.By, op.Why)
	}
	return a.printTable(t)
}

// noteUnfinished says what the audit does not know.
func (a *app) noteUnfinished(all ...operation) {
	for i := range all {
		if all[i].State == stateUnfinished {
			a.notef("unfinished: it runs in another process, or that process was killed; what is left matches its filter still\n")
			return
		}
	}
}

func (a *app) operationsShow() *cobra.Command {
	c := &cobra.Command{Use: "show ID", Short: "Show how far a bulk operation is, and how to go on"}
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		op, err := b.Operation(ctx, args[0])
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(op)
		}
		a.showOperation(b, &op)
		return nil
	})
}

func (a *app) showOperation(b backend, op *operation) {
	field := func(name, value string) {
		if value != "" {
			a.printf("%-10s %s\n", name, term.Escape(value))
		}
	}
	field("operation", op.ID)
	field("action", op.Action)
	field("state", op.State)
	if op.Dispatches != nil {
		field("events", fmt.Sprintf("%s of %s done", count(op.Done), count(op.Total)))
		field("filter", strings.TrimSpace(dispatchArgs(*op.Dispatches)))
	} else {
		field("letters", fmt.Sprintf("%s of %s done, %s", count(op.Done), count(op.Total), plural(op.Failed, "failure")))
		if op.Query != nil {
			field("filter", strings.TrimSpace(filterArgs(*op.Query)))
		}
	}
	if r := op.ActionsReport; r != nil {
		field("report", actionCounts(r))
	}
	field("by", op.By)
	field("why", op.Why)
	field("started", timeText(op.StartedAt))
	field("ended", timeText(op.EndedAt))
	if op.Elapsed > 0 {
		field("duration", duration(op.Elapsed))
	}
	if op.PerSecond > 0 {
		field("rate", fmt.Sprintf("%.3g %ss per second", op.PerSecond, op.noun()))
	}
	if op.Left > 0 {
		field("left", "about "+duration(op.Left))
	}
	field("cancelled", op.CancelledBy)
	if op.Error != nil {
		field("error", op.Error.Error())
	}
	if r := op.ReplayReport; r != nil {
		for i := range r.Stayed {
			field("stayed", r.Stayed[i].ID.String()+"  "+r.Stayed[i].Error)
		}
	}
	for _, next := range op.nextSteps(b) {
		a.notef("next: %s\n", term.Escape(next))
	}
	a.noteUnfinished(*op)
}

// nextSteps returns command lines for an operation.
func (op *operation) nextSteps(b backend) (next []string) {
	if op.State == stateRunning {
		next = append(next, fmt.Sprintf("to stop it: eventbus operations cancel %s %s", shellQuote(op.ID), b.Flag()))
	}
	if op.Again != nil {
		next = append(next, fmt.Sprintf("what died again: eventbus dlq list %s%s", b.Flag(), filterArgs(*op.Again)))
	}
	if op.Dispatches != nil && op.State != stateRunning && op.Done < op.Total && eventVerbs[op.Action] != "" {
		return append(next, "to go on with the rest: "+resumeActions(eventVerbs[op.Action], b, *op.Dispatches, op.Probe, op.Rate))
	}
	verb := map[string]string{string(eventbus.AuditReplayMatching): "replay", string(eventbus.AuditPurgeMatching): "purge"}[op.Action]
	if op.State != stateRunning && op.Done < op.Total && verb != "" && op.Query != nil {
		next = append(next, "to go on with the rest: "+resumeLine(verb, b, *op.Query, op.Rate, op.StopAfter))
	}
	return next
}

// noun is what the operation processes.
func (op *operation) noun() string {
	if op.Dispatches != nil {
		return "event"
	}
	return "letter"
}

// resumeLine returns the command line that processes the letters of a set that are left.
func resumeLine(verb string, b backend, q eventbus.LetterQuery, rate float64, stopAfter int) string {
	line := fmt.Sprintf("eventbus dlq %s %s%s", verb, b.Flag(), filterArgs(q))
	if rate != 0 {
		line += fmt.Sprintf(" --rate %g", rate)
	}
	if stopAfter != 0 {
		line += fmt.Sprintf(" --stop-after-failures %d", stopAfter)
	}
	return line
}

func (a *app) operationsCancel() *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a bulk operation of a running bus",
		Long: `Cancel a bulk operation of a running bus.

What is processed stays processed, and the rest is unchanged. The command
waits until the operation has ended.`,
	}
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		op, err := b.CancelOperation(ctx, args[0], a.operator())
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(op)
		}
		a.printf("%s after %s of %s\n", op.State, count(op.Done), plural(op.Total, op.noun()))
		for _, next := range op.nextSteps(b) {
			a.notef("next: %s\n", term.Escape(next))
		}
		return nil
	})
}

// auditedOperations reads operations from the audit, newest first. An entry with an outcome comes before the one of its beginning.
func auditedOperations(entries []eventbus.AuditEntry) (all []operation) {
	type beginning struct {
		action eventbus.AuditAction
		at     time.Time
		by     string
	}
	index := make(map[beginning]int)
	for i := range entries {
		e := &entries[i]
		op := operation{
			ID: fmt.Sprint(e.Number), Action: string(e.Action), State: stateUnfinished, Query: e.Query, Dispatches: e.Dispatches, Total: e.Count, By: e.By, Why: e.Why, StartedAt: e.At,
		}
		if e.Dispatches != nil {
			op.Action = string(bulkActionOf(e.Action))
		}
		o := e.Outcome
		if o == nil {
			if ended, ok := index[beginning{e.Action, e.At.UTC(), e.By}]; ok {
				all[ended].ID = op.ID
				continue
			}
			all = append(all, op)
			continue
		}
		op.State, op.Done, op.Failed, op.StartedAt, op.EndedAt, op.Elapsed = stateDone, o.Done, o.Failures, o.BeganAt, e.At, e.At.Sub(o.BeganAt)
		switch {
		case o.Stopped:
			op.State = stateStopped
		case o.Error != "":
			op.State, op.Error = stateFailed, &apiError{Message: o.Error}
		}
		index[beginning{e.Action, o.BeganAt.UTC(), e.By}] = len(all)
		all = append(all, op)
	}
	return all
}
