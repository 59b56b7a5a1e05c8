package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// The marks around the README's table.
const (
	readmeBegin = "<!-- measured: written by benchmarks/report -->"
	readmeEnd   = "<!-- end of what is measured -->"
)

// readmeTable returns the README's table: the cost of an event and the features of each rival.
func readmeTable(r *results, m machine) string {
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

// between replaces the text between the README's marks.
func between(text, table string) (string, error) {
	before, rest, begins := strings.Cut(text, readmeBegin+"\n")
	_, after, ends := strings.Cut(rest, readmeEnd)
	if !begins || !ends {
		return "", fmt.Errorf("README.md must have the lines %q and %q, between which the table goes", readmeBegin, readmeEnd)
	}
	return before + readmeBegin + "\n\n" + table + "\n" + readmeEnd + after, nil
}

// writeReadme writes the table into a README.
func writeReadme(name, table string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := between(string(text), table)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}
