package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver of shopDB

	"github.com/surebus/eventbus/store/sqlite"
)

// failsOnce returns a service that mails about an order. Its first call fails, and the second one succeeds and closes sent. It
// prints what it does.
func failsOnce[T any](id func(T) string) (sendMail func(context.Context, T) error, sent <-chan struct{}) {
	var calls atomic.Int32
	done := make(chan struct{})
	return func(_ context.Context, order T) error {
		if calls.Add(1) == 1 {
			say(id(order), "the mail server is down")
			return errors.New("the mail server is down")
		}
		say(id(order), "sent")
		close(done)
		return nil
	}, done
}

func say(orderID, what string) {
	_, _ = fmt.Fprintf(os.Stdout, "%s: %s\n", orderID, what) // a page's test finds what is missing
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// staysOpen reports whether a channel is open for a while: what closes it would take microseconds.
func staysOpen(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	case <-time.After(200 * time.Millisecond):
		return true
	}
}

// shopDB opens a file as a service does that has its tables there, beside those of a queue.
func shopDB(t *testing.T, file string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1) // as River and goqite document it for SQLite
	_, err = db.ExecContext(t.Context(), "CREATE TABLE shop_orders (id TEXT PRIMARY KEY)")
	require.NoError(t, err)
	return db
}

// makeStore makes the file of a store, to which a service adds its tables.
func makeStore(t *testing.T, file string) {
	store, err := sqlite.Open(t.Context(), file)
	require.NoError(t, err)
	require.NoError(t, store.Close(t.Context()))
}

// inTx is the helper of the service that the pages speak of.
func inTx(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func saveOrder(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO shop_orders (id) VALUES (?)", id)
	return err
}

func savedOrders(t *testing.T, db *sql.DB) (n int) {
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM shop_orders").Scan(&n))
	return n
}
