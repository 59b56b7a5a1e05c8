// Package plan says what is measured: the workloads, their cases, and who takes
// part in each. The benchmarks and the report both follow it.
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
	Cases       []Case
}

// Case is a variant of a workload.
type Case struct {
	// Name is the middle part of the benchmark's name, and Title what readers see.
	Name, Title string
	// Rivals are those who take part, by name.
	Rivals []string
	// Count is how much is done in a run; 0 for what takes a certain time.
	Count int
	// Often are those of the rivals whose figures come close to a bound: these are measured more often.
	Often []string
	// Unit is what the chart shows. Smaller is better.
	Unit string
	// More are further columns of the table.
	More []string
}

// Units, as the benchmark format has them after its tidying.
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
)

// Few is the end of the name of a case in which those who are faster with few events on
// their way get no more.
const Few = ",few"

// Publishers are how many publish at a time, in the cases of their workload.
var Publishers = []int{1, 2, 4, 8, 16, 32, 64}

// NonMatching are how many subscriptions there are that do not match.
var NonMatching = []int{1, 100, 10_000, 100_000}

// Queued are how many events wait.
var Queued = []int{1_000, 10_000, 100_000, 1_000_000}

// StormEvents is how many events fail once, and StormBackoff what they wait. It is StormPatience
// where it is measured what they hold: mostly so long that none is back before the last has failed.
const (
	StormEvents   = 100_000
	StormBackoff  = time.Second
	StormPatience = 20 * time.Second
)

// StartupSubscriptions is how many there are at start-up.
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
var Workloads = slices.Concat(generalWorkloads, concurrencyWorkloads)

// generalWorkloads are the workloads that need no limit of a subscription.
var generalWorkloads = []Workload{
	{
		Name:  "Publish",
		Title: "Publish, not waited for",
		Text:  "An event published until all its subscribers have handled it, by one publisher that does not wait for each. Who has no bound of his own gets at most 4,096 events on their way. Fewer may suit those better that have a goroutine for each: in the last table these get 4 or 16, which their users would have to see to themselves. Which of them that makes faster, and by how much, changes with the machine.",
		Cases: []Case{
			{Name: "subscribers=1", Title: "1 subscriber", Rivals: asynchronous, Often: []string{Us, "channel"}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=10", Title: "10 subscribers", Rivals: asynchronous, Often: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=1" + Few, Title: "1 subscriber, few events on their way", Rivals: few, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Wait",
		Title: "Publish and wait for the outcome",
		Text:  "The publisher goes on when all subscribers have handled the event. This bus also tells what came of it: handled, dead-lettered, held.",
		Cases: []Case{
			{Name: "subscribers=1", Title: "1 subscriber", Rivals: waited, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "subscribers=10", Title: "10 subscribers", Rivals: waited, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Publishers",
		Title: "Many publishers",
		Text:  "One subscriber, several publishers at a time.",
		Cases: publishers(),
	},
	{
		Name:  "Routing",
		Title: "Routing",
		Text:  "Finding the subscriptions of a type: 1,000 types again and again, or types of which each is new. The globs are those that all can do: `svc7.*`, `svc7.order.*`, `svc7.*.shipped`, `svc7.**`. It is finding them alone: what this bus makes of the answer for a type that is new, a copy of the text among it, is in what a publish costs (see Types that are new). The loop collects what it finds in a list that it has already.",
		Cases: routing(),
	},
	{
		Name:  "Types",
		Title: "Types that are new",
		Text:  "Publishing until handled, on a bus with 10,000 globs, each of which matches other types: 1,000 types again and again, or types of which each is new. This is all that a publish costs, where the tables above are about finding the subscriptions alone.",
		Cases: []Case{
			{Name: "types=repeated", Title: "repeated types", Rivals: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
			{Name: "types=unique", Title: "unique types", Rivals: []string{Us}, Unit: Time, More: []string{Allocs, Bytes}},
		},
	},
	{
		Name:  "Protected",
		Title: "A protected call",
		Text:  "A handler that succeeds, with timeout, retry and circuit breaker around it. The row of this bus is a whole event: published, routed, queued, handled under protection, counted. What counts is the time that passes: a publisher and a worker of it overlap on two processors, while the other rows are calls, one after the other, on one.",
		Cases: []Case{{
			Name: "success", Title: "success", Unit: Time, More: []string{Allocs, Bytes},
			Rivals: []string{Us, "call", "withtimeout", "failsafe", "gobreaker", "watermill-middleware"},
		}},
	},
	{
		Name:  "Storm",
		Title: "A retry storm",
		Text:  "100,000 events that fail once and wait for their retry, without jitter. With a backoff of 1 s, as multiples of it: how long the slowest event took from its failure to its success, and all of them from the first publication to the last success. And with one of 20 s, or twice that where a machine is too slow for it, what one holds while all of them wait (heap and stacks), and how many goroutines. The circuits count, with thresholds that this does not reach.",
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
		Text:  "10,000 events a second for one that is fast, from when an event is due (or its publisher awake) to the call of its handler, so what publish holds up is late; alone, and beside one that sleeps 50 ms for each of its 20 events a second.",
		Cases: []Case{
			{Name: "alone", Title: "alone", Rivals: neighbours, Unit: P99, More: []string{P50}, Count: 2000},
			{Name: "beside", Title: "beside a slow one", Rivals: neighbours, Unit: P99, More: []string{P50}, Count: 2000},
		},
	},
	{
		Name:  "NonMatching",
		Title: "Subscriptions that do not match",
		Text:  "Publishing until handled, one subscription that matches, and others that do not.",
		Cases: nonMatching(),
	},
	{
		Name:  "Backlog",
		Title: "Events that wait",
		Text:  "So many events published while the only worker is busy, then handled: what one costs from publication to the end of its handler.",
		Cases: backlog(),
	},
	{
		Name:  "Startup",
		Title: "Start-up",
		Text:  "Making a bus with 10,000 subscriptions, of as many types, and starting it; and what it holds then. Tailscale's bus has a Go type for each kind of event, so there it is 10,000 clients that subscribe to one. kelindar/event has a ticker of 500 µs for each type: 10,000 of them leave no time for anything else, so it has no row.",
		Cases: []Case{{
			Name: "subscriptions=10000", Title: "10,000 subscriptions", Rivals: starters, Unit: Time,
			More: []string{Retained, Goroutines}, Count: 1,
		}},
	},
	{
		Name:  "Idle",
		Title: "An idle bus",
		Text:  "What a bus with one subscription holds after it has handled 1,000 events.",
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

// RoutingCase is the name of a case of the workload Routing.
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
		cases[i].Count = max(n, 300_000) // as long as other runs take, where fewer wait
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

// count is a number with its noun: "10,000 globs".
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

// Run is one benchmark: a rival at a case of a workload.
type Run struct{ Workload, Case, Rival string }

// String is the benchmark's name, without Benchmark.
func (r Run) String() string { return strings.Join([]string{r.Workload, r.Case, r.Rival}, "/") }

// WorkloadNamed is the workload with a name.
func WorkloadNamed(name string) (Workload, bool) {
	for _, w := range Workloads {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}
