package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// The marks around the tables of docs/comparison.md.
const (
	measuredBegin = "<!-- measured: written by benchmarks/report -->"
	measuredEnd   = "<!-- end of what is measured -->"
)

// comparisonTables returns what docs/comparison.md has between the marks: the cost of an event of each rival in memory, and the
// events per second of those that keep them on a disk.
func comparisonTables(r *results, m machine) string {
	return memoryTable(r, m) + "\n" + durableTable(r)
}

// memoryTable returns the cost of an event and the features of each rival.
func memoryTable(r *results, m machine) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %d cores, %s, %s. Medians of %s, each run in processes of its own, spread over the round; in brackets, as multiples of this bus.\n\n", m.cpu, m.cores, m.goVersion, m.date, r.said())
	s.WriteString("| an event, until handled | 1 subscriber | 10 subscribers | 1, waited for | wildcards | errors | retries |\n")
	s.WriteString("| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, rival := range plan.Rivals {
		async := publish(1, rival.Name)
		if _, err := r.of(async, plan.Time); err != nil {
			continue
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %s | %s |\n", rival.Title,
			besideUs(r, async), besideUs(r, publish(10, rival.Name)), besideUs(r, wait(rival.Name)),
			rival.Can.Wildcards, rival.Can.Errors, rival.Can.Retry)
	}
	return s.String()
}

// durableTable returns the events per second of each rival that waits until its events are on a disk.
func durableTable(r *results) string {
	var s strings.Builder
	s.WriteString("| events per second, each flushed to the disk | accepted, 1 publisher | accepted, 64 publishers | handled and settled, 64 | in Postgres: handled and settled, 64 |\n")
	s.WriteString("| --- | --- | --- | --- | --- |\n")
	for _, rival := range plan.Rivals {
		cells, measured := "", false
		for _, run := range []plan.Run{
			plan.Accept(1, rival.Name), plan.Accept(64, rival.Name), plan.Settled(64, rival.Name), plan.SettledInPostgres(64, rival.Name),
		} {
			cell := ""
			if v, err := r.of(run, plan.Rate); err == nil {
				cell, measured = quantity(v.median, plan.Rate), true
			}
			cells += " " + cell + " |"
		}
		if measured {
			fmt.Fprintf(&s, "| %s |%s\n", rival.Title, cells)
		}
	}
	return s.String()
}

// besideUs returns the time of a run, with its multiple of this bus's time.
func besideUs(r *results, run plan.Run) string {
	v, err := r.of(run, plan.Time)
	if err != nil {
		return ""
	}
	by := run
	by.Rival = plan.Us
	ratio, err := r.ratio(run, by, plan.Time)
	if err != nil || run == by {
		return quantity(v.median, plan.Time)
	}
	return fmt.Sprintf("%s (%s)", quantity(v.median, plan.Time), factor(ratio.median))
}

// between replaces the text between the marks.
func between(text, tables string) (string, error) {
	before, rest, begins := strings.Cut(text, measuredBegin+"\n")
	_, after, ends := strings.Cut(rest, measuredEnd)
	if !begins || !ends {
		return "", fmt.Errorf("the page must have the lines %q and %q, between which the tables go", measuredBegin, measuredEnd)
	}
	return before + measuredBegin + "\n\n" + tables + "\n" + measuredEnd + after, nil
}

// writeComparison writes the tables into a page.
func writeComparison(name, tables string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := between(string(text), tables)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}
