package eventbus

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What a bus may have 100,000 of has the sizes of the runtime's classes.
func TestWhatThereIsALotOfFitsItsSizeClass(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(outlier{}), uintptr(208))
	require.LessOrEqual(t, unsafe.Sizeof(Subscription{}), uintptr(512))
}
