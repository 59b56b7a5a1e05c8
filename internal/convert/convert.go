// Package convert converts payloads to typed values.
package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"sync"
)

// ErrOtherType is returned by To for a payload that cannot become the wanted type.
var ErrOtherType = errors.New("another type")

// To returns a payload as a T. It converts a *T to a T, a T to a *T, and nil to a T that
// can be nil. It decodes a json.RawMessage; numbers without a Go type of their own become a
// json.Number, and an object of which no member fits a struct is refused. With strict, each unknown member is. The error is
// ErrOtherType, one of encoding/json, or one that names the members.
func To[T any](payload any, strict bool) (T, error) {
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
		return To[T](nil, strict)
	}
	decoded := new(T)
	var err error
	switch exact := hasUntyped(want); {
	case strict:
		err = decodeWith(raw, decoded, func(in *json.Decoder) {
			in.DisallowUnknownFields()
			if exact {
				in.UseNumber()
			}
		})
	case exact:
		err = unmarshalExactly(raw, decoded)
	default:
		err = json.Unmarshal(raw, decoded)
	}
	if err == nil && isZero(reflect.ValueOf(decoded)) { // most often something fits, and nothing needs to be looked at
		err = noMemberFits(raw, want)
	}
	if err != nil {
		return none, err
	}
	return *decoded, nil
}

// Decode returns what a codec decodes, as a T. unmarshal is the codec's Unmarshal for the payload.
// If T has no Go type of its own, such as a map[string]any, and the codec uses encoding/json, numbers
// become as in To. Any other T is the codec's: it may refuse unknown members, or know the type.
func Decode[T any](unmarshal func(pointer any) error) (decoded T, err error) {
	if isUntyped(reflect.TypeFor[T]()) {
		exact := exactDecoder{pointer: &decoded}
		if err = unmarshal(&exact); exact.called {
			return decoded, err
		}
	}
	err = unmarshal(&decoded)
	return decoded, err
}

// exactDecoder decodes JSON into pointer. Codecs of other encodings do not call it, and find no field to set.
type exactDecoder struct {
	pointer any
	called  bool
}

func (e *exactDecoder) UnmarshalJSON(data []byte) error {
	e.called = true
	return unmarshalExactly(data, e.pointer)
}

// isZero reports whether what a pointer points to, through further pointers, is the zero value of its type.
func isZero(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v.IsZero()
}

// unmarshalExactly is json.Unmarshal, but numbers that it stores in interfaces become a
// json.Number: a float64 would lose digits.
func unmarshalExactly(data []byte, pointer any) error {
	return decodeWith(data, pointer, (*json.Decoder).UseNumber)
}

// decodeWith is json.Unmarshal with a setting of a Decoder. It copies the data, which json.Unmarshal does not.
func decodeWith(data []byte, pointer any, set func(*json.Decoder)) error {
	in := json.NewDecoder(bytes.NewReader(data))
	set(in)
	err := in.Decode(pointer)
	if err == nil && len(bytes.TrimSpace(data[in.InputOffset():])) == 0 {
		return nil
	}
	// The Decoder has other errors for data that ends early, and none for data after the value.
	if invalid := json.Unmarshal(data, new(json.RawMessage)); invalid != nil {
		return invalid
	}
	return err
}

// isUntyped reports whether a t consists of interfaces, and of maps, lists and pointers without names.
func isUntyped(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface:
		return t.NumMethod() == 0
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return t.Name() == "" && isUntyped(t.Elem())
	}
	return false
}

// untyped has the result of hasUntyped for each type that was asked for.
var untyped sync.Map // reflect.Type: bool

// hasUntyped reports whether encoding/json may store a value in an interface when it decodes a t.
func hasUntyped(t reflect.Type) bool {
	if known, ok := untyped.Load(t); ok {
		return known.(bool)
	}
	found := reachesInterface(t, make(map[reflect.Type]bool))
	untyped.Store(t, found)
	return found
}

// reachesInterface reports whether a t has an interface at any depth. The types in seen have been
// checked. encoding/json ignores unexported fields, except embedded ones, and map keys are strings.
func reachesInterface(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return reachesInterface(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && reachesInterface(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
