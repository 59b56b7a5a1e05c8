package storetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func modelBackend(opts ...storetest.Option) func(t *testing.T) storetest.Backend {
	return func(*testing.T) storetest.Backend {
		model := storetest.NewModel(opts...)
		return storetest.Backend{
			Open: func(t *testing.T) driver.Store {
				store, err := model.Open()
				require.NoError(t, err)
				return store
			},
			Beside: func(*testing.T) driver.Store { return model.Beside() },
			Crash:  func(*testing.T, driver.Store) { model.Crash() },
		}
	}
}

func TestStore_Model(t *testing.T) { storetest.Run(t, modelBackend()) }

// A backend without the optional functions skips their tests.
func TestStore_ModelAlone(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		return storetest.Backend{Open: modelBackend()(t).Open}
	})
}
