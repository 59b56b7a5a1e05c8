package mwl

import (
	_ "embed"
	"slices"
)

//go:embed schemas/flow.schema.json
var flowSchema []byte

//go:embed schemas/provider.schema.json
var providerSchema []byte

// Schema returns the JSON Schema (2020-12) of definitions, with a description of
// every member, for editors and other tools. It checks the shape: what it refuses,
// [Load] refuses. Load also checks what the schema cannot: names, provider URIs,
// expressions and literal arguments. The result is the caller's.
func Schema() []byte { return slices.Clone(flowSchema) }

// ProviderSchema returns the JSON Schema (2020-12) of provider documents, as [Schema]
// does that of definitions. It checks the shape: what it refuses, [ParseCallProvider]
// and [ParseMiddleware] refuse. These also compile the JSON Schemas in the document and
// check its codes. The result is the caller's.
func ProviderSchema() []byte { return slices.Clone(providerSchema) }
