package sqlite

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStore runs the conformance suite of stores.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		path := testPath(t)
		return storetest.Backend{
			Open:   func(t *testing.T) eventbus.Store { return openAt(t, path) },
			Beside: func(t *testing.T) eventbus.Store { return openAt(t, path, Beside()) },
			Crash:  func(t *testing.T, store eventbus.Store) { crash(t, store.(*Store)) },
		}
	})
}
