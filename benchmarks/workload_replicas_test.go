package benchmarks

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/benchmarks/proxy"
	"github.com/surebus/eventbus/benchmarks/server"
	"github.com/surebus/eventbus/store/postgres"
)

// BenchmarkReplicas measures buses on a Postgres server.
func BenchmarkReplicas(b *testing.B) {
	run(b, plan.Replicas, func(b *testing.B, kase, _ string) {
		dsn := newDatabase(b)
		switch kase {
		case plan.RoundTrip:
			longerWay(b, dsn)
		case plan.Transaction:
			transactionCost(b, dsn)
		case plan.HandledOwn:
			reportLatencies(b, handledAfterCommit(b, dsn, false))
		case plan.HandledOther:
			reportLatencies(b, handledAfterCommit(b, dsn, true))
		case plan.Standbys:
			b.ReportMetric(standbyCost(b, 2000, plan.ReplicaStandbys, replicaOn(b, dsn, "alone", nil), func(opts ...eventbus.Option) *eventbus.Bus {
				return replicaOn(b, dsn, "beside", nil, opts...)
			}), plan.Alone)
		case plan.Waits:
			startFull(b, dsn)
		default:
			b.Fatalf("no case %s", kase)
		}
	})
}

// newDatabase creates a database and returns its connection string.
func newDatabase(b *testing.B) (dsn string) {
	b.Helper()
	database, err := server.Open(context.Background())
	require.NoError(b, err)
	b.Cleanup(func() {
		if err := database.Close(); err != nil {
			b.Error(err)
		}
	})
	return database.DSN
}

// replicaOn is busOn for a schema of a database.
func replicaOn(b *testing.B, dsn, schema string, handler eventbus.Handler, opts ...eventbus.Option) *eventbus.Bus {
	b.Helper()
	store, err := postgres.Open(context.Background(), dsn, postgres.WithSchema(schema))
	require.NoError(b, err)
	return busOver(b, store, handler, opts...)
}

// longerWay compares a bus that reaches the server in a longer time with one that does not.
func longerWay(b *testing.B, dsn string) {
	b.Helper()
	const events = 2000
	config, err := pgconn.ParseConfig(dsn)
	require.NoError(b, err)
	through := func(schema string, delay time.Duration) (bus *eventbus.Bus, roundTrip time.Duration) {
		p, err := proxy.Start(networkAddress(config, delay))
		require.NoError(b, err)
		b.Cleanup(func() { _ = p.Close() })
		dsn := fmt.Sprintf("%s host=127.0.0.1 port=%d", dsn, p.Port())
		bus = replicaOn(b, dsn, schema, nil)
		require.NoError(b, bus.Start(context.Background()))
		return bus, selectOne(b, dsn)
	}
	near, short := through("near", 0)
	far, long := through("far", 500*time.Microsecond)
	cost := pairs(b, func() time.Duration { return publishAll(b, near, events) }, func() time.Duration { return publishAll(b, far, events) })
	shutdown(b, near)
	shutdown(b, far)
	b.ReportMetric(cost, plan.Near)
	b.ReportMetric(float64(long-short), "added-ns")
}

// networkAddress returns the arguments of proxy.Start for a server.
func networkAddress(config *pgconn.Config, delay time.Duration) (network, address string, _ time.Duration) {
	network, address = pgconn.NetworkAddress(config.Host, config.Port)
	return network, address, delay
}

// selectOne returns the median time of SELECT 1.
func selectOne(b *testing.B, dsn string) time.Duration {
	b.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(b, err)
	var took []time.Duration
	for range 101 {
		begin := time.Now()
		_, err := conn.Exec(ctx, "SELECT 1")
		require.NoError(b, err)
		took = append(took, time.Since(begin))
	}
	require.NoError(b, conn.Close(ctx))
	slices.Sort(took)
	return took[len(took)/2]
}

// hotel is a service with tables of its own in the database of a bus.
type hotel struct {
	b    *testing.B
	pool *pgxpool.Pool
}

func hotelOn(b *testing.B, dsn string) *hotel {
	b.Helper()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(b, err)
	config.MaxConns = plan.ReplicaConns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(b, err)
	_, err = pool.Exec(ctx, `CREATE TABLE booking (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, room int, guest text);
		CREATE TABLE room (id int PRIMARY KEY, free int);
		CREATE TABLE invoice (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, room int, cents int);
		INSERT INTO room SELECT n, 1000000 FROM generate_series(1, 1000) n`)
	require.NoError(b, err)
	return &hotel{b, pool}
}

// book commits a transaction of three statements. With a bus, it publishes an event in it.
func (h *hotel) book(n int64, bus *eventbus.Bus) error {
	ctx, room := context.Background(), n%1000+1
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO booking (room, guest) VALUES ($1, 'a guest')", room); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE room SET free = free - 1 WHERE id = $1", room); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO invoice (room, cents) VALUES ($1, 12345)", room); err != nil {
			return err
		}
		if bus == nil {
			return nil
		}
		_, err := bus.PublishTx(ctx, tx, "tx", "booked")
		return err
	})
}

// bookAll commits transactions on all connections and returns the time.
func (h *hotel) bookAll(n int64, bus *eventbus.Bus) time.Duration {
	h.b.Helper()
	var next atomic.Int64
	var clients sync.WaitGroup
	begin := time.Now()
	for range plan.ReplicaConns {
		clients.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := h.book(i, bus); err != nil {
					h.b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	return time.Since(begin)
}

// transactionCost compares transactions with an event and without. It also reports the mean time of those with one.
func transactionCost(b *testing.B, dsn string) {
	b.Helper()
	const transactions = 800
	bus := replicaOn(b, dsn, "eventbus", nil)
	require.NoError(b, bus.Start(context.Background()))
	h := hotelOn(b, dsn)
	var times []time.Duration
	cost := pairs(b, func() time.Duration { return h.bookAll(transactions, nil) }, func() time.Duration {
		before := bus.Metrics().Ledger.Handled
		took := h.bookAll(transactions, bus)
		awaitHandled(b, bus, before+transactions) // so that the other side has the processors
		times = append(times, took)
		return took
	})
	h.pool.Close()
	shutdown(b, bus)
	slices.Sort(times)
	b.ReportMetric(cost, plan.Plain)
	b.ReportMetric(float64(times[len(times)/2])*plan.ReplicaConns/transactions, "p50-ns")
}

// handledAfterCommit measures the time from the commit of b.N transactions until their events are handled by the active
// bus. With other, a standby publishes them.
func handledAfterCommit(b *testing.B, dsn string, other bool) (took []time.Duration) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	handled := make(chan time.Time, 1)
	active := replicaOn(b, dsn, "eventbus", func(context.Context, eventbus.Event) error {
		handled <- time.Now()
		return nil
	})
	require.NoError(b, active.Start(ctx))
	publisher := active
	var waiting sync.WaitGroup
	if other {
		publisher = replicaOn(b, dsn, "eventbus", nil, eventbus.WithStandby())
		waiting.Go(func() { _ = publisher.Start(ctx) }) // until ctx ends
	}
	h := hotelOn(b, dsn)
	b.ResetTimer()
	for i := range b.N {
		require.NoError(b, h.book(int64(i), publisher))
		committed := time.Now()
		took = append(took, max(0, (<-handled).Sub(committed)))
		pause(i)
	}
	b.StopTimer()
	cancel()
	waiting.Wait()
	if other {
		_ = publisher.Shutdown(context.Background()) // it was never started
	}
	h.pool.Close()
	shutdown(b, active)
	return took
}

// startFull measures the start of a bus with b.N waiting events.
func startFull(b *testing.B, dsn string) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	unhandled := func(ctx context.Context, _ eventbus.Event) error {
		<-ctx.Done()
		return ctx.Err()
	}
	bus := replicaOn(b, dsn, "eventbus", unhandled)
	require.NoError(b, bus.Start(ctx))
	_, err := bus.Publish(ctx, "tx", "booked")
	require.NoError(b, err)
	cancel()
	_ = bus.Shutdown(ctx) // it abandons the handler, or the handler ends in time
	// The copies are ready and free, and have the references that follow.
	_, err = server.Exec(context.Background(), dsn, fmt.Sprintf(`
		INSERT INTO eventbus.record SELECT ref + n, position + n, 0, gen_random_uuid(), 0, 0, false, NULL, NULL, NULL, body
			FROM eventbus.record, generate_series(1, %[1]d) n;
		UPDATE eventbus.instance SET ready = ready + %[1]d WHERE id = 0;
		UPDATE eventbus.slot SET next_ref = next_ref + %[1]d;
		ANALYZE eventbus.record`, b.N-1))
	require.NoError(b, err)
	b.ResetTimer()
	began := time.Now()
	bus = replicaOn(b, dsn, "eventbus", unhandled)
	require.NoError(b, bus.Start(context.Background()))
	took := time.Since(began)
	b.StopTimer()
	require.Eventually(b, func() bool { return bus.Metrics().Ledger.Claimed >= min(int64(b.N), 1000) }, 10*time.Second, time.Millisecond, "it has the events")
	_ = bus.Shutdown(ctx)
	b.ReportMetric(float64(took), "start-ns")
}
