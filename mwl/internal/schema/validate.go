package schema

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/surebus/eventbus/mwl/internal/value"
)

// maxExplained is the cost of a validation that lists its violations. The library makes an error of about
// 1 KB for each part that is violated: a schema of 1,000 parts for an array of 1,000 would take 1 GB.
const maxExplained = 10_000

// validate finds the violations. If they may be too many, it finds one part of the arguments that
// has some.
func validate(s *jsonschema.Schema, args map[string]any) *Violation {
	if costOf(s, args, maxExplained) > maxExplained && isValid(s, args) {
		return nil
	}
	part, v, path := s, any(args), ""
	for costOf(part, v, maxExplained) > maxExplained {
		invalid, child, token := invalidPart(part, v)
		if invalid == nil {
			return &Violation{violations: []unit{{
				schema: fragment(part.Location), instance: path, value: v,
				text: fmt.Sprintf("%s of this size is not valid, and is too large to look for the places: make it smaller", article(v)),
			}}}
		}
		if part, v = invalid, child; token != "" {
			path += "/" + value.Escape(token)
		}
	}
	var invalid *jsonschema.ValidationError
	switch err := part.Validate(v); {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return violation(invalid, path, args)
	default:
		return &Violation{violations: []unit{{text: err.Error(), instance: path, value: v}}}
	}
}

// isValid reports whether a value is valid. Below a "not", the library keeps no errors, and stops at the
// first violation of an allOf.
func isValid(s *jsonschema.Schema, v any) bool {
	return (&jsonschema.Schema{DraftVersion: s.DraftVersion, Not: s}).Validate(v) != nil
}

// invalidPart returns a part of a schema that is not valid for the value, or for the child of the value at
// the token. It is nil if no single part is to blame.
func invalidPart(s *jsonschema.Schema, v any) (part *jsonschema.Schema, child any, token string) {
	for _, part := range slices.Concat([]*jsonschema.Schema{s.Ref}, s.AllOf) {
		if part != nil && !isValid(part, v) {
			return part, v, ""
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if part := s.Properties[name]; part != nil && !isValid(part, v[name]) {
				return part, v[name], name
			}
		}
	case []any:
		for i, item := range v {
			part := s.Items2020
			if i < len(s.PrefixItems) {
				part = s.PrefixItems[i]
			}
			if part != nil && !isValid(part, item) {
				return part, item, strconv.Itoa(i)
			}
		}
	}
	return nil, nil, ""
}
