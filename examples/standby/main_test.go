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

// TestMain runs a node if the test binary is a child process.
func TestMain(m *testing.M) {
	if isNode() {
		os.Exit(nodeMain(context.Background()))
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

// assertOnlyChanges requires that the buses have logged nothing but that processes were killed, and that the active one of the old
// version has taken in an event for the subscription that the new version adds, before it let the new one lead.
func assertOnlyChanges(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		assert.Regexp(t, ` WARN eventbus (last process ended without shutdown |subscription of stored events is missing \{"subscription_id": "mail", )`, line)
	}
}

func TestRun_TheBooksBalance(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	errs, readErrs := newErrFile(t)
	require.Zero(t, run(t.Context(), nil, &out, errs), "stdout:\n%s", &out)
	assertOnlyChanges(t, readErrs())
	assert.Regexp(t, `(?m)^kill +\d+ ms$`, out.String())
	assert.Regexp(t, `(?m)^deployment +\d+ ms$`, out.String())
	assert.Regexp(t, `(?m)^deployment of a subscription, by the bus itself +\d+ ms$`, out.String())
	assert.Regexp(t, `(?m)^OK: \d+ events accepted`, out.String())
}

func TestBooks_NoticeALoss(t *testing.T) {
	t.Parallel()
	b := newBooks()
	b.accepted["e-1"], b.accepted["e-2"] = oldVersion, newVersion
	b.handle("e-1", "billing")
	b.handle("e-2", "billing")
	var out bytes.Buffer
	require.ErrorContains(t, b.balance(&out), "e-2 of a node of version 2 is lost: mail has not handled it")
	b.handle("e-2", "mail")
	b.handle("e-2", "mail")
	require.NoError(t, b.balance(&out))
	require.Contains(t, out.String(), "3 deliveries, and 1 repeated")
}

func TestRun_BadInput(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	errs, readErrs := newErrFile(t)
	require.Equal(t, 2, run(t.Context(), []string{"surplus"}, &out, errs))
	require.Contains(t, readErrs(), "usage")
	require.Equal(t, 1, run(t.Context(), []string{"-store", t.TempDir()}, &out, errs))
	require.Contains(t, readErrs(), "node:")
}
