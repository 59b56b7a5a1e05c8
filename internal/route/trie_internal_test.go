package route

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A tail is compared by words, without its segments; it must mean the same.
func TestTailsMeanWhatTheirSegmentsMean(t *testing.T) {
	words := []string{"a", "ab", "b", "*", "**", "customer", "customers"}
	segments := []string{"a", "ab", "b", "c", "customer", "customers", "customary"}
	for _, word := range words {
		p, off := Parse("x." + word)
		require.Nil(t, off)
		for _, typ := range segments {
			require.Equal(t, p.Match("x."+typ), newTail(word).match("x."+typ, 2), "%s, %s", typ, word)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p, off := Parse(strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 5).Draw(t, "pattern"), "."))
		require.Nil(t, off)
		typ := strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 1, 5).Draw(t, "type"), ".")
		for i, s := range p.variants[0] {
			if s.tail == "" {
				continue
			}
			want := p.variants[0][i:].match(typ)
			require.Equal(t, want, newTail(s.tail).match(typ, 0), "%s, %s", typ, s.tail)
			require.Equal(t, want, newTail(s.tail).match("x."+typ, 2), "%s, %s", typ, s.tail)
			require.Equal(t, s.tail == "**", newTail(s.tail).match(typ, len(typ)+1), "no segment is left, %s", s.tail)
		}
	})
}

// However patterns come and go, the index finds what each of them matches by itself, in
// order, and readers of older states find what those had. Literals are many, so that the
// hash tries split and join, and nodes are unfolded under readers.
func TestR6_OlderStatesStayAsTheyWere(t *testing.T) {
	words := strings.Fields("a b c d e f g h i j k l m n o p q r s t u v w x y z * ** a* *b")
	types := strings.Fields("a a.b a.b.c b.a z.a k.b q.r.s.t ab.cb m.n.a.b x")
	type added struct {
		p     *Pattern
		n     int
		place *Place[int]
	}
	rapid.Check(t, func(t *rapid.T) {
		table := NewTable(func(_ string, subs []int) []int { return subs })
		var list []added
		want := func(typ string) (found []int) {
			for _, a := range list {
				if a.p.Match(typ) {
					found = append(found, a.n)
				}
			}
			return found
		}
		old, oldWant, oldType := table.state.Load(), []int(nil), "a"
		var readers sync.WaitGroup
		var done atomic.Bool
		defer func() { done.Store(true); readers.Wait() }()
		readers.Go(func() {
			for !done.Load() {
				for _, typ := range types {
					if found := table.Lookup(typ); !slices.IsSorted(found) {
						t.Errorf("%s: %v", typ, found)
					}
				}
			}
		})
		for n := range rapid.IntRange(1, 120).Draw(t, "steps") {
			if len(list) == 0 || rapid.IntRange(0, 3).Draw(t, "op") > 0 {
				p, off := Parse(strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 4).Draw(t, "pattern"), "."))
				require.Nil(t, off)
				list = append(list, added{p, n, table.Add(p, n)})
			} else {
				i := rapid.IntRange(0, len(list)-1).Draw(t, "victim")
				table.Remove(list[i].p, list[i].place)
				list = slices.Delete(list, i, i+1)
			}
			typ := rapid.SampledFrom(types).Draw(t, "type")
			require.Equal(t, want(typ), table.Match(typ), typ)
			require.Equal(t, oldWant, subscriptions(old.root.match(oldType, nil), old.version), oldType)
			if rapid.IntRange(0, 9).Draw(t, "keep") == 0 {
				old, oldWant, oldType = table.state.Load(), want(typ), typ
			}
		}
		for _, a := range list {
			table.Remove(a.p, a.place)
		}
		require.True(t, table.state.Load().root.empty())
	})
}
