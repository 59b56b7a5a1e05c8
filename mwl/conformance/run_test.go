package conformance_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/conformance"
)

// Scenarios that sleep for hours end soon, with the Results that the corpus expects.
func TestRun_InVirtualTime(t *testing.T) {
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
