package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// migrations are the scripts that make the schema of a version from that of the version before. meta.version is the number
// of scripts that were applied. In all statements of this package, a tilde stands for the schema.
var migrations = []string{schema1, schema2, schema3, schema4}

// Values of record.kind: the state, and kindKeyed if the record has a key.
const (
	kindKeyed     = 4
	kindStateMask = 3
)

// Conditions of the partial indexes. A query that uses such an index repeats its condition.
const (
	whereReady  = "owner <= 0 AND kind IN (0, 4, 5, 7)" // what ClaimReady claims: ready, or keyed and waiting or parked
	whereDue    = "owner <= 0 AND kind IN (1, 2, 6)"    // waiting without a key, or scheduled
	whereParked = "kind IN (3, 7)"
	// whereDirected selects parked records with a destination. It does not imply whereParked: for a small destination, the server
	// might otherwise read all that is parked at the door, in the order of record_parked.
	whereDirected = "kind & 3 = 3 AND destination IS NOT NULL"
	whereExpires  = "owner <= 0 AND kind & 3 <> 2 AND expires IS NOT NULL" // those with an expiry, apart from scheduled ones
)

// schema1 makes the first version. Names are bytea, because text refuses NUL. Times are texts of driver/storekit, because
// timestamptz has microseconds only.
const schema1 = `
CREATE TABLE ~.meta (
	id      smallint PRIMARY KEY CHECK (id = 1),
	version integer NOT NULL,
	store   uuid NOT NULL,   -- random identity of the data
	audits  bigint NOT NULL DEFAULT 0, -- number of audit entries so far
	denied  bigint NOT NULL DEFAULT 0  -- of these, denied ones
);

-- A row for each open store that has written, and row 0 for the sums of those that have ended. The first statement of each
-- commit updates the row of its store: that is the fence, the number of the commit, the heartbeat and the counters in one.
-- Counters are changes: their sums over all rows are the counts, so that no two stores write one row.
CREATE TABLE ~.instance (
	id         bigint PRIMARY KEY,
	epoch      bigint NOT NULL DEFAULT 0, -- of the lease that the store has; 0 for none
	batch      bigint NOT NULL DEFAULT 0, -- number of the last commit
	tries      bigint NOT NULL DEFAULT 0, -- reconnections: a commit that was sent before one, and has not begun, is void
	expires    timestamptz NOT NULL,      -- of the lease; -infinity: an operator has ended that of a dead process
	backend    integer NOT NULL DEFAULT 0, -- process id of the connection that commits; 0: unknown, behind a pooler
	backend_start timestamptz,             -- of that process: the ids of processes come again
	host       bytea NOT NULL,            -- of the process
	pid        integer NOT NULL,
	next_ref   bigint NOT NULL DEFAULT 0, -- of the lease
	leased     bigint NOT NULL DEFAULT 0, -- number of records that the lease has
	ready      bigint NOT NULL DEFAULT 0,
	waiting    bigint NOT NULL DEFAULT 0,
	scheduled  bigint NOT NULL DEFAULT 0,
	parked     bigint NOT NULL DEFAULT 0,
	letters    bigint NOT NULL DEFAULT 0,
	incoming   bigint NOT NULL DEFAULT 0, -- the following count commits with such a change, for Watch
	requests   bigint NOT NULL DEFAULT 0,
	answers    bigint NOT NULL DEFAULT 0,
	directives bigint NOT NULL DEFAULT 0,
	catalogs   bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO ~.instance (id, expires, host, pid) VALUES (0, 'infinity', '', 0);
CREATE SEQUENCE ~.instance_id;

CREATE TABLE ~.slot (
	id       smallint PRIMARY KEY,
	owner    bigint NOT NULL DEFAULT 0, -- the instance that has or had the lease; 0 if it was released
	epoch    bigint NOT NULL DEFAULT 0, -- of the last lease
	next_ref bigint NOT NULL DEFAULT 1  -- when that lease began or was released
);
INSERT INTO ~.slot (id) VALUES (0);

-- owner is the epoch of the lease that has the record. It is -epoch if the record was freed, or inserted free, under that
-- lease, and 0 if a later lease has made it free.
CREATE TABLE ~.record (
	ref      bigint PRIMARY KEY,
	position bigint NOT NULL,
	owner    bigint NOT NULL,
	event    uuid NOT NULL,
	kind     smallint NOT NULL,
	crashes  smallint NOT NULL DEFAULT 0,
	suspect  boolean NOT NULL DEFAULT false,
	due      text COLLATE "C",
	door     bytea,
	progress bytea, -- JSON
	body     bytea NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX record_owner  ON ~.record (owner) WHERE owner > 0;
CREATE INDEX record_ready  ON ~.record (position, ref) WHERE ` + whereReady + `;
CREATE INDEX record_due    ON ~.record (due, ref) WHERE ` + whereDue + `;
CREATE INDEX record_parked ON ~.record (door, position, ref) WHERE ` + whereParked + `;
CREATE INDEX record_event  ON ~.record (event);

CREATE TABLE ~.letter (
	id           uuid PRIMARY KEY,
	event        uuid NOT NULL,
	type         bytea NOT NULL,
	key          bytea NOT NULL,
	subscription bytea NOT NULL,
	reason       bytea NOT NULL,
	fingerprint  bytea NOT NULL,
	published    text COLLATE "C" NOT NULL,
	died_at      text COLLATE "C" NOT NULL,
	details      bytea, -- JSON
	failures     bytea, -- JSON
	payload      bytea,
	original     bytea
);
CREATE INDEX letter_event        ON ~.letter (event, id);
CREATE INDEX letter_key          ON ~.letter (key, id) WHERE key <> '';
CREATE INDEX letter_subscription ON ~.letter (subscription, reason, id);
CREATE INDEX letter_reason       ON ~.letter (reason, id);
CREATE INDEX letter_fingerprint  ON ~.letter (fingerprint, id);
CREATE INDEX letter_died_at      ON ~.letter (died_at, id);

CREATE TABLE ~.dedupe (
	scope   bytea NOT NULL,
	key     bytea NOT NULL,
	event   uuid NOT NULL,
	content bytea NOT NULL,
	expires text COLLATE "C" NOT NULL,
	PRIMARY KEY (scope, key)
);
CREATE INDEX dedupe_expires ON ~.dedupe (expires);

-- What handlers with eventbus.InTx have done. Their transactions only insert here.
CREATE TABLE ~.mark (
	event uuid NOT NULL,
	name  bytea NOT NULL, -- of the subscription, or a former one
	published text COLLATE "C" NOT NULL, -- with the id, it says which event it is: ids may come again
	edit  bytea NOT NULL, -- of a replay with another payload
	until text COLLATE "C" NOT NULL, -- it is kept until then, and while the event has a record, a letter or an incoming event
	PRIMARY KEY (event, name, published, edit)
);
CREATE INDEX mark_until ON ~.mark (until);

-- Dispatches that have settled, with WithHistory.
CREATE TABLE ~.history (
	ref        bigint PRIMARY KEY, -- of the record
	event      uuid NOT NULL,
	type       bytea NOT NULL,
	key        bytea NOT NULL,
	dead       boolean NOT NULL,
	settled_at text COLLATE "C" NOT NULL
);
CREATE INDEX history_event      ON ~.history (event);
CREATE INDEX history_settled_at ON ~.history (settled_at);

-- Accepted events that no lease has taken in. A transaction of a caller only inserts here, so it must never need a lock
-- that a commit waits for: no unique key but the id, no trigger, no foreign key.
CREATE TABLE ~.incoming (
	id    bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	event uuid NOT NULL,
	slot  smallint NOT NULL,
	state smallint NOT NULL,
	due   text COLLATE "C",
	body  bytea NOT NULL,
	given boolean NOT NULL,
	codec bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX incoming_event ON ~.incoming (event);

CREATE TABLE ~.request (
	id       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	body     bytea NOT NULL, -- JSON
	answer   bytea,          -- JSON
	answered text COLLATE "C"
);
CREATE INDEX request_open     ON ~.request (id) WHERE answer IS NULL;
CREATE INDEX request_answered ON ~.request (answered) WHERE answer IS NOT NULL;

CREATE TABLE ~.directive (
	subscription bytea PRIMARY KEY,
	body         bytea NOT NULL -- JSON
);

CREATE TABLE ~.audit (
	number bigint PRIMARY KEY,
	denied boolean NOT NULL,
	place  bigint NOT NULL, -- from 1 for each kind, denied and not
	body   bytea NOT NULL   -- JSON
);
CREATE INDEX audit_place ON ~.audit (denied, place);

CREATE TABLE ~.catalog (
	instance bytea PRIMARY KEY, -- of the bus
	number   bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
	seen     text COLLATE "C" NOT NULL,
	body     bytea NOT NULL
);

CREATE FUNCTION ~.eventbus_check(state text, got bigint, want bigint, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF got IS DISTINCT FROM want THEN
		RAISE EXCEPTION 'eventbus: % has % rows, and not %', what, got, want USING ERRCODE = state;
	END IF;
END
$$;
`

// schema2 has the destinations of records. A bus of the version before may have the lease when it is made: the column is NULL
// in the rows that this bus inserts.
const schema2 = `
ALTER TABLE ~.record
	ADD COLUMN destination bytea;
CREATE INDEX record_destination ON ~.record (door, destination, position, ref) WHERE ` + whereDirected + `;
`

// schema3 has an index of the records whose events expire. The column is NULL in the rows of a bus of the version before: its
// events do not expire.
const schema3 = `
ALTER TABLE ~.record
	ADD COLUMN expires text COLLATE "C";
CREATE INDEX record_expires ON ~.record (expires, ref) WHERE ` + whereExpires + `;
`

// schema4 has the outcomes of deliveries upon which operators have acted. A bus of the version before adds none.
const schema4 = `
CREATE TABLE ~.outcome (
	number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	event  uuid NOT NULL,
	audit  bigint NOT NULL, -- number of the last entry in audit at that time, 0 for none
	body   bytea NOT NULL   -- JSON
);
CREATE INDEX outcome_event ON ~.outcome (event, number);
CREATE INDEX outcome_audit ON ~.outcome (audit);
`

// sql returns a statement for the schema of the store.
func (s *Store) sql(text string) string {
	return strings.ReplaceAll(text, "~", s.quotedSchema)
}

// bytesOf returns names as columns have them.
func bytesOf(names []string) [][]byte {
	columns := make([][]byte, len(names))
	for i, name := range names {
		columns[i] = []byte(name)
	}
	return columns
}

// migrate creates the schema or brings it to the version of this package, in one transaction. An advisory lock lets one of
// several processes do it.
func (s *Store) migrate(ctx context.Context, conn *pgx.Conn) error {
	version, err := s.version(ctx, conn)
	switch {
	case err != nil || version == len(migrations):
		return err
	case s.cfg.mustExist:
		return fmt.Errorf("%w: schema %s has version %d, and this package needs version %d: open it with the bus first", ErrNotMigrated, s.cfg.schema, version, len(migrations))
	case version == 0 && s.identity != "": // an empty one would hide the loss
		return fmt.Errorf("%w: the tables of schema %s are gone: restore them from a backup, or restart the program without the data", ErrOtherSchema, s.cfg.schema)
	}
	return explain(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "github.com/surebus/eventbus "+s.cfg.schema); err != nil {
			return err
		}
		version, err := s.version(ctx, tx) // another process may have migrated meanwhile
		if err != nil {
			return err
		}
		return s.runMigrations(ctx, tx, version)
	}))
}

// runMigrations brings the schema from a version to that of this package.
func (s *Store) runMigrations(ctx context.Context, tx pgx.Tx, version int) error {
	if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = 0"); err != nil { // for an index of a large table; ctx bounds it
		return err
	}
	if version == 0 {
		if _, err := tx.Exec(ctx, s.sql("CREATE SCHEMA IF NOT EXISTS ~")); err != nil {
			return err
		}
	}
	for _, script := range migrations[version:] {
		if _, err := tx.Exec(ctx, s.sql(script), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	if version > 0 {
		_, err := tx.Exec(ctx, s.sql("UPDATE ~.meta SET version = $1"), len(migrations))
		return err
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, s.sql("INSERT INTO ~.meta (id, version, store) VALUES (1, $1, $2)"), len(migrations), id)
	return err
}

// querier is a connection, a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (commandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// version returns the version of the schema, 0 if it has no table.
func (s *Store) version(ctx context.Context, q querier) (version int, err error) {
	var tables, known int
	const count = `SELECT CASE WHEN known < 3 THEN (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'p', 'v', 'm', 'f')) ELSE 1 END, known
		FROM (SELECT count(*) AS known FROM pg_attribute WHERE attrelid = to_regclass($2) AND attname IN ('id', 'version', 'store')) AS meta`
	if err := q.QueryRow(ctx, count, s.quotedSchema, s.sql("~.meta")).Scan(&tables, &known); err != nil {
		return 0, explain(err)
	}
	switch {
	case tables == 0:
		return 0, nil
	case known < 3:
		return 0, fmt.Errorf("%w: schema %s has %d tables, and table meta of a store is not among them: give the store a schema of its own (WithSchema)", ErrOtherSchema, s.cfg.schema, tables)
	}
	err = q.QueryRow(ctx, s.sql("SELECT version FROM ~.meta WHERE id = 1")).Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, fmt.Errorf("%w: table meta of schema %s has no row 1: %s", ErrOtherSchema, s.cfg.schema, restoreIt)
	case err != nil:
		return 0, explain(err)
	}
	return version, s.checkVersion(version)
}

func (s *Store) checkVersion(version int) error {
	switch {
	case version > len(migrations):
		return fmt.Errorf("%w: schema %s has version %d, and this package knows version %d: use the package of the program that has migrated it", ErrSchemaTooNew, s.cfg.schema, version, len(migrations))
	case version < 1:
		return fmt.Errorf("%w: table meta of schema %s has version %d: %s", ErrOtherSchema, s.cfg.schema, version, restoreIt)
	}
	return nil
}

// enter migrates the schema, checks that it is whole and that the role may use it, and returns the identity of the data.
func (s *Store) enter(ctx context.Context, conn *pgx.Conn) (identity string, err error) {
	if err := s.migrate(ctx, conn); err != nil {
		return "", err
	}
	var missing, lacking, role string
	tables, columns, types := schemaColumns()
	if err := conn.QueryRow(ctx, checkSchema, s.cfg.schema, tables, columns, types).Scan(&missing, &lacking, &role); err != nil {
		return "", explain(err)
	}
	switch {
	case missing != "":
		return "", fmt.Errorf("%w: schema %s lacks %s: %s", ErrOtherSchema, s.cfg.schema, missing, restoreIt)
	case lacking != "" && !s.cfg.mustExist: // a tool may only read
		return "", fmt.Errorf("%w: role %s lacks %s: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES, and USAGE ON ALL SEQUENCES, IN SCHEMA %s", ErrNoRights, role, lacking, s.quotedSchema)
	}
	var rows int
	const data = "SELECT (SELECT store::text FROM ~.meta WHERE id = 1), (SELECT count(*) FROM ~.slot WHERE id = 0) + (SELECT count(*) FROM ~.instance WHERE id = 0)"
	if err := conn.QueryRow(ctx, s.sql(data)).Scan(&identity, &rows); err != nil {
		return "", explain(err)
	}
	if rows < 2 {
		return "", fmt.Errorf("%w: table slot or instance of schema %s has no row 0: %s", ErrOtherSchema, s.cfg.schema, restoreIt)
	}
	return identity, nil
}

// checkSchema lists what the schema lacks, and the rights that the role lacks.
//
// It looks each name up: the database may have a hundred thousand columns.
const checkSchema = `WITH want AS (SELECT * FROM unnest($2::text[], $3::text[], $4::text[]) AS w(tab, col, type)),
	rel AS MATERIALIZED (SELECT tab AS relname, c.* FROM (SELECT DISTINCT tab FROM want) t,
		LATERAL (SELECT oid, relkind FROM pg_class WHERE oid = to_regclass(format('%I.%I', $1::text, tab)) LIMIT 1) c),
	seq AS (SELECT pg_get_serial_sequence(format('%I.%I', $1, relname), attname) AS name
			FROM rel, LATERAL (SELECT attname FROM pg_attribute WHERE attrelid = oid AND attidentity <> '' OFFSET 0) a
		UNION ALL SELECT format('%I.%I', $1, relname) FROM rel WHERE relkind = 'S'),
	missing AS (SELECT format(CASE WHEN oid IS NULL THEN 'relation %1$s' ELSE 'column %1$s.%2$s (%3$s)' END, tab, col, type) AS what
			FROM want LEFT JOIN rel ON relname = tab
			LEFT JOIN LATERAL (SELECT true AS known FROM pg_attribute WHERE attrelid = oid AND attname = col AND atttypid = type::regtype LIMIT 1) a ON true
			WHERE known IS NULL
		UNION SELECT 'the primary key of ' || relname FROM rel WHERE relkind = 'r' AND NOT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = rel.oid AND indisprimary)
		UNION SELECT 'function eventbus_check' WHERE to_regproc(format('%I.eventbus_check', $1)) IS NULL),
	lacking AS (SELECT p || ' on ' || relname AS what FROM rel, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p WHERE relkind = 'r' AND NOT has_table_privilege(oid, p)
		UNION SELECT 'USAGE on ' || name FROM seq WHERE NOT has_sequence_privilege(name, 'USAGE'))
	SELECT coalesce((SELECT string_agg(what, ', ' ORDER BY what) FROM missing), ''), coalesce((SELECT string_agg(what, ', ' ORDER BY what) FROM lacking), ''), current_user::text`

var definition = regexp.MustCompile(`(?m)^(?:CREATE|ALTER) (TABLE|SEQUENCE) ~\.(\w+)|^\t(?:ADD COLUMN )?([a-z_]+) +([a-z]+)`)

// schemaColumns returns the columns that the migrations define. Those of a sequence are the server's.
func schemaColumns() (tables, columns, types []string) {
	table := ""
	for _, d := range definition.FindAllStringSubmatch(strings.Join(migrations, ""), -1) {
		if d[2] != "" {
			table = d[2]
		}
		switch {
		case d[1] == "SEQUENCE":
			d[3], d[4] = "last_value", "bigint"
		case d[1] == "TABLE":
			continue
		}
		tables, columns, types = append(tables, table), append(columns, d[3]), append(types, d[4])
	}
	return tables, columns, types
}
