package loader_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/loader"
	"github.com/surebus/eventbus/mwl/internal/schema"
)

// catalog has contracts like those of the language's own providers, and some more.
type catalog struct {
	calls       map[string]*definition.CallContract
	middlewares map[string]*definition.MiddlewareContract
}

func (c catalog) CallProvider(uri string) (*definition.CallContract, bool) {
	contract, ok := c.calls[uri]
	return contract, ok
}

func (c catalog) Middleware(uri string) (*definition.MiddlewareContract, bool) {
	contract, ok := c.middlewares[uri]
	return contract, ok
}

func (c catalog) URIs() []string {
	return slices.Sorted(maps.Keys(maps.Collect(func(yield func(string, bool) bool) {
		for uri := range c.calls {
			if !yield(uri, true) {
				return
			}
		}
		for uri := range c.middlewares {
			if !yield(uri, true) {
				return
			}
		}
	})))
}

func parameters(t testing.TB, text string) *schema.Schema {
	t.Helper()
	var doc any
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	compiled, err := schema.Compile(doc)
	require.NoError(t, err)
	return compiled
}

func newCatalog(t testing.TB) catalog {
	c := catalog{map[string]*definition.CallContract{}, map[string]*definition.MiddlewareContract{}}
	call := func(uri, prefix, parametersText string, closed ...string) {
		c.calls[uri] = &definition.CallContract{
			URI: uri, CodePrefix: prefix, Parameters: parameters(t, parametersText), Failures: definition.FailureCatalog{Closed: closed},
		}
	}
	call("mwl:provider.call/mwl/mock/v1", "Mock", `{"type":"object","properties":{
		"value":{}, "failure":{"type":["object","null"],"required":["code"]}, "delay":{"type":"string","format":"duration"}, "metadata":{"type":"object"}}}`)
	c.calls["mwl:provider.call/mwl/mock/v1"].Failures = definition.FailureCatalog{Open: []string{"*"}}
	call("mwl:provider.call/shop/charge/v1", "Charge", `{"type":"object","required":["amount"],"properties":{"amount":{"type":"number","minimum":1},"note":{"type":"string"}}}`,
		"Provider.Call.Charge.Declined")
	middleware := func(m definition.MiddlewareContract, phases map[definition.Phase]string) {
		for phase := range definition.PhaseCount {
			m.Phases[phase].Parameters = schema.Empty
			if text, ok := phases[phase]; ok {
				m.Phases[phase].Kind = definition.Control
				if text != "" {
					m.Phases[phase].Parameters = parameters(t, text)
				}
			}
		}
		if m.Levels == 0 {
			m.Levels = definition.StepLevel | definition.FlowLevel
		}
		c.middlewares[m.URI] = &m
	}
	middleware(definition.MiddlewareContract{
		URI: "mwl:provider.middleware/mwl/retry/v1", CodePrefix: "Retry", Reruns: true,
		Failures: definition.FailureCatalog{Closed: []string{"Provider.Middleware.Retry.Exhausted"}},
	}, map[definition.Phase]string{
		definition.OnEntry: `{"type":"object","required":["policies"],"properties":{"policies":{"type":"array","minItems":1,"items":{
			"type":"object","additionalProperties":false,"required":["match","attempts"],"properties":{
				"match":{"type":"object"},"attempts":{"type":"integer","minimum":1},
				"backoff":{"type":"object","properties":{"initial":{"type":"string","format":"duration"}}}}}}}}`,
		definition.OnFailure: `{"type":"object","properties":{"delay":{"type":["string","null"],"format":"duration"}}}`,
	})
	middleware(definition.MiddlewareContract{
		URI: "mwl:provider.middleware/mwl/timeout/v1", CodePrefix: "Timeout", Failures: definition.FailureCatalog{Closed: []string{"Provider.Middleware.Timeout.Exceeded"}},
	}, map[definition.Phase]string{
		definition.OnEntry: `{"type":"object","required":["duration"],"properties":{"duration":{"type":"string","format":"duration"}}}`,
	})
	middleware(definition.MiddlewareContract{
		URI: "mwl:provider.middleware/mwl/loop/v1", CodePrefix: "Loop", Reruns: true, OwnsRuns: true, NeedsContinuation: true,
	}, map[definition.Phase]string{definition.OnEntry: "", definition.OnSuccess: ""})
	finally := definition.MiddlewareContract{URI: "mwl:provider.middleware/mwl/finally/v1", CodePrefix: "Finally"}
	finally.Phases[definition.OnAlways].Structural = map[string]definition.StructureKind{
		"call": definition.CallStructure, "middleware": definition.MiddlewareStructure,
	}
	middleware(finally, map[definition.Phase]string{
		definition.OnAlways: `{"type":"object","required":["call"],"properties":{"call":{"type":"object"},"middleware":{"type":"array"}}}`,
	})
	middleware(definition.MiddlewareContract{
		URI: "mwl:provider.middleware/shop/cache/v1", CodePrefix: "Cache", Levels: definition.FlowLevel,
		Failures: definition.FailureCatalog{Open: []string{"Provider.Middleware.Cache.*"}},
	}, map[definition.Phase]string{definition.OnEntry: `{"type":"object","properties":{"key":{"type":"string"}}}`})
	return c
}

func options(t testing.TB) loader.Options {
	t.Helper()
	compiler, err := expr.NewCompiler(expr.Limits{})
	require.NoError(t, err)
	return loader.Options{
		Catalog: newCatalog(t), Compiler: compiler,
		MaxBytes: 1 << 20, MaxDepth: 128, MaxFlowNesting: 16, MaxSteps: 2000, MaxExpressions: 5000, MaxProblems: 100,
	}
}
