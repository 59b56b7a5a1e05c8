package busotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/surebus/eventbus"
)

// Measure registers the metrics of a bus, which a reader of the provider collects; the package comment lists them. A
// nil provider means the global provider. stop unregisters them, also after the bus or the provider is shut down. A
// collection blocks for up to a second for the store of the bus.
//
// Errors: *eventbus.OptionError for a nil bus, those of the provider.
func Measure(bus *eventbus.Bus, mp metric.MeterProvider) (stop func() error, err error) {
	if bus == nil {
		return nil, fmt.Errorf("busotel.Measure: %w", &eventbus.OptionError{Option: "bus", Value: "nil", Reason: "must be a bus that eventbus.New made"})
	}
	g := gauges{bus: bus}
	registration, err := g.register(meterOf(mp))
	if err != nil {
		return nil, fmt.Errorf("busotel.Measure: %w", err)
	}
	return registration.Unregister, nil
}

// gauges are the instruments of a bus.
type gauges struct {
	bus *eventbus.Bus

	sent, retries, deadLettered            metric.Int64Observable
	consumed, failures, skipped, opens     metric.Int64Observable
	parked, running, open                  metric.Int64Observable
	dispatches, settled                    metric.Int64Observable
	letters, evicted, overflows, abandoned metric.Int64Observable
	workers                                metric.Int64Observable
	records, stored, orphaned, silent      metric.Int64Observable
}

func (g *gauges) register(meter metric.Meter) (metric.Registration, error) {
	var (
		all  []metric.Observable
		errs error
	)
	counter := func(to *metric.Int64Observable, name, unit, description string) {
		i, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = first(errs, err)
		*to, all = i, append(all, i)
	}
	gauge := func(to *metric.Int64Observable, name, unit, description string) {
		i, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = first(errs, err)
		*to, all = i, append(all, i)
	}
	counter(&g.sent, "messaging.client.sent.messages", "{message}", "Number of events that were published.")
	counter(&g.retries, "eventbus.retries", "{retry}", "Number of retries that were scheduled.")
	counter(&g.deadLettered, "eventbus.dead_lettered", "{letter}", "Number of dispatches that became dead letters.")
	counter(&g.consumed, "messaging.client.consumed.messages", "{message}", "Number of calls of handlers that have ended.")
	counter(&g.failures, "eventbus.handler.failures", "{failure}", "Number of calls of handlers that failed.")
	counter(&g.skipped, "eventbus.deliveries.skipped", "{delivery}", "Number of deliveries that a subscription did not admit.")
	counter(&g.opens, "eventbus.circuit.opens", "{open}", "Number of times that a circuit opened.")
	gauge(&g.parked, "eventbus.deliveries.parked", "{delivery}", "Number of parked deliveries.")
	gauge(&g.running, "eventbus.handlers.running", "{call}", "Number of running calls of handlers.")
	gauge(&g.open, "eventbus.circuit.open", "{circuit}", "1 while the circuit is open or half-open, otherwise 0.")
	gauge(&g.dispatches, "eventbus.dispatches", "{dispatch}", "Number of dispatches that have not settled.")
	counter(&g.settled, "eventbus.dispatches.settled", "{dispatch}", "Number of dispatches that have settled.")
	gauge(&g.letters, "eventbus.dead_letters", "{letter}", "Number of dead letters.")
	counter(&g.evicted, "eventbus.dead_letters.evicted", "{letter}", "Number of dead letters that the full queue has evicted.")
	counter(&g.overflows, "eventbus.queue.overflows", "{event}", "Number of events that handlers have published beyond the capacity.")
	gauge(&g.abandoned, "eventbus.handlers.abandoned", "{call}", "Number of handlers that exceeded their timeouts and still run.")
	gauge(&g.workers, "eventbus.workers", "{worker}", "Number of goroutines that run handlers.")
	gauge(&g.records, "eventbus.store.records", "{record}", "Number of records of the store, of all processes.")
	gauge(&g.stored, "eventbus.store.dead_letters", "{letter}", "Number of dead letters of the store, of all processes.")
	gauge(&g.orphaned, "eventbus.store.orphaned", "{delivery}", "Number of parked deliveries whose subscription does not exist on this bus.")
	gauge(&g.silent, "eventbus.store.silent", "{store}", "1 while the store confirms nothing and publications are refused, otherwise 0.")
	if errs != nil {
		return nil, errs
	}
	return meter.RegisterCallback(g.observe, all...)
}

func first(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

var ofSystem = semconv.MessagingSystemKey.String(system)

func with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(more, ofSystem)...)
}

// observe is called at each collection.
func (g *gauges) observe(_ context.Context, o metric.Observer) error {
	m := g.bus.Metrics()
	for name, t := range m.Types { // at most 1,000, and eventbus.OtherTypes
		of := semconv.MessagingDestinationName(name)
		o.ObserveInt64(g.sent, t.Events, with(of, semconv.MessagingOperationName(operationNames[sends])))
		o.ObserveInt64(g.retries, t.Retries, with(of))
		o.ObserveInt64(g.deadLettered, t.DeadLettered, with(of))
	}
	for name, s := range bySubscription(m.Subscriptions) {
		of := semconv.MessagingDestinationSubscriptionName(name)
		o.ObserveInt64(g.consumed, s.ended, with(of, semconv.MessagingOperationName(operationNames[processes])))
		o.ObserveInt64(g.failures, s.failures, with(of))
		o.ObserveInt64(g.skipped, s.skipped, with(of))
		o.ObserveInt64(g.opens, s.opens, with(of))
		o.ObserveInt64(g.parked, s.parked, with(of))
		o.ObserveInt64(g.running, s.running, with(of))
		o.ObserveInt64(g.open, s.open, with(of))
	}
	l := m.Ledger
	for state, n := range map[string]int64{
		"scheduled": l.Scheduled, "queued": l.Queued, "running": l.Running, "waiting": l.Waiting, "held": l.Held,
		"throttled": l.Throttled, "snoozed": l.Snoozed, "recording": l.Recording, "stored": l.Stored,
	} {
		o.ObserveInt64(g.dispatches, n, with(attribute.String("eventbus.state", state)))
	}
	for outcome, n := range map[eventbus.Outcome]int64{
		eventbus.Handled: l.Handled, eventbus.Unrouted: l.Unrouted, eventbus.DeadLettered: l.DeadLettered,
		eventbus.Dropped: l.Dropped, eventbus.Cancelled: l.Cancelled,
	} {
		o.ObserveInt64(g.settled, n, with(outcomeKey.String(outcome.String())))
	}
	o.ObserveInt64(g.letters, int64(m.DeadLetters), with())
	o.ObserveInt64(g.evicted, m.LettersEvicted, with())
	o.ObserveInt64(g.overflows, m.QueueOverflows, with())
	o.ObserveInt64(g.abandoned, int64(m.AbandonedHandlers), with())
	o.ObserveInt64(g.workers, int64(m.Workers), with())
	if m.Store != nil {
		o.ObserveInt64(g.records, m.Store.Unsettled(), with())
		o.ObserveInt64(g.stored, m.Store.Letters, with())
		var orphaned int64
		for _, n := range m.Orphaned {
			orphaned += n
		}
		o.ObserveInt64(g.orphaned, orphaned, with())
		var silent int64
		if !m.StoreSilentSince.IsZero() {
			silent = 1
		}
		o.ObserveInt64(g.silent, silent, with())
	}
	return nil
}

// sums are the counters of a subscription, or of several.
type sums struct{ ended, failures, skipped, opens, parked, running, open int64 }

// bySubscription adds up the counters of subscriptions with the same name: the first 1,000, and the others as one.
func bySubscription(all []eventbus.SubscriptionMetrics) map[string]*sums {
	by := make(map[string]*sums, min(len(all), maxLabels+1))
	for i := range all {
		s := &all[i]
		name := s.Subscription
		if by[name] == nil && len(by) >= maxLabels {
			name = otherLabels
		}
		sum := by[name]
		if sum == nil {
			sum = new(sums)
			by[name] = sum
		}
		sum.ended += s.Successes + s.Failures
		sum.failures += s.Failures
		sum.skipped += s.Skipped
		sum.opens += s.CircuitOpens
		sum.parked += int64(s.Parked())
		sum.running += int64(s.Running)
		if s.Circuit == eventbus.CircuitOpen || s.Circuit == eventbus.CircuitHalfOpen {
			sum.open++
		}
	}
	return by
}
