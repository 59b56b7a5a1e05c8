// Package convert converts payloads to typed values.
package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
)

// ErrOtherType is returned by To for a payload that cannot become the wanted type.
var ErrOtherType = errors.New("another type")

// To returns a payload as a T. It converts a *T to a T, a T to a *T, and nil to a T that
// can be nil. It decodes a json.RawMessage. The error is ErrOtherType, or an error of
// encoding/json.
func To[T any](payload any) (T, error) {
	if v, ok := payload.(T); ok {
		return v, nil
	}
	if p, ok := payload.(*T); ok && p != nil {
		return *p, nil
	}
	var none T
	want := reflect.TypeFor[T]()
	if payload == nil {
		switch want.Kind() {
		case reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice, reflect.Chan, reflect.Func:
			return none, nil
		}
		return none, ErrOtherType
	}
	if want.Kind() == reflect.Pointer && reflect.TypeOf(payload) == want.Elem() {
		p := reflect.New(want.Elem())
		p.Elem().Set(reflect.ValueOf(payload))
		return p.Interface().(T), nil
	}
	raw, ok := payload.(json.RawMessage)
	switch {
	case !ok:
		return none, ErrOtherType
	case string(bytes.TrimSpace(raw)) == "null":
		return To[T](nil)
	}
	decoded := new(T)
	if err := json.Unmarshal(raw, decoded); err != nil {
		return none, err
	}
	return *decoded, nil
}
