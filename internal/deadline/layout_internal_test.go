package deadline

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What a worker writes with every call shares no line of memory with anything that
// another core reads: 64 publishers took twice as long in one process of six.
func TestASlotsPointerIsAloneInItsLine(t *testing.T) {
	var s Slot[struct{ _ *int }]
	const line = 64
	at := unsafe.Offsetof(s.current)
	require.GreaterOrEqual(t, at, uintptr(line))
	require.GreaterOrEqual(t, unsafe.Offsetof(s.mark), at+unsafe.Sizeof(s.current)+line)
}
