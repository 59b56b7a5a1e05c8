package eventbus

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/histogram"
)

// Metrics is a snapshot of the bus's counters.
type Metrics struct {
	// Types has counters for the first 1,000 event types. The others share OtherTypes.
	Types map[string]TypeMetrics `json:"types"`
	// Subscriptions has the current subscriptions, in the order in which they were made.
	Subscriptions []SubscriptionMetrics `json:"subscriptions"`

	// Retries is the number of scheduled retries.
	Retries int64 `json:"retries"`
	// QueueDepth is the number of events that wait for a worker. QueueOverflows is the number of
	// events that handlers have published beyond the capacity.
	QueueDepth     int   `json:"queue_depth"`
	QueueOverflows int64 `json:"queue_overflows"`
	// WaitingRetries is the number of dispatches that wait for their next attempt.
	WaitingRetries int `json:"waiting_retries"`
	// Scheduled is the number of events that are not due yet. Held and Throttled are the numbers of
	// deliveries that are parked for these reasons.
	Scheduled int `json:"scheduled"`
	Held      int `json:"held"`
	Throttled int `json:"throttled"`
	Snoozed   int `json:"snoozed"` // parked deliveries that their handlers have postponed
	// RunningDispatches is the number of dispatches on a worker. AbandonedHandlers is the number of
	// handlers that exceeded their timeouts and still run.
	RunningDispatches int `json:"running_dispatches"`
	AbandonedHandlers int `json:"abandoned_handlers"`
	// Workers is the number of goroutines that run handlers.
	Workers int `json:"workers"`
	// DeadLetters is the number of letters. LettersEvicted is the number of letters that the full
	// queue has evicted.
	DeadLetters    int   `json:"dead_letters"`
	LettersEvicted int64 `json:"letters_evicted"`
	// Store counts the records and letters of the store, those of other processes included. It is nil
	// for a bus in memory. While the store does not answer, and after Shutdown, it is the last known
	// value.
	Store *driver.Stats `json:"store,omitempty"`
	// StoreAt is when Store was read, by the bus's clock. It is zero if it never was.
	StoreAt time.Time `json:"store_at,omitzero"`
	// StoreError is why Store is not current. It is empty if Metrics has read Store, and for a bus in
	// memory. Metrics waits up to 1 s for the store.
	StoreError string `json:"store_error,omitempty"`
	// StoreSilentSince is since when the store has confirmed nothing of what was submitted, if that is
	// longer than its Patience: publications are refused until it confirms something. Otherwise it is zero.
	StoreSilentSince time.Time `json:"store_silent_since,omitzero"`
	// Repetitions counts the events that other processes, or transactions, have published and that were dropped when they
	// were taken in, because their ids were known.
	Repetitions int64 `json:"repetitions,omitempty"`
	// Orphaned counts the deliveries of Store.Parked whose subscription does not exist on this bus, by
	// its name. It is as current as Store, and counts up to 100,000 in all.
	Orphaned map[string]int64 `json:"orphaned,omitempty"`
	// Behind is set while the bus has yet to claim records of the store: those of an earlier process,
	// of another process, of a new subscription, and those for which memory had no room.
	Behind bool `json:"behind"`

	Ledger Ledger `json:"ledger"`
}

// OtherTypes is the name in Metrics for the event types beyond the first 1,000. It is not a valid
// event type.
const OtherTypes = "*"

// maxTypes bounds the event types with counters of their own.
const maxTypes = 1000

// TypeMetrics are the counters of an event type, since the bus was made.
type TypeMetrics struct {
	Events  int64 `json:"events"`  // published
	Retries int64 `json:"retries"` // retries scheduled
	Retried int64 `json:"retried"` // dispatches with a retry
	// SucceededAfterRetry is the number of retried dispatches that were handled in the end.
	SucceededAfterRetry int64 `json:"succeeded_after_retry"`
	DeadLettered        int64 `json:"dead_lettered"`
}

// SuccessAfterRetryRate returns the share of retried dispatches that were handled in the end, from
// 0 to 1. It is 0 without retries.
func (m TypeMetrics) SuccessAfterRetryRate() float64 { return rate(m.SucceededAfterRetry, m.Retried) }

// DeadLetterRate returns the number of dead letters divided by the number of events. It is 0
// without events. It exceeds 1 if replays fail again, or if events fail at several subscriptions.
func (m TypeMetrics) DeadLetterRate() float64 { return rate(m.DeadLettered, m.Events) }

func rate(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// SubscriptionMetrics are the counters of a subscription, since it was made.
type SubscriptionMetrics struct {
	Subscription string       `json:"subscription"` // its name, or its pattern and number
	Pattern      string       `json:"pattern"`
	DeadLetters  bool         `json:"dead_letters,omitempty"` // it is of OnDeadLetter, and Pattern of the types of dead events
	Successes    int64        `json:"successes"`
	Failures     int64        `json:"failures"` // of these:
	Timeouts     int64        `json:"timeouts"`
	Panics       int64        `json:"panics"`    // including runtime.Goexit
	LateEnds     int64        `json:"late_ends"` // abandoned handlers that returned
	Skipped      int64        `json:"skipped"`   // deliveries not admitted
	Slow         int64        `json:"slow"`      // calls that exceeded a third of their timeouts
	Circuit      CircuitState `json:"circuit"`
	CircuitOpens int64        `json:"circuit_opens"` // times that the circuit opened
	Held         int          `json:"held"`          // parked deliveries for which no caller waits: see ShutBy
	Throttled    int          `json:"throttled"`     // parked deliveries that wait for a limit, or as Throttle says
	Snoozed      int          `json:"snoozed"`       // parked deliveries that the handler has postponed
	Running      int          `json:"running"`       // handler calls, except those abandoned or waiting in PublishAndWait
	// ShutBy is why deliveries that come now may not enter: they are held, or ended as WhenOpen says. Behind an
	// open or half-open circuit one of them may probe. It is empty if they may enter or wait for a limit.
	ShutBy ParkReason `json:"shut_by,omitempty"`
	// Paused is set while Pause or HoldUntil applies. PausedUntil is when HoldUntil ends. It is zero
	// for Pause.
	Paused      bool      `json:"paused"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
	// ThrottledUntil is when the next call may begin, after a Throttle. It is zero if one may begin now.
	ThrottledUntil time.Time `json:"throttled_until,omitzero"`
	Abandoned      int       `json:"abandoned"` // calls that were abandoned after the last Resume, and run
	Hung           bool      `json:"hung"`      // they hold the deliveries: see MaxAbandoned
	// Detached is set between Detach and the Subscribe that takes the subscription over.
	Detached bool `json:"detached"`
	// Directive is the directive that is in force, or the last one, with who and why. With a store, a
	// Resume or Reset of another process leaves none. It is nil if there was none.
	Directive *Directive `json:"directive,omitempty"`
	Latency   Latency    `json:"latency"`
	// LastError is the text of the handler's last failure, and LastFailed its time, in UTC. They are
	// zero without a failure in this process.
	LastError  string    `json:"last_error,omitempty"`
	LastFailed time.Time `json:"last_failed,omitzero"`

	// Destinations is nil without PerDestination. With it, the numbers above are sums over all destinations, Circuit is
	// CircuitDisabled, and Paused, Hung, Abandoned and Directive are those of the whole subscription.
	Destinations *DestinationsMetrics `json:"destinations,omitempty"`

	Options SubscriptionOptions `json:"options"`
}

// DestinationsMetrics are the destinations of a subscription with PerDestination.
type DestinationsMetrics struct {
	Known int `json:"known"` // destinations that the bus has not forgotten: see MaxDestinations
	// Unwell is the number of destinations that are not well: deliveries are parked there, the circuit is open or half-open, or the
	// destination is paused, hung or throttled.
	Unwell int `json:"unwell"`
	// Shared is the number of attempts that went to CommonDestination because MaxDestinations others were in use.
	Shared int64 `json:"shared"`
	// List has the destinations that are not well, at most 100: those with the most parked deliveries first.
	List []DestinationMetrics `json:"list"`
}

// maxListed is the number of destinations in DestinationsMetrics.List.
const maxListed = 100

// DestinationMetrics is the state of a destination. The fields mean what they mean in SubscriptionMetrics, for this destination.
type DestinationMetrics struct {
	Destination    string       `json:"destination"`
	Successes      int64        `json:"successes"` // the counters start when the bus begins to know the destination
	Failures       int64        `json:"failures"`
	Circuit        CircuitState `json:"circuit"`
	CircuitOpens   int64        `json:"circuit_opens"`
	Held           int          `json:"held"`
	Throttled      int          `json:"throttled"`
	Snoozed        int          `json:"snoozed"`
	Running        int          `json:"running"`
	ShutBy         ParkReason   `json:"shut_by,omitempty"`
	Paused         bool         `json:"paused"`
	PausedUntil    time.Time    `json:"paused_until,omitzero"`
	ThrottledUntil time.Time    `json:"throttled_until,omitzero"`
	Abandoned      int          `json:"abandoned"`
	Hung           bool         `json:"hung"`
	Directive      *Directive   `json:"directive,omitempty"`
}

// Parked returns the number of parked deliveries: Held, Throttled and Snoozed.
func (m SubscriptionMetrics) Parked() int { return m.Held + m.Throttled + m.Snoozed }

// SubscriptionOptions are the options of a subscription that bound its calls and its line.
type SubscriptionOptions struct {
	Timeout      time.Duration `json:"timeout"`
	Concurrency  int           `json:"concurrency"` // Unlimited without the option
	LineCapacity int           `json:"line_capacity"`
	RateLimit    *RateSettings `json:"rate_limit,omitempty"`
	MaxThrottle  time.Duration `json:"max_throttle"`
	WhenOpen     WhenOpen      `json:"when_open"`
	WhenFull     WhenFull      `json:"when_full"`
	// PerDestination is set if the other options apply to each destination.
	PerDestination bool `json:"per_destination,omitempty"`
	Once           bool `json:"once,omitempty"`
	DropExpired    bool `json:"drop_expired,omitempty"`
}

// Latency summarizes the durations of a handler's calls. The bus times every failure, and one
// success in 64 while it is busy. The quantiles weigh a timed success by the number of successes
// that it stands for. A quantile is at most a quarter too large.
type Latency struct {
	// Samples is the number of calls that were timed: the failures, and the sampled successes, each
	// counted once.
	Samples int64         `json:"samples"`
	P50     time.Duration `json:"p50"`
	P90     time.Duration `json:"p90"`
	P99     time.Duration `json:"p99"`
	Max     time.Duration `json:"max"`

	weights *histogram.Weights
}

// Since returns the quantiles of the calls after an earlier snapshot of the same subscription, as the window of a chart needs
// them: Samples counts these calls, and Max is that of all calls. If earlier is of another subscription, it returns l. The
// snapshots are those of Metrics: from JSON they have no classes, and Since returns l.
func (l Latency) Since(earlier Latency) Latency {
	p50, p90, p99, ok := l.weights.Since(earlier.weights, l.Max)
	if !ok || l.Samples < earlier.Samples || l.weights == nil {
		return l
	}
	return Latency{Samples: l.Samples - earlier.Samples, P50: p50, P90: p90, P99: p99, Max: l.Max, weights: l.weights}
}

// Buckets yields the counts behind the quantiles, the shortest durations first: calls with durations below a bound, which is at
// most a quarter above them, and not below the bound before. The counts of a subscription never fall. Together they are its
// Successes and Failures, give or take the successes of which the next sample has yet to count. A Latency from JSON, or without
// calls, has none.
func (l Latency) Buckets() iter.Seq2[time.Duration, uint64] { return l.weights.All() }

// latencyOf returns what a histogram has counted.
func latencyOf(h *histogram.Histogram) Latency {
	s, weights := h.Snapshot()
	return Latency{Samples: s.Samples, P50: s.P50, P90: s.P90, P99: s.P99, Max: s.Max, weights: weights}
}

// Ledger counts the dispatches of this process: those opened equal those settled plus those that
// remain. Each number is counted where its transition happens. None is derived from others.
type Ledger struct {
	// Opened.
	Accepted int64 `json:"accepted"` // by Publish, PublishAndWait and PublishBatch
	Copies   int64 `json:"copies"`   // beyond the first, of events on a bus with isolation
	Splits   int64 `json:"splits"`   // deliveries parked, dropped or dead-lettered at a shut door while others proceeded
	Replays  int64 `json:"replays"`
	Claimed  int64 `json:"claimed"` // from the store, of those that this process neither accepted nor left there, also before a restart in place

	// Settled.
	Handled      int64 `json:"handled"`
	Unrouted     int64 `json:"unrouted"`
	DeadLettered int64 `json:"dead_lettered"`
	Dropped      int64 `json:"dropped"`
	Cancelled    int64 `json:"cancelled"`

	// Not settled.
	Scheduled int64 `json:"scheduled"` // not due yet
	Queued    int64 `json:"queued"`    // waiting for a worker, or for an earlier dispatch of their key
	Running   int64 `json:"running"`
	Waiting   int64 `json:"waiting"`   // waiting for their next attempt
	Held      int64 `json:"held"`      // parked, because a subscription is shut: see ShutBy
	Throttled int64 `json:"throttled"` // parked, because a limit is reached
	Snoozed   int64 `json:"snoozed"`   // parked, because their handlers have postponed them
	Recording int64 `json:"recording"` // the store is recording a change
	Stored    int64 `json:"stored"`    // left to the store, and not in memory; 0 once the store has none
	// HandedOver are those that were left to the store when the bus lost its lease, or handed it over.
	HandedOver int64 `json:"handed_over"`

	Closed bool `json:"closed"` // Shutdown has returned
}

// Balanced reports whether the numbers add up. At rest they always do. Under load they may be off
// by the transitions in progress. After Shutdown has returned, no dispatch may remain either.
func (l Ledger) Balanced() bool {
	left := l.Scheduled + l.Queued + l.Running + l.Waiting + l.Held + l.Throttled + l.Snoozed + l.Recording
	return l.Accepted+l.Copies+l.Splits+l.Replays+l.Claimed ==
		l.Handled+l.Unrouted+l.DeadLettered+l.Dropped+l.Cancelled+left+l.Stored+l.HandedOver &&
		(!l.Closed || left == 0)
}

// Metrics returns a snapshot without blocking the dispatcher. It is zero for a bus that New did not
// make.
func (b *Bus) Metrics() Metrics {
	if !b.usable() {
		return Metrics{}
	}
	stats := b.machine.pool.Stats()
	m := Metrics{
		Types:             make(map[string]TypeMetrics),
		Subscriptions:     []SubscriptionMetrics{},
		QueueDepth:        stats.Queued,
		QueueOverflows:    stats.Over,
		RunningDispatches: stats.Running,
		AbandonedHandlers: b.machine.abandoned.Len(),
		Workers:           stats.Workers,
		Ledger:            b.ledger.snapshot(stats),
	}
	m.WaitingRetries = int(m.Ledger.Waiting)
	m.Scheduled, m.Held, m.Throttled, m.Snoozed = int(m.Ledger.Scheduled), int(m.Ledger.Held), int(m.Ledger.Throttled), int(m.Ledger.Snoozed)
	b.journal.measure(&m)
	for name, c := range b.registry.types.All() {
		m.Types[name] = c.snapshot()
	}
	if others := b.registry.types.Others().snapshot(); others != (TypeMetrics{}) {
		m.Types[OtherTypes] = others
	}
	for _, t := range m.Types {
		m.Retries += t.Retries
	}
	for _, s := range b.registry.list() {
		m.Subscriptions = append(m.Subscriptions, s.metrics())
	}
	return m
}

func (s *Subscription) metrics() SubscriptionMetrics {
	own, c := s.door.metrics(), s.counters
	m := SubscriptionMetrics{
		Subscription:   s.id,
		Pattern:        s.Pattern(),
		DeadLetters:    s.letters,
		Successes:      int64(s.door.circuit.Successes()),
		Failures:       c.failures.Load(),
		Timeouts:       c.timeouts.Load(),
		Panics:         c.panics.Load(),
		LateEnds:       c.lateEnds.Load(),
		Slow:           c.slow.Load(),
		Skipped:        c.skipped.Load(),
		Circuit:        own.Circuit,
		CircuitOpens:   own.CircuitOpens,
		Held:           own.Held,
		Throttled:      own.Throttled,
		Snoozed:        own.Snoozed,
		Running:        own.Running,
		ShutBy:         own.ShutBy,
		Paused:         own.Paused,
		PausedUntil:    own.PausedUntil,
		ThrottledUntil: own.ThrottledUntil,
		Abandoned:      own.Abandoned,
		Hung:           own.Hung,
		Detached:       s.Detached(),
		Directive:      own.Directive,
		Latency:        latencyOf(&c.latency),
		Options: SubscriptionOptions{
			Timeout:        s.timeout,
			Concurrency:    Unlimited,
			LineCapacity:   s.door.terms().capacity,
			RateLimit:      s.rateLimit,
			MaxThrottle:    s.throttle,
			WhenOpen:       s.door.terms().whenOpen,
			WhenFull:       s.door.terms().whenFull,
			PerDestination: s.destinations != nil,
			Once:           s.door.terms().single,
			DropExpired:    s.door.terms().dropLate,
		},
	}
	if s.concurrency != math.MaxInt32 {
		m.Options.Concurrency = int(s.concurrency)
	}
	if last := c.last.Load(); last != nil {
		m.LastError, m.LastFailed = last.text, s.bus.time.At(last.at)
	}
	if s.destinations != nil {
		s.destinations.measure(&m)
	}
	return m
}

// metrics returns those of a destination, or of a subscription's own door, without a name.
func (o *door) metrics() DestinationMetrics {
	b := o.of().bus
	state, opens := o.circuitState()
	line := o.parked()
	m := DestinationMetrics{
		Destination: o.name, Successes: int64(o.circuit.Successes()), Failures: o.failures.Load(),
		Circuit: state, CircuitOpens: int64(opens),
		Held: line[held], Throttled: line[throttled], Snoozed: line[snoozed],
		Running: int(o.running.Load()), ShutBy: o.shutBy(b),
	}
	m.Paused, m.PausedUntil = o.paused(b)
	m.Abandoned, m.Hung = o.hanging.Calls()
	if at := o.slowUntil(); at > b.time.Nanos() {
		m.ThrottledUntil = b.time.At(at)
	}
	if directive := o.lastDirective.Load(); directive != nil {
		given := *directive
		m.Directive = &given
	}
	return m
}

// Calls returns the number of calls that have ended: Successes and Failures.
func (m DestinationMetrics) Calls() int64 { return m.Successes + m.Failures }

// FailureRate returns the share of calls that failed, from 0 to 1. It is 0 without calls.
func (m DestinationMetrics) FailureRate() float64 { return rate(m.Failures, m.Calls()) }

// measure adds what is parked at the destinations, and those that are not well.
func (ds *destinations) measure(m *SubscriptionMetrics) {
	all := &DestinationsMetrics{Shared: ds.shared.Load(), List: []DestinationMetrics{}}
	m.CircuitOpens = ds.opens.Load()
	for _, o := range ds.all() {
		d := o.metrics()
		all.Known++
		m.Held, m.Throttled, m.Snoozed = m.Held+d.Held, m.Throttled+d.Throttled, m.Snoozed+d.Snoozed
		if !d.isWell() {
			all.List = append(all.List, d)
		}
	}
	all.Unwell = len(all.List)
	slices.SortFunc(all.List, func(x, y DestinationMetrics) int {
		return cmp.Or(cmp.Compare(y.parked(), x.parked()), cmp.Compare(x.Destination, y.Destination))
	})
	all.List = all.List[:min(len(all.List), maxListed)]
	m.Destinations = all
}

func (m *DestinationMetrics) parked() int { return m.Held + m.Throttled + m.Snoozed }

// isWell reports whether nothing is parked at the destination, and nothing shuts it.
func (m *DestinationMetrics) isWell() bool {
	return m.parked() == 0 && (m.Circuit == CircuitClosed || m.Circuit == CircuitDisabled) && !m.Paused && !m.Hung && m.ThrottledUntil.IsZero()
}

// typeCounters are the counters of an event type.
type typeCounters struct {
	events atomic.Int64
	_      [56]byte // publishers write events, workers the others

	retried atomic.Int64 // dispatches, at their first retries
	again   atomic.Int64 // further retries of these

	succeededAfterRetry, deadLettered atomic.Int64
}

func (c *typeCounters) snapshot() TypeMetrics {
	retried := c.retried.Load()
	return TypeMetrics{
		Events:              c.events.Load(),
		Retries:             retried + c.again.Load(),
		Retried:             retried,
		SucceededAfterRetry: c.succeededAfterRetry.Load(),
		DeadLettered:        c.deadLettered.Load(),
	}
}

// subscriptionCounters are the counters of a subscription. The circuit counts the successes.
type subscriptionCounters struct {
	failures, timeouts, panics, lateEnds, slow, skipped atomic.Int64

	latency histogram.Histogram
	last    atomic.Pointer[lastFailure] // nil without a failure
}

type lastFailure struct {
	text string
	at   int64
}

func (c *subscriptionCounters) failed(err error, text string, at int64, took time.Duration) {
	c.failures.Add(1)
	c.last.Store(&lastFailure{text, at})
	c.latency.Observe(took, 1)
	// Compare without unwrapping: a handler may wrap such an error and pass it on.
	switch err.(type) { //nolint:errorlint // see above
	case *TimeoutError:
		c.timeouts.Add(1)
	case *PanicError:
		c.panics.Add(1)
	default:
		if err == ErrHandlerExited { //nolint:errorlint // see above
			c.panics.Add(1)
		}
	}
}

// latencySample is the number of successes that one timed success stands for.
const latencySample = 64
