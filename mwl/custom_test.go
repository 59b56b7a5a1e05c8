package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

type phaseFunc = func(context.Context, *mwl.PhaseRun) (mwl.Decision, error)

// own is a middleware with the given actions, all of one kind, that takes any
// arguments.
func ownMiddleware(kind mwl.ActionKind, actions map[string]phaseFunc) mwl.Middleware {
	phase := func(name string) *mwl.PhaseAction {
		if actions[name] == nil {
			return nil
		}
		return &mwl.PhaseAction{Kind: kind, Parameters: json.RawMessage(`{"type": "object", "additionalProperties": true}`), Run: actions[name]}
	}
	return mwl.Middleware{
		URI: "mwl:provider.middleware/test/own/v1", CodePrefix: "Own",
		Metadata: json.RawMessage(`{"type": "object", "properties": {"n": {"type": "number"}, "what": {}}}`),
		Failures: mwl.FailureCatalog{Closed: []string{"Provider.Middleware.Own.Refused"}},
		OnEntry:  phase("onEntry"), OnSuccess: phase("onSuccess"), OnFailure: phase("onFailure"), OnAlways: phase("onAlways"),
	}
}

// Middleware mechanics, The stack: the phases of a stack, on both levels, for each
// outcome, in order.
func TestPhaseOrder(t *testing.T) {
	for outcome, want := range map[string][]string{
		"value": {
			"entry F1", "entry F2", "entry S1", "entry S2", "work",
			"success S2", "always S2", "success S1", "always S1", "success F2", "always F2", "success F1", "always F1",
		},
		"failure": {
			"entry F1", "entry F2", "entry S1", "entry S2", "work",
			"failure S2", "always S2", "failure S1", "always S1", "failure F2", "always F2", "failure F1", "always F1",
		},
		"entry fault": {
			"entry F1", "entry F2", "entry S1",
			"failure S1", "always S1", "failure F2", "always F2", "failure F1", "always F1",
		},
		"success fault": {
			"entry F1", "entry F2", "entry S1", "entry S2", "work",
			"success S2", "always S2", "failure S1", "always S1", "failure F2", "always F2", "failure F1", "always F1",
		},
		"always fault": {
			"entry F1", "entry F2", "entry S1", "entry S2", "work",
			"success S2", "always S2", "failure S1", "always S1", "failure F2", "always F2", "failure F1", "always F1",
		},
	} {
		t.Run(outcome, func(t *testing.T) {
			j := &journal{}
			def := load(t, `
"middleware": [{$TRACE, "onEntry": {"with": {"name": "F1"}}}, {$TRACE, "onEntry": {"with": {"name": "F2"}}}],
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"name": "work", "fail": "{{ step.input == 'failure' ? 'App.F' : null }}"}}, "middleware": [
		{$TRACE, "onEntry": {"with": {"name": "S1"}}},
		{$TRACE,
			"onEntry": {"with": {"name": "{{ step.input == 'entry fault' ? step.none : 'S2' }}"}},
			"onSuccess": {"value": "{{ step.input == 'success fault' ? step.none : 1.0 }}"},
			"onAlways": {"assign": {"x": "{{ step.input == 'always fault' ? step.none : 1.0 }}"}}}
	], "next": "b"},
	"b": {"action": "Return"}
}`, []mwl.CatalogEntry{j.entry(), j.trace()})
			result := def.Execute(t.Context(), outcome)
			require.Equal(t, outcome == "value", result.Err() == nil)
			require.Equal(t, want, j.all())
		})
	}
}

// Middleware mechanics, Re-execution and re-entry: inner entries are established
// afresh in each run, the re-running one once; a deferred phase sees its own state.
func TestPhaseOrderRerun(t *testing.T) {
	j := &journal{}
	def := load(t, `
"parameters": {"type": "object", "properties": {"n": {"default": 0}}},
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"name": "work", "fail": "{{ vars.n < 2.0 ? 'App.F' : null }}"}}, "middleware": [
		{$TRACE, "onEntry": {"with": {"name": "outer"}}},
		{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 3}]}}, "onFailure": {"assign": {"n": "{{ vars.n + 1.0 }}"}}},
		{$TRACE, "onEntry": {"with": {"name": "{{ 'inner' + string(int(vars.n)) }}"}}}
	], "next": "b"},
	"b": {"action": "Return"}
}`, []mwl.CatalogEntry{j.entry(), j.trace()})
	require.NoError(t, def.Execute(t.Context(), nil).Err())
	require.Equal(t, []string{
		"entry outer",
		"entry inner0", "work", "failure inner0", "always inner0",
		"entry inner1", "work", "failure inner1", "always inner1",
		"entry inner2", "work", "success inner2", "always inner2",
		"success outer", "always outer",
	}, j.all())
}

const wrapped = `
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"name": "work", "fail": "{{ step.input == 'fail' ? 'App.F' : null }}"}}, "middleware": [
		{$TRACE, "onEntry": {"with": {"name": "outer"}}},
		{$OWN, "onEntry": {"output": "{{ [middleware.input] }}"}, "onSuccess": {"value": "{{ {'shaped': middleware.result.value} }}"}, "onFailure": {"message": "{{ 'shaped ' + middleware.result.code }}"}},
		{$TRACE, "onEntry": {"with": {"name": "inner"}}}
	], "next": "b"},
	"b": {"action": "Return"}
}`

// Middleware mechanics, Author shaping and the middleware action: what actions of
// each kind may do, and what the stack sees of it.
func TestCustomActions(t *testing.T) {
	always := func(d mwl.Decision, err error) phaseFunc {
		return func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return d, err }
	}
	refused := &mwl.Failure{Code: "Provider.Middleware.Own.Refused", Message: "no"}
	ran := []string{"entry outer", "entry inner", "work", "success inner", "always inner", "success outer", "always outer"}
	for name, test := range map[string]struct {
		kind    mwl.ActionKind
		actions map[string]phaseFunc
		input   string
		value   any
		failure []string
		journal []string
	}{
		"side effect": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onEntry": always(mwl.Decision{}, nil), "onAlways": always(mwl.Decision{}, nil)},
			input: "in", value: map[string]any{"shaped": []any{"in"}}, journal: ran,
		},
		"cached success": {
			kind: mwl.Control, actions: map[string]phaseFunc{"onEntry": always(mwl.Substitute(mwl.Result{Value: []int{7}}), nil)},
			input: "in", value: []any{7.0}, journal: []string{"entry outer", "success outer", "always outer"},
		},
		"refusal at entry": {
			kind: mwl.Control, actions: map[string]phaseFunc{"onEntry": always(mwl.Substitute(mwl.Result{Failure: refused}), nil)},
			input: "in", failure: []string{"error Provider.Middleware.Own.Refused"}, journal: []string{"entry outer", "failure outer", "always outer"},
		},
		"action fails at entry": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onEntry": always(mwl.Decision{}, refused)},
			input: "in", failure: []string{"error Provider.Middleware.Own.Refused"}, journal: []string{"entry outer", "failure outer", "always outer"},
		},
		"action panics at entry": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onEntry": func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { panic("broken") }},
			input: "in", failure: []string{"error Provider.Middleware.Own.Error"}, journal: []string{"entry outer", "failure outer", "always outer"},
		},
		"transform down": {
			kind: mwl.Transform, actions: map[string]phaseFunc{"onEntry": func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				return mwl.Replace(r.Input.(string) + " decrypted"), nil
			}},
			input: "in", value: map[string]any{"shaped": []any{"in decrypted"}}, journal: ran,
		},
		"transform up": {
			kind: mwl.Transform, actions: map[string]phaseFunc{"onSuccess": func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				return mwl.Replace(map[string]any{"was": r.Result.Value}), nil
			}},
			input: "in", value: map[string]any{"shaped": map[string]any{"was": []any{"in"}}}, journal: ran,
		},
		"substituted failure": {
			kind: mwl.Control, actions: map[string]phaseFunc{"onFailure": always(mwl.Substitute(mwl.Result{Failure: refused}), nil)},
			input: "fail", failure: []string{"error Provider.Middleware.Own.Refused", "error Provider.Middleware.Own.Refused", "error App.F"},
			journal: []string{"entry outer", "entry inner", "work", "failure inner", "always inner", "failure outer", "always outer"},
		},
		"no success from a failure": {
			kind: mwl.Control, actions: map[string]phaseFunc{"onFailure": always(mwl.Substitute(mwl.Result{Value: 1}), nil)},
			input: "fail", failure: []string{"error Provider.Middleware.Own.Error", "error App.F"},
			journal: []string{"entry outer", "entry inner", "work", "failure inner", "always inner", "failure outer", "always outer"},
		},
		"no substitution by a side effect": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onSuccess": always(mwl.Substitute(mwl.Result{Value: 1}), nil)},
			input: "in", failure: []string{"error Provider.Middleware.Own.Error"},
			journal: []string{"entry outer", "entry inner", "work", "success inner", "always inner", "failure outer", "always outer"},
		},
		"action fails on a failure": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onFailure": always(mwl.Decision{}, errors.New("broken"))},
			input: "fail", failure: []string{"error Provider.Middleware.Own.Error", "error App.F"},
			journal: []string{"entry outer", "entry inner", "work", "failure inner", "always inner", "failure outer", "always outer"},
		},
		"action fails always": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onAlways": always(mwl.Decision{}, refused)},
			input: "in", failure: []string{"error Provider.Middleware.Own.Refused"},
			journal: []string{"entry outer", "entry inner", "work", "success inner", "always inner", "failure outer", "always outer"},
		},
		"undeclared code": {
			kind: mwl.SideEffect, actions: map[string]phaseFunc{"onEntry": always(mwl.Decision{}, &mwl.Failure{Code: "Other.Code"})},
			input: "in", failure: []string{"error Provider.Middleware.Own.Error", "error Other.Code"}, journal: []string{"entry outer", "failure outer", "always outer"},
		},
		"no value": {
			kind: mwl.Transform, actions: map[string]phaseFunc{"onEntry": always(mwl.Replace(func() {}), nil)},
			input: "in", failure: []string{"error Provider.Middleware.Own.Error"}, journal: []string{"entry outer", "failure outer", "always outer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journal{}
			def := load(t, wrapped, []mwl.CatalogEntry{j.entry(), j.trace(), ownMiddleware(test.kind, test.actions)})
			result := def.Execute(t.Context(), test.input)
			require.Equal(t, test.value, result.Value)
			require.Equal(t, test.failure, envelope(result.Failure))
			require.Equal(t, test.journal, j.all())
		})
	}
}

// Middleware mechanics, Re-execution: a middleware of one's own may do what Retry
// and Loop do, with delays, feeds and restored variables.
func TestCustomRerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := func(limit int, options mwl.RerunOptions) phaseFunc {
			return func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				n, _ := r.State.(int)
				r.State = n + 1
				r.Contribute("n", n+1)
				if n+1 >= limit {
					return mwl.Decision{}, nil
				}
				return mwl.Rerun(options), nil
			}
		}
		j := &journal{}
		members := `
"parameters": {"type": "object", "properties": {"v": {"default": ""}}},
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$DO, "with": {"name": "work", "fail": "{{ frame.input == 'fail' ? 'App.F' : null }}"}, "input": "{{ call.input + '.' }}",
			"onSuccess": {"assign": {"v": "{{ vars.v + 's' }}"}}, "onFailure": {"assign": {"v": "{{ vars.v + 'f' }}"}}},
		"middleware": [{$OWN, "onSuccess": {"assign": {"n": "{{ middleware.metadata.n }}"}}, "onFailure": {"assign": {"n": "{{ middleware.metadata.n }}"}}}],
		"output": "{{ [step.result.value, vars.v, vars.n] }}",
		"catch": [{"match": {"codes": ["*"]}, "output": "{{ [failure.code, vars.v, vars.n] }}", "next": "b"}],
		"next": "b"},
	"b": {"action": "Return"}
}`
		def := load(t, members, []mwl.CatalogEntry{j.entry(), ownMiddleware(mwl.Control, map[string]phaseFunc{
			"onSuccess": again(3, mwl.RerunOptions{Feed: true, Delay: time.Minute}),
			"onFailure": again(3, mwl.RerunOptions{RestoreVariables: true}),
		})})
		start := time.Now()
		require.Equal(t, mwl.Result{Value: []any{"in...", "sss", 3.0}}, def.Execute(t.Context(), "in"))
		require.Equal(t, 2*time.Minute, time.Since(start))
		require.Equal(t, mwl.Result{Value: []any{"App.F", "f", 3.0}}, def.Execute(t.Context(), "fail"))
		require.Equal(t, 6, j.count("work"))
	})
}

// Execution model, The conversion seam: a bound of one's own converts its own
// interruption, and only that.
func TestCustomBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		bound := ownMiddleware(mwl.Control, map[string]phaseFunc{
			"onEntry": func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				return mwl.Bound(time.Duration(r.With["ms"].(float64)*float64(time.Millisecond)), &mwl.Failure{Type: "timeout", Code: "Provider.Middleware.Own.Refused"}), nil
			},
			"onFailure": func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) {
				j.add("own failure")
				return mwl.Decision{}, nil
			},
			"onAlways": func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) {
				j.add("own always")
				return mwl.Decision{}, nil
			},
		})
		members := `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO, "with": {"name": "work", "ms": 5000}}, "middleware": [
			{$TRACE, "onEntry": {"with": {"name": "outer"}}}, {$OWN, "onEntry": {"with": {"ms": %d}}}, {$TRACE, "onEntry": {"with": {"name": "inner"}}}%s], "next": "b"}, "b": {"action": "Return"}}`
		entries := []mwl.CatalogEntry{j.entry(), j.trace(), bound}
		result := load(t, fmt.Sprintf(members, 1000, ""), entries).Execute(t.Context(), nil)
		require.Equal(t, []string{"timeout Provider.Middleware.Own.Refused"}, envelope(result.Failure))
		require.Equal(t, []string{"entry outer", "entry inner", "work", "work stopped", "always inner", "own always", "failure outer", "always outer"}, j.all())

		require.NoError(t, load(t, fmt.Sprintf(members, 6000, ""), entries).Execute(t.Context(), nil).Err())

		cleanup := `, {$FINALLY, "onAlways": {"with": {"call": {$MOCK, "with": {"failure": {"code": "Cleanup.Failed"}}}}}}`
		result = load(t, fmt.Sprintf(members, 1000, cleanup), entries).Execute(t.Context(), nil)
		require.Equal(t, []string{"error Cleanup.Failed", cancelled, "timeout Provider.Middleware.Own.Refused"}, envelope(result.Failure))
	})
}

// Middleware mechanics, when: a gated action does not run; what an action
// contributes is read in the entry's own blocks, and must be declared.
func TestCustomGateAndMetadata(t *testing.T) {
	runs := 0
	middleware := ownMiddleware(mwl.SideEffect, map[string]phaseFunc{
		"onEntry": func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			runs++
			for name, v := range r.With {
				r.Contribute(name, v)
			}
			return mwl.Decision{}, nil
		},
	})
	def := load(t, `
"entrypoint": "a",
"steps": {
	"a": {"action": "Call", "call": {$MOCK}, "middleware": [{$OWN,
		"onEntry": {"when": "{{ step.input != null }}", "with": "{{ step.input }}", "assign": {"entry": "{{ has(middleware.metadata.what) }}"}},
		"onSuccess": {"assign": {"what": "{{ has(middleware.metadata.what) ? middleware.metadata.what : 'none' }}"}}}],
		"output": "{{ [vars.entry, vars.what] }}", "next": "b"},
	"b": {"action": "Return"}
}`, []mwl.CatalogEntry{middleware})
	require.Equal(t, mwl.Result{Value: []any{false, "none"}}, def.Execute(t.Context(), nil))
	require.Zero(t, runs)
	require.Equal(t, mwl.Result{Value: []any{true, "x"}}, def.Execute(t.Context(), map[string]any{"what": "x"}))
	for _, undeclared := range []string{"other", "enteredAt", "exitedAt"} {
		result := def.Execute(t.Context(), map[string]any{undeclared: "x"})
		require.Equal(t, []string{"error Provider.Middleware.Own.Error"}, envelope(result.Failure), undeclared)
	}
}

// Execution model, The unwind: an action that is under way is interrupted through
// its context; at onAlways it is not.
func TestCustomActionInterrupted(t *testing.T) {
	for _, phase := range []string{"onEntry", "onSuccess", "onFailure", "onAlways"} {
		t.Run(phase, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{}
				slow := ownMiddleware(mwl.SideEffect, map[string]phaseFunc{phase: func(ctx context.Context, _ *mwl.PhaseRun) (mwl.Decision, error) {
					select {
					case <-ctx.Done():
						j.add("interrupted")
						return mwl.Decision{}, ctx.Err()
					case <-time.After(time.Minute):
						j.add("done")
						return mwl.Decision{}, nil
					}
				}})
				def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$MOCK, "with": {"failure": "{{ step.input == 'onFailure' ? {'code': 'App.F'} : null }}"}}, "middleware": [
					{$TRACE, "onEntry": {"with": {"name": "outer"}}}, {$OWN}, {$TRACE, "onEntry": {"with": {"name": "inner"}}}], "catch": [{"match": {"codes": ["*"]}, "next": "b"}], "next": "b"}, "b": {"action": "Return"}}`,
					[]mwl.CatalogEntry{j.trace(), slow}, mwl.WithLimits(mwl.Limits{Cleanup: time.Hour}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				require.Equal(t, []string{cancelled}, envelope(def.Execute(ctx, phase).Failure))
				require.Equal(t, 1, j.count("always outer"))
				require.Equal(t, j.count("entry inner"), j.count("always inner"))
				require.Zero(t, j.count("success outer")+j.count("failure outer"))
				if phase == "onAlways" {
					require.Equal(t, 1, j.count("done"))
					require.Equal(t, time.Minute, time.Since(start))
					return
				}
				require.Equal(t, 1, j.count("interrupted"))
				require.Equal(t, time.Second, time.Since(start))
			})
		})
	}
}
