// Package texts converts untrusted values to short, valid texts.
package texts

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// OfError returns the text of an error, cut to a number of bytes. If its method panics, it returns
// the type. known is a text that is known to be valid UTF-8, or "": errors are often the same.
func OfError(err error, known string, most int) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T, whose Error method panicked", err)
		}
	}()
	if text = Cut(err.Error(), most); text == known {
		return text
	}
	// JSON has the same replacement, so a text survives an export and an import.
	return strings.ToValidUTF8(text, "\uFFFD")
}

// OfPanic returns the text of a panic's value if it is a string, an error or a scalar, and
// otherwise its type. Formatting another value could hang or crash: it may contain itself,
// change concurrently, or have methods that block.
func OfPanic(value any, most int) string {
	if err, ok := value.(error); ok {
		if text := OfError(err, "", most); text != "" {
			return text
		}
		return fmt.Sprintf("%T with an empty text", value)
	}
	if value == "" {
		return `""`
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.String:
		return strings.ToValidUTF8(Cut(v.String(), most), "\uFFFD")
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())
	case reflect.Complex64, reflect.Complex128:
		return strconv.FormatComplex(v.Complex(), 'g', -1, v.Type().Bits())
	}
	return fmt.Sprintf("a value of type %T", value)
}

// Cut cuts a text to a number of bytes and appends the number of removed bytes.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("… (%d bytes more)", len(text)-most)
}

// Shorten cuts a text to a number of bytes and appends an ellipsis.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// Problem returns why a text is not a valid name, and the offset: it is longer than most
// bytes, not valid UTF-8, or has a control character. The reason is "" for a valid name.
func Problem(text string, most int) (reason string, offset int) {
	switch control := strings.IndexFunc(text, unicode.IsControl); {
	case len(text) > most:
		return fmt.Sprintf("is longer than %d bytes", most), most
	case !utf8.ValidString(text):
		return "is not valid UTF-8", 0
	case control >= 0:
		return "has a control character", control
	}
	return "", 0
}
