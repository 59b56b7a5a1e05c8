package retryspec

import (
	_ "embed"
	"slices"
)

//go:embed policy.schema.json
var policySchema []byte

//go:embed rules.schema.json
var rulesSchema []byte

// PolicySchema returns the JSON Schema, of draft 2020-12, of the documents that
// Parse reads. It accepts what Parse accepts, but for what it cannot see: names
// that occur twice in an object, text that is not UTF-8, and depth; and it may be
// more exact with a number that a 64-bit float rounds over a bound. The caller may
// change the slice.
func PolicySchema() []byte { return slices.Clone(policySchema) }

// RulesSchema returns the JSON Schema of the documents that ParseRules reads, as
// PolicySchema does that of the others.
func RulesSchema() []byte { return slices.Clone(rulesSchema) }
