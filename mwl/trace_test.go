package mwl_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/conformance"
)

const saga = `
	"entrypoint": "charge",
	"flows": {"count": {"entrypoint": "end", "steps": {"end": {"action": "Return", "value": "{{ frame.input }}"}}}},
	"steps": {
		"charge": {"action": "Call", "call": {$MOCK, "with": {"failure": {"code": "Bank.Busy", "message": "try\u001b[2Jlater"}, "delay": "PT0.5S"}},
			"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["Bank.Busy"]}, "attempts": 2, "backoff": {"initial": "PT2S"}}]}}}],
			"catch": [{"match": {"codes": ["Provider.Middleware.Retry.Exhausted"]}, "next": "rest"}],
			"next": "many"},
		"rest": {"action": "Sleep", "for": "PT1M", "next": "many"},
		"many": {"action": "Gather", "over": ["a", "b"], "call": {"flow": "count"}, "next": "done"},
		"done": {"action": "Return", "value": "{{ step.input }}"}
	}`

func TestTrace_AsATree(t *testing.T) {
	def := load(t, saga, nil)
	synctest.Test(t, func(t *testing.T) {
		trace := mwl.Trace{ValueBytes: 20}
		result := def.Execute(t.Context(), "o-1", mwl.WithExecutionID("e-1"), mwl.WithObserver(trace.Observer()))
		require.NoError(t, result.Err())
		require.Equal(t, strings.TrimLeft(`
execution e-1: success
     1m3s  flow
               input: "o-1"
               output: ["a","b"]
       3s    step charge (Call): error Provider.Middleware.Retry.Exhausted, caught → rest
                 input: "o-1"
                 message: policy 0 has no atte…
`, "\n"), firstLines(trace.String(), 6))
		require.NotContains(t, trace.String(), "\x1b", "a terminal would execute it")
	})
}

func firstLines(text string, n int) string {
	return strings.Join(strings.SplitAfterN(text, "\n", n+2)[:n+1], "")
}

// Without ValueBytes no payload and no message is recorded.
func TestTrace_HidesValues(t *testing.T) {
	def := load(t, saga, nil)
	synctest.Test(t, func(t *testing.T) {
		var trace mwl.Trace
		def.Execute(t.Context(), "secret", mwl.WithExecutionID("e-1"), mwl.WithObserver(trace.Observer()))
		text, err := json.Marshal(&trace)
		require.NoError(t, err)
		require.NotContains(t, string(text), "secret")
		require.NotContains(t, string(text), "later")
		var read struct {
			Spans []struct {
				ExecutionID string    `json:"execution_id"`
				SpanID      int       `json:"span_id"`
				ParentID    int       `json:"parent_id"`
				Kind        string    `json:"kind"`
				Start       time.Time `json:"start"`
				End         time.Time `json:"end"`
				Outcome     string    `json:"outcome"`
			} `json:"spans"`
			Dropped int `json:"dropped"`
		}
		require.NoError(t, json.Unmarshal(text, &read))
		require.Zero(t, read.Dropped)
		require.Equal(t, "e-1", read.Spans[0].ExecutionID)
		require.Equal(t, 1, read.Spans[0].SpanID)
		require.Zero(t, read.Spans[0].ParentID)
		require.Equal(t, 63*time.Second, read.Spans[0].End.Sub(read.Spans[0].Start))
		require.Equal(t, "success", read.Spans[0].Outcome)
	})
}

func TestTrace_IsBounded(t *testing.T) {
	def := load(t, saga, nil)
	synctest.Test(t, func(t *testing.T) {
		whole, short := mwl.Trace{}, mwl.Trace{MaxSpans: 3}
		def.Execute(t.Context(), nil, mwl.WithObserver(whole.Observer()), mwl.WithObserver(short.Observer()))
		require.Len(t, short.Spans(), 3)
		require.Equal(t, len(whole.Spans())-3, short.Dropped())
		require.Contains(t, short.String(), "further spans were dropped")
	})
}

// The spans of every scenario of the corpora form a tree that encloses its parts in
// time, and the root's outcome is the Result's.
func TestObserver_SpansOfTheCorpora(t *testing.T) {
	dirs := []string{filepath.Join("testdata", "conformance")}
	if dir := os.Getenv(conformanceDir); dir != "" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		corpus, err := conformance.Read(dir)
		require.NoError(t, err)
		for _, c := range corpus {
			def, err := mwl.Load(c.Definition, mwl.DeferArgumentErrors())
			require.NoError(t, err)
			for _, s := range c.Scenarios {
				synctest.Test(t, func(t *testing.T) {
					var trace mwl.Trace
					var options []mwl.ExecuteOption
					if s.Arguments != nil {
						options = append(options, mwl.WithArguments(s.Arguments))
					}
					watched := def.WithObserver(trace.Observer())
					checkSpans(t, &trace, watched.Execute(t.Context(), s.Input, options...), c.Name+"/"+s.Name)
				})
			}
		}
	}
}

func checkSpans(t *testing.T, trace *mwl.Trace, result mwl.Result, name string) {
	t.Helper()
	require.NotEmpty(t, trace.Spans(), name)
	spans := map[uint64]mwl.EndedSpan{}
	for _, s := range trace.Spans() {
		require.False(t, s.End.IsZero(), "%s: %d has no end", name, s.ID)
		require.False(t, s.End.Before(s.Start), name)
		require.NotEmpty(t, s.Outcome, name)
		require.NotContains(t, spans, s.ID, name)
		spans[s.ID] = s
		if s.ID == 1 {
			require.Zero(t, s.ParentID, name)
			continue
		}
		parent, ok := spans[s.ParentID]
		require.True(t, ok, "%s: %d has no parent", name, s.ID)
		require.False(t, s.Start.Before(parent.Start) || s.End.After(parent.End), "%s: %d outlasts its parent", name, s.ID)
	}
	root := spans[1]
	require.Equal(t, mwl.SpanFlow, root.Kind, name)
	if result.Failure == nil {
		require.Equal(t, mwl.TypeSuccess, root.Outcome, name)
		return
	}
	require.Equal(t, result.Failure.Type, root.Outcome, name)
	require.Equal(t, result.Failure.Code, root.Code, name)
}

// What an observer does wrong changes nothing for the execution, and the other observer
// sees everything.
func TestObserver_PanicsAndGoexitAreSurvived(t *testing.T) {
	def := load(t, saga, nil)
	synctest.Test(t, func(t *testing.T) {
		var trace mwl.Trace
		var mu sync.Mutex
		seen := 0
		bad := mwl.Observer{
			Logger:    slog.New(slog.DiscardHandler),
			SpanBegun: func(context.Context, mwl.Span) { panic("broken") },
			SpanEnded: func(context.Context, mwl.EndedSpan) {
				mu.Lock()
				seen++
				mu.Unlock()
				runtime.Goexit()
			},
		}
		result := def.Execute(t.Context(), nil, mwl.WithObserver(bad), mwl.WithObserver(trace.Observer()))
		require.NoError(t, result.Err())
		require.Equal(t, len(trace.Spans()), seen)
		checkSpans(t, &trace, result, "saga")
	})
}

// The dispatches of a Gather have their index, and middleware the runs of its scope.
func TestObserver_IndexAndRun(t *testing.T) {
	def := load(t, saga, nil)
	synctest.Test(t, func(t *testing.T) {
		var trace mwl.Trace
		def.Execute(t.Context(), nil, mwl.WithObserver(trace.Observer()))
		indexes, runs, waits := map[int]bool{}, 0, 0
		for _, s := range trace.Spans() {
			if s.Index != nil {
				indexes[*s.Index] = true
			}
			if s.Kind == mwl.SpanCall {
				runs = max(runs, s.Run)
			}
			if s.Kind == mwl.SpanWait {
				waits++
				require.Equal(t, 2*time.Second, s.End.Sub(s.Start))
			}
		}
		require.Equal(t, map[int]bool{0: true, 1: true}, indexes)
		require.Equal(t, 2, runs)
		require.Equal(t, 1, waits)
	})
}
