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

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/deadline"
)

// task is what runs in these tests.
type task struct {
	number  uint64
	timeout time.Duration
	_       *task // it is not allocated with others, as what has no pointers is
}

var numbers atomic.Uint64

// provide makes tasks with consecutive numbers, for a slot to show.
func provide(s *deadline.Slot[task], timeouts ...time.Duration) []*task {
	n := uint64(len(timeouts))
	first := numbers.Add(n) - n + 1
	tasks := make([]task, n)
	s.Provide(&deadline.Batch[task]{First: first, Calls: tasks})
	var all []*task
	for i, timeout := range timeouts {
		tasks[i].number, tasks[i].timeout = first+uint64(i), timeout
		all = append(all, &tasks[i])
	}
	return all
}

// show has a slot show a task that begins.
func show(s *deadline.Slot[task], timeout time.Duration) *task {
	t := provide(s, timeout)[0]
	s.Begin(t.number, timeout)
	return t
}

// handClock moves only by hand, and fires its timer when it is moved past it.
type handClock struct {
	mu     sync.Mutex
	now    int64
	due    int64 // 0: the timer is stopped
	f      func()
	arms   int
	made   int
	onArm  func() // called, once, just before the timer is set
	onTime []time.Duration
}

func (c *handClock) nanos() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) schedule(d time.Duration, f func()) deadline.Timer {
	c.made++
	c.f = f
	c.Reset(d)
	return c
}

func (c *handClock) Reset(d time.Duration) bool {
	if hook := c.onArm; hook != nil {
		c.onArm = nil
		hook()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.due != 0
	c.due = c.now + int64(d)
	if c.due < c.now {
		c.due = math.MaxInt64
	}
	c.arms++
	c.onTime = append(c.onTime, d)
	return was
}

func (c *handClock) Stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.due != 0
	c.due = 0
	return was
}

func (c *handClock) armedFor() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due
}

func (c *handClock) moveTo(now int64) {
	c.mu.Lock()
	c.now = now
	fire := c.due != 0 && c.due <= now
	if fire {
		c.due = 0
	}
	c.mu.Unlock()
	if fire {
		c.f()
	}
}

func newWatch(c *handClock) (w *deadline.Watch[task], late *[]*task) {
	late = &[]*task{}
	w = deadline.New(
		func([]deadline.Slow[task]) {},
		func(t *task) { *late = append(*late, t) },
		c.nanos, c.schedule,
	)
	return w, late
}

// begin runs a task in a slot of its own, armed.
func begin(w *deadline.Watch[task], c *handClock, timeout time.Duration) (*task, *deadline.Slot[task]) {
	s := w.Open()
	t := show(s, timeout)
	w.Arm(s, t.number)
	return t, s
}

func TestACallOverrunsAtItsDeadline(t *testing.T) {
	c := &handClock{now: 100}
	w, late := newWatch(c)
	x, s := begin(w, c, 50)
	require.True(t, s.Runs(x.number))
	c.moveTo(149)
	require.Empty(t, *late)
	require.Equal(t, deadline.Running, s.State(x.number))
	c.moveTo(150)
	require.Equal(t, []*task{x}, *late)
	require.Equal(t, deadline.Overran, s.State(x.number))
	require.False(t, s.End(x.number), "it has been decided")
	require.False(t, s.Pass(x.number, time.Hour), "it has been decided")
	require.Equal(t, deadline.Overran, s.State(x.number))
	require.False(t, s.Runs(x.number))
	require.Zero(t, c.armedFor())
	w.Look()
	require.Len(t, *late, 1, "once")
}

func TestACallThatEndsInTimeDoesNot(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	x, s := begin(w, c, 50)
	require.True(t, s.End(x.number))
	require.Equal(t, deadline.Ended, s.State(x.number))
	require.False(t, s.End(x.number), "once")
	c.moveTo(1000)
	require.Empty(t, *late)
	require.Empty(t, w.StopAll())
	require.Zero(t, c.armedFor())
}

// One step ends a call and begins the next, which has a deadline of its own.
func TestPassGoesOnToTheNextCall(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	s := w.Open()
	tasks := provide(s, 50, 50)
	x, y := tasks[0], tasks[1]
	s.Begin(x.number, 50)
	w.Arm(s, x.number)
	c.moveTo(40)
	require.False(t, s.Pass(y.number, 50), "it does not run")
	require.True(t, s.Pass(x.number, 50))
	require.False(t, s.Runs(x.number))
	require.Equal(t, deadline.Ended, s.State(x.number))
	require.True(t, s.Runs(y.number))
	require.Equal(t, deadline.Running, s.State(y.number))
	require.False(t, s.End(x.number))
	c.moveTo(45)
	require.True(t, w.Look(), "it shows another one")
	c.moveTo(50)
	require.Empty(t, *late)
	c.moveTo(95)
	require.Equal(t, []*task{y}, *late)
	require.Equal(t, deadline.Overran, s.State(y.number))
	require.Equal(t, deadline.Ended, s.State(x.number))
}

func TestTheTimerIsSetToTheEarliest(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	a, _ := begin(w, c, 90)
	require.EqualValues(t, 30, c.armedFor(), "when it is slow")
	b, _ := begin(w, c, 30)
	require.EqualValues(t, 10, c.armedFor())
	third, thirds := begin(w, c, 60)
	require.EqualValues(t, 10, c.armedFor())
	arms := c.arms
	for range 10 {
		begin(w, c, time.Hour)
	}
	require.Equal(t, arms, c.arms, "later ones cost nothing")
	c.moveTo(10)
	require.EqualValues(t, 20, c.armedFor())
	c.moveTo(20)
	require.EqualValues(t, 30, c.armedFor())
	require.Empty(t, *late)
	c.moveTo(30)
	require.Equal(t, []*task{b}, *late)
	require.EqualValues(t, 60, c.armedFor())
	thirds.End(third.number)
	c.moveTo(60)
	require.EqualValues(t, 90, c.armedFor())
	c.moveTo(90)
	require.Equal(t, []*task{b, a}, *late)
	require.EqualValues(t, time.Hour/3, c.armedFor())
	require.Equal(t, 1, c.made, "one timer for all")
}

func TestSeveralAreLateAtOnce(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	for i := range 5 {
		begin(w, c, time.Duration(10+i))
	}
	c.moveTo(1000)
	require.Len(t, *late, 5)
	require.Zero(t, c.armedFor())
}

// A call that nobody gave a deadline gets it when it is first looked at.
func TestLookGivesADeadline(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	s := w.Open()
	x := show(s, 50)
	require.Zero(t, c.armedFor())
	c.moveTo(7)
	require.True(t, w.Look())
	require.EqualValues(t, 7+17, c.armedFor(), "a third of it")
	require.False(t, w.Look(), "nothing new")
	c.moveTo(30)
	require.False(t, w.Look())
	require.EqualValues(t, 57, c.armedFor(), "it keeps its deadline")
	require.EqualValues(t, 57, w.Deadline(s, x.number))
	c.moveTo(57)
	require.Len(t, *late, 1)
	require.EqualValues(t, 57, w.Deadline(s, x.number), "for good")
	s = w.Open()
	y := show(s, 50)
	require.True(t, w.Look())
	require.True(t, s.End(y.number))
	s.Clear()
	require.True(t, w.Look())
	require.False(t, w.Look())
}

func TestDeadlinesAtTheEdges(t *testing.T) {
	for name, c := range map[string]struct {
		now     int64
		timeout time.Duration
	}{
		"the end of time":      {1000, math.MaxInt64},
		"long past the end":    {math.MaxInt64 - 5, math.MaxInt64},
		"before the beginning": {-50, 50},
	} {
		clock := &handClock{now: c.now}
		w, _ := newWatch(clock)
		x, s := begin(w, clock, c.timeout)
		due := w.Deadline(s, x.number)
		require.Greater(t, due, c.now, name)
		require.Less(t, due, int64(math.MaxInt64), name)
		clock.mu.Lock()
		clock.now++
		clock.mu.Unlock()
		require.Equal(t, due, w.Deadline(s, x.number), "%s: it is set once", name)
	}
}

// A call that has no deadline yet gets one when it is asked for, and so does another
// one that the slot shows after it.
func TestDeadlineIsThatOfTheCall(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	s := w.Open()
	x := show(s, 50)
	c.moveTo(10)
	require.EqualValues(t, 60, w.Deadline(s, x.number))
	require.True(t, s.End(x.number))
	y := show(s, 20)
	c.moveTo(15)
	require.EqualValues(t, 60, w.Deadline(s, x.number), "it had one")
	require.EqualValues(t, 35, w.Deadline(s, y.number))
	require.EqualValues(t, 15, w.Deadline(s, x.number), "it is not known any more")
	w.Look()
	c.moveTo(35)
	require.Equal(t, []*task{y}, *late)
}

func TestRestStopsTheTimer(t *testing.T) {
	c := &handClock{}
	w, _ := newWatch(c)
	x, xs := begin(w, c, 50)
	y, ys := begin(w, c, 90)
	xs.End(x.number)
	w.Rest()
	require.EqualValues(t, 30, c.armedFor(), "one still runs")
	ys.End(y.number)
	w.Rest()
	require.Zero(t, c.armedFor())
	w.Rest()
	begin(w, c, 60)
	require.EqualValues(t, 20, c.armedFor(), "and it is set again")
	require.Equal(t, 1, c.made)
}

func TestStopAllGivesUpWhatRuns(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	a, as := begin(w, c, 10)
	b, bs := begin(w, c, 500)
	ended, es := begin(w, c, 500)
	es.End(ended.number)
	w.Open()
	c.moveTo(10)
	d, ds := begin(w, c, 20)
	require.ElementsMatch(t, []*task{b, d}, w.StopAll())
	require.Empty(t, w.StopAll())
	require.Equal(t, deadline.Stopped, bs.State(b.number))
	require.Equal(t, deadline.Stopped, ds.State(d.number))
	require.Equal(t, deadline.Overran, as.State(a.number))
	require.Equal(t, deadline.Ended, es.State(ended.number))
	require.False(t, bs.End(b.number))
	c.moveTo(10_000)
	require.Equal(t, []*task{a}, *late)
	w.Rest()
	require.Zero(t, c.armedFor())
}

func TestCloseRemovesASlot(t *testing.T) {
	for closed := range 3 {
		c := &handClock{}
		w, late := newWatch(c)
		var tasks []*task
		var slots []*deadline.Slot[task]
		for range 3 {
			x, s := begin(w, c, 10)
			tasks, slots = append(tasks, x), append(slots, s)
		}
		w.Close(slots[closed])
		c.moveTo(10)
		require.Len(t, *late, 2)
		require.False(t, slices.Contains(*late, tasks[closed]))
		for i, s := range slots { // the others can be closed still
			if i != closed {
				w.Close(s)
			}
		}
		require.Empty(t, w.StopAll())
		begin(w, c, 5)
		c.moveTo(15)
		require.Len(t, *late, 3)
	}
}

func TestATimeThatIsSetBack(t *testing.T) {
	c := &handClock{now: 1000}
	w, late := newWatch(c)
	x, _ := begin(w, c, 50)
	c.moveTo(10)
	y, _ := begin(w, c, 51) // earlier than what the timer is set to
	require.EqualValues(t, 10+17, c.armedFor())
	c.moveTo(10 + 17)
	require.EqualValues(t, 61, c.armedFor())
	c.moveTo(61)
	require.Equal(t, []*task{y}, *late)
	require.EqualValues(t, 1017, c.armedFor())
	c.moveTo(1017)
	require.EqualValues(t, 1050, c.armedFor())
	c.moveTo(1050)
	require.Equal(t, []*task{y, x}, *late)
}

// Early, late and twice: only the clock decides.
func TestATimerThatLies(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	x, _ := begin(w, c, 50)
	c.f()
	require.Empty(t, *late)
	require.EqualValues(t, 17, c.armedFor())
	c.moveTo(17)
	c.f()
	require.Empty(t, *late)
	require.EqualValues(t, 50, c.armedFor())
	c.moveTo(50)
	c.f()
	require.Equal(t, []*task{x}, *late)
}

// A mock clock may be moved between being read and being asked for a timer. If it
// stands still afterwards, a timer that is late by as much never fires.
func TestAClockThatMovesWhileTheTimerIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		w, late := newWatch(c)
		c.onArm = func() { c.mu.Lock(); c.now = 100; c.mu.Unlock() }
		x, _ := begin(w, c, 50)
		// 100 now, and the call was due at 50.
		synctest.Wait()
		require.Equal(t, []*task{x}, *late, "the timer is late for good")
	})
}

// The watch and the caller race for each call's end: exactly one of them wins.
func TestEndOrOverrunAndNeverBoth(t *testing.T) {
	const workers, each = 8, 2000
	var overran, ended, passed, lost atomic.Int64
	origin := time.Now()
	w := deadline.New(
		func([]deadline.Slow[task]) {},
		func(*task) { overran.Add(1) },
		func() int64 { return int64(time.Since(origin)) },
		func(d time.Duration, f func()) deadline.Timer { return time.AfterFunc(d, f) },
	)
	var stopped atomic.Int64
	var wg, stopper sync.WaitGroup
	done := make(chan struct{})
	stopper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			w.Look()
			stopped.Add(int64(len(w.StopAll())))
			w.Rest()
			runtime.Gosched()
		}
	})
	for range workers {
		wg.Go(func() {
			s := w.Open()
			for i := range each {
				tasks := provide(s, time.Duration(1+i%7*500), time.Hour)
				x := tasks[0]
				s.Begin(x.number, x.timeout)
				w.Arm(s, x.number)
				for range i % 5 {
					runtime.Gosched()
				}
				mine := true
				if i%2 == 0 {
					if mine = s.Pass(x.number, time.Hour); mine {
						passed.Add(1)
						x = tasks[1]
					}
				}
				if mine && s.End(x.number) {
					ended.Add(1)
					continue
				}
				lost.Add(1)
				w.Close(s) // nothing is shown there any more
				s = w.Open()
			}
			w.Close(s)
		})
	}
	wg.Wait()
	close(done)
	stopper.Wait()
	w.Rest()
	require.EqualValues(t, workers*each, ended.Load()+lost.Load())
	// A look of the timer may have decided a race and not yet reported it.
	for lost.Load() > overran.Load()+stopped.Load() {
		runtime.Gosched()
	}
	require.Equal(t, lost.Load(), overran.Load()+stopped.Load())
	require.Positive(t, lost.Load())
	require.Positive(t, passed.Load())
}

// Nothing slips between a call that begins and the watch that goes to rest.
func TestNoCallIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, each = 50, 40
		var overran atomic.Int64
		origin := time.Now()
		w := deadline.New(
			func([]deadline.Slow[task]) {},
			func(*task) { overran.Add(1) },
			func() int64 { return int64(time.Since(origin)) },
			func(d time.Duration, f func()) deadline.Timer { return time.AfterFunc(d, f) },
		)
		var wg sync.WaitGroup
		var wrong, want atomic.Int64
		for worker := range workers {
			wg.Go(func() {
				s := w.Open()
				defer func() { w.Close(s) }()
				for i := range each {
					x := show(s, time.Duration(1+(worker*7+i*13)%29)*time.Millisecond)
					w.Arm(s, x.number)
					slow := (worker+i)%3 == 0
					if slow {
						want.Add(1)
						time.Sleep(x.timeout + 1)
					} else {
						time.Sleep(x.timeout - 1)
					}
					ended := s.End(x.number)
					if ended == slow {
						wrong.Add(1)
					}
					if !ended {
						w.Close(s)
						s = w.Open()
					}
					w.Rest()
				}
			})
		}
		wg.Wait()
		require.Zero(t, wrong.Load())
		require.Equal(t, want.Load(), overran.Load())
	})
}

// A slot that has been cleared keeps nothing alive, though the watch has looked.
func TestClearLetsGoOfWhatWasSeen(t *testing.T) {
	c := &handClock{}
	w, _ := newWatch(c)
	freed := make(chan struct{}, 1)
	s := w.Open()
	func() {
		x := show(s, 50)
		runtime.AddCleanup(x, func(freed chan struct{}) { freed <- struct{}{} }, freed)
		w.Look()
		require.True(t, s.End(x.number))
	}()
	s.Clear()
	for range 1_000 {
		runtime.GC()
		runtime.Gosched() // cleanups run in a goroutine of the runtime
		if len(freed) == 1 {
			break
		}
	}
	require.Len(t, freed, 1)
	w.Close(s)
}

// Calls with other numbers are provided only when the function of the one that runs has
// returned: it is about to end, whenever that is.
func TestACallIsLeftAloneOnceOthersAreProvided(t *testing.T) {
	c := &handClock{}
	w, late := newWatch(c)
	s := w.Open()
	x := show(s, 50)
	require.True(t, w.Look())
	next := provide(s, 60, 60)
	c.moveTo(1000)
	require.Empty(t, w.StopAll())
	require.Empty(t, *late)
	require.True(t, s.Runs(x.number))
	require.Zero(t, c.armedFor())
	require.True(t, s.Pass(x.number, 60))
	w.Arm(s, next[0].number)
	c.moveTo(1060)
	require.Equal(t, next[:1], *late)

	s = w.Open()
	y := show(s, 50)
	require.Equal(t, []*task{y}, w.StopAll())
	s.Clear() // what is given up stays so
	require.Equal(t, deadline.Stopped, s.State(y.number))
}
