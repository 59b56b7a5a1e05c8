package busprometheus

import (
	"fmt"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surebus/eventbus"
)

// row is a series of each T of a snapshot. Rows of one family have the same name, help and kind.
type row[T any] struct {
	name, help   string
	label, value string // beside those of T; empty: none
	how          how
	of           func(*T) float64 // not a number: no sample
}

// how is how a row is exported.
type how uint8

const (
	counter how = 1 << iota // a counter, and not a gauge
	present                 // without a sample for 0
	largest                 // of several Ts under one label value the largest, and not the sum
)

const (
	moment = present | largest // a timestamp
	bound  = largest           // an option
)

var busRows = []row[eventbus.Metrics]{
	{name: "eventbus_retries_total", help: "Retries that were scheduled.", how: counter, of: func(m *eventbus.Metrics) float64 { return float64(m.Retries) }},
	{name: "eventbus_queued_events", help: "Events that wait for a worker.", of: func(m *eventbus.Metrics) float64 { return float64(m.QueueDepth) }},
	{name: "eventbus_queue_overflows_total", help: "Events that handlers have published beyond the capacity of the queue.", how: counter, of: func(m *eventbus.Metrics) float64 { return float64(m.QueueOverflows) }},
	{name: "eventbus_abandoned_handlers", help: "Handlers that exceeded their timeouts and still run.", of: func(m *eventbus.Metrics) float64 { return float64(m.AbandonedHandlers) }},
	{name: "eventbus_workers", help: "Goroutines that run handlers.", of: func(m *eventbus.Metrics) float64 { return float64(m.Workers) }},
	{name: "eventbus_dead_letters", help: "Dead letters in the queue.", of: func(m *eventbus.Metrics) float64 { return float64(m.DeadLetters) }},
	{name: "eventbus_dead_letters_evicted_total", help: "Dead letters that the full queue has evicted.", how: counter, of: func(m *eventbus.Metrics) float64 { return float64(m.LettersEvicted) }},
	{name: "eventbus_dropped_repetitions_total", help: "Events of other processes or of transactions that were dropped, because their ids were known.", how: counter, of: func(m *eventbus.Metrics) float64 { return float64(m.Repetitions) }},

	opened("accepted", func(l *eventbus.Ledger) int64 { return l.Accepted }),
	opened("copy", func(l *eventbus.Ledger) int64 { return l.Copies }),
	opened("split", func(l *eventbus.Ledger) int64 { return l.Splits }),
	opened("replay", func(l *eventbus.Ledger) int64 { return l.Replays }),
	opened("claimed", func(l *eventbus.Ledger) int64 { return l.Claimed }),

	settled("handled", func(l *eventbus.Ledger) int64 { return l.Handled }),
	settled("unrouted", func(l *eventbus.Ledger) int64 { return l.Unrouted }),
	settled("dead_lettered", func(l *eventbus.Ledger) int64 { return l.DeadLettered }),
	settled("dropped", func(l *eventbus.Ledger) int64 { return l.Dropped }),
	settled("cancelled", func(l *eventbus.Ledger) int64 { return l.Cancelled }),

	unsettled("scheduled", func(l *eventbus.Ledger) int64 { return l.Scheduled }),
	unsettled("queued", func(l *eventbus.Ledger) int64 { return l.Queued }),
	unsettled("running", func(l *eventbus.Ledger) int64 { return l.Running }),
	unsettled("waiting", func(l *eventbus.Ledger) int64 { return l.Waiting }),
	unsettled("held", func(l *eventbus.Ledger) int64 { return l.Held }),
	unsettled("throttled", func(l *eventbus.Ledger) int64 { return l.Throttled }),
	unsettled("snoozed", func(l *eventbus.Ledger) int64 { return l.Snoozed }),
	unsettled("recording", func(l *eventbus.Ledger) int64 { return l.Recording }),
	unsettled("stored", func(l *eventbus.Ledger) int64 { return l.Stored }),
	unsettled("handed_over", func(l *eventbus.Ledger) int64 { return l.HandedOver }),

	{name: "eventbus_ledger_balanced", help: "1 if the dispatches that were opened are those that settled and those that remain. Under load it may be 0 for a moment.", of: func(m *eventbus.Metrics) float64 { return flag(m.Ledger.Balanced()) }},
	{name: "eventbus_closed", help: "1 once Shutdown has returned.", of: func(m *eventbus.Metrics) float64 { return flag(m.Ledger.Closed) }},
}

func opened(by string, of func(*eventbus.Ledger) int64) row[eventbus.Metrics] {
	return ledger("eventbus_dispatches_opened_total", "Dispatches that were opened, by what opened them.", "by", by, counter, of)
}

func settled(outcome string, of func(*eventbus.Ledger) int64) row[eventbus.Metrics] {
	return ledger("eventbus_dispatches_settled_total", "Dispatches that have settled, by their outcome.", "outcome", outcome, counter, of)
}

func unsettled(state string, of func(*eventbus.Ledger) int64) row[eventbus.Metrics] {
	return ledger("eventbus_dispatches", "Dispatches that have not settled, by their state.", "state", state, 0, of)
}

func ledger(name, help, label, value string, how how, of func(*eventbus.Ledger) int64) row[eventbus.Metrics] {
	return row[eventbus.Metrics]{name, help, label, value, how, func(m *eventbus.Metrics) float64 { return float64(of(&m.Ledger)) }}
}

// storeRows are of a bus with a store.
var storeRows = []row[eventbus.Metrics]{
	stored("ready", func(m *eventbus.Metrics) int64 { return m.Store.Ready }),
	stored("waiting", func(m *eventbus.Metrics) int64 { return m.Store.Waiting }),
	stored("scheduled", func(m *eventbus.Metrics) int64 { return m.Store.Scheduled }),
	stored("parked", func(m *eventbus.Metrics) int64 { return m.Store.Parked }),
	{name: "eventbus_store_free_records", help: "Records of the store that no bus has in memory.", of: func(m *eventbus.Metrics) float64 { return float64(m.Store.Free) }},
	{name: "eventbus_store_dead_letters", help: "Dead letters of the store.", of: func(m *eventbus.Metrics) float64 { return float64(m.Store.Letters) }},
	{name: "eventbus_store_incoming_events", help: "Events that wait until the bus with the lease takes them in.", of: func(m *eventbus.Metrics) float64 { return float64(m.Store.Incoming) }},
	{name: "eventbus_store_read_timestamp_seconds", help: "When the counts of the store were read.", how: moment, of: func(m *eventbus.Metrics) float64 { return timestamp(m.StoreAt) }},
	{name: "eventbus_store_stale", help: "1 if the counts of the store could not be read, and are the last known ones.", of: func(m *eventbus.Metrics) float64 { return flag(m.StoreError != "") }},
	{name: "eventbus_store_silent_since_timestamp_seconds", help: "Since when the store has confirmed nothing, so that publications are refused.", how: moment, of: func(m *eventbus.Metrics) float64 { return timestamp(m.StoreSilentSince) }},
	{name: "eventbus_store_behind", help: "1 while the bus has yet to claim records of the store.", of: func(m *eventbus.Metrics) float64 { return flag(m.Behind) }},
}

func stored(state string, of func(*eventbus.Metrics) int64) row[eventbus.Metrics] {
	return row[eventbus.Metrics]{"eventbus_store_records", "Records of the store, by their state: dispatches of all processes that have not settled.", "state", state, 0, func(m *eventbus.Metrics) float64 { return float64(of(m)) }}
}

// busesRows are of the catalog of a store.
var busesRows = []row[buses]{
	{name: "eventbus_store_leads", help: "1 if the bus has the lease of the store, and dispatches.", of: func(b *buses) float64 { return flag(b.leads) }},
	{name: "eventbus_store_buses", help: "Buses on the store: the one with the lease, and the standbys seen in the last minute.", label: "role", value: "active", of: func(b *buses) float64 { return float64(b.active) }},
	{name: "eventbus_store_buses", help: "Buses on the store: the one with the lease, and the standbys seen in the last minute.", label: "role", value: "standby", of: func(b *buses) float64 { return float64(b.standby) }},
	{name: "eventbus_store_buses_stale", help: "1 if the buses of the store could not be read, and are the last known ones.", of: func(b *buses) float64 { return flag(b.failed) }},
}

var typeRows = []row[eventbus.TypeMetrics]{
	{name: "eventbus_type_events_total", help: "Events that were published.", how: counter, of: func(m *eventbus.TypeMetrics) float64 { return float64(m.Events) }},
	{name: "eventbus_type_retries_total", help: "Retries that were scheduled.", how: counter, of: func(m *eventbus.TypeMetrics) float64 { return float64(m.Retries) }},
	{name: "eventbus_type_retried_dispatches_total", help: "Dispatches with a retry.", how: counter, of: func(m *eventbus.TypeMetrics) float64 { return float64(m.Retried) }},
	{name: "eventbus_type_recovered_dispatches_total", help: "Dispatches with a retry that were handled in the end.", how: counter, of: func(m *eventbus.TypeMetrics) float64 { return float64(m.SucceededAfterRetry) }},
	{name: "eventbus_type_dead_letters_total", help: "Dead letters.", how: counter, of: func(m *eventbus.TypeMetrics) float64 { return float64(m.DeadLettered) }},
}

var subscriptionRows = append([]row[eventbus.SubscriptionMetrics]{
	{name: "eventbus_subscription_successes_total", help: "Calls of the handler that succeeded.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Successes) }},
	{name: "eventbus_subscription_failures_total", help: "Calls of the handler that failed, timeouts and panics included.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Failures) }},
	{name: "eventbus_subscription_timeouts_total", help: "Calls that exceeded the timeout.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Timeouts) }},
	{name: "eventbus_subscription_panics_total", help: "Calls that panicked, or exited their goroutine.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Panics) }},
	{name: "eventbus_subscription_late_ends_total", help: "Abandoned handlers that returned.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.LateEnds) }},
	{name: "eventbus_subscription_skipped_total", help: "Deliveries that were not admitted.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Skipped) }},
	{name: "eventbus_subscription_slow_total", help: "Calls that exceeded a third of the timeout.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Slow) }},
	{name: "eventbus_subscription_circuit_opens_total", help: "Times that the circuit opened, with destinations all their circuits.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.CircuitOpens) }},
	{name: "eventbus_subscription_running", help: "Calls of the handler, except those abandoned or waiting in PublishAndWait.", of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Running) }},
	{name: "eventbus_subscription_abandoned", help: "Calls that were abandoned after the last Resume, and run.", how: present, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Abandoned) }},
	{name: "eventbus_subscription_hung", help: "1 if so many calls were abandoned that deliveries are held.", how: present, of: func(m *eventbus.SubscriptionMetrics) float64 { return flag(m.Hung) }},
	{name: "eventbus_subscription_paused", help: "1 while the subscription is paused.", how: present, of: func(m *eventbus.SubscriptionMetrics) float64 { return flag(m.Paused) }},
	{name: "eventbus_subscription_detached", help: "1 while the subscription has no handler, between Detach and the next Subscribe.", how: present, of: func(m *eventbus.SubscriptionMetrics) float64 { return flag(m.Detached) }},
	{name: "eventbus_subscription_paused_until_timestamp_seconds", help: "When the pause ends by itself.", how: moment, of: func(m *eventbus.SubscriptionMetrics) float64 { return timestamp(m.PausedUntil) }},
	{name: "eventbus_subscription_throttled_until_timestamp_seconds", help: "When the next call may begin, after a Throttle.", how: moment, of: func(m *eventbus.SubscriptionMetrics) float64 { return timestamp(m.ThrottledUntil) }},
	{name: "eventbus_subscription_last_failure_timestamp_seconds", help: "When the handler failed for the last time in this process.", how: moment, of: func(m *eventbus.SubscriptionMetrics) float64 { return timestamp(m.LastFailed) }},
	{name: "eventbus_subscription_timed_calls_total", help: "Calls whose durations were measured.", how: counter, of: func(m *eventbus.SubscriptionMetrics) float64 { return float64(m.Latency.Samples) }},
	{name: "eventbus_subscription_call_duration_max_seconds", help: "The longest call since the subscription was made.", how: largest, of: func(m *eventbus.SubscriptionMetrics) float64 { return m.Latency.Max.Seconds() }},
	{name: "eventbus_subscription_timeout_seconds", help: "The timeout of a call.", how: bound, of: func(m *eventbus.SubscriptionMetrics) float64 { return m.Options.Timeout.Seconds() }},
	{name: "eventbus_subscription_rate_limit_calls_per_second", help: "The rate limit, if there is one.", how: bound | present, of: ofRate(func(r *eventbus.RateSettings) float64 { return float64(r.Calls) / r.Per.Seconds() })},
	{name: "eventbus_subscription_rate_limit_burst", help: "The calls that may begin at once after a pause, if there is a rate limit.", how: bound | present, of: ofRate(func(r *eventbus.RateSettings) float64 { return float64(r.Burst) })},
	{name: "eventbus_subscription_known_destinations", help: "Destinations that the bus has not forgotten, with PerDestination.", of: ofDestinations(func(d *eventbus.DestinationsMetrics) float64 { return float64(d.Known) })},
	{name: "eventbus_subscription_unwell_destinations", help: "Destinations that are not well, with PerDestination.", of: ofDestinations(func(d *eventbus.DestinationsMetrics) float64 { return float64(d.Unwell) })},
	{name: "eventbus_subscription_shared_destination_attempts_total", help: "Attempts that went to the common destination because the others were in use.", how: counter, of: ofDestinations(func(d *eventbus.DestinationsMetrics) float64 { return float64(d.Shared) })},
}, gateRows("eventbus_subscription_", func(m *eventbus.SubscriptionMetrics) gate {
	return gate{m.Circuit, m.Held, m.Throttled, m.Snoozed, m.ShutBy, m.Directive}
})...)

var destinationRows = append([]row[eventbus.DestinationMetrics]{
	{name: "eventbus_destination_successes_total", help: "Calls of the handler that succeeded, since the destination is known.", how: counter, of: func(m *eventbus.DestinationMetrics) float64 { return float64(m.Successes) }},
	{name: "eventbus_destination_failures_total", help: "Calls of the handler that failed, since the destination is known.", how: counter, of: func(m *eventbus.DestinationMetrics) float64 { return float64(m.Failures) }},
	{name: "eventbus_destination_circuit_opens_total", help: "Times that the circuit opened, since the destination is known.", how: counter, of: func(m *eventbus.DestinationMetrics) float64 { return float64(m.CircuitOpens) }},
	{name: "eventbus_destination_running", help: "Calls of the handler, except those abandoned or waiting in PublishAndWait.", of: func(m *eventbus.DestinationMetrics) float64 { return float64(m.Running) }},
	{name: "eventbus_destination_abandoned", help: "Calls that were abandoned after the last Resume, and run.", how: present, of: func(m *eventbus.DestinationMetrics) float64 { return float64(m.Abandoned) }},
	{name: "eventbus_destination_hung", help: "1 if so many calls were abandoned that deliveries are held.", how: present, of: func(m *eventbus.DestinationMetrics) float64 { return flag(m.Hung) }},
	{name: "eventbus_destination_paused", help: "1 while the destination is paused.", how: present, of: func(m *eventbus.DestinationMetrics) float64 { return flag(m.Paused) }},
	{name: "eventbus_destination_paused_until_timestamp_seconds", help: "When the pause ends by itself.", how: moment, of: func(m *eventbus.DestinationMetrics) float64 { return timestamp(m.PausedUntil) }},
	{name: "eventbus_destination_throttled_until_timestamp_seconds", help: "When the next call may begin, after a Throttle.", how: moment, of: func(m *eventbus.DestinationMetrics) float64 { return timestamp(m.ThrottledUntil) }},
}, gateRows("eventbus_destination_", func(m *eventbus.DestinationMetrics) gate {
	return gate{m.Circuit, m.Held, m.Throttled, m.Snoozed, m.ShutBy, m.Directive}
})...)

// gate is what subscriptions and destinations have in common.
type gate struct {
	circuit                  eventbus.CircuitState
	held, throttled, snoozed int
	shutBy                   eventbus.ParkReason
	directive                *eventbus.Directive
}

func gateRows[T any](prefix string, of func(*T) gate) (rows []row[T]) {
	add := func(name, help, label, value string, how how, f func(gate) float64) {
		rows = append(rows, row[T]{prefix + name, help, label, value, how, func(m *T) float64 { return f(of(m)) }})
	}
	for value, count := range map[string]func(gate) int{
		"held": func(g gate) int { return g.held }, "throttled": func(g gate) int { return g.throttled }, "snoozed": func(g gate) int { return g.snoozed },
	} {
		add("parked", "Parked deliveries, by why they are parked.", "reason", value, present, func(g gate) float64 { return float64(count(g)) })
	}
	for state := eventbus.CircuitClosed; state <= eventbus.CircuitUnknown; state++ {
		add("circuit", "1 for the state of the circuit.", "state", state.String(), present, func(g gate) float64 { return flag(g.circuit == state) })
	}
	for _, reason := range []eventbus.ParkReason{
		eventbus.ParkPaused, eventbus.ParkCircuit, eventbus.ParkHung, eventbus.ParkThrottled, eventbus.ParkDetached, eventbus.ParkSnoozed, eventbus.ParkMissing,
	} {
		add("shut", "1 for the reason why deliveries that come now may not enter.", "reason", string(reason), present, func(g gate) float64 { return flag(g.shutBy == reason) })
	}
	for _, kind := range []string{"pause", "hold_until", "trip", "resume"} {
		add("directive_timestamp_seconds", "When the last directive was given, by its kind. resume also stands for the end of a trip.", "kind", kind, moment, func(g gate) float64 {
			if g.directive == nil || kindOf(g.directive) != kind {
				return 0
			}
			return timestamp(g.directive.At)
		})
	}
	return rows
}

func kindOf(d *eventbus.Directive) string {
	switch {
	case d.Trip:
		return "trip"
	case !d.Until.IsZero():
		return "hold_until"
	case d.Pause:
		return "pause"
	}
	return "resume"
}

func ofRate(of func(*eventbus.RateSettings) float64) func(*eventbus.SubscriptionMetrics) float64 {
	return func(m *eventbus.SubscriptionMetrics) float64 {
		if m.Options.RateLimit == nil || m.Options.RateLimit.Per <= 0 {
			return 0
		}
		return of(m.Options.RateLimit)
	}
}

func ofDestinations(of func(*eventbus.DestinationsMetrics) float64) func(*eventbus.SubscriptionMetrics) float64 {
	return func(m *eventbus.SubscriptionMetrics) float64 {
		if m.Destinations == nil {
			return math.NaN()
		}
		return of(m.Destinations)
	}
}

// infoLabels are the labels of eventbus_subscription_info beside subscription, in the order of infoOf.
var infoLabels = []string{
	"pattern", "dead_letters", "when_open", "when_full", "per_destination", "once", "drop_expired",
	"concurrency", "line_capacity", "max_throttle",
}

func infoOf(m *eventbus.SubscriptionMetrics) []string {
	return []string{
		valid(m.Pattern), fmt.Sprint(m.DeadLetters), m.Options.WhenOpen.String(), m.Options.WhenFull.String(),
		fmt.Sprint(m.Options.PerDestination), fmt.Sprint(m.Options.Once), fmt.Sprint(m.Options.DropExpired),
		limit(m.Options.Concurrency), limit(m.Options.LineCapacity), m.Options.MaxThrottle.String(),
	}
}

// descs are the families of a collector.
type descs struct {
	all           []*family
	bus           *table[eventbus.Metrics]
	store         *table[eventbus.Metrics]
	buses         *table[buses]
	types         *table[eventbus.TypeMetrics]
	subscriptions *table[eventbus.SubscriptionMetrics]
	destinations  *table[eventbus.DestinationMetrics]

	orphaned, info, durations *family
	name                      *pair
}

func newDescs(name string) descs {
	const bus = "bus"
	d := descs{name: newPair(bus, name)}
	constant := prometheus.Labels{bus: name}
	d.bus = newTable(&d, constant, busRows)
	d.store = newTable(&d, constant, storeRows)
	d.buses = newTable(&d, constant, busesRows)
	d.types = newTable(&d, constant, typeRows, "type")
	d.subscriptions = newTable(&d, constant, subscriptionRows, "subscription")
	d.destinations = newTable(&d, constant, destinationRows, "destination", "subscription")
	d.orphaned = d.add("eventbus_orphaned_deliveries", "Stored deliveries to a subscription that does not exist.", 0, constant, "subscription")
	d.info = d.add("eventbus_subscription_info", "1, with options of the subscription.", 0, constant, append([]string{"subscription"}, infoLabels...)...)
	d.durations = d.add("eventbus_subscription_call_duration_seconds", "Durations of the handler's calls, sampled, and up to a quarter too large.", 0, constant, "subscription")
	return d
}

func (d *descs) add(name, help string, how how, constant prometheus.Labels, variable ...string) *family {
	f := &family{prometheus.NewDesc(name, help, variable, constant), how&counter != 0}
	d.all = append(d.all, f)
	return f
}

// family is a metric family.
type family struct {
	desc    *prometheus.Desc
	counter bool
}

// table has the families of rows.
type table[T any] struct {
	rows     []row[T]
	families []*family // of each row
	extras   []*pair   // of each row; nil for none
}

func newTable[T any](d *descs, constant prometheus.Labels, rows []row[T], variable ...string) *table[T] {
	t, known := &table[T]{rows: rows}, make(map[string]*family)
	for _, r := range rows {
		names, extra := variable, (*pair)(nil)
		if r.label != "" {
			names, extra = append([]string{r.label}, variable...), newPair(r.label, r.value)
		}
		if known[r.name] == nil {
			known[r.name] = d.add(r.name, r.help, r.how, constant, names...)
		}
		t.families, t.extras = append(t.families, known[r.name]), append(t.extras, extra)
	}
	return t
}
