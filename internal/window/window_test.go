package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/window"
)

const step = int64(10)

func newWindow(now int64) *window.Window {
	w := new(window.Window)
	w.Init(time.Duration(step*window.Steps), now)
	return w
}

func requireCounts(t require.TestingT, w *window.Window, failures, outcomes uint64) {
	f, o := w.Counts()
	require.Equal(t, failures, f, "failures")
	require.Equal(t, outcomes, o, "outcomes")
}

func TestTheWindowLeavesOldOutcomesBehind(t *testing.T) {
	w := newWindow(0)
	w.Fail()
	w.Succeed()
	w.Advance(step*window.Steps - 1)
	requireCounts(t, w, 1, 2)
	w.Advance(step * window.Steps)
	requireCounts(t, w, 0, 0)
	require.EqualValues(t, 1, w.Successes())
}

func TestASuccessIsQuietWhileNothingHasFailed(t *testing.T) {
	w := newWindow(5)
	require.True(t, w.Quiet(step-1))
	require.False(t, w.Quiet(step))
	m := w.Fail()
	require.False(t, w.Quiet(5))
	w.Forget(m)
	require.True(t, w.Quiet(5))
}

func TestAFailureIsTakenBackOnce(t *testing.T) {
	w := newWindow(0)
	m := w.Fail()
	w.Forget(m)
	requireCounts(t, w, 0, 0)

	m = w.Fail()
	w.Clear(0)
	w.Fail()
	w.Forget(m) // from before Clear
	requireCounts(t, w, 1, 1)
	w.Forget(0)
	requireCounts(t, w, 1, 1)
}

func TestASuccessOutsideOfTheWindowIsOnlyCounted(t *testing.T) {
	w := newWindow(0)
	w.Succeed()
	w.SucceedOutside()
	requireCounts(t, w, 0, 1)
	require.EqualValues(t, 2, w.Successes())
}

func TestAClockThatIsSetBackChangesNothing(t *testing.T) {
	w := newWindow(100 * step)
	w.Fail()
	w.Advance(-5)
	requireCounts(t, w, 1, 1)
	w.Clear(-5)
	requireCounts(t, w, 0, 0)
	require.True(t, w.Quiet(100*step))
}

// The model keeps every outcome with its step.
func TestCountsAreThoseOfAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type failure struct {
			step int64
			mark window.Mark
		}
		var failures []failure
		var successes []int64
		now := rapid.Int64Range(-500, 500).Draw(t, "start")
		w := newWindow(now)
		youngest := floorDiv(now, step)
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			now = max(now, youngest*step) + rapid.Int64Range(0, 3*step).Draw(t, "later")
			w.Advance(now)
			youngest = max(youngest, floorDiv(now, step))
			switch rapid.SampledFrom([]string{"fail", "succeed", "forget", "clear", "long"}).Draw(t, "action") {
			case "fail":
				failures = append(failures, failure{youngest, w.Fail()})
			case "succeed":
				w.Succeed()
				successes = append(successes, youngest)
			case "forget":
				if len(failures) > 0 {
					w.Forget(failures[0].mark)
					failures = failures[1:]
				}
			case "clear":
				if rapid.IntRange(0, 4).Draw(t, "seldom") == 0 {
					w.Clear(now)
					failures, successes = nil, nil
				}
			case "long":
				now += rapid.Int64Range(0, 2*window.Steps*step).Draw(t, "long")
			}
			var f, s uint64
			for _, x := range failures {
				if x.step > youngest-window.Steps {
					f++
				}
			}
			for _, x := range successes {
				if x > youngest-window.Steps {
					s++
				}
			}
			requireCounts(t, w, f, f+s)
			require.Equal(t, f == 0, w.Quiet(youngest*step))
		}
	})
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
