package roster_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/roster"
)

type value struct {
	number  uint64
	name    string
	aliases []string
}

func newRoster() *roster.Roster[*value] {
	return roster.New(
		func(v *value) string { return v.name },
		func(v *value) []string { return v.aliases })
}

func TestANumberIsNoName(t *testing.T) {
	r := newRoster()
	v := &value{name: "order.*#1"}
	r.Add(v)
	found, ok := r.Find("order.*#1")
	require.True(t, ok)
	require.Same(t, v, found)
	for _, name := range []string{"", "1", "#1", "other#1", "order.*#01", "order.*#2", "order.*#-1"} {
		_, ok := r.Find(name)
		require.False(t, ok, name)
	}
	r.Remove(1)
	r.Remove(1)
	r.Remove(2)
	_, ok = r.Find("order.*#1")
	require.False(t, ok)
	require.Zero(t, r.Len())
	require.EqualValues(t, 2, r.Next(), "numbers are not given again")
}

func TestNamesAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, model := newRoster(), make(map[string]*value)
		drawName := func(label string) string {
			return fmt.Sprintf("%s#%d", rapid.SampledFrom([]string{"a", "b"}).Draw(t, label), rapid.IntRange(0, 20).Draw(t, label))
		}
		var all []*value
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			if rapid.Bool().Draw(t, "add") {
				v := &value{number: r.Next(), name: drawName("name")}
				if model[v.name] != nil {
					v.name = fmt.Sprintf("c#%d", v.number)
				}
				model[v.name] = v
				if alias := drawName("alias"); model[alias] == nil {
					v.aliases = append(v.aliases, alias)
					model[alias] = v
				}
				r.Add(v)
				all = append(all, v)
			} else if len(all) > 0 {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "removed")
				v := all[i]
				r.Remove(v.number)
				maps.DeleteFunc(model, func(_ string, of *value) bool { return of == v })
				all = slices.Delete(all, i, i+1)
			}
			require.True(t, slices.Equal(all, r.All()))
			require.Equal(t, len(all), r.Len())
			for n := range 21 {
				for _, prefix := range []string{"a", "b", "c"} {
					name := fmt.Sprintf("%s#%d", prefix, n)
					v, ok := r.Find(name)
					require.Equal(t, model[name], v, name)
					require.Equal(t, model[name] != nil, ok)
				}
			}
		}
	})
}
