package delay_test

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/delay"
)

// realClock is the runtime's time, which is virtual inside a synctest bubble.
type realClock struct{ origin time.Time }

func newRealClock() realClock { return realClock{time.Now()} }

func (c realClock) Nanos() int64 { return int64(time.Since(c.origin)) }

func (c realClock) AfterFunc(d time.Duration, f func()) delay.Timer { return time.AfterFunc(d, f) }

func (c realClock) in(d time.Duration) int64 { return c.Nanos() + int64(d) }

// mockClock adapts clock.Mock.
type mockClock struct{ *clock.Mock }

func (c mockClock) Nanos() int64 { return c.Now().UnixNano() }

func (c mockClock) AfterFunc(d time.Duration, f func()) delay.Timer { return c.Mock.AfterFunc(d, f) }

// handClock moves and fires only by hand, so also early, late, twice and
// backwards.
type handClock struct {
	now     atomic.Int64
	onArm   func() // called when the timer is set
	f       func()
	armed   atomic.Bool
	arms    atomic.Int64
	lastSet atomic.Int64 // the duration asked for last
}

func (c *handClock) Nanos() int64 { return c.now.Load() }

func (c *handClock) AfterFunc(d time.Duration, f func()) delay.Timer {
	c.f = f
	c.Reset(d)
	return c
}

func (c *handClock) Reset(d time.Duration) bool {
	c.arms.Add(1)
	c.lastSet.Store(int64(d))
	if c.onArm != nil {
		c.onArm()
	}
	return c.armed.Swap(true)
}

func (c *handClock) Stop() bool { return c.armed.Swap(false) }

// fire runs the timer's function as a timer does, and waits for its effects.
func (c *handClock) fire() {
	c.armed.Store(false)
	go c.f()
	synctest.Wait()
}

type delivery struct {
	after time.Duration
	item  string
}

// log records what has come due and when.
type log struct {
	clock delay.Clock
	mu    sync.Mutex
	got   []delivery
}

func (l *log) due(items []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range items {
		l.got = append(l.got, delivery{time.Duration(l.clock.Nanos()), item})
	}
}

func (l *log) items() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var items []string
	for _, d := range l.got {
		items = append(items, d.item)
	}
	return items
}

func TestQueue_HandsOverAtTheInstantInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		l := &log{clock: c}
		q := delay.New(c, l.due)
		q.Add(c.in(2*time.Second), "c")
		q.Add(c.in(time.Second), "a")
		q.Add(c.in(time.Second), "b")
		q.Add(c.in(24*time.Hour), "e")
		q.Add(c.in(3*time.Second), "d")
		require.Equal(t, 5, q.Len())

		time.Sleep(25 * time.Hour)
		synctest.Wait()
		require.Equal(t, []delivery{
			{time.Second, "a"},
			{time.Second, "b"},
			{2 * time.Second, "c"},
			{3 * time.Second, "d"},
			{24 * time.Hour, "e"},
		}, l.got)
		require.Zero(t, q.Len())
	})
}

func TestQueue_PastDueIsHandedOverAtOnceButNotInsideAdd(t *testing.T) {
	for _, at := range []int64{math.MinInt64, -1, 0} {
		synctest.Test(t, func(t *testing.T) {
			c := newRealClock()
			l := &log{clock: c}
			q := delay.New(c, l.due)
			func() {
				l.mu.Lock() // due inside Add would deadlock here
				defer l.mu.Unlock()
				q.Add(at, "now")
			}()
			synctest.Wait()
			require.Equal(t, []delivery{{0, "now"}}, l.got)
		})
	}
}

func TestQueue_FarFutureDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		c.now.Store(-5)
		l := &log{clock: c}
		q := delay.New(c, l.due)
		q.Add(math.MaxInt64, "never")
		synctest.Wait()
		require.Empty(t, l.items())
		require.Equal(t, int64(math.MaxInt64), c.lastSet.Load())
		require.Equal(t, []string{"never"}, q.Drain())
	})
}

func TestQueue_TimerIsSetOnlyForAnEarlierHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		q := delay.New(c, func([]string) {})
		require.False(t, c.armed.Load(), "an empty queue has no timer")
		q.Add(1000, "a")
		q.Add(1000, "b")
		q.Add(2000, "c")
		require.Equal(t, int64(1), c.arms.Load())
		q.Add(500, "d")
		require.Equal(t, int64(2), c.arms.Load())
		require.Equal(t, int64(500), c.lastSet.Load())

		c.now.Store(2000)
		c.fire()
		require.Zero(t, q.Len())
		require.False(t, c.armed.Load(), "an empty queue has no timer")

		q.Add(9000, "e")
		require.True(t, c.armed.Load())
		require.Equal(t, []string{"e"}, q.Drain())
		require.False(t, c.armed.Load(), "a drained queue has no timer")
	})
}

func TestQueue_LenCountsUntilDueHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		release := make(chan struct{})
		q := delay.New(c, func([]string) { <-release })
		q.Add(0, "a")
		synctest.Wait()
		require.Equal(t, 1, q.Len(), "in the hands of due")
		q.Add(0, "b")
		synctest.Wait()
		require.Equal(t, 2, q.Len(), "due is called one at a time")
		require.Equal(t, []string{"b"}, q.Drain(), "what due has is not drained")
		require.Equal(t, 1, q.Len())
		close(release)
		synctest.Wait()
		require.Zero(t, q.Len())
	})
}

func TestQueue_DueMayUseTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		var q *delay.Queue[int]
		var got []int
		q = delay.New(c, func(items []int) {
			for _, n := range items {
				got = append(got, n)
				if n < 3 {
					q.Add(c.in(time.Second), n+1)
				} else {
					q.Add(0, 10)
					q.Close()
				}
			}
		})
		q.Add(0, 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3}, got)
		require.Equal(t, []int{10}, q.Drain(), "left when due closed the queue")
	})
}

func TestQueue_BurstComesInOrderAcrossCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		var got []int
		calls := 0
		q := delay.New(c, func(items []int) {
			calls++
			got = append(got, items...)
		})
		var want []int
		for i := range 2000 {
			q.Add(c.in(time.Second), i)
			want = append(want, i)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, want, got)
		require.Greater(t, calls, 1)
		require.Zero(t, q.Len())
	})
}

func TestQueue_CloseRefusesAndKeepsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		l := &log{clock: c}
		q := delay.New(c, l.due)
		require.True(t, q.Add(c.in(2*time.Second), "b"))
		require.True(t, q.Add(c.in(time.Second), "a"))
		q.Close()
		q.Close()
		require.False(t, q.Add(0, "late"))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, l.items())
		require.Equal(t, 2, q.Len())
		require.Equal(t, []string{"a", "b"}, q.Drain())
		require.Empty(t, q.Drain())
		require.Zero(t, q.Len())
	})
}

func TestQueue_EarlyTimerIsSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		l := &log{clock: c}
		q := delay.New(c, l.due)
		at := int64(time.Second)
		q.Add(at, "a")
		for _, now := range []int64{1, at / 2, -at, at - 1} {
			c.now.Store(now)
			c.fire()
			require.Empty(t, l.items())
			require.True(t, c.armed.Load(), "set again at %d", now)
			require.Positive(t, c.lastSet.Load())
		}
		require.GreaterOrEqual(t, c.lastSet.Load(), int64(time.Microsecond),
			"a coarse clock is not polled in a busy loop")
		c.now.Store(at)
		c.fire()
		require.Equal(t, []string{"a"}, l.items())
	})
}

func TestQueue_SpuriousTimersAreHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		l := &log{clock: c}
		q := delay.New(c, l.due)
		q.Add(100, "a")
		c.now.Store(100)
		for range 20 {
			go c.f()
		}
		synctest.Wait()
		require.Equal(t, []string{"a"}, l.items())
		require.False(t, c.armed.Load())
		q.Close()
		c.fire()
		require.Equal(t, []string{"a"}, l.items())
	})
}

// A mock clock that another goroutine steps between reading the time and
// setting the timer leaves the timer late, and nobody may step it again.
func TestQueue_ClockMovedWhileTheTimerIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		l := &log{clock: c}
		q := delay.New(c, l.due)
		at := int64(time.Minute)
		c.onArm = func() {
			c.onArm = nil
			c.now.Store(at / 2)
		}
		q.Add(at, "a")
		require.Equal(t, at/2, c.lastSet.Load(), "set for what is left")

		c.onArm = func() {
			c.onArm = nil
			c.now.Store(at)
		}
		c.fire()
		synctest.Wait()
		require.Equal(t, []string{"a"}, l.items(), "due by the time that the timer was set")
	})
}

func TestQueue_MockClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		c := mockClock{mock}
		l := &log{clock: c}
		q := delay.New(c, l.due)
		for i, item := range []string{"a", "b", "c"} {
			q.Add(int64(i+1)*int64(time.Second), item)
		}
		q.Add(0, "now")
		synctest.Wait()
		require.Equal(t, []string{"now"}, l.items(), "without a step of the clock")

		mock.Add(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"now", "a"}, l.items())

		mock.Set(time.Unix(0, 0)) // back
		q.Add(int64(500*time.Millisecond), "a2")
		mock.Add(500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"now", "a", "a2"}, l.items())

		mock.Add(time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"now", "a", "a2", "b", "c"}, l.items())
	})
}

func TestQueue_BehavesLikeASortedList(t *testing.T) {
	type op struct {
		sleep time.Duration
		delay time.Duration // of an Add
		drain bool
	}
	type entry struct {
		at int64
		id int
	}
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) op {
			return op{
				sleep: time.Duration(rapid.IntRange(0, 5).Draw(rt, "sleep")),
				delay: time.Duration(rapid.IntRange(-3, 40).Draw(rt, "delay")),
				drain: rapid.IntRange(0, 30).Draw(rt, "drain") == 0,
			}
		}), 1, 300).Draw(rt, "ops")

		var got, want, drained, wantDrained []int
		lens := true
		synctest.Test(t, func(*testing.T) {
			c := newRealClock()
			var model []entry
			q := delay.New(c, func(ids []int) { got = append(got, ids...) })
			settle := func(take func(entry) bool, to *[]int) {
				slices.SortStableFunc(model, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
				model = slices.DeleteFunc(model, func(e entry) bool {
					if take(e) {
						*to = append(*to, e.id)
						return true
					}
					return false
				})
			}
			for id, o := range ops {
				time.Sleep(o.sleep)
				synctest.Wait()
				now := c.Nanos()
				settle(func(e entry) bool { return e.at <= now }, &want)
				if o.drain {
					drained = append(drained, q.Drain()...)
					settle(func(entry) bool { return true }, &wantDrained)
				}
				q.Add(now+int64(o.delay), id)
				model = append(model, entry{now + int64(o.delay), id})
				synctest.Wait()
				settle(func(e entry) bool { return e.at <= now }, &want)
				lens = lens && q.Len() == len(model)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			settle(func(entry) bool { return true }, &want)
		})
		require.Equal(rt, want, got)
		require.Equal(rt, wantDrained, drained)
		require.True(rt, lens, "Len agrees after each step")
	})
}

func TestQueue_NothingIsLostWhateverTheClockDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			now  int64
			fire int
			at   int64
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				now:  rapid.Int64Range(-100, 100).Draw(rt, "now"),
				fire: rapid.IntRange(0, 3).Draw(rt, "fire"),
				at:   rapid.Int64Range(-100, 100).Draw(rt, "at"),
			}
		}), 1, 200).Draw(rt, "steps")

		var got []int
		early := 0
		left := 0
		synctest.Test(t, func(*testing.T) {
			c := &handClock{}
			q := delay.New(c, func(ids []int) {
				for _, id := range ids {
					got = append(got, id)
					if steps[id].at > c.Nanos() {
						early++
					}
				}
			})
			for id, s := range steps {
				c.now.Store(s.now)
				for range s.fire {
					if c.f != nil {
						go c.f()
					}
				}
				q.Add(s.at, id)
				synctest.Wait()
			}
			c.now.Store(100)
			if c.armed.Load() {
				c.fire()
			}
			left = q.Len()
		})
		require.Zero(rt, left, "an entry is left with no timer to fetch it")
		require.Zero(rt, early, "handed over before its time")
		require.Len(rt, got, len(steps))
		slices.Sort(got)
		require.Len(rt, slices.Compact(got), len(steps))
	})
}

// Every item is accepted and then handed to due or drained, exactly once, or
// refused.
func TestQueue_ConcurrentAddDrainClose(t *testing.T) {
	const adders, each = 8, 500
	for range 20 {
		c := newRealClock()
		var mu sync.Mutex
		seen := make(map[int]int)
		collect := func(ids []int) {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				seen[id]++
			}
		}
		q := delay.New(c, collect)
		var accepted atomic.Int64
		var adding, draining sync.WaitGroup
		for a := range adders {
			adding.Go(func() {
				for i := range each {
					id := a*each + i
					if q.Add(c.in(time.Duration(i%7)*10*time.Microsecond), id) {
						accepted.Add(1)
					}
					if id == 3*each {
						q.Close()
					}
				}
			})
		}
		for range 2 {
			draining.Go(func() {
				for range 50 {
					collect(q.Drain())
					q.Len()
				}
			})
		}
		adding.Wait()
		draining.Wait()
		collect(q.Drain())
		for q.Len() > 0 { // the last due call
			runtime.Gosched()
		}
		mu.Lock()
		require.Len(t, seen, int(accepted.Load()))
		for id, n := range seen {
			require.Equal(t, 1, n, "item %d", id)
		}
		mu.Unlock()
	}
}

func TestQueue_D6_WaitingHoldsNoGoroutineAndFewBytes(t *testing.T) {
	const n = 100_000
	c := newRealClock()
	q := delay.New(c, func([]*int) {})
	defer q.Close()
	goroutines := runtime.NumGoroutine()
	before := heapBytes()
	fill(q, c, n)
	perEntry := float64(heapBytes()-before) / n
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.Less(t, perEntry, 64.0)
	require.Len(t, q.Drain(), n)
}

func TestQueue_MemoryIsGivenBackAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100_000
		c := &handClock{}
		q := delay.New(c, func([]*int) {})
		before := heapBytes()
		item := new(int)
		for i := range n {
			q.Add(int64(i+1), item)
		}
		c.now.Store(n - 10)
		c.fire()
		require.Equal(t, 10, q.Len())
		require.Less(t, heapBytes()-before, int64(64<<10))
		runtime.KeepAlive(q)
	})
}

func TestQueue_WhatWasHandedOverIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &handClock{}
		q := delay.New(c, func([]*[64]byte) {})
		var weaks []weak.Pointer[[64]byte]
		for i := range 30 {
			item := new([64]byte)
			weaks = append(weaks, weak.Make(item))
			q.Add(int64(100-i), item)
		}
		c.now.Store(100)
		c.fire()
		runtime.GC()
		for i, w := range weaks {
			require.Nil(t, w.Value(), "item %d", i)
		}
		runtime.KeepAlive(q)
	})
}

func TestQueue_DrainKeepsTheOrderOfAddAmongEquals(t *testing.T) {
	q := delay.New(&handClock{}, func([]int) {})
	var want [3][]int
	for i := range 99 {
		q.Add(int64(10+i%3), i)
		want[i%3] = append(want[i%3], i)
	}
	require.Equal(t, slices.Concat(want[:]...), q.Drain())
}

func TestQueue_AddAllocatesNothingOnceGrown(t *testing.T) {
	c := newRealClock()
	q := delay.New(c, func([]*int) {})
	defer q.Close()
	fill(q, c, 10_000) // room for the runs below: growth is by a quarter
	item := new(int)
	require.Zero(t, testing.AllocsPerRun(100, func() { q.Add(c.in(time.Hour), item) }))
}

func fill(q *delay.Queue[*int], c realClock, n int) {
	item := new(int)
	for i := range n {
		q.Add(c.in(time.Hour+time.Duration(i*7919%n)*time.Millisecond), item)
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkWaiting(b *testing.B) {
	const n = 100_000
	c := newRealClock()
	for b.Loop() {
		q := delay.New(c, func([]*int) {})
		b.StopTimer()
		before := heapBytes()
		b.StartTimer()
		fill(q, c, n)
		b.StopTimer()
		b.ReportMetric(float64(heapBytes()-before)/n, "bytes/entry")
		q.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
}

func BenchmarkAddAndHandOver(b *testing.B) {
	c := &handClock{}
	handed := 0
	done := make(chan struct{}, 1)
	q := delay.New(c, func(items []*int) {
		handed += len(items)
		done <- struct{}{}
	})
	item := new(int)
	b.ReportAllocs()
	for b.Loop() {
		q.Add(c.now.Add(1)+1, item)
		c.now.Add(1)
		c.f()
		<-done
	}
	require.Equal(b, b.N, handed)
}

// Wait returns when what has been handed over is in the hands that it was for.
func TestWaitWaitsForDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		q := delay.New(newRealClock(), func([]int) { <-release })
		q.Wait() // nothing runs
		require.True(t, q.Add(0, 1))
		synctest.Wait()
		waited := make(chan struct{})
		go func() {
			q.Close()
			q.Wait()
			close(waited)
		}()
		synctest.Wait()
		select {
		case <-waited:
			t.Fatal("did not wait")
		default:
		}
		require.Equal(t, 1, q.Len())
		close(release)
		<-waited
		require.Zero(t, q.Len())
	})
}

func TestPruneRemovesAndKeepsTheOrderOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		var got []int
		q := delay.New(c, func(items []int) { got = append(got, items...) })
		var want []int
		for i := range 300 {
			q.Add(c.in(time.Duration(1+i%7)*time.Second), i)
		}
		q.Prune(func(i int) bool { return i%3 != 0 })
		require.Equal(t, 100, q.Len())
		for s := range 7 {
			for i := 0; i < 300; i += 3 {
				if i%7 == s {
					want = append(want, i)
				}
			}
		}
		q.Add(c.in(time.Second/2), 1000) // earlier than the head
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, append([]int{1000}, want...), got)
		require.Zero(t, q.Len())
	})
}

func TestPruneGivesBackTheMemoryAndTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100_000
		c := &handClock{}
		q := delay.New(c, func([]*[64]byte) {})
		before := heapBytes()
		for i := range n {
			q.Add(int64(i+1), new([64]byte))
		}
		q.Prune(func(*[64]byte) bool { return true })
		require.Less(t, heapBytes()-before, int64(64<<10))
		require.Zero(t, q.Len())
		require.False(t, c.armed.Load(), "an empty queue has no timer")
		q.Add(5, nil)
		require.True(t, c.armed.Load())
		require.Len(t, q.Drain(), 1)
	})
}

// Without the first item, the timer is that of the next one, which is not late then.
func TestPruneOfTheHeadSetsTheTimerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		began := time.Now()
		var after time.Duration
		q := delay.New(c, func([]int) { after = time.Since(began) })
		q.Add(c.in(time.Second), 1)
		q.Add(c.in(time.Second+time.Microsecond), 2)
		require.Equal(t, []int{1}, q.Take(func(i int) bool { return i == 1 }))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, time.Second+time.Microsecond, after)
	})
}

// What due has been given stays there, and what is behind it can go.
func TestPruneDuringDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRealClock()
		release := make(chan struct{})
		var got []int
		q := delay.New(c, func(items []int) { got = append(got, items...); <-release })
		q.Add(c.in(time.Second), 1)
		q.Add(c.in(2*time.Second), 2)
		q.Add(c.in(3*time.Second), 3)
		time.Sleep(time.Second)
		synctest.Wait()
		q.Prune(func(i int) bool { return i < 3 })
		require.Equal(t, 2, q.Len())
		close(release)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{1, 3}, got)
	})
}
