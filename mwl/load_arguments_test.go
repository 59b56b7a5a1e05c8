package mwl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// A literal argument is refused if it is not valid whatever the expressions beside it compute, and
// only then.
func TestLoad_ArgumentsBesideExpressions(t *testing.T) {
	const kinds = `"if": {"properties": {"kind": {"const": "refund"}}}, "then": {"properties": {"amount": {"maximum": 0}}}, "else": {"properties": {"amount": {"minimum": 0}}}`
	for name, c := range map[string]struct {
		parameters, with string
		refused          string // pointer below with
	}{
		"a condition on an expression":      {`"properties": {"kind": {}, "amount": {}}, ` + kinds, `{"kind": "{{ frame.input }}", "amount": -5}`, ""},
		"a condition on a literal":          {`"properties": {"a": {` + kinds + `}, "b": {}}`, `{"a": {"kind": "x", "amount": -5}, "b": "{{ 1 }}"}`, "/a/amount"},
		"a condition beside an expression":  {`"properties": {"a": {` + kinds + `}}`, `{"a": {"kind": "x", "amount": -5, "more": "{{ 1 }}"}}`, ""},
		"a condition behind a reference":    {`"properties": {"a": {"$ref": "#/$defs/a"}, "b": {}}, "$defs": {"a": {"minimum": 1}}`, `{"a": 0, "b": "{{ 1 }}"}`, ""},
		"alternatives":                      {`"properties": {"a": {"anyOf": [{"required": ["x"], "properties": {"x": {"const": 1}}}, {"type": "null"}]}}`, `{"a": {"x": "{{ 1 }}"}}`, ""},
		"a misspelt name in an item":        {`"properties": {"a": {"items": {"properties": {"backoff": {}, "n": {}}, "additionalProperties": false}}}`, `{"a": [{"n": "{{ 1 }}", "backof": 1}]}`, "/a/0"},
		"a missing name in an item":         {`"properties": {"a": {"items": {"required": ["m"]}}}`, `{"a": [{"n": "{{ 1 }}"}]}`, "/a/0"},
		"a name that needs another":         {`"properties": {"a": {"dependentRequired": {"n": ["m"]}}}`, `{"a": {"n": "{{ 1 }}"}}`, "/a"},
		"too few items":                     {`"properties": {"a": {"minItems": 2}}`, `{"a": ["{{ 1 }}"]}`, "/a"},
		"items that may be alike":           {`"properties": {"a": {"uniqueItems": true}}`, `{"a": ["{{ 1 }}", "{{ 2 }}"]}`, ""},
		"an enumeration around":             {`"properties": {"a": {"enum": [[1]]}}`, `{"a": ["{{ 1 }}"]}`, ""},
		"a literal beside an expression":    {`"properties": {"a": {"items": {"properties": {"n": {"minimum": 1}}}}}`, `{"a": [{"m": "{{ 1 }}", "n": 0}]}`, "/a/0/n"},
		"an expression of a wrong type":     {`"properties": {"a": {"items": {"type": "number"}}}`, `{"a": ["{{ 'x' }}"]}`, ""},
		"a part of an expression's value":   {`"properties": {"a": {"required": ["m"]}}`, `{"a": "{{ {} }}"}`, ""},
		"a property that is called type":    {`"properties": {"type": {"enum": [[1]]}}`, `{"type": ["{{ 1 }}"]}`, ""},
		"a property that is never allowed":  {`"properties": {"a": false}`, `{"a": 1}`, "/a"},
		"what is not evaluated":             {`"properties": {"a": {"properties": {"kind": {}}, "if": {"properties": {"kind": {"const": "card"}}}, "then": {"properties": {"number": {}}}, "unevaluatedProperties": false}}`, `{"a": {"kind": "{{ 'card' }}", "number": "1"}}`, ""},
		"a condition and a reference":       {`"properties": {"leaf": {"required": ["n"]}, "a": {"if": {"properties": {"kind": {"const": "card"}}}, "else": {"$ref": "#/properties/leaf"}}}`, `{"a": {"kind": "{{ 'card' }}"}}`, ""},
		"a reference to a property inside":  {`"properties": {"a": {"if": {"properties": {"kind": {"const": "card"}}}, "else": {"properties": {"a": {"$ref": "#/properties/b"}}}}, "b": {"minimum": 1}}`, `{"a": {"kind": "{{ 'card' }}", "a": 0}}`, ""},
		"a reference to additional names":   {`"additionalProperties": {"type": "number", "minimum": 1}, "properties": {"kind": {}, "limit": {}}, "if": {"properties": {"kind": {"const": "card"}}}, "else": {"properties": {"limit": {"$ref": "#/additionalProperties"}}}`, `{"kind": "{{ 'card' }}", "limit": 0}`, ""},
		"a property named as a keyword":     {`"properties": {"dependentRequired": {"enum": [[1]]}}`, `{"dependentRequired": ["{{ 1 }}"]}`, ""},
		"a name that excludes another":      {`"properties": {"a": {}, "b": {}, "c": {}}, "dependentSchemas": {"a": {"properties": {"b": false}}}`, `{"a": 1, "b": 1, "c": "{{ 1 }}"}`, "/b"},
		"a keyword on the way of all names": {`"properties": {"a": {}}, "patternProperties": {"^x": {"allOf": [{"prefixItems": [{"minimum": 1}]}]}}`, `{"a": "{{ 1 }}", "x": [0]}`, "/x/0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "c", "steps": {
				"c": {"action": "Call", "call": {"flow": "f", "with": ` + c.with + `}, "next": "r"}, "r": {"action": "Return"}},
				"flows": {"f": {"entrypoint": "r", "steps": {"r": {"action": "Return"}}, "parameters": {"type": "object", ` + c.parameters + `}}}}`))
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			var refused *mwl.DefinitionError
			require.ErrorAs(t, err, &refused)
			require.Len(t, refused.Problems, 1)
			require.Equal(t, "/steps/c/call/with"+c.refused, refused.Problems[0].Pointer)
		})
	}
}

func TestLoad_AMisspeltMemberOfAPolicyBesideAnExpression(t *testing.T) {
	_, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "r", "steps": {"r": {"action": "Return"}},
		"middleware": [{"provider": "mwl:provider.middleware/mwl/retry/v1", "onEntry": {"with": {"policies": [
			{"match": {"codes": ["A"]}, "attempts": "{{ 3.0 }}", "backof": {"initial": "PT1S"}}, {"match": {"codes": ["B"]}, "attempts": 0}]}}}]}`))
	require.ErrorContains(t, err, `"backof" is not declared: did you mean "backoff"?`)
	require.ErrorContains(t, err, "/middleware/0/onEntry/with/policies/1/attempts")
}
