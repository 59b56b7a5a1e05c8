package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// printable shows what a terminal would execute, as Go escapes. Line breaks and tabs
// stay.
func printable(text string) string { return escaped(text, "\n\t", goEscape) }

// oneLine is printable, but shows line breaks and tabs, too: text of a definition cannot
// look like a line of the command.
func oneLine(text string) string { return escaped(text, "", goEscape) }

// printableJSON shows what a terminal would execute, as escapes of JSON.
func printableJSON(text []byte) string { return escaped(string(text), "\n\t", jsonEscape) }

func escaped(text, keep string, escape func(r rune) string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if unicode.IsPrint(r) || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r))
		}
	}
	return b.String()
}

func goEscape(r rune) string {
	quoted := strconv.QuoteToASCII(string(r))
	return quoted[1 : len(quoted)-1]
}

func jsonEscape(r rune) string {
	if r <= 0xFFFF {
		return fmt.Sprintf(`\u%04x`, r)
	}
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}
