package docpage

import (
	"strings"
	"unicode"
)

// Anchor returns the fragment by which GitHub finds a heading: in lower case, blanks as hyphens, without punctuation.
func Anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case unicode.IsLetter(r), unicode.IsNumber(r), r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}
