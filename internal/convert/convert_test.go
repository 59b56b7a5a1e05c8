package convert_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/convert"
)

type order struct{ Number int }

func to[T any](t *testing.T, payload any) T {
	t.Helper()
	v, err := convert.To[T](payload, false)
	require.NoError(t, err)
	return v
}

func refused[T any](t *testing.T, payload any) error {
	t.Helper()
	v, err := convert.To[T](payload, false)
	require.Error(t, err)
	require.Zero(t, v)
	return err
}

func TestValuesAndPointers(t *testing.T) {
	require.Equal(t, order{1}, to[order](t, order{1}))
	require.Equal(t, order{1}, to[order](t, &order{1}))
	require.Equal(t, &order{1}, to[*order](t, order{1}))
	o := &order{1}
	require.Same(t, o, to[*order](t, o))
	require.Equal(t, io.Reader(strings.NewReader("")), to[io.Reader](t, strings.NewReader("")))
	require.Equal(t, any(1), to[any](t, 1))

	require.Equal(t, convert.ErrOtherType, refused[order](t, "text"))
	require.Equal(t, convert.ErrOtherType, refused[*order](t, 1))
	require.Equal(t, convert.ErrOtherType, refused[order](t, (*order)(nil)))
	require.Equal(t, convert.ErrOtherType, refused[fmt.Stringer](t, 1))
	require.Equal(t, convert.ErrOtherType, refused[int64](t, 1))
}

func TestNil(t *testing.T) {
	require.Nil(t, to[*order](t, nil))
	require.Nil(t, to[[]int](t, nil))
	require.Nil(t, to[any](t, nil))
	require.Equal(t, convert.ErrOtherType, refused[order](t, nil))
}

func TestJSONIsDecoded(t *testing.T) {
	raw := json.RawMessage(`{"Number": 1}`)
	require.Equal(t, order{1}, to[order](t, raw))
	require.Equal(t, &order{1}, to[*order](t, raw))
	require.Equal(t, raw, to[json.RawMessage](t, raw))
	require.Nil(t, to[*order](t, json.RawMessage(" null ")))
	require.Equal(t, convert.ErrOtherType, refused[order](t, json.RawMessage("null")))
	require.ErrorContains(t, refused[order](t, json.RawMessage(`{"Number": "x"}`)), "Number")
}

type base struct {
	Base int
	hid  int //nolint:unused // no member
}

type tagged struct {
	*base
	Number  int    `json:"n,omitempty"`
	Ignored string `json:"-"`
	Odd     int    `json:"o\\\\dd"` //nolint:staticcheck // encoding/json ignores the name
}

type opaque struct{ hidden int } //nolint:unused // no member

type selfMade struct{ Number int }

func (s *selfMade) UnmarshalJSON([]byte) error { return nil }

// An object with members of which none fits a struct is another event's. What has no members, or decodes itself, is not looked at.
func TestNoMemberFits(t *testing.T) {
	object := json.RawMessage(`{"sku":"x","Ignored":"y","hid":1,"hidden":2}`)
	for what, err := range map[string]error{
		"value":   refused[order](t, object),
		"pointer": refused[*order](t, object),
		"tagged":  refused[tagged](t, object),
	} {
		require.ErrorContains(t, err, `no member of the object fits: it has "sku", "Ignored", "hid", "hidden", and the type has "`, what)
	}
	require.EqualError(t, refused[tagged](t, json.RawMessage(`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":{"n":1},"g":[]}`)),
		`no member of the object fits: it has "a", "b", "c", "d", "e", and 2 more, and the type has "Base", "n", "Odd"`)

	require.Equal(t, order{}, to[order](t, json.RawMessage(`{}`)), "an object without members")
	require.Equal(t, order{}, to[order](t, json.RawMessage(`{"x":1,"number":0}`)), "one fits, and is zero")
	require.Equal(t, tagged{}, to[tagged](t, json.RawMessage(`{"x":1,"N":0}`)))
	require.Equal(t, tagged{}, to[tagged](t, json.RawMessage(`{"odd":0}`)), "encoding/json ignores the name of the tag")
	require.Equal(t, 1, to[tagged](t, json.RawMessage(`{"n":1,"x":2}`)).Number)
	require.Equal(t, opaque{}, to[opaque](t, object), "a type without members")
	require.Equal(t, selfMade{}, to[selfMade](t, object), "a type with its own decoding")
	require.Equal(t, &selfMade{}, to[*selfMade](t, object))
	require.Equal(t, map[string]any{"x": json.Number("1")}, to[map[string]any](t, json.RawMessage(`{"x":1}`)))
	require.Zero(t, **to[**order](t, json.RawMessage(`{"Number":0}`)))
}

// With strict, each unknown member is refused, at any depth.
func TestStrict(t *testing.T) {
	type nested struct {
		Inner *order
		Any   any
	}
	for text, fits := range map[string]bool{
		`{"Inner":{"Number":1},"Any":9007199254740993}`: true,
		`{"Inner":{"Number":1,"x":2}}`:                  false,
		`{"y":1,"Inner":null}`:                          false,
		`{"Inner":null} x`:                              false,
		`{}`:                                            true,
	} {
		v, err := convert.To[nested](json.RawMessage(text), true)
		require.Equal(t, fits, err == nil, "%s: %v", text, err)
		if v.Any != nil {
			require.Equal(t, json.Number("9007199254740993"), v.Any)
		}
	}
	v, err := convert.To[order](order{1}, true)
	require.NoError(t, err)
	require.Equal(t, order{1}, v, "a value is no text")
}
