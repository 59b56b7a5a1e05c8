//go:build unix

package postgres

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
	"github.com/surebus/eventbus/storetest"
)

// openOnly opens a store without the lease.
func openOnly(t testing.TB, schema string, opts ...Option) *Store {
	t.Helper()
	return openIn(t, postgrestest.Shared(t).DSN(), schema, opts...)
}

func openIn(t testing.TB, dsn, schema string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(context.Background(), dsn, append([]Option{WithSchema(schema)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// inside calls f on the committer's goroutine.
func inside(t testing.TB, s *Store, f func(c *committer)) {
	t.Helper()
	require.NoError(t, s.committer.queue.Control(context.Background(), func() error {
		f(&s.committer)
		return nil
	}))
}

// pools are connections for what tests do to the tables and ask the server, by connection string. Each new connection
// would take 20 ms.
var pools sync.Map

func poolOf(t testing.TB, s *Store) *pgxpool.Pool {
	t.Helper()
	config := s.source.config.Copy()
	config.MinConns, config.MinIdleConns = 0, 0
	key := config.ConnString()
	if pool, ok := pools.Load(key); ok {
		return pool.(*pgxpool.Pool)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	if first, ok := pools.LoadOrStore(key, pool); ok {
		pool.Close()
		return first.(*pgxpool.Pool)
	}
	return pool
}

func closePools() {
	pools.Range(func(_, pool any) bool {
		pool.(*pgxpool.Pool).Close()
		return true
	})
}

// exec executes a statement in the schema of a store.
func exec(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	_, err := poolOf(t, s).Exec(context.Background(), s.sql(sql), args...)
	require.NoError(t, err)
}

// crash ends a store as SIGKILL does. An operator ends its lease, so that nobody has to wait, and behind a pooler, which
// hides the connections of processes, says that it has crashed.
func crash(t testing.TB, s *Store) {
	t.Helper()
	s.watching.Close()
	pool := poolOf(t, s)
	var backend int64
	inside(t, s, func(c *committer) {
		c.faults.killed = true
		backend = c.backend()
	})
	require.NoError(t, s.Close(context.Background()))
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		var gone bool
		assert.NoError(t, pool.QueryRow(context.Background(), "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", backend).Scan(&gone))
		assert.True(t, gone)
	}, 10*time.Second, 2*time.Millisecond)
	const none = math.MaxInt32 // process
	exec(t, s, "UPDATE ~.instance SET expires = '-infinity', backend = CASE backend WHEN 0 THEN $2 ELSE backend END WHERE id = $1", s.instance.Load(), none)
}

// begin begins a transaction on a connection, which is closed at the end of the test.
func begin(t *testing.T, conn *pgx.Conn) (tx any, commit, rollback func() error) {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	pgxTx, err := conn.Begin(context.Background())
	require.NoError(t, err)
	return pgxTx, func() error { return pgxTx.Commit(context.Background()) }, func() error { return pgxTx.Rollback(context.Background()) }
}

// TestStore runs the conformance suite of stores.
func TestStore(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	require.NoError(t, server.Exec(t.Context(), "CREATE DATABASE other"))
	databases := alternating(server.DSNOf)
	var parts []string // all
	if testing.Short() {
		parts = []string{"Submit", "Lease", "Standby", "Tx", "Once", "Failure", "Close", "Watch", "Concurrent", "Expired"} // what the race detector looks at
	}
	storetest.Run(t, func(*testing.T) storetest.Backend { return backend(postgrestest.NewSchema(), databases()) }, parts...)
}

// alternating returns the two databases of a server in turn: a test with two backends has one in each.
func alternating(dsnOf func(database string) string) func() string {
	backends := 0
	return func() string {
		backends++
		return dsnOf([]string{"postgres", "other"}[backends%2])
	}
}

// backend returns the backend of a schema, with all optional parts. The other slots are not built.
func backend(schema, dsn string) storetest.Backend {
	steps := 100 // a step takes 20 ms
	if *Search {
		steps = 0
	}
	return storetest.Backend{
		RandomSteps: steps,
		Open:        func(t *testing.T) driver.Store { return openIn(t, dsn, schema) },
		Crash:       func(t *testing.T, store driver.Store) { crash(t, store.(*Store)) },
		Fail: func(t *testing.T, store driver.Store) {
			inside(t, store.(*Store), func(c *committer) { c.faults.fail = errors.New("the server fails") })
		},
		LoseLease: func(t *testing.T, store driver.Store) {
			exec(t, store.(*Store), "UPDATE ~.instance SET epoch = 0, leased = 0 WHERE id = $1", store.(*Store).instance.Load())
		},
		Deny: func(t *testing.T, store driver.Store) {
			inside(t, store.(*Store), func(c *committer) { c.faults.deny = true })
		},
		Begin: func(t *testing.T) (tx any, commit, rollback func() error) {
			conn, err := pgx.Connect(context.Background(), dsn)
			require.NoError(t, err)
			return begin(t, conn)
		},
		TxFrom: func(ctx context.Context) any { return Tx(ctx) },
		Slots:  1,
	}
}
