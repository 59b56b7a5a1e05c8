package expr_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/value"
)

func fuzzScope() scope {
	var reads []string
	return scope{
		roots: map[expr.Root]any{
			expr.Vars: object("a", 1.0, "b", "text", "c", []any{1.0, "x", nil, true}, "d", object("e", object("f", 0.0)), "n", nil, "big", 1e300, "s", strings.Repeat("x", 5000)),
			expr.Step: record{members: object("input", object("a", 1.0), "name", "s"), names: []string{"input", "name"}, reads: &reads},
		},
		now:  time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC),
		wall: func() time.Time { return time.Date(2024, 1, 15, 9, 30, 1, 0, time.UTC) },
	}
}

// FuzzEval: whatever is written as an expression either does not compile, or gives a value or a fault, soon.
func FuzzEval(f *testing.F) {
	for _, bm := range benchmarks {
		f.Add(bm.body)
	}
	for _, s := range []string{
		"vars.c.map(x, type(x) == string ? x : string(x)).join('-')", "toJson({'b': vars.d, 'a': [now(), 1u]})", "fromJson('{\"a\":[1]}').a[0] + vars.a",
		"durationToIso8601(durationFromIso8601('P1DT1.5S') - duration('1h'))", "vars.b.matches('^t.*t$') ? step : {'a': step.input}", "lists.range(10).map(i, [i, i]).flatten().distinct().sort()",
		"'%s %d %.2f'.format([vars.b, 1, vars.a])", "sets.contains(vars.c, [1])", "base64.encode(bytes(vars.b))", "math.greatest(vars.a, 2.0, 3u)", "google.protobuf.Struct{fields: {'a': google.protobuf.Value{}}}",
		"vars.s.replace('', vars.s)", "[vars, vars].map(v, v.d.e.f / 0.0)", "r'\\d' + b'x' + '''y'''", "{1: 2}[1]", "vars.c.exists(x, x == null) || nope()", "1 +", "'}}' // x",
	} {
		f.Add(s)
	}
	c, err := expr.NewCompiler(expr.Limits{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body string) {
		s := "{{ " + body + " }}"
		start := time.Now()
		p, err := c.Compile(s, expr.Everywhere|expr.Step)
		if err != nil {
			var syntax *expr.SyntaxError
			require.ErrorAs(t, err, &syntax)
			require.LessOrEqual(t, syntax.Offset, len(s))
			require.NotEmpty(t, syntax.Text)
			return
		}
		for _, n := range p.Names() {
			require.LessOrEqual(t, n.Offset, len(s))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		v, err := p.Eval(ctx, fuzzScope())
		require.Less(t, time.Since(start), 10*time.Second)
		if err != nil {
			var fault *expr.Fault
			require.True(t, errors.As(err, &fault) || errors.Is(err, expr.ErrInterrupted))
			require.Less(t, len(err.Error()), 2000)
			return
		}
		requireModel(t, v)
	})
}

func requireModel(t *testing.T, v any) {
	require.NotEmpty(t, value.Kind(v), "%T", v)
	switch v := v.(type) {
	case string:
		require.True(t, utf8.ValidString(v))
	case []any:
		for _, e := range v {
			requireModel(t, e)
		}
	case map[string]any:
		for _, e := range v {
			requireModel(t, e)
		}
	}
}

// FuzzBody: a string is an expression or a literal, and one that begins and ends with the delimiters and has no other in it is an expression.
func FuzzBody(f *testing.F) {
	for _, s := range []string{"{{ a }}", "{{ {'a': {}} }}", "{{ a }} and {{ b }}", "{{ '}}' }}", "{{ r'\\' }}", "{{}}", "{{ // }} }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		body, ok := expr.Body(s)
		if ok {
			require.Equal(t, s, "{{"+body+"}}")
		} else if len(s) >= 4 && strings.HasPrefix(s, "{{") && strings.HasSuffix(s, "}}") {
			require.Contains(t, s[2:len(s)-2], "}}")
		}
	})
}

// FuzzAgainstCEL compares with CEL as it comes: without the roots resolved ahead, the guards and the limits, what an expression gives is the same.
func FuzzAgainstCEL(f *testing.F) {
	for _, bm := range benchmarks {
		f.Add(bm.body)
	}
	for _, s := range []string{"vars.d.e.f", ".vars.a", "[vars].map(vars, vars.a)", "has(vars.d.e)", "vars.a == 1 && nope", "vars['d']['e']", "step.missing", "vars.c[1] + 'x'", "type(vars) == map", "int", "{'a': vars}.a.b"} {
		f.Add(s)
	}
	env, err := cel.NewEnv(ext.Strings(ext.StringsVersion(5)), ext.Lists(ext.ListsVersion(3)), ext.Sets(), ext.Encoders(ext.EncodersVersion(1)), ext.Math(ext.MathVersion(3)))
	require.NoError(f, err)
	c, err := expr.NewCompiler(expr.Limits{})
	require.NoError(f, err)
	bindings := map[string]any{"vars": fuzzScope().roots[expr.Vars], "step": object("input", object("a", 1.0), "name", "s"), "failure": nil}
	s := fuzzScope()
	s.roots[expr.Step] = bindings["step"]
	f.Fuzz(func(t *testing.T, body string) {
		for _, own := range []string{"now", "wallTime", "Json", "Iso8601", "execution", "frame", "replace", "join", "format", "flatten", "range", "split", "matches"} {
			if strings.Contains(body, own) {
				return
			}
		}
		p, err := c.Compile("{{ "+body+" }}", expr.Vars|expr.Step|expr.Failure)
		tree, issues := env.Parse(body)
		if err != nil {
			return
		}
		require.NoError(t, issues.Err())
		raw := planned(env, tree)
		if raw == nil {
			return
		}
		got, err := p.Eval(context.Background(), s)
		want, _, rawErr := raw.Eval(bindings)
		var fault *expr.Fault
		if errors.As(err, &fault) && (fault.Code == expr.Unrepresentable || strings.Contains(fault.Text, "units of cost")) {
			return
		}
		require.Equal(t, rawErr == nil, err == nil, "%v, %v", rawErr, err)
		if err == nil {
			require.Equal(t, types.True, types.DefaultTypeAdapter.NativeToValue(got).Equal(want), "%v, %v", got, want)
		}
	})
}

// planned is the program of CEL alone, or nil when CEL panics.
func planned(env *cel.Env, tree *cel.Ast) (p cel.Program) {
	defer func() { _ = recover() }()
	p, err := env.Program(tree)
	if err != nil {
		return nil
	}
	return p
}
