package simulation

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // each schedule makes a bus of its own: half of the time was the collector's
	goleak.VerifyTestMain(m)
}
