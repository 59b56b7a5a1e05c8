package expr

import (
	"fmt"
	"math"
	"reflect"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/surebus/eventbus/mwl/internal/value"
)

// adapter takes values into CEL. A number of the data plane is always a float64 there, so it is a double in CEL.
type adapter struct{ types.Adapter }

func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	case Fields:
		return &object{v}
	}
	return a.Adapter.NativeToValue(v)
}

// The types behind which CEL keeps an object or array that came in. What they wrap is a value and leaves as it is.
var (
	wrappedMap  = reflect.TypeOf(types.NewStringInterfaceMap(types.DefaultTypeAdapter, map[string]any{}))
	wrappedList = reflect.TypeOf(types.NewDynamicList(types.DefaultTypeAdapter, []any{}))
)

// leaving is the way out of CEL for one result.
type leaving struct{ nodes, bytes int }

// Bounds on one result. They are far beyond what a workflow hands on, and keep a result whose parts repeat from growing without end.
const (
	maxResultNodes = 1 << 18
	maxResultBytes = 16 << 20
	maxResultDepth = 1000
)

// result converts what an expression gave to a value. The error's text says what stands in the way and how to convert it.
func result(v ref.Val) (any, error) {
	var l leaving
	return l.convert(v, 0)
}

func (l *leaving) convert(v ref.Val, depth int) (any, error) {
	l.nodes++
	if l.nodes > maxResultNodes || depth > maxResultDepth {
		return nil, errTooBig
	}
	switch v := v.(type) {
	case types.Bool:
		return bool(v), nil
	case types.String:
		if l.bytes += len(v); l.bytes > maxResultBytes {
			return nil, errTooBig
		}
		if !utf8.ValidString(string(v)) {
			return nil, fmt.Errorf("the string is not valid UTF-8; use base64.encode() on the bytes")
		}
		return string(v), nil
	case types.Double:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("the number %v is not finite, and has no form in JSON; guard the division or the conversion that made it", f)
		}
		return float64(v), nil
	case types.Int:
		if v > value.MaxInteger || v < -value.MaxInteger {
			return nil, fmt.Errorf("the integer %d is beyond ±2^53, where a number is no longer exact; use double() to accept the loss or string() to keep it", int64(v))
		}
		return float64(v), nil
	case types.Uint:
		if v > value.MaxInteger {
			return nil, fmt.Errorf("the integer %d is beyond 2^53, where a number is no longer exact; use double() to accept the loss or string() to keep it", uint64(v))
		}
		return float64(v), nil
	case types.Null:
		return nil, nil
	case *object:
		return l.materialize(v.fields, depth)
	}
	return l.aggregate(v, depth)
}

var errTooBig = fmt.Errorf("the result is too big: more than %d parts, %d bytes of text or %d levels", maxResultNodes, maxResultBytes, maxResultDepth)

func (l *leaving) aggregate(v ref.Val, depth int) (any, error) {
	switch v := v.(type) {
	case traits.Mapper:
		if reflect.TypeOf(v) == wrappedMap {
			return v.Value(), nil
		}
		size, _ := v.Size().(types.Int)
		if l.bytes += 320 + 80*int(size); l.bytes > maxResultBytes {
			return nil, errTooBig
		}
		out := make(map[string]any, size)
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.(types.String)
			if !ok {
				return nil, fmt.Errorf("the map has a key of type %s, and a member name is a string; build the map with string keys", key.Type().TypeName())
			}
			part, err := l.convert(v.Get(key), depth+1)
			if err != nil {
				return nil, err
			}
			out[string(name)] = part
		}
		return out, nil
	case traits.Lister:
		if reflect.TypeOf(v) == wrappedList {
			return v.Value(), nil
		}
		size, _ := v.Size().(types.Int)
		out := make([]any, 0, min(int(size), maxResultNodes))
		for it := v.Iterator(); it.HasNext() == types.True; {
			part, err := l.convert(it.Next(), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, part)
		}
		return out, nil
	case types.Bytes:
		return nil, fmt.Errorf("bytes have no form in JSON; use base64.encode()")
	case types.Timestamp:
		return nil, fmt.Errorf("a timestamp has no form in JSON; use string() for its RFC 3339 text")
	case types.Duration:
		return nil, fmt.Errorf("a duration has no form in JSON; use durationToIso8601() for its ISO 8601 text, or string() for seconds")
	}
	return nil, fmt.Errorf("a value of the type %s has no form in JSON", v.Type().TypeName())
}

// materialize makes a value of fields.
func (l *leaving) materialize(f Fields, depth int) (any, error) {
	names := f.FieldNames()
	out := make(map[string]any, len(names))
	for _, name := range names {
		part, ok := f.Field(name)
		if !ok {
			continue
		}
		if nested, ok := part.(Fields); ok {
			m, err := l.materialize(nested, depth+1)
			if err != nil {
				return nil, err
			}
			part = m
		}
		out[name] = part
	}
	return out, nil
}

// object is Fields as CEL sees them: a map with string keys.
type object struct{ fields Fields }

// FindStringKey is what CEL asks for the member that a selection names.
func (o *object) FindStringKey(name string) (any, bool) {
	v, ok := o.fields.Field(name)
	if f, nested := v.(Fields); nested {
		return &object{f}, ok
	}
	return v, ok
}

// whole is the object with all members in hand, for the uses that need more than one.
func (o *object) whole() traits.Mapper {
	names := o.fields.FieldNames()
	m := make(map[string]any, len(names))
	for _, name := range names {
		if part, ok := o.FindStringKey(name); ok {
			m[name] = part
		}
	}
	return &members{types.NewStringInterfaceMap(o.adapter(), m)}
}

// members hides the map of an object, whose members may be Fields, from the way out that takes a wrapped map for a value.
type members struct{ traits.Mapper }

// adapter takes the members into CEL, which needs no registry for them.
func (o *object) adapter() types.Adapter { return adapter{types.DefaultTypeAdapter} }

func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	part, ok := o.FindStringKey(string(name))
	if !ok {
		return nil, false
	}
	return o.adapter().NativeToValue(part), true
}

func (o *object) Get(key ref.Val) ref.Val {
	if part, ok := o.Find(key); ok {
		return part
	} else if types.IsError(part) {
		return part
	}
	return types.NewErr("no such key: %v", key)
}

func (o *object) Contains(key ref.Val) ref.Val {
	part, ok := o.Find(key)
	if part != nil && types.IsError(part) {
		return part
	}
	return types.Bool(ok)
}

func (o *object) Size() ref.Val                    { return types.Int(len(o.fields.FieldNames())) }
func (o *object) Iterator() traits.Iterator        { return o.whole().Iterator() }
func (o *object) Equal(other ref.Val) ref.Val      { return o.whole().Equal(other) }
func (o *object) Type() ref.Type                   { return types.MapType }
func (o *object) Value() any                       { return o.whole().Value() }
func (o *object) ConvertToType(t ref.Type) ref.Val { return o.whole().ConvertToType(t) }

func (o *object) ConvertToNative(t reflect.Type) (any, error) { return o.whole().ConvertToNative(t) }

var (
	_ traits.Mapper  = (*object)(nil)
	_ cel.Activation = (*activation)(nil)
)
