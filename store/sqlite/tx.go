package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/surebus/eventbus/driver"
)

// SubmitTx inserts incoming events in a *sql.Tx whose main database is the file of the store, of any driver of
// database/sql for SQLite. It needs no lease. See [driver.TxStore].
//
// SQLite has one write lock for the file. From its first write to its end, the caller's transaction keeps the store
// from committing. Keep it short: publications that wait longer than WithLockWait end with an unknown outcome. A
// publication by the caller itself would wait for its own transaction. Begin it for writing: BEGIN IMMEDIATE, or
// _txlock=immediate in the data source name of modernc.org/sqlite. A transaction that reads first fails to write if the
// store has committed meanwhile. The commit is as durable as the connection of the caller makes it (PRAGMA
// synchronous).
//
// The driver may be modernc.org/sqlite in the process of the store, which shares its locks, or any driver in another
// process.
//
// Errors: driver.ErrNoTransaction for everything else than such a transaction; a *driver.RefusedError that matches
// driver.ErrTime; sql.ErrTxDone; that of the driver; driver.ErrFailed; driver.ErrClosed; the context's error. After any
// error but driver.ErrNoTransaction, roll back.
func (s *Store) SubmitTx(ctx context.Context, tx any, in []*driver.Incoming) error {
	if err := s.submitTx(ctx, tx, in); err != nil {
		return fmt.Errorf("SubmitTx: %w", err)
	}
	return nil
}

func (s *Store) submitTx(ctx context.Context, tx any, in []*driver.Incoming) error {
	if err := s.state(); err != nil {
		return err
	}
	t, ok := tx.(*sql.Tx)
	if !ok || t == nil {
		return fmt.Errorf("%w: it is a %T, and the store takes a *sql.Tx whose main database is %s", driver.ErrNoTransaction, tx, s.path)
	}
	if err := (&driver.Batch{Leave: in}).CheckTimes(); err != nil {
		return err
	}
	if err := s.checkDatabase(ctx, t); err != nil {
		return err
	}
	for _, event := range in {
		if _, err := t.ExecContext(ctx, insertOneIncoming, incomingArgs(event)...); err != nil {
			return explainInsert(err)
		}
	}
	return nil
}

// HoldsLock reports whether a transaction is open. See [driver.TxLock].
func (s *Store) HoldsLock(tx any) bool {
	t, ok := tx.(*sql.Tx)
	if !ok || t == nil {
		return false
	}
	// StmtContext does not wait for a statement of the caller that runs. Its error is not ErrTxDone: a zero Stmt is of no database.
	return !errors.Is(t.StmtContext(context.Background(), new(sql.Stmt)).Close(), sql.ErrTxDone)
}

// checkDatabase returns an error if the main database of a transaction is not the file of the store.
func (s *Store) checkDatabase(ctx context.Context, t *sql.Tx) error {
	main, err := mainDatabase(ctx, t)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sql.ErrTxDone):
		return err
	case err != nil:
		return fmt.Errorf("%w: the store takes a *sql.Tx of SQLite whose main database is %s: %w", driver.ErrNoTransaction, s.path, err)
	}
	own, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if file, err := os.Stat(main); err != nil || !os.SameFile(own, file) {
		return fmt.Errorf("%w: the main database of the *sql.Tx is %q, and the store has %s", driver.ErrNoTransaction, main, s.path)
	}
	return nil
}

// mainDatabase returns the path of the main database of a transaction, empty for one in memory.
func mainDatabase(ctx context.Context, t *sql.Tx) (path string, err error) {
	rows, err := t.QueryContext(ctx, "PRAGMA database_list")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var number int
		var name string
		var file sql.NullString
		if err := rows.Scan(&number, &name, &file); err != nil {
			return "", err
		}
		if name == "main" {
			path = file.String
		}
	}
	return path, rows.Err()
}

// explainInsert adds to the error of an INSERT what the caller can do. Drivers have no common errors, but the text of
// SQLite.
func explainInsert(err error) error {
	text := strings.ToLower(err.Error())
	switch {
	case strings.Contains(text, "readonly"):
		return fmt.Errorf("sqlite: the transaction of the caller is for reading only (query_only, mode=ro, or sql.TxOptions.ReadOnly): %w", err)
	case strings.Contains(text, "locked") || strings.Contains(text, "busy"):
		return fmt.Errorf("sqlite: the transaction of the caller does not get the write lock: begin it with BEGIN IMMEDIATE, and set a busy_timeout: %w", err)
	}
	return fmt.Errorf("sqlite: the transaction of the caller cannot insert the event: %w", err)
}
