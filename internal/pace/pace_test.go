package pace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNext_PartsAreBoundedByCountAndSize(t *testing.T) {
	var parts [][]int
	for list := []int{1, 1, 1, 5, 5, 20, 1, 1}; len(list) > 0; {
		part := Next(list, 3, 8, func(n int) int { return n })
		parts = append(parts, part)
		list = list[len(part):]
	}
	require.Equal(t, [][]int{{1, 1, 1}, {5}, {5}, {20}, {1, 1}}, parts)
	require.Empty(t, Next(nil, 3, 8, func(n int) int { return n }))
}

func TestAfter_IsTheNextID(t *testing.T) {
	require.Equal(t, [16]byte{15: 1}, After([16]byte{}))
	require.Equal(t, [16]byte{13: 2}, After([16]byte{13: 1, 14: 255, 15: 255}))
	all := [16]byte{}
	for i := range all {
		all[i] = 255
	}
	require.Zero(t, After(all))
}
