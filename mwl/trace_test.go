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

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
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

func checkSpans(t require.TestingT, trace *mwl.Trace, result mwl.Result, name string) {
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

// A cleanup is inside the phase that makes it, and what a Timeout stopped is interrupted.
func TestTrace_InterruptionAndCleanup(t *testing.T) {
	def := load(t, `
		"middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1.5S"}}}],
		"entrypoint": "work",
		"steps": {
			"work": {
				"action": "Call",
				"call": {$MOCK, "with": {"delay": "PT1H"}},
				"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$MOCK, "with": {"delay": "PT0.25S"}}}}}],
				"next": "done"
			},
			"done": {"action": "Return"}
		}`, nil)
	synctest.Test(t, func(t *testing.T) {
		var trace mwl.Trace
		result := def.Execute(t.Context(), nil, mwl.WithExecutionID("e-1"), mwl.WithObserver(trace.Observer()))
		checkSpans(t, &trace, result, "timeout")
		require.Equal(t, strings.TrimLeft(`
execution e-1: timeout Provider.Middleware.Timeout.Exceeded
    1.75s  flow: timeout Provider.Middleware.Timeout.Exceeded
    1.75s    middleware mwl/timeout/v1: timeout Provider.Middleware.Timeout.Exceeded
       0s      phase onEntry
    1.75s      step work (Call): interrupted by cancellation System.Cancelled
    1.75s        middleware mwl/finally/v1: interrupted by cancellation System.Cancelled
     1.5s          call mwl/mock/v1: interrupted by cancellation System.Cancelled
    250ms          phase onAlways
    250ms            call mwl/mock/v1
`, "\n"), trace.String())
	})
}

// The names of the members are a promise to programs that read traces.
func TestTrace_AsJSON(t *testing.T) {
	def := load(t, `
		"entrypoint": "all",
		"steps": {
			"all": {
				"action": "Gather",
				"calls": [{$MOCK, "input": "{{ call.input + 1.0 }}", "with": {"failure": {"code": "App.No", "message": "not today"}}}],
				"catch": [{"match": {"codes": ["*"]}, "output": 7, "next": "done"}],
				"next": "done"
			},
			"done": {"action": "Return"}
		}`, nil, mwl.WithClock(clock.NewMock()))
	trace := mwl.Trace{ValueBytes: 12}
	def.Execute(t.Context(), 1, mwl.WithExecutionID("e-1"), mwl.WithObserver(trace.Observer()))
	text, err := json.MarshalIndent(&trace, "", " ")
	require.NoError(t, err)
	const times = `"start": "1970-01-01T00:00:00Z",
   "end": "1970-01-01T00:00:00Z"`
	require.JSONEq(t, strings.ReplaceAll(`{
 "spans": [
  {
   "execution_id": "e-1",
   "span_id": 1,
   "kind": "flow",
   "pointer": "",
   TIMES,
   "outcome": "success",
   "input": "1",
   "output": "7"
  },
  {
   "execution_id": "e-1",
   "span_id": 2,
   "parent_id": 1,
   "kind": "step",
   "name": "all",
   "action": "Gather",
   "pointer": "/steps/all",
   "step_id": "step-1",
   TIMES,
   "outcome": "error",
   "code": "System.GatherCompletionUnmet",
   "next": "done",
   "input": "1",
   "message": "0 of 1 dispa…"
  },
  {
   "execution_id": "e-1",
   "span_id": 3,
   "parent_id": 2,
   "kind": "call",
   "name": "mwl:provider.call/mwl/mock/v1",
   "pointer": "/steps/all/calls/0",
   "index": 0,
   TIMES,
   "outcome": "error",
   "code": "App.No",
   "input": "2",
   "arguments": "{\"failure\":{…",
   "message": "not today"
  },
  {
   "execution_id": "e-1",
   "span_id": 4,
   "parent_id": 1,
   "kind": "step",
   "name": "done",
   "action": "Return",
   "pointer": "/steps/done",
   "step_id": "step-2",
   TIMES,
   "outcome": "success",
   "input": "7",
   "output": "7"
  }
 ],
 "dropped": 0
}`, "TIMES", times), string(text))
}

// An execution that is refused has a root span, too.
func TestObserver_InputWithoutJSONForm(t *testing.T) {
	var trace mwl.Trace
	result := load(t, saga, nil).Execute(t.Context(), func() {}, mwl.WithObserver(trace.Observer()))
	require.Equal(t, mwl.CodeParameterValidationFailed, result.Failure.Code)
	checkSpans(t, &trace, result, "refused")
	require.Len(t, trace.Spans(), 1)
}

// A provider that executes a definition with its own context begins another tree.
func TestObserver_ExecutionInsideAnExecution(t *testing.T) {
	var trace mwl.Trace
	inner := load(t, `"entrypoint": "done", "steps": {"done": {"action": "Return"}}`, nil).WithObserver(trace.Observer())
	outer := load(t, `"entrypoint": "call", "steps": {"call": {"action": "Call", "call": {$DO}, "next": "done"}, "done": {"action": "Return"}}`,
		[]mwl.CatalogEntry{do(func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
			return mwl.CallResponse{}, inner.Execute(ctx, nil, mwl.WithExecutionID("inner")).Err()
		})})
	result := outer.Execute(t.Context(), nil, mwl.WithExecutionID("outer"), mwl.WithObserver(trace.Observer()))
	require.NoError(t, result.Err())
	roots := map[string]int{}
	for _, s := range trace.Spans() {
		if s.ParentID == 0 {
			roots[s.ExecutionID]++
		}
	}
	require.Equal(t, map[string]int{"outer": 1, "inner": 1}, roots)
	require.Contains(t, trace.String(), "execution outer: success")
	require.Contains(t, trace.String(), "execution inner: success")
}

// The original definition is not watched, and observers add up.
func TestDefinition_WithObserverReturnsAnother(t *testing.T) {
	def := load(t, `"entrypoint": "done", "steps": {"done": {"action": "Return"}}`, nil)
	var a, b mwl.Trace
	first := def.WithObserver(a.Observer())
	second := first.WithObserver(b.Observer())
	def.Execute(t.Context(), nil)
	require.Empty(t, a.Spans())
	first.Execute(t.Context(), nil)
	require.Len(t, a.Spans(), 2)
	require.Empty(t, b.Spans())
	second.Execute(t.Context(), nil)
	require.Len(t, a.Spans(), 4)
	require.Len(t, b.Spans(), 2)
}

// An observer of a subscription finds the event in its context, which is not done even if
// the execution is cancelled.
func TestObserver_OfASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		type seen struct {
			event, execution string
			attempt          int
			outcome          string
		}
		ended := make(chan seen, 1)
		def := load(t, `"entrypoint": "wait", "steps": {"wait": {"action": "Sleep", "for": "PT1H", "next": "done"}, "done": {"action": "Return"}}`, nil)
		subscribed(t, bus, def.WithObserver(mwl.Observer{SpanEnded: func(ctx context.Context, s mwl.EndedSpan) {
			if s.Kind == mwl.SpanFlow {
				d, _ := eventbus.FromContext(ctx)
				require.NoError(t, ctx.Err())
				ended <- seen{d.Event.ID.String(), s.ExecutionID, d.Attempt, s.Code}
			}
		}}), nil, eventbus.Timeout(time.Second), eventbus.Retry(eventbus.MaxRetries(0)))
		id, err := bus.Publish(t.Context(), "order.placed", nil)
		require.NoError(t, err)
		require.Equal(t, seen{id.String(), id.String() + "/flow/1", 1, mwl.CodeCancelled}, <-ended)
	})
}
