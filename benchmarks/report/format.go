package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// quantity writes a value in a unit of the plan: "59.8 ns", "13 kB", "0.5".
func quantity(v float64, unit string) string {
	switch unit {
	case plan.Time, plan.P50, plan.P99, plan.Added, plan.Ready:
		return scaled(v*1e9, []string{" ns", " µs", " ms", " s"})
	case plan.Bytes, plan.Waiting, plan.Retained, plan.Growth:
		return scaled(v, []string{" B", " kB", " MB", " GB"})
	case plan.Drain, plan.Whole, plan.Limited, plan.Alone, plan.Near, plan.Plain:
		return factor(v)
	default:
		return figures(v)
	}
}

// columns are the headings of units.
var columns = map[string]string{
	plan.Time:              "time",
	plan.Allocs:            "allocations",
	plan.Bytes:             "allocated",
	plan.P50:               "median",
	plan.P99:               "99th percentile",
	plan.Waiting:           "a waiting event",
	plan.Goroutines:        "goroutines",
	plan.GoroutinesWaiting: "goroutines a waiting event",
	plan.Drain:             "failure to success by backoff",
	plan.Whole:             "whole storm by backoff",
	plan.Retained:          "held",
	plan.Growth:            "heap growth",
	plan.Limited:           "cost against no limit",
	plan.Rate:              "events per second",
	plan.Alone:             "cost against no standby",
	plan.Near:              "cost against the shorter way",
	plan.Plain:             "time against no event in it",
	plan.Added:             "added round trip",
	plan.Ready:             "until started",
}

func factor(v float64) string { return figures(v) + " ×" }

// scaled takes the unit, each a thousand of the one before, in which a value is
// readable.
func scaled(v float64, units []string) string {
	i := 0
	for ; i < len(units)-1 && math.Abs(v) >= 999.5; i++ {
		v /= 1000
	}
	return figures(v) + units[i]
}

// figures writes three significant figures, and all of what is before the point.
func figures(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a < 0.00995:
		return strconv.FormatFloat(v, 'g', 1, 64)
	case a < 9.995:
		return trim(fmt.Sprintf("%.2f", v))
	case a < 99.95:
		return trim(fmt.Sprintf("%.1f", v))
	default:
		return thousands(fmt.Sprintf("%.0f", v))
	}
}

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

func thousands(s string) string {
	digits := strings.TrimPrefix(s, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return s[:len(s)-len(strings.TrimPrefix(s, "-"))] + digits
}
