package convert_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/convert"
)

func TestIsHollow(t *testing.T) {
	type hidden struct{ a, b int }
	type partly struct {
		a int
		B int `json:",omitempty"`
	}
	type embedding struct{ partly }
	h := &hidden{1, 2}
	for _, hollow := range []any{hidden{1, 2}, h, &h, errors.New("x"), fmt.Errorf("y: %w", errors.New("x"))} {
		require.True(t, convert.IsHollow(hollow), "%T", hollow)
	}
	for _, sound := range []any{partly{a: 1}, &embedding{}, struct{}{}, map[string]int{}, nil, "text", (*int)(nil), []hidden{}} {
		require.False(t, convert.IsHollow(sound), "%T", sound)
	}
}
