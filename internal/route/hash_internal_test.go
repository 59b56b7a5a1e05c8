package route

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestR6_TypesThatDifferInOneByteHaveHashesThatDifferWhereTheyAreUsed(t *testing.T) {
	seen := map[uint64]bool{}
	sets, seenTags := map[uint64]int{}, map[uint64]int{}
	for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 40, MaxTypeBytes} {
		for i := range n {
			for c := byte('a'); c < 'a'+16; c++ {
				h := cacheHash(strings.Repeat("z", i) + string(c) + strings.Repeat("z", n-i-1))
				require.False(t, seen[h], "%d bytes, %c at %d", n, c, i)
				seen[h] = true
				sets[cacheSet(h)]++
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

// A short text is not kept, and so not compared.
func TestR1_ShortTextsHaveHashesThatDiffer(t *testing.T) {
	seen := map[uint64]string{}
	for n := range shortText + 1 {
		for i := range n {
			for c := 1; c < 256; c++ {
				text := strings.Repeat("z", i) + string([]byte{byte(c)}) + strings.Repeat("z", n-i-1)
				if old, ok := seen[hashOf(text)]; ok {
					require.Equal(t, old, text)
				}
				seen[hashOf(text)] = text
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		short := rapid.SliceOfN(rapid.ByteMin(1), 0, shortText)
		a, b := string(short.Draw(t, "a")), string(short.Draw(t, "b"))
		require.Equal(t, a == b, hashOf(a) == hashOf(b))
	})
}

// Eight bytes at once or one after the other, whatever they are.
func TestR1_SegmentsEndAtTheFirstDot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{1, '-', '.', '/', 'a', 0x80, 0xae, 0xff}), 0, 24).Draw(t, "type")
		i := rapid.IntRange(0, len(b)).Draw(t, "i")
		typ := string(b)
		want, _, _ := strings.Cut(typ[i:], ".")
		text, packed, next := cutSegment(typ, i)
		require.Equal(t, want, text)
		if len(want) > shortText {
			require.Zero(t, packed)
		} else {
			require.Equal(t, short(want), packed)
		}
		require.Equal(t, i+len(want)+1, next)
	})
}

// Types that differ in a number find room in the sets of the cache, whatever the seed is.
func TestR6_TypesThatAreAlikeSpreadOverTheSets(t *testing.T) {
	defer func(start, factor uint64) { hashStart, hashFactor = start, factor }(hashStart, hashFactor)
	random := rand.New(rand.NewPCG(1, 2))
	for _, prefix := range []string{"a.", "order.placed", "service.customer.placed."} {
		var types []string
		for i := range 1000 {
			types = append(types, fmt.Sprint(prefix, i))
		}
		for range 1000 {
			hashStart, hashFactor = random.Uint64(), random.Uint64()|1
			var sets [cachePages * cacheSets]int
			without := 0
			for _, typ := range types {
				set := cacheSet(cacheHash(typ))
				if sets[set]++; sets[set] > cacheWays {
					without++
				}
			}
			require.LessOrEqual(t, without, 20, "%s, start %#x, factor %#x", prefix, hashStart, hashFactor)
		}
	}
}

// Whatever the seed is, the index is as deep as it must be, and few items are looked at in
// vain.
func TestR6_ShortTextsThatAreAlikeSpreadOverTheIndex(t *testing.T) {
	defer func(start, factor uint64) { hashStart, hashFactor = start, factor }(hashStart, hashFactor)
	random := rand.New(rand.NewPCG(1, 2))
	const seeds = 15
	for _, format := range []string{"%d", "%dx", "svc%d", "s%05d"} {
		for range seeds {
			hashStart, hashFactor = random.Uint64(), random.Uint64()|1
			const n = 2000
			var m hamt[int]
			for i := range n {
				m = m.with(hashOf(fmt.Sprintf(format, i)), i)
			}
			deepest, vain := 0, 0
			for i := n; i < 2*n; i++ {
				hash, depth, leaf := hashOf(fmt.Sprintf(format, i)), 0, &m
				for digits := hash; leaf.below != nil; digits >>= hamtBits {
					leaf, depth = &leaf.below[digits%hamtWidth], depth+1
				}
				deepest = max(deepest, depth)
				for _, word := range leaf.tags {
					vain += bits.OnesCount64(uint64(word.places(hash)))
				}
			}
			require.LessOrEqual(t, deepest, 3, "%s, start %#x, factor %#x", format, hashStart, hashFactor)
			require.LessOrEqual(t, vain, n/30, "%s, start %#x, factor %#x", format, hashStart, hashFactor)
		}
	}
}
