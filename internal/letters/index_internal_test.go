package letters

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newFactsIndex() *index[Facts] { return newIndex(func(f Facts) Facts { return f }) }

// drawFacts has the subscription and the reason in common with many others. Some letters have no key.
func drawFacts(t *rapid.T) Facts {
	draw := func(prefix string, n int) string {
		return prefix + string(rune('a'+rapid.IntRange(0, n-1).Draw(t, prefix)))
	}
	f := Facts{ID: ID{byte(rapid.IntRange(1, 120).Draw(t, "id"))}}
	f.Subscription, f.Reason, f.Fingerprint = draw("subscription", 3), draw("reason", 2), draw("fingerprint", 20)
	f.Event = ID{byte(rapid.IntRange(1, 60).Draw(t, "event"))}
	if rapid.Bool().Draw(t, "has a key") {
		f.Key = draw("key", 4)
	}
	return f
}

// After any sequence of additions and removals each list has the values with its key, and little
// else in memory.
func TestListsAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, model := newFactsIndex(), make(map[ID]Facts)
		for range rapid.IntRange(1, 50).Draw(t, "actions") {
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0:
				if f := drawFacts(t); model[f.ID] == (Facts{}) {
					x.add(f)
					model[f.ID] = f
				}
			case 1:
				letters := rapid.SliceOfN(rapid.Custom(drawFacts), 0, 60).Draw(t, "letters")
				before := len(model)
				for _, f := range letters {
					if model[f.ID] == (Facts{}) {
						model[f.ID] = f
					}
				}
				require.Equal(t, len(model)-before, x.addAll(letters))
			default:
				for _, f := range rapid.SliceOfN(rapid.Custom(drawFacts), 0, 60).Draw(t, "removed") {
					_, known := model[f.ID]
					require.Equal(t, known, x.remove(f.ID))
					delete(model, f.ID)
				}
			}
			check(t, x, model)
		}
	})
}

// The tombstone of the largest ID is the last entry.
func TestARemovedLetterIsAddedAgain(t *testing.T) {
	x := newFactsIndex()
	for id := range byte(10) {
		x.add(Facts{ID: ID{id}})
	}
	require.True(t, x.remove(ID{9}))
	x.add(Facts{ID: ID{9}})
	require.NotNil(t, x.find(ID{9}))
	require.True(t, x.remove(ID{9}))
}

func check(t *rapid.T, x *index[Facts], model map[ID]Facts) {
	all := slices.SortedFunc(maps.Values(model), func(f, g Facts) int { return bytes.Compare(f.ID[:], g.ID[:]) })
	checkList(t, &x.all, all)
	lists := make(map[Labels][]Facts)
	for _, f := range all {
		e := x.find(f.ID)
		require.NotNil(t, e)
		require.Equal(t, f, e.letter)
		for _, key := range []Labels{
			{Subscription: f.Subscription},
			{Reason: f.Reason},
			{Subscription: f.Subscription, Reason: f.Reason},
			{Fingerprint: f.Fingerprint},
			{Event: f.Event},
			{Key: f.Key},
		} {
			if key != (Labels{}) {
				lists[key] = append(lists[key], f)
			}
		}
	}
	require.Len(t, x.lists, len(lists), "lists without letters are freed")
	for key, letters := range lists {
		checkList(t, x.with(key), letters)
	}
	require.Zero(t, x.with(Labels{Subscription: "unknown"}).length)
}

func checkList(t *rapid.T, l *list[Facts], want []Facts) {
	require.Equal(t, len(want), l.length)
	require.True(t, slices.Equal(want, lettersOf(l.ascending())))
	before := ID{byte(rapid.IntRange(0, 121).Draw(t, "before"))}
	var older []Facts
	for _, f := range slices.Backward(want) {
		if before == (ID{}) || bytes.Compare(f.ID[:], before[:]) < 0 {
			older = append(older, f)
		}
	}
	require.True(t, slices.Equal(older, lettersOf(l.descending(before))))
	if first := l.first(); len(want) == 0 {
		require.Nil(t, first)
	} else {
		require.Equal(t, want[0], first.letter)
	}
	require.LessOrEqual(t, len(l.entries), 2*l.length+65, "tombstones")
}

func lettersOf(entries iter.Seq[*entry[Facts]]) (all []Facts) {
	for e := range entries {
		all = append(all, e.letter)
	}
	return all
}
