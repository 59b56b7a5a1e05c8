package mwl_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// Each dispatch counts as a Step does, in whatever frame it runs.
func TestDispatchesCount(t *testing.T) {
	for name, steps := range map[string]string{
		"gather": `"a": {"action": "Gather", "over": "{{ lists.range(300) }}", "call": {$MOCK}, "next": "done"}`,
		"nested": `"a": {"action": "Gather", "over": "{{ lists.range(30) }}", "next": "done", "call": {"flow": {"entrypoint": "b", "steps": {
			"b": {"action": "Gather", "over": "{{ lists.range(30) }}", "call": {$MOCK}, "next": "done"}, "done": {"action": "Return"}}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			def := load(t, `"entrypoint": "a", "steps": {`+steps+`, "done": {"action": "Return"}}`, nil, mwl.WithLimits(mwl.Limits{StepRuns: 200}))
			f := def.Execute(t.Context(), nil).Failure
			require.Equal(t, []string{cancelled}, envelope(f))
			require.Contains(t, f.Message, "Limits.StepRuns")
		})
	}
}

// Validating arguments counts before it begins, and the search for what is violated after it.
func TestValidatingArgumentsCosts(t *testing.T) {
	parts := strings.TrimSuffix(strings.Repeat(`{"minimum": 0},`, 100), ",")
	for name, c := range map[string]struct {
		item string
		cost int
		want string // of the message; "" for success
	}{
		"valid, too much":    {"i", 1_000_000, "Limits.Cost"},
		"valid":              {"i", 3_000_000, ""},
		"the search is much": {"i == 999 ? -1 : i", 3_000_000, "Limits.Cost"},
		"not valid":          {"i == 999 ? -1 : i", 10_000_000, "the arguments are not valid: at /a/999: "},
	} {
		t.Run(name, func(t *testing.T) {
			def := load(t, `"entrypoint": "c", "flows": {"f": {"parameters": {"type": "object", "properties": {"a": {"items": {"allOf": [`+parts+`]}}}},
				"entrypoint": "r", "steps": {"r": {"action": "Return"}}}}, "steps": {"r": {"action": "Return"},
				"c": {"action": "Call", "call": {"flow": "f", "with": {"a": "{{ lists.range(1000).map(i, `+c.item+`) }}"}}, "next": "r"}}`,
				nil, mwl.WithLimits(mwl.Limits{Cost: c.cost}))
			f := def.Execute(t.Context(), nil).Failure
			if c.want == "" {
				require.Nil(t, f)
				return
			}
			require.NotNil(t, f)
			require.Contains(t, f.Message, c.want)
		})
	}
}

// Every limit of an execution cancels it with a message that names the limit, and
// its cleanup runs.
func TestLimitsAreNamed(t *testing.T) {
	loops := `"a": {"action": "Call", "call": {$MOCK}, "middleware": [{$LOOP, "onSuccess": {"when": true}}], "next": "done"}`
	for name, c := range map[string]struct {
		steps  string
		limits mwl.Limits
	}{
		"StepRuns":      {`"a": {"action": "Pass", "next": "a"}`, mwl.Limits{StepRuns: 100}},
		"Reruns":        {loops, mwl.Limits{Reruns: 100}},
		"Cost":          {`"a": {"action": "Pass", "output": "{{ lists.range(100) }}", "next": "a"}`, mwl.Limits{Cost: 10_000}},
		"LiveBytes":     {`"a": {"action": "Pass", "assign": {"x": "{{ (has(vars.x) ? vars.x : []) + [1, 2, 3] }}"}, "next": "a"}`, mwl.Limits{LiveBytes: 100_000}},
		"ValueBytes":    {`"a": {"action": "Pass", "output": ["{{ step.input }}", "{{ step.input }}"], "next": "a"}`, mwl.Limits{ValueBytes: 10_000}},
		"RunDepth":      {`"a": {"action": "Call", "call": {$MOCK}, "middleware": [` + strings.TrimSuffix(strings.Repeat(`{$LOOP, "onSuccess": {"when": false}},`, 5), ",") + `], "next": "done"}`, mwl.Limits{RunDepth: 4}},
		"ExecutionTime": {`"a": {"action": "Sleep", "for": "P1D", "next": "done"}`, mwl.Limits{ExecutionTime: time.Hour}},
		"ResultBytes":   {`"a": {"action": "Return", "value": "{{ lists.range(100) }}"}`, mwl.Limits{ResultBytes: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{}
				def := load(t, `"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup"}}}}}], "entrypoint": "a", "steps": {`+c.steps+`, "done": {"action": "Return"}}`,
					[]mwl.CatalogEntry{j.entry()}, mwl.WithLimits(c.limits))
				f := def.Execute(t.Context(), nil).Failure
				require.Equal(t, []string{cancelled}, envelope(f))
				require.Contains(t, f.Message, "Limits."+name)
				require.Equal(t, []string{"cleanup"}, j.all())
			})
		})
	}
}

// What is no longer in use does not count: a long execution with small values ends.
func TestLiveBytesAreReleased(t *testing.T) {
	def := load(t, `"entrypoint": "a", "steps": {
		"a": {"action": "Call", "call": {"flow": {"entrypoint": "f", "steps": {
			"f": {"action": "Pass", "output": "{{ lists.range(200) }}", "assign": {"x": "{{ lists.range(200) }}"}, "next": "g"},
			"g": {"action": "Gather", "over": [1, 2, 3], "call": {$MOCK, "input": "{{ lists.range(100) }}", "onSuccess": {"assign": {"y": "{{ call.result }}"}}}, "next": "h"},
			"h": {"action": "Return"}}}},
			"middleware": [{$LOOP, "onSuccess": {"when": "{{ middleware.metadata.iteration < 50 }}", "assign": {"z": "{{ middleware.result }}"}}}],
			"output": "{{ step.result.value }}", "next": "b"},
		"b": {"action": "Match", "cases": [{"when": "{{ has(vars.n) && size(vars.n) > 20 }}", "next": "done"}], "default": {"assign": {"n": "{{ (has(vars.n) ? vars.n : []) + [1] }}"}, "next": "a"}},
		"done": {"action": "Return", "value": 1}}`, nil, mwl.WithLimits(mwl.Limits{LiveBytes: 512 << 10}))
	require.NoError(t, def.Execute(t.Context(), nil).Err())
}

func TestUntrusted(t *testing.T) {
	loose, tight := mwl.DefaultLimits(), mwl.UntrustedLimits()
	require.Less(t, tight.StepRuns, loose.StepRuns)
	source := []byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a", "steps": {"a": {"action": "Pass", "next": "a"}}}`)
	for _, c := range []struct {
		options []mwl.LoadOption
		steps   int
	}{
		{nil, loose.StepRuns},
		{[]mwl.LoadOption{mwl.Untrusted()}, tight.StepRuns},
		{[]mwl.LoadOption{mwl.Untrusted(), mwl.WithLimits(mwl.Limits{FanOut: 7})}, tight.StepRuns},
		{[]mwl.LoadOption{mwl.WithLimits(mwl.Limits{FanOut: 7}), mwl.Untrusted()}, tight.StepRuns},
		{[]mwl.LoadOption{mwl.WithLimits(mwl.Limits{StepRuns: 7}), mwl.Untrusted()}, 7},
	} {
		def, err := mwl.Load(source, c.options...)
		require.NoError(t, err)
		require.Contains(t, def.Execute(t.Context(), nil).Failure.Message, fmt.Sprintf("more than %d Steps", c.steps))
	}
}

// A Gather runs at most Concurrency dispatches at once, on at most Goroutines
// goroutines beside the caller's, and ends when there is none.
func TestGatherHiresFewGoroutines(t *testing.T) {
	for _, c := range []struct{ concurrency, goroutines, most int }{
		{5, 100, 5}, {100, 4, 5}, {100, 1, 2}, {-1, -1, 60},
	} {
		synctest.Test(t, func(t *testing.T) {
			var active, most atomic.Int64
			def := load(t, `"entrypoint": "a", "steps": {
				"a": {"action": "Gather", "over": "{{ lists.range(6) }}", "next": "done", "call": {"flow": {"entrypoint": "b", "steps": {
					"b": {"action": "Gather", "over": "{{ lists.range(10) }}", "call": {$DO}, "next": "done"}, "done": {"action": "Return"}}}}},
				"done": {"action": "Return", "value": "{{ size(step.input) }}"}}`, []mwl.CatalogEntry{do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				most.Store(max(most.Load(), active.Add(1)))
				time.Sleep(time.Second)
				active.Add(-1)
				return mwl.CallResponse{}, nil
			})}, mwl.WithLimits(mwl.Limits{Concurrency: c.concurrency, Goroutines: c.goroutines}))
			require.Equal(t, mwl.Result{Value: 6.0}, def.Execute(t.Context(), nil))
			if c.concurrency == 5 {
				c.most *= 5 // inside each of the five
			}
			require.LessOrEqual(t, most.Load(), int64(c.most))
		})
	}
}

// A Go function that ends its goroutine fails its dispatch alone, also where the
// goroutine is the Gather's.
func TestGatherSurvivesGoexit(t *testing.T) {
	def := load(t, `"entrypoint": "a", "steps": {
		"a": {"action": "Gather", "over": "{{ lists.range(40) }}", "concurrency": 4, "completion": {"successes": 0}, "call": {$DO, "onFailure": {"assign": {"code": "{{ call.result.code }}"}}},
			"output": "{{ [step.results.filter(r, r.type == 'success').size(), vars.code] }}", "next": "done"},
		"done": {"action": "Return"}}`, []mwl.CatalogEntry{do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		switch r.Index % 4 {
		case 0:
			runtime.Goexit()
		case 1:
			panic("no")
		}
		return mwl.CallResponse{}, nil
	})}, mwl.WithLimits(mwl.Limits{Goroutines: 3}))
	require.Equal(t, mwl.Result{Value: []any{20.0, "Provider.Call.Do.Error"}}, def.Execute(t.Context(), nil))
}

func ExampleUntrusted() {
	endless := []byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "again",
		"steps": {"again": {"action": "Pass", "next": "again"}}}`)
	definition, err := mwl.Load(endless, mwl.Untrusted())
	if err != nil {
		panic(err)
	}
	fmt.Println(definition.Execute(context.Background(), nil).Err())
	// Output: System.Cancelled: the execution took more than 10000 Steps, dispatches and re-runs (Limits.StepRuns); raise the limit, or let the definition do less
}
