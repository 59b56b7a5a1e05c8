package keys_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/keys"
)

func enter[T comparable](g *keys.Gate[T], key string, item T) bool { return g.Enter(key, item) }

func TestOneOfAKeyAtATimeInTheirOrder(t *testing.T) {
	g := keys.New[int](4)
	require.True(t, enter(g, "a", 1))
	require.False(t, enter(g, "a", 2))
	require.False(t, enter(g, "a", 3))
	require.True(t, enter(g, "b", 4), "another key does not wait")
	require.Equal(t, 2, g.Len())
	next, ok := g.Leave("a")
	require.True(t, ok)
	require.Equal(t, 2, next)
	require.False(t, enter(g, "a", 5), "2 is through, and 3 is behind it")
	for _, want := range []int{3, 5} {
		next, ok = g.Leave("a")
		require.True(t, ok)
		require.Equal(t, want, next)
	}
	_, ok = g.Leave("a")
	require.False(t, ok)
	require.Equal(t, 1, g.Len())
	require.True(t, enter(g, "a", 6), "the key is free again")
}

// A gate is, for each key, a list whose first item is through. Held items keep their places.
func TestAGateIsListsByKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := keys.New[int](rapid.IntRange(1, 4).Draw(t, "shards"))
		model, held := make(map[string][]int), make(map[int]bool)
		key := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 200).Draw(t, "key")) })
		few := rapid.SampledFrom([]string{"", "a", "b"})
		either := rapid.OneOf(key, few, few)
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				k := either.Draw(t, "key")
				for range rapid.SampledFrom([]int{1, 1, 1, 90}).Draw(t, "times") {
					n++
					require.Equal(t, len(model[k]) == 0, enter(g, k, n))
					model[k] = append(model[k], n)
				}
			},
			"leave": func(t *rapid.T) {
				k := either.Draw(t, "key")
				for range rapid.SampledFrom([]int{1, 1, 70}).Draw(t, "times") {
					if len(model[k]) == 0 || held[model[k][0]] {
						return
					}
					model[k] = model[k][1:]
					next, ok := g.Leave(k)
					admits(t, model, held, k, next, ok)
				}
			},
			"keep": func(t *rapid.T) {
				k := either.Draw(t, "key")
				n++
				g.Keep(k, n)
				model[k], held[n] = append(model[k], n), true
			},
			"hold": func(t *rapid.T) {
				one := rapid.IntRange(0, n+1).Draw(t, "item")
				takes := func(i int) bool { return i%5 == 0 || i == one }
				var want []int
				for _, items := range model {
					for i, item := range items {
						if i > 0 && !held[item] && takes(item) {
							want = append(want, item)
						}
					}
				}
				for _, item := range want {
					held[item] = true
				}
				require.ElementsMatch(t, want, g.Hold(takes))
				require.Empty(t, g.Take(func(i int) bool { return held[i] }))
				g.Each(func(i int) { require.False(t, held[i]) })
			},
			"end": func(t *rapid.T) {
				k := either.Draw(t, "key")
				for _, i := range slices.Clone(model[k]) {
					if !held[i] || !rapid.Bool().Draw(t, "ends") {
						continue
					}
					delete(held, i)
					first := model[k][0] == i
					model[k] = slices.DeleteFunc(slices.Clone(model[k]), func(other int) bool { return other == i })
					next, ok := g.End(k, i)
					if first {
						admits(t, model, held, k, next, ok)
					} else {
						require.False(t, ok)
					}
				}
			},
			"": func(t *rapid.T) { require.Equal(t, len(model), g.Len()) },
		})
	})
}

// admits checks what a gate has returned after the first item of a key has left.
func admits(t *rapid.T, model map[string][]int, held map[int]bool, key string, next int, ok bool) {
	left := model[key]
	require.Equal(t, len(left) > 0 && !held[left[0]], ok)
	if ok {
		require.Equal(t, left[0], next)
	}
	if len(left) == 0 {
		delete(model, key)
	}
}

func TestKeysThatAreGoneTakeNoMemory(t *testing.T) {
	const n = 100_000
	g := keys.New[int](32)
	enter(g, "stays", 0)
	before := heapBytes()
	for i := range n {
		enter(g, fmt.Sprint("key-", i), i)
	}
	require.Greater(t, heapBytes()-before, int64(n*16))
	for i := range n {
		g.Leave(fmt.Sprint("key-", i))
	}
	require.Less(t, heapBytes()-before, int64(128<<10))
	require.Equal(t, 1, g.Len())
	require.False(t, enter(g, "stays", 1), "is not forgotten when the memory is given back")
}

func TestALongLineLetsGoOfWhatHasLeft(t *testing.T) {
	const n = 10_000
	g := keys.New[*[1 << 10]byte](1)
	enter(g, "k", nil)
	before := heapBytes()
	for range n {
		enter(g, "k", new([1 << 10]byte))
	}
	for range n - 10 {
		_, ok := g.Leave("k")
		require.True(t, ok)
	}
	require.Less(t, heapBytes()-before, int64(64<<10), "10 items, and a line that has shrunk")
	runtime.KeepAlive(g)
}

func TestConcurrentItemsOfAKeyExcludeEachOther(t *testing.T) {
	const goroutines, each, names = 8, 2000, 3
	g := keys.New[chan struct{}](2)
	inside := make([]int, names) // each guarded by its key
	total := make([]int, names)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for j := range each {
				n := (i + j) % names
				turn := make(chan struct{})
				if !enter(g, fmt.Sprint(n), turn) {
					<-turn
				}
				inside[n]++
				if inside[n] != 1 {
					panic("two are through")
				}
				total[n]++
				inside[n]--
				if next, ok := g.Leave(fmt.Sprint(n)); ok {
					close(next)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, goroutines*each, total[0]+total[1]+total[2])
	require.Zero(t, g.Len())
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestEachVisitsWhatWaits(t *testing.T) {
	g := keys.New[int](4)
	for i := range 20 {
		g.Enter(fmt.Sprint(i%4), i)
	}
	var waiting []int
	g.Each(func(i int) { waiting = append(waiting, i) })
	slices.Sort(waiting)
	require.Len(t, waiting, 16)
	require.Equal(t, 4, waiting[0])
	for range 4 {
		g.Leave("1")
	}
	n := 0
	g.Each(func(int) { n++ })
	require.Equal(t, 12, n)
}

// Take removes waiting items, wherever they are in their line. The others keep their order.
func TestE9_TakeRemovesWhatWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, want := keys.New[int](2), map[string][]int{}
		n := rapid.IntRange(1, 30).Draw(t, "items")
		for i := range n {
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			if !g.Enter(key, i) {
				want[key] = append(want[key], i)
			}
			if rapid.IntRange(0, 5).Draw(t, "takes") > 0 {
				continue
			}
			remove := rapid.SliceOf(rapid.IntRange(0, n)).Draw(t, "removed")
			var left []int
			for key, all := range want {
				for _, x := range all {
					if slices.Contains(remove, x) {
						left = append(left, x)
					}
				}
				want[key] = slices.DeleteFunc(all, func(x int) bool { return slices.Contains(remove, x) })
			}
			require.ElementsMatch(t, left, g.Take(func(x int) bool { return slices.Contains(remove, x) }))
		}
		for key, all := range want {
			for _, x := range all {
				next, ok := g.Leave(key)
				require.True(t, ok)
				require.Equal(t, x, next)
			}
			_, ok := g.Leave(key)
			require.False(t, ok)
		}
	})
}
