package schema

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/regex"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// The keywords of 2020-12 that hold schemas: one, a list of them, or one per name.
var (
	schemaKeywords = []string{
		"additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
		"unevaluatedItems", "unevaluatedProperties",
	}
	listKeywords = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	mapKeywords  = []string{"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)

// walk visits the parts of a schema that are schemas, in order, until an error.
func walk(s any, pointer string, visit func(object map[string]any, pointer string) *Error) *Error {
	object, ok := s.(map[string]any)
	if !ok {
		return nil
	}
	if err := visit(object, pointer); err != nil {
		return err
	}
	for _, keyword := range schemaKeywords {
		if err := walk(object[keyword], pointer+"/"+keyword, visit); err != nil {
			return err
		}
	}
	for _, keyword := range listKeywords {
		list, _ := object[keyword].([]any)
		for i, part := range list {
			if err := walk(part, pointer+"/"+keyword+"/"+strconv.Itoa(i), visit); err != nil {
				return err
			}
		}
	}
	for _, keyword := range mapKeywords {
		parts, _ := object[keyword].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			if err := walk(parts[name], pointer+"/"+keyword+"/"+value.Escape(name), visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// inspect finds what the library would let pass in silence, another dialect and a format that cannot be asserted, and
// patterns, because the library does not say where one is in patternProperties.
func inspect(object map[string]any, pointer string) *Error {
	if dialect, written := object["$schema"]; written && dialect != Dialect {
		return &Error{pointer + "/$schema", fmt.Sprintf("the dialect is always %q", Dialect), "write that, or nothing"}
	}
	if format, ok := object["format"].(string); ok && !isKnown(format) {
		return &Error{
			pointer + "/format",
			fmt.Sprintf("the format %q is unknown, and a format that cannot be checked would pass everything", format),
			`use "pattern", or one of ` + strings.Join(known, ", "),
		}
	}
	if pattern, ok := object["pattern"].(string); ok {
		if err := inspectPattern(pattern, pointer+"/pattern"); err != nil {
			return err
		}
	}
	patterns, _ := object["patternProperties"].(map[string]any)
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		if err := inspectPattern(pattern, pointer+"/patternProperties/"+value.Escape(pattern)); err != nil {
			return err
		}
	}
	return nil
}

func inspectPattern(pattern, pointer string) *Error {
	if _, err := regex.Size(pattern); err != nil {
		return &Error{pointer, err.Error(), "use shorter repetitions"}
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return &Error{pointer, fmt.Sprintf("the pattern %q does not compile: %v", pattern, err), re2}
	}
	return nil
}

// reference returns the pointer of the first reference to a URL, which may lack the fragment; "" if there is none, as
// when an $id changes what it is relative to.
func reference(schema any, target string) string {
	from, err := url.Parse(base)
	if err != nil {
		return ""
	}
	found := walk(schema, "", func(object map[string]any, pointer string) *Error {
		for _, keyword := range []string{"$ref", "$dynamicRef"} {
			text, _ := object[keyword].(string)
			to, err := from.Parse(text)
			if text == "" || err != nil {
				continue
			}
			whole := to.String()
			if document, _, _ := strings.Cut(whole, "#"); whole == target || document == target {
				return &Error{Pointer: pointer + "/" + keyword}
			}
		}
		return nil
	})
	if found == nil {
		return ""
	}
	return found.Pointer
}
