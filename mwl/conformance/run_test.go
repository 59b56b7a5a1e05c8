package conformance_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/conformance"
)

// Scenarios that sleep for hours end soon, with the Results that the corpus expects.
func TestRun_InVirtualTime(t *testing.T) {
	t.Parallel()
	corpus, err := conformance.Read("../testdata/conformance")
	require.NoError(t, err)
	for _, c := range corpus {
		outcomes, err := c.Run(t.Context())
		require.NoError(t, err, c.Name)
		require.Len(t, outcomes, len(c.Scenarios))
		for _, o := range outcomes {
			require.NoError(t, o.Err, "%s/%s", c.Name, o.Scenario)
		}
	}
}

// A provider that computes for longer than the clock's idle time is not timed out by
// virtual time.
func TestRun_ComputationIsNotIdle(t *testing.T) {
	catalog, err := mwl.NewCatalog(mwl.CallProvider{
		URI: "mwl:provider.call/test/compute/v1", CodePrefix: "Compute",
		Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
			sum := sha256.Sum256(nil)
			for range 300_000 { // tens of milliseconds
				sum = sha256.Sum256(sum[:])
			}
			return mwl.CallResponse{Value: hex.EncodeToString(sum[:])}, nil
		},
	})
	require.NoError(t, err)
	c := conformance.Case{
		Definition: []byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a", "steps": {
			"a": {"action": "Call", "call": {"provider": "mwl:provider.call/test/compute/v1"},
				"middleware": [{"provider": "mwl:provider.middleware/mwl/timeout/v1", "onEntry": {"with": {"duration": "PT1S"}}}], "next": "b"},
			"b": {"action": "Return", "value": "done"}}}`),
		Scenarios: []conformance.Scenario{{Name: "base", Expected: map[string]any{"type": "success", "value": "done"}}},
	}
	outcomes, err := c.Run(t.Context(), mwl.WithCatalog(catalog))
	require.NoError(t, err)
	require.NoError(t, outcomes[0].Err)
}

func TestRun_TellsTheDifference(t *testing.T) {
	dir := t.TempDir()
	scenario := filepath.Join(dir, "one", "scenarios", "base")
	require.NoError(t, os.MkdirAll(scenario, 0o755))
	for path, content := range map[string]string{
		"one/case.json":                           `{"description": "d", "profiles": ["https://mwl.dev/v0.1/conformance/core"], "marks": [], "scenarios": {"base": {}}}`,
		"one/definition.json":                     `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a", "steps": {"a": {"action": "Return", "value": 2}}}`,
		"one/scenarios/base/input.json":           `null`,
		"one/scenarios/base/expected-result.json": `{"type": "success", "value": 1}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600))
	}
	corpus, err := conformance.Read(dir)
	require.NoError(t, err)
	outcomes, err := corpus[0].Run(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, outcomes[0].Err, "want value 1, got 2")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = corpus[0].Run(ctx)
	require.ErrorIs(t, err, context.Canceled)

	corpus[0].Malformed = errors.New("no scenario")
	_, err = corpus[0].Run(t.Context())
	require.EqualError(t, err, "no scenario")
}

// A case that executes nothing does not pass.
func TestRun_WithoutScenarios(t *testing.T) {
	_, err := (&conformance.Case{}).Run(t.Context())
	require.ErrorContains(t, err, "no scenario")
	_, err = (*conformance.Case)(nil).Run(t.Context())
	require.ErrorContains(t, err, "nil")
}

func TestRun_NilContext(t *testing.T) {
	c := conformance.Case{
		Definition: []byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a", "steps": {"a": {"action": "Return", "value": 1}}}`),
		Scenarios:  []conformance.Scenario{{Name: "base", Expected: map[string]any{"type": "success", "value": 1.0}}},
	}
	outcomes, err := c.Run(nil) //nolint:staticcheck // what a caller may do
	require.NoError(t, err)
	require.NoError(t, outcomes[0].Err)
}
