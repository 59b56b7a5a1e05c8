package sqlite

import (
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// runCrashChild does the work of a child process of TestCrash. It is nil where the test is skipped.
var runCrashChild func(spec string)

// crashEnv is the environment variable with the crashSpec of a child process.
const crashEnv = "EVENTBUS_SQLITE_CRASH"

func TestMain(m *testing.M) {
	if spec := os.Getenv(crashEnv); spec != "" && runCrashChild != nil {
		runCrashChild(spec)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// failNextCommit makes the next commit of a store fail.
func failNextCommit(t *testing.T, store driver.Store) {
	t.Helper()
	inside(t, store.(*Store), func(c *committer) error {
		c.broken = errors.New("of the test")
		return nil
	})
}

// TestStore runs the conformance suite of stores.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		path := testPath(t)
		return storetest.Backend{
			Open:   func(t *testing.T) driver.Store { return openAt(t, path) },
			Beside: func(t *testing.T) driver.Store { return openAt(t, path, Beside()) },
			Crash:  func(t *testing.T, store driver.Store) { crash(t, store.(*Store)) },
			Fail:   failNextCommit,
		}
	})
}
