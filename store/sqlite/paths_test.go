package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// inEmptyDir makes a directory without files the working directory, and returns a function that lists it.
func inEmptyDir(t *testing.T) (files func() []string) {
	t.Helper()
	t.Chdir(t.TempDir())
	return func() []string {
		names, err := filepath.Glob("*")
		require.NoError(t, err)
		return names
	}
}

func TestOpen_MemoryIsRefusedWithTheRemedy(t *testing.T) {
	files := inEmptyDir(t)
	s := openAt(t, testPath(t))
	for path, remedy := range map[string]string{
		"":                                  "leave eventbus.WithStore out",
		":memory:":                          "leave eventbus.WithStore out",
		":memory:?cache=shared":             "leave eventbus.WithStore out",
		"file::memory:?cache=shared":        "give the path of the file alone",
		"file:events.db":                    "give the path of the file alone",
		"file:///var/lib/events.db?mode=rw": "give the path of the file alone",
	} {
		for name, open := range map[string]func() error{
			"Open":   func() error { _, err := Open(t.Context(), path); return err },
			"exists": func() error { _, err := Open(t.Context(), path, MustExist()); return err },
			"Backup": func() error { return s.Backup(t.Context(), path) },
		} {
			err := open()
			var refused *PathError
			require.ErrorAs(t, err, &refused, "%s(%q)", name, path)
			require.Equal(t, path, refused.Path)
			require.ErrorContains(t, err, remedy)
		}
	}
	require.Empty(t, files(), "nothing was made")
}

func TestOpen_MemoryAndURIsCanBeNamesOfFiles(t *testing.T) {
	skipWindows(t) // a name has no colon
	files := inEmptyDir(t)
	for _, name := range []string{":memory:", "file:a.db"} {
		s := openAt(t, "./"+name)
		accept(t, s, ready(""))
		closeStore(t, s)
		require.Contains(t, files(), name)
	}
}

// otherDatabase makes a database that is no store.
func otherDatabase(t *testing.T, statements ...string) (path string) {
	t.Helper()
	path = testPath(t)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	execAt(t, path, statements...)
	return path
}

// A database of the user's own is not called corrupt, and stays as it is.
func TestOpen_AnotherProgramsDatabase(t *testing.T) {
	for name, sql := range map[string][]string{
		"tables":         {"CREATE TABLE users (name)", "INSERT INTO users VALUES ('anna')"},
		"log":            {"PRAGMA journal_mode = WAL", "CREATE TABLE users (name)"},
		"version":        {"PRAGMA user_version = 4", "CREATE TABLE eventbus_meta (id)"},
		"application id": {"PRAGMA application_id = 42"},
	} {
		t.Run(name, func(t *testing.T) {
			path := otherDatabase(t, sql...)
			before := read(t, path)
			for mode, open := range map[string]func() error{
				"Open":   func() error { _, err := Open(t.Context(), path); return err },
				"exists": func() error { _, err := Open(t.Context(), path, MustExist()); return err },
			} {
				err := open()
				require.ErrorIs(t, err, ErrOtherProgram, mode)
				require.ErrorContains(t, err, "another program's database: "+path)
				require.ErrorContains(t, err, "a file of its own")
				require.NotContains(t, err.Error(), "corrupt")
				require.False(t, isCorrupt(err), mode)
				require.True(t, bytes.Equal(before, read(t, path)), mode)
			}
		})
	}
}

// Where a store was, a header of another program is damage: the lease file knows the commits of the store.
func TestOpen_AnotherProgramsDatabaseInPlaceOfAStore(t *testing.T) {
	skipWindows(t)
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	require.NoError(t, os.Rename(otherDatabase(t, "CREATE TABLE users (name)"), path))
	require.NoError(t, os.Remove(path+"-wal")) // it has the whole store
	err := s.Reopen(t.Context())
	require.True(t, isCorrupt(err), "%v", err)
	_ = s.Close(t.Context())
	for _, opts := range [][]Option{nil, {MustExist()}} {
		_, err = Open(t.Context(), path, opts...)
		require.True(t, isCorrupt(err), "%v", err)
		require.ErrorContains(t, err, "another program's database")
	}
}

// A file with the mark of this package, and without a version, is damaged.
func TestOpen_AStoreWithoutAVersionIsCorrupt(t *testing.T) {
	path := testPath(t)
	closeStore(t, openAt(t, path))
	execAt(t, path, "PRAGMA user_version = 0")
	_, err := Open(t.Context(), path)
	require.True(t, isCorrupt(err), "%v", err)
	require.NotErrorIs(t, err, ErrOtherProgram)
}
