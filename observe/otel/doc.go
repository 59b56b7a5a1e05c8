// Package busotel traces and measures a bus with OpenTelemetry. It uses the API of OpenTelemetry only: your program chooses the
// SDK and its exporters.
//
//	opts := busotel.Options(tracerProvider, meterProvider) // nil: the global providers
//	bus, err := eventbus.New(append(opts, eventbus.WithStore(store))...)
//	if err != nil {
//		return err
//	}
//	stop, err := busotel.Measure(bus, meterProvider)
//	if err != nil {
//		return err
//	}
//	defer stop()
//
// # Spans
//
//   - "publish order.placed", a producer span of operation type send, for each event that is published. It lasts as
//     long as the call, and its parent is the span in the context of the call. An event of PublishBatch has a span of
//     its own.
//   - "emit order.placed", a producer span of operation type create, for each eventbus.Emit. The bus publishes the event when the
//     handler succeeds.
//   - "process order.placed", a consumer span, for each call of a handler. Its parent is the producer span, also in a later
//     process, after any number of retries, and after a replay. The handler finds it in its context.
//   - "dead_letter order.placed", a span of operation type settle, for each dead letter. It has the reason and the id of the letter.
//
// A process span links to the producer span. If it repeats a call that failed in this process, it also links to the span of
// that call: Options remembers the last 10,000. A producer span in a handler links to the producer span of the
// event being handled. An attribute eventbus.link of a link is "origin" or "failed_attempt".
//
// A process span ends when the handler returns or its context ends, at its timeout for example. It has the status error if the handler failed, and not after a
// Snooze or a Throttle: these are in the attribute eventbus.outcome.
//
// # Context
//
// The metadata of an event carries the trace context and the baggage in the W3C formats, under traceparent, tracestate
// and baggage. So the trace continues through a store, a dead letter, a replay and an OnDeadLetter handler. The baggage
// reaches the events that handlers publish with their contexts. If you pass traceparent or tracestate to Publish as
// eventbus.Metadata, the event keeps your values, and its handlers continue your trace. The global propagator is not
// used: events in a store outlive its configuration.
//
// The package never makes a publication or a delivery fail. It ignores malformed values. It omits values of more than 8
// KiB, and values for which the metadata of the event has no room.
//
// The context also travels without an SDK, and with spans that are not sampled.
//
// # Attributes
//
// Names follow the semantic conventions, version 1.43: messaging.system ("eventbus"), messaging.operation.name,
// messaging.operation.type, messaging.destination.name (the event's type), messaging.destination.subscription.name,
// messaging.message.id, error.type. Further names begin with "eventbus.": attempt, replays, outcome, reason, letter.id.
// Spans have no payloads, no keys and no metadata. The status has the text of the error, up to 1 KiB.
//
// # Metrics
//
// Options records two histograms, in seconds: messaging.client.operation.duration of publications and messaging.process.duration of
// calls of handlers. A call that exceeds its timeout is recorded at the timeout, whether or not its span is sampled.
// Measure observes the counters of eventbus.Bus.Metrics when a reader collects:
//
//   - by type: messaging.client.sent.messages, eventbus.retries, eventbus.dead_lettered
//   - by subscription: messaging.client.consumed.messages, eventbus.handler.failures, eventbus.deliveries.skipped,
//     eventbus.deliveries.parked, eventbus.handlers.running, eventbus.circuit.open, eventbus.circuit.opens
//   - of the bus: eventbus.dispatches by state, eventbus.dispatches.settled by outcome, eventbus.dead_letters,
//     eventbus.dead_letters.evicted, eventbus.queue.overflows, eventbus.handlers.abandoned, eventbus.workers
//   - with a store: eventbus.store.records, eventbus.store.dead_letters, eventbus.store.orphaned, eventbus.store.silent
//
// No attribute names the bus: the counters of buses with one provider are added up, also those of a bus that you measure twice. To tell
// buses apart, give each a provider.
//
// Attributes are bounded: types beyond the first 1,000, and subscriptions beyond the first 1,000, share the value "*", which is
// eventbus.OtherTypes. The SDK has a limit of its own for each instrument, 2,000 sets of attributes by default.
package busotel
