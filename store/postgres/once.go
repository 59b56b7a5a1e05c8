package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

type txOfHandler struct{}

// Tx returns the transaction of a handler with eventbus.InTx, from its context. Without one it returns nil. The handler must
// neither commit it nor roll it back, and not use it after it has returned.
//
// It is read committed and has the settings of the role and database. If the handler's context has a deadline, the
// server ends an idle transaction one second after it, so a stopped process does not block others.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txOfHandler{}).(pgx.Tx)
	return tx
}

// MaxRuns returns the number of connections for handlers. See [driver.OnceStore].
func (s *Store) MaxRuns() int { return int(s.handlers.Config().MaxConns) }

// RunOnce runs f in a transaction. See [driver.OnceStore].
//
// Errors: that of f; driver.ErrFailed, driver.ErrClosed, those of the server, the context's error.
func (s *Store) RunOnce(ctx context.Context, m driver.Mark, f func(ctx context.Context, tx any) error) (ran bool, err error) {
	if err := s.state(); err != nil {
		return false, fmt.Errorf("RunOnce: %w", err)
	}
	tx, err := s.handlers.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return false, fmt.Errorf("RunOnce: %w", explain(err))
	}
	defer func() { // also when f panics or ends its goroutine
		rolling, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTime)
		defer cancel()
		_ = tx.Rollback(rolling) // after a commit it does nothing; after a failure the connection is closed
	}()
	first, err := s.mark(ctx, tx, m)
	if err != nil {
		return false, fmt.Errorf("RunOnce: %w", explain(err))
	}
	if !first {
		return false, nil
	}
	if err := f(context.WithValue(ctx, txOfHandler{}, tx), tx); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := tx.Commit(ctx); err != nil {
		return false, fmt.Errorf("RunOnce: commit: %w", explain(err))
	}
	return true, nil
}

// mark inserts a mark, and reports whether there was none. It waits for another transaction that inserts it.
func (s *Store) mark(ctx context.Context, tx pgx.Tx, m driver.Mark) (first bool, err error) {
	// In the same order in every transaction, so that no two wait for each other.
	names := bytesOf(slices.Compact(slices.Sorted(slices.Values(m.Names))))
	b := &pgx.Batch{}
	if deadline, ok := ctx.Deadline(); ok {
		idle := min((max(time.Until(deadline), 0) + time.Second).Milliseconds(), math.MaxInt32)
		b.Queue("SELECT set_config('idle_in_transaction_session_timeout', $1, true)", strconv.FormatInt(idle, 10))
	}
	const insert = "INSERT INTO ~.mark (event, name, published, edit, until) SELECT $1, name, $3, $4, $5 FROM unnest($2::bytea[]) name ON CONFLICT DO NOTHING"
	var inserted int64
	b.Queue(s.sql(insert), m.Event.String(), names, storekit.TimeText(m.Published), []byte(m.Edit), storekit.TimeBound(m.Until)).Exec(func(tag commandTag) error {
		inserted = tag.RowsAffected()
		return nil
	})
	err = tx.SendBatch(ctx, b).Close()
	return inserted == int64(len(names)), err
}
