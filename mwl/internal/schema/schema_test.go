package schema_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/value"
)

func parse(t testing.TB, text string) any {
	v, err := value.Parse([]byte(text))
	require.NoError(t, err, text)
	return v
}

func compile(t testing.TB, text string) *schema.Schema {
	s, err := schema.Compile(parse(t, text))
	require.NoError(t, err, text)
	return s
}

func args(t testing.TB, text string) map[string]any { return parse(t, text).(map[string]any) }

func TestFlowObject_Parameters_ClosedByDefault(t *testing.T) {
	for _, tc := range []struct {
		schema, args string
		valid        bool
	}{
		{`{"type":"object"}`, `{}`, true},
		{`{"type":"object"}`, `{"a":1}`, false},
		{`{"type":"object","properties":{"a":{}}}`, `{"a":1}`, true},
		{`{"type":"object","properties":{"a":{}}}`, `{"a":1,"b":2}`, false},
		{`{"type":"object","additionalProperties":true}`, `{"b":2}`, true},
		{`{"type":"object","additionalProperties":false}`, `{"b":2}`, false},
		{`{"type":"object","additionalProperties":{"type":"string"}}`, `{"b":"x"}`, true},
		{`{"type":"object","additionalProperties":{"type":"string"}}`, `{"b":2}`, false},
		{`{"type":"object","patternProperties":{"^x-":{}}}`, `{"x-a":2}`, true},
		{`{"type":"object","patternProperties":{"^x-":{}}}`, `{"y":2}`, false},
		{`{"type":"object","properties":{"a":{"type":"object"}}}`, `{"a":{"anything":1}}`, true},
		{`{"type":"object","properties":{"a":{"type":"object","additionalProperties":false}}}`, `{"a":{"anything":1}}`, false},
	} {
		v := compile(t, tc.schema).Validate(args(t, tc.args))
		require.Equal(t, tc.valid, v == nil, "%s %s: %v", tc.schema, tc.args, v)
	}
}

func TestFlowObject_Parameters_CompileLeavesTheSchemaAsItIs(t *testing.T) {
	doc := parse(t, `{"type":"object","properties":{"a":{}}}`)
	_, err := schema.Compile(doc)
	require.NoError(t, err)
	require.NotContains(t, doc, "additionalProperties")
}

func TestFlowObject_Parameters_NoneDeclaredTakesNone(t *testing.T) {
	require.Nil(t, schema.Empty.Validate(nil))
	require.Nil(t, schema.Empty.Validate(map[string]any{}))
	v := schema.Empty.Validate(map[string]any{"b": 1.0, "a": 2.0})
	require.NotNil(t, v)
	require.Contains(t, v.Message(), `"a", "b"`)
	require.Equal(t, map[string]any{"b": 1.0, "a": 2.0}, v.Details()["value"])
	require.Equal(t, "/additionalProperties", v.Details()["schemaPath"])
	bound := schema.Empty.Bind(nil)
	require.NotNil(t, bound)
	require.Empty(t, bound)
	require.Empty(t, schema.Empty.Defaults())
}

func TestFlowObject_Parameters_DefaultsLieUnderTheArguments(t *testing.T) {
	s := compile(t, `{"type":"object","required":["a"],"properties":{"a":{"type":"number"},"b":{"type":"string","default":"x"},"c":{"default":null},"d":{"type":"number","default":"not validated"},"e":{}}}`)
	bound := s.Bind(args(t, `{"a":1,"b":"y"}`))
	require.Equal(t, map[string]any{"a": 1.0, "b": "y", "c": nil, "d": "not validated"}, bound)
	bound["b"] = "changed"
	bound["c"] = "changed"
	require.Equal(t, map[string]any{"b": "x", "c": nil, "d": "not validated"}, s.Defaults())

	v := s.Validate(args(t, `{"a":1,"b":null}`))
	require.Contains(t, v.Message(), "at /b: it is null, and must be a string")
}

func TestFlowObject_Parameters_RequiredIsCheckedBeforeDefaults(t *testing.T) {
	s := compile(t, `{"type":"object","required":["a"],"properties":{"a":{"default":1}}}`)
	v := s.Validate(nil)
	require.NotNil(t, v)
	require.Contains(t, v.Message(), `"a" is required and missing`)
}

func TestFlowObject_Parameters_WhatIsNoParameterSchema(t *testing.T) {
	for text, want := range map[string]string{
		`true`:                              "a boolean, not an object",
		`null`:                              "null, not an object",
		`[]`:                                "an array, not an object",
		`"{{ vars.schema }}"`:               "a string, not an object",
		`{}`:                                "/type: it must be \"object\"",
		`{"type":"string"}`:                 "/type",
		`{"type":["object","null"]}`:        "/type",
		`{"properties":{}}`:                 "/type",
		`{"type":"object","properties":[]}`: "/properties",
		`{"type":"object","properties":{"a":{"type":"strin"}}}`:                                      "/properties/a/type",
		`{"type":"object","properties":{"a":{"type":5}}}`:                                            "/properties/a/type",
		`{"type":"object","properties":{"a":{"minLength":-1}}}`:                                      "/properties/a/minLength",
		`{"type":"object","required":"a"}`:                                                           "/required",
		`{"type":"object","properties":{"a":{"multipleOf":0}}}`:                                      "/properties/a/multipleOf",
		`{"type":"object","properties":{"a":{"pattern":"("}}}`:                                       "pattern",
		`{"type":"object","properties":{"a":{"pattern":"(?=x)"}}}`:                                   "RE2",
		`{"type":"object","patternProperties":{"(?!x)":{}}}`:                                         "RE2",
		`{"type":"object","properties":{"a":{"format":"phone"}}}`:                                    `/properties/a/format: the format "phone" is unknown`,
		`{"type":"object","properties":{"a":{"items":{"anyOf":[{"format":"int32"}]}}}}`:              "/properties/a/items/anyOf/0/format",
		`{"type":"object","$schema":"http://json-schema.org/draft-07/schema#"}`:                      "/$schema: the dialect is always",
		`{"type":"object","$defs":{"x":{"$schema":"https://json-schema.org/draft/2019-09/schema"}}}`: "/$defs/x/$schema",
		`{"type":"object","$ref":"#/$defs/missing"}`:                                                 "leads to /$defs/missing",
		`{"type":"object","properties":{"a":{"$ref":"https://example.com/schema"}}}`:                 "refers to https://example.com/schema, and a schema may refer only to its own parts",
		`{"type":"object","properties":{"a":{"$ref":"other.json"}}}`:                                 "refer only to its own parts",
		`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`:                         "refer only to its own parts",
		`{"type":"object","$id":"file:///etc/passwd","properties":{"a":{"$ref":"hosts"}}}`:           "refer only to its own parts",
		`{"type":"object","properties":{"a":{"$dynamicRef":"https://example.com/x#y"}}}`:             "refer only to its own parts",
		`{"type":"object","$id":"https://example.com/a#b"}`:                                          "$id",
	} {
		s, err := schema.Compile(parse(t, text))
		require.Nil(t, s, text)
		var e *schema.Error
		require.ErrorAs(t, err, &e, text)
		require.Contains(t, e.Error(), want, text)
		require.NotEmpty(t, e.Remedy, text)
	}
}

func TestFlowObject_Parameters_NothingIsReadFromOutside(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.json")
	require.NoError(t, os.WriteFile(secret, []byte(`{"type":"hidden"}`), 0o600))
	_, err := schema.Compile(parse(t, `{"type":"object","properties":{"a":{"$ref":"file://`+secret+`"}}}`))
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hidden")
}

func TestDefinitionFormat_SchemaDocuments_Dialect2020(t *testing.T) {
	for _, tc := range []struct {
		schema, args string
		valid        bool
	}{
		{`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`, `{}`, true},
		{`{"type":"object","properties":{"a":{"prefixItems":[{"type":"string"}],"items":false}}}`, `{"a":["x"]}`, true},
		{`{"type":"object","properties":{"a":{"prefixItems":[{"type":"string"}],"items":false}}}`, `{"a":["x",1]}`, false},
		{`{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"a":5.0}`, true},
		{`{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"a":5.5}`, false},
		{`{"type":"object","properties":{"a":{"type":"number","minimum":1,"exclusiveMaximum":1e300}}}`, `{"a":1e299}`, true},
		{`{"type":"object","properties":{"a":{"type":"number","minimum":1}}}`, `{"a":0.5}`, false},
		{`{"type":"object","properties":{"a":{"const":{"b":[1,null]}}}}`, `{"a":{"b":[1.0,null]}}`, true},
		{`{"type":"object","properties":{"a":{"enum":["x",1]}}}`, `{"a":1}`, true},
		{`{"type":"object","properties":{"a":{"enum":["x",1]}}}`, `{"a":2}`, false},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"^\\d+$","minLength":2}}}`, `{"a":"12"}`, true},
		{`{"type":"object","properties":{"a":{"minLength":2}}}`, `{"a":"é"}`, false},
		{`{"type":"object","$defs":{"n":{"type":"number"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`, `{"a":1}`, true},
		{`{"type":"object","$defs":{"n":{"type":"number"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`, `{"a":"x"}`, false},
		{`{"type":"object","$defs":{"n":{"$anchor":"num","type":"number"}},"properties":{"a":{"$ref":"#num"}}}`, `{"a":"x"}`, false},
		{`{"type":"object","$id":"https://example.com/a","$defs":{"n":{"$id":"n","type":"number"}},"properties":{"a":{"$ref":"n"}}}`, `{"a":1}`, true},
		{`{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"number"}}}`, `{"next":{"next":{"v":1}}}`, true},
		{`{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"number"}}}`, `{"next":{"next":{"v":"x"}}}`, false},
		{`{"type":"object","properties":{"s":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, `{"s":{"type":"object"}}`, true},
		{`{"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}}`, `{"a":1}`, false},
		{`{"type":"object","minProperties":1,"additionalProperties":true}`, `{}`, false},
		{`{"type":"object","properties":{"a":false}}`, `{"a":1}`, false},
		{`{"type":"object","properties":{"a":{"not":{"const":"success"}}}}`, `{"a":"success"}`, false},
		{`{"type":"object","properties":{"a":{"uniqueItems":true}}}`, `{"a":[1,1.0]}`, false},
		{`{"type":"object","properties":{"format":{"const":"phone"},"$schema":{"type":"string"}}}`, `{"format":"phone","$schema":"x"}`, true},
	} {
		v := compile(t, tc.schema).Validate(args(t, tc.args))
		require.Equal(t, tc.valid, v == nil, "%s %s: %v", tc.schema, tc.args, v)
	}
}

func TestFlowObject_ParameterValidationFailed_FormatsAreAsserted(t *testing.T) {
	for format, values := range map[string]struct{ good, bad []string }{
		"duration":              {[]string{"PT30S", "PT1.5S", "-PT30S", "P1W2D", "PT0S"}, []string{"not-a-duration", "", "30s", "P"}},
		"date-time":             {[]string{"2024-01-15T09:30:00Z", "2024-01-15t09:30:00.5+02:00", "2016-12-31T23:59:60Z"}, []string{"2024-01-15", "x", "2024-02-30T00:00:00Z"}},
		"date":                  {[]string{"2024-01-15"}, []string{"2024-13-15"}},
		"time":                  {[]string{"09:30:00Z"}, []string{"9:30"}},
		"email":                 {[]string{"a@example.com"}, []string{"a"}},
		"idn-email":             {[]string{"ä@exämple.com"}, []string{"ä", "@x", "a b@x.y"}},
		"hostname":              {[]string{"example.com"}, []string{"-x"}},
		"idn-hostname":          {[]string{"exämple.com", "example.com."}, []string{"-x", "a..b", "a b"}},
		"ipv4":                  {[]string{"127.0.0.1"}, []string{"256.0.0.1"}},
		"ipv6":                  {[]string{"::1"}, []string{"127.0.0.1"}},
		"uri":                   {[]string{"https://example.com/a"}, []string{"/a"}},
		"uri-reference":         {[]string{"/a"}, []string{"\\a"}},
		"iri":                   {[]string{"https://example.com/ä"}, []string{"/a"}},
		"iri-reference":         {[]string{"/ä"}, []string{"\\a"}},
		"uri-template":          {[]string{"/a/{b}"}, []string{"/a/{b"}},
		"uuid":                  {[]string{"123e4567-e89b-12d3-a456-426614174000"}, []string{"x"}},
		"json-pointer":          {[]string{"/a/0"}, []string{"a"}},
		"relative-json-pointer": {[]string{"1/a"}, []string{"/a"}},
		"regex":                 {[]string{"^a+$"}, []string{"("}},
	} {
		s := compile(t, `{"type":"object","properties":{"a":{"format":"`+format+`"}}}`)
		for _, good := range values.good {
			require.Nil(t, s.Validate(map[string]any{"a": good}), "%s %q", format, good)
		}
		for _, bad := range values.bad {
			v := s.Validate(map[string]any{"a": bad})
			require.NotNil(t, v, "%s %q", format, bad)
			require.Equal(t, "/properties/a/format", v.Details()["schemaPath"])
		}
		require.Nil(t, s.Validate(map[string]any{"a": 5.0}), "a format says nothing of another type")
	}
	v := compile(t, `{"type":"object","properties":{"a":{"format":"duration"}}}`).Validate(map[string]any{"a": "not-a-duration"})
	require.Equal(t, `the arguments are not valid: at /a: "not-a-duration" is not an ISO 8601 duration: it does not begin with P; write one like PT30S or P1DT12H`, v.Message())
}

func TestFlowObject_ParameterValidationFailed_Details(t *testing.T) {
	s := compile(t, `{"type":"object","required":["z"],"properties":{"z":{},"a":{"type":"array","items":{"type":"string"}},"b/c":{"anyOf":[{"type":"null"},{"type":"object","required":["code"]}]}}}`)
	v := s.Validate(args(t, `{"z":1,"a":["x",5]}`))
	require.Equal(t, map[string]any{
		"schemaPath": "/properties/a/items/type", "instancePath": "/a/1", "value": 5.0, "message": "it is a number, and must be a string",
	}, v.Details())
	require.Equal(t, "the arguments are not valid: at /a/1: it is a number, and must be a string", v.Message())
	require.Equal(t, v.Message(), v.Error())

	v = s.Validate(args(t, `{"a":["x",5],"b/c":{},"d":1}`))
	details := v.Details()
	require.Empty(t, details["instancePath"])
	require.Equal(t, `"d" is not declared: remove it, or declare it in the schema`, details["message"])
	require.Equal(t, args(t, `{"a":["x",5],"b/c":{},"d":1}`), details["value"])
	var seen []string
	for _, e := range details["errors"].([]any) {
		e := e.(map[string]any)
		seen = append(seen, e["instancePath"].(string)+" "+e["schemaPath"].(string)+" "+e["message"].(string))
	}
	require.Equal(t, []string{
		` /additionalProperties "d" is not declared: remove it, or declare it in the schema`,
		` /required "z" is required and missing`,
		`/a/1 /properties/a/items/type it is a number, and must be a string`,
		`/b~1c /properties/b~1c/anyOf none of the alternatives fits: it is an object, and must be null; or "code" is required and missing`,
	}, seen)
	require.Contains(t, v.Message(), "(and 3 more)")
	_, err := value.Of(details)
	require.NoError(t, err, "details are a value")

	many := map[string]any{}
	for i := range 100 {
		many["a"] = append(append([]any{}, many["a"] == nil), make([]any, i)...)
	}
	v = s.Validate(map[string]any{"z": nil, "a": many["a"]})
	require.Len(t, v.Details()["errors"], 20)
}

func TestValidateIsSafeForConcurrentUse(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"a":{"format":"duration"},"b":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number","minimum":1}}}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if s.Validate(map[string]any{"a": "PT1S", "b": 1.0}) != nil || !strings.Contains(s.Validate(map[string]any{"b": 0.5}).Message(), "/b") {
					t.Error("the verdict is wrong")
					return
				}
			}
		})
	}
	wg.Wait()
}

// FuzzCompile: whatever is given as a schema compiles or is refused with a place and a reason, and a compiled one gives a verdict on anything.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"type":"string","format":"duration","default":"PT1S"}},"required":["a"]}`,
		`{"type":"object","$defs":{"n":{"$anchor":"x"}},"properties":{"a":{"$ref":"#x"},"b":{"$ref":"#"}}}`,
		`{"type":"object","$id":"https://example.com/x","properties":{"a":{"$ref":"y"}}}`,
		`{"type":"object","patternProperties":{"^(a|b)*$":{"anyOf":[{"type":"null"},{"minimum":1e300}]}},"unevaluatedProperties":false}`,
		`{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","$dynamicAnchor":"a","properties":{"a":{"$dynamicRef":"#a"}}}`,
	} {
		f.Add([]byte(s), []byte(`{"a":{"b":[1,"x",null]},"b":5}`))
	}
	f.Fuzz(func(t *testing.T, doc, instance []byte) {
		d, err := value.Parse(doc)
		if err != nil {
			return
		}
		s, err := schema.Compile(d)
		if err != nil {
			var e *schema.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Text)
			return
		}
		v, err := value.Parse(instance)
		object, ok := v.(map[string]any)
		if err != nil || !ok {
			return
		}
		if violation := s.Validate(object); violation != nil {
			require.NotEmpty(t, violation.Message())
			require.Equal(t, "string", value.Kind(violation.Details()["schemaPath"]))
		}
	})
}

func BenchmarkValidate(b *testing.B) {
	s := compile(b, `{"type":"object","required":["a"],"properties":{"a":{"type":"string","format":"duration"},"b":{"type":"number","minimum":1}}}`)
	v := args(b, `{"a":"PT1S","b":5}`)
	b.ReportAllocs()
	for b.Loop() {
		if s.Validate(v) != nil {
			b.Fatal("valid")
		}
	}
}

// References share parts; what takes exponential time is refused.
func TestWorkIsBounded(t *testing.T) {
	var doubling strings.Builder
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	for _, c := range []struct{ schema, refused string }{
		{`{"type":"object","$defs":{` + doubling.String() + `"d40":{}},"properties":{"a":{"$ref":"#/$defs/d0"}}}`, "more than 10000 parts"},
		{`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}}}`, "exponential"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"patternProperties":{"a":{"$ref":"#"}}}`, "exponential"},
		{`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"allOf":[{"$ref":"#/$defs/y"},{"$ref":"#/$defs/y"}]},"y":{"items":{"$ref":"#/$defs/x"}}}}`, "exponential"},
		{`{"type":"object","properties":{"a":{"allOf":[{"$ref":"#"},{"properties":{"a":{"$ref":"#"}}}]}}}`, "exponential"},
		{`{"type":"object","properties":{"a":{"pattern":"` + strings.Repeat(".{1000}", 100) + `"}}}`, "pattern is too large"},
		{`{"type":"object","patternProperties":{"` + strings.Repeat(".{1000}", 100) + `":{}}}`, "pattern is too large"},
		{`{"type":"object","properties":{"left":{"$ref":"#"},"right":{"$ref":"#"},"v":{"$ref":"#/$defs/n"},"w":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number"}}}`, ""},
		{`{"type":"object","properties":{"s":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, ""},
	} {
		_, err := schema.Compile(parse(t, c.schema))
		if c.refused == "" {
			require.NoError(t, err, c.schema)
			continue
		}
		require.ErrorContains(t, err, c.refused, c.schema)
	}
}

func TestCompile_FindsTheSameOffenceEachTime(t *testing.T) {
	twice := `{"anyOf":[{"$ref":"#/$defs/%[1]s"},{"$ref":"#/$defs/%[1]s"}]}`
	for _, keyword := range []string{"properties", "patternProperties", "dependentSchemas"} {
		var parts, defs []string
		for _, name := range []string{"a", "b", "c", "d"} {
			parts = append(parts, fmt.Sprintf(`"%[1]s":{"$ref":"#/$defs/%[1]s"}`, name))
			defs = append(defs, fmt.Sprintf(`"%[1]s":{"properties":{"x":%[2]s}}`, name, fmt.Sprintf(twice, name)))
		}
		text := fmt.Sprintf(`{"type":"object","%s":{%s},"$defs":{%s}}`, keyword, strings.Join(parts, ","), strings.Join(defs, ","))
		for range 20 {
			_, err := schema.Compile(parse(t, text))
			var refused *schema.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "/$defs/a", refused.Pointer, keyword)
		}
	}
}

func TestViolation_TextsNameTheRemedy(t *testing.T) {
	for _, c := range []struct{ schema, args, message string }{
		{`{"properties":{"a":{"type":["integer","null"]}}}`, `{"a":"x"}`, "at /a: it is a string, and must be null or an integer"},
		{`{"properties":{"a":{"not":{"const":1}}}}`, `{"a":1}`, "at /a: it is what the schema excludes: write another value"},
		{`{"properties":{"a":{"pattern":"^x$"}}}`, `{"a":"y"}`, `at /a: "y" does not match the pattern ^x$: write a text that does`},
		{`{"properties":{"a":false}}`, `{"a":1}`, "at /a: nothing is allowed here: remove it"},
		{
			`{"properties":{"a":{},"b":{}},"dependentSchemas":{"a":{"properties":{"b":false}}}}`, `{"a":1,"b":2}`,
			`at /b: "a" and "b" exclude one another: remove one of the two`,
		},
	} {
		v := compile(t, `{"type":"object",`+c.schema[1:]).Validate(args(t, c.args))
		require.NotNil(t, v, c.schema)
		require.Equal(t, "the arguments are not valid: "+c.message, v.Message())
	}
}
