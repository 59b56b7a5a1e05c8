package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// testCatalog is the catalog that the definitions of testdata are written for.
func testCatalog(t testing.TB) *mwl.Catalog {
	t.Helper()
	catalog, err := mwl.NewCatalog(
		mwl.CallProvider{
			URI: "mwl:provider.call/shop/charge/v1", CodePrefix: "Charge",
			Parameters: json.RawMessage(`{"type": "object", "required": ["amount"],
				"properties": {"amount": {"type": "number", "minimum": 1}, "note": {"type": "string"}}}`),
			Metadata: json.RawMessage(`{"type": "object", "properties": {"id": {"type": "string"}}}`),
			Failures: mwl.FailureCatalog{Closed: []string{"Provider.Call.Charge.Declined"}},
			Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, nil
			},
		},
		mwl.Middleware{
			URI: "mwl:provider.middleware/shop/cache/v1", CodePrefix: "Cache", Attach: mwl.AttachFlow,
			OnEntry: &mwl.PhaseAction{
				Kind: mwl.Control, Parameters: json.RawMessage(`{"type": "object", "properties": {"key": {"type": "string"}}}`),
				Run: func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil },
			},
		},
	)
	require.NoError(t, err)
	return catalog
}

func sources(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "definitions", dir, "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	read := map[string][]byte{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		read[filepath.Base(file)] = source
	}
	return read
}

func problemsOf(t testing.TB, err error) []mwl.Problem {
	t.Helper()
	var invalid *mwl.DefinitionError
	require.ErrorAs(t, err, &invalid)
	require.NotEmpty(t, invalid.Problems)
	return invalid.Problems
}

func TestLoadAcceptsWhatIsValid(t *testing.T) {
	for name, source := range sources(t, "valid") {
		def, err := mwl.Load(source, mwl.WithCatalog(testCatalog(t)), mwl.DeferArgumentErrors())
		require.NoError(t, err, name)
		require.Equal(t, source, def.Source(), "comments and all")
		require.Equal(t, slices.Contains([]string{"odd.json", "nested.json", "traps.json", "literals.json", "retries.json"}, name), len(def.Warnings()) > 0, "%s: %v", name, def.Warnings())
	}
}

func TestLoadListsAllProblems(t *testing.T) {
	for name, source := range sources(t, "invalid") {
		def, err := mwl.Load(source, mwl.WithCatalog(testCatalog(t)))
		require.Nil(t, def, name)
		problems := problemsOf(t, err)
		require.Greater(t, len(problems), 1, name)
		for i, p := range problems {
			require.Positive(t, p.Line, name)
			require.Positive(t, p.Column, name)
			require.NotEmpty(t, p.Source, name)
			require.NotEmpty(t, p.Message, name)
			require.Contains(t, err.Error(), p.String(), name)
			if i > 0 {
				before := problems[i-1]
				require.True(t, p.Line > before.Line || p.Line == before.Line && p.Column >= before.Column, "%s: %v after %v", name, p, before)
			}
		}
	}
}

func TestLoadCopiesItsSource(t *testing.T) {
	source := sources(t, "valid")["minimal.json"]
	def, err := mwl.Load(source)
	require.NoError(t, err)
	want := string(source)
	clear(source)
	require.Equal(t, want, string(def.Source()))
	clear(def.Source())
	require.Equal(t, want, string(def.Source()))
}

func TestLoadCountsTheProblemsThatItLeavesOut(t *testing.T) {
	source := `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "s0", "steps": {"s0": {"action": "Return"}`
	for i := range 150 {
		source += fmt.Sprintf(`, "s%d": {"action": "Sleep"}`, i+1) // neither for nor until, and no next
	}
	_, err := mwl.Load([]byte(source + "}}"))
	var invalid *mwl.DefinitionError
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Problems, 100)
	require.Equal(t, 200, invalid.More)
	require.Contains(t, err.Error(), "300 problems")
	require.True(t, strings.HasSuffix(err.Error(), "and 200 more"))
}

func TestLimitsOfDefinitions(t *testing.T) {
	const minimal = `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "s", "steps": {"s": {"action": "Return", "value": %s}}}`
	nested := `{"entrypoint": "s", "steps": {"s": {"action": "Return"}}}`
	for range 3 {
		nested = `{"entrypoint": "s", "steps": {"s": {"action": "Call", "call": {"flow": ` + nested + `}, "next": "e"}, "e": {"action": "Return"}}}`
	}
	nested = `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", ` + nested[1:]
	for _, c := range []struct {
		name, source string
		// exceeded is one less than what the source needs.
		exceeded mwl.Limits
		allowed  mwl.Limits
		message  string
	}{
		{
			"bytes", fmt.Sprintf(minimal, "null"),
			mwl.Limits{DefinitionBytes: 123},
			mwl.Limits{DefinitionBytes: 124},
			"the document has 124 bytes, more than the limit of 123",
		},
		{
			"depth", fmt.Sprintf(minimal, "[[[]]]"),
			mwl.Limits{Depth: 5},
			mwl.Limits{Depth: 6},
			"values nest deeper than the limit of 5",
		},
		{"flow nesting", nested, mwl.Limits{FlowNesting: 3}, mwl.Limits{FlowNesting: 4}, "Flows nest deeper than the limit of 3"},
		{"steps", nested, mwl.Limits{Steps: 6}, mwl.Limits{Steps: 7}, "the definition has more Steps than the limit of 6"},
		{
			"expressions", fmt.Sprintf(minimal, `["{{ 1 }}", {"a": "{{ 2 }}"}, "{{ 3 }}"]`),
			mwl.Limits{Expressions: 2},
			mwl.Limits{Expressions: 3},
			"the definition has more expressions than the limit of 2",
		},
		{
			"expression bytes", fmt.Sprintf(minimal, `"{{ 1 + 1 }}"`),
			mwl.Limits{ExpressionBytes: 10},
			mwl.Limits{ExpressionBytes: 11},
			"",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := mwl.Load([]byte(c.source), mwl.WithLimits(c.allowed))
			require.NoError(t, err)
			_, err = mwl.Load([]byte(c.source))
			require.NoError(t, err, "within the default limits")
			_, err = mwl.Load([]byte(c.source), mwl.WithLimits(c.exceeded))
			problems := problemsOf(t, err)
			require.Len(t, problems, 1, "one problem, however far the limit is exceeded")
			require.Contains(t, problems[0].Message, c.message)
		})
	}
	deep := fmt.Sprintf(minimal, strings.Repeat("[", 1000)+strings.Repeat("]", 1000))
	_, err := mwl.Load([]byte(deep))
	require.Error(t, err)
	_, err = mwl.Load([]byte(deep), mwl.WithLimits(mwl.Limits{Depth: -1}))
	require.NoError(t, err, "a negative limit is none")
}

func TestLoadRefusesNoDocument(t *testing.T) {
	for _, source := range []string{"", "null", "[]", `"x"`, "{}", "{", "\x00"} {
		_, err := mwl.Load([]byte(source))
		require.NotEmpty(t, problemsOf(t, err), "%q", source)
	}
	_, err := mwl.Load(nil)
	require.NotEmpty(t, problemsOf(t, err))
}

// TestLoadAlteredDefinitions loads what changes make of valid definitions.
func TestLoadAlteredDefinitions(t *testing.T) {
	catalog := testCatalog(t)
	m := mutator{rand: rand.New(rand.NewPCG(3, 4))} //nolint:gosec // no secrecy is needed
	valid := sources(t, "valid")
	for _, name := range slices.Sorted(maps.Keys(valid)) {
		m.documents = append(m.documents, decode(t, valid[name]))
	}
	m.learn()
	loaded := 0
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		source := m.next(t)
		def, err := mwl.Load(source, mwl.WithCatalog(catalog))
		if err != nil {
			requirePlaced(t, source, problemsOf(t, err))
			continue
		}
		loaded++
		requirePlaced(t, source, def.Warnings())
		again, err := mwl.Load(source, mwl.WithCatalog(catalog))
		require.NoError(t, err)
		require.Equal(t, def.Warnings(), again.Warnings())
	}
	t.Logf("%d of %d loaded", loaded, rounds)
	require.Positive(t, loaded)
	require.Less(t, loaded, rounds*9/10)
}

func ExampleDefinitionError() {
	_, err := mwl.Load([]byte(`{
  "$schema": "https://mwl.dev/v0.1/flow/schema.json",
  "entrypoint": "charge",
  "steps": {
    "charge": {
      "action": "Call",
      "call": {"provider": "mwl:provider.call/mwl/mok/v1", "parameters": {"value": 1}},
      "catch": [{"match": {"codes": []}, "next": "faild"}],
      "next": "done"
    },
    "done": {"action": "Return", "value": "{{ }}"},
    "failed": {"action": "Raise", "value": 5}
  }
}`))
	var invalid *mwl.DefinitionError
	if errors.As(err, &invalid) {
		for _, p := range invalid.Problems {
			fmt.Println(p)
		}
	}
	// Output:
	// line 7, column 28: /steps/charge/call/provider: there is no provider "mwl:provider.call/mwl/mok/v1"; did you mean "mwl:provider.call/mwl/mock/v1"?
	// line 7, column 60: /steps/charge/call/parameters: a call has no member "parameters"; the arguments of a call are "with"
	// line 8, column 37: /steps/charge/catch/0/match/codes: codes is empty; give it an element
	// line 8, column 50: /steps/charge/catch/0/next: there is no Step "faild" in this Flow; did you mean "failed"?
	// line 11, column 46: /steps/done/value: the expression cannot be read: it is empty: write an expression, or null for no value
	// line 12, column 35: /steps/failed/value: a Raise Step has no member "value"; delete it; only Return has it
}

func ExampleDefinition_Warnings() {
	def, err := mwl.Load([]byte(`{
  "$schema": "https://mwl.dev/v0.1/flow/schema.json",
  "entrypoint": "wait",
  "steps": {
    "wait": {"action": "Pass", "output": "Hello {{ vars.name }}", "next": "done"},
    "done": {"action": "Return"},
    "failed": {"action": "Raise"}
  }
}`))
	if err != nil {
		panic(err)
	}
	for _, w := range def.Warnings() {
		fmt.Println(w)
	}
	// Output:
	// line 5, column 42: /steps/wait/output: {{ }} inside text is not evaluated: the string is used as it is written; write one expression for the whole string, such as {{ 'Order ' + string(vars.id) }}, or leave it if it is text
	// line 7, column 15: /steps/failed: no way leads from the entrypoint to the Step "failed"; route to it, or delete it
}

// DeferArgumentErrors loads what the language loads, and what then fails.
func ExampleDeferArgumentErrors() {
	source := []byte(`{
  "$schema": "https://mwl.dev/v0.1/flow/schema.json",
  "entrypoint": "wait",
  "steps": {
    "wait": {"action": "Sleep", "for": "5 minutes", "next": "done"},
    "done": {"action": "Return"}
  }
}`)
	_, err := mwl.Load(source)
	fmt.Println(err)
	def, err := mwl.Load(source, mwl.DeferArgumentErrors())
	if err != nil {
		panic(err)
	}
	fmt.Println(def.Execute(context.Background(), nil).Failure.Code)
	// Output:
	// mwl: the definition has a problem: line 5, column 40: /steps/wait/for: for is no duration, so that it fails with System.ParameterValidationFailed; "5 minutes" is not an ISO 8601 duration: it does not begin with P; write one like PT30S or P1DT12H
	// System.ParameterValidationFailed
}

// Literal arguments that are not valid are problems, unless they are deferred: then
// they are warnings, and fail where an execution reaches them.
func TestLiteralArguments(t *testing.T) {
	for name, step := range map[string]string{
		"a bare Retry":         `{"action": "Call", "call": {$MOCK}, "middleware": [{$RETRY}], "next": "done"}`,
		"a misspelt member":    `{"action": "Call", "call": {$MOCK}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 2, "backof": {"initial": "PT1S"}}]}}}], "next": "done"}`,
		"an unknown argument":  `{"action": "Call", "call": {$MOCK, "with": {"valeu": 1}}, "next": "done"}`,
		"a duration in words":  `{"action": "Sleep", "for": "5 minutes", "next": "done"}`,
		"an instant in words":  `{"action": "Sleep", "until": "tomorrow", "next": "done"}`,
		"arguments for a Loop": `{"action": "Call", "call": {$MOCK}, "middleware": [{$LOOP, "onEntry": {"with": {"max": 3}}, "onSuccess": {"when": "{{ size(vars) > 0 }}"}}], "next": "done"}`,
	} {
		t.Run(name, func(t *testing.T) {
			members := `"entrypoint": "s", "steps": {"s": ` + step + `, "done": {"action": "Return"}}`
			_, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", ` + short.Replace(members) + `}`))
			problems := problemsOf(t, err)
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].Pointer, "/steps/s/")
			require.NotEmpty(t, problems[0].Remedy)

			def := load(t, members, nil, mwl.DeferArgumentErrors())
			require.Equal(t, problems, def.Warnings())
			result := def.Execute(t.Context(), nil)
			require.Equal(t, []string{"error " + mwl.CodeParameterValidationFailed}, envelope(result.Failure))
		})
	}
}

// A gate that is closed for good makes the arguments behind it unread.
func TestLiteralArgumentsBehindAClosedGateAreNotJudged(t *testing.T) {
	def := load(t, `"entrypoint": "s", "steps": {"s": {"action": "Call", "call": {$MOCK, "with": {"value": 1}},
		"middleware": [{$RETRY, "onEntry": {"when": false}}, {$RETRY, "onEntry": {"when": "{{ false }}"}}], "next": "done"}, "done": {"action": "Return"}}`, nil)
	require.Equal(t, mwl.Result{Value: 1.0}, def.Execute(t.Context(), nil))
}

func TestWarnings_SayHowManyMoreThereAre(t *testing.T) {
	def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Return", "value": [`+strings.Repeat(`"x {{ vars.y }}", `, 130)+`0]}}`, nil)
	warnings := def.Warnings()
	require.Len(t, warnings, 101)
	require.Equal(t, "/steps/a/value/99", warnings[99].Pointer)
	require.Equal(t, "/steps/a/value/100", warnings[100].Pointer)
	require.Equal(t, "there are 30 more warnings from here on", warnings[100].Message)
}

// What exceeds a limit whatever happens is known before.
func TestWarnings_Limits(t *testing.T) {
	members := `"entrypoint": "many", "middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}], "steps": {
		"many": {"action": "Gather", "over": [1, 2, 3], "call": {$MOCK}, "next": "all"},
		"all": {"action": "Gather", "calls": [{$MOCK}, {$MOCK}, {$MOCK}], "next": "deep"},
		"deep": {"action": "Call", "call": {$MOCK}, "middleware": [
			{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}, {$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}], "next": "done"},
		"done": {"action": "Return"}}`
	enough := mwl.Limits{FanOut: 3, RunDepth: 4}
	def := load(t, members, nil, mwl.WithLimits(enough))
	require.Empty(t, def.Warnings())
	require.Nil(t, def.Execute(t.Context(), nil).Failure)

	def = load(t, members, nil, mwl.WithLimits(mwl.Limits{FanOut: 2, RunDepth: 3}))
	var pointers []string
	for _, w := range def.Warnings() {
		pointers = append(pointers, w.Pointer)
		require.Contains(t, w.Message, "more than the limit of")
		require.NotEmpty(t, w.Remedy)
	}
	require.Equal(t, []string{"/steps/many/over", "/steps/all/calls", "/steps/deep/middleware/1"}, pointers)

	for _, limits := range []mwl.Limits{{FanOut: 3, RunDepth: 3}, {FanOut: 2}} {
		require.NotNil(t, load(t, members, nil, mwl.WithLimits(limits)).Execute(t.Context(), nil).Failure)
	}
}
