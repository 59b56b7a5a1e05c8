package storetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// The time of a delay is virtual in a bubble, and a Model made outside of it has no channel that
// the bubble would share.
func TestStore_ModelInBubble(t *testing.T) {
	model := storetest.NewModel(storetest.WithFaults(func(int, *eventbus.Batch) storetest.Fault {
		return storetest.Fault{Delay: time.Hour}
	}))
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			store, err := model.Open()
			require.NoError(t, err)
			_, err = model.Open()
			require.ErrorIs(t, err, eventbus.ErrNoLease)
			began, acked := time.Now(), false
			store.Submit(&eventbus.Batch{New: []*eventbus.Record{{Leased: true}}}, func(err error) { acked = err == nil })
			require.NoError(t, store.Close(context.Background()))
			require.True(t, acked)
			require.Equal(t, time.Hour, time.Since(began))
		})
	}
	require.Len(t, model.Dump().Records, 2)
}
