// The program postgres measures the systems that keep events in a Postgres server: this bus with its store, River, and a
// yardstick. Each measurement has a new database, see package server.
package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/benchmarks/server"
)

func main() {
	durable.Main(plan.Postgres, map[string]durable.Open{
		plan.Us:            inDatabase(openBus),
		"river-postgres":   inDatabase(openRiver),
		"grouped-postgres": inDatabase(openGrouped),
	})
}

// inDatabase returns a durable.Open for a rival that opens a database.
func inDatabase(open func(context.Context, string, durable.Options) (*durable.System, error)) durable.Open {
	return func(o durable.Options) (*durable.System, error) {
		ctx := context.Background()
		database, err := server.Open(ctx)
		if err != nil {
			return nil, err
		}
		system, err := open(ctx, database.DSN, o)
		if err == nil {
			system.Synchronous, err = server.Setting(ctx, database.DSN, "synchronous_commit")
		}
		if err != nil {
			return nil, errors.Join(err, database.Close())
		}
		closeSystem := system.Close
		system.Close = func() error { return errors.Join(closeSystem(), database.Close()) }
		return system, nil
	}
}

// pool returns a pool of several connections.
func pool(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, config)
}
