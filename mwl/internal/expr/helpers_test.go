package expr_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
)

// scope is a Scope of plain values.
type scope struct {
	roots map[expr.Root]any
	now   time.Time
	wall  func() time.Time
}

func (s scope) Root(r expr.Root) any { return s.roots[r] }
func (s scope) Now() time.Time       { return s.now }
func (s scope) Clock() time.Time     { return s.wall() }

func object(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// vars makes a scope in which only variables are of interest.
func vars(pairs ...any) scope {
	return scope{roots: map[expr.Root]any{expr.Vars: object(pairs...)}, now: time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC), wall: time.Now}
}

func compiler(t testing.TB) *expr.Compiler {
	c, err := expr.NewCompiler(expr.Limits{})
	require.NoError(t, err)
	return c
}

func compile(t testing.TB, body string, roots expr.Root) *expr.Program {
	p, err := compiler(t).Compile("{{ "+body+" }}", roots)
	require.NoError(t, err, body)
	return p
}

// fill evaluates a field without a limit.
func fill(tmpl *expr.Template, s scope) (any, error) {
	v, _, err := tmpl.Eval(context.Background(), s, expr.Limit{Bytes: math.MaxInt, Depth: 1000})
	return v, err
}

// eval evaluates body where the roots of s are the ones in scope.
func eval(t testing.TB, body string, s scope) (any, error) {
	roots := expr.Everywhere
	for r := range s.roots {
		roots |= r
	}
	return compile(t, body, roots).Eval(context.Background(), s)
}

func requireValue(t testing.TB, want any, body string, s scope) {
	got, err := eval(t, body, s)
	require.NoError(t, err, body)
	require.Equal(t, want, got, body)
}

func requireFault(t testing.TB, code, body string, s scope) (message string) {
	_, err := eval(t, body, s)
	var f *expr.Fault
	require.ErrorAs(t, err, &f, body)
	require.Equal(t, code, f.Code, "%s: %v", body, err)
	require.NotEmpty(t, f.Text)
	return f.Error()
}
