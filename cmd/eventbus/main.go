// Command eventbus is the operators' command: it lists, replays and purges dead letters, follows events,
// pauses subscriptions, and verifies and backs up the store of a bus.
//
//	eventbus dlq groups --store events.db
//	eventbus dlq replay --store events.db --type 'order.*' --dry-run
//	eventbus subs pause mail --url https://shop.example/admin --because 'mail server is down'
//
// --store opens the SQLite file of a bus, while the bus runs or not. --url speaks to the admin API of a
// running bus. EVENTBUS_STORE and EVENTBUS_URL are the defaults of the two.
//
// See "eventbus help environment" and "eventbus help exit-codes".
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the command and returns its exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: in, out: out, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	f := describe(err, a.began)
	a.report(f)
	return f.code
}
