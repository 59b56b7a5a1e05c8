package eventbus

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Thousands wait in a storm of retries. The runtime's size classes are 192, 208 and 224.
func TestOutlierFitsItsSizeClass(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(outlier{}), uintptr(208))
}
