package busotel_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/surebus/eventbus"
	busotel "github.com/surebus/eventbus/observe/otel"
)

func Example() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter() // a program has one for OTLP
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	metrics := sdkmetric.NewMeterProvider()

	bus, err := eventbus.New(busotel.Options(tracing, metrics)...)
	if err != nil {
		panic(err)
	}
	stop, err := busotel.Measure(bus, metrics)
	if err != nil {
		panic(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		_, err := eventbus.Emit(ctx, "invoice.created", nil)
		return err
	}, eventbus.Named("billing"))
	if err != nil {
		panic(err)
	}
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
		panic(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		panic(err)
	}
	if err := stop(); err != nil {
		panic(err)
	}
	all := spans.GetSpans()
	for _, s := range all {
		fmt.Println(s.Name, s.SpanContext.TraceID() == all[0].SpanContext.TraceID())
	}

	// Unordered output:
	// emit invoice.created true
	// process order.placed true
	// publish order.placed true
}
