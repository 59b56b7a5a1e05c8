package idle_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surebus/eventbus/internal/idle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An instant suffices: the caller is woken although there is more to do when it runs.
func TestAwaitSeesAnInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w idle.Watch
		require.False(t, w.IsWatched())
		ended := make(chan bool, 1)
		go func() { ended <- w.Await(func() bool { return false }, nil, 0, nil, nil) }()
		synctest.Wait()
		require.True(t, w.IsWatched())
		w.Reached()
		require.True(t, <-ended)
		require.False(t, w.IsWatched())
	})
}

func TestAwaitLooksElsewhereOnceInEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w idle.Watch
		var here atomic.Bool
		looks := 0
		ended := make(chan bool, 1)
		go func() {
			ended <- w.Await(here.Load, func() bool { looks++; return looks == 10 }, time.Second, nil, nil)
		}()
		time.Sleep(time.Hour)
		require.Zero(t, looks)
		here.Store(true)
		began := time.Now()
		for range 100 { // it does not look more often
			w.Reached()
			synctest.Wait()
		}
		require.True(t, <-ended)
		require.Equal(t, 9*time.Second, time.Since(began))
	})
}

func TestAwaitEndsWithItsChannels(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	never := func() bool { return false }
	for _, here := range []bool{true, false} {
		var w idle.Watch
		require.False(t, w.Await(func() bool { return here }, never, time.Hour, closed, nil))
		require.False(t, w.Await(func() bool { return here }, never, time.Hour, nil, closed))
	}
}
