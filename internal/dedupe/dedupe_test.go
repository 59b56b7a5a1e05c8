package dedupe_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/dedupe"
)

func TestTheKeyThatCameFirstIsForgotten(t *testing.T) {
	m := dedupe.New[int, string](3)
	for i := range 4 {
		m.Remember(i, "content")
	}
	_, known := m.Lookup(0)
	require.False(t, known)
	for i := 1; i < 4; i++ {
		content, known := m.Lookup(i)
		require.True(t, known)
		require.Equal(t, "content", content)
	}
}

// A key that was forgotten and remembered again lives as long as any other.
func TestMemoryAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 4
		m := dedupe.New[int, int](most)
		type slot struct {
			key  int
			gone bool
		}
		var slots []slot // the places of the last keys that were remembered
		for step := range 40 {
			key := rapid.IntRange(0, 9).Draw(t, "key")
			live := slices.IndexFunc(slots, func(s slot) bool { return s.key == key && !s.gone })
			if _, known := m.Lookup(key); known != (live >= 0) {
				t.Fatalf("step %d: key %d is known: %v", step, key, known)
			}
			switch {
			case live >= 0 && rapid.Bool().Draw(t, "forget"):
				m.Forget(key)
				slots[live].gone = true
			case live < 0:
				m.Remember(key, step)
				slots = append(slots, slot{key: key})
				slots = slots[max(0, len(slots)-most):]
			}
		}
	})
}
