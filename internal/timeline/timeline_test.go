package timeline_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/timeline"
)

func TestNanosAndNowAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		line := timeline.New(clock.New())
		time.Sleep(3 * time.Second)

		now := line.Now()
		require.Equal(t, int64(3*time.Second), line.Nanos())
		require.Equal(t, int64(3*time.Second), now.Nanos)
		require.Equal(t, int64(3*time.Second), now.Wall)
		require.Equal(t, began.Add(3*time.Second).Round(0), now.UTC)
		require.Equal(t, now.UTC.UnixMilli(), now.Millis)
		require.Equal(t, now.UTC, line.UTC(now.Wall))
		require.Equal(t, now.UTC.Add(-time.Second), line.At(int64(2*time.Second)))
		require.Equal(t, now.UTC.Add(time.Hour), line.At(now.Nanos+int64(time.Hour)))
		require.False(t, line.Ticks(), "exact readings start no timer")
	})
}

func TestRecentIsSharedWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		var rests atomic.Int32
		line := timeline.New(clock.New())
		line.SetHooks(busy.Load, func() { rests.Add(1) })
		require.Nil(t, line.Shared())

		busy.Store(true)
		first, exact := line.Recent()
		require.True(t, exact)
		require.True(t, line.Ticks())
		time.Sleep(timeline.Tick / 2)
		second, exact := line.Recent()
		require.False(t, exact)
		require.Same(t, first, second)
		require.Same(t, first, line.Shared())

		time.Sleep(10 * timeline.Tick)
		synctest.Wait()
		later, exact := line.Recent()
		require.False(t, exact)
		require.LessOrEqual(t, line.Nanos()-later.Nanos, int64(timeline.Tick))
		require.Zero(t, rests.Load())

		busy.Store(false)
		time.Sleep(2 * timeline.Tick)
		synctest.Wait()
		require.False(t, line.Ticks())
		require.Nil(t, line.Shared())
		require.EqualValues(t, 1, rests.Load(), "rest is called once, when the ticking ends")

		again, exact := line.Recent()
		require.True(t, exact)
		require.Equal(t, line.Nanos(), again.Nanos)
		require.True(t, line.Ticks(), "the ticking starts again")
		line.Stop()
	})
}

// A timeline without hooks stops ticking after the first tick.
func TestRecentWithoutHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := timeline.New(clock.New())
		line.Recent()
		require.True(t, line.Ticks())
		time.Sleep(2 * timeline.Tick)
		synctest.Wait()
		require.False(t, line.Ticks())
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := timeline.New(clock.New())
		line.SetHooks(func() bool { return true }, func() {})
		line.Recent()
		line.Stop()
		require.False(t, line.Ticks())
		now, exact := line.Recent()
		require.True(t, exact)
		require.Equal(t, line.Nanos(), now.Nanos)
		require.False(t, line.Ticks(), "a stopped timeline does not tick again")
		line.Stop()
	})
}

// If Stop comes between the timer's firing and the tick's lock, the tick must not set
// the timer again.
func TestStopDuringTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := timeline.New(clock.New())
		line.SetHooks(func() bool { line.Stop(); return true }, func() {})
		line.Recent()
		time.Sleep(2 * timeline.Tick)
		synctest.Wait()
		require.False(t, line.Ticks())
	})
}

func TestOtherClockIsAlwaysExact(t *testing.T) {
	mock := clock.NewMock()
	line := timeline.New(mock)
	line.SetHooks(func() bool { t.Error("a mock clock must not tick"); return true }, func() {})
	for range 3 {
		now, exact := line.Recent()
		require.True(t, exact)
		require.Equal(t, line.Nanos(), now.Nanos)
		require.False(t, line.Ticks())
		mock.Add(time.Hour)
	}
	require.Equal(t, int64(3*time.Hour), line.Nanos())

	fired := make(chan int64, 1)
	line.AfterFunc(time.Minute, func() { fired <- line.Nanos() })
	mock.Add(time.Minute)
	require.Equal(t, int64(3*time.Hour+time.Minute), <-fired)
}

func TestClockSetBack(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(1000, 0))
	line := timeline.New(mock)
	mock.Set(time.Unix(400, 0))
	now := line.Now()
	require.Equal(t, int64(-600*time.Second), now.Nanos)
	require.Equal(t, time.Unix(400, 0).UTC(), now.UTC)
	require.Equal(t, now.UTC, line.UTC(now.Wall))
	require.Equal(t, time.Unix(1000, 0).UTC(), line.At(0))
}
