package expr_test

import (
	"context"
	"testing"

	"cel.dev/cel-go/cel"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
)

var benchmarks = []struct{ name, body string }{
	{"arithmetic", "vars.a + 1.0"},
	{"path", "step.input.order.items"},
	{"conditional", "size(vars.tries) < 2 ? {'code': 'X', 'message': 'injected', 'retryable': vars.retryable} : null"},
	{"projection", "vars.items.filter(r, r.type == 'success').map(r, r.value)"},
}

func benchScope() scope {
	item := object("type", "success", "value", 1.0)
	return scope{roots: map[expr.Root]any{
		expr.Vars: object("a", 1.0, "tries", "x", "retryable", true, "items", []any{item, item, item, item}),
		expr.Step: object("input", object("order", object("items", []any{1.0}))),
	}}
}

func BenchmarkEval(b *testing.B) {
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			p := compile(b, bm.body, expr.Everywhere|expr.Step)
			s := benchScope()
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Eval(ctx, &s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvalCEL is the same work by CEL alone: an unchecked program, a map of bindings, and no way out.
func BenchmarkEvalCEL(b *testing.B) {
	env, err := cel.NewEnv()
	require.NoError(b, err)
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			tree, issues := env.Parse(bm.body)
			require.NoError(b, issues.Err())
			p, err := env.Program(tree)
			require.NoError(b, err)
			s := benchScope()
			bindings := map[string]any{"vars": s.roots[expr.Vars], "step": s.roots[expr.Step]}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := p.Eval(bindings); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	c := compiler(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Compile("{{ "+benchmarks[2].body+" }}", expr.Everywhere); err != nil {
			b.Fatal(err)
		}
	}
}
