//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// effects is a table of the service, in a schema of its own.
type effects struct {
	dsn   string
	table string
}

func newEffects(t testing.TB, dsn string) effects {
	t.Helper()
	schema := postgrestest.NewSchema()
	e := effects{dsn, schema + ".effect"}
	e.query(t, func(conn *pgx.Conn) error {
		_, err := conn.Exec(context.Background(), "CREATE SCHEMA "+schema+"; CREATE TABLE "+e.table+" (n integer)")
		return err
	})
	return e
}

func (e effects) query(t testing.TB, f func(*pgx.Conn) error) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), e.dsn)
	require.NoError(t, err)
	require.NoError(t, f(conn))
	require.NoError(t, conn.Close(context.Background()))
}

func (e effects) insert(ctx context.Context, n int) error {
	tx := postgres.Tx(ctx)
	if tx == nil {
		return errors.New("the handler has no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+e.table+" VALUES ($1)", n)
	return err
}

// requireOnce requires that the numbers 1 to n are in the table, each once.
func (e effects) requireOnce(t testing.TB, n int) {
	t.Helper()
	var rows, different, largest int
	e.query(t, func(conn *pgx.Conn) error {
		return conn.QueryRow(context.Background(), "SELECT count(*), count(DISTINCT n), coalesce(max(n), 0) FROM "+e.table).Scan(&rows, &different, &largest)
	})
	require.Equal(t, []int{n, n, n}, []int{rows, different, largest}, "rows, different and largest numbers")
}

// startInTx starts a bus with a handler in transactions.
func startInTx(t testing.TB, s *postgres.Store, handle func(ctx context.Context, n int) error, opts ...eventbus.SubscribeOption) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(eventbus.WithStore(s))
	require.NoError(t, err)
	_, err = bus.Subscribe("order.*", eventbus.Typed(handle), append([]eventbus.SubscribeOption{eventbus.Named("billing"), eventbus.InTx()}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, bus.Start(context.Background()))
	return bus
}

func privateServer(t *testing.T) *postgrestest.Server {
	t.Helper()
	server, err := postgrestest.Start(t.Context())
	if errors.Is(err, postgrestest.ErrNoServer) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Remove()) })
	return server
}

// The server ends sessions and crashes while handlers run. Commits have unknown outcomes, and handlers run again.
func TestT6_EffectsThroughOutages(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	events, outages := 4000, 12
	if !*postgres.Search {
		events, outages = 800, 4
	}
	e := newEffects(t, server.DSN())
	var ran atomic.Int64
	bus := startInTx(t, open(t, server.DSN(), "eventbus"), func(ctx context.Context, n int) error {
		err := e.insert(ctx, n)
		if err == nil {
			ran.Add(1)
		}
		return err
	}, eventbus.Retry(eventbus.MaxRetries(1000), eventbus.BaseDelay(5*time.Millisecond), eventbus.MaxDelay(100*time.Millisecond)),
		eventbus.Circuit(eventbus.NoCircuit()), eventbus.Timeout(5*time.Second))
	for n := 1; n <= events; n++ {
		if n%(events/outages) == 0 {
			if n/(events/outages)%2 == 0 {
				require.NoError(t, server.Restart(t.Context(), "immediate"))
			} else {
				require.NoError(t, server.EndSessions(t.Context()))
			}
		}
		_, err := bus.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	drain(t, bus)
	e.requireOnce(t, events)
	require.Zero(t, bus.Metrics().Ledger.DeadLettered)
	require.GreaterOrEqual(t, ran.Load(), int64(events))
	t.Logf("%d runs for %d effects", ran.Load(), events)
	shutDown(t, bus)
}

// A handler that hangs has its transaction until a second after its timeout, as if its process were stopped.
func TestT6_TheServerEndsTheTransactionOfAHandlerThatHangs(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	e := newEffects(t, server.DSN())
	goOn := make(chan struct{})
	var calls atomic.Int64
	bus := startInTx(t, open(t, server.DSN(), postgrestest.NewSchema()), func(ctx context.Context, n int) error {
		if err := e.insert(ctx, n); err != nil {
			return err
		}
		if calls.Add(1) == 1 {
			<-goOn
		}
		return nil
	}, eventbus.Timeout(300*time.Millisecond), eventbus.Retry(eventbus.MaxRetries(100), eventbus.BaseDelay(10*time.Millisecond), eventbus.MaxDelay(50*time.Millisecond)),
		eventbus.Circuit(eventbus.NoCircuit()))
	_, err := bus.Publish(t.Context(), "order.placed", 1)
	require.NoError(t, err)
	drain(t, bus)
	e.requireOnce(t, 1)
	close(goOn)
	shutDown(t, bus)
	e.requireOnce(t, 1)
}

// Handlers that hold all connections of the pool publish.
func TestT6_HandlersThatHoldThePoolPublish(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	e := newEffects(t, server.DSN())
	pool, err := pgxpool.New(t.Context(), server.DSN()+" pool_max_conns=2")
	require.NoError(t, err)
	defer pool.Close()
	s, err := postgres.OpenPool(t.Context(), pool, postgres.WithSchema(postgrestest.NewSchema()))
	require.NoError(t, err)
	var bus *eventbus.Bus
	bus = startInTx(t, s, func(ctx context.Context, n int) error {
		if err := e.insert(ctx, n); err != nil || n > 50 {
			return err
		}
		if _, err := bus.PublishTx(ctx, postgres.Tx(ctx), "order.billed", n+50); err != nil {
			return err
		}
		_, err := bus.Publish(ctx, "other", n, eventbus.Key(fmt.Sprint(n%3)))
		return err
	})
	for n := 1; n <= 50; n++ {
		_, err := bus.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return bus.Metrics().Ledger.Handled == 100 }, time.Minute, 5*time.Millisecond)
	e.requireOnce(t, 100)
	require.LessOrEqual(t, pool.Stat().TotalConns(), int32(2))
	shutDown(t, bus)
	require.NoError(t, pool.Ping(t.Context()), "the pool is the caller's")
}

// More deliveries than connections wait in the line of the subscription, and not within their timeouts.
func TestT6_ABacklogWaitsForConnections(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), postgrestest.Shared(t).DSN()+" pool_max_conns=2", postgres.WithSchema(postgrestest.NewSchema()))
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(s))
	require.NoError(t, err)
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		_, err := postgres.Tx(ctx).Exec(ctx, "SELECT pg_sleep(0.3)")
		return err
	}, eventbus.Named("billing"), eventbus.InTx(), eventbus.Timeout(2*time.Second))
	require.NoError(t, err)
	_, err = bus.Subscribe("other", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("other"), eventbus.InTx(), eventbus.Concurrency(3))
	require.ErrorContains(t, err, "pool_max_conns")
	require.NoError(t, bus.Start(t.Context()))
	const events = 30
	for n := range events {
		_, err := bus.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return bus.Metrics().Ledger.Handled+bus.Metrics().Ledger.DeadLettered == events }, 20*time.Second, 5*time.Millisecond)
	require.EqualValues(t, events, bus.Metrics().Ledger.Handled)
	shutDown(t, bus)
}

// An id that is published again after its window is that of another event. An hour is a long timeout, and a month a longer one.
func TestT6_AnIDThatComesAgainIsAnotherEvent(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), postgrestest.Shared(t).DSN(), postgres.WithSchema(postgrestest.NewSchema()))
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithIdempotencyWindow(100*time.Millisecond))
	require.NoError(t, err)
	var calls atomic.Int64
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		calls.Add(1)
		return nil
	}, eventbus.Named("billing"), eventbus.InTx(), eventbus.Timeout(30*24*time.Hour))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	id := eventbus.NewEventID()
	for n := range int64(2) {
		require.EventuallyWithT(t, func(t *assert.CollectT) { // within the window it is refused as a duplicate
			_, err := bus.Publish(context.Background(), "order.placed", n, eventbus.ID(id))
			assert.NoError(t, err)
		}, 20*time.Second, 50*time.Millisecond)
		require.Eventually(t, func() bool { return calls.Load() == n+1 }, 20*time.Second, 5*time.Millisecond)
	}
	shutDown(t, bus)
}

func ExampleTx() {
	ctx := context.Background()
	store, err := postgres.Open(ctx, "") // PGHOST and so on
	if err != nil {
		panic(err)
	}
	bus, err := eventbus.New(eventbus.WithStore(store))
	if err != nil {
		panic(err)
	}
	bill := eventbus.Typed(func(ctx context.Context, order int) error {
		_, err := postgres.Tx(ctx).Exec(ctx, "INSERT INTO bill VALUES ($1)", order) // once for each order
		return err
	})
	if _, err := bus.Subscribe("order.placed", bill, eventbus.Named("billing"), eventbus.InTx()); err != nil {
		panic(err)
	}
}
