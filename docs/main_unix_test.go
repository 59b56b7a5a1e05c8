//go:build unix

package docs_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := postgrestest.RemoveShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
