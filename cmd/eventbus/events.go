package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) eventsCommand() *cobra.Command {
	c := &cobra.Command{Use: "events", Short: "Find events, list those that have not settled, cancel scheduled ones"}
	c.AddCommand(a.eventsShow(), a.eventsList(), a.eventsCancel())
	return group(c)
}

func eventID(text string) (eventbus.EventID, error) {
	id, err := eventbus.ParseEventID(text)
	if err != nil {
		return id, usage("copy the id from a log entry or from 'eventbus events list'", "%w", err)
	}
	return id, nil
}

func (a *app) eventsShow() *cobra.Command {
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Show where an event is, and its dead letters",
		Args:  cobra.ExactArgs(1),
	}
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		id, err := eventID(args[0])
		if err != nil {
			return err
		}
		s, err := b.Event(ctx, id)
		if err != nil {
			return err
		}
		if a.json {
			for i := range s.Letters.Letters {
				s.Letters.Letters[i] = withoutPayload(s.Letters.Letters[i])
			}
			return a.printJSON(s)
		}
		if s.IsSettled() && len(s.Letters.Letters) == 0 {
			a.printf("event %s has settled: it was handled, unrouted, dropped or cancelled, or its letters were purged\n", id)
			return nil
		}
		if len(s.Dispatches) > 0 {
			if err := a.dispatchTable(s.Dispatches); err != nil {
				return err
			}
		}
		if len(s.Letters.Letters) > 0 {
			return a.letterTable(s.Letters.Letters)
		}
		return nil
	})
}

func (a *app) eventsList() *cobra.Command {
	var q eventbus.DispatchQuery
	c := &cobra.Command{
		Use:   "list",
		Short: "List the dispatches that have not settled, oldest first",
		Long: `List the dispatches that have not settled, oldest first.

With --store, a dispatch that a handler works on counts as queued. Events that the
bus has not taken in are counted, not listed: 'eventbus events show' finds them.`,
		Example: `  eventbus events list --state scheduled
  eventbus events list --subscription mail --state parked`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVar((*string)(&q.State), "state", "", "`STATE`: queued, running, waiting, scheduled or parked")
	completeFlag(c, "state", "queued", "running", "waiting", "scheduled", "parked")
	f.StringVar(&q.Type, "type", "", "`PATTERN` of the event type, such as 'order.*'")
	f.StringVar(&q.Subscription, "subscription", "", "`NAME` of a subscription that is to handle the event")
	f.StringVar(&q.Key, "key", "", "`KEY` of the event")
	f.StringVar(&q.IdempotencyKey, "idempotency-key", "", "idempotency `KEY` of the event")
	f.IntVar(&q.Limit, "limit", 100, "`NUMBER` of dispatches, at most 10000")
	f.StringVar(&q.After, "after", "", "`TEXT` from which the previous page says that the next one begins")
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if err := checkLimit(q.Limit); err != nil {
			return err
		}
		page, err := b.Dispatches(ctx, q)
		if err != nil {
			return err
		}
		if a.json {
			for i := range page.Dispatches {
				if err := a.printJSON(page.Dispatches[i]); err != nil {
					return err
				}
			}
		} else if err := a.dispatchTable(page.Dispatches); err != nil {
			return err
		}
		a.notef("%s", dispatches(len(page.Dispatches)))
		if page.Next != "" {
			a.notef("; next page: --after %s", term.Escape(shellQuote(page.Next)))
		} else if n := incoming(ctx, b); n > 0 {
			a.notef("; not taken in by the bus yet: %s", plural(n, "event"))
		}
		a.notef("\n")
		return nil
	})
}

// incoming returns how many events the bus has not taken in, or 0 if that is unknown.
func incoming(ctx context.Context, b backend) int64 {
	s, err := b.Stats(ctx)
	if err != nil || s.Store == nil {
		return 0
	}
	return s.Store.Incoming
}

func dispatches(n int) string {
	if n == 1 {
		return "1 dispatch"
	}
	return count(n) + " dispatches"
}

func (a *app) dispatchTable(list []eventbus.DispatchInfo) error {
	t := term.NewTable(
		term.Column{Name: "EVENT"}, term.Column{Name: "PUBLISHED", Drop: true}, term.Column{Name: "TYPE", Min: 12}, term.Column{Name: "KEY", Min: 6, Drop: true},
		term.Column{Name: "STATE"}, term.Column{Name: "SUBSCRIPTION", Min: 12}, term.Column{Name: "TRIES", Right: true, Drop: true}, term.Column{Name: "DUE", Min: 20, Drop: true},
	)
	for i := range list {
		d := &list[i]
		state := string(d.State)
		if d.Parked != "" {
			state += " (" + string(d.Parked) + ")"
		}
		t.Add(d.Event.String(), timeText(d.Published), d.Type, d.Key, state, d.Subscription, count(d.Attempts), timeText(d.Due))
	}
	return a.printTable(t)
}

func (a *app) eventsCancel() *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a scheduled event that is not due yet",
		Args:  cobra.ExactArgs(1),
	}
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		id, err := eventID(args[0])
		if err != nil {
			return err
		}
		if err := b.Cancel(ctx, id, a.operator()); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]any{"event_id": id, "action": "cancel"})
		}
		a.printf("cancelled %s\n", id)
		return nil
	})
}
