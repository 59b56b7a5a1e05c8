//go:build unix

package postgres_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// refused opens a store and requires that the error matches and says all of the texts.
func refused(t *testing.T, want error, dsn, schema string, texts ...string) {
	t.Helper()
	s, err := postgres.Open(t.Context(), dsn, postgres.WithSchema(schema))
	if err == nil {
		require.NoError(t, s.Close(t.Context()))
	}
	require.ErrorIs(t, err, want)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

// newStore makes the schema of a store, without a bus.
func newStore(t *testing.T, server *postgrestest.Server) (schema string) {
	t.Helper()
	schema = postgrestest.NewSchema()
	require.NoError(t, open(t, server.DSN(), schema).Close(t.Context()))
	return schema
}

// expand puts a schema into a statement.
func expand(sql, schema string) string { return strings.ReplaceAll(sql, "~", schema) }

// count returns a number that a query reads.
func count(t testing.TB, dsn, query string, args ...any) (n int) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	require.NoError(t, err)
	require.NoError(t, conn.QueryRow(context.Background(), query, args...).Scan(&n))
	require.NoError(t, conn.Close(context.Background()))
	return n
}

func TestS6_ARoleWithoutRightsIsToldWhichItNeeds(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	role := "role_of_" + schema
	exec := func(sql string) { require.NoError(t, server.Exec(t.Context(), sql)) }
	exec("CREATE ROLE " + role + " LOGIN")
	dsn := server.DSN() + " user=" + role

	fresh := postgrestest.NewSchema()
	refused(t, postgres.ErrNoRights, dsn, fresh, "permission denied for database", "grant it")
	require.Zero(t, count(t, server.DSN(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", fresh))
	refused(t, postgres.ErrNoRights, dsn, schema, "permission denied for schema "+schema, "grant it")
	exec("GRANT USAGE ON SCHEMA " + schema + " TO " + role)
	refused(t, postgres.ErrNoRights, dsn, schema, "permission denied for table meta")
	exec("GRANT SELECT ON ALL TABLES IN SCHEMA " + schema + " TO " + role)
	refused(t, postgres.ErrNoRights, dsn, schema, "role "+role+" lacks", "INSERT on incoming", "USAGE on "+schema+".incoming_id_seq", "GRANT SELECT, INSERT, UPDATE, DELETE")
	exec("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + schema + " TO " + role)
	exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + schema + " TO " + role)
	exec("REVOKE DELETE ON " + schema + ".letter FROM " + role)
	refused(t, postgres.ErrNoRights, dsn, schema, "lacks DELETE on letter: ")

	reads, err := postgres.Open(t.Context(), dsn, postgres.WithSchema(schema), postgres.MustExist())
	require.NoError(t, err, "a tool needs fewer rights")
	require.NoError(t, reads.Close(t.Context()))
	require.Zero(t, count(t, server.DSN(), "SELECT count(*) FROM "+schema+".instance WHERE id <> 0"), "it was changed")

	exec("GRANT DELETE ON " + schema + ".letter TO " + role)
	var c counter
	bus := startBus(t, open(t, dsn, schema), &c)
	_, err = bus.Publish(t.Context(), "order.placed", 1)
	require.NoError(t, err, "what the error names is enough")
	drain(t, bus)
	require.Equal(t, 1, c.all)
	shutDown(t, bus)
}

// A right that is revoked while the bus runs makes the store fail with its name. The bus goes on when it is back.
func TestS6_ARightThatIsRevokedWhileTheBusRuns(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	role := "role_of_" + schema
	all := " ALL ON ALL TABLES IN SCHEMA " + schema
	require.NoError(t, server.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN; GRANT USAGE ON SCHEMA "+schema+" TO "+role+"; GRANT"+all+" TO "+role+"; GRANT ALL ON ALL SEQUENCES IN SCHEMA "+schema+" TO "+role))
	s := open(t, server.DSN()+" user="+role, schema)
	var c counter
	id := eventbus.NewEventID()
	bus := startBus(t, s, &c)
	require.NoError(t, server.Exec(t.Context(), "REVOKE"+all+" FROM "+role))
	_, err := bus.Publish(t.Context(), "order.placed", 1, eventbus.ID(id))
	require.Error(t, err)
	require.ErrorIs(t, s.Reopen(t.Context()), postgres.ErrNoRights)
	require.NoError(t, server.Exec(t.Context(), "GRANT"+all+" TO "+role))
	published(t, bus, 1, id)
	drain(t, bus)
	lost, repeated := c.lostAndRepeated(1)
	require.Zero(t, lost+repeated)
	shutDown(t, bus)
}

// published publishes until the bus accepts.
func published(t testing.TB, bus *eventbus.Bus, n int, id eventbus.EventID) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := bus.Publish(context.Background(), "order.placed", n, eventbus.ID(id))
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}

// A replica, or a server, database or role with read-only transactions, is refused, and DSNs with several hosts find the
// primary.
func TestS6_AServerThatDoesNotWriteIsRefused(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	schema := newStore(t, server)
	replica, err := server.StartReplica(t.Context(), server.DSN())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Remove()) })
	refused(t, postgres.ErrReadOnly, replica.DSN(), schema, "it is a replica", "target_session_attrs=read-write")
	refused(t, postgres.ErrReadOnly, replica.DSN(), postgrestest.NewSchema(), "it is a replica")
	refused(t, postgres.ErrReadOnly, server.DSN()+" default_transaction_read_only=on", schema, "set default_transaction_read_only to off")
	require.NoError(t, server.Exec(t.Context(), "CREATE ROLE reader SUPERUSER LOGIN; ALTER ROLE reader SET default_transaction_read_only = on"))
	refused(t, postgres.ErrReadOnly, server.DSN()+" user=reader", schema, "set default_transaction_read_only to off")

	both := "postgres://postgres@/postgres?sslmode=disable&target_session_attrs=read-write&host=" + replica.Dir() + "," + server.Dir()
	s := open(t, both, schema)
	require.NoError(t, s.Close(t.Context()))
}

// The version is what the server says: here a function of the same name lies.
func TestS6_AServerOfAnOlderVersionIsRefused(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	old := postgrestest.NewSchema()
	require.NoError(t, server.Exec(t.Context(), "CREATE SCHEMA "+old+"; CREATE FUNCTION "+old+`.current_setting(name text) RETURNS text LANGUAGE sql AS
		$$ SELECT CASE name WHEN 'server_version_num' THEN '130012' ELSE pg_catalog.current_setting(name) END $$`))
	schema := postgrestest.NewSchema()
	refused(t, postgres.ErrServerTooOld, server.DSN()+" search_path="+old+",pg_catalog", schema, "it has version 13.12", "Postgres 14 or later")
	require.Zero(t, count(t, server.DSN(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema))
}

func TestS6_ASchemaOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	for _, of := range []struct {
		version string
		want    error
		texts   []string
	}{
		{"5", postgres.ErrSchemaTooNew, []string{"has version 5", "knows version 4", "use the package of the program that has migrated it"}},
		{"0", postgres.ErrOtherSchema, []string{"table meta of schema " + schema + " has version 0", "restore the schema"}},
		{"-1", postgres.ErrOtherSchema, []string{"has version -1"}},
	} {
		require.NoError(t, server.Exec(t.Context(), "UPDATE "+schema+".meta SET version = "+of.version))
		refused(t, of.want, server.DSN(), schema, of.texts...)
	}
	require.NoError(t, server.Exec(t.Context(), "TRUNCATE "+schema+".meta"))
	refused(t, postgres.ErrOtherSchema, server.DSN(), schema, "has no row 1")
	_, err := postgres.Open(t.Context(), server.DSN(), postgres.WithSchema(postgrestest.NewSchema()), postgres.MustExist())
	require.ErrorIs(t, err, postgres.ErrNotMigrated)
	require.ErrorContains(t, err, "has version 0, and this package needs version 4: open it with the bus first")
	require.NoError(t, server.Exec(t.Context(), "CREATE SCHEMA shop_"+schema+"; CREATE TABLE shop_"+schema+".meta (id int, version int)"))
	refused(t, postgres.ErrOtherSchema, server.DSN(), "shop_"+schema, "a schema of its own (WithSchema)")
}

// The error for an altered schema says all that it lacks.
func TestS6_AnAlteredSchemaIsRefused(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	altered := func(schema, change string, want ...string) {
		t.Helper()
		require.NoError(t, server.Exec(t.Context(), expand(change, schema)))
		refused(t, postgres.ErrOtherSchema, server.DSN(), schema, append(want, schema)...)
		_, err := postgres.Open(t.Context(), server.DSN(), postgres.WithSchema(schema), postgres.MustExist())
		require.ErrorContains(t, err, want[0], "for a tool, such as verify and doctor")
	}
	first, second := newStore(t, server), newStore(t, server)
	require.NoError(t, server.Exec(t.Context(), expand("ALTER TABLE ~.record ADD note text; CREATE INDEX ON ~.record (note)", first)))
	require.NoError(t, open(t, server.DSN(), first).Close(t.Context()), "what is added does not matter")
	altered(first, "DROP TABLE ~.letter", "lacks relation letter: undo the change, or restore the schema from a backup")
	altered(first, "ALTER TABLE ~.record DROP COLUMN progress", "lacks column record.progress (bytea), relation letter: ")
	altered(first, "ALTER TABLE ~.record RENAME door TO gate", "column record.door (bytea)")
	altered(first, "ALTER TABLE ~.incoming ALTER codec TYPE text USING ''", "column incoming.codec (bytea)")
	altered(first, "ALTER TABLE ~.dedupe DROP CONSTRAINT dedupe_pkey", "the primary key of dedupe")
	altered(first, "DROP FUNCTION ~.eventbus_check", "function eventbus_check")
	altered(first, "DROP SEQUENCE ~.instance_id", "relation instance_id")
	altered(first, "ALTER TABLE ~.meta DROP COLUMN version", "table meta of a store is not among them")
	altered(second, "DELETE FROM ~.slot", "has no row 0")
	altered(second, "INSERT INTO ~.slot (id) VALUES (0); DELETE FROM ~.instance", "has no row 0")
	altered(second, "DROP TABLE ~.meta", "table meta of a store is not among them")
}

// The tables are altered or dropped while the bus runs. It says what it lacks, makes no new tables, and goes on when they
// are back.
func TestS6_ASchemaThatIsAlteredWhileTheBusRuns(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	s := open(t, server.DSN(), schema)
	var c counter
	bus := startBus(t, s, &c)
	published(t, bus, 1, eventbus.NewEventID())
	drain(t, bus) // a call that has ended and is not settled yet would be repeated
	second := eventbus.NewEventID()
	for undo, change := range map[string]string{
		"ALTER TABLE ~.record RENAME COLUMN mass TO body": "ALTER TABLE ~.record RENAME COLUMN body TO mass",
		"ALTER SCHEMA away_~ RENAME TO ~":                 "ALTER SCHEMA ~ RENAME TO away_~",
	} {
		require.NoError(t, server.Exec(t.Context(), expand(change, schema)))
		_, err := bus.Publish(t.Context(), "order.placed", 2, eventbus.ID(second))
		require.Error(t, err)
		require.ErrorIs(t, s.Reopen(t.Context()), postgres.ErrOtherSchema)
		_, err = s.Verify(t.Context(), nil)
		require.Error(t, err)
		require.NoError(t, server.Exec(t.Context(), expand(undo, schema)))
		require.Eventually(t, func() bool { return s.Reopen(context.Background()) == nil }, time.Minute, 10*time.Millisecond)
	}
	published(t, bus, 2, second)
	drain(t, bus)
	lost, repeated := c.lostAndRepeated(2)
	require.Zero(t, lost+repeated)

	require.NoError(t, server.Exec(t.Context(), "DROP SCHEMA "+schema+" CASCADE"))
	_, err := bus.Publish(t.Context(), "order.placed", 3)
	require.Error(t, err)
	err = s.Reopen(t.Context())
	require.ErrorIs(t, err, postgres.ErrOtherSchema)
	require.ErrorContains(t, err, "are gone")
	require.NoError(t, open(t, server.DSN(), schema).Close(t.Context())) // as a replica of the service that starts now
	err = s.Reopen(t.Context())
	require.ErrorIs(t, err, postgres.ErrOtherSchema)
	require.ErrorContains(t, err, "restart the program")
	_ = bus.Shutdown(t.Context()) // its lease is gone with the schema
}

// The password is in no error, whatever is wrong with the DSN.
func TestS6_AnErrorOfOpenHasNoPassword(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for dsn, want := range map[string]string{
		"postgres://postgres:geheim@/none?host=" + server.Dir():                  `database "none" does not exist`,
		"postgres://nobody_here:geheim@/postgres?host=" + server.Dir():           `role "nobody_here" does not exist`,
		"postgres://postgres:geheim@/postgres?host=" + os.TempDir() + "/no-such": "failed to connect",
		"postgres://postgres:geheim@/postgres?connect_timeout=soon":              "cannot parse",
		"host=" + server.Dir() + " password=geheim port=x":                       "cannot parse",
	} {
		_, err := postgres.Open(t.Context(), dsn)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "geheim")
	}
}
