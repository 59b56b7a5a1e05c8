package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain runs the shop if the test binary is a child process.
func TestMain(m *testing.M) {
	if isShop() {
		os.Exit(shopMain(context.Background()))
	}
	os.Exit(m.Run())
}

// newErrFile returns a file for the errors of a run and of its processes, and a function that reads it.
func newErrFile(t *testing.T) (file *os.File, read func() string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file, func() string {
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return string(text)
	}
}

// assertOnlyKills requires that the buses have logged nothing but that processes were killed.
func assertOnlyKills(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		assert.Contains(t, line, " WARN eventbus last process ended without shutdown ")
	}
}

func TestRun_TheBooksBalance(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	for range 2 { // a second time over the same file
		var out bytes.Buffer
		errs, readErrs := newErrFile(t)
		require.Zero(t, run(t.Context(), []string{"-store", file}, &out, errs), "stdout:\n%s", &out)
		assertOnlyKills(t, readErrs())
		assert.Contains(t, out.String(), "killed before a commit")
		assert.Contains(t, out.String(), "killed after a commit")
		assert.Regexp(t, `(?m)^OK: \d+ orders committed = \d+ orders charged; 28 rolled back`, out.String())
	}
}

// The balance is an error for each way in which orders and charges can differ.
func TestBooks_NoticeADifference(t *testing.T) {
	t.Parallel()
	for want, statement := range map[string]string{
		"o-1 was charged, and it was never committed": "INSERT INTO shop_charges VALUES ('o-1', 1, 1)",
		"o-1 was committed, and its event is lost":    "INSERT INTO shop_orders VALUES ('o-1', 1)",
		"o-2 was rolled back, and it is in":           "INSERT INTO shop_orders VALUES ('o-2', 1); INSERT INTO shop_charges VALUES ('o-2', 1, 1)",
		"o-3 was committed, and it is not in":         "SELECT 1",
	} {
		file := filepath.Join(t.TempDir(), "shop.db")
		db, err := openTables(file)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), tables+statement)
		require.NoError(t, err)
		require.NoError(t, db.Close())
		b := newBooks()
		b.enter("rolled-back o-2")
		b.enter("committed o-3")
		require.ErrorContains(t, b.balance(t.Context(), file, &bytes.Buffer{}), want)
	}
}

func TestRun_BadInput(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	errs, readErrs := newErrFile(t)
	require.Equal(t, 2, run(t.Context(), []string{"surplus"}, &out, errs))
	require.Contains(t, readErrs(), "usage")
	require.Equal(t, 1, run(t.Context(), []string{"-store", t.TempDir()}, &out, errs))
	require.Contains(t, readErrs(), "shop:")
}
