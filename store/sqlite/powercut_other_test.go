//go:build !linux

package sqlite

import (
	"flag"
	"testing"
)

var (
	_            = flag.Int("cuts", 0, "number of power cuts of TestPowerCut; 0 for a few")
	_            = flag.Uint64("cutseed", 0, "seed of TestPowerCut; 0 for a new one")
	requireDisks = flag.Bool("require", false, "fail, instead of skipping, where TestPowerCut cannot mount a file system")
)

func TestPowerCut(t *testing.T) {
	const why = "mounting a file system on a loop device: it needs Linux"
	if *requireDisks {
		t.Fatal(why)
	}
	t.Skip("SKIP: " + why)
}
