package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/surebus/eventbus"
)

// deepCopy returns a copy that shares no memory with v: a bus over a Model must not depend on
// memory that a store on disk loses. Times become UTC without a monotonic reading. Unexported
// fields, and errors in a Failure, are lost.
func deepCopy[T any](v T) T {
	var c T
	copyInto(reflect.ValueOf(&c).Elem(), reflect.ValueOf(&v).Elem())
	return c
}

func copyInto(dst, src reflect.Value) {
	switch v := src.Interface().(type) {
	case time.Time:
		dst.Set(reflect.ValueOf(v.Round(0).UTC()))
		return
	case eventbus.EventMetadata: // immutable
		dst.Set(src)
		return
	}
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			copyInto(dst.Elem(), src.Elem())
		}
	case reflect.Slice:
		if src.IsNil() {
			return
		}
		dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
		for i := range src.Len() {
			copyInto(dst.Index(i), src.Index(i))
		}
	case reflect.Struct:
		for i := range src.NumField() {
			if src.Type().Field(i).IsExported() {
				copyInto(dst.Field(i), src.Field(i))
			}
		}
	case reflect.Interface:
		if src.IsNil() || src.Type() == reflect.TypeFor[error]() {
			return
		}
		c := reflect.New(src.Elem().Type()).Elem()
		copyInto(c, src.Elem())
		dst.Set(c)
	case reflect.Map, reflect.Chan, reflect.Func:
		panic(fmt.Sprintf("storetest: a record or letter has a %s", src.Type()))
	default:
		dst.Set(src)
	}
}

// checkPayload panics if a letter has a payload that a store on disk could not keep.
func checkPayload(l *eventbus.DeadLetter) {
	for _, p := range []any{l.Event.Payload, l.Original} {
		switch p.(type) {
		case nil, json.RawMessage, eventbus.EncodedPayload:
		default:
			panic(fmt.Sprintf("storetest: letter %s has a payload of type %T, not a json.RawMessage or an EncodedPayload", l.ID, p))
		}
	}
}
