package value_test

import (
	"encoding/json"
	"math"
	"math/big"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/mwl/internal/value"
)

type named string

type order struct {
	ID     int64     `json:"id"`
	Note   string    `json:"note,omitempty"`
	At     time.Time `json:"at"`
	hidden int
}

func TestDataModel_JSONDataModel_WhatGoValuesBecome(t *testing.T) {
	n := 7
	var none *int
	for _, tc := range []struct{ in, want any }{
		{nil, nil},
		{true, true},
		{"x", "x"},
		{1.5, 1.5},
		{float32(0.5), 0.5},
		{7, 7.0},
		{int8(-7), -7.0},
		{int64(1 << 53), float64(1 << 53)},
		{uint16(7), 7.0},
		{uint64(1 << 53), float64(1 << 53)},
		{json.Number("12.5"), 12.5},
		{json.Number("9007199254740994"), 9007199254740994.0},
		{int64(1<<53) + 2, 9007199254740994.0},
		{uint64(1 << 60), 1152921504606846976.0},
		{float32(0.1), 0.1},
		{struct{ F float64 }{1e20}, map[string]any{"F": 1e20}},
		{json.RawMessage("100000000000000000000"), 1e20},
		{json.RawMessage("0.1000000000000000055511151231257827021181583404541015625"), 0.1},
		{named("x"), "x"},
		{&n, 7.0},
		{none, nil},
		{[]string{"a"}, []any{"a"}},
		{[2]int{1, 2}, []any{1.0, 2.0}},
		{[]string(nil), nil},
		{map[string]int{"a": 1}, map[string]any{"a": 1.0}},
		{map[named][]int{"a": {1}}, map[string]any{"a": []any{1.0}}},
		{map[string]int(nil), nil},
		{map[int]string{1: "a"}, map[string]any{"1": "a"}},
		{[]byte("hi"), "aGk="},
		{json.RawMessage(`{"a":[1,null]}`), map[string]any{"a": []any{1.0, nil}}},
		{time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC), "2024-01-15T09:30:00Z"},
		{order{ID: 5, At: time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC), hidden: 1}, map[string]any{"id": 5.0, "at": "2024-01-15T09:30:00Z"}},
		{[]any{1, map[string]any{"a": uint8(2)}}, []any{1.0, map[string]any{"a": 2.0}}},
		{[]any{}, []any{}},
	} {
		got, err := value.Of(tc.in)
		require.NoError(t, err, "%#v", tc.in)
		require.Equal(t, tc.want, got, "%#v", tc.in)
	}
}

func TestDataModel_JSONDataModel_WhatCannotBeAValue(t *testing.T) {
	cycle := map[string]any{}
	cycle["self"] = cycle
	for _, tc := range []struct {
		in            any
		path, problem string
	}{
		{math.NaN(), "", "NaN is not a number in JSON"},
		{math.Inf(-1), "", "-Inf is not a number in JSON"},
		{float32(math.Inf(1)), "", "+Inf"},
		{[]any{1, math.NaN()}, "/1", "NaN"},
		{int64(1<<53) + 1, "", "beyond ±2^53"},
		{-(int64(1<<53) + 1), "", "carry it as a string"},
		{uint64(1<<53) + 1, "", "the integer 9007199254740993 is beyond ±2^53"},
		{map[string]any{"a/b": []any{uint64(math.MaxUint64)}}, "/a~1b/0", "beyond ±2^53"},
		{order{ID: 1<<62 + 1}, "/id", "carry it as a string"},
		{"\xff", "", "not valid UTF-8"},
		{map[string]any{"\xff": 1}, "/\xff", "not valid UTF-8"},
		{named("\xff"), "", "not valid UTF-8"},
		{make(chan int), "", "unsupported type"},
		{func() {}, "", "unsupported type"},
		{complex(1, 2), "", "unsupported type"},
		{json.RawMessage(`{"a":1,"a":2}`), "", "repeats"},
		{json.RawMessage(`{`), "", "JSON"},
		{json.Number("1e999"), "", "beyond the range"},
		{json.Number("x"), "", "not a number"},
		{json.Number("true"), "", "not a number"},
		{json.Number("9007199254740993"), "", "the integer 9007199254740993 is beyond ±2^53"},
		{json.RawMessage(`{"a":[0,{"b/c":9007199254740993}]}`), "/a/1/b~1c", "the integer 9007199254740993 is beyond ±2^53"},
		{struct{ A []int64 }{[]int64{0, -1<<53 - 1}}, "/A/1", "the integer -9007199254740993 is beyond ±2^53"},
		{[]any{json.RawMessage(`[1, 12345678901234567.89]`)}, "/0/1", "the number 12345678901234567.89 has more digits than a double keeps"},
		{json.RawMessage("0.10000000000000001"), "", "more digits"},
		{json.RawMessage("1e400"), "", "the number 1e400 is beyond the range"},
		{json.Number("1e400"), "", "the number 1e400 is beyond the range"},
		{json.RawMessage("1e-400"), "", "the number 1e-400 is beyond the range"},
		{json.RawMessage("1" + strings.Repeat("0", 100) + "1"), "", "the integer 1" + strings.Repeat("0", 39) + "… is beyond"},
		{cycle, strings.Repeat("/self", 1001), "break the cycle"},
	} {
		_, err := value.Of(tc.in)
		var e *value.Error
		require.ErrorAs(t, err, &e, "%#v", tc.in)
		require.Equal(t, tc.path, e.Path)
		require.Contains(t, e.Error(), tc.problem)
	}
}

func TestOfSharesNothing(t *testing.T) {
	in := map[string]any{"a": []any{1.0}}
	out, err := value.Of(in)
	require.NoError(t, err)
	in["a"].([]any)[0] = 2.0
	require.Equal(t, map[string]any{"a": []any{1.0}}, out)

	c := value.Copy(out).(map[string]any)
	c["a"].([]any)[0] = 3.0
	require.Equal(t, map[string]any{"a": []any{1.0}}, out)
}

func TestDataModel_SingleNumberType(t *testing.T) {
	five, err := value.Parse([]byte("5"))
	require.NoError(t, err)
	alsoFive, err := value.Parse([]byte("5.0"))
	require.NoError(t, err)
	require.Equal(t, five, alsoFive)
	require.True(t, value.Equal(0.0, math.Copysign(0, -1)), "negative zero")
	require.Equal(t, "5", value.JSON(alsoFive))
}

func TestDataModel_JSONDataModel_Equality(t *testing.T) {
	require.True(t, value.Equal(map[string]any{"a": 1.0, "b": nil}, map[string]any{"b": nil, "a": 1.0}), "member order")
	require.False(t, value.Equal(map[string]any{"a": nil}, map[string]any{"b": nil}))
	require.False(t, value.Equal([]any{1.0, 2.0}, []any{2.0, 1.0}))
	require.False(t, value.Equal("é", "e\u0301"), "no normalization")
	require.False(t, value.Equal("1", 1.0))
	require.False(t, value.Equal(nil, false))
	require.False(t, value.Equal(false, nil))
	require.False(t, value.Equal([]any{}, map[string]any{}))
	require.True(t, value.Equal([]any{}, []any{}))
}

func TestKind(t *testing.T) {
	for want, v := range map[string]any{"null": nil, "boolean": true, "number": 1.0, "string": "", "array": []any{}, "object": map[string]any{}, "": 1} {
		require.Equal(t, want, value.Kind(v))
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]any{
		`null`:                                  nil,
		` true `:                                true,
		`-0.5e+2`:                               -50.0,
		`1E3`:                                   1000.0,
		`""`:                                    "",
		`"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"`: "a\"\\/\b\f\n\r\té😀",
		`"é😀"`:                                  "é😀",
		`[]`:                                    []any{},
		`[ 1 , [ ] ]`:                           []any{1.0, []any{}},
		`{}`:                                    map[string]any{},
		"{\n\"a\"\t: {\"\": null}\r}":           map[string]any{"a": map[string]any{"": nil}},
		`"\u0000"`:                              "\x00",
		`0e-400`:                                0.0,
	} {
		got, err := value.Parse([]byte(s))
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
}

func TestParse_Strict(t *testing.T) {
	for s, problem := range map[string]string{
		``: "ends", ` `: "ends", `tru`: "cannot begin", `True`: "cannot begin", `nul`: "cannot begin", `+1`: "cannot begin", `.5`: "cannot begin", `NaN`: "cannot begin", `'a'`: "cannot begin",
		`01`: "zero", `-01`: "zero", `-`: "digit", `1.`: "digit", `1e`: "digit", `1e+`: "digit", `1e999`: "range", `-1e999`: "range", `1e-400`: "range", `[9007199254740993]`: "exact",
		`"`: "does not end", `"a`: "does not end", `"\`: "escape", `"\x"`: "escape", `"\u12"`: "hexadecimal", `"\u12g4"`: "hexadecimal", "\"\n\"": "control", "\"\\n\t\"": "control",
		`"\ud800"`: "surrogate", `"\ud800\u0041"`: "surrogate", `"\udc00"`: "surrogate", `"\ud800\n"`: "surrogate", "\"\xff\"": "UTF-8", "\"\\n\xff\"": "UTF-8",
		`[`: "ends", `[1`: "','", `[1 2]`: "','", `[1,]`: "cannot begin", `[,1]`: "cannot begin",
		`{`: "member name", `{a:1}`: "member name", `{"a"}`: "':'", `{"a":1`: "','", `{"a":1,}`: "member name", `{"a":1,"a":2}`: "repeats", `{"a":1,"\u0061":2}`: "repeats",
		`1 2`: "follows", `{} x`: "follows", "\ufeff{}": "cannot begin",
		strings.Repeat("[", 2000): "nested deeper",
	} {
		_, err := value.Parse([]byte(s))
		require.ErrorContains(t, err, problem, s)
		var syntax *value.SyntaxError
		require.ErrorAs(t, err, &syntax)
		require.LessOrEqual(t, syntax.Offset, len(s))
	}
}

// The examples of RFC 8785, section 3.2 and appendix B.
func TestExpressions_MWLFunctions_CanonicalJSON(t *testing.T) {
	for want, v := range map[string]any{
		`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`: map[string]any{
			"numbers": []any{333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001}, "string": "€$\u000f\nA'B\"\\\\\"/", "literals": []any{nil, true, false},
		},
		"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"\u00f6\":\"Latin Small Letter O With Diaeresis\",\"\u20ac\":\"Euro Sign\",\"\U0001f600\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}": map[string]any{
			"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One", "\U0001f600": "Emoji: Grinning Face",
			"\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis",
		},
		`0`:                       math.Copysign(0, -1),
		`5e-324`:                  5e-324,
		`-5e-324`:                 -5e-324,
		`1.7976931348623157e+308`: math.MaxFloat64,
		`9007199254740992`:        9007199254740992.0,
		`295147905179352830000`:   295147905179352830000.0,
		`9.999999999999997e+22`:   9.999999999999997e22,
		`1e+23`:                   1e23,
		`999999999999999700000`:   999999999999999700000.0,
		`1e+21`:                   1e21,
		`9.999999999999997e-7`:    9.999999999999997e-7,
		`0.000001`:                0.000001,
		`333333333.3333332`:       333333333.3333332,
		"\"<>&\u2028\u2029\x7f\"": "<>&\u2028\u2029\x7f",
		`"\u0000\b\t\n\f\r"`:      "\x00\b\t\n\f\r",
		`[]`:                      []any{},
		`{}`:                      map[string]any{},
		`1.5`:                     1.5,
		`-1`:                      -1.0,
	} {
		require.Equal(t, want, value.JSON(v))
	}
}

// anyValue draws a value.
func anyValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.Float64().AsAny(),
		rapid.String().AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.Map(rapid.SliceOfN(anyValue(depth-1), 0, 4), func(s []any) any { return append([]any{}, s...) }),
			rapid.Map(rapid.MapOfN(rapid.String(), anyValue(depth-1), 0, 4), func(m map[string]any) any { return m }))
	}
	return rapid.OneOf(kinds...)
}

func TestValuesReadBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(3).Draw(t, "value")
		text := value.JSON(v)
		back, err := value.Parse([]byte(text))
		require.NoError(t, err, text)
		require.True(t, value.Equal(v, back), text)
		require.Equal(t, text, value.JSON(back))
		require.True(t, value.Equal(v, value.Copy(v)))
		again, err := value.Of(v)
		require.NoError(t, err)
		require.True(t, value.Equal(v, again))
	})
}

// Of accepts a number if and only if its digits are those of a double, exactly or in the shortest form.
func TestOf_KeepsEveryDigit(t *testing.T) {
	literals := rapid.OneOf(
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?`),
		rapid.StringMatching(`-?(90071992547409[0-9]{2}|1844674407370955[0-9]{4})(\.0{1,3})?(e[0-3])?`),
		rapid.Map(rapid.Float64(), func(f float64) string { return strconv.FormatFloat(f, 'e', -1, 64) }),
		rapid.Map(rapid.Float64Range(-1e22, 1e22), func(f float64) string { return strconv.FormatFloat(f, 'f', 30, 64) }),
		rapid.Map(rapid.Int64(), func(i int64) string { return strconv.FormatInt(i, 10) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		literal := literals.Draw(t, "literal")
		nearest, err := strconv.ParseFloat(literal, 64)
		require.NoError(t, err)
		named, ok := new(big.Rat).SetString(literal)
		require.True(t, ok)
		short, _ := new(big.Rat).SetString(strconv.FormatFloat(nearest, 'e', -1, 64))
		held := named.Cmp(short) == 0 || named.Cmp(new(big.Rat).SetFloat64(nearest)) == 0

		v, err := value.Of(json.RawMessage(literal))
		require.Equal(t, held, err == nil, literal)
		if held {
			require.Equal(t, any(nearest), v)
		}
	})
}

// A Go value and its JSON text make the same value, or are refused with the same words.
func TestOf_GoAndItsJSONAgree(t *testing.T) {
	numbers := rapid.OneOf(
		rapid.Int64().AsAny(), rapid.Uint64().AsAny(), rapid.Int64Range(1<<53-4, 1<<53+4).AsAny(), rapid.Uint64Range(1<<63-4, 1<<63+4).AsAny(),
		rapid.Float64().AsAny(), rapid.Float32().AsAny(), rapid.Float64Range(-1e22, 1e22).AsAny(), rapid.Map(rapid.Int64(), func(i int64) any { return named64(i) }),
		rapid.Map(rapid.StringMatching(`(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?(e[0-9]{1,3})?`), func(s string) any { return json.Number(s) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		n := numbers.Draw(t, "number")
		for _, v := range []any{n, []any{n}, map[string]any{"a": []any{n}}, struct{ A any }{n}, map[named]any{"a": &n}} {
			text, err := json.Marshal(v)
			require.NoError(t, err)
			want, refused := value.Of(v)
			got, err := value.Of(json.RawMessage(text))
			require.Equal(t, refused, err, "%s", text)
			require.Equal(t, want, got, "%s", text)
		}
	})
}

type named64 int64

func TestMeasure(t *testing.T) {
	small := map[string]any{"a": []any{1.0, "xyz", nil}}
	n, ok := value.Measure(small, 1000, 10)
	require.True(t, ok)
	require.InDelta(t, 420, n, 20)
	_, ok = value.Measure(small, 400, 10)
	require.False(t, ok)
	_, ok = value.Measure(small, 1000, 1)
	require.False(t, ok, "too deep")
	_, ok = value.Measure(small, 1000, 2)
	require.True(t, ok)

	var v any = "x"
	for range 200 {
		v = []any{v, v}
	}
	_, ok = value.Measure(v, 1<<20, 1000)
	require.False(t, ok, "shared parts count each time")
}

// A value takes no more memory than it is measured to take.
func TestMeasureIsMemory(t *testing.T) {
	for name, make := range map[string]func(i int) any{
		"number":        func(i int) any { return float64(i) },
		"empty object":  func(int) any { return map[string]any{} },
		"object":        func(i int) any { return map[string]any{"a": float64(i)} },
		"objects of 9":  func(int) any { return members(9) },
		"objects of 30": func(int) any { return members(30) },
		"object of 999": func(int) any { return members(999) },
		"empty array":   func(int) any { return []any{} },
		"array":         func(i int) any { return []any{float64(i), nil, true} },
		"text":          func(i int) any { return strings.Repeat("x", 100+i%2) },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 2000
			all := []any{}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range n {
				all = append(all, make(i))
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			measured, ok := value.Measure(all, 1<<40, 10)
			require.True(t, ok)
			require.LessOrEqual(t, float64(after.HeapAlloc)-float64(before.HeapAlloc), 1.25*float64(measured)+64<<10)
			var c value.Counter
			c.Add(all)
			require.Equal(t, measured, c.Bytes, "nothing is shared")
			c.Add([]any{all, all})
			require.Equal(t, measured+56, c.Bytes, "shared parts count once")
		})
	}
}

var names = func() (names [1000]string) {
	for i := range names {
		names[i] = "m" + strconv.Itoa(i)
	}
	return names
}()

func members(n int) map[string]any {
	m := map[string]any{}
	for i := range n {
		m[names[i]] = nil
	}
	return m
}

// FuzzParse compares with encoding/json, which takes more.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\ud83d\ude00",null,true,-1e5]}`, `{"a":1,"a":2}`, `"\ud800"`, `[[[]]]`, `01`, `1e999`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := value.Parse(data)
		if err != nil {
			return
		}
		var other any
		require.NoError(t, json.Unmarshal(data, &other))
		require.True(t, value.Equal(v, other), "%s", data)
		back, err := value.Parse(value.AppendJSON(nil, v))
		require.NoError(t, err)
		require.True(t, value.Equal(v, back))
	})
}

func TestExcerpt(t *testing.T) {
	for _, test := range []struct {
		v     any
		limit int
		want  string
	}{
		{nil, 4, "null"},
		{nil, 3, "nul…"},
		{"abc", 5, `"abc"`},
		{"abcd", 5, `"abcd…`},
		{"aéé", 3, `"a…`},
		{[]any{1.0, []any{2.0, 3.0}}, 9, "[1,[2,3]]"},
		{[]any{1.0, []any{2.0, 3.0}}, 6, "[1,[2,…"},
		{map[string]any{"b": 1.0, "a": "x"}, 8, `{"a":"x"…`},
	} {
		require.Equal(t, test.want, value.Excerpt(test.v, test.limit))
	}
	var doubled any = "x"
	for range 60 {
		doubled = []any{doubled, doubled}
	}
	require.Len(t, value.Excerpt(doubled, 100), 100+len("…"), "2^60 elements must not be written")
}

// An excerpt is the beginning of the canonical text, whatever the value.
func TestExcerpt_IsThePrefixOfTheText(t *testing.T) {
	scalar := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.Bool(), asAny[bool]), rapid.Map(rapid.Float64Range(-9, 9), asAny[float64]), rapid.Map(rapid.String(), asAny[string]))
	values := rapid.Deferred(func() *rapid.Generator[any] { return scalar })
	for range 3 {
		inner := values
		values = rapid.OneOf(scalar, rapid.Map(rapid.SliceOfN(inner, 0, 20), asAny[[]any]), rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 40), asAny[map[string]any]))
	}
	rapid.Check(t, func(t *rapid.T) {
		v, limit := values.Draw(t, "value"), rapid.IntRange(1, 100).Draw(t, "limit")
		require.Equal(t, value.Cut(value.JSON(v), limit), value.Excerpt(v, limit))
	})
}

func asAny[T any](v T) any { return v }

// An excerpt of a large object takes little memory.
func TestExcerpt_OfALargeObject(t *testing.T) {
	many := map[string]any{}
	for i := range 50_000 {
		many[strconv.Itoa(i)] = nil
	}
	for want, v := range map[string]any{
		`{"0":null,"1":null,"10…`: many,
		`{"xxxxxxxxxxxxxxxxxxxx…`: map[string]any{strings.Repeat("x", 1<<20): nil},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		excerpt := value.Excerpt(v, 22)
		runtime.ReadMemStats(&after)
		require.Equal(t, want, excerpt)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10))
	}
}

// A part of a text would keep the whole text in memory.
func TestCut_SharesNoMemory(t *testing.T) {
	text := strings.Repeat("x", 100)
	for limit, want := range map[int]string{10: "xxxxxxxxxx…", 100: text} {
		cut := value.Cut(text, limit)
		require.Equal(t, want, cut)
		require.NotSame(t, unsafe.StringData(text), unsafe.StringData(cut))
	}
}
