package route

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func cacheHash(typ string) uint64 { return nameOf(typ).hash(len(typ)) }

func cacheSet(hash uint64) uint64 { return hash%cachePages*cacheSets + home(hash)/cacheWays }

func newInts() *Table[int, int] { return NewTable(func(string, []int) int { return 0 }) }

// Types whose hashes are the same, which are not to be had, are told apart all the same.
func TestR6_TypesThatCollideAreToldApart(t *testing.T) {
	differs := func(t *testing.T, there, typ string) {
		t.Helper()
		table := newInts()
		table.state.Load().cache.put(cacheHash(typ), there, 1)
		_, _, ok := table.Cached(typ)
		require.Equal(t, there == typ, ok, "%q for %q", there, typ)
	}
	all := func(t *testing.T) {
		for n := range 60 {
			typ := strings.Repeat("z", n)
			differs(t, typ, typ)
			differs(t, typ, typ+"z")
			differs(t, typ, typ+"\x00")
			differs(t, typ+"\x00", typ)
			for i := range n {
				differs(t, typ, typ[:i]+"y"+typ[i+1:])
				differs(t, typ, typ[:i]+"\x00"+typ[i+1:])
			}
		}
	}
	t.Run("by their hash", all)
	t.Run("by the middle of their text too", func(t *testing.T) {
		defer func(factor uint64) { hashFactor = factor }(hashFactor)
		hashFactor = 0
		all(t)
	})
}

// held returns how many types are in the cache.
func (c *cache[R]) held() (n int) {
	for i := range c.pages {
		if page := c.pages[i].Load(); page != nil {
			for j := range page.places {
				if page.places[j].Load() != nil {
					n++
				}
			}
		}
	}
	return n
}

func TestR6_NothingIsEvictedFromASetThatHasRoom(t *testing.T) {
	for _, hash := range []uint64{0, ^uint64(0), cacheHash("a")} {
		var c cache[int]
		for i := range cacheWays {
			c.put(hash, strconv.Itoa(i), i)
			require.Equal(t, i+1, c.held())
		}
		c.put(hash, "one more", 1)
		require.Equal(t, cacheWays, c.held())
	}
}

// Several publishers that meet a new type at the same time all put it into the cache, and
// tags may be mixed up then.
func TestR6_ATypeThatIsPutAgainIsFound(t *testing.T) {
	for _, typ := range []string{"a.b", "order.placed", "order.placed." + strings.Repeat("z", 40)} {
		table := newInts()
		c := &table.state.Load().cache
		hash := cacheHash(typ)
		c.put(hash, "another at its home", 1)
		c.put(hash, typ, 2)
		c.pages[hash%cachePages].Load().tags[home(hash)/cacheWays].Store(0)
		_, _, ok := table.Cached(typ)
		require.False(t, ok)
		c.put(hash, typ, 2)
		require.Equal(t, 2, c.held())
		result, _, ok := table.Cached(typ)
		require.True(t, ok)
		require.Equal(t, 2, result)
	}
}
