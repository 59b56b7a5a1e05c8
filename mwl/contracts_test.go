package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/internal/loader"
)

func documentedCatalog(t *testing.T) *mwl.Catalog {
	t.Helper()
	charge, err := mwl.ParseCallProvider(providerDocument(t, "call.json"))
	require.NoError(t, err)
	charge.Call = func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) { return mwl.CallResponse{}, nil }
	sign := mwl.Middleware{
		URI: "mwl:provider.middleware/shop/sign/v1", CodePrefix: "Sign", Description: "Signs <values>.", Attach: mwl.AttachFlow,
		Metadata: json.RawMessage(`{"type": "object", "properties": {"key": {"type": "string"}}}`),
		Failures: mwl.FailureCatalog{Closed: []string{"Provider.Middleware.Sign.NoKey"}},
		OnSuccess: &mwl.PhaseAction{
			Kind: mwl.Transform, Parameters: json.RawMessage(`{"type": "object", "properties": {"name": {"type": "string"}}}`),
			Run: func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil },
		},
	}
	bare := mwl.CallProvider{
		URI: "mwl:provider.call/shop/ping", CodePrefix: "Ping",
		Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) { return mwl.CallResponse{}, nil },
	}
	catalog, err := mwl.NewCatalog(charge, sign, bare)
	require.NoError(t, err)
	return catalog
}

// TestContractDocuments validates the document of every entry: the language's own
// and those of Go functions. MWL_SCHEMA_DIR adds the published schema as a judge.
func TestContractDocuments(t *testing.T) {
	catalog := documentedCatalog(t)
	require.Len(t, catalog.URIs(), 8)
	for _, uri := range catalog.URIs() {
		document, ok := catalog.Document(uri)
		require.True(t, ok)
		provider, problems, _ := loader.LoadProvider(document, loader.AnyProvider, loader.Options{})
		require.Empty(t, problems, uri)
		require.Equal(t, uri, provider.URI)
		clear(document)
		again, _ := catalog.Document(uri)
		require.NotEqual(t, document, again, "the document is shared")
	}
	_, ok := catalog.Document("mwl:provider.call/shop/unknown")
	require.False(t, ok)

	dir, ok := os.LookupEnv(schemaDir)
	if !ok {
		t.Skipf("%s names no directory with the published schemas: the documents were not validated by them", schemaDir)
	}
	published, err := os.ReadFile(filepath.Join(dir, "provider", "schema.json"))
	require.NoError(t, err)
	oracle := compile(t, published)
	for _, uri := range catalog.URIs() {
		document, _ := catalog.Document(uri)
		require.NoError(t, oracle.Validate(decode(t, document)), uri)
	}
}

// TestOwnContractsAgreeWithTheReference compares what the documents declare, texts
// apart, with the documents of the language's reference.
func TestOwnContractsAgreeWithTheReference(t *testing.T) {
	dir, ok := os.LookupEnv("MWL_REFERENCE_DIR")
	if !ok {
		t.Skip("MWL_REFERENCE_DIR names no directory with the reference")
	}
	catalog, err := mwl.NewCatalog()
	require.NoError(t, err)
	for _, uri := range catalog.URIs() {
		document, _ := catalog.Document(uri)
		name := strings.Split(uri, "/")[2]
		published, err := os.ReadFile(filepath.Join(dir, "providers", name+".v1.json"))
		require.NoError(t, err)
		require.Equal(t, withoutTexts(decode(t, published)), withoutTexts(decode(t, document)), uri)
	}
}

func withoutTexts(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutTexts(v[i])
		}
	case map[string]any:
		for name, member := range v {
			if _, text := member.(string); text && (name == "description" || name == "acceptance") {
				delete(v, name)
				continue
			}
			v[name] = withoutTexts(member)
		}
	}
	return v
}

func TestContractDocumentsAreReadBack(t *testing.T) {
	catalog := documentedCatalog(t)
	document, _ := catalog.Document("mwl:provider.middleware/shop/sign/v1")
	sign, err := mwl.ParseMiddleware(document)
	require.NoError(t, err)
	require.Equal(t, "Signs <values>.", sign.Description)
	require.Equal(t, mwl.AttachFlow, sign.Attach)
	require.Equal(t, mwl.Transform, sign.OnSuccess.Kind)
	require.Equal(t, []string{"Provider.Middleware.Sign.NoKey"}, sign.Failures.Closed)
	require.JSONEq(t, `{"type": "object", "properties": {"name": {"type": "string"}}}`, string(sign.OnSuccess.Parameters))
	require.Nil(t, sign.OnEntry)

	document, _ = catalog.Document("mwl:provider.call/shop/charge/v1")
	require.JSONEq(t, string(providerDocument(t, "call.json")), string(document))
}

func ExampleCatalog_Document() {
	catalog, err := mwl.NewCatalog()
	if err != nil {
		fmt.Println(err)
		return
	}
	document, ok := catalog.Document("mwl:provider.middleware/mwl/timeout/v1")
	var contract struct {
		CodePrefix string `json:"codePrefix"`
		Failures   struct {
			Closed []string `json:"closed"`
		} `json:"failureCatalog"`
	}
	fmt.Println(ok, json.Unmarshal(document, &contract))
	fmt.Println(contract.CodePrefix, contract.Failures.Closed)
	// Output:
	// true <nil>
	// Timeout [Provider.Middleware.Timeout.Exceeded]
}

// A catalog has no entry whose own document cannot be read again.
func TestNewCatalog_RefusesWhatADocumentCannotSay(t *testing.T) {
	deep := `{"type": "object", "properties": {"a": ` + strings.Repeat(`{"not": `, 130) + `true` + strings.Repeat(`}`, 130) + `}}`
	large := `{"type": "object", "properties": {"a": {"enum": [0` + strings.Repeat(`, 0`, 5000) + `]}}}`
	for name, c := range map[string]struct {
		field  string
		change func(*mwl.CallProvider)
	}{
		"a dash in the prefix":  {"CodePrefix", func(p *mwl.CallProvider) { p.CodePrefix = "my-pay" }},
		"a small letter":        {"CodePrefix", func(p *mwl.CallProvider) { p.CodePrefix = "charge" }},
		"a dash in a code":      {"Failures.Closed", func(p *mwl.CallProvider) { p.Failures.Closed = []string{"Provider.Call.Charge.not-found"} }},
		"an empty segment":      {"Failures.Closed", func(p *mwl.CallProvider) { p.Failures.Closed = []string{"Provider.Call.Charge."} }},
		"a control character":   {"Failures.Closed", func(p *mwl.CallProvider) { p.Failures.Closed = []string{"Provider.Call.Charge.\x1bX"} }},
		"a code of another one": {"Failures.Closed", func(p *mwl.CallProvider) { p.Failures.Closed = []string{"Provider.Call.Refund.X"} }},
		"an empty region":       {"Failures.Open", func(p *mwl.CallProvider) { p.Failures.Open = []string{"Provider.Call.Charge..*"} }},
		"a deep schema":         {"Parameters", func(p *mwl.CallProvider) { p.Parameters = json.RawMessage(deep) }},
		"a large schema":        {"Parameters", func(p *mwl.CallProvider) { p.Parameters = json.RawMessage(large) }},
		"large metadata":        {"Metadata", func(p *mwl.CallProvider) { p.Metadata = json.RawMessage(large) }},
		"a name twice":          {"Parameters", func(p *mwl.CallProvider) { p.Parameters = json.RawMessage(`{"type": "object", "type": "object"}`) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := mwl.CallProvider{
				URI: "mwl:provider.call/shop/charge/v1", CodePrefix: "Charge",
				Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) { return mwl.CallResponse{}, nil },
			}
			c.change(&p)
			_, err := mwl.NewCatalog(p)
			refused, ok := errors.AsType[*mwl.CatalogError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, c.field, refused.Field, err)
			require.Contains(t, refused.Message, "; ", "a remedy")
		})
	}
}

func TestNewCatalog_TypedNil(t *testing.T) {
	for _, entry := range []mwl.CatalogEntry{(*mwl.CallProvider)(nil), (*mwl.Middleware)(nil)} {
		_, err := mwl.NewCatalog(entry)
		require.ErrorContains(t, err, "entry 0: is nil")
		_, err = mwl.Load([]byte(unknownProviders), mwl.WithResolver(func(string) (mwl.CatalogEntry, error) { return entry, nil }))
		refused, ok := errors.AsType[*mwl.DefinitionError](err)
		require.True(t, ok, "%v", err)
		require.Len(t, refused.Problems, 3)
	}
}

func TestWithCatalog_RefusesAZeroCatalog(t *testing.T) {
	_, err := mwl.Load([]byte(unknownProviders), mwl.WithCatalog(&mwl.Catalog{}))
	refused, ok := errors.AsType[*mwl.OptionError](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, refused.Message, "make one with NewCatalog")
}
