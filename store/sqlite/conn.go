package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// query runs a cached statement and calls row, which may be nil, for each row of its result. An
// argument is an int, an int64, a string, a []byte or nil.
func query(c *sqlite3.Conn, sql string, row func(*sqlite3.Stmt) error, args ...any) error {
	stmt, err := c.Prepare(sql)
	if err != nil {
		return err
	}
	for i, a := range args {
		bind(stmt, i+1, a)
	}
	return run(stmt, row)
}

// run steps through a statement and resets it.
func run(stmt *sqlite3.Stmt, row func(*sqlite3.Stmt) error) error {
	for {
		more, err := stmt.Step() // an error resets the statement
		if err != nil {
			return err
		}
		if !more {
			return stmt.Reset()
		}
		if row == nil {
			continue
		}
		if err := row(stmt); err != nil {
			return errors.Join(err, stmt.Reset())
		}
	}
}

func bind(stmt *sqlite3.Stmt, i int, a any) {
	switch a := a.(type) {
	case nil:
		stmt.BindNull(i)
	case int:
		stmt.BindInt64(i, int64(a))
	case int64:
		stmt.BindInt64(i, a)
	case string:
		stmt.BindText(i, a)
	case []byte:
		stmt.BindBytes(i, a)
	default:
		panic(fmt.Sprintf("sqlite: argument of type %T", a))
	}
}

// queryInt returns the first column of the first row.
func queryInt(c *sqlite3.Conn, sql string, args ...any) (n int64, err error) {
	err = query(c, sql, func(stmt *sqlite3.Stmt) error {
		n = stmt.ColumnInt64(0)
		return nil
	}, args...)
	return n, err
}

// columnBytes returns a copy of a column, or nil if it is NULL.
func columnBytes(stmt *sqlite3.Stmt, i int) []byte {
	if stmt.ColumnIsNull(i) {
		return nil
	}
	b := make([]byte, stmt.ColumnLen(i))
	stmt.ColumnBytes(i, b)
	return b
}

// columnInto reads a column that is not NULL. It uses the memory of b if that is large enough.
func columnInto(b []byte, stmt *sqlite3.Stmt, i int) []byte {
	n := stmt.ColumnLen(i)
	b = slices.Grow(b[:0], n)[:n]
	stmt.ColumnBytes(i, b)
	return b
}

// reader is a connection for reading. One goroutine at a time has it.
type reader struct {
	store *Store
	sem   chan struct{} // held by the goroutine that has the reader
	conn  *sqlite3.Conn // nil if it is not open

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
}

func newReader(s *Store) *reader {
	r := &reader{store: s, sem: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// take waits for the reader.
func (r *reader) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // the select below would take it half of the times
	}
	select {
	case r.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reader) give() { <-r.sem }

// open opens the connection of a reader that is taken or not in use yet.
func (r *reader) open() error {
	c, err := r.store.openConn(sqlite3.OpenReadOnly) // as the guard, it leaves the log when it is closed last
	if err != nil {
		return err
	}
	c.SetBusyTimeout(r.store.cfg.lockWait)
	for _, pragma := range []string{"PRAGMA query_only = 1", "PRAGMA trusted_schema = 0", "PRAGMA cell_size_check = 1"} {
		if err := query(c, pragma, nil); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	r.conn = c
	return nil
}

func (r *reader) close() error {
	c := r.conn
	r.conn = nil
	if c == nil {
		return nil
	}
	return c.Close()
}

// interruptAll stops the call in progress and all later ones.
func (r *reader) interruptAll() { r.cancel() }

// read calls f with the connection, inside a transaction: f sees the data of one commit.
func (r *reader) read(ctx context.Context, f func(c *sqlite3.Conn) error) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.give()
	if err := r.store.state(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	r.conn.SetInterrupt(both.Done())
	err := inTransaction(r.conn, f)
	r.conn.SetInterrupt(nil)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case r.ctx.Err() != nil:
		return driver.ErrClosed
	}
	return r.store.explain(err)
}

func inTransaction(c *sqlite3.Conn, f func(c *sqlite3.Conn) error) error {
	if err := query(c, "BEGIN", nil); err != nil {
		return err
	}
	err := f(c)
	if err != nil {
		c.SetInterrupt(nil) // an interrupted connection would refuse to end the transaction
	}
	if end := query(c, "COMMIT", nil); err == nil && end != nil {
		c.SetInterrupt(nil)
		return errors.Join(end, query(c, "ROLLBACK", nil))
	}
	return err
}
