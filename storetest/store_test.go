package storetest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// modelBackend returns the backend of a Model with some slots. Its failures keep the batch and lose it,
// in turn.
func modelBackend(slots int) func(*testing.T) storetest.Backend {
	return func(*testing.T) storetest.Backend {
		var fails, denies, denied atomic.Bool
		kind, other := storetest.FailBefore, storetest.FailAfter
		model := storetest.NewModel(storetest.WithSlots(slots), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			denied.Store(denies.Swap(false))
			if fails.Swap(false) {
				f.Kind = kind
				kind, other = other, kind
			}
			return f
		}), storetest.WithLeaseDenied(func(*driver.Record) bool { return denied.Load() }))
		return storetest.Backend{
			Open:      func(*testing.T) driver.Store { return model.Open() },
			Crash:     func(_ *testing.T, store driver.Store) { model.Kill(store) },
			Fail:      func(*testing.T, driver.Store) { fails.Store(true) },
			LoseLease: func(_ *testing.T, store driver.Store) { model.LoseLease(false, store) },
			Deny:      func(*testing.T, driver.Store) { denies.Store(true) },
			Begin: func(*testing.T) (any, func() error, func() error) {
				tx := model.Begin()
				return tx, tx.Commit, tx.Rollback
			},
			TxFrom: func(ctx context.Context) any { return storetest.TxFrom(ctx) },
			Slots:  slots,
		}
	}
}

func TestStore_Model(t *testing.T) { storetest.Run(t, modelBackend(1)) }

func TestStore_ModelOfTwoSlots(t *testing.T) { storetest.Run(t, modelBackend(2)) }

// A backend without the optional functions skips their tests.
func TestStore_ModelAlone(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		return storetest.Backend{Open: modelBackend(1)(t).Open}
	})
}
