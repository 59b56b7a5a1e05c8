package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

type commandTag = pgconn.CommandTag

const (
	oldestServer = 140000 // server_version_num

	// statementTime bounds a statement of the store: the server ends it, and the store tries again.
	statementTime = 5 * time.Second
	// connectTime bounds an attempt to connect to a host.
	connectTime = 3 * time.Second
)

// source makes connections of the store's own, as a DSN or a pool of the user says. Handlers and callers never use them:
// if ten handlers held all connections of a pool and published, the commit would wait for one of them.
type source struct {
	config        *pgxpool.Config
	beforeConnect func(context.Context, *pgx.ConnConfig) error // of the user's pool: it may set a new password
	settings      map[string]string                            // of the sessions

	pooled atomic.Bool // behind a pooler, whose connections say nothing about the process; set by look
}

// sessionSettings are what the store relies on, whatever the role, the database or the DSN sets.
func sessionSettings(cfg *config) map[string]string {
	commit := "on"
	if cfg.async {
		commit = "off"
	}
	// A process that is stopped while it begins a lease has locked the slot: no standby begins one meanwhile.
	idle := min(statementTime, cfg.leaseTime/4)
	return map[string]string{
		"statement_timeout":                   fmt.Sprint(statementTime.Milliseconds()),
		"lock_timeout":                        "2000",
		"idle_in_transaction_session_timeout": fmt.Sprint(idle.Milliseconds()),
		"default_transaction_isolation":       "read committed",
		"synchronous_commit":                  commit,
		"tcp_keepalives_idle":                 "5",
		"tcp_keepalives_interval":             "2",
		"tcp_keepalives_count":                "3",
		"tcp_user_timeout":                    "10000",
	}
}

// newSource returns the source for the configuration of a pool. It changes the configuration.
func newSource(config *pgxpool.Config, cfg *config) *source {
	c := config.ConnConfig
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "eventbus"
	}
	s := &source{config: config, beforeConnect: config.BeforeConnect, settings: sessionSettings(cfg)}
	maps.Copy(c.RuntimeParams, s.settings)
	c.ConnectTimeout = connectTime
	return s
}

// throughPooler prepares the source for a pooler in transaction mode: it refuses settings at the start of a connection, and
// the next transaction may use another connection of the server, which has no statement that was prepared.
func (s *source) throughPooler() {
	s.pooled.Store(true)
	c := s.config.ConnConfig
	for name := range s.settings {
		delete(c.RuntimeParams, name)
	}
	useNoStatements(c)
}

// useNoStatements makes connections prepare no statements.
func useNoStatements(c *pgx.ConnConfig) {
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	c.StatementCacheCapacity, c.DescriptionCacheCapacity = 0, 0
}

// dial opens a connection to the first of the hosts that answers as the DSN asks for. Each has connectTime.
func (s *source) dial(ctx context.Context) (*pgx.Conn, error) {
	c := s.config.ConnConfig.Copy()
	if s.beforeConnect != nil {
		if err := s.beforeConnect(ctx, c); err != nil {
			return nil, fmt.Errorf("%w: BeforeConnect of the pool: %w", errNotConnected, err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	registerTypes(conn)
	return conn, nil
}

// registerTypes tells a connection the types of ids, which it must know before the server has described a statement.
func registerTypes(conn *pgx.Conn) {
	m := conn.TypeMap()
	m.RegisterDefaultPgType([16]byte{}, "uuid")
	m.RegisterDefaultPgType([][16]byte{}, "_uuid")
}

// look finds out what server this is, and whether a pooler is in between. It returns the first connection.
func (s *source) look(ctx context.Context) (conn *pgx.Conn, err error) {
	conn, err = s.dial(ctx)
	if err != nil && strings.Contains(err.Error(), "unsupported startup parameter") {
		s.throughPooler()
		conn, err = s.dial(ctx)
	}
	if err != nil {
		return nil, err
	}
	var backend, version uint32
	var replica bool
	var readOnly string
	const facts = "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('transaction_read_only')"
	err = conn.QueryRow(ctx, facts).Scan(&backend, &version, &replica, &readOnly)
	switch {
	case err != nil:
	case version < oldestServer:
		err = fmt.Errorf("%w: it has version %d.%d, and the store needs Postgres 14 or later", ErrServerTooOld, version/10000, version%10000)
	case replica:
		err = fmt.Errorf("%w: it is a replica: name the primary, or several hosts with target_session_attrs=read-write", ErrReadOnly)
	case readOnly == "on":
		err = fmt.Errorf("%w: its transactions are read-only: set default_transaction_read_only to off, or name the primary", ErrReadOnly)
	case !s.pooled.Load() && backend != conn.PgConn().PID():
		s.throughPooler()
		closeNow(conn)
		return s.dial(ctx)
	}
	if err != nil {
		closeNow(conn)
		return nil, err
	}
	return conn, nil
}

// openPool opens the pool of the store's reads.
func (s *source) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	c := s.config.Copy()
	c.MinConns, c.MinIdleConns, c.MaxConns = 0, 0, maxReaders
	c.MaxConnIdleTime = time.Minute
	c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerTypes(conn)
		return nil
	}
	c.PrepareConn, c.AfterRelease = nil, nil
	c.BeforeAcquire = nil //nolint:staticcheck // the user's pool may have one
	return pgxpool.NewWithConfig(ctx, c)
}

const maxReaders = 4

// closeNow closes a connection without waiting for the server.
func closeNow(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx) // what it was used for has failed already, or has been confirmed
}

// queueSettings adds statements that set for a transaction what a pooler does not let a session set.
func (s *source) queueSettings(b *pgx.Batch) {
	for name, value := range s.settings {
		if s.pooled.Load() && !strings.HasPrefix(name, "default_") && !strings.HasPrefix(name, "tcp_") {
			b.Queue("SET LOCAL " + name + " = " + value)
		}
	}
}

// send sends the statements as one transaction, in one round trip, and returns the first error. The server makes one of
// statements without BEGIN that come together. After an error the connection is ready again, or closed.
func (s *source) send(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	if s.pooled.Load() {
		whole := &pgx.Batch{}
		whole.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
		s.queueSettings(whole)
		whole.QueuedQueries = append(whole.QueuedQueries, b.QueuedQueries...)
		whole.Queue("COMMIT")
		b = whole
	}
	err := conn.SendBatch(ctx, b).Close()
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, failed := conn.Exec(ctx, "ROLLBACK"); failed != nil {
			closeNow(conn)
			err = errors.Join(err, failed)
		}
	}
	return err
}
