// Package schema validates arguments against the parameter schemas of the language: JSON Schema 2020-12, closed at the top unless it says otherwise, with formats that are
// asserted and no reference to anything outside of the schema but the metaschema.
package schema

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/surebus/eventbus/mwl/internal/value"
)

// Dialect is the only dialect in which a schema may be written.
const Dialect = "https://json-schema.org/draft/2020-12/schema"

// Schema is a compiled parameter schema. It is immutable and safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
	negated  *jsonschema.Schema // "not" of it
	facts    facts
	source   map[string]any
	defaults map[string]any
}

// Empty is the schema of what declares no parameters: it takes no argument.
var Empty = &Schema{}

// Error says why a parameter schema is not acceptable.
type Error struct {
	// Pointer leads to the offence in the schema, as a JSON pointer; "" is the schema itself.
	Pointer string
	// Text is the offence, and Remedy what to do about it.
	Text, Remedy string
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return fmt.Sprintf("the parameter schema: %s: %s", e.Text, e.Remedy)
	}
	return fmt.Sprintf("the parameter schema, at %s: %s: %s", e.Pointer, e.Text, e.Remedy)
}

// base is where a schema without an $id stands, and negation where its "not" does. The name can belong to nobody.
const (
	base     = "https://parameters.invalid/schema"
	negation = "https://parameters.invalid/not"
)

// Compile compiles a schema from its JSON value, which it keeps. The error is an *Error.
func Compile(doc any) (*Schema, error) {
	object, ok := doc.(map[string]any)
	if !ok {
		return nil, &Error{"", fmt.Sprintf("it is %s, not an object", article(doc)), `write one with "type": "object" and "properties"`}
	}
	if object["type"] != "object" {
		return nil, &Error{"/type", `it must be "object"`, "write that: each property is a named parameter"}
	}
	if err := walk(object, "", inspect); err != nil {
		return nil, err
	}
	if _, written := object["additionalProperties"]; !written {
		object = maps.Clone(object)
		object["additionalProperties"] = false
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(outside{})
	c.UseRegexpEngine(newPattern)
	for _, f := range formats {
		c.RegisterFormat(f)
	}
	if err := c.AddResource(base, object); err != nil {
		return nil, compileError(err, object)
	}
	compiled, err := c.Compile(base)
	if err != nil {
		return nil, compileError(err, object)
	}
	f, refused := inspectWork(compiled)
	if refused != nil {
		return nil, refused
	}
	if f.ownDynamic && hasInnerID(object) {
		return nil, &Error{"", "a $dynamicRef together with an $id below the root may lead anywhere, and take exponential time", "use $ref"}
	}
	if err := c.AddResource(negation, map[string]any{"not": map[string]any{"$ref": base}}); err != nil {
		return nil, compileError(err, object)
	}
	negated, err := c.Compile(negation)
	if err != nil {
		return nil, compileError(err, object)
	}
	return &Schema{compiled: compiled, negated: negated, facts: f, source: object, defaults: defaultsOf(object)}, nil
}

func defaultsOf(object map[string]any) map[string]any {
	defaults := map[string]any{}
	properties, _ := object["properties"].(map[string]any)
	for name, p := range properties {
		if property, ok := p.(map[string]any); ok {
			if v, ok := property["default"]; ok {
				defaults[name] = v
			}
		}
	}
	return defaults
}

// Validate checks arguments as the caller gave them, before any default. It returns nil when they are fine.
func (s *Schema) Validate(args map[string]any) *Violation {
	if args == nil {
		args = map[string]any{}
	}
	if s.compiled == nil {
		return closed(args)
	}
	return s.validate(args)
}

// Properties returns the names that the object schema at a pointer into the schema declares, sorted.
func (s *Schema) Properties(pointer string) []string {
	at, _ := lookup(s.source, tokensOf(pointer)).(map[string]any)
	properties, _ := at["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(properties))
}

// Defaults returns the defaults of the parameters that have one. It is shared: nobody may write to it.
func (s *Schema) Defaults() map[string]any { return s.defaults }

// Bind lays arguments over the defaults. Neither is validated. The map is the caller's.
func (s *Schema) Bind(args map[string]any) map[string]any {
	bound := make(map[string]any, len(s.defaults)+len(args))
	maps.Copy(bound, s.defaults)
	maps.Copy(bound, args)
	return bound
}

// outside refuses every reference that leaves the schema. The metaschemas of JSON Schema are in the library.
type outside struct{}

func (outside) Load(string) (any, error) {
	return nil, errors.New("a schema may refer only to its own parts")
}

func compileError(err error, source map[string]any) *Error {
	var mismatch *jsonschema.SchemaValidationError
	var invalid *jsonschema.ValidationError
	if errors.As(err, &mismatch) && errors.As(mismatch.Err, &invalid) {
		first := units(invalid)[0]
		return &Error{first.instance(), first.message(), "write what JSON Schema 2020-12 has there"}
	}
	var regex *jsonschema.InvalidRegexError
	if errors.As(err, &regex) {
		return &Error{fragment(regex.URL), fmt.Sprintf("the pattern %q does not compile: %v", regex.Regex, regex.Err), re2}
	}
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		return &Error{reference(source, load.URL), fmt.Sprintf("it refers to %s, and %v", load.URL, load.Err), "copy what you need below $defs"}
	}
	var missing *jsonschema.JSONPointerNotFoundError
	if errors.As(err, &missing) {
		return &Error{
			reference(source, missing.URL), fmt.Sprintf("a reference leads to %s, where there is nothing", orRoot(fragment(missing.URL))),
			"define it there, or correct the reference",
		}
	}
	var anchor *jsonschema.AnchorNotFoundError
	if errors.As(err, &anchor) {
		return &Error{
			reference(source, anchor.Reference), fmt.Sprintf("a reference leads to the anchor %q, which is not declared", fragment(anchor.Reference)),
			"add the $anchor, or correct the reference",
		}
	}
	return &Error{"", strings.ReplaceAll(err.Error(), base, ""), "correct it"}
}

// re2 is the remedy for a pattern that does not compile.
const re2 = "patterns are RE2, without look-around and back-references"

// fragment is the JSON pointer that a location ends in.
func fragment(location string) string {
	_, pointer, _ := strings.Cut(location, "#")
	if decoded, err := url.PathUnescape(pointer); err == nil {
		return decoded
	}
	return pointer
}

func orRoot(pointer string) string {
	if pointer == "" {
		return "the root"
	}
	return pointer
}

func article(v any) string { return withArticle(value.Kind(v)) }

// withArticle is the name of a kind of JSON values in a sentence.
func withArticle(kind string) string {
	switch kind {
	case "null":
		return kind
	case "array", "object", "integer":
		return "an " + kind
	case "":
		return "no value"
	default:
		return "a " + kind
	}
}
