package main

import "github.com/surebus/eventbus/benchmarks/plan"

func hanging(kase string) plan.Run {
	return plan.Run{Workload: "Hanging", Case: kase, Rival: plan.Us}
}

func limited(kase string) plan.Run {
	return plan.Run{Workload: "Limit", Case: kase, Rival: plan.Us}
}

// concurrencyBounds returns the bounds on concurrency limits of subscriptions.
func concurrencyBounds() []bound {
	const hangs = "one subscription hangs, 64 publishers of other events"
	return []bound{
		{work: hangs, against: "throughput, against a bus where none hangs", limit: 0.75, least: true, figure: times(hanging("alone"), hanging("beside"), plan.Time)},
		{work: hangs, against: "p99, against a bus where none hangs", limit: 2, figure: times(hanging("beside"), hanging("alone"), plan.P99), left: "64 publishers share two cores, and the p99 of both sides changes by a factor of 3 from round to round; 1.8 to 2.3 × in the runs so far"},
		{work: "an explicit concurrency limit that is not reached", against: "cost against no limit", limit: 1.5, figure: value(limited("explicit"), plan.Limited)},
		{work: "the default concurrency limit on a bus that is not full", against: "cost against no limit", limit: 1.1, figure: value(limited("default"), plan.Limited)},
	}
}
