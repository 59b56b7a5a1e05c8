package lane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A worker has taken the last item of a chunk, and is held up before it reports
// the chunk empty. Meanwhile the chunk is begun again and filled.
func TestAReportThatIsLateDropsNoChunk(t *testing.T) {
	p := New(Config[int, struct{}]{Capacity: 3 * chunkItems})
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
