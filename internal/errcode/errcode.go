// Package errcode matches dotted error codes, such as Payment.Declined.
package errcode

import "strings"

// Matches reports whether a code matches a pattern that Problem accepts. Only "*" matches
// the empty code.
func Matches(pattern, code string) bool {
	if pattern == "*" {
		return true
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return len(code) > len(prefix) && strings.HasPrefix(code, prefix)
	}
	return code != "" && code == pattern
}

// Problem returns why a pattern is invalid, or "". A pattern is a code, a prefix of codes that ends
// with ".*", or "*".
func Problem(pattern string) string {
	switch {
	case pattern == "":
		return `must not be empty; "*" matches every error`
	case pattern == "*":
		return ""
	}
	for _, segment := range strings.Split(strings.TrimSuffix(pattern, ".*"), ".") {
		switch {
		case segment == "":
			return `has an empty segment; write a code, as in "Payment.Declined", or a prefix of codes, as in "Payment.*"`
		case strings.Contains(segment, "*"):
			return `has a * that is not its whole last segment; a pattern is a code, a prefix of codes, as in "Payment.*", or "*"`
		}
	}
	return ""
}
