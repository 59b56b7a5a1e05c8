package timeline_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/timeline"
)

func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := timeline.New(clock.New())
		var mu sync.Mutex // guards the following
		var times []time.Time
		a := timeline.NewAlarm(line, func() {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Now())
		})
		began := time.Now()
		woken := func() (after []time.Duration) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for _, t := range times {
				after = append(after, t.Sub(began))
			}
			return after
		}
		require.True(t, a.Due(), "a new alarm is due")
		a.Add(began.Add(time.Minute))
		require.True(t, a.Due(), "it stays due")
		a.Clear()
		require.False(t, a.Due())
		time.Sleep(time.Hour)
		require.Empty(t, woken())

		began = time.Now()
		a.Add(began.Add(3 * time.Second))
		a.Add(began.Add(2 * time.Second))
		a.Add(began.Add(4 * time.Second))
		time.Sleep(2*time.Second - 1)
		require.False(t, a.Due())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []time.Duration{2 * time.Second}, woken())
		require.True(t, a.Due())
		a.Clear()
		a.Add(began.Add(5 * time.Second))
		a.Ring()
		require.True(t, a.Due())
		time.Sleep(time.Hour)
		require.Equal(t, []time.Duration{2 * time.Second, 5 * time.Second}, woken())

		a.Clear()
		a.Add(time.Now().Add(time.Second))
		a.Stop()
		a.Add(time.Now().Add(time.Millisecond))
		time.Sleep(time.Hour)
		require.Len(t, woken(), 2)
	})
}

func TestInstants(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	line := timeline.New(mock)
	mock.Add(time.Minute)
	now := line.Now()
	require.Equal(t, int64(time.Hour), now.Point(now.UTC.Add(59*time.Minute)))
	require.Equal(t, int64(-time.Hour), now.Point(now.UTC.Add(-61*time.Minute)))
	require.Equal(t, int64(1<<63-1), now.Point(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.Negative(t, now.Point(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.True(t, line.HasCome(now.UTC))
	require.False(t, line.HasCome(now.UTC.Add(1)))
	require.False(t, line.HasCome(time.Time{}), "the zero time never comes")
	require.Equal(t, int64(1<<63-1), line.Look(time.Time{}))
	require.Equal(t, int64(time.Hour), line.Look(now.UTC.Add(59*time.Minute)), "the timers of a mock clock are its wall clock")
	require.Equal(t, timeline.CheckEvery, timeline.New(clock.New()).Check())
	require.Equal(t, now.UTC, line.Aged())
	mock.Set(time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC))
	require.Equal(t, mock.Now(), line.Aged())
}
