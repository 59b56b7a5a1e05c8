package mwl_test

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/conformance"
)

// conformanceDir names a further corpus, such as a checkout of the language's own.
const conformanceDir = "MWL_CONFORMANCE_DIR"

// TestConformance executes every scenario of the project's corpus, and of the one
// that MWL_CONFORMANCE_DIR names, in virtual time.
func TestConformance(t *testing.T) {
	dirs := []string{"testdata/conformance"}
	if dir := os.Getenv(conformanceDir); dir != "" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		corpus, err := conformance.Read(dir)
		require.NoError(t, err)
		for _, c := range corpus {
			t.Run(c.Name, func(t *testing.T) {
				require.NoError(t, c.Malformed)
				def, err := mwl.Load(c.Definition, mwl.DeferArgumentErrors()) // as the language has it
				require.NoError(t, err)
				for _, s := range c.Scenarios {
					t.Run(s.Name, func(t *testing.T) { runScenario(t, def, s) })
				}
			})
		}
	}
}

func runScenario(t *testing.T, def *mwl.Definition, s conformance.Scenario) {
	synctest.Test(t, func(t *testing.T) {
		var options []mwl.ExecuteOption
		if s.Arguments != nil {
			options = append(options, mwl.WithArguments(s.Arguments))
		}
		result := def.Execute(t.Context(), s.Input, options...)
		require.Equal(t, result.Failure == nil, result.Err() == nil)
		require.NoError(t, s.Check(result))
	})
}
