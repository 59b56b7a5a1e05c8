package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain runs the shop if the test binary is the child process.
func TestMain(m *testing.M) {
	if isShop() {
		os.Exit(shopMain(context.Background()))
	}
	os.Exit(m.Run())
}

// assertOnlyLogs requires that stderr has nothing but what the buses have logged there: handlers fail on purpose.
func assertOnlyLogs(t *testing.T, stderr string) {
	t.Helper()
	for line := range strings.Lines(stderr) {
		require.Regexp(t, ` (WARN|ERROR) eventbus `, line)
	}
}

func TestRun_RepairsEveryLetter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.db")
	for range 2 { // a second time over the same file
		var out, errs bytes.Buffer
		require.Zero(t, run(t.Context(), []string{"-store", file}, &out, &errs), "%s\n%s", &out, &errs)
		require.Contains(t, out.String(), "40 at mail     smtp: connection refused\n")
		require.Contains(t, out.String(), "4 payments were replayed")
		require.Contains(t, out.String(), "40 were replayed.")
		require.Contains(t, out.String(), "OK: no dead letter is left, and the shop never stopped")
		assertOnlyLogs(t, errs.String())
	}
}

func TestRun_BadInput(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, 2, run(t.Context(), []string{"surplus"}, &out, &errs))
	require.Contains(t, errs.String(), "usage")
	require.Equal(t, 1, run(t.Context(), []string{"-store", t.TempDir()}, &out, &errs))
	require.Contains(t, errs.String(), "shop:")
}
