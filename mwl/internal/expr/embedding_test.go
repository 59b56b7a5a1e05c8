package expr_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
)

func TestExpressions_TheEmbedding_OnePairSpansTheWholeValue(t *testing.T) {
	for s, body := range map[string]string{
		"{{ vars.a }}":                 " vars.a ",
		"{{vars.a}}":                   "vars.a",
		"{{}}":                         "",
		"{{\n\tvars.a\n}}":             "\n\tvars.a\n",
		"{{ {'a': 1} }}":               " {'a': 1} ",
		"{{ {'a': {'b': 1}} }}":        " {'a': {'b': 1}} ",
		"{{{'a': {'b': 1}}}}":          "{'a': {'b': 1}}",
		"{{ '}} and {{' }}":            " '}} and {{' ",
		`{{ "}}" + '}}' }}`:            ` "}}" + '}}' `,
		`{{ "a\"}}" }}`:                ` "a\"}}" `,
		`{{ r"\" + '}}' }}`:            ` r"\" + '}}' `,
		`{{ '''it's }} ''' }}`:         ` '''it's }} ''' `,
		"{{ vars.a // what }} is\n }}": " vars.a // what }} is\n ",
		"{{ vars.a // the end }}":      " vars.a // the end ",
		"{{ 'does not end }}":          " 'does not end ",
		"{{ a } }}":                    " a } ",
		"{{ }}}":                       " }",
	} {
		got, ok := expr.Body(s)
		require.True(t, ok, s)
		require.Equal(t, body, got, s)
	}
}

func TestExpressions_TheEmbedding_AnyOtherStringIsALiteral(t *testing.T) {
	for _, s := range []string{
		"", "/granules", "{{", "}}", "{{}", "{}}", "{ vars.a }", "{{ vars.a }} ", " {{ vars.a }}", "x{{ vars.a }}", "{{ vars.a }}x", "{{ a }} and {{ b }}", "{{ a }}{{ b }}",
		"{{ '}}' }} and {{ b }}", "{{ {'a': 1} }} and {{ b }}", "{% a %}", "{{ vars.a }", "${{ vars.a }}", "{{ a }}\n",
	} {
		_, ok := expr.Body(s)
		require.False(t, ok, s)
	}
}

func TestExpressions_TheEmbedding_LiteralsAreUsedAsWritten(t *testing.T) {
	for _, v := range []any{"{{ a }} and {{ b }}", "x", 1.0, nil, true, []any{}, map[string]any{}, object("a", []any{"{{", 1.0})} {
		tmpl, problems := compiler(t).Template(v, expr.Everywhere)
		require.Empty(t, problems)
		literal, ok := tmpl.Literal()
		require.True(t, ok)
		require.Equal(t, v, literal)
		got, err := fill(tmpl, vars())
		require.NoError(t, err)
		require.Equal(t, v, got)
		require.False(t, tmpl.Whole())
		require.Nil(t, tmpl.Program())
	}
}

func TestExpressions_TheProducedValue_KeepsItsType(t *testing.T) {
	s := vars("null", nil, "number", 1.5, "string", "x", "boolean", false, "array", []any{1.0}, "object", object("a", 1.0))
	for name, want := range map[string]any{"null": nil, "number": 1.5, "string": "x", "boolean": false, "array": []any{1.0}, "object": object("a", 1.0)} {
		tmpl, problems := compiler(t).Template(map[string]any{"ttl": "{{ vars['" + name + "'] }}"}, expr.Everywhere)
		require.Empty(t, problems)
		got, err := fill(tmpl, s)
		require.NoError(t, err)
		require.Equal(t, object("ttl", want), got)
	}
	requireValue(t, "/granules/modis", "'/granules/' + vars.collection", vars("collection", "modis"))
}

func TestExpressions_ExpressionsInObjectAndArrayFields(t *testing.T) {
	tmpl, problems := compiler(t).Template(object(
		"method", "POST",
		"collection", "{{ vars.collection }}",
		"{{ vars.collection }}", "a member name is never an expression",
		"resources", object("cpu", 16.0, "tags", []any{"{{ vars.tag }}", "fixed", []any{"{{ size(vars.tag) }}"}}),
	), expr.Everywhere)
	require.Empty(t, problems)
	_, ok := tmpl.Literal()
	require.False(t, ok)
	got, err := fill(tmpl, vars("collection", "modis", "tag", nil))
	require.Nil(t, got)
	var fault *expr.Fault
	require.ErrorAs(t, err, &fault)
	require.Equal(t, "/resources/tags/2/0", fault.Pointer)
	require.Contains(t, fault.Error(), "/resources/tags/2/0")

	got, err = fill(tmpl, vars("collection", "modis", "tag", "x"))
	require.NoError(t, err)
	require.Equal(t, object(
		"method", "POST",
		"collection", "modis",
		"{{ vars.collection }}", "a member name is never an expression",
		"resources", object("cpu", 16.0, "tags", []any{"x", "fixed", []any{1.0}}),
	), got)

	require.True(t, func() bool { _, ok := tmpl.Member("method").Literal(); return ok }())
	require.NotNil(t, tmpl.Member("collection").Program())
	require.True(t, tmpl.Member("collection").Whole())
	require.Nil(t, tmpl.Member("missing"))
}

func TestTemplate_AllProblemsAreFound(t *testing.T) {
	_, problems := compiler(t).Template(object("a", "{{ 1 + }}", "b/c", []any{"{{ x }}", "{{ }}"}, "d", "{{ 'open }}"), expr.Everywhere)
	var pointers []string
	for _, p := range problems {
		pointers = append(pointers, p.Pointer)
		require.NotEmpty(t, p.Err.Text)
		require.NotEmpty(t, p.Source)
	}
	require.Equal(t, []string{"/a", "/b~1c/1", "/d"}, pointers)
}

func TestTemplate_Bool(t *testing.T) {
	for _, tc := range []struct {
		v    any
		want bool
		code string
	}{
		{true, true, ""},
		{false, false, ""},
		{"{{ vars.a == 1 }}", true, ""},
		{"{{ vars.a }}", false, expr.EvaluationError},
		{"true", false, expr.EvaluationError},
		{nil, false, expr.EvaluationError},
		{1.0, false, expr.EvaluationError},
		{[]any{"{{ true }}"}, false, expr.EvaluationError},
	} {
		tmpl, problems := compiler(t).Template(tc.v, expr.Everywhere)
		require.Empty(t, problems)
		got, _, err := tmpl.Bool(context.Background(), vars("a", 1.0))
		if tc.code == "" {
			require.NoError(t, err)
		} else {
			var f *expr.Fault
			require.ErrorAs(t, err, &f)
			require.Equal(t, tc.code, f.Code)
		}
		require.Equal(t, tc.want, got)
	}
}

func TestCompile_PositionsOfSyntaxErrors(t *testing.T) {
	for _, tc := range []struct {
		s                    string
		offset, line, column int
		text                 string
	}{
		{"{{ vars.a + }}", 12, 1, 13, "it ends where a value should follow"},
		{"{{ 'é' + + 1 }}", 10, 1, 10, "'+' stands where a value should"},
		{"{{ vars.a\n  ? 1 }}", 16, 2, 7, ""},
		{"{{ }}", 2, 1, 3, "empty"},
		{"{{ vars['a }}", 8, 1, 9, ""},
		{"{{ \xff }}", 3, 1, 4, "UTF-8"},
		{"{{ a }} x", 0, 1, 1, "not one expression"},
		{"{{ has(1) }}", 7, 1, 8, "has()"},
		{"{{ [1].map(1, 2) }}", 11, 1, 12, ""},
	} {
		_, err := compiler(t).Compile(tc.s, expr.Everywhere)
		var e *expr.SyntaxError
		require.ErrorAs(t, err, &e, tc.s)
		require.Equal(t, []int{tc.line, tc.column, tc.offset}, []int{e.Line, e.Column, e.Offset}, "%s: %v", tc.s, e)
		require.Contains(t, e.Text, tc.text)
		require.Less(t, len(e.Error()), 700)
	}
}

func TestCompile_Limits(t *testing.T) {
	c, err := expr.NewCompiler(expr.Limits{Length: 40, Depth: 5})
	require.NoError(t, err)
	_, err = c.Compile("{{ "+strings.Repeat("1", 40)+" }}", 0)
	require.ErrorContains(t, err, "more than the 40")
	_, err = c.Compile("{{ [[[[[1]]]]] }}", 0)
	require.ErrorContains(t, err, "nests deeper than the 5")
	_, err = c.Compile("{{ [[[[1]]]] }}", 0)
	require.NoError(t, err)

	_, err = compiler(t).Compile("{{ "+strings.Repeat("[", 3000)+strings.Repeat("]", 3000)+" }}", 0)
	require.Error(t, err)
	_, err = compiler(t).Compile("{{ "+strings.Repeat("(", 4000)+"1"+strings.Repeat(")", 4000)+" }}", 0)
	require.Error(t, err)
	_, err = compiler(t).Compile("{{ "+strings.Repeat("!", 4000)+"true }}", 0)
	if err != nil {
		var e *expr.SyntaxError
		require.ErrorAs(t, err, &e)
	}
}

func TestCompile_NamesThatDoNotResolve(t *testing.T) {
	for s, want := range map[string][]string{
		"{{ vars.a + frame.input }}":                        nil,
		"{{ call.input }}":                                  {"call"},
		"{{ step.input + nothing }}":                        {"step", "nothing"},
		"{{ [1].map(x, x + y) }}":                           {"y"},
		"{{ [1].map(call, call + 1) }}":                     nil,
		"{{ [1].map(vars, vars + 1) + vars.a }}":            nil,
		"{{ [1].map(vars, .vars.a + vars) }}":               nil,
		"{{ [1].map(call, .call.input) }}":                  {"call"},
		"{{ [call].map(call, call + 1) }}":                  {"call"},
		"{{ type(vars.a) == int }}":                         nil,
		"{{ type(now()) == google.protobuf.Timestamp }}":    nil,
		"{{ nope(vars.a) }}":                                {"nope()"},
		"{{ vars.a.nope() }}":                               {"nope()"},
		"{{ math.greatest(1, 2) + math.nope(1) }}":          {"math", "nope()"},
		"{{ base64.encode(bytes('x')) }}":                   nil,
		"{{ now() == wallTime() }}":                         nil,
		"{{ now(1) }}":                                      {"now()"},
		"{{ {'a': oops, nada: 1} }}":                        {"oops", "nada"},
		"{{ has(oops.a) }}":                                 {"oops"},
		"{{ [1, 2].exists(i, i > limit) }}":                 {"limit"},
		"{{ lists.range(3).map(i, i) }}":                    nil,
		"{{ [3, 1].sortBy(x, -x) }}":                        nil,
		"{{ sets.contains([1], [1]) && !(1 in [2]) }}":      nil,
		"{{ vars.a ? vars.b[0] : '%s'.format([vars.c]) }}":  nil,
		"{{ google.protobuf.Struct{fields: {'a': oops}} }}": {"oops"},
	} {
		p, err := compiler(t).Compile(s, expr.Everywhere)
		require.NoError(t, err, s)
		var got []string
		for _, n := range p.Names() {
			name := n.Name
			require.True(t, strings.HasPrefix(s[n.Offset:], name) || n.Function, "%s: %s at %d", s, name, n.Offset)
			require.NotEmpty(t, n.Message)
			if n.Function {
				name += "()"
			}
			got = append(got, name)
		}
		require.ElementsMatch(t, want, got, s)
	}
	tmpl, problems := compiler(t).Template(object("a", []any{"{{ call.input }}"}, "b", "{{ nope() }}"), expr.Everywhere)
	require.Empty(t, problems)
	warnings := tmpl.Names()
	require.Len(t, warnings, 2)
	require.Equal(t, "/a/0", warnings[0].Pointer)
	require.Contains(t, warnings[0].Name.Message, "not in scope here: the roots are vars, execution, frame, failure")
	require.Equal(t, "/b", warnings[1].Pointer)
}
