package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// report returns the text of RESULTS.md.
func report(r *results, m machine, verdicts []verdict, how settings) string {
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("# Measured beside what else one would use")
	line("")
	line("Written by `(cd benchmarks && GOWORK=off %s)` on %s: do not edit. Every figure is the median of %s.", how.command, m.date, r.said())
	line("In a round each rival runs for about %s at a time, in processes of its own: %s", how.benchtime, parts())
	line("The parts of a run are spread over the round. A round has the average of their times, and the largest of their other figures.")
	line("A ratio is formed within each round, and the table shows the median of the rounds' ratios. ± is how far off the median may be (95 %% confidence; with fewer than six rounds, the extremes).")
	line("All protections of this bus are on: timeouts, retries, circuits, counters, ledger, ids. Rows in which this bus is slower than others stay in the tables.")
	line("")
	line("%s", m.markdown())
	line("## Bounds")
	line("")
	line("`go run ./report -check` fails if the results miss a bound, or if a round did not measure it. A row that says \"left\" misses its bound for the stated")
	line("reason and does not fail the check. For a bound over several sizes, the size with the worst median counts, and the spread is that size's. The bound on the")
	line("backoff is from an event's failure to its own success: the column of the whole storm below adds the time to publish all events. Watermill's router has")
	line("4,096 events in flight, as all rivals without a bound of their own; a table below shows it with few events in flight.")
	line("")
	line("| work | what | bound | measured | |")
	line("| --- | --- | --- | --- | --- |")
	for _, v := range verdicts {
		line("| %s | %s | %s | %s | %s |", v.work, v.against, v.demand(), v.got(), v.says())
	}
	line("")
	line("`benchmarks/operators` measures two bounds more, apart from this report: what 200 live admin pages cost a publisher, and what the ring of settled events does.")
	line("")
	line("## What they can do")
	line("")
	line("An empty cell means no. A cell in words says how the library does it, or how its users do it here.")
	line("")
	line("| | wildcards | errors of handlers | panics | timeout | retry | circuit breaker | dead letters | bounded queue | waiting for handlers |")
	line("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, v := range plan.Rivals {
		if v.Name == "eventbus-all-globs" || v.Yardstick || v.Synchronous == "NORMAL" || v.Name == "river-postgres" {
			continue // the same library as another row, or no library
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

// table returns the table of one case.
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

// parts describes how often each run comes in a round.
func parts() string {
	var counted []string
	for _, w := range plan.Workloads {
		if slices.ContainsFunc(w.Cases, countedOnce) {
			counted = append(counted, strings.ToLower(w.Title))
		}
	}
	said := fmt.Sprintf("%d times if the run is close to a bound, %d times if a bound uses it, %d times otherwise. These run once, with a fixed number of events: %s.", often, judged, other, strings.Join(counted, ", "))
	for _, w := range plan.Workloads {
		if w.Shortest > 0 {
			said += fmt.Sprintf(" These take at least %s: %s.", w.Shortest, strings.ToLower(w.Title))
		}
	}
	for _, r := range plan.Rivals {
		if r.Settles > 0 {
			said += fmt.Sprintf(" A part of a rival whose queues fill slowly takes at least %s: %s.", r.Settles, r.Title)
		}
	}
	return strings.NewReplacer(" 1 times", " once", " 2 times", " twice").Replace(said)
}

// chartFile returns the path of a workload's chart, relative to RESULTS.md.
func chartFile(w plan.Workload) string { return "charts/" + strings.ToLower(w.Name) + ".svg" }
