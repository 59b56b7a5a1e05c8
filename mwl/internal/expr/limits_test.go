package expr_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
)

func TestEval_CostIsLimited(t *testing.T) {
	if testing.Short() {
		t.Skip("the expressions go to their limits, which takes seconds")
	}
	s := vars("text", strings.Repeat("x", 1<<20), "list", make([]any, 10_000))
	for _, body := range []string{
		"lists.range(100000).map(a, lists.range(100000).map(b, a * b))",
		"lists.range(100000).all(a, lists.range(100000).all(b, true))",
		"lists.range(100000).all(a, vars.text.matches('x*'))",
		"lists.range(100000).all(a, !vars.text.contains('y'))",
		"lists.range(100000).all(a, vars.text == vars.text + '')",
		"lists.range(100000).all(a, !(1 in vars.list))",
		"lists.range(100000).all(a, vars.list == vars.list)",
		"[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, [1,2,3,4,5,6,7,8,9].map(d, [1,2,3,4,5,6,7,8,9].map(e, [1,2,3,4,5,6,7,8,9].map(f, [1,2,3,4,5,6,7,8,9].map(g, g)))))))",
		"vars.text.replace('', vars.text)",
		"'x'.replace('', vars.text).replace('', vars.text)",
		"lists.range(1000).map(i, vars.text).join()",
		"lists.range(1000).map(i, '').join(vars.text)",
		"'%s'.format([lists.range(1000).map(i, vars.text)])",
		"lists.range(1000).map(i, vars.list).flatten()",
		"lists.range(100000).distinct()",
		"sets.contains(lists.range(100000), lists.range(100000))",
		"toJson(lists.range(100).map(i, vars.text))",
		"lists.range(100000000)",
		"lists.range(3).map(i, vars.text).join('').split('').map(i, i + i).join('').split('')",
		"base64.encode(bytes(lists.range(17).map(i, vars.text).join('')))",
		"json.encode(lists.range(100).map(i, vars.text))",
		"[1]" + strings.Repeat(".map(a, [a, a])", 60) + " == [1]" + strings.Repeat(".map(a, [a, a])", 60),
		"[1]" + strings.Repeat(".map(a, [a, a])", 60) + " != [1]" + strings.Repeat(".map(a, [a, a])", 60),
		"[1]" + strings.Repeat(".map(a, [a, a])", 60) + " in [[1]" + strings.Repeat(".map(a, [a, a])", 60) + "]",
		"vars.text + vars.text + vars.text",
		"fromJson('[' + lists.range(70000).map(i, '[]').join(',') + ']')",
		"'%s'.format([lists.range(10000).map(i, 1.7e308)])",
		"'x'.matches(lists.range(100).map(i, '.{1000}').join(''))",
		"[" + strings.Repeat("vars.list == vars.list, ", 150) + "1]",
	} {
		requireFault(t, expr.EvaluationError, body, s)
	}
	for _, f := range []string{"toJson(%s)", "strings.quote(%s)", "%s.replace('', '\"')"} {
		nested := "'\"'"
		for range 60 {
			nested = fmt.Sprintf(f, nested)
		}
		requireFault(t, expr.EvaluationError, nested, s)
	}
	requireFault(t, expr.Unrepresentable, "lists.range(100).map(i, lists.range(100).map(j, vars.text))", s)
}

func TestEval_WhatWorkflowsDoIsWithinTheLimits(t *testing.T) {
	items := make([]any, 10_000)
	for i := range items {
		items[i] = object("id", float64(i), "name", "item", "tags", []any{"a", "b"})
	}
	s := vars("items", items, "text", strings.Repeat("word ", 100_000))
	for _, body := range []string{
		"size(vars.items.filter(i, i.id > 5.0 && i.name == 'item').map(i, {'id': i.id, 'label': i.name + '-' + string(i.id)}))",
		"size(vars.items.map(i, i.tags).flatten())",
		"size(vars.text.split(' '))",
		"size(toJson(vars.items))",
		"size(vars.items.map(i, i.name).join(','))",
		"vars.items.all(i, i.name.matches('^[a-z]+$'))",
		"size(vars.text.replace('word', 'words'))",
		"size(vars.items.sortBy(i, i.id))",
		"size(lists.range(10000).map(i, i * 2).reverse().slice(0, 100))",
		"size(vars.items + vars.items)",
	} {
		_, err := eval(t, body, s)
		require.NoError(t, err, body)
	}
}

func TestEval_IsInterruptedByItsContext(t *testing.T) {
	c, err := expr.NewCompiler(expr.Limits{Cost: math.MaxUint64})
	require.NoError(t, err)
	p, err := c.Compile("{{ lists.range(100000).all(a, lists.range(100000).all(b, true)) }}", expr.Everywhere)
	require.NoError(t, err)
	cause := errors.New("the bound elapsed")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	_, err = p.Eval(ctx, vars())
	require.ErrorIs(t, err, expr.ErrInterrupted)
	require.ErrorIs(t, err, cause)
	var f *expr.Fault
	require.NotErrorAs(t, err, &f, "an interruption is no failure of the expression")
}
