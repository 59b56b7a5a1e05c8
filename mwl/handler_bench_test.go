package mwl_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl"
)

// BenchmarkHandler is a definition that only returns, through the bus, against a plain
// handler. The bound of the difference is 5 µs.
func BenchmarkHandler(b *testing.B) {
	definition, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "done",
		"steps": {"done": {"action": "Return", "value": {"ok": true}}}}`))
	require.NoError(b, err)
	flow, err := definition.Handler()
	require.NoError(b, err)
	for name, handler := range map[string]eventbus.Handler{
		"plain": func(context.Context, eventbus.Event) error { return nil },
		"flow":  flow,
	} {
		b.Run(name, func(b *testing.B) {
			bus, err := eventbus.New()
			require.NoError(b, err)
			_, err = bus.Subscribe("order.placed", handler, eventbus.Named("flow"))
			require.NoError(b, err)
			require.NoError(b, bus.Start(context.Background()))
			payload := map[string]any{"order": "o-1", "total": 12.5}
			b.ReportAllocs()
			for b.Loop() {
				_, err := bus.PublishAndWait(context.Background(), "order.placed", payload)
				if err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, bus.Shutdown(context.Background()))
		})
	}
}
