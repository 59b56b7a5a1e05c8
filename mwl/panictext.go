package mwl

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// maxPanicText is the number of bytes that are kept of the text of a panic.
const maxPanicText = 8 << 10

// panicText describes the value of a panic. It formats strings, errors, numbers and bools
// only. Of any other value it names the type, because a value that contains itself
// overflows the stack, and one that another goroutine writes ends the process; no recover
// stops either.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a value of type %T", value)
		}
	}()
	if err, ok := value.(error); ok {
		return cutText(err.Error())
	}
	v := reflect.ValueOf(value) // its kinds are read without methods of the value
	switch {
	case !v.IsValid():
		return "nil"
	case v.Kind() == reflect.String:
		return cutText(v.String())
	case v.Kind() == reflect.Bool:
		return fmt.Sprint(v.Bool())
	case v.CanInt():
		return fmt.Sprint(v.Int())
	case v.CanUint():
		return fmt.Sprint(v.Uint())
	case v.CanFloat():
		return fmt.Sprint(v.Float())
	}
	return fmt.Sprintf("a value of type %T", value)
}

// cutText cuts before it copies or validates: the text may have any size.
func cutText(text string) string {
	omitted := ""
	if len(text) > maxPanicText {
		end := maxPanicText
		for end > maxPanicText-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		omitted = fmt.Sprintf("… (%d bytes more)", len(text)-end)
		text = text[:end]
	}
	return strings.ToValidUTF8(text, "\uFFFD") + omitted
}
