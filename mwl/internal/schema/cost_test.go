package schema_test

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/schema"
)

// numbers is an array of n numbers.
func numbers(n int) []any { return slices.Repeat([]any{5.0}, n) }

// members is an object of n members.
func members(n int) map[string]any {
	object := map[string]any{}
	for i := range n {
		object[fmt.Sprint("m", i)] = 1.0
	}
	return object
}

// parts is a JSON array of n copies of a schema.
func parts(n int, part string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + "]"
}

// Each of these takes long, although schema and arguments are small.
var costly = map[string]struct {
	schema string
	args   map[string]any
	valid  bool
}{
	"many parts, many items":  {`"a":{"items":{"allOf":` + parts(1000, `{"maximum":9}`) + `}}`, map[string]any{"a": numbers(300)}, true},
	"many violations":         {`"a":{"items":{"allOf":` + parts(1000, `{"maximum":0}`) + `}}`, map[string]any{"a": numbers(300)}, false},
	"many patterns":           {`"a":{"allOf":` + parts(500, `{"pattern":"x*y"}`) + `}`, map[string]any{"a": strings.Repeat("x", 10_000) + "y"}, true},
	"an enumeration":          {`"a":{"items":{"enum":` + parts(1000, "0") + `}}`, map[string]any{"a": numbers(300)}, false},
	"conditions":              {`"a":{"items":{"allOf":` + parts(300, `{"if":{"minimum":9},"else":{"minimum":1}}`) + `}}`, map[string]any{"a": numbers(300)}, true},
	"alternatives":            {`"a":{"items":{"anyOf":` + parts(1000, `{"maximum":0}`) + `}}`, map[string]any{"a": numbers(300)}, false},
	"lengths of a text":       {`"a":{"allOf":` + parts(1000, `{"minLength":1}`) + `}`, map[string]any{"a": strings.Repeat("x", 100_000)}, true},
	"a large pattern":         {`"a":{"items":{"pattern":"^(.{0,20}x){10,40}$"}}`, map[string]any{"a": slices.Repeat([]any{strings.Repeat("xy", 100)}, 300)}, false},
	"texts that are patterns": {`"a":{"items":{"format":"regex"}}`, map[string]any{"a": slices.Repeat([]any{strings.Repeat(`\pL{990}`, 50)}, 1000)}, true},
	"many instructions":       {`"a":{"items":{"pattern":"^(?:a?){1000}(?:b?){1000}$"}}`, map[string]any{"a": slices.Repeat([]any{"ab"}, 2000)}, true},
	"names":                   {`"a":{"propertyNames":{"maxLength":9}}`, map[string]any{"a": members(3000)}, true},
	"a schema":                {`"a":{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, map[string]any{"a": map[string]any{"allOf": slices.Repeat([]any{map[string]any{"minimum": 1.0}}, 6000)}}, true},
	"what is not evaluated":   {`"a":{"allOf":` + parts(500, `{}`) + `,"unevaluatedItems":true}`, map[string]any{"a": numbers(3000)}, true},
	"a recursion":             {`"a":{"$ref":"#/$defs/t"}},"$defs":{"t":{"items":{"$ref":"#/$defs/t"},"allOf":` + parts(1000, `{"not":{"const":7}}`) + `}`, map[string]any{"a": numbers(300)}, true},
}

var search = flag.Bool("search", false, "search as long as CI does")

func TestCost_GrowsWithTheWork(t *testing.T) {
	for name, c := range costly {
		t.Run(name, func(t *testing.T) {
			s := compile(t, `{"type":"object","properties":{`+c.schema+`}}`)
			require.Greater(t, s.Cost(c.args, math.MaxInt), 1_000_000)
			require.Greater(t, s.Cost(c.args, 1000), 1000)
			require.Less(t, s.Cost(c.args, 1000), 200_000, "it stops at the limit")
			if !*search {
				return
			}
			v := s.Validate(c.args)
			require.Equal(t, c.valid, v == nil, "%v", v)
			if v != nil {
				require.LessOrEqual(t, len(fmt.Sprint(v.Details())), 1<<20)
			}
		})
	}
	ordinary := compile(t, `{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"number","minimum":0}}}}}}`)
	item := map[string]any{"id": "x", "n": 1.0}
	require.Less(t, ordinary.Cost(map[string]any{"a": slices.Repeat([]any{item}, 1000)}, math.MaxInt), 100_000)
	require.Equal(t, 2, schema.Empty.Cost(map[string]any{"a": 1, "b": 2}, 10))
}

// A violation is described only as far as it is reported.
func TestViolation_DescriptionsAreShort(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for name, part := range map[string]string{
		"const": `{"const":"` + long + `"}`, "enum": `{"enum":["` + long + `"]}`, "pattern": `{"pattern":"^y"}`,
		"format": `{"format":"uuid"}`, "alternatives": `{"anyOf":` + parts(200, `{"const":"`+long[:500]+`"}`) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := compile(t, `{"type":"object","properties":{"a":{"items":`+part+`}}}`)
			v := s.Validate(map[string]any{"a": []any{long, "z", "z"}})
			require.NotNil(t, v)
			details := v.Details()
			delete(details, "value")
			require.Less(t, len(fmt.Sprint(details)), 10_000)
			require.Less(t, len(v.Message()), 1000)
		})
	}
}

// The search for a violation is bounded, and says what it has cost.
func TestValidate_SearchIsBounded(t *testing.T) {
	var chain strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&chain, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
	}
	s := compile(t, `{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`+chain.String()+`"d1000":{"items":{"type":"number"}}}}`)
	wrong := numbers(20_000)
	wrong[len(wrong)-1] = "x"
	args := map[string]any{"a": wrong}
	v := s.Validate(args)
	require.NotNil(t, v)
	require.Contains(t, v.Message(), "at /a: ")
	require.Positive(t, v.Searched())
	require.LessOrEqual(t, v.Searched(), max(2*s.Cost(args, math.MaxInt), 1_000_000))
	require.True(t, v.Places()[0].Referred)
	require.False(t, v.Places()[0].OfNames)
	require.Zero(t, compile(t, `{"type":"object"}`).Validate(map[string]any{"a": 1.0}).Searched())
}

func TestViolation_LongNames(t *testing.T) {
	name := strings.Repeat("n", 900_000)
	s := compile(t, `{"type":"object","additionalProperties":{"allOf":`+parts(480, `{"type":"null"}`)+`}}`)
	args := map[string]any{name: 1.0}
	require.Greater(t, s.Cost(args, math.MaxInt), 10_000)
	v := s.Validate(args)
	require.Less(t, len(v.Message()), 3000)
	details := v.Details()
	delete(details, "value")
	require.Less(t, len(fmt.Sprint(details)), 200_000)
}

// The library forgets where the name was, if members follow: then the place is the whole.
func TestViolation_OfANameHasItsPlace(t *testing.T) {
	s := compile(t, `{"type":"object","additionalProperties":{"additionalProperties":{"propertyNames":{"maxLength":3},"additionalProperties":{}}}}`)
	v := s.Validate(args(t, `{"a":{"b":{"toolong":{"d":1}}}}`))
	require.NotNil(t, v)
	require.Contains(t, []string{"", "/a/b"}, v.Details()["instancePath"])
	require.Contains(t, v.Message(), `the name "toolong" is not allowed: `)
}

func TestCompile_OtherMetaschemas(t *testing.T) {
	_, err := schema.Compile(parse(t, `{"type":"object","properties":{"a":{"$ref":"http://json-schema.org/draft-07/schema#"}}}`))
	require.ErrorContains(t, err, "refer to its own parts")
}

func TestCompile_DynamicReferences(t *testing.T) {
	s := compile(t, `{"type":"object","$defs":{"n":{"$dynamicAnchor":"N","type":"integer"}},"properties":{"a":{"items":{"$dynamicRef":"#N"}}}}`)
	many := numbers(1000)
	require.Nil(t, s.Validate(map[string]any{"a": many}))
	many[7] = "x"
	require.Contains(t, s.Validate(map[string]any{"a": many}).Message(), "is not valid")
	require.Contains(t, s.Validate(map[string]any{"a": []any{"x"}}).Message(), "at /a/0: ")

	_, err := schema.Compile(parse(t, `{"type":"object","$id":"https://parameters.invalid/r","$dynamicAnchor":"N","additionalProperties":true,
		"properties":{"a":{"$ref":"leaf"}},"$defs":{"leaf":{"$id":"leaf","$defs":{"x":{"$dynamicAnchor":"N"}},"allOf":[{"$dynamicRef":"#N"},{"$dynamicRef":"#N"}]}}}`))
	require.ErrorContains(t, err, "use $ref")
}

// A schema that leads to itself is refused by the library, at each value.
func TestCost_OfASchemaThatLeadsToItself(t *testing.T) {
	s := compile(t, `{"type":"object","additionalProperties":true,"properties":{"a":{"allOf":[{"$ref":"#/properties/a"}]}}}`)
	require.Less(t, s.Cost(map[string]any{"a": 1.0}, math.MaxInt), 100)
	require.NotNil(t, s.Validate(map[string]any{"a": 1.0}))
}

// Among many values that are valid, the one that is not is found.
func TestValidate_FindsTheViolationAmongMany(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"a/b":{"allOf":[{"$ref":"#/$defs/list"}]}},
		"$defs":{"list":{"items":{"type":"object","required":["n"],"properties":{"n":{"type":"array","prefixItems":[{}],"items":{"type":"number"}}}}}}}`)
	items := []any{}
	for range 1000 {
		items = append(items, map[string]any{"n": numbers(3)})
	}
	require.Nil(t, s.Validate(map[string]any{"a/b": items}))
	items[700] = map[string]any{"n": []any{1.0, 2.0, "three"}}
	v := s.Validate(map[string]any{"a/b": items})
	require.NotNil(t, v)
	require.Equal(t, map[string]any{
		"instancePath": "/a~1b/700/n/2", "schemaPath": "/$defs/list/items/properties/n/items/type",
		"message": "it is a string, and must be a number", "value": "three",
	}, v.Details())
	items[700] = map[string]any{}
	require.Contains(t, s.Validate(map[string]any{"a/b": items}).Message(), `at /a~1b/700: "n" is required and missing`)

	together := compile(t, `{"type":"object","properties":{"a":{"uniqueItems":true,"maxItems":3000}}}`)
	require.Contains(t, together.Validate(map[string]any{"a": numbers(2000)}).Message(), "at /a: an array of this size is not valid")
	alone := compile(t, `{"type":"object","not":{"required":["a"]},"properties":{"a":{"items":{"type":"number"}}}}`)
	require.Contains(t, alone.Validate(map[string]any{"a": numbers(2000)}).Message(), "an object of this size is not valid")
}
