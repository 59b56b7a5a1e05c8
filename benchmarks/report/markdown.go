package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// report is RESULTS.md.
func report(r *results, m machine, verdicts []verdict, how settings) string {
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("# Measured beside what else one would use")
	line("")
	line("Made by `(cd benchmarks && GOWORK=off %s)` on %s; do not edit. Every figure is the median of %s; in a round", how.command, m.date, r.said())
	line("each rival runs for about %s at a time, in processes of its own, spread over the round: %s", how.benchtime, parts(how.quick))
	line("A round has the average of their times, as one long run would have, so that what else the machine does meets all alike; and of everything else the most.")
	line("Ratios are formed within each round, and are the medians of the rounds' ratios. ± is how far off the median may be (95 %% confidence; with fewer than six rounds, the extremes).")
	line("Of this bus everything is on: timeouts, retries, circuits, counters, ledger, ids. The rows that do not flatter it stay in.")
	line("")
	line("%s", m.markdown())
	line("## Bounds")
	line("")
	line("`go run ./report -check` fails when one is missed, or not measured in each round. Of several sizes the one counts whose median is the worst; the")
	line("spread is that size's. The storm's bound is from an event's failure to its own success; the time to publish them all, which comes first, is in the")
	line("column of the whole storm below. Watermill's router has 4,096 events on their way, as all have; how much faster it is with few is told below, too.")
	line("")
	line("| work | what | bound | measured | |")
	line("| --- | --- | --- | --- | --- |")
	for _, v := range verdicts {
		line("| %s | %s | %s | %s | %s |", v.work, v.against, v.demand(), v.got(), v.says())
	}
	line("")
	line("## What they can do")
	line("")
	line("Empty is no. In words it is how: by what the library does, or what its users write for it here.")
	line("")
	line("| | wildcards | errors of handlers | panics | timeout | retry | circuit breaker | dead letters | bounded queue | waiting for handlers |")
	line("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, v := range plan.Rivals {
		if v.Name == "eventbus-all-globs" {
			continue // the same bus
		}
		c := v.Can
		line("| %s | %s |", v.Title, strings.Join([]string{c.Wildcards, c.Errors, c.Panics, c.Timeout, c.Retry, c.Circuit, c.DeadLetters, c.Bounded, c.Wait}, " | "))
	}
	for _, w := range plan.Workloads {
		line("")
		line("## %s", w.Title)
		line("")
		line("%s", w.Text)
		line("")
		line("![%s](%s)", w.Title, chartFile(w))
		for _, c := range w.Cases {
			line("")
			s.WriteString(table(r, w, c))
		}
	}
	return s.String()
}

// table is that of one case.
func table(r *results, w plan.Workload, c plan.Case) string {
	var s strings.Builder
	fmt.Fprintf(&s, "| %s | %s | ± | × this bus |", c.Title, columns[c.Unit])
	for _, unit := range c.More {
		fmt.Fprintf(&s, " %s |", columns[unit])
	}
	s.WriteString("\n|" + strings.Repeat(" --- |", 4+len(c.More)) + "\n")
	ours := plan.Run{Workload: w.Name, Case: c.Name, Rival: plan.Us}
	for _, name := range c.Rivals {
		run := plan.Run{Workload: w.Name, Case: c.Name, Rival: name}
		rival, _ := plan.RivalNamed(name)
		v, err := r.of(run, c.Unit)
		if err != nil {
			continue
		}
		fmt.Fprintf(&s, "| %s | %s | %.0f %% |", rival.Title, quantity(v.median, c.Unit), v.spread())
		if ratio, err := r.ratio(run, ours, c.Unit); err != nil || name == plan.Us {
			s.WriteString(" |")
		} else {
			fmt.Fprintf(&s, " %s |", factor(ratio.median))
		}
		for _, unit := range c.More {
			if v, err := r.of(run, unit); err != nil {
				s.WriteString(" |")
			} else {
				fmt.Fprintf(&s, " %s |", quantity(v.median, unit))
			}
		}
		s.WriteString("\n")
	}
	return s.String()
}

// parts says how often what runs in a round.
func parts(quick bool) string {
	var counted []string
	for _, w := range plan.Workloads {
		if slices.ContainsFunc(w.Cases, countedOnce) {
			counted = append(counted, strings.ToLower(w.Title))
		}
	}
	rest := other
	if quick {
		rest = 1
	}
	said := fmt.Sprintf("%d times what comes close to a bound, %d times what else one rests on, %d times the rest. These run once, with as many events as they say: %s.", often, judged, rest, strings.Join(counted, ", "))
	for _, r := range plan.Rivals {
		if r.Settles > 0 {
			said += fmt.Sprintf(" Where queues take long to fill, a part takes at least about %s: %s.", r.Settles, r.Title)
		}
	}
	return strings.ReplaceAll(said, " 1 times", " once")
}

// chartFile is where a workload's chart is, from where RESULTS.md is.
func chartFile(w plan.Workload) string { return "charts/" + strings.ToLower(w.Name) + ".svg" }
