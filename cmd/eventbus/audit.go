package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) auditCommand() *cobra.Command {
	var q eventbus.AuditQuery
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show what operators did, newest first",
	}
	f := c.Flags()
	choiceFlag(c, &q.Action, "action", "`ACTION`", actionNames())
	f.StringVar(&q.By, "by", "", "`NAME` of the operator")
	f.StringVar(&q.Subscription, "subscription", "", "`NAME` of the subscription")
	f.TextVar(&q.Letter, "letter", eventbus.LetterID{}, "`ID` of the letter")
	f.TextVar(&q.Event, "event", eventbus.EventID{}, "`ID` of the event")
	f.Lookup("letter").DefValue, f.Lookup("event").DefValue = "", ""
	timeFlag(f, &q.Since, "since", "at or after `TIME`: 2026-11-25T03:00:00Z, 2026-11-25, or 2h for two hours ago")
	timeFlag(f, &q.Until, "until", "at or before `TIME`")
	f.IntVar(&q.Limit, "limit", 100, "`NUMBER` of entries, at most 10000")
	f.Int64Var(&q.Before, "before", 0, "`NUMBER` from which the previous page says that the next one begins")
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if err := checkLimit(q.Limit); err != nil {
			return err
		}
		page, err := b.Audit(ctx, q)
		if err != nil {
			return err
		}
		if a.json {
			for i := range page.Entries {
				if err := a.printJSON(page.Entries[i]); err != nil {
					return err
				}
			}
		} else if err := a.auditTable(page.Entries); err != nil {
			return err
		}
		entries := plural(len(page.Entries), "entry")
		if len(page.Entries) != 1 {
			entries = count(len(page.Entries)) + " entries"
		}
		a.notef("%s", entries)
		if page.Next != 0 {
			a.notef("; next page: --before %d", page.Next)
		}
		a.notef("\n")
		return nil
	})
}

func actionNames() (all []string) {
	for _, action := range eventbus.AuditActions() {
		all = append(all, string(action))
	}
	return all
}

func (a *app) auditTable(entries []eventbus.AuditEntry) error {
	t := term.NewTable(
		term.Column{Name: "NUMBER", Right: true}, term.Column{Name: "AT", Drop: true}, term.Column{Name: "ACTION"}, term.Column{Name: "BY", Min: 6},
		term.Column{Name: "WHAT", Min: 12}, term.Column{Name: "WHY", Min: 10, Drop: true},
	)
	for i := range entries {
		e := &entries[i]
		t.Add(count(e.Number), timeText(e.At), string(e.Action), e.By, auditSubject(e), e.Why)
	}
	return a.printTable(t)
}

// auditSubject describes what an action was done to.
func auditSubject(e *eventbus.AuditEntry) string {
	var parts []string
	if o := e.Outcome; o != nil { // first: a narrow table cuts the end
		parts = append(parts, auditOutcome(o))
	}
	if e.Count > 0 {
		parts = append(parts, plural(e.Count, "letter"))
	}
	if e.Dispatches != nil {
		parts = append(parts, strings.TrimSpace(dispatchArgs(*e.Dispatches)))
	}
	if e.Query != nil {
		parts = append(parts, strings.TrimSpace(filterArgs(*e.Query)))
	}
	if !e.Letter.IsZero() {
		parts = append(parts, "letter "+e.Letter.String())
	}
	if !e.Event.IsZero() {
		parts = append(parts, "event "+e.Event.String())
	}
	if e.Denied != "" {
		parts = append(parts, "denied: "+e.Denied)
	}
	if e.Subscription != "" {
		parts = append(parts, e.Subscription)
	}
	if !e.Until.IsZero() {
		parts = append(parts, "until "+timeText(e.Until))
	}
	return strings.Join(parts, " ")
}

// auditOutcome describes how a bulk operation ended; the number of letters follows.
func auditOutcome(o *eventbus.AuditOutcome) string {
	text := count(o.Done) + " done"
	if o.Failures > 0 {
		text += ", " + plural(o.Failures, "failure") + ","
	}
	if o.Stopped {
		text += " stopped,"
	}
	if o.Error != "" {
		text += " " + o.Error + ","
	}
	return text + " of"
}
