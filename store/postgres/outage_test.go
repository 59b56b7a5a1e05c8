//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// publishing publishes the events 1, 2, 3 and so on, each until it is accepted, until stop is called. stop returns their number.
func publishing(t testing.TB, publishers int, buses ...*eventbus.Bus) (stop func() int) {
	t.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	ended := make(chan struct{})
	for p := range publishers {
		bus := buses[p%len(buses)]
		all.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
				published(t, bus, int(next.Add(1)), eventbus.NewEventID())
			}
		})
	}
	return func() int {
		close(ended)
		all.Wait()
		return int(next.Load())
	}
}

// requireAllHandled waits until the store has nothing left, and requires that no event was lost, and that the rows and
// counts of the store agree.
func requireAllHandled(t testing.TB, dsn, schema string, events int, of ...*counter) (repeated int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return count(t, dsn, expand("SELECT (SELECT count(*) FROM ~.record) + (SELECT count(*) FROM ~.incoming)", schema)) == 0
	}, time.Minute, 20*time.Millisecond)
	calls := make(map[int]int)
	for _, c := range of {
		c.mu.Lock()
		for n, times := range c.calls {
			calls[n] += times
			repeated += times
		}
		c.mu.Unlock()
	}
	require.Len(t, calls, events, "events that were handled")
	s := open(t, dsn, schema, postgres.MustExist())
	report, err := s.Verify(context.Background(), nil)
	require.NoError(t, err)
	require.True(t, report.IsSound(), "%v", report.Problems)
	require.NoError(t, s.Close(context.Background()))
	return repeated - events
}

// Start waits for a server that is down until its context ends, says why, and succeeds later.
func TestS6_TheServerIsDownAtStart(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	dsn := server.DSN() + " password=geheim"
	s := open(t, dsn, "eventbus")
	var c counter
	bus, err := eventbus.New(eventbus.WithStore(s))
	require.NoError(t, err)
	_, err = bus.Subscribe("order.*", eventbus.Typed(c.handle), eventbus.Named("billing"))
	require.NoError(t, err)
	require.NoError(t, server.Stop("fast"))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err = bus.Start(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "failed to connect")
	require.NotContains(t, err.Error(), "geheim")
	_, err = postgres.Open(t.Context(), dsn)
	require.ErrorContains(t, err, "failed to connect")
	require.NotContains(t, err.Error(), "geheim")
	require.NoError(t, server.Run(t.Context()))
	require.NoError(t, bus.Start(t.Context()))
	published(t, bus, 1, eventbus.NewEventID())
	require.Zero(t, requireAllHandled(t, dsn, "eventbus", 1, &c))
	shutDown(t, bus)
}

// The server crashes every second or two, again and again.
func TestS6_AServerThatRestartsAgainAndAgain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 10 s")
	}
	server := privateServer(t)
	var c counter
	bus := startBus(t, open(t, server.DSN(), "eventbus"), &c)
	stop := publishing(t, 8, bus)
	restarts := 4
	if *postgres.Search {
		restarts = 20
	}
	for range restarts {
		time.Sleep(time.Second)
		require.NoError(t, server.Restart(t.Context(), "immediate"))
	}
	events := stop()
	require.Zero(t, requireAllHandled(t, server.DSN(), "eventbus", events, &c), "events that were handled twice")
	require.Zero(t, bus.Metrics().Ledger.DeadLettered)
	shutDown(t, bus)
}

// The primary ends, and its synchronous replica is promoted: a delay. The DSN names both.
func TestS6_AFailoverIsADelay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it copies a server")
	}
	server := privateServer(t)
	replica, err := server.StartReplica(t.Context(), server.DSN())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Remove()) })
	require.NoError(t, server.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '*'"))
	require.NoError(t, server.Exec(t.Context(), "SELECT pg_reload_conf()"))
	both := "postgres://postgres@/postgres?sslmode=disable&target_session_attrs=read-write&host=" + server.Dir() + "," + replica.Dir()
	var c counter
	bus := startBus(t, open(t, both, "eventbus"), &c)
	stop := publishing(t, 8, bus)
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.all > 100 }, time.Minute, time.Millisecond)
	require.NoError(t, server.Stop("immediate"))
	require.NoError(t, replica.Exec(t.Context(), "SELECT pg_promote()"))
	published(t, bus, 0, eventbus.NewEventID())
	events := stop()
	require.Zero(t, requireAllHandled(t, replica.DSN(), "eventbus", events+1, &c), "events that were handled twice")
	shutDown(t, bus)
}

// disturbed runs a bus through a short and a long fault. During the short one publications wait. The long one, of more than
// the time of the lease, makes the store fail with an error that matches and says what to do.
func disturbed(t *testing.T, server *postgrestest.Server, schema string, begin, end func(), wantReopens error, want string) {
	t.Helper()
	s := open(t, server.DSN(), schema, postgres.WithLeaseTime(2*time.Second))
	var c counter
	bus := startBus(t, s, &c)
	published(t, bus, 1, eventbus.NewEventID())
	begin()
	outcome := make(chan error, 1)
	go func() {
		_, err := bus.Publish(context.Background(), "order.placed", 2)
		outcome <- err
	}()
	select {
	case err := <-outcome:
		t.Fatalf("the publication ended during the fault: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	end()
	require.NoError(t, <-outcome)

	begin()
	third := eventbus.NewEventID()
	_, err := bus.Publish(t.Context(), "order.placed", 3, eventbus.ID(third))
	require.Error(t, err)
	require.ErrorContains(t, err, want)
	_, err = bus.Publish(t.Context(), "order.placed", 4)
	require.ErrorIs(t, err, eventbus.ErrStoreFailed)
	if wantReopens != nil {
		require.ErrorIs(t, s.Reopen(t.Context()), wantReopens)
	}
	end()
	published(t, bus, 3, third)
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, 3, &c))
	require.Zero(t, bus.Metrics().Ledger.DeadLettered)
	shutDown(t, bus)
}

// The server says that its disk is full, for each new record.
func TestS6_AFullDiskIsADelay(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	exec := func(sql string) {
		require.NoError(t, server.Exec(context.Background(), expand(sql, schema)))
	}
	exec(`CREATE SCHEMA full_~; CREATE FUNCTION full_~.fill() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$`)
	disturbed(t, server, schema,
		func() {
			exec("CREATE TRIGGER fill BEFORE INSERT ON ~.record EXECUTE FUNCTION full_~.fill()")
		},
		func() { exec("DROP TRIGGER fill ON ~.record") },
		nil, "free space on the disk of the server")
}

// An operator, or a failover, makes the server read-only.
func TestS6_AServerThatIsReadOnlyForAWhileIsADelay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 10 s")
	}
	server := privateServer(t)
	set := func(to string) func() {
		return func() {
			require.NoError(t, server.Exec(context.Background(), "ALTER SYSTEM SET default_transaction_read_only = "+to))
			require.NoError(t, server.Exec(context.Background(), "SELECT pg_reload_conf()"))
			require.Eventually(t, func() bool {
				return count(t, server.DSN(), "SELECT count(*) FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = $1", to) == 1
			}, time.Minute, time.Millisecond)
		}
	}
	disturbed(t, server, "eventbus", set("on"), set("off"), postgres.ErrReadOnly, "read-only")
}

// The lease is changed by hand while the bus that has it runs. Another one goes on, or the same one, with the next lease.
func TestS6_ALeaseThatIsStolenByHand(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	thefts := []string{
		"UPDATE ~.instance SET epoch = 0, leased = 0",
		"UPDATE ~.slot SET owner = 0",
		"UPDATE ~.slot SET epoch = epoch + 1",
		"UPDATE ~.instance SET expires = '-infinity' WHERE epoch <> 0",
		"UPDATE ~.slot SET owner = (SELECT max(id) FROM ~.instance WHERE epoch = 0)",
		"UPDATE ~.slot SET owner = 4711, epoch = epoch + 3",
		"UPDATE ~.instance SET expires = clock_timestamp() - interval '1 hour'",
	}
	if testing.Short() {
		thefts = thefts[:3]
	}
	for _, theft := range thefts {
		schema := newStore(t, server)
		var first, second counter
		active := startBus(t, open(t, server.DSN(), schema, postgres.WithLeaseTime(2*time.Second)), &first, eventbus.WithStandby())
		standby, err := eventbus.New(eventbus.WithStore(open(t, server.DSN(), schema, postgres.WithLeaseTime(2*time.Second))), eventbus.WithStandby())
		require.NoError(t, err)
		_, err = standby.Subscribe("order.*", eventbus.Typed(second.handle), eventbus.Named("billing"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() { started <- standby.Start(ctx) }()
		stop := publishing(t, 4, active, standby)
		handled := func() int {
			first.mu.Lock()
			defer first.mu.Unlock()
			second.mu.Lock()
			defer second.mu.Unlock()
			return first.all + second.all
		}
		more := func() {
			goal := handled() + 100
			require.Eventually(t, func() bool { return handled() > goal }, time.Minute, time.Millisecond, theft)
		}
		more()
		require.NoError(t, server.Exec(t.Context(), expand(theft, schema)))
		more()
		repeated := requireAllHandled(t, server.DSN(), schema, stop(), &first, &second)
		holders := count(t, server.DSN(), expand("SELECT count(*) FROM ~.instance WHERE epoch <> 0", schema))
		require.Equal(t, 1, holders, theft)
		t.Logf("%s: %d calls were repeated", theft, repeated)
		shutDown(t, active)
		if err := <-started; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(theft, err)
		}
		cancel()
		shutDown(t, standby)
	}
}

// Transactions of each isolation level publish, and do not conflict through what PublishTx does.
func TestT1_TransactionsOfEachIsolation(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	var c counter
	bus := startBus(t, open(t, server.DSN(), schema), &c)
	pool, err := pgxpool.New(t.Context(), server.DSN())
	require.NoError(t, err)
	defer pool.Close()
	var next atomic.Int64
	var all sync.WaitGroup
	const publishers, each = 8, 20
	for p := range publishers {
		all.Go(func() { publishEach(t, bus, pool, p, each, &next) })
	}
	all.Wait()
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, publishers*each, &c))
	shutDown(t, bus)
}

// publishEach publishes in transactions of all isolation levels in turn.
func publishEach(t *testing.T, bus *eventbus.Bus, pool *pgxpool.Pool, from, n int, next *atomic.Int64) {
	t.Helper()
	ctx := context.Background()
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	for i := range n {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: levels[(from+i)%len(levels)]})
		if err == nil {
			_, err = bus.PublishTx(ctx, tx, "order.placed", int(next.Add(1)))
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// A transaction that cannot write, has failed or has ended is an error that says so, and the event does not exist.
func TestT1_TransactionsThatCannotPublish(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	var c counter
	bus := startBus(t, open(t, server.DSN(), schema), &c)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	publish := func(opts pgx.TxOptions, before func(pgx.Tx)) error {
		tx, err := conn.BeginTx(t.Context(), opts)
		require.NoError(t, err)
		before(tx)
		_, failed := bus.PublishTx(t.Context(), tx, "order.placed", 1)
		_ = tx.Rollback(t.Context())
		return failed
	}
	err = publish(pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(pgx.Tx) {})
	require.ErrorIs(t, err, postgres.ErrReadOnly)
	err = publish(pgx.TxOptions{}, func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), "SELECT 1/0") })
	require.ErrorContains(t, err, "current transaction is aborted")
	err = publish(pgx.TxOptions{}, func(tx pgx.Tx) { require.NoError(t, tx.Rollback(t.Context())) })
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.NoError(t, conn.Close(t.Context()))
	drain(t, bus)
	require.Zero(t, c.all)
	shutDown(t, bus)
}
