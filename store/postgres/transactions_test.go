package postgres

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Events of SubmitTx that come without a pause do not put off the look.
func TestT1_ManyOwnTransactionsDoNotPutOffTheLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := ownEvents{wake: make(chan struct{}, 1), waiting: make(map[int64]time.Time)}
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for id := int64(1); id < 1000; id++ { // and then no more: a look that is put off comes at last
				select {
				case <-stop:
					return
				case <-time.After(ownInterval / 2):
					own.submitted([]int64{id})
				}
			}
		})
		began := time.Now()
		tick := time.NewTimer(time.Hour)
		for range 10 {
			require.True(t, own.wait(stop, tick))
		}
		require.LessOrEqual(t, time.Since(began), 10*2*ownInterval)
		close(stop)
		all.Wait()
	})
}

// An event of SubmitTx during the wait for the next look ends that wait.
func TestT1_AnOwnTransactionIsSeenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := ownEvents{wake: make(chan struct{}, 1), waiting: make(map[int64]time.Time)}
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

// otherDriversError is as those of lib/pq.
type otherDriversError struct{ error }

func (otherDriversError) SQLState() string { return "40001" }

// A *sql.Tx may be one of any database, whose driver has errors of its own.
func TestT1_ErrorsOfAnotherDatabase(t *testing.T) {
	s := &Store{cfg: &config{schema: "eventbus"}}
	for _, err := range []error{errors.New(`near "~": syntax error`), sql.ErrNoRows, &pgconn.PgError{Code: "42P01"}} {
		require.ErrorIs(t, s.explainTx(err), driver.ErrNoTransaction)
	}
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, sql.ErrTxDone, errNotConnected, &pgconn.PgError{Code: "25P02"}, otherDriversError{}} {
		require.ErrorIs(t, s.explainTx(err), err)
		require.NotErrorIs(t, s.explainTx(err), driver.ErrNoTransaction)
	}
}
