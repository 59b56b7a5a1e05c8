package mwl_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// Execution context: the members of each root at each site, and no more.
func TestRootsAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = "2000-01-01T00:00:00Z"
		entered, both := map[string]any{"enteredAt": at}, map[string]any{"enteredAt": at, "exitedAt": at}
		dispatched := map[string]any{"enteredAt": at, "exitedAt": at, "dispatchedAt": at, "acceptedAt": at}
		ok := map[string]any{"type": "success", "value": "in"}
		def := load(t, `
"middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1H"}, "assign": {"flowEntry": "{{ middleware }}"}}}],
"entrypoint": "match", "steps": {
	"match": {"action": "Match", "cases": [{"when": "{{ size(match) == 2 && size(step) == 5 }}", "assign": {"match": "{{ match }}"}, "next": "pass"}], "default": {"next": "done"}},
	"pass": {"action": "Pass", "assign": {"execution": "{{ execution }}", "frame": "{{ frame }}", "pass": "{{ step }}", "clock": "{{ wallTime() == now() }}", "failure": "{{ failure }}"}, "next": "call"},
	"call": {
		"action": "Call",
		"call": {$MOCK, "with": {"metadata": {"m": 1}, "value": "{{ call.input }}", "failure": "{{ size(call) == 2 && wallTime() == now() ? null : {'code': 'X'} }}"},
			"onSuccess": {"assign": {"call": "{{ call }}", "provider": "{{ provider }}"}}},
		"middleware": [{$RETRY,
			"onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 1}]}, "assign": {"entry": "{{ middleware }}", "phaseClock": "{{ wallTime() == now() }}"}},
			"onSuccess": {"assign": {"ascent": "{{ middleware }}"}}}],
		"assign": {"called": "{{ step }}"},
		"next": "flow"
	},
	"flow": {
		"action": "Call",
		"call": {"flow": {"entrypoint": "r", "steps": {"r": {"action": "Return"}}}, "onSuccess": {"assign": {"flow": "{{ flow }}"}}},
		"next": "gather"
	},
	"gather": {"action": "Gather", "over": [0], "call": {$MOCK, "with": {"value": "{{ call }}"}}, "assign": {"gathered": "{{ step }}"}, "next": "done"},
	"done": {"action": "Return", "value": "{{ vars }}"}
}`, nil)
		result := def.Execute(t.Context(), "in", mwl.WithExecutionID("run"))
		require.NoError(t, result.Err())
		indexed := map[string]any{"input": 0.0, "index": 0.0, "metadata": entered}
		require.Equal(t, map[string]any{
			"flowEntry":  map[string]any{"input": "in", "metadata": map[string]any{"enteredAt": at, "deadline": "2000-01-01T01:00:00Z"}},
			"match":      map[string]any{"input": "in", "metadata": both},
			"execution":  map[string]any{"id": "run", "metadata": entered, "platform": map[string]any{}},
			"frame":      map[string]any{"input": "in", "metadata": entered},
			"pass":       map[string]any{"name": "pass", "id": "step-2", "action": "Pass", "input": "in", "metadata": both},
			"clock":      true,
			"failure":    nil,
			"call":       map[string]any{"input": "in", "result": ok, "metadata": dispatched},
			"provider":   map[string]any{"input": "in", "result": ok, "metadata": map[string]any{"m": 1.0}},
			"entry":      map[string]any{"input": "in", "metadata": map[string]any{"enteredAt": at, "attempt": 0.0}},
			"phaseClock": true,
			"ascent":     map[string]any{"input": "in", "result": ok, "metadata": map[string]any{"enteredAt": at, "attempt": 1.0}},
			"called":     map[string]any{"name": "call", "id": "step-3", "action": "Call", "input": "in", "result": ok, "metadata": both},
			"flow":       map[string]any{"input": "in", "result": ok, "vars": map[string]any{}, "metadata": both},
			"gathered": map[string]any{
				"name": "gather", "id": "step-6", "action": "Gather", "input": "in",
				"results":  []any{map[string]any{"type": "success", "value": indexed}},
				"metadata": map[string]any{"enteredAt": at, "exitedAt": at, "dispatchCount": 1.0},
			},
		}, result.Value)
	})
}
