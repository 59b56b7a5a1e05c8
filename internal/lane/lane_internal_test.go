package lane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A worker has taken the last item of a chunk, and is held up before it reports
// the chunk empty. Meanwhile the chunk is begun again and filled.
func TestAReportThatIsLateDropsNoChunk(t *testing.T) {
	p := New(Config[int, struct{}]{Capacity: 3 * chunkItems, Counted: func() int64 { return 0 }})
	push := func(n int) {
		for i := range n {
			require.NoError(t, p.Push(t.Context(), &i, false, false))
		}
	}
	take := func() (n int) {
		for item := new(int); p.TryTake(item); n++ {
			require.Equal(t, n, *item)
			p.Finish()
		}
		return n
	}
	push(chunkItems)
	require.Equal(t, chunkItems, take())
	refilled := p.tail
	push(chunkItems + 1)
	require.NotSame(t, refilled, p.tail)
	require.Same(t, refilled, p.head.Load())

	p.emptied(refilled) // at last
	require.Equal(t, chunkItems+1, take())
	require.Zero(t, p.Stats().Queued)
}

// A worker has found a chunk at the head, and is held up before it looks at the
// cursor. Meanwhile the chunk is emptied, and begun again behind another one.
func TestD5_AWorkerThatIsLateTakesNothingBeforeItsTurn(t *testing.T) {
	for range 100 {
		if lateWorkerTakesNothing(t) {
			return
		}
	}
	require.Fail(t, "no chunk has been begun again")
}

// lateWorkerTakesNothing reports whether the chunk has been begun again: the garbage
// collector may have had it, and under the race detector some are dropped.
func lateWorkerTakesNothing(t *testing.T) bool {
	t.Helper()
	var shown []int
	p := New(Config[int, struct{}]{Capacity: 3 * chunkItems, Enter: func(item *int) bool {
		shown = append(shown, *item)
		return true
	}})
	next := 0
	push := func(n int) {
		for range n {
			require.NoError(t, p.Push(t.Context(), &next, false, true))
			next++
		}
	}
	push(chunkItems + 1)
	late := p.head.Load()
	item := new(int)
	for range chunkItems {
		require.True(t, p.TryTake(item))
		p.Finish()
	}
	push(chunkItems)
	if p.tail != late {
		return false
	}
	require.NotSame(t, late, p.head.Load())

	taken, _ := p.enter(late, late.cursor.Load(), item)
	require.False(t, taken, "what is at the head comes first")
	for p.TryTake(item) {
		p.Finish()
	}
	require.Len(t, shown, next)
	require.IsIncreasing(t, shown)
	return true
}

// What is put back counts among what has begun when it is taken again.
func TestWhatIsPutBackHasNotBegun(t *testing.T) {
	p := New(Config[int, struct{}]{Capacity: chunkItems, Counted: func() int64 { return 0 }})
	item := 1
	require.NoError(t, p.Push(t.Context(), &item, false, false))
	for range 3 {
		require.True(t, p.TryTake(&item))
		require.EqualValues(t, 1, p.begunLocked())
		p.PutBack(&item)
		require.Zero(t, p.begunLocked())
	}
}
