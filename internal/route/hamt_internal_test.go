package route

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only from inside can hashes be made to collide, wholly or in their lower bits.
func TestHamtKeepsKeysWhoseHashesCollide(t *testing.T) {
	for name, hash := range map[string]func(i int) uint64{
		"all equal":       func(int) uint64 { return 7 },
		"last bits apart": func(i int) uint64 { return uint64(i) << 60 },
		"high bits apart": func(i int) uint64 { return uint64(i) << 52 },
		"few values":      func(i int) uint64 { return uint64(i % 5) },
		"spread":          func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 300
			var m, half hamt[int]
			for i := range n {
				if i == n/2 {
					half = m
				}
				m = m.with(hash(i), strconv.Itoa(i), i)
				m = m.with(hash(i), strconv.Itoa(i), -i)
			}
			for i := range n {
				v, ok := m.get(hash(i), strconv.Itoa(i))
				require.True(t, ok)
				require.Equal(t, -i, v)
				_, ok = half.get(hash(i), strconv.Itoa(i))
				require.Equal(t, i < n/2, ok, "an older map must stay as it was")
			}
			_, ok := m.get(hash(0), "absent")
			require.False(t, ok)
			require.Equal(t, m, m.without(hash(1), "absent"))
			for i := range n {
				require.False(t, m.empty())
				m = m.without(hash(i), strconv.Itoa(i))
				_, ok := m.get(hash(i), strconv.Itoa(i))
				require.False(t, ok)
				if i+1 < n {
					v, ok := m.get(hash(n-1), strconv.Itoa(n-1))
					require.True(t, ok)
					require.Equal(t, 1-n, v)
				}
			}
			require.Equal(t, hamt[int]{}, m, "no empty level must stay")
			_, ok = half.get(hash(3), "3")
			require.True(t, ok)
		})
	}
}
