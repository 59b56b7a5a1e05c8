package texts

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns a text in which every character can be seen: control characters, terminal escapes,
// bidirectional controls, other invisible characters and invalid UTF-8 become escapes as in Go strings,
// such as \x1b, \u202e and \xff. Backslashes of the text stay, so the result is for people, not for parsers.
func Visible(text string) string { return visible(text, "") }

// VisibleLines is Visible for a text of several lines: line feeds and tabs stay.
func VisibleLines(text string) string { return visible(text, "\n\t") }

func visible(text, kept string) string {
	if plain(text) {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 16)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			b.WriteString(`\x` + hex(text[i]))
		case unicode.IsPrint(r) || strings.ContainsRune(kept, r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}

// plain reports whether a text has printable ASCII only, as most texts do.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

func hex(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}
