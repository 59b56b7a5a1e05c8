package pool

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// While all allowed workers are stuck, no tick can add one: the pool does not poll. It ticks again
// for the next item, and once a worker is free.
func TestIdle_NoTicksWhileAllWorkersAreStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		p := New(Config[int, struct{}]{
			Open: func() (none struct{}) { return none }, Close: func(struct{}) {},
			Run:   func(struct{}, int) bool { <-stuck; return true },
			Enter: func(int) bool { return true }, Idle: func(struct{}) {}, Freed: func() {}, Rest: func() {},
			Concurrency: 2, Capacity: 100,
		})
		p.Start()
		push := func() {
			require.NoError(t, p.Reserve(context.Background(), 1, false))
			p.Push(1, false)
			time.Sleep(time.Second)
		}
		ticks := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.growth.ticking
		}
		for range 3 {
			push()
		}
		require.Equal(t, Stats{Queued: 1, Running: 2, Workers: 2}, p.Stats())
		require.False(t, ticks())
		p.Block() // as one of the items would: another worker may run
		time.Sleep(time.Second)
		require.Equal(t, Stats{Running: 3, Workers: 2}, p.Stats())
		p.Unblock()
		close(stuck)
		<-p.Close()
	})
}

// Calls that wait for long do not multiply the workers of the items that come later.
func TestGrowth_StartsNoMoreWorkersThanItemsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		var opened atomic.Int32
		p := New(Config[bool, struct{}]{
			Open: func() (none struct{}) { opened.Add(1); return none }, Close: func(struct{}) {},
			Run: func(_ struct{}, waits bool) bool {
				if waits {
					<-stuck
				}
				return true
			},
			Enter: func(bool) bool { return true }, Idle: func(struct{}) {}, Freed: func() {}, Rest: func() {},
			Concurrency: 1000, Capacity: 1000,
		})
		p.Start()
		push := func(waits bool) {
			require.NoError(t, p.Reserve(context.Background(), 1, false))
			p.Push(waits, false)
		}
		for range 100 {
			push(true)
		}
		time.Sleep(time.Second)
		require.Equal(t, 100, p.Stats().Running)
		before := opened.Load()
		for range 10 {
			push(false)
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, opened.Load()-before, int32(10))
		close(stuck)
		<-p.Close()
	})
}
