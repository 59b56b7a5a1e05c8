package schema

import (
	"fmt"
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

// inspect finds what the library would let pass in silence: another dialect, and a format that nobody can assert.
func inspect(s any, pointer string) *Error {
	object, ok := s.(map[string]any)
	if !ok {
		return nil
	}
	if dialect, written := object["$schema"]; written && dialect != Dialect {
		return &Error{Pointer: pointer + "/$schema", Text: fmt.Sprintf("the dialect is always %q: write that, or nothing", Dialect)}
	}
	if format, ok := object["format"].(string); ok && !isKnown(format) {
		return &Error{
			Pointer: pointer + "/format",
			Text:    fmt.Sprintf("the format %q is unknown, and a format that cannot be checked would pass everything: use \"pattern\", or one of %s", format, strings.Join(known, ", ")),
		}
	}
	if pattern, ok := object["pattern"].(string); ok {
		if _, err := regex.Size(pattern); err != nil {
			return &Error{Pointer: pointer + "/pattern", Text: err.Error()}
		}
	}
	for _, keyword := range schemaKeywords {
		if err := inspect(object[keyword], pointer+"/"+keyword); err != nil {
			return err
		}
	}
	for _, keyword := range listKeywords {
		list, _ := object[keyword].([]any)
		for i, part := range list {
			if err := inspect(part, pointer+"/"+keyword+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	}
	for _, keyword := range mapKeywords {
		parts, _ := object[keyword].(map[string]any)
		names := make([]string, 0, len(parts))
		for name := range parts {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if keyword == "patternProperties" {
				if _, err := regex.Size(name); err != nil {
					return &Error{Pointer: pointer + "/" + keyword, Text: err.Error()}
				}
			}
			if err := inspect(parts[name], pointer+"/"+keyword+"/"+value.Escape(name)); err != nil {
				return err
			}
		}
	}
	return nil
}
