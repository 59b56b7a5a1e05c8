package loader_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/loader"
)

var update = flag.Bool("update", false, "write what was found beside the definitions of testdata")

const testdata = "../../testdata/definitions"

// TestDefinitions loads those of testdata. What is wrong with NAME.json stands in
// NAME.problems, and what is odd about it in NAME.warnings.
func TestDefinitions(t *testing.T) {
	for _, dir := range []string{"valid", "invalid"} {
		files, err := filepath.Glob(filepath.Join(testdata, dir, "*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			t.Run(dir+"/"+name, func(t *testing.T) {
				source, err := os.ReadFile(file)
				require.NoError(t, err)
				o := options(t)
				o.DeferArgumentErrors = dir == "valid"
				root, problems, more := loader.Load(source, o)
				require.Zero(t, more)
				golden := strings.TrimSuffix(file, ".json") + ".problems"
				if dir == "valid" {
					require.Empty(t, problems, printed(problems))
					golden, problems = strings.TrimSuffix(file, ".json")+".warnings", root.Warnings
				} else {
					require.Nil(t, root)
					require.NotEmpty(t, problems)
				}
				requireGolden(t, golden, printed(problems))
			})
		}
	}
}

// TestProviderDocuments is TestDefinitions for provider documents.
func TestProviderDocuments(t *testing.T) {
	for _, dir := range []string{"valid", "invalid"} {
		files, err := filepath.Glob(filepath.Join("../../testdata/schema", dir, "provider", "*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			t.Run(dir+"/"+filepath.Base(file), func(t *testing.T) {
				source, err := os.ReadFile(file)
				require.NoError(t, err)
				provider, problems, more := loader.LoadProvider(source, loader.AnyProvider, options(t))
				require.Zero(t, more)
				require.Equal(t, dir == "valid", provider != nil)
				require.Equal(t, dir == "valid", len(problems) == 0)
				requireGolden(t, strings.TrimSuffix(file, ".json")+".problems", printed(problems))
			})
		}
	}
}

func TestProviderDocumentsAreReadWhole(t *testing.T) {
	read := func(name string) *loader.Provider {
		source, err := os.ReadFile(filepath.Join("../../testdata/schema/valid/provider", name))
		require.NoError(t, err)
		provider, problems, _ := loader.LoadProvider(source, loader.AnyProvider, options(t))
		require.Empty(t, problems)
		return provider
	}
	call := read("call.json")
	require.False(t, call.Middleware)
	require.Equal(t, "mwl:provider.call/shop/charge/v1", call.URI)
	require.Equal(t, "Charge", call.CodePrefix)
	require.Equal(t, "Charges a card.", call.Description)
	require.JSONEq(t, `{"type": "object", "required": ["amount"],
		"properties": {"amount": {"type": "number", "minimum": 0}, "currency": {"type": "string", "default": "EUR"}}}`, string(call.Parameters.Source))
	require.JSONEq(t, `{"type": "object", "properties": {"requestId": {"type": "string"}}}`, string(call.Metadata.Source))
	require.Equal(t, definition.FailureCatalog{
		Closed: []string{"Provider.Call.Charge.Declined", "Provider.Call.Charge.Network.Down"}, Open: []string{"Provider.Call.Charge.Bank.*"},
	}, call.Failures)

	lease := read("middleware.json")
	require.True(t, lease.Middleware)
	require.Equal(t, definition.StepLevel|definition.FlowLevel, lease.Levels)
	require.Equal(t, definition.Control, lease.Phases[definition.OnEntry].Kind)
	require.Equal(t, "A Result that rose before the lease was lost stands.", lease.Phases[definition.OnEntry].Acceptance)
	require.JSONEq(t, `{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}`, string(lease.Phases[definition.OnEntry].Parameters.Source))
	require.Equal(t, definition.Transform, lease.Phases[definition.OnSuccess].Kind)
	require.Equal(t, definition.SideEffect, lease.Phases[definition.OnFailure].Kind)
	require.Equal(t, []string{"tell"}, lease.Phases[definition.OnAlways].Structural)
}

func requireGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if got == "" {
			_ = os.Remove(file)
			return
		}
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.Equal(t, string(want), got, "if this is right, run the test with -update")
}

func printed(problems []definition.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintf(&b, "line %d, column %d, %s\n\t%s\n\t%s", p.Line, p.Column, p.Pointer, p.Source, p.Message)
		if p.Remedy != "" {
			fmt.Fprintf(&b, "; %s", p.Remedy)
		}
		b.WriteString("\n")
	}
	return b.String()
}
