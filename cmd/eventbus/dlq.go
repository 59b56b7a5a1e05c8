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

func (a *app) dlqCommand() *cobra.Command {
	c := &cobra.Command{Use: "dlq", Short: "List, replay, edit, purge, export and import dead letters"}
	c.AddCommand(a.dlqList(), a.dlqGroups(), a.dlqShow(), a.dlqReplay(), a.dlqPurge(), a.dlqEdit(), a.dlqExport(), a.dlqImport())
	return group(c)
}

func (a *app) dlqList() *cobra.Command {
	var q eventbus.LetterQuery
	var payloads bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Long: `List dead letters, newest first.

Without a filter, it lists all letters. Payloads are hidden unless --payload is
given with --json and --store.`,
		Example: `  eventbus dlq list --type 'order.*' --since 2h
  eventbus dlq list --fingerprint 5d41402abc4b2a76b9719d911017c592 --json`,
	}
	filterFlags(c, &q)
	c.Flags().IntVar(&q.Limit, "limit", 100, "`NUMBER` of letters, at most 10000")
	c.Flags().TextVar(&q.Before, "before", eventbus.LetterID{}, "`ID` from which the previous page says that the next one begins")
	c.Flags().Lookup("before").DefValue = ""
	c.Flags().BoolVar(&q.ExactTotal, "exact-total", false, "count beyond 10000 letters")
	c.Flags().BoolVar(&payloads, "payload", false, "with --json, print payloads too")
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if err := checkLimit(q.Limit); err != nil {
			return err
		}
		if payloads && !a.json {
			return usage("add --json, or use 'eventbus dlq show ID --payload'", "--payload needs --json")
		}
		if _, remote := b.(*urlBackend); remote && payloads {
			return usage("use 'eventbus dlq show ID --payload' or 'eventbus dlq export'", "--url lists no payloads")
		}
		page, err := b.Letters(ctx, q)
		if err != nil {
			return err
		}
		if a.json {
			for _, l := range page.Letters {
				if !payloads {
					l = withoutPayload(l)
				}
				if err := a.printJSON(l); err != nil {
					return err
				}
			}
		} else if err := a.letterTable(page.Letters); err != nil {
			return err
		}
		a.noteLetters(page)
		a.noteNearest(ctx, b, q.Subscription, page.Total)
		return nil
	})
}

func (a *app) letterTable(letters []eventbus.DeadLetter) error {
	t := term.NewTable(
		term.Column{Name: "ID"}, term.Column{Name: "DIED", Drop: true}, term.Column{Name: "TYPE", Min: 12},
		term.Column{Name: "SUBSCRIPTION", Min: 12}, term.Column{Name: "REASON", Drop: true},
		term.Column{Name: "TRIES", Right: true, Drop: true}, term.Column{Name: "ERROR", Min: 10},
	)
	for i := range letters {
		l := &letters[i]
		t.Add(l.ID.String(), timeText(l.DiedAt), l.Event.Type, l.Subscription, string(l.Reason), count(l.Attempts), lastError(l))
	}
	return a.printTable(t)
}

// noteLetters says how many letters match, and how to see more.
func (a *app) noteLetters(page eventbus.LetterPage) {
	more := ""
	if page.TotalIsMore {
		more = "more than "
	}
	a.notef("%s of %s%s", count(len(page.Letters)), more, plural(page.Total, "letter"))
	if !page.Next.IsZero() {
		a.notef("; next page: --before %s", page.Next)
	}
	a.notef("\n")
}

func (a *app) dlqGroups() *cobra.Command {
	var q eventbus.LetterQuery
	var limit int
	c := &cobra.Command{
		Use:   "groups",
		Short: "Group dead letters by cause, the largest group first",
		Long: `Group dead letters by cause, the largest group first.

Letters of a group died at the same subscription with the same error, apart from
numbers. Give the fingerprint of a group to --fingerprint of the other commands.`,
	}
	filterFlags(c, &q)
	c.Flags().IntVar(&limit, "limit", 100, "`NUMBER` of groups, 0 for all")
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if limit < 0 {
			return usage("0 prints all groups", "--limit %d: must not be below 0", limit)
		}
		groups, err := b.Groups(ctx, q)
		if err != nil {
			return err
		}
		all := len(groups)
		if limit > 0 {
			groups = groups[:min(all, limit)]
		}
		if a.json {
			for i := range groups {
				if err := a.printJSON(groups[i]); err != nil {
					return err
				}
			}
		} else if err := a.groupTable(groups); err != nil {
			return err
		}
		letters := 0
		for i := range groups {
			letters += groups[i].Count
		}
		a.notef("%s of %s, %s\n", count(len(groups)), plural(all, "group"), plural(letters, "letter"))
		a.noteNearest(ctx, b, q.Subscription, all)
		return nil
	})
}

func (a *app) groupTable(groups []eventbus.LetterGroup) error {
	t := term.NewTable(
		term.Column{Name: "LETTERS", Right: true}, term.Column{Name: "FINGERPRINT"}, term.Column{Name: "SUBSCRIPTION", Min: 12},
		term.Column{Name: "FIRST", Drop: true}, term.Column{Name: "LAST", Drop: true}, term.Column{Name: "CLASS", Min: 8, Drop: true}, term.Column{Name: "MESSAGE", Min: 40, Wrap: true},
	)
	for _, g := range groups {
		t.Add(count(g.Count), g.Fingerprint, g.Subscription, timeText(g.First), timeText(g.Last), g.Class, g.Message)
	}
	return a.printTable(t)
}

func (a *app) dlqShow() *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Show the story of a dead letter",
	}
	c.Flags().BoolVar(&payload, "payload", false, "show the payload")
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		id, err := letterID(args[0])
		if err != nil {
			return err
		}
		l, err := b.Letter(ctx, id, payload)
		if err != nil {
			return err
		}
		if a.json {
			if !payload {
				l = withoutPayload(l)
			}
			return a.printJSON(l)
		}
		a.showLetter(&l, payload)
		return nil
	})
}

func letterID(text string) (eventbus.LetterID, error) {
	id, err := eventbus.ParseLetterID(text)
	if err != nil {
		return id, usage("copy the id from 'eventbus dlq list'", "%w", err)
	}
	return id, nil
}

func (a *app) showLetter(l *eventbus.DeadLetter, payload bool) {
	field := func(name, value string) {
		if value != "" {
			a.printf("%-13s %s\n", name, term.Escape(value))
		}
	}
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return count(n)
	}
	field("letter", l.ID.String())
	field("event", l.Event.ID.String())
	field("type", l.Event.Type)
	field("key", l.Event.Key)
	field("idempotency key", l.Event.IdempotencyKey)
	for name, value := range l.Event.Metadata.All() {
		field("metadata", name+" = "+value)
	}
	field("published", timeText(l.Event.Time))
	field("due", timeText(l.Due))
	field("expires", timeText(l.Event.Expires))
	field("died", timeText(l.DiedAt))
	field("subscription", l.Subscription)
	field("reason", string(l.Reason))
	if l.Rule != nil {
		field("rule", l.Rule.String())
	}
	field("attempts", count(l.Attempts))
	field("replays", number(l.Replays))
	a.showReplays(l.ReplayLog)
	field("succeeded", strings.Join(l.Succeeded, ", "))
	field("not reached", strings.Join(l.NotReached, ", "))
	field("fingerprint", l.Fingerprint)
	if payload {
		a.printf("payload\n%s\n", indent(payloadText(l.Event.Payload), "  "))
	} else {
		field("payload", payloadSize(l.Event.Payload)+" (--payload shows it)")
	}
	if l.Edited && payload {
		a.printf("original\n%s\n", indent(payloadText(l.Original), "  "))
	} else if l.Edited {
		field("original", payloadSize(l.Original))
	}
	if len(l.Failures) > 0 {
		a.printf("failures\n")
	}
	const first = 10 // of the failures that are kept, those before the omitted ones
	for i := range l.Failures {
		if i == first && l.FailuresOmitted > 0 {
			a.printf("  (%s left out)\n", plural(l.FailuresOmitted, "failure"))
		}
		a.showFailure(&l.Failures[i])
	}
}

// showReplays prints the replays of an event, oldest first.
func (a *app) showReplays(log []eventbus.LetterReplay) {
	for _, r := range log {
		text := timeText(r.At)
		if r.By != "" {
			text += " by " + r.By
		}
		switch {
		case r.Edited:
			text += ", edited"
		case !r.Bulk.IsZero():
			text += ", in bulk since " + timeText(r.Bulk)
		}
		a.printf("%-13s %s, letter %s\n", "replayed", term.Escape(text), r.Letter)
	}
}

func (a *app) showFailure(f *eventbus.Failure) {
	head := fmt.Sprintf("%s  attempt %d of %s, after %s", timeText(f.Time), f.Attempt, f.Subscription, f.Duration.Round(time.Microsecond))
	if f.Replays > 0 {
		head += fmt.Sprintf(", replay %d", f.Replays)
	}
	if f.Rule != nil {
		head += ", " + f.Rule.String()
	}
	a.printf("  %s\n", term.Escape(head))
	text := f.Error
	if f.Class != "" {
		text = f.Class + ": " + text
	}
	a.printf("%s\n", indent(term.EscapeLines(text), "    "))
	if len(f.Details) > 0 {
		a.printf("    details:\n%s\n", indent(payloadText(f.Details), "      "))
	}
}
