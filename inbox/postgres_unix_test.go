//go:build unix

package inbox_test

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func init() {
	cleanUp = postgrestest.RemoveShared
	databases["postgres"] = func(t *testing.T) *sql.DB {
		server := postgrestest.Shared(t)
		schema := postgrestest.NewSchema()
		require.NoError(t, server.Exec(t.Context(), "CREATE SCHEMA "+schema))
		return open(t, "pgx", server.DSN()+" search_path="+schema)
	}
}
