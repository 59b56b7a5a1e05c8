package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/benchmarks/server"
)

// postgres is the Postgres server of a run of the report.
type postgres struct {
	missing string // why there is none, if a step needs it
	version string
	remove  func() error
}

// onServer reports whether a run needs a Postgres server.
func onServer(run plan.Run) bool {
	return run.Workload == plan.Postgres || run.Workload == plan.Replicas
}

// startServer starts the server on which all steps that need one are measured. The processes inherit its connection string
// in server.Variable, which may name another server.
func startServer(ctx context.Context, steps []step) (*postgres, error) {
	p := &postgres{remove: func() error { return nil }}
	if !slices.ContainsFunc(steps, func(s step) bool { return onServer(s.Run) }) {
		return p, nil
	}
	dsn := os.Getenv(server.Variable)
	if dsn == "" {
		started, err := server.Start(ctx)
		if errors.Is(err, server.ErrNone) {
			p.missing = err.Error()
			return p, nil
		}
		if err != nil {
			return nil, err
		}
		dsn = started.DSN()
		if err := os.Setenv(server.Variable, dsn); err != nil {
			return nil, err
		}
		p.remove = func() error {
			_ = os.Unsetenv(server.Variable) // an error would have come from Setenv
			return started.Remove()
		}
	}
	version, err := server.Setting(ctx, dsn, "server_version")
	if err != nil {
		return nil, fmt.Errorf("the server of %s: %w", server.Variable, err)
	}
	p.version = version
	return p, nil
}
