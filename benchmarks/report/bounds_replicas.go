package main

import "github.com/surebus/eventbus/benchmarks/plan"

func replicas(kase string) plan.Run {
	return plan.Run{Workload: plan.Replicas, Case: kase, Rival: plan.Us}
}

// replicasBounds returns the bounds on the bus with a Postgres server. All commits are flushed (synchronous_commit=on).
func replicasBounds() []bound {
	settled := func(publishers int, rival string) func(lookup) float64 {
		return times(plan.SettledInPostgres(publishers, rival), plan.SettledInPostgres(publishers, plan.Us), plan.Time)
	}
	const (
		some = "on Postgres: accepted, handled and settled, 64 publishers"
		many = "on Postgres: accepted, handled and settled, 512 publishers"
		way  = "on Postgres: a round trip of 1 ms more, 64 publishers"
		tx   = "on Postgres: a transaction with PublishTx, 16 connections"
		own  = "on Postgres: commit of a transaction until its event is handled, by the same process"
		far  = "on Postgres: commit of a transaction until its event is handled, by another process"
		work = "an event of the bus takes 17 to 20 µs of work on the two processors; kept where a flush of the server took 1 to 2 ms (19 × and 0.45 ×), missed where it takes 0.2 ms"
		idle = "on Postgres: an event beside 10 idle standbys, 64 publishers"
		full = "on Postgres: 1,000,000 waiting events"

		longer = "64 events take a commit or two of 2 to 3 ms, and each waits for the longer way; to send the next commit before the answer, on the same connection or on a second one, made more and smaller commits, and was no faster; 0.52 to 0.78 × in the runs so far"
		sixth  = "a transaction of five statements has a sixth, and the bus takes the event in, handles and settles it on the same two processors; 1.41 to 1.72 × in the runs so far"
	)
	return []bound{
		{work: some, against: "faster than River, one Insert each", limit: 7, least: true, figure: settled(64, "river-postgres")},
		{work: many, against: "faster than River, one Insert each", limit: 12, least: true, figure: settled(512, "river-postgres"), left: work},
		{work: many, against: "throughput, against a bare grouped INSERT and DELETE", limit: 0.4, least: true, figure: settled(512, "grouped-postgres"), left: work},
		{work: way, against: "throughput, against the shorter way", limit: 0.75, least: true, figure: func(at lookup) float64 { return 1 / at(replicas(plan.RoundTrip), plan.Near) }, left: longer},
		{work: tx, against: "time against no event in it", limit: 1.25, figure: value(replicas(plan.Transaction), plan.Plain), left: sixth},
		{work: own, against: "median", limit: 20e-3, unit: plan.P50, figure: value(replicas(plan.HandledOwn), plan.P50)},
		{work: far, against: "median", limit: 100e-3, unit: plan.P50, figure: value(replicas(plan.HandledOther), plan.P50)},
		{work: idle, against: "cost against no standby", limit: 1.05, figure: value(replicas(plan.Standbys), plan.Alone)},
		{work: full, against: "until started", limit: 2, unit: plan.Ready, figure: value(replicas(plan.Waits), plan.Ready)},
	}
}
