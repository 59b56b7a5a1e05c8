//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// writes are the kinds of statements by table that the store, its callers and its handlers write with.
var writes = map[string][]string{
	"meta": {"UPDATE"}, "instance": {"INSERT", "UPDATE", "DELETE"}, "slot": {"UPDATE"}, "record": {"INSERT", "UPDATE", "DELETE"},
	"letter": {"INSERT", "DELETE"}, "dedupe": {"INSERT"}, "mark": {"INSERT"}, "history": {"INSERT"}, "incoming": {"INSERT", "DELETE"},
	"request": {"INSERT", "UPDATE"}, "directive": {"INSERT"}, "audit": {"INSERT"}, "outcome": {"INSERT"}, "catalog": {"INSERT"},
}

// armed makes the server end the session that is the first with a kind of statement, for each of writes: before or after
// the statement, or at the commit. They are in the schema kill_ of the schema.
func armed(t *testing.T, server *postgrestest.Server, schema, when string) {
	t.Helper()
	sql := `CREATE SCHEMA kill_~; CREATE FUNCTION kill_~.kill() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('kill_~.' || TG_NAME) = 1 THEN -- what a sequence has given stays given
				PERFORM pg_terminate_backend(pg_backend_pid());
				PERFORM pg_sleep(10);
			END IF;
			RETURN NULL;
		END $$;`
	for table, kinds := range writes {
		for _, kind := range kinds {
			name := table + "_" + kind
			sql += "CREATE SEQUENCE kill_~." + name + ";"
			if when == "COMMIT" {
				sql += "CREATE CONSTRAINT TRIGGER " + name + " AFTER " + kind + " ON ~." + table + " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION kill_~.kill();"
			} else {
				sql += "CREATE TRIGGER " + name + " " + when + " " + kind + " ON ~." + table + " EXECUTE FUNCTION kill_~.kill();"
			}
		}
	}
	require.NoError(t, server.Exec(t.Context(), expand(sql, schema)))
}

// unfired returns the kinds of statements that killed no session.
func unfired(t *testing.T, server *postgrestest.Server, schema string) (names []string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), "SELECT sequencename::text FROM pg_sequences WHERE schemaname = $1 AND last_value IS NULL ORDER BY 1", "kill_"+schema)
	require.NoError(t, err)
	names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	return names
}

// A session is ended before and after each statement of a commit, and at the commit. Publications, requests and orders
// notice a delay, no event is lost, and none is handled twice.
func TestS6_ABackendIsKilledAtEachStatement(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for _, when := range []string{"BEFORE", "AFTER", "COMMIT"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && when != "AFTER" {
				t.Skip("one of the three is enough")
			}
			schema := newStore(t, server)
			armed(t, server, schema, when)
			killedAtEach(t, server, schema)
			require.Empty(t, unfired(t, server, schema), "the test shows nothing for these")
		})
	}
}

func killedAtEach(t *testing.T, server *postgrestest.Server, schema string) {
	t.Helper()
	ctx := t.Context()
	e := newEffects(t, server.DSN())
	var c counter
	var fails atomic.Bool
	fails.Store(true)
	bus := startBus(t, open(t, server.DSN(), schema, postgres.WithHistory(time.Hour)), &c, eventbus.WithStandby())
	_, err := bus.Subscribe("order.*", eventbus.Typed(e.insert), eventbus.Named("books"), eventbus.InTx(),
		eventbus.Retry(eventbus.MaxRetries(100), eventbus.BaseDelay(10*time.Millisecond), eventbus.MaxDelay(50*time.Millisecond)))
	require.NoError(t, err)
	_, err = bus.Subscribe("job", eventbus.Typed(func(context.Context, int) error {
		if fails.Load() {
			return errors.New("not yet")
		}
		return nil
	}), eventbus.Named("job"), eventbus.Retry(eventbus.MaxRetries(0)))
	require.NoError(t, err)
	standby, started := standbyBus(t, open(t, server.DSN(), schema), "order.*", "billing", &c)

	const events = 20
	for n := 1; n <= events; n++ {
		from := bus
		if n%2 == 0 {
			from = standby
		}
		_, err := from.Publish(ctx, "order.placed", n, eventbus.ID(eventbus.NewEventID()))
		require.NoError(t, err)
	}
	_, err = bus.Publish(ctx, "job", 1)
	require.NoError(t, err)
	later, err := bus.Publish(ctx, "order.placed", 99, eventbus.After(time.Hour))
	require.NoError(t, err)
	_, err = standby.Cancel(ctx, later)
	require.NoError(t, err)
	require.NoError(t, bus.Subscription("billing").Pause())
	require.NoError(t, bus.Subscription("billing").Resume())
	require.Eventually(t, func() bool { return bus.Metrics().DeadLetters == 1 }, time.Minute, time.Millisecond)
	fails.Store(false)
	report, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true})
	require.NoError(t, err)
	require.Equal(t, 1, report.Replayed)
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, events, &c), "events that were handled twice")
	e.requireOnce(t, events)
	shutDown(t, bus)
	require.NoError(t, <-started)
	shutDown(t, standby)
}
