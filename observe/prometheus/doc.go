// Package busprometheus exports the metrics of a bus to Prometheus.
//
//	collector, err := busprometheus.New(bus, "shop")
//	if err != nil {
//		return err
//	}
//	err = prometheus.Register(collector)
//	http.Handle("/metrics", promhttp.Handler())
//
// # What it exports
//
// A Collector has everything that eventbus.Metrics has. Each scrape takes one snapshot. The bus does nothing
// between scrapes. With a store, a scrape also reads the buses of its catalog, at most every 10 s.
//
// All metrics have the label bus, the name that New gets. Their names begin with:
//
//   - eventbus_: the bus as a whole, such as eventbus_dead_letters and eventbus_dispatches
//   - eventbus_type_: an event type, with the label type
//   - eventbus_subscription_: a subscription, with the label subscription
//   - eventbus_destination_: a destination that is not well, with the labels subscription and destination
//   - eventbus_store_: the store, without a series for a bus in memory
//
// Times are Unix times in seconds. A series of a time, such as eventbus_subscription_paused_until_timestamp_seconds, is absent
// while there is no such time. A series of a state that does not apply is absent too: a subscription that is neither paused nor hung has no
// eventbus_subscription_paused and eventbus_subscription_hung, and one without parked deliveries no eventbus_subscription_parked. Counters are there
// from the start.
//
// Free text is not exported: the last error of a subscription, and who gave a directive and why. The admin page has it.
//
// # Latency
//
// eventbus_subscription_call_duration_seconds is a histogram of the calls of a handler. The bus times every failure, and one
// success in 64 while it is busy, which counts for the others. A call counts at up to a quarter above its duration, and never below. The sum
// is an estimate, within 13 %.
//
// # Labels
//
// The number of series is bounded. Event types beyond the first 1,000 of the bus, subscriptions beyond WithMaxSubscriptions and
// destinations beyond WithMaxDestinations share the label value "other": its values are sums, of times the latest. A type or a subscription with the
// name "other" is among them. A name keeps its series while it exists, so a counter of "other" falls only when a subscription in it ends. Bytes that are not
// UTF-8 become U+FFFD, and names that are then equal share their series.
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
