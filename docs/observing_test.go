package docs_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
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
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	stderr := os.Stderr
	os.Stderr = log
	defer func() { os.Stderr = stderr; require.NoError(t, log.Close()) }()
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})
	bus, err := eventbus.New(eventbus.WithSlog(handler))
	adopt(t, bus, err)
	failing, _ := failing(errBusy)
	_, err = bus.Subscribe("order.placed", failing, eventbus.Retry(eventbus.BaseDelay(time.Millisecond)))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	_, err = bus.Publish(t.Context(), "order.unknown", nil)
	require.NoError(t, err)
	require.NoError(t, bus.Shutdown(t.Context()))
	text, err := os.ReadFile(log.Name())
	require.Contains(t, string(text), `"level":"WARN","msg":"handler failed"`)
	require.Contains(t, string(text), `"level":"INFO","msg":"event type matches no subscription"`)
	return err
}

// The entries of the page's table have the fields that it lists, at its levels. WithSlog has no limit per second.
func TestPages_ObservingEntries(t *testing.T) {
	page, err := os.ReadFile("observing.md")
	require.NoError(t, err)
	var log logText
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t, eventbus.WithSlog(slog.NewJSONHandler(&log, nil)), eventbus.WithCircuit(eventbus.NoCircuit()))
		eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
		for _, s := range []struct {
			name   string
			handle eventbus.Handler
		}{
			{"stock", func(context.Context, eventbus.Event) error { return nil }},
			{"mail", eventbustest.Fail(errBusy)},
			{"crm", eventbustest.Fail(nil)},
		} {
			_, err := bus.Subscribe("order.placed", s.handle, eventbus.Named(s.name), eventbus.Retry(eventbus.MaxRetries(0)))
			require.NoError(t, err)
		}
		for range 200 {
			_, err := bus.PublishAndWait(t.Context(), "order.placed", "a secret")
			require.Error(t, err)
			synctest.Wait()
		}
	})
	require.NotContains(t, log.String(), "a secret")
	for message, level := range map[string]string{"handler failed": "warn", "event dead-lettered": "error"} {
		_, row, found := strings.Cut(string(page), "\n| `"+message+"` | "+level+" | ")
		require.True(t, found)
		row, _, _ = strings.Cut(row, "\n")
		entries := regexp.MustCompile(`(?m)^.*"msg":"`+message+`".*$`).FindAllString(log.String(), -1)
		require.Len(t, entries, 200)
		fields := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row, -1)
		require.Greater(t, len(fields), 6)
		for _, field := range fields {
			require.Contains(t, entries[0], `"`+field[1]+`":`)
		}
		require.Contains(t, entries[0], `"level":"`+strings.ToUpper(level)+`"`)
	}
}

func docsMetrics(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, rec := failing(errBusy)
	_, err := bus.Subscribe("order.placed", handler)
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	require.Len(t, rec.Deliveries(), 2)
	synctest.Wait()
	m := bus.Metrics()
	fmt.Println("dead letters:", m.DeadLetters)
	fmt.Println("retries of order.placed:", m.Types["order.placed"].Retries)
	fmt.Println("balanced:", m.Ledger.Balanced()) // exact at rest
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
	reader := sdkmetric.NewManualReader()
	meterProvider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
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
	failing, _ := failing(errBusy)
	_, err = bus.Subscribe("order.placed", failing, eventbus.Retry(eventbus.BaseDelay(time.Millisecond)))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(spans.Ended()) == 3 }, 10*time.Second, time.Millisecond, "a publication and two calls")
	for _, span := range spans.Ended() {
		require.Equal(t, spans.Ended()[0].SpanContext().TraceID(), span.SpanContext().TraceID(), "the trace goes on through the retry")
	}
	var measured metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &measured))
	names := make(map[string]bool)
	for _, scope := range measured.ScopeMetrics {
		for _, metric := range scope.Metrics {
			names[metric.Name] = true
		}
	}
	require.Contains(t, names, "eventbus.dead_letters")
	return nil
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
