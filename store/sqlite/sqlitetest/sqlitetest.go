// Package sqlitetest opens stores of package sqlite in tests.
package sqlitetest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/surebus/eventbus/store/sqlite"
)

// Path returns the path of a database that does not exist yet, in a directory that is removed when
// the test ends.
func Path(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "events.db")
}

// Open opens a store on a new file, see Path. It closes the store and removes the file when the test
// ends. The test fails if that fails.
func Open(t testing.TB, opts ...sqlite.Option) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(context.Background(), Path(t), opts...) // t.Context ends before the cleanup
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return store
}
