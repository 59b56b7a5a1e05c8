package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain runs the shop if the test binary is the child process.
func TestMain(m *testing.M) {
	if isShop() {
		os.Exit(shopMain(context.Background()))
	}
	os.Exit(m.Run())
}

func runWith(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

var balanced = regexp.MustCompile(`(?m)^OK: (\d+) acknowledged = (\d+) handled \+ (\d+) dead-lettered; deliveries repeated after the kill: (\d+)$`)

// assertOnlyLogs requires that stderr has nothing but what the buses have logged there: handlers fail on purpose.
func assertOnlyLogs(t *testing.T, stderr string) {
	t.Helper()
	for line := range strings.Lines(stderr) {
		assert.Regexp(t, ` (WARN|ERROR) eventbus `, line)
	}
}

func TestRun_TheBooksBalance(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runWith(t)
	require.Zero(t, status, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
	assertOnlyLogs(t, stderr)
	assert.Regexp(t, balanced, stdout)
	assert.Contains(t, stdout, "It was killed with SIGKILL.")
	assert.NotRegexp(t, `claimed from the store: 0\n`, stdout)
}

func TestRun_KeepsTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "events.db")
	for range 2 { // a second time over the same file
		status, stdout, stderr := runWith(t, "-store", file)
		require.Zero(t, status, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
		assert.FileExists(t, file)
	}
}

func TestRun_BadInput(t *testing.T) {
	t.Parallel()
	status, _, stderr := runWith(t, "surplus")
	assert.Equal(t, 2, status)
	assert.Contains(t, stderr, "usage")

	status, _, stderr = runWith(t, "-store", t.TempDir())
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "shop:")
}

func TestBooks_NoticeALoss(t *testing.T) {
	t.Parallel()
	b := newBooks()
	for _, line := range []string{
		"acknowledged 1 order.placed", "handled 1 stock", "handled 1 mail", "handled 1 mail",
		"acknowledged 2 order.paid", "dead 2 billing mail",
		"acknowledged 3 order.paid", "handled 3 billing",
		"no such line", "",
	} {
		b.enter(line)
	}
	handled, dead, open := b.count()
	assert.Equal(t, []int{1, 1, 1, 1}, []int{handled, dead, open, b.repeats})
	var out bytes.Buffer
	require.ErrorContains(t, b.balance(&out), "1 acknowledged events are lost")
	b.enter("handled 3 mail")
	require.NoError(t, b.balance(&out))
	assert.Regexp(t, balanced, out.String())
}

func TestBooks_NoticeAnOvertaking(t *testing.T) {
	t.Parallel()
	b := newBooks()
	for _, line := range []string{
		"acknowledged 1 order.placed o-1", "acknowledged 2 order.paid o-1", "acknowledged 3 order.placed o-2",
		"handled 2 billing", "handled 2 mail", "handled 1 stock", "handled 1 mail", "handled 3 stock", "handled 3 mail",
	} {
		b.enter(line)
	}
	require.ErrorContains(t, b.balance(&bytes.Buffer{}), "[o-1]")
}
