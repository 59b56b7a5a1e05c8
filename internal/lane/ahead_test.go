package lane_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/lane"
)

// A run takes what comes next, in order, until there is no more; each counts as running
// from then on, until it is counted.
func TestNextTakesAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int
		p := newPool(settings{enter: keepNegative, run: func(p *pool, w *worker, item int) {
			got = append(got, item)
			for {
				var ahead int
				more := w.next(&ahead)
				s := p.Stats()
				if !more {
					require.Equal(t, 1, s.Running)
					return
				}
				require.Equal(t, 2, s.Running)
				require.Equal(t, 9-ahead, s.Queued)
				p.ended.Add(1)
				got = append(got, ahead)
			}
		}})
		p.push(t, upTo(10)...)
		p.Start()
		synctest.Wait()
		require.Equal(t, upTo(10), got)
		p.end(t)
	})
}

// What is taken ahead and cannot be run comes back to the end of the queue, and is in
// one place of the books all the while, also if the queue is full meanwhile.
func TestPutBackBringsBackWhatWasTakenAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		var got []int
		p := newPool(settings{capacity: n, refuse: true, enter: keepNegative, run: func(p *pool, w *worker, item int) {
			got = append(got, item)
			if item != 0 {
				return
			}
			var ahead int
			require.True(t, w.next(&ahead))
			require.Equal(t, lane.Stats{Admitted: n, Queued: n - 2, Running: 2, Workers: 1}, p.Stats())
			for range 2 {
				more := 9
				require.NoError(t, p.Push(t.Context(), &more, false, false))
			}
			p.PutBack(&ahead)
			require.Equal(t, lane.Stats{Admitted: n + 2, Queued: n + 1, Running: 1, Workers: 1}, p.Stats())
			more := 9
			require.ErrorIs(t, p.Push(t.Context(), &more, false, false), lane.ErrFull)
		}})
		p.push(t, upTo(n)...)
		p.Start()
		synctest.Wait()
		require.Equal(t, []int{0, 2, 9, 9, 1}, got)
		for range n {
			p.push(t, 5) // there is as much room as before
			synctest.Wait()
		}
		p.end(t)
	})
}

// A worker that is one too many takes nothing ahead.
func TestNextLeavesTheRestToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		back, release := make(chan struct{}), make(chan struct{})
		p := newPool(settings{enter: keepNegative, run: func(p *pool, w *worker, item int) {
			got.add(item)
			switch item {
			case 0: // waits for others, and comes back when another one is at work
				p.Block()
				<-back
				p.Unblock()
				var ahead int
				require.False(t, w.next(&ahead))
			case 1:
				<-release
			}
		}})
		p.push(t, 0, 1, 2)
		p.Start()
		synctest.Wait()
		require.Equal(t, []int{0, 1}, got.all())
		close(back)
		synctest.Wait()
		require.Equal(t, []int{0, 1}, got.all())
		close(release)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2}, got.all())
		p.end(t)
	})
}

// An item that Enter has let through once is not shown to it again, and one that has not
// been shown yet is not taken ahead.
func TestNextIsNotForGatedItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int
		shown := 0
		p := newPool(settings{enter: func(item int) bool {
			shown++
			return keepNegative(item)
		}, run: func(p *pool, w *worker, item int) {
			got = append(got, item)
			if item == 0 {
				back, ahead := -1, 0
				p.Unpark(&back)
				require.True(t, w.next(&ahead))
				require.Equal(t, -1, ahead)
				p.PutBack(&ahead)
				gated := 1
				require.NoError(t, p.Push(t.Context(), &gated, false, true))
				require.True(t, w.next(&ahead))
				require.False(t, w.next(new(int)))
				p.PutBack(&ahead)
			}
		}})
		item := -1
		require.NoError(t, p.Push(t.Context(), &item, false, true)) // it is kept
		p.push(t, 0)
		p.Start()
		synctest.Wait()
		require.Equal(t, []int{0, 1, -1}, got)
		require.Equal(t, 2, shown)
		p.end(t)
	})
}
