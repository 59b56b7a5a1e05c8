// Package route finds the subscriptions of an event type. It has the patterns (see
// [Parse]), an index of subscriptions by pattern, and a bounded cache of results (see
// [Table]). It does not depend on events or handlers. No other package imports gobwas/glob.
//
// [Table.Cached] looks up a type in the cache of the current state. For a miss, [CheckType]
// validates the type and [Table.Find] walks the index. [Table.Lookup] combines Cached and
// Find.
package route

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxTypeBytes is the length of the longest event type.
	MaxTypeBytes = 255
	// MaxPatternBytes is the length of the longest pattern, before its braces are expanded.
	MaxPatternBytes = 1024
	// MaxAlternatives is the maximum number of patterns that the braces of one pattern expand
	// to.
	MaxAlternatives = 64
)

// Offence reports why a pattern or an event type is invalid, and where.
type Offence struct {
	// Offset is the byte at which the offence begins. It is the length of the text if the end
	// is incomplete.
	Offset int
	// Reason is a clause such as "white space is not allowed", and a remedy if one exists. It
	// quotes at most one character of the text.
	Reason string
}

// Error returns the reason and the offset.
func (o *Offence) Error() string {
	return fmt.Sprintf("%s (at byte %d)", o.Reason, o.Offset)
}

func offence(offset int, format string, args ...any) *Offence {
	return &Offence{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}

// CheckType returns nil if typ is a valid event type: 1 to [MaxTypeBytes] bytes of UTF-8,
// in non-empty segments separated by dots. It must not have metacharacters of patterns (* ?
// [ ] { } \), white space, control characters or invisible format characters, which make
// different types look the same. It does not allocate unless it finds an offence.
func CheckType(typ string) *Offence {
	switch {
	case typ == "":
		return offence(0, "it is empty")
	case len(typ) > MaxTypeBytes:
		return offence(MaxTypeBytes, "it is longer than %d bytes", MaxTypeBytes)
	}
	// Most types are plain, which is checked eight bytes at a time. Each group begins with the
	// last byte of the previous one, to find two dots in a row. Lengths of types are hard to
	// predict, so most types take the same branches.
	var odd uint64
	if last := len(typ) - 8; last < 0 {
		padding := uint64('a'*eachByte) << (8 * len(typ))
		odd = notPlain(short(typ) | padding)
	} else {
		odd = notPlain(word(typ, 0)) | notPlain(word(typ, min(7, last))) |
			notPlain(word(typ, min(14, last))) | notPlain(word(typ, last))
		for i := 21; i < last; i += 7 {
			odd |= notPlain(word(typ, i))
		}
	}
	if odd == 0 && typ[0] != '.' && typ[len(typ)-1] != '.' {
		return nil
	}
	return findOffence(typ)
}

// findOffence is CheckType for a type that is not plain, or begins or ends with a dot.
func findOffence(typ string) *Offence {
	segment := 0 // where the current one begins
	for i := 0; i < len(typ); i++ {
		switch c := typ[i]; {
		case c == '.':
			if i == segment {
				return offence(i, "a segment is empty: %s", dotRemedy(typ, i))
			}
			segment = i + 1
		case strings.IndexByte(`*?[]{}\`, c) >= 0:
			return offence(i, "%q has a meaning in patterns and cannot be in a type", c)
		case c <= ' ' || c >= 0x7f:
			r, size := utf8.DecodeRuneInString(typ[i:])
			if reason := badRune(r, size); reason != "" {
				return offence(i, "%s", reason)
			}
			i += size - 1
		}
	}
	if segment == len(typ) {
		return offence(len(typ)-1, "the last segment is empty: remove the dot at the end")
	}
	return nil
}

func dotRemedy(text string, i int) string {
	if i == 0 {
		return "remove the dot at the beginning"
	}
	return "remove one of the two dots"
}

// badRune returns why neither a type nor a pattern may contain r, or "".
func badRune(r rune, size int) string {
	switch {
	case r == utf8.RuneError && size <= 1:
		return "it is not valid UTF-8"
	case unicode.IsSpace(r):
		return "white space is not allowed"
	case unicode.IsControl(r):
		return fmt.Sprintf("control characters are not allowed (%U)", r)
	case unicode.Is(unicode.Cf, r):
		return fmt.Sprintf("invisible characters are not allowed (%U)", r)
	}
	return ""
}
