package plan

// HangingPublishers is the number of goroutines that publish beside a subscription that hangs.
const HangingPublishers = 64

// LimitPairs is the number of pairs whose median ratio is the cost of a concurrency limit.
const LimitPairs = 20

// concurrencyWorkloads are the workloads that need a concurrency limit of a subscription.
var concurrencyWorkloads = []Workload{
	{
		Name:  "Hanging",
		Title: "A subscription that hangs",
		Text:  "64 publishers, and a subscription that handles their events: the time per event, and the latency from the call of `Publish` to the call of the handler. The bus runs at most 64 handlers at once and its queue is full all the time. In the second case another subscription of the bus hangs in every call, after 1,000 events of its own. Its default concurrency limit keeps workers free for the other events.",
		Cases: []Case{
			{Name: "alone", Title: "no subscription hangs", Rivals: []string{Us}, Unit: P99, More: []string{P50, Time}, Count: 4_000_000},
			{Name: "beside", Title: "one subscription hangs", Rivals: []string{Us}, Unit: P99, More: []string{P50, Time}, Count: 4_000_000},
		},
	},
	{
		Name:  "Limit",
		Title: "A concurrency limit",
		Text:  "Publishing until handled, with a concurrency limit that no event reaches, as a multiple of the same with `Concurrency(Unlimited)`. Both buses work in turns: the figure is the median of 20 pairs of 50,000 events.",
		Cases: []Case{
			{Name: "explicit", Title: "an explicit limit", Rivals: []string{Us}, Unit: Limited, Count: LimitPairs},
			{Name: "default", Title: "the default limit", Rivals: []string{Us}, Unit: Limited, Count: LimitPairs},
		},
	},
}
