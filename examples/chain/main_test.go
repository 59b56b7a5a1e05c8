package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
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

func TestRun_TheBooksBalance(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	for range 2 { // a second time over the same file
		var out bytes.Buffer
		errs, readErrs := newErrFile(t)
		status := run(t.Context(), []string{"-store", file}, &out, errs)
		require.Zero(t, status, "stdout:\n%s\nstderr:\n%s", &out, readErrs())
		assert.Empty(t, readErrs())
		assert.Contains(t, out.String(), "20 kills, 1050 orders")
		assert.Regexp(t, `(?m)^order.placed +1050 +\d+$`, out.String())
		assert.Regexp(t, `(?m)^apology +[1-9]\d* +\d+$`, out.String())
		assert.Contains(t, out.String(), "OK: each order has exactly one invoice, and one mail or one apology")
		if testing.Short() {
			return
		}
	}
}

// The balance is an error for each way in which orders and events can differ.
func TestBooks_NoticeADifference(t *testing.T) {
	t.Parallel()
	const chain = "INSERT INTO shop_ledger VALUES ('e-1', 'order.placed', 'o-1', 1), ('e-2', 'invoice.created', 'o-1', 2)"
	for want, statement := range map[string]string{
		"1 orders have no event order.placed":  "SELECT 1",
		"1 orders have no event mail.sent":     chain,
		"o-1 has apology, and should not":      chain + ", ('e-5', 'mail.sent', 'o-1', 1), ('e-6', 'apology', 'o-1', 1)",
		"o-1 has 2 events invoice.created":     chain + ", ('e-3', 'invoice.created', 'o-1', 1)",
		"o-2 has order.placed, and should not": chain + ", ('e-4', 'order.placed', 'o-2', 1)",
	} {
		file := filepath.Join(t.TempDir(), "shop.db")
		db, err := openLedger(t.Context(), file)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
		require.NoError(t, db.Close())
		b := &books{prefix: "o-", orders: map[string]bool{"o-1": true}}
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
	require.Contains(t, readErrs(), "chain:")
}
