//go:build unix

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func init() { removeServer = postgrestest.RemoveShared }

// TestServer runs the scripts of testdata/server, each with a schema of its own on a private server: $SERVER and $SCHEMA.
func TestServer(t *testing.T) {
	server := postgrestest.Shared(t)
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/server",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			schema := postgrestest.NewSchema()
			e.Setenv("SERVER", "postgres:///postgres?host="+filepath.Dir(server.Socket()))
			e.Setenv("SCHEMA", schema)
			e.Setenv("PGUSER", "postgres")
			e.Setenv("TESTDATA", testdata)
			e.Setenv("USER", "ops")
			e.Setenv("COLUMNS", "")
			return makeSchema(server.DSN(), schema)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": exitCode,
			"server-sql": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(server.Exec(context.Background(), os.Expand(args[0], ts.Getenv)))
			},
		},
	})
}

// makeSchema makes a schema without events, in which a store has had the lease.
func makeSchema(dsn, schema string) error {
	ctx := context.Background()
	s, err := postgres.Open(ctx, dsn, postgres.WithSchema(schema))
	if err != nil {
		return err
	}
	if _, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true}); err != nil {
		return err
	}
	return s.Close(ctx)
}
