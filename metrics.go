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
	// Store counts the records and letters of the store, also of other processes. It is nil for a bus in memory. While
	// the store does not answer, and after Shutdown, it is the last known value.
	Store *driver.Stats `json:"store,omitempty"`
	// StoreAt is when Store was read, by the bus's clock. It is zero if it never was.
	StoreAt time.Time `json:"store_at,omitzero"`
	// StoreError is why Store is not current. It is empty if Metrics has read Store, and for a bus in
	// memory. Metrics waits up to 1 s for the store.
	StoreError string `json:"store_error,omitempty"`
	// StoreSilentSince is when the store stopped confirming submitted changes, if that is longer ago than its Patience.
	// Publications are rejected until it confirms a change. Otherwise it is zero.
	StoreSilentSince time.Time `json:"store_silent_since,omitzero"`
	// Repetitions counts incoming events that the bus dropped because it knew their ids or idempotency keys.
	Repetitions int64 `json:"repetitions,omitempty"`
	// Orphaned counts the parked deliveries of the store whose subscription does not exist on this bus, by its name. It
	// was read with Store, and counts up to 100,000 in all.
	Orphaned map[string]int64 `json:"orphaned,omitempty"`
	// Behind is set while the store has records that the bus has yet to claim: of another process, of a new
	// subscription, or for want of room in memory.
	Behind bool `json:"behind"`

	Ledger Ledger `json:"ledger"` // the counters of dispatches in and out
}

// OtherTypes is the name in Metrics for the event types beyond the first 1,000. It is not a valid
// event type.
const OtherTypes = "*"

// maxTypes bounds the event types with counters of their own.
const maxTypes = 1000

// TypeMetrics are the counters of an event type, since the bus was made.
type TypeMetrics struct {
	Events  int64 `json:"events"`  // events published
	Retries int64 `json:"retries"` // retries scheduled
	Retried int64 `json:"retried"` // dispatches with at least one retry
	// SucceededAfterRetry is the number of retried dispatches that were handled in the end.
	SucceededAfterRetry int64 `json:"succeeded_after_retry"`
	DeadLettered        int64 `json:"dead_lettered"` // dispatches that became dead letters
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
	Subscription string       `json:"subscription"`           // the subscription's name, or its pattern and number
	Pattern      string       `json:"pattern"`                // the pattern of event types
	DeadLetters  bool         `json:"dead_letters,omitempty"` // a handler of OnDeadLetter; Pattern then selects the types of dead events
	Successes    int64        `json:"successes"`              // calls that succeeded
	Failures     int64        `json:"failures"`               // calls that failed, including Timeouts and Panics
	Timeouts     int64        `json:"timeouts"`               // calls that exceeded the timeout
	Panics       int64        `json:"panics"`                 // calls that panicked, or ended with runtime.Goexit
	LateEnds     int64        `json:"late_ends"`              // abandoned calls that returned later
	Skipped      int64        `json:"skipped"`                // deliveries that were not admitted
	Slow         int64        `json:"slow"`                   // calls that exceeded a third of the timeout
	Circuit      CircuitState `json:"circuit"`                // the state of the circuit
	CircuitOpens int64        `json:"circuit_opens"`          // how often the circuit opened
	Held         int          `json:"held"`                   // parked deliveries that the subscription does not admit: see ShutBy
	Throttled    int          `json:"throttled"`              // parked deliveries that wait for a limit, or for the end of a Throttle
	Snoozed      int          `json:"snoozed"`                // parked deliveries that the handler postponed
	Running      int          `json:"running"`                // calls in progress, except those abandoned or waiting in PublishAndWait
	// ShutBy is why the subscription does not admit new deliveries: they are held, or treated by WhenOpen. Behind an
	// open or half-open circuit, one may probe. It is empty if they are admitted, or wait for a limit.
	ShutBy ParkReason `json:"shut_by,omitempty"`
	// Paused is set while Pause or HoldUntil applies. PausedUntil is when HoldUntil ends. It is zero
	// for Pause.
	Paused      bool      `json:"paused"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
	// ThrottledUntil is when the next call may begin after a Throttle. It is zero without one.
	ThrottledUntil time.Time `json:"throttled_until,omitzero"`
	Abandoned      int       `json:"abandoned"` // abandoned calls in progress, without those before the last Resume
	Hung           bool      `json:"hung"`      // the abandoned calls reach MaxAbandoned; deliveries are held after a second
	// Detached is set between Detach and the Subscribe that takes the subscription over.
	Detached bool `json:"detached"`
	// Directive is the directive in force, or the last one. It is nil if there was none, and after a Resume or Reset of
	// another process on the store.
	Directive *Directive `json:"directive,omitempty"`
	Latency   Latency    `json:"latency"` // the durations of the calls
	// LastError is the text of the handler's last failure, and LastFailed its time, in UTC. They are
	// zero without a failure in this process.
	LastError  string    `json:"last_error,omitempty"`
	LastFailed time.Time `json:"last_failed,omitzero"`

	// Destinations is nil without PerDestination. With it, the numbers above are sums over all destinations, Circuit is
	// CircuitDisabled, and Paused, Hung, Abandoned and Directive concern the whole subscription.
	Destinations *DestinationsMetrics `json:"destinations,omitempty"`

	Options SubscriptionOptions `json:"options"` // the options of the subscription
}

// DestinationsMetrics are the destinations of a subscription with PerDestination.
type DestinationsMetrics struct {
	Known int `json:"known"` // destinations that the bus knows, at most MaxDestinations
	// Unwell is the number of destinations that need attention: they have parked deliveries or an open or half-open
	// circuit, or they are paused, hung or throttled.
	Unwell int `json:"unwell"`
	// Shared is the number of attempts that went to CommonDestination because MaxDestinations others were in use.
	Shared int64 `json:"shared"`
	// List has the Unwell destinations, at most 100, with the most parked deliveries first.
	List []DestinationMetrics `json:"list"`
}

// maxListed is the number of destinations in DestinationsMetrics.List.
const maxListed = 100

// DestinationMetrics is the state of one destination of a subscription.
type DestinationMetrics struct {
	Destination    string       `json:"destination"`              // the destination's name
	Successes      int64        `json:"successes"`                // calls that succeeded, since the bus knows the destination
	Failures       int64        `json:"failures"`                 // calls that failed, since the bus knows the destination
	Circuit        CircuitState `json:"circuit"`                  // the state of its circuit
	CircuitOpens   int64        `json:"circuit_opens"`            // how often its circuit opened
	Held           int          `json:"held"`                     // parked deliveries that it does not admit: see ShutBy
	Throttled      int          `json:"throttled"`                // parked deliveries that wait for a limit, or for the end of a Throttle
	Snoozed        int          `json:"snoozed"`                  // parked deliveries that the handler postponed
	Running        int          `json:"running"`                  // calls in progress
	ShutBy         ParkReason   `json:"shut_by,omitempty"`        // why new deliveries are not admitted; empty if they are
	Paused         bool         `json:"paused"`                   // Pause or HoldUntil applies
	PausedUntil    time.Time    `json:"paused_until,omitzero"`    // the end of HoldUntil; zero for Pause
	ThrottledUntil time.Time    `json:"throttled_until,omitzero"` // when the next call may begin after a Throttle; zero for now
	Abandoned      int          `json:"abandoned"`                // abandoned calls in progress
	Hung           bool         `json:"hung"`                     // the abandoned calls reach MaxAbandoned; deliveries are held after a second
	Directive      *Directive   `json:"directive,omitempty"`      // the last directive of an operator to it, or nil
}

// Parked returns the number of parked deliveries: Held, Throttled and Snoozed.
func (m SubscriptionMetrics) Parked() int { return m.Held + m.Throttled + m.Snoozed }

// SubscriptionOptions are the options of a subscription that bound its calls and its line.
type SubscriptionOptions struct {
	Timeout      time.Duration `json:"timeout"`              // of a call of the handler
	Concurrency  int           `json:"concurrency"`          // Unlimited without the option
	LineCapacity int           `json:"line_capacity"`        // of the line at the subscription
	RateLimit    *RateSettings `json:"rate_limit,omitempty"` // nil without the option
	MaxThrottle  time.Duration `json:"max_throttle"`         // the longest delay of Throttle
	WhenOpen     WhenOpen      `json:"when_open"`            // what becomes of deliveries while the circuit is open
	WhenFull     WhenFull      `json:"when_full"`            // what becomes of deliveries while the line is full
	// PerDestination is set if the other options apply to each destination.
	PerDestination bool `json:"per_destination,omitempty"`
	Once           bool `json:"once,omitempty"`         // the option Once
	DropExpired    bool `json:"drop_expired,omitempty"` // the option DropExpired
}

// Latency summarizes the durations of a handler's calls. The bus times every failure, and one success in 64 while it is
// busy. A timed success counts in the quantiles for all successes that it represents. A quantile is at most a quarter
// too large.
type Latency struct {
	// Samples is the number of timed calls: all failures, and the sampled successes, each counted once.
	Samples int64         `json:"samples"`
	P50     time.Duration `json:"p50"` // half of the calls took at most as long
	P90     time.Duration `json:"p90"` // 90 % of the calls took at most as long
	P99     time.Duration `json:"p99"` // 99 % of the calls took at most as long
	Max     time.Duration `json:"max"` // the longest call

	weights *histogram.Weights
}

// Since returns the quantiles of the calls after an earlier snapshot of the same subscription, for example for a chart.
// Samples counts these calls; Max is the maximum of all calls. Since returns l if earlier belongs to another
// subscription, or if either value was decoded from JSON.
func (l Latency) Since(earlier Latency) Latency {
	p50, p90, p99, ok := l.weights.Since(earlier.weights, l.Max)
	if !ok || l.Samples < earlier.Samples || l.weights == nil {
		return l
	}
	return Latency{Samples: l.Samples - earlier.Samples, P50: p50, P90: p90, P99: p99, Max: l.Max, weights: l.weights}
}

// Buckets yields an upper bound and the number of calls below it, but not below the bound before, in ascending order. A
// bound is at most a quarter above the durations. The counts of a subscription never fall. Their sum is about Successes
// plus Failures: the next sample counts recent successes. A Latency from JSON, or without calls, yields none.
func (l Latency) Buckets() iter.Seq2[time.Duration, uint64] { return l.weights.All() }

// latencyOf returns what a histogram has counted.
func latencyOf(h *histogram.Histogram) Latency {
	s, weights := h.Snapshot()
	return Latency{Samples: s.Samples, P50: s.P50, P90: s.P90, P99: s.P99, Max: s.Max, weights: weights}
}

// Ledger counts the dispatches of this process: the opened ones equal the settled ones plus the remaining ones. Each
// number is counted where its transition happens, and none is derived from others.
type Ledger struct {
	// Opened.
	Accepted int64 `json:"accepted"` // by Publish, PublishAndWait and PublishBatch
	Copies   int64 `json:"copies"`   // beyond the first, of events with isolated subscriptions
	Splits   int64 `json:"splits"`   // deliveries that left their dispatch because the subscription did not admit them
	Replays  int64 `json:"replays"`  // of dead letters
	Claimed  int64 `json:"claimed"`  // from the store, if this process neither accepted nor left them there, also before a restart in place

	// Settled.
	Handled      int64 `json:"handled"`       // by all subscriptions that were not skipped
	Unrouted     int64 `json:"unrouted"`      // no subscription matched
	DeadLettered int64 `json:"dead_lettered"` // ended in dead letters
	Dropped      int64 `json:"dropped"`       // by WhenOpen, WhenFull, DropExpired, Once or DropRetired
	Cancelled    int64 `json:"cancelled"`     // by Cancel

	// Not settled.
	Scheduled int64 `json:"scheduled"` // not due yet
	Queued    int64 `json:"queued"`    // waiting for a worker, or for an earlier dispatch of their key
	Running   int64 `json:"running"`   // on a worker
	Waiting   int64 `json:"waiting"`   // waiting for their next attempt
	Held      int64 `json:"held"`      // parked, because a subscription does not admit them
	Throttled int64 `json:"throttled"` // parked until a limit admits them
	Snoozed   int64 `json:"snoozed"`   // parked, because their handlers postponed them
	Recording int64 `json:"recording"` // with a change that the store has not confirmed
	Stored    int64 `json:"stored"`    // left to the store, and not in memory; 0 once the store has none
	// HandedOver counts dispatches that the bus left to the store when it lost the lease, or handed it over.
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
