package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/driver"
)

func (a *app) statsCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "stats",
		Short: "Show counts of events and letters",
		Long: `Show counts of events and letters.

With --store, the counts are those of the file: by state, whether the bus runs
or not. Incoming events are those that the bus has not taken in. With --url, they
are those of the running process.`,
	}
	c.Flags().BoolVar(&watch, "watch", false, "show rates as they change, until Ctrl-C; needs --url")
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if watch {
			return a.watchStats(ctx, b)
		}
		s, err := b.Stats(ctx)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(s)
		}
		a.showStats(s)
		return nil
	})
}

func (a *app) showStats(s stats) {
	field := func(name string, n int64) { a.printf("%-16s %12s\n", name, count(n)) }
	if s.Store != nil {
		a.showStoreStats(s.Store, field)
	}
	if s.Metrics == nil {
		return
	}
	l := s.Metrics.Ledger
	field("accepted", l.Accepted)
	field("handled", l.Handled)
	field("dead-lettered", l.DeadLettered)
	field("dropped", l.Dropped)
	field("cancelled", l.Cancelled)
	field("unrouted", l.Unrouted)
	field("replays", l.Replays)
	field("retries", s.Metrics.Retries)
	field("running", l.Running)
	field("queued", l.Queued)
	field("waiting retries", l.Waiting)
	field("held", l.Held)
	field("throttled", l.Throttled)
	field("snoozed", l.Snoozed)
	field("dead letters", int64(s.Metrics.DeadLetters))
	if s.Balanced != nil && *s.Balanced {
		a.printf("the books balance\n")
	} else if s.Balanced != nil {
		a.printf("the books do not balance: %s\n", term.Escape(s.Imbalance))
	}
}

func (a *app) showStoreStats(s *driver.Stats, field func(string, int64)) {
	field("store: ready", s.Ready)
	field("store: waiting", s.Waiting)
	field("store: scheduled", s.Scheduled)
	field("store: parked", s.Parked)
	field("store: unsettled", s.Unsettled())
	field("store: incoming", s.Incoming)
	field("store: letters", s.Letters)
}
