package deadline_test

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/deadline"
)

type call struct {
	word    deadline.Word
	timeout time.Duration
}

func (c *call) watched() (*deadline.Word, time.Duration) { return &c.word, c.timeout }

func (c *call) end() bool             { return c.word.End() }
func (c *call) state() deadline.State { return c.word.State() }

// show begins a call in a slot.
func show(s *deadline.Slot[call], timeout time.Duration) *call {
	c := &call{deadline.Begin(7), timeout}
	s.Show(c)
	return c
}

// handClock moves only by hand, and fires its timer when it is moved past it.
type handClock struct {
	mu    sync.Mutex
	now   int64
	due   int64 // 0: the timer is stopped
	f     func()
	made  int
	sets  int
	onSet func() // called once, just before the timer is set
}

func (c *handClock) nanos() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) afterFunc(d time.Duration, f func()) deadline.Timer {
	c.made++
	c.f = f
	c.Reset(d)
	return c
}

func (c *handClock) Reset(d time.Duration) bool {
	if hook := c.onSet; hook != nil {
		c.onSet = nil
		hook()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.due != 0
	c.sets++
	if c.due = c.now + int64(d); c.due < c.now {
		c.due = math.MaxInt64
	}
	return was
}

func (c *handClock) Stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.due != 0
	c.due = 0
	return was
}

func (c *handClock) armed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due
}

func (c *handClock) set(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *handClock) moveTo(now int64) {
	c.mu.Lock()
	c.now = now
	fires := c.due != 0 && c.due <= now
	if fires {
		c.due = 0
	}
	c.mu.Unlock()
	if fires {
		c.f()
	}
}

// watch is a watch on a handClock, and what it has reported.
type watch struct {
	*deadline.Watch[call]
	*handClock
	mu      sync.Mutex
	overran []*call
	slow    []deadline.Late[call]
}

func newWatch(now int64) *watch {
	w := &watch{handClock: &handClock{now: now}}
	w.Watch = deadline.New(deadline.Config[call]{
		Of: (*call).watched,
		Slow: func(slow []deadline.Late[call]) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.slow = append(w.slow, slow...)
		},
		Overrun:   func(c *call) { w.overran = append(w.overran, c) },
		Nanos:     w.nanos,
		AfterFunc: w.afterFunc,
	})
	return w
}

// slowCalls are the calls that were reported as slow.
func (w *watch) slowCalls() (all []*call) {
	w.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.slow {
		all = append(all, l.Call)
	}
	return all
}

// begin runs a call in a slot of its own, armed.
func (w *watch) begin(timeout time.Duration) (*call, *deadline.Slot[call]) {
	s := w.Open()
	c := show(s, timeout)
	w.Arm(s)
	return c, s
}

func TestF1_ACallOverrunsAtItsDeadline(t *testing.T) {
	w := newWatch(100)
	c, _ := w.begin(50)
	w.moveTo(149)
	require.Empty(t, w.overran)
	require.Equal(t, deadline.Running, c.state())
	w.moveTo(150)
	require.Equal(t, []*call{c}, w.overran)
	require.Equal(t, deadline.Overran, c.state())
	require.False(t, c.end())
	require.Equal(t, deadline.Overran, c.state())
	require.Zero(t, w.armed())
	w.Look()
	require.Len(t, w.overran, 1, "once")
}

func TestF1_ACallThatEndsInTimeDoesNotOverrun(t *testing.T) {
	w := newWatch(0)
	c, _ := w.begin(50)
	w.set(50) // it ends at the moment of its deadline, before the watch looks
	require.True(t, c.end())
	require.False(t, c.end(), "once")
	w.moveTo(1000)
	require.Empty(t, w.overran)
	require.Equal(t, deadline.Ended, c.state())
	require.Empty(t, w.StopAll())
	require.Empty(t, w.slowCalls())
	require.Zero(t, w.armed())
}

// A slot's next call has a deadline of its own. Nothing touches an earlier call.
func TestF1_AStaleCallDoesNoHarm(t *testing.T) {
	w := newWatch(0)
	s := w.Open()
	first := show(s, 50)
	w.Arm(s)
	require.True(t, first.end())
	w.moveTo(40)
	second := show(s, 50)
	require.Equal(t, deadline.Ended, first.state())
	require.False(t, first.end())
	require.Equal(t, deadline.Running, second.state())
	require.True(t, w.Look(), "the slot shows another call")
	w.moveTo(60)
	require.Empty(t, w.overran)
	w.moveTo(90)
	require.Equal(t, []*call{second}, w.overran)
	require.Equal(t, deadline.Ended, first.state())
	require.Equal(t, deadline.Overran, second.state())
	// The first slot still shows the second call.
	other := w.Open()
	third := show(other, 50)
	w.Arm(other)
	require.Equal(t, []*call{third}, w.StopAll())
	require.Equal(t, deadline.Stopped, third.state())
	require.Equal(t, deadline.Overran, second.state())
	w.Close(s)
	w.Close(other)
}

func TestF1_OneTimerIsSetToTheEarliestInstant(t *testing.T) {
	w := newWatch(0)
	a, _ := w.begin(90)
	require.EqualValues(t, 30, w.armed(), "when it becomes slow")
	b, _ := w.begin(30)
	require.EqualValues(t, 10, w.armed())
	c, _ := w.begin(60)
	sets := w.sets
	for range 10 {
		w.begin(time.Hour)
	}
	require.Equal(t, sets, w.sets, "later calls do not touch the timer")
	for _, next := range []int64{10, 20, 30, 60} {
		require.Equal(t, next, w.armed())
		if next == 60 {
			c.end()
		}
		w.moveTo(next)
	}
	require.Equal(t, []*call{b}, w.overran)
	require.EqualValues(t, 90, w.armed())
	w.moveTo(90)
	require.Equal(t, []*call{b, a}, w.overran)
	require.EqualValues(t, time.Hour/3, w.armed())
	require.Equal(t, 1, w.made)
}

func TestF1_LookGivesACallItsDeadline(t *testing.T) {
	w := newWatch(0)
	s := w.Open()
	c := show(s, 50)
	require.Zero(t, w.armed())
	w.set(7)
	require.True(t, w.Look())
	require.EqualValues(t, 7+17, w.armed(), "a third of the timeout")
	require.False(t, w.Look(), "nothing new")
	w.moveTo(30)
	require.EqualValues(t, 57, w.armed())
	require.EqualValues(t, 57, w.Deadline(s, c))
	w.moveTo(57)
	require.Equal(t, []*call{c}, w.overran)
}

func TestF1_TheDeadlineIsThatOfTheCall(t *testing.T) {
	w := newWatch(0)
	s := w.Open()
	first := show(s, 50)
	w.set(10)
	require.EqualValues(t, 60, w.Deadline(s, first))
	w.set(12)
	require.EqualValues(t, 60, w.Deadline(s, first), "for good")
	require.True(t, first.end())
	second := show(s, 20)
	w.set(15)
	require.EqualValues(t, 60, w.Deadline(s, first), "it had one")
	require.EqualValues(t, 35, w.Deadline(s, second))
	require.EqualValues(t, 15, w.Deadline(s, first), "forgotten")
	w.Look()
	w.moveTo(35)
	require.Equal(t, []*call{second}, w.overran)
}

func TestF1_DeadlinesAtTheEdgesOfTime(t *testing.T) {
	for name, c := range map[string]struct {
		now     int64
		timeout time.Duration
	}{
		"the end":             {1000, math.MaxInt64},
		"long past the end":   {math.MaxInt64 - 5, math.MaxInt64},
		"before the clock's":  {-50, 50},
		"the shortest":        {0, 1},
		"the last that fits":  {0, math.MaxInt64 - 1},
		"one before overflow": {math.MaxInt64 - 10, 9},
	} {
		w := newWatch(c.now)
		x, s := w.begin(c.timeout)
		due := w.Deadline(s, x)
		require.Greater(t, due, c.now, name)
		require.Less(t, due, int64(math.MaxInt64), name)
	}
}

func TestF1_RestStopsTheTimer(t *testing.T) {
	w := newWatch(0)
	x, xs := w.begin(50)
	y, _ := w.begin(90)
	x.end()
	xs.Clear()
	w.Rest()
	require.EqualValues(t, 30, w.armed(), "one still runs")
	y.end()
	w.Rest()
	require.Zero(t, w.armed())
	sets := w.sets
	w.Rest()
	require.Equal(t, sets, w.sets)
	w.begin(60)
	require.EqualValues(t, 20, w.armed(), "it is set again")
	require.Equal(t, 1, w.made)
}

func TestS6_RevokeAllEndsEveryRunningCall(t *testing.T) {
	w := newWatch(0)
	a, _ := w.begin(10)
	b, _ := w.begin(500)
	w.Open()
	w.moveTo(10)
	require.Equal(t, []*call{b}, w.RevokeAll())
	require.Empty(t, w.StopAll())
	require.Equal(t, deadline.Overran, a.state())
	require.Equal(t, deadline.Revoked, b.state())
	require.False(t, b.end())
}

func TestS2_StopAllEndsEveryRunningCall(t *testing.T) {
	w := newWatch(0)
	a, _ := w.begin(10)
	b, _ := w.begin(500)
	ended, _ := w.begin(500)
	ended.end()
	w.Open()
	w.moveTo(10)
	c, _ := w.begin(20)
	require.ElementsMatch(t, []*call{b, c}, w.StopAll())
	require.Empty(t, w.StopAll())
	require.Equal(t, deadline.Stopped, b.state())
	require.Equal(t, deadline.Stopped, c.state())
	require.Equal(t, deadline.Overran, a.state())
	require.Equal(t, deadline.Ended, ended.state())
	require.False(t, b.end())
	w.moveTo(10_000)
	require.Equal(t, []*call{a}, w.overran)
	w.Rest()
	require.Zero(t, w.armed())
}

func TestF1_CloseRemovesASlot(t *testing.T) {
	for closed := range 3 {
		w := newWatch(0)
		var calls []*call
		var slots []*deadline.Slot[call]
		for range 3 {
			c, s := w.begin(10)
			calls, slots = append(calls, c), append(slots, s)
		}
		w.Close(slots[closed])
		w.moveTo(10)
		require.Len(t, w.overran, 2)
		require.False(t, slices.Contains(w.overran, calls[closed]))
		for i, s := range slots {
			if i != closed {
				w.Close(s)
			}
		}
		require.Empty(t, w.StopAll())
		w.begin(5)
		w.moveTo(15)
		require.Len(t, w.overran, 3)
	}
}

// Only the clock decides, not when the timer fires.
func TestF1_ATimerMayFireEarlyLateAndTwice(t *testing.T) {
	w := newWatch(0)
	c, _ := w.begin(50)
	w.f()
	require.Empty(t, w.overran)
	require.EqualValues(t, 17, w.armed())
	w.moveTo(17)
	w.f()
	require.Empty(t, w.overran)
	w.moveTo(55)
	w.f()
	require.Equal(t, []*call{c}, w.overran)
}

func TestF1_TheClockMayBeSetBack(t *testing.T) {
	w := newWatch(1000)
	x, _ := w.begin(50)
	w.set(10)
	y, _ := w.begin(51) // earlier than the instant of the timer
	require.EqualValues(t, 10+17, w.armed())
	w.moveTo(61)
	require.Equal(t, []*call{y}, w.overran)
	w.moveTo(1050)
	require.Equal(t, []*call{y, x}, w.overran)
}

// A mock clock may be moved after the watch has read it, and before the watch sets the
// timer: the timer would be late for good if the clock then stood still.
func TestF1_TheClockMayMoveWhileTheTimerIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(0)
		w.onSet = func() { w.set(100) }
		c, _ := w.begin(50)
		synctest.Wait()
		require.Equal(t, []*call{c}, w.overran)
	})
}

func TestO3_ACallIsReportedAsSlowOnce(t *testing.T) {
	w := newWatch(1000)
	c, _ := w.begin(300)
	w.moveTo(1099)
	w.Look()
	require.Empty(t, w.slowCalls())
	for now := int64(1100); now < 1299; now += 7 {
		w.moveTo(now)
		w.Look()
	}
	require.Equal(t, []*call{c}, w.slowCalls())
	require.EqualValues(t, 1000, w.slow[0].Began)
	require.EqualValues(t, 1300, w.armed())
	w.moveTo(1300)
	require.Equal(t, []*call{c}, w.overran)
	require.Len(t, w.slowCalls(), 1)
	late, _ := w.begin(300)
	w.set(1600)
	w.Look()
	require.Equal(t, []*call{c, late}, w.overran)
	require.Len(t, w.slowCalls(), 1, "it overran before it was seen to be slow")
}

func TestO3_CallsThatEndInTimeAreNotSlow(t *testing.T) {
	w := newWatch(0)
	ended, _ := w.begin(300)
	stopped, _ := w.begin(300)
	w.moveTo(99)
	require.True(t, ended.end())
	require.Equal(t, []*call{stopped}, w.StopAll())
	w.moveTo(100)
	require.Empty(t, w.slowCalls())
	require.Zero(t, w.armed())
}

// A third is rounded up.
func TestO3_WhenACallBecomesSlow(t *testing.T) {
	for _, x := range []struct {
		now     int64
		timeout time.Duration
		after   int64
	}{
		{0, 2, 1},
		{0, 3, 1},
		{0, 4, 2},
		{-50, 50, 17},
		{0, time.Second, 333_333_334},
		{0, math.MaxInt64 - 1, (math.MaxInt64 - 1) / 3},
	} {
		w := newWatch(x.now)
		w.begin(x.timeout)
		w.moveTo(x.now + x.after - 1)
		w.Look()
		require.Empty(t, w.slowCalls(), "%+v", x)
		w.moveTo(x.now + x.after)
		require.Len(t, w.slowCalls(), 1, "%+v", x)
		require.Empty(t, w.overran)
	}
}

func runtimeWatch(slow func([]deadline.Late[call]), overran func(*call)) *deadline.Watch[call] {
	origin := time.Now()
	return deadline.New(deadline.Config[call]{
		Of: (*call).watched, Slow: slow, Overrun: overran,
		Nanos:     func() int64 { return int64(time.Since(origin)) },
		AfterFunc: func(d time.Duration, f func()) deadline.Timer { return time.AfterFunc(d, f) },
	})
}

// A report that blocks delays no deadline, and Wait waits for it.
func TestO3_AReportMayBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var overran, reported atomic.Int64
		w := runtimeWatch(
			func(s []deadline.Late[call]) { <-release; reported.Add(int64(len(s))) },
			func(*call) { overran.Add(1) })
		for range 3 {
			s := w.Open()
			show(s, 3*time.Second)
			w.Arm(s)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2700*time.Millisecond - 1)
		synctest.Wait()
		require.Zero(t, overran.Load())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.EqualValues(t, 1, overran.Load(), "at its deadline")
		time.Sleep(time.Second)
		require.EqualValues(t, 3, overran.Load())
		require.Zero(t, reported.Load())
		waited := make(chan struct{})
		go func() { w.Wait(); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Fatal("Wait returned before the report did")
		default:
		}
		close(release)
		<-waited
		require.EqualValues(t, 3, reported.Load())
	})
}

// No call is missed between a call that begins and the watch that stops its timer.
func TestF1_NoCallIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, each = 50, 40
		var overran, wrong, want atomic.Int64
		w := runtimeWatch(func([]deadline.Late[call]) {}, func(*call) { overran.Add(1) })
		var all sync.WaitGroup
		for worker := range workers {
			all.Go(func() {
				s := w.Open()
				defer func() { w.Close(s) }()
				for i := range each {
					c := show(s, time.Duration(1+(worker*7+i*13)%29)*time.Millisecond)
					w.Arm(s)
					late := (worker+i)%3 == 0
					if late {
						want.Add(1)
						time.Sleep(c.timeout + 1)
					} else {
						time.Sleep(c.timeout - 1)
					}
					if c.end() == late {
						wrong.Add(1)
					}
					w.Rest()
				}
			})
		}
		all.Wait()
		require.Zero(t, wrong.Load())
		require.Equal(t, want.Load(), overran.Load())
	})
}

// The goroutine of a call, the watch and StopAll compete for its end: exactly one wins.
func TestF1_ACallEndsOnce(t *testing.T) {
	const workers, each = 4, 1000
	var overran, stopped, ended atomic.Int64
	var now atomic.Int64
	w := deadline.New(deadline.Config[call]{
		Of: (*call).watched, Slow: func([]deadline.Late[call]) {}, Overrun: func(*call) { overran.Add(1) },
		Nanos:     func() int64 { return now.Add(1) },
		AfterFunc: func(time.Duration, func()) deadline.Timer { return &handClock{} },
	})
	var all, other sync.WaitGroup
	done := make(chan struct{})
	other.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			w.Look()
			if i%4 == 0 {
				stopped.Add(int64(len(w.StopAll())))
			}
			w.Rest()
			runtime.Gosched()
		}
	})
	for range workers {
		all.Go(func() {
			s := w.Open()
			defer w.Close(s)
			for i := range each {
				c := show(s, time.Duration(1+i%7*500))
				w.Arm(s)
				for range i % 5 {
					runtime.Gosched()
				}
				if c.end() {
					ended.Add(1)
				}
			}
		})
	}
	all.Wait()
	close(done)
	other.Wait()
	w.Wait()
	// Arm looks on a goroutine of its own if a deadline has passed.
	for overran.Load()+stopped.Load()+ended.Load() < workers*each {
		runtime.Gosched()
	}
	require.EqualValues(t, workers*each, overran.Load()+stopped.Load()+ended.Load())
}

// A cleared slot keeps no call in memory once the watch has looked.
func TestF1_ClearReleasesTheCall(t *testing.T) {
	w := newWatch(0)
	s := w.Open()
	seen := func() weak.Pointer[call] {
		c := show(s, 50)
		w.Look()
		require.True(t, c.end())
		return weak.Make(c)
	}()
	s.Clear()
	w.Rest()
	runtime.GC()
	require.Nil(t, seen.Value())
	w.Close(s)
}

func TestWord_KeepsItsNumberInEveryState(t *testing.T) {
	for _, number := range []uint32{0, 1, 12345, deadline.MaxNumber} {
		w := deadline.Begin(number)
		require.Equal(t, deadline.Running, w.State())
		require.Equal(t, number, w.Number())
		require.True(t, w.End())
		require.False(t, w.End())
		require.Equal(t, deadline.Ended, w.State())
		require.Equal(t, number, w.Number())
	}
}
