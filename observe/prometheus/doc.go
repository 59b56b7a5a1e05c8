// Package busprometheus exports the metrics of a bus to Prometheus.
//
//	collector, err := busprometheus.New(bus, "shop")
//	if err != nil {
//		return err
//	}
//	err = prometheus.Register(collector)
//	http.Handle("/metrics", promhttp.Handler())
//
// # Metrics
//
// A Collector exports all values of eventbus.Metrics. Each scrape takes one snapshot, and costs the bus nothing between
// scrapes. With a store, a scrape also reads the buses of its catalog: at most every 10 s, but again after a read that
// failed. Concurrent scrapes share one read.
//
// All metrics have the label bus with the name that was passed to New. Their names begin with:
//
//   - eventbus_: the bus as a whole, such as eventbus_dead_letters and eventbus_dispatches
//   - eventbus_type_: an event type, with the label type
//   - eventbus_subscription_: a subscription, with the label subscription
//   - eventbus_destination_: a destination that is not well, with the labels subscription and destination
//   - eventbus_store_: the store, without a series for a bus in memory
//
// Times are Unix times in seconds. A series of a time, such as eventbus_subscription_paused_until_timestamp_seconds, is
// absent while there is no such time. A series of a state that does not apply is absent too. For example, a
// subscription without parked deliveries has no eventbus_subscription_parked. Counters exist from the start of what
// they count: those of a type begin with its first event.
//
// Free text is not exported: the last error of a subscription, and the operator and reason of a directive. The admin
// page shows it.
//
// # Latency
//
// eventbus_subscription_call_duration_seconds is a histogram of the calls of a handler. The bus times every failure
// and, while it is busy, one success in 64, which represents the others. A call counts with its duration or up to a
// quarter more. The sum is an estimate, within 13 %.
//
// # Labels
//
// The number of series is bounded. Event types beyond the first 1,000 of the bus, subscriptions beyond
// WithMaxSubscriptions and destinations beyond WithMaxDestinations share the label value "other". Its values are sums,
// and for times the latest. A type or a subscription with the name "other" is part of it. A name keeps its series while
// it exists, so a counter of "other" falls only when a subscription in it ends. Bytes that are not UTF-8 become U+FFFD,
// and names that are then equal share their series.
//
// # Several collectors
//
// Buses in one registry need different names. For a second collector with the same name, Register returns a
// prometheus.AlreadyRegisteredError, and the first one stays. Two collectors of one bus with different names count its events twice.
//
// # Dashboard and alerts
//
// The directory of this package has a dashboard for Grafana (dashboard.json) and alert rules (alerts.yml). OPERATIONS.md has
// a line for each alert.
package busprometheus
