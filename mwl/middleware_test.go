package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// own is a middleware that tests give their actions to.
func own(m mwl.Middleware) mwl.CatalogEntry {
	m.URI, m.CodePrefix = "mwl:provider.middleware/test/own/v1", "Own"
	m.Failures = mwl.FailureCatalog{Open: []string{"*"}}
	return m
}

func action(kind mwl.ActionKind, run func(context.Context, *mwl.PhaseRun) (mwl.Decision, error)) *mwl.PhaseAction {
	return &mwl.PhaseAction{Kind: kind, Parameters: json.RawMessage(`{"type":"object","additionalProperties":true}`), Run: run}
}

func decide(kind mwl.ActionKind, decision mwl.Decision) *mwl.PhaseAction {
	return action(kind, func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return decision, nil })
}

// echo calls the mock inside of own, with the members of the entry and of the call.
func echo(entry, call string) string {
	return `"entrypoint": "call", "steps": {
		"call": {"action": "Call", "call": {$MOCK` + call + `}, "middleware": [{$OWN` + entry + `}], "next": "done"},
		"done": {"action": "Return"}}`
}

func TestCache(t *testing.T) {
	// A cache: what a phase leaves in State, the next one finds.
	stored := map[string]any{}
	cache := own(mwl.Middleware{
		Metadata: json.RawMessage(`{"type":"object","properties":{"hit":{"type":"boolean"}}}`),
		OnEntry: &mwl.PhaseAction{
			Kind:       mwl.Control,
			Parameters: json.RawMessage(`{"type":"object","required":["key"],"properties":{"key":{"type":"string"}}}`),
			Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				r.State = r.With["key"]
				v, hit := stored[r.With["key"].(string)]
				r.Contribute("hit", hit)
				if hit {
					return mwl.Substitute(mwl.Result{Value: v}), nil
				}
				return mwl.Decision{}, nil
			},
		},
		OnSuccess: action(mwl.SideEffect, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			stored[r.State.(string)] = r.Result.Value
			return mwl.Decision{}, nil
		}),
	})
	def := load(t, echo(`, "onEntry": {"with": {"key": "{{ middleware.input.id }}"}},
		"onSuccess": {"value": "{{ {'shaped': middleware.result.value} }}"},
		"onAlways": {"assign": {"hit": "{{ middleware.metadata.hit }}"}}`,
		`, "with": {"value": "{{ call.input.v }}"}`), []mwl.CatalogEntry{cache})
	first := def.Execute(t.Context(), map[string]any{"id": "a", "v": 1})
	require.Equal(t, map[string]any{"shaped": 1.0}, first.Value)
	second := def.Execute(t.Context(), map[string]any{"id": "a", "v": 2})
	require.InDelta(t, 1.0, second.Value, 0, "a substitute at onEntry leaves without onSuccess")
	require.Equal(t, map[string]any{"a": 1.0}, stored)
	require.Equal(t, mwl.CodeParameterValidationFailed, def.Execute(t.Context(), map[string]any{"id": 1, "v": 1}).Failure.Code)
}

func TestTransform(t *testing.T) {
	m := own(mwl.Middleware{
		OnEntry: action(mwl.Transform, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			return mwl.Replace(r.Input.(string) + ">"), nil
		}),
		OnSuccess: action(mwl.Transform, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			return mwl.Replace(r.Result.Value.(string) + "<"), nil
		}),
	})
	require.Equal(t, "v><", load(t, echo("", ""), []mwl.CatalogEntry{m}).Execute(t.Context(), "v").Value)
	shaped := load(t, echo(`, "onEntry": {"output": "{{ middleware.input + '1' }}"}, "onSuccess": {"value": "{{ middleware.result.value + '2' }}"}`, ""), []mwl.CatalogEntry{m})
	require.Equal(t, "v>1<2", shaped.Execute(t.Context(), "v").Value, "the shaping sees what the action did")
	gated := load(t, echo(`, "onEntry": {"when": false}, "onSuccess": {"when": false}`, ""), []mwl.CatalogEntry{m})
	require.Equal(t, "v", gated.Execute(t.Context(), "v").Value)
}

func TestSubstituteOnTheWayUp(t *testing.T) {
	success := own(mwl.Middleware{OnSuccess: decide(mwl.Control, mwl.Substitute(mwl.Result{Value: "mine"}))})
	require.Equal(t, "mine!", load(t, echo(`, "onSuccess": {"value": "{{ middleware.result.value + '!' }}"}`, ""), []mwl.CatalogEntry{success}).Execute(t.Context(), "v").Value)

	failure := own(mwl.Middleware{OnFailure: action(mwl.Control, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
		return mwl.Substitute(mwl.Result{Failure: &mwl.Failure{Code: "Mine", Previous: r.Result.Failure}}), nil
	})})
	failing := `, "with": {"failure": {"code": "Theirs"}}`
	f := load(t, echo(`, "onFailure": {"message": "{{ middleware.result.code }}"}`, failing), []mwl.CatalogEntry{failure}).Execute(t.Context(), nil).Failure
	require.Equal(t, []string{"error Mine", "error Mine", "error Theirs"}, envelope(f))
	require.Equal(t, "Mine", f.Message)

	same := own(mwl.Middleware{OnFailure: action(mwl.Control, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
		return mwl.Substitute(*r.Result), nil
	})})
	f = load(t, echo("", failing), []mwl.CatalogEntry{same}).Execute(t.Context(), nil).Failure
	require.Equal(t, []string{"error Theirs"}, envelope(f), "what rose is no new failure")
}

func TestActionErrors(t *testing.T) {
	failing := `, "with": {"failure": {"code": "Theirs"}}`
	fail := func(err error) func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) {
		return func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, err }
	}
	always := 0
	count := action(mwl.SideEffect, func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) {
		always++
		return mwl.Decision{}, nil
	})
	for name, c := range map[string]struct {
		entry  mwl.Middleware
		call   string
		chain  []string
		always int
	}{
		"onEntry": {
			entry: mwl.Middleware{OnEntry: action(mwl.SideEffect, fail(errors.New("no"))), OnAlways: count},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"onSuccess": {
			entry:  mwl.Middleware{OnSuccess: action(mwl.SideEffect, fail(&mwl.Failure{Code: "Named"})), OnAlways: count},
			chain:  []string{"error Named"},
			always: 1,
		},
		"onFailure": {
			entry:  mwl.Middleware{OnFailure: action(mwl.SideEffect, fail(&mwl.Failure{Code: "Named"})), OnAlways: count},
			call:   failing,
			chain:  []string{"error Named", "error Theirs"},
			always: 1,
		},
		"onAlways after a failure": {
			entry: mwl.Middleware{OnAlways: action(mwl.SideEffect, fail(errors.New("no")))},
			call:  failing,
			chain: []string{"error Provider.Middleware.Own.Error", "error Theirs"},
		},
		"onAlways after a success": {
			entry: mwl.Middleware{OnAlways: action(mwl.SideEffect, fail(errors.New("no")))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"panic": {
			entry: mwl.Middleware{OnSuccess: action(mwl.SideEffect, func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { panic("no") })},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"goexit": {
			entry: mwl.Middleware{OnSuccess: action(mwl.SideEffect, func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) {
				runtime.Goexit()
				return mwl.Decision{}, nil
			})},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a decision that the kind does not allow": {
			entry: mwl.Middleware{OnSuccess: decide(mwl.SideEffect, mwl.Replace(1))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a decision that the phase does not allow": {
			entry: mwl.Middleware{OnAlways: decide(mwl.Control, mwl.Rerun(mwl.RerunOptions{}))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a success in place of a failure": {
			entry: mwl.Middleware{OnFailure: decide(mwl.Control, mwl.Substitute(mwl.Result{Value: 1}))},
			call:  failing,
			chain: []string{"error Provider.Middleware.Own.Error", "error Theirs"},
		},
		"a failure in place of a success": {
			entry: mwl.Middleware{OnSuccess: decide(mwl.Control, mwl.Substitute(mwl.Result{Failure: &mwl.Failure{Code: "X"}}))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a value without a JSON form": {
			entry: mwl.Middleware{OnSuccess: decide(mwl.Transform, mwl.Replace(func() {}))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a bound without a failure": {
			entry: mwl.Middleware{OnEntry: decide(mwl.Control, mwl.Bound(time.Second, nil))},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
		"a feed at onFailure": {
			entry: mwl.Middleware{OnFailure: decide(mwl.Control, mwl.Rerun(mwl.RerunOptions{Feed: true}))},
			call:  failing,
			chain: []string{"error Provider.Middleware.Own.Error", "error Theirs"},
		},
		"metadata that is not declared": {
			entry: mwl.Middleware{OnEntry: action(mwl.SideEffect, func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				r.Contribute("undeclared", 1)
				return mwl.Decision{}, nil
			})},
			chain: []string{"error Provider.Middleware.Own.Error"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			always = 0
			result := load(t, echo("", c.call), []mwl.CatalogEntry{own(c.entry)}).Execute(t.Context(), "v")
			require.Equal(t, c.chain, envelope(result.Failure))
			require.Equal(t, c.always, always)
			require.NotEmpty(t, result.Failure)
		})
	}
}

func TestRerunAndBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A retry of one's own: three runs, a second apart, from the same variables.
		runs := 0
		again := own(mwl.Middleware{OnFailure: action(mwl.Control, func(_ context.Context, _ *mwl.PhaseRun) (mwl.Decision, error) {
			if runs++; runs < 3 {
				return mwl.Rerun(mwl.RerunOptions{Delay: time.Second, RestoreVariables: true}), nil
			}
			return mwl.Decision{}, nil
		})})
		def := load(t, echo("", `, "with": {"failure": {"code": "X", "details": "{{ has(vars.n) }}"}}, "onFailure": {"assign": {"n": 1}}`), []mwl.CatalogEntry{again})
		began := time.Now()
		f := def.Execute(t.Context(), nil).Failure
		require.Equal(t, false, f.Details)
		require.Equal(t, 3, runs)
		require.Equal(t, 2*time.Second, time.Since(began))

		// A bound of one's own; it spans the re-runs.
		bounded := own(mwl.Middleware{
			OnEntry:   decide(mwl.Control, mwl.Bound(90*time.Second, &mwl.Failure{Type: "Late", Code: "Own.Late"})),
			OnSuccess: decide(mwl.Control, mwl.Rerun(mwl.RerunOptions{Feed: true})),
		})
		began = time.Now()
		f = load(t, echo("", `, "with": {"delay": "PT40S"}`), []mwl.CatalogEntry{bounded}).Execute(t.Context(), nil).Failure
		require.Equal(t, []string{"Late Own.Late"}, envelope(f))
		require.Equal(t, 90*time.Second, time.Since(began))
	})
}

func TestCatalogErrors(t *testing.T) {
	call := func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) { return mwl.CallResponse{}, nil }
	run := decide(mwl.Control, mwl.Decision{})
	good := mwl.CallProvider{URI: "mwl:provider.call/test/do/v1", CodePrefix: "Do", Call: call}
	for field, entries := range map[string][]mwl.CatalogEntry{
		"URI": {
			mwl.CallProvider{CodePrefix: "Do", Call: call},
			mwl.CallProvider{URI: "mwl:provider.call/mwl/do/v1", CodePrefix: "Do", Call: call},
			mwl.CallProvider{URI: "mwl:provider.call/example/do/v1", CodePrefix: "Do", Call: call},
			mwl.CallProvider{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do", Call: call},
			mwl.CallProvider{URI: "mwl:provider.call/test/../v1", CodePrefix: "Do", Call: call},
			mwl.CallProvider{URI: "https://test/do", CodePrefix: "Do", Call: call},
			mwl.Middleware{URI: "mwl:provider.call/test/do/v1", CodePrefix: "Do", OnEntry: run},
		},
		"CodePrefix": {mwl.CallProvider{URI: good.URI, Call: call}, mwl.CallProvider{URI: good.URI, CodePrefix: "A.B", Call: call}},
		"Call":       {mwl.CallProvider{URI: good.URI, CodePrefix: "Do"}},
		"Parameters": {
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Parameters: json.RawMessage(`{`)},
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Parameters: json.RawMessage(`{"type":"string"}`)},
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Parameters: json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`)},
		},
		"Metadata": {
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Metadata: json.RawMessage(`[]`)},
			mwl.Middleware{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do", OnEntry: run, Metadata: json.RawMessage(`{"type":"object","properties":{"exitedAt":{}}}`)},
		},
		"Failures.Closed": {
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Failures: mwl.FailureCatalog{Closed: []string{"System.Cancelled"}}},
			mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Failures: mwl.FailureCatalog{Closed: []string{"Provider.Call.Do.*"}}},
		},
		"Failures.Open": {mwl.CallProvider{URI: good.URI, CodePrefix: "Do", Call: call, Failures: mwl.FailureCatalog{Open: []string{"Provider.Call.Do.X"}}}},
		"Attach":        {mwl.Middleware{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do", OnEntry: run, Attach: 8}},
		"OnEntry.Kind":  {mwl.Middleware{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do", OnEntry: &mwl.PhaseAction{Run: run.Run}}},
		"OnAlways.Run":  {mwl.Middleware{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do", OnAlways: &mwl.PhaseAction{Kind: mwl.Control}}},
		"OnEntry, OnSuccess, OnFailure, OnAlways": {mwl.Middleware{URI: "mwl:provider.middleware/test/do/v1", CodePrefix: "Do"}},
	} {
		for _, entry := range entries {
			_, err := mwl.NewCatalog(entry)
			var refused *mwl.CatalogError
			require.ErrorAs(t, err, &refused, field)
			require.Equal(t, field, refused.Field, err.Error())
			require.NotEmpty(t, refused.Message)
		}
	}
	_, err := mwl.NewCatalog(good, good)
	require.ErrorContains(t, err, "twice")
	_, err = mwl.NewCatalog(nil)
	require.ErrorContains(t, err, "nil")
	catalog, err := mwl.NewCatalog(good)
	require.NoError(t, err)
	require.Contains(t, catalog.URIs(), good.URI)
	require.Contains(t, catalog.URIs(), "mwl:provider.middleware/mwl/retry/v1")
}

func TestOptionErrors(t *testing.T) {
	source := []byte(`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Return"}}}`)
	for name, option := range map[string]mwl.LoadOption{
		"WithCatalog": mwl.WithCatalog(nil), "WithClock": mwl.WithClock(nil), "WithRandom": mwl.WithRandom(nil),
	} {
		_, err := mwl.Load(source, option)
		var refused *mwl.OptionError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, name, refused.Option)
	}
	var noClock *clock.Mock
	_, err := mwl.Load(source, mwl.WithClock(noClock))
	require.Error(t, err)
	_, err = mwl.Load(source, nil)
	require.ErrorContains(t, err, "option 1")
	def, err := mwl.Load(source)
	require.NoError(t, err)
	require.Equal(t, mwl.CodeParameterValidationFailed, def.Execute(t.Context(), nil, nil).Failure.Code)
}
