package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun_ChecksItself(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-for", "1ms"}, &stdout, &stderr)
	require.Zero(t, status, "stdout:\n%s\nstderr:\n%s", stdout.String(), stderr.String())
	assert.Empty(t, stderr.String())
	assert.Regexp(t, `^http://127\.0\.0\.1:\d+/admin/\nuser operator, password \S+\n`, stdout.String())
	assert.Regexp(t, `pause and resume: \d+ deliveries were held and have resumed\n`, stdout.String())
	assert.Regexp(t, `audit: \d+ entries\nOK: .*\n$`, stdout.String())
}

// Ctrl-C ends the program with the books balanced.
func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	var stderr bytes.Buffer
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, nil, in, &stderr) }()
	_, err := out.Read(make([]byte, 1)) // it serves
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	cancel()
	assert.Zero(t, <-ended, stderr.String())
	require.NoError(t, in.Close())
}

func TestRun_BadInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"surplus"}, {"-for", "-1s"}, {"-for", "soon"}} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, run(t.Context(), args, io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), "usage")
	}
	var stderr bytes.Buffer
	assert.Equal(t, 1, run(t.Context(), []string{"-listen", "127.0.0.1:none"}, io.Discard, &stderr))
	assert.Contains(t, stderr.String(), "admin: listen")
}

// A check fails if the page does not answer as expected.
func TestCheck_NoticesAnError(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"groups":`:        "unexpected end of JSON input",
		`{"groups":[{}]}`:   "has no heading",
		`{"groups":"none`:   "unexpected end of JSON input",
		`not even an error`: "500",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if want == "500" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = io.WriteString(w, body)
		}))
		err := (&client{url: server.URL, http: server.Client(), out: io.Discard}).check(t.Context())
		server.Close()
		require.ErrorContains(t, err, want)
	}
}
