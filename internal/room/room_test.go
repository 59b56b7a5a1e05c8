package room_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/room"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func newRoom(records, bytes int64, patience time.Duration) *room.Room {
	began := time.Now()
	return room.New(room.Config{
		Most: room.Size{Records: records, Bytes: bytes}, Patience: patience,
		Nanos:     func() int64 { return int64(time.Since(began)) },
		AfterFunc: func(d time.Duration, f func()) room.Timer { return time.AfterFunc(d, f) },
	})
}

func isReady(w *room.Waiter) bool {
	select {
	case <-w.Ready():
		return true
	default:
		return false
	}
}

func enter(t *testing.T, r *room.Room, s room.Size) room.Pass {
	t.Helper()
	p, w, silent := r.Enter(s)
	require.Nil(t, w)
	require.Zero(t, silent)
	return p
}

func waits(t *testing.T, r *room.Room, s room.Size) *room.Waiter {
	t.Helper()
	_, w, silent := r.Enter(s)
	require.NotNil(t, w)
	require.Zero(t, silent)
	require.False(t, isReady(w))
	return w
}

// Those that wait are submitted in their order, also if there is room for all of them at once.
func TestS7_TheNextEntersWhenTheFirstIsSubmitted(t *testing.T) {
	r, one := newRoom(2, 100, 0), room.Size{Records: 1, Bytes: 1}
	x, y := enter(t, r, one), enter(t, r, one)
	r.Submitted(one, x)
	r.Submitted(one, y)
	a, b, c := waits(t, r, one), waits(t, r, one), waits(t, r, one)
	r.Answered(one, x)
	r.Answered(one, y)
	require.True(t, isReady(a))
	require.False(t, isReady(b), "a is not submitted yet")
	late := waits(t, r, one) // room is left, but others wait
	p, _ := a.Entered()
	r.Submitted(one, p)
	require.True(t, isReady(b))
	b.Leave() // its context has ended meanwhile
	require.True(t, isReady(c))
	require.False(t, isReady(late))
	c.Leave()
	require.True(t, isReady(late))
	late.Leave()
	require.NotZero(t, enter(t, r, one))
}

// One large publication at the head is not overtaken, and those behind it enter when it leaves.
func TestS7_TheFirstIsNotOvertaken(t *testing.T) {
	r := newRoom(10, 100, 0)
	x := enter(t, r, room.Size{Records: 6, Bytes: 6})
	r.Submitted(room.Size{Records: 6, Bytes: 6}, x)
	large, small := waits(t, r, room.Size{Records: 5, Bytes: 5}), waits(t, r, room.Size{Records: 1, Bytes: 1})
	require.False(t, isReady(small))
	large.Leave()
	require.True(t, isReady(small))
}

// What exceeds the bound by itself enters when no other publication is outstanding.
func TestS7_OneThatExceedsTheBoundEntersAlone(t *testing.T) {
	r, huge, one := newRoom(10, 100, 0), room.Size{Records: 1, Bytes: 101}, room.Size{Records: 1, Bytes: 1}
	x := enter(t, r, one)
	r.Submitted(one, x)
	r.Submitted(one, room.Pass{}) // a success, which is not waited for: there may always be one
	w := waits(t, r, huge)
	r.Answered(one, x)
	require.True(t, isReady(w))
	p, _ := w.Entered()
	r.Submitted(huge, p)
	next := waits(t, r, one)
	r.Answered(huge, p)
	require.True(t, isReady(next))
}

// The others count and do not wait. A pass counts once, with the size that was submitted.
func TestS7_BatchesThatDoNotWaitCount(t *testing.T) {
	r, one := newRoom(3, 100, 0), room.Size{Records: 1, Bytes: 1}
	for range 5 {
		r.Submitted(one, room.Pass{})
	}
	w := waits(t, r, one)
	for range 2 {
		r.Answered(one, room.Pass{})
	}
	require.False(t, isReady(w))
	r.Answered(one, room.Pass{})
	require.True(t, isReady(w))
	p, _ := w.Entered()
	r.Submitted(room.Size{Records: 3, Bytes: 3}, p) // it became larger
	w = waits(t, r, one)
	r.Answered(one, room.Pass{})
	r.Answered(one, room.Pass{})
	require.False(t, isReady(w))
	r.Answered(room.Size{Records: 3, Bytes: 3}, p)
	require.True(t, isReady(w))
	w.Leave()
	for range 3 {
		enter(t, r, one)
	}
}

func TestS7_Silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, one := newRoom(2, 100, patience), room.Size{Records: 1, Bytes: 1}
		time.Sleep(time.Hour) // nothing is outstanding
		began := time.Now()
		var passes []room.Pass
		for range 2 {
			passes = append(passes, enter(t, r, one))
			r.Submitted(one, passes[len(passes)-1])
		}
		time.Sleep(patience - time.Second)
		w := waits(t, r, one)
		_, is := r.SilentSince()
		require.False(t, is)
		<-w.Ready()
		require.Equal(t, patience, time.Since(began))
		p, silent := w.Entered()
		require.Equal(t, patience, silent)
		require.Zero(t, p)
		w.Leave()
		_, w, silent = r.Enter(one)
		require.Nil(t, w)
		require.Equal(t, patience, silent)
		since, is := r.SilentSince()
		require.True(t, is)
		require.Equal(t, int64(time.Hour), since)

		r.Answered(one, passes[0]) // this ends it, though the other one is outstanding
		_, is = r.SilentSince()
		require.False(t, is)
		passes[0] = enter(t, r, one)
		r.Submitted(one, passes[0])
		time.Sleep(patience / 2)
		w = waits(t, r, one)
		r.Submitted(one, room.Pass{})
		time.Sleep(patience / 4)
		r.Answered(one, room.Pass{})
		answered := time.Now()
		<-w.Ready() // the timer was set for the answer before
		require.Equal(t, patience, time.Since(answered))
		r.Answered(one, passes[0])
		r.Answered(one, passes[1])
		time.Sleep(time.Hour)
		_, is = r.SilentSince()
		require.False(t, is)
		enter(t, r, one)
	})
}

// A model: a queue of waiters, of which the first enters if it may.
func TestS7_AgreesWithTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := room.Size{Records: rapid.Int64Range(1, 6).Draw(t, "records"), Bytes: rapid.Int64Range(1, 20).Draw(t, "bytes")}
		r := newRoom(most.Records, most.Bytes, 0)
		type entry struct {
			size  room.Size
			pass  room.Pass
			w     *room.Waiter
			turns bool
		}
		var line, entered, submitted []*entry
		used := func() (s room.Size, publications int) {
			for _, e := range append(append([]*entry{}, entered...), submitted...) {
				s.Records += e.size.Records
				s.Bytes += e.size.Bytes
				if e.pass != (room.Pass{}) {
					publications++
				}
			}
			return s, publications
		}
		admits := func(e *entry) bool {
			u, publications := used()
			alone := e.size.Records > most.Records || e.size.Bytes > most.Bytes
			return u.Records+e.size.Records <= most.Records && u.Bytes+e.size.Bytes <= most.Bytes || alone && publications == 0
		}
		turn := func() bool {
			for _, e := range entered {
				if e.turns {
					return true
				}
			}
			return false
		}
		settle := func() {
			for len(line) > 0 && !turn() && admits(line[0]) {
				e := line[0]
				if !isReady(e.w) {
					t.Fatalf("%v may enter", e.size)
				}
				e.pass, _ = e.w.Entered()
				e.turns, line, entered = true, line[1:], append(entered, e)
			}
			for _, e := range line {
				if isReady(e.w) {
					t.Fatalf("%v may not enter", e.size)
				}
			}
		}
		take := func(all *[]*entry) *entry {
			i := rapid.IntRange(0, len(*all)-1).Draw(t, "which")
			e := (*all)[i]
			*all = append((*all)[:i:i], (*all)[i+1:]...)
			return e
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			size := room.Size{Records: rapid.Int64Range(1, 7).Draw(t, "n"), Bytes: rapid.Int64Range(0, 22).Draw(t, "size")}
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				e := &entry{size: size}
				may := len(line) == 0 && !turn() && admits(e)
				e.pass, e.w, _ = r.Enter(size)
				if (e.w == nil) != may {
					t.Fatalf("entered: %v, may: %v", e.w == nil, may)
				}
				if may {
					entered = append(entered, e)
				} else {
					line = append(line, e)
				}
			case 2:
				if len(line) > 0 {
					take(&line).w.Leave()
				}
			case 3:
				if len(entered) > 0 {
					e := take(&entered)
					r.Submitted(e.size, e.pass)
					e.turns = false
					submitted = append(submitted, e)
				}
			case 4:
				if len(submitted) > 0 {
					e := take(&submitted)
					r.Answered(e.size, e.pass)
				} else if len(entered) > 0 {
					r.Leave(take(&entered).pass)
				}
			case 5:
				r.Submitted(size, room.Pass{})
				submitted = append(submitted, &entry{size: size})
			}
			settle()
		}
	})
}

// Publishers and answers run concurrently: the bound holds, and nothing is left.
func TestS7_Stress(t *testing.T) {
	r := newRoom(8, 64, time.Hour)
	var outstanding, most atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(rand.Uint64(), 1))
			for range 2000 {
				size := room.Size{Records: random.Int64N(4) + 1, Bytes: random.Int64N(8)}
				p, w, _ := r.Enter(size)
				if w != nil {
					if random.IntN(8) == 0 {
						w.Leave()
						continue
					}
					<-w.Ready()
					if random.IntN(8) == 0 {
						w.Leave()
						continue
					}
					p, _ = w.Entered()
				}
				now := outstanding.Add(size.Records)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				r.Submitted(size, p)
				outstanding.Add(-size.Records)
				r.Answered(size, p)
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, most.Load(), int64(8))
	p, w, _ := r.Enter(room.Size{Records: 8, Bytes: 64})
	require.Nil(t, w, "the room is empty")
	r.Leave(p)
}
