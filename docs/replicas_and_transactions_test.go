//go:build unix

package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/inbox"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
	"github.com/surebus/eventbus/store/sqlite"
	"github.com/surebus/eventbus/store/sqlite/sqlitetest"
)

func TestDocs_ReplicasAndTransactions(t *testing.T) {
	docpagetest.Page(t, "replicas-and-transactions.md",
		docpagetest.Code(docsStandby),
		docpagetest.Code(docsPostgres),
		docpagetest.Code(docsPublishTx), // the two blocks about your tables
		docpagetest.Code(docsPublishTx),
		docpagetest.Code(docsInTx),
		docpagetest.Code(docsInbox),
		docpagetest.Code(docsFence),
	)
}

// soon is a policy for tests on real time.
var soon = eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond), eventbus.NoJitter)

func docsStandby(t *testing.T) error {
	ctx, path := t.Context(), sqlitetest.Path(t)
	var first, second eventbustest.Recorder
	store, err := sqlite.Open(ctx, path)
	require.NoError(t, err)
	leader := eventbustest.NewUnstarted(t, eventbus.WithStore(store))
	_, err = leader.Subscribe("order.*", first.Handle, eventbus.Named("stock"))
	require.NoError(t, err)
	require.NoError(t, leader.Start(ctx))

	handle := second.Handle
	var standby *eventbus.Bus
	served, led := make(chan struct{}), make(chan error, 1)
	serve := func(bus *eventbus.Bus) {
		standby = bus
		close(served)
	}
	standBy := func() error {
		store, err := sqlite.Open(ctx, path) // takes no lease
		if err != nil {
			return err
		}
		bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
		if err != nil {
			return err
		}
		if _, err := bus.Subscribe("order.*", handle, eventbus.Named("stock")); err != nil {
			return err
		}
		go serve(bus)        // a standby publishes
		err = bus.Start(ctx) // returns when this process has the lease
		return err
	}
	go func() { led <- standBy() }()
	<-served
	eventbustest.Adopt(t, standby)
	_, err = standby.Publish(ctx, "order.placed", "o-1")
	require.NoError(t, err)
	first.Wait(t, 1)
	_, err = standby.PublishAndWait(ctx, "order.placed", "o-2")
	require.ErrorIs(t, err, eventbus.ErrNotStarted)
	eventbustest.WaitSettled(t, leader)
	require.NoError(t, leader.Shutdown(ctx))
	require.NoError(t, <-led)
	_, err = standby.PublishAndWait(ctx, "order.placed", "o-3")
	require.Equal(t, []string{"o-1"}, eventbustest.Payloads[string](&first))
	require.Equal(t, []string{"o-3"}, eventbustest.Payloads[string](&second))
	return err
}

// useDatabase makes an empty database, and sets the environment so that "" is its DSN.
func useDatabase(t *testing.T) {
	t.Helper()
	server := postgrestest.Shared(t)
	name := postgrestest.NewSchema()
	require.NoError(t, server.Exec(t.Context(), "CREATE DATABASE "+name))
	for variable, value := range map[string]string{"PGHOST": server.Dir(), "PGUSER": "postgres", "PGDATABASE": name, "PGSSLMODE": "disable"} {
		t.Setenv(variable, value)
	}
}

func docsPostgres(t *testing.T) error {
	useDatabase(t)
	ctx := t.Context()
	var standby *eventbus.Bus
	open := func() error {
		store, err := postgres.Open(ctx, "") // PGHOST, PGUSER, PGDATABASE, PGSERVICE, ~/.pgpass
		if err != nil {
			return err
		}
		bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
		standby = bus
		return err
	}
	require.NoError(t, open())
	eventbustest.Adopt(t, standby)
	var rec eventbustest.Recorder
	_, err := standby.Subscribe("order.*", rec.Handle, eventbus.Named("stock"))
	require.NoError(t, err)
	require.NoError(t, standby.Start(ctx))
	_, err = standby.PublishAndWait(ctx, "order.placed", "o-17")
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))
	return err
}

func docsPublishTx(t *testing.T) error {
	ctx, path := t.Context(), sqlitetest.Path(t)
	store, err := sqlite.Open(ctx, path)
	require.NoError(t, err)
	bus := eventbustest.New(t, eventbus.WithStore(store))
	var rec eventbustest.Recorder
	_, err = bus.Subscribe("order.*", rec.Handle, eventbus.Named("stock"))
	require.NoError(t, err)
	var tables *sql.DB
	create := func() error {
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS shop_orders (id TEXT PRIMARY KEY, cents INTEGER)")
		tables = db
		return err
	}
	require.NoError(t, create())
	defer func() { require.NoError(t, tables.Close()) }()
	db := tables
	place := func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO shop_orders (id, cents) VALUES (?, ?)", "o-17", 4200); err != nil {
			return err
		}
		if _, err := bus.PublishTx(ctx, tx, "order.placed", "o-17"); err != nil {
			return err
		}
		return tx.Commit()
	}
	require.NoError(t, place())
	require.Error(t, place(), "the order is there: neither a row nor an event")
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, 1, rec.Len())
	require.Equal(t, 1, count(t, tables, "shop_orders"))
	return nil
}

// openDB opens an SQLite database, and runs a statement in it.
func openDB(t *testing.T, path, statement string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
	return db
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// failOnce is a middleware that fails a handler after its first call.
func failOnce(next eventbus.Handler) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		err := next(ctx, e)
		if d, _ := eventbus.FromContext(ctx); err == nil && d.Attempt == 1 {
			err = errors.New("the process was slow: what it did is committed, and the attempt counts as failed")
		}
		return err
	}
}

func docsInTx(t *testing.T) error {
	useDatabase(t)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(ctx))) }()
	_, err = conn.Exec(ctx, "CREATE TABLE bill (order_id text)")
	require.NoError(t, err)
	store, err := postgres.Open(ctx, "")
	require.NoError(t, err)
	bus := eventbustest.New(t, soon, eventbus.WithStore(store), eventbus.WithMiddleware(failOnce)) // outside of the transaction
	subscribe := func() error {
		_, err := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, order string) error {
			_, err := postgres.Tx(ctx).Exec(ctx, "INSERT INTO bill (order_id) VALUES ($1)", order)
			return err
		}), eventbus.Named("billing"), eventbus.InTx())
		return err
	}
	require.NoError(t, subscribe())
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	require.NoError(t, err)
	require.Equal(t, 2, result.Attempts)
	var bills int
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM bill").Scan(&bills))
	require.Equal(t, 1, bills)

	file := eventbustest.NewUnstarted(t, eventbus.WithStore(sqlitetest.Open(t)))
	_, err = file.Subscribe("order.placed", eventbustest.Fail(nil), eventbus.Named("billing"), eventbus.InTx())
	require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	return nil
}

func docsInbox(t *testing.T) error {
	ctx := t.Context()
	db := openDB(t, filepath.Join(t.TempDir(), "shop.db"), "CREATE TABLE bill (order_id TEXT)")
	bus := eventbustest.New(t, soon, eventbus.WithStore(sqlitetest.Open(t)), eventbus.WithMiddleware(failOnce))
	subscribe := func() error {
		in, err := inbox.New(ctx, bus, db)
		if err != nil {
			return err
		}
		_, err = bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, order string) error {
			_, err := inbox.Tx(ctx).ExecContext(ctx, "INSERT INTO bill (order_id) VALUES (?)", order)
			return err
		}), eventbus.Named("billing"), eventbus.Use(in.Once))
		return err
	}
	require.NoError(t, subscribe())
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	require.NoError(t, err)
	require.Equal(t, 2, result.Attempts)
	require.Equal(t, 1, count(t, db, "bill"))
	return nil
}

// Charge is what a bank is asked for.
type Charge struct {
	IdempotencyKey string
	Fence          int64
}

// fencedBank refuses the processes of the past.
type fencedBank struct {
	largest int64
	charged map[string]bool
}

func (b *fencedBank) Charge(_ context.Context, c Charge) error {
	if c.Fence < b.largest {
		return errors.New("a later process has charged")
	}
	b.largest, b.charged[c.IdempotencyKey] = c.Fence, true
	return nil
}

func docsFence(t *testing.T) error {
	bank := &fencedBank{charged: make(map[string]bool)}
	path := sqlitetest.Path(t)
	var fences []int64
	for range 2 {
		store, err := sqlite.Open(t.Context(), path)
		require.NoError(t, err)
		bus := eventbustest.New(t, soon, eventbus.WithStore(store), eventbus.WithMiddleware(failOnce))
		subscribe := func() error {
			_, err := bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				return bank.Charge(ctx, Charge{IdempotencyKey: e.ID.String(), Fence: d.Fence})
			}, eventbus.Named("billing"))
			return err
		}
		require.NoError(t, subscribe())
		_, err = bus.PublishAndWait(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		require.NoError(t, bus.Shutdown(t.Context()))
		fences = append(fences, bank.largest)
	}
	require.Len(t, bank.charged, 2, "one charge for each event, although each handler ran twice")
	require.Less(t, fences[0], fences[1])
	return nil
}
