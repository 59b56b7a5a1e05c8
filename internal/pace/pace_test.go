package pace

import (
	"strings"
	"testing"
	"time"

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

func TestOrderWithin(t *testing.T) {
	list := []string{"b3", "x", "a2", "b1", "a1", "b2", "w"}
	group := func(s string) string {
		if len(s) < 2 {
			return ""
		}
		return s[:1]
	}
	OrderWithin(list, group, func([]string) func(x, y string) int { return strings.Compare })
	require.Equal(t, []string{"b1", "x", "a1", "b2", "a2", "b3", "w"}, list)
}

func TestBackoff(t *testing.T) {
	var b Backoff
	var delays []time.Duration
	for range 5 {
		delays = append(delays, b.Grow(time.Second, 5*time.Second))
	}
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}, delays)
	b.Reset()
	require.Equal(t, time.Second, b.Grow(time.Second, 5*time.Second))
}
