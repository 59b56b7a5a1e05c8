package mwl_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

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

// An empty type is that of an error, as in the JSON of the Result.
func TestObserver_EmptyTypeIsError(t *testing.T) {
	def := load(t, `"entrypoint": "no", "steps": {"no": {"action": "Raise", "result": {"type": "{{ '' }}", "code": ""}}}`, nil)
	var trace mwl.Trace
	result := def.Execute(t.Context(), nil, mwl.WithObserver(trace.Observer()))
	text, err := json.Marshal(result)
	require.NoError(t, err)
	require.JSONEq(t, `{"type": "error", "code": ""}`, string(text))
	for _, s := range trace.Spans() {
		require.Equal(t, mwl.TypeError, s.Outcome)
	}
}

// The root span fails if the Result is too large to return.
func TestObserver_ResultBytes(t *testing.T) {
	def := load(t, `"entrypoint": "done", "steps": {"done": {"action": "Return"}}`, nil, mwl.WithLimits(mwl.Limits{ResultBytes: 100}))
	var trace mwl.Trace
	result := def.Execute(t.Context(), strings.Repeat("x", 200), mwl.WithObserver(trace.Observer()))
	require.Equal(t, mwl.CodeCancelled, result.Failure.Code)
	checkSpans(t, &trace, result, "too large")
	require.True(t, trace.Spans()[0].Interrupted)
}

// An execution with a nil option has a root span, as others that are refused.
func TestObserver_NilOption(t *testing.T) {
	def := load(t, `"entrypoint": "done", "steps": {"done": {"action": "Return"}}`, nil)
	var trace mwl.Trace
	result := def.Execute(t.Context(), nil, nil, mwl.WithObserver(trace.Observer()), mwl.WithExecutionID("e-1"), nil)
	require.Equal(t, "option 1 is nil; leave it out", result.Failure.Message)
	checkSpans(t, &trace, result, "refused")
	require.Equal(t, "e-1", trace.Spans()[0].ExecutionID)
}

// A Gather interrupts the dispatches that it cancels. Those that failed on their own
// are not interrupted, and neither is the Gather.
func TestObserver_GatherInterrupts(t *testing.T) {
	def := load(t, `
		"entrypoint": "race",
		"steps": {
			"race": {
				"action": "Gather",
				"calls": [{$MOCK, "with": {"delay": "PT1H"}}, {$MOCK, "with": {"delay": "PT1S"}}, {$MOCK, "with": {"failure": {"code": "App.No"}}}],
				"completion": {"successes": 1, "wait": false},
				"next": "done"
			},
			"done": {"action": "Return"}
		}`, nil)
	synctest.Test(t, func(t *testing.T) {
		var trace mwl.Trace
		result := def.Execute(t.Context(), nil, mwl.WithObserver(trace.Observer()))
		require.NoError(t, result.Err())
		codes, interrupted := map[int]string{}, map[int]bool{}
		for _, s := range trace.Spans() {
			if s.Index == nil {
				require.False(t, s.Interrupted)
				continue
			}
			codes[*s.Index], interrupted[*s.Index] = s.Code, s.Interrupted
		}
		require.Equal(t, map[int]string{0: mwl.CodeGatherDispatchCancelled, 1: "", 2: "App.No"}, codes)
		require.Equal(t, map[int]bool{0: true, 1: false, 2: false}, interrupted)
	})
}

// Names, types and codes cannot imitate the syntax of the text, and no byte of theirs
// controls a terminal.
func TestTrace_QuotesNames(t *testing.T) {
	def := load(t, `
		"entrypoint": "pay (Call): error",
		"steps": {
			"pay (Call): error": {"action": "Call", "call": {$DO}, "catch": [{"match": {"codes": ["*"]}, "next": "größe-2"}], "next": "größe-2"},
			"größe-2": {"action": "Raise", "result": {"type": "{{ '' }}", "code": "A.B, caught → refund"}}
		}`, []mwl.CatalogEntry{do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
		return mwl.CallResponse{}, &mwl.Failure{Type: "T\u009b2J", Code: "X.\x9b2J", Message: "M\x9b2J"}
	})})
	trace := mwl.Trace{ValueBytes: 20}
	def.Execute(t.Context(), nil, mwl.WithExecutionID("e 1"), mwl.WithObserver(trace.Observer()))
	text := trace.String()
	require.True(t, utf8.ValidString(text), text)
	for _, line := range []string{
		"execution \"e 1\": error \"A.B, caught → refund\"\n",
		"step \"pay (Call): error\" (Call): \"T\\u009b2J\" \"X.\uFFFD2J\", caught → größe-2\n",
		"call test/do/v1: \"T\\u009b2J\" \"X.\uFFFD2J\"\n",
		"message: M\uFFFD2J\n",
		"step größe-2 (Raise): error \"A.B, caught → refund\"\n",
	} {
		require.Contains(t, text, line)
	}
}
