package storetest

import (
	"bytes"
	"fmt"
	"reflect"
	"time"
)

// deepCopy returns a copy that shares no memory with v: a bus over a Model must not depend on
// memory that a store on disk loses. Times become UTC without a monotonic reading.
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
	case []byte:
		dst.SetBytes(bytes.Clone(v))
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
			copyInto(dst.Field(i), src.Field(i))
		}
	case reflect.Interface, reflect.Map, reflect.Chan, reflect.Func:
		panic(fmt.Sprintf("storetest: a record or letter has a %s", src.Type()))
	default:
		dst.Set(src)
	}
}
