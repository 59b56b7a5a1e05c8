// Command observability follows one order through failures, a restart and a replay: in the log, in the metrics and in one trace.
//
//	go run ./examples/observability
//	go run ./examples/observability -spans    # also each span as JSON, as the stdout exporter of OpenTelemetry writes it
//
// A shop takes orders over HTTP and publishes an event for each. Its bus has a store in a SQLite file, and is observed with
//
//   - log/slog: WithSlog, the log of the bus;
//   - OpenTelemetry: the module observe/otel, spans and metrics;
//   - Prometheus: the module observe/prometheus, which GET /metrics serves.
//
// The bank is down, so the order becomes a dead letter. The program ends the bus, opens the file with a new bus, and replays the
// letter. The handler succeeds, and emits an invoice. The trace context is in the event's metadata, so all of this is one trace.
// The program prints it as a tree (print.go). It takes less than a second. The link from an attempt to the one that failed before
// it does not cross the restart: busotel remembers failed attempts in memory.
//
// The exit status is 1 if the trace is not connected, or a metric or a log entry is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/surebus/eventbus"
	busotel "github.com/surebus/eventbus/observe/otel"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Order is the payload of order.placed.
type Order struct {
	ID string `json:"id"`
}

func main() {
	json := flag.Bool("spans", false, "print each span as JSON when it ends")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *json); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout io.Writer, json bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "observability")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// The SDK of OpenTelemetry. In production, exporters send the spans and the metrics to a collector.
	spans, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	out := &output{to: stdout}
	processors := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(spans)}
	if json {
		exporter, err := stdouttrace.New(stdouttrace.WithWriter(out))
		if err != nil {
			return err
		}
		processors = append(processors, sdktrace.WithSyncer(exporter))
	}
	s := &setup{
		file:    filepath.Join(dir, "shop.db"),
		out:     out,
		traces:  sdktrace.NewTracerProvider(processors...),
		metrics: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		reader:  reader,
	}
	s.say("This program follows one order through failures, a restart and a replay: in the log, in the metrics and in one trace.")

	if err := s.failOrder(ctx); err != nil {
		return err
	}
	if err := s.replayOrder(ctx); err != nil {
		return err
	}
	s.section("5. The trace, by OpenTelemetry: from the request to the mail. In brackets: the links of a span")
	root, err := newTree(spans.Ended())
	if err != nil {
		return err
	}
	root.print(s.out, "")
	if err := root.check(s.out.all.String()); err != nil {
		return err
	}
	s.say("\nOK: one trace, through 2 attempts, a dead letter, a restart and a replay; the log and the metrics agree")
	return nil
}

// failOrder runs the shop while the bank is down. The order becomes a dead letter.
func (s *setup) failOrder(ctx context.Context) (err error) {
	s.section("1. The log, by slog: the bank is down, and an order becomes a dead letter")
	p, err := s.open(ctx, errors.New("the bank does not answer"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if err := errors.Join(p.placeOrder(ctx), p.settle(ctx)); err != nil {
		return err
	}
	s.section("2. The metrics: some lines of GET /metrics, which Prometheus scrapes, and what OpenTelemetry exports")
	err = p.scrape(ctx,
		`eventbus_type_events_total{bus="shop",type="order.placed"} 1`,
		`eventbus_type_retries_total{bus="shop",type="order.placed"} 1`,
		`eventbus_subscription_failures_total{bus="shop",subscription="billing"} 2`,
		`eventbus_store_dead_letters{bus="shop"} 1`)
	return errors.Join(err, p.export(ctx,
		"eventbus.dead_lettered order.placed: 1",
		"messaging.process.duration order.placed billing _OTHER: 2 calls"))
}

// replayOrder runs the shop again, on the same file, and replays the dead letter.
func (s *setup) replayOrder(ctx context.Context) (err error) {
	s.section("3. After a restart: a new bus opens the file, the bank is up, and an operator replays the dead letter")
	p, err := s.open(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if err := errors.Join(p.replay(ctx), p.settle(ctx)); err != nil {
		return err
	}
	s.section("4. The metrics after the replay. Counters of a bus begin at 0; OpenTelemetry's histogram is of both buses")
	err = p.scrape(ctx,
		`eventbus_type_events_total{bus="shop",type="invoice.created"} 1`,
		`eventbus_subscription_failures_total{bus="shop",subscription="billing"} 0`,
		`eventbus_subscription_successes_total{bus="shop",subscription="billing"} 1`,
		`eventbus_store_dead_letters{bus="shop"} 0`)
	return errors.Join(err, p.export(ctx,
		"messaging.process.duration invoice.created mail: 1 calls",
		"messaging.process.duration order.placed billing: 1 calls",
		"messaging.process.duration order.placed billing _OTHER: 2 calls"))
}

// setup is what both runs of the shop share.
type setup struct {
	file    string
	out     *output
	traces  *sdktrace.TracerProvider
	metrics *sdkmetric.MeterProvider
	reader  *sdkmetric.ManualReader
}

func (s *setup) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *setup) section(title string) { s.say("\n== %s", title) }

// shop is one run of the shop: a bus, and an HTTP server.
type shop struct {
	*setup
	bus         *eventbus.Bus
	stopMeasure func() error
	server      *http.Server
	url         string
}

// open starts the shop. The bank answers with bankError.
func (s *setup) open(ctx context.Context, bankError error) (*shop, error) {
	handler := slog.NewTextHandler(s.out, &slog.HandlerOptions{ReplaceAttr: withoutTimes})
	log := slog.New(handler)
	store, err := sqlite.Open(ctx, s.file)
	if err != nil {
		return nil, err
	}
	opts := append(busotel.Options(s.traces, s.metrics), eventbus.WithSlog(handler), eventbus.WithStore(store),
		eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(50*time.Millisecond)))
	bus, err := eventbus.New(opts...)
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	p := &shop{setup: s, bus: bus}
	// busotel runs each handler in a span, which is in the handler's context.
	traceID := func(ctx context.Context) slog.Attr {
		return slog.Any("trace_id", trace.SpanContextFromContext(ctx).TraceID())
	}
	_, err1 := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, o Order) error {
		log.InfoContext(ctx, "charging", "order", o.ID, traceID(ctx))
		if bankError != nil {
			return bankError
		}
		_, err := eventbus.Emit(ctx, "invoice.created", o) // published if this handler succeeds, in the same trace
		return err
	}), eventbus.Named("billing"))
	_, err2 := bus.Subscribe("invoice.created", eventbus.Typed(func(ctx context.Context, o Order) error {
		log.InfoContext(ctx, "mailing the invoice", "order", o.ID, traceID(ctx))
		return nil
	}), eventbus.Named("mail"))
	stop, err3 := busotel.Measure(bus, s.metrics)
	p.stopMeasure = stop
	if err := errors.Join(err1, err2, err3, bus.Start(ctx), p.serve(ctx)); err != nil {
		return nil, errors.Join(err, bus.Shutdown(ctx))
	}
	return p, nil
}

// serve serves POST /orders and GET /metrics.
func (p *shop) serve(ctx context.Context) error {
	collector, err := busprometheus.New(p.bus, "shop")
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	tracer := p.traces.Tracer("shop")
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		// The module otelhttp makes such a span. The bus continues the trace of the context that Publish gets.
		ctx, span := tracer.Start(r.Context(), "POST /orders", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		if _, err := p.bus.Publish(ctx, "order.placed", Order{ID: "o-17"}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.url = "http://" + listener.Addr().String()
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = p.server.Serve(listener) }() // until close
	return nil
}

// settle waits until all events are handled or dead letters, and the log has what the bus says about them.
func (p *shop) settle(ctx context.Context) error {
	return errors.Join(p.bus.Drain(ctx), p.bus.Logger().Sync())
}

func (p *shop) close(ctx context.Context) error {
	p.say("\nThe bus shuts down.")
	return errors.Join(p.server.Shutdown(ctx), p.stopMeasure(), p.bus.Shutdown(ctx))
}

func (p *shop) placeOrder(ctx context.Context) error {
	status, _, err := p.request(ctx, http.MethodPost, "/orders")
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("POST /orders: status %d", status)
	}
	return err
}

// replay replays the dead letter of billing, as an operator does on the admin page.
func (p *shop) replay(ctx context.Context) error {
	page, err := p.bus.DLQ().List(ctx, eventbus.LetterQuery{Subscription: "billing"})
	if err != nil {
		return err
	}
	if len(page.Letters) != 1 {
		return fmt.Errorf("billing has %d dead letters, want 1", len(page.Letters))
	}
	return p.bus.DLQ().Replay(ctx, page.Letters[0].ID, eventbus.By("anna"), eventbus.Because("the bank is up again"))
}
