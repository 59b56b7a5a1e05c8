package main

import "github.com/surebus/eventbus/benchmarks/plan"

func shared(kase string) plan.Run {
	return plan.Run{Workload: plan.Shared, Case: kase, Rival: plan.Us}
}

// sharedBounds returns the bounds on a file that several users share.
func sharedBounds() []bound {
	const (
		beside  = "a service's transaction beside 64 publishers, on SQLite"
		handled = "commit of a service's transaction until its event is handled, on SQLite"
	)
	return []bound{
		{work: beside, against: "median", limit: 25e-3, unit: plan.P50, figure: value(shared("transaction,beside"), plan.P50)},
		{work: beside, against: "p99", limit: 250e-3, unit: plan.P99, figure: value(shared("transaction,beside"), plan.P99)},
		{work: handled, against: "median", limit: 20e-3, unit: plan.P50, figure: value(shared("handled"), plan.P50)},
		{work: "hand-over of a file, from the end of Shutdown to the end of the standby's Start", against: "p99", limit: 500e-3, unit: plan.P99, figure: value(shared("handover"), plan.P99)},
		{
			work: "an event beside 5 idle standbys, 64 publishers", against: "cost against no standby", limit: 1.05, figure: value(shared("standbys"), plan.Alone),
			left: "each look of a standby reads the file after a commit of the active one; not seen where a commit waits 1 ms for the disk (0.95 to 1.05 ×), but where it waits 0.2 ms (1.2 to 1.5 ×)",
		},
	}
}
