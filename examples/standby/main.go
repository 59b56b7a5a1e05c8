// Command standby shows two processes on one SQLite file: one dispatches, and the other one is its standby.
//
//	go run ./examples/standby [-store FILE]
//
// The program starts nodes as child processes, runs of its own executable. Each node publishes an event every few
// milliseconds, whether it dispatches or not. Meanwhile, the program
//
//   - deploys: it starts a node as the standby, and shuts the active one down;
//   - deploys a version with one subscription more, to which the active bus hands over by itself;
//   - kills the active node with SIGKILL, and starts another one.
//
// It prints how long each change took: from the signal until another node has handled an event.
//
// The books balance if each subscription has handled each event that Publish has accepted, on every node. Events that were in
// progress at a kill are handled again: handlers of a durable bus run at least once.
//
// The exit status is 0 if the books balance. -store keeps the file. Without it, the file is temporary.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if isNode() {
		os.Exit(nodeMain(ctx))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status. stderr is a file, which the nodes share.
func run(ctx context.Context, args []string, stdout io.Writer, stderr *os.File) int {
	flags := flag.NewFlagSet("standby", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("store", "", "keep the events in this `file`")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: standby [-store FILE]")
		return 2
	}
	if *file == "" {
		dir, err := os.MkdirTemp("", "standby")
		if err != nil {
			fmt.Fprintln(stderr, "standby:", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*file = filepath.Join(dir, "events.db")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := changeNodes(ctx, *file, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "standby:", err)
		return 1
	}
	return 0
}

// changeNodes changes the active node again and again, and balances the books.
func changeNodes(ctx context.Context, file string, stdout io.Writer, stderr *os.File) (err error) {
	fmt.Fprint(stdout, "Two processes of a service share one file, and both publish all the time. The program deploys and kills the active one.\n\n")
	fmt.Fprintf(stdout, "%-50s %s\n", "change", "time until the other process handles events")
	c := newCluster(file, stderr)
	defer func() { err = errors.Join(err, c.killAll()) }()
	active, err := c.start(ctx, oldVersion)
	if err != nil {
		return err
	}
	if err := c.awaitHandled(ctx, active); err != nil {
		return err
	}
	version := oldVersion
	for round := range 6 {
		if round == 3 {
			version = newVersion
		}
		next, err := c.start(ctx, version)
		if err != nil {
			return err
		}
		begun := time.Now()
		var what string
		switch {
		case round%2 == 1 && round != 3:
			what = "kill"
			err = active.kill()
		case version != active.version:
			what = "deployment of a subscription, by the bus itself" // it does not wait for a shutdown
		default:
			what = "deployment"
			active.say("end")
		}
		if err = errors.Join(err, c.awaitHandled(ctx, next)); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		fmt.Fprintf(stdout, "%-50s %4d ms\n", what, time.Since(begun).Milliseconds())
		active.say("end")
		active = next
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	active.say("settle") // it publishes no more, and ends when all events are handled
	if err := c.awaitEnd(ctx, active); err != nil {
		return err
	}
	return c.books.balance(stdout)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// books has what the nodes have reported.
type books struct {
	accepted map[string]string         // versions of the publishers, by event
	handled  map[string]map[string]int // numbers of deliveries, by event and subscription
}

func newBooks() *books {
	return &books{accepted: map[string]string{}, handled: map[string]map[string]int{}}
}

func (b *books) handle(id, subscription string) {
	if b.handled[id] == nil {
		b.handled[id] = map[string]int{}
	}
	b.handled[id][subscription]++
}

// balance returns an error if an accepted event was not handled.
func (b *books) balance(out io.Writer) error {
	deliveries, repeats := 0, 0
	for id, version := range b.accepted {
		for _, name := range subscriptionsOf[version] {
			if b.handled[id][name] == 0 {
				return fmt.Errorf("event %s of a node of version %s is lost: %s has not handled it", id, version, name)
			}
		}
	}
	for _, names := range b.handled {
		for _, n := range names {
			deliveries++
			repeats += n - 1
		}
	}
	fmt.Fprintf(out, "\nOK: %d events accepted, and handled by each of their subscriptions: %d deliveries, and %d repeated after kills\n",
		len(b.accepted), deliveries, repeats)
	return nil
}
