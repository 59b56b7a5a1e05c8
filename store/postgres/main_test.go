//go:build unix

package postgres

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// Search makes the tests search longer, and run through a pooler too.
var Search = flag.Bool("search", false, "search longer")

// Child is what a process of TestClusterCrash does. It returns its exit code.
var Child func() int

// ChildVariable is set in the environment of such a process.
const ChildVariable = "EVENTBUS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(ChildVariable) != "" {
		os.Exit(Child())
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("4") // most tests wait for the time of a lease
	}
	code := m.Run()
	closePools()
	for _, err := range []error{postgrestest.RemoveShared(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
