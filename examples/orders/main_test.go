package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runOn runs the program and returns its exit status and what it printed.
func runOn(t *testing.T, in io.Reader, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, in, &out, &errs)
	return status, out.String(), errs.String()
}

func TestRun_BundledOrders(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runOn(t, strings.NewReader(""))

	assert.Zero(t, status, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
	assert.Contains(t, stdout, "lines refused: 0")
	assert.Contains(t, stdout, "circuit of stock open")
	assert.Contains(t, stdout, "a refund of 0 cents")
	assert.NotContains(t, stdout, "\r", "this is no terminal")

	failures := 0
	for line := range strings.Lines(stderr) {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		level := "warn"
		if entry["msg"] == "event dead-lettered" {
			level = "error"
		}
		assert.Equal(t, level, entry["level"], line)
		if entry["msg"] != "handler failed" {
			continue
		}
		failures++
		for _, field := range []string{"event_id", "event_type", "subscription_id", "error"} {
			assert.NotEmpty(t, entry[field], "%s of %s", field, line)
		}
		for _, field := range []string{"attempt", "max_attempts", "delay_ms"} {
			assert.IsType(t, 0.0, entry[field], "%s of %s", field, line)
		}
	}
	assert.Positive(t, failures)
}

func TestRun_BadLines(t *testing.T) {
	t.Parallel()
	const good = `{"type":"order.paid","order":"o-1","customer":"c-1","amount_cents":100}`
	for name, test := range map[string]struct {
		in     string
		status int
		stdout string
		stderr string // a part of it, or all if it is empty
	}{
		"nothing":        {in: "", stdout: "purged: 0; lines refused: 0"},
		"blank lines":    {in: "\n \r\n\n", stdout: "purged: 0; lines refused: 0"},
		"CRLF":           {in: good + "\r\n" + good + "\r\n", stdout: "purged: 2; lines refused: 0"},
		"no newline":     {in: good, stdout: "purged: 1; lines refused: 0"},
		"no JSON":        {in: "{bad\n" + good, stdout: "purged: 1; lines refused: 1", stderr: "line 1: invalid character 'b'"},
		"two objects":    {in: good + "\n" + good + good, stdout: "purged: 1; lines refused: 1", stderr: "line 2: invalid character '{' after"},
		"another type":   {in: "\n" + `{"type":"order.paid","amount_cents":"much"}`, stdout: "lines refused: 1", stderr: "line 2: json: cannot unmarshal"},
		"no type":        {in: good + "\n\n{}\n" + good, stdout: "purged: 2; lines refused: 1", stderr: "line 3: "},
		"invalid type":   {in: `{"type":"order paid"}`, stdout: "purged: 0; lines refused: 1", stderr: "line 1: "},
		"very long line": {in: good + "\n" + strings.Repeat("x", 2<<20), status: 1, stdout: "1 accepted", stderr: "line 2: bufio.Scanner: token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := runOn(t, strings.NewReader(test.in), "-")
			assert.Equal(t, test.status, status, stderr)
			assert.Contains(t, stdout, test.stdout)
			assert.Contains(t, stderr, test.stderr)
			if test.stderr == "" {
				assert.Empty(t, stderr)
			}
		})
	}
}

func TestRun_BundledOrdersAfterABadLine(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runOn(t, io.MultiReader(strings.NewReader("{bad\n"), bytes.NewReader(bundled)), "-")
	assert.Zero(t, status, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
	assert.Contains(t, stderr, "line 1: ")
	assert.NotContains(t, stderr, "line 2: ")
	assert.Contains(t, stdout, "lines refused: 1")
}

func TestRun_File(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, os.WriteFile(name, bundled[:bytes.IndexByte(bundled, '\n')+1], 0o600))
	status, stdout, _ := runOn(t, nil, name)
	assert.Zero(t, status)
	assert.Contains(t, stdout, "purged: 1;")

	status, _, stderr := runOn(t, nil, name+".gone")
	assert.Equal(t, 2, status)
	assert.Contains(t, stderr, name+".gone")
}

// TestRun_Interrupted interrupts the program while it waits for input.
func TestRun_Interrupted(t *testing.T) {
	t.Parallel()
	in, input := io.Pipe()
	defer input.Close()
	ctx, interrupt := context.WithCancelCause(t.Context())
	go func() {
		_, _ = input.Write(bundled[:bytes.IndexByte(bundled, '\n')+1])
		_, _ = io.WriteString(input, "\n") // is read when the line before has been published
		interrupt(errors.New("interrupted"))
	}()
	var stdout, stderr bytes.Buffer
	assert.Equal(t, 1, run(ctx, []string{"-"}, in, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "orders: interrupted")
	assert.Contains(t, stdout.String(), "At the end:")
}
