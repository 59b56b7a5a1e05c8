package value

import (
	"encoding/json"
	"reflect"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest in what comes from outside: Go values and JSON texts.
const MaxDepth = 1000

// Of makes a value of any Go value, always a fresh copy that shares nothing changeable with v.
//
// The six forms of a value, all integer and float kinds, json.Number and maps and slices of these are taken as they are; everything else goes
// through its JSON encoding, so struct tags, json.Marshaler and encoding.TextMarshaler hold. A []byte becomes base64 text, as in encoding/json; a json.RawMessage is
// read as JSON. Refused, with an *Error: NaN and infinities, numbers that a double cannot hold exactly (carry them as strings), strings that are not UTF-8, nesting
// beyond [MaxDepth] (a cycle ends there) and what has no JSON encoding.
//
// A double holds a number if its exact or its shortest decimal form has the same digits: 0.1 and 9007199254740994, but not 9007199254740993. Of judges the JSON form,
// so a Go value and its JSON text make the same value, or are refused with the same words.
func Of(v any) (any, error) {
	out, err := of(v, nil, 0)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func of(v any, at *path, depth int) (any, *Error) {
	if depth > MaxDepth {
		return nil, at.fail("nested deeper than %d levels: flatten it, or break the cycle", MaxDepth)
	}
	switch v := v.(type) {
	case nil:
		return nil, nil
	case bool:
		return v, nil
	case string:
		return text(v, at)
	case float64:
		return number(v, at)
	case float32:
		return single(v, at)
	case int:
		return signed(int64(v), at)
	case int64:
		return signed(v, at)
	case json.Number:
		return numberOf(string(v), at)
	case json.RawMessage:
		return parsed(v, at)
	case []any:
		out := make([]any, len(v))
		here := &path{up: at} // for all of them, because an error ends the loop
		for i, e := range v {
			here.index = i
			x, err := of(e, here, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		here := &path{up: at, index: -1}
		for k, e := range v {
			here.name = k
			if !utf8.ValidString(k) {
				return nil, here.fail("the member name is not valid UTF-8: encode it")
			}
			x, err := of(e, here, depth+1)
			if err != nil {
				return nil, err
			}
			out[k] = x
		}
		return out, nil
	case json.Marshaler, interface{ MarshalText() ([]byte, error) }, []byte:
		return encoded(v, at)
	}
	return reflected(reflect.ValueOf(v), at, depth)
}

// reflected takes apart the kinds whose JSON encoding would lose something silently: strings that are not UTF-8.
func reflected(v reflect.Value, at *path, depth int) (any, *Error) {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.String:
		return text(v.String(), at)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return signed(v.Int(), at)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return unsigned(v.Uint(), at)
	case reflect.Float32:
		return single(float32(v.Float()), at)
	case reflect.Float64:
		return number(v.Float(), at)
	case reflect.Slice:
		if v.IsNil() {
			return nil, nil
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return encoded(v.Interface(), at)
		}
		fallthrough
	case reflect.Array:
		out := make([]any, v.Len())
		for i := range out {
			x, err := of(v.Index(i).Interface(), &path{up: at, index: i}, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = x
		}
		return out, nil
	case reflect.Map:
		if v.IsNil() {
			return nil, nil
		}
		if v.Type().Key().Kind() != reflect.String {
			return encoded(v.Interface(), at)
		}
		out := make(map[string]any, v.Len())
		for entry := v.MapRange(); entry.Next(); {
			name := entry.Key().String()
			here := &path{up: at, name: name, index: -1}
			if !utf8.ValidString(name) {
				return nil, here.fail("the member name is not valid UTF-8: encode it")
			}
			x, err := of(entry.Value().Interface(), here, depth+1)
			if err != nil {
				return nil, err
			}
			out[name] = x
		}
		return out, nil
	case reflect.Pointer:
		if v.IsNil() {
			return nil, nil
		}
		return of(v.Elem().Interface(), at, depth+1)
	}
	return encoded(v.Interface(), at)
}

func encoded(v any, at *path) (any, *Error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, at.fail("%v: convert it to null, a boolean, a number, a string, an array or an object", err)
	}
	return parsed(data, at)
}

func parsed(data []byte, at *path) (any, *Error) {
	p := parser{data: data}
	v, err := p.text(at)
	switch {
	case p.refused != nil:
		return nil, p.refused
	case err != nil:
		return nil, at.fail("its JSON is not acceptable: %s", err.Problem)
	}
	return v, nil
}

func text(s string, at *path) (any, *Error) {
	if !utf8.ValidString(s) {
		return nil, at.fail("the string is not valid UTF-8: encode binary data, as base64 for example")
	}
	return s, nil
}
