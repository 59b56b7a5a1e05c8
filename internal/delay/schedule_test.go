package delay_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/delay"
)

func TestScheduledItemsCanBeTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newRealClock()
		var due []string
		s := delay.NewSchedule[string](clock, clock, math.MaxInt64, func(item string) { due = append(due, item) })
		for _, item := range []string{"a", "b", "c"} {
			require.True(t, s.Add(clock.in(time.Second), item[:1], item))
		}
		require.True(t, s.Add(clock.in(2*time.Second), "a", "a again"))
		require.Equal(t, []string{"b"}, s.Cancel("b"))
		require.Empty(t, s.Cancel("b"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"a", "c"}, due)
		require.Equal(t, []string{"a again"}, s.Cancel("a"), "the other item of the key")

		require.True(t, s.Add(clock.in(time.Hour), "d", "d"))
		s.Wait()
		require.Equal(t, []string{"d"}, s.Close())
		require.False(t, s.Add(clock.in(time.Hour), "e", "e"))
		require.Empty(t, s.Close())
	})
}

// Each item is due, or is taken back, once.
func TestScheduleAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct{ key, number int }
		clock := &handClock{}
		left := make(map[item]int64) // due times
		s := delay.NewSchedule[int](clock, clock, math.MaxInt64, func(x item) {
			require.Contains(t, left, x)
			require.LessOrEqual(t, left[x], clock.Nanos())
			delete(left, x)
		})
		for n := range rapid.IntRange(1, 300).Draw(t, "actions") {
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0, 1:
				x := item{rapid.IntRange(0, 100).Draw(t, "key"), n}
				left[x] = clock.Nanos() + rapid.Int64Range(1, 1000).Draw(t, "delay")
				require.True(t, s.Add(left[x], x.key, x))
			case 2:
				key := rapid.IntRange(0, 100).Draw(t, "key")
				for _, x := range s.Cancel(key) {
					require.Equal(t, key, x.key)
					require.Contains(t, left, x)
					delete(left, x)
				}
				for x := range left {
					require.NotEqual(t, key, x.key)
				}
				require.Empty(t, s.Get(key))
				all := make(map[item]bool)
				s.Each(func(x item) {
					all[x] = true
					require.Contains(t, left, x)
				})
				require.Len(t, all, len(left))
				for x := range left {
					require.Contains(t, s.Get(x.key), x)
				}
			case 3:
				clock.now.Add(rapid.Int64Range(0, 300).Draw(t, "pause"))
				clock.armed.Store(false)
				if clock.f != nil {
					clock.f()
				}
				for x, due := range left {
					require.Greater(t, due, clock.Nanos(), "%v is overdue", x)
				}
			}
		}
		for _, x := range s.Close() {
			require.Contains(t, left, x)
			delete(left, x)
		}
		require.Empty(t, left)
	})
}

// Items that are taken back leave no memory, also if others share their keys.
func TestManyCancelledItemsAreFreed(t *testing.T) {
	s := delay.NewSchedule[int](newRealClock(), newRealClock(), math.MaxInt64, func(*[1 << 10]byte) {})
	for n := range 100_000 {
		require.True(t, s.Add(int64(time.Hour), n%7, new([1 << 10]byte)))
		if n%7 != 0 {
			require.Len(t, s.Cancel(n%7), 1)
		}
	}
	left := s.Close()
	require.Len(t, left, 100_000/7+1)
	require.False(t, slices.Contains(left, nil))
}
