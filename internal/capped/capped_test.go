package capped_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/capped"
)

func TestKeysBeyondTheLimitShareOneValue(t *testing.T) {
	m := capped.New[int](2)
	a, b := m.Of("a"), m.Of("b")
	require.NotSame(t, a, b)
	require.Same(t, a, m.Of("a"))
	require.Same(t, m.Others(), m.Of("c"))
	require.Same(t, m.Others(), m.Of("d"))
	*a = 1
	found := make(map[string]int)
	for key, v := range m.All() {
		found[key] = *v
	}
	require.Equal(t, map[string]int{"a": 1, "b": 0}, found)
}

// Concurrent calls neither exceed the limit nor give a key two values.
func TestConcurrentCallsKeepTheLimit(t *testing.T) {
	const limit, keys, callers = 50, 80, 8
	for range 50 {
		m := capped.New[atomic.Int64](limit)
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for i := range keys {
					m.Of(fmt.Sprint(i)).Add(1)
				}
			})
		}
		all.Wait()
		sum, known := m.Others().Load(), 0
		for _, v := range m.All() {
			known++
			sum += v.Load()
		}
		require.LessOrEqual(t, known, limit)
		require.EqualValues(t, keys*callers, sum)
	}
}
