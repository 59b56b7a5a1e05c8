package expr

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// dear is a call that takes as long as its function can, for what it gets.
type dear struct {
	body string
	// cost is what it must be counted with, at least. BenchmarkFunctions measures how long a unit takes.
	cost int
	// refused is a part of the error of a call that a check refuses; "" for one that runs.
	refused string
}

// dearest has the dearest calls that were found, by function. See library for what bounds each.
var dearest = map[string][]dear{
	"_+_": {
		{"vars.text + vars.text", 400_000, ""},
		{"vars.text + vars.text + vars.text", 0, "longer than"},
		{"vars.bytes + vars.bytes + vars.bytes", 0, "longer than"},
		{"[vars.list].map(a, a + a + a + a + a + a)[0]", 150_000, ""},
		{"[[1]].map(a, a" + strings.Repeat(" + a", 90) + ").map(a, a" + strings.Repeat(" + a", 90) + ").map(a, a" + strings.Repeat(" + a", 90) + ")", 0, "more than"},
	},
	"@in": {
		{"-1.0 in vars.list", 20_000, ""},
		{"vars.list in vars.nested", 80_000, ""},
		{"vars.text in vars.texts", 100_000, ""},
		{"vars.text in vars.list.map(i, vars.other)", 0, "too many comparisons"},
		{"vars.text in vars.object", 100_000, ""},
		{"'x' in vars.object", 0, ""},
	},
	"_in_":        {{"_in_(-1.0, vars.list)", 20_000, ""}, {"_in_(vars.list, vars.nested)", 80_000, ""}},
	"in":          {{body: "1 in [1]"}}, // the name cannot be written
	"@equals":     {{"vars.nested == vars.nested", 80_000, ""}, {"vars.many == vars.many", 0, "longer than"}, {"vars.text == vars.other", 200_000, ""}},
	"@differs":    {{"vars.nested != vars.nested", 80_000, ""}, {"vars.many != vars.many", 0, "longer than"}},
	"_==_":        {{"vars.nested == vars.nested", 80_000, ""}},
	"_!=_":        {{"vars.nested != vars.nested", 80_000, ""}},
	"@key":        {{"{vars.text: 1}", 100_000, ""}, {"vars.object[vars.text]", 100_000, "no such key"}},
	"@field":      {{"google.protobuf.ListValue{values: vars.list}", 400_000, ""}, {"google.protobuf.Value{list_value: vars.many}", 100_000, "more than"}, {"google.protobuf.Struct{fields: vars.object}", 400_000, ""}},
	"@subject":    {{"vars.text.matches('x{1000}y')", 0, "too many steps"}, {"matches(vars.text, 'x{1000}y')", 0, "too many steps"}},
	"matches":     {{"vars.text.matches('(x*)*y')", 1_000_000, ""}, {"'x'.matches('x{' + '900}')", 4_000, ""}, {"vars.text.matches('x{' + '1000}y')", 0, "too many steps"}},
	"_<_":         {{"vars.text < vars.other", 200_000, ""}},
	"_<=_":        {{"vars.text <= vars.other", 200_000, ""}},
	"_>_":         {{"vars.text > vars.other", 200_000, ""}},
	"_>=_":        {{"vars.text >= vars.other", 200_000, ""}},
	"indexOf":     {{"vars.text.indexOf(vars.half)", 150_000, ""}, {"vars.text.indexOf(vars.half, 1)", 150_000, ""}},
	"lastIndexOf": {{"vars.text.lastIndexOf(vars.half)", 150_000, ""}, {"vars.text.lastIndexOf(vars.half, 1000000)", 150_000, ""}},
	"contains":    {{"vars.text.contains(vars.half)", 150_000, ""}},
	"startsWith":  {{"vars.text.startsWith(vars.other)", 200_000, ""}},
	"endsWith":    {{"vars.text.endsWith(vars.other)", 200_000, ""}},
	"charAt":      {{"vars.text.charAt(1000000)", 100_000, ""}},
	"substring":   {{"vars.text.substring(1)", 200_000, ""}, {"vars.text.substring(1, 2)", 100_000, ""}},
	"lowerAscii":  {{"vars.text.lowerAscii()", 200_000, ""}},
	"upperAscii":  {{"vars.text.upperAscii()", 200_000, ""}},
	"trim":        {{"vars.text.trim()", 200_000, ""}},
	"reverse":     {{"vars.text.reverse()", 200_000, ""}, {"vars.list.reverse()", 100_000, ""}},
	"replace":     {{"vars.text.replace('x', 'yy')", 300_000, ""}, {"vars.text.replace('', 'yy')", 100_000, "longer than"}, {"vars.text.replace('x', 'y', 1)", 200_000, ""}},
	"split":       {{"vars.text.split('y')", 100_000, ""}, {"vars.text.split('')", 100_000, "more than"}, {"vars.text.split('x', 5)", 100_000, ""}},
	"join":        {{"vars.texts.join()", 0, "longer than"}, {"vars.list.map(i, '').join('')", 40_000, ""}, {"vars.list.map(i, vars.text).join('')", 20_000, "longer than"}},
	"format": {
		{"'%s'.format([vars.text])", 500_000, ""},
		{"'%x'.format([vars.text])", 1_000_000, ""},
		{"'%.100f'.format([1.7e308])", 200, ""},
		{"'%s'.format([vars.list])", 0, "longer than"},
		{"'%s'.format([vars.list.slice(0, 4000)])", 10_000, ""},
	},
	"strings.quote":          {{"strings.quote(vars.quotes)", 100_000, ""}, {"strings.quote(string(vars.much))", 0, "longer than"}},
	"base64.encode":          {{"base64.encode(vars.bytes)", 200_000, ""}, {"base64.encode(vars.much)", 0, "longer than"}},
	"base64.decode":          {{"base64.decode(vars.text)", 100_000, ""}},
	"json.encode":            {{"json.encode(vars.list)", 80_000, ""}, {"json.encode(vars.object)", 80_000, ""}, {"json.encode(vars.list.map(i, vars.text))", 0, "longer than"}},
	"toJson":                 {{"toJson(vars.list)", 60_000, ""}, {"toJson(vars.object)", 60_000, ""}, {"toJson(vars.list.map(i, vars.text))", 0, "longer than"}},
	"fromJson":               {{"fromJson(vars.json)", 80_000, ""}, {"fromJson('[' + vars.commas + ']')", 10_000, "more than"}},
	"bytes":                  {{"bytes(vars.text)", 200_000, ""}},
	"string":                 {{"string(vars.bytes)", 200_000, ""}, {"string(1.234567e300)", 0, ""}},
	"bool":                   {{"bool(vars.text)", 100_000, "type conversion"}},
	"int":                    {{"int(vars.text)", 100_000, "type conversion"}},
	"uint":                   {{"uint(vars.text)", 100_000, "type conversion"}},
	"double":                 {{"double(vars.digits)", 100_000, "type conversion"}},
	"timestamp":              {{"timestamp(vars.text)", 100_000, "timestamp"}},
	"duration":               {{"duration(vars.digits)", 100_000, "type conversion"}},
	"size":                   {{"size(vars.text)", 100_000, ""}, {"size(vars.list)", 0, ""}},
	"slice":                  {{"vars.list.slice(1, 19999)", 80_000, ""}, {"(vars.list + vars.list).slice(1, 39999)", 80_000, ""}},
	"flatten":                {{"vars.empties.flatten()", 80_000, ""}, {"vars.nested.flatten(5)", 80_000, ""}, {"[[]]" + strings.Repeat(".map(a, [a, a])", 20) + ".flatten(100)", 0, "more than"}},
	"distinct":               {{"vars.small.distinct()", 100_000, ""}, {"vars.list.distinct()", 20_000, "too many comparisons"}},
	"sets.contains":          {{"sets.contains(vars.small, vars.small)", 100_000, ""}, {"sets.contains(vars.list, vars.list)", 40_000, "too many comparisons"}},
	"sets.equivalent":        {{"sets.equivalent(vars.small, vars.small)", 100_000, ""}, {"sets.equivalent(vars.list, vars.list)", 40_000, "too many comparisons"}},
	"sets.intersects":        {{"sets.intersects(vars.small, vars.small.map(i, -1.0 - i))", 100_000, ""}, {"sets.intersects(vars.list, vars.list)", 40_000, "too many comparisons"}},
	"sort":                   {{"vars.list.sort()", 300_000, ""}, {"vars.texts.sort()", 30_000, ""}, {"vars.list.map(i, vars.text).sort()", 20_000, "too many comparisons"}},
	"@sortByAssociatedKeys":  {{"vars.list.sortBy(i, -i)", 300_000, ""}, {"vars.list.sortBy(i, vars.text)", 20_000, "too many comparisons"}},
	"lists.range":            {{"lists.range(100000)", 400_000, ""}, {"lists.range(1000000)", 0, "more than"}},
	"math.@max":              {{"math.greatest(vars.list)", 20_000, ""}, {"math.greatest(1, 2)", 0, ""}},
	"math.@min":              {{"math.least(vars.list)", 20_000, ""}, {"math.least(1, 2)", 0, ""}},
	"durationFromIso8601":    {{"durationFromIso8601('P' + vars.digits + 'D')", 300_000, "beyond"}},
	"durationToIso8601":      {{body: "durationToIso8601(duration('1h5m3.5s'))"}},
	"@turn":                  {{body: "vars.list.exists_one(x, false)", cost: 20_000}},
	"_[_]":                   {{body: "vars.list[5]"}},
	"_?_:_":                  {{body: "vars.yes ? 1 : 2"}},
	"_&&_":                   {{body: "vars.yes && true"}},
	"_||_":                   {{body: "vars.yes || true"}},
	"!_":                     {{body: "!vars.yes"}},
	"-_":                     {{body: "-vars.one"}},
	"_-_":                    {{body: "vars.one - 1.0"}},
	"_*_":                    {{body: "vars.one * 2.0"}},
	"_/_":                    {{body: "vars.one / 2.0"}},
	"_%_":                    {{body: "int(vars.one) % 2"}},
	"@not_strictly_false":    {{body: "[vars.yes].all(x, x)"}},
	"__not_strictly_false__": {{body: "__not_strictly_false__(vars.yes)"}},
	"type":                   {{body: "type(vars.list)"}},
	"dyn":                    {{body: "dyn(vars.list)"}},
	"math.ceil":              {{body: "math.ceil(vars.one)"}},
	"math.floor":             {{body: "math.floor(vars.one)"}},
	"math.round":             {{body: "math.round(vars.one)"}},
	"math.trunc":             {{body: "math.trunc(vars.one)"}},
	"math.abs":               {{body: "math.abs(vars.one)"}},
	"math.sign":              {{body: "math.sign(vars.one)"}},
	"math.isNaN":             {{body: "math.isNaN(vars.one)"}},
	"math.isInf":             {{body: "math.isInf(vars.one)"}},
	"math.isFinite":          {{body: "math.isFinite(vars.one)"}},
	"math.sqrt":              {{body: "math.sqrt(vars.one)"}},
	"math.bitAnd":            {{body: "math.bitAnd(int(vars.one), 3)"}},
	"math.bitOr":             {{body: "math.bitOr(int(vars.one), 3)"}},
	"math.bitXor":            {{body: "math.bitXor(int(vars.one), 3)"}},
	"math.bitNot":            {{body: "math.bitNot(int(vars.one))"}},
	"math.bitShiftLeft":      {{body: "math.bitShiftLeft(int(vars.one), 3)"}},
	"math.bitShiftRight":     {{body: "math.bitShiftRight(int(vars.one), 3)"}},
}

func init() {
	for _, name := range getters {
		dearest[name] = []dear{
			{body: "now()." + name + "()"},
			{body: "now()." + name + "('Europe/Berlin')", cost: 1},
			{body: "now()." + name + "('Nowhere/No')", cost: 390, refused: "unknown time zone"},
			{body: "now()." + name + "(vars.text)", cost: 390, refused: "at most 64 bytes"},
		}
	}
}

// dearScope has the data of the dearest calls: half a mebibyte of text in the one that is sought.
type dearScope map[string]any

func (s dearScope) Root(Root) any    { return map[string]any(s) }
func (s dearScope) Now() time.Time   { return time.Unix(1_700_000_000, 0) }
func (s dearScope) Clock() time.Time { return s.Now() }

func dearData() dearScope {
	const n = 1 << 20
	many := func(n int, element func(int) any) []any {
		list := make([]any, n)
		for i := range list {
			list[i] = element(i)
		}
		return list
	}
	number := func(i int) any { return float64(i) }
	list := many(20_000, number)
	text := strings.Repeat("x", n)
	object := map[string]any{}
	for i := range 10_000 {
		object[strconv.Itoa(i)] = float64(i)
	}
	return dearScope{
		"text": text, "other": text[1:] + "y", "half": text[:n/2] + "y", "digits": strings.Repeat("7", n), "quotes": strings.Repeat("\"", n/2), "commas": strings.Repeat("0,", 1<<17) + "0",
		"bytes": types.Bytes(text), "much": types.Bytes(text + text + text), "list": list, "small": many(500, number), "nested": []any{list}, "many": many(200, func(int) any { return list }),
		"empties": many(20_000, func(int) any { return []any{} }), "texts": many(100, func(i int) any { return text[:n/20] + strconv.Itoa(i) }),
		"object": object, "json": "[" + strings.Repeat("[],", 20_000) + "1]", "yes": true, "one": 1.0,
	}
}

// loopUnits is what the loop around a body may count when the body fails, and the loop ends there.
const loopUnits = 20

// dearProgram is a body within a loop, so that nothing of it is exempt from counting.
type dearProgram struct{ empty, full *Program }

func compileDear(t testing.TB, body string) dearProgram {
	t.Helper()
	c, err := NewCompiler(Limits{Cost: 1 << 60, Message: 1 << 20})
	require.NoError(t, err)
	compile := func(body string) *Program {
		p, err := c.Compile("{{ [0].map(i, type("+body+")) == [] }}", Everywhere)
		require.NoError(t, err, body)
		return p
	}
	return dearProgram{compile("1"), compile(body)}
}

// cost is what the body costs beyond the loop.
func (p dearProgram) cost(s Scope) (cost int, refused string) {
	_, empty, _ := p.empty.predicate(context.Background(), s)
	_, full, err := p.full.predicate(context.Background(), s)
	if err != nil {
		refused = err.Error()
	}
	return int(full) - int(empty), refused //nolint:gosec // small
}

// A hang would be the fault that these tests look for. None of the calls takes a second.
const patience = 2 * time.Minute

func returns(t *testing.T, do func()) {
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a call did not return")
	}
}

func TestFunctions_EachIsGuardedOrLinear(t *testing.T) {
	env, err := shared()
	require.NoError(t, err)
	s := dearData()
	for name := range env.Functions() {
		t.Run(name, func(t *testing.T) {
			f, known := library[name]
			require.True(t, known, "decide what bounds the work of this function, measure it with BenchmarkFunctions, and add it to library")
			calls := dearest[name]
			require.NotEmpty(t, calls, "add the dearest calls of this function")
			guards := 0
			for _, call := range calls {
				var cost int
				var refused string
				p := compileDear(t, call.body)
				returns(t, func() { cost, refused = p.cost(s) })
				require.GreaterOrEqual(t, cost+loopUnits, call.cost, call.body)
				if call.refused == "" {
					require.Empty(t, refused, call.body)
					continue
				}
				require.Contains(t, refused, call.refused, call.body)
				guards++
			}
			if f.check != nil && name != "_in_" && name != "in" {
				require.NotZero(t, guards, "no call shows what the check refuses")
			}
		})
	}
	for name := range library {
		require.Contains(t, env.Functions(), name, "the library no longer has it")
	}
}

func TestFunctions_EachMacroIsCounted(t *testing.T) {
	env, err := shared()
	require.NoError(t, err)
	s := dearData()
	bodies := map[string]string{
		"all": "vars.list.all(x, true)", "exists": "vars.list.exists(x, false)", "exists_one": "vars.list.exists_one(x, false)",
		"map": "vars.list.map(x, x)", "filter": "vars.list.filter(x, true)", "sortBy": "vars.list.sortBy(x, x)",
		"least": "math.least(vars.list)", "greatest": "math.greatest(vars.list)",
	}
	for _, m := range env.Macros() {
		t.Run(m.Function(), func(t *testing.T) {
			require.Contains(t, macros, m.Function(), "decide what counts the work of this macro")
			body, ok := bodies[m.Function()]
			if !ok {
				require.Equal(t, "constant", macros[m.Function()])
				return
			}
			cost, refused := compileDear(t, body).cost(s)
			require.Empty(t, refused)
			require.GreaterOrEqual(t, cost, 20_000)
		})
	}
	names := []string{}
	for _, m := range env.Macros() {
		names = append(names, m.Function())
	}
	for name := range macros {
		require.True(t, slices.Contains(names, name), "there is no macro %s any more", name)
	}
}

// A text and a needle of half a mebibyte took CEL minutes, which nothing interrupted.
func TestFunctions_SearchesAreLinear(t *testing.T) {
	const n = 1 << 19
	s := dearScope{"text": strings.Repeat("é", n) + "z", "needle": strings.Repeat("é", n/2) + "z", "absent": strings.Repeat("é", n/2) + "y"}
	for body, want := range map[string]any{
		"vars.text.indexOf(vars.needle)":             float64(n - n/2),
		"vars.text.indexOf(vars.absent)":             -1.0,
		"vars.text.indexOf(vars.needle, 1000)":       float64(n - n/2),
		"vars.text.lastIndexOf(vars.needle)":         float64(n - n/2),
		"vars.text.lastIndexOf(vars.absent)":         -1.0,
		"vars.text.lastIndexOf(vars.needle, 500000)": float64(n - n/2),
		"vars.text.lastIndexOf(vars.needle, 1000)":   -1.0,
	} {
		t.Run(body, func(t *testing.T) {
			c, err := NewCompiler(Limits{})
			require.NoError(t, err)
			p, err := c.Compile("{{ "+body+" }}", Everywhere)
			require.NoError(t, err)
			var got any
			returns(t, func() { got, err = p.Eval(context.Background(), s) })
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// What takes the place of CEL's functions gives what they give.
func TestFunctions_SearchesAreAsInCEL(t *testing.T) {
	env, err := shared()
	require.NoError(t, err)
	for name, f := range library {
		if name != "indexOf" && name != "lastIndexOf" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			overloads, err := env.Functions()[name].Bindings()
			require.NoError(t, err)
			i := len(overloads) - 1
			require.Equal(t, name, overloads[i].Operator)
			original := call(overloads[i].Function)
			text := rapid.StringOf(rapid.SampledFrom([]rune("aaé\xff日")))
			rapid.Check(t, func(t *rapid.T) {
				raw := rapid.SampledFrom([]string{"", "\xff", "\xc3"})
				args := []ref.Val{types.String(text.Draw(t, "text") + raw.Draw(t, "raw")), types.String(raw.Draw(t, "raw") + text.Draw(t, "needle"))}
				if rapid.Bool().Draw(t, "short") {
					args[1] = types.String(rapid.StringOfN(rapid.SampledFrom([]rune("aé")), 0, 2, -1).Draw(t, "needle"))
				}
				if rapid.Bool().Draw(t, "from") {
					args = append(args, types.Int(rapid.IntRange(-1, 10).Draw(t, "offset")))
				}
				want := original(args...)
				got := f.instead(args, original)
				require.Equal(t, fmt.Sprint(want), fmt.Sprint(got))
			})
		})
	}
}

// CEL plans these without a call.
func TestFunctions_OperandsAreCounted(t *testing.T) {
	s := dearData()
	for body, least := range map[string]int{
		"{vars.text: 1}":        500,
		"has({vars.text: 1}.a)": 500,
		"vars.object['a' in vars.object ? 'a' : vars.text]": 500,
		"google.protobuf.ListValue{values: vars.list}":      400_000,
		"[vars.list].map(a, a + a + a)[0]":                  60_000,
	} {
		t.Run(body, func(t *testing.T) {
			cost, _ := compileDear(t, body).cost(s)
			require.GreaterOrEqual(t, cost, least)
		})
	}
}

// A call that is refused has looked at its arguments, and macros such as all() go on behind an error: it must not be free.
func TestFunctions_RefusedCallsAreCounted(t *testing.T) {
	s := dearData()
	for _, body := range []string{"toJson(vars.many)", "vars.many == vars.many", "'%s'.format(vars.many)", "vars.many.flatten(5)", "vars.list.distinct()", "sets.contains(vars.list, vars.list)"} {
		t.Run(body, func(t *testing.T) {
			c, err := NewCompiler(Limits{})
			require.NoError(t, err)
			p, err := c.Compile("{{ lists.range(100000).all(i, type("+body+") == int || true) }}", Everywhere)
			require.NoError(t, err)
			returns(t, func() { _, err = p.Eval(context.Background(), s) })
			require.ErrorContains(t, err, "does more work than")
		})
	}
}

func TestFunctions_TimeZonesAreKept(t *testing.T) {
	s := dearData()
	for _, zone := range []string{"Asia/Tokyo", "America/Sao_Paulo"} {
		t.Run(zone, func(t *testing.T) {
			cost, refused := compileDear(t, "now().getHours('"+zone+"')").cost(s)
			require.Empty(t, refused)
			require.Less(t, cost, 20)
			_, kept := zones.Load(zone)
			require.True(t, kept, "loading it again reads a file")
		})
	}
}

// BenchmarkFunctions reports how long a unit of cost takes for the dearest calls of each function. It is meant to be about 100 ns, and below 500.
func BenchmarkFunctions(b *testing.B) {
	s := dearData()
	for _, name := range slices.Sorted(maps.Keys(dearest)) {
		for _, call := range dearest[name] {
			b.Run(name+"/"+call.body, func(b *testing.B) {
				p := compileDear(b, call.body).full
				units := uint64(0)
				for b.Loop() {
					_, cost, _ := p.predicate(context.Background(), s)
					units += cost
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(units), "ns/unit")
			})
		}
	}
}
