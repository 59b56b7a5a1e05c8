package value

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns the canonical JSON text of a value; see [AppendJSON].
func JSON(v any) string { return string(AppendJSON(nil, v)) }

// AppendJSON appends the canonical JSON text of a value by RFC 8785: no spaces, members sorted by UTF-16 code units, numbers as ECMAScript writes them. Equal values
// give equal bytes. What is no value is written as null.
func AppendJSON(dst []byte, v any) []byte { return appendUpTo(dst, v, math.MaxInt) }

// appendUpTo stops soon after dst has more than limit bytes.
func appendUpTo(dst []byte, v any, limit int) []byte {
	left := limit - len(dst)
	if left < 0 {
		return dst
	}
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(dst, v)
	case float64:
		return appendNumber(dst, v)
	case string:
		return appendString(dst, v[:min(len(v), left)])
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst = appendUpTo(dst, e, limit); len(dst) > limit {
				return dst
			}
		}
		return append(dst, ']')
	case map[string]any:
		dst = append(dst, '{')
		for i, name := range firstNames(v, left/5+1) { // a member takes 5 bytes or more: ,"":0
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, name[:min(len(name), left)]), ':')
			if dst = appendUpTo(dst, v[name], limit); len(dst) > limit {
				return dst
			}
		}
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

// firstNames returns the n smallest names of an object, sorted. It keeps few more than that, because the object may be large.
func firstNames(object map[string]any, n int) []string {
	names := make([]string, 0, min(len(object), 2*n))
	full := false
	for name := range object {
		if full && compareUTF16(name, names[n-1]) > 0 {
			continue
		}
		if len(names) == 2*n {
			slices.SortFunc(names, compareUTF16)
			names, full = names[:n], true
		}
		names = append(names, name)
	}
	slices.SortFunc(names, compareUTF16)
	return names[:min(len(names), n)]
}

// Excerpt returns the canonical JSON text of a value, cut like [Cut]. It writes a small multiple of limit bytes at most, but it visits all names of each object that it
// writes, because the text begins with the smallest.
func Excerpt(v any, limit int) string { return Cut(string(appendUpTo(nil, v, limit)), limit) }

// Cut returns the first limit bytes of a text, or a few less so that no character is cut, and then "…". It returns a shorter text whole. The result shares no memory
// with the text, which may be part of a much larger one.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return strings.Clone(text)
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "…"
}

// compareUTF16 differs from the order of code points where one side is beyond the basic plane: its surrogates sort below U+E000.
func compareUTF16(a, b string) int {
	for a != "" && b != "" {
		x, n := utf8.DecodeRuneInString(a)
		y, m := utf8.DecodeRuneInString(b)
		if x != y {
			return int(firstUnit(x)-firstUnit(y))*2 + sign(x-y)
		}
		a, b = a[n:], b[m:]
	}
	return len(a) - len(b)
}

func firstUnit(r rune) rune {
	if high, _ := utf16.EncodeRune(r); high != utf8.RuneError {
		return high
	}
	return r
}

func sign(r rune) int {
	if r < 0 {
		return -1
	}
	return 1
}

// appendNumber writes the shortest text that reads back as f: plain between 1e-6 and 1e21, else with an exponent.
func appendNumber(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0')
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// ECMAScript writes 1e-7 where Go writes 1e-07.
	if i := slices.Index(dst[start:], 'e'); i >= 0 && i+2 < len(dst)-start && dst[start+i+2] == '0' {
		dst = slices.Delete(dst, start+i+2, start+i+3)
	}
	return dst
}

const hexDigits = "0123456789abcdef"

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			if c < ' ' {
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
				continue
			}
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
