package mwl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

func providerDocument(t testing.TB, name string) []byte {
	t.Helper()
	document, err := os.ReadFile(filepath.Join("testdata", "schema", "valid", "provider", name))
	require.NoError(t, err)
	return document
}

func TestProviderDocumentsMakeEntries(t *testing.T) {
	document := providerDocument(t, "call.json")
	charge, err := mwl.ParseCallProvider(document)
	require.NoError(t, err)
	clear(document)
	charge.Call = func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		return mwl.CallResponse{Value: r.With["amount"]}, nil
	}
	catalog, err := mwl.NewCatalog(charge)
	require.NoError(t, err)
	def, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "charge", "steps": {
		"charge": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/charge/v1", "with": {"amount": 5}}, "next": "done"},
		"done": {"action": "Return"}}}`), mwl.WithCatalog(catalog))
	require.NoError(t, err)
	require.Empty(t, def.Warnings())
	result := def.Execute(t.Context(), nil)
	require.NoError(t, result.Err())
	require.InDelta(t, 5, result.Value, 0)
	_, err = mwl.NewCatalog(charge, charge)
	require.Error(t, err)
}

func TestProviderDocumentsMakeMiddleware(t *testing.T) {
	sign, err := mwl.ParseMiddleware([]byte(`{
		"$schema": "https://mwl.dev/v0.1/provider/schema.json", "uri": "mwl:provider.middleware/shop/sign/v1", "codePrefix": "Sign",
		"description": "Signs values.", "attachment": ["flow"], "failureCatalog": {"closed": [], "open": []},
		"phases": {"onSuccess": {"action": {"kind": "transform", "description": "Signs."}, "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}}}`))
	require.NoError(t, err)
	require.Equal(t, mwl.AttachFlow, sign.Attach)
	require.Nil(t, sign.OnEntry)
	sign.OnSuccess.Run = func(_ context.Context, run *mwl.PhaseRun) (mwl.Decision, error) {
		return mwl.Replace(fmt.Sprint(run.Result.Value, ", ", run.With["name"])), nil
	}
	catalog, err := mwl.NewCatalog(sign)
	require.NoError(t, err)
	def, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "done",
		"middleware": [{"provider": "mwl:provider.middleware/shop/sign/v1", "onSuccess": {"with": {"name": "Ada"}}}],
		"steps": {"done": {"action": "Return", "value": "Yours"}}}`), mwl.WithCatalog(catalog))
	require.NoError(t, err)
	require.Equal(t, "Yours, Ada", def.Execute(t.Context(), nil).Value)
}

func TestProviderDocumentsAreRefused(t *testing.T) {
	_, err := mwl.ParseCallProvider(providerDocument(t, "middleware.json"))
	require.Contains(t, problemsOf(t, err)[0].String(), `line 3, column 10: /uri: "mwl:provider.middleware/shop/lease/v1" is no call provider`)
	_, err = mwl.ParseMiddleware(providerDocument(t, "call.json"))
	require.Contains(t, problemsOf(t, err)[0].String(), `/uri: "mwl:provider.call/shop/charge/v1" is no middleware`)
	for _, document := range []string{"", "{}", "null"} {
		_, err = mwl.ParseCallProvider([]byte(document))
		require.NotEmpty(t, problemsOf(t, err))
		_, err = mwl.ParseMiddleware([]byte(document))
		require.NotEmpty(t, problemsOf(t, err))
	}
}

// A middleware may declare parameters structural: "Structural parameters" of the language's middleware providers.
func TestProviderDocuments_StructuralParametersAreAsWritten(t *testing.T) {
	lease, err := mwl.ParseMiddleware(providerDocument(t, "middleware.json"))
	require.NoError(t, err)
	require.Equal(t, []string{"tell"}, lease.OnAlways.Structural)
	pass := func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil }
	lease.OnEntry.Run, lease.OnSuccess.Run, lease.OnFailure.Run = pass, pass, pass
	var told any
	lease.OnAlways.Run = func(_ context.Context, run *mwl.PhaseRun) (mwl.Decision, error) {
		told = run.With["tell"]
		return mwl.Decision{}, nil
	}
	catalog, err := mwl.NewCatalog(lease)
	require.NoError(t, err)
	document, ok := catalog.Document(lease.URI)
	require.True(t, ok)
	again, err := mwl.ParseMiddleware(document)
	require.NoError(t, err)
	require.Equal(t, lease.OnAlways.Structural, again.OnAlways.Structural)

	load := func(tell string) (*mwl.Definition, error) {
		return mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "done",
			"middleware": [{"provider": "mwl:provider.middleware/shop/lease/v1", "onEntry": {"with": {"name": "door"}}, "onAlways": {"with": {"tell": `+tell+`}}}],
			"steps": {"done": {"action": "Return", "value": 1}}}`), mwl.WithCatalog(catalog))
	}
	def, err := load(`{"flow": "notify", "with": {"who": "{{ not.evaluated.here }}"}}`)
	require.NoError(t, err)
	require.NoError(t, def.Execute(t.Context(), nil).Err())
	require.Equal(t, map[string]any{"flow": "notify", "with": map[string]any{"who": "{{ not.evaluated.here }}"}}, told)

	_, err = load(`"{{ vars.call }}"`)
	require.Contains(t, problemsOf(t, err)[0].String(), "tell is structural, so it cannot be an expression")
	_, err = load(`1`)
	require.Contains(t, problemsOf(t, err)[0].String(), "tell", "it is checked as its parameter is")
}

func TestProviderDocuments_StructuralParametersAreDeclared(t *testing.T) {
	_, err := mwl.NewCatalog(mwl.Middleware{URI: "mwl:provider.middleware/shop/x/v1", CodePrefix: "X", OnEntry: &mwl.PhaseAction{
		Kind: mwl.Control, Parameters: []byte(`{"type": "object"}`), Structural: []string{"absent"},
		Run: func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil },
	}})
	var refused *mwl.CatalogError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "OnEntry.Structural", refused.Field)
	require.Contains(t, refused.Message, "declare it in the parameters")
}

func ExampleParseCallProvider() {
	charge, err := mwl.ParseCallProvider([]byte(`{
  "$schema": "https://mwl.dev/v0.1/provider/schema.json",
  "uri": "mwl:provider.call/shop/charge/v1",
  "codePrefix": "Charge",
  "description": "Charges a card.",
  "parameters": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}},
  "failureCatalog": {"closed": ["Provider.Call.Charge.Declined"], "open": []}
}`))
	if err != nil {
		panic(err)
	}
	charge.Call = func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		return mwl.CallResponse{Value: fmt.Sprint("charged ", r.With["amount"])}, nil
	}
	catalog, err := mwl.NewCatalog(charge)
	if err != nil {
		panic(err)
	}
	fmt.Println(catalog.URIs()[1])
	// Output: mwl:provider.call/shop/charge/v1
}
