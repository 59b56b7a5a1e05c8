package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain runs a child if the test binary is one.
func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(childMain(context.Background()))
	}
	os.Exit(m.Run())
}

func TestRun_OneEventForEachTick(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 20 s, in real time")
	}
	t.Parallel()
	var out bytes.Buffer
	errs, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer errs.Close()
	require.NoError(t, run(t.Context(), &out, errs), "stdout:\n%s", &out)
	require.Regexp(t, `(?m)^OK: \d+ ticks with one event each`, out.String())
	require.Contains(t, out.String(), "kill process 1")
}

func TestBooks_NoticeWhatIsWrong(t *testing.T) {
	at := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	var b books
	require.NoError(t, b.enter(at, "e-1"))
	require.NoError(t, b.enter(at, "e-1"), "again")
	require.ErrorContains(t, b.enter(at, "e-2"), "two events")
	require.NoError(t, b.enter(at.Add(3*period), "e-3"))
	var out bytes.Buffer
	require.ErrorContains(t, b.balance(&out), "08:00:02")
	b.down, b.up = at, at.Add(3*period)
	require.NoError(t, b.balance(&out))
	require.Contains(t, out.String(), "2 ticks with one event each, and 2 before the latest one while no process ran; 1 events handled again")
}
