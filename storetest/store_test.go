package storetest_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// modelBackend returns the backend of a Model. Its failures keep the batch and lose it, in turn.
func modelBackend(*testing.T) storetest.Backend {
	var fails atomic.Bool
	kind, other := storetest.FailBefore, storetest.FailAfter
	model := storetest.NewModel(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
		if fails.Swap(false) {
			f.Kind = kind
			kind, other = other, kind
		}
		return f
	}))
	return storetest.Backend{
		Open: func(t *testing.T) driver.Store {
			store, err := model.Open()
			require.NoError(t, err)
			return store
		},
		Beside: func(*testing.T) driver.Store { return model.Beside() },
		Crash:  func(*testing.T, driver.Store) { model.Crash() },
		Fail:   func(*testing.T, driver.Store) { fails.Store(true) },
	}
}

func TestStore_Model(t *testing.T) { storetest.Run(t, modelBackend) }

// A backend without the optional functions skips their tests.
func TestStore_ModelAlone(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		return storetest.Backend{Open: modelBackend(t).Open}
	})
}
