//go:build !unix

package sqlite

import "testing"

func TestCrash(t *testing.T) {
	t.Skip("SKIP: TestCrash kills processes with SIGKILL, which this system does not have")
}
