package capped_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/capped"
)

func TestSet(t *testing.T) {
	s := capped.NewSet(2)
	require.True(t, s.IsNew("a"))
	require.False(t, s.IsNew("a"))
	require.True(t, s.IsNew("b"))
	require.False(t, s.IsNew("c"), "the set is full")
	require.False(t, s.IsNew("b"))
}
