package busotel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	busotel "github.com/surebus/eventbus/observe/otel"
	"github.com/surebus/eventbus/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// telemetry is an SDK that records spans and metrics.
type telemetry struct {
	spans   *tracetest.SpanRecorder
	tracing *sdktrace.TracerProvider
	reader  *sdkmetric.ManualReader
	metrics *sdkmetric.MeterProvider
}

func newTelemetry() *telemetry {
	spans, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	return &telemetry{
		spans, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithCardinalityLimit(0)),
	}
}

// bus returns a bus that is not started, and has a logger that discards.
func (o *telemetry) bus(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	return newBus(t, append(busotel.Options(o.tracing, o.metrics), opts...)...)
}

func newBus(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithLogger(zap.NewNop()), eventbus.WithCircuit(eventbus.NoCircuit())}, opts...)...)
	require.NoError(t, err)
	return bus
}

func subscribe(t testing.TB, bus *eventbus.Bus, pattern, name string, handler eventbus.Handler, opts ...eventbus.SubscribeOption) {
	t.Helper()
	_, err := bus.Subscribe(pattern, handler, append(opts, eventbus.Named(name))...)
	require.NoError(t, err)
}

func start(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	require.NoError(t, bus.Start(context.Background()))
}

func shutdown(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	require.NoError(t, bus.Shutdown(context.Background()))
}

// named returns the ended spans with a name, in the order in which they ended.
func (o *telemetry) named(name string) (spans []sdktrace.ReadOnlySpan) {
	for _, s := range o.spans.Ended() {
		if s.Name() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// one returns the only span with a name.
func (o *telemetry) one(t *testing.T, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := o.named(name)
	require.Len(t, spans, 1, name)
	return spans[0]
}

func attributes(all []attribute.KeyValue) map[string]string {
	m := make(map[string]string, len(all))
	for _, a := range all {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

// links returns the spans to which a span links, by the attribute eventbus.link.
func links(s sdktrace.ReadOnlySpan) map[string]trace.SpanID {
	m := make(map[string]trace.SpanID)
	for _, l := range s.Links() {
		m[attributes(l.Attributes)["eventbus.link"]] = l.SpanContext.SpanID()
	}
	return m
}

func id(s sdktrace.ReadOnlySpan) trace.SpanID { return s.SpanContext().SpanID() }

// requireChild checks that a span is a child of another one, in its trace, with a link to it as the origin.
func requireChild(t *testing.T, child, parent sdktrace.ReadOnlySpan) {
	t.Helper()
	require.Equal(t, parent.SpanContext().TraceID(), child.SpanContext().TraceID())
	require.Equal(t, id(parent), child.Parent().SpanID())
	require.Equal(t, id(parent), links(child)["origin"])
}

func TestSpans_AHandlerContinuesTheTraceOfItsPublisher(t *testing.T) {
	type order struct{ Cents int }
	placed := eventbus.NewTopic[order]("order.placed")
	o := newTelemetry()
	bus := o.bus(t)
	var inHandler trace.SpanContext
	_, err := placed.Subscribe(bus, func(ctx context.Context, _ order) error {
		inHandler = trace.SpanContextFromContext(ctx)
		return nil
	}, eventbus.Named("billing"))
	require.NoError(t, err)
	start(t, bus)
	ctx, request := o.tracing.Tracer("test").Start(context.Background(), "request")
	r, err := placed.PublishAndWait(ctx, bus, order{1700}, eventbus.Key("secret"))
	require.NoError(t, err)
	request.End()
	shutdown(t, bus)

	publish, process := o.one(t, "publish order.placed"), o.one(t, "process order.placed")
	require.Equal(t, request.SpanContext().TraceID(), publish.SpanContext().TraceID())
	require.Equal(t, request.SpanContext().SpanID(), publish.Parent().SpanID())
	requireChild(t, process, publish)
	require.Equal(t, process.SpanContext(), inHandler)
	require.Equal(t, trace.SpanKindProducer, publish.SpanKind())
	require.Equal(t, trace.SpanKindConsumer, process.SpanKind())
	require.Equal(t, map[string]string{
		"messaging.system": "eventbus", "messaging.operation.name": "publish", "messaging.operation.type": "send",
		"messaging.destination.name": "order.placed", "messaging.message.id": r.ID.String(),
	}, attributes(publish.Attributes()))
	require.Equal(t, map[string]string{
		"messaging.system": "eventbus", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "order.placed", "messaging.message.id": r.ID.String(),
		"messaging.destination.subscription.name": "billing", "eventbus.attempt": "1", "eventbus.replays": "0",
	}, attributes(process.Attributes()))
	require.Equal(t, codes.Unset, process.Status().Code)
}

func TestSpans_ARetryLinksToTheFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		bus := o.bus(t)
		subscribe(t, bus, "order.*", "billing", func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt < 3 {
				return eventbus.RetryAfter(errBoom, time.Minute)
			}
			return nil
		})
		start(t, bus)
		_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
		require.NoError(t, err)
		shutdown(t, bus)

		publish, attempts := o.one(t, "publish order.placed"), o.named("process order.placed")
		require.Len(t, attempts, 3)
		for i, attempt := range attempts {
			requireChild(t, attempt, publish)
			require.Equal(t, fmt.Sprint(i+1), attributes(attempt.Attributes())["eventbus.attempt"])
		}
		require.NotContains(t, links(attempts[0]), "failed_attempt")
		require.Equal(t, id(attempts[0]), links(attempts[1])["failed_attempt"])
		require.Equal(t, id(attempts[1]), links(attempts[2])["failed_attempt"])
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "boom"}, attempts[0].Status())
		require.Equal(t, "*errors.errorString", attributes(attempts[0].Attributes())["error.type"])
		require.Equal(t, codes.Unset, attempts[2].Status().Code)
		require.GreaterOrEqual(t, attempts[2].StartTime().Sub(attempts[0].StartTime()), 2*time.Minute)
	})
}

// The store of a bus has the trace: it goes on in the next process, through the dead letter, its handler and its replay.
func TestSpans_ATraceRunsThroughRestartDeadLetterAndReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, disk := newTelemetry(), storetest.NewModel()
		before := o.bus(t, eventbus.WithStore(disk.Open()))
		subscribe(t, before, "order.*", "billing", func(context.Context, eventbus.Event) error { return nil })
		start(t, before)
		_, err := before.Publish(t.Context(), "order.placed", nil, eventbus.After(time.Second))
		require.NoError(t, err)
		shutdown(t, before)

		bus := o.bus(t, eventbus.WithStore(disk.Open()))
		repaired := false
		subscribe(t, bus, "order.*", "billing", func(context.Context, eventbus.Event) error {
			if repaired {
				return nil
			}
			return eventbus.Permanent(errBoom)
		})
		_, err = bus.OnDeadLetter("order.*", func(context.Context, eventbus.DeadLetter) error { return nil }, eventbus.Named("letters"))
		require.NoError(t, err)
		start(t, bus)
		time.Sleep(time.Minute)
		publish, failed := o.one(t, "publish order.placed"), o.one(t, "process order.placed")
		requireChild(t, failed, publish)
		letter := o.one(t, "dead_letter order.placed")
		requireChild(t, letter, publish)
		require.Equal(t, id(failed), links(letter)["failed_attempt"])
		require.Equal(t, "permanent", attributes(letter.Attributes())["eventbus.reason"])
		require.Equal(t, codes.Error, letter.Status().Code)
		requireChild(t, o.one(t, "process eventbus.dead_letter"), publish)

		repaired = true
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Len(t, page.Letters, 1)
		require.NoError(t, bus.DLQ().Replay(t.Context(), page.Letters[0].ID))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		replayed := o.named("process order.placed")
		require.Len(t, replayed, 2)
		requireChild(t, replayed[1], publish)
		require.Equal(t, id(failed), links(replayed[1])["failed_attempt"])
		require.Equal(t, "1", attributes(replayed[1].Attributes())["eventbus.replays"])
	})
}

// An emitted event is a child of the call that emits it, and links to the origin of the event being handled. The baggage goes along.
func TestSpans_EmittedEventsLinkToTheirOrigin(t *testing.T) {
	o := newTelemetry()
	bus := o.bus(t)
	done := make(chan string, 1)
	subscribe(t, bus, "order.placed", "billing", func(ctx context.Context, _ eventbus.Event) error {
		_, err := eventbus.Emit(ctx, "invoice.created", nil)
		return err
	})
	subscribe(t, bus, "invoice.created", "mail", func(ctx context.Context, _ eventbus.Event) error {
		done <- baggage.FromContext(ctx).Member("tenant").Value()
		return nil
	})
	start(t, bus)
	member, err := baggage.NewMemberRaw("tenant", "Zürich, \n\"Nord\"")
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	_, err = bus.Publish(baggage.ContextWithBaggage(context.Background(), bag), "order.placed", nil)
	require.NoError(t, err)
	require.Equal(t, "Zürich, \n\"Nord\"", <-done)
	shutdown(t, bus)

	publish, process := o.one(t, "publish order.placed"), o.one(t, "process order.placed")
	emit := o.one(t, "emit invoice.created")
	require.Equal(t, id(process), emit.Parent().SpanID())
	require.Equal(t, id(publish), links(emit)["origin"])
	require.Equal(t, "create", attributes(emit.Attributes())["messaging.operation.type"])
	requireChild(t, o.one(t, "process invoice.created"), emit)
	require.Equal(t, publish.SpanContext().TraceID(), emit.SpanContext().TraceID())
}

func TestSpans_BatchesTransactionsAndIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, disk := newTelemetry(), storetest.NewModel()
		bus := o.bus(t, eventbus.WithStore(disk.Open()), eventbus.WithIsolation())
		handle := func(context.Context, eventbus.Event) error { return nil }
		subscribe(t, bus, "*", "a", handle)
		subscribe(t, bus, "*", "b", handle)
		start(t, bus)
		_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "batch.a"}, {Type: "batch.b"}})
		require.NoError(t, err)
		tx := disk.Begin()
		_, err = bus.PublishTx(t.Context(), tx, "in.tx", nil)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		time.Sleep(time.Minute)
		shutdown(t, bus)
		for _, eventType := range []string{"batch.a", "batch.b", "in.tx"} {
			publish, calls := o.one(t, "publish "+eventType), o.named("process "+eventType)
			require.Len(t, calls, 2)
			for _, call := range calls {
				requireChild(t, call, publish)
			}
		}
	})
}

// A refused publication, a panic, a timeout and a snooze are what the spans say they are.
func TestSpans_Outcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTelemetry()
		bus := o.bus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		release := make(chan struct{})
		snoozed := false
		subscribe(t, bus, "*", "all", func(_ context.Context, e eventbus.Event) error {
			switch e.Type {
			case "panics":
				panic("boom")
			case "hangs":
				<-release
			case "snoozes":
				if !snoozed {
					snoozed = true
					return eventbus.Snooze(time.Minute)
				}
			case "hostile":
				return hostileError{}
			case "cycle":
				return cycle{}
			}
			return nil
		}, eventbus.Timeout(time.Second))
		start(t, bus)
		for _, eventType := range []string{"panics", "hangs", "hostile", "cycle"} {
			_, err := bus.PublishAndWait(t.Context(), eventType, nil)
			require.Error(t, err)
			synctest.Wait()
			process := o.one(t, "process "+eventType)
			require.Equal(t, codes.Error, process.Status().Code)
			want := map[string]string{"panics": "panic", "hangs": "timeout", "hostile": "_OTHER", "cycle": "_OTHER"}
			require.Equal(t, want[eventType], attributes(process.Attributes())["error.type"])
			require.Equal(t, codes.Error, o.one(t, "publish "+eventType).Status().Code)
		}
		require.InDelta(t, time.Second, o.one(t, "process hangs").EndTime().Sub(o.one(t, "process hangs").StartTime()), float64(10*time.Millisecond))
		close(release)
		_, err := bus.PublishAndWait(t.Context(), "snoozes", nil)
		require.NoError(t, err)
		snoozes := o.named("process snoozes")
		require.Len(t, snoozes, 2)
		require.Equal(t, codes.Unset, snoozes[0].Status().Code)
		require.Equal(t, "snoozed", attributes(snoozes[0].Attributes())["eventbus.outcome"])
		shutdown(t, bus)

		_, err = bus.Publish(t.Context(), "late", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		late := o.one(t, "publish late")
		require.Equal(t, codes.Error, late.Status().Code)
		require.NotContains(t, attributes(late.Attributes()), "messaging.message.id")
	})
}

// hostileError panics in each method.
type hostileError struct{}

func (hostileError) Error() string        { panic("Error") }
func (hostileError) ErrorType() string    { panic("ErrorType") }
func (hostileError) Is(target error) bool { panic("Is") }

// cycle wraps itself.
type cycle struct{}

func (cycle) Error() string   { return "cycle" }
func (c cycle) Unwrap() error { return c }

// Metadata that is no trace context is ignored, and neither a publication nor a delivery fails.
func TestHostile_Metadata(t *testing.T) {
	o := newTelemetry()
	bus := o.bus(t)
	var calls atomic.Int64
	subscribe(t, bus, "*", "all", func(context.Context, eventbus.Event) error { calls.Add(1); return nil })
	start(t, bus)
	values := []string{
		"", "-", "\n", "00-1-1-1", strings.Repeat("0", 8<<10), strings.Repeat("a=b,", 2<<10), "00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01",
		"ff-" + strings.Repeat("1", 32) + "-" + strings.Repeat("1", 16) + "-01", "a=\r\nInjected: header", "=;=;=,,,", "a=%zz", "\u0000", strings.Repeat("ü", 4<<10),
	}
	for _, value := range values {
		_, err := bus.PublishAndWait(context.Background(), "x", nil, eventbus.Metadata("traceparent", value), eventbus.Metadata("tracestate", value), eventbus.Metadata("baggage", value))
		require.NoError(t, err)
	}
	require.EqualValues(t, len(values), calls.Load())
	for _, process := range o.named("process x") {
		require.False(t, process.Parent().IsValid())
	}
	full := make([]eventbus.PublishOption, 64)
	for i := range full {
		full[i] = eventbus.Metadata(fmt.Sprint(i), "")
	}
	_, err := bus.PublishAndWait(context.Background(), "full", nil, full...)
	require.NoError(t, err)

	// A context with more than an event can have.
	var members []baggage.Member
	for i := range 60 {
		m, err := baggage.NewMemberRaw(fmt.Sprint("k", i), strings.Repeat("\n", 120))
		require.NoError(t, err)
		members = append(members, m)
	}
	bag, _ := baggage.New(members...)
	_, err = bus.PublishAndWait(baggage.ContextWithBaggage(context.Background(), bag), "bags", nil)
	require.NoError(t, err)
	requireChild(t, o.one(t, "process bags"), o.one(t, "publish bags"))

	// A type that no bus accepts.
	_, err = bus.Publish(context.Background(), strings.Repeat("x", 1<<20), nil)
	require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
	_, err = bus.Publish(context.Background(), "a\xff\n", nil)
	require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
	require.Len(t, o.named("publish *"), 2)
	shutdown(t, bus)
}

// A trace context that the publisher gives counts, without the tracestate of another.
func TestSpans_GivenTraceContext(t *testing.T) {
	o := newTelemetry()
	bus := o.bus(t, eventbus.WithInheritedMetadata("traceparent"))
	subscribe(t, bus, "*", "all", func(context.Context, eventbus.Event) error { return nil })
	start(t, bus)
	state, err := trace.ParseTraceState("ours=1")
	require.NoError(t, err)
	ours := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceState: state, TraceFlags: trace.FlagsSampled})
	theirs := "00-" + strings.Repeat("2", 32) + "-" + strings.Repeat("2", 16) + "-01"
	_, err = bus.PublishAndWait(trace.ContextWithSpanContext(context.Background(), ours), "x", nil, eventbus.Metadata("traceparent", theirs))
	require.NoError(t, err)
	shutdown(t, bus)
	process := o.one(t, "process x")
	require.Equal(t, strings.Repeat("2", 32), process.SpanContext().TraceID().String())
	require.Empty(t, process.SpanContext().TraceState().String())
}

// points returns the values of a metric, by an attribute.
func (o *telemetry) points(t *testing.T, name, by string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, o.reader.Collect(context.Background(), &all))
	values := make(map[string]int64)
	label := func(set attribute.Set) string {
		if v, ok := set.Value(attribute.Key(by)); ok {
			return v.AsString()
		}
		return ""
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] += int64(p.Count)
				}
			}
		}
	}
	return values
}

func TestMetrics_OfABus(t *testing.T) {
	o := newTelemetry()
	bus := o.bus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
	stop, err := busotel.Measure(bus, o.metrics)
	require.NoError(t, err)
	subscribe(t, bus, "*", "all", func(_ context.Context, e eventbus.Event) error {
		if e.Type == "bad" {
			return errBoom
		}
		return nil
	})
	start(t, bus)
	for _, eventType := range []string{"good", "good", "bad"} {
		_, _ = bus.PublishAndWait(context.Background(), eventType, nil)
	}
	const destination, subscription = "messaging.destination.name", "messaging.destination.subscription.name"
	require.Equal(t, map[string]int64{"good": 2, "bad": 1}, o.points(t, "messaging.client.sent.messages", destination))
	require.Equal(t, map[string]int64{"good": 2, "bad": 1}, o.points(t, "messaging.client.operation.duration", destination))
	require.Equal(t, map[string]int64{"good": 2, "bad": 1}, o.points(t, "messaging.process.duration", destination))
	require.Equal(t, map[string]int64{"": 2, "_OTHER": 1}, o.points(t, "messaging.process.duration", "error.type"))
	require.Equal(t, map[string]int64{"all": 3}, o.points(t, "messaging.client.consumed.messages", subscription))
	require.Equal(t, map[string]int64{"all": 1}, o.points(t, "eventbus.handler.failures", subscription))
	require.Equal(t, map[string]int64{"good": 0, "bad": 1}, o.points(t, "eventbus.dead_lettered", destination))
	require.Equal(t, map[string]int64{"": 1}, o.points(t, "eventbus.dead_letters", "none"))
	settled := o.points(t, "eventbus.dispatches.settled", "eventbus.outcome")
	require.EqualValues(t, 2, settled["handled"])
	require.EqualValues(t, 1, settled["dead-lettered"])
	require.NoError(t, stop())
	require.Empty(t, o.points(t, "eventbus.dead_letters", "none"))
	shutdown(t, bus)

	_, err = busotel.Measure(nil, o.metrics)
	var optionErr *eventbus.OptionError
	require.ErrorAs(t, err, &optionErr)
}

// A handler that never returns is measured at its timeout, whether or not its span is sampled.
func TestMetrics_ATimeoutIsMeasuredWithoutASpan(t *testing.T) {
	for _, sampler := range []sdktrace.Sampler{sdktrace.AlwaysSample(), sdktrace.NeverSample()} {
		synctest.Test(t, func(t *testing.T) {
			o := newTelemetry()
			tracing := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler))
			bus := newBus(t, append(busotel.Options(tracing, o.metrics), eventbus.WithRetry(eventbus.MaxRetries(0)))...)
			release := make(chan struct{})
			subscribe(t, bus, "*", "all", func(context.Context, eventbus.Event) error { <-release; return nil }, eventbus.Timeout(time.Second))
			start(t, bus)
			_, err := bus.PublishAndWait(t.Context(), "hangs", nil)
			require.Error(t, err)
			synctest.Wait()
			want := map[string]int64{"timeout": 1}
			require.Equal(t, want, o.points(t, "messaging.process.duration", "error.type"))
			close(release)
			shutdown(t, bus)
			require.Equal(t, want, o.points(t, "messaging.process.duration", "error.type"))
		})
	}
}

// 10,000 types and 2,000 subscriptions do not have as many attributes.
func TestMetrics_AreBounded(t *testing.T) {
	o := newTelemetry()
	bus := newBus(t, busotel.Options(tracenoop.NewTracerProvider(), o.metrics)...)
	stop, err := busotel.Measure(bus, o.metrics)
	require.NoError(t, err)
	for i := range 2_000 {
		subscribe(t, bus, fmt.Sprintf("type%d", i), fmt.Sprint("sub", i), func(context.Context, eventbus.Event) error { return nil })
	}
	start(t, bus)
	for i := range 10_000 {
		_, err := bus.PublishAndWait(context.Background(), fmt.Sprintf("type%d", i), nil)
		require.NoError(t, err)
	}
	const destination, subscription = "messaging.destination.name", "messaging.destination.subscription.name"
	for name, by := range map[string]string{
		"messaging.client.sent.messages": destination, "messaging.client.operation.duration": destination,
		"messaging.process.duration": subscription, "messaging.client.consumed.messages": subscription,
	} {
		points := o.points(t, name, by)
		require.Len(t, points, 1001, name)
		var sum int64
		for _, n := range points {
			sum += n
		}
		if by == destination {
			require.EqualValues(t, 10_000, sum, name)
			require.EqualValues(t, 9_000, points[eventbus.OtherTypes], name)
		} else {
			require.EqualValues(t, 2_000, sum, name)
		}
	}
	require.NoError(t, stop())
	shutdown(t, bus)
}

// A provider that is shut down before the bus changes nothing for the bus. Without a provider, the context still travels.
func TestProviders_ShutDownAndNil(t *testing.T) {
	o := newTelemetry()
	var nobody *sdktrace.TracerProvider
	var nothing *sdkmetric.MeterProvider
	buses := []*eventbus.Bus{
		o.bus(t), newBus(t, busotel.Options(nil, nil)...), newBus(t, busotel.Options(nobody, nothing)...),
		newBus(t, busotel.Options(tracenoop.NewTracerProvider(), noop.NewMeterProvider())...),
	}
	stop, err := busotel.Measure(buses[0], o.metrics)
	require.NoError(t, err)
	require.NoError(t, o.tracing.Shutdown(context.Background()))
	require.NoError(t, o.metrics.Shutdown(context.Background()))
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	for i, bus := range buses {
		var got trace.SpanContext
		subscribe(t, bus, "*", "all", func(ctx context.Context, _ eventbus.Event) error {
			got = trace.SpanContextFromContext(ctx)
			return nil
		})
		start(t, bus)
		_, err := bus.PublishAndWait(trace.ContextWithSpanContext(context.Background(), sc), "x", nil)
		require.NoError(t, err)
		require.Equal(t, sc.TraceID(), got.TraceID())
		if i > 0 { // an SDK that is shut down still makes ids
			require.Equal(t, sc.SpanID(), got.SpanID())
		}
		shutdown(t, bus)
	}
	require.Empty(t, o.spans.Ended())
	require.NoError(t, stop())
	stop, err = busotel.Measure(buses[1], nil)
	require.NoError(t, err)
	require.NoError(t, stop())
}

// FuzzMetadata: whatever the metadata says, the event is handled, and goes on with a valid context or with none.
func FuzzMetadata(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=value", "a=b;c=d")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", "a=\x00", "%=%")
	f.Add(strings.Repeat("0", 55), strings.Repeat("a=b,", 40), strings.Repeat("k=v,", 100))
	bus := newBus(f, busotel.Options(tracenoop.NewTracerProvider(), noop.NewMeterProvider())...)
	var emitted chan map[string]string
	subscribe(f, bus, "first", "first", func(ctx context.Context, _ eventbus.Event) error {
		_, err := bus.Publish(ctx, "second", nil)
		return err
	})
	subscribe(f, bus, "second", "second", func(_ context.Context, e eventbus.Event) error {
		emitted <- maps.Collect(e.Metadata.All())
		return nil
	})
	start(f, bus)
	f.Cleanup(func() { shutdown(f, bus) })
	f.Fuzz(func(t *testing.T, parent, state, bag string) {
		var opts []eventbus.PublishOption
		for name, value := range map[string]string{"traceparent": parent, "tracestate": state, "baggage": bag} {
			if len(value) <= 8<<10 && strings.ToValidUTF8(value, "") == value {
				opts = append(opts, eventbus.Metadata(name, value))
			}
		}
		emitted = make(chan map[string]string, 1)
		_, err := bus.PublishAndWait(context.Background(), "first", nil, opts...)
		require.NoError(t, err)
		for name, value := range <-emitted {
			require.Contains(t, []string{"traceparent", "tracestate", "baggage"}, name)
			require.False(t, slices.ContainsFunc([]byte(value), func(b byte) bool { return b < ' ' }), "%s: %q", name, value)
		}
	})
}

// BenchmarkEvent measures an event from Publish to the end of its handler. The difference to "without" is what this package costs.
func BenchmarkEvent(b *testing.B) {
	sdk := newTelemetry()
	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	traced := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
	for _, c := range []struct {
		name string
		ctx  context.Context
		opts []eventbus.Option
	}{
		{"without", context.Background(), nil},
		{"noop", context.Background(), busotel.Options(tracenoop.NewTracerProvider(), noop.NewMeterProvider())},
		{"noop,traced", traced, busotel.Options(tracenoop.NewTracerProvider(), noop.NewMeterProvider())},
		{"unsampled", context.Background(), busotel.Options(unsampled, noop.NewMeterProvider())},
		{"metrics", context.Background(), busotel.Options(tracenoop.NewTracerProvider(), sdk.metrics)},
	} {
		b.Run(c.name, func(b *testing.B) {
			bus := newBus(b, append(c.opts, eventbus.WithConcurrency(4))...)
			subscribe(b, bus, "order.placed", "billing", func(context.Context, eventbus.Event) error { return nil })
			start(b, bus)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bus.Publish(c.ctx, "order.placed", nil); err != nil {
					b.Fatal(err)
				}
			}
			shutdown(b, bus)
		})
	}
}
