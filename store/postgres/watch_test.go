package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An event of SubmitTx during the wait for the next look ends that wait.
func TestT1_AnOwnTransactionIsSeenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := newOwnEvents()
		began := time.Now()
		time.AfterFunc(20*time.Millisecond, func() { own.submitted([]int64{1}) })
		tick := time.NewTimer(time.Hour)
		stop := make(chan struct{})
		require.True(t, own.wait(stop, tick))
		require.Equal(t, 20*time.Millisecond+ownInterval, time.Since(began))
		require.True(t, own.wait(stop, tick))
		require.Equal(t, 20*time.Millisecond+2*ownInterval, time.Since(began))
		own.accepted([]int64{1})
		require.True(t, own.wait(stop, tick))
		require.Equal(t, 20*time.Millisecond+2*ownInterval+watchInterval, time.Since(began))
		close(stop)
		require.False(t, own.wait(stop, tick))
	})
}
