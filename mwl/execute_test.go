package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surebus/eventbus/mwl"
)

const oneCall = `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "next": "b"}, "b": {"action": "Return"}}`

// hostile panics wherever it can.
type hostile struct{}

func (hostile) Error() string                { panic("Error") }
func (hostile) Is(error) bool                { panic("Is") }
func (hostile) As(any) bool                  { panic("As") }
func (hostile) Unwrap() error                { panic("Unwrap") }
func (hostile) MarshalJSON() ([]byte, error) { panic("MarshalJSON") }

func circular() *mwl.Failure {
	f := &mwl.Failure{Code: "App.F"}
	f.Previous = f
	return f
}

// Call providers, The dispatch contract: a dispatch has exactly one Result,
// whatever the Go function does.
func TestProviderOutcomes(t *testing.T) {
	yes := true
	var none *mwl.Failure
	for name, test := range map[string]struct {
		call func() (any, error)
		want string
	}{
		"failure":           {func() (any, error) { return 1, &mwl.Failure{Code: "App.F"} }, "error App.F"},
		"type of its own":   {func() (any, error) { return 1, &mwl.Failure{Type: "Mishap", Code: "App.F", Retryable: &yes} }, "Mishap App.F"},
		"plain error":       {func() (any, error) { return 1, errors.New("broken") }, "error Provider.Call.Do.Error"},
		"context's error":   {func() (any, error) { return 1, context.Canceled }, "error Provider.Call.Do.Error"},
		"nil failure":       {func() (any, error) { return 1, none }, "error Provider.Call.Do.Error"},
		"panic":             {func() (any, error) { panic("broken") }, "error Provider.Call.Do.Error"},
		"panic with error":  {func() (any, error) { panic(&mwl.Failure{Code: "App.F"}) }, "error Provider.Call.Do.Error"},
		"nil dereference":   {func() (any, error) { return none.Code, nil }, "error Provider.Call.Do.Error"},
		"not a number":      {func() (any, error) { return []any{math.NaN()}, nil }, "error Provider.Call.Do.Error"},
		"panicking text":    {func() (any, error) { return 1, hostile{} }, "error Provider.Call.Do.Error"},
		"panicking value":   {func() (any, error) { return hostile{}, nil }, "error Provider.Call.Do.Error"},
		"panicking details": {func() (any, error) { return nil, &mwl.Failure{Code: "App.F", Details: hostile{}} }, "error Provider.Call.Do.Error"},
		"panicking chain":   {func() (any, error) { return nil, fmt.Errorf("outer: %w", hostile{}) }, "error Provider.Call.Do.Error"},
		"its own previous":  {func() (any, error) { return nil, circular() }, "error App.F"},
	} {
		t.Run(name, func(t *testing.T) {
			for where, members := range map[string]string{
				"call":   oneCall,
				"gather": `"entrypoint": "a", "steps": {"a": {"action": "Gather", "over": [0], "call": {$DO}, "output": "{{ step.results }}", "next": "b", "catch": [{"match": {"codes": ["System.GatherCompletionUnmet"]}, "output": "{{ step.results[0] }}", "next": "c"}]}, "b": {"action": "Return"}, "c": {"action": "Raise", "result": {"type": "{{ step.input.type }}", "code": "{{ step.input.code }}", "previous": "{{ has(step.input.previous) ? step.input.previous : null }}"}}}`,
			} {
				synctest.Test(t, func(t *testing.T) {
					def := load(t, members, []mwl.CatalogEntry{do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
						value, err := test.call()
						return mwl.CallResponse{Value: value}, err
					})})
					result := def.Execute(t.Context(), nil)
					chain := envelope(result.Failure)
					require.NotEmpty(t, chain, where)
					require.Equal(t, test.want, chain[0], where)
				})
			}
		})
	}
}

// A dispatch whose goroutine ends without returning, as a test's FailNow in a
// provider makes it, must not leave the Gather waiting.
func TestProviderGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Gather", "over": [1, 2], "call": {$DO}, "next": "b"}, "b": {"action": "Return"}}`,
			[]mwl.CatalogEntry{do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
				if r.Index == 1 {
					runtime.Goexit()
				}
				return mwl.CallResponse{Value: r.Input}, nil
			})})
		result := def.Execute(t.Context(), nil)
		require.Equal(t, []string{"error " + mwl.CodeGatherCompletionUnmet}, envelope(result.Failure))
	})
}

// Call interface, The Result: what a provider gets and gives are copies; the
// Result is the caller's own, and the definition's literals stay what they are.
func TestValuesAreIsolated(t *testing.T) {
	var kept any
	entry := do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		object, ok := r.Input.(map[string]any)
		if !ok {
			return mwl.CallResponse{}, errors.New("the input is no object")
		}
		object["x"] = "altered"
		r.With["list"].([]any)[0] = "altered"
		out := map[string]any{"v": []any{"given"}}
		kept = out
		return mwl.CallResponse{Value: out}, nil
	})
	def := load(t, `
"parameters": {"type": "object", "properties": {"d": {"default": {"deep": ["default"]}}}},
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"list": ["literal"]}}, "assign": {"kept": "{{ step.result.value }}"}, "next": "b"},
	"b": {"action": "Call", "call": {$DO, "with": {"list": ["literal"]}, "input": {"fresh": true}}, "next": "c"},
	"c": {"action": "Return", "value": {"frame": "{{ frame.input }}", "kept": "{{ vars.kept }}", "default": "{{ vars.d }}", "literal": {"deep": ["literal"]}}}
}`, []mwl.CatalogEntry{entry})
	want := map[string]any{
		"frame":   map[string]any{"x": "input"},
		"kept":    map[string]any{"v": []any{"given"}},
		"default": map[string]any{"deep": []any{"default"}},
		"literal": map[string]any{"deep": []any{"literal"}},
	}
	input := map[string]any{"x": "input"}
	for range 2 {
		result := def.Execute(t.Context(), input)
		require.NoError(t, result.Err())
		require.Equal(t, want, result.Value)
		require.Equal(t, map[string]any{"x": "input"}, input)
		kept.(map[string]any)["v"].([]any)[0] = "altered later"
		got := result.Value.(map[string]any)
		require.Equal(t, want, got)
		got["literal"].(map[string]any)["deep"].([]any)[0] = "altered by the caller"
		got["default"].(map[string]any)["deep"].([]any)[0] = "altered by the caller"
		got["frame"].(map[string]any)["x"] = "altered by the caller"
	}
}

// The data model: what has no JSON form is refused, wherever it comes in.
func TestValuesWithoutJSONForm(t *testing.T) {
	def := load(t, `"parameters": {"type": "object", "additionalProperties": true}, "entrypoint": "a", "steps": {"a": {"action": "Return"}}`, nil)
	for name, bad := range map[string]any{"channel": make(chan int), "not a number": math.NaN(), "deep": []any{map[string]any{"x": math.Inf(-1)}}, "key": map[bool]int{true: 1}} {
		result := def.Execute(t.Context(), bad)
		require.Equal(t, []string{"error " + mwl.CodeParameterValidationFailed}, envelope(result.Failure), name)
		result = def.Execute(t.Context(), nil, mwl.WithArguments(map[string]any{"x": bad}))
		require.Equal(t, []string{"error " + mwl.CodeParameterValidationFailed}, envelope(result.Failure), name)
	}
	var loop []any
	loop = append(loop, nil)
	loop[0] = loop
	result := def.Execute(t.Context(), loop)
	require.Equal(t, []string{"error " + mwl.CodeParameterValidationFailed}, envelope(result.Failure), "a value that contains itself")
}

// Execution context, step: execution.id and step.id make an idempotency key, the
// same for each attempt of a retry, another for each pass and execution.
func TestIdempotencyKey(t *testing.T) {
	var keys, indexes []string
	entry := do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		keys = append(keys, r.ExecutionID+"/"+r.StepID)
		indexes = append(indexes, fmt.Sprint(r.Index))
		require.Equal(t, r.With["key"], r.ExecutionID+"/"+r.StepID)
		if len(keys)%2 == 1 {
			return mwl.CallResponse{}, &mwl.Failure{Code: "App.F"}
		}
		return mwl.CallResponse{}, nil
	})
	def := load(t, `
"parameters": {"type": "object", "properties": {"n": {"default": 0}}},
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"key": "{{ execution.id + '/' + step.id }}"}}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2}]}}}], "next": "b"},
	"b": {"action": "Match", "cases": [{"when": "{{ vars.n < 1.0 }}", "assign": {"n": 1}, "next": "a"}], "default": {"next": "c"}},
	"c": {"action": "Return"}
}`, []mwl.CatalogEntry{entry})
	require.NoError(t, def.Execute(t.Context(), nil, mwl.WithExecutionID("mine")).Err())
	require.NoError(t, def.Execute(t.Context(), nil).Err())
	require.Len(t, keys, 8)
	distinct := map[string]bool{}
	for i := 0; i < len(keys); i += 2 {
		require.Equal(t, keys[i], keys[i+1])
		distinct[keys[i]] = true
	}
	require.Len(t, distinct, 4)
	require.True(t, strings.HasPrefix(keys[0], "mine/"))
	require.Equal(t, []string{"-1", "-1", "-1", "-1", "-1", "-1", "-1", "-1"}, indexes)
}

// Execution context, Chaining: a chain that grows for ever is truncated, and says
// so where it ends; a short one is whole.
func TestChainTruncation(t *testing.T) {
	def := load(t, `
"parameters": {"type": "object", "properties": {"n": {"default": 0}, "most": {}}},
"entrypoint": "a",
"steps": {
	"a": {
		"action": "Call",
		"call": {$MOCK, "with": {"failure": {"code": "{{ vars.n < vars.most ? 'App.Again' : 'App.Last' }}", "details": "{{ vars.n }}"}}},
		"catch": [{"match": {"codes": ["App.Again"]}, "assign": {"n": "{{ vars.n + 1.0 }}"}, "next": "a"}],
		"next": "b"
	},
	"b": {"action": "Return"}
}`, nil)
	for _, most := range []int{0, 1, 10, 31, 32, 33, 1000} {
		result := def.Execute(t.Context(), nil, mwl.WithArguments(map[string]any{"most": most}))
		chain := envelope(result.Failure)
		require.Equal(t, "error App.Last", chain[0])
		n := len(chain)
		for i := 1; i < n-1; i++ {
			require.Equal(t, "error App.Again", chain[i])
		}
		if n == most+1 && most <= 33 {
			require.NotContains(t, chain, "error "+mwl.CodeFailureChainTruncated)
			continue
		}
		require.GreaterOrEqual(t, most, 10, "a chain of ten is no long one")
		require.LessOrEqual(t, n, most+1)
		require.LessOrEqual(t, n, 100)
		require.Equal(t, "error "+mwl.CodeFailureChainTruncated, chain[n-1])
	}
}

// Chaining holds for middleware that translates failures, too.
func TestChainTruncationInMiddleware(t *testing.T) {
	entry := `{$TIMEOUT, "onEntry": {"with": {"duration": "PT1H"}}, "onFailure": {"code": "App.Translated"}}`
	def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$MOCK, "with": {"failure": {"code": "App.First"}}}, "middleware": [`+strings.Repeat(entry+",", 199)+entry+`], "next": "b"}, "b": {"action": "Return"}}`, nil)
	chain := envelope(def.Execute(t.Context(), nil).Failure)
	require.Equal(t, "error App.Translated", chain[0])
	require.Equal(t, "error "+mwl.CodeFailureChainTruncated, chain[len(chain)-1])
	require.Less(t, len(chain), 100)
}

// Middleware providers, Retry, Parameters: the jitters, with the randomness given.
func TestRetryJitter(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		jitter string
		random float64
		want   []time.Duration // the gaps of initial 10 s, rate 2, max 60 s
	}{
		{"none", 0.5, []time.Duration{10 * s, 20 * s, 40 * s, 60 * s}},
		{"full", 0, []time.Duration{0, 0, 0, 0}},
		{"full", 0.5, []time.Duration{5 * s, 10 * s, 20 * s, 30 * s}},
		{"equal", 0, []time.Duration{5 * s, 10 * s, 20 * s, 30 * s}},
		{"equal", 0.5, []time.Duration{7500 * time.Millisecond, 15 * s, 30 * s, 45 * s}},
		{"decorrelated", 0, []time.Duration{10 * s, 10 * s, 10 * s, 10 * s}},
		{"decorrelated", 0.5, []time.Duration{20 * s, 35 * s, 57500 * time.Millisecond, 60 * s}},
	} {
		t.Run(fmt.Sprintf("%s %v", test.jitter, test.random), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 5, "backoff": {"initial": "PT10S", "rate": 2, "max": "PT60S", "jitter": "`+test.jitter+`"}}]}}}], "next": "b"}, "b": {"action": "Return"}}`,
					[]mwl.CatalogEntry{do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
						at = append(at, time.Now())
						return mwl.CallResponse{}, &mwl.Failure{Code: "App.F"}
					})}, mwl.WithRandom(func() float64 { return test.random }))
				require.Equal(t, []string{"error " + mwl.CodeRetryExhausted, "error App.F"}, envelope(def.Execute(t.Context(), nil).Failure))
				require.Len(t, at, 5)
				for i, want := range test.want {
					require.InDelta(t, want.Seconds(), at[i+1].Sub(at[i]).Seconds(), 0.000001, "gap %d", i)
				}
			})
		})
	}
}

// Execution context, Metadata records: every instant is the clock's, in UTC, to the
// nanosecond.
func TestClockIsInjected(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2031, 5, 6, 7, 8, 9, 123456789, time.FixedZone("here", 5400)))
	def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Return", "value": ["{{ step.metadata.enteredAt }}", "{{ frame.metadata.enteredAt }}", "{{ execution.metadata.enteredAt }}", "{{ string(now()) }}", "{{ string(wallTime()) }}", "{{ timestamp(step.metadata.enteredAt) == now() }}"]}}`,
		nil, mwl.WithClock(mock))
	result := def.Execute(t.Context(), nil)
	require.NoError(t, result.Err())
	const instant = "2031-05-06T05:38:09.123456789Z"
	require.Equal(t, []any{instant, instant, instant, instant, instant, true}, result.Value)
}

// Every wait is the clock's too.
func TestClockRulesWaits(t *testing.T) {
	mock := clock.NewMock()
	def := load(t, `
"entrypoint": "nap",
"steps": {
	"nap": {"action": "Sleep", "for": "PT1H", "next": "slow"},
	"slow": {"action": "Call", "call": {$MOCK, "with": {"delay": "PT1H"}}, "next": "late"},
	"late": {"action": "Call", "call": {$MOCK, "with": {"delay": "P1D"}}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2, "backoff": {"initial": "PT1H"}}]}}}, {$TIMEOUT, "onEntry": {"with": {"duration": "PT1H"}}}], "catch": [{"match": {"codes": ["*"]}, "output": "{{ failure.code }}", "next": "done"}], "next": "done"},
	"done": {"action": "Return", "value": ["{{ step.input }}", "{{ string(timestamp(step.metadata.enteredAt) - timestamp(execution.metadata.enteredAt)) }}"]}
}`, nil, mwl.WithClock(mock))
	done := make(chan mwl.Result)
	go func() { done <- def.Execute(t.Context(), nil) }()
	for range 100_000 {
		select {
		case result := <-done:
			require.NoError(t, result.Err())
			require.Equal(t, []any{mwl.CodeRetryExhausted, "18000s"}, result.Value)
			return
		default:
			mock.Add(30 * time.Minute)
			mock.Set(mock.Now().Truncate(30 * time.Minute))
		}
	}
	t.Fatal("the execution does not follow the clock")
}

// A definition that never ends is ended by the limit on its Steps, as a
// cancellation that it cannot catch or retry; its cleanup runs.
func TestStepRunsLimit(t *testing.T) {
	for name, work := range map[string]string{
		"graph":   `"a": {"action": "Pass", "next": "b"}, "b": {"action": "Pass", "next": "a"}`,
		"loop":    `"a": {"action": "Call", "call": {$MOCK}, "middleware": [{$LOOP, "onSuccess": {"when": true}}], "catch": [{"match": {"codes": ["*"]}, "next": "b"}], "next": "b"}, "b": {"action": "Return"}`,
		"retry":   `"a": {"action": "Call", "call": {$MOCK, "with": {"failure": {"code": "App.F"}}}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 1000000000}]}}}], "catch": [{"match": {"codes": ["*"]}, "next": "b"}], "next": "b"}, "b": {"action": "Return"}`,
		"subflow": `"a": {"action": "Call", "call": {"flow": {"middleware": [{$LOOP, "onSuccess": {"when": true}}], "entrypoint": "r", "steps": {"r": {"action": "Return"}}}}, "catch": [{"match": {"codes": ["*"]}, "next": "b"}], "next": "b"}, "b": {"action": "Return"}`,
		"gather":  `"a": {"action": "Gather", "over": [1, 2], "call": {"flow": {"entrypoint": "x", "steps": {"x": {"action": "Pass", "next": "y"}, "y": {"action": "Pass", "next": "x"}}}}, "catch": [{"match": {"codes": ["*"]}, "next": "b"}], "next": "b"}, "b": {"action": "Return"}`,
		"catch":   `"a": {"action": "Call", "call": {$MOCK, "with": {"failure": {"code": "App.F"}}}, "catch": [{"match": {"codes": ["*"]}, "next": "a"}], "next": "b"}, "b": {"action": "Return"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{}
				def := load(t, `"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup"}}}}}], "entrypoint": "a", "steps": {`+work+`}`,
					[]mwl.CatalogEntry{j.entry()}, mwl.WithLimits(mwl.Limits{StepRuns: 500}))
				result := def.Execute(t.Context(), nil)
				require.Equal(t, []string{cancelled}, envelope(result.Failure))
				require.Equal(t, []string{"cleanup"}, j.all())
			})
		})
	}
}

// The limit leaves cleanup that is a Flow the Steps it needs.
func TestStepRunsLimitCleanupFlow(t *testing.T) {
	j := &journal{}
	def := load(t, `
"flows": {"Clean": {"entrypoint": "a", "steps": {"a": {"action": "Pass", "next": "b"}, "b": {"action": "Call", "call": {$DO, "with": {"name": "cleanup"}}, "next": "c"}, "c": {"action": "Return"}}}},
"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "Clean"}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2}]}}}]}}}],
"entrypoint": "a",
"steps": {"a": {"action": "Pass", "next": "a"}}`, []mwl.CatalogEntry{j.entry()}, mwl.WithLimits(mwl.Limits{StepRuns: 500}))
	require.Equal(t, []string{cancelled}, envelope(def.Execute(t.Context(), nil).Failure))
	require.Equal(t, []string{"cleanup"}, j.all())

	def = load(t, `
"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": {"entrypoint": "a", "steps": {"a": {"action": "Pass", "next": "a"}}}}}}}],
"entrypoint": "a",
"steps": {"a": {"action": "Pass", "next": "a"}}`, nil, mwl.WithLimits(mwl.Limits{StepRuns: 500}))
	require.Equal(t, "cancellation", def.Execute(t.Context(), nil).Failure.Type, "a cleanup that never ends")
}

// Execution model, Frames: executions of one definition share nothing.
func TestConcurrentExecutions(t *testing.T) {
	defer goleak.VerifyNone(t)
	def := load(t, `
"parameters": {"type": "object", "properties": {"log": {"default": []}, "id": {}}},
"middleware": [{$LOOP, "onSuccess": {"when": "{{ middleware.metadata.iteration < 3 }}", "value": "{{ middleware.metadata.iteration < 3 ? middleware.input : vars.log }}"}}],
"entrypoint": "fan",
"steps": {
	"fan": {"action": "Gather", "over": "{{ step.input }}", "concurrency": 3,
		"call": {"flow": "Work", "with": {"id": "{{ vars.id }}"}, "onSuccess": {"assign": {"log": "{{ vars.log + [call.result.value] }}"}}}, "next": "try"},
	"try": {"action": "Call", "call": {$MOCK, "with": {"failure": "{{ size(vars.log) % 2 == 1 ? {'code': 'App.F'} : null }}"}}, "input": "{{ vars.log }}",
		"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2}]}}}], "catch": [{"match": {"codes": ["*"]}, "output": "{{ vars.log }}", "next": "done"}], "next": "done"},
	"done": {"action": "Return"}
},
"flows": {"Work": {"parameters": {"type": "object", "properties": {"id": {}}}, "entrypoint": "r", "steps": {"r": {"action": "Return", "value": "{{ [vars.id, step.input] }}"}}}}`, nil)
	var group sync.WaitGroup
	for id := range 40 {
		group.Go(func() {
			input, want := []any{}, []any{}
			for i := range id % 7 {
				input = append(input, float64(i))
			}
			for range 3 {
				for _, x := range input {
					want = append(want, []any{float64(id), x})
				}
			}
			for range 5 {
				result := def.Execute(context.Background(), input, mwl.WithArguments(map[string]any{"id": id}))
				if result.Failure != nil || fmt.Sprint(result.Value) != fmt.Sprint(want) {
					t.Errorf("execution %d: want %v, got %v %v", id, want, result.Value, result.Failure)
				}
			}
		})
	}
	group.Wait()
}

// Providers, Parameter validation: closed by default, for Go functions as for
// Flows; without a schema no argument is taken.
func TestProviderParameters(t *testing.T) {
	entry := func(parameters string) []mwl.CatalogEntry {
		return []mwl.CatalogEntry{mwl.CallProvider{
			URI: "mwl:provider.call/test/do/v1", CodePrefix: "Do", Parameters: json.RawMessage(parameters),
			Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{Value: r.With}, nil
			},
		}}
	}
	const with = `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO, "with": "{{ step.input }}"}, "next": "b"}, "b": {"action": "Return"}}`
	for _, test := range []struct {
		parameters, input string
		ok                bool
	}{
		{"", `{}`, true},
		{"", `{"a": 1}`, false},
		{`{"type": "object", "properties": {"a": {"type": "number"}}}`, `{"a": 1}`, true},
		{`{"type": "object", "properties": {"a": {"type": "number"}}}`, `{"a": 1, "b": 2}`, false},
		{`{"type": "object", "properties": {"a": {"type": "number"}}}`, `{"a": "1"}`, false},
		{`{"type": "object", "properties": {"a": {"default": 1}}, "required": ["a"]}`, `{}`, false},
		{`{"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}}`, `{"x": "2024-01-15T09:30:00Z"}`, true},
		{`{"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}}`, `{"x": "yesterday"}`, false},
	} {
		def := load(t, with, entry(test.parameters))
		var input any
		require.NoError(t, json.Unmarshal([]byte(test.input), &input))
		result := def.Execute(t.Context(), input)
		if test.ok {
			require.Equal(t, mwl.Result{Value: input}, result, "%s with %s", test.parameters, test.input)
			continue
		}
		require.Equal(t, []string{"error " + mwl.CodeParameterValidationFailed}, envelope(result.Failure), "%s with %s", test.parameters, test.input)
		require.NotNil(t, result.Failure.Details)
	}
}

// A provider may run another definition: to that execution, what interrupts the
// scope around is a cancellation from outside, and it cleans up before.
func TestExecutionWithinExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		inner := load(t, `
"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "inner cleanup", "ms": 2000}}}}}],
"entrypoint": "a",
"steps": {"a": {"action": "Sleep", "for": "PT1H", "next": "b"}, "b": {"action": "Return"}}`, []mwl.CatalogEntry{j.entry()})
		var chain []string
		outer := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}], "next": "b"}, "b": {"action": "Return"}}`,
			[]mwl.CatalogEntry{do(func(ctx context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
				result := inner.Execute(ctx, r.Input)
				chain = envelope(result.Failure)
				return mwl.CallResponse{Value: result.Value}, result.Err()
			})})
		start := time.Now()
		result := outer.Execute(t.Context(), nil)
		require.Equal(t, []string{"timeout " + mwl.CodeTimeoutExceeded}, envelope(result.Failure))
		require.Equal(t, []string{cancelled}, chain)
		require.Equal(t, []string{"inner cleanup"}, j.all())
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}
