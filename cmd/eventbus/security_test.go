package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/store/sqlite"
)

// call runs the command in this process.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	for _, name := range []string{"EVENTBUS_STORE", "EVENTBUS_URL", "EVENTBUS_TOKEN", "EVENTBUS_USER", "EVENTBUS_PASSWORD", "EVENTBUS_HEADERS", "EVENTBUS_CLIENT_CERT", "EVENTBUS_CLIENT_KEY", "EVENTBUS_CA"} {
		if os.Getenv(name) == "" {
			t.Setenv(name, "")
		}
	}
	var o, e bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// makeFile makes an empty store.
func makeFile(t *testing.T, path string) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
}

// newStore makes a store with the letters of a file of testdata.
func newStore(t *testing.T, letters string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	makeFile(t, path)
	code, _, errOut := call(t, "dlq", "import", "--store", path, filepath.Join("testdata", letters))
	require.Zero(t, code, errOut)
	return path
}

// harmless fails if a terminal would do more with a text than print it.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), what)
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Fatalf("%s prints %U: %q", what, r, text)
		}
	}
}

const hostileLetter, hostileEvent = "01940000-0000-7000-8000-000000000009", "01930000-0000-7000-8000-000000000009"

// Errors have a stable code and what to do, and neither SQL nor a stack.
func TestZ19_ErrorsSayWhatToDo(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitUsage, []string{"dlq", "list", "--type", "a..b"}},
		{exitUsage, []string{"dlq", "list", "--key", "x'; DROP TABLE eventbus_letter; --", "--limit", "-1"}},
		{exitUsage, []string{"dlq", "replay"}},
		{exitUsage, []string{"dlq", "show", "' OR 1=1"}},
		{exitNotFound, []string{"dlq", "show", "01940000-0000-7000-8000-00000000ffff"}},
		{exitNotFound, []string{"events", "show", "01940000-0000-7000-8000-00000000ffff"}},
		{exitNotFound, []string{"subs", "show", "nobody"}},
		{exitUsage, []string{"audit", "--action", "nonsense"}},
	} {
		code, out, errOut := call(t, append(c.args, "--store", path)...)
		require.Equal(t, c.code, code, c.args)
		require.Empty(t, out)
		require.Regexp(t, `(?s)^eventbus: .+\nnext: .+\n$`, errOut)
		for _, secret := range []string{"SELECT", "goroutine", ".go:", "panic"} {
			require.NotContains(t, errOut, secret, c.args)
		}
	}
	code, out, _ := call(t, "dlq", "list", "--store", path, "--key", "x'; DROP TABLE eventbus_letter; --")
	require.Zero(t, code)
	require.Equal(t, 1, strings.Count(out, "\n"), "the head only")
	code, _, _ = call(t, "dlq", "show", "01940000-0000-7000-8000-000000000001", "--store", path)
	require.Zero(t, code)
}

// The error of the API is shown with its code and its request id, and escaped.
func TestZ19_ErrorsOfTheAPI(t *testing.T) {
	for name, want := range map[string]int{
		"bad_request": exitUsage, "not_found": exitNotFound, "conflict": exitConflict, "stale_count": exitConflict, "no_subscription": exitConflict,
		"unauthenticated": exitFailure, "forbidden": exitFailure, "read_only": exitFailure, "rate_limited": exitFailure, "internal": exitFailure,
		"shut_down": exitFailure, "store_failed": exitFailure, "a_later_one": exitFailure,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, `{"error":{"code":%q,"message":"it is so \u001b[2J","remedy":"do this","request_id":"r-1"}}`, name)
		}))
		code, _, errOut := call(t, "stats", "--url", server.URL)
		server.Close()
		require.Equal(t, want, code, name)
		require.Equal(t, "eventbus: "+name+`: it is so \x1b[2J (request r-1)`+"\nnext: do this\n", errOut)
	}
}

// Escapes in data are shown and never executed.
func TestZ20_EscapesAreShown(t *testing.T) {
	path := newStore(t, "hostile.jsonl")
	code, _, errOut := call(t, "subs", "pause", "\u202ered", "--store", path)
	require.Equal(t, exitUsage, code)
	harmless(t, "a bad name", errOut)
	for _, args := range [][]string{
		{"dlq", "list"},
		{"dlq", "list", "--json", "--payload"},
		{"dlq", "groups"},
		{"dlq", "groups", "--json"},
		{"dlq", "show", hostileLetter, "--payload"},
		{"dlq", "show", hostileLetter, "--payload", "--json"},
		{"dlq", "export"},
		{"dlq", "export", "--format", "csv"},
		{"dlq", "replay", "--all", "--dry-run"},
		{"events", "show", hostileEvent},
		{"events", "show", hostileEvent, "--json"},
		{"dlq", "replay", hostileLetter},
		{"events", "list"},
		{"events", "list", "--json"},
		{"subs", "list"},
		{"audit"},
		{"audit", "--json"},
		{"stats"},
		{"verify"},
	} {
		code, out, errOut := call(t, append(args, "--store", path)...)
		require.Zero(t, code, "%v: %s", args, errOut)
		harmless(t, fmt.Sprint(args), out+errOut)
	}
	_, out, _ := call(t, "audit", "--store", path)
	require.Contains(t, out, `\x1b[31mred`)
	for _, args := range [][]string{{"\x1b[2J"}, {"dlq", "show", "\x1b[2J"}, {"dlq", "list", "--reason", "\x1b[2J"}, {"explain", "\u009b2J"}, {"dlq", "list", "--store", "\x1b[2J"}} {
		code, out, errOut := call(t, args...)
		require.NotZero(t, code, args)
		harmless(t, fmt.Sprint(args), out+errOut)
	}
}

// JSON keeps the text of what it escapes.
func TestZ20_JSONKeepsTheText(t *testing.T) {
	path := newStore(t, "hostile.jsonl")
	_, out, _ := call(t, "dlq", "export", "--store", path)
	var l struct{ Subscription string }
	require.NoError(t, json.Unmarshal([]byte(out), &l))
	require.Equal(t, "\x1b[31mred\x1b[0m", l.Subscription)
	require.Contains(t, out, `\u009b2J`)
}

// A spreadsheet takes no text of an export for a formula.
func TestZ21_CSVHasNoFormulas(t *testing.T) {
	for text, want := range map[string]string{
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "\n=1": "'\n=1", "＝1": "'＝1",
		"\r=1": `\r=1`, "a=1": "a=1", "": "", "1": "1", "\xff=1": "\uFFFD=1", "\x00=1": `\x00=1`,
	} {
		require.Equal(t, want, csvCell(text), "%q", text)
	}
	path := newStore(t, "hostile.jsonl")
	_, out, _ := call(t, "dlq", "export", "--format", "csv", "--store", path)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, csvColumns, rows[0])
	require.Equal(t, "'=1+1", rows[1][4])
	for _, cell := range rows[1] {
		require.False(t, cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n"), cell)
	}
}

// No flag takes a secret, a URL with one is refused, and no error shows one.
func TestZ22_NoSecretsInArguments(t *testing.T) {
	const secret = "hunter2-canary"
	root := (&app{}).root()
	for _, words := range [][]string{{"dlq", "list"}, {"stats"}, {"serve"}} {
		if c, _, err := root.Find(words); err == nil {
			for _, flag := range []string{"password", "token", "user", "dsn"} {
				require.Nil(t, c.Flag(flag), "%v --%s", words, flag)
			}
		}
	}
	for _, u := range []string{"https://joe:" + secret + "@shop.example/admin", "https://" + secret + "@shop.example", "ftp://joe:" + secret + "@x", "http://joe:" + secret + "@x\x7f/", "://joe:" + secret + "@x"} {
		for _, in := range []string{"flag", "environment"} {
			args := []string{"stats"}
			if in == "flag" {
				args = append(args, "--url", u)
			} else {
				t.Setenv("EVENTBUS_URL", u)
			}
			code, out, errOut := call(t, args...)
			t.Setenv("EVENTBUS_URL", "")
			require.Equal(t, exitUsage, code, u)
			if !strings.Contains(u, "//"+secret) { // a user name is no secret
				require.NotContains(t, out+errOut, secret, u)
			}
		}
	}
	t.Setenv("EVENTBUS_TOKEN", secret)
	code, out, errOut := call(t, "stats", "--url", "http://shop.example/admin")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "unencrypted")
	require.NotContains(t, out+errOut, secret)
	code, out, errOut = call(t, "stats", "--url", "http://127.0.0.1:1/admin")
	require.Equal(t, exitFailure, code)
	require.NotContains(t, out+errOut, secret)
	t.Setenv("EVENTBUS_USER", "joe")
	code, _, errOut = call(t, "stats", "--url", "http://127.0.0.1:1/admin")
	require.Equal(t, exitUsage, code)
	require.NotContains(t, errOut, secret)
}

// The environment's credentials go to the given host only.
func TestZ22_CredentialsFollowNoRedirect(t *testing.T) {
	var stolen, given string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = r.Header.Get("Authorization") + " was here" }))
	defer thief.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given = r.Header.Get("Authorization")
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	t.Setenv("EVENTBUS_TOKEN", "secret")
	code, _, errOut := call(t, "stats", "--url", server.URL)
	require.Equal(t, exitFailure, code)
	require.Contains(t, errOut, "redirects to")
	require.Equal(t, "Bearer secret", given)
	require.Empty(t, stolen)
	t.Setenv("EVENTBUS_TOKEN", "")
	t.Setenv("EVENTBUS_USER", "joe")
	t.Setenv("EVENTBUS_PASSWORD", "secret")
	_, _, _ = call(t, "stats", "--url", server.URL)
	require.Equal(t, "Basic am9lOnNlY3JldA==", given)
}

// Files that the command makes are the user's only. It follows no link, and writes to no file of another user.
func TestZ22_Files(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are those of the directory")
	}
	path := newStore(t, "letters.jsonl")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, args := range [][]string{{"backup", at("backup.db")}, {"dlq", "export", "--output", at("letters.jsonl")}} {
		code, _, errOut := call(t, append(args, "--store", path)...)
		require.Zero(t, code, errOut)
		info, err := os.Stat(args[len(args)-1])
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), args)
	}
	require.NoError(t, os.Symlink(at("target"), at("link")))
	for _, args := range [][]string{{"backup", at("link")}, {"dlq", "export", "--output", at("link")}} {
		code, _, errOut := call(t, append(args, "--store", path)...)
		require.NotZero(t, code, errOut)
	}
	require.NoFileExists(t, at("target"))
	require.NoError(t, os.Symlink(path, at("store.db")))
	code, _, errOut := call(t, "stats", "--store", at("store.db"))
	require.Equal(t, exitFailure, code)
	require.Contains(t, errOut, "is a symbolic link")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(path, 12345, 12345))
		code, _, errOut = call(t, "stats", "--store", path)
		require.Equal(t, exitFailure, code)
		require.Contains(t, errOut, "belongs to the user 12345")
		require.Contains(t, errOut, "sudo -u '#12345'")
	}
}

// What loses letters needs a confirmation.
func TestZ22_PurgeAsks(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	for _, args := range [][]string{
		{"dlq", "purge", "--all"},
		{"dlq", "purge", "--type", "order.*"},
		{"dlq", "purge", "01940000-0000-7000-8000-000000000001"},
		{"dlq", "replay", "--all"},
		{"dlq", "purge"},
		{"dlq", "purge", "--yes"},
	} {
		code, out, _ := call(t, append(args, "--store", path)...)
		require.Equal(t, exitUsage, code, args)
		require.Empty(t, out)
	}
	_, out, _ := call(t, "dlq", "list", "--json", "--store", path)
	require.Equal(t, 4, strings.Count(out, "\n"))
}
