package index

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type value struct {
	id   ID
	keys [Keys]string
}

func newIndex() *Index[string, value] {
	return New(func(v value) ID { return v.id }, func(v value) [Keys]string { return v.keys })
}

// drawValue has the second and third key in common with many others. Some values have a zero key.
func drawValue(t *rapid.T) value {
	draw := func(prefix string, n int) string {
		return prefix + string(rune('a'+rapid.IntRange(0, n-1).Draw(t, prefix)))
	}
	id := ID{byte(rapid.IntRange(1, 120).Draw(t, "id"))}
	keys := [Keys]string{draw("1", 3), draw("2", 2), draw("3", 1), draw("4", 20), draw("5", 60)}
	if rapid.Bool().Draw(t, "sixth") {
		keys[5] = draw("6", 4)
	}
	return value{id, keys}
}

// After any sequence of additions and removals each list has the values with its key, and little
// else in memory.
func TestListsAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, model := newIndex(), make(map[ID]value)
		for range rapid.IntRange(1, 50).Draw(t, "actions") {
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0:
				if v := drawValue(t); model[v.id] == (value{}) {
					x.Add(v)
					model[v.id] = v
				}
			case 1:
				values := rapid.SliceOfN(rapid.Custom(drawValue), 0, 60).Draw(t, "values")
				before := len(model)
				for _, v := range values {
					if model[v.id] == (value{}) {
						model[v.id] = v
					}
				}
				require.Equal(t, len(model)-before, x.AddAll(values))
			default:
				for _, v := range rapid.SliceOfN(rapid.Custom(drawValue), 0, 60).Draw(t, "removed") {
					_, known := model[v.id]
					require.Equal(t, known, x.Remove(v.id))
					delete(model, v.id)
				}
			}
			check(t, x, model)
		}
	})
}

// The tombstone of the largest id is the last entry.
func TestARemovedValueIsAddedAgain(t *testing.T) {
	x := newIndex()
	for id := range byte(10) {
		x.Add(value{id: ID{id}})
	}
	require.True(t, x.Remove(ID{9}))
	x.Add(value{id: ID{9}})
	_, found := x.Get(ID{9})
	require.True(t, found)
	require.True(t, x.Remove(ID{9}))
}

func check(t *rapid.T, x *Index[string, value], model map[ID]value) {
	all := slices.SortedFunc(maps.Values(model), func(v, w value) int { return bytes.Compare(v.id[:], w.id[:]) })
	checkList(t, x.All(), all)
	keys := make(map[string][]value)
	for _, v := range all {
		require.Equal(t, v, requireGet(t, x, v.id))
		for _, key := range v.keys {
			if key != "" {
				keys[key] = append(keys[key], v)
			}
		}
	}
	require.Len(t, x.lists, len(keys), "lists without values are freed")
	for key, values := range keys {
		checkList(t, x.With(key), values)
	}
	require.Zero(t, x.With("unknown").Len())
}

func checkList(t *rapid.T, l *List[string, value], want []value) {
	require.Equal(t, len(want), l.Len())
	require.True(t, slices.Equal(want, slices.Collect(l.Ascending())))
	before := ID{byte(rapid.IntRange(0, 121).Draw(t, "before"))}
	var older []value
	for _, v := range slices.Backward(want) {
		if before == (ID{}) || bytes.Compare(v.id[:], before[:]) < 0 {
			older = append(older, v)
		}
	}
	require.True(t, slices.Equal(older, slices.Collect(l.Descending(before))))
	first, ok := l.First()
	require.Equal(t, len(want) > 0, ok)
	if ok {
		require.Equal(t, want[0], first)
	}
	require.LessOrEqual(t, len(l.entries), 2*l.length+65, "tombstones")
}

func requireGet(t *rapid.T, x *Index[string, value], id ID) value {
	v, ok := x.Get(id)
	require.True(t, ok)
	return v
}
