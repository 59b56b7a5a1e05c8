package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// bulkCommand has the flags of a replay or a purge, and what differs between the two.
type bulkCommand struct {
	app *app
	// verb is "replay" or "purge", past is "replayed" or "purged".
	verb, past string

	q           eventbus.LetterQuery
	yes, dryRun bool
	rate        float64
	stopAfter   int

	nothing any // the report if no letter matches, for --json

	one  func(ctx context.Context, b backend, id eventbus.LetterID, o operator) error
	many func(ctx context.Context, b backend, q eventbus.LetterQuery, o bulk) (bulkReport, error)
}

// bulkReport has what reports of replays and purges have in common.
type bulkReport struct {
	full                 any // the report, for --json
	matched, done, gone  int
	stayed               []eventbus.StayedLetter
	failures             int
	stoppedAfterFailures bool
}

func (a *app) dlqReplay() *cobra.Command {
	bc := &bulkCommand{
		app: a, verb: "replay", past: "replayed", nothing: eventbus.ReplayReport{},
		one: func(ctx context.Context, b backend, id eventbus.LetterID, o operator) error {
			return b.Replay(ctx, id, o)
		},
		many: func(ctx context.Context, b backend, q eventbus.LetterQuery, o bulk) (bulkReport, error) {
			r, err := b.ReplayMatching(ctx, q, o)
			return bulkReport{r, r.Matched, r.Replayed, r.Gone, r.Stayed, r.Failures, r.Stopped}, err
		},
	}
	c := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Replay dead letters: by id, or all that match a filter",
		Long: `Replay dead letters: by id, or all that match a filter.

A replay opens a new dispatch of the event, to the subscriptions that did not
succeed. With a filter, the command fixes the set of letters, shows their number
and asks. Letters that die later are not replayed. Ctrl-C stops between two
letters, and the command prints how to continue.`,
		Example: `  eventbus dlq replay --fingerprint 5d41402abc4b2a76b9719d911017c592 --rate 50
  eventbus dlq replay --type 'order.*' --since 2h --dry-run`,
	}
	c.Flags().IntVar(&bc.stopAfter, "stop-after-failures", 0, "stop after `N` failures")
	return bc.command(c)
}

func (a *app) dlqPurge() *cobra.Command {
	bc := &bulkCommand{
		app: a, verb: "purge", past: "purged", nothing: eventbus.PurgeReport{},
		one: func(ctx context.Context, b backend, id eventbus.LetterID, o operator) error {
			return b.Purge(ctx, id, o)
		},
		many: func(ctx context.Context, b backend, q eventbus.LetterQuery, o bulk) (bulkReport, error) {
			r, err := b.PurgeMatching(ctx, q, o)
			return bulkReport{full: r, matched: r.Matched, done: r.Purged, gone: r.Gone}, err
		},
	}
	c := &cobra.Command{
		Use:   "purge [ID...]",
		Short: "Delete dead letters: by id, or all that match a filter",
		Long: `Delete dead letters: by id, or all that match a filter.

A purged letter and its event are lost: export them before. With a filter, the
command fixes the set of letters, shows their number and asks.`,
		Example: `  eventbus dlq export --until 2026-10-01 --output old.jsonl
  eventbus dlq purge --until 2026-10-01`,
	}
	return bc.command(c)
}

func (bc *bulkCommand) command(c *cobra.Command) *cobra.Command {
	filterFlags(c, &bc.q)
	c.Flags().BoolVar(&bc.q.All, "all", false, bc.verb+" all letters, if there is no filter")
	c.Flags().BoolVar(&bc.yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&bc.dryRun, "dry-run", false, "show what would be done, and change nothing")
	c.Flags().Float64Var(&bc.rate, "rate", 0, "at most `N` letters a second")
	bc.app.operatorFlags(c)
	return bc.app.with(c, bc.run)
}

func (bc *bulkCommand) run(ctx context.Context, b backend, args []string) error {
	if err := bc.app.checkOperator(b); err != nil {
		return err
	}
	switch {
	case !(bc.rate >= 0 && bc.rate <= math.MaxFloat64):
		return usage("leave the flag out for no limit", "--rate %g: must be a finite number above 0", bc.rate)
	case bc.stopAfter < 0:
		return usage("leave the flag out to continue after failures", "--stop-after-failures %d: must be at least 1", bc.stopAfter)
	case len(args) > 0 && (!isEmpty(bc.q) || bc.q.All):
		return usage("give the ids or the filter", "ids and a filter are given")
	case len(args) > 0:
		return bc.ids(ctx, b, args)
	case isEmpty(bc.q) && !bc.q.All:
		return usage("give ids, a filter such as --type, or --all for all letters", "no letters are selected")
	}
	return bc.matching(ctx, b)
}

// ids processes letters one by one.
func (bc *bulkCommand) ids(ctx context.Context, b backend, args []string) error {
	ids := make([]eventbus.LetterID, len(args))
	for i, arg := range args {
		var err error
		if ids[i], err = letterID(arg); err != nil {
			return err
		}
	}
	if bc.rate != 0 || bc.stopAfter != 0 {
		return usage("leave the flags out, or select the letters by a filter", "--rate and --stop-after-failures are for a filter")
	}
	if bc.dryRun {
		for _, id := range ids {
			if _, err := b.Letter(ctx, id, false); err != nil {
				return err
			}
		}
		return bc.dryRunOf(len(ids))
	}
	if bc.verb == "purge" {
		if err := bc.app.confirm(ctx, bc.yes, "purge "+plural(len(ids), "letter"), len(ids)); err != nil {
			return err
		}
	}
	for i, id := range ids {
		err := ctx.Err()
		if err == nil {
			err = bc.one(context.WithoutCancel(ctx), b, id, bc.app.operator()) // what has begun ends
		}
		if err != nil && isInterrupted(ctx, err) {
			return bc.interrupted(i, len(ids), fmt.Sprintf("eventbus dlq %s %s %s", bc.verb, b.Flag(), strings.Join(args[i:], " ")))
		}
		if err != nil {
			if i > 0 {
				bc.app.notef("%s %s before the error\n", bc.past, plural(i, "letter"))
			}
			return err
		}
		if bc.app.json {
			if err := bc.app.printJSON(map[string]any{"letter_id": id, "action": bc.verb}); err != nil {
				return err
			}
		} else {
			bc.app.printf("%s %s\n", bc.past, id)
		}
	}
	return nil
}

func (bc *bulkCommand) dryRunOf(n int) error {
	if bc.app.json {
		return bc.app.printJSON(map[string]any{"dry_run": true, "matched": n})
	}
	bc.app.printf("dry run: would %s %s\n", bc.verb, plural(n, "letter"))
	return nil
}

// matching processes the letters that match the filter.
func (bc *bulkCommand) matching(ctx context.Context, b backend) error {
	a := bc.app
	preview, err := bc.fix(ctx, b)
	switch {
	case err != nil && isInterrupted(ctx, err):
		return bc.interrupted(0, 0, bc.resume(b))
	case err != nil:
		return err
	}
	if !a.json {
		a.showPreview(bc, &preview)
	}
	if bc.dryRun {
		return bc.dryRunOf(preview.Matched)
	}
	if preview.Matched == 0 {
		if a.json {
			return a.printJSON(bc.nothing)
		}
		a.printf("no letter matches: nothing to %s\n", bc.verb)
		a.noteNearest(ctx, b, bc.q.Subscription, 0)
		return nil
	}
	if err := a.confirm(ctx, bc.yes, fmt.Sprintf("%s %s", bc.verb, plural(preview.Matched, "letter")), preview.Matched); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return bc.interrupted(0, preview.Matched, bc.resume(b))
	}
	o := bulk{operator: a.operator(), rate: bc.rate, stopAfter: bc.stopAfter, expect: preview.Matched}
	if _, offline := b.(*storeBackend); offline && bc.stopAfter > 0 {
		a.notef("note: the handlers run in another process, so --stop-after-failures counts only letters that could not be replayed; --url counts failed handlers too\n")
	}
	progress, end := a.bulkProgress(bc.verb)
	o.progress = progress
	o.running = func(id string) {
		end()
		a.notef("the operation runs in the process of the bus; to stop it from elsewhere: eventbus operations cancel %s %s\n", term.Escape(shellQuote(id)), b.Flag())
	}
	report, err := bc.many(ctx, b, bc.q, o)
	end()
	return bc.ended(ctx, b, report, err)
}

// fix returns the preview of the set, and fixes the set by the last death of a letter in it: letters that die later do not
// belong to it. The clock of this host may differ from the one of the bus.
func (bc *bulkCommand) fix(ctx context.Context, b backend) (eventbus.ReplayPreview, error) {
	end := bc.app.step("looking for the letters")
	defer end()
	p, err := b.Preview(ctx, bc.q)
	if err == nil && p.Matched > 0 && (bc.q.Until.IsZero() || bc.q.Until.After(time.Now())) {
		bc.q.Until = p.Newest
	}
	return p, err
}

// resume returns the command line that processes the letters that are left.
func (bc *bulkCommand) resume(b backend) string {
	return resumeLine(bc.verb, b, bc.q, bc.rate, bc.stopAfter)
}

// interrupted returns the error of an interrupt after done letters of a number, which is 0 if it is not known.
func (bc *bulkCommand) interrupted(done, of int, resume string) error {
	switch {
	case done == 0:
		return failed("to begin again: "+resume, "interrupted: nothing was %s yet", bc.past)
	default:
		return failed("to continue: "+resume, "interrupted: %s left", plural(of-done, "letter"))
	}
}

// bulkProgress returns a function that draws the progress of an operation, and one that removes the line at its end.
// The first is nil if the error output is no terminal. Until there is progress, the line says that the set is being fixed.
func (a *app) bulkProgress(verb string) (progress func(eventbus.BulkProgress), end func()) {
	if line := a.progress(); line != nil {
		line.Draw(verb + ": fixing the set…")
		return bulkProgress(line, verb), line.End
	}
	return nil, func() {}
}

// step draws a line for what takes long without progress, on a terminal. end removes it.
func (a *app) step(what string) (end func()) {
	line := a.progress()
	if line == nil {
		return func() {}
	}
	line.Draw(what + "…")
	return line.End
}

// bulkProgress returns a function that draws the progress, at most ten times a second. Without Matched, the number
// of letters is not known.
func bulkProgress(line *term.Progress, verb string) func(eventbus.BulkProgress) {
	const every = 100 * time.Millisecond
	const bar = 20
	var drawn, began time.Time
	before := 0 // letters when the first report came
	return func(p eventbus.BulkProgress) {
		now := time.Now()
		if began.IsZero() {
			began, before = now, p.Done
		}
		if now.Sub(drawn) < every && (p.Done < p.Matched || p.Matched == 0) {
			return
		}
		drawn = now
		text := fmt.Sprintf("%s %s %s of %s", verb, term.Bar(p.Done, p.Matched, bar), count(p.Done), count(p.Matched))
		if p.Matched == 0 {
			text = fmt.Sprintf("%s %s", verb, plural(p.Done, "letter"))
		}
		if p.Failures > 0 {
			text += fmt.Sprintf(", %s", plural(p.Failures, "failure"))
		}
		if done, left := p.Done-before, p.Matched-p.Done; done > 0 && left > 0 {
			text += fmt.Sprintf(", about %s left", duration(time.Duration(float64(now.Sub(began))/float64(done)*float64(left))))
		}
		line.Draw(text)
	}
}

// ended prints the report. An operation that did not process all letters has an error.
func (bc *bulkCommand) ended(ctx context.Context, b backend, r bulkReport, err error) error {
	a := bc.app
	interrupted := isInterrupted(ctx, err)
	switch {
	case err != nil && interrupted && r.done+r.gone+len(r.stayed) == 0:
		return bc.interrupted(0, r.matched, bc.resume(b))
	case err != nil && r.matched == 0:
		return err
	}
	if a.json {
		if err := a.printJSON(r.full); err != nil {
			return err
		}
	} else {
		a.printf("%s %s of %s", bc.past, count(r.done), plural(r.matched, "letter"))
		if r.gone > 0 {
			a.printf(", %s gone before", count(r.gone))
		}
		if n := len(r.stayed); n > 0 {
			a.printf(", %s stayed", count(n))
		}
		if r.failures > 0 {
			a.printf(", %s", plural(r.failures, "failure"))
		}
		a.printf("\n")
	}
	const shown = 10
	for i, s := range r.stayed {
		if i == shown {
			a.notef("and %d more\n", len(r.stayed)-shown)
			break
		}
		a.notef("%s stayed: %s\n", s.ID, term.Escape(s.Error))
	}
	left := r.matched - r.done - r.gone - len(r.stayed)
	resume := bc.resume(b)
	switch {
	case interrupted:
		return bc.interrupted(r.matched-left, r.matched, resume)
	case err != nil && left == 0: // of a purge: the payloads are not erased yet
		return err
	case err != nil:
		return fmt.Errorf("%w; %s left; to continue: %s", err, plural(left, "letter"), resume)
	case r.stoppedAfterFailures:
		return failed("find the cause, then continue: "+resume, "stopped after %s: %s left", plural(r.failures, "failure"), plural(left, "letter"))
	case len(r.stayed) > 0:
		return failed("'eventbus dlq list' shows the letters", "%s could not be replayed", plural(len(r.stayed), "letter"))
	}
	return nil
}

// showPreview prints what an operation would do.
func (a *app) showPreview(bc *bulkCommand, p *eventbus.ReplayPreview) {
	if p.Matched == 0 {
		return
	}
	a.notef("%s match%s", plural(p.Matched, "letter"), map[bool]string{true: "es"}[p.Matched == 1])
	if p.Examined == p.Matched {
		a.notef(", died from %s to %s", timeText(p.Oldest), timeText(p.Newest))
	}
	a.notef("\n")
	if bc.verb != "replay" {
		return
	}
	if p.Again > 0 {
		a.notef("%s replayed before\n", plural(p.Again, "event"))
	}
	if p.Missing > 0 {
		a.notef("%s would stay: a subscription does not exist\n", plural(p.Missing, "letter"))
	}
	for _, t := range p.Targets {
		state := ""
		if t.Exists {
			state = fmt.Sprintf(", circuit %s", t.Circuit)
			switch {
			case t.ShutBy != "" && t.ShutBy != eventbus.ParkCircuit:
				state += ", " + string(t.ShutBy)
			case t.Paused: // of a server that does not say more
				state += ", paused"
			}
			if n := t.Held + t.Throttled + t.Snoozed; n > 0 {
				state += fmt.Sprintf(", %s parked", count(n))
			}
		}
		a.notef("  to %s: %s%s\n", term.Escape(t.Subscription), plural(t.Letters, "letter"), state)
	}
	if p.Examined < p.Matched {
		a.notef("  (of the newest %s)\n", plural(p.Examined, "letter"))
	}
}
