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
	s.Provide(7, calls)
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
