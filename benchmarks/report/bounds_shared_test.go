package main

import (
	"testing"

	"github.com/surebus/eventbus/benchmarks/plan"
)

func TestBounds_EachOfSharedCanBeMissed(t *testing.T) {
	requireMissed(t, sharedBounds(), []worseResult{
		{"transaction beside", "median", shared("transaction,beside"), plan.P50, 26e-3},
		{"transaction beside", "p99", shared("transaction,beside"), plan.P99, 251e-3},
		{"commit", "median", shared("handled"), plan.P50, 21e-3},
		{"hand-over", "p99", shared("handover"), plan.P99, 501e-3},
		{"standbys", "no standby", shared("standbys"), plan.Alone, 1.06},
	})
}
