package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/surebus/eventbus/store/sqlite"
)

var update = flag.Bool("update", false, "write the golden output into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"eventbus": main})
}

// TestScript runs the scripts of testdata/script: each command, with its golden output.
func TestScript(t *testing.T) {
	runScripts(t, "testdata/script")
}

func runScripts(t *testing.T, dir string) {
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TESTDATA", testdata)
			e.Setenv("USER", "ops")
			e.Setenv("COLUMNS", "")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"mkstore":   makeStore,
			"scrub":     scrub,
			"code":      exitCode,
			"letters":   makeLetters,
			"lines":     countLines,
			"interrupt": interrupt,
		},
	})
}

// makeStore makes an empty store: mkstore FILE.
func makeStore(ts *testscript.TestScript, _ bool, args []string) {
	store, err := sqlite.Open(context.Background(), ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(store.Close(context.Background()))
}

// Fixtures are of 2025. Other times are of the test.
var now = regexp.MustCompile(`20(2[6-9]|[3-9]\d)-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z`)

var spaces = regexp.MustCompile(` {2,}`)

// scrub replaces the times of the test in the output of the last command, and copies it to a file: scrub
// stdout FILE.
func scrub(ts *testscript.TestScript, _ bool, args []string) {
	text := now.ReplaceAllString(ts.ReadFile(args[0]), "TIME")
	text = spaces.ReplaceAllString(text, "  ") // the width of columns depends on the times
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// exitCode runs the command and checks its exit code: code 3 dlq show ID.
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	script := `"$@"; code=$?; test $code = ` + args[0] + ` || { echo "exit code $code, want ` + args[0] + `" >&2; exit 1; }`
	ts.Check(ts.Exec("/bin/sh", append([]string{"-c", script, "sh", "eventbus"}, args[1:]...)...))
}

// makeLetters writes a number of letters as JSON lines: letters N FILE.
func makeLetters(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"01940000-0000-7000-9000-%012d","event":{"id":"01930000-0000-7000-9000-%012d","type":"order.placed","time":"2025-01-01T00:00:00Z"},`+
			`"reason":"exhausted","subscription":"billing","attempts":1,"died_at":"2025-01-01T00:00:00Z"}`+"\n", i+1, i+1)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(b.String()), 0o600))
}

// countLines checks the number of lines of a file: lines FILE N.
func countLines(ts *testscript.TestScript, _ bool, args []string) {
	if n := strings.Count(ts.ReadFile(args[0]), "\n"); strconv.Itoa(n) != args[1] {
		ts.Fatalf("%s has %d lines, want %s", args[0], n, args[1])
	}
}

// interrupt runs the command, sends it SIGINT once a replay is in the audit, and checks that it ends with
// the code 1.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	script := `"$@" & pid=$!
until eventbus audit --json | grep -q replay_matching; do kill -0 $pid || exit 1; done
kill -INT $pid; wait $pid; test $? = 1`
	ts.Check(ts.Exec("/bin/bash", append([]string{"-c", script, "sh", "eventbus"}, args...)...))
}
