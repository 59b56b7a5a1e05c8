package term

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Width returns the number of columns that a text without control characters takes in a terminal.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	if r < 0x300 { // the first combining character
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() { //nolint:exhaustive // all other kinds take one column
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Cut shortens a text to a number of columns. A text that was shortened ends with an ellipsis.
func Cut(s string, columns int) string {
	if Width(s) <= columns {
		return s
	}
	n := 0
	var b strings.Builder
	for _, r := range s {
		if n += runeWidth(r); n > columns-1 {
			break
		}
		b.WriteRune(r)
	}
	if columns > 0 {
		b.WriteRune('…')
	}
	return b.String()
}

// Wrap divides a text without newlines into lines of a number of columns, at spaces if there are any. The last one of most
// lines is cut.
func Wrap(s string, columns, most int) (lines []string) {
	for len(lines) < most-1 && Width(s) > columns {
		end, space, n := 0, 0, 0
		for i, r := range s {
			if n += runeWidth(r); n > columns && i > 0 {
				break
			}
			end = i + utf8.RuneLen(r)
			if r == ' ' {
				space = end
			}
		}
		if space > 0 && s[end] != ' ' {
			end = space
		}
		lines = append(lines, strings.TrimRight(s[:end], " "))
		s = strings.TrimLeft(s[end:], " ")
	}
	return append(lines, Cut(s, columns))
}
