package errcode_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/errcode"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, code string
		want          bool
	}{
		{"*", "", true},
		{"*", "A.B", true},
		{"A", "A", true},
		{"A", "A.B", false},
		{"A", "", false},
		{"A.B", "A", false},
		{"A.*", "A.B", true},
		{"A.*", "A.B.C", true},
		{"A.*", "A", false},
		{"A.*", "A.", false},
		{"A.*", "AB.C", false},
	} {
		require.Equal(t, c.want, errcode.Matches(c.pattern, c.code), "%s and %s", c.pattern, c.code)
	}
}

func TestProblem(t *testing.T) {
	for _, pattern := range []string{"*", "A", "A.B", "A.*", "A.B.*"} {
		require.Empty(t, errcode.Problem(pattern), pattern)
	}
	for pattern, want := range map[string]string{
		"": "must not be empty", ".": "empty segment", "A..B": "empty segment", "A.": "empty segment", ".*": "empty segment",
		"A*": "not its whole last segment", "*.A": "not its whole last segment", "A.**": "not its whole last segment", "A.*.B": "not its whole last segment",
	} {
		require.Contains(t, errcode.Problem(pattern), want, pattern)
	}
}

func FuzzPatternsWithoutAStarMatchThemselves(f *testing.F) {
	f.Add("A.B")
	f.Fuzz(func(t *testing.T, pattern string) {
		if errcode.Problem(pattern) != "" || pattern == "*" {
			return
		}
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		require.True(t, errcode.Matches(pattern, prefix+strings.Repeat("x", min(len(pattern)-len(prefix), 1))))
		require.Equal(t, isPrefix, errcode.Matches(pattern, prefix+"x") && !errcode.Matches(pattern, prefix))
	})
}
