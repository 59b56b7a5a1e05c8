package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
)

// insertIncoming inserts nothing in the database of another store.
const insertIncoming = `INSERT INTO ~.incoming (event, slot, state, due, body, given, codec)
	SELECT $1::uuid, $2::smallint, $3::smallint, $4::text, $5::bytea, $6::boolean, $7::bytea FROM ~.meta WHERE id = 1 AND store = $8::uuid RETURNING id`

// SubmitTx inserts incoming events in a transaction of the caller: a pgx.Tx, or a *sql.Tx of a driver for Postgres
// (such as pgx/v5/stdlib). It must be a transaction on the database of the store. It locks nothing for which another
// program could wait. See [driver.TxStore].
//
// A transaction may be read committed, repeatable read or serializable. The role needs SELECT and INSERT on table incoming,
// SELECT on table meta, and USAGE on the schema.
//
// Errors: driver.ErrNoTransaction, driver.ErrFailed, driver.ErrClosed, *driver.RefusedError for a time that cannot be
// stored, those of the server, the context's error.
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
	row, err := rowOf(tx)
	if err != nil {
		return err
	}
	if err := (&driver.Batch{Leave: in}).CheckTimes(); err != nil {
		return err
	}
	var ids []int64
	for _, event := range in {
		c := newIncomingColumns(1)
		c.add(event)
		var id int64
		// Simple values: a *sql.Tx knows no arrays.
		id16 := event.Record.ID.String()
		if err := row(ctx, &id, s.sql(insertIncoming), id16, c.slots[0], c.states[0], c.dues[0], c.bodies[0], c.givens[0], c.codecs[0], s.identity); err != nil {
			return s.explainTx(err)
		}
		ids = append(ids, id)
	}
	if len(ids) > 0 && s.Lease().IsHeld() { // otherwise another store takes them in
		s.own.submitted(ids)
	}
	return nil
}

// queryRow reads the only column of a row in a transaction.
type queryRow func(ctx context.Context, to any, sql string, args ...any) error

func rowOf(tx any) (queryRow, error) {
	if v := reflect.ValueOf(tx); v.Kind() != reflect.Pointer || !v.IsNil() {
		switch tx := tx.(type) {
		case pgx.Tx:
			return func(ctx context.Context, to any, sql string, args ...any) error {
				return tx.QueryRow(ctx, sql, args...).Scan(to)
			}, nil
		case *sql.Tx:
			return func(ctx context.Context, to any, sql string, args ...any) error {
				return tx.QueryRowContext(ctx, sql, args...).Scan(to)
			}, nil
		}
	}
	return nil, fmt.Errorf("%w: it is a %T, and the store takes a pgx.Tx or a *sql.Tx of its Postgres database", driver.ErrNoTransaction, tx)
}

// explainTx says what is wrong with a transaction that is not one of the store's database.
func (s *Store) explainTx(err error) error {
	switch state := sqlState(err); {
	case errors.Is(err, pgx.ErrNoRows), errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: the transaction is one of another database, which has a store in schema %s, too", driver.ErrNoTransaction, s.cfg.schema)
	case state == "42P01", state == "3F000": // undefined_table, invalid_schema_name
		return fmt.Errorf("%w: the transaction has no schema %s of a store: %w", driver.ErrNoTransaction, s.cfg.schema, err)
	case state != "", isTransient(err), errors.Is(err, context.Canceled), errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return explain(err)
	}
	return fmt.Errorf("%w: the database of the transaction does not know schema %s of a store, or is not Postgres: %w", driver.ErrNoTransaction, s.cfg.schema, err)
}
