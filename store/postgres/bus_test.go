//go:build unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// counter counts the calls of a handler, by payload.
type counter struct {
	mu    sync.Mutex // guards the following
	calls map[int]int
	all   int
}

func (c *counter) handle(_ context.Context, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = make(map[int]int)
	}
	c.calls[n]++
	c.all++
	return nil
}

// lostAndRepeated returns how many of the payloads 1 to n were not handled, and how many more than once.
func (c *counter) lostAndRepeated(n int) (lost, repeated int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 1; i <= n; i++ {
		switch calls := c.calls[i]; {
		case calls == 0:
			lost++
		case calls > 1:
			repeated++
		}
	}
	return lost, repeated
}

func open(t testing.TB, dsn, schema string, opts ...postgres.Option) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), dsn, append([]postgres.Option{postgres.WithSchema(schema)}, opts...)...)
	require.NoError(t, err)
	return s
}

// startBus starts a bus whose only subscription is billing.
func startBus(t testing.TB, s *postgres.Store, c *counter, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithStore(s)}, opts...)...)
	require.NoError(t, err)
	_, err = bus.Subscribe("order.*", eventbus.Typed(c.handle), eventbus.Named("billing"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(context.Background()))
	return bus
}

func shutDown(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, bus.Shutdown(ctx))
}

func drain(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, bus.Drain(ctx))
}

// Sessions are ended and the server crashes while 64 publishers publish. They notice a delay: no event is lost, none is
// handled twice, and no publication fails.
func TestS6_OutagesOfTheServerAreADelay(t *testing.T) {
	t.Parallel()
	server, err := postgrestest.Start(t.Context())
	if errors.Is(err, postgrestest.ErrNoServer) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Remove()) })
	events, outages, publishers := 20_000, 10, 64
	if !*postgres.Search {
		events, outages = 4000, 4
	}
	var c counter
	bus := startBus(t, open(t, server.DSN(), "eventbus"), &c)
	var next, accepted atomic.Int64
	var all sync.WaitGroup
	for range publishers {
		all.Go(func() {
			for n := int(next.Add(1)); n <= events; n = int(next.Add(1)) {
				if _, err := bus.Publish(context.Background(), "order.placed", n); err != nil {
					t.Error(err)
				}
				accepted.Add(1)
			}
		})
	}
	for i := range outages {
		goal := int64(events * (i + 1) / (outages + 2))
		for accepted.Load() < goal {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(rand.N(5 * time.Millisecond))
		if i%2 == 0 {
			_ = server.EndSessions(context.Background()) // it ends its own, too, if the server does
		} else {
			require.NoError(t, server.Restart(context.Background(), "immediate"))
		}
	}
	all.Wait()
	drain(t, bus)
	lost, repeated := c.lostAndRepeated(events)
	require.Zero(t, lost, "events that were lost")
	require.Zero(t, repeated, "events that were handled twice")
	shutDown(t, bus)
}

// Events of transactions exist if and only if the transactions were committed, of pgx and of database/sql.
func TestT1_PublishTx(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	var c counter
	bus := startBus(t, open(t, server.DSN(), postgrestest.NewSchema()), &c)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	db, err := sql.Open("pgx", server.DSN())
	require.NoError(t, err)
	own := postgrestest.NewSchema()
	_, err = conn.Exec(t.Context(), "CREATE SCHEMA "+own+"; CREATE TABLE "+own+".booking (n int PRIMARY KEY)")
	require.NoError(t, err)
	const rounds = 20
	for n := 1; n <= rounds; n++ {
		var tx any
		var exec func(string, ...any) error
		var end func(commit bool) error
		if n%2 == 0 {
			pgxTx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			tx, exec = pgxTx, func(q string, args ...any) error { _, err := pgxTx.Exec(t.Context(), q, args...); return err }
			end = func(commit bool) error {
				if commit {
					return pgxTx.Commit(t.Context())
				}
				return pgxTx.Rollback(t.Context())
			}
		} else {
			sqlTx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
			require.NoError(t, err)
			tx, exec = sqlTx, func(q string, args ...any) error { _, err := sqlTx.ExecContext(t.Context(), q, args...); return err }
			end = func(commit bool) error {
				if commit {
					return sqlTx.Commit()
				}
				return sqlTx.Rollback()
			}
		}
		require.NoError(t, exec("INSERT INTO "+own+".booking VALUES ($1)", n))
		_, err := bus.PublishTx(t.Context(), tx, "order.placed", n)
		require.NoError(t, err)
		require.NoError(t, end(n%3 != 0))
	}
	rows, err := conn.Query(t.Context(), "SELECT n FROM "+own+".booking")
	require.NoError(t, err)
	committed, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	require.Len(t, committed, rounds-rounds/3)
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.all == len(committed) }, 20*time.Second, time.Millisecond)
	for _, n := range committed {
		require.Equal(t, 1, c.calls[n], "booking %d", n)
	}
	_, err = bus.PublishTx(t.Context(), new(struct{}), "order.placed", 1)
	require.ErrorIs(t, err, eventbus.ErrNoTransaction)
	require.ErrorContains(t, err, "pgx.Tx or a *sql.Tx")
	require.NoError(t, db.Close())
	require.NoError(t, conn.Close(t.Context()))
	shutDown(t, bus)
}

// A transaction of a caller that stays open holds up nobody.
func TestT1_AnOpenTransactionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	var c counter
	bus := startBus(t, open(t, server.DSN(), postgrestest.NewSchema()), &c)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	id := eventbus.NewEventID()
	_, err = bus.PublishTx(t.Context(), tx, "order.placed", 1, eventbus.ID(id))
	require.NoError(t, err)
	for n := 2; n <= 50; n++ {
		_, err := bus.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	_, err = bus.Publish(t.Context(), "order.placed", 1, eventbus.ID(id))
	require.NoError(t, err, "the id of an event that does not exist yet is free")
	require.NoError(t, tx.Commit(t.Context()))
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.all >= 50 }, 20*time.Second, time.Millisecond)
	drain(t, bus)
	require.Equal(t, 1, c.calls[1], "the repetition was dropped")
	require.NoError(t, conn.Close(t.Context()))
	shutDown(t, bus)
}

// The active bus shuts down, and its standby takes over soon.
func TestS6_AStandbyTakesOver(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := postgrestest.NewSchema()
	var first, second counter
	active := startBus(t, open(t, server.DSN(), schema), &first)
	standby, err := eventbus.New(eventbus.WithStore(open(t, server.DSN(), schema)), eventbus.WithStandby())
	require.NoError(t, err)
	_, err = standby.Subscribe("order.*", eventbus.Typed(second.handle), eventbus.Named("billing"))
	require.NoError(t, err)
	started := make(chan error, 1)
	go func() { started <- standby.Start(context.Background()) }()
	for n := 1; n <= 20; n++ {
		_, err := standby.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { first.mu.Lock(); defer first.mu.Unlock(); return first.all == 20 }, 20*time.Second, time.Millisecond)
	began := time.Now()
	shutDown(t, active)
	require.NoError(t, <-started)
	t.Logf("handed over in %v", time.Since(began))
	_, err = standby.Publish(t.Context(), "order.placed", 21)
	require.NoError(t, err)
	drain(t, standby)
	require.Equal(t, 1, second.all)
	shutDown(t, standby)
}
