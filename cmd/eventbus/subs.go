package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) subsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "subs",
		Short: "List subscriptions; pause, resume, hold, trip, reset and retire them",
		Long: `List subscriptions; pause, resume, hold, trip, reset and retire them.

With --store, the command shows the subscriptions that the last bus wrote to the
file, and its age. It knows circuits and latency with --url only. A running bus
carries out a directive to the file within 250 ms. Otherwise the next bus does.`,
	}
	c.AddCommand(
		a.subsList(), a.subsShow(),
		a.subsDirective("pause NAME", "Hold the deliveries of a subscription until resume", eventbus.AuditPause, "paused"),
		a.subsDirective("hold-until NAME TIME", "Hold the deliveries of a subscription until a time", eventbus.AuditHoldUntil, "holds"),
		a.subsDirective("resume NAME", "End pause and hold-until", eventbus.AuditResume, "resumed"),
		a.subsDirective("trip NAME", "Open the circuit of a subscription", eventbus.AuditTrip, "tripped"),
		a.subsDirective("reset NAME", "Close the circuit of a subscription", eventbus.AuditReset, "reset"),
		a.subsRetire(),
	)
	return group(c)
}

func (a *app) subsList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the subscriptions"}
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		all, err := b.Subscriptions(ctx)
		if err != nil {
			return err
		}
		if a.json {
			for i := range all.List {
				if err := a.printJSON(all.List[i]); err != nil {
					return err
				}
			}
		} else if err := a.subscriptionTable(all); err != nil {
			return err
		}
		a.notef("%s", plural(len(all.List), "subscription"))
		if !all.Known.IsZero() {
			a.notef(", %s", all.asOf())
		}
		a.notef("\n")
		a.noteOrphans(all)
		return nil
	})
}

// noteOrphans says what can be done about names without a subscription.
func (a *app) noteOrphans(all subscriptions) {
	n := 0
	for i := range all.List {
		if all.List[i].Orphan {
			n++
		}
	}
	if n > 0 {
		a.notef("without a subscription: %s; deploy it, use Formerly, or end it: eventbus subs retire NAME\n", plural(n, "name"))
	}
}

// asOf describes when the subscriptions were written to the file, and by which bus.
func (s *subscriptions) asOf() string {
	text := "as of " + asOf(s.Known)
	if s.Standby {
		text += ", recorded by a standby"
	}
	return text
}

func (a *app) subscriptionTable(all subscriptions) error {
	if !all.Live {
		t := term.NewTable(term.Column{Name: "SUBSCRIPTION", Min: 16}, term.Column{Name: "PATTERN", Min: 8}, term.Column{Name: "PARKED", Right: true}, term.Column{Name: "DIRECTIVE", Min: 12})
		for _, s := range all.List {
			t.Add(s.Subscription, s.patternText(), count(s.Parked), directiveText(s.Directive))
		}
		return a.printTable(t)
	}
	t := term.NewTable(
		term.Column{Name: "SUBSCRIPTION", Min: 16}, term.Column{Name: "CIRCUIT"}, term.Column{Name: "SHUT BY", Drop: true}, term.Column{Name: "OK", Right: true}, term.Column{Name: "FAILED", Right: true},
		term.Column{Name: "RUNNING", Right: true, Drop: true}, term.Column{Name: "PARKED", Right: true}, term.Column{Name: "P50", Right: true, Drop: true},
		term.Column{Name: "P99", Right: true, Drop: true}, term.Column{Name: "DIRECTIVE", Min: 8, Drop: true}, term.Column{Name: "LAST ERROR", Min: 10, Drop: true},
	)
	for _, s := range all.List {
		m := s.Metrics
		if m == nil { // an orphan
			t.Add(s.Subscription, "missing", "", "", "", "", count(s.Parked))
			continue
		}
		t.Add(s.Subscription, m.Circuit.String(), string(m.ShutBy), count(m.Successes), count(m.Failures), count(m.Running), count(m.Parked()),
			duration(m.Latency.P50), duration(m.Latency.P99), directiveText(s.Directive), m.LastError)
	}
	return a.printTable(t)
}

// duration returns a duration with about three digits.
func duration(d time.Duration) string {
	const digits = 1000
	unit := time.Duration(1)
	for d/unit >= digits {
		unit *= 10
	}
	return d.Round(unit).String()
}

// directiveText describes the last directive to a subscription.
func directiveText(o *eventbus.Directive) string {
	if o == nil {
		return ""
	}
	var parts []string
	switch {
	case o.Pause && !o.Until.IsZero():
		parts = append(parts, "holds until "+timeText(o.Until))
	case o.Pause:
		parts = append(parts, "paused")
	}
	if o.Trip {
		parts = append(parts, "tripped")
	}
	if parts == nil {
		return ""
	}
	text := strings.Join(parts, ", ") + " at " + timeText(o.At)
	if o.By != "" {
		text += " by " + o.By
	}
	if o.Why != "" {
		text += ": " + o.Why
	}
	return text
}

func (a *app) subsShow() *cobra.Command {
	c := &cobra.Command{Use: "show NAME", Short: "Show a subscription"}
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		all, err := b.Subscriptions(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all.List, func(s subscription) bool { return s.Subscription == args[0] })
		if i < 0 {
			return named(ctx, b, args[0], notFound("'eventbus subs list' shows the names", "no subscription %q in %s", cutName(args[0]), b.Where()))
		}
		s := &all.List[i]
		if a.json {
			return a.printJSON(s)
		}
		a.showSubscription(s)
		if !all.Known.IsZero() {
			a.notef("%s\n", all.asOf())
		}
		return nil
	})
}

// patternText returns the pattern, and whether it is of dead letters.
func (s *subscription) patternText() string {
	switch {
	case s.Orphan:
		return "(missing)"
	case s.DeadLetters:
		return s.Pattern + " (dead letters)"
	}
	return s.Pattern
}

func (a *app) showSubscription(s *subscription) {
	field := func(name, value string) {
		if value != "" {
			a.printf("%-13s %s\n", name, term.Escape(value))
		}
	}
	field("subscription", s.Subscription)
	field("pattern", s.patternText())
	field("directive", directiveText(s.Directive))
	for i := range s.Destinations {
		field("destination", s.Destinations[i].Destination+"  "+directiveText(&s.Destinations[i]))
	}
	m := s.Metrics
	if m == nil {
		field("parked", count(s.Parked))
		if o := s.Options; o != nil {
			field("formerly", strings.Join(o.Formerly, ", "))
			field("options", fmt.Sprintf("timeout %s, %s when open, %s when full", o.Timeout, o.WhenOpen, o.WhenFull))
			for _, name := range slices.Sorted(maps.Keys(o.Overrides)) {
				field("retry", name+" "+o.Overrides[name])
			}
		}
		return
	}
	field("circuit", fmt.Sprintf("%s, opened %s times", m.Circuit, count(m.CircuitOpens)))
	field("shut by", string(m.ShutBy))
	field("successes", count(m.Successes))
	field("failures", fmt.Sprintf("%s, of these %s timeouts and %s panics", count(m.Failures), count(m.Timeouts), count(m.Panics)))
	field("running", count(m.Running))
	field("held", count(m.Held))
	throttled := count(m.Throttled)
	if !m.ThrottledUntil.IsZero() {
		throttled += ", until " + timeText(m.ThrottledUntil)
	}
	field("throttled", throttled)
	field("snoozed", count(m.Snoozed))
	if all := m.Destinations; all != nil {
		field("destinations", fmt.Sprintf("%s known, %s not well, %s attempts shared the common one", count(all.Known), count(all.Unwell), count(all.Shared)))
		for i := range all.List {
			field("  not well", destinationText(&all.List[i]))
		}
	}
	if m.Latency.Samples > 0 {
		field("latency", fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", duration(m.Latency.P50), duration(m.Latency.P90), duration(m.Latency.P99), duration(m.Latency.Max)))
	}
	concurrency := "unlimited"
	if m.Options.Concurrency != eventbus.Unlimited {
		concurrency = count(m.Options.Concurrency)
	}
	if r := m.Options.RateLimit; r != nil {
		concurrency += fmt.Sprintf(", rate %d per %s, burst %d", r.Calls, r.Per, r.Burst)
	}
	field("options", fmt.Sprintf("timeout %s, concurrency %s, line %d, %s when open, %s when full",
		m.Options.Timeout, concurrency, m.Options.LineCapacity, m.Options.WhenOpen, m.Options.WhenFull))
	if !m.LastFailed.IsZero() {
		field("last failure", timeText(m.LastFailed)+"  "+m.LastError)
	}
}

// destinationText describes a destination that is not well.
func destinationText(m *eventbus.DestinationMetrics) string {
	text := fmt.Sprintf("%s  circuit %s, %s of %s calls failed, held %s, throttled %s, snoozed %s",
		m.Destination, m.Circuit, count(m.Failures), count(m.Calls()), count(m.Held), count(m.Throttled), count(m.Snoozed))
	if m.ShutBy != "" {
		text += ", shut by " + string(m.ShutBy)
	}
	if !m.ThrottledUntil.IsZero() {
		text += ", throttled until " + timeText(m.ThrottledUntil)
	}
	if d := directiveText(m.Directive); d != "" {
		text += ", " + d
	}
	return text
}

func (a *app) subsDirective(use, short string, action eventbus.AuditAction, past string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short}
	if action == eventbus.AuditHoldUntil {
		c.Long = short + ".\n\nTIME is a time such as 2026-11-25T06:00:00Z, or a duration from now such as 90m."
	}
	a.operatorFlags(c)
	o := directive{action: action}
	c.Flags().StringVar(&o.destination, "destination", "", "only `NAME`, a destination of a subscription with PerDestination")
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		if len(args) > 1 {
			var err error
			if o.until, err = parseTime(args[1], true); err != nil {
				return usage("see 'eventbus subs hold-until --help'", "TIME %q: %w", args[1], err)
			}
		}
		if err := checkName(args[0]); err != nil {
			return err
		}
		if err := b.Direct(ctx, args[0], o, a.operator()); err != nil {
			return named(ctx, b, args[0], err)
		}
		if a.json {
			return a.printJSON(struct {
				Subscription string    `json:"subscription"`
				Destination  string    `json:"destination,omitempty"`
				Action       string    `json:"action"`
				Until        time.Time `json:"until,omitzero"`
			}{args[0], o.destination, string(action), o.until})
		}
		a.printf("%s", term.Escape(args[0]))
		if o.destination != "" {
			a.printf(", destination %s,", term.Escape(o.destination))
		}
		a.printf(" %s", past)
		if !o.until.IsZero() {
			a.printf(" until %s", timeText(o.until))
		}
		a.printf("\n")
		return nil
	})
}

func (a *app) subsRetire() *cobra.Command {
	var drop, yes, dryRun bool
	c := &cobra.Command{
		Use: "retire NAME", Short: "End the name of a subscription that no bus has any more",
		Long: `End the name of a subscription that no bus has any more.

Its deliveries become dead letters with the reason unsubscribed, or are dropped with
--drop: those that wait now, and those for later when they are due. The command shows
the number and asks for the name. It ends with code 4 while a live bus has a
subscription of the name; a killed standby counts as live for up to an hour. If no
bus runs, the next one ends the deliveries.`,
	}
	c.Flags().BoolVar(&drop, "drop", false, "drop the deliveries, without dead letters")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would end, and change nothing")
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		if err := checkName(args[0]); err != nil {
			return err
		}
		parked, err := waiting(ctx, b, args[0])
		if err != nil {
			return err
		}
		if dryRun {
			return a.dryRetire(args[0], parked, drop)
		}
		if err := a.confirmName(ctx, yes, retirement(args[0], parked, drop), args[0]); err != nil {
			return err
		}
		report, err := b.Retire(ctx, args[0], drop, a.operator())
		switch {
		case isInterrupted(ctx, err):
			return failed("'eventbus audit --action retire' shows whether it began, and the outcome", "interrupted: if the name is retired, the bus goes on without this command")
		case err != nil:
			return named(ctx, b, args[0], err)
		case a.json:
			return a.printJSON(report)
		case report.Left:
			a.printf("%s retired: the next bus ends its deliveries (parked: %s)\n", term.Escape(args[0]), count(report.Parked))
		default:
			a.printf("%s retired: deliveries ended: %s\n", term.Escape(args[0]), count(report.Ended))
		}
		return nil
	})
}

// retirement describes what retiring a name does.
func retirement(name string, parked int64, drop bool) string {
	deliveries := count(parked) + " waiting deliveries"
	if parked == 1 {
		deliveries = "1 waiting delivery"
	}
	outcome := "become dead letters"
	if drop {
		outcome = "are dropped"
	}
	return fmt.Sprintf("retire %s: %s, and those for later, %s", term.Escape(name), deliveries, outcome)
}

func (a *app) dryRetire(name string, parked int64, drop bool) error {
	if a.json {
		return a.printJSON(map[string]any{"dry_run": true, "subscription": name, "parked": parked, "drop": drop})
	}
	a.printf("dry run: would %s\n", retirement(name, parked, drop))
	return nil
}

// waiting returns the number of deliveries that wait for a subscription.
func waiting(ctx context.Context, b backend, name string) (int64, error) {
	all, err := b.Subscriptions(ctx)
	if err != nil {
		return 0, err
	}
	for i := range all.List {
		if all.List[i].Subscription == name {
			return all.List[i].Parked, nil
		}
	}
	return 0, nil
}

// checkName refuses a name that no subscription can have.
func checkName(name string) error {
	const most = 255
	if name == "" || len(name) > most || term.Escape(name) != name {
		return usage("'eventbus subs list' shows the names", "subscription %q: a name has 1 to %d bytes without control characters", name, most)
	}
	return nil
}
