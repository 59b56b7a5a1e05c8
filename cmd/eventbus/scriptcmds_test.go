package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	sqlite3 "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// scriptCommands are the commands of the scripts besides those of testscript.
var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"mkstore":        makeStore,
	"letters":        makeLetters,
	"publish":        publish,
	"serve-bus":      serveBus,
	"serve-admin":    serveAdmin,
	"sql":            execSQL,
	"unreadable":     addUnreadable,
	"flip":           flip,
	"scrub":          scrub,
	"code":           exitCode,
	"lines":          countLines,
	"mode":           fileMode,
	"interrupt":      interrupt,
	"together":       together,
	"sum":            sum,
	"waitfor":        waitFor,
	"page":           getPage,
	"background":     background,
	"end-background": endBackground,
}

// makeStore makes an empty store: mkstore FILE.
func makeStore(ts *testscript.TestScript, _ bool, args []string) {
	store, err := openAlone(ts.MkAbs(args[0]))
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

// interrupt runs the command, sends it a signal once a replay is in the audit, and checks its exit code:
// interrupt SIGNAL CODE ARG...
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	script := `"$@" & pid=$!
until eventbus audit --json | grep -q replay_matching; do kill -0 $pid || exit 1; done
kill -` + args[0] + ` $pid; wait $pid; test $? = ` + args[1]
	ts.Check(ts.Exec("/bin/bash", append([]string{"-c", script, "sh", "eventbus"}, args[2:]...)...))
}

// together runs a command twice at the same time, each into a file: together FILE FILE ARG...
func together(ts *testscript.TestScript, _ bool, args []string) {
	script := `one=$1 two=$2; shift 2; "$@" > $one & pid=$!; "$@" > $two; test $? -le 4 || exit 1; wait $pid; test $? -le 4`
	ts.Check(ts.Exec("/bin/bash", append([]string{"-c", script, "sh", args[0], args[1], "eventbus"}, args[2:]...)...))
}

// sum checks the sum of the numbers in files that a regular expression finds: sum N EXPRESSION FILE...
func sum(ts *testscript.TestScript, _ bool, args []string) {
	total := 0
	for _, file := range args[2:] {
		for _, found := range regexp.MustCompile(args[1]).FindAllStringSubmatch(ts.ReadFile(file), -1) {
			n, err := strconv.Atoi(found[1])
			ts.Check(err)
			total += n
		}
	}
	if strconv.Itoa(total) != args[0] {
		ts.Fatalf("the sum is %d, want %s", total, args[0])
	}
}

// publish publishes two events for the subscription mail, one of them scheduled, which no handler has
// handled: publish FILE.
func publish(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	bus := openBus(ts, args[0])
	for i, opts := range [][]eventbus.PublishOption{{eventbus.Key("o-1")}, {eventbus.At(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC))}} {
		id, err := eventbus.ParseEventID(fmt.Sprintf("01930000-0000-7000-8000-0000000000a%d", i+1))
		ts.Check(err)
		_, err = bus.Publish(ctx, "order.placed", map[string]int{"n": i}, append(opts, eventbus.ID(id))...)
		ts.Check(err)
	}
	ts.Check(bus.Shutdown(ctx))
}

// openBus returns a bus with the subscription mail, which was not started.
func openBus(ts *testscript.TestScript, path string, opts ...sqlite.Option) *eventbus.Bus {
	store, err := openAlone(ts.MkAbs(path), opts...)
	ts.Check(err)
	bus, err := eventbus.New(eventbus.WithStore(store))
	ts.Check(err)
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	ts.Check(err)
	return bus
}

// openAlone opens a store with the lease. Until a process that another script starts executes its program, it has
// the lock of a lease that was released meanwhile.
func openAlone(path string, opts ...sqlite.Option) (store *sqlite.Store, err error) {
	for range 1000 {
		store, err = sqlite.Open(context.Background(), path, opts...)
		if !errors.Is(err, sqlite.ErrLocked) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return store, err
}

// serveBus runs a bus over a file until the script ends: serve-bus FILE [exclusive].
func serveBus(ts *testscript.TestScript, _ bool, args []string) {
	var opts []sqlite.Option
	if len(args) > 1 {
		opts = append(opts, sqlite.WithExclusive())
	}
	bus := openBus(ts, args[0], opts...)
	ts.Check(bus.Start(context.Background()))
	ts.Defer(func() { ts.Check(bus.Shutdown(context.Background())) })
}

// serveAdmin runs a bus in memory with the admin API until the script ends, and sets EVENTBUS_URL and
// EVENTBUS_TOKEN. Its subscription mail handles events, crm fails: serve-admin.
func serveAdmin(ts *testscript.TestScript, _ bool, _ []string) {
	const token = "a-token-of-the-tests"
	bus, err := eventbus.New()
	ts.Check(err)
	for _, name := range []string{"billing", "mail"} {
		_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(name))
		ts.Check(err)
	}
	_, err = bus.Subscribe("user.*", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("crm: \x1b[2Jno such user"))
	}, eventbus.Named("crm"))
	ts.Check(err)
	ts.Check(bus.Start(context.Background()))
	authorize, err := admin.BearerToken(admin.Operator{Name: "robot", Secret: token})
	ts.Check(err)
	handler, err := admin.New(bus, admin.WithPrefix("/admin"), admin.WithAuthorizer(authorize))
	ts.Check(err)
	server := httptest.NewServer(handler)
	ts.Defer(func() {
		ts.Check(bus.Shutdown(context.Background()))
		server.Close()
	})
	ts.Setenv("EVENTBUS_URL", server.URL+"/admin")
	ts.Setenv("EVENTBUS_TOKEN", token)
}

// execSQL runs statements on a database: sql FILE STATEMENTS.
func execSQL(ts *testscript.TestScript, _ bool, args []string) {
	conn, err := sqlite3.OpenConn(ts.MkAbs(args[0]))
	ts.Check(err)
	err = sqlitex.ExecuteScript(conn, args[1], nil)
	ts.Check(conn.Close())
	ts.Check(err)
}

// addUnreadable adds rows with right checksums whose contents no bus can read: unreadable FILE [catalog or directive].
func addUnreadable(ts *testscript.TestScript, _ bool, args []string) {
	ctx, now := context.Background(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := &driver.Batch{
		Now: now,
		New: []*driver.Record{{
			ID: driver.ID{15: 1}, Type: "a", Published: now, Payload: []byte("1"), Targets: []string{"mail"}, State: driver.Ready,
			Progress: []byte(`{"next":1}`),
		}},
		Bury: []*driver.Letter{{
			ID: driver.ID{15: 2}, Event: driver.ID{15: 3}, Type: "a", Subscription: "mail", Reason: "exhausted", Published: now, DiedAt: now,
			Details: []byte("7"), Failures: []byte("[]"), Payload: []byte("1"),
		}},
	}
	if len(args) > 1 {
		b = map[string]*driver.Batch{
			"catalog":   {Now: now, Catalog: &driver.Catalog{Instance: "unreadable", Seen: now, Body: []byte("7")}},
			"directive": {Now: now, Directives: []driver.Directive{{Subscription: "mail", Body: []byte("7")}}},
		}[args[1]]
	}
	store, err := sqlite.Open(ctx, ts.MkAbs(args[0]))
	ts.Check(err)
	lease, err := store.Acquire(ctx, driver.AcquireQuery{})
	ts.Check(err)
	b.Epoch = lease.Epoch
	done := make(chan error, 1)
	store.Submit(b, func(err error) { done <- err })
	ts.Check(errors.Join(<-done, store.Close(ctx)))
}

// flip flips a bit of the first byte of each occurrence of a text in a file: flip FILE TEXT.
func flip(ts *testscript.TestScript, _ bool, args []string) {
	data, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	if !bytes.Contains(data, []byte(args[1])) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	other := []byte(args[1])
	other[0] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), bytes.ReplaceAll(data, []byte(args[1]), other), 0o600))
}

// fileMode checks the permissions of a file: mode FILE OCTAL.
func fileMode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("%s has the mode %s, want %s", args[0], got, args[1])
	}
}

// waitFor runs a shell command until it succeeds: waitfor COMMAND.
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("/bin/sh", "-c", "for i in $(seq 200); do "+args[0]+" >/dev/null 2>&1 && exit; sleep 0.05; done; exit 1"))
}

// background starts the command, and sets EVENTBUS_URL to the first line that it prints: background ARG...
func background(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.CommandContext(context.Background(), "eventbus", args...)
	cmd.Dir, cmd.Env = ts.Getenv("WORK"), []string{"PATH=" + ts.Getenv("PATH"), "USER=ops"}
	for _, name := range []string{"EVENTBUS_TOKEN", "EVENTBUS_USER", "EVENTBUS_PASSWORD"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	path, err := exec.LookPath("eventbus")
	ts.Check(err)
	cmd.Path, cmd.Err = path, nil
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	ts.Check(err)
	ts.Setenv("EVENTBUS_URL", strings.TrimSpace(line))
	running.Store(ts.Getenv("WORK"), cmd)
	ts.Defer(func() { _ = cmd.Process.Kill() })
}

// running are the commands in the background, by the directory of the script.
var running sync.Map

// endBackground interrupts the command in the background, which must succeed: end-background.
func endBackground(ts *testscript.TestScript, _ bool, _ []string) {
	cmd, _ := running.Load(ts.Getenv("WORK"))
	ts.Check(cmd.(*exec.Cmd).Process.Signal(os.Interrupt))
	ts.Check(cmd.(*exec.Cmd).Wait())
}

// getPage reads a page of EVENTBUS_URL, which must contain a text: page PATH TEXT.
func getPage(ts *testscript.TestScript, _ bool, args []string) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, strings.TrimRight(ts.Getenv("EVENTBUS_URL"), "/")+args[0], nil)
	ts.Check(err)
	answer, err := new(http.Client).Do(r)
	ts.Check(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	ts.Check(err)
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), args[1]) {
		ts.Fatalf("%s: %s", answer.Status, body)
	}
}
