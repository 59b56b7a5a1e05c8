package main

import (
	"testing"

	"github.com/surebus/eventbus/benchmarks/plan"
)

func TestBounds_EachOfConcurrencyCanBeMissed(t *testing.T) {
	requireMissed(t, concurrencyBounds(), []worseResult{
		{"hangs", "throughput", hanging("beside"), plan.Time, 1.34},
		{"hangs", "p99", hanging("beside"), plan.P99, 2.01},
		{"explicit", "no limit", limited("explicit"), plan.Limited, 1.51},
		{"default", "no limit", limited("default"), plan.Limited, 1.11},
	})
}
