package mwl_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var search = flag.Bool("search", false, "search as long as CI does")

// Nothing that any test of the package does may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
