package regex_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

func TestSize(t *testing.T) {
	for _, pattern := range []string{"", "^[a-z]+$", `^\d{4}-\d{2}-\d{2}$`, "x{1000}", strings.Repeat("a", 5000), `\pL+`, "(((a|b)*c)?d)+"} {
		_, err := regex.Size(pattern)
		require.NoError(t, err, pattern)
		require.NotNil(t, regexp.MustCompile(pattern))
	}
	for _, pattern := range []string{strings.Repeat(".{1000}", 11), "((a{10}b){10}c){99}de{900}", strings.Repeat("a", 20_000), strings.Repeat("(", 900) + "a" + strings.Repeat("){1,2}", 900)} {
		_, err := regex.Size(pattern)
		if _, invalid := regexp.Compile(pattern); invalid == nil {
			require.ErrorContains(t, err, "too large", pattern)
		}
	}
	n, err := regex.Size("(")
	require.NoError(t, err, "compiling says it")
	require.Zero(t, n)
}
