package deadline_test

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/deadline"
)

// newSlowWatch is newWatch with what is told of slow calls, which synctest.Wait
// waits for.
func newSlowWatch(c *handClock) (w *deadline.Watch[task], slow func() [][]*task, late *[]*task) {
	var mu sync.Mutex
	var all [][]*task
	late = &[]*task{}
	w = deadline.New(
		func(slow []deadline.Slow[task]) {
			mu.Lock()
			defer mu.Unlock()
			var tasks []*task
			for _, s := range slow {
				tasks = append(tasks, s.Call)
			}
			all = append(all, tasks)
		},
		func(t *task) { *late = append(*late, t) },
		c.nanos, c.schedule,
	)
	return w, func() [][]*task {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return all
	}, late
}

func TestACallIsSlowOnceAThirdOfItsTimeoutHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{now: 1000}
		w, slow, late := newSlowWatch(c)
		x, _ := begin(w, c, 300)
		c.moveTo(1099)
		w.Look()
		require.Empty(t, slow())
		c.moveTo(1100)
		require.Equal(t, [][]*task{{x}}, slow())
		require.Empty(t, *late)
		for now := int64(1101); now < 1299; now += 7 {
			c.moveTo(now)
			w.Look()
		}
		require.EqualValues(t, 1300, c.armedFor())
		c.moveTo(1300)
		w.Look()
		require.Equal(t, []*task{x}, *late)
		require.Len(t, slow(), 1, "once")
	})
}

func TestCallsThatEndInTimeAreNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		w, slow, _ := newSlowWatch(c)
		ended, s := begin(w, c, 300)
		stopped, _ := begin(w, c, 300)
		c.moveTo(99)
		require.True(t, s.End(ended.number))
		require.Equal(t, []*task{stopped}, w.StopAll())
		c.moveTo(100)
		c.moveTo(1000)
		require.Empty(t, slow())
		require.Zero(t, c.armedFor())
	})
}

// All that a look finds are told together: one goroutine, however many they are.
func TestSeveralAreSlowAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		w, slow, _ := newSlowWatch(c)
		a, _ := begin(w, c, 300)
		b, _ := begin(w, c, 330)
		begin(w, c, 3000)
		c.moveTo(120)
		require.Equal(t, [][]*task{{a, b}}, slow())
	})
}

// One that is seen too late is not told of: it has overrun.
func TestACallThatIsLateIsNotSlowAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		w, slow, late := newSlowWatch(c)
		x, _ := begin(w, c, 300)
		c.moveTo(300)
		require.Equal(t, []*task{x}, *late)
		require.Empty(t, slow())
	})
}

// A third is rounded up, and what does not fit into the time is not passed.
func TestSlowAtTheEdges(t *testing.T) {
	for _, x := range []struct {
		now     int64
		timeout time.Duration
		after   int64
	}{
		{0, 2, 1},
		{0, 3, 1},
		{0, 4, 2},
		{0, time.Second, 333_333_334},
		{-50, 50, 17},
		{0, math.MaxInt64 - 1, (math.MaxInt64 - 1) / 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &handClock{now: x.now}
			w, slow, late := newSlowWatch(c)
			begin(w, c, x.timeout)
			c.moveTo(x.now + x.after - 1)
			w.Look()
			require.Empty(t, slow(), "%+v", x)
			c.moveTo(x.now + x.after)
			require.Len(t, slow(), 1, "%+v", x)
			require.Empty(t, *late)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		w, slow, late := newSlowWatch(c)
		begin(w, c, 1)
		c.moveTo(1)
		require.Len(t, *late, 1)
		require.Empty(t, slow(), "a third of nothing")
	})
	synctest.Test(t, func(t *testing.T) {
		// The deadline is the end of time, so the third is an hour early.
		c := &handClock{now: int64(time.Hour)}
		w, slow, late := newSlowWatch(c)
		begin(w, c, math.MaxInt64)
		c.moveTo(math.MaxInt64/3 - 1)
		w.Look()
		require.Empty(t, slow())
		c.moveTo(math.MaxInt64/3 + int64(time.Hour))
		require.Len(t, slow(), 1)
		require.Empty(t, *late)
	})
}

// Telling may take as long as it likes: the deadlines of others are seen to, and
// Wait waits for it.
func TestTellingHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		nanos := func() int64 { return int64(time.Since(origin)) }
		release := make(chan struct{})
		var overran, told atomic.Int64
		w := deadline.New(
			func(s []deadline.Slow[task]) { <-release; told.Add(int64(len(s))) },
			func(*task) { overran.Add(1) },
			nanos,
			func(d time.Duration, f func()) deadline.Timer { return time.AfterFunc(d, f) },
		)
		for range 3 {
			s := w.Open()
			w.Arm(s, show(s, 3*time.Second).number)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		require.Zero(t, overran.Load())
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 1, overran.Load(), "at its deadline")
		time.Sleep(time.Second)
		require.EqualValues(t, 3, overran.Load())
		require.Zero(t, told.Load())
		waited := false
		go func() { w.Wait(); waited = true }()
		synctest.Wait()
		require.False(t, waited)
		close(release)
		synctest.Wait()
		require.True(t, waited)
		require.EqualValues(t, 3, told.Load())
	})
}

// A look that has found a slow call, and has not told of it yet, is waited for.
func TestWaitWaitsForALookThatGoesOn(t *testing.T) {
	c := &handClock{}
	var told atomic.Bool
	w := deadline.New(
		func([]deadline.Slow[task]) { told.Store(true) },
		func(*task) {},
		c.nanos, c.schedule,
	)
	x, s := begin(w, c, 300)
	waited := make(chan bool)
	c.onArm = func() {
		s.End(x.number)
		go func() {
			w.Wait()
			waited <- told.Load()
		}()
		for range 1000 {
			runtime.Gosched()
		}
		require.False(t, told.Load())
	}
	c.moveTo(100)
	require.True(t, <-waited)
}
