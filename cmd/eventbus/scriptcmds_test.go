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
	"leave":          leave,
	"hold":           hold,
	"serve-standby":  serveStandby,
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
	"killwhen":       killWhen,
	"operation":      newestOperation,
	"together":       together,
	"sum":            sum,
	"waitfor":        waitFor,
	"page":           getPage,
	"background":     background,
	"end-background": endBackground,
}

// makeStore makes an empty store that has had a lease: mkstore FILE.
func makeStore(ts *testscript.TestScript, _ bool, args []string) {
	commit(ts, args[0], &driver.Batch{})
}

// commit commits a batch under the lease, which it then releases.
func commit(ts *testscript.TestScript, path string, b *driver.Batch) {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, ts.MkAbs(path))
	ts.Check(err)
	lease, err := store.Acquire(ctx, driver.AcquireQuery{Wait: true})
	ts.Check(err)
	b.Epoch = lease.Epoch
	done := make(chan error, 1)
	store.Submit(b, func(err error) { done <- err })
	ts.Check(errors.Join(<-done, store.Close(ctx)))
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

// interrupt runs the command, sends it a signal once its operation is in the audit, and checks its exit code:
// interrupt SIGNAL CODE ARG...
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	script := `before=$(eventbus audit --json 2>/dev/null | wc -l); "$@" & pid=$!
until test $(eventbus audit --json 2>/dev/null | wc -l) -gt $before; do kill -0 $pid || exit 1; done
kill -` + args[0] + ` $pid; wait $pid; test $? = ` + args[1]
	ts.Check(ts.Exec("/bin/bash", append([]string{"-c", script, "sh", "eventbus"}, args[2:]...)...))
}

// killWhen runs the command, and kills it once a file exists: killwhen FILE ARG...
func killWhen(ts *testscript.TestScript, _ bool, args []string) {
	script := `file=$1; shift; "$@" & pid=$!
until test -s $file; do kill -0 $pid || exit 1; done
kill -KILL $pid; wait $pid; test $? = 137`
	ts.Check(ts.Exec("/bin/bash", append([]string{"-c", script, "sh", args[0], "eventbus"}, args[1:]...)...))
}

// newestOperation sets ID to that of the newest operation in the output of the last command: operation.
func newestOperation(ts *testscript.TestScript, _ bool, _ []string) {
	id, _, _ := strings.Cut(strings.SplitN(ts.ReadFile("stdout"), "\n", 3)[1], " ")
	ts.Setenv("ID", id)
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

// publish commits the records of two events for the subscription mail, one of them scheduled, which no handler has
// handled: publish FILE.
func publish(ts *testscript.TestScript, _ bool, args []string) {
	published := time.Now().UTC()
	b := &driver.Batch{Now: published}
	for n, r := range []*driver.Record{
		{Key: "o-1", State: driver.Ready},
		{State: driver.Scheduled, Scheduled: scheduledFor, Due: scheduledFor},
	} {
		r.ID, r.Type, r.Published, r.Targets = driver.ID(fixedID(ts, n+1)), "order.placed", published, []string{"mail"}
		r.Payload = fmt.Appendf(nil, `{"n":%d}`, n)
		b.New = append(b.New, r)
	}
	commit(ts, args[0], b)
}

var scheduledFor = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)

// fixedID returns the id of the nth event of publish and leave.
func fixedID(ts *testscript.TestScript, n int) eventbus.EventID {
	id, err := eventbus.ParseEventID(fmt.Sprintf("01930000-0000-7000-8000-0000000000a%d", n))
	ts.Check(err)
	return id
}

// leave publishes an event, and a scheduled one, with a bus that has no lease: leave FILE.
func leave(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	bus := openBus(ts, args[0])
	for n, opt := range []eventbus.PublishOption{eventbus.Key("o-3"), eventbus.At(scheduledFor)} {
		_, err := bus.Publish(ctx, "order.placed", map[string]int{"n": n}, opt, eventbus.ID(fixedID(ts, n+3)))
		ts.Check(err)
	}
	ts.Check(bus.Shutdown(ctx))
}

// openBus returns a bus with the subscription mail, which was not started.
func openBus(ts *testscript.TestScript, path string, opts ...sqlite.Option) *eventbus.Bus {
	store, err := sqlite.Open(context.Background(), ts.MkAbs(path), opts...)
	ts.Check(err)
	with := []eventbus.Option{eventbus.WithStore(store)}
	if !store.IsExclusive() {
		with = append(with, eventbus.WithStandby())
	}
	bus, err := eventbus.New(with...)
	ts.Check(err)
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	ts.Check(err)
	return bus
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

// hold has the lease of a file until the script ends, and answers nothing: hold FILE.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(func() { ts.Check(store.Close(ctx)) })
	_, err = store.Acquire(ctx, driver.AcquireQuery{Wait: true})
	ts.Check(err)
}

// serveStandby runs a standby until the script ends, and waits until it has written its catalog: serve-standby FILE.
func serveStandby(ts *testscript.TestScript, _ bool, args []string) {
	ctx, stop := context.WithCancel(context.Background())
	bus := openBus(ts, args[0])
	started := make(chan error, 1)
	go func() { started <- bus.Start(ctx) }()
	ts.Defer(func() {
		stop()
		if err := <-started; err != nil && !errors.Is(err, context.Canceled) {
			ts.Check(err)
		}
		ts.Check(bus.Shutdown(context.Background()))
	})
	tool := openTool(ts, args[0])
	for {
		_, err := tool.Catalog(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, eventbus.ErrNoCatalog) {
			ts.Check(err)
		}
		time.Sleep(time.Millisecond)
	}
	ts.Check(tool.Shutdown(ctx))
}

// openTool returns a bus without handlers.
func openTool(ts *testscript.TestScript, path string) *eventbus.Bus {
	store, err := sqlite.Open(context.Background(), ts.MkAbs(path), sqlite.MustExist())
	ts.Check(err)
	tool, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers())
	ts.Check(err)
	return tool
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
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := &driver.Batch{
		Now: now,
		New: []*driver.Record{{
			ID: driver.ID{15: 1}, Type: "a", Published: now, Payload: []byte("1"), Targets: []string{"mail"}, State: driver.Ready,
			Progress: []byte(`{"next":2}`),
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
	commit(ts, args[0], b)
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
