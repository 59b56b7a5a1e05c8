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
	_, err = mwl.ParseMiddleware(providerDocument(t, "middleware.json"))
	require.Contains(t, problemsOf(t, err)[0].String(), "/phases/onAlways/structural: structural parameters are for the language's own")
	for _, document := range []string{"", "{}", "null"} {
		_, err = mwl.ParseCallProvider([]byte(document))
		require.NotEmpty(t, problemsOf(t, err))
		_, err = mwl.ParseMiddleware([]byte(document))
		require.NotEmpty(t, problemsOf(t, err))
	}
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
