package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

var openArguments = json.RawMessage(`{"type": "object", "additionalProperties": true}`)

// anyProvider is a resolver that has an entry for every URI.
func anyProvider(uri string) (mwl.CatalogEntry, error) {
	open := mwl.FailureCatalog{Open: []string{"*"}}
	if strings.HasPrefix(uri, "mwl:provider.call/") {
		return mwl.CallProvider{
			URI: uri, CodePrefix: "Any", Parameters: openArguments, Failures: open,
			Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{Value: uri}, nil
			},
		}, nil
	}
	return mwl.Middleware{URI: uri, CodePrefix: "Any", Failures: open, OnEntry: &mwl.PhaseAction{
		Kind: mwl.SideEffect, Parameters: openArguments,
		Run: func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil },
	}}, nil
}

const unknownProviders = `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a",
	"middleware": [{"provider": "mwl:provider.middleware/shop/audit/v1", "onEntry": {"with": {"to": "log"}}}],
	"steps": {
		"a": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/charge/v1", "with": {"amount": 1}}, "next": "b"},
		"b": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/charge/v1"}, "next": "c"},
		"c": {"action": "Return", "value": ["{{ step.input }}", {"provider": "mwl:provider.call/shop/data/v1"}]}
	}}`

// The resolver is asked for each provider once, and not for data that looks like one.
func TestWithResolver_ResolvesWhatTheCatalogLacks(t *testing.T) {
	var asked []string
	def, err := mwl.Load([]byte(unknownProviders), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		asked = append(asked, uri)
		return anyProvider(uri)
	}))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"mwl:provider.middleware/shop/audit/v1", "mwl:provider.call/shop/charge/v1"}, asked)
	result := def.Execute(t.Context(), nil)
	require.Nil(t, result.Failure)
	require.Equal(t, "mwl:provider.call/shop/charge/v1", result.Value.([]any)[0])

	known, err := mwl.NewCatalog(must(anyProvider("mwl:provider.call/shop/charge/v1")), must(anyProvider("mwl:provider.middleware/shop/audit/v1")))
	require.NoError(t, err)
	_, err = mwl.Load([]byte(unknownProviders), mwl.WithCatalog(known), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		return nil, errors.New("asked for " + uri)
	}))
	require.NoError(t, err, "the catalog comes first")
}

func must(entry mwl.CatalogEntry, _ error) mwl.CatalogEntry { return entry }

func TestWithResolver_Errors(t *testing.T) {
	nothing := func(string) (mwl.CatalogEntry, error) { return nil, nil } //nolint:nilnil // what leaves it unknown
	_, err := mwl.Load([]byte(unknownProviders), mwl.WithResolver(nothing))
	refused, ok := errors.AsType[*mwl.DefinitionError](err)
	require.True(t, ok, "%v", err)
	require.Len(t, refused.Problems, 3)

	broken := errors.New("the registry is down")
	calls := 0
	_, err = mwl.Load([]byte(unknownProviders), mwl.WithResolver(func(string) (mwl.CatalogEntry, error) {
		calls++
		return nil, broken
	}))
	require.ErrorIs(t, err, broken)
	require.Equal(t, 1, calls)

	_, err = mwl.Load([]byte(unknownProviders), mwl.WithResolver(func(string) (mwl.CatalogEntry, error) {
		return anyProvider("mwl:provider.call/shop/other/v1")
	}))
	mistaken, ok := errors.AsType[*mwl.CatalogError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "URI", mistaken.Field)

	// It returns the entry of the first URI for the second, too.
	var first string
	_, err = mwl.Load([]byte(strings.ReplaceAll(unknownProviders, `"b": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/charge/v1"`,
		`"b": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/refund/v1"`)), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		if strings.HasPrefix(uri, "mwl:provider.call/") {
			if first == "" {
				first = uri
			}
			uri = first
		}
		return anyProvider(uri)
	}))
	require.ErrorContains(t, err, "is not that of the entry that the resolver returned")

	_, err = mwl.Load([]byte(unknownProviders), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		return mwl.CallProvider{URI: uri}, nil
	}))
	_, ok = errors.AsType[*mwl.CatalogError](err)
	require.True(t, ok, "%v", err)

	_, err = mwl.Load([]byte(unknownProviders), mwl.WithResolver(nil))
	_, ok = errors.AsType[*mwl.OptionError](err)
	require.True(t, ok, "%v", err)

	// No entry can be in the language's own namespaces.
	for _, namespace := range []string{"mwl", "example"} {
		_, err = mwl.Load([]byte(strings.ReplaceAll(unknownProviders, "/shop/", "/"+namespace+"/")), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
			t.Errorf("asked for %s", uri)
			return anyProvider(uri)
		}))
		_, ok = errors.AsType[*mwl.DefinitionError](err)
		require.True(t, ok, "%v", err)
	}
}
