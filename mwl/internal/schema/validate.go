package schema

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxExplained is the cost of a validation that lists its violations. The library makes an error of about
// 1 KB for each part that is violated: a schema of 1,000 parts for an array of 1,000 would take 1 GB.
const maxExplained = 10_000

// validate finds the violations. If they may be too many, it finds one part of the arguments that
// has some.
func (s *Schema) validate(args map[string]any) *Violation {
	d, part, v := descent{schema: s}, s.compiled, any(args)
	if cost := s.costOf(part, v, math.MaxInt); cost > maxExplained {
		if s.isValid(args) {
			return nil
		}
		d.left = max(2*cost, minSearch)
		if part, v = d.descend(part, v); part == nil {
			return &Violation{searched: d.searched, violations: []unit{{
				at: d.path, value: v, whole: true, referred: true,
				text: fmt.Sprintf("%s of this size is not valid, and is too large to look for the places: make it smaller", article(v)),
			}}}
		}
	}
	var invalid *jsonschema.ValidationError
	switch err := part.Validate(v); {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		found := violation(invalid, d.path, d.referred, args)
		found.searched = d.searched
		return found
	default:
		return &Violation{searched: d.searched, violations: []unit{{text: err.Error(), at: d.path, value: v, referred: true}}}
	}
}

// isValid keeps no descriptions of errors: below a "not", the library only looks whether there is one, and
// stops at the first violation of an allOf.
func (s *Schema) isValid(args map[string]any) bool { return s.negated.Validate(args) != nil }

// descent looks for a violated part of a schema that is small enough to be explained.
type descent struct {
	schema   *Schema
	left     int // what validations may still cost
	searched int // what they have cost
	path     []string
	referred bool // it has followed a reference
}

// minSearch is what every search may cost, so that it can look at several levels: 0.1 s.
const minSearch = 1_000_000

// descend returns the part and the value that it is for, to which path leads. The part is nil if none was
// found.
func (d *descent) descend(part *jsonschema.Schema, v any) (*jsonschema.Schema, any) {
	for part != nil && d.schema.costOf(part, v, maxExplained) > maxExplained {
		invalid, child, token := d.invalidPart(part, v)
		if invalid == nil {
			return nil, v
		}
		d.referred = d.referred || invalid == part.Ref
		part, v, d.path = invalid, child, append(d.path, token...)
	}
	return part, v
}

// isInvalid reports whether it is known that a value is not valid.
func (d *descent) isInvalid(s *jsonschema.Schema, v any) bool {
	if s == nil || d.schema.facts.dynamic { // which the library resolves from the root
		return false
	}
	cost := d.schema.costOf(s, v, d.left)
	if d.left -= cost; d.left < 0 {
		return false
	}
	d.searched += cost
	return (&jsonschema.Schema{DraftVersion: s.DraftVersion, Not: s}).Validate(v) == nil
}

// invalidPart returns a part of a schema that is not valid for the value, or for the child of the value at
// the token. It is nil if no single part is to blame.
func (d *descent) invalidPart(s *jsonschema.Schema, v any) (part *jsonschema.Schema, child any, token []string) {
	for _, part := range slices.Concat([]*jsonschema.Schema{s.Ref}, s.AllOf) {
		if d.isInvalid(part, v) {
			return part, v, nil
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if part := s.Properties[name]; d.isInvalid(part, v[name]) {
				return part, v[name], []string{name}
			}
		}
	case []any:
		for i, item := range v {
			part := s.Items2020
			if i < len(s.PrefixItems) {
				part = s.PrefixItems[i]
			}
			if d.isInvalid(part, item) {
				return part, item, []string{strconv.Itoa(i)}
			}
		}
	}
	return nil, nil, nil
}
