package recent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLog_KeepsTheLatestOfEachKind(t *testing.T) {
	l := New[string](2, 3)
	l.Add(0, "a")
	for range 100 {
		l.Add(1, "x")
	}
	l.Add(0, "b")
	var items []string
	var numbers []int64
	l.All(func(number int64, item string) bool {
		items, numbers = append(items, item), append(numbers, number)
		return true
	})
	require.Equal(t, []string{"b", "x", "x", "x", "a"}, items)
	require.Equal(t, []int64{102, 101, 100, 99, 1}, numbers)
	require.Less(t, len(l.kinds[1]), 6)

	n := 0
	l.All(func(int64, string) bool { n++; return n < 2 })
	require.Equal(t, 2, n)
}

func TestCalls(t *testing.T) {
	var c Calls
	require.Empty(t, c.InProgress())
	first, second, other := c.Begin("Stats"), c.Begin("Stats"), c.Begin("Claim")
	require.Equal(t, []string{"Claim", "Stats"}, c.InProgress())
	first()
	other()
	require.Equal(t, []string{"Stats"}, c.InProgress())
	second()
	require.Empty(t, c.InProgress())
}
