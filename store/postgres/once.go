package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// handlerPool has the connections on which handlers run: those of the pool that OpenPool was given, or of one of the
// store's own that opens when it is first used.
type handlerPool struct {
	config *pgxpool.Config // without the settings of the store's sessions

	mu     sync.Mutex // guards the following
	pool   *pgxpool.Pool
	opened bool // by the store, which closes it
	closed bool
}

func (h *handlerPool) get(pooled bool) (*pgxpool.Pool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, driver.ErrClosed
	case h.pool != nil:
		return h.pool, nil
	}
	if pooled {
		useNoStatements(h.config.ConnConfig)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), h.config) // its connections do not end with a context
	if err != nil {
		return nil, err
	}
	h.pool, h.opened = pool, true
	return pool, nil
}

// close closes the pool that the store opened, in the background: a handler that was abandoned may never return its
// connection.
func (h *handlerPool) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.opened {
		go h.pool.Close()
	}
}

type txOfHandler struct{}

// Tx returns the transaction of a handler with eventbus.InTx, from its context. Without one it returns nil. The handler must
// neither commit it nor roll it back, and not use it after it has returned.
//
// It is read committed and has the settings of the role and database. If the handler's context has a deadline, the server
// ends a transaction that has been idle until a second later: so a process that was stopped holds up no other one.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txOfHandler{}).(pgx.Tx)
	return tx
}

// RunOnce runs f in a transaction. See [driver.OnceStore].
//
// Errors: that of f; driver.ErrFailed, driver.ErrClosed, those of the server, the context's error.
func (s *Store) RunOnce(ctx context.Context, m driver.Mark, f func(context.Context) error) (ran bool, err error) {
	if err := s.state(); err != nil {
		return false, fmt.Errorf("RunOnce: %w", err)
	}
	pool, err := s.handlers.get(s.source.pooled.Load())
	if err != nil {
		return false, fmt.Errorf("RunOnce: %w", err)
	}
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
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
	if err := f(context.WithValue(ctx, txOfHandler{}, tx)); err != nil {
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
		idle := max(time.Until(deadline), 0) + time.Second
		b.Queue("SELECT set_config('idle_in_transaction_session_timeout', $1, true)", strconv.FormatInt(idle.Milliseconds(), 10))
	}
	const insert = "INSERT INTO ~.mark (event, name, edits, until) SELECT $1, name, $3, $4 FROM unnest($2::bytea[]) name ON CONFLICT DO NOTHING"
	var inserted int64
	b.Queue(s.sql(insert), m.Event.String(), names, m.Edits, storekit.TimeBound(m.Until)).Exec(func(tag commandTag) error {
		inserted = tag.RowsAffected()
		return nil
	})
	err = tx.SendBatch(ctx, b).Close()
	return inserted == int64(len(names)), err
}
