package mwl

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type badError struct{}

func (*badError) Error() string { panic("Error") }

func TestPanicText(t *testing.T) {
	itself := map[string]any{}
	itself["self"] = itself
	for want, value := range map[string]any{
		"oh":       "oh",
		"boom":     errors.New("boom"),
		"3":        3,
		"4":        uint8(4),
		"0.5":      0.5,
		"true":     true,
		"nil":      nil,
		"a\uFFFDb": "a\xffb",
		"a value of type map[string]interface {}": itself,
		"a value of type *mwl.badError":           &badError{},
	} {
		require.Equal(t, want, panicText(value))
	}
	cut := panicText(strings.Repeat("é", 100_000))
	require.Less(t, len(cut), maxPanicText+64)
	require.True(t, strings.HasSuffix(cut, "bytes more)"))
}
