package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// eventsBulk is an action on the events that match a filter.
type eventsBulk struct {
	app  *app
	act  *action // with the subscription of the filter
	verb string  // "cancel", "retry" or "give-up"

	q           eventbus.DispatchQuery
	yes, dryRun bool
	rate        float64
}

// eventVerbs are the commands of bulk actions on events.
var eventVerbs = map[string]string{string(admin.CancelMatching): "cancel", string(admin.RetryNowMatching): "retry", string(admin.GiveUpMatching): "give-up"}

// bulkActionOf returns the bulk action for one on an event.
func bulkActionOf(verb eventbus.AuditAction) admin.OperationAction {
	return admin.OperationAction(verb + "_matching")
}

func (e *eventsBulk) flags(c *cobra.Command) {
	dispatchFlags(c, &e.q)
	f := c.Flags()
	f.BoolVar(&e.q.All, "all", false, e.verb+" all events that have not settled, if there is no filter")
	f.BoolVar(&e.yes, "yes", false, "do not ask")
	f.BoolVar(&e.dryRun, "dry-run", false, "show what would be done, and change nothing")
	f.Float64Var(&e.rate, "rate", 0, "at most `N` events a second")
}

// unused refuses the flags of a filter beside an id.
func (e *eventsBulk) unused() error {
	if e.q != (eventbus.DispatchQuery{}) || e.rate != 0 || e.dryRun {
		return usage("give the id or the filter; --subscription may be beside the id", "an id and a filter are given")
	}
	return nil
}

func (e *eventsBulk) run(ctx context.Context, b backend) error {
	e.q.Subscription = e.act.subscription
	filter := e.q
	filter.All = false
	switch {
	case !(e.rate >= 0 && e.rate <= math.MaxFloat64):
		return usage("leave the flag out for no limit", "--rate %g: must be a finite number above 0", e.rate)
	case filter == (eventbus.DispatchQuery{}) && !e.q.All:
		return usage("give the ID, a filter such as --type, or --all for all events", "no events are selected")
	}
	a := e.app
	p, err := e.fix(ctx, b)
	switch {
	case isInterrupted(ctx, err):
		return e.interrupted(b, eventbus.ActionsReport{})
	case err != nil:
		return err
	}
	if !a.json {
		a.showActionPreview(&p)
	}
	switch {
	case e.dryRun && a.json:
		return a.printJSON(map[string]any{"dry_run": true, "matched": p.Matched})
	case e.dryRun:
		a.printf("dry run: would %s %s\n", e.verb, plural(p.Matched, "event"))
		return nil
	case p.Matched == 0 && a.json:
		return a.printJSON(eventbus.ActionsReport{})
	case p.Matched == 0:
		a.printf("no event matches: nothing to %s\n", e.verb)
		a.noteNearest(ctx, b, e.q.Subscription, 0)
		return nil
	}
	return e.actOn(ctx, b, &p)
}

// actOn asks, and acts on the events of a preview.
func (e *eventsBulk) actOn(ctx context.Context, b backend, p *eventbus.ActionPreview) error {
	a := e.app
	if err := a.confirm(ctx, e.yes, e.verb+" "+plural(p.Matched, "event"), p.Matched); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return e.interrupted(b, eventbus.ActionsReport{})
	}
	o := bulk{operator: a.operator(), rate: e.rate, expect: p.Matched}
	progress, end := a.bulkProgress(e.verb)
	o.progress = progress
	o.running = func(id string) {
		end()
		a.notef("the operation runs in the process of the bus; to stop it from elsewhere: eventbus operations cancel %s %s\n", term.Escape(shellQuote(id)), b.Flag())
	}
	report, err := b.ActMatching(ctx, e.q, *e.act, o)
	end()
	return e.ended(ctx, b, report, err)
}

// fix returns the preview of the set, and fixes the set by the last publication of an event in it. The clock of this host may
// differ from the one of the bus.
func (e *eventsBulk) fix(ctx context.Context, b backend) (eventbus.ActionPreview, error) {
	end := e.app.step("looking for the events")
	defer end()
	p, err := b.PreviewMatching(ctx, e.q)
	if err == nil && p.Matched > 0 && (e.q.PublishedUntil.IsZero() || e.q.PublishedUntil.After(time.Now())) {
		e.q.PublishedUntil = p.Newest
	}
	return p, err
}

// showActionPreview prints what an action would act on.
func (a *app) showActionPreview(p *eventbus.ActionPreview) {
	if p.Matched == 0 {
		return
	}
	a.notef("%s match%s, published from %s to %s\n", plural(p.Matched, "event"), map[bool]string{true: "es"}[p.Matched == 1], timeText(p.Oldest), timeText(p.Newest))
	for _, state := range slices.Sorted(maps.Keys(p.States)) {
		a.notef("  %s: %s\n", term.Escape(string(state)), dispatches(p.States[state]))
	}
}

// resumeActions returns the command line that acts on the events of a set that are left.
func resumeActions(verb string, b backend, q eventbus.DispatchQuery, probe bool, rate float64) string {
	line := fmt.Sprintf("eventbus events %s %s%s", verb, b.Flag(), dispatchArgs(q))
	if probe {
		line += " --probe"
	}
	if rate != 0 {
		line += fmt.Sprintf(" --rate %g", rate)
	}
	return line
}

// looked returns the number of events that were looked at.
func looked(r *eventbus.ActionsReport) int { return r.Done + r.Idle + r.Left + r.Gone }

// interrupted returns the error of an interrupt.
func (e *eventsBulk) interrupted(b backend, r eventbus.ActionsReport) error {
	resume := resumeActions(e.verb, b, e.q, e.act.probe, e.rate)
	if looked(&r) == 0 {
		return failed("to begin again: "+resume, "interrupted: nothing was done yet")
	}
	return failed("to continue: "+resume, "interrupted: %s left", plural(r.Matched-looked(&r), "event"))
}

// actionCounts returns what a report counts, as text.
func actionCounts(r *eventbus.ActionsReport) string {
	text := fmt.Sprintf("%s of %s done", count(r.Done), plural(r.Matched, "event"))
	for _, n := range []struct {
		n    int
		what string
	}{{r.Idle, "went on anyway"}, {r.Left, "left"}, {r.Gone, "settled before"}} {
		if n.n > 0 {
			text += fmt.Sprintf(", %s %s", count(n.n), n.what)
		}
	}
	return text
}

// ended prints the report. An action that did not look at all events, or has done nothing, has an error.
func (e *eventsBulk) ended(ctx context.Context, b backend, r eventbus.ActionsReport, err error) error {
	a := e.app
	interrupted := isInterrupted(ctx, err)
	switch {
	case interrupted && looked(&r) == 0:
		return e.interrupted(b, r)
	case err != nil && looked(&r) == 0:
		return err
	}
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		a.printf("%s: %s\n", e.verb, actionCounts(&r))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
		a.notef("left %s: %s\n", count(r.Reasons[reason]), term.Escape(reason))
	}
	switch left := r.Matched - looked(&r); {
	case interrupted:
		return e.interrupted(b, r)
	case err != nil:
		return fmt.Errorf("%w; %s left; to continue: %s", err, plural(left, "event"), resumeActions(e.verb, b, e.q, e.act.probe, e.rate))
	case r.Left > 0 && r.Done == 0:
		return conflict("the reasons above say what to do", "nothing was done: %s left", plural(r.Left, "event"))
	}
	return nil
}
