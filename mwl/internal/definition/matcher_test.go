package definition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

func TestMatchesCode(t *testing.T) {
	for pattern, codes := range map[string]map[string]bool{
		"*":               {"A.B": true, "": true},
		"A.B":             {"A.B": true, "A.B.C": false, "a.b": false, "A": false},
		"A.*":             {"A.B": true, "A.B.C": true, "A": false, "A.": true, "AB.C": false, "a.B": false},
		"Provider.Call.*": {"Provider.Call.X.Y": true, "Provider.Middleware.X": false},
		"A*":              {"AB": false, "A*": true},
		".*":              {".A": true, "A": false},
	} {
		for code, want := range codes {
			require.Equal(t, want, definition.MatchesCode([]string{"Other", pattern}, code), "%s and %s", pattern, code)
		}
	}
}

func TestMatcherConjunction(t *testing.T) {
	yes, no := true, false
	m := definition.Matcher{Codes: []string{"A.*"}, Types: []string{"error", "Late"}, Retryable: &yes}
	require.True(t, m.Match("Late", "A.B", &yes))
	require.False(t, m.Match("Late", "A.B", &no))
	require.False(t, m.Match("Late", "A.B", nil), "a signal that is not set satisfies neither")
	require.False(t, m.Match("timeout", "A.B", &yes))
	require.False(t, m.Match("Late", "B", &yes))
	never := definition.Matcher{Retryable: &no}
	require.True(t, never.Match("error", "X", &no))
	require.False(t, never.Match("error", "X", nil))
}

func TestActionNames(t *testing.T) {
	for _, name := range []string{"Call", "Gather", "Match", "Pass", "Sleep", "Return", "Raise"} {
		action, ok := definition.ActionByName(name)
		require.True(t, ok)
		require.Equal(t, name, action.String())
	}
	for _, name := range []string{"", "call", "Wait"} {
		_, ok := definition.ActionByName(name)
		require.False(t, ok, name)
	}
}
