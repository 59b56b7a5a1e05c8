package admin_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// BenchmarkLivePages publishes events until they are handled, while pages are open and live over HTTP: the same one, pages of several
// kinds, and pages that are all different.
func BenchmarkLivePages(b *testing.B) {
	for _, of := range []struct {
		name  string
		pages int
		path  func(i int) string
	}{
		{"pages=0", 0, nil},
		{"pages=200/same", 200, func(int) string { return "/" }},
		{"pages=200/kinds", 200, func(i int) string {
			return []string{"/", "/groups", "/subscriptions", "/subscriptions/mail", "/letters"}[i%5]
		}},
		{"pages=200/different", 200, func(i int) string { return fmt.Sprint("/letters?limit=", i+1) }},
	} {
		b.Run(of.name, func(b *testing.B) {
			bus, err := eventbus.New()
			require.NoError(b, err)
			_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
			require.NoError(b, err)
			require.NoError(b, bus.Start(b.Context()))
			handler, err := admin.New(bus)
			require.NoError(b, err)
			server := httptest.NewServer(handler)
			defer server.Close()
			defer server.CloseClientConnections()
			for i := range of.pages {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, server.URL+of.path(i), nil)
				require.NoError(b, err)
				r.Header.Set("Accept", "text/event-stream")
				stream, err := server.Client().Do(r)
				require.NoError(b, err)
				require.Equal(b, http.StatusOK, stream.StatusCode)
				go func() {
					defer stream.Body.Close()
					_, _ = io.Copy(io.Discard, bufio.NewReader(stream.Body))
				}()
			}
			for b.Loop() {
				if _, err := bus.Publish(b.Context(), "order.placed", nil); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, bus.Shutdown(context.Background()))
		})
	}
}

// benchedPages are the pages that BenchmarkPages loads.
var benchedPages = []string{
	"/", "/groups", "/letters", "/letters?error=no+such+text", "/letters?subscription=billing-3", "/subscriptions", "/subscriptions?sort=-failures", "/subscriptions/billing-3",
	"/events", "/audit", "/operations", "/bulk?action=replay_matching&subscription=billing-3", "/api/v1/overview",
}

// BenchmarkPages loads each page of a bus with 200,000 dead letters of 200 causes, or 2,000 with -short.
func BenchmarkPages(b *testing.B) {
	const subscriptions, errorTexts = 20, 10
	letters := 200_000
	if testing.Short() {
		letters = 2_000
	}
	bus, err := eventbus.New(eventbus.WithDeadLetterCapacity(letters), eventbus.WithLogger(zap.NewNop()))
	require.NoError(b, err)
	for i := range subscriptions {
		_, err = bus.Subscribe(fmt.Sprintf("order.%d", i), func(_ context.Context, e eventbus.Event) error {
			return eventbus.Permanent(errors.New("bank says " + string(rune('a'+e.Payload.(int)%errorTexts))))
		}, eventbus.Named(fmt.Sprintf("billing-%d", i)), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(b, err)
	}
	require.NoError(b, bus.Start(b.Context()))
	for i := range letters {
		_, err := bus.Publish(b.Context(), fmt.Sprintf("order.%d", i%subscriptions), i/subscriptions)
		require.NoError(b, err)
	}
	require.NoError(b, bus.Drain(b.Context()))
	handler, err := admin.New(bus, admin.WithAuthorizer(everyone))
	require.NoError(b, err)
	for _, page := range benchedPages {
		b.Run("page="+page, func(b *testing.B) {
			for b.Loop() {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, page, nil)
				r.Host = "localhost"
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				require.Equal(b, http.StatusOK, w.Code, w.Body)
			}
		})
	}
	require.NoError(b, bus.Shutdown(context.Background()))
}
