package retryspec

import (
	_ "embed"
	"slices"
)

//go:embed policy.schema.json
var policySchema []byte

//go:embed rules.schema.json
var rulesSchema []byte

// PolicySchema returns the JSON Schema, of draft 2020-12, of the documents that Parse reads. It accepts the documents
// that Parse accepts. It cannot detect repeated names in an object, invalid UTF-8 and deep nesting, and may treat
// numbers close to a bound differently. The caller may change the slice.
func PolicySchema() []byte { return slices.Clone(policySchema) }

// RulesSchema returns the JSON Schema, of draft 2020-12, of the documents that ParseRules reads. The caller may change
// the slice.
func RulesSchema() []byte { return slices.Clone(rulesSchema) }
