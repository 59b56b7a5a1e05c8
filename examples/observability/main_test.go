package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestRun_OneTraceThroughARestart(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, true), "%s", &out)
	require.Equal(t, 8, strings.Count(out.String(), "\n{\"Name\":"), "spans by the stdout exporter")
	require.Contains(t, out.String(), want)
	for _, line := range []string{
		`(?m)^level=WARN msg="handler failed" .* attempt=2 `,
		`(?m)^level=ERROR msg="event dead-lettered" `,
		`(?m)^level=INFO msg="operator action" .* action=replay by=anna `,
		`(?m)^eventbus_store_dead_letters{bus="shop"} 1$`,
		`(?m)^eventbus_store_dead_letters{bus="shop"} 0$`,
		`(?m)^messaging.process.duration order.placed billing _OTHER: 2 calls$`,
		`(?m)^OK: one trace`,
	} {
		require.Regexp(t, line, out.String())
	}
}

func TestTree_NoticesAnotherTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
	ctx, request := tracer.Start(t.Context(), "POST /orders")
	_, child := tracer.Start(ctx, "publish order.placed")
	child.End()
	request.End()
	root, err := newTree(spans.Ended())
	require.NoError(t, err)
	var out bytes.Buffer
	root.print(&out, "")
	require.Equal(t, "#1 POST /orders\n   #2 publish order.placed\n", out.String())
	require.ErrorContains(t, root.check(""), "is not the one that the program shows")

	_, other := tracer.Start(t.Context(), "process order.placed")
	other.End()
	_, err = newTree(spans.Ended())
	require.ErrorContains(t, err, `2 roots: ["POST /orders" "process order.placed"]`)
}
