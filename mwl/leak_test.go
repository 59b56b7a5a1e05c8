package mwl_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing that any test of the package does may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
