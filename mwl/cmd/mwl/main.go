// Command mwl checks, runs and draws workflow definitions.
//
//	mwl check saga.json
//	mwl run saga.json --input '{"order": "o-1"}' --mock mocks.json --trace
//	mwl graph saga.json --format svg >saga.svg
//
// See "mwl help exit-codes".
package main

import (
	"context"
	"fmt"
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
	a := &app{in: in, out: &output{w: out}, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if a.out.err != nil {
		err = &failure{exitIO, fmt.Errorf("the output cannot be written: %w", a.out.err), "look where it goes"}
	}
	return a.report(err)
}
