package delay_test

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/delay"
)

// What is due in the order of Add, and what is not, comes in one order.
func TestQueue_InOrderAndOutOfOrderTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		c := &handClock{}
		var got []int
		q := delay.New(c, func(items []int) { got = append(got, items...) })
		for i := range n {
			q.Add(int64(10*i+10), 10*i+10)
			q.Add(int64(10*i+5), 10*i+5) // before the one before
			if i%3 == 0 {                // and out again, so that a piece is used in parts
				c.now.Store(int64(10 * (i / 3)))
				c.fire()
			}
			if i%50 == 0 {
				waiting := 0
				q.Each(func(at int64, item int) {
					waiting++
					require.EqualValues(t, at, item)
				})
				require.Equal(t, q.Len(), waiting)
			}
		}
		c.now.Store(11 * n)
		c.fire()
		require.Len(t, got, 2*n)
		require.Zero(t, q.Len())
		late := 0
		for i := 1; i < len(got); i++ {
			if got[i] < got[i-1] {
				late++
			}
		}
		require.Zero(t, late)
	})
}

// However much comes in order while as much goes, the memory stays the same.
func TestQueue_WhatComesAndGoesInOrderLeavesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		q := delay.New(c, func([]int) {})
		q.Add(1, 1)
		before := heapBytes()
		for i := int64(2); i < 100_000; i++ {
			q.Add(i, int(i))
			if i%500 == 0 {
				c.now.Store(i - 10)
				c.fire()
			}
		}
		require.Less(t, heapBytes()-before, int64(64<<10))
		require.LessOrEqual(t, q.Len(), 510)
		runtime.KeepAlive(q)
	})
}
