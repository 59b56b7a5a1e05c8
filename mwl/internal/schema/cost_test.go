package schema_test

import (
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
	"many parts, many items": {`"a":{"items":{"allOf":` + parts(1000, `{"maximum":9}`) + `}}`, map[string]any{"a": numbers(300)}, true},
	"many violations":        {`"a":{"items":{"allOf":` + parts(1000, `{"maximum":0}`) + `}}`, map[string]any{"a": numbers(300)}, false},
	"many patterns":          {`"a":{"allOf":` + parts(500, `{"pattern":"x*y"}`) + `}`, map[string]any{"a": strings.Repeat("x", 10_000) + "y"}, true},
	"an enumeration":         {`"a":{"items":{"enum":` + parts(1000, "0") + `}}`, map[string]any{"a": numbers(300)}, false},
	"conditions":             {`"a":{"items":{"allOf":` + parts(300, `{"if":{"minimum":9},"else":{"minimum":1}}`) + `}}`, map[string]any{"a": numbers(300)}, true},
	"alternatives":           {`"a":{"items":{"anyOf":` + parts(1000, `{"maximum":0}`) + `}}`, map[string]any{"a": numbers(300)}, false},
	"a recursion":            {`"a":{"$ref":"#/$defs/t"}},"$defs":{"t":{"items":{"$ref":"#/$defs/t"},"allOf":` + parts(1000, `{"not":{"const":7}}`) + `}`, map[string]any{"a": numbers(300)}, true},
}

func TestCost_GrowsWithTheWork(t *testing.T) {
	for name, c := range costly {
		t.Run(name, func(t *testing.T) {
			s := compile(t, `{"type":"object","properties":{`+c.schema+`}}`)
			require.Greater(t, s.Cost(c.args, math.MaxInt), 1_000_000)
			require.Greater(t, s.Cost(c.args, 1000), 1000)
			require.Less(t, s.Cost(c.args, 1000), 100_000, "it stops at the limit")
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
