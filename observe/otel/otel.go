package busotel

import (
	"context"
	"reflect"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/surebus/eventbus"
)

const (
	scope  = "github.com/surebus/eventbus/observe/otel"
	system = "eventbus"

	attemptKey = attribute.Key("eventbus.attempt")
	letterKey  = attribute.Key("eventbus.letter.id")
	linkKey    = attribute.Key("eventbus.link")
	outcomeKey = attribute.Key("eventbus.outcome")
	reasonKey  = attribute.Key("eventbus.reason")
	replaysKey = attribute.Key("eventbus.replays")

	maxRemembered = 10_000 // failed calls
)

// Options returns options for eventbus.New that trace and measure the publications and handlers of a bus. Use a result
// for one bus only. A nil provider, also a nil pointer, means the global provider. With the providers of the packages
// trace/noop and metric/noop, the trace context and the baggage still travel with events.
//
// The middleware of Options is outside of all middleware of later options and of subscriptions. After a provider is
// shut down, it records nothing more; the bus continues. Errors of a provider go to otel.Handle.
func Options(tp trace.TracerProvider, mp metric.MeterProvider) []eventbus.Option {
	if isNil(tp) {
		tp = otel.GetTracerProvider()
	}
	t := &telemetry{
		tracer: tp.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		labels: newLabels(),
		failed: newRecollection(maxRemembered),
	}
	meter := meterOf(mp)
	published, err := messagingconv.NewClientOperationDuration(meter, durationBuckets)
	report(err)
	processed, err := messagingconv.NewProcessDuration(meter, durationBuckets)
	report(err)
	t.published, t.processed = published.Inst(), processed.Inst()
	return []eventbus.Option{
		eventbus.WithPublishHook(t.publish),
		eventbus.WithMiddleware(t.process),
		eventbus.WithObserver(eventbus.Observer{DeadLettered: t.deadLettered}),
	}
}

// durationBuckets are the buckets that the conventions advise, in seconds.
var durationBuckets = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

func meterOf(mp metric.MeterProvider) metric.Meter {
	if isNil(mp) {
		mp = otel.GetMeterProvider()
	}
	return mp.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
}

func isNil(provider any) bool {
	v := reflect.ValueOf(provider)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func report(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

// telemetry is what the options of one bus share.
type telemetry struct {
	tracer               trace.Tracer
	published, processed metric.Float64Histogram
	labels               *labels
	failed               *recollection
}

// publish is an eventbus.PublishHook.
func (t *telemetry) publish(ctx context.Context, method string, e eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
	op := sends
	if method == "Emit" {
		op = emits
	}
	start := t.labels.span(op, e.Type)
	traced, span := t.tracer.Start(ctx, start.name, start.options...)
	metadata := inject(traced, e.Metadata)
	records, measures := span.IsRecording(), t.published.Enabled(ctx)
	if !records && !measures {
		span.End()
		return metadata, nil
	}
	if records {
		if d, ok := eventbus.FromContext(ctx); ok {
			link(span, producerOf(d.Event.Metadata).SpanContext(), toOrigin)
		}
	}
	began := time.Now()
	return metadata, func(id eventbus.EventID, err error) {
		if records {
			if !id.IsZero() {
				span.SetAttributes(semconv.MessagingMessageID(id.String()))
			}
			fail(span, err)
		}
		span.End()
		if measures {
			t.published.Record(traced, time.Since(began).Seconds(), t.labels.publication(op, e.Type, !id.IsZero(), err)...)
		}
	}
}

// process is an eventbus.Middleware.
func (t *telemetry) process(next eventbus.Handler) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		start := t.labels.accepted(processes, e.Type)
		inner, producer := extract(ctx, e.Metadata)
		inner, span := t.tracer.Start(inner, start.name, start.options...)
		records, measures := span.IsRecording(), t.processed.Enabled(ctx)
		if !records && !measures {
			defer span.End()
			return next(inner, e)
		}
		d, _ := eventbus.FromContext(ctx)
		c := &call{telemetry: t, span: span, records: records, measures: measures, delivery: d, began: time.Now(), err: errExited}
		if records {
			link(span, producer, toOrigin)
			link(span, t.failed.take(d), toFailedAttempt)
			span.SetAttributes(
				semconv.MessagingMessageID(e.ID.String()), semconv.MessagingDestinationSubscriptionName(d.Subscription),
				attemptKey.Int(d.Attempt), replaysKey.Int(d.Replays))
		}
		// A handler that exceeds its timeout may never return.
		c.stop = context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })
		defer c.returned() // also if the handler panics or exits
		c.err = next(inner, e)
		return c.err
	}
}

// exitError is the error of a handler that has panicked or called runtime.Goexit.
type exitError struct{}

func (exitError) Error() string     { return "the handler panicked or called runtime.Goexit" }
func (exitError) ErrorType() string { return "panic" }

var errExited error = exitError{}

// What a link is to.
var (
	toOrigin        = []attribute.KeyValue{linkKey.String("origin")}
	toFailedAttempt = []attribute.KeyValue{linkKey.String("failed_attempt")}
)

// link links a span that records to another one, if that is valid. Links are added after the start, because most spans of a
// program may be unsampled, and their links would cost as much. The sampler sees the origin as the parent.
func link(span trace.Span, to trace.SpanContext, what []attribute.KeyValue) {
	if to.IsValid() {
		span.AddLink(trace.Link{SpanContext: to, Attributes: what})
	}
}

// call is one call of a handler.
type call struct {
	*telemetry
	span              trace.Span
	records, measures bool
	delivery          eventbus.Delivery
	began             time.Time
	err               error
	stop              func() bool // stops the watch
}

func (c *call) returned() {
	if c.stop() { // otherwise the watch has ended the call
		c.end(c.err)
	}
}

// end ends the call once: when the handler returns, or when its context ends before.
func (c *call) end(err error) {
	outcome := outcomeOf(err)
	failure := err
	if outcome != "" {
		failure = nil
	}
	if c.records {
		if outcome != "" {
			c.span.SetAttributes(outcomeKey.String(outcome))
		}
		fail(c.span, failure)
		if failure != nil {
			c.failed.add(c.delivery, c.span.SpanContext())
		}
	}
	c.span.End()
	if c.measures {
		ctx := trace.ContextWithSpan(context.Background(), c.span) // for exemplars
		c.processed.Record(ctx, time.Since(c.began).Seconds(), c.labels.call(c.delivery.Event.Type, c.delivery.Subscription, failure)...)
	}
}

// deadLettered makes a span of a dead letter.
func (t *telemetry) deadLettered(l eventbus.DeadLetter) {
	ctx, producer := extract(context.Background(), l.Event.Metadata)
	start := t.labels.accepted(settles, l.Event.Type)
	_, span := t.tracer.Start(ctx, start.name, start.options...)
	if span.IsRecording() {
		link(span, producer, toOrigin)
		link(span, t.failed.get(l.Event.ID, l.Subscription), toFailedAttempt)
		span.SetAttributes(
			semconv.MessagingMessageID(l.Event.ID.String()), semconv.MessagingDestinationSubscriptionName(l.Subscription),
			letterKey.String(l.ID.String()), reasonKey.String(string(l.Reason)), attemptKey.Int(l.Attempts), replaysKey.Int(l.Replays))
		span.SetStatus(codes.Error, "dead letter: "+string(l.Reason))
	}
	span.End()
}
