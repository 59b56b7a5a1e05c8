package admin_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// BenchmarkLivePages publishes events until they are handled, while pages of the overview are open over HTTP.
func BenchmarkLivePages(b *testing.B) {
	for _, pages := range []int{0, 100} {
		b.Run(fmt.Sprint("pages=", pages), func(b *testing.B) {
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
			for range pages {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, server.URL+"/api/v1/live", nil)
				require.NoError(b, err)
				stream, err := server.Client().Do(r)
				require.NoError(b, err)
				require.Equal(b, http.StatusOK, stream.StatusCode)
				go func() {
					defer stream.Body.Close()
					_, _ = io.Copy(io.Discard, stream.Body)
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
