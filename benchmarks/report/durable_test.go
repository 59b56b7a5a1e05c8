package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/benchmarks/server"
)

// Each rival accepts, and each that settles handles all events and ends.
func TestDurable_EveryRivalIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("builds three SQLite engines")
	}
	all, _ := measurableHere(t, steps(regexp.MustCompile(",publishers=64/"), 0))
	dir, err := moduleDir(t.Context())
	require.NoError(t, err)
	binary := filepath.Join(t.TempDir(), "benchmarks.test")
	require.NoError(t, buildPrograms(t.Context(), dir, binary, all))
	for i := range all {
		all[i].benchtime, all[i].times = 5*time.Millisecond, 1
	}
	r, err := measure(t.Context(), binary, all, 1, io.Discard)
	require.NoError(t, err)
	for _, s := range all {
		require.Positive(t, r.at(0, s.Run, plan.Time), "%s", s)
		require.InDelta(t, 1, r.at(0, s.Run, plan.Time)*r.at(0, s.Run, plan.Rate), 1e-9, "%s", s)
	}
	left, err := filepath.Glob(durable.TempPattern)
	require.NoError(t, err)
	require.Empty(t, left)
}

// measurableHere is measurable, with a server of the test.
func measurableHere(t *testing.T, all []step) (kept []step, skipped map[plan.Run]string) {
	t.Helper()
	server, err := startServer(t.Context(), all)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.remove()) })
	kept, skipped, err = measurable(t.Context(), all, server.missing, t.Output())
	require.NoError(t, err)
	return kept, skipped
}

// program creates a script that stands for the program of a rival.
func program(t *testing.T, name string, lines ...string) (binary string) {
	t.Helper()
	file := script(t, lines...)
	binary = filepath.Join(filepath.Dir(file), "other")
	require.NoError(t, os.Rename(file, programFile(binary, name)))
	return binary
}

func TestDurable_ReadsTheResultOfAProgram(t *testing.T) {
	run := plan.Accept(64, "goqite")
	line := `{"rival":"goqite","case":"accept,publishers=64","events":400,"seconds":0.1,"synchronous":"FULL"}`
	asked := filepath.Join(t.TempDir(), "asked")
	binary := program(t, "goqite", `echo "$@" > '`+asked+`'`, "echo '"+line+"'")
	s := step{run, 100 * time.Millisecond, 0, plan.Time, 2}
	r, err := measure(t.Context(), binary, []step{s}, 1, io.Discard)
	require.NoError(t, err)
	require.InDelta(t, 250e-6, r.at(0, run, plan.Time), 1e-12)
	require.InDelta(t, 4000, r.at(0, run, plan.Rate), 1e-6)
	args, err := os.ReadFile(asked)
	require.NoError(t, err)
	require.Equal(t, "-rival goqite -case accept,publishers=64 -time 100ms\n", string(args))

	for name, lines := range map[string][]string{
		"exit status":        {"echo 'disk full' >&2", "exit 1"},
		"disk full":          {"echo 'disk full' >&2", "exit 1"},
		"it printed":         {"echo nonsense"},
		"not its result":     {"echo '" + strings.Replace(line, "goqite", "river", 1) + "'"},
		"synchronous=NORMAL": {"echo '" + strings.Replace(line, "FULL", "NORMAL", 1) + "'"},
	} {
		_, err := runStep(t.Context(), program(t, "goqite", lines...), s, 0)
		require.ErrorContains(t, err, name)
	}
}

func TestMeasurable_SaysWhatIsSkipped(t *testing.T) {
	all := steps(regexp.MustCompile("/accept,publishers=64/(goqite|insert)$|^Publish/subscribers=1/channel$"), 0)
	require.Len(t, all, 3)
	var out bytes.Buffer
	t.Setenv("CGO_ENABLED", "0")
	t.Setenv(durable.DirVariable, "")
	kept, skipped, err := measurable(t.Context(), all, "", &out)
	if _, onDisk := durable.FileSystem("."); onDisk != nil {
		t.Skip(onDisk)
	}
	require.NoError(t, err)
	require.Len(t, kept, 2)
	require.Equal(t, "SKIP: durable/goqite: its SQLite driver needs cgo and a C compiler\n", out.String())
	require.Contains(t, skipped, plan.Accept(64, "goqite"))

	if _, err := durable.FileSystem("/dev/shm"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Skip("/dev/shm is no file system in memory")
	}
	t.Setenv(durable.DirVariable, "/dev/shm")
	kept, skipped, err = measurable(t.Context(), all, "", io.Discard)
	require.NoError(t, err)
	require.Len(t, kept, 1)
	require.Contains(t, skipped[plan.Accept(64, "insert")], durable.DirVariable)
	_, _, err = measurable(t.Context(), all[1:], "", io.Discard)
	require.ErrorContains(t, err, "nothing can be measured here")
}

func TestMeasurable_WithoutAServer(t *testing.T) {
	all := steps(regexp.MustCompile("^(Postgres/settled,publishers=64|Replicas/standbys|Wait/subscribers=1)/eventbus$"), 0)
	require.Len(t, all, 3)
	var out bytes.Buffer
	kept, skipped, err := measurable(t.Context(), all, "no server", &out)
	require.NoError(t, err)
	require.Len(t, kept, 1)
	require.Len(t, skipped, 2)
	require.Equal(t, "SKIP: Postgres: no server\nSKIP: Replicas: no server\n", out.String())
}

// The processes of a report share a server, which a user may have named.
func TestStartServer(t *testing.T) {
	all := steps(regexp.MustCompile("^Replicas/standbys/"), 0)
	p, err := startServer(t.Context(), all)
	require.NoError(t, err)
	if p.missing != "" {
		t.Skip(p.missing)
	}
	require.NotEmpty(t, p.version)
	require.NotEmpty(t, os.Getenv(server.Variable))
	named, err := startServer(t.Context(), all)
	require.NoError(t, err)
	require.Equal(t, p.version, named.version)
	require.NoError(t, named.remove())
	require.NoError(t, p.remove())
	require.Empty(t, os.Getenv(server.Variable))

	t.Setenv(server.Variable, "host=/nowhere")
	_, err = startServer(t.Context(), all)
	require.ErrorContains(t, err, server.Variable)
	none, err := startServer(t.Context(), steps(regexp.MustCompile("^Wait/"), 0))
	require.NoError(t, err)
	require.Empty(t, none.version)
}

func TestPrograms_EachOnce(t *testing.T) {
	require.Equal(t, []string{"rows", "goqite"}, programs(steps(regexp.MustCompile("/(insert|grouped|goqite|goqite-normal|channel)$"), 0)))
	require.Empty(t, programs(steps(regexp.MustCompile("^Publish/"), 0)))
}
