package expr_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

func TestExpressions_BindingRoots_OnlyThoseOfTheSite(t *testing.T) {
	all := map[string]expr.Root{
		"vars": expr.Vars, "execution": expr.Execution, "frame": expr.Frame, "step": expr.Step, "call": expr.Call, "flow": expr.Flow,
		"provider": expr.Provider, "match": expr.Match, "middleware": expr.Middleware, "failure": expr.Failure,
	}
	s := scope{roots: map[expr.Root]any{}}
	for name, root := range all {
		s.roots[root] = object("name", name)
	}
	for name, root := range all {
		p := compile(t, name+".name", root)
		require.Empty(t, p.Names())
		got, err := p.Eval(context.Background(), s)
		require.NoError(t, err)
		require.Equal(t, name, got)

		p = compile(t, name+".name", ^root)
		require.Len(t, p.Names(), 1)
		_, err = p.Eval(context.Background(), s)
		var f *expr.Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, expr.EvaluationError, f.Code)
		require.Contains(t, f.Text, name)
	}
}

func TestExpressions_BindingRoots_OutOfScopeIsNotNull(t *testing.T) {
	s := vars()
	requireFault(t, expr.EvaluationError, "step == null", s)
	requireFault(t, expr.EvaluationError, "has(step.input)", s)
	requireValue(t, 1.0, "true ? 1 : step.input", s)
	requireValue(t, true, "true || step.input", s)
}

func TestExecutionContext_Failure_NullWhenNoneIsActive(t *testing.T) {
	s := scope{roots: map[expr.Root]any{expr.Failure: nil}}
	requireValue(t, nil, "failure", s)
	requireValue(t, true, "failure == null", s)
	requireFault(t, expr.EvaluationError, "failure.code", s)
	s.roots[expr.Failure] = object("type", "error", "code", "X")
	requireValue(t, "X", "failure == null ? '' : failure.code", s)
	requireValue(t, object("type", "error", "code", "X"), "failure", s)
}

func TestExecutionContext_Vars_AnUnboundNameIsAFault(t *testing.T) {
	s := vars("a", nil)
	message := requireFault(t, expr.EvaluationError, "vars.missing", s)
	require.Equal(t, "expression {{ vars.missing }}: no such key: missing; guard a member that may be absent with has()", message)
	requireValue(t, false, "has(vars.missing)", s)
	requireValue(t, true, "has(vars.a)", s)
	requireValue(t, 5.0, "has(vars.missing) ? vars.missing : 5", s)
	requireValue(t, nil, "vars['a']", s)
	requireValue(t, false, "'missing' in vars", s)
	requireValue(t, []any{"a"}, "vars.map(name, name)", s)
}

func TestExpressions_EvaluationErrors(t *testing.T) {
	s := scope{roots: map[expr.Root]any{expr.Step: object("input", object("a", 1.0, "s", "x", "l", []any{1.0}, "n", nil))}}
	for _, body := range []string{
		"step.input.missing.deeply", "step.input.a.b", "step.input.n.b", "step.input.l[1]", "step.input.l[-1]", "step.input.l[0.5]", "step.input.l['x']", "step.input.s[0]", "step.input[0]",
		"step.input.a + 'x'", "step.input.s + 1", "step.input.s > 1", "step.input.a + true", "!step.input.a", "step.input.s && true", "step.input.a ? 1 : 2", "-step.input.s",
		"has(step.input.missing.deeply)", "size(step.input.a)", "nope()", "step.nope()", "step.input.s.nope()", "int('x')", "double('x')", "timestamp('x')", "duration('x')",
		"'a'.matches('[')", "step.input.s.matches('(?=a)')", "'a'.matches(step.input.a)", "fromJson('{')", "fromJson('')", "fromJson(1)", "durationFromIso8601('x')", "durationFromIso8601(1)",
		"durationToIso8601('PT1S')", "durationFromIso8601('P300Y')", "toJson(b'x')", "toJson(now())", "toJson({1: 2})", "toJson(0.0 / 0.0)", "now(1)", "wallTime(1)", "google.protobuf.Nope{}",
		"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2", "18446744073709551615u + 1u", "0u - 1u", "5 / 0", "5 % 0", "5u / 0u", "int(1e30)", "int(0.0 / 0.0)", "uint(-1)",
		"'%d'.format(['x'])", "'abc'.substring(5)", "'abc'.substring(vars.n)", "lists.range(5.0)", "[1].slice(2, 1)", "base64.decode('*')", "math.greatest(step.input.l, 1)",
		"[1, 'a'].sort()", "{'a': 1}.b", "dyn(1) + 2.0", "b'\\xff' + 'a'", "{b'': 1}", "{b'x': [now()]}", "string(b'\\xff')",
	} {
		require.Less(t, len(requireFault(t, expr.EvaluationError, body, s)), 1500, body)
	}
}

func TestExpressions_EvaluationErrors_MessagesNameTheRemedy(t *testing.T) {
	s := vars("ratio", 0.5)
	for body, want := range map[string]string{
		"1 + vars.ratio":    "no such overload for the types of the operands; numbers of the data are doubles",
		"vars.ratio.x":      "no such key: x; guard a member that may be absent with has()",
		"step.input":        "step is not in scope here: the roots are vars, execution, frame, failure",
		"elsewhere + 1":     "elsewhere is not defined: the roots here are vars, execution, frame, failure",
		"nope(1)":           "there is no function nope()",
		"vars.ratio.nope()": "there is no function nope()",
		"[1][5]":            "index out of bounds: 5",
		"lists.range(1000).all(a, lists.range(1000).all(b, true))": "more work than the 1000000 units of cost",
	} {
		require.Contains(t, requireFault(t, expr.EvaluationError, body, s), want, body)
	}
}

func TestExpressions_EvaluationErrors_MessagesAreBounded(t *testing.T) {
	c, err := expr.NewCompiler(expr.Limits{Message: 200})
	require.NoError(t, err)
	long := strings.Repeat("é", 1000)
	p, err := c.Compile("{{ vars[vars.long] }}", expr.Everywhere)
	require.NoError(t, err)
	_, err = p.Eval(context.Background(), vars("long", long))
	require.Error(t, err)
	require.LessOrEqual(t, len(err.Error()), 203)
	require.True(t, strings.HasSuffix(err.Error(), "…"))
}

func TestExpressions_CEL_UncheckedAsTheLanguageNeedsIt(t *testing.T) {
	s := vars("a", 1.0)
	requireValue(t, nil, "vars.a == 2 ? {'code': 'X'} : null", s)
	requireValue(t, object("code", "X"), "vars.a == 1 ? {'code': 'X'} : null", s)
	requireValue(t, []any{1.0, "a", nil, []any{}}, "[1, 'a', null, []]", s)
	requireValue(t, object("a", 1.0, "b", "x"), "{'a': 1, 'b': 'x'}", s)
	requireValue(t, true, "[1, 'a'][1] == 'a'", s)
}

func TestExpressions_CEL_CoreLanguage(t *testing.T) {
	s := vars("items", []any{1.0, 2.0, 3.0}, "m", object("a", 1.0, "b", 2.0), "s", "héllo", "n", nil)
	for body, want := range map[string]any{
		"vars.items.all(i, i > 0)":                            true,
		"vars.items.exists(i, i > 2)":                         true,
		"vars.items.exists_one(i, i > 2)":                     true,
		"vars.items.filter(i, i != 2)":                        []any{1.0, 3.0},
		"vars.items.map(i, i * 2.0)":                          []any{2.0, 4.0, 6.0},
		"vars.items.map(i, i > 1, i)":                         []any{2.0, 3.0},
		"vars.m.all(k, vars.m[k] > 0)":                        true,
		"vars.m.map(k, vars.m[k]).sort()":                     []any{1.0, 2.0},
		"2.0 in vars.items":                                   true,
		"2 in vars.items":                                     true,
		"'a' in vars.m":                                       true,
		"size(vars.items)":                                    3.0,
		"size(vars.s)":                                        5.0,
		"vars.s.size()":                                       5.0,
		"vars.s.startsWith('h') && vars.s.contains('llo')":    true,
		"vars.s.matches('^h.l+o$')":                           true,
		"vars.items + [4]":                                    []any{1.0, 2.0, 3.0, 4.0},
		"vars.items == [1, 2, 3]":                             true,
		"vars.m == {'b': 2, 'a': 1}":                          true,
		"vars.n == null":                                      true,
		"vars.n == 1":                                         false,
		"vars.n == false":                                     false,
		"type(vars.s) == string":                              true,
		"type(vars.items[0]) == double":                       true,
		"string(1.0)":                                         "1",
		"string(vars.items[1])":                               "2",
		"'item-' + string(vars.items[1])":                     "item-2",
		"string(1.5)":                                         "1.5",
		"string(true)":                                        "true",
		"int('42')":                                           42.0,
		"double('1.5')":                                       1.5,
		"bool('true')":                                        true,
		"string(bytes('é'))":                                  "é",
		"'a' < 'b'":                                           true,
		"true || vars.missing":                                true,
		"vars.missing || true":                                true,
		"false && vars.missing":                               false,
		"string(timestamp('2024-01-15T09:30:00Z'))":           "2024-01-15T09:30:00Z",
		"timestamp('2024-01-15T09:30:00Z').getHours()":        9.0,
		"timestamp('2024-01-15T23:30:00Z').getDate('+02:00')": 16.0,
		"string(duration('300s'))":                            "300s",
		"google.protobuf.Int32Value{value: 5}":                5.0,
		"[[1], [2]].map(x, x[0])":                             []any{1.0, 2.0},
		"{'a': [1, {'b': null}]}":                             object("a", []any{1.0, object("b", nil)}),
		".vars.m.a":                                           1.0,
		"[5.0].map(vars, .vars.m.a + vars)":                   []any{6.0},
		"[{'m': {'a': 7}}].map(vars, vars.m.a)":               []any{7.0},
		"vars['m']['a']":                                      1.0,
		"r'\\d+'":                                             `\d+`,
		`"\u00e9"`:                                            "é",
		"0x10":                                                16.0,
		"1 // a comment":                                      1.0,
		"[1, 2, 3].map(i, [4].map(j, i + j))":                 []any{[]any{5.0}, []any{6.0}, []any{7.0}},
	} {
		requireValue(t, want, body, s)
	}
	requireValue(t, true, "timestamp('2024-01-15T09:30:00Z') + duration('1h') > timestamp('2024-01-15T09:30:00Z')", s)
	requireValue(t, object("a", "x"), "google.protobuf.Struct{fields: {'a': google.protobuf.Value{string_value: 'x'}}}", s)
}

func TestExpressions_CEL_RecommendedExtensions(t *testing.T) {
	s := vars("items", []any{3.0, 1.0, 2.0, 1.0})
	for body, want := range map[string]any{
		"'a,b'.split(',')":                    []any{"a", "b"},
		"['a', 'b'].join('-')":                "a-b",
		"['a', 'b'].join()":                   "ab",
		"'%s is %d'.format(['x', 5])":         "x is 5",
		"'hello'.substring(1, 3)":             "el",
		"'Hello'.lowerAscii()":                "hello",
		"'Hello'.upperAscii()":                "HELLO",
		"' a '.trim()":                        "a",
		"'aXbX'.replace('X', '-')":            "a-b-",
		"'aXbX'.replace('X', '-', 1)":         "a-bX",
		"'abc'.charAt(1)":                     "b",
		"'abcb'.indexOf('b')":                 1.0,
		"'abcb'.lastIndexOf('b')":             3.0,
		"'abc'.reverse()":                     "cba",
		"strings.quote('a\"b')":               `"a\"b"`,
		"lists.range(3)":                      []any{0.0, 1.0, 2.0},
		"[1, 2, 3].slice(1, 3)":               []any{2.0, 3.0},
		"vars.items.slice(0, 2)":              []any{3.0, 1.0},
		"[[1], [2, [3]]].flatten()":           []any{1.0, 2.0, []any{3.0}},
		"[1, [2, [3, [4]]]].flatten(2)":       []any{1.0, 2.0, 3.0, []any{4.0}},
		"vars.items.sort()":                   []any{1.0, 1.0, 2.0, 3.0},
		"vars.items.distinct()":               []any{3.0, 1.0, 2.0},
		"vars.items.reverse()":                []any{1.0, 2.0, 1.0, 3.0},
		"[{'a': 2}, {'a': 1}].sortBy(x, x.a)": []any{object("a", 1.0), object("a", 2.0)},
		"sets.contains([1, 2], [2.0])":        true,
		"sets.equivalent([1, 1], [1])":        true,
		"sets.intersects([1], [2])":           false,
		"base64.encode(b'hello')":             "aGVsbG8=",
		"string(base64.decode('aGVsbG8='))":   "hello",
		"math.greatest(1, 2.5, 2u)":           2.5,
		"math.least([3, 1, 2])":               1.0,
		"math.greatest(vars.items)":           3.0,
		"math.ceil(1.2)":                      2.0,
		"math.abs(-1)":                        1.0,
		"math.isNaN(0.0 / 0.0)":               true,
		"math.bitAnd(6, 3)":                   2.0,
		"math.sqrt(16)":                       4.0,
	} {
		requireValue(t, want, body, s)
	}
}

func TestExpressions_CEL_NothingBeyondTheProfiles(t *testing.T) {
	for _, body := range []string{"optional.of(1)", "cel.bind(x, 1, x)", "regex.extract('a', 'a')", "yaml.parse('a: 1')", "json.parse('1')", "[1].hasAny([1])", "base64.decodeUrl('')", "ip('127.0.0.1')", "env('HOME')", "uuid()", "random()"} {
		p, err := compiler(t).Compile("{{ "+body+" }}", expr.Everywhere)
		if err != nil {
			continue
		}
		require.NotEmpty(t, p.Names(), body)
		_, err = p.Eval(context.Background(), vars())
		require.Error(t, err, body)
	}
	_, err := compiler(t).Compile("{{ vars.?a }}", expr.Everywhere)
	require.Error(t, err)
	_, err = compiler(t).Compile("{{ @now }}", expr.Everywhere)
	require.Error(t, err)
}

func TestExpressions_ResultValues(t *testing.T) {
	s := vars("zero", 0.0, "big", 1e300)
	for body, want := range map[string]any{
		"true": true, "null": nil, "'x'": "x", "1": 1.0, "1u": 1.0, "1.5": 1.5,
		"9007199254740992":                    9007199254740992.0,
		"-9007199254740992":                   -9007199254740992.0,
		"9007199254740992u":                   9007199254740992.0,
		"double(9223372036854775807)":         9223372036854775807.0,
		"string(9223372036854775807)":         "9223372036854775807",
		"1e300":                               1e300,
		"-0.0":                                math.Copysign(0, -1),
		"base64.encode(b'x')":                 "eA==",
		"string(duration('300s'))":            "300s",
		"durationToIso8601(duration('300s'))": "PT5M",
		"[1, [2u]]":                           []any{1.0, []any{2.0}},
	} {
		requireValue(t, want, body, s)
	}
	for body, remedy := range map[string]string{
		"9007199254740993":                     "string()",
		"-9007199254740993":                    "double()",
		"9007199254740993u":                    "string()",
		"0.0 / 0.0":                            "not finite",
		"5.0 / 0.0":                            "not finite",
		"-5.0 / vars.zero":                     "not finite",
		"vars.big * vars.big":                  "not finite",
		"double('NaN')":                        "not finite",
		"b'x'":                                 "base64.encode()",
		"now()":                                "string()",
		"timestamp('2024-01-15T09:30:00Z')":    "string()",
		"duration('1s')":                       "durationToIso8601()",
		"now() - now()":                        "durationToIso8601()",
		"{1: 'a'}":                             "string keys",
		"{true: 'a'}":                          "string keys",
		"{'a': 1, 2: 'b'}":                     "string keys",
		"int":                                  "no form in JSON",
		"type(1)":                              "no form in JSON",
		"[1, [b'x']]":                          "base64.encode()",
		"{'a': {'b': now()}}":                  "string()",
		"[vars.zero / 0.0]":                    "not finite",
		"google.protobuf.Duration{seconds: 1}": "durationToIso8601()",
	} {
		require.Contains(t, requireFault(t, expr.Unrepresentable, body, s), remedy, body)
	}
}

func TestExpressions_Numbers(t *testing.T) {
	s := vars("count", 5.0, "total", 12.0, "ratio", 0.5, "offset", 2.0, "one", 1.0, "items", []any{"a", "b", "c"})
	for body, want := range map[string]any{
		"vars.total / vars.count":               2.4,
		"vars.total * vars.count":               60.0,
		"vars.count - 1.0":                      4.0,
		"1.0 + vars.ratio":                      1.5,
		"double(1) + vars.ratio":                1.5,
		"1 + int(vars.ratio)":                   1.0,
		"double(size(vars.items)) + vars.ratio": 3.5,
		"vars.items[int(vars.offset)]":          "c",
		"vars.items[vars.offset]":               "c",
		"vars.one == 1":                         true,
		"vars.one == 1u":                        true,
		"vars.one != 1":                         false,
		"vars.count > 4":                        true,
		"vars.count <= 5u":                      true,
		"size(vars.items) > 0.0":                true,
		"size(vars.items) == 3.0":               true,
		"5 / 2":                                 2.0,
		"5 % 3":                                 2.0,
		"5.0 / 2.0":                             2.5,
		"-vars.count":                           -5.0,
		"int(vars.ratio)":                       0.0,
		"int(-1.9)":                             -1.0,
		"[1, 2.0, 3u] == [1.0, 2u, 3]":          true,
		"{1.0: 'a'}[1] == 'a' || true":          true,
		"vars.one in [1, 2]":                    true,
		"math.isInf(5.0 / 0.0)":                 true,
		"(0.0 / 0.0) == (0.0 / 0.0)":            false,
		"vars.count == 'x'":                     false,
	} {
		requireValue(t, want, body, s)
	}
	for _, body := range []string{"1 + vars.ratio", "vars.ratio + 1", "vars.count * 2", "size(vars.items) + vars.ratio", "1 + 2.0", "1u + 1", "vars.count % 2.0", "vars.count < 'x'", "vars.items[vars.ratio]"} {
		requireFault(t, expr.EvaluationError, body, s)
	}
}

func TestExpressions_MWLFunctions_JSON(t *testing.T) {
	s := vars("v", object("b", []any{1.0, nil, true}, "a", "é\"<>"), "text", `{"a":[1,2.5,null,"x"],"b":{}}`)
	requireValue(t, `{"a":"é\"<>","b":[1,null,true]}`, "toJson(vars.v)", s)
	requireValue(t, `{"a":1,"b":2}`, "toJson({'b': 2, 'a': 1})", s)
	requireValue(t, `null`, "toJson(null)", s)
	requireValue(t, `1`, "toJson(1.0)", s)
	requireValue(t, `"x"`, "toJson('x')", s)
	requireValue(t, object("a", []any{1.0, 2.5, nil, "x"}, "b", object()), "fromJson(vars.text)", s)
	requireValue(t, 2.5, "fromJson(vars.text).a[1]", s)
	requireValue(t, true, "type(fromJson('1')) == double", s)
	requireValue(t, true, "fromJson(toJson(vars.v)) == vars.v", s)
	requireValue(t, nil, "fromJson('null')", s)
	requireFault(t, expr.EvaluationError, "fromJson('{\"a\":1,\"a\":2}')", s)
	requireFault(t, expr.EvaluationError, "fromJson('1e999')", s)
	requireFault(t, expr.EvaluationError, "fromJson('1 2')", s)
}

func TestExpressions_MWLFunctions_Durations(t *testing.T) {
	s := vars("d", "PT1H")
	for body, want := range map[string]any{
		"durationToIso8601(duration('5400s'))":                                                       "PT1H30M",
		"durationToIso8601(duration('26h'))":                                                         "PT26H",
		"durationToIso8601(duration('0.5s'))":                                                        "PT0.5S",
		"durationToIso8601(duration('0s'))":                                                          "PT0S",
		"durationToIso8601(duration('-30s'))":                                                        "-PT30S",
		"durationToIso8601(durationFromIso8601(vars.d) + duration('30m'))":                           "PT1H30M",
		"durationFromIso8601('P1D') == duration('24h')":                                              true,
		"durationFromIso8601('-PT1.5S') == duration('-1.5s')":                                        true,
		"string(durationFromIso8601('PT5M'))":                                                        "300s",
		"durationToIso8601(timestamp('2024-01-15T09:30:01.5Z') - timestamp('2024-01-15T09:30:00Z'))": "PT1.5S",
		"string(timestamp('2024-01-15T09:30:00Z') + durationFromIso8601('P1W'))":                     "2024-01-22T09:30:00Z",
	} {
		requireValue(t, want, body, s)
	}
}

func TestExpressions_MWLFunctions_NowIsThePinAndWallTimeTheClock(t *testing.T) {
	pin := time.Date(2024, 1, 15, 9, 30, 0, 123456789, time.FixedZone("", 7200))
	reads := 0
	s := scope{
		roots: map[expr.Root]any{expr.Step: object("metadata", object("enteredAt", temporal.FormatInstant(pin)))},
		now:   pin,
		wall: func() time.Time {
			reads++
			return pin.Add(time.Duration(reads) * time.Second)
		},
	}
	requireValue(t, true, "now() == now()", s)
	requireValue(t, true, "timestamp(step.metadata.enteredAt) == now()", s)
	requireValue(t, true, "string(now()) == step.metadata.enteredAt", s)
	requireValue(t, "2024-01-15T07:30:00.123456789Z", "string(now())", s)
	requireValue(t, true, "[1, 2, 3].all(i, now() == timestamp(step.metadata.enteredAt))", s)
	require.Zero(t, reads)
	requireValue(t, true, "wallTime() < wallTime()", s)
	require.Equal(t, 2, reads)
	requireValue(t, []any{"PT3S", "PT4S"}, "[1, 2].map(i, durationToIso8601(wallTime() - now()))", s)

	p := compile(t, "string(now())", 0)
	for range 3 {
		s.now = s.now.Add(time.Minute)
		got, err := p.Eval(context.Background(), s)
		require.NoError(t, err)
		require.Equal(t, temporal.FormatInstant(s.now), got, "a new execution has a new pin")
	}
}

func TestExpressions_DefensiveConstructs(t *testing.T) {
	s := scope{roots: map[expr.Root]any{expr.Middleware: object("result", object("type", "error", "code", "X"))}}
	requireFault(t, expr.EvaluationError, "has(middleware.result.details.retryAfter)", s)
	requireValue(t, nil, "has(middleware.result.details) && has(middleware.result.details.retryAfter) ? middleware.result.details.retryAfter : null", s)
}

func TestExpressions_Truthiness(t *testing.T) {
	s := vars("yes", true, "one", 1.0, "empty", "", "n", nil)
	for body, want := range map[string]bool{"vars.yes": true, "!vars.yes": false, "vars.one == 1": true, "vars.n == null": true} {
		got, err := compile(t, body, expr.Everywhere).Bool(context.Background(), s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, body := range []string{"vars.one", "vars.empty", "vars.n", "'true'", "[]", "vars.missing", "b'x'", "0.0 / 0.0", "9007199254740993"} {
		_, err := compile(t, body, expr.Everywhere).Bool(context.Background(), s)
		var f *expr.Fault
		require.ErrorAs(t, err, &f, body)
		require.Equal(t, expr.EvaluationError, f.Code, body)
	}
}

// record is lazily built, as the engine's roots are.
type record struct {
	members map[string]any
	names   []string
	reads   *[]string
}

func (r record) Field(name string) (any, bool) {
	*r.reads = append(*r.reads, name)
	v, ok := r.members[name]
	return v, ok
}
func (r record) FieldNames() []string { return r.names }

func TestFieldsAreReadOnlyWhenNamed(t *testing.T) {
	var reads []string
	inner := record{members: object("enteredAt", "2024-01-15T09:30:00Z"), names: []string{"enteredAt"}, reads: &reads}
	step := record{members: object("input", object("a", 1.0), "metadata", inner, "hidden", 1.0), names: []string{"input", "metadata", "gone"}, reads: &reads}
	s := scope{roots: map[expr.Root]any{expr.Step: step}}
	whole := object("input", object("a", 1.0), "metadata", object("enteredAt", "2024-01-15T09:30:00Z"))
	for body, want := range map[string]any{
		"step.input.a":                1.0,
		"step['input']['a']":          1.0,
		"step.metadata.enteredAt":     "2024-01-15T09:30:00Z",
		"step.metadata['enteredAt']":  "2024-01-15T09:30:00Z",
		"has(step.input)":             true,
		"has(step.result)":            false,
		"has(step.metadata.exitedAt)": false,
		"'input' in step":             true,
		"'result' in step":            false,
		"size(step.metadata)":         1.0,
		"step":                        whole,
		"[step, step.metadata]":       []any{whole, whole["metadata"]},
		"{'s': step}":                 object("s", whole),
		"step.metadata == {'enteredAt': '2024-01-15T09:30:00Z'}": true,
		"{'enteredAt': '2024-01-15T09:30:00Z'} == step.metadata": true,
		"step.map(name, name).sort()":                            []any{"input", "metadata"},
		"step.all(name, step[name] != null)":                     true,
		"type(step) == map":                                      true,
		"toJson(step.metadata)":                                  `{"enteredAt":"2024-01-15T09:30:00Z"}`,
		"true ? step.metadata : null":                            whole["metadata"],
		"[step].map(s, s.input.a)":                               []any{1.0},
		"dyn(step).input.a":                                      1.0,
	} {
		requireValue(t, want, body, s)
	}
	requireFault(t, expr.EvaluationError, "step.result", s)
	requireFault(t, expr.EvaluationError, "step['result']", s)
	requireFault(t, expr.EvaluationError, "step[1]", s)
	requireFault(t, expr.EvaluationError, "step.metadata.exitedAt", s)

	reads = nil
	requireValue(t, 1.0, "step.input.a", s)
	require.Equal(t, []string{"input"}, reads)
}

func TestEval_ValuesPassThroughWithoutCopies(t *testing.T) {
	inner := object("x", 1.0)
	s := vars("list", []any{inner}, "map", inner)
	got, err := eval(t, "vars.map", s)
	require.NoError(t, err)
	got.(map[string]any)["seen"] = true
	require.Contains(t, inner, "seen")
	got, err = eval(t, "{'wrapped': vars.list[0]}", s)
	require.NoError(t, err)
	require.Contains(t, got.(map[string]any)["wrapped"], "seen")
}

func TestEval_IsSafeForConcurrentUse(t *testing.T) {
	p := compile(t, "vars.items.filter(i, i > vars.limit).map(i, {'v': i, 't': string(now())})", expr.Everywhere)
	items := []any{1.0, 2.0, 3.0}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			s := vars("items", items, "limit", float64(g%3))
			for range 200 {
				got, err := p.Eval(context.Background(), s)
				if err != nil || len(got.([]any)) != 3-g%3 {
					t.Errorf("got %v, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestRootString(t *testing.T) {
	require.Equal(t, "vars, execution, frame, failure", expr.Everywhere.String())
	require.Empty(t, expr.Root(0).String())
}
