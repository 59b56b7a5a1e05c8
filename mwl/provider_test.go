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

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// callDo is a definition that calls do and returns what its Step came to.
const callDo = `"entrypoint": "call", "steps": {
	"call": {"action": "Call", "call": {$DO%s}, "next": "done"},
	"done": {"action": "Return"}}`

func executeDo(t *testing.T, members string, call func(context.Context, mwl.CallRequest) (mwl.CallResponse, error)) mwl.Result {
	t.Helper()
	return load(t, fmt.Sprintf(callDo, members), []mwl.CatalogEntry{do(call)}).Execute(t.Context(), map[string]any{"a": 1})
}

func TestProviderGetsAndGivesCopies(t *testing.T) {
	shared := map[string]any{"n": 1}
	def := load(t, `"entrypoint": "a", "steps": {
		"a": {"action": "Call", "call": {$DO, "with": {"list": [1, 2]}}, "assign": {"kept": "{{ step.result.value }}"}, "next": "b"},
		"b": {"action": "Call", "call": {$DO, "with": {"list": [1, 2]}}, "next": "done"},
		"done": {"action": "Return", "value": "{{ [vars.kept, step.input] }}"}}`, []mwl.CatalogEntry{
		do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			list, _ := r.With["list"].([]any)
			list[0] = "altered"
			r.With["more"] = true
			if input, ok := r.Input.(map[string]any); ok {
				input["altered"] = true
			}
			return mwl.CallResponse{Value: shared}, nil
		}),
	})
	input := map[string]any{"a": 1}
	for range 2 {
		result := def.Execute(t.Context(), input)
		require.NoError(t, result.Err())
		require.Equal(t, []any{map[string]any{"n": 1.0}, map[string]any{"n": 1.0}}, result.Value)
		result.Value.([]any)[0].(map[string]any)["n"] = "altered"
	}
	require.Equal(t, map[string]any{"a": 1}, input)
	require.Equal(t, map[string]any{"n": 1}, shared)
}

func TestProviderRequest(t *testing.T) {
	var ids []string
	var mu sync.Mutex
	def := load(t, `"entrypoint": "all", "steps": {
		"all": {"action": "Gather", "over": ["x", "y"], "concurrency": 1, "call": {$DO, "with": {"at": "{{ call.index }}"}}, "next": "one"},
		"one": {"action": "Call", "call": {$DO, "with": {"id": "{{ step.id }}"}},
			"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2}]}}}], "next": "done"},
		"done": {"action": "Return"}}`, []mwl.CatalogEntry{
		do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			if at, gathered := r.With["at"]; gathered {
				require.InDelta(t, float64(r.Index), at, 0)
				require.Equal(t, []any{"x", "y"}[r.Index], r.Input)
				return mwl.CallResponse{Value: r.Input}, nil
			}
			require.Equal(t, -1, r.Index)
			require.Equal(t, r.With["id"], r.StepID)
			require.Equal(t, "run-1", r.ExecutionID)
			ids = append(ids, r.StepID)
			if len(ids) == 1 {
				return mwl.CallResponse{}, errors.New("not yet")
			}
			return mwl.CallResponse{Value: "ok"}, nil
		}),
	})
	result := def.Execute(t.Context(), nil, mwl.WithExecutionID("run-1"))
	require.NoError(t, result.Err())
	require.Equal(t, "ok", result.Value)
	require.Len(t, ids, 2)
	require.Equal(t, ids[0], ids[1], "an attempt of a retry is of the same Step")
}

func TestProviderErrors(t *testing.T) {
	retryable := true
	for name, c := range map[string]struct {
		call     func(context.Context, mwl.CallRequest) (mwl.CallResponse, error)
		code     string
		message  string
		previous string
	}{
		"plain error": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, errors.New("disk full")
			},
			code:    "Provider.Call.Do.Error",
			message: "disk full",
		},
		"failure, wrapped": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, fmt.Errorf("calling: %w", &mwl.Failure{Code: "Shop.Closed", Message: "on Sundays", Retryable: &retryable, Details: []int{1}})
			},
			code:    "Shop.Closed",
			message: "on Sundays",
		},
		"nil failure": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				var f *mwl.Failure
				return mwl.CallResponse{}, fmt.Errorf("calling: %w", error(f))
			},
			code: "Provider.Call.Do.Error",
		},
		"panic": {
			call:    func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) { panic("out of cheese") },
			code:    "Provider.Call.Do.Error",
			message: "it panicked: out of cheese",
		},
		"goexit": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				runtime.Goexit()
				return mwl.CallResponse{}, nil
			},
			code:    "Provider.Call.Do.Error",
			message: "it ended its goroutine (runtime.Goexit)",
		},
		"success as a failure": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, &mwl.Failure{Type: mwl.TypeSuccess, Code: "X"}
			},
			code: "Provider.Call.Do.Error",
		},
		"value without a JSON form": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{Value: math.NaN()}, nil
			},
			code: "Provider.Call.Do.Error",
		},
		"value that panics": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{Value: bomb{}}, nil
			},
			code: "Provider.Call.Do.Error",
		},
		"details without a JSON form": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, &mwl.Failure{Code: "X", Details: func() {}}
			},
			code: "Provider.Call.Do.Error",
		},
		"metadata without a JSON form": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{Metadata: map[string]any{"c": make(chan int)}}, nil
			},
			code: "Provider.Call.Do.Error",
		},
		"previous": {
			call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, &mwl.Failure{Type: "Late", Code: "A", Previous: &mwl.Failure{Code: "B"}}
			},
			code:     "A",
			previous: "B",
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := executeDo(t, "", c.call)
			require.NotNil(t, result.Failure)
			require.Equal(t, c.code, result.Failure.Code)
			if c.message != "" {
				require.Equal(t, c.message, result.Failure.Message)
			}
			if c.previous != "" {
				require.NotNil(t, result.Failure.Previous)
				require.Equal(t, c.previous, result.Failure.Previous.Code)
			} else {
				require.Nil(t, result.Failure.Previous)
			}
		})
	}
}

// bomb is a value whose JSON form panics.
type bomb struct{}

func (bomb) MarshalJSON() ([]byte, error) { panic("boom") }

func TestFailureChainsOfProvidersEnd(t *testing.T) {
	loop := &mwl.Failure{Code: "Loop"}
	loop.Previous = loop
	result := executeDo(t, "", func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
		return mwl.CallResponse{}, loop
	})
	links := 0
	last := result.Failure
	for ; last.Previous != nil; last = last.Previous {
		links++
	}
	require.Equal(t, 32, links)
	require.Equal(t, mwl.CodeFailureChainTruncated, last.Code)
}

func TestUndeclaredFailure(t *testing.T) {
	catalog := []mwl.CatalogEntry{mwl.CallProvider{
		URI: "mwl:provider.call/test/do/v1", CodePrefix: "Do",
		Failures: mwl.FailureCatalog{Closed: []string{"Provider.Call.Do.Known"}, Open: []string{"Provider.Call.Do.User.*"}},
		Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			code, _ := r.Input.(string)
			return mwl.CallResponse{}, &mwl.Failure{Code: code}
		},
	}}
	def := load(t, fmt.Sprintf(callDo, ""), catalog)
	for _, declared := range []string{"Provider.Call.Do.Known", "Provider.Call.Do.User.Any.Thing", "Provider.Call.Do.Error"} {
		require.Equal(t, &mwl.Failure{Type: mwl.TypeError, Code: declared}, def.Execute(t.Context(), declared).Failure)
	}
	for _, undeclared := range []string{"System.Cancelled", "Provider.Call.Do.Other", "Provider.Call.Do.User"} {
		f := def.Execute(t.Context(), undeclared).Failure
		require.Equal(t, "Provider.Call.Do.Error", f.Code)
		require.Equal(t, undeclared, f.Previous.Code)
	}
}

func TestProviderMetadata(t *testing.T) {
	entry := mwl.CallProvider{
		URI: "mwl:provider.call/test/do/v1", CodePrefix: "Do",
		Metadata: json.RawMessage(`{"type":"object","properties":{"request":{"type":"string"}}}`),
		Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			response := mwl.CallResponse{Metadata: map[string]any{"request": "r1"}}
			switch r.Input {
			case "fail":
				return response, errors.New("no")
			case "more":
				response.Metadata["secret"] = 1
			}
			return response, nil
		},
	}
	def := load(t, `"entrypoint": "call", "steps": {
		"call": {"action": "Call", "call": {$DO,
			"onSuccess": {"assign": {"seen": "{{ provider.metadata.request + ' after a success' }}"}},
			"onFailure": {"assign": {"seen": "{{ has(provider.metadata.request) ? provider.metadata.request + ' after a failure' : 'nothing' }}"}}},
			"catch": [{"match": {"codes": ["*"]}, "next": "done"}], "next": "done"},
		"done": {"action": "Return", "value": "{{ vars.seen }}"}}`, []mwl.CatalogEntry{entry})
	for input, want := range map[string]string{
		"go": "r1 after a success", "fail": "r1 after a failure", "more": "nothing",
	} {
		require.Equal(t, want, def.Execute(t.Context(), input).Value)
	}
}

func TestProviderIsCancelledAndWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		def := load(t, `"entrypoint": "call", "steps": {
			"call": {"action": "Call", "call": {$DO},
				"middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}], "next": "done"},
			"done": {"action": "Return"}}`, []mwl.CatalogEntry{
			do(func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				ended = true
				return mwl.CallResponse{Value: "too late"}, nil
			}),
		})
		began := time.Now()
		result := def.Execute(t.Context(), nil)
		require.Equal(t, mwl.CodeTimeoutExceeded, result.Failure.Code)
		require.Equal(t, mwl.TypeTimeout, result.Failure.Type)
		require.True(t, ended)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

func TestProviderContextHasTheCallersValues(t *testing.T) {
	type key struct{}
	def := load(t, `"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO}}}}], `+fmt.Sprintf(callDo, ""), []mwl.CatalogEntry{
		do(func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
			if ctx.Value(key{}) != "v" {
				return mwl.CallResponse{}, errors.New("the value is missing")
			}
			return mwl.CallResponse{}, nil
		}),
	})
	require.NoError(t, def.Execute(context.WithValue(t.Context(), key{}, "v"), nil).Err())
}

func TestExecuteTakesWhatHasAJSONForm(t *testing.T) {
	def := load(t, `"parameters": {"type": "object", "properties": {"p": {}}}, "entrypoint": "done", "steps": {"done": {"action": "Return",
		"value": "{{ [frame.input, has(vars.p) ? vars.p : null, execution.platform, execution.id] }}"}}`, nil)
	type order struct {
		ID int `json:"id"`
	}
	result := def.Execute(nil, order{7}, //nolint:staticcheck // a nil context is the caller's mistake
		mwl.WithArguments(map[string]any{"p": []string{"a"}}), mwl.WithPlatform(map[string]any{"n": int64(3)}), mwl.WithExecutionID("e"))
	require.NoError(t, result.Err())
	require.Equal(t, []any{map[string]any{"id": 7.0}, []any{"a"}, map[string]any{"n": 3.0}, "e"}, result.Value)

	for _, result := range []mwl.Result{
		def.Execute(t.Context(), make(chan int)),
		def.Execute(t.Context(), bomb{}),
		def.Execute(t.Context(), nil, mwl.WithArguments(map[string]any{"p": math.Inf(1)})),
		def.Execute(t.Context(), nil, mwl.WithPlatform(map[string]any{"p": func() {}})),
		def.Execute(t.Context(), nil, mwl.WithArguments(map[string]any{"q": 1})),
	} {
		require.NotNil(t, result.Failure)
		require.Equal(t, mwl.CodeParameterValidationFailed, result.Failure.Code)
		require.NotEmpty(t, result.Failure.Message)
	}
	first, second := def.Execute(t.Context(), nil), def.Execute(t.Context(), nil)
	require.NotEqual(t, first.Value.([]any)[3], second.Value.([]any)[3], "executions have ids of their own")
}

func TestExecutionsAtOnce(t *testing.T) {
	def := load(t, `"parameters": {"type": "object", "properties": {"n": {"type": "number"}}}, "entrypoint": "all", "steps": {
		"all": {"action": "Gather", "over": "{{ step.input }}",
			"call": {$DO, "onSuccess": {"value": "{{ call.result.value + vars.n }}", "assign": {"seen": "{{ (has(vars.seen) ? vars.seen : []) + [call.index] }}"}}},
			"next": "done"},
		"done": {"action": "Return", "value": "{{ {'sum': step.input, 'seen': vars.seen} }}"}}`, []mwl.CatalogEntry{
		do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			return mwl.CallResponse{Value: r.Input}, nil
		}),
	})
	var executions sync.WaitGroup
	for n := range 32 {
		executions.Go(func() {
			result := def.Execute(t.Context(), []int{1, 2, 3}, mwl.WithArguments(map[string]any{"n": n}))
			want := map[string]any{"sum": []any{float64(1 + n), float64(2 + n), float64(3 + n)}, "seen": []any{0.0, 1.0, 2.0}}
			if result.Failure != nil || fmt.Sprint(result.Value) != fmt.Sprint(want) {
				t.Errorf("n = %d: %v, %v", n, result.Value, result.Failure)
			}
		})
	}
	executions.Wait()
}

func TestLimitsOfExecution(t *testing.T) {
	endless := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Pass", "next": "b"}, "b": {"action": "Pass", "next": "a"}}`,
		nil, mwl.WithLimits(mwl.Limits{StepRuns: 50}))
	f := endless.Execute(t.Context(), nil).Failure
	require.Equal(t, mwl.TypeCancellation, f.Type)
	require.Equal(t, mwl.CodeCancelled, f.Code)
	require.Contains(t, f.Message, "50")

	wide := load(t, `"entrypoint": "all", "steps": {
		"all": {"action": "Gather", "over": "{{ step.input }}", "call": {$DO}, "next": "done",
			"catch": [{"match": {"codes": ["Mwl.*"]}, "output": "{{ [failure.code, step.metadata.dispatchCount] }}", "next": "done"}]},
		"done": {"action": "Return"}}`, []mwl.CatalogEntry{
		do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
			return mwl.CallResponse{Value: "ran"}, nil
		}),
	}, mwl.WithLimits(mwl.Limits{FanOut: 2}))
	require.Equal(t, []any{"ran", "ran"}, wide.Execute(t.Context(), []int{1, 2}).Value)
	require.Equal(t, []any{mwl.CodeFanOutLimitExceeded, 3.0}, wide.Execute(t.Context(), []int{1, 2, 3}).Value)
}

func TestValuesThatGrow(t *testing.T) {
	for _, steps := range []string{
		`"a": {"action": "Pass", "assign": {"x": "{{ vars }}", "y": "{{ vars }}"}, "next": "a"}`,
		`"a": {"action": "Pass", "output": {"x": "{{ step.input }}", "y": "{{ step.input }}"}, "next": "a"}`,
		`"a": {"action": "Pass", "output": "{{ {'x': step.input} }}", "next": "a"}`,
		`"a": {"action": "Gather", "over": [1, 2], "call": {$MOCK, "input": "{{ step.input }}"}, "next": "a"}`,
	} {
		def := load(t, `"entrypoint": "a", "steps": {`+steps+`}`, nil, mwl.WithLimits(mwl.Limits{ValueBytes: 1 << 16}))
		f := def.Execute(t.Context(), "seed").Failure
		require.Equal(t, []string{cancelled}, envelope(f), steps)
		require.Contains(t, f.Message, "bytes")
	}
}

// rude is an error whose method panics.
type rude struct{}

func (rude) Error() string { panic("no text") }

func TestReasonsOfCancellation(t *testing.T) {
	def := load(t, `"entrypoint": "nap", "steps": {"nap": {"action": "Sleep", "for": "P1D", "next": "done"}, "done": {"action": "Return"}}`, nil)
	for _, cause := range []error{errors.New("the operator said so"), rude{}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		f := def.Execute(ctx, nil).Failure
		require.Equal(t, []string{cancelled}, envelope(f))
		require.NotEmpty(t, f.Message)
	}
}

func TestLargeValueInAnArm(t *testing.T) {
	def := load(t, `"entrypoint": "all", "steps": {
		"all": {"action": "Gather", "calls": [{$MOCK, "onSuccess": {"assign": {"v": "{{ lists.range(200).map(i, call.input) }}"}}}],
			"catch": [{"match": {"codes": ["*"]}, "next": "done"}], "next": "done"},
		"done": {"action": "Return"}}`, nil, mwl.WithLimits(mwl.Limits{ValueBytes: 100_000}))
	require.Equal(t, []string{cancelled}, envelope(def.Execute(t.Context(), strings.Repeat("x", 1000)).Failure))
}

// Execution context, step: the Result that a Call Step resolved to, whatever it is.
func TestResultOfAFaultBeforeTheCall(t *testing.T) {
	def := load(t, `"entrypoint": "call", "steps": {
		"call": {"action": "Call", "input": "{{ step.input.missing }}", "call": {$MOCK},
			"catch": [{"match": {"codes": ["*"]}, "output": "{{ step.result == failure ? step.result.code : 'no' }}", "next": "done"}], "next": "done"},
		"done": {"action": "Return"}}`, nil)
	require.Equal(t, mwl.Result{Value: mwl.CodeExpressionEvaluationError}, def.Execute(t.Context(), map[string]any{}))
}

func TestNoLimits(t *testing.T) {
	none := mwl.Limits{DefinitionBytes: -1, Depth: -1, FlowNesting: -1, Steps: -1, Expressions: -1, ExpressionBytes: -1, StepRuns: -1, FanOut: -1, ValueBytes: -1, Cleanup: -1}
	long := "{{ '" + strings.Repeat("x", 20_000) + "' }}"
	def := load(t, `"entrypoint":"a","steps":{"a":{"action":"Return","value":"`+long+`"}}`, nil, mwl.WithLimits(none))
	require.NoError(t, def.Execute(t.Context(), nil).Err())
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	def = load(t, `"entrypoint":"a","steps":{"a":{"action":"Return","value":`+deep+`}}`, nil, mwl.WithLimits(none))
	require.NoError(t, def.Execute(t.Context(), nil).Err())
}
