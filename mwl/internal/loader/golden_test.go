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
				root, problems, more := loader.Load(source, options(t))
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
