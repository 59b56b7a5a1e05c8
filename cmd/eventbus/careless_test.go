package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

// A zero time, as a program prints one, is no filter: it is refused before it deletes everything.
func TestL4_TheZeroTimeIsNoFilter(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	for _, zero := range []string{"0001-01-01T00:00:00Z", "0001-01-01"} {
		code, out, errOut := call(t, "dlq", "purge", "--store", path, "--all", "--until", zero, "--yes")
		require.Equal(t, exitUsage, code, errOut)
		require.Empty(t, out)
	}
	_, out, _ := call(t, "dlq", "list", "--store", path, "--json")
	require.Equal(t, 4, strings.Count(out, "\n"))
}

// A file that is missing is not said to be the store.
func TestMissingFiles(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	missing := filepath.Join(t.TempDir(), "missing", "file")
	for _, args := range [][]string{{"dlq", "import", missing}, {"dlq", "export", "--output", missing}} {
		code, _, errOut := call(t, append(args, "--store", path)...)
		require.Equal(t, exitNotFound, code)
		require.NotContains(t, errOut, "store", args)
	}
}

// What a server sends is escaped, also where the command computes it usually itself.
func TestZ20_AServerIsNotTrusted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/overview") {
			_, _ = io.WriteString(w, `{"balanced":false,"imbalance":"off \u001b[2J"}`)
			return
		}
		_, _ = io.WriteString(w, `{"dispatches":[{}],"next":"\u001b[2J; rm"}`)
	}))
	defer server.Close()
	for _, args := range [][]string{{"stats"}, {"events", "list", "--limit", "1"}} {
		code, out, errOut := call(t, append(args, "--url", server.URL)...)
		require.Zero(t, code, errOut)
		harmless(t, args[0], out+errOut)
		require.Contains(t, out+errOut, `\x1b`)
		require.NotContains(t, errOut, "--after \\x1b", "one argument of a shell")
	}
}

// An edit does not start from a payload that a redactor has changed.
func TestZ11_NoEditOfARedactedPayload(t *testing.T) {
	bus := eventbustest.NewUnstarted(t)
	eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	line, err := os.Open(filepath.Join("testdata", "letters.jsonl"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = line.Close() })
	_, err = bus.DLQ().Import(t.Context(), line)
	require.NoError(t, err)
	h, err := admin.New(bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
		return admin.Principal{Name: "anna"}, nil
	}), admin.WithRedactor(func(text admin.Text) string {
		if text.Kind == admin.TextPayload && strings.Contains(text.Value, "1999") {
			return `{"amount":0}`
		}
		return text.Value
	}))
	require.NoError(t, err)
	server := httptest.NewServer(h)
	defer server.Close()
	b, err := openURL(server.URL, connection{})
	require.NoError(t, err)
	for id, complete := range map[string]bool{"01940000-0000-7000-8000-000000000001": false, "01940000-0000-7000-8000-000000000002": true} {
		parsed, err := eventbus.ParseLetterID(id)
		require.NoError(t, err)
		l, err := b.Letter(t.Context(), parsed, true)
		require.NoError(t, err)
		require.Equal(t, complete, checkComplete(t.Context(), b, &l) == nil, id)
	}
	code, _, errOut := call(t, "dlq", "edit", "01940000-0000-7000-8000-000000000001", "--url", server.URL)
	require.Equal(t, exitFailure, code)
	require.Contains(t, errOut, "shows the payload redacted")
}

// A payload that is too long is refused, rather than cut.
func TestPayloadFile_IsNotCut(t *testing.T) {
	a := &app{in: strings.NewReader(strings.Repeat("a", maxPayload+1))}
	_, err := a.edited(t.Context(), "-", nil)
	require.ErrorContains(t, err, "more than")
	a.in = strings.NewReader(strings.Repeat("a", maxPayload))
	text, err := a.edited(t.Context(), "-", nil)
	require.NoError(t, err)
	require.Len(t, text, maxPayload)
}

// operationServer is an admin API with one bulk operation. Its functions answer the POST that begins it, and the one
// that cancels it.
func operationServer(t *testing.T, begin, cancel func(http.ResponseWriter)) *urlBackend {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/cancel"):
			cancel(w)
		case r.Method == http.MethodPost:
			begin(w)
		default:
			fmt.Fprint(w, `{"id":"1","state":"done","total":2,"done":2,"replay_report":{"matched":2,"replayed":2}}`)
		}
	}))
	t.Cleanup(server.Close)
	b, err := openURL(server.URL, connection{})
	require.NoError(t, err)
	return b
}

func answer(w io.Writer, state string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"id": "1", "state": state, "total": 2, "done": 1, "replay_report": map[string]int{"matched": 2, "replayed": 1}})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Ctrl-C while the server begins an operation cancels that operation.
func TestL4_AnInterruptReachesAnOperationThatBegins(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var cancelled atomic.Bool
	b := operationServer(t, func(w http.ResponseWriter) { answer(w, "running") }, func(w http.ResponseWriter) {
		cancelled.Store(true)
		answer(w, "cancelled")
	})
	sent := b.http.Transport
	b.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if interrupt(); r.Context().Err() != nil {
			return nil, r.Context().Err() // the server may have begun, and nobody would know
		}
		return sent.RoundTrip(r)
	})
	report, err := b.ReplayMatching(ctx, eventbus.LetterQuery{All: true}, bulk{expect: 2})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, cancelled.Load())
	require.Equal(t, 2, report.Matched)
	require.Equal(t, 1, report.Replayed)
}

// Ctrl-C just after the end of an operation does not hide its report.
func TestL4_AnInterruptAfterTheEnd(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	b := operationServer(t, func(w http.ResponseWriter) {
		answer(w, "running")
		interrupt()
	}, func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"error":{"code":"conflict","message":"the operation has ended"}}`)
	})
	report, err := b.ReplayMatching(ctx, eventbus.LetterQuery{All: true}, bulk{expect: 2})
	require.NoError(t, err)
	require.Equal(t, 2, report.Replayed)
}

// If the answer is lost, an operation may have begun, and the error says so.
func TestL4_ALostAnswer(t *testing.T) {
	b := operationServer(t, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, nil)
	_, err := b.ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, bulk{expect: 2})
	require.ErrorContains(t, err, "may have begun")
}
