// Package route answers one question: which subscriptions does an event of this
// type go to? It holds the patterns (see [Parse]), an index of subscriptions by
// pattern and a bounded cache of its answers (see [Table]). It knows nothing of
// events or handlers, and it is the only package that imports gobwas/glob.
//
// The way of a type: [Table.Cached] finds it in the cache of the current state;
// if it is not there, [CheckType] says whether it is a type at all and
// [Table.Find] walks the index. [Table.Lookup] is both.
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
	// MaxPatternBytes is the length of the longest pattern, as it is written.
	MaxPatternBytes = 1024
	// MaxAlternatives is the number of patterns that the braces of one pattern
	// may stand for.
	MaxAlternatives = 64
)

// Offence says what is wrong with a pattern or an event type, and where.
type Offence struct {
	// Offset is the byte at which the offence begins; it is the length of the
	// text if something is missing at the end.
	Offset int
	// Reason is a clause such as "white space is not allowed", with the remedy
	// where there is one. It never quotes more than one character of the text.
	Reason string
}

// Error returns the reason and the offset.
func (o *Offence) Error() string {
	return fmt.Sprintf("%s (at byte %d)", o.Reason, o.Offset)
}

func offence(offset int, format string, args ...any) *Offence {
	return &Offence{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}

// CheckType returns nil if typ can be the type of an event: 1 to [MaxTypeBytes]
// bytes of UTF-8, in non-empty segments separated by dots, without the
// characters that mean something in a pattern (* ? [ ] { } \), white space,
// control characters or invisible format characters (two types that look the
// same would not be the same). It does not allocate unless it finds an offence.
func CheckType(typ string) *Offence {
	switch {
	case typ == "":
		return offence(0, "it is empty")
	case len(typ) > MaxTypeBytes:
		return offence(MaxTypeBytes, "it is longer than %d bytes", MaxTypeBytes)
	}
	// Most are plain, which is found out eight bytes at once. Each eight begin with the
	// last of those before, so that two dots in a row are found. How long types are is
	// hard to foretell, so most take the same way.
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

// findOffence is CheckType for one that is not plain, or begins or ends with a dot.
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

// badRune returns why r can be neither in a type nor in a pattern, or "".
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
