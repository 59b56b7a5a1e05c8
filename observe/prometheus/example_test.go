package busprometheus_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/surebus/eventbus"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
)

// A program registers a collector for each bus and serves the registry.
func Example() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		panic(err)
	}
	collector, err := busprometheus.New(bus, "shop")
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	if err != nil {
		panic(err)
	}
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
		panic(err)
	}

	page := httptest.NewRecorder()
	handler.ServeHTTP(page, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "eventbus_type_events_total") || strings.HasPrefix(line, "eventbus_subscription_successes_total") {
			fmt.Print(line)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		panic(err)
	}
	// Output:
	// eventbus_subscription_successes_total{bus="shop",subscription="mail"} 1
	// eventbus_type_events_total{bus="shop",type="order.placed"} 1
}
