package main

import (
	"testing"

	"github.com/surebus/eventbus/benchmarks/plan"
)

func TestBounds_EachOfReplicasCanBeMissed(t *testing.T) {
	requireMissed(t, replicasBounds(), []worseResult{
		{"settled, 64", "River", plan.SettledInPostgres(64, "river-postgres"), plan.Time, 6.9},
		{"settled, 512", "River", plan.SettledInPostgres(512, "river-postgres"), plan.Time, 11.9},
		{"settled, 512", "grouped", plan.SettledInPostgres(512, "grouped-postgres"), plan.Time, 0.39},
		{"round trip", "shorter", replicas(plan.RoundTrip), plan.Near, 1.34},
		{"transaction with PublishTx", "no event", replicas(plan.Transaction), plan.Plain, 1.26},
		{"same process", "median", replicas(plan.HandledOwn), plan.P50, 21e-3},
		{"another process", "median", replicas(plan.HandledOther), plan.P50, 101e-3},
		{"10 idle standbys", "no standby", replicas(plan.Standbys), plan.Alone, 1.06},
		{"1,000,000", "started", replicas(plan.Waits), plan.Ready, 2.01},
	})
}
