package docs_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	busotel "github.com/surebus/eventbus/observe/otel"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
)

func TestDocs_Observing(t *testing.T) {
	docpagetest.Page(t, "observing.md",
		docpagetest.Code(docsSlog),
		docpagetest.InBubble(docsMetrics),
		docpagetest.Code(docsPrometheus),
		docpagetest.Code(docsTraces),
		docpagetest.InBubble(docsEvent),
		docpagetest.InBubble(docsObserver),
	)
}

// adopt ends a bus of a block with its test.
func adopt(t *testing.T, bus *eventbus.Bus, err error) {
	t.Helper()
	require.NoError(t, err)
	eventbustest.Adopt(t, bus)
	require.NoError(t, bus.Start(context.WithoutCancel(t.Context())))
}

func docsSlog(t *testing.T) error {
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})
	bus, err := eventbus.New(eventbus.WithSlog(handler))
	adopt(t, bus, err)
	return nil
}

func docsMetrics(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, rec := failing(errBusy)
	_, err := bus.Subscribe("order.placed", handler)
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	require.Len(t, rec.Deliveries(), 2)
	m := bus.Metrics()
	fmt.Println("dead letters:", m.DeadLetters)
	fmt.Println("retries of order.placed:", m.Types["order.placed"].Retries)
	fmt.Println("balanced:", m.Ledger.Balanced())
	return nil
}

func docsPrometheus(t *testing.T) error {
	bus, registry, mux := eventbustest.New(t), prometheus.NewRegistry(), http.NewServeMux()
	collector, err := busprometheus.New(bus, "shop") // the value of the label bus
	if err != nil {
		return err
	}
	if err := registry.Register(collector); err != nil {
		return err
	}
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	page := httptest.NewRecorder()
	mux.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	require.Contains(t, page.Body.String(), `eventbus_dead_letters{bus="shop"} 0`)
	return nil
}

func docsTraces(t *testing.T) error {
	spans := tracetest.NewSpanRecorder()
	tracerProvider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	meterProvider := sdkmetric.NewMeterProvider()
	handler := slog.DiscardHandler
	opts := busotel.Options(tracerProvider, meterProvider) // nil: the global providers
	bus, err := eventbus.New(append(opts, eventbus.WithSlog(handler))...)
	if err != nil {
		return err
	}
	stop, err := busotel.Measure(bus, meterProvider) // bus.Metrics as OpenTelemetry metrics
	if err != nil {
		return err
	}
	defer stop()
	adopt(t, bus, nil)
	_, err = bus.Publish(t.Context(), "order.placed", nil)
	require.Len(t, spans.Ended(), 1)
	return err
}

func docsEvent(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	handler, _ := failing()
	_, err := bus.Subscribe("order.placed", handler, eventbus.Named("mail"))
	require.NoError(t, err)
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	if err != nil {
		return err
	}
	status, err := bus.Event(ctx, result.ID)
	if err != nil {
		return err
	}
	fmt.Println(status.Settled[0].Subscription, status.Settled[0].Outcome)
	return nil
}

func docsObserver(t *testing.T) error {
	bus, err := eventbus.New(eventbus.WithObserver(eventbus.Observer{
		DeadLettered: func(letter eventbus.DeadLetter) { fmt.Println("dead:", letter.Event.Type, letter.Reason) },
	}))
	adopt(t, bus, err)
	handler, _ := failing(eventbus.Permanent(errBusy))
	_, err = bus.Subscribe("order.placed", handler)
	require.NoError(t, err)
	_, err = bus.Publish(t.Context(), "order.placed", nil)
	eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	return err
}
