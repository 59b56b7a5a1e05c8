package mwl

import (
	_ "embed"
	"slices"
)

//go:embed schemas/flow.schema.json
var flowSchema []byte

//go:embed schemas/provider.schema.json
var providerSchema []byte

// Schema returns the JSON Schema (2020-12) of definitions, with a description of every member, for editors and other
// tools. It checks the shape: Load rejects every document that the schema rejects. [Load] also checks names, provider
// URIs, expressions and literal arguments. The caller may change the result.
func Schema() []byte { return slices.Clone(flowSchema) }

// ProviderSchema returns the JSON Schema (2020-12) of provider documents. It checks the shape: [ParseCallProvider] and
// [ParseMiddleware] reject every document that the schema rejects. They also compile the JSON Schemas in the document
// and check its codes. The caller may change the result.
func ProviderSchema() []byte { return slices.Clone(providerSchema) }
