package route

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only from inside can hashes be made to collide, wholly or in their lower bits.
func TestHamtKeepsKeysWhoseHashesCollide(t *testing.T) {
	for name, spread := range map[string]func(i int) uint64{
		"all equal":       func(int) uint64 { return 7 },
		"last bits apart": func(i int) uint64 { return uint64(i) << 60 },
		"high bits apart": func(i int) uint64 { return uint64(i) << 52 },
		"few values":      func(i int) uint64 { return uint64(i % 5) },
		"spread":          func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 300
			key := func(i int) string { return "a long key " + strconv.Itoa(i) }
			var m, half hamt[int]
			for i := range n {
				if i == n/2 {
					half = m
				}
				m = m.with(spread(i), key(i), i)
				m = m.with(spread(i), key(i), -i)
			}
			at := func(m hamt[int], i int) *int { return m.get(spread(i), key(i)) }
			for i := range n {
				require.NotNil(t, at(m, i))
				require.Equal(t, -i, *at(m, i))
				require.Equal(t, i < n/2, at(half, i) != nil, "an older map must stay as it was")
			}
			require.Nil(t, m.get(spread(0), "a long key that is absent"))
			require.Equal(t, m, m.without(spread(0), "a long key that is absent"))
			for i := range n {
				require.False(t, m.empty())
				m = m.without(spread(i), key(i))
				require.Nil(t, at(m, i))
				if i+1 < n {
					require.NotNil(t, at(m, n-1))
					require.Equal(t, 1-n, *at(m, n-1))
				}
			}
			require.Equal(t, hamt[int]{}, m, "no empty level must stay")
			require.NotNil(t, at(half, 3))
		})
	}
}
