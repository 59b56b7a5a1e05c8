package expr

import "strings"

const (
	opening = "{{"
	closing = "}}"
)

// Body reports whether a string of a definition is an expression, and returns what stands between its delimiters. It is one when a single pair of {{ and }} spans all of
// it; "{{ a }} and {{ b }}" and "x{{ a }}" are literals. Braces, strings and comments of CEL are seen, so "{{ {'a': {'b': '}}'}} }}" is one expression.
func Body(s string) (body string, ok bool) {
	if len(s) < len(opening)+len(closing) || !strings.HasPrefix(s, opening) || !strings.HasSuffix(s, closing) {
		return "", false
	}
	body = s[len(opening) : len(s)-len(closing)]
	return body, !closesWithin(body)
}

// closesWithin reports whether the pair that was opened before the body closes inside of it. A body that does not lex, because a string in it does not end,
// does not close: it is an expression with an error, which is never read as a literal.
func closesWithin(body string) bool {
	depth := 0
	for i := 0; i < len(body); {
		switch c := body[i]; {
		case c == '{':
			depth++
			i++
		case c == '}' && depth > 0:
			depth--
			i++
		case c == '}':
			// At the end, the first brace of "}}}" is the body's own.
			if strings.HasPrefix(body[i:], closing) {
				return true
			}
			i++
		case c == '"' || c == '\'':
			i = endOfString(body, i)
		case strings.HasPrefix(body[i:], "//"):
			end := strings.IndexByte(body[i:], '\n')
			if end < 0 {
				return false
			}
			i += end + 1
		default:
			i++
		}
	}
	return false
}

// endOfString returns the index after the CEL string whose quote is at i, or the end of the text when it does not end.
func endOfString(s string, i int) int {
	quote := s[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s[i:], triple) {
		quote = triple
	}
	raw := isRaw(s, i)
	for i += len(quote); i < len(s); i++ {
		if strings.HasPrefix(s[i:], quote) {
			return i + len(quote)
		}
		if len(quote) == 1 && s[i] == '\n' {
			return i
		}
		if s[i] == '\\' && !raw {
			i++
		}
	}
	return len(s)
}

// isRaw reports whether the quote at i has the prefix r, alone or beside b.
func isRaw(s string, i int) bool {
	start := i
	for start > 0 && isWord(s[start-1]) {
		start--
	}
	switch strings.ToLower(s[start:i]) {
	case "r", "rb", "br":
		return true
	}
	return false
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
