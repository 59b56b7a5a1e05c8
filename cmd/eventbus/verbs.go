package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) eventsCancel() *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel [ID]",
		Short: "End events that have not settled, without dead letters: by id, or all that match a filter",
		Long: `End an event that has not settled, wherever it is: scheduled, queued, waiting for a
retry, parked or running. No further handler is called for it, and it makes no dead
letter: to keep the event, use 'eventbus events give-up'. The context of a running
call ends. Subscriptions that have handled the event have handled it.
` + matchingHelp,
		Example: `  eventbus events cancel 01a22a60-0b5a-7453-9e3c-a03e56beeb0d --because 'ordered twice'
  eventbus events cancel --type 'order.*' --error 'no such customer' --dry-run`,
	}
	return a.eventVerb(c, &action{verb: eventbus.AuditCancel}, "cancelled")
}

func (a *app) eventsRetry() *cobra.Command {
	act := &action{verb: eventbus.AuditRetryNow}
	c := &cobra.Command{
		Use:   "retry [ID]",
		Short: "Let events go on now that wait for a retry, or were snoozed: by id, or all that match a filter",
		Long: `Let an event go on now that waits for its next attempt, or that its handler has
postponed. It runs as soon as there is room. A delivery that is held by an open
circuit or by calls that hang is left, unless --probe is given. One of a paused
subscription is held until 'eventbus subs resume'.`,
		Example: `  eventbus events retry 01a22a60-0b5a-7453-9e3c-a03e56beeb0d
  eventbus events retry 01a22a60-0b5a-7453-9e3c-a03e56beeb0d --probe --subscription mail
  eventbus events retry --subscription mail --state waiting --rate 50`,
	}
	c.Flags().BoolVar(&act.probe, "probe", false, "try a held delivery, too: its outcome closes or opens the circuit")
	return a.eventVerb(c, act, "retried")
}

func (a *app) eventsGiveUp() *cobra.Command {
	c := &cobra.Command{
		Use:   "give-up [ID]",
		Short: "Turn what waits of events into dead letters: by id, or all that match a filter",
		Long: `Turn what waits of an event into dead letters with the reason operator, which can be
replayed: what is scheduled, queued, waiting for a retry or parked. A running call is
left: 'eventbus events cancel' ends it.
` + matchingHelp,
		Example: `  eventbus events give-up 01a22a60-0b5a-7453-9e3c-a03e56beeb0d --because 'the customer has left'
  eventbus events give-up --subscription crm --published-until 48h`,
	}
	return a.eventVerb(c, &action{verb: eventbus.AuditGiveUp}, "gave up")
}

const matchingHelp = `
With a filter in place of the ID, the command fixes the set of events, shows their
number and asks. Events that are published later are left alone. Events that have not
been taken in do not match a filter.`

// eventVerb completes the command of an action. past says what was done to a delivery.
func (a *app) eventVerb(c *cobra.Command, act *action, past string) *cobra.Command {
	c.Flags().StringVar(&act.subscription, "subscription", "", "only deliveries to `NAME`, a subscription; the others are left")
	all := &eventsBulk{app: a, act: act, verb: strings.Fields(c.Use)[0]}
	all.flags(c)
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		if c.Flags().Changed("subscription") {
			if err := checkName(act.subscription); err != nil {
				return err
			}
		}
		if len(args) == 0 {
			return all.run(ctx, b)
		}
		id, err := eventID(args[0])
		if err == nil {
			err = all.unused()
		}
		if err != nil {
			return err
		}
		report, err := b.Act(ctx, id, *act, a.operator())
		if isInterrupted(ctx, err) {
			return failed("'eventbus audit --action "+string(act.verb)+"' shows whether it was done; to repeat it is safe", "interrupted: it is unknown whether the event %s was acted on", id)
		}
		if err == nil || len(report.Deliveries) > 0 {
			if shown := a.actionReport(&report, past); err == nil {
				err = shown
			}
		}
		return err
	})
}

// actionReport prints what an action has found, what it did, and what it has left.
func (a *app) actionReport(r *eventbus.ActionReport, past string) error {
	if a.json {
		return a.printJSON(r)
	}
	done, left := 0, 0
	for i := range r.Deliveries {
		switch d := &r.Deliveries[i]; {
		case d.Done:
			done++
		case d.Left != "":
			left++
		}
	}
	switch {
	case done > 0 || len(r.Deliveries) == 0: // an earlier server reports none
		a.printf("%s %s", past, r.Event)
		if r.Forgotten {
			a.printf("; its id and its idempotency key are free again")
		}
		a.printf("\n")
	case left == 0:
		a.printf("%s goes on by itself: nothing had to be done\n", r.Event)
	}
	if len(r.Deliveries) <= 1 && left == 0 {
		return nil
	}
	t := term.NewTable(
		term.Column{Name: "SUBSCRIPTION", Min: 12}, term.Column{Name: "WAS"}, term.Column{Name: "TRIES", Right: true, Drop: true},
		term.Column{Name: "THEN", Drop: true}, term.Column{Name: "RESULT", Min: 20},
	)
	for i := range r.Deliveries {
		d := &r.Deliveries[i]
		was := string(d.State)
		if d.Parked != "" {
			was += " (" + string(d.Parked) + ")"
		}
		result := past
		if !d.Done {
			result = "goes on by itself"
			if d.Left != "" {
				result = "left: " + d.Left
			}
		}
		t.Add(d.Subscription, was, count(d.Attempts), strings.Join(d.Targets[min(1, len(d.Targets)):], ", "), result)
	}
	return a.printTable(t)
}
