package deadline

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What a worker writes with every call shares no line of memory with anything that
// another core reads: 64 publishers took twice as long in one process of six.
func TestASlotsNumberIsAloneInItsLine(t *testing.T) {
	var s Slot[int]
	const line = 64
	at := unsafe.Offsetof(s.current)
	require.GreaterOrEqual(t, at, uintptr(line))
	require.GreaterOrEqual(t, unsafe.Offsetof(s.timeouts), at+unsafe.Sizeof(s.current)+line)
}

// What has been prepared for the next call is not the timeout of the one that runs, and
// what is left of that is not the timeout of the one after it.
func TestACallHasItsOwnTimeout(t *testing.T) {
	var now int64
	var late []*int
	w := New(
		func([]Slow[int]) {},
		func(i *int) { late = append(late, i) },
		func() int64 { return now },
		func(time.Duration, func()) Timer { return time.NewTimer(time.Hour) },
	)
	s := w.Open()
	calls := make([]int, 3)
	s.Provide(&Batch[int]{First: 7, Calls: calls})
	s.Begin(7, 50)
	s.allow(8, 5)
	w.Look()
	require.EqualValues(t, 50, w.Deadline(s, 7))
	require.True(t, s.Pass(7, 5))
	require.EqualValues(t, 5, w.Deadline(s, 8))
	require.True(t, s.Pass(8, 70))
	now = 60
	require.EqualValues(t, 130, w.Deadline(s, 9))
	w.Look()
	require.Empty(t, late)
	now = 130
	w.Look()
	require.Equal(t, []*int{&calls[2]}, late)
}

// A call that ends while its deadline is asked for has not that of one which comes after it.
func TestACallThatEndsMeanwhileHasNoOthersDeadline(t *testing.T) {
	s, w, nanos := hooked(t)
	var slow []Slow[int]
	w.slow = func(calls []Slow[int]) { slow = append(slow, calls...) }
	passTwice := func() {
		require.True(t, s.Pass(1, 50))
		require.True(t, s.Pass(2, 9000))
	}
	s.Begin(1, 50)
	nanos.onRead = passTwice
	require.EqualValues(t, 1000, w.Deadline(s, 1), "when that was asked")
	s.Begin(4, 30)
	require.EqualValues(t, 1030, w.Deadline(s, 4))
	s.Begin(5, 60)
	w.Look()
	nanos.now = 1030 // it is slow
	nanos.onRead = func() { require.True(t, s.End(5)) }
	w.Look()
	w.Wait()
	require.Empty(t, slow)
}

// What has begun after a look has read the clock has not begun then.
func TestACallThatBeginsDuringALookHasItsWholeTimeout(t *testing.T) {
	s, w, nanos := hooked(t)
	other := w.Open()
	other.Provide(&Batch[int]{First: 1, Calls: make([]int, 1)})
	s.Begin(1, 5000)
	w.Look()
	nanos.onRead = func() {
		nanos.now += 40
		other.Begin(1, 50)
	}
	w.Look()
	require.EqualValues(t, 1090, w.Deadline(other, 1))
}

// readings are a clock's, with what happens after the next one.
type readings struct {
	now    int64
	onRead func()
}

func (r *readings) nanos() int64 {
	now, hook := r.now, r.onRead
	if r.onRead = nil; hook != nil {
		hook()
	}
	return now
}

// hooked is a watch, at 1000, with a slot for the calls 1 to 8.
func hooked(t *testing.T) (*Slot[int], *Watch[int], *readings) {
	t.Helper()
	r := &readings{now: 1000}
	w := New(
		func([]Slow[int]) {},
		func(*int) {},
		r.nanos,
		func(time.Duration, func()) Timer { return time.NewTimer(time.Hour) },
	)
	s := w.Open()
	s.Provide(&Batch[int]{First: 1, Calls: make([]int, 8)})
	return s, w, r
}
