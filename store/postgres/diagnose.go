package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Level is the severity of a finding.
type Level string

// The levels of findings.
const (
	LevelOK      Level = "ok"
	LevelWarning Level = "warning"
	LevelUnknown Level = "unknown" // the role may not see it
)

// Finding is the result of one check of Diagnose.
type Finding struct {
	Check  string `json:"check"`            // short fixed name of the check, such as "oldest xmin"
	Level  Level  `json:"level"`            // how the check ended
	Detail string `json:"detail"`           // what the check found
	Remedy string `json:"remedy,omitempty"` // what to do; empty for LevelOK
}

// What Diagnose warns of.
const (
	oldXmin        = 5_000_000 // transactions
	oldTransaction = time.Minute
	manyDeadRows   = 100_000 // and more than the live ones
	farBehind      = 10 * time.Second
	farBehindBytes = 64 << 20
	nearWraparound = 1_000_000_000
	fewConnections = 0.8 // of max_connections in use
	clockAhead     = time.Minute
)

// Diagnose checks the server for conditions that slow a store down or endanger confirmed commits. It checks durability
// settings, data checksums, dead rows and their causes (old snapshots, idle transactions, replication slots), the lag
// of replicas, connections, and the lease. It changes nothing. It blocks for a dozen short queries, which ctx bounds. A
// role without pg_monitor does not see everything.
//
// Errors: driver.ErrFailed, driver.ErrClosed, those of the server, the context's error.
func (s *Store) Diagnose(ctx context.Context) ([]Finding, error) {
	d := &diagnosis{store: s}
	err := s.read(ctx, func(ctx context.Context, q querier) error {
		d.found = nil
		for _, check := range []func(context.Context, querier) error{
			d.server, d.settings, d.monitor, d.xmin, d.idle, d.deadRows, d.replicas, d.slots, d.wraparound, d.connections, d.lease,
		} {
			if err := check(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Diagnose: %w", err)
	}
	return d.found, nil
}

// diagnosis is a Diagnose in progress.
type diagnosis struct {
	store *Store
	found []Finding
}

// note adds a finding. It is a warning if there is a remedy.
func (d *diagnosis) note(check, remedy, format string, args ...any) {
	level := LevelOK
	if remedy != "" {
		level = LevelWarning
	}
	d.found = append(d.found, Finding{check, level, fmt.Sprintf(format, args...), remedy})
}

// when returns a remedy if a condition holds.
func when(bad bool, remedy string) string {
	if bad {
		return remedy
	}
	return ""
}

func (d *diagnosis) server(ctx context.Context, q querier) error {
	var version string
	var now time.Time
	if err := q.QueryRow(ctx, "SELECT current_setting('server_version'), clock_timestamp()").Scan(&version, &now); err != nil {
		return err
	}
	through := "directly"
	if d.store.source.pooled.Load() {
		through = "through a pooler"
	}
	d.note("server", when(d.store.source.pooled.Load(), "connect the store directly: through a pooler, the take-over from a dead process takes the time of the lease"),
		"Postgres %s, reached %s", version, through)
	ahead := time.Until(now).Round(time.Millisecond)
	d.note("clock", when(ahead.Abs() > clockAhead, "set the clocks (NTP): times of events are those of the processes"), "the server's is %v ahead of this one", ahead)
	return nil
}

// settings looks at what must be on, or a crash of the server loses what it has confirmed.
func (d *diagnosis) settings(ctx context.Context, q querier) error {
	for _, setting := range []struct{ name, remedy string }{
		{"fsync", "switch it on: a crash of the server loses or damages data"},
		{"full_page_writes", "switch it on, unless the file system writes pages whole"},
		{"data_checksums", "stop the server and enable them (pg_checksums --enable): damage of the disk is not noticed otherwise"},
		{"autovacuum", "switch it on: dead rows slow the store down"},
	} {
		var value string
		if err := q.QueryRow(ctx, "SELECT current_setting($1)", setting.name).Scan(&value); err != nil {
			return err
		}
		d.note(setting.name, when(value == "off", setting.remedy), "%s", value)
	}
	return nil
}

// monitor finds out whether the role sees the sessions of others.
func (d *diagnosis) monitor(ctx context.Context, q querier) error {
	var sees bool
	if err := q.QueryRow(ctx, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&sees); err != nil {
		return err
	}
	if !sees {
		d.found = append(d.found, Finding{"rights", LevelUnknown, "the role does not see the sessions of others, and their snapshots", "GRANT pg_monitor TO the role"})
	}
	return nil
}

// xmin finds the oldest snapshot: the server cannot remove the rows that were deleted after it.
func (d *diagnosis) xmin(ctx context.Context, q querier) error {
	const oldest = `SELECT what, age FROM (
			SELECT format('session %s (%s, %s)', pid, coalesce(nullif(application_name, ''), 'no name'), coalesce(state, 'unknown')) AS what, age(backend_xmin) AS age
				FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
			UNION ALL SELECT format('replication slot %s', slot_name), greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
			UNION ALL SELECT format('prepared transaction %s', gid), age(transaction) FROM pg_prepared_xacts
		) held WHERE age IS NOT NULL ORDER BY age DESC LIMIT 1`
	var what string
	var age int64
	switch err := q.QueryRow(ctx, oldest).Scan(&what, &age); {
	case err == pgx.ErrNoRows: //nolint:errorlint // Scan returns it as it is
		d.note("oldest xmin", "", "nothing holds one")
		return nil
	case err != nil:
		return err
	}
	d.note("oldest xmin", when(age > oldXmin, "end it: the server cannot remove what the bus has deleted since"), "%s holds one that is %d transactions old", what, age)
	return nil
}

func (d *diagnosis) idle(ctx context.Context, q querier) error {
	const idle = `SELECT count(*), coalesce(extract(epoch FROM max(clock_timestamp() - state_change)), 0)::float8
		FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()`
	var sessions int
	var seconds float64
	if err := q.QueryRow(ctx, idle).Scan(&sessions, &seconds); err != nil {
		return err
	}
	longest := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	d.note("idle in transaction", when(longest > oldTransaction, "end the session, and set idle_in_transaction_session_timeout for the role that leaves them open"),
		"%d sessions, for up to %v", sessions, longest)
	return nil
}

func (d *diagnosis) deadRows(ctx context.Context, q querier) error {
	const rows = `SELECT relname, n_live_tup, n_dead_tup, coalesce(to_char(greatest(last_autovacuum, last_vacuum) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI"Z"'), 'never')
		FROM pg_stat_user_tables WHERE schemaname = $1 ORDER BY n_dead_tup DESC LIMIT 1`
	var table, vacuumed string
	var live, dead int64
	switch err := q.QueryRow(ctx, rows, d.store.cfg.schema).Scan(&table, &live, &dead, &vacuumed); {
	case err == pgx.ErrNoRows: //nolint:errorlint // Scan returns it as it is
		return nil
	case err != nil:
		return err
	}
	d.note("dead rows", when(dead > manyDeadRows && dead > live, "look for what holds the oldest xmin, then VACUUM the table"),
		"table %s has the most: %d beside %d live ones; vacuumed %s", table, dead, live, vacuumed)
	return nil
}

// replicas shows how much a failover would lose.
func (d *diagnosis) replicas(ctx context.Context, q querier) error {
	const replicas = `SELECT coalesce(nullif(application_name, ''), 'no name'), coalesce(sync_state, 'unknown'), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), 0)::bigint,
		coalesce(extract(epoch FROM flush_lag), 0)::float8 FROM pg_stat_replication ORDER BY 3 DESC`
	found := 0
	err := each(ctx, q, replicas, func(rows pgx.Rows) error {
		found++
		var name, sync string
		var bytes int64
		var seconds float64
		if err := rows.Scan(&name, &sync, &bytes, &seconds); err != nil {
			return err
		}
		lag := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
		remedy := when(bytes > farBehindBytes || lag > farBehind, "find out why it is behind: a failover to it loses what it has not got")
		if remedy == "" && sync == "async" {
			remedy = "add it to synchronous_standby_names, or accept that a failover to it loses what it has not got"
		}
		d.note("replica", remedy, "%s (%s) is %d bytes and %v behind", name, sync, bytes, lag)
		return nil
	})
	if err == nil && found == 0 {
		d.note("replica", "", "none")
	}
	return err
}

// slots finds replication slots that nobody reads: the server keeps its log for them until the disk is full.
func (d *diagnosis) slots(ctx context.Context, q querier) error {
	const slots = `SELECT coalesce(string_agg(slot_name, ', '), ''), coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
		FROM pg_replication_slots WHERE NOT active`
	var names string
	var bytes int64
	if err := q.QueryRow(ctx, slots).Scan(&names, &bytes); err != nil {
		return err
	}
	if names == "" {
		d.note("replication slots", "", "none without a reader")
		return nil
	}
	d.note("replication slots", "drop those that nobody will read (pg_drop_replication_slot): the log of the server grows until its disk is full",
		"%s: no reader, and %d bytes of log are kept", names, bytes)
	return nil
}

func (d *diagnosis) wraparound(ctx context.Context, q querier) error {
	var age int64
	if err := q.QueryRow(ctx, "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()").Scan(&age); err != nil {
		return err
	}
	d.note("transaction ids", when(age > nearWraparound, "VACUUM the database soon: at 2,000,000,000 the server stops writing"), "the oldest is %d transactions old", age)
	return nil
}

func (d *diagnosis) connections(ctx context.Context, q querier) error {
	var used, limit int
	if err := q.QueryRow(ctx, "SELECT count(*), current_setting('max_connections')::int FROM pg_stat_activity WHERE backend_type = 'client backend'").Scan(&used, &limit); err != nil {
		return err
	}
	d.note("connections", when(float64(used) > fewConnections*float64(limit), "use fewer, or raise max_connections: a store that cannot connect loses its lease"), "%d of %d", used, limit)
	return nil
}

// lease shows which process has the lease, and which others have committed within the time of a lease.
func (d *diagnosis) lease(ctx context.Context, q querier) error {
	const instances = `SELECT i.epoch <> 0, i.host, i.pid, extract(epoch FROM i.expires - clock_timestamp())::float8
		FROM ~.instance i WHERE i.id <> 0 AND i.expires > clock_timestamp() ORDER BY 1 DESC, i.id`
	var holder string
	var others []string
	err := each(ctx, q, d.store.sql(instances), func(rows pgx.Rows) error {
		var holds bool
		var host []byte
		var pid int
		var left float64
		if err := rows.Scan(&holds, &host, &pid, &left); err != nil {
			return err
		}
		process := fmt.Sprintf("process %d on %q", pid, host)
		if holds {
			holder = fmt.Sprintf("%s has it for %v", process, time.Duration(left*float64(time.Second)).Round(time.Second))
		} else {
			others = append(others, process)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case holder == "":
		d.note("lease", "start the program: nothing is dispatched", "nobody has it")
		return nil
	}
	if len(others) > 0 {
		holder += "; without it: " + strings.Join(others, ", ")
	}
	d.note("lease", "", "%s", holder)
	return nil
}
