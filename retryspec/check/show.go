package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/surebus/eventbus/retryspec"
)

// shown is how many delays are shown, and width how long the longest bar is.
const (
	shown = 10
	width = 40
)

func showPolicy(name string, d retryspec.Document) (string, error) {
	printed, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: a policy document\n", name)
	if len(d.Ignored) > 0 {
		fmt.Fprintf(&b, "Ignored: %s.\n", quoted(d.Ignored))
	}
	fmt.Fprintf(&b, "%s\n", printed)
	if d.Stop.MaxDelay != retryspec.NoLimit {
		fmt.Fprintf(&b, "No attempt begins %v s after the task was made, or later.\n", d.Stop.MaxDelay)
	}
	if len(d.Retry.IncludeErrors) == 0 {
		b.WriteString("No error is retried: include_errors is empty.\n")
	}
	rows := make([]row, shown)
	elapsed := time.Duration(0) // at least
	for i := range rows {
		least, most := d.Bounds(i + 1)
		rows[i] = row{least, most, d.Stopped(i, elapsed)}
		elapsed = sum(elapsed, least)
	}
	table, err := showDelays(rows)
	return b.String() + table, err
}

func showRules(name string, rules retryspec.Rules) (string, error) {
	printed, err := json.MarshalIndent(rules, "", "  ")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ordered rules, %d of them\n%s\n", name, len(rules), printed)
	for i, rule := range rules {
		rows := make([]row, shown)
		for i := range rows {
			least, most := retryspec.RuleBounds(rule, i+2)
			rows[i] = row{least, most, i+1 >= rule.Attempts}
		}
		table, err := showDelays(rows)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\npolicies[%d]: %s\n%s", i, rule, table)
	}
	return b.String(), nil
}

// row is a delay before a retry. Beyond the last attempt there is none.
type row struct {
	least, most time.Duration
	beyond      bool
}

// showDelays is a table, and a bar for each delay: # is what is always waited, - what
// may be.
func showDelays(rows []row) (string, error) {
	longest, total := time.Duration(0), time.Duration(0)
	for _, r := range rows {
		longest = max(longest, r.most)
	}
	var cells, table strings.Builder
	cells.WriteString("retry\tfrom\tto\tin all, at most\t\n")
	for i, r := range rows {
		total = sum(total, r.most)
		all := total.String()
		if r.beyond {
			all = "not reached"
		}
		fmt.Fprintf(&cells, "%d\t%s\t%s\t%s\t%s\n", i+1, r.least, r.most, all, bar(r, longest))
	}
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := io.WriteString(w, cells.String()); err != nil {
		return "", err
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	return table.String(), nil
}

func bar(r row, longest time.Duration) string {
	if longest == 0 {
		return ""
	}
	length := func(d time.Duration) int { return int(math.Ceil(width * float64(d) / float64(longest))) }
	least, most := length(r.least), length(r.most)
	return "  " + strings.Repeat("#", least) + strings.Repeat("-", most-least)
}

// sum is that of two durations, or the longest one.
func sum(a, b time.Duration) time.Duration {
	if s := a + b; s >= 0 {
		return s
	}
	return math.MaxInt64
}

// quoted are the names of members, as a list.
func quoted(names []string) string {
	q := make([]string, len(names))
	for i, name := range names {
		q[i] = strconv.Quote(name)
	}
	return strings.Join(q, ", ")
}
