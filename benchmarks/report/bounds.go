package main

import (
	"fmt"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// bound is what the bus is to keep to.
type bound struct {
	work, against string
	// limit is the most that figure may be, or with least the least.
	limit float64
	least bool
	// unit is how the figure is written: a factor unless it is one of the plan's.
	unit   string
	figure func(lookup) float64
	// figures are there instead if each of them must keep to the limit. The medians of all
	// are taken before the worst of them: the worst of each round is that of its noise.
	figures []func(lookup) float64
}

// verdict is a bound with what was measured.
type verdict struct {
	bound
	measured summary
	known    bool // it was measured
	kept     bool
}

// all are its figures.
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
			return verdict{bound: b}
		}
		if !v.known || b.worse(s.median, v.measured.median) {
			v.measured, v.known = s, true
		}
	}
	v.kept = v.known && !b.worse(v.measured.median, b.limit)
	return v
}

// worse reports whether the bound is farther from being kept with a than with the other.
func (b bound) worse(a, than float64) bool {
	if b.least {
		return a < than
	}
	return a > than
}

// demand is the bound as readers see it.
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

// says is the verdict in a word or two.
func (v verdict) says() string {
	switch {
	case !v.known:
		return "not measured"
	case v.kept:
		return "kept"
	default:
		return "**missed**"
	}
}

// got is what was measured, with its spread.
func (v verdict) got() string {
	if !v.known {
		return ""
	}
	if v.measured.low == v.measured.high {
		return v.show(v.measured.median)
	}
	return fmt.Sprintf("%s (%s to %s)", v.show(v.measured.median), v.show(v.measured.low), v.show(v.measured.high))
}

// The cases that bounds speak of.
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

// times is how many times as much the first costs as the second.
func times(a, b plan.Run, unit string) func(lookup) float64 {
	return func(at lookup) float64 { return at(a, unit) / at(b, unit) }
}

func value(run plan.Run, unit string) func(lookup) float64 {
	return func(at lookup) float64 { return at(run, unit) }
}

// againstFirst has what each run costs, by what the first one does.
func againstFirst(runs []plan.Run) []func(lookup) float64 {
	var figures []func(lookup) float64
	for _, run := range runs[1:] {
		figures = append(figures, times(run, runs[0], plan.Time))
	}
	return figures
}

// firstAgainst has what the first run costs, by what each of the others does.
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

// bounds are all of them.
func bounds() []bound {
	us := plan.Us
	ours := publish(1, us)
	unique := routing(10_000, "unique", us)
	repeated := routing(10_000, "repeated", us)
	const (
		async      = "publish, 1 subscriber, 1 publisher"
		waited     = "publish and wait for the outcome"
		handler    = "an event's protected handler"
		hits       = "routing 10,000 globs, repeated types"
		misses     = "routing 10,000 globs, unique types"
		retryStorm = "retry storm"
	)
	return []bound{
		{work: async, against: "cost against a channel", limit: 1.75, figure: times(ours, publish(1, "channel"), plan.Time)},
		// Contexts come from slabs: one allocation for many events.
		{work: async, against: "allocations, amortised", limit: 0.1, unit: plan.Allocs, figure: value(ours, plan.Allocs)},
		{work: "the same, 2 publishers", against: "cost against a channel", limit: 2, figure: times(publishers(2, us), publishers(2, "channel"), plan.Time)},
		{work: async, against: "faster than cskr/pubsub", limit: 2.5, least: true, figure: times(publish(1, "cskr"), ours, plan.Time)},
		{work: async, against: "faster than NATS core in process", limit: 3.5, least: true, figure: times(publish(1, "nats"), ours, plan.Time)},
		{work: async, against: "faster than tailscale's bus", limit: 15, least: true, figure: times(publish(1, "tailscale"), ours, plan.Time)},
		{work: async, against: "faster than watermill's router with the same protections", limit: 100, least: true, figure: times(publish(1, "watermill-router"), ours, plan.Time)},
		{work: "each further subscriber of the same event", against: "cost against a channel hop", limit: 0.7, figure: func(at lookup) float64 {
			return (at(publish(10, us), plan.Time) - at(ours, plan.Time)) / 9 / at(publish(1, "channel"), plan.Time)
		}},
		{work: waited, against: "faster than watermill's protected router", limit: 15, least: true, figure: times(wait("watermill-router"), wait(us), plan.Time)},
		{work: handler, against: "cheaper than failsafe-go's composition", limit: 10, least: true, figure: times(protected("failsafe"), protected(us), plan.Time)},
		{work: handler, against: "cheaper than goroutine + timer + gobreaker", limit: 12, least: true, figure: times(protected("gobreaker"), protected(us), plan.Time)},
		{work: hits, against: "faster than the NATS sublist with cache", limit: 2, least: true, figure: times(routing(10_000, "repeated", "sublist-cache"), repeated, plan.Time)},
		{work: hits, against: "allocations", limit: 0.001, unit: plan.Allocs, figure: value(repeated, plan.Allocs)},
		{work: misses, against: "faster than the NATS sublist without cache", limit: 2.5, least: true, figure: times(routing(10_000, "unique", "sublist"), unique, plan.Time)},
		{work: misses, against: "faster than a gobwas/glob loop", limit: 1000, least: true, figure: times(routing(10_000, "unique", "globloop"), unique, plan.Time)},
		{work: misses, against: "heap that grows", limit: 256 << 10, unit: plan.Growth, figure: value(unique, plan.Growth)},
		{work: misses, against: "cost against 1,000 globs", limit: 1.25, figure: times(unique, routing(1_000, "unique", us), plan.Time)},
		{work: retryStorm, against: "bytes a waiting event, less than watermill", limit: 25, least: true, figure: times(storm("waiting", "watermill-router"), storm("waiting", us), plan.Waiting)},
		// Workers that rest are there whatever waits: a few for 100,000 events.
		{work: retryStorm, against: "goroutines a waiting event", limit: 0.001, unit: plan.GoroutinesWaiting, figure: value(storm("waiting", us), plan.GoroutinesWaiting)},
		{work: retryStorm, against: "failure to success of the slowest, against the backoff", limit: 1.05, figure: value(storm("fails-once", us), plan.Drain)},
		{work: "a fast subscriber beside a slow one", against: "p99 beyond its p99 alone", limit: 5e-3, unit: plan.P99, figure: func(at lookup) float64 {
			return at(neighbour("beside"), plan.P99) - at(neighbour("alone"), plan.P99)
		}},
		{work: "2 to 64 publishers", against: "least throughput, against 1 publisher", limit: 0.9, least: true, figures: firstAgainst(runsOf(plan.Publishers, func(n int) plan.Run { return publishers(n, us) }))},
		{work: "1 to 100,000 subscriptions that do not match", against: "most that an event costs, against 1", limit: 1.25, figures: againstFirst(runsOf(plan.NonMatching, func(n int) plan.Run { return sized("NonMatching", "subscriptions", n) }))},
		{work: "1,000 to 1,000,000 events queued", against: "most that an event costs, against 1,000", limit: 1.25, figures: againstFirst(runsOf(plan.Queued, func(n int) plan.Run { return sized("Backlog", "queued", n) }))},
	}
}

// underBounds are the runs that bounds rest on.
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

// judge judges all bounds.
func judge(r *results) []verdict {
	var verdicts []verdict
	for _, b := range bounds() {
		verdicts = append(verdicts, b.judge(r))
	}
	return verdicts
}
