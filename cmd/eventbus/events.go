package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) eventsCommand() *cobra.Command {
	c := &cobra.Command{Use: "events", Short: "Find events, and cancel, retry or give up those that have not settled"}
	c.AddCommand(a.eventsShow(), a.eventsList(), a.eventsCancel(), a.eventsRetry(), a.eventsGiveUp())
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
	var key, eventType string
	c := &cobra.Command{
		Use:   "show [ID]",
		Short: "Show where an event is, or what became of it, and its dead letters",
		Long: `Show where an event is, or what became of it: for each delivery that has ended, how,
where and when, and by whom it was replayed. The bus knows the last 10,000 events
of its process. The exit code is 0 also when the event has settled.

Name the event by its id, or by its type and its idempotency key. The --key of other
commands is another one: that by which a bus keeps the order of events.`,
		Example: `  eventbus events show 01a22a60-0b5a-7453-9e3c-a03e56beeb0d
  eventbus events show --type order.placed --idempotency-key checkout-17`,
	}
	c.Flags().StringVar(&key, "idempotency-key", "", "idempotency `KEY` of the event, with --type")
	c.Flags().StringVar(&eventType, "type", "", "`TYPE` of the event, without wildcards, for --idempotency-key")
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		s, err := namedEvent(ctx, b, args, eventType, key)
		if err != nil {
			return err
		}
		if len(args) == 0 && !a.json {
			a.printf("event %s\n", s.ID)
		}
		return a.showEvent(&s)
	})
}

// namedEvent returns the event that has an id, or an idempotency key.
func namedEvent(ctx context.Context, b backend, args []string, eventType, key string) (s eventbus.EventStatus, err error) {
	const next = "give the ID, or --type and --idempotency-key"
	switch {
	case len(args) > 0 && eventType+key != "":
		return s, usage(next, "an id and an idempotency key are given")
	case len(args) > 0:
		id, err := eventID(args[0])
		if err != nil {
			return s, err
		}
		return b.Event(ctx, id)
	case key == "" && eventType == "":
		return s, usage(next, "no event is named")
	case key == "" || eventType == "":
		return s, usage("give both: a key is that of one event of its type", "--type or --idempotency-key is missing")
	}
	if s, err = b.EventByIdempotencyKey(ctx, eventType, key); errors.Is(err, eventbus.ErrUnknownEvent) {
		err = notFound("check both; a key is known for a while, and then only while its event has not settled or is a dead letter",
			"no event of the type %s is known by the idempotency key %s", cutName(eventType), cutName(key))
	}
	return s, err
}

// showEvent prints what became of an event.
func (a *app) showEvent(s *eventbus.EventStatus) error {
	if a.json {
		for i := range s.Letters.Letters {
			s.Letters.Letters[i] = withoutPayload(s.Letters.Letters[i])
		}
		return a.printJSON(s)
	}
	if len(s.Dispatches)+len(s.Letters.Letters)+len(s.Settled) == 0 {
		a.printf("event %s has settled: it was handled, unrouted, dropped or cancelled, or its letters were purged\n", s.ID)
		return nil
	}
	a.showReplays(s.Replays)
	for i := range s.Settled {
		a.printf("%s\n", term.Escape(s.Settled[i].String()))
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
	}
	f := c.Flags()
	dispatchFlags(c, &q)
	f.StringVar(&q.Subscription, "subscription", "", "`NAME` of a subscription that is to handle the event")
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
		a.noteNearest(ctx, b, q.Subscription, len(page.Dispatches))
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
