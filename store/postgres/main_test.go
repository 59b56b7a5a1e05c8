//go:build unix

package postgres

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, err := range []error{postgrestest.RemoveShared(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
