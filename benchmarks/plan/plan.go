// Package plan lists the workloads, their cases and the rivals of each case. The benchmarks and
// the report both use it.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Workload is a benchmark function with its cases.
type Workload struct {
	// Name is the function's, without Benchmark.
	Name string
	// Title and Text are the heading and the introduction in the report.
	Title, Text string
	// Shortest is the shortest useful run of its rivals.
	Shortest time.Duration
	Cases    []Case
}

// Case is a variant of a workload.
type Case struct {
	// Name is the middle part of the benchmark's name, and Title its heading in the report.
	Name, Title string
	// Rivals are the names of the rivals that the case measures.
	Rivals []string
	// Count is the number of operations of a run. If it is 0, a run takes a fixed time.
	Count int
	// Often are the rivals whose figures are close to a bound. They run more often in a round.
	Often []string
	// Unit is the unit of the chart. Smaller is better.
	Unit string
	// More are further columns of the table.
	More []string
}

// Units, in the names that the benchmark format gives them after tidying.
const (
	Time              = "sec/op"
	Allocs            = "allocations/op"
	Bytes             = "B/op"
	P50               = "p50-sec"
	P99               = "p99-sec"
	Waiting           = "B/waiting"
	Goroutines        = "goroutines"
	GoroutinesWaiting = "goroutines/waiting"
	Drain             = "x-backoff"
	Whole             = "x-backoff-whole"
	Retained          = "B-retained"
	Growth            = "B-heap-growth"
	Limited           = "x-unlimited"
	Rate              = "events/s"
	Alone             = "x-alone"
	Near              = "x-near"
	Plain             = "x-plain"
	Added             = "added-sec"
	Ready             = "start-sec"
)

// Few is the suffix of a case in which rivals that are faster with few events in flight get few.
const Few = ",few"

// Publishers are the numbers of concurrent publishers of the workload Publishers.
var Publishers = []int{1, 2, 4, 8, 16, 32, 64}

// NonMatching are the numbers of subscriptions of the workload NonMatching.
var NonMatching = []int{1, 100, 10_000, 100_000}

// Queued are the numbers of queued events of the workload Backlog.
var Queued = []int{1_000, 10_000, 100_000, 1_000_000}

// StormEvents is the number of events of the workload Storm, and StormBackoff their backoff. To
// measure their memory the backoff is StormPatience: usually so long that no retry starts before
// the last event has failed.
const (
	StormEvents   = 100_000
	StormBackoff  = time.Second
	StormPatience = 20 * time.Second
)

// StartupSubscriptions is the number of subscriptions of the workload Startup.
const StartupSubscriptions = 10_000

var (
	asynchronous = []string{Us, "call", "channel", "kelindar", "goroutine", "cskr", "nats", "asaskevich", "tailscale", "watermill", "watermill-router"}
	few          = []string{Us, "channel", "goroutine", "asaskevich", "watermill", "watermill-router"}
	waited       = []string{Us, "call", "channel", "goroutine", "nats", "asaskevich", "watermill", "watermill-router"}
	matchers     = []string{Us, "eventbus-all-globs", "sublist-cache", "sublist", "globloop"}
	neighbours   = []string{Us, "channel", "goroutine", "kelindar", "cskr", "nats", "asaskevich", "tailscale", "watermill", "watermill-router"}
	stormy       = []string{Us, "goroutine", "failsafe", "watermill-router"}
	starters     = []string{Us, "channel", "cskr", "nats", "asaskevich", "tailscale", "watermill", "watermill-router"}
)

// Workloads are all workloads, in the order of the report.
var Workloads = slices.Concat(generalWorkloads, concurrencyWorkloads, durableWorkloads, sharedWorkloads, postgresWorkloads, replicasWorkloads)

// generalWorkloads are the workloads that need no limit of a subscription.
var generalWorkloads = []Workload{
	{
		Name:  "Publish",
		Title: "Publish, not waited for",
		Text:  "One publisher publishes events and does not wait for them. The time of an event ends when all its subscribers have handled it. A rival without a bound of its own gets at most 4,096 events in flight. Rivals with a goroutine for each event may be faster with fewer: in the last table they get 4 or 16, a limit that their users would have to implement. The effect differs between machines.",
		Cases: []Case{
			{Name: "subscribers=1", Title: "1 subscriber", Rivals: asynchronous, Often: []string{Us, "channel"}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=10", Title: "10 subscribers", Rivals: asynchronous, Often: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=1" + Few, Title: "1 subscriber, few events on their way", Rivals: few, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Wait",
		Title: "Publish and wait for the outcome",
		Text:  "The publisher waits until all subscribers have handled the event. This bus also returns the outcome: handled, dead-lettered or held.",
		Cases: []Case{
			{Name: "subscribers=1", Title: "1 subscriber", Rivals: waited, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=10", Title: "10 subscribers", Rivals: waited, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Publishers",
		Title: "Many publishers",
		Text:  "One subscriber and several concurrent publishers.",
		Cases: publishers(),
	},
	{
		Name:  "Routing",
		Title: "Routing",
		Text:  "Finding the subscriptions of a type. The types are 1,000 types again and again, or a new type each time. All rivals support the globs: `svc7.*`, `svc7.order.*`, `svc7.*.shipped`, `svc7.**`. The time is that of the search alone. What this bus stores for a new type, such as a copy of its text, is in the cost of a publish (see Types that are new). The glob loop collects its matches in a list that it reuses.",
		Cases: routing(),
	},
	{
		Name:  "Types",
		Title: "Types that are new",
		Text:  "Publishing until handled, on a bus with 10,000 globs, each of which matches other types. The types are 1,000 types again and again, or a new type each time. This is the whole cost of a publish. The tables above show the search alone.",
		Cases: []Case{
			{Name: "types=repeated", Title: "repeated types", Rivals: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "types=unique", Title: "unique types", Rivals: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Protected",
		Title: "A protected call",
		Text:  "A handler that succeeds, with timeout, retry and circuit breaker around it. The row of this bus is a whole event: published, routed, queued, handled with all protections, counted. The figure is elapsed time. The publisher and the worker of this bus run in parallel on two processors. The other rows are sequential calls on one processor.",
		Cases: []Case{{
			Name: "success", Title: "success", Unit: Time, More: []string{Allocs, Bytes},
			Rivals: []string{Us, "call", "withtimeout", "failsafe", "gobreaker", "watermill-middleware"},
		}},
	},
	{
		Name:  "Storm",
		Title: "A retry storm",
		Text:  "100,000 events fail once and wait for their retry, without jitter. The first table uses a backoff of 1 s and shows multiples of it: the time of the slowest event from its failure to its success, and the time of all events from the first publication to the last success. The second table uses a backoff of 20 s, doubled while the machine is too slow for it. It shows the memory (heap and stacks) and the goroutines per event while all events wait. The circuits count the failures, with thresholds that the storm does not reach.",
		Cases: []Case{
			{
				Name: "fails-once", Title: "100,000 events, drained", Unit: Drain, More: []string{Whole}, Count: 1,
				Rivals: stormy,
			},
			{
				Name: "waiting", Title: "100,000 events, waiting", Unit: Waiting, More: []string{GoroutinesWaiting}, Count: 1,
				Rivals: stormy,
			},
		},
	},
	{
		Name:  "Neighbour",
		Title: "A fast subscriber beside a slow one",
		Text:  "A fast subscriber gets 10,000 events per second. The latency of an event is from its due time, or from the time its publisher wakes if that is later, to the call of its handler. It contains the time that a blocked publish adds. The first table shows the fast subscriber alone, the second beside a subscriber that sleeps 50 ms for each of its 20 events per second.",
		Cases: []Case{
			{Name: "alone", Title: "alone", Rivals: neighbours, Unit: P99, More: []string{P50}, Count: 2000},
			{Name: "beside", Title: "beside a slow one", Rivals: neighbours, Unit: P99, More: []string{P50}, Count: 2000},
		},
	},
	{
		Name:  "NonMatching",
		Title: "Subscriptions that do not match",
		Text:  "Publishing until handled, with one subscription that matches, among others that do not match.",
		Cases: nonMatching(),
	},
	{
		Name:  "Backlog",
		Title: "Queued events",
		Text:  "Events are published while the only worker is busy, and handled afterwards. The figure is the cost of an event from its publication to the end of its handler.",
		Cases: backlog(),
	},
	{
		Name:  "Startup",
		Title: "Start-up",
		Text:  "The time to create and start a bus with 10,000 subscriptions to as many types, and its memory afterwards. Tailscale's bus needs a Go type for each kind of event, so its row has 10,000 clients that subscribe to one type. kelindar/event has no row: it has a ticker of 500 µs for each type, and 10,000 tickers use all processor time.",
		Cases: []Case{{
			Name: "subscriptions=10000", Title: "10,000 subscriptions", Rivals: starters, Unit: Time,
			More: []string{Retained, Goroutines}, Count: 1,
		}},
	},
	{
		Name:  "Idle",
		Title: "An idle bus",
		Text:  "The memory of a bus with one subscription after it has handled 1,000 events.",
		Cases: []Case{{
			Name: "subscriptions=1", Title: "1 subscription", Rivals: append(starters[:len(starters):len(starters)], "kelindar"), Unit: Retained,
			More: []string{Goroutines}, Count: 1,
		}},
	},
}

func publishers() []Case {
	var cases []Case
	for _, n := range Publishers {
		c := Case{Name: fmt.Sprint("publishers=", n), Title: count(n, "publisher"), Rivals: []string{Us, "channel"}, Often: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}}
		switch n {
		case 2:
			c.Often = c.Rivals
		case 64:
			c.Rivals = asynchronous
		}
		cases = append(cases, c)
	}
	return cases
}

func routing() []Case {
	var cases []Case
	for _, types := range []string{"repeated", "unique"} {
		for _, globs := range []int{1_000, 10_000} {
			c := Case{
				Name: RoutingCase(globs, types), Title: fmt.Sprintf("%s, %s types", count(globs, "glob"), types),
				Rivals: matchers, Unit: Time, More: []string{Allocs, Growth},
			}
			switch {
			case types == "unique":
				c.Often = []string{Us}
			case globs == 10_000:
				c.Often = []string{Us, "sublist-cache"}
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// RoutingCase returns the name of a case of the workload Routing.
func RoutingCase(globs int, types string) string {
	return fmt.Sprintf("globs=%d,types=%s", globs, types)
}

func nonMatching() []Case {
	cases := numbered("subscriptions", "subscription", NonMatching, Us)
	for i := range cases[:len(cases)-1] { // the last takes long to make
		cases[i].Often = []string{Us}
	}
	return cases
}

func backlog() []Case {
	cases := numbered("queued", "event", Queued, Us, "channel")
	for i, n := range Queued {
		cases[i].Count = max(n, 300_000) // a small backlog runs several times, as long as other runs
	}
	return cases
}

func numbered(name, noun string, numbers []int, rivals ...string) []Case {
	var cases []Case
	for _, n := range numbers {
		cases = append(cases, Case{
			Name: fmt.Sprintf("%s=%d", name, n), Title: count(n, noun), Rivals: rivals,
			Unit: Time, More: []string{Allocs},
		})
	}
	return cases
}

// count returns a number with its noun, such as "10,000 globs".
func count(n int, noun string) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if n != 1 {
		noun += "s"
	}
	return s + " " + noun
}

// Run is one benchmark: a rival in a case of a workload.
type Run struct{ Workload, Case, Rival string }

// String returns the benchmark's name without the prefix Benchmark.
func (r Run) String() string { return strings.Join([]string{r.Workload, r.Case, r.Rival}, "/") }

// WorkloadNamed returns the workload with a name.
func WorkloadNamed(name string) (Workload, bool) {
	for _, w := range Workloads {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}
