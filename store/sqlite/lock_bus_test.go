package sqlite_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// writeLock returns functions that hold and release the write lock of a file on a connection of
// their own, as another process does.
func writeLock(t testing.TB, path string) (lock, unlock func()) {
	t.Helper()
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	run := func(sql string) func() {
		return func() { require.NoError(t, sqlitex.ExecuteTransient(c, sql, nil)) }
	}
	return run("BEGIN IMMEDIATE"), run("ROLLBACK")
}
