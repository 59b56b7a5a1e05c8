package mwl

import (
	_ "embed"
	"slices"
)

//go:embed schemas/flow.schema.json
var flowSchema []byte

// Schema returns the JSON Schema (2020-12) of definitions, with a description of
// every member, for editors and other tools. It checks the shape: what it refuses,
// [Load] refuses. Load also checks what the schema cannot: names, provider URIs,
// expressions and literal arguments. The result is the caller's.
func Schema() []byte { return slices.Clone(flowSchema) }
