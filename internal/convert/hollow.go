package convert

import "reflect"

// IsHollow reports whether encoding/json writes no member of a payload because none can be: it is an error, or a struct
// whose fields are all unexported. Call it for payloads that were encoded as {}.
func IsHollow(payload any) bool {
	if _, is := payload.(error); is {
		return true
	}
	t := reflect.TypeOf(payload)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct || t.NumField() == 0 {
		return false
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() || f.Anonymous { // an embedded struct may have exported fields
			return false
		}
	}
	return true
}
