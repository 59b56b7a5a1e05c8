package route

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestR6_TypesThatDifferInOneByteHaveHashesThatDifferWhereTheyAreUsed(t *testing.T) {
	seen := map[uint64]bool{}
	sets, seenTags := map[uint64]int{}, map[uint64]int{}
	for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 40, MaxTypeBytes} {
		for i := range n {
			for c := byte('a'); c < 'a'+16; c++ {
				h := hashType(strings.Repeat("z", i) + string(c) + strings.Repeat("z", n-i-1))
				require.False(t, seen[h], "%d bytes, %c at %d", n, c, i)
				seen[h] = true
				sets[h%(cachePages*cacheSets)]++
				seenTags[tag(h)]++
			}
		}
	}
	for set, times := range sets {
		require.Less(t, times, 8*len(seen)/(cachePages*cacheSets), "set %d", set)
	}
	for tag, times := range seenTags {
		require.Less(t, times, 2*len(seen)/128, "tag %x", tag)
	}
}
