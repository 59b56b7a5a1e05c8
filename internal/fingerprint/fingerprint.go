// Package fingerprint reduces error texts to the part that errors with the same cause
// share.
package fingerprint

import (
	"strings"

	"github.com/surebus/eventbus/internal/uuid7"
)

// WithoutNumbers returns text with its numbers replaced by #.
func WithoutNumbers(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		n := 0
		if i == 0 || !isWordByte(text[i-1]) {
			n = hexNumber(text[i:])
		}
		if n == 0 {
			n = digits(text[i:])
		}
		if n == 0 {
			b.WriteByte(text[i])
			i++
			continue
		}
		b.WriteByte('#')
		i += n
	}
	return b.String()
}

// hexNumber returns the length of the UUID or hexadecimal number at the start of text, or 0.
// A word without a digit, such as "defaced", is not a number.
func hexNumber(text string) int {
	if _, ok := uuid7.Parse(text[:min(36, len(text))]); ok && (len(text) == 36 || !isWordByte(text[36])) {
		return 36
	}
	word := 0
	for word < len(text) && isWordByte(text[word]) {
		word++
	}
	number, prefixed := strings.CutPrefix(text[:word], "0x")
	if strings.Trim(number, "0123456789abcdefABCDEF") != "" || number == "" {
		return 0
	}
	if prefixed || len(number) >= 8 && strings.ContainsAny(number, "0123456789") {
		return word
	}
	return 0
}

// digits returns the length of the decimal number at the start of text, including points
// between digits: 17, 1.5, 10.0.0.1.
func digits(text string) int {
	n := 0
	for n < len(text) && (isDigit(text[n]) || n > 0 && text[n] == '.' && n+1 < len(text) && isDigit(text[n+1])) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWordByte(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
