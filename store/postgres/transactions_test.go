package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
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

// A *sql.Tx may be one of any database, whose driver has errors of its own.
func TestT1_ErrorsOfAnotherDatabase(t *testing.T) {
	s := &Store{cfg: &config{schema: "eventbus"}}
	for _, err := range []error{errors.New(`near "~": syntax error`), sql.ErrNoRows, &pgconn.PgError{Code: "42P01"}} {
		require.ErrorIs(t, s.explainTx(err), driver.ErrNoTransaction)
	}
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, sql.ErrTxDone, errNotConnected, &pgconn.PgError{Code: "25P02"}} {
		require.ErrorIs(t, s.explainTx(err), err)
		require.NotErrorIs(t, s.explainTx(err), driver.ErrNoTransaction)
	}
}
