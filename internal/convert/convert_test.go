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
	v, err := convert.To[T](payload)
	require.NoError(t, err)
	return v
}

func refused[T any](t *testing.T, payload any) error {
	t.Helper()
	v, err := convert.To[T](payload)
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
