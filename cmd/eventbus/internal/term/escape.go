// Package term formats text for terminals: it escapes control characters, lays out tables, and draws
// progress bars and sparklines.
package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape returns a text that is safe to print in one line. It shows each character that could move the
// cursor, start an escape sequence or reorder the line as a Go escape, such as \x1b, and each byte that is
// not UTF-8 as \xff. It keeps all other characters, backslashes too.
func Escape(s string) string { return escape(s, false) }

// EscapeLines is Escape, but keeps newlines and tabs.
func EscapeLines(s string) string { return escape(s, true) }

func escape(s string, lines bool) string {
	if isSafe(s, lines) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case printable(r, lines):
			b.WriteString(s[i : i+size])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

func isSafe(s string, lines bool) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !printable(r, lines) {
			return false
		}
	}
	return true
}

// printable reports whether a terminal shows the character and nothing else happens. Space is the only
// printable white space: others have no fixed width.
func printable(r rune, lines bool) bool {
	return unicode.IsPrint(r) || lines && (r == '\n' || r == '\t')
}

// EscapeJSON replaces the characters of a JSON text that could control a terminal by \u escapes, which
// decode to the same text. encoding/json escapes only those below U+0020.
func EscapeJSON(text []byte) []byte {
	if isSafe(string(text), true) {
		return text
	}
	var b []byte
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case printable(r, true) && (r != utf8.RuneError || size > 1):
			b = append(b, text[i:i+size]...)
		case r == '\r': // between the tokens of a raw message
			b = append(b, ' ')
		case r > 0xffff:
			hi, lo := surrogates(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default: // an invalid byte is U+FFFD, as for encoding/json
			b = fmt.Appendf(b, `\u%04x`, r)
		}
		i += size
	}
	return b
}

func surrogates(r rune) (hi, lo rune) {
	const first, lowFirst, bits = 0xd800, 0xdc00, 10
	r -= 0x10000
	return first + r>>bits, lowFirst + r&(1<<bits-1)
}
