package route

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only from inside can hashes be made to collide, wholly or in their lower bits.
func TestByTextKeepsTextsWhoseHashesCollide(t *testing.T) {
	spreads := map[string]func(i int) uint64{
		"last bits apart": func(i int) uint64 { return uint64(i) << 52 },
		"next to another": func(i int) uint64 { return uint64(i) },
		"spread":          func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 },
	}
	test := func(name, prefix string, spread func(i int) uint64) {
		t.Run(name, func(t *testing.T) {
			const n = 300
			text := func(i int) string { return prefix + strconv.Itoa(i) }
			var m, half byText[int]
			for i := range n {
				if i == n/2 {
					half = m
				}
				m = m.with(spread(i), text(i), i)
				m = m.with(spread(i), text(i), -i)
			}
			at := func(m byText[int], i int) *int { return m.get(spread(i), text(i)) }
			for i := range n {
				require.NotNil(t, at(m, i))
				require.Equal(t, -i, *at(m, i))
				require.Equal(t, i < n/2, at(half, i) != nil, "an older map must stay as it was")
			}
			require.Nil(t, at(m, n))
			require.Equal(t, m, m.without(spread(n), text(n)))
			for i := range n {
				require.False(t, m.empty())
				m = m.without(spread(i), text(i))
				require.Nil(t, at(m, i))
				var left []int
				for v := range m.all {
					left = append(left, -*v)
				}
				slices.Sort(left)
				require.Len(t, left, n-1-i)
				for j, v := range left {
					require.Equal(t, i+1+j, v)
				}
			}
			require.Equal(t, byText[int]{}, m, "no empty level must stay")
			require.NotNil(t, at(half, 3))
		})
	}
	for name, spread := range spreads {
		test("short, "+name, "t", spread)
		test("long, "+name, "a long text ", spread)
	}
	// No two short texts have the same hash.
	test("long, all equal", "a long text ", func(int) uint64 { return 7 })
	test("long, few values", "a long text ", func(i int) uint64 { return uint64(i % 5) })
}

func TestByTextIsLeftAsSoonAsItIsSaid(t *testing.T) {
	for _, prefix := range []string{"t", "a long text "} {
		var m byText[int]
		for i := range 100 {
			m = m.with(uint64(i/2), prefix+strconv.Itoa(i), i)
		}
		seen := 0
		for range m.all {
			if seen++; seen == 30 {
				break
			}
		}
		require.Equal(t, 30, seen, prefix)
	}
}
