package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const good = `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "a", "steps": {"a": {"action": "Return"}}}`

func writeFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.json")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// Ctrl-C ends a read that nothing else ends.
func TestRead_InterruptEndsIt(t *testing.T) {
	file := writeFile(t, good)
	for _, args := range [][]string{
		{"check", "-"},
		{"graph", "-"},
		{"run", "-"},
		{"run", file, "--input", "-"},
		{"run", file, "--args", "-"},
		{"run", file, "--mock", "-"},
		{"run", file, "--catalog", "-"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			never, w := io.Pipe()
			defer func() { _ = w.Close() }()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var out, errOut bytes.Buffer
			require.Equal(t, exitProblem, run(ctx, args, never, &out, &errOut))
			require.Contains(t, errOut.String(), "interrupted while reading")
		})
	}
	t.Run("conform", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out, errOut bytes.Buffer
		require.Equal(t, exitProblem, run(ctx, []string{"conform", "../../testdata/conformance"}, nil, &out, &errOut))
		require.Contains(t, errOut.String(), "interrupted")
	})
}

// endless is a file that never ends, such as /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A read has a limit, which the error names.
func TestRead_IsBounded(t *testing.T) {
	file := writeFile(t, good)
	for _, test := range []struct {
		args  string
		code  int
		limit string
	}{
		{"check -", exitProblem, "1048576 bytes"},
		{"check --untrusted -", exitProblem, "262144 bytes"},
		{"graph -", exitProblem, "1048576 bytes"},
		{"run --untrusted -", exitProblem, "262144 bytes"},
		{"run FILE --input -", exitUsage, "8388608 bytes"},
		{"run FILE --mock -", exitUsage, "8388608 bytes"},
		{"check FILE --catalog -", exitUsage, "8388608 bytes"},
	} {
		t.Run(test.args, func(t *testing.T) {
			args := strings.Fields(test.args)
			for i := range args {
				if args[i] == "FILE" {
					args[i] = file
				}
			}
			var out, errOut bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), args, endless{}, &out, &errOut))
			require.Contains(t, out.String()+errOut.String(), "more than "+test.limit)
		})
	}
}

// full is an output that takes nothing, such as /dev/full.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

// A command whose output is lost does not succeed.
func TestWrite_ErrorsEndWithTheirCode(t *testing.T) {
	t.Parallel()
	file := writeFile(t, good)
	for _, args := range [][]string{
		{"check", file},
		{"check", "--json", writeFile(t, `{}`)},
		{"run", file},
		{"graph", file},
		{"graph", file, "-f", "json"},
		{"conform", "../../testdata/conformance"},
		{"schema"},
		{"exit-codes"},
		{"help"},
		{"help", "check"},
		{"--help"},
		{},
		{"completion", "bash"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var errOut bytes.Buffer
			require.Equal(t, exitIO, run(t.Context(), args, strings.NewReader(""), full{}, &errOut))
			require.Contains(t, errOut.String(), "mwl: the output cannot be written: no space left")
		})
	}
	var out bytes.Buffer
	require.Equal(t, exitIO, run(t.Context(), []string{"run", file, "--trace"}, strings.NewReader(""), &out, full{}), "a trace that is lost")
	require.NotEmpty(t, out.String(), "the Result is not lost with it")
}

// The name of a file cannot fake a line of the command.
func TestReport_IsOneLine(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "x\nmwl: fake.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{}`), 0o600))
	for _, args := range [][]string{
		{"check", "none\nmwl: fake"},
		{"run", bad},
		{"graph", bad},
		{"run", "--mock", bad + "\nmwl: fake", bad},
		{"check", "--catalog", bad, bad},
		{"conform", "none\nmwl: fake"},
	} {
		var out, errOut bytes.Buffer
		require.NotZero(t, run(t.Context(), args, strings.NewReader(""), &out, &errOut))
		require.Contains(t, errOut.String(), `\n`)
		require.NotContains(t, errOut.String(), "\nmwl: fake")
	}
}

// A long name does not break the line of progress.
func TestProgress_ShortensNames(t *testing.T) {
	var p progress
	name := strings.Repeat("ü", 1000)
	p.last.Store(&name)
	require.Equal(t, "0 steps, 0 calls, at "+strings.Repeat("ü", 40)+"…", p.String())
}

// interrupting is an output that presses Ctrl-C when something is printed.
type interrupting struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (i *interrupting) Write(p []byte) (int, error) {
	i.cancel()
	return i.Buffer.Write(p)
}

// The rows of conform are printed as they come, so that the first ones are seen while the
// others run.
func TestConform_PrintsRowsAsTheyCome(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupting{cancel: cancel}
	var errOut bytes.Buffer
	require.Equal(t, exitProblem, run(ctx, []string{"conform", "../../testdata/conformance"}, nil, out, &errOut))
	require.Contains(t, errOut.String(), "interrupted after")
	require.Contains(t, out.String(), "pass  basics-assign-fault-binds-none ")
	require.NotContains(t, out.String(), "basics-assign-simultaneous")
}
