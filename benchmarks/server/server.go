// Package server provides the Postgres server of the benchmarks.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// Variable is the environment variable with the connection string of a running server, of a role that may create databases.
// It has the form of keywords and values, such as "host=/tmp user=postgres". Without it, each measurement starts a server.
const Variable = "EVENTBUS_BENCH_POSTGRES"

// ErrNone is matched by the error of Start if this machine cannot have a server.
var ErrNone = errors.New("no Postgres server")

// Start starts a private server in /tmp, with synchronous_commit=on.
func Start(ctx context.Context) (*postgrestest.Server, error) {
	if _, err := durable.FileSystem("/tmp"); err != nil {
		return nil, fmt.Errorf("%w: its data would be in /tmp: %w", ErrNone, err)
	}
	s, err := postgrestest.Start(ctx, "shared_buffers = 256MB", "max_wal_size = 4GB")
	if errors.Is(err, postgrestest.ErrNoServer) {
		err = fmt.Errorf("%w: %w", ErrNone, err)
	}
	return s, err
}

// Database is a new database for one measurement.
type Database struct {
	// DSN is the connection string.
	DSN string

	name, server string
	private      *postgrestest.Server // nil with Variable
}

// Open creates a database, on the server of Variable or on one that it starts.
func Open(ctx context.Context) (*Database, error) {
	d := &Database{name: "bench_" + strings.ToLower(rand.Text()), server: os.Getenv(Variable)}
	if d.server == "" {
		var err error
		if d.private, err = Start(ctx); err != nil {
			return nil, err
		}
		d.server = d.private.DSN()
	}
	d.DSN = d.server + " dbname=" + d.name // the later dbname counts
	if err := d.administer(ctx, "CREATE DATABASE "+d.name); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

// Close drops the database.
func (d *Database) Close() error {
	err := d.administer(context.Background(), "DROP DATABASE "+d.name+" WITH (FORCE)")
	return errors.Join(err, d.remove())
}

func (d *Database) remove() error {
	if d.private == nil {
		return nil
	}
	return d.private.Remove()
}

func (d *Database) administer(ctx context.Context, statement string) error {
	_, err := Exec(ctx, d.server, statement)
	return err
}

// Exec executes a statement and returns the number of its rows.
func Exec(ctx context.Context, dsn, statement string) (rows int64, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, err
	}
	tag, err := conn.Exec(ctx, statement)
	return tag.RowsAffected(), errors.Join(err, conn.Close(ctx))
}

// Setting returns the value of a setting of the server, such as server_version.
func Setting(ctx context.Context, dsn, name string) (value string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	err = conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value)
	return value, errors.Join(err, conn.Close(ctx))
}
