package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
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

func showPolicy(out io.Writer, name string, text []byte, d retryspec.Document) error {
	fmt.Fprintf(out, "%s: a policy document\n", name)
	if names := ignored(text); len(names) > 0 {
		fmt.Fprintf(out, "Ignored: %s.\n", strings.Join(names, ", "))
	}
	if err := showJSON(out, d); err != nil {
		return err
	}
	rows := make([]row, shown)
	elapsed := time.Duration(0) // at least
	for i := range rows {
		least, most := d.Bounds(i + 1)
		rows[i] = row{least, most, d.Stopped(i, elapsed)}
		elapsed = sum(elapsed, least)
	}
	if d.Stop.MaxDelay != retryspec.NoLimit {
		fmt.Fprintf(out, "No attempt begins %v s after the task was made, or later.\n", d.Stop.MaxDelay)
	}
	if len(d.Retry.IncludeErrors) == 0 {
		fmt.Fprintln(out, "No error is retried: include_errors is empty.")
	}
	return showDelays(out, rows)
}

func showRules(out io.Writer, name string, rules retryspec.Rules) error {
	fmt.Fprintf(out, "%s: ordered rules, %d of them\n", name, len(rules))
	if err := showJSON(out, rules); err != nil {
		return err
	}
	for i, rule := range rules {
		fmt.Fprintf(out, "\npolicies[%d]: %s\n", i, rule)
		rows := make([]row, shown)
		for i := range rows {
			least, most := retryspec.RuleBounds(rule, i+2)
			rows[i] = row{least, most, i+1 >= rule.Attempts}
		}
		if err := showDelays(out, rows); err != nil {
			return err
		}
	}
	return nil
}

func showJSON(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// row is a delay before a retry. Beyond the last attempt there is none.
type row struct {
	least, most time.Duration
	beyond      bool
}

// showDelays is a table, and a bar for each delay: # is what is always waited, - what
// may be.
func showDelays(out io.Writer, rows []row) error {
	longest, total := time.Duration(0), time.Duration(0)
	for _, r := range rows {
		longest = max(longest, r.most)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "retry\tfrom\tto\tin all, at most\t")
	for i, r := range rows {
		total = sum(total, r.most)
		all := total.String()
		if r.beyond {
			all = "not reached"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i+1, r.least, r.most, all, bar(r, longest))
	}
	return w.Flush()
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

// ignored are the members of a policy document that mean nothing, quoted.
func ignored(text []byte) []string {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return nil
	}
	for _, name := range sections {
		delete(members, name)
	}
	names := slices.Sorted(maps.Keys(members))
	for i, name := range names {
		names[i] = strconv.Quote(name)
	}
	return names
}
