package mwl_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// A definition may compute the type and the code of a failure from data. A span has
// only the beginning of them.
func TestObserver_CutsTypesAndCodes(t *testing.T) {
	def := load(t, `"entrypoint": "no", "steps": {"no": {"action": "Raise", "result": {"type": "{{ 'T' + frame.input }}", "code": "{{ 'C' + frame.input }}"}}}`, nil)
	var trace mwl.Trace
	result := def.Execute(t.Context(), strings.Repeat("x", 1000), mwl.WithObserver(trace.Observer()))
	require.Len(t, result.Failure.Code, 1001)
	require.Len(t, trace.Spans(), 2)
	for _, s := range trace.Spans() {
		require.Equal(t, "T"+strings.Repeat("x", 127)+"…", s.Outcome)
		require.Equal(t, "C"+strings.Repeat("x", 127)+"…", s.Code)
	}
}
