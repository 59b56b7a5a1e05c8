package definition

import (
	"slices"
	"strings"
)

// Matcher selects failures: every member present must match.
type Matcher struct {
	// Codes are patterns: a code, "Prefix.*" or "*". Nil when not written.
	Codes []string
	// Types are non-success types. Nil when not written.
	Types []string
	// Retryable is the explicit value asked for; nil when not written.
	Retryable *bool
}

// Match reports whether the matcher selects the failure. A nil retryable is one
// that asserts nothing, and matches neither value.
func (m *Matcher) Match(typ, code string, retryable *bool) bool {
	if m.Retryable != nil && (retryable == nil || *retryable != *m.Retryable) {
		return false
	}
	if m.Types != nil && !slices.Contains(m.Types, typ) {
		return false
	}
	return m.Codes == nil || MatchesCode(m.Codes, code)
}

// MatchesCode reports whether one of the patterns matches the code.
func MatchesCode(patterns []string, code string) bool {
	for _, pattern := range patterns {
		if pattern == "*" || pattern == code {
			return true
		}
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasSuffix(prefix, ".") && strings.HasPrefix(code, prefix) {
			return true
		}
	}
	return false
}
